package runtime

// mixtral is Mixtral: experts in every layer, sliding windows where the config
// has one (arXiv:2401.04088).
var mixtral = Arch{
	Name:       "Mixtral",
	ModelTypes: []string{"mixtral"},
	Config:     mixtralConfig,
	Tensors:    gqaTensors,
	Layer:      gqaLayer,
}

var mixtralMoE = moeNames{block: "block_sparse_moe.", router: "gate", gate: "w1", up: "w3", down: "w2"}

func mixtralConfig(o *object, c *Config) {
	o.decoder(c)
	o.gqa(c, o.rotation(c, "default", "yarn"))
	o.experts(c, &mixtralMoE, "intermediate_size")
	c.SoftmaxRouter = true
	o.window(c, nil)
	o.consistent(c)
}
