package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"hawkmoth/quantize"
)

// with runs f at a level and restores the one in use.
func with(i isa, f func()) {
	defer func(old isa) { active = old }(active)
	active = i
	f()
}

// Every test of the arithmetic must hold at every level of instructions.
func TestEveryISA(t *testing.T) {
	for _, i := range isas[:len(isas)-1] { // the best one is in use anyway
		t.Run(i.String(), func(t *testing.T) {
			with(i, func() {
				for name, f := range map[string]func(*testing.T){
					"golden": TestG8SameBitsOnEveryMachine, "matvec": TestMatVecEqualsTheNaiveTranscription, "split": TestG3BatchAndRowSplitDoNotShow,
					"quantize": TestQuantizeEqualsTheNaiveTranscription, "non-finite": TestB20NonFiniteActivationsStayVisible, "unknown": TestA7UnknownFormatIsRefused,
					"dot": TestDotEqualsTheNaiveTranscription, "ties": TestTiesInEveryStripe, "norms": TestNorms, "exp": TestExpErrorBelowOneUlp, "silu": TestSigmoidSiLU,
					"attention": TestAttentionEqualsTheNaiveTranscription, "softmax": TestSoftmaxEdges, "qabs": TestQAbs, "index": TestIndexScore, "route": TestRoute,
					"rope": TestRoPERotates, "allocations": TestNothingAllocatesWithUsedScratch,
				} {
					t.Run(name, f)
				}
			})
		})
	}
}

// guardedFloats is a copy of x that ends where no memory is mapped.
func guardedFloats(t testing.TB, x []float32) []float32 {
	if len(x) == 0 {
		return nil
	}
	b := guarded(t, 4*len(x))
	f := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(x))
	copy(f, x)
	return f
}

func guardedMatrix(t testing.TB, m quantize.Matrix) quantize.Matrix {
	w := guarded(t, len(m.W))
	copy(w, m.W)
	m.W = w
	m.S = guardedFloats(t, m.S)
	return m
}

// sameBits is equalBits but for NaN, whose bits are the machine's.
func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if g, w := got[i], want[i]; math.Float32bits(g) != math.Float32bits(w) && (g == g || w == w) {
			t.Fatalf("%s: [%d] = %x (%g), want %x (%g)", what, i, math.Float32bits(g), g, math.Float32bits(w), w)
		}
	}
}

// everyISA calls f, which fills and returns floats, at the plain level and then
// at the others, and compares.
func everyISA(t *testing.T, what string, f func() []float32) {
	t.Helper()
	var want []float32
	with(plain, func() { want = f() })
	for _, i := range isas[1:] {
		with(i, func() { sameBits(t, what+" "+i.String(), f(), want) })
	}
}

var awkward = []int{1, 2, 15, 16, 17, 48, 63, 64, 65, 100, 192, 255, 256, 257, 300, 320, 448, 512, 576, 1024, 1100, 2048, 5120}

func TestMatVecOfEveryISA(t *testing.T) {
	var tmp Scratch
	seed := uint64(0)
	for _, cols := range awkward {
		t.Run(fmt.Sprint(cols), func(t *testing.T) {
			for _, s := range specs(9, cols) {
				for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 17} {
					seed++
					kind := kinds[seed%uint64(len(kinds))]
					if cols > 1024 && n > 2 && n != 8 && n != 17 {
						continue
					}
					r := rand.New(rand.NewPCG(seed, 40))
					m := guardedMatrix(t, encoded(r, s, kind))
					xs := make([][]float32, n)
					for i := range xs {
						xs[i] = guardedFloats(t, sample(r, cols, kinds[(i+int(seed))%len(kinds)]))
					}
					if n == 3 {
						xs[1][cols-1] = float32(math.Inf(1))
					}
					lo := r.IntN(9)
					hi := lo + r.IntN(10-lo)
					everyISA(t, fmt.Sprintf("%s S=%d rows %d-%d", describe(s, kind, seed), n, lo, hi), func() []float32 {
						var all []float32
						for _, y := range product(m, xs, &tmp) {
							all = append(all, y...)
						}
						act, y := make([]Activation, n), make([][]float32, n)
						for i, x := range xs {
							act[i].Quantize(x, max(8, ActivationBits(s.Format)))
							y[i] = guardedFloats(t, make([]float32, max(1, hi-lo)))
						}
						MatVecRows(m, lo, hi, xs, act, y, &tmp)
						for i := range y {
							all = append(all, y[i]...)
						}
						return all
					})
				}
			}
		})
	}
}
