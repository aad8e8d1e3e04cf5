package runtime

import (
	"fmt"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// glmMoeDSA is GLM-5: MLA attention with the DeepSeek sparse attention indexer
// over a mixture of experts (transformers' glm_moe_dsa; arXiv:2512.02556 for
// the indexer, arXiv:2603.12201 for layers that share a selection).
var glmMoeDSA = Arch{
	Name:       "GlmMoeDsa",
	ModelTypes: []string{"glm_moe_dsa"},
	Config:     glmConfig,
	Tensors:    glmTensors,
	Layer:      glmLayer,
}

func glmConfig(o *object, c *Config) {
	c.VocabSize = o.size("vocab_size")
	c.Hidden = o.size("hidden_size")
	c.Layers = o.size("num_hidden_layers")
	c.Heads = o.size("num_attention_heads")
	if kv := o.count(c.Heads, "num_key_value_heads"); kv != c.Heads {
		o.fail(format.ErrUnsupported, "num_key_value_heads", fmt.Sprint(kv), fmt.Sprintf("num_attention_heads, %d (MLA)", c.Heads))
	}
	c.Intermediate = o.size("intermediate_size")
	c.RMSNormEps = float32(o.number(1e-5, "rms_norm_eps"))
	c.MaxPositions = o.size("max_position_embeddings")
	c.Tied = o.flag(false, "tie_word_embeddings")
	c.EOS = o.ids("eos_token_id")
	c.MTPLayers = o.count(0, "num_nextn_predict_layers")

	rope := o.sub("rope_parameters")
	c.RopeTheta = rope.number(o.number(10000, "rope_theta"), "rope_theta")
	rope.only("rope_type", "default")
	o.close(rope)
	o.only("rope_scaling")
	c.RopeInterleave = o.flag(true, "rope_interleave")

	c.Experts = o.size("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
	c.ExpertsPerToken = o.size("num_experts_per_tok")
	c.SharedExperts = o.count(0, "n_shared_experts")
	c.MoEIntermediate = o.size("moe_intermediate_size")
	c.Groups = max(o.count(1, "n_group"), 1)
	c.TopGroups = max(o.count(1, "topk_group"), 1)
	c.NormTopK = o.flag(true, "norm_topk_prob")
	c.RoutedScale = float32(o.number(1, "routed_scaling_factor"))

	c.QLoRA = o.size("q_lora_rank")
	c.KVLoRA = o.size("kv_lora_rank")
	c.Nope = o.size("qk_nope_head_dim")
	c.Rope = o.size("qk_rope_head_dim")
	c.ValueHd = o.size("v_head_dim")
	if qk := o.count(c.Nope+c.Rope, "qk_head_dim"); qk != c.Nope+c.Rope {
		o.fail(format.ErrCorrupt, "qk_head_dim", fmt.Sprint(qk), fmt.Sprintf("qk_nope_head_dim + qk_rope_head_dim = %d", c.Nope+c.Rope))
	}
	glmPerLayer(o, c)

	o.only("hidden_act", "silu")
	o.only("attention_bias", false)
	o.only("mlp_bias", false)
	o.only("scoring_func", "sigmoid")
	o.only("topk_method", "noaux_tc")
	o.only("moe_layer_freq", 1.0)
	o.quantization()

	glmConsistent(o, c)
}

// glmConsistent refuses sizes that contradict each other or that no memory holds.
func glmConsistent(o *object, c *Config) {
	for _, bad := range []struct {
		is                  bool
		what, found, wanted string
	}{
		{c.Rope%2 != 0, "qk_rope_head_dim", fmt.Sprint(c.Rope), "an even number"},
		{c.Rope > c.IndexDim, "index_head_dim", fmt.Sprint(c.IndexDim), fmt.Sprintf("at least qk_rope_head_dim, %d", c.Rope)},
		{c.ExpertsPerToken > c.Experts, "num_experts_per_tok", fmt.Sprint(c.ExpertsPerToken), fmt.Sprintf("at most n_routed_experts, %d", c.Experts)},
		{c.Experts%c.Groups != 0, "n_group", fmt.Sprint(c.Groups), fmt.Sprintf("a divisor of n_routed_experts, %d", c.Experts)},
		{c.TopGroups > c.Groups, "topk_group", fmt.Sprint(c.TopGroups), fmt.Sprintf("at most n_group, %d", c.Groups)},
		{c.TopGroups*(c.Experts/c.Groups) < c.ExpertsPerToken, "topk_group", fmt.Sprint(c.TopGroups), fmt.Sprintf("groups that hold %d experts", c.ExpertsPerToken)},
		{c.Layers > maxLayers, "num_hidden_layers", fmt.Sprint(c.Layers), fmt.Sprintf("at most %d", maxLayers)},
		{c.MTPLayers > maxMTP, "num_nextn_predict_layers", fmt.Sprint(c.MTPLayers), fmt.Sprintf("at most %d", maxMTP)},
		{(c.Layers+c.MTPLayers)*c.Experts > maxExperts, "num_hidden_layers · n_routed_experts", fmt.Sprint((c.Layers + c.MTPLayers) * c.Experts), fmt.Sprintf("at most %d", maxExperts)},
		{c.Heads*(c.Nope+max(c.Rope, c.ValueHd)) > format.MaxDim, "num_attention_heads · head sizes", fmt.Sprint(c.Heads * (c.Nope + max(c.Rope, c.ValueHd))), fmt.Sprintf("at most %d", format.MaxDim)},
		{c.SharedExperts*c.MoEIntermediate > format.MaxDim, "n_shared_experts · moe_intermediate_size", fmt.Sprint(c.SharedExperts * c.MoEIntermediate), fmt.Sprintf("at most %d", format.MaxDim)},
		{c.IndexHeads*c.IndexDim > format.MaxDim, "index_n_heads · index_head_dim", fmt.Sprint(c.IndexHeads * c.IndexDim), fmt.Sprintf("at most %d", format.MaxDim)},
		{len(c.SharedIndexer) > 0 && c.SharedIndexer[0], "indexer_types[0]", "shared", "full: the first layer has no selection to share"},
	} {
		if bad.is {
			o.fail(format.ErrCorrupt, bad.what, bad.found, bad.wanted)
		}
	}
}

// glmPerLayer reads which layers have experts and which have an indexer of
// their own. The explicit lists win over the counts they were made from.
func glmPerLayer(o *object, c *Config) {
	dense := o.count(0, "first_k_dense_replace")
	kinds := o.list(c.Layers, []string{"mlp_layer_types"}, "dense", "sparse")
	c.SparseMLP = make([]bool, min(c.Layers, maxLayers))
	for i := range c.SparseMLP {
		c.SparseMLP[i] = i >= dense
		if kinds != nil {
			c.SparseMLP[i] = kinds[i] == "sparse"
		}
	}
	o.list(c.Layers, []string{"layer_types"}, "deepseek_sparse_attention")

	c.IndexHeads = o.size("index_n_heads")
	c.IndexDim = o.size("index_head_dim")
	c.IndexTopK = o.size("index_topk")
	c.IndexRopeInterleave = o.flag(true, "indexer_rope_interleave")
	o.only("index_share_for_mtp_iteration", true, false) // concerns the MTP block only
	freq := max(o.count(1, "index_topk_freq"), 1)
	offset := o.count(2, "index_skip_topk_offset")
	pattern := o.text("index_topk_pattern") // "FSSF…"
	types := o.list(c.Layers, []string{"indexer_types"}, "full", "shared")
	if pattern != "" && len(pattern) != c.Layers {
		o.fail(format.ErrCorrupt, "index_topk_pattern: letters", fmt.Sprint(len(pattern)), fmt.Sprint(c.Layers))
		pattern = ""
	}
	c.SharedIndexer = make([]bool, min(c.Layers, maxLayers))
	for i := range c.SharedIndexer {
		switch {
		case types != nil:
			c.SharedIndexer[i] = types[i] == "shared"
		case pattern != "":
			c.SharedIndexer[i] = pattern[i] == 'S'
		default:
			c.SharedIndexer[i] = max(i-offset+1, 0)%freq != 0
		}
	}
}

// Bounds that keep a hostile config from costing memory; GLM-5.2 has 79 layers
// and 20,224 experts.
const (
	maxLayers  = 4096
	maxMTP     = 16
	maxExperts = 1 << 18
)

func glmTensors(c *Config) []quantize.Want {
	t := wants{}
	t.add(quantize.Embed, "model.embed_tokens.weight", c.VocabSize, c.Hidden)
	for l := range c.Layers {
		t.at(l, false)
		glmLayerTensors(&t, c, c.SparseMLP[l], !c.SharedIndexer[l])
	}
	t.outside()
	t.add(quantize.Norm, "model.norm.weight", c.Hidden)
	t.head("lm_head.weight", c)
	for l := c.Layers; l < c.Layers+c.MTPLayers; l++ {
		t.at(l, true)
		glmLayerTensors(&t, c, true, true)
		t.add(quantize.MTP, t.prefix+"eh_proj.weight", c.Hidden, 2*c.Hidden)
		t.add(quantize.Norm, t.prefix+"enorm.weight", c.Hidden)
		t.add(quantize.Norm, t.prefix+"hnorm.weight", c.Hidden)
		t.add(quantize.Norm, t.prefix+"shared_head.norm.weight", c.Hidden)
		t.optional(quantize.Embed, t.prefix+"embed_tokens.weight", c.VocabSize, c.Hidden)
		t.optional(quantize.Head, t.prefix+"shared_head.head.weight", c.VocabSize, c.Hidden)
	}
	return t.list
}

func glmLayerTensors(t *wants, c *Config, sparse, indexer bool) {
	p := t.prefix
	t.add(quantize.Norm, p+"input_layernorm.weight", c.Hidden)
	a := p + "self_attn."
	t.add(quantize.Attn, a+"q_a_proj.weight", c.QLoRA, c.Hidden)
	t.add(quantize.Norm, a+"q_a_layernorm.weight", c.QLoRA)
	t.add(quantize.Attn, a+"q_b_proj.weight", c.Heads*(c.Nope+c.Rope), c.QLoRA)
	t.add(quantize.Attn, a+"kv_a_proj_with_mqa.weight", c.KVLoRA+c.Rope, c.Hidden)
	t.add(quantize.Norm, a+"kv_a_layernorm.weight", c.KVLoRA)
	t.add(quantize.KVB, a+"kv_b_proj.weight", c.Heads*(c.Nope+c.ValueHd), c.KVLoRA)
	t.add(quantize.Out, a+"o_proj.weight", c.Hidden, c.Heads*c.ValueHd)
	if indexer {
		x := a + "indexer."
		t.optional(quantize.Indexer, x+"wq_b.weight", c.IndexHeads*c.IndexDim, c.QLoRA)
		t.optional(quantize.Indexer, x+"wk.weight", c.IndexDim, c.Hidden)
		t.optional(quantize.Norm, x+"k_norm.weight", c.IndexDim)
		t.optional(quantize.Norm, x+"k_norm.bias", c.IndexDim)
		t.optional(quantize.Indexer, x+"weights_proj.weight", c.IndexHeads, c.Hidden)
	}
	t.add(quantize.Norm, p+"post_attention_layernorm.weight", c.Hidden)
	m := p + "mlp."
	if !sparse {
		t.mlp(quantize.Dense, m, c.Intermediate, c.Hidden)
		return
	}
	t.add(quantize.Router, m+"gate.weight", c.Experts, c.Hidden)
	t.add(quantize.RouterBias, m+"gate.e_score_correction_bias", c.Experts)
	t.experts(m+"experts.", c.Experts, c.MoEIntermediate, c.Hidden)
	if c.SharedExperts > 0 {
		t.mlp(quantize.Shared, m+"shared_experts.", c.SharedExperts*c.MoEIntermediate, c.Hidden)
	}
}

func glmLayer(b *Builder, layer int) {
	p := layerPrefix(layer)
	h := b.norm(p+"input_layernorm.weight", "h", b.x.All())
	b.add(b.mla(p+"self_attn.", h, layer), b.x)
	h = b.norm(p+"post_attention_layernorm.weight", "h", b.x.All())
	if b.cfg.SparseMLP[layer] {
		b.add(b.moe(p+"mlp.", h), b.x)
	} else {
		b.add(b.mlp(StageDense, p+"mlp.", h), b.x)
	}
}
