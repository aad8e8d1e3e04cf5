package metal

import (
	"math"
	"testing"

	"hawkmoth/format"
	"hawkmoth/runtime"
	"hawkmoth/runtime/kernel"
)

// realGPUs runs a test on the devices that are no emulator.
func realGPUs(t *testing.T, run func(t *testing.T, w *twin)) {
	t.Helper()
	gpus(t, func(t *testing.T, open func() Device) {
		d := open()
		if d.Name() == emulatorName {
			_ = d.Close()
			t.Skip("SKIPPED: too large for the emulator")
		}
		run(t, newTwin(t, d))
	})
}

// TestGLM52Layer: one layer in the sizes of GLM-5.2 with random weights, sparse
// attention at a depth beyond its selection, for one token and three.
func TestGLM52Layer(t *testing.T) { realGPUs(t, testGLM52Layer) }

func testGLM52Layer(t *testing.T, w *twin) {
	const hidden, heads, lora, nope, rope, value, qRank, depth, topk = 6144, 64, 512, 192, 64, 256, 2048, 4200, 2048
	const indexHeads, indexDim, experts, chosen, width, rows = 32, 128, 256, 8, 2048, 3
	spec := func(f format.ID, r, c int) format.Spec { return format.Spec{Format: f, Group: 64, Rows: r, Cols: c} }
	vec := func(n int) runtime.Vec { return w.alloc(rows, n, runtime.Float) }
	grouped := format.Int4Grouped
	norm, qaNorm := w.load(spec(format.BF16, 1, hidden)), w.load(spec(format.BF16, 1, qRank))
	qa, qb, kvb := w.load(spec(grouped, qRank, hidden)), w.load(spec(grouped, heads*(nope+rope), qRank)), w.load(spec(format.Int8Row, heads*(nope+value), lora))
	o, router := w.load(spec(grouped, hidden, heads*value)), w.load(spec(format.F32, experts, hidden))
	iq, iw := w.load(spec(format.FP8, indexHeads*indexDim, qRank)), w.load(spec(format.BF16, indexHeads, hidden))
	bias := w.load(spec(format.F32, 1, experts))
	var ps [4][3]pair // the 256 experts share four
	for e := range ps {
		f := []format.ID{grouped, format.Int2Row}[e%2]
		ps[e] = [3]pair{w.load(spec(f, width, hidden)), w.load(spec(f, width, hidden)), w.load(spec(f, hidden, width))}
	}
	x, h, lowQ, q, rotated, y := vec(hidden), vec(hidden), vec(qRank), vec(heads*(nope+rope)), vec(heads*rope), vec(hidden)
	attended, indexQ, indexW := vec(heads*value), vec(indexHeads*indexDim), vec(indexHeads)
	logits, weights, out := vec(experts), vec(chosen), vec(hidden)
	ids, selected := w.alloc(rows, chosen, runtime.Int), w.alloc(rows, topk, runtime.Int)
	cache, keys := w.alloc(depth, lora+rope, runtime.Float), w.alloc(depth, indexDim, runtime.Float)
	ops := func(g func(pair) runtime.Weight) []runtime.Op {
		var es []runtime.ExpertWeights
		for e := range experts {
			p := ps[e%len(ps)]
			es = append(es, runtime.ExpertWeights{Gate: g(p[0]), Up: g(p[1]), Down: g(p[2])})
		}
		return []runtime.Op{
			runtime.RMSNorm{X: x.All(), Y: h.All(), W: g(norm), Eps: 1e-5},
			runtime.MatMul{X: h.All(), W: []runtime.Weight{g(qa), g(iw)}, Y: []runtime.View{lowQ.All(), indexW.All()}},
			runtime.RMSNorm{X: lowQ.All(), Y: lowQ.All(), W: g(qaNorm), Eps: 1e-5},
			runtime.MatMul{X: lowQ.All(), W: []runtime.Weight{g(qb), g(iq)}, Y: []runtime.View{q.All(), indexQ.All()}},
			runtime.Rope{X: q.All(), Y: rotated.All(), Heads: heads, XWidth: nope + rope, XAt: nope, YWidth: rope, N: rope, Interleave: true, Angles: kernel.Angles{Theta: 1e6}},
			runtime.Index{Q: indexQ.All(), HeadWeight: indexW.All(), Keys: keys, Heads: indexHeads, Dim: indexDim, Scale: 0.088, HeadScale: 0.18, Select: selected},
			runtime.MLA{Q: q.All(), QRope: rotated.All(), Y: attended.All(), Cache: cache, KVB: g(kvb), Heads: heads, QWidth: nope + rope, Nope: nope,
				Rope: rope, Value: value, KVLoRA: lora, Scale: 1e-6, Select: &selected},
			runtime.MatMul{X: attended.All(), W: []runtime.Weight{g(o)}, Y: []runtime.View{y.All()}},
			runtime.MatMul{X: y.All(), W: []runtime.Weight{g(router)}, Y: []runtime.View{logits.All()}},
			runtime.Route{X: logits.All(), Bias: g(bias), IDs: ids, Weights: weights.All(), Groups: 1, TopGroups: 1, TopK: chosen, Normalize: true, Scale: 2.5},
			runtime.Experts{X: h.All(), IDs: ids, Weights: weights.All(), Expert: es, Y: out.All()},
			runtime.Add{X: out.All(), Y: y.All()},
		}
	}
	gpu, cpu := ops(func(p pair) runtime.Weight { return p.gpu }), ops(func(p pair) runtime.Weight { return p.cpu })
	for _, b := range []runtime.Batch{{S: 1, Pos: depth - 1}, {S: rows, Pos: depth - rows}, {S: rows, Pos: topk - 2}} {
		w.run("layer", gpu, cpu, b)
	}
}

// TestLargeProduct: more outputs than one dispatch may have.
func TestLargeProduct(t *testing.T) { realGPUs(t, testLargeProduct) }

func testLargeProduct(t *testing.T, w *twin) {
	const rows, vectors = 20011, 2048
	if rows*vectors <= usualBounds.outputs {
		t.Fatal("not large enough")
	}
	m := w.load(format.Spec{Format: format.Int4Grouped, Group: 64, Rows: rows, Cols: 64})
	x, y := w.alloc(vectors, 64, runtime.Float), w.alloc(vectors, rows, runtime.Float)
	for i := range w.mem[y.ID] {
		w.mem[y.ID][i] = float32(math.NaN()) // an output left out stays one
	}
	w.put(y)
	op := func(m runtime.Weight) []runtime.Op {
		return []runtime.Op{runtime.MatMul{X: x.All(), W: []runtime.Weight{m}, Y: []runtime.View{y.All()}}}
	}
	w.run("product", op(m.gpu), op(m.cpu), runtime.Batch{S: vectors})
	if last := w.mem[y.ID][len(w.mem[y.ID])-1]; last != last {
		t.Error("the last output is no number")
	}
}
