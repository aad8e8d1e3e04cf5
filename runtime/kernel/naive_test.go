package kernel

// The arithmetic once more, as slowly and literally as the design page says it.
// Nothing here is shared with the package but FMA, which has its own oracle.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

var sizes = []int{1, 2, 7, 15, 16, 17, 31, 63, 64, 65, 100, 127, 128, 129, 192, 256, 300, 576}

// naiveCode is the signed integer code of W[o,i].
func naiveCode(m quantize.Matrix, o, i int) int {
	row := m.W[o*m.RowBytes():]
	switch m.Format {
	case format.Int8Row:
		return int(int8(row[i]))
	case format.Int4Row, format.Int4Grouped:
		if i%2 == 0 {
			return int(row[i/2]%16) - 8
		}
		return int(row[i/2]/16) - 8
	case format.Int2Row:
		return int(row[i/4]>>(i%4*2))%4 - 2
	case format.Int3G64:
		g, k := row[i/64*24:], i%64
		return int(g[k/4]>>(k%4*2))%4 + 4*(int(g[16+k/8]>>(k%8))%2) - 4
	}
	panic("not an integer format")
}

// naiveScale is the scale of W[o,i].
func naiveScale(m quantize.Matrix, o, i int) float32 {
	if m.Format == format.FP8 {
		return m.S[o/128*((m.Cols+127)/128)+i/128]
	}
	switch g := naiveGroup(m); g {
	case 0:
		return m.S[o]
	default:
		return m.S[o*((m.Cols+g-1)/g)+i/g]
	}
}

func naiveGroup(m quantize.Matrix) int {
	switch m.Format {
	case format.Int4Grouped:
		return m.Group
	case format.Int3G64:
		return 64
	}
	return 0
}

func naiveQuantize(x []float32, bits int) (q []int, sx []float32) {
	limit := 1<<(bits-1) - 1
	for b := 0; b < len(x); b += 64 {
		block := x[b:min(b+64, len(x))]
		var amax float32
		for _, v := range block {
			amax = max(amax, float32(math.Abs(float64(v))))
		}
		s := amax / float32(limit)
		if s < 1e-8 {
			s = 1e-8
		}
		sx = append(sx, s)
		for i := range 64 {
			if i < len(block) {
				q = append(q, int(math.RoundToEven(float64(block[i]/s))))
			} else {
				q = append(q, 0)
			}
		}
	}
	return q, sx
}

func naiveRow(m quantize.Matrix, o int, x []float32) float32 {
	if ActivationBits(m.Format) == 0 {
		w := make([]float32, m.Cols)
		c, _ := quantize.CodecFor(m.Format)
		c.Decode(m, o, w)
		return naiveDot(w, x)
	}
	bits := map[format.ID]int{format.Int8Row: 12, format.Int4Row: 8, format.Int2Row: 8, format.Int4Grouped: 8, format.Int3G64: 8}[m.Format]
	q, sx := naiveQuantize(x, bits)
	group := naiveGroup(m)
	var stripe [4]float32
	for b := range sx {
		d, open := 0, false
		flush := func(i int) {
			c := sx[b]
			if group > 0 {
				c = sx[b] * naiveScale(m, o, i)
			}
			stripe[b%4] = FMA(c, float32(d), stripe[b%4])
			d, open = 0, false
		}
		for i := b * 64; i < min(b*64+64, m.Cols); i++ {
			if group > 0 && i%group == 0 && open {
				flush(i - 1)
			}
			d += naiveCode(m, o, i) * q[i]
			open = true
		}
		flush(min(b*64+64, m.Cols) - 1)
	}
	y := (stripe[0] + stripe[1]) + (stripe[2] + stripe[3])
	if group == 0 {
		y = m.S[o] * y
	}
	return y
}

func naiveDot(a, b []float32) float32 {
	var acc [16]float32
	for j := range acc {
		for i := j; i < len(a); i += 16 {
			acc[j] = FMA(a[i], b[i], acc[j])
		}
	}
	return naiveTree(acc)
}

