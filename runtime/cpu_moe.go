package runtime

import (
	"hawkmoth/format"
	"hawkmoth/runtime/kernel"
)

// moeTask runs the routed experts in sweeps over the pairs of a token and one
// of its experts, ordered by expert, then token: gate and up, the gating, down,
// and the weighted sum of each token.
type moeTask struct {
	c             *CPU
	op            Experts
	b             Batch
	sweep         moeSweep
	width, hidden int
	step, blocks  int // rows an item takes, items an expert has

	pairs  []pair
	starts []int // first pair of each expert that somebody chose, and the end
	count  []int // by expert
	of     []int // pair of (token, slot)

	gate, up, down []float32              // [pairs, width] or [pairs, hidden]
	acts           []kernel.Activation    // of the gated rows
	x              [2][]kernel.Activation // of the input rows, by width
}

type pair struct{ expert, token int }

type moeSweep uint8

const (
	moeGateUp moeSweep = iota
	moeGating
	moeDown
	moeSum
)

func (c *CPU) runExperts(op Experts, b Batch) {
	t := &c.moe
	t.c, t.op, t.b = c, op, b
	t.group()
	n := len(t.pairs)
	t.width, t.hidden = op.Expert[0].Gate.Spec().Rows, op.X.N
	grow(&t.gate, n*t.width)
	grow(&t.up, n*t.width)
	grow(&t.down, n*t.hidden)
	for len(t.acts) < n {
		t.acts = append(t.acts, kernel.Activation{})
	}
	t.roundInput()
	c.prof.Experts += len(t.starts) - 1

	t.begin(moeGateUp, op.Expert[t.pairs[0].expert].Gate.Spec())
	t.sweep = moeGating
	c.do(n, t)
	t.begin(moeDown, op.Expert[t.pairs[0].expert].Down.Spec())
	t.sweep = moeSum
	c.do(b.S, t)
}

// begin runs a sweep over blocks of the rows of every chosen expert; the first
// says how many make a block.
func (t *moeTask) begin(sweep moeSweep, first format.Spec) {
	experts := len(t.starts) - 1
	t.sweep, t.step = sweep, t.c.rowBlock(first, experts*first.Rows, len(t.pairs)/experts)
	t.blocks = blocks(first.Rows, t.step)
	t.c.do(experts*t.blocks, t)
}

// group lists the pairs of the batch by increasing expert.
func (t *moeTask) group() {
	t.pairs, t.starts, t.of = t.pairs[:0], t.starts[:0], t.of[:0]
	for len(t.count) <= len(t.op.Expert) {
		t.count = append(t.count, 0)
	}
	count := t.count[:len(t.op.Expert)+1]
	clear(count)
	for i := range t.b.S {
		for _, e := range t.c.intRow(t.op.IDs, i) {
			count[e+1]++
		}
	}
	for e := range t.op.Expert {
		if count[e+1] > 0 {
			t.starts = append(t.starts, count[e])
		}
		count[e+1] += count[e]
	}
	total := count[len(t.op.Expert)]
	t.starts = append(t.starts, total)
	for range total {
		t.pairs, t.of = append(t.pairs, pair{}), append(t.of, 0)
	}
	for i := range t.b.S {
		for k, e := range t.c.intRow(t.op.IDs, i) {
			t.pairs[count[e]] = pair{int(e), i}
			t.of[i*t.op.IDs.Width+k] = count[e]
			count[e]++
		}
	}
}

// roundInput rounds the input to every width that a chosen expert wants:
// experts may differ in format.
func (t *moeTask) roundInput() {
	t.x = [2][]kernel.Activation{}
	for _, first := range t.starts[:len(t.starts)-1] {
		e := &t.op.Expert[t.pairs[first].expert]
		for _, w := range [2]Weight{e.Gate, e.Up} {
			id := w.Spec().Format
			if bits := kernel.ActivationBits(id); bits > 0 && t.x[bits/12] == nil {
				t.x[bits/12] = t.c.activations(id, t.op.X, t.b)
			}
		}
	}
}

func (t *moeTask) run(s *cpuScratch, item int) {
	switch t.sweep {
	case moeGating:
		row, up := t.gate[item*t.width:][:t.width], t.up[item*t.width:][:t.width]
		if bias := t.op.Expert[t.pairs[item].expert].Bias; bias != nil {
			kernel.Add(row, bias.Gate.(*cpuWeight).vec)
			kernel.Add(up, bias.Up.(*cpuWeight).vec)
		}
		t.op.Gating.Mul(row, row, up)
		if bits := kernel.ActivationBits(t.op.Expert[t.pairs[item].expert].Down.Spec().Format); bits > 0 {
			t.acts[item].Quantize(row, bits)
		}
	case moeSum:
		y, slots := t.c.row(t.op.Y, t.b, item), t.op.IDs.Width
		clear(y)
		for slot, w := range t.c.row(t.op.Weights, t.b, item) { // in increasing order of the experts
			p := t.of[item*slots+slot]
			down := t.down[p*t.hidden:][:t.hidden]
			if bias := t.op.Expert[t.pairs[p].expert].Bias; bias != nil {
				kernel.Add(down, bias.Down.(*cpuWeight).vec)
			}
			kernel.AddScaled(y, w, down)
		}
	default:
		at, end := t.starts[item/t.blocks], t.starts[item/t.blocks+1]
		e := &t.op.Expert[t.pairs[at].expert]
		lo := item % t.blocks * t.step
		if t.sweep == moeDown {
			t.expertDown(s, e.Down.(*cpuWeight), at, end, lo)
			return
		}
		t.expertIn(s, e.Gate.(*cpuWeight), t.gate, at, end, lo)
		t.expertIn(s, e.Up.(*cpuWeight), t.up, at, end, lo)
	}
}

// expertIn multiplies the tokens of the pairs [at, end) by rows of gate or up.
func (t *moeTask) expertIn(s *cpuScratch, w *cpuWeight, dst []float32, at, end, lo int) {
	hi := min(lo+t.step, t.width)
	have := t.x[kernel.ActivationBits(w.m.Format)/12]
	s.rows, s.outs, s.lent = s.rows[:0], s.outs[:0], s.lent[:0]
	for p := at; p < end; p++ {
		token := t.pairs[p].token
		s.rows = append(s.rows, t.c.row(t.op.X, t.b, token))
		s.outs = append(s.outs, dst[p*t.width:][lo:hi])
		if have != nil {
			s.lent = append(s.lent, have[token])
		}
	}
	kernel.MatVecRows(w.m, lo, hi, s.rows, s.lent, s.outs, &s.Scratch)
}

// expertDown multiplies the gated rows of the pairs [at, end) by rows of down.
func (t *moeTask) expertDown(s *cpuScratch, w *cpuWeight, at, end, lo int) {
	hi := min(lo+t.step, t.hidden)
	s.rows, s.outs = s.rows[:0], s.outs[:0]
	for p := at; p < end; p++ {
		s.rows = append(s.rows, t.gate[p*t.width:][:t.width])
		s.outs = append(s.outs, t.down[p*t.hidden:][lo:hi])
	}
	kernel.MatVecRows(w.m, lo, hi, s.rows, t.acts[at:end], s.outs, &s.Scratch)
}
