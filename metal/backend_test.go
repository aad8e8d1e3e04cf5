package metal

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
	"hawkmoth/runtime/kernel"
)

// gpus runs a test on every device of this machine; open opens it anew. What is
// missing is skipped, visibly.
func gpus(t *testing.T, run func(t *testing.T, open func() Device)) {
	t.Helper()
	for _, dr := range Drivers() {
		t.Run(dr.Name, func(t *testing.T) {
			if _, err := dr.Devices(); err != nil {
				t.Skip("SKIPPED: ", err)
			}
			open := func() Device {
				d, err := dr.Open(0)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			d := open()
			l := d.Limits()
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if !l.SIMD {
				t.Skip("SKIPPED: no operations over simdgroups")
			}
			run(t, open)
		})
	}
}

// moreGPUs also takes devices that no driver opens.
func moreGPUs(t *testing.T, run func(t *testing.T, open func() Device)) {
	t.Helper()
	gpus(t, run)
	for name, open := range moreDevices {
		t.Run(name, func(t *testing.T) {
			if err := open(t).Close(); err != nil { // skips what is missing
				t.Fatal(err)
			}
			run(t, func() Device { return open(t) })
		})
	}
}

// moreDevices are an emulator for each thing that Apple's devices lack.
var moreDevices = map[string]func(t testing.TB) Device{}

// twin runs the same commands on a backend and on the CPU, from the same
// content of every buffer.
type twin struct {
	t    testing.TB
	gpu  *Backend
	cpu  *runtime.CPU
	rng  *rand.Rand
	mem  [][]float32 // of the CPU's buffers
	vecs []runtime.Vec
}

func newTwin(t testing.TB, d Device, disable ...string) *twin {
	t.Helper()
	b, err := New(Options{Device: d, Threads: 1, Disable: disable})
	if err != nil {
		t.Fatal(err)
	}
	w := &twin{t: t, gpu: b, cpu: runtime.NewCPU(1), rng: rand.New(rand.NewPCG(1, 2))}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		_ = w.cpu.Close()
	})
	return w
}

// pair is a weight on both.
type pair struct{ gpu, cpu runtime.Weight }

func (w *twin) load(s format.Spec) pair {
	w.t.Helper()
	m := w.matrix(s)
	g, err := w.gpu.Load(m)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := w.cpu.Load(m)
	if err != nil {
		w.t.Fatal(err)
	}
	return pair{g, c}
}

// matrix is random codes and scales.
func (w *twin) matrix(s format.Spec) quantize.Matrix {
	m := quantize.NewMatrix(s)
	if isFloat(s.Format) && s.Format != format.FP8 {
		c, err := quantize.CodecFor(s.Format)
		if err != nil {
			w.t.Fatal(err)
		}
		f := make([]float32, s.Rows*s.Cols)
		for i := range f {
			f[i] = w.float()
		}
		c.Encode(m, 0, s.Rows, f)
		return m
	}
	for i := range m.W {
		m.W[i] = byte(w.rng.Uint32())
		if s.Format == format.FP8 && m.W[i]&0x7F == 0x7F {
			m.W[i] = 0
		}
	}
	for i := range m.S {
		m.S[i] = float32(w.rng.NormFloat64()) / 16
	}
	return m
}

// float is mostly ordinary and sometimes zero, negative zero, huge or tiny.
func (w *twin) float() float32 {
	switch w.rng.IntN(40) {
	case 0:
		return 0
	case 1:
		return float32(math.Copysign(0, -1))
	case 2:
		return float32(w.rng.NormFloat64() * 1e4)
	case 3:
		return float32(w.rng.NormFloat64() * 1e-6)
	}
	return float32(w.rng.NormFloat64())
}

// alloc makes a buffer on both; floats are random, ints are zero.
func (w *twin) alloc(rows, width int, e runtime.Elem) runtime.Vec {
	w.t.Helper()
	v, err := w.gpu.Alloc(rows, width, e)
	if err != nil {
		w.t.Fatal(err)
	}
	mem := make([]float32, rows*width)
	if e == runtime.Float {
		for i := range mem {
			mem[i] = w.float()
		}
	}
	w.cpu.Lend(v, bytesOfFloats(mem))
	w.mem, w.vecs = append(w.mem, mem), append(w.vecs, v)
	w.put(v)
	return v
}

