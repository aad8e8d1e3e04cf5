package kernel

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"hawkmoth/format"
	"hawkmoth/internal/guard"
	"hawkmoth/quantize"
)

// with runs f at a level and restores the one in use.
func with(i isa, f func()) {
	defer func(old isa) { active = old }(active)
	active = i
	f()
}

func TestISA(t *testing.T) {
	t.Logf("levels: %v", isas)
	names := ISAs()
	if ISA() != names[len(names)-1] || names[0] != "go" {
		t.Errorf("%s of %v in use, want the best", ISA(), names)
	}
	if err := UseISA("abacus"); !errors.Is(err, format.ErrUnsupported) || ISA() == "abacus" {
		t.Errorf("UseISA(abacus) = %v", err)
	}
	with(active, func() {
		if err := UseISA("go"); err != nil || ISA() != "go" {
			t.Errorf("UseISA(go) = %v, %s in use", err, ISA())
		}
	})
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
					"attention": TestAttentionEqualsTheNaiveTranscription, "softmax": TestSoftmaxEdges, "qabs": TestQAbs, "index": TestIndexScore, "route": TestRoute, "topk": TestG7TopKTakesTheLowestOfEqualScores,
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
	b := guard.Bytes(t, 4*len(x))
	f := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(x))
	copy(f, x)
	return f
}

