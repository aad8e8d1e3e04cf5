package runtime

import "hawkmoth/runtime/kernel"

const (
	// tokenBlock is how many tokens share a decoded head of kv_b.
	tokenBlock = 8
	// headGroup is how many heads of a token share the reading of a latent.
	headGroup = 4
	// fewChunks of latents stay in a cache near a processor.
	fewChunks = 4
	// sweepFloats bounds the scores and partial contexts that a sweep holds.
	sweepFloats = 16 << 20
)

// mlaTask runs attention in one of four orders, which give the same bits. By
// heads: an item is a head and a block of tokens, from the query to the value;
// the head's rows of kv_b are decoded once for the block. By groups of heads,
// for few tokens over a short cache: an item is a token and some heads. By
// sweeps over chunks of positions, for few tokens over a long cache, or over
// tokens, where they select their positions: an item does all heads, so that a
// latent is brought from memory, or gathered, once for all of them.
type mlaTask struct {
	c      *CPU
	op     MLA
	b      Batch
	kvb    *cpuWeight
	blocks int // of tokens
	chunks int // of positions
	sweep  sweep
	query  []float32 // [S, Heads, KVLoRA+Rope]: absorbed, then rotated
	scores []float32 // [S, Heads, positions]
	parts  []float32 // [parted, S, Heads, KVLoRA]
	parted int       // how many parts a context is summed up from
	stride int       // positions a row of scores holds
}

type sweep uint8

const (
	byHeads sweep = iota
	byGroups
	sweepAbsorb
	sweepScore
	sweepSoftmax
	sweepLatent
	sweepToken
	sweepValue
)

type phase struct {
	sweep sweep
	items int
}

func (c *CPU) runMLA(op MLA, b Batch) {
	t := &c.mla
	t.c, t.op, t.b, t.kvb = c, op, b, op.KVB.(*cpuWeight)
	t.stride = b.Pos + b.S
	t.chunks = blocks(t.stride, kernel.Chunk)
	rows := b.S * op.Heads
	selected := op.Select != nil && t.stride > op.Select.Width
	switch {
	case selected && b.S >= tokenBlock:
		t.parted = 1
		grow(&t.query, rows*(op.KVLoRA+op.Rope))
		grow(&t.parts, rows*op.KVLoRA)
		t.phases(phase{sweepAbsorb, op.Heads}, phase{sweepToken, b.S}, phase{sweepValue, op.Heads})
	case b.S < tokenBlock && t.chunks < fewChunks:
		t.parted, t.blocks = 1, blocks(op.Heads, headGroup)
		grow(&t.query, rows*(op.KVLoRA+op.Rope))
		grow(&t.parts, rows*op.KVLoRA)
		t.phases(phase{byGroups, b.S * t.blocks})
	case b.S >= tokenBlock || rows*(t.stride+t.chunks*op.KVLoRA) > sweepFloats:
		t.blocks = blocks(b.S, tokenBlock)
		t.phases(phase{byHeads, op.Heads * t.blocks})
	default:
		t.parted = t.chunks
		grow(&t.query, rows*(op.KVLoRA+op.Rope))
		grow(&t.scores, rows*t.stride)
		grow(&t.parts, t.chunks*rows*op.KVLoRA)
		t.phases(phase{sweepAbsorb, op.Heads}, phase{sweepScore, t.chunks}, phase{sweepSoftmax, rows}, phase{sweepLatent, t.chunks}, phase{sweepValue, op.Heads})
	}
}

func (t *mlaTask) phases(list ...phase) {
	for _, p := range list {
		t.sweep = p.sweep
		t.c.do(p.items, t)
	}
}

func (t *mlaTask) run(s *cpuScratch, item int) {
	switch t.sweep {
	case byHeads:
		t.head(s, item/t.blocks, item%t.blocks*tokenBlock)
	case byGroups:
		t.group(s, item/t.blocks, item%t.blocks*headGroup)
	case sweepAbsorb:
		t.absorbHead(s, item, 0, t.b.S)
	case sweepScore, sweepLatent:
		t.chunk(s, item)
	case sweepSoftmax:
		kernel.Softmax(t.row(item))
	case sweepToken:
		t.token(s, item, 0, t.op.Heads)
	case sweepValue:
		t.sum(s, item, 0, t.b.S)
	}
}

