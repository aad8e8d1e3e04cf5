// Package chat renders conversations as a model was trained to read them, with
// the template that its checkpoint carries.
package chat

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"hawkmoth/format"
	"hawkmoth/runtime/jinja"
)

// The files of a checkpoint that templates come from.
const (
	ConfigFile   = "tokenizer_config.json"
	TemplateFile = "chat_template.jinja" // before the one in ConfigFile
)

// specialTokens are the keys of ConfigFile that templates may ask for.
var specialTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// Template is the chat template of a model, or several under names. It may be
// used by several goroutines.
type Template struct {
	path    string
	names   []string
	named   map[string]*jinja.Template
	special *jinja.Dict
}

// Message is one message of a conversation: role, content and whatever else its
// template knows, such as tool_calls.
type Message = *jinja.Dict

// Say is a message of plain text.
func Say(role, content string) Message {
	return jinja.NewDict("role", role, "content", content)
}

// Request is what a template renders.
type Request struct {
	Messages []Message
	// Generate ends the text where the model's answer begins.
	Generate bool
	// Name is the template to use where there are several: "" is "default", or
	// "tool_use" if that exists and there are tools.
	Name             string
	Tools, Documents jinja.Value // as the template's tools and documents; nil for none
	Extra            *jinja.Dict // further variables, such as enable_thinking
	Now              time.Time   // what strftime_now tells
}

// Open finds the template of a checkpoint, whose files read returns. It is nil
// if there is none.
func Open(read func(name string) ([]byte, error)) (*Template, error) {
	config, err := read(ConfigFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	source, err := read(TemplateFile)
	switch {
	case err == nil:
		return Parse(TemplateFile, string(source), config)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	t, templates, err := settings(config)
	if err != nil || templates == nil {
		return nil, err
	}
	t.path = ConfigFile
	switch v := templates.(type) {
	case string:
		return t, t.add("default", v)
	case *jinja.List:
		for i, item := range v.Items {
			d, _ := item.(*jinja.Dict)
			if d == nil {
				d = jinja.NewDict()
			}
			name, _ := d.Get("name")
			text, _ := d.Get("template")
			n, ok1 := name.(string)
			s, ok2 := text.(string)
			if !ok1 || !ok2 || t.named[n] != nil {
				return nil, &format.Error{Kind: format.ErrCorrupt, Path: t.path, What: fmt.Sprintf("chat_template %d", i), Wanted: "a name of its own and a template"}
			}
			if err := t.add(n, s); err != nil {
				return nil, err
			}
		}
		if len(t.names) > 0 {
			return t, nil
		}
	}
	return nil, &format.Error{Kind: format.ErrCorrupt, Path: t.path, What: "chat_template", Wanted: "a string or a list of templates with names"}
}

// Parse reads one template from a file; config is the model's ConfigFile, nil
// if it has none.
func Parse(path, source string, config []byte) (*Template, error) {
	t, _, err := settings(config)
	if err != nil {
		return nil, err
	}
	t.path = path
	return t, t.add("default", source)
}

// settings reads the special tokens and the templates of ConfigFile.
func settings(config []byte) (*Template, jinja.Value, error) {
	t := &Template{named: map[string]*jinja.Template{}, special: jinja.NewDict()}
	if len(config) == 0 {
		return t, nil, nil
	}
	v, err := jinja.DecodeJSON([]byte(strings.TrimPrefix(string(config), "\xef\xbb\xbf")))
	c, ok := v.(*jinja.Dict)
	if err != nil || !ok {
		return nil, nil, &format.Error{Kind: format.ErrCorrupt, Path: ConfigFile, What: "not a JSON object", Err: err}
	}
	for _, name := range specialTokens {
		v, _ := c.Get(name)
		if d, ok := v.(*jinja.Dict); ok { // an added token with its properties
			v, _ = d.Get("content")
		}
		if s, ok := v.(string); ok {
			t.special.Set(name, s)
		}
	}
	templates, _ := c.Get("chat_template")
	return t, templates, nil
}

func (t *Template) add(name, source string) error {
	p, err := jinja.Parse(source)
	if err != nil {
		return t.wrong(name, err)
	}
	t.names = append(t.names, name)
	t.named[name] = p
	return nil
}

// wrong gives a template's error a place and a kind.
func (t *Template) wrong(name string, err error) error {
	out := &format.Error{Kind: format.ErrCorrupt, Path: t.path, What: "chat template"}
	if name != "default" {
		out.What += " " + name
	}
	var e *jinja.Error
	switch {
	case !errors.As(err, &e):
	case e.Raised:
		out.Kind, out.What = format.ErrUsage, out.What+" refuses the conversation"
	case e.Unsupported:
		out.Kind = format.ErrUnsupported
	}
	out.What += ": " + err.Error() // not as the cause: the words may be the template's, and are made safe to print
	return out
}

// Names is the templates that there are.
func (t *Template) Names() []string { return slices.Clone(t.names) }

// Path is the file that the template comes from.
func (t *Template) Path() string { return t.path }

// Render is the text of a conversation; Tokenizer.Encode makes ids of it, since
// it has its special tokens already. Messages that the template refuses are
// format.ErrUsage.
func (t *Template) Render(r Request) (string, error) {
	name := r.Name
	if name == "" {
		name = "default"
		if r.Tools != nil && t.named["tool_use"] != nil {
			name = "tool_use"
		}
	}
	p := t.named[name]
	if p == nil {
		return "", &format.Error{Kind: format.ErrUsage, Path: t.path, What: "no such chat template", Found: name, Wanted: strings.Join(t.names, ", ")}
	}
	messages := jinja.NewList()
	for _, m := range r.Messages {
		messages.Items = append(messages.Items, m)
	}
	vars := jinja.NewDict("messages", messages, "tools", r.Tools, "documents", r.Documents, "add_generation_prompt", r.Generate)
	for _, d := range []*jinja.Dict{t.special, r.Extra} {
		if d == nil {
			continue
		}
		for _, k := range d.Keys() {
			v, _ := d.Get(k)
			vars.Set(k, v)
		}
	}
	text, err := p.Render(vars, r.Now)
	if err != nil {
		return "", t.wrong(name, err)
	}
	return text, nil
}
