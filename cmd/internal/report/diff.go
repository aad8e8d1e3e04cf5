package report

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

// DiffSchema is the version of Diff as JSON; it grows as Schema does.
const DiffSchema = 1

// Diff is two snapshots, tensor by tensor.
type Diff struct {
	Schema   int          `json:"schema"`
	A        string       `json:"a"`
	B        string       `json:"b"`
	Equal    bool         `json:"equal"`
	Values   bool         `json:"values"`   // that values were compared, not headers only
	Compared int          `json:"compared"` // tensors that both have
	Same     int          `json:"same"`     // of these show no difference
	Config   []string     `json:"config"`   // keys of config.json that differ
	Tensors  []TensorDiff `json:"tensors"`  // the others
	BytesA   int64        `json:"bytes_a"`
	BytesB   int64        `json:"bytes_b"`
}

// TensorDiff is a tensor that differs.
type TensorDiff struct {
	Name    string  `json:"name"`
	Role    string  `json:"role,omitempty"`
	What    string  `json:"what"` // "only in A", "only in B", "shape", "format", "values", "unreadable"
	ShapeA  []int   `json:"shape_a"`
	ShapeB  []int   `json:"shape_b"`
	FormatA string  `json:"format_a"`
	FormatB string  `json:"format_b"`
	BytesA  int64   `json:"bytes_a"`
	BytesB  int64   `json:"bytes_b"`
	Differ  int64   `json:"differ"` // values
	Error   float64 `json:"error"`  // sqrt(Σ(a−b)²/Σa²)
	Largest float64 `json:"largest"`
	Problem string  `json:"problem,omitempty"` // why the values could not be compared
}

// The ways in which tensors differ.
const (
	onlyInA       = "only in A"
	onlyInB       = "only in B"
	otherShape    = "shape"
	otherFormat   = "format"
	otherValues   = "values"
	cannotCompare = "unreadable"
)

// side is a tensor as one of the snapshots has it.
type side struct {
	found  *quantize.Found // nil for one that the model does not read
	tensor *format.Tensor
	scales *format.Tensor
	shape  []int
	format string
	bytes  int64
}

// sides lists a snapshot's tensors by the names that its model gives them. What
// is wrong with them shows in the comparison, or else inspect says it.
func (r *Report) sides() map[string]side {
	list := map[string]side{}
	used := map[string]bool{}
	if r.census != nil {
		for i := range r.census.Found {
			f := &r.census.Found[i]
			list[f.Name] = side{f, f.Tensor, f.Scales, f.Shape, f.Spec.Name(), bytesOf(f)}
			used[f.Tensor.Name] = true
			if f.Scales != nil {
				used[f.Scales.Name] = true
			}
		}
	}
	for _, name := range r.snap.Names() {
		if t := r.snap.Tensor(name); !used[name] {
			list[name] = side{nil, t, nil, append([]int{}, t.Shape...), string(t.DType), t.Size}
		}
	}
	return list
}

// Compare holds two snapshots against each other from headers alone. Both stay
// open as long as the Diff is used.
func Compare(a, b *Report) (*Diff, *Values) {
	d := &Diff{Schema: DiffSchema, A: a.Path, B: b.Path, Config: differingKeys(a.snap, b.snap), Tensors: []TensorDiff{}}
	v := &Values{diff: d}
	as, bs := a.sides(), b.sides()
	names := map[string]bool{}
	for _, sides := range []map[string]side{as, bs} {
		for name := range sides {
			names[name] = true
		}
	}
	order := slices.Sorted(maps.Keys(names))
	for _, name := range order {
		x, inA := as[name]
		y, inB := bs[name]
		d.BytesA += x.bytes
		d.BytesB += y.bytes
		t := TensorDiff{Name: name, ShapeA: append([]int{}, x.shape...), ShapeB: append([]int{}, y.shape...), FormatA: x.format, FormatB: y.format, BytesA: x.bytes, BytesB: y.bytes}
		if f := cmp.Or(x.found, y.found); f != nil {
			t.Role = roleOf(f.Want).String()
		}
		switch {
		case !inB:
			t.What = onlyInA
		case !inA:
			t.What = onlyInB
		case !slices.Equal(x.shape, y.shape):
			t.What = otherShape
		case x.format != y.format || x.bytes != y.bytes:
			t.What = otherFormat
		}
		if inA && inB {
			d.Compared++
			if t.What == "" {
				d.Same++
			}
			if t.What != otherShape {
				v.pairs = append(v.pairs, valuePair{t, x, y})
			}
		}
		if t.What != "" {
			d.Tensors = append(d.Tensors, t)
		}
	}
	d.conclude()
	return d, v
}

