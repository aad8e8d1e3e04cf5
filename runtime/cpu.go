package runtime

import (
	"fmt"
	"math"
	"time"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime/kernel"
)

// CPU is the backend of the machine's own processor. It splits work by rows,
// heads and tokens, never inside a sum, so that the number of threads cannot
// show in the result. Run allocates nothing once its buffers have grown.
type CPU struct {
	*pool
	floats [][]float32            // by Vec.ID; nil for Int buffers
	ints   [][]int32              // by Vec.ID; nil for Float buffers
	acts   [2][]kernel.Activation // the batch's rounded rows, by width
	rope   map[ropeKey]*kernel.RoPE
	prof   *Profile

	// The task of the moment; they are fields so that none is allocated.
	rows   rowTask
	round  roundTask
	matmul matmulTask
	mla    mlaTask
	index  indexTask
	gqa    gqaTask
	delta  deltaTask
	moe    moeTask
}

type ropeKey struct {
	dim    int
	angles kernel.Angles
}

// cpuScratch is the memory of one thread.
type cpuScratch struct {
	kernel.Scratch
	rows    [][]float32 // views handed to kernels
	outs    [][]float32
	acts    []kernel.Activation // the thread's own
	lent    []kernel.Activation // the batch's, picked for an expert
	scores  []float32
	latents []float32   // [tokens, KVLoRA]
	query   []float32   // [tokens, KVLoRA+Rope]
	queries [][]float32 // views of it
	lists   [][]float32 // views of the scores
	_       [64]byte    // keeps neighbours off the cache line
}

// cpuWeight is a matrix as the kernels take it; vectors are decoded once.
type cpuWeight struct {
	m   quantize.Matrix
	vec []float32
	inc []float32 // 1 + vec, where somebody asked for it
}

// Spec implements Weight.
func (w *cpuWeight) Spec() format.Spec { return w.m.Spec }

// NewCPU makes a CPU backend; threads ≤ 0 means one a physical core.
func NewCPU(threads int) *CPU {
	if threads <= 0 {
		threads = physicalCores()
	}
	return &CPU{pool: newPool(threads), rope: map[ropeKey]*kernel.RoPE{}, prof: &Profile{}}
}

// Name implements Backend.
func (c *CPU) Name() string { return "cpu" }

// Threads is the number of threads that share the work.
func (c *CPU) Threads() int { return len(c.work) }

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

func (w *cpuWeight) increment() {
	if w.inc != nil {
		return
	}
	w.inc = make([]float32, len(w.vec))
	for i, v := range w.vec {
		w.inc[i] = 1 + v
	}
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
		hugePages(f)
	} else {
		i = make([]int32, rows*width)
	}
	c.floats, c.ints = append(c.floats, f), append(c.ints, i)
	return v, nil
}

// Free implements Backend.
func (c *CPU) Free(v Vec) {
	if v.ID < len(c.floats) {
		c.floats[v.ID], c.ints[v.ID] = nil, nil
	}
}

// Read implements Backend.
func (c *CPU) Read(v View, row int, dst []float32) error {
	copy(dst, c.floats[v.ID][row*v.Width+v.Off:][:v.N])
	return nil
}

// Close implements Backend; the threads end.
func (c *CPU) Close() error {
	c.close()
	return nil
}

