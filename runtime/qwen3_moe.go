package runtime

// qwen3MoE is Qwen3 with experts in the layers that decoder_sparse_step and
// mlp_only_layers leave to them (arXiv:2505.09388).
var qwen3MoE = Arch{
	Name:       "Qwen3Moe",
	ModelTypes: []string{"qwen3_moe"},
	Config:     qwen3MoEConfig,
	Tensors:    gqaTensors,
	Layer:      gqaLayer,
}

var qwenMoE = moeNames{block: "mlp.", router: "gate", gate: "gate_proj", up: "up_proj", down: "down_proj",
	shared: "shared_expert.", sharedGate: "shared_expert_gate.weight"}

func qwen3MoEConfig(o *object, c *Config) {
	o.decoder(c)
	o.gqa(c, o.rotation(c, "default", "yarn"))
	c.QKNorm = NormHeads
	c.QKVBias = o.flag(false, "attention_bias")
	c.OutBias = c.QKVBias
	o.noWindow(c)
	o.only("qkv_bias", false)
	o.only("use_qk_norm", true)
	o.only("shared_expert_intermediate_size", 0.0)
	o.experts(c, &qwenMoE, "moe_intermediate_size")
	o.sparseSteps(c)
	c.SoftmaxRouter = true
	c.NormTopK = o.flag(false, "norm_topk_prob")
	o.consistent(c)
}
