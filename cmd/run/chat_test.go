package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/internal/fixtures"
	"hawkmoth/runtime"
	"hawkmoth/runtime/chat"
	"hawkmoth/runtime/jinja"
)

// small is a template for a model that was trained on books, not on turns.
const small = `{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}<|{{ m.role }}|>{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}`

// talker is tiny-glm with a chat template.
func talker(t testing.TB, template string) string {
	t.Helper()
	dir := fixtures.TinyGLMDir(t)
	if err := os.WriteFile(filepath.Join(dir, chat.TemplateFile), []byte(template), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// talk is the command with lines on standard input.
func talk(t testing.TB, lines string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	root := command()
	root.SetIn(strings.NewReader(lines))
	root.SetOut(&out)
	root.SetErr(&errs)
	code = cli.Execute(t.Context(), root, append(args, "--backend", "cpu"))
	return code, out.String(), errs.String()
}

func wants(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s: no %q in:\n%s", what, p, text)
		}
	}
}

// events are the lines of --json.
func events(t testing.TB, stdout string) (ends []summary, answers []string) {
	t.Helper()
	answer := ""
	for line := range strings.Lines(stdout) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		switch e.Event {
		case "token":
			answer += e.Text
		case "end":
			ends = append(ends, *e.Summary)
			answers = append(answers, answer+e.Text)
			answer = ""
		}
	}
	return ends, answers
}

