package runtime

import (
	"fmt"
	"math"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime/kernel"
)

// CPU is the reference backend. It splits work by rows, heads and tokens, never
// inside a sum, so that the number of threads cannot show in the result.
type CPU struct {
	threads int
	floats  [][]float32            // by Vec.ID; nil for Int buffers
	ints    [][]int32              // by Vec.ID; nil for Float buffers
	acts    [2][]kernel.Activation // the batch's rounded rows, by width
	work    []cpuScratch           // one a thread
	rope    map[ropeKey]*kernel.RoPE
	moe     moeScratch
	prof    *Profile
}

type ropeKey struct {
	dim   int
	theta float64
}

type cpuScratch struct {
	kernel.Scratch
	rows     [][]float32 // views handed to kernels
	outs     [][]float32
	acts     []kernel.Activation // the thread's own
	lent     []kernel.Activation // the batch's, picked for an expert
	scores   []float32
	latents  []float32 // [tokenBlock, KVLoRA]
	qabs     []float32 // likewise
	absorbed [][]float32
}

// cpuWeight is a matrix as the kernels take it; vectors are decoded once.
type cpuWeight struct {
	m   quantize.Matrix
	vec []float32
}

// Spec implements Weight.
func (w *cpuWeight) Spec() format.Spec { return w.m.Spec }

// NewCPU makes a CPU backend; threads ≤ 0 means one a processor.
func NewCPU(threads int) *CPU {
	if threads <= 0 {
		threads = goruntime.GOMAXPROCS(0)
	}
	return &CPU{threads: threads, work: make([]cpuScratch, threads), rope: map[ropeKey]*kernel.RoPE{}, prof: &Profile{}}
}

// Name implements Backend.
func (c *CPU) Name() string { return "cpu" }

// Threads is the number of threads that share the work.
func (c *CPU) Threads() int { return c.threads }

// Profile is the time spent since the backend was made.
func (c *CPU) Profile() *Profile { return c.prof }

// Supports implements Backend: the reference runs every format that it can decode.
func (c *CPU) Supports(op Kind, s format.Spec) error {
	if s.Format.Info().Run {
		return nil
	}
	return &format.Error{Kind: format.ErrUnsupported, What: op.String() + ": no CPU kernel for format " + s.Name()}
}

// Load implements Backend.
func (c *CPU) Load(m quantize.Matrix) (Weight, error) {
	if err := kernel.Check(m); err != nil {
		return nil, err
	}
	w := &cpuWeight{m: m}
	if m.Rows == 1 {
		codec, err := quantize.CodecFor(m.Format)
		if err != nil {
			return nil, err
		}
		w.vec = make([]float32, m.Cols)
		codec.Decode(m, 0, w.vec)
	}
	return w, nil
}

// Alloc implements Backend.
func (c *CPU) Alloc(rows, width int, elem Elem) (Vec, error) {
	if rows <= 0 || width <= 0 || rows > math.MaxInt/8/width {
		return Vec{}, fmt.Errorf("buffer of %d × %d elements", rows, width)
	}
	v := Vec{ID: len(c.floats), Rows: rows, Width: width, Elem: elem}
	var f []float32
	var i []int32
	if elem == Float {
		f = make([]float32, rows*width)
	} else {
		i = make([]int32, rows*width)
	}
	c.floats, c.ints = append(c.floats, f), append(c.ints, i)
	return v, nil
}

// Read implements Backend.
func (c *CPU) Read(v View, row int, dst []float32) error {
	copy(dst, c.floats[v.ID][row*v.Width+v.Off:][:v.N])
	return nil
}

// Close implements Backend.
func (c *CPU) Close() error { return nil }

// Run implements Backend.
func (c *CPU) Run(cmds []Cmd, b Batch) error {
	for i := range cmds {
		cmd := &cmds[i]
		start := time.Now()
		switch op := cmd.Op.(type) {
		case Embed:
			c.embed(op, b)
		case MatMul:
			c.matmul(op, b)
		case RMSNorm:
			c.eachRow(b, func(i int) {
				kernel.RMSNorm(c.row(op.Y, b, i), c.row(op.X, b, i), op.W.(*cpuWeight).vec, op.Eps)
			})
		case LayerNorm:
			c.eachRow(b, func(i int) {
				kernel.LayerNorm(c.row(op.Y, b, i), c.row(op.X, b, i), op.W.(*cpuWeight).vec, op.B.(*cpuWeight).vec, op.Eps)
			})
		case Rope:
			c.rotate(op, b)
		case SiLUMul:
			c.eachRow(b, func(i int) { kernel.SiLUMul(c.row(op.Y, b, i), c.row(op.Gate, b, i), c.row(op.Up, b, i)) })
		case Add:
			c.eachRow(b, func(i int) { kernel.Add(c.row(op.Y, b, i), c.row(op.X, b, i)) })
		case MLA:
			c.mla(op, b)
		case Index:
			c.index(op, b)
		case Route:
			c.parallel(b.S, func(s *cpuScratch, i int) {
				kernel.Route(c.row(op.X, b, i), op.Bias.(*cpuWeight).vec, op.Groups, op.TopGroups, op.TopK, op.Normalize, op.Scale,
					c.intRow(op.IDs, i), c.row(op.Weights, b, i), &s.Scratch)
			})
		case Experts:
			c.experts(op, b)
		default:
			return &format.Error{Kind: format.ErrUnsupported, What: fmt.Sprintf("the CPU backend has no operation %s", op.Kind())}
		}
		c.prof.add(cmd.Stage, time.Since(start))
	}
	return nil
}

