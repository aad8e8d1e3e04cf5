package runtime

import "hawkmoth/runtime/kernel"

// gptOSS is gpt-oss: sinks beside the scores, a sliding window in every other
// layer, biases everywhere, and clamped gates (arXiv:2508.10925).
var gptOSS = Arch{
	Name:       "GptOss",
	ModelTypes: []string{"gpt_oss"},
	Config:     gptOSSConfig,
	Tensors:    gqaTensors,
	Layer:      gqaLayer,
}

var gptOSSMoE = moeNames{block: "mlp.", router: "router", biased: true, fusedT: true, gate: "gate_proj", up: "up_proj", down: "down_proj"}

func gptOSSConfig(o *object, c *Config) {
	o.decoder(c)
	o.gqa(c, o.rotation(c, "default", "yarn"))
	c.QKVBias = o.flag(true, "attention_bias")
	c.OutBias = c.QKVBias
	c.Sinks = true
	o.ignore("initial_context_length") // restates original_max_position_embeddings
	kinds := o.list(c.Layers, []string{"layer_types"}, "sliding_attention", "full_attention")
	for i := range min(c.Layers, maxLayers) {
		if len(kinds) == i { // no list, or one that is refused
			kinds = append(kinds, []string{"sliding_attention", "full_attention"}[i%2])
		}
	}
	o.window(c, kinds)
	o.experts(c, &gptOSSMoE, "intermediate_size")
	c.SoftmaxRouter = true
	c.Gating = kernel.Gating{Limit: float32(o.number(7, "swiglu_limit")), Alpha: 1.702}
	o.consistent(c)
}
