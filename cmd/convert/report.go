package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/quantize"
)

// report is what convert prints: as it is with --json, as text otherwise. The
// fields after Destination are absent for a plan.
type report struct {
	plan    *quantize.Plan
	leftOut string

	Checkpoint    string                 `json:"checkpoint"`
	Output        string                 `json:"output,omitempty"`
	Architecture  string                 `json:"architecture"`
	Recipe        string                 `json:"recipe"`
	Total         quantize.Summary       `json:"total"`
	Roles         []quantize.RoleSummary `json:"roles"` // the MTP block's matrices are one
	Shards        []shard                `json:"shards"`
	Files         []quantize.FileCopy    `json:"files"`    // copied as they are
	LeftOut       []string               `json:"left_out"` // by the recipe; names that differ in numbers share a line
	Substitutions []quantize.Renamed     `json:"substitutions"`
	Warnings      []string               `json:"warnings"`
	Destination   *destination           `json:"destination,omitempty"` // absent without OUT

	Result       *outcome               `json:"result,omitempty"`
	Verification *quantize.Verification `json:"verification,omitempty"` // absent without --verify
	PeakMemory   int64                  `json:"peak_memory_bytes,omitempty"`
}

// shard is a file of the container.
type shard struct {
	Name    string `json:"name"`
	Bytes   int64  `json:"bytes"`
	Tensors int    `json:"tensors"`
	Kept    bool   `json:"kept"` // complete from an earlier run
	source  int64
}

// destination is what the plan finds in OUT.
type destination struct {
	Needed   int64 `json:"needed_bytes"`
	Free     int64 `json:"free_bytes"` // -1 where the system does not tell
	Complete bool  `json:"complete"`   // an earlier run finished the job
}

// outcome is what a conversion did; shards are counted.
type outcome struct {
	Written        int     `json:"shards_written"`
	Kept           int     `json:"shards_kept"`
	Seconds        float64 `json:"seconds"`
	BytesPerSecond float64 `json:"source_bytes_per_second"` // of the shards written
	VerifySeconds  float64 `json:"verify_seconds"`
}

func newReport(dir, arch string, p *quantize.Plan) *report {
	r := &report{plan: p, Checkpoint: dir, Architecture: arch, Recipe: p.Recipe.Name, Total: p.Total(), Roles: p.ByRole(), Files: p.Files,
		Substitutions: list(p.Substitutions()), Warnings: list(p.Warnings)}
	parts, names := p.LeftOut()
	r.leftOut, r.LeftOut = strings.Join(parts, ", "), list(names)
	for _, s := range p.Shards {
		r.Shards = append(r.Shards, shard{Name: s.Name, Bytes: s.Size, Tensors: len(s.Items), source: s.Source})
	}
	return r
}

// list makes JSON print [] for none.
func list[T any](s []T) []T { return append([]T{}, s...) }

// read is the source bytes of the shards that this run wrote.
func (r *report) read() int64 {
	var n int64
	for _, s := range r.Shards {
		if !s.Kept {
			n += s.source
		}
	}
	return n
}

// intent is the line before the work begins.
func (r *report) intent() string {
	t := r.Total
	text := fmt.Sprintf("%s, recipe %s: %d tensors, %s → %s (%.2f bits/weight) in %s", r.Architecture, r.Recipe, t.Tensors,
		cli.Bytes(t.BytesIn), cli.Bytes(t.BytesOut), t.BitsPerWeight, count(len(r.Shards), "shard"))
	kept := 0
	for _, s := range r.Shards {
		if s.Kept {
			kept++
		}
	}
	switch {
	case r.Destination != nil && r.Destination.Complete:
		text += ", complete already"
	case kept > 0:
		text += fmt.Sprintf(", %d kept from an earlier run", kept)
	}
	return text
}

