package quantize

import (
	"math"
	"slices"

	"hawkmoth/format"
)

// Codec turns rows of float32 into a format's bytes and back. Both functions
// take the finite values and the sizes that the caller has checked; they
// allocate nothing and may run on different rows of one matrix at once.
type Codec struct {
	ID format.ID
	// Encode quantises the rows [row, row+n), given as w [n, Cols], into m by
	// the absmax method. The first row of FP8 is a multiple of 128, and so is
	// n unless the rows reach the end of the matrix.
	Encode func(m Matrix, row, n int, w []float32)
	// Decode writes row `row` to dst [Cols].
	Decode func(m Matrix, row int, dst []float32)
}

var codecs = []Codec{
	{format.F32, encodeRows(encodeF32), decodeRow(decodeF32)},
	{format.Int8Row, encodeRows(encodeInt8), decodeRow(decodeInt8)},
	{format.Int4Row, encodeRows(encodeInt4), decodeRow(decodeInt4)},
	{format.Int2Row, encodeRows(encodeInt2), decodeRow(decodeInt2)},
	{format.Int4Grouped, encodeRows(encodeInt4Grouped), decodeRow(decodeInt4Grouped)},
	{format.Int3G64, encodeRows(encodeInt3), decodeRow(decodeInt3)},
	{format.FP8, encodeFP8, decodeFP8},
	{format.BF16, encodeRows(encodeBF16), decodeRow(decodeBF16)},
	{format.F16, encodeRows(encodeF16), decodeRow(decodeF16)},
}

// Codecs lists every codec in the order of the formats.
func Codecs() []Codec { return slices.Clone(codecs) }

// CodecFor is the codec of a format; format.ErrUnsupported for a format that
// has none.
func CodecFor(id format.ID) (Codec, error) {
	for _, c := range codecs {
		if c.ID == id {
			return c, nil
		}
	}
	return Codec{}, &format.Error{Kind: format.ErrUnsupported, What: "no codec for weight format", Found: id.String()}
}

// NewMatrix is a matrix of zero bytes in memory of its own.
func NewMatrix(s format.Spec) Matrix {
	m := Matrix{Spec: s, W: make([]byte, s.Bytes())}
	if s.Format.Info().Packed {
		m.S = make([]float32, s.Scales())
	}
	return m
}

// A row codec sees one row: its packed bytes, its scales (nil for plain
// floats), its values, and the columns of a scale group (Int4Grouped only).
type (
	rowEncoder func(code []byte, scales, w []float32, group int)
	rowDecoder func(dst []float32, code []byte, scales []float32, group int)
)

// encodeRows and decodeRow cut a matrix whose scale blocks are one row high.
func encodeRows(encode rowEncoder) func(Matrix, int, int, []float32) {
	return func(m Matrix, row, n int, w []float32) {
		bytes, scales := m.RowBytes(), m.ScaleCols()
		for i := range n {
			r := row + i
			encode(m.W[r*bytes:(r+1)*bytes], m.S[r*scales:(r+1)*scales], w[i*m.Cols:(i+1)*m.Cols], m.Group)
		}
	}
}

func decodeRow(decode rowDecoder) func(Matrix, int, []float32) {
	return func(m Matrix, row int, dst []float32) {
		bytes, scales := m.RowBytes(), m.ScaleCols()
		decode(dst[:m.Cols], m.W[row*bytes:(row+1)*bytes], m.S[row*scales:(row+1)*scales], m.Group)
	}
}

// scaleFloor keeps a zero or tiny block from dividing by zero.
const scaleFloor float32 = 1e-8

// absmaxScale is max(max|w| / qmax, 1e-8). A NaN or Inf in w makes the scale
// NaN or Inf, so that it cannot hide.
func absmaxScale(w []float32, qmax float32) float32 {
	return max(maxAbs(w)/qmax, scaleFloor)
}

// maxAbs compares magnitudes as integers: the order is the same, and NaN is
// greater than everything.
func maxAbs(w []float32) float32 {
	n, top := vectorMaxAbs(w)
	a, b, c, d := math.Float32bits(top)<<1, uint32(0), uint32(0), uint32(0)
	w = w[n:]
	for ; len(w) >= 4; w = w[4:] {
		a = max(a, math.Float32bits(w[0])<<1)
		b = max(b, math.Float32bits(w[1])<<1)
		c = max(c, math.Float32bits(w[2])<<1)
		d = max(d, math.Float32bits(w[3])<<1)
	}
	for _, x := range w {
		a = max(a, math.Float32bits(x)<<1)
	}
	return math.Float32frombits(max(a, b, c, d) >> 1)
}

// rint rounds to the nearest integer, ties to even, for |x| ≤ 2²²: at 1.5·2²³
// the last bit of a float32 counts ones, so the addition does the rounding and
// the low bits of the sum are the integer.
//
// Codes need no clipping: the scale of a block is at least max|w|/qmax less
// half an ulp, so |w/s| < qmax + ½.
func rint(x float32) int32 { return int32(math.Float32bits(x+rintShift)) - 0x4b400000 }

const rintShift = 3 << 22
