package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/runtime"
	"hawkmoth/runtime/chat"
	"hawkmoth/runtime/jinja"
)

// chatContext is how many tokens a conversation starts with room for; where -c
// does not fix the size it grows, up to the model's limit.
const chatContext = 4096

// conversation is a chat at the keyboard, or of the lines of a script.
type conversation struct {
	g       *generateFlags
	cmd     *cobra.Command
	model   *runtime.Model
	sampler *runtime.Sampler
	summary summary // what every turn's has in common
	tpl     *chat.Template
	extra   *jinja.Dict
	in      input
	signals <-chan os.Signal

	sess   *runtime.Session // nil before the first turn
	system string
	past   []chat.Message
	saved  string // the file that /save may overwrite
	total  struct {
		turns, prompt, kept, generated int
		promptSeconds, generateSeconds float64
	}
}

// converse runs --chat.
func converse(cmd *cobra.Command, dir string, g *generateFlags) (err error) {
	c := &conversation{g: g, cmd: cmd, system: g.system}
	if c.sampler, err = g.prepare(cmd, &c.summary); err != nil {
		return err
	}
	if g.raw {
		return cli.Usagef("--chat needs the chat template that --raw leaves out")
	}
	if c.extra, err = g.extra(); err != nil {
		return err
	}
	if c.model, err = g.load(cmd, dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.model.Close()) }()
	if err := needTokenizer(c.model); err != nil {
		return err
	}
	if c.tpl, err = g.openTemplate(c.model); err != nil {
		return err
	}
	if c.tpl == nil {
		return noTemplate(c.model, "--chat")
	}
	g.answerLength(cmd)
	g.loadDraft(cmd, c.model)

	if err := cmd.Context().Err(); err != nil { // stopped while it loaded
		return err
	}
	// Ctrl-C stops an answer, so that the context it cancels cannot be the one
	// that the program runs in.
	cmd.SetContext(context.WithoutCancel(cmd.Context()))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	c.signals, c.in = signals, newInput(cmd)
	defer c.in.close()
	defer c.close()
	return c.run()
}

func (c *conversation) close() {
	if c.sess != nil {
		c.sess.Close()
	}
}

