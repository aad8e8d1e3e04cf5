package runtime

import (
	"hawkmoth/runtime/kernel"
)

// moeScratch is the experts' intermediate rows: one for each pair of a token
// and one of its experts, ordered by expert, then token.
type moeScratch struct {
	gate, up, down []float32
	acts           []kernel.Activation // of the gated rows
	pairs          []pair
	starts         []int // first pair of each expert that somebody chose
}

type pair struct{ expert, token, slot int }

// group lists the pairs of the batch by increasing expert.
func (m *moeScratch) group(c *CPU, op *Experts, b Batch) {
	m.pairs, m.starts = m.pairs[:0], m.starts[:0]
	count := make([]int, len(op.Expert)+1)
	for i := range b.S {
		for _, e := range c.intRow(op.IDs, i) {
			count[e+1]++
		}
	}
	for e := range op.Expert {
		if count[e+1] > 0 {
			m.starts = append(m.starts, count[e])
		}
		count[e+1] += count[e]
	}
	total := count[len(op.Expert)]
	m.starts = append(m.starts, total)
	for range total {
		m.pairs = append(m.pairs, pair{})
	}
	for i := range b.S {
		for k, e := range c.intRow(op.IDs, i) {
			m.pairs[count[e]] = pair{int(e), i, k}
			count[e]++
		}
	}
}

// experts runs three sweeps: gate and up, down, and the weighted sum of each
// token in increasing order of its experts.
func (c *CPU) experts(op Experts, b Batch) {
	m := &c.moe
	m.group(c, &op, b)
	n := len(m.pairs)
	width, hidden := op.Expert[0].Gate.Spec().Rows, op.X.N
	grow(&m.gate, n*width)
	grow(&m.up, n*width)
	grow(&m.down, n*hidden)
	for len(m.acts) < n {
		m.acts = append(m.acts, kernel.Activation{})
	}

	// Experts may differ in format, so both widths are made where both are wanted.
	var acts [2][]kernel.Activation
	for _, first := range m.starts[:len(m.starts)-1] {
		for _, w := range []Weight{op.Expert[m.pairs[first].expert].Gate, op.Expert[m.pairs[first].expert].Up} {
			if bits := kernel.ActivationBits(w.Spec().Format); bits > 0 && acts[bits/12] == nil {
				acts[bits/12] = c.activations(w.Spec().Format, op.X, b)
			}
		}
	}
	c.prof.Experts += len(m.starts) - 1

	c.expertSweep(&op, width, hidden, func(s *cpuScratch, e ExpertWeights, pairs []pair, at, lo, hi int) {
		for _, half := range []struct {
			w   Weight
			dst []float32
		}{{e.Gate, m.gate}, {e.Up, m.up}} {
			w := half.w.(*cpuWeight).m
			s.rows, s.outs, s.lent = s.rows[:0], s.outs[:0], s.lent[:0]
			have := acts[kernel.ActivationBits(w.Format)/12]
			for i, p := range pairs {
				s.rows = append(s.rows, c.row(op.X, b, p.token))
				s.outs = append(s.outs, half.dst[(at+i)*width:][lo:hi])
				if have != nil {
					s.lent = append(s.lent, have[p.token])
				}
			}
			kernel.MatVecRows(w, lo, hi, s.rows, s.lent, s.outs, &s.Scratch)
		}
	})
	c.parallel(n, func(_ *cpuScratch, i int) {
		row := m.gate[i*width:][:width]
		kernel.SiLUMul(row, row, m.up[i*width:][:width])
		if bits := kernel.ActivationBits(op.Expert[m.pairs[i].expert].Down.Spec().Format); bits > 0 {
			m.acts[i].Quantize(row, bits)
		}
	})
	c.expertSweep(&op, hidden, width, func(s *cpuScratch, e ExpertWeights, pairs []pair, at, lo, hi int) {
		s.rows, s.outs = s.rows[:0], s.outs[:0]
		for i := range pairs {
			s.rows = append(s.rows, m.gate[(at+i)*width:][:width])
			s.outs = append(s.outs, m.down[(at+i)*hidden:][lo:hi])
		}
		kernel.MatVecRows(e.Down.(*cpuWeight).m, lo, hi, s.rows, m.acts[at:at+len(pairs)], s.outs, &s.Scratch)
	})
	c.parallel(b.S, func(_ *cpuScratch, i int) { clear(c.row(op.Y, b, i)) })
	c.sumExperts(&op, b, hidden)
}

// expertSweep splits rows output rows of every chosen expert over the threads.
func (c *CPU) expertSweep(op *Experts, rows, cols int, fn func(s *cpuScratch, e ExpertWeights, pairs []pair, at, lo, hi int)) {
	m := &c.moe
	step := rowBlock(cols)
	blocks := (rows + step - 1) / step
	c.parallel((len(m.starts)-1)*blocks, func(s *cpuScratch, task int) {
		at, end := m.starts[task/blocks], m.starts[task/blocks+1]
		lo := task % blocks * step
		fn(s, op.Expert[m.pairs[at].expert], m.pairs[at:end], at, lo, min(lo+step, rows))
	})
}

// sumExperts adds each token's rows in increasing order of the experts, which
// is the order of the pairs.
func (c *CPU) sumExperts(op *Experts, b Batch, hidden int) {
	m := &c.moe
	if b.S == 1 {
		for i, p := range m.pairs {
			kernel.AddScaled(c.row(op.Y, b, 0), c.row(op.Weights, b, 0)[p.slot], m.down[i*hidden:][:hidden])
		}
		return
	}
	of := make([]int, b.S*op.IDs.Width) // pair of (token, slot)
	for i, p := range m.pairs {
		of[p.token*op.IDs.Width+p.slot] = i
	}
	c.parallel(b.S, func(_ *cpuScratch, i int) {
		for slot, w := range c.row(op.Weights, b, i) { // slots are in increasing order of the experts
			kernel.AddScaled(c.row(op.Y, b, i), w, m.down[of[i*op.IDs.Width+slot]*hidden:][:hidden])
		}
	})
}
