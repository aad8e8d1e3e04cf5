package chat_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/runtime/chat"
	"hawkmoth/runtime/jinja"
)

var noon = time.Date(2026, 7, 9, 13, 5, 6, 0, time.UTC)

// files is a checkpoint in memory.
func files(list map[string]string) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		if s, ok := list[name]; ok {
			return []byte(s), nil
		}
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
}

func value(t testing.TB, data string) jinja.Value {
	t.Helper()
	v, err := jinja.DecodeJSON([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

const turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"

// TestRealTemplates holds the templates of three families against what Python's
// Jinja2 made of them; cmd/run holds the ids against it.
func TestRealTemplates(t *testing.T) {
	data, err := os.ReadFile(fixtures.Shared(t, "chat/oracle.json"))
	if err != nil {
		t.Fatal(err)
	}
	rows := value(t, string(data)).(*jinja.List).Items
	if len(rows) < 30 {
		t.Fatalf("only %d rows", len(rows))
	}
	get := func(d jinja.Value, key string) jinja.Value {
		v, _ := d.(*jinja.Dict).Get(key)
		return v
	}
	templates := map[string]*chat.Template{}
	for i, row := range rows {
		family := get(row, "family").(string)
		if templates[family] == nil {
			dir := fixtures.Shared(t, "tokenizers/"+family)
			config, err := os.ReadFile(filepath.Join(dir, chat.ConfigFile))
			if err != nil {
				t.Fatal(err)
			}
			if templates[family], err = chat.Open(files(map[string]string{chat.ConfigFile: string(config)})); err != nil {
				t.Fatal(err)
			}
		}
		r := chat.Request{Generate: get(row, "add_generation_prompt").(bool), Now: noon}
		for _, m := range get(row, "messages").(*jinja.List).Items {
			r.Messages = append(r.Messages, m.(*jinja.Dict))
		}
		got, err := templates[family].Render(r)
		if want := get(row, "text").(string); err != nil || got != want {
			t.Errorf("row %d, %s: %v\n got  %q\n want %q", i, family, err, got, want)
		}
	}
}

func TestWhereTemplatesComeFrom(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		req   chat.Request
		want  string
		path  string
	}{
		{"a string", map[string]string{chat.ConfigFile: `{"bos_token":"<s>","eos_token":{"content":"</s>"},"chat_template":"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token is defined }}"}`},
			chat.Request{}, "<s>hi</s>False", chat.ConfigFile},
		{"a BOM", map[string]string{chat.ConfigFile: "\xef\xbb\xbf" + `{"chat_template":"x"}`}, chat.Request{}, "x", chat.ConfigFile},
		{"a file goes before", map[string]string{chat.ConfigFile: `{"bos_token":"<s>","chat_template":"old"}`, chat.TemplateFile: "new {{ bos_token }}\n"}, chat.Request{}, "new <s>", chat.TemplateFile},
		{"a file alone", map[string]string{chat.TemplateFile: "x{{ messages|length }}"}, chat.Request{}, "x1", chat.TemplateFile},
		{"the default of a list", map[string]string{chat.ConfigFile: `{"chat_template":[{"name":"rag","template":"r"},{"name":"default","template":"d"},{"name":"tool_use","template":"t"}]}`}, chat.Request{}, "d", chat.ConfigFile},
		{"the tools' of a list", map[string]string{chat.ConfigFile: `{"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"t{{ tools[0] }}"}]}`},
			chat.Request{Tools: jinja.NewList("f")}, "tf", chat.ConfigFile},
		{"a name", map[string]string{chat.ConfigFile: `{"chat_template":[{"name":"rag","template":"r{{ documents[0] }}"},{"name":"default","template":"d"}]}`},
			chat.Request{Name: "rag", Documents: jinja.NewList("doc")}, "rdoc", chat.ConfigFile},
		{"no tools", map[string]string{chat.TemplateFile: "{{ tools is none and documents is none and enable_thinking is not defined }}"}, chat.Request{}, "True", chat.TemplateFile},
		{"more variables", map[string]string{chat.TemplateFile: "{% if enable_thinking is defined and not enable_thinking %}off{% endif %}"}, chat.Request{Extra: jinja.NewDict("enable_thinking", false)}, "off", chat.TemplateFile},
		{"the time", map[string]string{chat.TemplateFile: "{{ strftime_now('%d %b %Y') }}"}, chat.Request{Now: noon}, "09 Jul 2026", chat.TemplateFile},
		{"a prompt for an answer", map[string]string{chat.TemplateFile: turns}, chat.Request{Generate: true}, "[user]hi[assistant]", chat.TemplateFile},
	} {
		tpl, err := chat.Open(files(c.files))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		c.req.Messages = []chat.Message{chat.Say("user", "hi")}
		if got, err := tpl.Render(c.req); err != nil || got != c.want || tpl.Path() != c.path {
			t.Errorf("%s: %q %v from %s, want %q from %s", c.name, got, err, tpl.Path(), c.want, c.path)
		}
	}
	for name, list := range map[string]map[string]string{"nothing": {}, "no template": {chat.ConfigFile: `{"bos_token":null}`}, "null": {chat.ConfigFile: `{"chat_template":null}`}} {
		if tpl, err := chat.Open(files(list)); tpl != nil || err != nil {
			t.Errorf("%s: %v %v, want none", name, tpl, err)
		}
	}
}

func TestTemplateErrors(t *testing.T) {
	for _, c := range []struct {
		files map[string]string
		kind  error
		says  string
	}{
		{map[string]string{chat.ConfigFile: `{`}, format.ErrCorrupt, "tokenizer_config.json: not a JSON object"},
		{map[string]string{chat.ConfigFile: `{"chat_template":5}`}, format.ErrCorrupt, "tokenizer_config.json: chat_template (wanted a string or a list"},
		{map[string]string{chat.ConfigFile: `{"chat_template":[]}`}, format.ErrCorrupt, "wanted a string or a list"},
		{map[string]string{chat.ConfigFile: `{"chat_template":[{"name":"a"}]}`}, format.ErrCorrupt, "chat_template 0 (wanted a name of its own"},
		{map[string]string{chat.ConfigFile: `{"chat_template":[{"name":"a","template":""},{"name":"a","template":""}]}`}, format.ErrCorrupt, "chat_template 1"},
		{map[string]string{chat.TemplateFile: "a\n{{ b"}, format.ErrCorrupt, "chat_template.jinja: chat template: line 2: a tag does not end"},
		{map[string]string{chat.TemplateFile: "{% include 'x' %}"}, format.ErrUnsupported, "unknown tag 'include'"},
		{map[string]string{chat.TemplateFile: "\n{{ raise_exception('roles must alternate') }}"}, format.ErrUsage, "chat_template.jinja: chat template refuses the conversation: line 2: roles must alternate"},
		{map[string]string{chat.TemplateFile: "{{ raise_exception('\x1b[31mred\n') }}"}, format.ErrUsage, `line 1: \x1b[31mred\n`},
		{map[string]string{chat.TemplateFile: "{{ messages[0].content + 1 }}"}, format.ErrCorrupt, "line 1: unsupported operand"},
		{map[string]string{chat.TemplateFile: "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"}, format.ErrUnsupported, "asks for too much"},
		{map[string]string{chat.TemplateFile: "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"}, format.ErrUnsupported, "inside each other"},
	} {
		tpl, err := chat.Open(files(c.files))
		if err == nil {
			_, err = tpl.Render(chat.Request{Messages: []chat.Message{chat.Say("user", "hi")}})
		}
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v:\n got  %v\n want %v: %s", c.files, err, c.kind, c.says)
		}
	}
	tpl, err := chat.Parse("mine.jinja", turns, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tpl.Render(chat.Request{Name: "rag"}); !errors.Is(err, format.ErrUsage) || !strings.Contains(err.Error(), "found rag, wanted default") {
		t.Errorf("no such template: %v", err)
	}
}

// TestToolCalls: arguments are objects, as templates expect, in their own order.
func TestToolCalls(t *testing.T) {
	tpl, err := chat.Parse("t", `{% for m in messages %}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}|{{ k }}={{ v | tojson if v is not string else v }}{% endfor %}</tool_call>{% endfor %}{% endfor %}{{ tools | tojson }}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := value(t, `{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"z":[1.0,null],"a":"<é>"}}}]}`).(*jinja.Dict)
	got, err := tpl.Render(chat.Request{Messages: []chat.Message{m}, Tools: value(t, `[{"b":1,"a":"<é>"}]`)})
	if want := `<tool_call>f|z=[1.0, null]|a=<é></tool_call>[{"b": 1, "a": "<é>"}]`; err != nil || got != want {
		t.Errorf("%q %v, want %q", got, err, want)
	}
}

// TestSplitter cuts what a model says into pieces of every length: the parts
// together are the same.
func TestSplitter(t *testing.T) {
	for _, c := range []struct{ prompt, said, thought, answer string }{
		{"", "just an answer", "", "just an answer"},
		{"", "<think>\nhm\nhm\n</think>\n\nthe answer\n", "hm\nhm", "the answer\n"},
		{"<|assistant|><think>\n", "hm</think>yes", "hm", "yes"},
		{"<|assistant|><think>\n\n</think>\n\n", "yes", "", "yes"},
		{"", "<think>never ends", "never ends", ""},
		{"", "<think></think>x", "", "x"},
		{"", "a <b> <thin </think> x", "", "a <b> <thin </think> x"},
		{"", "x\n\n<think>y</think> z", "y", "x z"},
		{"", "[THINK]a[/THINK]b", "a", "b"},
		{"", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", "a", "b"},
		{"", "<tool_call>{\"name\": \"f\"}</tool_call>", "", "<tool_call>{\"name\": \"f\"}</tool_call>"},
		{"", "a<", "", "a<"},
		{"", "ends in space \n", "", "ends in space \n"},
	} {
		for size := 1; size <= len(c.said); size++ {
			var thought, answer strings.Builder
			take := func(parts []chat.Part) {
				for _, p := range parts {
					if p.Thought {
						thought.WriteString(p.Text)
					} else {
						answer.WriteString(p.Text)
					}
				}
			}
			s := chat.NewSplitter(c.prompt)
			for rest := c.said; rest != ""; rest = rest[min(size, len(rest)):] {
				take(s.Next(rest[:min(size, len(rest))]))
			}
			take(s.Flush())
			if thought.String() != c.thought || answer.String() != c.answer {
				t.Errorf("%q in pieces of %d: thought %q, answer %q; want %q, %q", c.said, size, thought.String(), answer.String(), c.thought, c.answer)
			}
		}
	}
}

// FuzzTemplate: a tokenizer_config.json is somebody else's file.
func FuzzTemplate(f *testing.F) {
	f.Add(`{"bos_token":"<s>","chat_template":"{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"}`)
	f.Add(`{"eos_token":{"content":"</s>"},"chat_template":[{"name":"default","template":"{{ tools | tojson }}"},{"name":"tool_use","template":"{{ raise_exception('x') }}"}]}`)
	f.Fuzz(func(t *testing.T, config string) {
		tpl, err := chat.Open(files(map[string]string{chat.ConfigFile: config}))
		if err != nil || tpl == nil {
			return
		}
		for _, name := range tpl.Names() {
			r := chat.Request{Name: name, Messages: []chat.Message{chat.Say("user", "hi")}, Generate: true, Now: noon}
			a, errA := tpl.Render(r)
			b, errB := tpl.Render(r)
			if a != b || (errA == nil) != (errB == nil) {
				t.Errorf("%s: %q %v, then %q %v", name, a, errA, b, errB)
			}
		}
	})
}
