package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/runtime"
	"hawkmoth/runtime/chat"
	"hawkmoth/runtime/jinja"
)

// chatCommands are what can be typed instead of a message.
var chatCommands []struct {
	name, arg, help string
	run             func(c *conversation, arg string) error
}

func init() {
	chatCommands = []struct {
		name, arg, help string
		run             func(c *conversation, arg string) error
	}{
		{"/help", "", "this list", (*conversation).help},
		{"/clear", "", "forget the conversation, but not the system message", (*conversation).clear},
		{"/system", "[TEXT]", "set the system message; without TEXT, show it", (*conversation).setSystem},
		{"/stats", "", "tokens, times and memory so far", (*conversation).stats},
		{"/save", "FILE", "write the conversation as JSON", (*conversation).save},
		{"/load", "FILE", "go on with a conversation from a file", (*conversation).load},
		{"/quit", "", "end the program, as Ctrl-D does", func(*conversation, string) error { return io.EOF }},
	}
}

func (c *conversation) command(text string) error {
	name, arg, _ := strings.Cut(text, " ")
	for _, k := range chatCommands {
		if k.name != name {
			continue
		}
		arg = strings.TrimSpace(arg)
		if k.arg == "" && arg != "" {
			return cli.Usagef("%s takes nothing, not %q", name, arg)
		}
		if k.arg != "" && k.arg[0] != '[' && arg == "" {
			return cli.Usagef("%s needs a %s", name, k.arg)
		}
		return k.run(c, arg)
	}
	return cli.Hint(cli.Usagef("unknown command %s", name), "/help lists them; a message that starts with a slash is typed with two")
}

func (c *conversation) help(string) error {
	t := cli.NewTable("", "").Left(0, 1)
	for _, k := range chatCommands {
		t.Add("  "+strings.TrimSpace(k.name+" "+k.arg), k.help)
	}
	t.Add(`  text \`, "a line that ends in a backslash goes on in the next")
	t.Add("  //text", "a message that starts with a slash")
	c.note("%s", strings.Trim(t.String(), "\n"))
	return nil
}

func (c *conversation) clear(string) error {
	c.past = nil
	c.note("the conversation is forgotten")
	return nil
}

func (c *conversation) setSystem(text string) error {
	if text != "" {
		c.system = text
	}
	if c.system == "" {
		c.note("there is no system message")
		return nil
	}
	c.note("system message: %s", c.system)
	return nil
}

func (c *conversation) stats(string) error {
	t := c.total
	c.note("%s in the conversation, %s answered", count(len(messages(c.system, c.past...)), "message"), count(t.turns, "message"))
	c.note("prompts: %s · %d of them kept from the turns before", rate(t.prompt, perSecond(t.prompt-t.kept, t.promptSeconds)), t.kept)
	c.note("answers: %s", rate(t.generated, perSecond(t.generated, t.generateSeconds)))
	if c.g.draft > 0 && c.sess != nil {
		c.note("%s", since(c.sess.Drafts(), runtime.DraftStats{}))
	}
	if c.sess != nil {
		c.note("context: %d of %s used, cache %s", len(c.sess.Tokens()), count(c.sess.CtxSize(), "token"), cli.Bytes(c.sess.CacheBytes()))
	}
	c.note("peak memory: %s", cli.Bytes(cli.PeakMemory()))
	return nil
}

// save writes the messages as a JSON list. Only a file that this conversation
// comes from or went to is replaced.
func (c *conversation) save(path string) error {
	var b strings.Builder
	for i, m := range messages(c.system, c.past...) {
		text, err := jinja.EncodeJSON(m)
		if err != nil {
			return err
		}
		b.WriteString(map[bool]string{true: "[\n", false: ",\n"}[i == 0] + text)
	}
	if b.Len() == 0 {
		return cli.Usagef("there is nothing to save yet")
	}
	if _, err := os.Lstat(path); err == nil && path != c.saved {
		return &format.Error{Kind: format.ErrConflict, Path: path, What: "is there already, and not from this conversation"}
	}
	// What is there stays whole until the new text is.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return &format.Error{Path: path, What: "cannot be written", Err: err}
	}
	_, err = f.WriteString(b.String() + "\n]\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	c.saved = path
	c.note("saved to %s", path)
	return nil
}

func (c *conversation) load(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	wrong := func(what string, err error) error {
		return &format.Error{Kind: format.ErrUsage, Path: path, What: what, Wanted: `a JSON list of messages such as {"role": "user", "content": "Hi"}`, Err: err}
	}
	v, err := jinja.DecodeJSON(data)
	list, ok := v.(*jinja.List)
	if err != nil || !ok {
		return wrong("not a conversation", err)
	}
	system := ""
	var past []chat.Message
	for i, item := range list.Items {
		m, ok := item.(*jinja.Dict)
		if !ok {
			return wrong(fmt.Sprintf("message %d", i), nil)
		}
		role, _ := m.Get("role")
		content, _ := m.Get("content")
		if _, ok := role.(string); !ok {
			return wrong(fmt.Sprintf("message %d has no role", i), nil)
		}
		if text, ok := content.(string); ok && i == 0 && role == "system" {
			system = text
			continue
		}
		past = append(past, m)
	}
	c.system, c.past, c.saved = system, past, path
	c.note("%s from %s", count(len(list.Items), "message"), path)
	return nil
}
