package runtime

// qwen3 is the dense Qwen3: every head of queries and keys is normed
// (arXiv:2505.09388).
var qwen3 = Arch{
	Name:       "Qwen3",
	ModelTypes: []string{"qwen3"},
	Config:     qwen3Config,
	Tensors:    gqaTensors,
	Layer:      gqaLayer,
}

func qwen3Config(o *object, c *Config) {
	o.decoder(c)
	o.gqa(c, o.rotation(c, "default", "yarn"))
	c.QKNorm = NormHeads
	c.QKVBias = o.flag(false, "attention_bias")
	c.OutBias = c.QKVBias
	o.noWindow(c)
	o.consistent(c)
}
