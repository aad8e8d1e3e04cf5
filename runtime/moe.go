package runtime

import (
	"strconv"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// moeNames is what a family calls the tensors of its mixture of experts, below
// a layer's prefix; empty is what it does not have.
type moeNames struct {
	block, router  string
	correction     string // a bias of the choice, not of the weights
	gate, up, down string // of an expert
	shared         string // the MLP that every token meets, as a prefix
	sharedGate     string // its gate, a row that gives one logit
	biased         bool   // router and experts have biases
	fusedT         bool   // fused experts are transposed, gate and up columns in turn
}

var deepSeekMoE = moeNames{block: "mlp.", router: "gate", correction: "gate.e_score_correction_bias",
	gate: "gate_proj", up: "up_proj", down: "down_proj", shared: "shared_experts."}

// experts reads the sizes and the routing of a mixture of experts; width is
// the key of an expert's width.
func (o *object) experts(c *Config, names *moeNames, width string) {
	c.moe = names
	c.Experts = o.size("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
	c.ExpertsPerToken = o.size("num_experts_per_tok", "experts_per_token")
	c.MoEIntermediate = o.size(width)
	c.Groups, c.TopGroups, c.RoutedScale, c.NormTopK = 1, 1, 1, true
	c.SparseMLP = make([]bool, min(c.Layers, maxLayers))
	for i := range c.SparseMLP {
		c.SparseMLP[i] = true
	}
}

// noAuxTC is DeepSeek-V3's routing (arXiv:2412.19437): sigmoids, corrected for
// the choice, limited to groups. The explicit list of layers wins over the
// count that it was made from.
func (o *object) noAuxTC(c *Config, dense int) {
	o.experts(c, &deepSeekMoE, "moe_intermediate_size")
	c.SharedExperts = o.count(0, "n_shared_experts")
	c.SharedWidth = c.SharedExperts * c.MoEIntermediate
	c.Groups = max(o.count(1, "n_group"), 1)
	c.TopGroups = max(o.count(1, "topk_group"), 1)
	c.NormTopK = o.flag(true, "norm_topk_prob")
	c.RoutedScale = float32(o.number(1, "routed_scaling_factor"))
	dense = o.count(dense, "first_k_dense_replace")
	kinds := o.list(c.Layers, []string{"mlp_layer_types"}, "dense", "sparse")
	for i := range c.SparseMLP {
		c.SparseMLP[i] = i >= dense
		if kinds != nil {
			c.SparseMLP[i] = kinds[i] == "sparse"
		}
	}
	o.only("scoring_func", "sigmoid")
	o.only("topk_method", "noaux_tc")
	o.only("moe_layer_freq", 1.0)
}

func (t *wants) moe(c *Config) {
	n, p := c.moe, t.prefix+c.moe.block
	t.add(quantize.Router, p+n.router+".weight", c.Experts, c.Hidden)
	if n.biased {
		t.add(quantize.Norm, p+n.router+".bias", c.Experts)
	}
	if n.correction != "" {
		t.add(quantize.RouterBias, p+n.correction, c.Experts)
	}
	for e := range c.Experts {
		t.expert(c, p+"experts.", e)
	}
	if c.SharedExperts > 0 {
		t.mlp(quantize.Shared, p+n.shared, c.SharedWidth, c.Hidden)
		if n.sharedGate != "" {
			t.add(quantize.Router, p+n.sharedGate, 1, c.Hidden)
		}
	}
}

// expert lists one routed expert, one matrix each; a checkpoint may hold all
// experts fused as gate_up_proj [experts, 2·width, hidden] (gate rows first) and
// down_proj [experts, hidden, width], or transposed as [experts, hidden, 2·width]
// (gate and up columns in turn) and [experts, width, hidden].
func (t *wants) expert(c *Config, prefix string, e int) {
	n, width, hidden := c.moe, c.MoEIntermediate, c.Hidden
	upRow, step := width, 1
	if n.fusedT {
		upRow, step = 1, 2
	}
	for _, m := range []struct {
		name, fused           string
		rows, cols, row, step int
	}{{n.gate, "gate_up_proj", width, hidden, 0, step}, {n.up, "gate_up_proj", width, hidden, upRow, step}, {n.down, "down_proj", hidden, width, 0, 1}} {
		p := prefix + strconv.Itoa(e) + "." + m.name
		w := t.want(quantize.Expert, p+".weight", m.rows, m.cols)
		w.Expert, w.Fused, w.FusedRow, w.FusedStep, w.FusedT = e, t.base+prefix+m.fused, m.row, m.step, n.fusedT
		if n.biased {
			w = t.want(quantize.Norm, p+".bias", m.rows)
			w.Expert, w.Fused, w.FusedRow, w.FusedStep = e, t.base+prefix+m.fused+"_bias", m.row, m.step
		}
	}
}

// moe is the routed experts plus the shared ones.
func (b *Builder) moe(prefix string, x Vec) Vec {
	c, n := b.cfg, b.cfg.moe
	prefix += n.block
	router := out{weight: prefix + n.router + ".weight", temp: "router"}
	if n.biased {
		router.bias = prefix + n.router + ".bias"
	}
	logits := b.linear(StageRouter, x.All(), router)[0]
	ids := b.tempOf("expert ids", c.ExpertsPerToken, Int)
	weights := b.temp("expert weights", c.ExpertsPerToken)
	route := Route{X: logits.All(), IDs: ids, Weights: weights.All(), Softmax: c.SoftmaxRouter,
		Groups: c.Groups, TopGroups: c.TopGroups, TopK: c.ExpertsPerToken, Normalize: c.NormTopK, Scale: c.RoutedScale}
	if n.correction != "" {
		route.Bias = b.weight(prefix + n.correction)
	}
	b.do(StageRouter, route)
	experts := make([]ExpertWeights, c.Experts)
	for e := range experts {
		p := prefix + "experts." + strconv.Itoa(e) + "."
		experts[e] = ExpertWeights{Gate: b.weight(p + n.gate + ".weight"), Up: b.weight(p + n.up + ".weight"), Down: b.weight(p + n.down + ".weight")}
		if n.biased {
			experts[e].Bias = &ExpertBias{b.weight(p + n.gate + ".bias"), b.weight(p + n.up + ".bias"), b.weight(p + n.down + ".bias")}
		}
	}
	y := b.temp("experts", c.Hidden)
	b.do(StageExperts, Experts{X: x.All(), IDs: ids, Weights: weights.All(), Expert: experts, Y: y.All(), Gating: c.Gating})
	if c.SharedExperts == 0 {
		return y
	}
	shared := b.mlp(StageShared, prefix+n.shared, x)
	if n.sharedGate != "" {
		gate := b.linear(StageShared, x.All(), out{weight: prefix + n.sharedGate, temp: "shared gate"})[0]
		b.do(StageShared, Gate{X: gate.All(), Y: shared.All()})
	}
	b.add(shared, y)
	return y
}

// sparseSteps reads which layers have experts where every n-th one has them
// but for a list.
func (o *object) sparseSteps(c *Config) {
	step := max(o.count(1, "decoder_sparse_step"), 1)
	var dense []int
	o.get(&dense, "mlp_only_layers")
	for i := range c.SparseMLP {
		c.SparseMLP[i] = (i+1)%step == 0
	}
	for _, l := range dense {
		if l < 0 || l >= len(c.SparseMLP) {
			o.fail(format.ErrCorrupt, "mlp_only_layers", strconv.Itoa(l), "a layer's index")
			continue
		}
		c.SparseMLP[l] = false
	}
}
