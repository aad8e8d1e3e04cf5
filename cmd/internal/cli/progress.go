package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Progress counts bytes or things on the error stream: a bar with rate and
// remaining time on a terminal, a line for each shard elsewhere, nothing with -q
// or --json. Its methods may be called by several goroutines, and on nil.
type Progress struct {
	label string
	total int64
	done  atomic.Int64
	bar   *progressbar.ProgressBar // nil off a terminal
	room  int                      // columns for what the bar is called
	lines io.Writer                // nil on a terminal
}

// NewProgress starts a progress of total bytes; it is nil with -q or --json.
func NewProgress(cmd *cobra.Command, label string, total int64) *Progress {
	return newProgress(cmd, label, total, progressbar.OptionShowBytes(true), progressbar.OptionShowTotalBytes(true))
}

// NewCount starts a progress of things such as tokens, whose short name is unit.
func NewCount(cmd *cobra.Command, label, unit string, total int64) *Progress {
	return newProgress(cmd, label, total, progressbar.OptionShowIts(), progressbar.OptionSetItsString(unit))
}

func newProgress(cmd *cobra.Command, label string, total int64, counted ...progressbar.Option) *Progress {
	if Quiet(cmd) || JSON(cmd) {
		return nil
	}
	w := cmd.ErrOrStderr()
	p := &Progress{label: label, total: total}
	if !Terminal(w) || os.Getenv("TERM") == "dumb" { // which has no way back to the start of a line
		p.lines = w
		return p
	}
	width := 24
	width, p.room = fit(columns(w), width)
	p.bar = progressbar.NewOptions64(total, append(counted,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(p.called("")),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionSetWidth(width),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetRenderBlankState(true),
		progressbar.OptionClearOnFinish(),
	)...)
	return p
}

// fit divides a line between the bar, at most width columns of it, its name and
// its numbers: what is wider than the screen cannot be taken off it again.
func fit(columns, width int) (bar, room int) {
	const numbers, name = 52, 10
	bar = max(min(width, columns-numbers-name), 1)
	return bar, max(columns-numbers-bar, 0)
}

func columns(w any) int {
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 80
}

// called is the label, with what is being done if there is room for it.
func (p *Progress) called(text string) string {
	if name := strings.TrimSpace(p.label + " " + text); utf8.RuneCountInString(name) <= p.room {
		return name
	}
	if len(p.label) <= p.room {
		return p.label
	}
	return ""
}

// Add counts n more bytes.
func (p *Progress) Add(n int64) {
	if p == nil {
		return
	}
	p.done.Add(n)
	if p.bar != nil {
		_ = p.bar.Add64(n)
	}
}

// Line names what is being done, such as a shard: a line of its own off a
// terminal, the bar's description on one.
func (p *Progress) Line(text string) {
	switch {
	case p == nil:
	case p.bar != nil:
		p.bar.Describe(p.called(text))
	default:
		_, _ = fmt.Fprintf(p.lines, "%s: %s (%s of %s)\n", p.label, text, Bytes(p.done.Load()), Bytes(p.total))
	}
}

// Done takes the bar off the screen; calling it again is harmless.
func (p *Progress) Done() {
	if p != nil && p.bar != nil {
		_ = p.bar.Finish()
	}
}
