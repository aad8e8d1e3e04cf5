package kernel

import "math"

// expTable is every constant of Exp, for those who generate another backend's
// version of it.
//
// Poly is Horner's from the highest power, r⁶ … r⁰, minimax for the relative
// error on |r| ≤ ln2/2 with the last two held at 1. Ln2Hi has 15 bits, so that
// x − n·Ln2Hi is exact; Ln2Lo is the rest of ln 2.
var expTable = struct {
	Log2E, Ln2Hi, Ln2Lo, Min, Max float32
	Poly                          [7]float32
}{
	Log2E: 0x1.715476p+0, Ln2Hi: 0x1.62e4p-1, Ln2Lo: 0x1.7f7d1cp-20, Min: -87, Max: 88,
	Poly: [7]float32{0x1.6a23dp-10, 0x1.123a2p-7, 0x1.5558f2p-5, 0x1.555492p-3, 0x1.fffffcp-2, 1, 1},
}

// roundShift is 1.5·2²³: adding it to a float32 below 2²² in magnitude rounds
// to an integer, ties to even, which the low bits of the sum hold.
const roundShift float32 = 3 << 22

// Exp is eˣ with an error below 1 ulp: +0 for x < −87, the largest float32 for
// x > 88, NaN for NaN.
func Exp(x float32) float32 {
	t := &expTable
	switch {
	case x != x:
		return float32(math.NaN())
	case x < t.Min:
		return 0
	case x > t.Max:
		return math.MaxFloat32
	}
	shifted := float32(x*t.Log2E) + roundShift
	n := shifted - roundShift
	r := FMA(n, -t.Ln2Hi, x)
	r = FMA(n, -t.Ln2Lo, r)
	p := t.Poly[0]
	for _, c := range t.Poly[1:] {
		p = FMA(p, r, c)
	}
	return math.Float32frombits(math.Float32bits(p) + math.Float32bits(shifted)<<23)
}

// Sigmoid is 1 / (1 + Exp(−x)).
func Sigmoid(x float32) float32 { return 1 / (1 + Exp(-x)) }

// SiLU is x / (1 + Exp(−x)).
func SiLU(x float32) float32 { return x / (1 + Exp(-x)) }

// SiLUMul sets dst_i = SiLU(gate_i)·up_i; dst may be either operand.
func SiLUMul(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	if siluMulSIMD(dst, gate, up) {
		return
	}
	for i := range dst {
		dst[i] = SiLU(gate[i]) * up[i]
	}
}

// AddScaled adds w·y_i to out_i, fused.
func AddScaled(out []float32, w float32, y []float32) {
	if addScaledSIMD(out, w, y) {
		return
	}
	y = y[:len(out)]
	ws := [4]float32{w, w, w, w}
	i := 0
	for ; i+4 <= len(out); i += 4 {
		fma4((*[4]float32)(out[i:]), &ws, (*[4]float32)(y[i:]))
	}
	for ; i < len(out); i++ {
		out[i] = FMA(w, y[i], out[i])
	}
}

// Add adds y_i to out_i.
func Add(out, y []float32) {
	if addSIMD(out, y) {
		return
	}
	y = y[:len(out)]
	for i := range out {
		out[i] += y[i]
	}
}

// sqrt is the correctly rounded square root: rounding the float64 root again
// changes nothing.
func sqrt(x float32) float32 { return float32(math.Sqrt(float64(x))) }
