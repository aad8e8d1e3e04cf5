package runtime

import (
	"fmt"
	"math"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// QKNorm is how queries and keys are normed before their rotation.
type QKNorm uint8

// The ways: not at all, each head by itself, all heads as one vector.
const (
	NoQKNorm QKNorm = iota
	NormHeads
	NormWhole
)

// gqa reads the sizes of grouped-query attention.
func (o *object) gqa(c *Config, s scaling) {
	c.KVHeads = o.count(c.Heads, "num_key_value_heads")
	if c.KVHeads < 1 {
		o.fail(format.ErrCorrupt, "num_key_value_heads", fmt.Sprint(c.KVHeads), "at least 1")
		c.KVHeads = c.Heads
	}
	c.HeadDim = o.count(c.Hidden/c.Heads, "head_dim")
	c.Rope = s.rotated(c.HeadDim)
	c.ScoreGain = 1
}

// noWindow refuses sliding windows that are in use.
func (o *object) noWindow(c *Config) {
	o.list(c.Layers, []string{"layer_types"}, "full_attention")
	if o.flag(false, "use_sliding_window") {
		o.fail(format.ErrUnsupported, "use_sliding_window changes the maths and is not implemented", "true", "false")
	}
	o.ignore("sliding_window", "max_window_layers") // without use_sliding_window
}

// window reads a sliding window, which the layers of the given kinds have that
// are "sliding_attention"; without kinds all have it.
func (o *object) window(c *Config, kinds []string) {
	n := o.count(0, "sliding_window")
	if n == 0 {
		return
	}
	c.Windows = make([]int, min(c.Layers, maxLayers))
	for i := range c.Windows {
		if kinds == nil || kinds[i] == "sliding_attention" {
			c.Windows[i] = n
		}
	}
}

func (t *wants) gqa(c *Config) {
	a := t.prefix + "self_attn."
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	qRows := q
	if c.OutGate {
		qRows = 2 * q
	}
	for _, m := range []struct {
		name string
		rows int
	}{{"q_proj", qRows}, {"k_proj", kv}, {"v_proj", kv}} {
		t.add(quantize.Attn, a+m.name+".weight", m.rows, c.Hidden)
		if c.QKVBias {
			t.add(quantize.Norm, a+m.name+".bias", m.rows)
		}
	}
	switch c.QKNorm {
	case NormHeads:
		t.add(quantize.Norm, a+"q_norm.weight", c.HeadDim)
		t.add(quantize.Norm, a+"k_norm.weight", c.HeadDim)
	case NormWhole:
		t.add(quantize.Norm, a+"q_norm.weight", q)
		t.add(quantize.Norm, a+"k_norm.weight", kv)
	}
	if c.Sinks {
		t.add(quantize.Norm, a+"sinks", c.Heads)
	}
	t.add(quantize.Out, a+"o_proj.weight", c.Hidden, q)
	if c.OutBias {
		t.add(quantize.Norm, a+"o_proj.bias", c.Hidden)
	}
}

// gqa is grouped-query attention over caches of keys and values
// (docs/arithmetic.md §4).
func (b *Builder) gqa(prefix string, h Vec) Vec {
	c := b.cfg
	with := func(name, temp string, bias bool) out {
		o := out{weight: prefix + name + ".weight", temp: temp}
		if bias {
			o.bias = prefix + name + ".bias"
		}
		return o
	}
	values := with("v_proj", "", c.QKVBias)
	values.to = b.cache(c.KVHeads * c.HeadDim).All().At(BasePos)
	qkv := b.linear(StageProject, h.All(), with("q_proj", "q", c.QKVBias), with("k_proj", "k", c.QKVBias), values)
	q, gate := qkv[0], Vec{}
	if c.OutGate {
		q, gate = b.temp("q alone", c.Heads*c.HeadDim), b.temp("gate of heads", c.Heads*c.HeadDim)
		b.do(StageProject, Split{X: qkv[0].All(), Heads: c.Heads, Y: q.All(), Z: gate.All()})
	}
	y := b.attend(prefix, q, qkv[1], qkv[2])
	if c.OutGate {
		b.do(StageAttend, Gate{X: gate.All(), Y: y.All()})
	}
	return b.linear(StageOutput, y.All(), with("o_proj", "o", c.OutBias))[0]
}

// attend norms and rotates queries and keys and attends, over a cache of values.
func (b *Builder) attend(prefix string, q, k, values Vec) Vec {
	c := b.cfg
	if c.QKNorm != NoQKNorm {
		q = b.qkNorm(prefix+"q_norm.weight", "q normed", q, c.Heads)
		k = b.qkNorm(prefix+"k_norm.weight", "k normed", k, c.KVHeads)
	}
	keys, rotated := b.cache(k.Width), b.temp("q rotated", q.Width)
	rope := Rope{XWidth: c.HeadDim, YWidth: c.HeadDim, N: c.Rope, Interleave: c.RopeInterleave, Rest: true, Angles: c.Angles}
	rope.X, rope.Y, rope.Heads = q.All(), rotated.All(), c.Heads
	b.do(StageProject, rope)
	rope.X, rope.Y, rope.Heads = k.All(), keys.All().At(BasePos), c.KVHeads
	b.do(StageProject, rope)
	y := b.temp("attention", q.Width)
	op := Attention{Q: rotated.All(), Y: y.All(), K: keys, V: values, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		Scale: float32(c.ScoreGain / math.Sqrt(float64(c.HeadDim)))}
	if c.Windows != nil {
		op.Window = c.Windows[b.layer]
	}
	if c.Sinks {
		op.Sinks = b.weight(prefix + "sinks")
	}
	b.do(StageAttend, op)
	return y
}

func (b *Builder) qkNorm(name, temp string, x Vec, heads int) Vec {
	y := b.temp(temp, x.Width)
	op := RMSNorm{X: x.All(), Y: y.All(), W: b.weight(name), Eps: b.cfg.RMSNormEps, Centred: b.cfg.CentredNorms}
	if b.cfg.QKNorm == NormHeads {
		op.Heads = heads
	}
	b.do(StageProject, op)
	return y
}
