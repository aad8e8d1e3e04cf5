package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

// overlayList is what convert overlay --list prints.
type overlayList struct {
	Directory string                 `json:"directory"`
	Overlays  []quantize.OverlayInfo `json:"overlays"`
	Others    []otherOverlay         `json:"others"`
}

// otherOverlay is a shard whose tensors replace those of others although no
// record says why.
type otherOverlay struct {
	Shard    string   `json:"shard"`
	Bytes    int64    `json:"bytes"`
	Replaces []string `json:"replaces"` // names that differ in numbers share a line
}

func listOverlays(cmd *cobra.Command, dir string) error {
	if err := isDir(dir); err != nil {
		return err
	}
	overlays, err := quantize.Overlays(dir)
	if err != nil {
		return err
	}
	snap, err := format.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = snap.Close() }()
	l := overlayList{Directory: dir, Overlays: list(overlays), Others: list(others(snap, overlays))}
	if cli.JSON(cmd) {
		return cli.PrintJSON(cmd, l)
	}
	_, err = io.WriteString(cmd.OutOrStdout(), l.text())
	return err
}

// others finds shards without a record that hold tensors which another shard
// holds too.
func others(snap *format.Snapshot, overlays []quantize.OverlayInfo) []otherOverlay {
	recorded := map[string]bool{}
	for _, o := range overlays {
		for _, s := range o.Shards {
			recorded[s.Name] = true
		}
	}
	var list []otherOverlay
	replaced := map[*format.Shard][]string{}
	for _, s := range snap.Shards {
		for _, t := range s.Tensors {
			if w := snap.Tensor(t.Name); w != nil && w.Shard != s && !strings.HasSuffix(t.Name, format.ScaleSuffix) {
				replaced[w.Shard] = append(replaced[w.Shard], t.Name)
			}
		}
	}
	for _, s := range snap.Shards {
		if name := filepath.Base(s.Path); len(replaced[s]) > 0 && !recorded[name] {
			slices.Sort(replaced[s])
			list = append(list, otherOverlay{name, s.Size, format.Collapse(replaced[s])})
		}
	}
	return list
}

func (l *overlayList) text() string {
	if len(l.Overlays)+len(l.Others) == 0 {
		return "no overlays\n"
	}
	table := cli.NewTable("overlay", "state", "tensors", "bytes", "format", "replaces", "from")
	for _, o := range l.Overlays {
		var formats []string
		for _, r := range o.Replaces {
			formats = append(formats, r.Format)
		}
		table.Add(o.Name, o.State, o.Tensors, cli.Bytes(o.Bytes), o.Format, strings.Join(formats, ", "), o.From)
	}
	var b strings.Builder
	if len(l.Overlays) > 0 {
		b.WriteString(table.String())
	}
	for _, o := range l.Overlays {
		for _, r := range o.Replaces {
			fmt.Fprintf(&b, "%s replaces %s: %s\n", o.Name, r.Format, strings.Join(r.Names, ", "))
		}
		switch o.State {
		case quantize.OverlayUnfinished, quantize.OverlayShadowed:
			fmt.Fprintf(&b, "%s is not read: the command that began it continues, --remove %s takes it away\n", o.Name, o.Name)
		case quantize.OverlayMerging:
			fmt.Fprintf(&b, "%s is in a part of the base's shards already: --merge %s continues\n", o.Name, o.Name)
		}
	}
	for _, o := range l.Others {
		fmt.Fprintf(&b, "%s, %s, which this command did not write, replaces %s\n", o.Shard, cli.Bytes(o.Bytes), strings.Join(o.Replaces, ", "))
	}
	return b.String()
}

func removeOverlay(cmd *cobra.Command, dir, name string) error {
	info, err := quantize.RemoveOverlay(dir, name)
	if err != nil {
		return err
	}
	if cli.JSON(cmd) {
		return cli.PrintJSON(cmd, map[string]any{"directory": dir, "removed": info})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed the overlay %s (%d tensors, %s)\n", name, info.Tensors, cli.Bytes(info.Bytes))
	return err
}

// mergeReport is what convert overlay --merge prints.
type mergeReport struct {
	Base    string                `json:"base"`
	Overlay string                `json:"overlay"`
	Shards  []quantize.MergeShard `json:"shards"`
	Bytes   int64                 `json:"bytes"` // to write
	Needed  int64                 `json:"needed_bytes"`
	Free    int64                 `json:"free_bytes"`
	Saved   int64                 `json:"saved_bytes"` // by which the directories shrink
	Result  *outcome              `json:"result,omitempty"`
}

func mergeOverlay(cmd *cobra.Command, base string, f *overlayFlags) error {
	dir := base
	if f.out != "" {
		dir = f.out
	}
	m, err := quantize.NewMerge(base, dir, f.merge)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	r := mergeReport{Base: base, Overlay: f.merge, Shards: list(m.Shards), Bytes: m.Bytes(), Needed: m.Needed, Free: m.Free, Saved: m.Saved}
	if !f.dryRun {
		progress := cli.NewProgress(cmd, "merge", m.Bytes())
		defer progress.Done()
		start := time.Now()
		result, err := m.Run(cmd.Context(), quantize.ExecuteOptions{Progress: progress.Add, Shard: func(name string, done bool) {
			if done {
				name += ", done by the earlier run"
			}
			progress.Line(name)
		}})
		progress.Done()
		if err != nil {
			if cmd.Context().Err() != nil {
				return cli.Hint(err, "the base can be loaded as it is; the same command continues")
			}
			return err
		}
		r.Result = &outcome{Written: result.Written, Kept: result.Kept, Seconds: time.Since(start).Seconds()}
	}
	if cli.JSON(cmd) {
		return cli.PrintJSON(cmd, r)
	}
	_, err = io.WriteString(cmd.OutOrStdout(), r.text(m.Dir))
	return err
}

func (r *mergeReport) text(dir string) string {
	tensors := 0
	for _, s := range r.Shards {
		tensors += s.Tensors
	}
	what := fmt.Sprintf("%d tensors of %s into %s of %s", tensors, r.Overlay, count(len(r.Shards), "shard"), r.Base)
	if r.Result == nil {
		text := fmt.Sprintf("would fold %s: %s to write, %s at a time", what, cli.Bytes(r.Bytes), cli.Bytes(r.Needed))
		if r.Free >= 0 {
			text += fmt.Sprintf(", %s free", cli.Bytes(r.Free))
		}
		return text + "\n"
	}
	text := fmt.Sprintf("folded %s in %s", what, seconds(r.Result.Seconds))
	switch {
	case r.Saved > 0:
		text += fmt.Sprintf("; %s less on disk", cli.Bytes(r.Saved))
	case r.Saved < 0:
		text += fmt.Sprintf("; %s more on disk", cli.Bytes(-r.Saved))
	}
	if dir != r.Base {
		text += fmt.Sprintf("; %s is no longer needed", dir)
	}
	return text + "\n"
}
