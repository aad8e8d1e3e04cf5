package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/runtime"
)

// drafted is what drafts brought to a generation.
type drafted struct {
	Drafted          int     `json:"drafted_tokens"`
	Accepted         int     `json:"accepted_tokens"`
	Acceptance       float64 `json:"acceptance"`         // of those drafted
	TokensPerForward float64 `json:"tokens_per_forward"` // that a forward pass of the model adds to the text
	Passes           int     `json:"forwards"`
	PausedForwards   int     `json:"paused_forwards,omitempty"` // without a draft, because drafts did not pay
	tokens           int
}

// since is what drafts brought after an earlier count.
func since(now, then runtime.DraftStats) *drafted {
	d := &drafted{Drafted: now.Drafted - then.Drafted, Accepted: now.Accepted - then.Accepted, Passes: now.Passes - then.Passes,
		PausedForwards: now.Paused - then.Paused, tokens: now.Tokens - then.Tokens}
	d.Acceptance = float64(d.Accepted) / float64(max(d.Drafted, 1))
	d.TokensPerForward = float64(d.tokens) / float64(max(d.Passes, 1))
	return d
}

func (d *drafted) String() string {
	text := "no drafts"
	if d.Drafted > 0 {
		text = fmt.Sprintf("drafts: %d of %d accepted (%s), %.2f tokens a forward", d.Accepted, d.Drafted, cli.Share(d.Acceptance), d.TokensPerForward)
	}
	if d.PausedForwards > 0 {
		text += fmt.Sprintf(", paused for %d: they cost more than they save", d.PausedForwards)
	}
	return text
}

// loadDraft loads the MTP block if drafts are asked for. A model without one
// runs without them.
func (g *generateFlags) loadDraft(cmd *cobra.Command, m *runtime.Model) {
	if g.draft == 0 {
		return
	}
	warnings, err := m.LoadMTP()
	if err != nil {
		cli.Warn(cmd, "no drafts: %v", err)
		g.draft = 0
	}
	for _, w := range warnings {
		cli.Warn(cmd, "%s", w)
	}
}

// session is modelFlags.session with drafts.
func (g *generateFlags) session(m *runtime.Model, what string, least, need int) (*runtime.Session, error) {
	s, err := g.modelFlags.session(m, what, least, need)
	if err != nil {
		return nil, err
	}
	if err := s.Draft(runtime.Drafting{Tokens: g.draft}); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (g *generateFlags) checkDraft() error {
	if g.draft < 0 || g.draft > runtime.MaxDraft {
		return &format.Error{Kind: format.ErrUsage, What: "--draft", Found: fmt.Sprint(g.draft), Wanted: fmt.Sprintf("0 to %d", runtime.MaxDraft)}
	}
	return nil
}
