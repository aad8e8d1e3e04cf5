package runtime

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"time"

	"hawkmoth/format"
)

// ArithmeticVersion is the version of docs/arithmetic.md that the logits obey;
// it is part of every fingerprint.
const ArithmeticVersion = 1

// DefaultChunk is how many prompt tokens are processed at a time. It changes
// memory and speed, never a bit.
const DefaultChunk = 256

// Session is one timeline of tokens with its cache.
type Session struct {
	m       *Model
	p       *program
	ctx     int
	chunk   int
	tokens  []int32
	state   int             // how many tokens the states of recurrent layers have seen
	logits  []float32       // the last ones computed
	fresh   bool            // logits are those after the last token
	forward []time.Duration // of the single-token passes
	ran     int             // tokens
	draft   *drafter        // nil without drafts
}

// NewSession makes a session with room for ctx tokens; chunk ≤ 0 means DefaultChunk.
func (m *Model) NewSession(ctx, chunk int) (*Session, error) {
	if ctx <= 0 || ctx > m.Config.MaxPositions {
		return nil, &format.Error{Kind: format.ErrUsage, What: "context size", Found: fmt.Sprint(ctx), Wanted: fmt.Sprintf("1 … %d, the model's max_position_embeddings", m.Config.MaxPositions)}
	}
	if chunk <= 0 {
		chunk = DefaultChunk
	}
	chunk = min(chunk, ctx)
	latents, keys := m.Config.CacheBytes(ctx, m.indexer)
	if need, have := latents+keys+m.Config.StateBytes(chunk), availableMemory(); have > 0 && need > have {
		return nil, &format.Error{Kind: format.ErrUsage, What: fmt.Sprintf("the cache of %d tokens does not fit into memory; see --ctx-size", ctx),
			Found: format.Bytes(have) + " available", Wanted: format.Bytes(need)}
	}
	p, err := build(m, ctx, chunk)
	if err != nil {
		p.free(m.be)
		return nil, err
	}
	return &Session{m: m, p: p, ctx: ctx, chunk: chunk, tokens: make([]int32, 0, ctx), forward: make([]time.Duration, 0, ctx)}, nil
}

// Close gives the session's buffers back.
func (s *Session) Close() {
	s.p.free(s.m.be)
	s.p.vecs = nil
}

func (p *program) free(be Backend) {
	for _, v := range p.vecs {
		be.Free(v)
	}
}

// Tokens is the timeline so far; the caller must not change it.
func (s *Session) Tokens() []int32 { return s.tokens }

// Ran is how many tokens the session has run in its life: what Sync kept of a
// timeline is not run again.
func (s *Session) Ran() int { return s.ran }

// CtxSize is the number of tokens that fit.
func (s *Session) CtxSize() int { return s.ctx }

// CacheBytes is the memory of the session's caches.
func (s *Session) CacheBytes() int64 { return s.p.cacheBytes }

// Sync makes the timeline equal to tokens, keeping the common prefix, and
// returns the logits after the last one; they are valid until the next call.
func (s *Session) Sync(ctx context.Context, tokens []int32) ([]float32, error) {
	if len(tokens) == 0 {
		return nil, &format.Error{Kind: format.ErrUsage, What: "no tokens to run"}
	}
	if err := s.check(0, tokens); err != nil {
		return nil, err
	}
	same := 0
	for same < len(tokens) && same < len(s.tokens) && tokens[same] == s.tokens[same] {
		same++
	}
	if same == len(tokens) && (same < len(s.tokens) || !s.fresh) {
		same-- // the last token's logits are not kept: run it again
	}
	s.Rewind(same)
	if same < len(tokens) {
		if err := s.Append(ctx, tokens[same:], nil); err != nil {
			return nil, err
		}
	}
	if err := s.draft.follow(ctx); err != nil {
		return nil, err
	}
	return s.logits, nil
}

// Rewind keeps the first n tokens. Recurrent layers cannot go back: before more
// tokens are run, their states are made anew from the first on.
func (s *Session) Rewind(n int) {
	if n < len(s.tokens) {
		s.tokens, s.fresh = s.tokens[:max(n, 0)], false
		s.draft.rewind(len(s.tokens))
	}
	if s.state > len(s.tokens) {
		s.state = 0
	}
}

// replay brings the states of recurrent layers up to the timeline.
func (s *Session) replay(ctx context.Context) error {
	for s.m.Config.Recurrent != nil && s.state < len(s.tokens) {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := s.tokens[s.state:min(s.state+s.chunk, len(s.tokens))]
		if err := s.run(Batch{S: len(part), Pos: s.state, Tokens: part}); err != nil {
			return err
		}
	}
	return nil
}

