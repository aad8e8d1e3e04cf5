package quantize

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	goruntime "runtime"
	"slices"

	"hawkmoth/format"
)

// Verification is how far a container is from its checkpoint.
type Verification struct {
	Roles []RoleError `json:"roles"`
	Worst TensorError `json:"worst"` // the largest error of a tensor
	// BelowFloor counts rows with weights so small that the smallest scale
	// turned them into zeros.
	BelowFloor int `json:"rows_below_scale_floor"`
	// Tensors are given where the plan asks for them, Heads for overlays.
	Tensors []TensorError `json:"tensors,omitempty"`
	Heads   []HeadErrors  `json:"heads,omitempty"`
}

// HeadErrors is the error of a tensor by attention head: that of the rows that
// belong to it.
type HeadErrors struct {
	Tensor string    `json:"tensor"`
	Errors []float64 `json:"relative_rms_error"`
}

// TensorError is the relative RMS error sqrt(Σ(w−w')²/Σw²) of a tensor.
type TensorError struct {
	Tensor string  `json:"tensor"`
	Format string  `json:"format"`
	Error  float64 `json:"relative_rms_error"`
	// Base is the error of what an overlay replaces, against the same source.
	Base float64 `json:"base_relative_rms_error,omitempty"`
}

// RoleError is the same over all tensors of a role, with the worst of them.
type RoleError struct {
	Role  string      `json:"role"`
	Error float64     `json:"relative_rms_error"`
	Worst TensorError `json:"worst"`
}

// Verify reads a finished container again and compares every weight with the
// checkpoint's. That a tensor is missing, that the headers give it another
// format than the plan, or that exact weights differ is an error; all such are
// reported at once. progress, if not nil, is told of source bytes.
func Verify(ctx context.Context, p *Plan, dir string, threads int, progress func(bytes int64)) (*Verification, error) {
	out, err := format.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	return p.verify(ctx, out, threads, progress)
}

func (p *Plan) verify(ctx context.Context, out *format.Snapshot, threads int, progress func(bytes int64)) (*Verification, error) {
	if err := p.achieved(out); err != nil {
		return nil, err
	}
	if threads < 1 {
		threads = goruntime.GOMAXPROCS(0)
	}
	sums := make([]blockError, len(blocks(p.Items)))
	err := eachBlock(ctx, p.Items, threads, func() func(block) error {
		var c comparer
		return func(b block) error {
			var err error
			sums[b.index], err = c.compare(out, b)
			if err == nil && progress != nil {
				progress(b.sourceBytes())
			}
			return err
		}
	})
	if err != nil {
		return nil, err
	}
	return p.verification(sums)
}

// achieved compares the formats that the headers give with the planned ones.
func (p *Plan) achieved(out *format.Snapshot) error {
	var problems format.Problems
	for i := range p.Items {
		it := &p.Items[i]
		for _, e := range it.entries() {
			t := out.Tensor(e.Name)
			if t == nil || t.DType != e.DType || !slices.Equal(t.Shape, e.Shape) {
				found := "nothing"
				if t != nil {
					found = fmt.Sprintf("%s%v", t.DType, t.Shape)
				}
				problems = append(problems, &format.Error{Kind: format.ErrCorrupt, Path: out.Dir, Tensor: e.Name, What: "was not written as planned", Found: found, Wanted: fmt.Sprintf("%s%v", e.DType, e.Shape)})
			}
		}
		if !it.Packed() {
			continue
		}
		if found, err := out.Spec(it.Want.Name, it.Spec.Rows, it.Spec.Cols); err != nil {
			problems = append(problems, err)
		} else if found != it.Spec {
			problems = append(problems, &format.Error{Kind: format.ErrCorrupt, Path: out.Dir, Tensor: it.Want.Name, What: "has another format than planned", Found: found.String(), Wanted: it.Spec.String()})
		}
	}
	return problems.Err()
}

