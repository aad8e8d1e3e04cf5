package kernel

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// bigFMA is a*b + c in exact arithmetic, rounded once.
func bigFMA(a, b, c float32) float32 {
	s := float64(a)*float64(b) + float64(c)
	if s == 0 || math.IsInf(s, 0) || s != s {
		return float32(s) // signs of zero, infinities and NaN are IEEE's own; an inexact sum is never 0
	}
	p := new(big.Float).SetPrec(2000).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
	f, _ := p.Add(p, big.NewFloat(float64(c))).Float32()
	return f
}

func sameFloat(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func checkFMA(t *testing.T, a, b, c float32) {
	t.Helper()
	if got, want := FMA(a, b, c), bigFMA(a, b, c); !sameFloat(got, want) {
		t.Fatalf("FMA(%x, %x, %x) = %x, want %x", a, b, c, got, want)
	}
	if got, want := fmaTie(a, b, c), bigFMA(a, b, c); !sameFloat(got, want) {
		t.Fatalf("fmaTie(%x, %x, %x) = %x, want %x", a, b, c, got, want)
	}
}

var edgeFloats = func() []float32 {
	pos := []float32{0, math.SmallestNonzeroFloat32, 3 * math.SmallestNonzeroFloat32, 0x1.fffffcp-127, 0x1p-126, 0x1.000002p-126,
		1e-20, 1e-8, 0x1p-25, 0x1p-24, 0x1.8p-24, 0x1.000002p-24, 0x1.fffffep-1, 1, 0x1.000002p0, 0x1.000004p0, 1.5, 3, 127, 2047,
		0x1p23, 0x1.000002p23, 0x1p24, 1e20, 0x1p127, math.MaxFloat32, float32(math.Inf(1)), float32(math.NaN())}
	all := pos
	for _, x := range pos {
		all = append(all, -x)
	}
	return all
}()

func TestFMAIsRoundedOnce(t *testing.T) {
	for _, a := range edgeFloats {
		for _, b := range edgeFloats {
			for _, c := range edgeFloats {
				checkFMA(t, a, b, c)
			}
		}
	}
	wrong := 0
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		// c is large and the product ends near half an ulp of it, ± a little.
		c := math.Float32frombits(uint32(r.IntN(254)+1)<<23 | r.Uint32N(1<<23))
		half := math.Ldexp(1, math.Ilogb(float64(c))-24)
		a := math.Float32frombits(0x3f800000 | r.Uint32N(1<<12))
		b := float32(half / float64(a))
		if r.IntN(2) == 0 {
			a = -a
		}
		checkFMA(t, a, b, c)
		if float32(float64(a)*float64(b)+float64(c)) != bigFMA(a, b, c) {
			wrong++
		}
	}
	if wrong < 1000 {
		t.Errorf("only %d of the operands need the second step", wrong)
	}
	for range 100_000 {
		checkFMA(t, math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32()))
	}
	for range 100_000 { // results around the subnormal range
		small := func(e int) float32 {
			return math.Float32frombits(uint32(e+r.IntN(12))<<23 | r.Uint32N(1<<23) | r.Uint32N(2)<<31)
		}
		checkFMA(t, small(58), small(58), small(0))
	}
}

func FuzzFMA(f *testing.F) {
	f.Add(uint32(0x3f800001), uint32(0x33800001), uint32(0x3f800000))
	f.Add(uint32(0x00000001), uint32(0x3f000000), uint32(0x80000001))
	f.Fuzz(func(t *testing.T, a, b, c uint32) {
		checkFMA(t, math.Float32frombits(a), math.Float32frombits(b), math.Float32frombits(c))
	})
}
