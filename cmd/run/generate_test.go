package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

const once = "Once upon a time there was a"

// TestGreedyTexts: what the reference says, whichever way the prompt comes.
func TestGreedyTexts(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	ref := tinyReference(t)
	for prompt, want := range ref.Greedy {
		stdout, stderr := must(t, dir, "-p", prompt, "-n", "64", "-q")
		if stdout != want.Text+"\n" || stderr != "" {
			t.Errorf("%q: stdout %q, want %q; stderr %q", prompt, stdout, want.Text, stderr)
		}
	}
	eight, _ := must(t, dir, "-p", once, "-n", "8", "-q")
	if !strings.HasPrefix(ref.Greedy[once].Text+"\n", strings.TrimSuffix(eight, "\n")) || len(eight) < 20 {
		t.Errorf("%q", eight)
	}
	file := filepath.Join(t.TempDir(), "prompt.txt")
	if err := os.WriteFile(file, []byte(once+"\r\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		stdin string
		args  []string
	}{
		{"", []string{"-f", file}},
		{once, nil},
		{once + "\n", nil},
		{once + "\n", []string{"-p", "-"}},
		{once + "\n", []string{"-f", "-"}},
		{"not this", []string{"--prompt", once}},
		{"", []string{"-p", once, "--predict", "8"}},
	} {
		code, stdout, stderr := runContext(t, t.Context(), strings.NewReader(tt.stdin), append([]string{dir, "-n", "8", "-q"}, tt.args...)...)
		if code != 0 || stdout != eight {
			t.Errorf("%q with %q: exit %d, stdout %q, stderr %q", tt.args, tt.stdin, code, stdout, stderr)
		}
	}
	// Only the last line break is the file's.
	code, two, _ := runContext(t, t.Context(), strings.NewReader(once+"\n\n"), dir, "-n", "8", "-q")
	one, _ := must(t, dir, "-p", once+"\n", "-n", "8", "-q")
	if code != 0 || two != one {
		t.Errorf("%q, %q", two, one)
	}
}

func TestFooter(t *testing.T) {
	_, stderr := must(t, fixtures.TinyGLMDir(t), "-p", once, "-n", "3", "-t", "2", "--backend", "cpu")
	pattern := `^\nprompt: 8 tokens, [0-9.]+ tok/s · generation: 3 tokens, [0-9.]+ tok/s · max tokens · peak [0-9.]+ .?B · backend cpu \(2 threads\)\n$`
	if !regexp.MustCompile(pattern).MatchString(stderr) {
		t.Errorf("stderr %q", stderr)
	}
	// The only token needs no step of its own, so there is no rate.
	_, stderr = must(t, fixtures.TinyGLMDir(t), "-p", "x", "-n", "1", "-t", "1", "--backend", "cpu")
	holds(t, stderr, "prompt: 1 token, ", "generation: 1 token · max tokens · ", "(1 thread)")
}

func TestSampling(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	text := func(args ...string) string {
		t.Helper()
		stdout, _ := must(t, append([]string{dir, "-p", once, "-n", "24"}, args...)...)
		return stdout
	}
	greedy, sampled := text(), text("--temp", "1", "-s", "42")
	for _, tt := range []struct {
		name string
		args []string
		want string
		same bool
	}{
		{"the seed means nothing to greedy", []string{"--temp", "0", "-s", "7"}, greedy, true},
		{"one choice", []string{"--temp", "1", "-s", "7", "--top-k", "1"}, greedy, true},
		{"the likeliest", []string{"--temp", "1", "-s", "7", "--min-p", "1"}, greedy, true},
		{"hardly any probability", []string{"--temp", "1", "-s", "7", "--top-p", "0.0001"}, greedy, true},
		{"the same seed", []string{"--temp", "1", "--seed", "42"}, sampled, true},
		{"the same seed, other threads and chunks", []string{"--temp", "1", "-s", "42", "-t", "7", "--chunk", "3"}, sampled, true},
		{"all flags at what they are", []string{"--temp", "1", "-s", "42", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--repeat-penalty", "1"}, sampled, true},
		{"another seed", []string{"--temp", "1", "-s", "43"}, sampled, false},
		{"another temperature", []string{"--temp", "3", "-s", "42"}, sampled, false},
		{"sampled", []string{"--temp", "1", "-s", "42"}, greedy, false},
		{"repetition costs", []string{"--repeat-penalty", "1.5"}, greedy, false},
	} {
		if got := text(tt.args...); (got == tt.want) != tt.same {
			t.Errorf("%s: %q and %q, want the same: %v", tt.name, got, tt.want, tt.same)
		}
	}
}

// TestDrawnSeed: the seed that was drawn is printed, and gives the same again.
func TestDrawnSeed(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	stdout, stderr := must(t, dir, "-p", once, "-n", "24", "--temp", "1")
	m := regexp.MustCompile(` · seed ([0-9]+)\n$`).FindStringSubmatch(stderr)
	if m == nil {
		t.Fatalf("no seed in %q", stderr)
	}
	if again, _ := must(t, dir, "-p", once, "-n", "24", "--temp", "1", "-s", m[1]); again != stdout {
		t.Errorf("seed %s: %q, then %q", m[1], stdout, again)
	}
	stdout, _ = must(t, dir, "-p", once, "-n", "2", "--temp", "1", "--json")
	events := objects[event](t, stdout)
	if s := events[len(events)-1].Summary; s == nil || s.Seed == nil {
		t.Errorf("no seed in %s", stdout)
	}
	if _, stderr := must(t, dir, "-p", once, "-n", "2"); strings.Contains(stderr, "seed") {
		t.Errorf("greedy names a seed: %q", stderr)
	}
}

// TestJSONEvents reads every field of every event.
func TestJSONEvents(t *testing.T) {
	dir, want := fixtures.TinyGLMDir(t), tinyReference(t).Greedy[once]
	stdout, stderr := must(t, dir, "-p", once, "-n", "64", "--json", "--prof", "--fingerprint", "-t", "2", "--backend", "cpu")
	if stderr != "" {
		t.Errorf("stderr %q", stderr)
	}
	events := objects[event](t, stdout)
	if len(events) != 65 {
		t.Fatalf("%d events", len(events))
	}
	text := ""
	for i, e := range events {
		text += e.Text
		if i == 64 {
			break
		}
		if e.Event != "token" || e.ID == nil || *e.ID != want.IDs[i] || !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(e.Fingerprint) || e.Summary != nil || e.Profile != nil {
			t.Errorf("%d: %+v", i, e)
		}
	}
	if text != want.Text {
		t.Errorf("%q, want %q", text, want.Text)
	}
	end := events[64]
	if end.Event != "end" || end.ID != nil || end.Fingerprint != "" || end.Summary == nil || end.Profile == nil {
		t.Fatalf("%+v", end)
	}
	s := *end.Summary
	m, err := runtime.Load(dir, runtime.NewCPU(1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	latents, keys := m.Config.CacheBytes(8+64, true)
	if s.PromptSeconds <= 0 || s.GenerateSeconds <= 0 || s.PeakBytes < 0 || s.Seed != nil {
		t.Errorf("%+v", s)
	}
	if p, g := s.PromptRate*s.PromptSeconds, s.GenerateRate*s.GenerateSeconds; math.Abs(p-8) > 1e-6 || math.Abs(g-63) > 1e-6 {
		t.Errorf("rates of %v and %v tokens, want 8 and 63: %+v", p, g, s)
	}
	s.PromptSeconds, s.GenerateSeconds, s.PromptRate, s.GenerateRate, s.PeakBytes = 0, 0, 0, 0, 0
	if s != (summary{PromptTokens: 8, GeneratedTokens: 64, Ended: runtime.EndedMax, CacheBytes: latents + keys, Backend: "cpu", Layers: "2 threads"}) {
		t.Errorf("%+v, want a cache of %d bytes", s, latents+keys)
	}
	p := end.Profile
	share := 0.0
	for i, stage := range p.Stages {
		share += stage.Share
		if stage.Stage == "" || stage.Seconds <= 0 || stage.Share <= 0 || i > 0 && stage.Seconds > p.Stages[i-1].Seconds {
			t.Errorf("%+v", p.Stages)
		}
	}
	// A token runs 2 experts in each of 5 layers; the last token is not run.
	if l := p.Latency; share < 0.999 || share > 1.001 || len(p.Stages) < 8 || l.Count != 63 || l.P50 <= 0 || l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.Max ||
		p.ExpertLoads < 63*10 || p.Verdict == "" || p.Counts != nil || p.Memory != nil {
		t.Errorf("%+v", p)
	}
}

func TestEnds(t *testing.T) {
	dir, want := fixtures.TinyGLMDir(t), tinyReference(t).Greedy[once]
	for _, tt := range []struct {
		name  string
		args  []string
		stop  int // the stop token is the one at this index; 0 is none
		ended runtime.Ended
		n     int
	}{
		{"-n", []string{"-n", "5"}, 0, runtime.EndedMax, 5},
		{"the context", []string{"-n", "50", "-c", "12"}, 0, runtime.EndedContext, 5},
		{"the prompt fills the context", []string{"-n", "50", "-c", "8"}, 0, runtime.EndedContext, 1},
		{"a stop token", []string{"-n", "50"}, 8, runtime.EndedStop, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fixtures.EditJSON(t, filepath.Join(dir, "generation_config.json"), func(c map[string]any) {
				c["eos_token_id"] = []int32{4095}
				if tt.stop > 0 {
					c["eos_token_id"] = []int32{4095, want.IDs[tt.stop]}
				}
			})
			stdout, _ := must(t, append([]string{dir, "-p", once, "--json"}, tt.args...)...)
			events := objects[event](t, stdout)
			var ids []int32
			for _, e := range events[:len(events)-1] {
				ids = append(ids, *e.ID)
			}
			s := events[len(events)-1].Summary
			if s.Ended != tt.ended || s.GeneratedTokens != tt.n || !slices.Equal(ids, want.IDs[:tt.n]) {
				t.Errorf("%s after %d tokens %v", s.Ended, s.GeneratedTokens, ids)
			}
			_, stderr := must(t, append([]string{dir, "-p", once}, tt.args...)...)
			holds(t, stderr, " · "+string(tt.ended)+" · ")
			if tt.ended == runtime.EndedContext {
				holds(t, stderr, fmt.Sprintf("the context holds %s tokens, the prompt has 8: generation ends after %d\n", tt.args[3], tt.n))
			}
		})
	}
}

// TestFingerprints: the logits' bits do not depend on threads and chunks.
func TestFingerprints(t *testing.T) {
	prompt := strings.Repeat("The king went down to the sea and looked for his ship. ", 24) // more than a chunk
	for _, tt := range []struct {
		name, dir string
		ways      [][2]string // threads and chunk
	}{
		{"bf16", fixtures.TinyGLMDir(t), [][2]string{{"1", "1000"}, {"1", "1"}, {"2", "100"}, {"7", "0"}, {"7", "1"}}},
		{"g64", container(t), [][2]string{{"1", "1"}, {"2", "0"}, {"7", "100"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want string
			for _, way := range tt.ways {
				stdout, _ := must(t, tt.dir, "-p", prompt, "-n", "4", "--fingerprint", "-q", "-t", way[0], "--chunk", way[1], "--backend", "cpu")
				if want == "" {
					want = stdout
				}
				if stdout != want {
					t.Errorf("-t %s --chunk %s:\n%s\nwant\n%s", way[0], way[1], stdout, want)
				}
			}
			line := regexp.MustCompile(`^[0-9a-f]{16} +[0-9]+ ".*"\n$`)
			seen := map[string]bool{}
			for l := range strings.Lines(strings.TrimSuffix(want, "\n")) {
				if !line.MatchString(l) || seen[l[:16]] {
					t.Errorf("%q", l)
				}
				seen[l[:16]] = true
			}
			if len(seen) != 4 {
				t.Errorf("%d fingerprints in\n%s", len(seen), want)
			}
		})
	}
}

func TestProfileText(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	stdout, stderr := must(t, dir, "-p", once, "-n", "4", "--prof", "--backend", "cpu")
	if plain, _ := must(t, dir, "-p", once, "-n", "4"); plain != stdout {
		t.Errorf("%q, without --prof %q", stdout, plain)
	}
	holds(t, stderr, "\nPROF: time on the CPU by stage\n", "  routed experts  ", "  lm_head  ", "PROF: decode of a token: p50 ", " (3 tokens)\n", " expert loads\n", " of the time\n")
}

// TestContainerOfColibri: a container that colibri's converter made is read and
// computed as our own conversion of the same checkpoint, bit for bit.
func TestContainerOfColibri(t *testing.T) {
	dir := container(t)
	stdout, stderr := must(t, dir, "-p", once, "-n", "16", "--fingerprint")
	holds(t, stderr, "warning: no indexer weights: attention is dense", "the scales fit groups of 48 or 64; read as 64")
	ours := convert(t, fixtures.TinyGLMDir(t), "colibri", quantize.Flags{})
	if own, _ := must(t, ours, "-p", once, "-n", "16", "--fingerprint"); own != stdout {
		t.Errorf("colibri's container\n%s\nour own\n%s", stdout, own)
	}
}

func TestOverlay(t *testing.T) {
	base := fixtures.TinyGLMDir(t)
	fingerprints := func(args ...string) string {
		t.Helper()
		stdout, _ := must(t, append(args, "-p", once, "-n", "4", "--fingerprint", "-q")...)
		return stdout
	}
	int8, own := convert(t, base, "balanced", quantize.Flags{Format: "int8-row"}), fingerprints(base)
	// A whole container over the checkpoint is the container.
	if got := fingerprints(base, "--overlay", int8); got != fingerprints(int8) || got == own {
		t.Errorf("overlaid\n%s\nthe checkpoint\n%s", got, own)
	}
	if got := fingerprints(base, "--overlay", int8, "--overlay", base); got != own {
		t.Errorf("the last overlay does not win:\n%s\n%s", got, own)
	}
}

// cancelling cancels a context when it is written to.
type cancelling struct {
	io.Writer
	cancel context.CancelFunc
}

func (c cancelling) Write(b []byte) (int, error) {
	c.cancel()
	return c.Writer.Write(b)
}

func TestInterrupted(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	t.Run("while it generates", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var o, e strings.Builder
		root := command()
		root.SetOut(cancelling{&o, cancel})
		root.SetErr(&e)
		code := cli.Execute(ctx, root, []string{dir, "-p", once, "-n", "1000"})
		if code != cli.Interrupted || o.String() != " great\n" || !strings.HasSuffix(e.String(), "\nrun: interrupted\n") {
			t.Errorf("exit %d, stdout %q, stderr %q", code, o.String(), e.String())
		}
		holds(t, e.String(), "generation: 1 token", " · stopped · ")
	})
	t.Run("while it waits for the prompt", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		defer func() { _ = w.Close() }()
		go func() {
			_, _ = w.Write([]byte("half a prom"))
			cancel()
		}()
		if code, stdout, stderr := runContext(t, ctx, r, dir); code != cli.Interrupted || stdout != "" || stderr != "run: interrupted\n" {
			t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	})
	for _, args := range [][]string{{"ppl", dir, filepath.Join(dir, "tokenizer_config.json")}, {"logits", dir, "--ids", "1,2,3", "-o", filepath.Join(dir, "x")}, {"demo"}} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if code, _, stderr := runContext(t, ctx, strings.NewReader(""), args...); code != cli.Interrupted || stderr != "run: interrupted\n" {
			t.Errorf("%s: exit %d, stderr %q", args[0], code, stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "x")); err == nil {
		t.Error("an interrupted run logits left its file")
	}
}

func TestPromptAndContext(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	long := strings.Repeat("word ", 2100)
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"-p", ""}, "run: the prompt is empty"},
		{nil, "run: the prompt is empty: give -p TEXT, -f FILE or text on standard input"},
		{[]string{"-p", once, "-c", "7"}, "run: the prompt does not fit into the context (found 8 tokens, wanted at most 7, by --ctx-size)"},
		{[]string{"-p", long}, " tokens, wanted at most 2048, the model's limit)"},
		{[]string{"-p", once, "-c", strconv.Itoa(2049)}, "run: context size (found 2049, wanted 1 … 2048, the model's max_position_embeddings)"},
	} {
		code, stdout, stderr := run(t, append([]string{dir}, tt.args...)...)
		if code != cli.Usage || stdout != "" || !strings.Contains(stderr, tt.says) {
			t.Errorf("%.40q: exit %d, stdout %q, stderr %q", tt.args, code, stdout, stderr)
		}
	}
	// Without a model there is no need to look for one.
	for _, chat := range [][]string{nil, {"--chat"}} {
		if code, _, stderr := run(t, append(chat, filepath.Join(dir, "nowhere"), "-p", "")...); code != cli.Usage || !strings.Contains(stderr, "the prompt is empty") {
			t.Errorf("%q: exit %d, stderr %q", chat, code, stderr)
		}
	}
}
