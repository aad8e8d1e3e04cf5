package runtime

import (
	"context"
	"slices"
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
	for n := range g.Max {
		id, err := g.Sampler.Sample(logits, s.tokens)
		if err != nil {
			return "", err
		}
		if slices.Contains(g.Stops, id) {
			return EndedStop, nil
		}
		if err := g.Each(id, logits); err != nil {
			return "", err
		}
		if n == g.Max-1 {
			break // nobody reads the logits after the last token
		}
		if len(s.tokens) == s.ctx {
			return EndedContext, nil
		}
		if err := s.Append(ctx, []int32{id}, nil); err != nil {
			return "", err
		}
		logits = s.logits
	}
	return EndedMax, nil
}
