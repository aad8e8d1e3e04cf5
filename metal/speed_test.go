package metal

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// The speed of the kernels at the sizes of GLM-5.2, on devices other than the
// emulator; GB/s counts the weights, or the latents, once.

func realGPU(b *testing.B) *Backend {
	for _, dr := range Drivers() {
		if dr.Name == "emulator" {
			continue
		}
		if _, err := dr.Devices(); err != nil {
			continue
		}
		d, err := dr.Open(0)
		if err != nil {
			b.Fatal(err)
		}
		g, err := New(Options{Device: d})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = g.Close() })
		return g
	}
	b.Skip("SKIPPED: no GPU")
	return nil
}

func fillRandom(p []byte) {
	x := uint64(88172645463325252)
	for ; len(p) >= 8; p = p[8:] {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(p, x&0x3F3F3F3F3F3F3F3F) // no NaN in any format
	}
}

func speedWeight(b *testing.B, g *Backend, s format.Spec) runtime.Weight {
	m := quantize.NewMatrix(s)
	fillRandom(m.W)
	for i := range m.S {
		m.S[i] = 1.0 / 64
	}
	w, err := g.Load(m)
	if err != nil {
		b.Fatal(err)
	}
	return w
}

func speedVec(b *testing.B, g *Backend, rows, width int) runtime.Vec {
	v, err := g.Alloc(rows, width, runtime.Float)
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// timed runs the commands often and gives the seconds of one time.
func timed(b *testing.B, g *Backend, ops []runtime.Op, batch runtime.Batch, y runtime.Vec) float64 {
	var cmds []runtime.Cmd
	for _, op := range ops {
		cmds = append(cmds, runtime.Cmd{Op: op})
	}
	run := func(n int) float64 {
		start := time.Now()
		for range n {
			if err := g.Run(cmds, batch); err != nil {
				b.Fatal(err)
			}
		}
		if err := g.Read(y.Cols(0, 1), 0, make([]float32, 1)); err != nil {
			b.Fatal(err)
		}
		return time.Since(start).Seconds() / float64(n)
	}
	run(2)
	n := max(3, min(200, int(0.2/run(2))))
	b.ResetTimer()
	t := run(n)
	b.ReportMetric(0, "ns/op")
	return t
}

func BenchmarkMatMul(b *testing.B) {
	for _, s := range []format.Spec{{Format: format.Int4Grouped, Group: 64}, {Format: format.Int4Row}, {Format: format.Int8Row}, {Format: format.Int3G64}, {Format: format.Int2Row},
		{Format: format.FP8}, {Format: format.BF16}, {Format: format.F32}} {
		for _, dims := range [][2]int{{12288, 6144}, {2048, 6144}} {
			s.Rows, s.Cols = dims[0], dims[1]
			for _, n := range []int{1, 4, 8, 256} {
				b.Run(fmt.Sprintf("%s/%dx%d/S%d", s.Name(), s.Rows, s.Cols, n), func(b *testing.B) { products(b, s, n, false) })
			}
			b.Run(fmt.Sprintf("%s/%dx%d/S1-together", s.Name(), s.Rows, s.Cols), func(b *testing.B) { products(b, s, 1, true) })
		}
	}
}

// products times eight matrices times n vectors: one after the other, each with
// its own rounding of the vector, or as the matrices of one command.
func products(b *testing.B, s format.Spec, n int, together bool) {
	g := realGPU(b)
	x := speedVec(b, g, n, s.Cols)
	var ops []runtime.Op
	all := runtime.MatMul{X: x.All()}
	var y runtime.Vec
	for i := range 8 {
		w := speedWeight(b, g, s)
		if i == 0 || together {
			y = speedVec(b, g, n, s.Rows)
		}
		all.W, all.Y = append(all.W, w), append(all.Y, y.All())
		ops = append(ops, runtime.MatMul{X: x.All(), W: []runtime.Weight{w}, Y: []runtime.View{y.All()}})
	}
	if together {
		ops = []runtime.Op{all}
	}
	t := timed(b, g, ops, runtime.Batch{S: n}, y)
	b.ReportMetric(8*float64(s.Bytes()+s.ScaleBytes())/t/1e9, "GB/s")
	b.ReportMetric(2*float64(n*8*s.Rows)*float64(s.Cols)/t/1e12, "TFLOP/s")
	b.ReportMetric(t/8*1e6, "µs/product")
}

func BenchmarkAttention(b *testing.B) {
	for _, depth := range []int{1024, 4096, 32768} {
		for _, n := range []int{1, 4, 256} {
			b.Run(fmt.Sprintf("depth%d/S%d", depth, n), func(b *testing.B) {
				g := realGPU(b)
				kvb := speedWeight(b, g, format.Spec{Format: format.Int4Grouped, Group: 64, Rows: 64 * (192 + 256), Cols: 512})
				q, qr := speedVec(b, g, n, 64*256), speedVec(b, g, n, 64*64)
				cache, y := speedVec(b, g, depth, 576), speedVec(b, g, n, 64*256)
				op := runtime.MLA{Q: q.All(), QRope: qr.All(), Y: y.All(), Cache: cache, KVB: kvb, Heads: 64, QWidth: 256, Nope: 192, Rope: 64, Value: 256, KVLoRA: 512, Scale: 0.06}
				t := timed(b, g, []runtime.Op{op}, runtime.Batch{S: n, Pos: depth - n}, y)
				bytes := float64(depth*576*4) + float64(kvb.Spec().Bytes()+kvb.Spec().ScaleBytes())
				b.ReportMetric(bytes/t/1e9, "GB/s")
				b.ReportMetric(2*float64(n)*64*float64(depth)*(576+512)/t/1e12, "TFLOP/s")
				b.ReportMetric(t*1e6, "µs/layer")
			})
		}
	}
}

// BenchmarkLaunch is the time of a dispatch that has to wait for the one before.
func BenchmarkLaunch(b *testing.B) {
	g := realGPU(b)
	x, y := speedVec(b, g, 1, 32), speedVec(b, g, 1, 32)
	ops := make([]runtime.Op, 256)
	for i := range ops {
		ops[i] = runtime.Add{X: x.All(), Y: y.All()}
	}
	b.ReportMetric(timed(b, g, ops, runtime.Batch{S: 1}, y)/256*1e6, "µs/dispatch")
}
