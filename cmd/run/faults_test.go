package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/internal/fixtures"
)

// TestWrongUses is everything that is refused before anything is opened.
func TestWrongUses(t *testing.T) {
	const dir = "nowhere" // not looked at
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{nil, cli.Usage, "run: missing argument DIR\nhint: no model at hand? \"run demo\" brings one; see \"run --help\"\n"},
		{[]string{dir, "x"}, cli.Usage, `unexpected argument "x"`},
		{[]string{"bnech"}, cli.Failed, `hint: did you mean "run bench"?`},
		{[]string{"lgoits", dir}, cli.Usage, `hint: did you mean "logits"?`},
		{[]string{dir, "-p", "x", "--promt", "y"}, cli.Usage, "unknown flag --promt\nhint: did you mean --prompt?"},
		{[]string{dir, "-p", "x", "-f", "y"}, cli.Usage, "--file and --prompt exclude each other"},
		{[]string{dir, "-p", "x", "-n", "0"}, cli.Usage, "--max-tokens must be at least 1"},
		{[]string{dir, "-p", "x", "-n", "many"}, cli.Usage, `--max-tokens: invalid value (found "many", wanted a whole number)`},
		{[]string{dir, "-p", "x", "-t", "-1"}, cli.Usage, "--threads (found -1, wanted 0 to 4096)"},
		{[]string{dir, "-p", "x", "-t", "4097"}, cli.Usage, "--threads (found 4097, wanted 0 to 4096)"},
		{[]string{dir, "-p", "x", "-c", "-1"}, cli.Usage, "--ctx-size (found -1"},
		{[]string{dir, "-p", "x", "--chunk", "-1"}, cli.Usage, "--chunk (found -1"},
		{[]string{dir, "-p", "x", "--device", "-1"}, cli.Usage, "--device (found -1"},
		{[]string{dir, "-p", "x", "--backend", "gpu"}, cli.Usage, `--backend (found "gpu", wanted auto, cpu, metal, cuda, emulator)`},
		{[]string{dir, "-p", "x", "--residency", "maybe"}, cli.Usage, `--residency (found "maybe", wanted on, off)`},
		{[]string{dir, "-p", "x", "--disable", "gpu-experts,everything"}, cli.Usage, `--disable (found "everything", wanted gpu-prefill,`},
		{[]string{dir, "-p", "x", "-t", "-1", "--chunk", "-1"}, cli.Usage, "run: 2 problems\n"},
		{[]string{dir, "-p", "x", "-s", "-2"}, cli.Usage, "--seed must be at least 0, or -1 to draw one"},
		{[]string{dir, "-p", "x", "--temp", "-1"}, cli.Usage, "temperature (found -1, wanted 0 to 1000)"},
		{[]string{dir, "-p", "x", "--temp", "NaN"}, cli.Usage, "temperature (found NaN"},
		{[]string{dir, "-p", "x", "--top-k", "-1"}, cli.Usage, "top-k (found -1"},
		{[]string{dir, "-p", "x", "--top-p", "1.5"}, cli.Usage, "top-p (found 1.5, wanted 0 to 1)"},
		{[]string{dir, "-p", "x", "--min-p", "2"}, cli.Usage, "min-p (found 2, wanted 0 to 1)"},
		{[]string{dir, "-p", "x", "--repeat-penalty", "-1"}, cli.Usage, "repeat penalty (found -1"},
		{[]string{t.TempDir(), "-f", "no/such/file"}, cli.Failed, "no/such/file: cannot open: no such file or directory"},
		{[]string{dir, "-p", "x"}, cli.Failed, "run: nowhere: cannot open: no such file or directory\n"},
		{[]string{"logits", dir}, cli.Usage, "--ids and --output are required"},
		{[]string{"logits", dir, "-o", "x", "--ids", "1", "-t", "5000"}, cli.Usage, "--threads (found 5000"},
		{[]string{"logits", dir, "-o", "x", "--ids", "1"}, cli.Failed, "nowhere: cannot open"},
		{[]string{"ppl", dir, "x", "--backend", "gpu"}, cli.Usage, "--backend"},
		{[]string{"bench", dir, "-t", "-1"}, cli.Usage, "--threads"},
		{[]string{"bench", dir}, cli.Failed, "nowhere: cannot open"},
		{[]string{"demo", "x"}, cli.Usage, `unexpected argument "x"`},
	} {
		code, stdout, stderr := run(t, tt.args...)
		if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.says) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q, want %d and %q", tt.args, code, stdout, stderr, tt.code, tt.says)
		}
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("a wrong use made a file")
	}
}

