package runtime

import (
	"hawkmoth/format"
	"hawkmoth/quantize"
)

// outline builds a model's program without a backend and without weights, for
// questions that its commands answer better than a formula beside them.
func (c *Config) outline(ctx, rows int, indexer bool) (*Builder, *program) {
	specs := map[string]format.Spec{}
	for _, w := range c.Arch.Tensors(c) {
		s := format.Spec{Format: format.F32, Rows: 1, Cols: 1}
		for _, n := range w.Shape {
			s.Cols *= n
		}
		if w.Matrix() {
			s.Rows, s.Cols = w.Shape[0], w.Shape[1]
		}
		specs[w.Name] = s
	}
	b := &Builder{cfg: c, be: &paper{}, hasIndexer: indexer, ctx: ctx, rows: rows,
		bind: func(name string) (Weight, error) { return specOnly{specs[name]}, nil }}
	p, _ := b.build() // neither paper nor bind fails
	return b, p
}

// paper is a backend that only numbers buffers.
type paper struct{ n int }

func (p *paper) Name() string                           { return "paper" }
func (p *paper) Supports(Kind, format.Spec) error       { return nil }
func (p *paper) Load(m quantize.Matrix) (Weight, error) { return specOnly{m.Spec}, nil }
func (p *paper) Free(Vec)                               {}
func (p *paper) Run([]Cmd, Batch) error                 { return nil }
func (p *paper) Read(View, int, []float32) error        { return nil }
func (p *paper) Close() error                           { return nil }
func (p *paper) Alloc(rows, width int, elem Elem) (Vec, error) {
	p.n++
	return Vec{ID: p.n - 1, Rows: rows, Width: width, Elem: elem}, nil
}

// CacheBytes is the memory of a session's caches for ctx positions, which grows
// with them: what every layer keeps of them and, where a selection can matter and the weights have
// the indexer, its keys.
func (c *Config) CacheBytes(ctx int, indexer bool) (layers, keys int64) {
	b, _ := c.outline(ctx, 1, indexer)
	return b.caches, b.keys
}

// StateBytes is what the recurrent layers of a session keep, whatever the
// number of positions, for batches of rows tokens.
func (c *Config) StateBytes(rows int) int64 {
	b, _ := c.outline(1, rows, false)
	return b.states
}

// BufferBytes is the memory of a session's other buffers for batches of rows
// tokens.
func (c *Config) BufferBytes(ctx, rows int, indexer bool) (n int64) {
	b, p := c.outline(ctx, rows, indexer)
	for _, v := range p.vecs {
		n += 4 * int64(v.Rows) * int64(v.Width)
	}
	return n - b.caches - b.keys - b.states
}

// Need is an operation of a layer, -1 outside the layers.
type Need struct {
	Layer int
	Op    Kind
}

// Needs lists the operations of the model's program, each once a layer.
func (c *Config) Needs() []Need {
	_, p := c.outline(c.MaxPositions, 1, c.IndexTopK > 0)
	var list []Need
	seen := map[Need]bool{}
	for _, part := range [][]Cmd{p.body, p.head} {
		for _, cmd := range part {
			if n := (Need{cmd.Layer, cmd.Kind()}); !seen[n] {
				seen[n] = true
				list = append(list, n)
			}
		}
	}
	return list
}