func (d *Diff) conclude() { d.Equal = len(d.Tensors) == 0 && len(d.Config) == 0 }

// differingKeys compares config.json key by key; a file that is in one
// snapshot only is the key "config.json".
func differingKeys(a, b *format.Snapshot) []string {
	list := []string{}
	read := func(s *format.Snapshot) (map[string]any, error) {
		data, err := s.ReadJSONFile("config.json")
		var v map[string]any
		if err == nil {
			err = json.Unmarshal(data, &v)
		}
		return v, err
	}
	x, errA := read(a)
	y, errB := read(b)
	switch {
	case errors.Is(errA, fs.ErrNotExist) && errors.Is(errB, fs.ErrNotExist):
		return list
	case errA != nil || errB != nil:
		return append(list, "config.json")
	}
	keys := map[string]bool{}
	for k := range x {
		keys[k] = true
	}
	for k := range y {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		vx, okx := x[k]
		vy, oky := y[k]
		ax, _ := json.Marshal(vx)
		ay, _ := json.Marshal(vy)
		if okx != oky || !bytes.Equal(ax, ay) {
			list = append(list, k)
		}
	}
	return list
}

// Values compares what tensors hold.
type Values struct {
	diff  *Diff
	pairs []valuePair
}

type valuePair struct {
	TensorDiff
	a, b side
}

// Bytes is how many bytes Compare tells of.
func (v *Values) Bytes() int64 {
	var n int64
	for _, p := range v.pairs {
		n += p.b.tensor.Size
	}
	return n
}

// Compare reads all tensors that both snapshots have in the same shape, and
// adds to the Diff what differs. Progress may be nil.
func (v *Values) Compare(ctx context.Context, threads int, progress *cli.Progress) error {
	var pairs []pair
	var at []int
	byName := map[string]TensorDiff{}
	for _, t := range v.diff.Tensors {
		byName[t.Name] = t
	}
	for i, p := range v.pairs {
		x, errX := p.a.source()
		y, errY := p.b.source()
		if err := errors.Join(errX, errY); err != nil {
			v.pairs[i].TensorDiff = p.raw(err)
			progress.Add(p.b.tensor.Size)
			continue
		}
		pairs, at = append(pairs, pair{a: x, b: y}), append(at, i)
	}
	if err := compare(ctx, pairs, threads, progress); err != nil {
		return err
	}
	for i, x := range pairs {
		t := &v.pairs[at[i]].TensorDiff
		t.Differ, t.Error, t.Largest = x.diff.Differ, x.diff.Relative, x.diff.Largest
		switch {
		case x.err != nil: // such as NaN, which both may have
			t.Differ, t.Error, t.Largest = 0, 0, 0
			*t = v.pairs[at[i]].raw(x.err)
		case x.diff.Differ > 0:
			t.What = cmp.Or(t.What, otherValues)
		}
	}
	v.diff.Values = true
	for _, p := range v.pairs {
		if p.What != "" {
			if _, listed := byName[p.Name]; !listed {
				v.diff.Same--
			}
			byName[p.Name] = p.TensorDiff
		}
	}
	v.diff.Tensors = v.diff.Tensors[:0]
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		v.diff.Tensors = append(v.diff.Tensors, byName[name])
	}
	v.diff.conclude()
	return nil
}

// source is a tensor to decode. One that no model knows is a row of numbers.
func (s *side) source() (*quantize.Source, error) {
	if s.found != nil {
		if _, err := quantize.CodecFor(s.found.Spec.Format); err != nil {
			return nil, err
		}
		return s.found.Source(), nil
	}
	r := run(s.tensor)
	if r.opaque || r.spec.Format == format.FP8 {
		return nil, errNoValues
	}
	return &quantize.Source{Name: s.tensor.Name, Rows: 1, Cols: r.spec.Cols, DType: s.tensor.DType, Stored: r.spec, Tensor: s.tensor}, nil
}

var errNoValues = errors.New("its values are not known")

// raw compares the bytes of tensors whose values are not known.
func (p *valuePair) raw(why error) TensorDiff {
	t := p.TensorDiff
	if t.What != "" {
		t.Problem = why.Error()
		return t
	}
	same, err := sameBytes(p.a.tensor, p.b.tensor)
	if err == nil && same && p.a.scales != nil && p.b.scales != nil {
		same, err = sameBytes(p.a.scales, p.b.scales)
	}
	switch {
	case err != nil:
		t.What, t.Problem = cannotCompare, err.Error()
	case !same:
		t.What, t.Problem = otherValues, why.Error()
	}
	return t
}