// positions is how many positions the i-th token sees, and which, if not all.
func (t *mlaTask) positions(i int) (n int, chosen []int32) {
	n = t.b.Pos + i + 1
	if sel := t.op.Select; sel != nil && n > sel.Width {
		chosen = t.c.intRow(*sel, i)
		n = len(chosen)
	}
	return n, chosen
}

// row is the scores of a token and head (row = token·Heads + head).
func (t *mlaTask) row(row int) []float32 {
	n, _ := t.positions(row / t.op.Heads)
	return t.scores[row*t.stride:][:n]
}

func (t *mlaTask) cache() (rows []float32, stride int) {
	return t.c.floats[t.op.Cache.ID], t.op.KVLoRA + t.op.Rope
}

// absorb makes the queries of n tokens from first on, stride floats apart in
// dst: absorbed into the latents' space, with the rotated part behind. Their
// views end up in s.queries.
func (t *mlaTask) absorb(s *cpuScratch, head, first, n int, dst []float32, stride int) {
	op := &t.op
	s.rows, s.outs, s.queries = s.rows[:0], s.outs[:0], s.queries[:0]
	for i := range n {
		q := dst[i*stride:][:op.KVLoRA+op.Rope]
		copy(q[op.KVLoRA:], t.c.row(op.QRope, t.b, first+i)[head*op.Rope:])
		s.queries = append(s.queries, q)
		s.outs = append(s.outs, q[:op.KVLoRA])
		s.rows = append(s.rows, t.c.row(op.Q, t.b, first+i)[head*op.QWidth:][:op.Nope])
	}
	kernel.QAbsBatch(s.outs, s.rows, t.kvb.m, head*(op.Nope+op.Value), &s.Scratch)
}

// absorbHead makes a head's queries of n tokens in t.query.
func (t *mlaTask) absorbHead(s *cpuScratch, head, first, n int) {
	_, width := t.cache()
	t.absorb(s, head, first, n, t.query[(first*t.op.Heads+head)*width:], t.op.Heads*width)
}

// group is attention of one token for up to headGroup heads.
func (t *mlaTask) group(s *cpuScratch, i, lo int) {
	hi := min(lo+headGroup, t.op.Heads)
	for h := lo; h < hi; h++ {
		t.absorbHead(s, h, i, 1)
	}
	t.token(s, i, lo, hi)
	for h := lo; h < hi; h++ {
		t.sum(s, h, i, 1)
	}
}

// head is attention of one head for a block of tokens. Without a selection the
// block goes over the cache together, up to the last token's position; what an
// earlier token must not see gets the weight 0, which changes no sum.
func (t *mlaTask) head(s *cpuScratch, head, first int) {
	op := &t.op
	n := min(tokenBlock, t.b.S-first)
	cache, width := t.cache()
	grow(&s.query, n*width)
	grow(&s.latents, n*op.KVLoRA)
	t.absorb(s, head, first, n, s.query, width)
	s.outs = s.outs[:0]
	for i := range n {
		s.outs = append(s.outs, s.latents[i*op.KVLoRA:][:op.KVLoRA])
	}
	all := t.b.Pos + first + n
	grow(&s.scores, n*all)
	s.lists = s.lists[:0]
	for i := range n {
		s.lists = append(s.lists, s.scores[i*all:][:all])
	}
	if op.Select == nil || all <= op.Select.Width {
		kernel.ScoreBatch(s.lists, s.queries, cache, width, nil, op.Scale)
		for i, list := range s.lists {
			seen := all - n + i + 1
			kernel.Softmax(list[:seen])
			clear(list[seen:])
		}
		kernel.LatentBatch(s.outs, s.lists, cache, width, nil, &s.Scratch)
	} else {
		for i := range n {
			seen, chosen := t.positions(first + i)
			list := s.lists[i][:seen]
			kernel.Score(list, s.queries[i][:op.KVLoRA], s.queries[i][op.KVLoRA:], cache, width, chosen, op.Scale)
			kernel.Softmax(list)
			kernel.Latent(s.outs[i], list, cache, width, chosen, &s.Scratch)
		}
	}
	t.value(s, head, first, n)
}

