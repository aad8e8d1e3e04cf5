package kernel

import (
	"fmt"

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
	if m.Rows < 0 || m.Cols < 0 || m.Format == format.Int4Grouped && (m.Group <= 0 || m.Group%16 != 0) {
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
// ActivationBits(m.Format) and length m.Cols (anything else gives NaN); a float
// format reads x[s][Cols]. The other list may be nil. Each row is decoded once for all vectors.
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
	l := &layouts[m.Format]
	if l.bits == 0 {
		if floatRowsSIMD(m, lo, hi, x, y, first, tmp) {
			return
		}
		floatRows(m, lo, hi, x, y, first, tmp)
		return
	}
	for i := range act {
		if act[i].N != m.Cols || act[i].Bits != l.bits {
			for _, ys := range y[:len(act)] {
				fillNaN(ys[lo-first : hi-first])
			}
			return
		}
	}
	if !intRowsSIMD(m, lo, hi, act, y, first, tmp) {
		intRows(m, lo, hi, act, y, first, tmp)
	}
}

func intRows(m quantize.Matrix, lo, hi int, act []Activation, y [][]float32, first int, tmp *Scratch) {
	l := &layouts[m.Format]
	blocks := (m.Cols + Block - 1) / Block
	perBlock := Block / l.fields
	tmp.mates = grow(tmp.mates, len(act)*blocks*perBlock)
	for i := range act {
		mates(tmp.mates[i*blocks*perBlock:], act[i].Q, l.fields, l.step)
	}
	tmp.words = grow(tmp.words, blocks*perBlock)
	tmp.sums = grow(tmp.sums, blocks*4)
	group := l.group
	if group < 0 {
		group = m.Group
	}
	rowBytes, scales := m.RowBytes(), m.ScaleCols()
	whole := m.Cols / Block
	for o := lo; o < hi; o++ {
		row := m.W[o*rowBytes:][:rowBytes]
		l.spread(tmp.words[:whole*perBlock], row)
		if whole < blocks {
			// Beyond the row's end stand zero activations, whatever the codes.
			copy(tmp.tail[:], row[whole*l.blockBytes:])
			l.spread(tmp.words[whole*perBlock:], tmp.tail[:])
		}
		s := m.S[o*scales:][:scales]
		for i := range act {
			sx, mates := act[i].Scale, tmp.mates[i*blocks*perBlock:]
			d := tmp.sums[:blocks]
			switch {
			case group%Block != 0:
				d = tmp.sums[:blocks*4]
				quarterSums(d, tmp.words, mates)
			case l.fields == 2:
				wideSums(d, tmp.words, mates)
			default:
				narrowSums(d, tmp.words, mates)
			}
			switch {
			case group == 0:
				y[i][o-first] = s[0] * rowTree(d, sx)
			case group%Block == 0:
				y[i][o-first] = groupTree(d, sx, s, group/Block)
			default:
				y[i][o-first] = cutTree(d, sx, s, group, m.Cols)
			}
		}
	}
}

// rowTree is the four-stripe sum under the activation's scales alone.
func rowTree(d []int32, sx []float32) float32 {
	var acc [4]float32
	for ; len(d) >= 4 && len(sx) >= 4; d, sx = d[4:], sx[4:] {
		fma4(&acc, (*[4]float32)(sx), &[4]float32{float32(d[0]), float32(d[1]), float32(d[2]), float32(d[3])})
	}
	for b, c := range sx {
		acc[b] = FMA(c, float32(d[b]), acc[b])
	}
	return (acc[0] + acc[1]) + (acc[2] + acc[3])
}

// groupTree is the four-stripe sum where a group is a whole number of blocks.
func groupTree(d []int32, sx, s []float32, blocks int) float32 {
	var acc [4]float32
	g, left := 0, blocks
	for b := 0; b < len(sx); b += 4 {
		var c, v [4]float32
		n := min(4, len(sx)-b)
		for j := range n {
			c[j] = sx[b+j] * s[g]
			v[j] = float32(d[b+j])
			if left--; left == 0 {
				g, left = g+1, blocks
			}
		}
		if n == 4 {
			fma4(&acc, &c, &v)
			continue
		}
		for j := range n {
			acc[j] = FMA(c[j], v[j], acc[j])
		}
	}
	return (acc[0] + acc[1]) + (acc[2] + acc[3])
}

// cutTree is the four-stripe sum where group borders, multiples of 16, fall
// inside blocks; d has a value for each 16 columns.
func cutTree(d []int32, sx, s []float32, group, cols int) float32 {
	var acc [4]float32
	for i := 0; i < cols; {
		b := i / Block
		end := min((b+1)*Block, (i/group+1)*group)
		var sub int32
		for _, q := range d[i/16 : end/16] {
			sub += q
		}
		acc[b&3] = FMA(float32(sx[b]*s[i/group]), float32(sub), acc[b&3])
		i = end
	}
	return (acc[0] + acc[1]) + (acc[2] + acc[3])
}

func floatRows(m quantize.Matrix, lo, hi int, x [][]float32, y [][]float32, first int, tmp *Scratch) {
	c, err := quantize.CodecFor(m.Format)
	if err != nil {
		for _, ys := range y {
			fillNaN(ys[lo-first : hi-first])
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
