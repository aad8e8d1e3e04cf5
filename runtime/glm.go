package runtime

import (
	"fmt"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// glmMoeDSA is GLM-5: MLA attention with the DeepSeek sparse attention indexer
// over a mixture of experts (transformers' glm_moe_dsa; arXiv:2512.02556 for
// the indexer, arXiv:2603.12201 for layers that share a selection).
var glmMoeDSA = Arch{
	Name:       "GlmMoeDsa",
	ModelTypes: []string{"glm_moe_dsa"},
	Config:     glmConfig,
	Tensors:    mlaTensors,
	Layer:      mlaLayer,
}

func glmConfig(o *object, c *Config) {
	o.decoder(c)
	o.mla(c, o.rotation(c, "default"))
	o.noAuxTC(c, 0)
	o.mtp(c)
	o.indexer(c, true)
	glmSharedIndexers(o, c)
	o.consistent(c)
}

// glmSharedIndexers reads which layers have an indexer of their own. The
// explicit lists win over the counts they were made from.
func glmSharedIndexers(o *object, c *Config) {
	o.only("index_share_for_mtp_iteration", true, false) // concerns the MTP block only
	freq := max(o.count(1, "index_topk_freq"), 1)
	offset := o.count(2, "index_skip_topk_offset")
	pattern := o.text("index_topk_pattern") // "FSSF…"
	types := o.list(c.Layers, []string{"indexer_types"}, "full", "shared")
	if pattern != "" && len(pattern) != c.Layers {
		o.fail(format.ErrCorrupt, "index_topk_pattern: letters", fmt.Sprint(len(pattern)), fmt.Sprint(c.Layers))
		pattern = ""
	}
	c.SharedIndexer = make([]bool, min(c.Layers, maxLayers))
	for i := range c.SharedIndexer {
		switch {
		case types != nil:
			c.SharedIndexer[i] = types[i] == "shared"
		case pattern != "":
			c.SharedIndexer[i] = pattern[i] == 'S'
		default:
			c.SharedIndexer[i] = max(i-offset+1, 0)%freq != 0
		}
	}
}

// mlaTensors and mlaLayer serve every architecture with MLA: config.json says
// whether its layers have indexers.
func mlaTensors(c *Config) []quantize.Want {
	t := wants{base: c.Prefix}
	t.decoder(c, func(l int) { t.mla(c, l) })
	return t.list
}

func mlaLayer(b *Builder, layer int) {
	b.block(layer, func(p string, h Vec) Vec { return b.mla(p+"self_attn.", h, layer) })
}
