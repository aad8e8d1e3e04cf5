package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/runtime"
	"hawkmoth/runtime/chat"
	"hawkmoth/runtime/jinja"
)

// chatMax is how long an answer may be where the user does not say: it ends by
// itself, a continued text does not.
const chatMax = 2048

// chatFlags are what a chat template adds to a generation.
type chatFlags struct {
	chat, raw, noChat     bool
	system                string
	thinking              string
	template, templateArg string

	voice *voice // of an answer; nil where text is continued
}

// thinkings are the values of --thinking.
var thinkings = []string{"show", "hide", "off"}

func (f *chatFlags) registerChat(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.chat, "chat", false, "talk with the model, message by message; /help lists what else can be typed")
	fl.BoolVar(&f.raw, "raw", false, "continue the text as it is, without the model's chat template")
	fl.BoolVar(&f.noChat, "no-chat", false, "the same as --raw")
	_ = fl.MarkHidden("no-chat")
	fl.StringVar(&f.system, "system", "", "system message, `TEXT` that the chat template puts before everything else")
	fl.StringVar(&f.thinking, "thinking", "show", "what a model thinks before it answers, `MODE` show (on standard error), hide or off (asks the template for none)")
	fl.StringVar(&f.template, "chat-template", "", "`FILE` with a chat template to use instead of the model's")
	fl.StringVar(&f.templateArg, "chat-template-kwargs", "", "more variables for the template, a `JSON` object such as {\"enable_thinking\":false}")
	cmd.MarkFlagsMutuallyExclusive("chat", "raw")
	cmd.MarkFlagsMutuallyExclusive("chat", "no-chat")
}

// checkChat says what is wrong with the flags before anything is opened.
func (g *generateFlags) checkChat(cmd *cobra.Command) error {
	g.raw = g.raw || g.noChat
	known := false
	for _, t := range thinkings {
		known = known || g.thinking == t
	}
	if !known {
		return &format.Error{Kind: format.ErrUsage, What: "--thinking", Found: fmt.Sprintf("%q", g.thinking), Wanted: strings.Join(thinkings, ", ")}
	}
	if g.raw {
		for _, flag := range []string{"system", "chat-template", "chat-template-kwargs"} {
			if cmd.Flags().Changed(flag) {
				return cli.Usagef("--raw uses no chat template, so --%s has no place", flag)
			}
		}
	}
	return nil
}

// extra is the variables that flags give a template.
func (f *chatFlags) extra() (*jinja.Dict, error) {
	d := jinja.NewDict()
	if f.templateArg != "" {
		v, err := jinja.DecodeJSON([]byte(f.templateArg))
		given, ok := v.(*jinja.Dict)
		if err != nil || !ok {
			return nil, &format.Error{Kind: format.ErrUsage, What: "--chat-template-kwargs", Found: fmt.Sprintf("%q", f.templateArg), Wanted: "a JSON object", Err: err}
		}
		d = given
	}
	if f.thinking == "off" {
		d.Set("enable_thinking", false)
		d.Set("thinking", false)
	}
	return d, nil
}