// TestModelsThatAreRefused: one exit code for one kind of fault, whichever
// subcommand meets it.
func TestModelsThatAreRefused(t *testing.T) {
	config := func(change func(map[string]any)) func(string) {
		return func(dir string) { fixtures.EditJSON(t, filepath.Join(dir, "config.json"), change) }
	}
	shard := func(change func(data []byte) []byte) func(string) {
		return func(dir string) {
			path := filepath.Join(dir, "out-00000.safetensors")
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, change(data), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name   string
		damage func(dir string)
		code   int
		kind   string
		says   string
	}{
		{"not a model", func(dir string) { _ = os.Remove(filepath.Join(dir, "out-00000.safetensors")) }, cli.Corrupt, "incomplete", "no .safetensors file in this directory"},
		{"no configuration", func(dir string) { _ = os.Remove(filepath.Join(dir, "config.json")) }, cli.Corrupt, "incomplete", "config.json: cannot open: no such file or directory"},
		{"another architecture", config(func(c map[string]any) { c["model_type"] = "abacus" }), cli.Unsupported, "unsupported", `no such architecture (model_type) (found "abacus", wanted glm_moe_dsa`},
		{"an unknown key", config(func(c map[string]any) { c["attention_sinks"] = 4 }), cli.Unsupported, "unsupported", `key "attention_sinks" is not known and may change the maths (found 4)`},
		{"an unknown value", config(func(c map[string]any) { c["hidden_act"] = "gelu" }), cli.Unsupported, "unsupported", "hidden_act changes the maths and is not implemented (found \"gelu\", wanted silu)"},
		{"a contradiction", config(func(c map[string]any) { c["hidden_size"] = -1 }), cli.Corrupt, "corrupt", "hidden_size (found -1"},
		{"a truncated shard", shard(func(d []byte) []byte { return d[:len(d)-1] }), cli.Corrupt, "corrupt", "truncated: 1 bytes are missing"},
		{"an empty shard", shard(func([]byte) []byte { return nil }), cli.Corrupt, "corrupt", "shard is 0 bytes, not a safetensors file"},
		{"a web page", shard(func([]byte) []byte { return []byte("<html>404</html>") }), cli.Corrupt, "corrupt", "not a safetensors file (looks like a web page)"},
		{"a damaged header", shard(func(d []byte) []byte { d[8] = '['; return d }), cli.Corrupt, "corrupt", "out-00000.safetensors: "},
		{"a tokenizer of no JSON", func(dir string) { _ = os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("{"), 0o644) }, cli.Corrupt, "corrupt", "tokenizer.json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := container(t)
			tt.damage(dir)
			for _, args := range [][]string{{dir, "-p", "x"}, {"ppl", dir, os.Args[0]}, {"logits", dir, "--ids", "1,2", "-o", filepath.Join(dir, "x")}, {"bench", dir}} {
				code, stdout, stderr := run(t, args...)
				if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.says) || !strings.HasPrefix(stderr, "run: ") {
					t.Errorf("%s: exit %d, stdout %q, stderr %q, want %d and %q", args[0], code, stdout, stderr, tt.code, tt.says)
				}
			}
			_, _, stderr := run(t, dir, "-p", "x", "--json")
			var e struct {
				Error struct{ Kind, Message string }
				Exit  int
			}
			if err := json.Unmarshal([]byte(stderr), &e); err != nil || e.Error.Kind != tt.kind || e.Exit != tt.code {
				t.Errorf("%v: %s", err, stderr)
			}
			if _, err := os.Stat(filepath.Join(dir, "x")); err == nil {
				t.Error("a refused model made a file")
			}
		})
	}
}