// put copies the CPU's content of a buffer to the device.
func (w *twin) put(v runtime.Vec) {
	w.t.Helper()
	if err := w.gpu.wait(0); err != nil {
		w.t.Fatal(err)
	}
	if err := w.gpu.vecs[v.ID].buf.Write(0, bytesOfFloats(w.mem[v.ID])); err != nil {
		w.t.Fatal(err)
	}
}

// run compares all buffers after the commands.
func (w *twin) run(name string, gpu, cpu []runtime.Op, b runtime.Batch) {
	w.t.Helper()
	cmds := func(ops []runtime.Op) (c []runtime.Cmd) {
		for _, op := range ops {
			c = append(c, runtime.Cmd{Op: op})
		}
		return c
	}
	if err := w.gpu.Run(cmds(gpu), b); err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	if err := w.gpu.wait(0); err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	if err := w.cpu.Run(cmds(cpu), b); err != nil {
		w.t.Fatal(err)
	}
	for _, v := range w.vecs {
		got := make([]float32, len(w.mem[v.ID]))
		if err := w.gpu.vecs[v.ID].buf.Read(0, bytesOfFloats(got)); err != nil {
			w.t.Fatal(err)
		}
		bad := 0
		for i, x := range w.mem[v.ID] {
			if math.Float32bits(x) != math.Float32bits(got[i]) && (x == x || got[i] == got[i]) {
				if bad++; bad <= 3 {
					w.t.Errorf("%s: buffer %d, row %d, column %d: %x (%g) on the device, %x (%g) on the CPU", name, v.ID, i/v.Width, i%v.Width,
						math.Float32bits(got[i]), got[i], math.Float32bits(x), x)
				}
			}
		}
		if bad > 0 {
			w.t.Errorf("%s: buffer %d: %d of %d differ", name, v.ID, bad, len(got))
		}
		w.put(v)
	}
}

// testSpecs are all formats that the kernels decode, with group sizes that cut
// blocks and that do not.
func testSpecs() (specs []format.Spec) {
	for _, f := range formats {
		if f != format.Int4Grouped {
			specs = append(specs, format.Spec{Format: f})
			continue
		}
		for _, gs := range format.GroupSizes {
			specs = append(specs, format.Spec{Format: f, Group: gs})
		}
	}
	return specs
}

func TestMatMul(t *testing.T) { moreGPUs(t, testMatMul) }

func testMatMul(t *testing.T, open func() Device) {
	for _, s := range testSpecs() {
		t.Run(s.Name(), func(t *testing.T) {
			w := newTwin(t, open())
			for _, dims := range [][2]int{{1, 1}, {3, 2}, {5, 63}, {17, 64}, {4, 65}, {33, 100}, {7, 192}, {150, 256}, {20, 576}, {3, 1000}, {5, 1056}, {9, 2304}} {
				s.Rows, s.Cols = dims[0], dims[1]
				m, n := w.load(s), w.load(s)
				x := w.alloc(19, s.Cols+3, runtime.Float)
				y := w.alloc(19, s.Rows+2, runtime.Float)
				z := w.alloc(19, s.Rows, runtime.Float)
				op := func(a, b runtime.Weight) []runtime.Op {
					return []runtime.Op{runtime.MatMul{X: x.Cols(2, s.Cols), W: []runtime.Weight{a, b}, Y: []runtime.View{y.Cols(1, s.Rows), z.All()}}}
				}
				for _, rows := range []int{1, 3, 8, 19} {
					w.run(fmt.Sprintf("%v × %d", s, rows), op(m.gpu, n.gpu), op(m.cpu, n.cpu), runtime.Batch{S: rows})
				}
			}
		})
	}
}

// TestOddFP8: codes that are no numbers, and scales at the ends of their range.
func TestOddFP8(t *testing.T) { moreGPUs(t, testOddFP8) }