// blockError is what a block adds to the sums.
type blockError struct {
	item *Item
	errorSum
	floor int        // rows
	base  errorSum   // of the tensor that is replaced
	head  int        // of the first row
	heads []errorSum // from that head on
}

// errorSum is Σ(w−w')² and Σw².
type errorSum struct{ e2, w2 float64 }

func (s *errorSum) add(o errorSum) {
	s.e2 += o.e2
	s.w2 += o.w2
}

func (s errorSum) relative() float64 {
	if s.e2 == 0 {
		return 0
	}
	return math.Sqrt(s.e2 / max(s.w2, 1e-300))
}

type comparer struct {
	source, base   SourceBuffer
	w, row, before []float32
	code, bytes    []byte
	scales         []float32
	again          converter
	codes          []byte
	grid           []float32
}

func (c *comparer) compare(out *format.Snapshot, b block) (blockError, error) {
	it, spec := b.item, b.item.Spec
	spec.Rows = b.rows
	sum := blockError{item: it}
	if err := it.Source.fetch(&c.source, b.row, b.rows); err != nil {
		return sum, err
	}
	if it.Under != nil {
		if err := it.Under.fetch(&c.base, b.row, b.rows); err != nil {
			return sum, err
		}
	}
	m := Matrix{Spec: spec, W: grow(&c.code, int(spec.Bytes()))}
	t := out.Tensor(it.Want.Name)
	if _, err := t.Shard.ReadAt(m.W, t.Offset+b.codesAt()); err != nil {
		return sum, &format.Error{Path: t.Shard.Path, Tensor: t.Name, What: "cannot read", Err: err}
	}
	if it.Packed() {
		raw := grow(&c.bytes, int(spec.ScaleBytes()))
		t := out.Tensor(it.Want.Name + format.ScaleSuffix)
		if _, err := t.Shard.ReadAt(raw, t.Offset+b.scalesAt()); err != nil {
			return sum, &format.Error{Path: t.Shard.Path, Tensor: t.Name, What: "cannot read", Err: err}
		}
		m.S = grow(&c.scales, int(spec.Scales()))
		BytesToF32(m.S, raw)
	}
	codec, err := CodecFor(spec.Format)
	if err != nil {
		return sum, err
	}
	w, row, before := grow(&c.w, spec.Cols), grow(&c.row, spec.Cols), grow(&c.before, spec.Cols)
	if h := it.HeadRows; h > 0 {
		sum.head = b.row / h
		sum.heads = make([]errorSum, (b.row+b.rows-1)/h-sum.head+1)
	}
	for i := range b.rows {
		if err := it.Source.decode(&c.source, b.row+i, 1, w); err != nil {
			return sum, err
		}
		codec.Decode(m, i, row)
		e := squares(w, row)
		sum.add(e)
		if it.HeadRows > 0 {
			sum.heads[(b.row+i)/it.HeadRows-sum.head].add(e)
		}
		if belowFloor(m, i, w) {
			sum.floor++
		}
		if it.Under != nil {
			if err := it.Under.decode(&c.base, b.row+i, 1, before); err != nil {
				return sum, err
			}
			sum.base.add(squares(w, before))
		}
	}
	if it.PassThrough {
		return sum, nil
	}
	return sum, c.same(m, b, t)
}

// same encodes the block again: the container must hold just these bytes.
func (c *comparer) same(m Matrix, b block, t *format.Tensor) error {
	again := Matrix{Spec: m.Spec, W: grow(&c.codes, len(m.W))}
	if m.S != nil {
		again.S = grow(&c.grid, len(m.S))
	}
	if err := c.again.encode(again, b); err != nil {
		return err
	}
	what := ""
	switch {
	case !bytes.Equal(again.W, m.W):
		what = "codes"
		if m.S == nil {
			what = "values"
		}
	case !slices.EqualFunc(again.S, m.S, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }):
		what = "scales"
	default:
		return nil
	}
	return &format.Error{Kind: format.ErrCorrupt, Path: t.Shard.Path, Tensor: t.Name,
		What: fmt.Sprintf("%s of rows %d to %d are not what the source gives: the container was damaged, or the source changed", what, b.row, b.row+b.rows-1)}
}