// TestB20NonFiniteScale has one scale that is not finite: the run stops, names the tensor and
// chooses no token.
func TestB20NonFiniteScale(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("The king went down to the sea. ", 8)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		tensor string
		value  float64
	}{
		{"lm_head.weight", math.NaN()},
		{"model.layers.0.mlp.down_proj.weight", math.NaN()},
		{"model.layers.2.self_attn.kv_b_proj.weight", math.NaN()},
		{"model.layers.5.mlp.shared_experts.gate_proj.weight", math.Inf(1)},
		{"model.layers.1.self_attn.q_a_proj.weight", math.Inf(-1)},
	} {
		t.Run(fmt.Sprint(tt.tensor, " ", tt.value), func(t *testing.T) {
			dir := container(t)
			poke(t, dir, tt.tensor+".qs", 3, float32(tt.value))
			out := filepath.Join(dir, "x")
			for _, args := range [][]string{{dir, "-p", once}, {dir, "-p", once, "--temp", "1", "-s", "1"}, {"ppl", dir, text}, {"logits", dir, "--ids", "1,2,3", "-o", out}} {
				code, stdout, stderr := run(t, append(args, "-q")...)
				if code != cli.Corrupt || stdout != "" || !strings.Contains(stderr, "run: "+dir+": "+tt.tensor+": scales are not finite, so logits are not finite at position ") {
					t.Errorf("%s: exit %d, stdout %q, stderr %q", args[0], code, stdout, stderr)
				}
			}
			if _, err := os.Stat(out); err == nil {
				t.Error("run logits left a file of numbers that are none")
			}
			code, stdout, stderr := run(t, dir, "-p", once, "--json")
			lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n") // warnings, then the error
			var e struct {
				Error struct{ Kind, Tensor, Path string }
			}
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil || code != cli.Corrupt || stdout != "" || e.Error.Kind != "corrupt" || e.Error.Tensor != tt.tensor || e.Error.Path != dir {
				t.Errorf("%v: exit %d, stdout %q, stderr %s", err, code, stdout, stderr)
			}
		})
	}
}

