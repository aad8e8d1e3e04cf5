package runtime

import (
	"hawkmoth/runtime/kernel"
)

// tokenBlock is how many tokens share a decoded head of kv_b.
const tokenBlock = 8

// mla runs a task for each head and block of tokens: the head's key rows of
// kv_b are decoded once a task, everything else is per token.
func (c *CPU) mla(op MLA, b Batch) {
	kvb := op.KVB.(*cpuWeight).m
	blocks := (b.S + tokenBlock - 1) / tokenBlock
	bits := kernel.ActivationBits(kvb.Format)
	width := op.KVLoRA + op.Rope
	c.parallel(op.Heads*blocks, func(s *cpuScratch, task int) {
		head, first := task/blocks, task%blocks*tokenBlock
		row := head * (op.Nope + op.Value)
		n := min(tokenBlock, b.S-first)
		grow(&s.qabs, n*op.KVLoRA)
		grow(&s.latents, n*op.KVLoRA)
		s.rows, s.absorbed, s.outs = s.rows[:0], s.absorbed[:0], s.outs[:0]
		for i := range n {
			s.rows = append(s.rows, c.row(op.Q, b, first+i)[head*op.QWidth:][:op.Nope])
			s.absorbed = append(s.absorbed, s.qabs[i*op.KVLoRA:][:op.KVLoRA])
		}
		kernel.QAbsBatch(s.absorbed, s.rows, kvb, row, &s.Scratch)
		cache := c.floats[op.Cache.ID]
		for i := range n {
			positions := b.Pos + first + i + 1
			grow(&s.scores, positions)
			scores := s.scores
			var chosen []int32 // nil: all positions
			if op.Select != nil && positions > op.Select.Width {
				chosen = c.intRow(*op.Select, first+i)
				scores = scores[:len(chosen)]
			}
			qrope := c.row(op.QRope, b, first+i)[head*op.Rope:][:op.Rope]
			kernel.Score(scores, s.absorbed[i], qrope, cache, width, chosen, op.Scale)
			kernel.Softmax(scores)
			s.rows[i] = s.latents[i*op.KVLoRA:][:op.KVLoRA]
			kernel.Latent(s.rows[i], scores, cache, width, chosen, &s.Scratch)
			s.outs = append(s.outs, c.row(op.Y, b, first+i)[head*op.Value:][:op.Value])
		}
		if bits > 0 {
			for len(s.acts) < n {
				s.acts = append(s.acts, kernel.Activation{})
			}
			for i := range n {
				s.acts[i].Quantize(s.rows[i], bits)
			}
		}
		kernel.MatVecRows(kvb, row+op.Nope, row+op.Nope+op.Value, s.rows, s.acts[:min(n, len(s.acts))], s.outs, &s.Scratch)
	})
}

// index scores every position a token can see and keeps the best.
func (c *CPU) index(op Index, b Batch) {
	c.parallel(b.S, func(s *cpuScratch, i int) {
		positions := b.Pos + i + 1
		if positions <= op.Select.Width {
			return
		}
		grow(&s.scores, positions)
		grow(&s.qabs, op.Heads)
		for h, w := range c.row(op.HeadWeight, b, i) {
			s.qabs[h] = w * op.HeadScale
		}
		kernel.IndexScore(s.scores, c.row(op.Q, b, i), s.qabs, c.floats[op.Keys.ID], op.Scale)
		kernel.TopK(c.intRow(op.Select, i), s.scores, op.Select.Width)
	})
}

// grow sets the length of a scratch slice; its contents are undefined.
func grow(s *[]float32, n int) {
	if cap(*s) < n {
		*s = make([]float32, n, n+n/2)
	}
	*s = (*s)[:n]
}
