package metal

import (
	"hawkmoth/format"
	"hawkmoth/runtime"
	"hawkmoth/runtime/kernel"
)

// Threads of a threadgroup: four simdgroups where each has work of its own,
// eight where they share a row.
const (
	group  = 128
	across = 256
)

// rowsOfGroup is how many rows of a matrix a threadgroup multiplies; twice as
// many of float weights.
const rowsOfGroup = group / 32 * 4

// few is how many rows of floats are too few to fill a device with rowsOfGroup.
const few = 2048

func ceil(a, b int) int { return (a + b - 1) / b }

func oneIf(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func (b *Backend) embed(op runtime.Embed, p pass) {
	w := op.W.(*weight)
	const most = len(tokens{}.ID)
	for first := 0; first < p.S; first += most {
		ids := p.Tokens[p.row+first:][:min(most, p.S-first)]
		if !b.use(special{kernel: "embed", format: w.m.Format}) {
			return
		}
		y := b.view(op.Y, p)
		y.off += 4 * first * op.Y.Width
		b.at(0, w.codes)
		b.at(1, w.scales)
		b.out(2, y)
		a := &b.enc.args.embed
		*a = embedArgs{uint32(w.m.Cols), uint32(w.m.RowBytes()), uint32(w.m.ScaleCols()), uint32(w.m.Group), uint32(op.Y.Width)}
		arg(b, 3, a)
		for i, id := range ids {
			b.enc.args.tokens.ID[i] = uint32(id)
		}
		arg(b, 4, &b.enc.args.tokens)
		b.dispatch(Size{ceil(w.m.Cols, group), len(ids), 1}, Size{group, 1, 1})
	}
}

// rounded is a set of vectors in one of the layouts.
type rounded struct {
	q, sx  ref
	blocks int
	quad   int // bytes of four blocks of q
}

// quadBytes is the size of the rounded activations of four blocks.
func (b *Backend) quadBytes(l layout) int {
	if b.limits.Dots && l != plainPairs {
		return 4 * kernel.Block
	}
	return 4 * kernel.Block * 2
}

// round rounds rows vectors of cols elements that start at x, stride apart.
func (b *Backend) round(l layout, x ref, rows, cols, stride int) rounded {
	return b.roundSums(l, x, rows, cols, stride, 1, 1)
}

// roundSums does so with rows that are sums of chunks, heads rows to a chunk.
func (b *Backend) roundSums(l layout, x ref, rows, cols, stride, heads, chunks int) rounded {
	r := rounded{blocks: ceil(cols, kernel.Block), quad: b.quadBytes(l)}
	r.q = b.work(scratchQ+scratchID(l), rows*ceil(r.blocks, 4)*r.quad)
	r.sx = b.work(scratchSX+scratchID(l), rows*ceil(r.blocks, 4)*16)
	if !b.use(special{kernel: "round_activations", layout: l, dots: b.limits.Dots}) {
		return r
	}
	b.in(0, x)
	b.out(1, r.q)
	b.out(2, r.sx)
	a := &b.enc.args.round
	*a = roundArgs{uint32(cols), uint32(r.blocks), uint32(stride), uint32(heads), uint32(chunks)}
	arg(b, 3, a)
	b.dispatch(Size{ceil(r.blocks, 4), rows, 1}, Size{group, 1, 1})
	return r
}

// product is a matrix times some vectors, or parts of a matrix times vectors
// of their own (heads).
type product struct {
	w               *weight
	kernel          string
	first, rows     int // of the matrix
	rowStep, heads  int
	count           int // vectors of a head
	x               ref // float vectors
	xStride, xStep  int // elements; in rounded vectors rows
	r               rounded
	y               ref
	yStride, yStep  int
	roundedStride   int
	roundedHeadStep int
}

func (b *Backend) multiply(p *product) {
	s := p.w.m.Spec
	// Vectors that a dispatch takes: all tiles are whole but the last.
	step := max(b.table.outputs/max(p.rows*p.heads, 1), 1)
	step = max(step/8*8, 8)
	rows := p.rows
	if rows*step*p.heads > b.table.outputs {
		rows = max(b.table.outputs/(step*p.heads)/rowsOfGroup, 1) * rowsOfGroup
	}
	for row := 0; row < p.rows; row += rows {
		for first := 0; first < p.count; first += step {
			n, m := min(step, p.count-first), min(rows, p.rows-row)
			wide, perGroup := p.w.wide, rowsOfGroup
			if isFloat(s.Format) {
				if !aligned(p.x, p.xStride, p.xStep) {
					wide = 0
				}
				perGroup *= 2
			}
			k := matMulKernel(p.kernel, s, wide, n, b.limits.Dots)
			if isFloat(s.Format) && s.Format != format.FP8 && p.w.wide > 0 && p.rows*p.heads <= few && n <= int(tiles[len(tiles)-1]) {
				k, perGroup = fewRows(s.Format), group/16
			}
			if !b.use(k) {
				return
			}
			a := &b.enc.args.matmul
			*a = matMulArgs{uint32(p.first + row), uint32(m), uint32(p.rowStep), uint32(s.Cols), uint32(s.RowBytes()), uint32(s.ScaleCols()), uint32(s.Group),
				uint32(p.r.blocks), uint32(n), uint32(p.xStride), uint32(p.xStep), uint32(p.yStride), uint32(p.yStep)}
			b.at(0, p.w.codes)
			b.at(1, p.w.scales)
			i := 2
			if isFloat(s.Format) {
				x := p.x
				x.off += 4 * first * p.xStride
				b.in(2, x)
			} else {
				a.XStride, a.XStep = uint32(p.roundedStride), uint32(p.roundedHeadStep)
				q, sx := p.r.q, p.r.sx
				q.off += p.r.quad * first * p.roundedStride * ceil(p.r.blocks, 4)
				sx.off += 16 * first * p.roundedStride * ceil(p.r.blocks, 4)
				b.in(2, q)
				b.in(3, sx)
				i = 3
			}
			y := p.y
			y.off += 4 * (first*p.yStride + row)
			b.out(i+1, y)
			arg(b, i+2, a)
			b.dispatch(Size{ceil(m, perGroup), ceil(n, int(k.tile)), p.heads}, Size{group, 1, 1})
		}
	}
}

// aligned says whether float vectors can be loaded four elements at a time.
func aligned(x ref, strides ...int) bool {
	for _, s := range strides {
		if s%4 != 0 {
			return false
		}
	}
	return x.off%16 == 0
}

func (b *Backend) matMul(op runtime.MatMul, p pass) {
	var have [numLayouts]rounded
	for i, weightOf := range op.W {
		w := weightOf.(*weight)
		row, err := lookup(runtime.KindMatMul, w.m.Spec, b.limits)
		if err != nil {
			b.enc.err = err
			return
		}
		x := b.view(op.X, p)
		m := product{w: w, kernel: row.kernel, rows: w.m.Rows, heads: 1, count: p.S, x: x, xStride: op.X.Width, roundedStride: 1,
			y: b.view(op.Y[i], p), yStride: op.Y[i].Width}
		if l, ok := layouts[w.m.Format]; ok {
			if have[l].blocks == 0 {
				have[l] = b.round(l, x, p.S, w.m.Cols, op.X.Width)
			}
			m.r = have[l]
		}
		b.multiply(&m)
	}
}

// normBytes is the threadgroup memory of rmsnorm: the elements summed at a time.
const normBytes = 4 * 8192

func (b *Backend) rmsNorm(op runtime.RMSNorm, p pass) {
	if !b.use(special{kernel: "rmsnorm"}) {
		return
	}
	b.in(0, b.view(op.X, p))
	b.at(1, op.W.(*weight).vec)
	b.out(2, b.view(op.Y, p))
	a := &b.enc.args.norm
	*a = normArgs{uint32(op.X.N), uint32(op.X.Width), uint32(op.Y.Width), op.Eps}
	arg(b, 3, a)
	b.enc.enc.SetThreadgroupMemory(0, min(ceil(op.X.N, 4)*16, normBytes))
	threads := across
	for threads < op.X.N/4 && 2*threads <= b.pipelines[special{kernel: "rmsnorm"}].Threads() {
		threads *= 2
	}
	b.dispatch(Size{p.S, 1, 1}, Size{threads, 1, 1})
}

func (b *Backend) layerNorm(op runtime.LayerNorm, p pass) {
	if !b.use(special{kernel: "layernorm"}) {
		return
	}
	b.in(0, b.view(op.X, p))
	b.at(1, op.W.(*weight).vec)
	b.at(2, op.B.(*weight).vec)
	b.out(3, b.view(op.Y, p))
	a := &b.enc.args.norm
	*a = normArgs{uint32(op.X.N), uint32(op.X.Width), uint32(op.Y.Width), op.Eps}
	arg(b, 4, a)
	b.enc.enc.SetThreadgroupMemory(0, 16)
	b.dispatch(Size{p.S, 1, 1}, Size{across, 1, 1})
}

func (b *Backend) siluMul(op runtime.SiLUMul, p pass) {
	b.gate(b.view(op.Gate, p), b.view(op.Up, p), b.view(op.Y, p), pointArgs{uint32(op.Y.N), uint32(op.Gate.Width), uint32(op.Up.Width), uint32(op.Y.Width)}, p.S)
}

func (b *Backend) gate(gate, up, y ref, a pointArgs, rows int) {
	for first := 0; first < rows; first += maxGroups {
		if !b.use(special{kernel: "silu_mul"}) {
			return
		}
		b.in(0, gate)
		b.in(1, up)
		b.out(2, y)
		b.enc.args.point = a
		arg(b, 3, &b.enc.args.point)
		n := min(maxGroups, rows-first)
		b.dispatch(Size{ceil(int(a.N), across), n, 1}, Size{across, 1, 1})
		gate.off += 4 * n * int(a.AStride)
		up.off += 4 * n * int(a.BStride)
		y.off += 4 * n * int(a.YStride)
	}
}

// maxGroups is the largest second dimension of a grid, in threadgroups.
const maxGroups = 1<<16 - 1

func (b *Backend) addRows(op runtime.Add, p pass) {
	if !b.use(special{kernel: "add"}) {
		return
	}
	b.in(0, b.view(op.X, p))
	b.out(1, b.view(op.Y, p))
	a := &b.enc.args.point
	*a = pointArgs{N: uint32(op.Y.N), AStride: uint32(op.X.Width), YStride: uint32(op.Y.Width)}
	arg(b, 2, a)
	b.dispatch(Size{ceil(op.Y.N, across), p.S, 1}, Size{across, 1, 1})
}

type ropeKey struct {
	n      int
	angles kernel.Angles
}

// ropeTable is the cosines and sines of some positions on the device.
type ropeTable struct {
	r        *kernel.RoPE
	n        int // positions
	cos, sin *vector
}

// prepareRopes makes the tables of a program cover the positions below n.
func (b *Backend) prepareRopes(p *program, n int) error {
	for i := range p.steps {
		op, ok := p.steps[i].cmd.Op.(runtime.Rope)
		if !ok || op.N == 0 {
			continue
		}
		key := ropeKey{op.N, op.Angles}
		t := b.ropes[key]
		if t == nil {
			t = &ropeTable{r: kernel.NewRoPE(op.N, op.Angles)}
			b.ropes[key] = t
		}
		if n <= t.n {
			continue
		}
		if err := b.wait(0); err != nil {
			return err
		}
		if err := b.growRope(t, op.N/2, max(n, 2*t.n, 256)); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) growRope(t *ropeTable, half, n int) error {
	b.release(t.cos)
	b.release(t.sin)
	t.cos, t.sin, t.n = nil, nil, 0
	t.r.Grow(n)
	cos, sin := make([]float32, n*half), make([]float32, n*half)
	for p := range n {
		c, s := t.r.At(p)
		copy(cos[p*half:], c)
		copy(sin[p*half:], s)
	}
	var err error
	if t.cos, err = b.vector(4 * len(cos)); err != nil {
		return err
	}
	if t.sin, err = b.vector(4 * len(sin)); err != nil {
		return err
	}
	if err := t.cos.buf.Write(0, bytesOfFloats(cos)); err != nil {
		return err
	}
	t.n = n
	return t.sin.buf.Write(0, bytesOfFloats(sin))
}

func (b *Backend) rope(op runtime.Rope, p pass) {
	items := op.N / 2
	if op.Rest {
		items += op.XWidth - op.N
	}
	if items == 0 {
		return
	}
	t := b.ropes[ropeKey{op.N, op.Angles}]
	if !b.use(special{kernel: "rope"}) {
		return
	}
	b.in(0, b.view(op.X, p))
	b.at(1, spot{t.cos.buf, 0})
	b.at(2, spot{t.sin.buf, 0})
	b.out(3, b.view(op.Y, p))
	a := &b.enc.args.rope
	*a = ropeArgs{uint32(op.X.Width), uint32(op.Y.Width), uint32(op.XWidth), uint32(op.XAt), uint32(op.YWidth), uint32(op.YAt),
		uint32(op.N), oneIf(op.Interleave), uint32(items), uint32(op.Heads), uint32(p.Pos + p.row)}
	arg(b, 4, a)
	b.dispatch(Size{ceil(items*op.Heads, across), p.S, 1}, Size{across, 1, 1})
}

func (b *Backend) index(op runtime.Index, p pass) {
	all := p.Pos + p.row + p.S // positions that the last token sees
	if all <= op.Select.Width {
		return
	}
	scores := b.work(scratchIndex, 4*all*p.S)
	a := &b.enc.args.index
	*a = indexArgs{uint32(op.Heads), uint32(op.Dim), uint32(p.Pos + p.row), uint32(op.Select.Width), uint32(op.Q.Width), uint32(op.HeadWeight.Width),
		uint32(all), op.Scale, op.HeadScale}
	if !b.use(special{kernel: "index_score"}) {
		return
	}
	b.in(0, b.view(op.Q, p))
	b.in(1, b.view(op.HeadWeight, p))
	b.in(2, b.rows(op.Keys, 0))
	b.out(3, scores)
	arg(b, 4, a)
	b.dispatch(Size{ceil(all, 64), 1, p.S}, Size{group, 1, 1})
	if !b.use(special{kernel: "topk"}) {
		return
	}
	b.in(0, scores)
	b.out(1, b.rows(op.Select, p.row))
	arg(b, 2, a)
	b.enc.enc.SetThreadgroupMemory(0, 32)
	b.dispatch(Size{p.S, 1, 1}, Size{across, 1, 1})
}

// Threadgroup memory of attention's kernels, in which a simdgroup takes 8 heads:
// qabs_one holds rows of kv_b, their scales and the query's numbers for them,
// score holds parts of 32 latents and of 64 queries, softmax 4096 elements and some
// sums, latent the probabilities of 32 positions for each simdgroup.
const (
	attendHeads     = 8
	qabsTileBytes   = 12288
	qabsFactorBytes = 4 * 192 * (1 + 9)
	scoreRowBytes   = 4 * 32 * 80
	scoreQueryBytes = 4 * 64 * 64
	softmaxBytes    = 4 * (4096 + 32)
	latentBytes     = 4 * 32 * attendHeads
)

// mla runs attention for as many tokens at a time as the scores have room for.
func (b *Backend) mla(op runtime.MLA, p pass) {
	w := op.KVB.(*weight)
	row, err := lookup(runtime.KindMLA, w.m.Spec, b.limits)
	if err != nil {
		b.enc.err = err
		return
	}
	all := p.Pos + p.row + p.S
	step := max(1, min(p.S, b.table.scores/(op.Heads*all), maxGroups/op.Heads))
	for first := 0; first < p.S; first += step {
		part := p
		part.row += first
		part.S = min(step, p.S-first)
		b.attend(op, part, w, row.kernel)
	}
}

// scoreTiles are how many positions half a simdgroup of score takes at a time.
var scoreTiles = []uint8{16, 4}

func (b *Backend) attend(op runtime.MLA, p pass, w *weight, matmul string) {
	s := w.m.Spec
	width := op.KVLoRA + op.Rope
	all := p.Pos + p.row + p.S
	rows := p.S * op.Heads
	tiles := ceil(op.Heads, attendHeads)
	chunks := 1
	if n := ceil(all, kernel.Chunk); p.S*tiles*ceil(op.KVLoRA, 128) < 512 && p.S*n <= maxGroups {
		chunks = n // few tokens: their chunks share the work
	}
	k := special{kernel: "score", tile: scoreTiles[0]}
	if width%4 == 0 && op.KVLoRA%4 == 0 {
		k.wide = 2
	}
	if op.Select != nil && all > op.Select.Width {
		k.selects = true
	}
	if p.S*ceil(op.Heads, 64)*all <= 1024 {
		k.tile = scoreTiles[1] // short: more threadgroups
	}
	span := 2 * int(k.tile) // positions of a threadgroup
	for p.S*ceil(all, span) > 1024 && span < 256 {
		span *= 2
	}
	query := b.work(scratchQuery, 4*rows*width)
	stride := ceil(all, 4) * 4 // of scores, for loads of four
	scores := b.work(scratchScores, 4*rows*stride)
	latents := b.work(scratchLatents, 4*rows*op.KVLoRA)
	parts := latents
	if chunks > 1 {
		parts = b.work(scratchParts, 4*rows*chunks*op.KVLoRA)
	}
	qk := special{kernel: "qabs", format: s.Format, tile: 8}
	if w.wide > 0 {
		qk.wide, qk.tile = 2, tileFor(p.S)
		if p.S == 1 {
			qk = special{kernel: "qabs_one", format: s.Format}
		}
	}
	if !b.use(qk) {
		return
	}
	b.at(0, w.codes)
	b.at(1, w.scales)
	b.in(2, b.view(op.Q, p))
	b.in(3, b.view(op.QRope, p))
	b.out(4, query)
	qa := &b.enc.args.qabs
	*qa = qAbsArgs{uint32(op.KVLoRA), uint32(s.RowBytes()), uint32(s.ScaleCols()), uint32(s.Group), uint32(op.Nope), uint32(op.Nope + op.Value), uint32(op.Rope),
		uint32(op.Heads), uint32(op.Q.Width), uint32(op.QWidth), uint32(op.QRope.Width), uint32(p.S)}
	arg(b, 5, qa)
	if qk.kernel == "qabs_one" {
		b.enc.enc.SetThreadgroupMemory(0, qabsTileBytes)
		b.enc.enc.SetThreadgroupMemory(1, qabsFactorBytes)
		b.dispatch(Size{ceil(width, 2*64), op.Heads, 1}, Size{64, 1, 1})
	} else {
		b.dispatch(Size{ceil(width, 4*64), op.Heads, ceil(p.S, int(qk.tile))}, Size{64, 1, 1})
	}

	a := &b.enc.args.attend
	*a = attendArgs{uint32(op.Heads), uint32(width), uint32(op.KVLoRA), uint32(p.Pos + p.row), 0, uint32(stride), uint32(chunks), uint32(span), op.Scale}
	selection := whole(b.empty)
	if k.selects {
		a.Topk = uint32(op.Select.Width)
		selection = b.rows(*op.Select, p.row)
	}
	if !b.use(k) {
		return
	}
	b.in(0, query)
	b.in(1, b.rows(op.Cache, 0))
	b.in(2, selection)
	b.out(3, scores)
	arg(b, 4, a)
	b.enc.enc.SetThreadgroupMemory(0, scoreRowBytes)
	b.enc.enc.SetThreadgroupMemory(1, scoreQueryBytes)
	b.dispatch(Size{ceil(all, span), ceil(op.Heads, 64), p.S}, Size{across, 1, 1})

	if !b.use(special{kernel: "softmax", selects: k.selects}) {
		return
	}
	b.out(0, scores)
	arg(b, 1, a)
	b.enc.enc.SetThreadgroupMemory(0, softmaxBytes)
	b.dispatch(Size{rows, 1, 1}, Size{across, 1, 1})

	k.kernel, k.tile = "latent", 0
	if !b.use(k) {
		return
	}
	b.in(0, scores)
	b.in(1, b.rows(op.Cache, 0))
	b.in(2, selection)
	b.out(3, parts)
	arg(b, 4, a)
	perGroup := min(tiles, 4)
	b.enc.enc.SetThreadgroupMemory(0, perGroup*latentBytes)
	b.dispatch(Size{ceil(op.KVLoRA, 128), ceil(tiles, perGroup), p.S * chunks}, Size{32 * perGroup, 1, 1})
	l, isRounded := layouts[s.Format]
	if chunks > 1 && !isRounded {
		if !b.use(special{kernel: "latent_sum"}) {
			return
		}
		b.in(0, parts)
		b.out(1, latents)
		arg(b, 2, a)
		b.dispatch(Size{ceil(op.KVLoRA, group), op.Heads, p.S}, Size{group, 1, 1})
	}

	m := product{w: w, kernel: matmul, first: op.Nope, rows: op.Value, rowStep: op.Nope + op.Value, heads: op.Heads, count: p.S,
		x: latents, xStride: op.Heads * op.KVLoRA, xStep: op.KVLoRA, roundedStride: op.Heads, roundedHeadStep: 1,
		y: b.view(op.Y, p), yStride: op.Y.Width, yStep: op.Value}
	if isRounded {
		m.r = b.roundSums(l, parts, rows, op.KVLoRA, op.KVLoRA, op.Heads, chunks)
	}
	b.multiply(&m)
}

// sharedFormat is the format that all experts have, or anyFormat.
func sharedFormat(ws []*weight) (id format.ID, cut bool) {
	id, cut = ws[0].m.Format, cuts(ws[0].m.Spec)
	for _, w := range ws {
		if w.m.Format != id || cuts(w.m.Spec) != cut || w.wide < 2 {
			return anyFormat, false
		}
	}
	return id, cut
}
