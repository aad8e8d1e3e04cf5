package quantize

import (
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
}

// TensorError is the relative RMS error sqrt(Σ(w−w')²/Σw²) of a tensor.
type TensorError struct {
	Tensor string  `json:"tensor"`
	Format string  `json:"format"`
	Error  float64 `json:"relative_rms_error"`
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
	if err := p.achieved(out); err != nil {
		return nil, err
	}
	if threads < 1 {
		threads = goruntime.GOMAXPROCS(0)
	}
	sums := make([]blockError, len(blocks(p.Items)))
	err = eachBlock(ctx, p.Items, threads, func() func(block) error {
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
	item   *Item
	e2, w2 float64 // Σ(w−w')², Σw²
	floor  int     // rows
}

type comparer struct {
	source      SourceBuffer
	w, row      []float32
	code, bytes []byte
	scales      []float32
}

func (c *comparer) compare(out *format.Snapshot, b block) (blockError, error) {
	it, spec := b.item, b.item.Spec
	spec.Rows = b.rows
	sum := blockError{item: it}
	w := grow(&c.w, b.rows*spec.Cols)
	if err := it.Source.ReadRows(&c.source, b.row, b.rows, w); err != nil {
		return sum, err
	}
	m := Matrix{Spec: spec, W: grow(&c.code, int(spec.Bytes()))}
	t := out.Tensor(it.Want.Name)
	if _, err := t.Shard.ReadAt(m.W, t.Offset+b.codesAt()); err != nil {
		return sum, &format.Error{Path: t.Shard.Path, Tensor: t.Name, What: "cannot read", Err: err}
	}
	if it.Packed() {
		bytes := grow(&c.bytes, int(spec.ScaleBytes()))
		t := out.Tensor(it.Want.Name + format.ScaleSuffix)
		if _, err := t.Shard.ReadAt(bytes, t.Offset+b.scalesAt()); err != nil {
			return sum, &format.Error{Path: t.Shard.Path, Tensor: t.Name, What: "cannot read", Err: err}
		}
		m.S = grow(&c.scales, int(spec.Scales()))
		BytesToF32(m.S, bytes)
	}
	codec, err := CodecFor(spec.Format)
	if err != nil {
		return sum, err
	}
	row := grow(&c.row, spec.Cols)
	for i := range b.rows {
		codec.Decode(m, i, row)
		from := w[i*spec.Cols : (i+1)*spec.Cols]
		e2, w2 := squares(from, row)
		sum.e2 += e2
		sum.w2 += w2
		if belowFloor(m, i, from) {
			sum.floor++
		}
	}
	return sum, nil
}

// squares is Σ(a−b)² and Σa².
func squares(a, b []float32) (e2, a2 float64) {
	b = b[:len(a)]
	var e, s [4]float64
	for i := 0; i+4 <= len(a); i += 4 {
		for j := range 4 {
			x := float64(a[i+j])
			d := x - float64(b[i+j])
			e[j] += d * d
			s[j] += x * x
		}
	}
	for i := len(a) &^ 3; i < len(a); i++ {
		x := float64(a[i])
		d := x - float64(b[i])
		e[0] += d * d
		s[0] += x * x
	}
	return e[0] + e[1] + e[2] + e[3], s[0] + s[1] + s[2] + s[3]
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
	type total struct{ e2, w2 float64 }
	var v Verification
	var perRole [numRoles]total
	var worst [numRoles]TensorError
	var problems format.Problems
	for i := 0; i < len(sums); {
		it := sums[i].item
		var t total
		for ; i < len(sums) && sums[i].item == it; i++ {
			t.e2 += sums[i].e2
			t.w2 += sums[i].w2
			v.BelowFloor += sums[i].floor
		}
		r := it.role()
		perRole[r].e2 += t.e2
		perRole[r].w2 += t.w2
		e := TensorError{it.Want.Name, it.Spec.Name(), relative(t.e2, t.w2)}
		if e.Error > worst[r].Error || worst[r].Tensor == "" {
			worst[r] = e
		}
		info := it.Spec.Format.Info()
		if exact := info.ID == format.F32 || info.DType == it.Source.DType || it.PassThrough; exact && t.e2 > 0 {
			problems = append(problems, &format.Error{Kind: format.ErrCorrupt, Path: p.snap.Dir, Tensor: it.Want.Name, What: "was not written exactly", Found: fmt.Sprintf("relative error %.3g", e.Error)})
		}
	}
	for r := range numRoles {
		if worst[r].Tensor == "" {
			continue
		}
		v.Roles = append(v.Roles, RoleError{r.String(), relative(perRole[r].e2, perRole[r].w2), worst[r]})
		if worst[r].Error > v.Worst.Error || v.Worst.Tensor == "" {
			v.Worst = worst[r]
		}
	}
	return &v, problems.Err()
}

func relative(e2, w2 float64) float64 {
	if e2 == 0 {
		return 0
	}
	return math.Sqrt(e2 / max(w2, 1e-300))
}
