package quantize

import "math"

// fp8-e4m3-b128: one OCP E4M3 byte a weight (bias 7, largest 448, subnormal
// step 2⁻⁹, no infinities, 0x7f and 0xff are NaN) and one scale for every
// 128 rows × 128 columns; w = e4m3·s[o/128, i/128]. Blocks at the edges hold
// only what is left. Source: OCP 8-bit Floating Point Specification, table 1.
const (
	fp8Block = 128
	fp8Max   = 448
)

var fp8Values = func() (t [256]float32) {
	for c := range t {
		exp, man := c>>3&15, float64(c&7)
		v := math.Ldexp(8+man, exp-10)
		switch {
		case exp == 0:
			v = math.Ldexp(man, -9)
		case c&0x7f == 0x7f:
			v = math.NaN()
		}
		if c >= 0x80 {
			v = -v
		}
		t[c] = float32(v)
	}
	return t
}()

// FP8ToF32 widens len(dst) E4M3 codes without a scale.
func FP8ToF32(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i := vector(opWidenFP8, len(dst), dst, src, 1, 0); i < len(dst); i++ {
		dst[i] = fp8Values[src[i]]
	}
}

// fp8Scaled writes the codes of one row times the scales of its blocks. A scale
// of zero is multiplied like any other: 0·NaN is NaN, so that a code which is
// none cannot hide behind it.
func fp8Scaled(dst []float32, codes []byte, scales []float32) {
	for _, s := range scales {
		n := min(fp8Block, len(dst))
		for i := vector(opWidenFP8, n, dst, codes, s, 0); i < n; i++ {
			dst[i] = fp8Values[codes[i]] * s
		}
		dst, codes = dst[n:], codes[n:]
	}
}

func decodeFP8(m Matrix, row int, dst []float32) {
	blocks := m.ScaleCols()
	grid := m.S[row/fp8Block*blocks:]
	fp8Scaled(dst[:m.Cols], m.W[row*m.Cols:(row+1)*m.Cols], grid[:blocks])
}

func encodeFP8(m Matrix, row, n int, w []float32) {
	blocks := m.ScaleCols()
	for top := 0; top < n; top += fp8Block {
		bottom := min(top+fp8Block, n)
		scales := m.S[(row+top)/fp8Block*blocks:]
		for b := range blocks {
			left, right := b*fp8Block, min((b+1)*fp8Block, m.Cols)
			s := scaleFloor
			for r := top; r < bottom; r++ {
				s = max(s, absmaxScale(w[r*m.Cols+left:r*m.Cols+right], fp8Max))
			}
			scales[b] = s
			for r := top; r < bottom; r++ {
				codes, x := m.W[(row+r)*m.Cols+left:(row+r)*m.Cols+right], w[r*m.Cols+left:r*m.Cols+right]
				for i := vector(opRoundFP8, len(x), codes, x, s, 0); i < len(x); i++ {
					codes[i] = fp8Code(x[i] / s)
				}
			}
		}
	}
}

// fp8Code rounds to the nearest E4M3 value, ties to even; what is above 448
// becomes 448, and NaN stays NaN.
func fp8Code(x float32) byte {
	b := math.Float32bits(x)
	sign := byte(b >> 24 & 0x80)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7f
	case b < 0x3c800000: // 2⁻⁶: at 2¹⁴ the last bit of an f32 counts 2⁻⁹, the subnormal step
		return sign | byte(math.Float32bits(math.Float32frombits(b)+1<<14))
	default:
		b += 0x7ffff + b>>20&1
		return sign | byte(min(b>>20-(127-7)<<3, 0x7e))
	}
}
