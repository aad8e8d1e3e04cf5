package runtime

import (
	"fmt"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// qwen3Next is Qwen3-Next: three of four layers are gated delta networks
// (arXiv:2412.06464), the fourth is attention with a gate; every token meets a
// gated shared expert, and norms multiply by 1 + weight.
var qwen3Next = Arch{
	Name:       "Qwen3Next",
	ModelTypes: []string{"qwen3_next"},
	Config:     qwen3NextConfig,
	Tensors:    qwen3NextTensors,
	Layer:      qwen3NextLayer,
}

func qwen3NextConfig(o *object, c *Config) {
	o.decoder(c)
	c.CentredNorms = true
	s := o.rotation(c, "default", "yarn")
	if !s.given {
		s.partial = 0.25
	}
	o.gqa(c, s)
	c.QKNorm, c.OutGate = NormHeads, true
	o.only("attention_bias", false)
	o.experts(c, &qwenMoE, "moe_intermediate_size")
	o.sparseSteps(c)
	c.SoftmaxRouter = true
	c.NormTopK = o.flag(true, "norm_topk_prob")
	c.SharedExperts, c.SharedWidth = 1, o.size("shared_expert_intermediate_size")

	c.Recurrent = make([]bool, min(c.Layers, maxLayers))
	kinds := o.list(c.Layers, []string{"layer_types"}, "linear_attention", "full_attention")
	every := max(o.count(4, "full_attention_interval"), 1)
	for i := range c.Recurrent {
		c.Recurrent[i] = (i+1)%every != 0
		if kinds != nil {
			c.Recurrent[i] = kinds[i] == "linear_attention"
		}
	}
	d := &c.Delta
	d.KeyHeads, d.KeyDim = o.size("linear_num_key_heads"), o.size("linear_key_head_dim")
	d.ValueHeads, d.ValueDim = o.size("linear_num_value_heads"), o.size("linear_value_head_dim")
	d.Taps = o.size("linear_conv_kernel_dim")
	if d.ValueHeads%d.KeyHeads != 0 {
		o.fail(format.ErrCorrupt, "linear_num_value_heads", fmt.Sprint(d.ValueHeads), fmt.Sprintf("a multiple of linear_num_key_heads, %d", d.KeyHeads))
	}
	for _, n := range []int{2 * d.KeyHeads * d.KeyDim, 2 * d.ValueHeads * d.ValueDim, d.channels() * d.Taps, d.ValueHeads * d.KeyDim * d.ValueDim} {
		if n > format.MaxDim/2 {
			o.fail(format.ErrCorrupt, "linear_… heads · sizes", fmt.Sprint(n), fmt.Sprintf("at most %d", format.MaxDim/2))
		}
	}
	o.consistent(c)
}

func qwen3NextTensors(c *Config) []quantize.Want {
	t := wants{base: c.Prefix}
	t.decoder(c, func(l int) {
		if !c.Recurrent[l] {
			t.gqa(c)
			return
		}
		d, p := &c.Delta, t.prefix+"linear_attn."
		values := d.ValueHeads * d.ValueDim
		t.add(quantize.Attn, p+"in_proj_qkvz.weight", d.channels()+values, c.Hidden)
		t.add(quantize.Attn, p+"in_proj_ba.weight", 2*d.ValueHeads, c.Hidden)
		t.add(quantize.Norm, p+"conv1d.weight", d.channels(), 1, d.Taps)
		t.add(quantize.Norm, p+"A_log", d.ValueHeads)
		t.add(quantize.Norm, p+"dt_bias", d.ValueHeads)
		t.add(quantize.Norm, p+"norm.weight", d.ValueDim)
		t.add(quantize.Out, p+"out_proj.weight", c.Hidden, values)
	})
	return t.list
}

func qwen3NextLayer(b *Builder, layer int) {
	b.block(layer, func(p string, h Vec) Vec {
		if b.cfg.Recurrent[layer] {
			return b.deltaNet(p+"linear_attn.", h)
		}
		return b.gqa(p+"self_attn.", h)
	})
}

// deltaNet is a gated delta network; its norm has plain weights.
func (b *Builder) deltaNet(prefix string, h Vec) Vec {
	op := b.cfg.Delta
	in := b.linear(StageProject, h.All(), out{weight: prefix + "in_proj_qkvz.weight", temp: "qkvz"}, out{weight: prefix + "in_proj_ba.weight", temp: "ba"})
	n := op.ValueHeads * op.ValueDim
	y, z, normed := b.temp("delta", n), b.temp("delta z", n), b.temp("delta normed", n)
	op.QKVZ, op.BA, op.Y, op.Z = in[0].All(), in[1].All(), y.All(), z.All()
	op.ConvW, op.ALog, op.DtBias = b.weight(prefix+"conv1d.weight"), b.weight(prefix+"A_log"), b.weight(prefix+"dt_bias")
	op.Conv, op.State = b.state((op.Taps-1+b.rows)*op.channels()), b.state(op.ValueHeads*op.KeyDim*op.ValueDim)
	b.do(StageAttend, op)
	b.do(StageAttend, RMSNorm{X: y.All(), Y: normed.All(), W: b.weight(prefix + "norm.weight"), Eps: b.cfg.RMSNormEps, Heads: op.ValueHeads})
	b.do(StageAttend, SiLUMul{Gate: z.All(), Up: normed.All(), Y: normed.All()})
	return b.linear(StageOutput, normed.All(), out{weight: prefix + "out_proj.weight", temp: "o"})[0]
}
