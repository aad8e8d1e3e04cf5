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
	caches     int64 // bytes, keys of indexers aside
	states     int64 // bytes, whatever the position
	keys       int64 // bytes of the indexers' keys
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
	w, err := b.bind(b.cfg.Prefix + name)
	if err != nil {
		b.err = err
		return noWeight
	}
	return w
}

// noWeight stands for a weight after an error.
var noWeight Weight = specOnly{}

type specOnly struct{ spec format.Spec }

func (s specOnly) Spec() format.Spec { return s.spec }

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

// state is a buffer of what a layer keeps whatever the position.
func (b *Builder) state(width int) Vec {
	b.states += int64(width) * 4
	return b.alloc(1, width, Float)
}

// keyCache is a cache of an indexer's keys.
func (b *Builder) keyCache(width int) Vec {
	b.keys += int64(b.ctx) * int64(width) * 4
	return b.alloc(b.ctx, width, Float)
}

// out names a product of linear: the weight, the buffer it fills, or the view
// instead, and a bias that is added, if any.
type out struct {
	weight, temp, bias string
	to                 View
}

// linear multiplies x by several matrices that share its rounding.
func (b *Builder) linear(stage Stage, x View, outs ...out) []Vec {
	var m MatMul
	m.X = x
	vecs := make([]Vec, len(outs))
	for i, o := range outs {
		w := b.weight(o.weight)
		if o.temp != "" {
			o.to = b.temp(o.temp, w.Spec().Rows).All()
		}
		vecs[i] = o.to.Vec
		m.W, m.Y = append(m.W, w), append(m.Y, o.to)
	}
	b.do(stage, m)
	for i, o := range outs {
		if o.bias != "" {
			b.do(stage, AddBias{W: b.weight(o.bias), Y: m.Y[i]})
		}
	}
	return vecs
}

func (b *Builder) rmsnorm(stage Stage, name string, x View, y View) {
	b.do(stage, RMSNorm{X: x, Y: y, W: b.weight(name), Eps: b.cfg.RMSNormEps, Centred: b.cfg.CentredNorms})
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
	gu := b.linear(stage, x.All(), out{weight: prefix + "gate_proj.weight", temp: "gate"}, out{weight: prefix + "up_proj.weight", temp: "up"})
	h := b.temp("act", gu[0].Width)
	b.do(stage, SiLUMul{Gate: gu[0].All(), Up: gu[1].All(), Y: h.All()})
	return b.linear(stage, h.All(), out{weight: prefix + "down_proj.weight", temp: "mlp"})[0]
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
	builder    *Builder // for what is built behind it
}

// headRows bounds the logits held at a time: a row of a large vocabulary is
// 0.6 MB.
const headRows = 32

// build makes the program of a session with room for ctx positions and
// batches of rows tokens.
func build(m *Model, ctx, rows int) (*program, error) {
	b := &Builder{cfg: m.Config, be: m.be, bind: m.bind, hasIndexer: m.indexer, ctx: ctx, rows: rows}
	return b.build()
}

func (b *Builder) build() (*program, error) {
	c := b.cfg
	rows := b.rows
	b.layer, b.temps = -1, map[string]Vec{}
	b.x = b.temp("x", c.Hidden)
	b.do(StageEmbed, Embed{W: b.weight("model.embed_tokens.weight"), Y: b.x.All()})
	for b.layer = range c.Layers {
		c.Arch.Layer(b, b.layer)
	}
	b.layer = -1
	p := &program{body: b.cmds, hidden: b.x.All(), headRows: min(rows, headRows)}
	b.cmds, b.rows = nil, p.headRows
	h := b.norm("model.norm.weight", "final", b.x.All().At(BaseRow))
	p.logits = b.linear(StageHead, h.All(), out{weight: "lm_head.weight", temp: "logits"})[0].All()
	p.head, p.cacheBytes, p.vecs, p.builder = b.cmds, b.caches+b.keys+b.states, b.vecs, b
	return p, b.err
}
