package runtime

import (
	"math"

	"hawkmoth/runtime/kernel"
)

// deltaTask runs gated delta networks: the convolution token by token, then
// every head of the values over all tokens in order.
type deltaTask struct {
	c     *CPU
	op    DeltaNet
	b     Batch
	mixed []float32 // [S, channels]: queries, keys, values
	heads bool
}

func (c *CPU) runDeltaNet(op DeltaNet, b Batch) {
	t := &c.delta
	t.c, t.op, t.b = c, op, b
	channels := op.channels()
	grow(&t.mixed, b.S*channels)
	rows, kept := c.floats[op.Conv.ID], (op.Taps-1)*channels
	if b.Pos == 0 {
		clear(rows[:kept])
		clear(c.floats[op.State.ID])
	}
	for i := range b.S { // the projection has a group for each head of the keys
		t.ungroup(i, rows[kept+i*channels:][:channels])
	}
	t.heads = false
	c.do(b.S, t)
	t.heads = true
	c.do(op.ValueHeads, t)
	copy(rows[:kept], rows[b.S*channels:][:kept])
}

// ungroup copies a token's queries, keys and values to the convolution's row
// and its z to Z.
func (t *deltaTask) ungroup(i int, row []float32) {
	op := &t.op
	in, z := t.c.row(op.QKVZ, t.b, i), t.c.row(op.Z, t.b, i)
	keys, values := op.KeyHeads*op.KeyDim, op.ValueHeads/op.KeyHeads*op.ValueDim
	for h := range op.KeyHeads {
		group := in[h*2*(op.KeyDim+values):]
		copy(row[h*op.KeyDim:][:op.KeyDim], group)
		copy(row[keys+h*op.KeyDim:][:op.KeyDim], group[op.KeyDim:])
		copy(row[2*keys+h*values:][:values], group[2*op.KeyDim:])
		copy(z[h*values:][:values], group[2*op.KeyDim+values:])
	}
}

func (t *deltaTask) run(s *cpuScratch, item int) {
	op := &t.op
	channels, keys := op.channels(), op.KeyHeads*op.KeyDim
	if !t.heads {
		x := t.mixed[item*channels:][:channels]
		kernel.CausalConv(x, op.ConvW.(*cpuWeight).vec, t.c.floats[op.Conv.ID][item*channels:], op.Taps)
		for h := range op.KeyHeads {
			kernel.L2Norm(x[h*op.KeyDim:][:op.KeyDim], float32(1/math.Sqrt(float64(op.KeyDim))))
			kernel.L2Norm(x[keys+h*op.KeyDim:][:op.KeyDim], 1)
		}
		return
	}
	each := op.ValueHeads / op.KeyHeads
	key, in := item/each, item%each
	aLog, bias := op.ALog.(*cpuWeight).vec[item], op.DtBias.(*cpuWeight).vec[item]
	size := op.KeyDim * op.ValueDim
	state := t.c.floats[op.State.ID][item*size:][:size]
	for i := range t.b.S {
		x := t.mixed[i*channels:][:channels]
		ba := t.c.row(op.BA, t.b, i)[key*2*each:]
		kernel.DeltaRule(t.c.row(op.Y, t.b, i)[item*op.ValueDim:][:op.ValueDim], state,
			x[key*op.KeyDim:][:op.KeyDim], x[keys+key*op.KeyDim:][:op.KeyDim], x[2*keys+item*op.ValueDim:][:op.ValueDim],
			kernel.Decay(ba[each+in], aLog, bias), kernel.Sigmoid(ba[in]), &s.Scratch)
	}
}