// squares is Σ(a−b)² and Σa².
func squares(a, b []float32) errorSum {
	b = b[:len(a)]
	var e0, e1, e2, e3, s0, s1, s2, s3 float64
	for ; len(a) >= 4 && len(b) >= 4; a, b = a[4:], b[4:] {
		x0, x1, x2, x3 := float64(a[0]), float64(a[1]), float64(a[2]), float64(a[3])
		d0, d1, d2, d3 := x0-float64(b[0]), x1-float64(b[1]), x2-float64(b[2]), x3-float64(b[3])
		e0, e1, e2, e3 = e0+d0*d0, e1+d1*d1, e2+d2*d2, e3+d3*d3
		s0, s1, s2, s3 = s0+x0*x0, s1+x1*x1, s2+x2*x2, s3+x3*x3
	}
	for i := range a {
		x := float64(a[i])
		d := x - float64(b[i])
		e0, s0 = e0+d*d, s0+x*x
	}
	return errorSum{e0 + e1 + e2 + e3, s0 + s1 + s2 + s3}
}

// belowFloor says whether some weights of row i that are not zero have only
// the smallest scale there is.
func belowFloor(m Matrix, i int, w []float32) bool {
	n := m.ScaleCols()
	if n == 0 {
		return false
	}
	in := m.Format.Info()
	width := cmp.Or(m.Group, in.BlockCols, m.Cols)
	first := i / max(in.BlockRows, 1) * n
	for g, s := range m.S[first : first+n] {
		if s == scaleFloor && maxAbs(w[g*width:min((g+1)*width, len(w))]) > 0 {
			return true
		}
	}
	return false
}

// verification adds up the blocks in their order, so that the sums do not
// depend on the goroutines.
func (p *Plan) verification(sums []blockError) (*Verification, error) {
	var v Verification
	var perRole [numRoles]errorSum
	var worst [numRoles]TensorError
	var problems format.Problems
	for i := 0; i < len(sums); {
		it := sums[i].item
		var t, base errorSum
		var heads []errorSum
		if it.HeadRows > 0 {
			heads = make([]errorSum, (it.Spec.Rows+it.HeadRows-1)/it.HeadRows)
		}
		for ; i < len(sums) && sums[i].item == it; i++ {
			t.add(sums[i].errorSum)
			base.add(sums[i].base)
			v.BelowFloor += sums[i].floor
			for h, e := range sums[i].heads {
				heads[sums[i].head+h].add(e)
			}
		}
		r := it.role()
		perRole[r].add(t)
		e := TensorError{it.Want.Name, it.Spec.Name(), t.relative(), base.relative()}
		if e.Error > worst[r].Error || worst[r].Tensor == "" {
			worst[r] = e
		}
		if p.EachTensor {
			v.Tensors = append(v.Tensors, e)
		}
		if heads != nil {
			h := HeadErrors{Tensor: e.Tensor}
			for _, sum := range heads {
				h.Errors = append(h.Errors, sum.relative())
			}
			v.Heads = append(v.Heads, h)
		}
		id := it.Spec.Format
		if exact := id == format.F32 || id == it.Source.Stored.Format && !it.Packed() || it.PassThrough; exact && t.e2 > 0 {
			problems = append(problems, &format.Error{Kind: format.ErrCorrupt, Path: p.snap.Dir, Tensor: it.Want.Name, What: "was not written exactly", Found: fmt.Sprintf("relative error %.3g", e.Error)})
		}
	}
	for r := range numRoles {
		if worst[r].Tensor == "" {
			continue
		}
		v.Roles = append(v.Roles, RoleError{r.String(), perRole[r].relative(), worst[r]})
		if worst[r].Error > v.Worst.Error || v.Worst.Tensor == "" {
			v.Worst = worst[r]
		}
	}
	return &v, problems.Err()
}
