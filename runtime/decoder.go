package runtime

import (
	"fmt"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime/kernel"
)

// What all decoders of this package share, in the order of an architecture's
// file: configuration, tensors, layer.

func (o *object) decoder(c *Config) {
	c.VocabSize = o.size("vocab_size")
	c.Hidden = o.size("hidden_size")
	c.Layers = o.size("num_hidden_layers")
	c.Heads = o.size("num_attention_heads")
	c.Intermediate = o.size("intermediate_size")
	c.RMSNormEps = float32(o.number(1e-5, "rms_norm_eps"))
	c.MaxPositions = o.size("max_position_embeddings")
	c.Tied = o.flag(false, "tie_word_embeddings")
	c.EOS = o.ids("eos_token_id")
	o.only("hidden_act", "silu")
	o.quantization()
}

// scaling is the part of a config's rotation that not only angles depend on.
type scaling struct {
	partial, factor, mscaleAll float64
	modern                     bool // said in rope_parameters
	given                      bool // there is a partial factor
}

// rotation reads rope_theta, rope_scaling and rope_parameters, in which newer
// configs hold the two. Only the given types are implemented.
func (o *object) rotation(c *Config, types ...any) scaling {
	p, legacy := o.sub("rope_parameters"), o.sub("rope_scaling")
	modern := len(p.raw) > 0
	switch {
	case !modern:
		p = legacy
	case len(legacy.raw) > 0:
		o.fail(format.ErrUnsupported, "rope_scaling beside rope_parameters", clip(o.raw["rope_scaling"]), "one of them")
	}
	a := &c.Angles
	a.Theta = p.number(o.number(10000, "rope_theta"), "rope_theta")
	if !(a.Theta > 1) {
		o.fail(format.ErrCorrupt, "rope_theta", fmt.Sprint(a.Theta), "a number above 1")
		a.Theta = 10000
	}
	s := scaling{factor: 1, modern: modern}
	s.partial = p.number(o.number(0, "partial_rotary_factor"), "partial_rotary_factor")
	if s.given = s.partial > 0; !s.given {
		s.partial = 1
	}
	p.only("rope_type", types...)
	p.only("type", types...)
	switch kind := p.text("rope_type", "type"); kind {
	case "yarn", "llama3":
		s.factor = p.number(1, "factor")
		a.Factor, a.Original = s.factor, p.number(float64(c.MaxPositions), "original_max_position_embeddings")
		if kind == "llama3" {
			a.Scaling, a.Low, a.High = kernel.Llama3, p.number(1, "low_freq_factor"), p.number(4, "high_freq_factor")
			break
		}
		a.Scaling, a.Low, a.High, a.Truncate = kernel.YaRN, p.number(1, "beta_slow"), p.number(32, "beta_fast"), p.flag(true, "truncate")
		m := p.number(0, "mscale")
		s.mscaleAll = p.number(0, "mscale_all_dim")
		gain := kernel.MScale(s.factor, 1)
		if m > 0 && s.mscaleAll > 0 {
			gain = kernel.MScale(s.factor, m) / kernel.MScale(s.factor, s.mscaleAll)
		}
		a.Gain = p.number(gain, "attention_factor")
	}
	o.close(p)
	return s
}

// rotated is how many of n elements the partial factor leaves.
func (s scaling) rotated(n int) int { return int(float64(n) * s.partial) }

// mtp reads how many multi-token-prediction blocks there are.
func (o *object) mtp(c *Config) { c.MTPLayers = o.count(0, "num_nextn_predict_layers") }

// Bounds that keep a hostile config from costing memory; GLM-5.2 has 79 layers
// and 20,224 experts.
const (
	maxLayers  = 4096
	maxMTP     = 16
	maxExperts = 1 << 18
)

