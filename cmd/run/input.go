package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"hawkmoth/cmd/internal/cli"
)

// input is where messages come from. A message is a line, or several: a line
// that ends in a backslash goes on in the next, and so does text that is pasted.
type input interface {
	// next is the next message, io.EOF after the last. A signal that comes while
	// it waits is context.Canceled.
	next(signals <-chan os.Signal) (string, error)
	interactive() bool
	close()
}

func newInput(cmd *cobra.Command) input {
	in, out := cmd.InOrStdin(), cmd.ErrOrStderr()
	if cli.Terminal(in) && cli.Terminal(out) {
		t := &keyboard{file: in.(*os.File), screen: out.(*os.File)}
		t.term = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{in, out}, "")
		return &waiter{read: t.line, atEnd: t.restore, typed: true}
	}
	lines := bufio.NewReader(in)
	return &waiter{read: func(bool) (string, bool, error) {
		line, err := lines.ReadString('\n')
		if err == io.EOF && line != "" {
			err = nil
		}
		return strings.TrimRight(line, "\r\n"), false, err
	}, atEnd: func() {}}
}

// waiter reads lines so that a signal ends the waiting: a read that waits for a
// person cannot be stopped, so it is left behind.
type waiter struct {
	read  func(more bool) (line string, pasted bool, err error) // more: it continues a message
	atEnd func()
	typed bool
}

func (w *waiter) interactive() bool { return w.typed }

func (w *waiter) close() { w.atEnd() }

func (w *waiter) next(signals <-chan os.Signal) (string, error) {
	if w.typed {
		select {
		case s := <-signals: // a Ctrl-C that came when the answer had just ended
			if s != os.Interrupt {
				return "", context.Canceled
			}
		default:
		}
	}
	type result struct {
		text string
		err  error
	}
	got := make(chan result, 1)
	go func() {
		text, err := w.message()
		got <- result{text, err}
	}()
	select {
	case r := <-got:
		return r.text, r.err
	case <-signals:
		return "", context.Canceled
	}
}

func (w *waiter) message() (string, error) {
	var all []string
	for {
		line, pasted, err := w.read(len(all) > 0)
		if err != nil {
			if len(all) > 0 && errors.Is(err, io.EOF) {
				return strings.Join(all, "\n"), nil
			}
			return "", err
		}
		if rest, more := strings.CutSuffix(line, `\`); more {
			all = append(all, rest)
			continue
		}
		if all = append(all, line); !pasted {
			return strings.Join(all, "\n"), nil
		}
	}
}

// keyboard reads lines from a terminal, with editing and a history. The terminal
// is raw only while it reads: while the model speaks, Ctrl-C is a signal.
type keyboard struct {
	file, screen *os.File
	term         *term.Terminal

	mu    sync.Mutex
	state *term.State // to go back to; nil while the terminal is not raw
}

func (k *keyboard) line(more bool) (line string, pasted bool, err error) {
	state, err := term.MakeRaw(int(k.file.Fd()))
	if err != nil {
		return "", false, err
	}
	k.mu.Lock()
	k.state = state
	k.mu.Unlock()
	defer k.restore()
	if width, height, err := term.GetSize(int(k.screen.Fd())); err == nil && width > 0 {
		_ = k.term.SetSize(width, height)
	}
	k.term.SetPrompt(map[bool]string{false: "> ", true: ". "}[more])
	k.term.SetBracketedPasteMode(true)
	line, err = k.term.ReadLine()
	switch {
	case errors.Is(err, term.ErrPasteIndicator):
		return line, true, nil
	case err != nil:
		_, _ = io.WriteString(k.screen, "\r\n")
	}
	return line, false, err
}

func (k *keyboard) restore() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state == nil {
		return
	}
	k.term.SetBracketedPasteMode(false)
	_ = term.Restore(int(k.file.Fd()), k.state)
	k.state = nil
}
