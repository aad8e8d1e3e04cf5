package quantize

import (
	"encoding/binary"
	"math"

	"hawkmoth/format"
)

// A second implementation of every packed format, straight from the table of
// docs/container.md: one bit at a time, one weight at a time, no shared code
// with the codecs.

type bitAddress struct{ byte, bit int }

// naiveBits lists where the bits of the code of column i are inside a row,
// the lowest bit first.
func naiveBits(id format.ID, i int) []bitAddress {
	run := func(byte, bit, n int) (at []bitAddress) {
		for k := range n {
			at = append(at, bitAddress{byte, bit + k})
		}
		return at
	}
	switch id {
	case format.Int8Row, format.FP8:
		return run(i, 0, 8)
	case format.Int4Row, format.Int4Grouped:
		return run(i/2, i%2*4, 4)
	case format.Int2Row:
		return run(i/4, i%4*2, 2)
	case format.Int3G64:
		g, k := i/64*24, i%64
		return append(run(g+k/4, k%4*2, 2), bitAddress{g + 16 + k/8, k % 8})
	}
	return nil
}

type naiveRule struct{ qmax, lo, zero float64 } // zero is added to q to make the code

var naiveRules = map[format.ID]naiveRule{
	format.Int8Row:     {127, -128, 0},
	format.Int4Row:     {7, -8, 8},
	format.Int4Grouped: {7, -8, 8},
	format.Int3G64:     {3, -4, 4},
	format.Int2Row:     {1, -2, 2},
}

// naiveScaleIndex is the place of the scale of W[o,i] in N.qs.
func naiveScaleIndex(s format.Spec, o, i int) int {
	up := func(a, b int) int { return int(math.Ceil(float64(a) / float64(b))) }
	switch s.Format {
	case format.Int4Grouped:
		return o*up(s.Cols, s.Group) + i/s.Group
	case format.Int3G64:
		return o*up(s.Cols, 64) + i/64
	case format.FP8:
		return o/128*up(s.Cols, 128) + i/128
	}
	return o
}

func naiveEncode(s format.Spec, w []float32) Matrix {
	m := Matrix{Spec: s, W: make([]byte, s.Bytes()), S: make([]float32, s.Scales())}
	rule, qmax := naiveRules[s.Format], float32(0)
	if s.Format == format.FP8 {
		qmax = 448
	} else {
		qmax = float32(rule.qmax)
	}
	for o := range s.Rows {
		for i := range s.Cols {
			at := naiveScaleIndex(s, o, i)
			m.S[at] = max(m.S[at], float32(math.Abs(float64(w[o*s.Cols+i]))))
		}
	}
	for i, amax := range m.S {
		m.S[i] = max(amax/qmax, 1e-8)
	}
	for o := range s.Rows {
		row := m.W[o*s.RowBytes() : (o+1)*s.RowBytes()]
		put := func(i, code int) {
			for k, at := range naiveBits(s.Format, i) {
				row[at.byte] |= byte(code >> k & 1 << at.bit)
			}
		}
		for i := range s.Cols {
			quotient := w[o*s.Cols+i] / m.S[naiveScaleIndex(s, o, i)]
			if s.Format == format.FP8 {
				put(i, int(naiveFP8Code(float64(quotient))))
				continue
			}
			q := min(max(math.RoundToEven(float64(quotient)), rule.lo), rule.qmax)
			put(i, int(q+rule.zero))
		}
		for i := s.Cols; s.Format == format.Int3G64 && i%64 != 0; i++ {
			put(i, 4)
		}
	}
	return m
}

func naiveDecode(m Matrix, o, i int) float32 {
	row, code := m.W[o*m.RowBytes():(o+1)*m.RowBytes()], 0
	for k, at := range naiveBits(m.Format, i) {
		code |= int(row[at.byte]) >> at.bit & 1 << k
	}
	scale := m.S[naiveScaleIndex(m.Spec, o, i)]
	switch m.Format {
	case format.FP8:
		return float32(naiveFP8(byte(code))) * scale
	case format.Int8Row:
		return float32(int8(code)) * scale
	}
	return float32(float64(code)-naiveRules[m.Format].zero) * scale
}

// naiveFP8 is E4M3 by its definition: (−1)^s · 2^(e−7) · (1 + m/8), at e = 0
// (−1)^s · 2^−6 · m/8, and NaN where all seven bits are set.
func naiveFP8(c byte) float64 {
	sign, e, m := 1.0, int(c/8)%16, float64(c%8)
	if c >= 128 {
		sign = -1
	}
	switch {
	case e == 15 && m == 7:
		return math.NaN()
	case e == 0:
		return sign * math.Pow(2, -6) * m / 8
	}
	return sign * math.Pow(2, float64(e-7)) * (1 + m/8)
}

// naiveFP8Code searches the nearest of all codes; of two at the same distance
// the one with the even mantissa.
func naiveFP8Code(x float64) byte {
	if math.IsNaN(x) {
		return 0x7f
	}
	sign := byte(0)
	if math.Signbit(x) {
		sign = 0x80
	}
	best, distance := byte(0), math.Inf(1)
	for c := range byte(0x7f) {
		d := math.Abs(math.Abs(x) - naiveFP8(c))
		if d < distance || d == distance && c%2 == 0 {
			best, distance = c, d
		}
	}
	if math.IsInf(x, 0) {
		best = 0x7e
	}
	return sign | best
}

// naiveHalf is a float of 1 sign bit, eb exponent bits and mb mantissa bits.
func naiveHalf(h uint16, eb, mb int) float64 {
	sign, e, m := 1.0, int(h>>mb)&(1<<eb-1), float64(int(h)&(1<<mb-1))
	if h>>15 != 0 {
		sign = -1
	}
	bias := 1<<(eb-1) - 1
	switch {
	case e == 1<<eb-1 && m == 0:
		return sign * math.Inf(1)
	case e == 1<<eb-1:
		return math.NaN()
	case e == 0:
		return sign * math.Ldexp(m, 1-bias-mb)
	}
	return sign * math.Ldexp(m+math.Ldexp(1, mb), e-bias-mb)
}

func le16(h uint16) []byte { return binary.LittleEndian.AppendUint16(nil, h) }