func testOddFP8(t *testing.T, open func() Device) {
	w := newTwin(t, open())
	s := format.Spec{Format: format.FP8, Rows: 300, Cols: 1280}
	m := w.matrix(s)
	for _, i := range []int{5, 40*s.Cols + 700, 299*s.Cols + 1279} {
		m.W[i] = 0x7F | byte(i)<<7
	}
	for i, v := range []float32{2e36, 1e-38, 1e-42, -3e38, 0} {
		m.S[2*i] = v
	}
	g, err := w.gpu.Load(m)
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.cpu.Load(m)
	if err != nil {
		t.Fatal(err)
	}
	x, y := w.alloc(5, s.Cols, runtime.Float), w.alloc(5, s.Rows, runtime.Float)
	op := func(m runtime.Weight) []runtime.Op {
		return []runtime.Op{runtime.MatMul{X: x.All(), W: []runtime.Weight{m}, Y: []runtime.View{y.All()}}}
	}
	for _, n := range []int{1, 5} {
		w.run("odd", op(g), op(c), runtime.Batch{S: n})
	}
}

func TestEmbed(t *testing.T) { gpus(t, testEmbed) }

func testEmbed(t *testing.T, open func() Device) {
	for _, s := range testSpecs() {
		w := newTwin(t, open())
		for _, cols := range []int{1, 63, 100, 256} {
			s.Rows, s.Cols = 700, cols
			m := w.load(s)
			y := w.alloc(600, cols+1, runtime.Float)
			b := runtime.Batch{S: 600, Tokens: make([]int32, 600)}
			for i := range b.Tokens {
				b.Tokens[i] = int32(w.rng.IntN(s.Rows))
			}
			w.run(s.String(), []runtime.Op{runtime.Embed{W: m.gpu, Y: y.Cols(1, cols)}}, []runtime.Op{runtime.Embed{W: m.cpu, Y: y.Cols(1, cols)}}, b)
		}
	}
}

// TestRowOperations: norms, rotations, gating and sums, also into caches.
func TestRowOperations(t *testing.T) { gpus(t, testRowOperations) }

func testRowOperations(t *testing.T, open func() Device) {
	w := newTwin(t, open())
	for _, n := range []int{2, 16, 63, 64, 100, 576} {
		g, bias := w.load(format.Spec{Format: format.BF16, Rows: 1, Cols: n}), w.load(format.Spec{Format: format.F32, Rows: 1, Cols: n})
		x, y := w.alloc(9, n+5, runtime.Float), w.alloc(9, n, runtime.Float)
		z, cache := w.alloc(9, n, runtime.Float), w.alloc(40, n+3, runtime.Float)
		op := func(a, b runtime.Weight) []runtime.Op {
			return []runtime.Op{
				runtime.RMSNorm{X: x.Cols(4, n), Y: y.All(), W: a, Eps: 1e-5},
				runtime.RMSNorm{X: x.Cols(4, n), Y: cache.Cols(2, n).At(runtime.BasePos), W: a, Eps: 1e-6},
				runtime.LayerNorm{X: x.Cols(1, n), Y: z.All(), W: a, B: b, Eps: 1e-6},
				runtime.SiLUMul{Gate: y.All(), Up: z.All(), Y: x.Cols(0, n)},
				runtime.Add{X: y.All(), Y: z.All()},
				runtime.RMSNorm{X: cache.Cols(2, n).At(runtime.BaseRow), Y: y.All(), W: a, Eps: 1},
			}
		}
		w.run(fmt.Sprint(n), op(g.gpu, bias.gpu), op(g.cpu, bias.cpu), runtime.Batch{S: 9, Pos: 21, Row: 3})
	}
	for _, r := range []runtime.Rope{
		{Heads: 3, XWidth: 20, XAt: 12, YWidth: 8, N: 8, Interleave: true},
		{Heads: 1, XWidth: 16, YWidth: 16, N: 16},
		{Heads: 4, XWidth: 32, YWidth: 32, N: 6, Rest: true},
		{Heads: 2, XWidth: 32, YWidth: 32, N: 32, Rest: true, Interleave: true},
	} {
		x, y := w.alloc(9, r.Heads*r.XWidth+1, runtime.Float), w.alloc(400, r.Heads*r.YWidth+2, runtime.Float)
		r.X, r.Y, r.Angles = x.Cols(1, r.Heads*r.XWidth), y.Cols(2, r.Heads*r.YWidth).At(runtime.BasePos), kernel.Angles{Theta: 1e4}
		for _, pos := range []int{0, 300} {
			w.run(fmt.Sprintf("%+v", r), []runtime.Op{r}, []runtime.Op{r}, runtime.Batch{S: 9, Pos: pos})
		}
	}
}

