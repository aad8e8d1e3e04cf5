package kernel

import "math"

// RoPE is a table of the cosines and sines of rotary embeddings.
//
// The chain of float32 roundings is that of transformers: the frequency
// 1/theta^(2i/dim), times the position, then the cosine of that float32 angle; Angles says what scaling adds.
// Each step is computed in float64 by operations that every machine rounds
// alike, so the table is the same everywhere; no math library is asked.
type RoPE struct {
	freq     []float32
	gain     float32
	cos, sin []float32 // [positions, len(freq)]
}

// NewRoPE is an empty table for rotations of dim (even) elements.
func NewRoPE(dim int, a Angles) *RoPE {
	r := &RoPE{freq: a.frequencies(dim), gain: 1}
	if a.Gain != 0 {
		r.gain = float32(a.Gain)
	}
	return r
}

// Grow makes the table cover the positions below n. It must not run beside At.
func (r *RoPE) Grow(n int) {
	half := len(r.freq)
	if half == 0 {
		return
	}
	have := len(r.cos) / half
	if n <= have {
		return
	}
	n = max(n, 2*have)
	cos, sin := make([]float32, n*half), make([]float32, n*half)
	copy(cos, r.cos)
	copy(sin, r.sin)
	for p := have; p < n; p++ {
		for i, f := range r.freq {
			c, s := cosSin(float64(float32(p) * f))
			cos[p*half+i], sin[p*half+i] = float32(c)*r.gain, float32(s)*r.gain
		}
	}
	r.cos, r.sin = cos, sin
}

// At is the row of cosines and the row of sines (dim/2 each) of a position
// that Grow has covered.
func (r *RoPE) At(position int) (cos, sin []float32) {
	half := len(r.freq)
	return r.cos[position*half:][:half:half], r.sin[position*half:][:half:half]
}

// RoPEInterleaved rotates the pairs (src[2i], src[2i+1]) by angle i and writes
// their halves to dst[i] and dst[i+dim/2], dim = 2·len(cos):
// dst[i] = fma(a, cos, −(b·sin)), dst[i+dim/2] = fma(b, cos, a·sin).
// dst must not overlap src.
func RoPEInterleaved(dst, src, cos, sin []float32) {
	n := len(cos)
	dst, src, sin = dst[:2*n], src[:2*n], sin[:n]
	for i, c := range cos {
		dst[i], dst[i+n] = rotate(src[2*i], src[2*i+1], c, sin[i])
	}
}

// RoPEHalves rotates the pairs (src[i], src[i+dim/2]) into the same places of
// dst with the arithmetic of RoPEInterleaved; dst may be src.
func RoPEHalves(dst, src, cos, sin []float32) {
	n := len(cos)
	dst, src, sin = dst[:2*n], src[:2*n], sin[:n]
	for i, c := range cos {
		dst[i], dst[i+n] = rotate(src[i], src[i+n], c, sin[i])
	}
}

func rotate(a, b, c, s float32) (x, y float32) {
	return FMA(a, c, -float32(b*s)), FMA(b, c, float32(a*s))
}

// fractionalPower is base^e for 0 ≤ e < 1: the product of the roots
// base^(1/2), base^(1/4), … that the binary digits of e name.
func fractionalPower(base float64, e float32) float64 {
	p := 1.0
	for e > 0 {
		base = math.Sqrt(base)
		if e *= 2; e >= 1 {
			e--
			p *= base
		}
	}
	return p
}

// cosSin is cosine and sine of 0 ≤ x < 2²⁴: the nearest multiple of π/2 is taken
// off, and Taylor's polynomials, whose first omitted terms are below 2⁻⁵⁶, do
// the rest. The conversions forbid fusing.
func cosSin(x float64) (c, s float64) {
	const (
		pi2hi = 0x1.921fb54442d18p+0
		pi2lo = 0x1.1a62633145c07p-54
	)
	n := math.RoundToEven(x * (1 / pi2hi))
	r := math.FMA(-n, pi2hi, x)
	r = math.FMA(-n, pi2lo, r)
	z := float64(r * r)
	c, s = 1, 1
	for k := 16.0; k > 0; k -= 2 { // Horner: 1 − z/(1·2)·(1 − z/(3·4)·…), 1 − z/(2·3)·(1 − z/(4·5)·…)
		c = 1 - float64(z/(k*(k-1))*c)
		s = 1 - float64(z/(k*(k+1))*s)
	}
	s = float64(s * r)
	switch int64(n) & 3 {
	case 1:
		c, s = -s, c
	case 2:
		c, s = -c, -s
	case 3:
		c, s = s, -c
	}
	return c, s
}
