package runtime

import (
	"strconv"

	"hawkmoth/format"
)

// Builder turns an architecture's layers into commands. The first error stops
// it; the calls after that do nothing.
type Builder struct {
	cfg        *Config
	be         Backend
	bind       func(name string) (Weight, error) // by tensor name
	hasIndexer bool                              // the container carries the indexer
	ctx        int                               // positions a cache holds
	rows       int                               // tokens a batch holds
	layer      int
	cmds       []Cmd
	temps      map[string]Vec
	vecs       []Vec // all that were allocated
	caches     int64 // bytes
	err        error

	x       Vec  // the residual stream [rows, Hidden]
	selects *Vec // the last full indexer's selection
}

func layerPrefix(l int) string { return "model.layers." + strconv.Itoa(l) + "." }

func (b *Builder) do(stage Stage, op Op) { b.cmds = append(b.cmds, Cmd{op, b.layer, stage}) }

// weight binds a tensor by name.
func (b *Builder) weight(name string) Weight {
	if b.err != nil {
		return noWeight
	}
	w, err := b.bind(name)
	if err != nil {
		b.err = err
		return noWeight
	}
	return w
}

// noWeight stands for a weight after an error.
var noWeight Weight = specOnly{}

type specOnly struct{}

func (specOnly) Spec() format.Spec { return format.Spec{} }

func (b *Builder) alloc(rows, width int, elem Elem) Vec {
	if b.err != nil {
		return Vec{}
	}
	v, err := b.be.Alloc(rows, width, elem)
	if err != nil {
		b.err = err
		return v
	}
	b.vecs = append(b.vecs, v)
	return v
}

// temp is an activation buffer that all layers share under a name.
func (b *Builder) temp(name string, width int) Vec { return b.tempOf(name, width, Float) }

func (b *Builder) tempOf(name string, width int, elem Elem) Vec {
	key := name + "/" + strconv.Itoa(width)
	v, ok := b.temps[key]
	if !ok {
		v = b.alloc(b.rows, width, elem)
		b.temps[key] = v
	}
	return v
}

// cache is a buffer with a row for every position.
func (b *Builder) cache(width int) Vec {
	b.caches += int64(b.ctx) * int64(width) * 4
	return b.alloc(b.ctx, width, Float)
}

// out names a product of linear: the weight and the buffer it fills.
type out struct{ weight, temp string }

// linear multiplies x by several matrices that share its rounding.
func (b *Builder) linear(stage Stage, x View, outs ...out) []Vec {
	var m MatMul
	m.X = x
	vecs := make([]Vec, len(outs))
	for i, o := range outs {
		w := b.weight(o.weight)
		vecs[i] = b.temp(o.temp, w.Spec().Rows)
		m.W, m.Y = append(m.W, w), append(m.Y, vecs[i].All())
	}
	b.do(stage, m)
	return vecs
}

func (b *Builder) rmsnorm(stage Stage, name string, x View, y View) {
	b.do(stage, RMSNorm{X: x, Y: y, W: b.weight(name), Eps: b.cfg.RMSNormEps})
}

// norm is rmsnorm into a shared buffer.
func (b *Builder) norm(name, temp string, x View) Vec {
	y := b.temp(temp, x.N)
	b.rmsnorm(StageNorm, name, x, y.All())
	return y
}

func (b *Builder) add(x, y Vec) { b.do(StageNorm, Add{X: x.All(), Y: y.All()}) }

// mlp is down(silu(gate·x) · (up·x)).
func (b *Builder) mlp(stage Stage, prefix string, x Vec) Vec {
	gu := b.linear(stage, x.All(), out{prefix + "gate_proj.weight", "gate"}, out{prefix + "up_proj.weight", "up"})
	h := b.temp("act", gu[0].Width)
	b.do(stage, SiLUMul{Gate: gu[0].All(), Up: gu[1].All(), Y: h.All()})
	return b.linear(stage, h.All(), out{prefix + "down_proj.weight", "mlp"})[0]
}

// moe is the routed experts plus the shared ones (DeepSeek-V3, arXiv:2412.19437).
func (b *Builder) moe(prefix string, x Vec) Vec {
	c := b.cfg
	logits := b.linear(StageRouter, x.All(), out{prefix + "gate.weight", "router"})[0]
	ids := b.tempOf("expert ids", c.ExpertsPerToken, Int)
	weights := b.temp("expert weights", c.ExpertsPerToken)
	b.do(StageRouter, Route{X: logits.All(), Bias: b.weight(prefix + "gate.e_score_correction_bias"), IDs: ids, Weights: weights.All(),
		Groups: c.Groups, TopGroups: c.TopGroups, TopK: c.ExpertsPerToken, Normalize: c.NormTopK, Scale: c.RoutedScale})
	experts := make([]ExpertWeights, c.Experts)
	for e := range experts {
		p := prefix + "experts." + strconv.Itoa(e) + "."
		experts[e] = ExpertWeights{b.weight(p + "gate_proj.weight"), b.weight(p + "up_proj.weight"), b.weight(p + "down_proj.weight")}
	}
	y := b.temp("experts", c.Hidden)
	b.do(StageExperts, Experts{X: x.All(), IDs: ids, Weights: weights.All(), Expert: experts, Y: y.All()})
	if c.SharedExperts > 0 {
		b.add(b.mlp(StageShared, prefix+"shared_experts.", x), y)
	}
	return y
}

// program is a model's commands: body fills the residual stream, head the
// logits of some of its rows.
type program struct {
	body, head []Cmd
	hidden     View // the residual stream [rows, Hidden]
	logits     View // [headRows, vocab]
	headRows   int
	cacheBytes int64
	vecs       []Vec
}

// headRows bounds the logits held at a time: a row of a large vocabulary is
// 0.6 MB.
const headRows = 32

// build makes the program of a session with room for ctx positions and
// batches of rows tokens.
func build(m *Model, ctx, rows int) (*program, error) {
	c := m.Config
	b := &Builder{cfg: c, be: m.be, bind: m.bind, hasIndexer: m.indexer, ctx: ctx, rows: rows, layer: -1, temps: map[string]Vec{}}
	b.x = b.temp("x", c.Hidden)
	b.do(StageEmbed, Embed{W: b.weight("model.embed_tokens.weight"), Y: b.x.All()})
	for b.layer = range c.Layers {
		c.Arch.Layer(b, b.layer)
	}
	b.layer = -1
	p := &program{body: b.cmds, hidden: b.x.All(), headRows: min(rows, headRows)}
	b.cmds, b.rows = nil, p.headRows
	h := b.norm("model.norm.weight", "final", b.x.All().At(BaseRow))
	p.logits = b.linear(StageHead, h.All(), out{"lm_head.weight", "logits"})[0].All()
	p.head, p.cacheBytes, p.vecs = b.cmds, b.caches, b.vecs
	return p, b.err
}