// within is the rows of the cache that the i-th token sees in a chunk, or those
// of them that it selected. [from, to) is their place in the token's list of
// scores.
func (t *mlaTask) within(i, chunk int) (rows []float32, chosen []int32, from, to int) {
	rows, width := t.cache()
	lo, hi := chunk*kernel.Chunk, (chunk+1)*kernel.Chunk
	n, chosen := t.positions(i)
	if chosen == nil {
		from, to = min(lo, n), min(hi, n)
		return rows[from*width : to*width], nil, from, to
	}
	from, to = lowerBound(chosen, lo), lowerBound(chosen, hi)
	return rows, chosen[from:to], from, to
}

// chunk scores the positions of one chunk for all heads, or sums up their
// latents.
func (t *mlaTask) chunk(s *cpuScratch, chunk int) {
	op := &t.op
	_, width := t.cache()
	for i := range t.b.S {
		rows, chosen, from, to := t.within(i, chunk)
		s.queries, s.lists, s.outs = s.queries[:0], s.lists[:0], s.outs[:0]
		for h := range op.Heads {
			row := i*op.Heads + h
			s.queries = append(s.queries, t.query[row*width:][:width])
			s.lists = append(s.lists, t.row(row)[from:to])
			s.outs = append(s.outs, t.part(chunk, row))
		}
		if t.sweep == sweepScore {
			kernel.ScoreBatch(s.lists, s.queries, rows, width, chosen, op.Scale)
		} else {
			kernel.LatentBatch(s.outs, s.lists, rows, width, chosen, &s.Scratch)
		}
	}
}

// token is the scores, the softmax and the context of one token for the heads
// from lo up to hi.
func (t *mlaTask) token(s *cpuScratch, i, lo, hi int) {
	op := &t.op
	cache, width := t.cache()
	n, chosen := t.positions(i)
	grow(&s.scores, (hi-lo)*n)
	s.queries, s.lists, s.outs = s.queries[:0], s.lists[:0], s.outs[:0]
	for h := lo; h < hi; h++ {
		s.queries = append(s.queries, t.query[(i*op.Heads+h)*width:][:width])
		s.lists = append(s.lists, s.scores[(h-lo)*n:][:n])
		s.outs = append(s.outs, t.part(0, i*op.Heads+h))
	}
	kernel.ScoreBatch(s.lists, s.queries, cache, width, chosen, op.Scale)
	for _, list := range s.lists {
		kernel.Softmax(list)
	}
	kernel.LatentBatch(s.outs, s.lists, cache, width, chosen, &s.Scratch)
}

func (t *mlaTask) part(chunk, row int) []float32 {
	return t.parts[(chunk*t.b.S*t.op.Heads+row)*t.op.KVLoRA:][:t.op.KVLoRA]
}

// sum adds a head's parts in increasing order and goes on to the value, for n
// tokens.
func (t *mlaTask) sum(s *cpuScratch, head, first, n int) {
	op := &t.op
	grow(&s.latents, n*op.KVLoRA)
	clear(s.latents)
	for i := range n {
		for chunk := range t.parted {
			kernel.Add(s.latents[i*op.KVLoRA:][:op.KVLoRA], t.part(chunk, (first+i)*op.Heads+head))
		}
	}
	t.value(s, head, first, n)
}

// value turns the latents in s into the head's output for n tokens.
func (t *mlaTask) value(s *cpuScratch, head, first, n int) {
	op := &t.op
	s.rows, s.outs = s.rows[:0], s.outs[:0]
	for i := range n {
		s.rows = append(s.rows, s.latents[i*op.KVLoRA:][:op.KVLoRA])
		s.outs = append(s.outs, t.c.row(op.Y, t.b, first+i)[head*op.Value:][:op.Value])
	}
	for len(s.acts) < n {
		s.acts = append(s.acts, kernel.Activation{})
	}
	if bits := kernel.ActivationBits(t.kvb.m.Format); bits > 0 {
		for i := range n {
			s.acts[i].Quantize(s.rows[i], bits)
		}
	}
	row := head*(op.Nope+op.Value) + op.Nope
	kernel.MatVecRows(t.kvb.m, row, row+op.Value, s.rows, s.acts[:n], s.outs, &s.Scratch)
}

// lowerBound is the first index of the increasing list whose value is ≥ v.
func lowerBound(list []int32, v int) int {
	lo, hi := 0, len(list)
	for lo < hi {
		if mid := (lo + hi) / 2; int(list[mid]) < v {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// grow sets the length of a scratch slice; its contents are undefined.
func grow(s *[]float32, n int) {
	if cap(*s) < n {
		*s = make([]float32, n, n+n/2)
	}
	*s = (*s)[:n]
}
