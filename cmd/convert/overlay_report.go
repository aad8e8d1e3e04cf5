package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

// overlayReport is what convert overlay prints: as it is with --json, as text
// otherwise. The fields after Destination are absent for a plan.
type overlayReport struct {
	plan *quantize.Overlay

	Base        string                 `json:"base"`
	Source      string                 `json:"source"` // of the values: the base or a checkpoint
	Output      string                 `json:"output"` // the base or a directory of its own
	InPlace     bool                   `json:"in_place"`
	Overlay     string                 `json:"overlay"` // its name, the prefix of the shards
	Tensors     []string               `json:"tensors"` // names that differ in numbers share a line
	Total       quantize.Summary       `json:"total"`
	Roles       []quantize.RoleSummary `json:"roles"`
	Replaced    quantize.Summary       `json:"replaced"` // in the base; bytes are those that stay there unread
	MTPLeft     []string               `json:"mtp_left"` // of the MTP block, asked for but not replaced
	Shards      []shard                `json:"shards"`
	Warnings    []string               `json:"warnings"`
	Destination *destination           `json:"destination"`

	Result       *outcome               `json:"result,omitempty"`
	Verification *quantize.Verification `json:"verification,omitempty"` // absent without --verify
	PeakMemory   int64                  `json:"peak_memory_bytes,omitempty"`
}

func newOverlayReport(base, from string, o *quantize.Overlay, d *quantize.OverlayDestination) *overlayReport {
	r := &overlayReport{plan: o, Base: base, Source: from, Output: d.Dir, InPlace: o.InPlace(), Overlay: o.Name, Total: o.Total(), Roles: o.ByRole(), Replaced: o.Replaced(),
		MTPLeft: list(wantNames(o.MTPLeft)), Warnings: list(o.Warnings), Destination: &destination{Needed: d.Needed, Free: d.Free, Complete: d.Complete}}
	if o.FromBase {
		r.Source = base
	}
	var names []string
	for i := range o.Items {
		names = append(names, o.Items[i].Want.Name)
	}
	r.Tensors = format.Collapse(names)
	for i, s := range o.Shards {
		r.Shards = append(r.Shards, shard{Name: s.Name, Bytes: s.Size, Tensors: len(s.Items), Kept: d.Kept[i], source: s.Source})
	}
	return r
}

func wantNames(wants []quantize.Want) []string {
	var names []string
	for _, w := range wants {
		names = append(names, w.Name)
	}
	return format.Collapse(names)
}

// intent is the line before the work begins.
func (r *overlayReport) intent() string {
	from := r.Source
	if r.plan.FromBase {
		from = "the base itself"
	}
	text := fmt.Sprintf("overlay %s: %s, %s → %s (%s) from %s", r.Overlay, strings.Join(r.Tensors, ", "), formats(r.Replaced.Formats), formats(r.Total.Formats), cli.Bytes(r.Total.BytesOut), from)
	if r.Destination.Complete {
		return text + ", complete already"
	}
	return text
}

