package runtime

import (
	"fmt"
	"math"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime/kernel"
)

// indexerEps is the epsilon of the indexer's LayerNorm, fixed by the model's
// reference code and absent from its config.
const indexerEps = 1e-6

// mla reads the sizes of multi-head latent attention; the scores of a stretched
// context are multiplied by the square of YaRN's mscale.
func (o *object) mla(c *Config, s scaling) {
	if kv := o.count(c.Heads, "num_key_value_heads"); kv != c.Heads {
		o.fail(format.ErrUnsupported, "num_key_value_heads", fmt.Sprint(kv), fmt.Sprintf("num_attention_heads, %d (MLA)", c.Heads))
	}
	if s.partial != 1 {
		o.fail(format.ErrUnsupported, "partial_rotary_factor", fmt.Sprint(s.partial), "1: qk_rope_head_dim says what is rotated")
	}
	c.RopeInterleave = o.flag(true, "rope_interleave")
	c.QLoRA = o.size("q_lora_rank")
	c.KVLoRA = o.size("kv_lora_rank")
	c.Nope = o.size("qk_nope_head_dim")
	c.Rope = o.size("qk_rope_head_dim")
	c.ValueHd = o.size("v_head_dim")
	if qk := o.count(c.Nope+c.Rope, "qk_head_dim"); qk != c.Nope+c.Rope {
		o.fail(format.ErrCorrupt, "qk_head_dim", fmt.Sprint(qk), fmt.Sprintf("qk_nope_head_dim + qk_rope_head_dim = %d", c.Nope+c.Rope))
	}
	c.ScoreGain = 1
	if s.mscaleAll > 0 {
		m := kernel.MScale(s.factor, s.mscaleAll)
		c.ScoreGain = m * m
	}
	o.only("attention_bias", false)
	o.only("mlp_bias", false)
}

// indexer reads the sizes of DeepSeek sparse attention, which every layer has.
func (o *object) indexer(c *Config, interleave bool) {
	o.list(c.Layers, []string{"layer_types"}, "deepseek_sparse_attention")
	c.IndexHeads = o.size("index_n_heads")
	c.IndexDim = o.size("index_head_dim")
	c.IndexTopK = o.size("index_topk")
	c.IndexRopeInterleave = o.flag(interleave, "indexer_rope_interleave")
}

// indexerOf says whether a layer has an indexer of its own; MTP blocks have.
func (c *Config) indexerOf(layer int) bool {
	return c.IndexTopK > 0 && (layer >= len(c.SharedIndexer) || !c.SharedIndexer[layer])
}

func (t *wants) mla(c *Config, layer int) {
	a := t.prefix + "self_attn."
	t.add(quantize.Attn, a+"q_a_proj.weight", c.QLoRA, c.Hidden)
	t.add(quantize.Norm, a+"q_a_layernorm.weight", c.QLoRA)
	t.add(quantize.Attn, a+"q_b_proj.weight", c.Heads*(c.Nope+c.Rope), c.QLoRA)
	t.add(quantize.Attn, a+"kv_a_proj_with_mqa.weight", c.KVLoRA+c.Rope, c.Hidden)
	t.add(quantize.Norm, a+"kv_a_layernorm.weight", c.KVLoRA)
	t.add(quantize.KVB, a+"kv_b_proj.weight", c.Heads*(c.Nope+c.ValueHd), c.KVLoRA)
	t.add(quantize.Out, a+"o_proj.weight", c.Hidden, c.Heads*c.ValueHd)
	if !c.indexerOf(layer) {
		return
	}
	x := a + "indexer."
	t.optional(quantize.Indexer, x+"wq_b.weight", c.IndexHeads*c.IndexDim, c.QLoRA)
	t.optional(quantize.Indexer, x+"wk.weight", c.IndexDim, c.Hidden)
	t.optional(quantize.Norm, x+"k_norm.weight", c.IndexDim)
	t.optional(quantize.Norm, x+"k_norm.bias", c.IndexDim)
	t.optional(quantize.Indexer, x+"weights_proj.weight", c.IndexHeads, c.Hidden)
}

