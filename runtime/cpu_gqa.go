package runtime

import "hawkmoth/runtime/kernel"

// queryBlock is about how many queries read a cache row together.
const queryBlock = 16

// gqaTask is grouped-query attention. An item is a head of the cache with all
// heads that share it, and a block of tokens, so that a row of the cache is
// brought from memory once for all of them.
type gqaTask struct {
	c      *CPU
	op     Attention
	b      Batch
	tokens int // of a block
	blocks int
}

func (c *CPU) runAttention(op Attention, b Batch) {
	t := &c.gqa
	*t = gqaTask{c: c, op: op, b: b, tokens: max(1, queryBlock*op.KVHeads/op.Heads)}
	t.blocks = blocks(b.S, t.tokens)
	c.do(op.KVHeads*t.blocks, t)
}

// run goes over the cache from a whole chunk on, up to the block's last token.
// What a token must not see gets the weight 0, which changes no sum.
func (t *gqaTask) run(s *cpuScratch, item int) {
	op := &t.op
	kv, first := item/t.blocks, item%t.blocks*t.tokens
	n, group, stride := min(t.tokens, t.b.S-first), op.Heads/op.KVHeads, op.KVHeads*op.HeadDim
	from := t.sees(first) / kernel.Chunk * kernel.Chunk
	all := t.b.Pos + first + n - from
	grow(&s.scores, n*group*all)
	s.queries, s.lists, s.outs = s.queries[:0], s.lists[:0], s.outs[:0]
	for i := range n * group {
		token, at := first+i/group, (kv*group+i%group)*op.HeadDim
		s.queries = append(s.queries, t.c.row(op.Q, t.b, token)[at:][:op.HeadDim])
		s.outs = append(s.outs, t.c.row(op.Y, t.b, token)[at:][:op.HeadDim])
		s.lists = append(s.lists, s.scores[i*all:][:all])
	}
	at := from*stride + kv*op.HeadDim
	kernel.ScoreBatch(s.lists, s.queries, t.c.floats[op.K.ID][at:], stride, nil, op.Scale)
	for i, list := range s.lists {
		token := first + i/group
		lo, hi := t.sees(token)-from, t.b.Pos+token+1-from
		if op.Sinks == nil {
			kernel.Softmax(list[lo:hi])
		} else {
			kernel.SoftmaxSink(list[lo:hi], op.Sinks.(*cpuWeight).vec[kv*group+i%group])
		}
		clear(list[:lo])
		clear(list[hi:])
	}
	kernel.LatentBatch(s.outs, s.lists, t.c.floats[op.V.ID][at:], stride, nil, &s.Scratch)
}

// sees is the first position that the i-th token sees.
func (t *gqaTask) sees(i int) int {
	if t.op.Window == 0 {
		return 0
	}
	return max(0, t.b.Pos+i+1-t.op.Window)
}