// consistent refuses sizes that contradict each other or that no memory holds.
func (o *object) consistent(c *Config) {
	type problem struct {
		is                  bool
		what, found, wanted string
	}
	width := func(what string, n int) problem {
		return problem{n > format.MaxDim, what, fmt.Sprint(n), fmt.Sprintf("at most %d", format.MaxDim)}
	}
	rotated := "rotated elements of a head"
	if c.KVLoRA > 0 {
		rotated = "qk_rope_head_dim"
	}
	list := []problem{
		{c.Rope%2 != 0 || c.Rope < 1, rotated, fmt.Sprint(c.Rope), "an even number"},
		{c.Layers > maxLayers, "num_hidden_layers", fmt.Sprint(c.Layers), fmt.Sprintf("at most %d", maxLayers)},
		{c.MTPLayers > maxMTP, "num_nextn_predict_layers", fmt.Sprint(c.MTPLayers), fmt.Sprintf("at most %d", maxMTP)},
	}
	if c.Experts > 0 {
		list = append(list, problem{c.ExpertsPerToken > c.Experts, "num_experts_per_tok", fmt.Sprint(c.ExpertsPerToken), fmt.Sprintf("at most the experts, %d", c.Experts)},
			problem{c.Experts%c.Groups != 0, "n_group", fmt.Sprint(c.Groups), fmt.Sprintf("a divisor of the experts, %d", c.Experts)},
			problem{c.TopGroups > c.Groups, "topk_group", fmt.Sprint(c.TopGroups), fmt.Sprintf("at most n_group, %d", c.Groups)},
			problem{c.TopGroups*(c.Experts/c.Groups) < c.ExpertsPerToken, "topk_group", fmt.Sprint(c.TopGroups), fmt.Sprintf("groups that hold %d experts", c.ExpertsPerToken)},
			problem{(c.Layers+c.MTPLayers)*c.Experts > maxExperts, "num_hidden_layers · n_routed_experts", fmt.Sprint((c.Layers + c.MTPLayers) * c.Experts), fmt.Sprintf("at most %d", maxExperts)},
			width("n_shared_experts · moe_intermediate_size", c.SharedWidth))
	}
	if c.KVLoRA > 0 {
		list = append(list, width("num_attention_heads · head sizes", c.Heads*(c.Nope+max(c.Rope, c.ValueHd))))
	}
	if c.KVHeads > 0 {
		list = append(list, problem{c.Heads%c.KVHeads != 0, "num_key_value_heads", fmt.Sprint(c.KVHeads), fmt.Sprintf("a divisor of num_attention_heads, %d", c.Heads)},
			problem{c.Rope > c.HeadDim, rotated, fmt.Sprint(c.Rope), fmt.Sprintf("at most head_dim, %d", c.HeadDim)},
			width("2 · num_attention_heads · head_dim", 2*c.Heads*c.HeadDim))
	}
	if c.IndexTopK > 0 {
		list = append(list, problem{c.Rope > c.IndexDim, "index_head_dim", fmt.Sprint(c.IndexDim), fmt.Sprintf("at least qk_rope_head_dim, %d", c.Rope)},
			width("index_n_heads · index_head_dim", c.IndexHeads*c.IndexDim),
			problem{len(c.SharedIndexer) > 0 && c.SharedIndexer[0], "indexer_types[0]", "shared", "full: the first layer has no selection to share"})
	}
	for _, bad := range list {
		if bad.is {
			o.fail(format.ErrCorrupt, bad.what, bad.found, bad.wanted)
		}
	}
}

// decoder lists a model's tensors around those that layer lists of each of its
// layers, multi-token-prediction blocks included.
func (t *wants) decoder(c *Config, layer func(l int)) {
	t.add(quantize.Embed, "model.embed_tokens.weight", c.VocabSize, c.Hidden)
	for l := range c.Layers {
		t.at(l, false)
		t.block(c, l, layer)
	}
	t.outside()
	t.add(quantize.Norm, "model.norm.weight", c.Hidden)
	t.head("lm_head.weight", c)
	for l := c.Layers; l < c.Layers+c.MTPLayers; l++ {
		t.at(l, true)
		t.block(c, l, layer)
		t.add(quantize.MTP, t.prefix+"eh_proj.weight", c.Hidden, 2*c.Hidden)
		t.add(quantize.Norm, t.prefix+"enorm.weight", c.Hidden)
		t.add(quantize.Norm, t.prefix+"hnorm.weight", c.Hidden)
		t.add(quantize.Norm, t.prefix+"shared_head.norm.weight", c.Hidden)
		t.optional(quantize.Embed, t.prefix+"embed_tokens.weight", c.VocabSize, c.Hidden)
		t.optional(quantize.Head, t.prefix+"shared_head.head.weight", c.VocabSize, c.Hidden)
	}
}

// block is a layer's norms, the attention that layer lists, and the MLP.
func (t *wants) block(c *Config, l int, layer func(l int)) {
	t.add(quantize.Norm, t.prefix+"input_layernorm.weight", c.Hidden)
	layer(l)
	t.add(quantize.Norm, t.prefix+"post_attention_layernorm.weight", c.Hidden)
	if c.Sparse(l) {
		t.moe(c)
	} else {
		t.mlp(quantize.Dense, t.prefix+"mlp.", c.Intermediate, c.Hidden)
	}
}

// Sparse says whether a layer has experts; multi-token-prediction blocks have
// them if any layer does.
func (c *Config) Sparse(l int) bool {
	if l < len(c.SparseMLP) {
		return c.SparseMLP[l]
	}
	return c.Experts > 0
}

// block is a pre-norm decoder layer around an attention.
func (b *Builder) block(layer int, attention func(prefix string, h Vec) Vec) {
	p := layerPrefix(layer)
	h := b.norm(p+"input_layernorm.weight", "h", b.x.All())
	b.add(attention(p, h), b.x)
	h = b.norm(p+"post_attention_layernorm.weight", "h", b.x.All())
	if b.cfg.Sparse(layer) {
		b.add(b.moe(p, h), b.x)
	} else {
		b.add(b.mlp(StageDense, p+"mlp.", h), b.x)
	}
}