func guardedMatrix(t testing.TB, m quantize.Matrix) quantize.Matrix {
	w := guard.Bytes(t, len(m.W))
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
	const rows = 37
	for _, cols := range awkward {
		t.Run(fmt.Sprint(cols), func(t *testing.T) {
			for _, s := range specs(rows, cols) {
				for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 35} {
					seed++
					kind := kinds[seed%uint64(len(kinds))]
					if cols > 256 && n > 2 && n != 8 && n != 17 && (n != 35 || cols > 576) || cols > 1024 && s.Group%64 != 0 {
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
					lo := r.IntN(rows)
					hi := lo + r.IntN(rows+1-lo)
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

// edges are numbers whose sign, order or rounding a vector unit could treat in
// a way of its own.
var edges = []float32{0, float32(math.Copysign(0, -1)), 1, -1, 88, 88.00001, -87, -87.00001, 100, -100, 1e-30, -1e-30, 0x1p-126, 0x1p-149,
	math.MaxFloat32, -math.MaxFloat32, 0.5, 1.5, 2.5, 1e-9, 1e9}

func TestVectorsOfEveryISA(t *testing.T) {
	for _, n := range append([]int{3, 5, 8, 31, 33, 128, 255, 4096}, awkward...) {
		for k, kind := range append(kinds, "edges", "infinite", "nan") {
			t.Run(fmt.Sprint(n, kind), func(t *testing.T) {
				r := rand.New(rand.NewPCG(uint64(n), uint64(k)))
				draw := func() []float32 {
					x := sample(r, n, kinds[k%len(kinds)])
					for i := range x {
						switch {
						case kind == "edges" || kind != "normal" && k >= len(kinds) && r.IntN(3) == 0:
							x[i] = edges[r.IntN(len(edges))]
						}
					}
					switch kind {
					case "infinite":
						x[r.IntN(n)] = float32(math.Inf(1 - 2*r.IntN(2)))
					case "nan":
						x[r.IntN(n)] = float32(math.NaN())
					}
					return guardedFloats(t, x)
				}
				a, b, c := draw(), draw(), draw()
				check := func(name string, f func(out []float32)) {
					t.Helper()
					everyISA(t, name, func() []float32 {
						out := guardedFloats(t, c)
						f(out)
						return out
					})
				}
				check("Dot", func(out []float32) { out[0] = Dot(a, b) })
				check("Add", func(out []float32) { Add(out, a) })
				check("AddScaled", func(out []float32) { AddScaled(out, b[0], a) })
				check("SiLUMul", func(out []float32) { SiLUMul(out, a, b) })
				check("SiLUMul in place", func(out []float32) { SiLUMul(out, out, b) })
				check("Softmax", func(out []float32) { Softmax(out) })
				check("RMSNorm", func(out []float32) { RMSNorm(out, a, b, 1e-5) })
				check("RMSNorm in place", func(out []float32) { RMSNorm(out, out, b, 1e-5) })
				check("LayerNorm", func(out []float32) { LayerNorm(out, a, b, a, 1e-5) })
				for _, bits := range []int{8, 12} {
					everyISA(t, fmt.Sprint("Quantize ", bits), func() []float32 {
						var act Activation
						act.Quantize(a, bits)
						out := append([]float32(nil), act.Scale...)
						for i, q := range act.Q {
							if s := act.Scale[i/Block]; s == s { // what a NaN makes of q shows nowhere
								out = append(out, float32(q))
							}
						}
						return out
					})
				}
			})
		}
	}
}

func TestAttentionOfEveryISA(t *testing.T) {
	var tmp Scratch
	for seed, c := range []struct{ kvl, rope, pad, n, every, queries int }{
		{1, 2, 0, 1, 1, 1}, {64, 16, 0, 70, 1, 2}, {100, 6, 3, 255, 1, 3}, {32, 8, 8, 256, 1, 4}, {32, 8, 0, 257, 1, 5},
		{17, 64, 1, 600, 1, 6}, {48, 8, 0, 1100, 3, 7}, {48, 8, 0, 2000, 500, 8}, {512, 64, 0, 700, 1, 9}, {128, 64, 4, 1000, 7, 6}, {500, 64, 0, 1000, 7, 17},
		{16, 1100, 0, 30, 1, 1}, {64, 16, 0, 70, 1, 8}, {192, 16, 0, 300, 5, 13}, {128, 64, 0, 520, 1, 12},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 41))
			kind := kinds[seed%len(kinds)]
			if c.queries > 7 { // two times four sums: zeros would hide which
				kind = "normal"
			}
			stride := c.kvl + c.rope + c.pad
			cache := guardedFloats(t, sample(r, c.n*stride-c.pad, kind))
			var positions []int32
			n := c.n
			if c.every > 1 {
				for p := c.n - 1; p >= 0; p -= c.every {
					positions = append([]int32{int32(p)}, positions...)
				}
				n = len(positions)
			}
			q := make([][]float32, c.queries)
			for s := range q {
				q[s] = guardedFloats(t, sample(r, c.kvl+c.rope, "normal"))
			}
			rows := func(width int) [][]float32 {
				x := make([][]float32, c.queries)
				for s := range x {
					x[s] = guardedFloats(t, make([]float32, width))
				}
				return x
			}
			var p [][]float32
			everyISA(t, "Score", func() []float32 {
				batch := rows(n)
				ScoreBatch(batch, q, cache, stride, positions, 0.1)
				one := guardedFloats(t, make([]float32, n))
				all := make([]float32, 0)
				for s, b := range batch {
					Score(one, q[s][:c.kvl], q[s][c.kvl:], cache, stride, positions, 0.1)
					sameBits(t, "batch", b, one)
					Softmax(b)
					all = append(append(all, one...), b...)
				}
				p = batch
				return all
			})
			everyISA(t, "Latent", func() []float32 {
				batch := rows(c.kvl)
				LatentBatch(batch, p, cache, stride, positions, &tmp)
				one := guardedFloats(t, make([]float32, c.kvl))
				var all []float32
				for s, b := range batch {
					Latent(one, p[s], cache, stride, positions, &tmp)
					sameBits(t, "batch", b, one)
					all = append(all, one...)
				}
				return all
			})
		})
	}
}

func TestIndexScoreOfEveryISA(t *testing.T) {
	r := rand.New(rand.NewPCG(42, 0))
	for _, c := range []struct{ heads, hd, n int }{{1, 1, 3}, {4, 32, 50}, {32, 128, 21}, {3, 17, 9}, {64, 128, 5}, {130, 16, 4}, {7, 20, 1}} {
		q, w, k := guardedFloats(t, sample(r, c.heads*c.hd, "normal")), guardedFloats(t, sample(r, c.heads, "normal")), guardedFloats(t, sample(r, c.n*c.hd, "sparse"))
		if c.n > 5 {
			k[0] = float32(math.NaN())
		}
		everyISA(t, fmt.Sprint(c), func() []float32 {
			dst := guardedFloats(t, make([]float32, c.n))
			IndexScore(dst, q, w, k, 0.125)
			return dst
		})
	}
}

func TestDequantAndQAbsOfEveryISA(t *testing.T) {
	var tmp Scratch
	for _, cols := range awkward {
		t.Run(fmt.Sprint(cols), func(t *testing.T) {
			for i, s := range specs(70, cols) {
				r := rand.New(rand.NewPCG(43, uint64(i)))
				m := guardedMatrix(t, encoded(r, s, kinds[i%len(kinds)]))
				everyISA(t, s.String(), func() []float32 {
					dst := guardedFloats(t, make([]float32, cols))
					var all []float32
					for _, row := range []int{0, 1, 69} {
						Dequant(m, row, dst)
						all = append(all, dst...)
					}
					return all
				})
				q := make([][]float32, 9)
				for k := range q {
					q[k] = guardedFloats(t, sample(r, 65, kinds[k%len(kinds)]))
				}
				everyISA(t, s.String(), func() []float32 {
					d := make([][]float32, len(q)+1)
					for k := range d {
						d[k] = guardedFloats(t, make([]float32, cols))
					}
					QAbsBatch(d[1:], q, m, 5, &tmp)
					QAbs(d[0], q[0], m, 5, &tmp)
					var all []float32
					for _, x := range d {
						all = append(all, x...)
					}
					return all
				})
			}
		})
	}
}

func TestTopKOfEveryISA(t *testing.T) {
	for _, n := range awkward {
		for k, kind := range append(kinds, "edges", "nan") {
			r := rand.New(rand.NewPCG(uint64(n), uint64(k)))
			x := sample(r, n, kinds[k%len(kinds)])
			for i := range x {
				switch {
				case kind == "edges" && r.IntN(2) == 0:
					x[i] = edges[r.IntN(len(edges))]
				case kind == "nan" && r.IntN(3) > 0:
					x[i] = float32(math.NaN())
				}
			}
			everyISA(t, fmt.Sprint(n, kind), func() []float32 {
				var all []float32
				for _, top := range []int{0, 1, 2, n / 3, n / 2, n - 1, n} {
					for _, i := range TopK(make([]int32, 0, n), x, top) {
						all = append(all, float32(i))
					}
					all = append(all, -1)
				}
				return all
			})
		}
	}
}

// Every code of FP8, its NaN included, by every path.
func TestFP8CodesOfEveryISA(t *testing.T) {
	var tmp Scratch
	m := quantize.NewMatrix(format.Spec{Format: format.FP8, Rows: 2, Cols: 256})
	for i := range 256 {
		m.W[i], m.W[256+i] = byte(i), byte(i)
		if i&0x7f == 0x7f {
			m.W[256+i] = 0
		}
	}
	m.S[0], m.S[1] = 0.3, 1e-38
	everyISA(t, "Dequant", func() []float32 {
		dst := make([]float32, 512)
		Dequant(m, 0, dst[:256])
		Dequant(m, 1, dst[256:])
		return dst
	})
	everyISA(t, "MatVec", func() []float32 {
		var all []float32
		for i := range 256 {
			x := make([]float32, 256)
			x[i] = 1.5
			all = append(all, product(m, [][]float32{x}, &tmp)[0]...)
		}
		return all
	})
}
