package runtime

// deepSeekV32 is DeepSeek-V3 with sparse attention (arXiv:2512.02556); its
// indexers rotate halves, not pairs.
var deepSeekV32 = Arch{
	Name:       "DeepseekV32",
	ModelTypes: []string{"deepseek_v32"},
	Config:     deepSeekV32Config,
	Tensors:    mlaTensors,
	Layer:      mlaLayer,
}

func deepSeekV32Config(o *object, c *Config) {
	o.decoder(c)
	o.mla(c, o.rotation(c, "default", "yarn"))
	o.noAuxTC(c, 0)
	o.mtp(c)
	o.indexer(c, false)
	o.consistent(c)
}
