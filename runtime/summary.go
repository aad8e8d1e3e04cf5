package runtime

import (
	"fmt"
	"strings"
)

// Summary says in one line what a model is made of.
func (c *Config) Summary() string {
	dense := 0
	for l := range c.Layers {
		if !c.Sparse(l) {
			dense++
		}
	}
	parts := []string{fmt.Sprintf("%d layers", c.Layers)}
	switch {
	case dense == 0:
		parts[0] += " with experts"
	case dense < c.Layers:
		parts[0] += fmt.Sprintf(" (%d dense, %d with experts)", dense, c.Layers-dense)
	}
	parts = append(parts, fmt.Sprintf("hidden %d", c.Hidden), c.Attention())
	if c.Experts > 0 {
		text := fmt.Sprintf("%d experts, %d a token", c.Experts, c.ExpertsPerToken)
		if c.SharedExperts > 0 {
			text += fmt.Sprintf(" and %d shared", c.SharedExperts)
		}
		parts = append(parts, text)
	}
	parts = append(parts, fmt.Sprintf("vocabulary %d", c.VocabSize), fmt.Sprintf("context %d", c.MaxPositions))
	if c.MTPLayers > 0 {
		parts = append(parts, "MTP block")
	}
	return strings.Join(parts, "; ")
}

// Attention says how tokens look at each other.
func (c *Config) Attention() string {
	text := fmt.Sprintf("%d heads of %d over %d of keys and values", c.Heads, c.HeadDim, c.KVHeads)
	if c.KVLoRA > 0 {
		text = fmt.Sprintf("%d heads of latent attention (MLA)", c.Heads)
	}
	count := func(n int, in func(l int) bool) (k int) {
		for l := range n {
			if in(l) {
				k++
			}
		}
		return k
	}
	if n := count(len(c.Recurrent), func(l int) bool { return c.Recurrent[l] }); n > 0 {
		text += fmt.Sprintf(", %d layers gated delta networks instead", n)
	}
	if n := count(len(c.Windows), func(l int) bool { return c.Windows[l] > 0 }); n > 0 {
		text += fmt.Sprintf(", %d layers with a sliding window", n)
	}
	if c.Sinks {
		text += ", sinks"
	}
	if c.IndexTopK > 0 {
		text += fmt.Sprintf(", the indexer's best %d positions", c.IndexTopK)
	}
	return text
}
