package runtime

// glm4MoE is GLM-4.5 to 4.7: grouped-query attention, half of each head
// rotated, over DeepSeek-V3's mixture of experts (arXiv:2508.06471).
var glm4MoE = Arch{
	Name:       "Glm4Moe",
	ModelTypes: []string{"glm4_moe"},
	Config:     glm4MoEConfig,
	Tensors:    gqaTensors,
	Layer:      gqaLayer,
}

func glm4MoEConfig(o *object, c *Config) {
	o.decoder(c)
	o.gqa(c, o.rotation(c, "default", "yarn"))
	c.QKVBias = o.flag(false, "attention_bias")
	if o.flag(false, "use_qk_norm") {
		c.QKNorm = NormHeads
	}
	o.noAuxTC(c, 1)
	o.mtp(c)
	o.consistent(c)
}
