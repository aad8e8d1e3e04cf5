package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

// lines collects text.
type lines struct{ strings.Builder }

func (l *lines) f(text string, args ...any) { _, _ = fmt.Fprintf(l, text+"\n", args...) }

// field writes a label and its value; an empty value writes nothing.
func (l *lines) field(label, value string) {
	if value != "" {
		l.f("%-13s %s", label, value)
	}
}

func (l *lines) to(w io.Writer) error {
	_, err := io.WriteString(w, l.String())
	return err
}

// plural counts things: "1 problem", "2 problems", "3 packed matrices".
func plural(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "matrix"):
		what = strings.TrimSuffix(what, "x") + "ce"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Sections says what Write writes instead of the summary. Placement, Memory
// and Against are what has been added.
type Sections struct{ Tensors, Layers, Placement, Memory, Against, Verification bool }

// Write writes the sections that were asked for, and the problems; or else the
// summary.
func (r *Report) Write(w io.Writer, s Sections) error {
	if s == (Sections{}) {
		return r.Summary(w)
	}
	first := true
	for _, part := range []struct {
		wanted bool
		write  func(io.Writer) error
	}{{s.Layers, r.WriteLayers}, {s.Tensors, r.WriteTensors}, {s.Placement, r.WritePlacements}, {s.Memory, r.WriteMemory}, {s.Against, r.WriteAgainst},
		{s.Verification, r.WriteVerification}} {
		if !part.wanted {
			continue
		}
		if !first {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		first = false
		if err := part.write(w); err != nil {
			return err
		}
	}
	var l lines
	l.section("problems", r.problemLines())
	if len(r.damaged) > 0 {
		l.section("damaged MTP block, which only drafts read", r.MTP.Wrong)
	}
	return l.to(w)
}

// Summary writes the report on one screen.
func (r *Report) Summary(w io.Writer) error {
	var l lines
	kind := r.Kind
	if kind != "" {
		kind += ", "
	}
	if r.Verdict == Unknown { // any file of tensors would be a checkpoint
		kind = ""
	}
	l.f("%s: %s%s", r.Path, kind, r.verdict())
	if r.Shards > 0 {
		l.f("")
	}
	if a := r.Architecture; a != nil {
		l.field("architecture", fmt.Sprintf("%s (%s): %s", a.Name, a.ModelType, a.layers()))
		l.field("", a.sizes())
		l.field("", a.Attention)
		l.field("", fmt.Sprintf("vocabulary %d, context %d", a.Vocabulary, a.Context))
	}
	if p := r.Parameters; p != nil {
		mtp := ""
		if p.MTP > 0 {
			mtp = fmt.Sprintf("; MTP block %s", cli.Amount(p.MTP))
		}
		l.field("parameters", fmt.Sprintf("%s, active per token %s (%s of weights)%s", cli.Amount(p.Total), cli.Amount(p.Active), cli.Bytes(p.ActiveBytes), mtp))
	}
	if r.Shards > 0 {
		bits := ""
		if r.Total.BitsPerWeight > 0 {
			bits = fmt.Sprintf(", %.2f bits/weight", r.Total.BitsPerWeight)
			if p := r.Parameters; p != nil && p.Quantised > 0 {
				bits += fmt.Sprintf(", %s of the parameters quantised", cli.Share(float64(p.Quantised)/float64(r.Total.Parameters)))
			}
		}
		l.field("size", fmt.Sprintf("%s in %s%s", cli.Bytes(r.FileBytes), plural(r.Shards, "shard"), bits))
	}
	l.field("completeness", r.Completeness.text())
	l.field("MTP block", r.MTP.text("of no use"))
	if r.Architecture == nil || r.Architecture.IndexTopK > 0 {
		l.field("indexer", r.Indexer.text("attention is dense"))
	}
	l.field("stamps", r.Stamps.text())
	for i, line := range r.Placement {
		l.field([]string{"placement", ""}[min(i, 1)], line)
	}
	if t := r.Tokenizer; t != nil {
		l.field("tokenizer", fmt.Sprintf("%d ids for %d rows", t.IDs, t.Rows))
	}
	if r.Origin != nil {
		l.field("made by", fmt.Sprintf("%s, recipe %s", r.Origin.Tool, r.Origin.Recipe))
	}
	for i, o := range r.Overlays {
		l.field([]string{"overlays", ""}[min(i, 1)], o.text())
	}
	if len(r.Formats) > 0 {
		l.f("")
		l.WriteString(r.formatTable())
	}
	if len(r.Roles) > 0 {
		l.f("")
		l.WriteString(r.roleTable())
	}
	l.section("not known", r.Unknown)
	l.section("problems", r.problemLines())
	l.section("warnings", r.Warnings)
	return l.to(w)
}

func (r *Report) verdict() string {
	switch {
	case len(r.Problems) > 0:
		return NotLoadable + ", " + plural(len(r.Problems), "problem")
	case r.Verdict == Unknown:
		return "tensors only"
	case len(r.damaged) > 0:
		return r.Verdict + ", MTP block damaged"
	}
	return r.Verdict
}

// layers counts a model's layers by what follows their attention.
func (a *Architecture) layers() string {
	text := plural(a.Layers, "layer")
	if a.Experts > 0 {
		text += fmt.Sprintf(", %d dense and %d with experts", a.DenseLayers, a.Layers-a.DenseLayers)
	}
	return text
}

func (a *Architecture) sizes() string {
	text := fmt.Sprintf("hidden %d, heads %d", a.Hidden, a.Heads)
	if a.Experts > 0 {
		text += fmt.Sprintf(", experts %d of which a token reads %d and %d shared", a.Experts, a.ExpertsPerToken, a.SharedExperts)
	}
	return text
}

func (c *Completeness) text() string {
	if c == nil {
		return ""
	}
	text := fmt.Sprintf("%d of %s", c.Found, plural(c.Wanted, "tensor"))
	for _, part := range []struct{ what, layers string }{{"layers", c.Complete}, {"incomplete", c.Incomplete}, {"absent", c.Absent}} {
		if part.layers != "" {
			text += fmt.Sprintf("; %s %s", part.what, part.layers)
		}
	}
	if c.Complete != "" && c.Incomplete == "" && c.Absent == "" {
		text += " complete"
	}
	if c.Extra > 0 {
		text += fmt.Sprintf("; %d more that the model does not read", c.Extra)
	}
	return text
}

// text says what a block is; without says what follows from its being incomplete.
func (b *Block) text(without string) string {
	switch {
	case b == nil:
		return ""
	case b.State == "none":
		return "none in config.json"
	}
	text := "layer "
	if strings.ContainsAny(b.Layers, ",-") {
		text = "layers "
	}
	text += b.Layers + ": " + b.State
	if b.State == "partial" || b.State == "damaged" {
		text += " (" + without + ")"
	}
	if len(b.Formats) > 0 {
		text += ", " + countsText(b.Formats)
	}
	return text
}

func countsText(list []FormatCount) string {
	var parts []string
	for _, f := range list {
		parts = append(parts, fmt.Sprintf("%d %s", f.Tensors, f.Format))
	}
	return strings.Join(parts, ", ")
}

func (o *Overlay) text() string {
	text := fmt.Sprintf("%s, %s: %s of %s", clean(o.Name), o.State, plural(o.Tensors, "tensor"), clean(o.Format))
	if len(o.Replaces) > 0 {
		text += " over " + clean(strings.Join(o.Replaces, ", "))
	}
	if o.From == quantize.FromBase {
		return text + ", made of the base itself"
	}
	return text + ", made of " + clean(o.From)
}

func (s *Stamps) text() string {
	if s.Packed == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of %s", s.Stamped, plural(s.Packed, "packed matrix"))
	switch {
	case s.Unconfirmed > 0:
		text += fmt.Sprintf("; %d without a stamp can be read in several ways", s.Unconfirmed)
	case s.Decisive > 0:
		text += fmt.Sprintf("; %d would be read as another format without", s.Decisive)
	}
	return text
}

func (r *Report) formatTable() string {
	if r.Architecture == nil {
		t := cli.NewTable("element type", "tensors", "bytes")
		for _, f := range r.Formats {
			t.Add(f.Format, f.Tensors, cli.Bytes(f.Bytes))
		}
		return t.String()
	}
	t := cli.NewTable("format", "tensors", "parameters", "bytes", "bits/weight")
	for _, f := range r.Formats {
		t.Add(f.Format, f.Tensors, cli.Amount(f.Parameters), cli.Bytes(f.Bytes), fmt.Sprintf("%.2f", f.BitsPerWeight))
	}
	return t.String()
}

func (r *Report) roleTable() string {
	t := cli.NewTable("role", "tensors", "parameters", "bytes", "bits/weight", "formats")
	for _, f := range r.Roles {
		formats := f.Formats[0].Format
		if len(f.Formats) > 1 {
			formats = countsText(f.Formats)
		}
		t.Add(f.Role, f.Tensors, cli.Amount(f.Parameters), cli.Bytes(f.Bytes), fmt.Sprintf("%.2f", f.BitsPerWeight), formats)
	}
	return t.String()
}

// maxLines bounds lists for people; JSON has everything.
const maxLines = 8

// section writes a title and a list, nothing for an empty list.
func (l *lines) section(title string, list []string) {
	if len(list) == 0 {
		return
	}
	l.f("\n%s", title)
	for _, s := range list {
		l.f("  %s", clean(s))
	}
}

// clean makes a line safe for a terminal: a hostile file chooses its names.
func clean(s string) string {
	if !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

// problemLines writes problems of one kind under one heading.
func (r *Report) problemLines() []string {
	if !r.oneByOne {
		return cli.Grouped(r.faults, true)
	}
	var list []string
	for _, p := range r.Problems {
		list = append(list, p.Kind+": "+p.Message)
	}
	return list
}

// WriteTensors writes Tensors as a table.
func (r *Report) WriteTensors(w io.Writer) error {
	head := []string{"tensor", "shape", "format", "bytes", "shard", "read"}
	if r.Against != nil {
		head = append(head, "error")
	}
	t := cli.NewTable(append(head, "note")...)
	for _, x := range r.Tensors {
		note := x.Note
		if len(x.Candidates) > 0 {
			note = strings.TrimPrefix(note+"; candidates "+strings.Join(x.Candidates, ", "), "; ")
		}
		cells := []any{clean(x.Name), shapeText(x.Shape), x.Format, cli.Bytes(x.Bytes), clean(x.Shard), x.Read}
		switch {
		case r.Against == nil:
		case x.Error == nil:
			cells = append(cells, "–")
		default:
			cells = append(cells, cli.RelativeError(*x.Error))
		}
		t.Add(append(cells, clean(note))...)
	}
	_, err := t.WriteTo(w)
	return err
}

// WriteLayers writes Layers as a map: one row for all layers that are equal,
// one column a role.
func (r *Report) WriteLayers(w io.Writer) error {
	type row struct {
		layers []int
		mtp    bool
		bytes  int64
		cells  map[string]string
	}
	var rows []*row
	byKey := map[string]*row{}
	used, outside := map[string]bool{}, []string{}
	for _, x := range r.Layers {
		cells, key := map[string]string{}, fmt.Sprint(x.MTP)
		for _, c := range x.Roles {
			text := c.text() + r.mark(&x, c.Role)
			cells[c.Role] = text
			key += " " + c.Role + "=" + text
			if x.Layer < 0 {
				outside = append(outside, c.Role+" "+text)
			}
		}
		if x.Layer < 0 {
			continue
		}
		for role, text := range cells {
			// That an MTP block shares the model's embedding and head goes without saying.
			shared := role == quantize.Embed.String() || role == quantize.Head.String()
			used[role] = used[role] || !shared || text != absent
		}
		if byKey[key] == nil {
			byKey[key] = &row{mtp: x.MTP, bytes: x.Bytes, cells: cells}
			rows = append(rows, byKey[key])
		}
		byKey[key].layers = append(byKey[key].layers, x.Layer)
	}
	var roles []string
	head := []string{"layer"}
	for _, role := range quantize.Roles() {
		if used[role.String()] {
			roles = append(roles, role.String())
		}
	}
	t := cli.NewTable(slices.Concat(head, roles, []string{"bytes/layer"})...).Left(0)
	for _, x := range rows {
		labels := wrapRanges(format.Ranges(x.layers), 24)
		if x.mtp {
			labels[len(labels)-1] += " MTP"
		}
		cells := []any{labels[0]}
		for _, role := range roles {
			text := x.cells[role]
			if text == "" {
				text = "–"
			}
			cells = append(cells, text)
		}
		t.Add(append(cells, cli.Bytes(x.bytes))...)
		for _, label := range labels[1:] {
			t.Add(label)
		}
	}
	var l lines
	l.f("outside the layers: %s\n", strings.Join(outside, ", "))
	l.WriteString(t.String())
	if legend := r.legend(); legend != "" {
		l.f("\n%s", legend)
	}
	if len(r.Placements) > 0 {
		l.f("* not on the GPU, ! read wrongly, by %s", r.placers())
	}
	return l.to(w)
}

// wrapRanges cuts a list of ranges into lines of at most about width characters.
func wrapRanges(text string, width int) []string {
	var out []string
	line := ""
	for part := range strings.SplitSeq(text, ",") {
		if line != "" && len(line)+len(part) > width {
			out = append(out, line+",")
			line = ""
		}
		if line != "" {
			line += ","
		}
		line += part
	}
	return append(out, line)
}

// legend explains the short names that the map uses.
func (r *Report) legend() string {
	used := map[string]bool{}
	for _, x := range r.Layers {
		for _, c := range x.Roles {
			for _, f := range c.Formats {
				used[f.Format] = true
			}
		}
	}
	var parts []string
	for _, f := range r.Formats {
		if s := short(f.Format); used[f.Format] && s != f.Format {
			parts = append(parts, s+" = "+f.Format)
		}
	}
	return strings.Join(parts, ", ")
}
