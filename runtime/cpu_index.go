package runtime

import "hawkmoth/runtime/kernel"

// indexBlock is how many positions an item of the indexer scores.
const indexBlock = 512

// indexTask scores the positions that tokens see, in blocks of positions, and
// then keeps each token's best.
type indexTask struct {
	c      *CPU
	op     Index
	b      Batch
	blocks int       // of positions; 0 while the best are taken
	first  int       // the first token of the sweep
	scores []float32 // [tokens, positions]
}

func (c *CPU) runIndex(op Index, b Batch) {
	t := &c.index
	t.c, t.op, t.b = c, op, b
	positions := b.Pos + b.S
	if positions <= op.Select.Width {
		return
	}
	tokens := max(1, min(b.S, sweepFloats/positions))
	grow(&t.scores, tokens*positions)
	for t.first = 0; t.first < b.S; t.first += tokens {
		n := min(tokens, b.S-t.first)
		t.blocks = blocks(positions, indexBlock)
		c.do(n*t.blocks, t)
		t.blocks = 0
		c.do(n, t)
	}
}

func (t *indexTask) run(s *cpuScratch, item int) {
	i, block := item, 0
	if t.blocks > 0 {
		i, block = item/t.blocks, item%t.blocks
	}
	token := t.first + i
	n := t.b.Pos + token + 1
	if n <= t.op.Select.Width { // it attends to all of them
		return
	}
	scores := t.scores[i*(t.b.Pos+t.b.S):][:n]
	if t.blocks == 0 {
		kernel.TopK(t.c.intRow(t.op.Select, token), scores, t.op.Select.Width)
		return
	}
	lo := min(block*indexBlock, n)
	hi := min(lo+indexBlock, n)
	grow(&s.query, t.op.Heads)
	for h, w := range t.c.row(t.op.HeadWeight, t.b, token) {
		s.query[h] = w * t.op.HeadScale
	}
	keys := t.c.floats[t.op.Keys.ID][lo*t.op.Dim : hi*t.op.Dim]
	kernel.IndexScore(scores[lo:hi], t.c.row(t.op.Q, t.b, token), s.query, keys, t.op.Scale)
}