// TestB20NonFiniteWeight has no scale to blame.
func TestB20NonFiniteWeight(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	rewrite(t, dir, func(name string, data []byte) []byte {
		if name == "model.layers.3.self_attn.o_proj.weight" {
			data[10], data[11] = 0xc0, 0x7f // bf16's NaN
		}
		return data
	})
	code, stdout, stderr := run(t, dir, "-p", once)
	if code != cli.Corrupt || stdout != "" || !strings.Contains(stderr, "logits are not finite at position ") || !strings.Contains(stderr, "; inspect --verify checks every weight") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// TestE10Heads: a tied head is the embedding; a head that is there is used.
func TestE10Heads(t *testing.T) {
	fingerprints := func(tie any, head func(embedding, head []byte) []byte) (int, string, string) {
		t.Helper()
		dir := fixtures.TinyGLMDir(t)
		fixtures.EditJSON(t, filepath.Join(dir, "config.json"), func(c map[string]any) {
			if delete(c, "tie_word_embeddings"); tie != nil {
				c["tie_word_embeddings"] = tie
			}
		})
		var embedding []byte // comes after lm_head.weight in byte order
		rewrite(t, dir, func(name string, data []byte) []byte {
			if name == "model.embed_tokens.weight" {
				embedding = data
			}
			return data
		})
		rewrite(t, dir, func(name string, data []byte) []byte {
			if name == "lm_head.weight" {
				return head(embedding, data)
			}
			return data
		})
		code, stdout, stderr := run(t, dir, "-p", once, "-n", "4", "--fingerprint", "--json")
		return code, fingerprinted(t, stdout), stderr
	}
	own := func(_, head []byte) []byte { return head }
	none := func(_, _ []byte) []byte { return nil }
	same := func(embedding, _ []byte) []byte { return embedding }
	_, untied, _ := fingerprints(false, own)
	_, tied, _ := fingerprints(false, same)
	if untied == tied || untied == "" {
		t.Fatalf("no difference to be seen:\n%s", tied)
	}
	for _, tt := range []struct {
		name   string
		tie    any
		head   func(embedding, head []byte) []byte
		code   int
		stdout string
		says   string
	}{
		{"tied, no head", true, none, 0, tied, ""},
		{"untied, no head", false, none, cli.Corrupt, "", "lm_head.weight (head): missing tensor"},
		{"no word, no head", nil, none, cli.Corrupt, "", "lm_head.weight (head): missing tensor"},
		{"no word, a head", nil, own, 0, untied, ""},
		{"tied, and another head", true, own, 0, untied, `{"warning":"tie_word_embeddings is true, yet lm_head.weight is there: it is used"}`},
	} {
		code, stdout, stderr := fingerprints(tt.tie, tt.head)
		if code != tt.code || stdout != tt.stdout || !strings.Contains(stderr, tt.says) || tt.says == "" && stderr != "" {
			t.Errorf("%s: exit %d, stdout\n%swant\n%sstderr %q", tt.name, code, stdout, tt.stdout, stderr)
		}
	}
}

// TestModelsWithoutText: the reason says whether a tokenizer is missing or of
// another kind, and where ids can be run.
func TestModelsWithoutText(t *testing.T) {
	for _, tt := range []struct {
		name, tokenizer string // "" is none
		code            int
		says            string
	}{
		{"none", "", cli.Corrupt, "tokenizer.json: cannot open: no such file or directory\n"},
		{"another kind", `{"model":{"type":"WordPiece","vocab":{"a":0}}}`, cli.Unsupported, "WordPiece"},
	} {
		dir := container(t)
		path := filepath.Join(dir, "tokenizer.json")
		err := os.Remove(path)
		if tt.tokenizer != "" {
			err = os.WriteFile(path, []byte(tt.tokenizer), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{dir, "-p", "x"}, {"ppl", dir, os.Args[0]}} {
			code, stdout, stderr := run(t, args...)
			if code != tt.code || stdout != "" {
				t.Errorf("%s: exit %d, stdout %q", tt.name, code, stdout)
			}
			holds(t, stderr, "run: text needs a tokenizer: ", tt.says, "\nhint: \"run logits\" takes token ids\n")
		}
		must(t, "logits", dir, "--ids", "1,2,3", "-o", filepath.Join(dir, "x"))
	}
}

// TestRequireGPU: nothing runs on the CPU in silence.
func TestRequireGPU(t *testing.T) {
	dir := container(t)
	for _, args := range [][]string{{dir, "-p", "x"}, {"logits", dir, "--ids", "1", "-o", filepath.Join(dir, "x")}, {"bench", dir}} {
		code, stdout, stderr := run(t, append(args, "--require-gpu", "--backend", "cpu")...)
		if code != cli.Unsupported || stdout != "" || !strings.Contains(stderr, "--require-gpu: no GPU is used, every layer would run on the CPU; see --list-devices") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", args[0], code, stdout, stderr)
		}
	}
	// A backend that some other system has is not a slip of the keyboard.
	other := map[bool]string{true: "cuda", false: "metal"}[goruntime.GOOS == "darwin"]
	if code, _, stderr := run(t, dir, "-p", "x", "--backend", other); code != cli.Unsupported || !strings.Contains(stderr, other) {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}

// fingerprinted is the tokens and fingerprints of a generation.
func fingerprinted(t *testing.T, events string) string {
	t.Helper()
	var b strings.Builder
	for _, e := range objects[event](t, events) {
		if e.ID != nil {
			fmt.Fprintln(&b, *e.ID, e.Fingerprint)
		}
	}
	return b.String()
}