func sameBytes(a, b *format.Tensor) (bool, error) {
	if a.Size != b.Size {
		return false, nil
	}
	var x, y [1 << 16]byte
	for at := int64(0); at < a.Size; at += int64(len(x)) {
		n := min(int64(len(x)), a.Size-at)
		if err := errors.Join(readAt(a, x[:n], at), readAt(b, y[:n], at)); err != nil {
			return false, err
		}
		if !bytes.Equal(x[:n], y[:n]) {
			return false, nil
		}
	}
	return true, nil
}

// Err is nil for equal snapshots; otherwise its exit code is 1.
func (d *Diff) Err() error {
	if d.Equal {
		return nil
	}
	var parts []string
	if n := len(d.Tensors); n > 0 {
		parts = append(parts, plural(n, "tensor"))
	}
	if n := len(d.Config); n > 0 {
		parts = append(parts, plural(n, "key")+" of config.json")
	}
	return fmt.Errorf("%s and %s differ: %s", d.A, d.B, strings.Join(parts, ", "))
}

// Write writes the Diff: tensors that differ in the same way share a line.
func (d *Diff) Write(w io.Writer) error {
	var l lines
	l.f("A %s, %s", d.A, cli.Bytes(d.BytesA))
	l.f("B %s, %s", d.B, cli.Bytes(d.BytesB))
	if len(d.Config) > 0 {
		l.f("\nconfig.json differs in %s", clean(strings.Join(d.Config, ", ")))
	}
	type kind struct{ what, role, from, to string }
	groups := map[kind]*diffGroup{}
	var order []kind
	for _, t := range d.Tensors {
		k := kind{t.What, cmp.Or(t.Role, "other"), t.FormatA, t.FormatB}
		if t.What == otherShape {
			k.from, k.to = shapeText(t.ShapeA), shapeText(t.ShapeB)
		}
		g := groups[k]
		if g == nil {
			g = &diffGroup{lo: t.Error}
			groups[k] = g
			order = append(order, k)
		}
		g.names = append(g.names, t.Name)
		g.a += t.BytesA
		g.b += t.BytesB
		g.lo, g.hi = min(g.lo, t.Error), max(g.hi, t.Error)
		g.problem = cmp.Or(g.problem, t.Problem)
	}
	if len(order) > 0 {
		head := []string{"what", "role", "A", "B", "tensors", "bytes A", "bytes B"}
		if d.Values {
			head = append(head, "error")
		}
		t := cli.NewTable(append(head, "which")...).Left(2, 3)
		for _, k := range order {
			g := groups[k]
			cells := []any{k.what, k.role, dash(k.from), dash(k.to), len(g.names), cli.Bytes(g.a), cli.Bytes(g.b)}
			if d.Values {
				cells = append(cells, g.errors(k.what))
			}
			which := strings.Join(most(format.Collapse(g.names), 2, "more"), ", ")
			if g.problem != "" {
				which += "; not compared: " + g.problem
			}
			t.Add(append(cells, clean(which))...)
		}
		l.f("")
		l.WriteString(t.String())
	}
	what := "in shape and format"
	if d.Values {
		what = "in format and in every value"
	}
	if d.Equal {
		l.f("\nequal %s: %s", what, plural(d.Compared, "tensor"))
		if !d.Values {
			l.f("values were not read; --values does")
		}
	} else {
		l.f("\n%d of the %s that both have are equal %s", d.Same, plural(d.Compared, "tensor"), what)
	}
	return l.to(w)
}

// diffGroup is the tensors that share a line.
type diffGroup struct {
	names   []string
	a, b    int64
	lo, hi  float64
	problem string
}

func (g *diffGroup) errors(what string) string {
	switch {
	case what == onlyInA || what == onlyInB || what == otherShape || what == cannotCompare || g.problem != "":
		return "–"
	case g.lo == g.hi:
		return cli.RelativeError(g.lo)
	}
	return cli.RelativeError(g.lo) + " to " + cli.RelativeError(g.hi)
}

func dash(text string) string { return cmp.Or(text, "–") }

func shapeText(shape []int) string { return strings.ReplaceAll(fmt.Sprint(shape), " ", ",") }