// TestAttention: the indexer's selection and attention over it, with every
// format of kv_b, for one token and many, over one chunk of positions and several.
func TestAttention(t *testing.T) { gpus(t, testAttention) }

func testAttention(t *testing.T, open func() Device) {
	for _, s := range testSpecs() {
		t.Run(s.Name(), func(t *testing.T) {
			w := newTwin(t, open())
			for _, d := range []struct{ heads, nope, rope, value, kvl, topk, ctx int }{{2, 24, 16, 32, 64, 12, 64}, {9, 5, 4, 7, 97, 0, 600}, {3, 16, 8, 20, 128, 70, 700}} {
				scale := map[int]float32{12: 0.2, 0: 0.01, 70: 1e-7}[d.topk] // so that one score, some or all count

				s.Rows, s.Cols = d.heads*(d.nope+d.value), d.kvl
				kvb := w.load(s)
				const rows = 11
				q, qr := w.alloc(rows, d.heads*(d.nope+3), runtime.Float), w.alloc(rows, d.heads*d.rope, runtime.Float)
				cache, y := w.alloc(d.ctx, d.kvl+d.rope, runtime.Float), w.alloc(rows, d.heads*d.value, runtime.Float)
				iq, iw := w.alloc(rows, 3*20, runtime.Float), w.alloc(rows, 3, runtime.Float)
				keys, sel := w.alloc(d.ctx, 20, runtime.Float), w.alloc(rows, max(d.topk, 1), runtime.Int)
				op := func(kvb runtime.Weight) (ops []runtime.Op) {
					m := runtime.MLA{Q: q.All(), QRope: qr.All(), Y: y.All(), Cache: cache, KVB: kvb, Heads: d.heads, QWidth: d.nope + 3, Nope: d.nope,
						Rope: d.rope, Value: d.value, KVLoRA: d.kvl, Scale: scale}
					if d.topk > 0 {
						m.Select = &sel
						ops = append(ops, runtime.Index{Q: iq.All(), HeadWeight: iw.All(), Keys: keys, Heads: 3, Dim: 20, Scale: 0.22, HeadScale: 0.5, Select: sel})
					}
					return append(ops, m)
				}
				for _, b := range []runtime.Batch{{S: rows}, {S: 1, Pos: d.ctx - 1}, {S: 4, Pos: d.ctx - 9}, {S: rows, Pos: d.ctx - rows}, {S: rows, Pos: max(d.topk-5, 0)}} {
					w.run(fmt.Sprintf("%v %+v %+v", s, d, b), op(kvb.gpu), op(kvb.cpu), b)
				}
			}
		})
	}
}

// TestSelectionOfEquals: ties, NaN and zeros of both signs.
func TestSelectionOfEquals(t *testing.T) { gpus(t, testSelectionOfEquals) }

func testSelectionOfEquals(t *testing.T, open func() Device) {
	w := newTwin(t, open())
	for _, n := range []int{40, 256, 257, 900} {
		q, wt := w.alloc(2, 4, runtime.Float), w.alloc(2, 1, runtime.Float)
		keys, sel := w.alloc(n, 4, runtime.Float), w.alloc(2, 33, runtime.Int)
		for i := range w.mem[keys.ID] {
			w.mem[keys.ID][i] = float32(w.rng.IntN(3) - 1)
		}
		w.mem[keys.ID][20] = float32(math.NaN())
		w.put(keys)
		op := []runtime.Op{runtime.Index{Q: q.All(), HeadWeight: wt.All(), Keys: keys, Heads: 1, Dim: 4, Scale: 1, HeadScale: 1, Select: sel}}
		w.run(fmt.Sprint(n), op, op, runtime.Batch{S: 2, Pos: n - 2})
	}
}

