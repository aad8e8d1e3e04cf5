package runtime

import (
	"fmt"
	"slices"

	"hawkmoth/format"
)

// minimaxM2 is MiniMax-M2: queries and keys are normed as whole vectors, a
// part of each head is rotated, and a corrected sigmoid chooses the experts.
var minimaxM2 = Arch{
	Name:       "MiniMaxM2",
	ModelTypes: []string{"minimax_m2"},
	Config:     minimaxM2Config,
	Tensors:    gqaTensors,
	Layer:      gqaLayer,
}

var minimaxMoE = moeNames{block: "block_sparse_moe.", router: "gate", correction: "e_score_correction_bias", gate: "w1", up: "w3", down: "w2"}

func minimaxM2Config(o *object, c *Config) {
	o.decoder(c)
	s := o.rotation(c, "default", "yarn")
	o.gqa(c, s)
	// rotary_dim is of the time before rope_parameters, beside which the reference
	// does not look at it.
	if dim := o.count(c.Rope, "rotary_dim"); !s.modern {
		c.Rope = dim
	}
	c.QKNorm = NormWhole
	o.only("use_qk_norm", true)
	var kinds []int // 1 is softmax attention
	if o.get(&kinds, "attn_type_list"); slices.ContainsFunc(kinds, func(k int) bool { return k != 1 }) {
		o.fail(format.ErrUnsupported, "attn_type_list changes the maths and is not implemented", fmt.Sprint(kinds), "1 for every layer")
	}
	o.only("qk_norm_type", "per_layer")
	o.experts(c, &minimaxMoE, "intermediate_size")
	o.only("scoring_func", "sigmoid")
	o.only("use_routing_bias", true)
	o.only("shared_intermediate_size", 0.0)
	o.ignore("use_mtp", "mtp_transformer_layers", "num_mtp_modules") // the published weights have none of them
	o.consistent(c)
}
