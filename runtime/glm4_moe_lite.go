package runtime

// glm4MoeLite is GLM-4.7-Flash: DeepSeek-V3's layers, of which the first is
// dense unless the config says otherwise.
var glm4MoeLite = Arch{
	Name:       "Glm4MoeLite",
	ModelTypes: []string{"glm4_moe_lite"},
	Config:     glm4MoeLiteConfig,
	Tensors:    mlaTensors,
	Layer:      mlaLayer,
}

func glm4MoeLiteConfig(o *object, c *Config) {
	o.decoder(c)
	o.mla(c, o.rotation(c, "default", "yarn"))
	o.noAuxTC(c, 1)
	o.mtp(c)
	o.consistent(c)
}
