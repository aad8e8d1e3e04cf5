package runtime

import "hawkmoth/quantize"

// llama is Llama 2 and 3: grouped-query attention and a dense MLP (arXiv:2407.21783).
var llama = Arch{
	Name:       "Llama",
	ModelTypes: []string{"llama"},
	Config:     llamaConfig,
	Tensors:    gqaTensors,
	Layer:      gqaLayer,
}

func llamaConfig(o *object, c *Config) {
	o.decoder(c)
	o.gqa(c, o.rotation(c, "default", "llama3", "yarn"))
	c.QKVBias = o.flag(false, "attention_bias")
	c.OutBias = c.QKVBias
	o.only("mlp_bias", false)
	o.consistent(c)
}

// gqaTensors and gqaLayer serve every architecture whose layers are
// grouped-query attention and an MLP, of experts or not.
func gqaTensors(c *Config) []quantize.Want {
	t := wants{base: c.Prefix}
	t.decoder(c, func(int) { t.gqa(c) })
	return t.list
}

func gqaLayer(b *Builder, layer int) {
	b.block(layer, func(p string, h Vec) Vec { return b.gqa(p+"self_attn.", h) })
}