// openTemplate is the chat template from the flag's file or the model's own;
// nil without either.
func (f *chatFlags) openTemplate(m *runtime.Model) (*chat.Template, error) {
	if f.template == "" {
		t, err := chat.Open(m.Snapshot.ReadJSONFile)
		return t, cli.Hint(err, "--raw continues text without the template, --chat-template FILE uses another")
	}
	source, err := os.ReadFile(f.template)
	if err != nil {
		return nil, err
	}
	config, err := m.Snapshot.ReadJSONFile(chat.ConfigFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return chat.Parse(f.template, string(source), config)
}

// noTemplate is the refusal of what only a template can do.
func noTemplate(m *runtime.Model, what string) error {
	return cli.Hint(&format.Error{Kind: format.ErrIncomplete, Path: m.Snapshot.Dir, What: what + " needs a chat template, and the model has none",
		Wanted: fmt.Sprintf("chat_template in %s, or %s", chat.ConfigFile, chat.TemplateFile)}, "--chat-template FILE brings one; -p TEXT continues text without")
}

// promptIDs makes token ids of the user's text: one message of a conversation
// if the model has a chat template, else the text as it is.
func (g *generateFlags) promptIDs(cmd *cobra.Command, m *runtime.Model, text string) ([]int32, error) {
	if g.raw {
		return m.Tokenizer.EncodeSpecial(text), nil
	}
	t, err := g.openTemplate(m)
	if err != nil {
		return nil, err
	}
	if t == nil {
		for _, flag := range []string{"system", "chat-template-kwargs"} {
			if cmd.Flags().Changed(flag) {
				return nil, noTemplate(m, "--"+flag)
			}
		}
		return m.Tokenizer.EncodeSpecial(text), nil
	}
	extra, err := g.extra()
	if err != nil {
		return nil, err
	}
	prompt, err := t.Render(chat.Request{Messages: messages(g.system, chat.Say("user", text)), Generate: true, Extra: extra, Now: time.Now()})
	if err != nil {
		return nil, err
	}
	cli.Note(cmd, "one message with the chat template of %s; --raw continues the text as it is", t.Path())
	g.answerLength(cmd)
	g.voice = g.newVoice(cmd, prompt)
	return m.Tokenizer.Encode(prompt), nil
}

// answerLength is --max-tokens where the model decides when it has said enough.
func (g *generateFlags) answerLength(cmd *cobra.Command) {
	if !cmd.Flags().Changed("max-tokens") && !cmd.Flags().Changed("predict") {
		g.max = chatMax
	}
}

func messages(system string, rest ...chat.Message) []chat.Message {
	if system == "" {
		return rest
	}
	return append([]chat.Message{chat.Say("system", system)}, rest...)
}

// voice prints what a model says: its answer on standard output, what it thinks
// on standard error, so that a redirected output is the answer alone.
type voice struct {
	split           *chat.Splitter
	show            bool // thoughts
	thinks          bool // the last part was a thought
	answer, thought strings.Builder
}

func (g *generateFlags) newVoice(cmd *cobra.Command, prompt string) *voice {
	return &voice{split: chat.NewSplitter(prompt), show: g.thinking == "show" && !cli.Quiet(cmd)}
}

// say prints text as it is generated.
func (g *generateFlags) say(cmd *cobra.Command, text string) error {
	if g.voice == nil {
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	return g.voice.parts(cmd, g.voice.split.Next(text))
}

// hear notes text that is printed in another form.
func (g *generateFlags) hear(text string) {
	if g.voice != nil {
		for _, p := range g.voice.split.Next(text) {
			g.voice.note(p)
		}
	}
}

// finish prints the rest and ends the line.
func (g *generateFlags) finish(cmd *cobra.Command, rest string) error {
	if err := g.say(cmd, rest); err != nil {
		return err
	}
	if v := g.voice; v != nil {
		if err := v.parts(cmd, v.split.Flush()); err != nil {
			return err
		}
		if v.thinks { // and never answered
			v.endThought(cmd)
			return nil
		}
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout())
	return err
}

func (v *voice) parts(cmd *cobra.Command, parts []chat.Part) error {
	for _, p := range parts {
		v.note(p)
		if p.Thought {
			if v.show {
				_, _ = io.WriteString(cmd.ErrOrStderr(), cli.Paint(cmd, cmd.ErrOrStderr(), cli.Dim, p.Text))
			}
			v.thinks = true
			continue
		}
		if v.thinks {
			v.endThought(cmd)
		}
		if _, err := io.WriteString(cmd.OutOrStdout(), p.Text); err != nil {
			return err
		}
	}
	return nil
}

func (v *voice) note(p chat.Part) {
	if p.Thought {
		v.thought.WriteString(p.Text)
	} else {
		v.answer.WriteString(p.Text)
	}
}

func (v *voice) endThought(cmd *cobra.Command) {
	if v.thinks = false; v.show {
		_, _ = io.WriteString(cmd.ErrOrStderr(), "\n\n")
	}
}

// message is what was said, for the conversation so far. Templates that show
// thoughts look for them under one of two names.
func (v *voice) message() chat.Message {
	for _, p := range v.split.Flush() {
		v.note(p)
	}
	m := chat.Say("assistant", v.answer.String())
	if t := v.thought.String(); t != "" {
		m.Set("reasoning_content", t)
		m.Set("thinking", t)
	}
	return m
}
