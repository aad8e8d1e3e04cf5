package kernel

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// golden is what every machine must compute. A change here is a new version of
// the arithmetic.
var golden = map[string]string{
	"cosine, sine":     "2fe4293a64de6fc3",
	"f32":              "a1330d8dfcbcb0d5",
	"int8-row":         "2d8109159a65d241",
	"int4-row":         "fa445af1722a8c50",
	"int2-row":         "7f6199c567a173cd",
	"int4-grouped/16":  "2a60080da6329933",
	"int4-grouped/32":  "722f718b7168d973",
	"int4-grouped/48":  "486c7fde5c11a667",
	"int4-grouped/64":  "3744ed487bcedf92",
	"int4-grouped/96":  "14c9f3a0a6f3bbd6",
	"int4-grouped/128": "06499155a9edcb73",
	"int4-grouped/192": "2abe909aa2ac8f31",
	"int4-grouped/256": "08be7ed957f65588",
	"int3-g64":         "6485ceed56cd8052",
	"fp8-e4m3-b128":    "5816906255467975",
	"bf16":             "b477b83951f2e0e7",
	"f16":              "62ff4c27007648b2",
	"exp":              "4430f8627802c950",
	"sigmoid, silu":    "5d2dfd1392ae4b57",
	"norms":            "bd542fee29f645ad",
	"rope table":       "a83c4aa14bbf234a",
	"rope":             "9625b30fe51e2150",
	"attention":        "7d53133610c1e477",
	"indexer":          "c716e9e1d1c8d94e",
	"router":           "9b38f1a7b57efe10",
}

// integers gives float32 made without float arithmetic that a machine could
// round in its own way: a 12-bit integer times a power of two.
func integers(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.IntN(4096)-2048) * math.Float32frombits(uint32(127-11-r.IntN(6))<<23)
	}
	return x
}

func hashFloats(lists ...[]float32) string {
	h := fnv.New64a()
	var b [4]byte
	for _, l := range lists {
		for _, x := range l {
			binary.LittleEndian.PutUint32(b[:], math.Float32bits(x))
			h.Write(b[:])
		}
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// G4, G8: the same bits on every machine, whether or not its compiler fuses.
func TestG8SameBitsOnEveryMachine(t *testing.T) {
	check := func(name string, lists ...[]float32) {
		t.Helper()
		if got := hashFloats(lists...); got != golden[name] {
			t.Errorf("%q: %q, want %q", name, got, golden[name])
		}
	}
	r := rand.New(rand.NewPCG(100, 0))
	var tmp Scratch
	const rows, cols = 9, 331
	x := integers(r, cols)
	for _, s := range specs(rows, cols) {
		m := quantize.NewMatrix(s)
		for i := range m.W {
			m.W[i] = byte(r.Uint32())
		}
		switch s.Format {
		case format.F32, format.BF16, format.F16, format.FP8: // random bytes would hold NaN
			c, _ := quantize.CodecFor(s.Format)
			c.Encode(m, 0, rows, integers(r, rows*cols))
		}
		for i := range m.S {
			m.S[i] = float32(1+r.IntN(1000)) / 3000
		}
		q := make([]float32, cols)
		QAbs(q, x[:5], m, 2, &tmp)
		check(s.Name(), product(m, [][]float32{x}, &tmp)[0], q)
	}

	xs := make([]float32, 0, 20000)
	for i := -10000; i < 10000; i++ {
		xs = append(xs, float32(i)/110)
	}
	exp, sig, silu := make([]float32, len(xs)), make([]float32, len(xs)), make([]float32, len(xs))
	for i, v := range xs {
		exp[i], sig[i], silu[i] = Exp(v), Sigmoid(v), SiLU(v)
	}
	check("exp", exp)
	check("sigmoid, silu", sig, silu)

	w, b, y, z := integers(r, cols), integers(r, cols), make([]float32, cols), make([]float32, cols)
	RMSNorm(y, x, w, 1e-5)
	LayerNorm(z, x, w, b, 1e-5)
	SiLUMul(w, w, b)
	AddScaled(b, 0.3, y)
	check("norms", y, z, w, b, []float32{Dot(x, w)})

	const dim, positions, stride = 16, 700, 80
	table := NewRoPE(dim, Angles{Theta: 1e6})
	table.Grow(positions)
	check("rope table", table.cos, table.sin)
	var wide []float32 // the float64 values in full: their last bits seldom reach a float32
	for i := range 2000 {
		c, s := cosSin(float64(i*i) / 16)
		for _, v := range []float64{c, s} {
			u := math.Float64bits(v)
			wide = append(wide, float32(u>>48), float32(u>>32&0xffff), float32(u>>16&0xffff), float32(u&0xffff))
		}
	}
	check("cosine, sine", wide)
	rotated, halves := make([]float32, dim), make([]float32, dim)
	cos, sin := table.At(555)
	RoPEInterleaved(rotated, x, cos, sin)
	RoPEHalves(halves, x, cos, sin)
	check("rope", rotated, halves)

	cache := integers(r, positions*stride)
	p, latent, selected := make([]float32, positions), make([]float32, 64), make([]float32, 64)
	Score(p, x[:64], rotated, cache, stride, nil, 0.07)
	Softmax(p)
	Latent(latent, p, cache, stride, nil, &tmp)
	ids := TopK(make([]int32, 0, 50), p, 50)
	few := make([]float32, 50)
	Score(few, x[:64], rotated, cache, stride, ids, 0.07)
	Softmax(few)
	Latent(selected, few, cache, stride, ids, &tmp)
	check("attention", p, latent, few, selected)

	index := make([]float32, 100)
	IndexScore(index, x[:4*stride], x[:4], cache, 0.11)
	check("indexer", index)

	chosen, weights := make([]int32, 8), make([]float32, 8)
	Route(x[:64], x[64:128], false, 8, 4, 8, true, 2.5, chosen, weights, &tmp)
	for i, e := range chosen {
		few[i] = float32(e)
	}
	check("router", weights, few[:8])
}
