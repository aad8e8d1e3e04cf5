package runtime

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Ended says why a generation stopped.
type Ended string

// The reasons.
const (
	EndedStop    Ended = "stop token"
	EndedMax     Ended = "max tokens"
	EndedContext Ended = "context full"
)

// Generation is how to continue a timeline.
type Generation struct {
	Max     int // tokens to generate at most
	Sampler *Sampler
	Stops   []int32 // ids that end the text; they are not passed on
	// Each gets every token as it is chosen, with the logits it was chosen from
	// (valid during the call). Its error ends the generation.
	Each func(id int32, logits []float32) error
}

// Generate runs the prompt and continues it until a stop token, Max tokens or
// the end of the context.
func (s *Session) Generate(ctx context.Context, prompt []int32, g Generation) (Ended, error) {
	logits, err := s.Sync(ctx, prompt)
	if err != nil {
		return "", err
	}
	t := &turn{Generation: g, s: s, line: make([]int32, 0, MaxDraft+1)}
	t.row = t.verify
	if g.Max <= 0 {
		return EndedMax, nil
	}
	for err = t.choose(s.tokens, logits); err == nil && t.ended == ""; {
		err = t.step(ctx)
	}
	if err != nil {
		return "", err
	}
	return t.ended, nil
}

// turn is a generation that runs.
type turn struct {
	Generation
	s     *Session
	next  int32 // the token chosen last
	said  int   // tokens
	ended Ended

	line []int32 // of the pass: the token chosen last and the draft behind it
	from int     // its position
	kept int     // of line: what was chosen all the same
	row  func(i int, logits []float32) error
}

// choose samples the token that follows history and passes it on; it becomes
// the first of the next pass.
func (t *turn) choose(history []int32, logits []float32) error {
	id, err := t.Sampler.Sample(logits, history)
	if err != nil {
		return err
	}
	if slices.Contains(t.Stops, id) {
		t.ended = EndedStop
		return nil
	}
	if err := t.Each(id, logits); err != nil {
		return err
	}
	switch t.said++; {
	case t.said == t.Max:
		t.ended = EndedMax // nobody reads the logits after the last token
	case len(history) == t.s.ctx:
		t.ended = EndedContext
	}
	t.next = id
	return nil
}

// errVerified ends the pass of a draft: what follows was not chosen.
var errVerified = errors.New("verified")

// step runs the token chosen last, with a draft behind it if the session
// drafts, and chooses what follows. A draft is accepted where it is what the
// sampler takes from the model's own logits. That is rejection sampling for a
// draft that is certain of its token d: it is accepted with the probability
// p(d), else the sample is one of p without d; and it asks the sampler once a
// token, so that the same seed gives the same text as without drafts.
func (t *turn) step(ctx context.Context) error {
	s := t.s
	t.from, t.kept = len(s.tokens), 1
	t.line = append(t.line[:0], t.next)
	n := s.draft.count(min(t.Max-t.said, s.ctx-t.from))
	if n > 0 && t.from-s.draft.fed > MaxDraft+1 {
		// What the block missed during a pause is not this draft's cost.
		if _, err := s.draft.feed(ctx, s.tokens); err != nil {
			return err
		}
	}
	start := time.Now()
	if n > 0 {
		guess, err := s.draft.propose(ctx, t.next, n)
		if err != nil {
			return err
		}
		t.line = append(t.line, guess...)
	}
	var err error
	if len(t.line) == 1 {
		if err = s.Append(ctx, t.line, nil); err == nil {
			err = t.choose(s.tokens, s.logits)
		}
	} else {
		err = t.verified(s.Append(ctx, t.line, t.row))
	}
	if err == nil && s.draft != nil {
		s.draft.ran(len(t.line)-1, t.kept, time.Since(start))
	}
	return err
}

// verify chooses what follows the i-th token of the pass.
func (t *turn) verify(i int, logits []float32) error {
	t.kept = i + 1
	if err := t.choose(t.s.tokens[:t.from+t.kept], logits); err != nil {
		return err
	}
	if t.ended == "" && t.kept < len(t.line) && t.line[t.kept] == t.next {
		return nil
	}
	return errVerified
}

// verified ends the pass of a draft: what was not chosen leaves the timeline.
func (t *turn) verified(err error) error {
	s := t.s
	if len(s.tokens) > t.from {
		s.Rewind(t.from + t.kept)
		s.draft.fed = t.from // the block has seen the token that came first
	}
	if errors.Is(err, errVerified) {
		s.fresh, err = true, nil // the logits read last are those of the last token kept
	}
	return err
}