func naiveTree(a [16]float32) float32 {
	var b [8]float32
	for j := range b {
		b[j] = a[j] + a[j+8]
	}
	c := [4]float32{b[0] + b[4], b[1] + b[5], b[2] + b[6], b[3] + b[7]}
	d := [2]float32{c[0] + c[2], c[1] + c[3]}
	return d[0] + d[1]
}

func naiveSum(a []float32) float32 {
	ones := make([]float32, len(a))
	for i := range ones {
		ones[i] = 1
	}
	return naiveDot(a, ones)
}

func naiveExp(x float32) float32 {
	if x < -87 {
		return 0
	}
	if x > 88 {
		return math.MaxFloat32
	}
	product := float32(x * expTable.Log2E)
	n := float32(math.RoundToEven(float64(product)))
	r := FMA(n, -expTable.Ln2Hi, x)
	r = FMA(n, -expTable.Ln2Lo, r)
	p := expTable.Poly[0]
	for i := 1; i < 7; i++ {
		p = FMA(p, r, expTable.Poly[i])
	}
	return float32(math.Ldexp(float64(p), int(n)))
}

func naiveSoftmax(s []float32) []float32 {
	m := slices.Max(s)
	e := make([]float32, len(s))
	for i := range s {
		e[i] = naiveExp(s[i] - m)
	}
	z := naiveSum(e)
	for i := range e {
		e[i] /= z
	}
	return e
}

func naiveLatent(p, cache []float32, width, stride int, positions []int32) []float32 {
	out := make([]float32, width)
	last := 0
	for _, t := range positions {
		last = max(last, int(t))
	}
	for c := range out {
		for chunk := 0; chunk <= last/256; chunk++ {
			var acc float32
			for i, t := range positions {
				if int(t)/256 == chunk {
					acc = FMA(p[i], cache[int(t)*stride+c], acc)
				}
			}
			out[c] += acc
		}
	}
	return out
}

// sample is n numbers of one of the kinds that arithmetic gets wrong.
func sample(r *rand.Rand, n int, kind string) []float32 {
	x := make([]float32, n)
	for i := range x {
		v := float32(r.NormFloat64())
		switch kind {
		case "zeros":
			v = float32(math.Copysign(0, float64(v)))
		case "sparse":
			if r.IntN(4) > 0 {
				v = float32(math.Copysign(0, float64(v)))
			}
		case "tiny":
			v *= 1e-9
		case "huge":
			v *= 1e12
		case "outlier":
			if r.IntN(50) == 0 {
				v *= 1000
			}
		case "mixed":
			v *= float32(math.Exp2(float64(r.IntN(40) - 20)))
		}
		x[i] = v
	}
	return x
}

var kinds = []string{"normal", "zeros", "sparse", "tiny", "huge", "outlier", "mixed"}

// specs are all matrix kinds of a shape that MatVec serves.
func specs(rows, cols int) []format.Spec {
	var all []format.Spec
	for _, in := range format.Formats() {
		switch {
		case !in.Run:
		case in.ID == format.Int4Grouped:
			for _, g := range format.GroupSizes {
				all = append(all, format.Spec{Format: in.ID, Rows: rows, Cols: cols, Group: g})
			}
		default:
			all = append(all, format.Spec{Format: in.ID, Rows: rows, Cols: cols})
		}
	}
	return all
}

// encoded quantises random rows, every second one by random bytes, so that
// codes that no encoder writes appear too.
func encoded(r *rand.Rand, s format.Spec, kind string) quantize.Matrix {
	m := quantize.NewMatrix(s)
	c, err := quantize.CodecFor(s.Format)
	if err != nil {
		panic(err)
	}
	c.Encode(m, 0, s.Rows, sample(r, s.Rows*s.Cols, kind))
	if ActivationBits(s.Format) > 0 {
		for o := 1; o < s.Rows; o += 2 {
			row := m.W[o*s.RowBytes():][:s.RowBytes()]
			for i := range row {
				row[i] = byte(r.Uint32())
			}
		}
		for i := range m.S {
			if r.IntN(8) == 0 {
				m.S[i] = -m.S[i] // legal, from better methods
			}
		}
	}
	return m
}

func describe(s format.Spec, kind string, seed uint64) string {
	return fmt.Sprintf("%s %s seed %d", s, kind, seed)
}