func TestRoute(t *testing.T) { gpus(t, testRoute) }

func testRoute(t *testing.T, open func() Device) {
	w := newTwin(t, open())
	for _, d := range []struct {
		n, groups, top, k int
		normalize         bool
	}{{8, 1, 1, 2, true}, {256, 8, 4, 8, true}, {60, 4, 2, 5, false}, {3, 3, 2, 2, true}, {2048, 1, 1, 8, true}} {
		bias := w.load(format.Spec{Format: format.F32, Rows: 1, Cols: d.n})
		x, ids, weights := w.alloc(7, d.n, runtime.Float), w.alloc(7, d.k, runtime.Int), w.alloc(7, d.k, runtime.Float)
		for i := range w.mem[x.ID] { // many ties
			w.mem[x.ID][i] = float32(w.rng.IntN(9)) / 4
		}
		w.put(x)
		op := func(b runtime.Weight) []runtime.Op {
			return []runtime.Op{runtime.Route{X: x.All(), Bias: b, IDs: ids, Weights: weights.All(), Groups: d.groups, TopGroups: d.top, TopK: d.k, Normalize: d.normalize, Scale: 2.5}}
		}
		w.run(fmt.Sprintf("%+v", d), op(bias.gpu), op(bias.cpu), runtime.Batch{S: 7})
	}
}

// TestExperts: every format by itself, and blocks whose experts differ in
// format and group size.
func TestExperts(t *testing.T) { moreGPUs(t, testExperts) }

func testExperts(t *testing.T, open func() Device) {
	all := testSpecs()
	kinds := map[string][]format.Spec{"mixed": all, "mixed groups": {{Format: format.Int4Grouped, Group: 64}, {Format: format.Int4Grouped, Group: 128}}}
	for _, s := range all {
		kinds[s.Name()] = []format.Spec{s}
	}
	for name, specs := range kinds {
		t.Run(name, func(t *testing.T) {
			w := newTwin(t, open())
			for _, d := range []struct{ experts, k, hidden, width int }{{8, 2, 128, 64}, {20, 3, 100, 37}} {
				var gpu, cpu []runtime.ExpertWeights
				for e := range d.experts {
					var ps [3]pair
					for m := range ps {
						s := specs[(e+m)%len(specs)]
						s.Rows, s.Cols = d.width, d.hidden
						if m == 2 {
							s.Rows, s.Cols = d.hidden, d.width
						}
						ps[m] = w.load(s)
					}
					gpu = append(gpu, runtime.ExpertWeights{Gate: ps[0].gpu, Up: ps[1].gpu, Down: ps[2].gpu})
					cpu = append(cpu, runtime.ExpertWeights{Gate: ps[0].cpu, Up: ps[1].cpu, Down: ps[2].cpu})
				}
				const rows = 21
				x, y := w.alloc(rows, d.hidden, runtime.Float), w.alloc(rows, d.hidden, runtime.Float)
				ids, weights := w.alloc(rows, d.k, runtime.Int), w.alloc(rows, d.k, runtime.Float)
				for i := range rows {
					for k, e := range w.rng.Perm(d.experts - d.k + 1)[:1] {
						for j := range d.k {
							w.mem[ids.ID][i*d.k+k+j] = math.Float32frombits(uint32(e + j))
						}
					}
				}
				w.put(ids)
				op := func(e []runtime.ExpertWeights) []runtime.Op {
					return []runtime.Op{runtime.Experts{X: x.All(), IDs: ids, Weights: weights.All(), Expert: e, Y: y.All()}}
				}
				for _, s := range []int{1, 2, rows} {
					w.run(fmt.Sprintf("%+v × %d", d, s), op(gpu), op(cpu), runtime.Batch{S: s})
				}
			}
		})
	}
}
