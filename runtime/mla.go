package runtime

import "math"

// indexerEps is the epsilon of the indexer's LayerNorm, fixed by the model's
// reference code and absent from its config.
const indexerEps = 1e-6

// mla is multi-head latent attention with the weights absorbed, for any number
// of tokens, over a cache of latents; with the indexer it attends to a
// selection (docs/arithmetic.md §4).
func (b *Builder) mla(prefix string, h Vec, layer int) Vec {
	c := b.cfg
	full := !c.SharedIndexer[layer]
	indexed := b.indexed()

	// One rounding of h serves all four projections.
	outs := []out{{prefix + "q_a_proj.weight", "q_a"}, {prefix + "kv_a_proj_with_mqa.weight", "kv_a"}}
	if indexed && full {
		outs = append(outs, out{prefix + "indexer.wk.weight", "index_k"}, out{prefix + "indexer.weights_proj.weight", "index_w"})
	}
	a := b.linear(StageProject, h.All(), outs...)
	qa := b.temp("q_a normed", c.QLoRA)
	b.rmsnorm(StageProject, prefix+"q_a_layernorm.weight", a[0].All(), qa.All())

	outs = []out{{prefix + "q_b_proj.weight", "q"}}
	if indexed && full {
		outs = append(outs, out{prefix + "indexer.wq_b.weight", "index_q"})
	}
	q := b.linear(StageProject, qa.All(), outs...)

	width := c.Nope + c.Rope
	qr := b.temp("q_rope", c.Heads*c.Rope)
	b.do(StageProject, Rope{X: q[0].All(), Y: qr.All(), Heads: c.Heads, XWidth: width, XAt: c.Nope, YWidth: c.Rope, N: c.Rope,
		Interleave: c.RopeInterleave, Theta: c.RopeTheta})

	cache := b.cache(c.KVLoRA + c.Rope)
	b.rmsnorm(StageProject, prefix+"kv_a_layernorm.weight", a[1].Cols(0, c.KVLoRA), cache.Cols(0, c.KVLoRA).At(BasePos))
	b.do(StageProject, Rope{X: a[1].Cols(c.KVLoRA, c.Rope), Y: cache.Cols(c.KVLoRA, c.Rope).At(BasePos), Heads: 1, XWidth: c.Rope, YWidth: c.Rope, N: c.Rope,
		Interleave: c.RopeInterleave, Theta: c.RopeTheta})

	if indexed && full {
		b.indexer(prefix+"indexer.", q[1], a[2], a[3])
	}
	y := b.temp("attention", c.Heads*c.ValueHd)
	op := MLA{Q: q[0].All(), QRope: qr.All(), Y: y.All(), Cache: cache, KVB: b.weight(prefix + "kv_b_proj.weight"),
		Heads: c.Heads, QWidth: width, Nope: c.Nope, Rope: c.Rope, Value: c.ValueHd, KVLoRA: c.KVLoRA,
		Scale: float32(1 / math.Sqrt(float64(width)))}
	if indexed {
		op.Select = b.selects
	}
	b.do(StageAttend, op)
	return b.linear(StageOutput, y.All(), out{prefix + "o_proj.weight", "o"})[0]
}

// indexed says whether selection can matter: never where every position that
// the session can hold is selected anyway.
func (b *Builder) indexed() bool { return b.ctx > b.cfg.IndexTopK && b.hasIndexer }

// indexer is the lightning indexer of a full layer: LayerNorm and rotation of
// the key into its cache, rotation of the queries, then the selection.
func (b *Builder) indexer(prefix string, q, k, w Vec) {
	c := b.cfg
	normed := b.temp("index_k normed", c.IndexDim)
	b.do(StageIndexer, LayerNorm{X: k.All(), Y: normed.All(), W: b.weight(prefix + "k_norm.weight"), B: b.weight(prefix + "k_norm.bias"), Eps: indexerEps})
	keys := b.cache(c.IndexDim)
	rope := Rope{X: normed.All(), Y: keys.All().At(BasePos), Heads: 1, XWidth: c.IndexDim, YWidth: c.IndexDim, N: c.Rope,
		Interleave: c.IndexRopeInterleave, Rest: true, Theta: c.RopeTheta}
	b.do(StageIndexer, rope)
	qr := b.temp("index_q rotated", q.Width)
	rope.X, rope.Y, rope.Heads = q.All(), qr.All(), c.IndexHeads
	b.do(StageIndexer, rope)
	sel := b.tempOf("selection", c.IndexTopK, Int)
	b.selects = &sel
	b.do(StageIndexer, Index{Q: qr.All(), HeadWeight: w.All(), Keys: keys, Heads: c.IndexHeads, Dim: c.IndexDim,
		Scale: float32(1 / math.Sqrt(float64(c.IndexDim))), HeadScale: float32(1 / math.Sqrt(float64(c.IndexHeads))), Select: sel})
}

// CacheBytes is the memory of a session's caches for ctx positions: the latents
// of every layer and, where a selection can matter and the weights have the
// indexer, its keys.
func (c *Config) CacheBytes(ctx int, indexer bool) (latents, keys int64) {
	latents = 4 * int64(ctx) * int64(c.Layers) * int64(c.KVLoRA+c.Rope)
	for _, shared := range c.SharedIndexer {
		if indexer && ctx > c.IndexTopK && !shared {
			keys += 4 * int64(ctx) * int64(c.IndexDim)
		}
	}
	return latents, keys
}
