package runtime

import (
	"fmt"
	"slices"
	"strings"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// mtpWeights is what LoadMTP found.
type mtpWeights struct {
	asked    bool
	err      error    // why it cannot run
	warnings []string // why it may be of no use
	indexer  bool     // it has its indexer
}

// LoadMTP binds the weights of the first multi-token-prediction block, which
// Load leaves out: they cost memory and only drafts need them. The error says
// why the block cannot run, the warnings why it may be of no use.
func (m *Model) LoadMTP() (warnings []string, err error) {
	if w := &m.mtp; !w.asked {
		w.asked = true
		w.err = m.loadMTP()
	}
	return m.mtp.warnings, m.mtp.err
}

func (m *Model) loadMTP() error {
	c := m.Config
	if c.MTPLayers == 0 {
		return &format.Error{Kind: format.ErrUnsupported, Path: m.Snapshot.Dir, What: "the model has no MTP block: config.json announces none (num_nextn_predict_layers)"}
	}
	// With the model's own tensors, because group sizes are settled among all.
	wants := slices.DeleteFunc(c.Arch.Tensors(c), func(w quantize.Want) bool { return w.MTP && w.Layer > c.Layers })
	census, problems := quantize.TakeCensus(m.Snapshot, wants)
	m.mtp.indexer = c.IndexTopK > 0
	var missing []string
	for _, w := range census.Absent {
		switch {
		case !w.MTP:
		case w.InIndexer():
			m.mtp.indexer = false // its attention is dense then, which only drafts can show
		case !w.SharedWithModel():
			missing = append(missing, w.Name)
		}
	}
	found := slices.DeleteFunc(census.Found, func(f quantize.Found) bool { return !f.MTP })
	for _, f := range found {
		if err := m.be.Supports(KindOf(f.Want), f.Spec); err != nil {
			problems = append(problems, &format.Error{Kind: format.ErrUnsupported, Path: f.Tensor.Shard.Path, Tensor: f.Name, What: "cannot run", Err: err})
		}
	}
	bad := func(kind error, what string, err error) error {
		return &format.Error{Kind: kind, Path: m.Snapshot.Dir, What: what, Err: err}
	}
	switch {
	case !slices.ContainsFunc(found, func(f quantize.Found) bool { return !f.SharedWithModel() }) && len(problems) == 0:
		return bad(format.ErrIncomplete, "the MTP block is not there, though config.json announces one; convert with a recipe that keeps it", nil)
	case len(missing) > 0:
		return bad(format.ErrIncomplete, "the MTP block is incomplete: missing "+strings.Join(format.Collapse(missing), ", "), nil)
	case len(problems) > 0:
		return bad(format.ErrCorrupt, "the MTP block is damaged", problems)
	}
	var rough []string
	for i := range found {
		f := &found[i]
		mat, err := f.Bind()
		if err != nil {
			return err
		}
		if m.weights[f.Name], err = m.be.Load(mat); err != nil {
			return err
		}
		if quantize.RoughForMTP(f.Spec.Format) {
			rough = append(rough, f.Name)
		}
		if strings.HasSuffix(f.Name, ".eh_proj.weight") {
			if dead := deadHalves(mat); dead >= 0.1 {
				m.mtp.warnings = append(m.mtp.warnings, fmt.Sprintf("%s: %.0f %% of the rows have an all-zero half, so the MTP block's drafts will hardly ever be accepted; int8-row or int4-grouped keep it alive", f.Name, 100*dead))
			}
		}
	}
	if len(rough) > 0 {
		m.mtp.warnings = append(m.mtp.warnings, "the MTP block has "+quantize.RoughMTP(rough))
	}
	return nil
}

// deadHalves is the share of rows of eh_proj [H, 2·H] that ignore either the
// embedding or the hidden state; it looks at some of them.
func deadHalves(m quantize.Matrix) float64 {
	codec, err := quantize.CodecFor(m.Format)
	if err != nil {
		return 0
	}
	const most = 256
	row, dead, n := make([]float32, m.Cols), 0, 0
	zero := func(v []float32) bool { return !slices.ContainsFunc(v, func(x float32) bool { return x != 0 }) }
	for r := 0; r < m.Rows; r += max(m.Rows/most, 1) {
		codec.Decode(m, r, row)
		if n++; zero(row[:m.Cols/2]) || zero(row[m.Cols/2:]) {
			dead++
		}
	}
	return float64(dead) / float64(max(n, 1))
}

// mtp is the program of a multi-token-prediction block (arXiv:2412.19437): for
// every position its layer reads the hidden state after the final norm and the
// embedding of the token that follows, and its head says the token after that.
type mtp struct {
	hide   Cmd   // behind the model's body: keeps the hidden states of its positions
	body   []Cmd // of positions from Batch.Pos on; Batch.Tokens are those that follow them
	tail   []Cmd // one row of the body, Batch.Row: its hidden state to position Batch.Pos, its logits
	logits View  // [1, vocab]
}

// mtp builds the block behind a program, whose buffers it shares.
func (b *Builder) mtp(p *program, indexer bool, has func(name string) bool) *mtp {
	c, at := b.cfg, layerPrefix(b.cfg.Layers)
	own := func(name, otherwise string) string {
		if has(c.Prefix + at + name) {
			return at + name
		}
		return otherwise
	}
	b.layer, b.hasIndexer, b.cmds = c.Layers, indexer, nil
	hidden := b.cache(c.Hidden)
	b.rmsnorm(StageMTP, "model.norm.weight", p.hidden, hidden.All().At(BasePos))
	t := &mtp{logits: p.logits}
	if b.err != nil {
		return t
	}
	t.hide = b.cmds[0]
	b.cmds = nil
	e := b.temp("h", c.Hidden)
	both := b.temp("embedding and hidden", 2*c.Hidden)
	b.do(StageMTP, Embed{W: b.weight(own("embed_tokens.weight", "model.embed_tokens.weight")), Y: e.All()})
	b.rmsnorm(StageMTP, at+"enorm.weight", e.All(), both.Cols(0, c.Hidden))
	b.rmsnorm(StageMTP, at+"hnorm.weight", hidden.All().At(BasePos), both.Cols(c.Hidden, c.Hidden))
	b.x = b.temp("mtp x", c.Hidden)
	b.linear(StageMTP, both.All(), out{weight: at + "eh_proj.weight", to: b.x.All()})
	c.Arch.Layer(b, c.Layers)
	t.body = b.cmds
	b.cmds = nil
	b.rmsnorm(StageMTP, at+"shared_head.norm.weight", b.x.All().At(BaseRow), hidden.All().At(BasePos))
	b.linear(StageMTP, hidden.All().At(BasePos), out{weight: own("shared_head.head.weight", "lm_head.weight"), to: t.logits})
	t.tail = b.cmds
	for _, part := range [][]Cmd{t.body, t.tail} {
		for i := range part {
			part[i].Stage = StageMTP // whatever the layer's own stages are
		}
	}
	return t
}
