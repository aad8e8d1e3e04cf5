package runtime

// deepSeekV3 is DeepSeek-V3 and R1, and Kimi-K2 in larger numbers: MLA
// attention over a mixture of experts (arXiv:2412.19437).
var deepSeekV3 = Arch{
	Name:       "DeepseekV3",
	ModelTypes: []string{"deepseek_v3", "kimi_k2"},
	Config:     deepSeekV3Config,
	Tensors:    mlaTensors,
	Layer:      mlaLayer,
}

func deepSeekV3Config(o *object, c *Config) {
	o.decoder(c)
	o.mla(c, o.rotation(c, "default", "yarn"))
	o.noAuxTC(c, 0)
	o.mtp(c)
	o.consistent(c)
}