func (r *overlayReport) print(cmd *cobra.Command) error {
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

func (r *overlayReport) text() string {
	var b strings.Builder
	c := report{Roles: r.Roles, Verification: r.Verification, Total: r.Total}
	b.WriteString(c.table("overlay"))
	fmt.Fprintf(&b, "replaces %s of the base, %s that stay there unread: %s\n", formats(r.Replaced.Formats), cli.Bytes(r.Replaced.BytesOut), strings.Join(r.Tensors, ", "))
	if len(r.MTPLeft) > 0 {
		fmt.Fprintf(&b, "the MTP block keeps its own, --mtp replaces them too: %s\n", strings.Join(r.MTPLeft, ", "))
	}
	if least, worst := r.baseErrors(); worst > 0 {
		fmt.Fprintf(&b, "error of what is replaced: %s to %s\n", cli.RelativeError(least), cli.RelativeError(worst))
	}
	b.WriteString(r.heads())
	b.WriteString(r.last())
	return b.String()
}

// baseErrors is the least and the largest error of the tensors that are
// replaced, where the source tells.
func (r *overlayReport) baseErrors() (least, worst float64) {
	if r.Verification == nil || len(r.Verification.Tensors) == 0 {
		return 0, 0
	}
	least = r.Verification.Tensors[0].Base
	for _, e := range r.Verification.Tensors {
		least, worst = min(least, e.Base), max(worst, e.Base)
	}
	return least, worst
}

// heads says how the error is spread over attention heads.
func (r *overlayReport) heads() string {
	if r.Verification == nil || len(r.Verification.Heads) == 0 {
		return ""
	}
	least, worst, at, head, n := 1e300, -1.0, "", 0, 0
	for _, t := range r.Verification.Heads {
		for h, e := range t.Errors {
			n++
			least = min(least, e)
			if e > worst {
				worst, at, head = e, t.Tensor, h
			}
		}
	}
	if worst == 0 {
		return "every head of kv_b is exact\n"
	}
	return fmt.Sprintf("error of each of %d heads of kv_b: %s to %s, the worst is head %d of %s\n", n, cli.RelativeError(least), cli.RelativeError(worst), head, at)
}

// tensors is a table of every tensor, with its error if it was measured.
func (r *overlayReport) tensors() string {
	errs, was := map[string]float64{}, map[string]float64{}
	heads := map[string]float64{}
	if r.Verification != nil {
		for _, e := range r.Verification.Tensors {
			errs[e.Tensor], was[e.Tensor] = e.Error, e.Base
		}
		for _, h := range r.Verification.Heads {
			for _, e := range h.Errors {
				heads[h.Tensor] = max(heads[h.Tensor], e)
			}
		}
	}
	head := []string{"tensor", "source", "format", "overlay", "shard"}
	if r.Verification != nil {
		head = append(head, "error of base", "error", "worst head")
	}
	table := cli.NewTable(head...)
	for _, s := range r.plan.Shards {
		for i := range s.Items {
			it := &s.Items[i]
			row := []any{it.Want.Name, fmt.Sprintf("%s[%d,%d]", it.Source.Stored.Name(), it.Spec.Rows, it.Spec.Cols), it.Spec.Name(), cli.Bytes(it.Bytes()), s.Name}
			if r.Verification != nil {
				worst := "–"
				if e, ok := heads[it.Want.Name]; ok {
					worst = cli.RelativeError(e)
				}
				row = append(row, cli.RelativeError(was[it.Want.Name]), cli.RelativeError(errs[it.Want.Name]), worst)
			}
			table.Add(row...)
		}
	}
	return table.String()
}

// last is the line that says it all.
func (r *overlayReport) last() string {
	where := r.Output
	if len(r.Shards) == 1 {
		where = r.Shards[0].Name + " in " + where
	} else {
		where = count(len(r.Shards), "shard") + " in " + where
	}
	parts := []string{
		fmt.Sprintf("%s → %s", cli.Bytes(r.Total.BytesIn), cli.Bytes(r.Total.BytesOut)),
		fmt.Sprintf("%.2f bits/weight", r.Total.BitsPerWeight), where,
	}
	switch res := r.Result; {
	case res == nil && r.Destination.Complete:
		parts = append(parts, "complete already")
	case res == nil:
		if d := r.Destination; d.Free >= 0 {
			parts = append(parts, fmt.Sprintf("%s to write, %s free", cli.Bytes(d.Needed), cli.Bytes(d.Free)))
		}
	case res.Written == 0:
		parts = append(parts, "complete already")
	case res.BytesPerSecond > 0:
		parts = append(parts, fmt.Sprintf("%s, %s GB/s", seconds(res.Seconds), cli.Rate(res.BytesPerSecond/1e9)))
	}
	if r.Result != nil && r.Result.VerifySeconds > 0 {
		parts = append(parts, "verified in "+seconds(r.Result.VerifySeconds))
	}
	return strings.Join(parts, " · ") + "\n"
}

// next says how the overlay is used.
func (r *overlayReport) next() string {
	if r.InPlace {
		return fmt.Sprintf("run %s uses it; convert overlay --remove %s %s gives the base back", r.Base, r.Overlay, r.Base)
	}
	return fmt.Sprintf("run --overlay %s %s uses it", r.Output, r.Base)
}
