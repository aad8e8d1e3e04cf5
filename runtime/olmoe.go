package runtime

// olmoe is OLMoE: queries and keys are normed as whole vectors, the experts'
// weights stay as the softmax gives them (arXiv:2409.02060).
var olmoe = Arch{
	Name:       "Olmoe",
	ModelTypes: []string{"olmoe"},
	Config:     olmoeConfig,
	Tensors:    gqaTensors,
	Layer:      gqaLayer,
}

func olmoeConfig(o *object, c *Config) {
	o.decoder(c)
	o.gqa(c, o.rotation(c, "default", "yarn"))
	c.QKNorm = NormWhole
	c.QKVBias = o.flag(false, "attention_bias")
	c.OutBias = c.QKVBias
	o.only("clip_qkv")
	o.experts(c, &qwenMoE, "intermediate_size")
	c.SoftmaxRouter = true
	c.NormTopK = o.flag(false, "norm_topk_prob")
	o.consistent(c)
}
