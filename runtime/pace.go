package runtime

import (
	"slices"
	"time"
)

// pace finds out by the clock whether drafts save time: windows of passes with
// and without them take turns, and the better kind gets the longer ones. It
// changes speed, never a token.
type pace struct {
	drafts bool // the window that is running has drafts
	left   int  // passes of it
	tried  bool // a window with drafts has ended
	pays   bool // the last one did
	wait   int  // passes until the next try, if it did not

	tokens, passes int                      // of the window
	took           [paceProbe]time.Duration // by its last passes
	plain          float64                  // seconds a token of the last window without drafts
}

// Passes of a window.
const (
	paceProbe = 8   // of the kind that loses
	pacePays  = 128 // with drafts that pay
	paceWait  = 64  // without, after drafts that do not pay; doubles up to
	paceMost  = 2048
)

func newPace() pace { return pace{left: paceProbe, wait: paceWait} }

func (p *pace) ran(tokens int, took time.Duration) {
	p.tokens += tokens
	p.took[p.passes%paceProbe] = took
	p.passes++
	if p.left--; p.left > 0 {
		return
	}
	slices.Sort(p.took[:]) // the median: other programs' load is not the drafts' cost
	cost := p.took[paceProbe/2].Seconds() * float64(p.passes) / float64(p.tokens)
	switch {
	case !p.drafts:
		p.plain = cost
		p.left = paceProbe
		if p.pays {
			p.left = pacePays
		}
	case cost < p.plain:
		p.pays, p.wait, p.left = true, paceWait, paceProbe
	default:
		p.left, p.pays = p.wait, false
		p.wait = min(2*p.wait, paceMost)
	}
	p.tried = p.tried || p.drafts
	p.drafts = !p.drafts
	p.tokens, p.passes = 0, 0
}