// resumption says what an interrupted run left.
func (r *report) resumption() string {
	m, err := quantize.ReadManifest(r.Output)
	if err != nil || len(m.Shards) == 0 {
		return "no shard was finished, nothing is left"
	}
	return fmt.Sprintf("%d of %s finished, the same command continues", len(m.Shards), count(len(r.Shards), "shard"))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (r *report) print(cmd *cobra.Command) error {
	if cli.JSON(cmd) {
		return cli.PrintJSON(cmd, r)
	}
	text := r.text()
	if cli.Verbose(cmd) {
		text = r.tensors() + "\n" + text
	}
	_, err := io.WriteString(cmd.OutOrStdout(), text)
	return err
}

// table is a row for each role; what is what was written.
func (r *report) table(what string) string {
	head := []string{"role", "tensors", "weights", "source", what, "bits/weight", "format"}
	errs := map[string]quantize.RoleError{}
	if r.Verification != nil {
		head = append(head, "error", "worst", "of tensor")
		for _, e := range r.Verification.Roles {
			errs[e.Role] = e
		}
	}
	table := cli.NewTable(head...)
	add := func(role string, s quantize.Summary, e quantize.RoleError) {
		row := []any{role, s.Tensors, cli.Amount(s.Parameters), cli.Bytes(s.BytesIn), cli.Bytes(s.BytesOut), fmt.Sprintf("%.2f", s.BitsPerWeight), formats(s.Formats)}
		if r.Verification != nil {
			row = append(row, cli.RelativeError(e.Error), "–", "")
			if e.Worst.Error > 0 {
				row = append(row[:len(row)-2], cli.RelativeError(e.Worst.Error), e.Worst.Tensor)
			}
		}
		table.Add(row...)
	}
	for _, s := range r.Roles {
		add(s.Role, s.Summary, errs[s.Role])
	}
	return table.String()
}

func (r *report) text() string {
	var b strings.Builder
	b.WriteString(r.table("container"))
	if r.leftOut != "" {
		fmt.Fprintf(&b, "left out by the recipe: %s\n", r.leftOut)
	}
	for _, s := range r.Substitutions {
		fmt.Fprintf(&b, "written as %s: %s (%s)\n", s.Format, strings.Join(s.Tensors, ", "), s.Why)
	}
	b.WriteString(r.last())
	return b.String()
}

// tensors is a table of every tensor.
func (r *report) tensors() string {
	head := []string{"tensor", "source", "format", "container", "shard"}
	errs := map[string]float64{}
	if v := r.Verification; v != nil {
		head = append(head, "error")
		for _, e := range v.Tensors {
			errs[e.Tensor] = e.Error
		}
	}
	table := cli.NewTable(head...)
	for _, s := range r.plan.Shards {
		for i := range s.Items {
			it := &s.Items[i]
			row := []any{it.Want.Name, fmt.Sprintf("%s%v", it.Source.DType, it.Want.Shape), it.Spec.Name(), cli.Bytes(it.Bytes()), s.Name}
			if r.Verification != nil {
				row = append(row, cli.RelativeError(errs[it.Want.Name]))
			}
			table.Add(row...)
		}
	}
	text := table.String()
	for _, name := range r.LeftOut {
		text += "left out: " + name + "\n"
	}
	return text
}

// last is the line that says it all.
func (r *report) last() string {
	t := r.Total
	parts := []string{
		fmt.Sprintf("%s → %s", cli.Bytes(t.BytesIn), cli.Bytes(t.BytesOut)),
		fmt.Sprintf("%.2f bits/weight", t.BitsPerWeight),
		fmt.Sprintf("%s of %s parameters quantised", cli.Share(float64(t.Quantised)/float64(max(t.Parameters, 1))), cli.Amount(t.Parameters)),
	}
	switch {
	case r.Result == nil:
		parts = append(parts, fmt.Sprintf("%s of at most %s", count(len(r.Shards), "shard"), cli.Bytes(r.largest())))
		if d := r.Destination; d != nil && d.Free >= 0 {
			parts = append(parts, fmt.Sprintf("%s to write, %s free", cli.Bytes(d.Needed), cli.Bytes(d.Free)))
		}
	case r.Verification != nil && r.Verification.Worst.Error > 0:
		parts = append(parts, fmt.Sprintf("worst tensor %s %s", cli.RelativeError(r.Verification.Worst.Error), r.Verification.Worst.Tensor))
	}
	if res := r.Result; res != nil {
		if res.Written == 0 {
			parts = append(parts, "complete already")
		} else {
			parts = append(parts, fmt.Sprintf("%s, %s GB/s", seconds(res.Seconds), cli.Rate(res.BytesPerSecond/1e9)))
		}
		if res.VerifySeconds > 0 {
			parts = append(parts, "verified in "+seconds(res.VerifySeconds))
		}
	}
	return strings.Join(parts, " · ") + "\n"
}

func (r *report) largest() int64 {
	var n int64
	for _, s := range r.Shards {
		n = max(n, s.Bytes)
	}
	return n
}

func seconds(s float64) string { return cli.Duration(time.Duration(s * float64(time.Second))) }

func formats(list []quantize.Count) string {
	if len(list) == 1 {
		return list[0].Format
	}
	parts := make([]string, len(list))
	for i, c := range list {
		parts[i] = fmt.Sprintf("%s ×%d", c.Format, c.Tensors)
	}
	return strings.Join(parts, ", ")
}