// run is the body for a batch that follows what the states have seen.
func (s *Session) run(b Batch) error {
	s.state = 0 // until it is through, they are of no use
	if err := s.m.be.Run(s.p.body, b); err != nil {
		return err
	}
	s.state = b.Pos + b.S
	return nil
}

// Logits is [vocab] after the last token, nil before the first.
func (s *Session) Logits() []float32 {
	if !s.fresh {
		return nil
	}
	return s.logits
}

// Append runs tokens after the timeline. Where each is given it gets the logits
// after every one of them in order (valid during the call); otherwise only the
// last ones are computed. A cancelled context stops between chunks; the
// timeline then holds the chunks that are done.
func (s *Session) Append(ctx context.Context, tokens []int32, each func(i int, logits []float32) error) error {
	if err := s.check(len(s.tokens), tokens); err != nil {
		return err
	}
	if err := s.replay(ctx); err != nil {
		return err
	}
	for first := 0; first < len(tokens); first += s.chunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := tokens[first:min(first+s.chunk, len(tokens))]
		start := time.Now()
		b := Batch{S: len(part), Pos: len(s.tokens), Tokens: part}
		if err := s.run(b); err != nil {
			return err
		}
		s.tokens, s.fresh = append(s.tokens, part...), false
		s.ran += len(part)
		from := len(part) - 1
		if each != nil {
			from = 0
		} else if first+len(part) < len(tokens) {
			continue
		}
		for row := from; row < len(part); row += s.p.headRows {
			n := min(s.p.headRows, len(part)-row)
			if err := s.head(Batch{S: n, Pos: b.Pos, Row: row}, first+row, each); err != nil {
				return err
			}
		}
		if len(part) == 1 {
			s.forward = append(s.forward, time.Since(start))
		}
	}
	return nil
}

func (s *Session) head(b Batch, index int, each func(i int, logits []float32) error) error {
	if err := s.m.be.Run(s.p.head, b); err != nil {
		return err
	}
	if s.logits == nil {
		s.logits = make([]float32, s.p.logits.N)
	}
	for i := range b.S {
		if err := s.m.be.Read(s.p.logits, i, s.logits); err != nil {
			return err
		}
		if err := s.finite(b.Pos + b.Row + i); err != nil {
			return err
		}
		s.fresh = b.Pos+b.Row+i == len(s.tokens)-1
		if each != nil {
			if err := each(index+i, s.logits); err != nil {
				return err
			}
		}
	}
	return nil
}

// finite refuses logits that no sampler could use, naming the weights to blame
// where their scales show it.
func (s *Session) finite(position int) error {
	for id, v := range s.logits {
		if !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
			continue
		}
		e := &format.Error{Kind: format.ErrCorrupt, Path: s.m.Snapshot.Dir, What: fmt.Sprintf("logits are not finite at position %d (token %d: %v)", position, id, v)}
		if bad := s.m.badScales(); len(bad) > 0 {
			e.Tensor = bad[0]
			e.What = "scales are not finite, so " + e.What
			if len(bad) > 1 {
				e.What += "; also in " + strings.Join(bad[1:], ", ")
			}
		} else {
			e.What += "; inspect --verify checks every weight"
		}
		return e
	}
	return nil
}

// check refuses, before anything is run or forgotten, tokens that cannot follow
// the first n of a timeline.
func (s *Session) check(n int, tokens []int32) error {
	if n += len(tokens); n > s.ctx {
		return &format.Error{Kind: format.ErrUsage, What: "the context is too small",
			Found: fmt.Sprintf("%d tokens", n), Wanted: fmt.Sprintf("at most %d; see --ctx-size", s.ctx)}
	}
	for i, t := range tokens {
		if t < 0 || int(t) >= s.m.Config.VocabSize {
			return &format.Error{Kind: format.ErrUsage, What: fmt.Sprintf("token id at index %d", i), Found: fmt.Sprint(t), Wanted: fmt.Sprintf("0 … %d", s.m.Config.VocabSize-1)}
		}
	}
	return nil
}

// Fingerprint names logits: two machines that print the same one have the same
// bits.
func Fingerprint(logits []float32) string {
	h := sha256.New()
	fmt.Fprintf(h, "hawkmoth arithmetic %d\n", ArithmeticVersion)
	buf := make([]byte, 0, 4*len(logits))
	for _, v := range logits {
		buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(v))
	}
	h.Write(buf)
	return hex.EncodeToString(h.Sum(nil)[:8])
}
