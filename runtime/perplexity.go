package runtime

import (
	"context"
	"math"
)

// NLL is the negative log-likelihood, in nats, of token id under the logits.
func NLL(logits []float32, id int32) float64 {
	top := math.Inf(-1)
	for _, v := range logits {
		top = max(top, float64(v))
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	return math.Log(sum) - (float64(logits[id]) - top)
}

// Perplexity is how well a model predicts a text.
type Perplexity struct {
	Windows int     `json:"windows"`
	Tokens  int     `json:"tokens"` // scored: all but the first of each window
	NLL     float64 `json:"nll"`    // mean, nats per token
	Value   float64 `json:"perplexity"`
}

// Score runs ids in windows of the given length, each from an empty context,
// and scores every token but a window's first. A last window of one token is
// left out. each is told of every finished window.
func (s *Session) Score(ctx context.Context, ids []int32, window int, each func(done Perplexity)) (Perplexity, error) {
	var p Perplexity
	sum := 0.0
	for first := 0; first+1 < len(ids); first += window {
		part := ids[first:min(first+window, len(ids))]
		s.Rewind(0)
		err := s.Append(ctx, part, func(i int, logits []float32) error {
			if i+1 < len(part) {
				sum += NLL(logits, part[i+1])
			}
			return nil
		})
		if err != nil {
			return p, err
		}
		p.Windows++
		p.Tokens += len(part) - 1
		p.NLL = sum / float64(p.Tokens)
		p.Value = math.Exp(p.NLL)
		if each != nil {
			each(p)
		}
	}
	return p, nil
}