// Run implements Backend.
func (c *CPU) Run(cmds []Cmd, b Batch) error {
	start := time.Now()
	for i := range cmds {
		switch op := cmds[i].Op.(type) {
		case MatMul:
			c.runMatMul(op, b)
		case MLA:
			c.runMLA(op, b)
		case Experts:
			c.runExperts(op, b)
		case Attention:
			c.runAttention(op, b)
		case DeltaNet:
			c.runDeltaNet(op, b)
		case Rope:
			c.rotation(op).Grow(b.Pos + b.S)
			c.eachRow(cmds[i].Op, b)
		case Index:
			c.runIndex(op, b)
		case RMSNorm:
			if op.Centred {
				op.W.(*cpuWeight).increment()
			}
			c.eachRow(cmds[i].Op, b)
		case Embed, LayerNorm, SiLUMul, Add, AddBias, Gate, Split, Route:
			c.eachRow(cmds[i].Op, b)
		default:
			return &format.Error{Kind: format.ErrUnsupported, What: fmt.Sprintf("the CPU backend has no operation %s", op.Kind())}
		}
		now := time.Now()
		c.prof.add(cmds[i].Stage, now.Sub(start))
		start = now
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

// rowBlock is how many of a matrix's rows a thread takes at a time: about 32 KiB
// for few tokens; about 64 K weights for many, or more, since the kernels
// arrange every block anew, if all threads still have several.
func (c *CPU) rowBlock(m format.Spec, rows, tokens int) int {
	if tokens < 16 {
		return min(256, max(rowTile, 32768/max(1, m.RowBytes())&^(rowTile-1)))
	}
	step := max(1, min(256, 65536/max(1, m.Cols)))
	return max(step, min(4*step, rows/(4*c.Threads()))&^31)
}

// rowTile is how many rows the kernels take at a time at most.
const rowTile = 4

// blocks is how many pieces of step n has.
func blocks(n, step int) int { return (n + step - 1) / step }

// rowTask is an operation that treats every row of the batch by itself.
type rowTask struct {
	c  *CPU
	op Op
	b  Batch
}

func (c *CPU) eachRow(op Op, b Batch) {
	c.rows = rowTask{c, op, b}
	c.do(b.S, &c.rows)
}

func (t *rowTask) run(s *cpuScratch, i int) {
	c, b := t.c, t.b
	switch op := t.op.(type) {
	case Embed:
		kernel.Dequant(op.W.(*cpuWeight).m, int(b.Tokens[i]), c.row(op.Y, b, i))
	case RMSNorm:
		x, y, w := c.row(op.X, b, i), c.row(op.Y, b, i), op.W.(*cpuWeight).vec
		if op.Centred {
			w = op.W.(*cpuWeight).inc
		}
		for n := len(w); len(x) > 0; x, y = x[n:], y[n:] {
			kernel.RMSNorm(y[:n], x[:n], w, op.Eps)
		}
	case LayerNorm:
		kernel.LayerNorm(c.row(op.Y, b, i), c.row(op.X, b, i), op.W.(*cpuWeight).vec, op.B.(*cpuWeight).vec, op.Eps)
	case Rope:
		c.rotate(op, b, i)
	case SiLUMul:
		kernel.SiLUMul(c.row(op.Y, b, i), c.row(op.Gate, b, i), c.row(op.Up, b, i))
	case Add:
		kernel.Add(c.row(op.Y, b, i), c.row(op.X, b, i))
	case AddBias:
		kernel.Add(c.row(op.Y, b, i), op.W.(*cpuWeight).vec)
	case Split:
		x, y, z := c.row(op.X, b, i), c.row(op.Y, b, i), c.row(op.Z, b, i)
		n := len(y) / op.Heads
		for h := range op.Heads {
			copy(y[h*n:][:n], x[2*h*n:])
			copy(z[h*n:][:n], x[(2*h+1)*n:])
		}
	case Gate:
		kernel.SigmoidMul(c.row(op.Y, b, i), c.row(op.X, b, i))
	case Route:
		var bias []float32
		if op.Bias != nil {
			bias = op.Bias.(*cpuWeight).vec
		}
		kernel.Route(c.row(op.X, b, i), bias, op.Softmax, op.Groups, op.TopGroups, op.TopK, op.Normalize, op.Scale,
			c.intRow(op.IDs, i), c.row(op.Weights, b, i), &s.Scratch)
	}
}

func (c *CPU) rotation(op Rope) *kernel.RoPE {
	key := ropeKey{op.N, op.Angles}
	table := c.rope[key]
	if table == nil {
		table = kernel.NewRoPE(op.N, op.Angles)
		c.rope[key] = table
	}
	return table
}

func (c *CPU) rotate(op Rope, b Batch, i int) {
	x, y := c.row(op.X, b, i), c.row(op.Y, b, i)
	cos, sin := c.rotation(op).At(b.Pos + i)
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
}

// roundTask rounds the rows of a view.
type roundTask struct {
	c    *CPU
	x    View
	b    Batch
	bits int
	acts []kernel.Activation
}

func (t *roundTask) run(_ *cpuScratch, i int) { t.acts[i].Quantize(t.c.row(t.x, t.b, i), t.bits) }

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
	c.round = roundTask{c, x, b, bits, (*slot)[:b.S]}
	c.do(b.S, &c.round)
	return c.round.acts
}

// matmulTask has a block of rows of one of the matrices as its item.
type matmulTask struct {
	c    *CPU
	op   MatMul
	b    Batch
	acts [2][]kernel.Activation // by width
}

func (c *CPU) runMatMul(op MatMul, b Batch) {
	t := &c.matmul
	*t = matmulTask{c: c, op: op, b: b}
	items := 0
	for _, w := range op.W {
		s := w.Spec()
		if bits := kernel.ActivationBits(s.Format); bits > 0 && t.acts[bits/12] == nil {
			t.acts[bits/12] = c.activations(s.Format, op.X, b)
		}
		items += blocks(s.Rows, c.rowBlock(s, s.Rows, b.S))
	}
	c.do(items, t)
}

func (t *matmulTask) run(s *cpuScratch, item int) {
	for i, weight := range t.op.W {
		w := weight.(*cpuWeight)
		step := t.c.rowBlock(w.m.Spec, w.m.Rows, t.b.S)
		if n := blocks(w.m.Rows, step); item >= n {
			item -= n
			continue
		}
		s.rows, s.outs = s.rows[:0], s.outs[:0]
		for r := range t.b.S {
			s.rows = append(s.rows, t.c.row(t.op.X, t.b, r))
			s.outs = append(s.outs, t.c.row(t.op.Y[i], t.b, r))
		}
		lo := item * step
		kernel.MatVec(w.m, lo, min(lo+step, w.m.Rows), s.rows, t.acts[kernel.ActivationBits(w.m.Format)/12], s.outs, &s.Scratch)
		return
	}
}
