package runtime

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"hawkmoth/format"
)

// MaxDraft bounds the tokens of a draft.
const MaxDraft = 16

// Drafting says how a session drafts tokens with the model's multi-token-
// prediction block and verifies them in one pass. What it generates is the same
// with and without, to the token.
type Drafting struct {
	Tokens int  // of a draft, 1 … MaxDraft; 0 is none
	Always bool // also where it costs more time than it saves
}

// DraftStats is what drafts brought.
type DraftStats struct {
	Drafted  int // tokens
	Accepted int // of those
	Passes   int // of the model, to generate
	Tokens   int // that these passes ran and the timeline kept
	Paused   int // passes without a draft because drafts did not pay
}

// drafter drafts tokens for a session.
type drafter struct {
	Drafting
	*mtp
	s     *Session
	row   []float32 // logits
	fed   int       // positions that the block has seen, each with the token that follows it
	guess []int32
	pace  pace
	stats DraftStats
}

// Draft makes the session draft tokens; it starts an empty timeline. The error
// is LoadMTP's, or that of memory.
func (s *Session) Draft(o Drafting) error {
	m, p := s.m, s.p
	if o.Tokens < 0 || o.Tokens > MaxDraft {
		return &format.Error{Kind: format.ErrUsage, What: "tokens of a draft", Found: fmt.Sprint(o.Tokens), Wanted: fmt.Sprintf("0 … %d", MaxDraft)}
	}
	if o.Tokens == 0 || s.draft != nil {
		if s.draft != nil {
			s.draft.Drafting = o
		}
		return nil
	}
	if _, err := m.LoadMTP(); err != nil {
		return err
	}
	has := func(name string) bool { return m.weights[name] != nil }
	b := p.builder
	b.rows = s.chunk
	// On paper first: a cache that does not fit must not be touched.
	plan := *b
	plan.be, plan.temps, plan.vecs, plan.caches, plan.keys = &paper{}, maps.Clone(b.temps), nil, 0, 0
	plan.mtp(p, m.mtp.indexer, has)
	need := plan.caches + plan.keys
	if have := availableMemory(); have > 0 && need > have {
		return &format.Error{Kind: format.ErrUsage, What: fmt.Sprintf("the MTP block's cache of %d tokens does not fit into memory; see --ctx-size", s.ctx),
			Found: format.Bytes(have) + " available", Wanted: format.Bytes(need)}
	}
	t := b.mtp(p, m.mtp.indexer, has)
	p.vecs = b.vecs
	if b.err != nil {
		return b.err
	}
	s.Rewind(0)
	p.body = append(slices.Clip(p.body), t.hide)
	p.cacheBytes += need
	s.draft = &drafter{Drafting: o, mtp: t, s: s, row: make([]float32, t.logits.N), guess: make([]int32, 0, MaxDraft), pace: newPace()}
	return nil
}

// Drafts is what the session's drafts brought so far.
func (s *Session) Drafts() DraftStats {
	if s.draft == nil {
		return DraftStats{}
	}
	return s.draft.stats
}

// rewind forgets what the block saw behind a timeline of n tokens: that of the
// last one belongs to a token that need not follow any more.
func (d *drafter) rewind(n int) {
	if d != nil {
		d.fed = max(min(d.fed, n-1), 0)
	}
}

// follow shows the block the timeline, unless drafts do not pay: then the next
// draft has to.
func (d *drafter) follow(ctx context.Context) error {
	if d == nil || d.Tokens == 0 || d.paused() {
		return nil
	}
	_, err := d.feed(ctx, d.s.tokens)
	return err
}

// paused says whether drafts were tried and do not pay.
func (d *drafter) paused() bool { return !d.Always && d.pace.tried && !d.pace.pays }

// feed shows the block the positions before the last of a line of tokens, which
// the model has run but for the line's last; it returns how many of them the
// last pass had. A cancelled context stops between passes.
func (d *drafter) feed(ctx context.Context, line []int32) (rows int, err error) {
	for last := len(line) - 1; d.fed < last; d.fed += rows {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		rows = min(d.s.chunk, last-d.fed)
		if err := d.s.m.be.Run(d.body, Batch{S: rows, Pos: d.fed, Tokens: line[d.fed+1:][:rows]}); err != nil {
			return 0, err
		}
	}
	return rows, nil
}

// say is the token that the block expects behind a row of its last pass; its
// hidden state becomes that of position pos.
func (d *drafter) say(row, pos int) (int32, error) {
	if err := d.s.m.be.Run(d.tail, Batch{S: 1, Pos: pos, Row: row}); err != nil {
		return 0, err
	}
	if err := d.s.m.be.Read(d.logits, 0, d.row); err != nil {
		return 0, err
	}
	best := 0
	for id, v := range d.row {
		if v > d.row[best] {
			best = id
		}
	}
	return int32(best), nil
}

// propose drafts n tokens behind the timeline and the token next, which
// follows it; there must be room for all of them. From the second on a draft
// rests on the block's own hidden state in the place of the model's.
func (d *drafter) propose(ctx context.Context, next int32, n int) ([]int32, error) {
	pos := len(d.s.tokens)
	rows, err := d.feed(ctx, append(d.s.tokens, next))
	if err != nil {
		return nil, err
	}
	d.rewind(pos) // next is not in the timeline yet
	d.guess = d.guess[:0]
	for row := rows - 1; ; row = 0 {
		id, err := d.say(row, pos)
		if err != nil {
			return nil, err
		}
		d.guess = append(d.guess, id)
		if len(d.guess) == n {
			return d.guess, nil
		}
		if err := d.s.m.be.Run(d.body, Batch{S: 1, Pos: pos, Tokens: d.guess[len(d.guess)-1:]}); err != nil {
			return nil, err
		}
		pos++
	}
}

// count is how many tokens to draft for a pass that may run most.
func (d *drafter) count(most int) int {
	if d == nil || !d.Always && !d.pace.drafts {
		return 0
	}
	return max(min(d.Tokens, most-1), 0)
}

// ran notes a pass that drafted some tokens and of which the timeline kept some.
func (d *drafter) ran(drafted, kept int, took time.Duration) {
	s := &d.stats
	s.Drafted += drafted
	s.Accepted += min(kept-1, drafted)
	s.Passes++
	s.Tokens += kept
	if drafted == 0 && d.paused() {
		s.Paused++
	}
	d.pace.ran(kept, took)
}