// mla is multi-head latent attention with the weights absorbed, for any number
// of tokens, over a cache of latents; with the indexer it attends to a
// selection (docs/arithmetic.md §4).
func (b *Builder) mla(prefix string, h Vec, layer int) Vec {
	c := b.cfg
	indexed := b.indexed()
	full := c.indexerOf(layer)

	// One rounding of h serves all four projections.
	outs := []out{{weight: prefix + "q_a_proj.weight", temp: "q_a"}, {weight: prefix + "kv_a_proj_with_mqa.weight", temp: "kv_a"}}
	if indexed && full {
		outs = append(outs, out{weight: prefix + "indexer.wk.weight", temp: "index_k"}, out{weight: prefix + "indexer.weights_proj.weight", temp: "index_w"})
	}
	a := b.linear(StageProject, h.All(), outs...)
	qa := b.temp("q_a normed", c.QLoRA)
	b.rmsnorm(StageProject, prefix+"q_a_layernorm.weight", a[0].All(), qa.All())

	outs = []out{{weight: prefix + "q_b_proj.weight", temp: "q"}}
	if indexed && full {
		outs = append(outs, out{weight: prefix + "indexer.wq_b.weight", temp: "index_q"})
	}
	q := b.linear(StageProject, qa.All(), outs...)

	width := c.Nope + c.Rope
	qr := b.temp("q_rope", c.Heads*c.Rope)
	b.do(StageProject, Rope{X: q[0].All(), Y: qr.All(), Heads: c.Heads, XWidth: width, XAt: c.Nope, YWidth: c.Rope, N: c.Rope,
		Interleave: c.RopeInterleave, Angles: c.Angles})

	cache := b.cache(c.KVLoRA + c.Rope)
	b.rmsnorm(StageProject, prefix+"kv_a_layernorm.weight", a[1].Cols(0, c.KVLoRA), cache.Cols(0, c.KVLoRA).At(BasePos))
	b.do(StageProject, Rope{X: a[1].Cols(c.KVLoRA, c.Rope), Y: cache.Cols(c.KVLoRA, c.Rope).At(BasePos), Heads: 1, XWidth: c.Rope, YWidth: c.Rope, N: c.Rope,
		Interleave: c.RopeInterleave, Angles: c.Angles})

	if indexed && full {
		b.indexer(prefix+"indexer.", q[1], a[2], a[3])
	}
	y := b.temp("attention", c.Heads*c.ValueHd)
	op := MLA{Q: q[0].All(), QRope: qr.All(), Y: y.All(), Cache: cache, KVB: b.weight(prefix + "kv_b_proj.weight"),
		Heads: c.Heads, QWidth: width, Nope: c.Nope, Rope: c.Rope, Value: c.ValueHd, KVLoRA: c.KVLoRA,
		Scale: float32(c.ScoreGain / math.Sqrt(float64(width)))}
	if indexed {
		op.Select = b.selects
	}
	b.do(StageAttend, op)
	return b.linear(StageOutput, y.All(), out{weight: prefix + "o_proj.weight", temp: "o"})[0]
}

// indexed says whether selection can matter: never where every position that
// the session can hold is selected anyway.
func (b *Builder) indexed() bool { return b.hasIndexer && b.ctx > b.cfg.IndexTopK }

// indexer is the lightning indexer of a full layer: LayerNorm and rotation of
// the key into its cache, rotation of the queries, then the selection.
func (b *Builder) indexer(prefix string, q, k, w Vec) {
	c := b.cfg
	normed := b.temp("index_k normed", c.IndexDim)
	b.do(StageIndexer, LayerNorm{X: k.All(), Y: normed.All(), W: b.weight(prefix + "k_norm.weight"), B: b.weight(prefix + "k_norm.bias"), Eps: indexerEps})
	keys := b.keyCache(c.IndexDim)
	rope := Rope{X: normed.All(), Y: keys.All().At(BasePos), Heads: 1, XWidth: c.IndexDim, YWidth: c.IndexDim, N: c.Rope,
		Interleave: c.IndexRopeInterleave, Rest: true, Angles: c.Angles}
	b.do(StageIndexer, rope)
	qr := b.temp("index_q rotated", q.Width)
	rope.X, rope.Y, rope.Heads = q.All(), qr.All(), c.IndexHeads
	b.do(StageIndexer, rope)
	sel := b.tempOf("selection", c.IndexTopK, Int)
	b.selects = &sel
	b.do(StageIndexer, Index{Q: qr.All(), HeadWeight: w.All(), Keys: keys, Heads: c.IndexHeads, Dim: c.IndexDim,
		Scale: float32(1 / math.Sqrt(float64(c.IndexDim))), HeadScale: float32(1 / math.Sqrt(float64(c.IndexHeads))), Select: sel})
}
