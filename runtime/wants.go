package runtime

import (
	"strconv"

	"hawkmoth/quantize"
)

// wants collects an architecture's tensors; architectures write to it in
// reading order.
type wants struct {
	list   []quantize.Want
	base   string // prefix of all names
	prefix string // "model.layers.N."
	layer  int
	mtp    bool
	inside bool
}

// at moves to a layer; all tensors of an MTP layer are optional.
func (t *wants) at(layer int, mtp bool) {
	t.prefix, t.layer, t.mtp, t.inside = "model.layers."+strconv.Itoa(layer)+".", layer, mtp, true
}

// outside leaves the layers.
func (t *wants) outside() { *t = wants{list: t.list, base: t.base} }

func (t *wants) want(role quantize.Role, name string, shape ...int) *quantize.Want {
	w := quantize.Want{Name: t.base + name, Shape: shape, Role: role, Layer: t.layer, Expert: -1, MTP: t.mtp, Optional: t.mtp}
	if !t.inside {
		w.Layer = -1
	}
	t.list = append(t.list, w)
	return &t.list[len(t.list)-1]
}

func (t *wants) add(role quantize.Role, name string, shape ...int) { t.want(role, name, shape...) }

func (t *wants) optional(role quantize.Role, name string, shape ...int) {
	t.want(role, name, shape...).Optional = true
}

// head adds lm_head, for which tied embeddings may stand in.
func (t *wants) head(name string, c *Config) {
	w := t.want(quantize.Head, name, c.VocabSize, c.Hidden)
	if c.Tied {
		w.Optional, w.Tied = true, t.base+"model.embed_tokens.weight"
	}
}

// mlp adds gate, up and down of a SwiGLU block.
func (t *wants) mlp(role quantize.Role, prefix string, width, hidden int) {
	t.add(role, prefix+"gate_proj.weight", width, hidden)
	t.add(role, prefix+"up_proj.weight", width, hidden)
	t.add(role, prefix+"down_proj.weight", hidden, width)
}