func TestPromptThroughTheTemplate(t *testing.T) {
	dir := talker(t, small)
	code, want, _ := talk(t, "", dir, "--raw", "-p", "<|system|>Be kind.\n<|user|>The king said\n<|assistant|>", "-n", "12", "--fingerprint")
	if code != 0 {
		t.Fatal("raw")
	}
	code, got, notes := talk(t, "", dir, "--system", "Be kind.", "-p", "The king said", "-n", "12", "--fingerprint")
	if code != 0 || got != want {
		t.Errorf("exit %d\n%s\nwant the same as without the template\n%s", code, got, want)
	}
	wants(t, "notes", notes, "one message with the chat template of chat_template.jinja; --raw continues the text as it is")

	// As it is, and the same of a model that has no template.
	plain := fixtures.TinyGLMDir(t)
	_, want, _ = talk(t, "", plain, "-p", "The king said", "-n", "12", "--fingerprint")
	for _, flag := range []string{"--raw", "--no-chat"} {
		if code, got, notes := talk(t, "", dir, flag, "-p", "The king said", "-n", "12", "--fingerprint"); code != 0 || got != want || strings.Contains(notes, "template") {
			t.Errorf("%s: exit %d\n%s\nwant\n%s", flag, code, got, want)
		}
	}
	// A template of the user's goes before the model's.
	file := filepath.Join(t.TempDir(), "mine.jinja")
	if err := os.WriteFile(file, []byte("{{ messages[0].content }}{{ enable_thinking }}"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, want, _ = talk(t, "", plain, "-p", "The king saidFalse", "-n", "12", "--fingerprint")
	for _, args := range [][]string{{"--thinking", "off"}, {"--chat-template-kwargs", `{"enable_thinking":false}`}} {
		if code, got, notes := talk(t, "", append([]string{dir, "-p", "The king said", "-n", "12", "--fingerprint", "--chat-template", file}, args...)...); code != 0 || got != want {
			t.Errorf("%v: exit %d\n%s\n%s\nwant\n%s", args, code, got, notes, want)
		}
	}
}

// TestTurnsRunOnlyWhatIsNew counts the tokens that each turn of a conversation
// runs, and holds its answers against those of a conversation that starts anew.
func TestTurnsRunOnlyWhatIsNew(t *testing.T) {
	dir := talker(t, small)
	saved := filepath.Join(t.TempDir(), "c.json")
	code, stdout, stderr := talk(t, "Hello there\nAnd then?\n/save "+saved+"\nWhat came of it?\n", dir, "--chat", "--json", "-n", "10", "--system", "Speak.")
	if code != 0 {
		t.Fatalf("exit %d\n%s", code, stderr)
	}
	ends, answers := events(t, stdout)
	if len(ends) != 3 {
		t.Fatalf("%d answers:\n%s", len(ends), stdout)
	}
	tok := tokenizer(t, dir)
	text := "<|system|>Speak.\n"
	for i, say := range []string{"Hello there", "And then?", "What came of it?"} {
		before := tok.Encode(text)
		text += "<|user|>" + say + "\n<|assistant|>"
		ids := tok.Encode(text)
		s := ends[i]
		if s.PromptTokens != len(ids) {
			t.Errorf("turn %d: a prompt of %d tokens, want %d", i, s.PromptTokens, len(ids))
		}
		// What was said is in the cache but for the last token of an answer, and
		// for a token that the end of the answer's text may share with the line.
		if i > 0 && s.KeptTokens < len(before)-3 || i == 0 && s.KeptTokens != 0 || s.KeptTokens > len(before) {
			t.Errorf("turn %d: %d of %d tokens were kept; %d had been said", i, s.KeptTokens, len(ids), len(before))
		}
		text += answers[i] + "\n"
	}
	_, again, _ := talk(t, "/load "+saved+"\nWhat came of it?\n", dir, "--chat", "--json", "-n", "10")
	if fresh, other := events(t, again); len(other) != 1 || other[0] != answers[2] || fresh[0].KeptTokens != 0 || fresh[0].PromptTokens != ends[2].PromptTokens {
		t.Errorf("the answer of a fresh cache: %q %+v, want %q of %d tokens", other, fresh, answers[2], ends[2].PromptTokens)
	}
}

func tokenizer(t testing.TB, dir string) *runtime.Tokenizer {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := runtime.LoadTokenizer(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestChatCommands(t *testing.T) {
	dir := talker(t, small)
	saved := filepath.Join(t.TempDir(), "c.json")
	script := strings.Join([]string{
		"/help", "", "   ", "/system", "/system Be kind.", "Hello", `a long\`, "message", "/stats", "/save " + saved, "/save " + saved,
		"/clear", "/stats", "/load " + saved, "//home is a path", "/quit", "never read",
	}, "\n")
	code, stdout, stderr := talk(t, script, dir, "--chat", "-n", "6")
	if code != 0 {
		t.Fatalf("exit %d\n%s", code, stderr)
	}
	if got := strings.Count(stdout, "\n"); got != 3 {
		t.Errorf("%d answers, want 3:\n%s", got, stdout)
	}
	wants(t, "notes", stderr, "/save FILE", "a line that ends in a backslash", "there is no system message", "system message: Be kind.",
		"5 messages in the conversation, 2 messages answered", "context: ", "saved to "+saved, "the conversation is forgotten",
		"1 message in the conversation, 2 messages answered", "5 messages from "+saved, `answers end at "<|endoftext|>"`)
	data, err := os.ReadFile(saved)
	if err != nil {
		t.Fatal(err)
	}
	var list []struct{ Role, Content string }
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(stdout, "\n")
	for i, want := range []struct{ role, content string }{{"system", "Be kind."}, {"user", "Hello"}, {"assistant", lines[0]}, {"user", "a long\nmessage"}, {"assistant", lines[1]}} {
		if i >= len(list) || list[i].Role != want.role || list[i].Content != want.content {
			t.Errorf("message %d: %+v, want %+v", i, list, want)
			break
		}
	}
}

// TestChatMistakes: each is reported, the conversation goes on, and a script
// ends with the code of its last mistake.
func TestChatMistakes(t *testing.T) {
	dir := talker(t, small)
	other := filepath.Join(t.TempDir(), "other")
	tool := filepath.Join(t.TempDir(), "tool.json")
	for path, text := range map[string]string{other: "{}", tool: `[{"role":"tool","content":"x"}]`} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for line, says := range map[string]string{
		"/nope":                     "unknown command /nope",
		"/clear now":                `/clear takes nothing, not "now"`,
		"/save":                     "/save needs a FILE",
		"/load":                     "/load needs a FILE",
		"/save x":                   "there is nothing to save yet",
		"/load " + other:            "not a conversation (wanted a JSON list",
		"/load " + other + ".no":    "no such file",
		"/load " + tool + "\nHello": "chat_template.jinja: chat template refuses the conversation: line 1: no tools here",
		strings.Repeat("word ", 60): "does not fit into the context",
		"Hi\n/save " + other:        "is there already",
	} {
		code, stdout, stderr := talk(t, line+"\n/clear\nStill there?\n", dir, "--chat", "-n", "4", "-c", "40")
		if code == 0 || !strings.Contains(stderr, says) || !strings.HasSuffix(stdout, "\n") {
			t.Errorf("%.20s: exit %d\n%s\n%s\nwant %q and an answer to what follows", line, code, stdout, stderr, says)
		}
	}
	if data, _ := os.ReadFile(other); string(data) != "{}" {
		t.Errorf("a file of somebody else's is now %q", data)
	}
	code, _, stderr := talk(t, "/nope\n", dir, "--chat", "--json")
	if code != cli.Usage {
		t.Errorf("exit %d", code)
	}
	var e struct {
		Error struct{ Kind string }
		Exit  int
	}
	if err := json.Unmarshal([]byte(stderr), &e); err != nil || e.Error.Kind != "usage" || e.Exit != 2 {
		t.Errorf("as JSON: %s %v", stderr, err)
	}
}

func TestChatFlags(t *testing.T) {
	with, without := talker(t, small), fixtures.TinyGLMDir(t)
	broken := talker(t, "{% include 'x' %}")
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{without, "--chat"}, cli.Corrupt, []string{"--chat needs a chat template, and the model has none", "chat_template.jinja", "--chat-template FILE brings one"}},
		{[]string{without, "--system", "x", "-p", "y"}, cli.Corrupt, []string{"--system needs a chat template"}},
		{[]string{with, "--chat", "--raw"}, cli.Usage, []string{"--chat and --raw exclude each other"}},
		{[]string{with, "--raw", "--system", "x", "-p", "y"}, cli.Usage, []string{"--raw uses no chat template, so --system has no place"}},
		{[]string{with, "--thinking", "loud", "-p", "y"}, cli.Usage, []string{`--thinking (found "loud", wanted show, hide, off)`}},
		{[]string{with, "--chat-template-kwargs", "[1]", "-p", "y"}, cli.Usage, []string{"--chat-template-kwargs", "a JSON object"}},
		{[]string{with, "--chat-template", "/nowhere/x", "-p", "y"}, cli.Failed, []string{"/nowhere/x", "no such file"}},
		{[]string{broken, "-p", "y"}, cli.Unsupported, []string{"chat_template.jinja: chat template: line 1: unknown tag 'include'", "--raw continues text without"}},
		{[]string{broken, "--chat"}, cli.Unsupported, []string{"unknown tag 'include'"}},
		{[]string{with, "--chatt"}, cli.Usage, []string{"did you mean --chat?"}},
	} {
		code, stdout, stderr := talk(t, "", c.args...)
		if code != c.code || stdout != "" {
			t.Errorf("%v: exit %d, want %d; output %q", c.args[1:], code, c.code, stdout)
		}
		wants(t, strings.Join(c.args[1:], " "), stderr, c.says...)
	}
	// The template that cannot be read is not in the way of who does not use it.
	if code, _, stderr := talk(t, "", broken, "--raw", "-p", "y", "-n", "2"); code != 0 {
		t.Errorf("--raw: exit %d\n%s", code, stderr)
	}
}

// signalled is an output whose n-th write is where the user presses Ctrl-C; it
// goes on when the answer has been told to stop.
type signalled struct {
	text    bytes.Buffer
	at, n   int
	signal  os.Signal
	signals chan os.Signal
	stopped func() <-chan struct{}
}

func (s *signalled) Write(p []byte) (int, error) {
	if s.n++; s.n == s.at {
		s.signals <- s.signal
		<-s.stopped()
	}
	return s.text.Write(p)
}

// startChat is a conversation without its process: the signals are the test's.
func startChat(t *testing.T, dir, lines string, out *signalled, args ...string) (*conversation, *bytes.Buffer) {
	t.Helper()
	var g generateFlags
	cmd := cli.New("run DIR", "", "")
	g.registerAll(cmd)
	if err := cmd.ParseFlags(append(args, "--backend", "cpu")); err != nil {
		t.Fatal(err)
	}
	var notes bytes.Buffer
	cmd.SetIn(strings.NewReader(lines))
	cmd.SetOut(out)
	cmd.SetErr(&notes)
	cmd.SetContext(t.Context())
	out.signals = make(chan os.Signal, 1)
	out.stopped = func() <-chan struct{} { return cmd.Context().Done() }
	c := &conversation{g: &g, cmd: cmd, signals: out.signals, in: newInput(cmd)}
	var err error
	if c.sampler, err = g.prepare(cmd, &c.summary); err != nil {
		t.Fatal(err)
	}
	if c.model, err = g.load(cmd, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.close()
		if err := c.model.Close(); err != nil {
			t.Error(err)
		}
	})
	if c.tpl, err = g.openTemplate(c.model); err != nil {
		t.Fatal(err)
	}
	return c, &notes
}

// TestCtrlCStopsTheAnswer and not the program; what was said stays said.
func TestCtrlCStopsTheAnswer(t *testing.T) {
	dir := talker(t, small)
	out := &signalled{at: 5, signal: os.Interrupt}
	c, notes := startChat(t, dir, "Tell me\nAnd then?\n", out, "-n", "40")
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	first := jinjaText(t, c.past[1])
	if len(c.past) != 4 || first == "" || c.total.turns != 2 || c.total.generated >= 80 {
		t.Errorf("%d messages, first answer %q, %+v", len(c.past), first, c.total)
	}
	wants(t, "notes", notes.String(), "· stopped ·")
	if !strings.HasPrefix(out.text.String(), first+"\n") {
		t.Errorf("printed %q, remembered %q", out.text.String(), first)
	}
	// SIGTERM ends the program as well.
	out = &signalled{at: 3, signal: syscall.SIGTERM}
	c, _ = startChat(t, dir, "Tell me\nAnd then?\n", out, "-n", "40")
	if err := c.run(); !errors.Is(err, context.Canceled) || c.total.turns != 1 {
		t.Errorf("after SIGTERM: %v, %d turns", err, c.total.turns)
	}
	// With nothing to stop, a signal ends the waiting.
	out = &signalled{}
	c, _ = startChat(t, dir, "", out, "-n", "4")
	waiting, w := io.Pipe()
	defer func() { _ = w.Close() }()
	c.cmd.SetIn(waiting)
	c.in = newInput(c.cmd)
	out.signals <- os.Interrupt
	if err := c.run(); !errors.Is(err, context.Canceled) {
		t.Errorf("a signal while waiting: %v", err)
	}
}

func jinjaText(t *testing.T, m chat.Message) string {
	t.Helper()
	v, _ := m.Get("content")
	s, ok := v.(string)
	if !ok {
		t.Fatalf("content is %T", v)
	}
	return s
}

// TestThoughts: the answer alone is on standard output; thoughts are shown on
// standard error or not at all, and are no part of what was said.
func TestThoughts(t *testing.T) {
	for _, c := range []struct {
		args        []string
		stderr, out string
	}{
		{nil, "hm hm\n\n", "yes <tool_call>{}</tool_call>\n"},
		{[]string{"--thinking", "hide"}, "", "yes <tool_call>{}</tool_call>\n"},
		{[]string{"-q"}, "", "yes <tool_call>{}</tool_call>\n"},
	} {
		cmd := cli.New("run DIR", "", "")
		var g generateFlags
		g.registerAll(cmd)
		var out, errs bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		g.voice = g.newVoice(cmd, "<|assistant|><think>\n")
		for _, piece := range []string{"hm", " h", "m\n</th", "ink>\n\ny", "es <tool_call>{}</tool_call>"} {
			if err := g.say(cmd, piece); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.finish(cmd, ""); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.out || errs.String() != c.stderr {
			t.Errorf("%v: output %q, error %q; want %q, %q", c.args, out.String(), errs.String(), c.out, c.stderr)
		}
		m := g.voice.message()
		if thought, _ := m.Get("reasoning_content"); thought != "hm hm" || jinjaText(t, m) != "yes <tool_call>{}</tool_call>" {
			t.Errorf("%v: the message is %v", c.args, m)
		}
	}
}

// TestPasted: what is pasted is one message, and so are lines with a backslash.
func TestPasted(t *testing.T) {
	type line struct {
		text   string
		pasted bool
	}
	for _, c := range []struct {
		lines []line
		want  string
	}{
		{[]line{{"one", false}}, "one"},
		{[]line{{"one", true}, {"two", true}, {"three", false}}, "one\ntwo\nthree"},
		{[]line{{`one\`, false}, {`two\`, false}, {"three", false}}, "one\ntwo\nthree"},
		{[]line{{`one\`, false}}, "one"},
		{[]line{{"one", true}}, "one"},
	} {
		rest := c.lines
		w := &waiter{read: func(more bool) (string, bool, error) {
			if more != (len(rest) < len(c.lines)) {
				t.Errorf("%v: line %d continues: %v", c.lines, len(c.lines)-len(rest), more)
			}
			if len(rest) == 0 {
				return "", false, io.EOF
			}
			l := rest[0]
			rest = rest[1:]
			return l.text, l.pasted, nil
		}}
		if got, err := w.next(nil); err != nil || got != c.want {
			t.Errorf("%v: %q %v, want %q", c.lines, got, err, c.want)
		}
	}
}

// TestChatContextGrows: without -c a conversation gets more room when it needs
// it; with -c it does not.
func TestChatContextGrows(t *testing.T) {
	dir := talker(t, small)
	out := &signalled{}
	c, notes := startChat(t, dir, "", out, "-n", "4")
	limit := c.model.Config.MaxPositions
	for _, step := range []struct{ prompt, max, want int }{{10, 4, min(chatContext, limit)}, {limit, 4, limit}} {
		c.g.max = step.max
		if err := c.room(step.prompt); err != nil || c.sess.CtxSize() != step.want {
			t.Errorf("%+v: %v, room for %d", step, err, c.sess.CtxSize())
		}
	}
	c.g.max = 1 << 20
	if err := c.room(5); err != nil || c.sess.CtxSize() != limit {
		t.Errorf("a large budget: %v", err)
	}
	wants(t, "notes", notes.String(), "the answer ends after")
	if err := c.room(limit + 1); err == nil {
		t.Error("a prompt beyond the model's limit has room")
	}
	c.g.ctx = 32
	c.close()
	c.sess = nil
	if err := c.room(20); err != nil || c.sess.CtxSize() != 32 {
		t.Errorf("with -c: %v", err)
	}
}

// TestH8PromptLongerThanTheContext (colibri#506, #401): refused with both
// numbers, never cut.
func TestH8PromptLongerThanTheContext(t *testing.T) {
	dir := talker(t, small)
	long := strings.Repeat("one two three ", 10)
	n := len(tokenizer(t, dir).Encode("<|user|>" + long + "\n<|assistant|>"))
	number := func(n int) string { return count(n, "token") }
	for _, args := range [][]string{{"-p", long}, {"--chat", "-p", long}} {
		code, stdout, stderr := talk(t, "", append([]string{dir, "-c", "20"}, args...)...)
		if code != cli.Usage || stdout != "" {
			t.Errorf("%v: exit %d, output %q", args[0], code, stdout)
		}
		wants(t, args[0], stderr, "does not fit into the context", "found "+number(n), "wanted at most 20")
	}
}

// TestH9BudgetIsACeiling (colibri#998, #1641): a short prompt is not refused
// because the answer's budget is as large as the context.
func TestH9BudgetIsACeiling(t *testing.T) {
	dir := talker(t, small)
	for _, args := range [][]string{{"-p", "Hi"}, {"--chat", "-p", "Hi"}, {"--raw", "-p", "Hi"}} {
		code, stdout, stderr := talk(t, "", append([]string{dir, "-c", "24", "-n", "24"}, args...)...)
		if code != 0 || stdout == "" {
			t.Errorf("%v: exit %d, output %q\n%s", args[0], code, stdout, stderr)
		}
		if got := strings.Count(stderr, "the context holds 24 tokens"); got != 1 {
			t.Errorf("%v: %d lines about it:\n%s", args[0], got, stderr)
		}
		wants(t, args[0], stderr, "context full")
	}
}

// TestH10StopTokens (colibri#455, #381, #307): the tokens that end an answer are
// those of generation_config.json and of the tokenizer together, shown at the
// start; a role's mark in the middle of an answer is text.
func TestH10StopTokens(t *testing.T) {
	dir := talker(t, small)
	tok := tokenizer(t, dir)
	user, _ := tok.TokenID("<|user|>")
	ids := func(key string, list ...int32) {
		data, _ := json.Marshal(map[string]any{key: list})
		if err := os.WriteFile(filepath.Join(dir, "generation_config.json"), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ids("eos_token_id", user, 7)
	_, _, stderr := talk(t, "", dir, "--chat")
	wants(t, "at the start", stderr, "answers end at ", fmt.Sprintf("%q (7)", tok.TokenBytes(7)), `"<|endoftext|>" (4086)`, `"<|user|>" (4093)`)

	// The answer ends where the model says the stop token, and without it.
	_, stdout, _ := talk(t, "", dir, "-p", "The king", "-n", "8", "--json")
	var said []int32
	for line := range strings.Lines(stdout) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.ID != nil {
			said = append(said, *e.ID)
		}
	}
	if len(said) != 8 {
		t.Fatalf("%d tokens", len(said))
	}
	ids("eos_token_id", said[5])
	at := slices.Index(said, said[5])
	_, stdout, _ = talk(t, "", dir, "-p", "The king", "-n", "8", "--json")
	if ends, _ := events(t, stdout); len(ends) != 1 || ends[0].Ended != runtime.EndedStop || ends[0].GeneratedTokens != at {
		t.Errorf("with token %d as the stop: %+v, want %d tokens", said[5], ends, at)
	}
}

// TestH11EdgesOfTheContext: as many tokens as fit are answered, one more is
// refused, and nothing at all is an error with a name.
func TestH11EdgesOfTheContext(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	n := len(tokenizer(t, dir).EncodeSpecial("The king said to the queen"))
	for ctx, want := range map[int]int{n: 0, n - 1: cli.Usage} {
		code, stdout, stderr := talk(t, "", dir, "-p", "The king said to the queen", "-n", "5", "-c", strconv.Itoa(ctx))
		if code != want || (code == 0) != (stdout != "") {
			t.Errorf("-c %d for %d tokens: exit %d, want %d; %q\n%s", ctx, n, code, want, stdout, stderr)
		}
	}
	if code, _, stderr := talk(t, "", dir, "-p", "", "-n", "5"); code != cli.Usage || !strings.Contains(stderr, "the prompt is empty") {
		t.Errorf("an empty prompt: exit %d\n%s", code, stderr)
	}
	if code, stdout, _ := talk(t, "", dir, "-p", "<|endoftext|>", "-n", "2"); code != 0 || stdout == "" {
		t.Errorf("a special token alone: exit %d, %q", code, stdout)
	}
	empty := talker(t, "")
	if code, _, stderr := talk(t, "Hi\n", empty, "--chat"); code != cli.Usage || !strings.Contains(stderr, "makes nothing of the conversation") {
		t.Errorf("a template that prints nothing: exit %d\n%s", code, stderr)
	}
	// No bound but the model's: -c 0.
	out := &signalled{}
	c, _ := startChat(t, talker(t, small), "", out, "-c", "0")
	if err := c.room(c.model.Config.MaxPositions); err != nil || c.sess.CtxSize() != c.model.Config.MaxPositions {
		t.Errorf("-c 0: %v", err)
	}
}

// TestChatOracleIDs holds the ids of three families' conversations against the
// reference's, from messages to ids; runtime/chat's test holds the texts.
func TestChatOracleIDs(t *testing.T) {
	data, err := os.ReadFile(fixtures.Shared(t, "chat/oracle.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Family   string
		Generate bool `json:"add_generation_prompt"`
		Messages []struct{ Role, Content string }
		IDs      []int32
	}
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	loaded := map[string]*runtime.Tokenizer{}
	for i, row := range rows {
		dir := fixtures.Shared(t, "tokenizers/"+row.Family)
		config, err := os.ReadFile(filepath.Join(dir, chat.ConfigFile))
		if err != nil {
			t.Fatal(err)
		}
		if loaded[row.Family] == nil {
			if loaded[row.Family], err = runtime.LoadTokenizer(fixtures.Gunzip(t, filepath.Join(dir, "tokenizer.json.gz")), config); err != nil {
				t.Fatal(err)
			}
		}
		tpl, err := chat.Open(func(name string) ([]byte, error) {
			if name == chat.ConfigFile {
				return config, nil
			}
			return nil, os.ErrNotExist
		})
		if err != nil {
			t.Fatal(err)
		}
		r := chat.Request{Generate: row.Generate, Extra: jinja.NewDict()}
		for _, m := range row.Messages {
			r.Messages = append(r.Messages, chat.Say(m.Role, m.Content))
		}
		text, err := tpl.Render(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := loaded[row.Family].Encode(text); !slices.Equal(got, row.IDs) {
			t.Errorf("row %d, %s: %v, want %v", i, row.Family, got, row.IDs)
		}
	}
	if len(rows) < 30 {
		t.Errorf("only %d rows", len(rows))
	}
}
