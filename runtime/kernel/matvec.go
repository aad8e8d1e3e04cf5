package kernel

import (
	"fmt"
	"math"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// Check reports why MatVec cannot take m: a format that run does not serve, or
// codes or scales whose lengths are not those of the Spec. A matrix that passes
// cannot make a function of this package read outside it.
func Check(m quantize.Matrix) error {
	in := m.Format.Info()
	if !in.Run {
		return &format.Error{Kind: format.ErrUnsupported, What: "no matrix product for weight format", Found: in.Name}
	}
	if m.Rows < 0 || m.Cols < 0 || m.Format == format.Int4Grouped && m.Group <= 0 {
		return &format.Error{Kind: format.ErrCorrupt, What: "impossible matrix", Found: fmt.Sprintf("rows %d, columns %d, group %d", m.Rows, m.Cols, m.Group)}
	}
	if int64(len(m.W)) != m.Bytes() || int64(len(m.S)) != m.Scales() {
		return &format.Error{Kind: format.ErrCorrupt, What: "size of " + m.Spec.String(),
			Found:  fmt.Sprintf("%d bytes, %d scales", len(m.W), len(m.S)),
			Wanted: fmt.Sprintf("%d bytes, %d scales", m.Bytes(), m.Scales())}
	}
	return nil
}

// MatVec sets y[s][o] = W·x[s] for the rows o in [lo, hi) of m and every
// vector s. An integer format reads act[s], which must have the width
// ActivationBits(m.Format) and length m.Cols; a float format reads x[s][Cols].
// The other list may be nil. Each row is decoded once for all vectors.
//
// Integer formats: the products of a block of 64 are summed exactly in int32;
// stripe j of four takes the blocks b = j mod 4 in increasing order,
// acc_j = fma(c, d_b, acc_j) from +0, where c is the block's activation scale,
// times the group's weight scale (one rounding) if the format has groups. A
// block with a group border inside is cut there. y is
// (acc_0+acc_1)+(acc_2+acc_3), times the row's scale if it has one. Float
// formats: Dot of the decoded row and x.
func MatVec(m quantize.Matrix, lo, hi int, x [][]float32, act []Activation, y [][]float32, tmp *Scratch) {
	matVec(m, lo, hi, x, act, y, 0, tmp)
}

// MatVecRows is MatVec with y[s][o-lo], such as one head's rows of kv_b into
// the head's part of a vector.
func MatVecRows(m quantize.Matrix, lo, hi int, x [][]float32, act []Activation, y [][]float32, tmp *Scratch) {
	matVec(m, lo, hi, x, act, y, lo, tmp)
}

func matVec(m quantize.Matrix, lo, hi int, x [][]float32, act []Activation, y [][]float32, first int, tmp *Scratch) {
	l := layouts[m.Format]
	if l.bits == 0 {
		floatRows(m, lo, hi, x, y, first, tmp)
		return
	}
	group := l.group
	if group < 0 {
		group = m.Group
	}
	blocks := (m.Cols + Block - 1) / Block
	tmp.codes = grow(tmp.codes, blocks*Block)
	clear(tmp.codes[m.Cols:])
	rowBytes, scales := m.RowBytes(), m.ScaleCols()
	for o := lo; o < hi; o++ {
		l.unpack(tmp.codes[:m.Cols], m.W[o*rowBytes:(o+1)*rowBytes])
		s := m.S[o*scales : (o+1)*scales]
		for i := range act {
			a := &act[i]
			switch {
			case group == 0:
				y[i][o-first] = s[0] * rowDot(tmp.codes, a)
			case group%Block == 0:
				y[i][o-first] = groupDot(tmp.codes, a, s, group/Block)
			default:
				y[i][o-first] = cutDot(tmp.codes, a, s, group)
			}
		}
	}
}

// rowDot is the four-stripe sum under the activation's scales alone.
func rowDot(codes []int8, a *Activation) float32 {
	var acc [4]float32
	for b, sx := range a.Scale {
		acc[b&3] = FMA(sx, float32(dotInt(codes[b*Block:][:Block], a.Q[b*Block:][:Block])), acc[b&3])
	}
	return (acc[0] + acc[1]) + (acc[2] + acc[3])
}

// groupDot is the four-stripe sum where a group is a whole number of blocks.
func groupDot(codes []int8, a *Activation, s []float32, blocks int) float32 {
	var acc [4]float32
	for b, sx := range a.Scale {
		acc[b&3] = FMA(sx*s[b/blocks], float32(dotInt(codes[b*Block:][:Block], a.Q[b*Block:][:Block])), acc[b&3])
	}
	return (acc[0] + acc[1]) + (acc[2] + acc[3])
}

// cutDot is the four-stripe sum where group borders fall inside blocks.
func cutDot(codes []int8, a *Activation, s []float32, group int) float32 {
	var acc [4]float32
	for i := 0; i < a.N; {
		b := i / Block
		end := min((b+1)*Block, (i/group+1)*group, a.N)
		acc[b&3] = FMA(a.Scale[b]*s[i/group], float32(dotInt(codes[i:end], a.Q[i:end])), acc[b&3])
		i = end
	}
	return (acc[0] + acc[1]) + (acc[2] + acc[3])
}

// dotInt is the exact dot product of at most 64 codes.
func dotInt(w []int8, q []int16) int32 {
	q = q[:len(w)]
	var d int32
	for i, c := range w {
		d += int32(c) * int32(q[i])
	}
	return d
}

func floatRows(m quantize.Matrix, lo, hi int, x [][]float32, y [][]float32, first int, tmp *Scratch) {
	c, err := quantize.CodecFor(m.Format)
	if err != nil {
		for _, ys := range y {
			for o := lo; o < hi; o++ {
				ys[o-first] = float32(math.NaN())
			}
		}
		return
	}
	tmp.row = grow(tmp.row, m.Cols)
	for o := lo; o < hi; o++ {
		c.Decode(m, o, tmp.row)
		for i, xs := range x {
			y[i][o-first] = Dot(tmp.row, xs)
		}
	}
}