// row is the i-th token's row of a view.
func (c *CPU) row(v View, b Batch, i int) []float32 {
	switch v.Base {
	case BasePos:
		i += b.Pos
	case BaseRow:
		i += b.Row
	}
	return c.floats[v.ID][i*v.Width+v.Off:][:v.N:v.N]
}

func (c *CPU) intRow(v Vec, i int) []int32 { return c.ints[v.ID][i*v.Width:][:v.Width:v.Width] }

// parallel runs fn for every item of [0, n) on the backend's threads; each
// thread has its own scratch. Items are handed out one by one, so that uneven
// ones balance.
func (c *CPU) parallel(n int, fn func(s *cpuScratch, item int)) {
	threads := min(c.threads, n)
	if threads <= 1 {
		for i := range n {
			fn(&c.work[0], i)
		}
		return
	}
	var next atomic.Int64
	var wait sync.WaitGroup
	run := func(s *cpuScratch) {
		for {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			fn(s, i)
		}
	}
	for t := 1; t < threads; t++ {
		wait.Go(func() { run(&c.work[t]) })
	}
	run(&c.work[0])
	wait.Wait()
}

// eachRow runs a cheap function for every row of the batch.
func (c *CPU) eachRow(b Batch, fn func(i int)) {
	if b.S == 1 {
		fn(0)
		return
	}
	c.parallel(b.S, func(_ *cpuScratch, i int) { fn(i) })
}

func (c *CPU) embed(op Embed, b Batch) {
	w := op.W.(*cpuWeight)
	c.eachRow(b, func(i int) { kernel.Dequant(w.m, int(b.Tokens[i]), c.row(op.Y, b, i)) })
}

// activations rounds every row of x to the width that matrices of the given
// format want; float formats want none.
func (c *CPU) activations(id format.ID, x View, b Batch) []kernel.Activation {
	bits := kernel.ActivationBits(id)
	if bits == 0 {
		return nil
	}
	slot := &c.acts[bits/12]
	for len(*slot) < b.S {
		*slot = append(*slot, kernel.Activation{})
	}
	acts := (*slot)[:b.S]
	c.eachRow(b, func(i int) { acts[i].Quantize(c.row(x, b, i), bits) })
	return acts
}

// rowBlock is how many weight rows a thread takes at a time: about 64 K weights.
func rowBlock(cols int) int { return max(1, min(256, 65536/max(cols, 1))) }

func (c *CPU) matmul(op MatMul, b Batch) {
	type task struct{ w, lo, hi int }
	var tasks []task
	var acts [2][]kernel.Activation
	for i, w := range op.W {
		s := w.Spec()
		if bits := kernel.ActivationBits(s.Format); bits > 0 && acts[bits/12] == nil {
			acts[bits/12] = c.activations(s.Format, op.X, b)
		}
		step := rowBlock(s.Cols)
		for lo := 0; lo < s.Rows; lo += step {
			tasks = append(tasks, task{i, lo, min(lo+step, s.Rows)})
		}
	}
	c.parallel(len(tasks), func(s *cpuScratch, i int) {
		t := tasks[i]
		w := op.W[t.w].(*cpuWeight)
		s.rows, s.outs = s.rows[:0], s.outs[:0]
		for r := range b.S {
			s.rows = append(s.rows, c.row(op.X, b, r))
			s.outs = append(s.outs, c.row(op.Y[t.w], b, r))
		}
		kernel.MatVec(w.m, t.lo, t.hi, s.rows, acts[kernel.ActivationBits(w.m.Format)/12], s.outs, &s.Scratch)
	})
}

func (c *CPU) rotate(op Rope, b Batch) {
	key := ropeKey{op.N, op.Theta}
	table := c.rope[key]
	if table == nil {
		table = kernel.NewRoPE(op.N, op.Theta)
		c.rope[key] = table
	}
	table.Grow(b.Pos + b.S)
	c.eachRow(b, func(i int) {
		x, y := c.row(op.X, b, i), c.row(op.Y, b, i)
		cos, sin := table.At(b.Pos + i)
		for h := range op.Heads {
			xh, yh := x[h*op.XWidth:][:op.XWidth], y[h*op.YWidth:][:op.YWidth]
			if op.Rest {
				copy(yh, xh)
			}
			if op.Interleave {
				kernel.RoPEInterleaved(yh[op.YAt:][:op.N], xh[op.XAt:][:op.N], cos, sin)
			} else {
				kernel.RoPEHalves(yh[op.YAt:][:op.N], xh[op.XAt:][:op.N], cos, sin)
			}
		}
	})
}