// run takes messages until there are no more. A message that cannot be answered
// is reported, and the conversation goes on; in a script it makes the exit code.
func (c *conversation) run() error {
	c.greet()
	message, err := c.first()
	var failed error
	for ; err == nil; message, err = c.in.next(c.signals) {
		err := c.take(message)
		switch {
		case errors.Is(err, io.EOF):
			return failed
		case errors.Is(err, context.Canceled), errors.Is(err, syscall.EPIPE):
			return err
		case err != nil:
			if err = cli.Report(c.cmd, err); !c.in.interactive() {
				failed = err
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	return failed
}

// take does what was typed.
func (c *conversation) take(message string) error {
	text := strings.TrimSpace(message)
	switch {
	case text == "":
		return nil
	case strings.HasPrefix(text, "//"):
		return c.turn(text[1:])
	case text[0] == '/':
		return c.command(text)
	}
	return c.turn(message)
}

// first is the message that the flags bring, else the first line.
func (c *conversation) first() (string, error) {
	if c.g.file != "" || c.cmd.Flags().Changed("prompt") {
		return c.g.text(c.cmd)
	}
	return c.in.next(c.signals)
}

func (c *conversation) greet() {
	stops := make([]string, len(c.model.Stops))
	for i, id := range c.model.Stops {
		stops[i] = fmt.Sprintf("%q (%d)", c.model.Tokenizer.TokenBytes(id), id)
	}
	if len(stops) == 0 {
		cli.Warn(c.cmd, "the model names no token that ends an answer: each goes on for %s", count(c.g.max, "token"))
	}
	c.note("chat template of %s · answers end at %s or after %s", c.tpl.Path(), strings.Join(stops, ", "), count(c.g.max, "token"))
	if c.in.interactive() {
		c.note("/help lists what can be typed; Ctrl-C stops an answer, Ctrl-D ends the program")
	}
}

// note prints a line for people: an event with --json.
func (c *conversation) note(text string, args ...any) {
	if cli.JSON(c.cmd) {
		_ = cli.PrintJSON(c.cmd, event{Event: "note", Text: fmt.Sprintf(text, args...)})
		return
	}
	cli.Note(c.cmd, text, args...)
}

// turn sends one message and prints the answer. The message is forgotten if the
// answer fails; what was said before an interrupt is kept.
func (c *conversation) turn(text string) error {
	now := append(c.past[:len(c.past):len(c.past)], chat.Say("user", text))
	prompt, err := c.tpl.Render(chat.Request{Messages: messages(c.system, now...), Generate: true, Extra: c.extra, Now: time.Now()})
	if err != nil {
		return err
	}
	ids := c.model.Tokenizer.Encode(prompt)
	if len(ids) == 0 {
		return &format.Error{Kind: format.ErrUsage, Path: c.tpl.Path(), What: "the chat template makes nothing of the conversation"}
	}
	if err := c.room(len(ids)); err != nil {
		return cli.Hint(err, "/clear forgets the conversation; -c gives more room where the model allows it")
	}
	s := c.summary
	c.g.voice = c.g.newVoice(c.cmd, prompt)
	stopped, err := c.interruptible(func() error { return c.g.stream(c.cmd, c.model, c.sess, c.sampler, ids, &s) })
	c.count(&s)
	if err != nil && !(stopped != nil && errors.Is(err, context.Canceled)) {
		return err
	}
	if s.GeneratedTokens > 0 || stopped == nil {
		c.past = append(now, c.g.voice.message())
	}
	if stopped != nil && cli.JSON(c.cmd) { // an answer that ended by itself has said so
		if err := cli.PrintJSON(c.cmd, event{Event: "end", Summary: &s}); err != nil {
			return err
		}
	}
	if stopped == syscall.SIGTERM {
		return context.Canceled
	}
	return nil
}

// room makes a session that a prompt fits into. What a longer one costs is that
// the conversation is read again.
func (c *conversation) room(prompt int) error {
	limit := c.model.Config.MaxPositions
	if c.g.ctx > 0 {
		limit = min(limit, c.g.ctx)
	}
	size := min(chatContext, limit)
	if c.sess != nil {
		size = c.sess.CtxSize()
	}
	for size < min(prompt+c.g.max, limit) {
		size = min(2*size, limit)
	}
	if c.g.ctx > 0 {
		size = limit
	}
	if c.sess == nil || c.sess.CtxSize() < size || prompt > size {
		sess, err := c.g.session(c.model, "the conversation", prompt, size)
		if err != nil {
			return err
		}
		if c.sess != nil {
			c.note("the context grows to %s: the conversation is read again", count(size, "token"))
		}
		c.close()
		c.sess = sess
	}
	if room := c.sess.CtxSize() - prompt + 1; c.g.max > room {
		c.note("the context holds %s, the conversation has %d: the answer ends after %d", count(c.sess.CtxSize(), "token"), prompt, room)
	}
	return nil
}

// interruptible runs f until it ends or a signal stops it.
func (c *conversation) interruptible(f func() error) (stopped os.Signal, err error) {
	base := c.cmd.Context()
	ctx, cancel := context.WithCancel(base)
	c.cmd.SetContext(ctx)
	defer c.cmd.SetContext(base)
	done := make(chan error, 1)
	go func() { done <- f() }()
	for {
		select {
		case err := <-done:
			cancel()
			return stopped, err
		case stopped = <-c.signals:
			cancel()
		}
	}
}

func (c *conversation) count(s *summary) {
	t := &c.total
	t.turns++
	t.prompt += s.PromptTokens
	t.kept += s.KeptTokens
	t.generated += s.GeneratedTokens
	t.promptSeconds += s.PromptSeconds
	t.generateSeconds += s.GenerateSeconds
}
