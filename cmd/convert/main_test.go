package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/cmd/internal/clitest"
	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
)

// run executes the command and gives its exit code and streams.
func run(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return clitest.Run(context.Background(), command(), nil, args...)
}

func runContext(t testing.TB, ctx context.Context, args ...string) (int, string, string) {
	t.Helper()
	return clitest.Run(ctx, command(), nil, args...)
}

// must runs the command, which has to succeed.
func must(t testing.TB, args ...string) (stdout, stderr string) {
	t.Helper()
	return clitest.Must(t, command(), args...)
}

func outDir(t testing.TB) string { return filepath.Join(t.TempDir(), "out") }

// rewrite writes the shards of a checkpoint again, tensor by tensor; change
// gives the tensor's new data, or nil to leave it out.
func rewrite(t testing.TB, dir string, change func(tensor *format.Tensor, data []byte) []byte) {
	t.Helper()
	snap, err := format.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	header := map[string]any{}
	var all []byte
	for _, s := range snap.Shards {
		for _, x := range s.Tensors {
			data := make([]byte, x.Size)
			if _, err := s.ReadAt(data, x.Offset); err != nil && err != io.EOF {
				t.Fatal(err)
			}
			if data = change(x, data); data == nil {
				continue
			}
			header[x.Name] = map[string]any{"dtype": x.DType, "shape": x.Shape, "data_offsets": []int{len(all), len(all) + len(data)}}
			all = append(all, data...)
		}
		if err := os.Remove(s.Path); err != nil {
			t.Fatal(err)
		}
	}
	if err := snap.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), append(file, all...), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestColibriBytes: with the same flags every tensor is the one that colibri's
// converter writes, and there is no other.
func TestColibriBytes(t *testing.T) {
	data, err := os.ReadFile(fixtures.Path(t, "colibri_hashes.json"))
	if err != nil {
		t.Fatal(err)
	}
	var sets map[string]struct {
		Source  string
		Flags   []string
		Tensors map[string][3]any // dtype, bytes, SHA-256
	}
	if err := json.Unmarshal(data, &sets); err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{"tiny": fixtures.TinyGLMDir(t), "oracle": fixtures.Path(t, "glm_moe_dsa"), "fp8": fixtures.Path(t, "glm_moe_dsa_fp8")}
	if len(sets) != 12 {
		t.Fatalf("%d sets of flags, want 12", len(sets))
	}
	for name, set := range sets {
		t.Run(name, func(t *testing.T) {
			out := outDir(t)
			args := []string{sources[set.Source], out, "--recipe", "colibri", "--allow-ambiguous"}
			for _, flag := range set.Flags {
				switch flag {
				case "--mtp":
					args[3] = "colibri-mtp"
				case "--indexer":
					args[3] = "colibri-indexer"
				default:
					args = append(args, flag)
				}
			}
			must(t, args...)
			snap, err := format.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = snap.Close() }()
			for _, tensor := range snap.Names() {
				if set.Tensors[tensor] == [3]any{} {
					t.Errorf("%s is not among colibri's tensors", tensor)
				}
			}
			for tensor, want := range set.Tensors {
				x := snap.Tensor(tensor)
				if x == nil {
					t.Errorf("%s is absent", tensor)
					continue
				}
				raw, err := x.Shard.Bytes(x)
				if err != nil {
					t.Fatal(err)
				}
				sum := sha256.Sum256(raw)
				if got := [3]any{string(x.DType), float64(len(raw)), hex.EncodeToString(sum[:8])}; got != want {
					t.Errorf("%s: %v, want %v", tensor, got, want)
				}
			}
		})
	}
}

// TestAmbiguousGroupSizeNeedsConsent: tiny-glm's rows of 192 at 128 columns a
// group are read by colibri as groups of 96.
func TestAmbiguousGroupSizeNeedsConsent(t *testing.T) {
	dir, out := fixtures.TinyGLMDir(t), outDir(t)
	args := []string{dir, out, "--format", "int4-grouped/128", "-q"}
	code, _, stderr := run(t, args...)
	if code != cli.Usage || !strings.Contains(stderr, "int4-grouped/128 with rows of 192 columns is taken for int4-grouped/96") || !strings.Contains(stderr, "--allow-ambiguous") {
		t.Errorf("exit %d, stderr\n%s", code, stderr)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a refused plan made a directory")
	}
	must(t, append(args, "--allow-ambiguous")...)
	snap, err := format.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snap.Close() }()
	const name = "model.layers.1.mlp.experts.0.up_proj.weight"
	if spec, err := snap.Spec(name, 128, 192); err != nil || spec.Name() != "int4-grouped/128" || !snap.Stamped(name) {
		t.Errorf("%v, %v", spec, err)
	}
}

// TestPlainFormatsAreCopies: bf16 of a BF16 checkpoint is the same bytes.
func TestPlainFormatsAreCopies(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	src, err := format.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = src.Close() }()
	for _, f := range []string{"bf16", "f32", "f16"} {
		out := outDir(t)
		must(t, dir, out, "--format", f, "-q")
		snap, err := format.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		const name = "model.layers.1.mlp.experts.0.up_proj.weight"
		from, to := src.Tensor(name), snap.Tensor(name)
		if f == "bf16" {
			a, aerr := from.Shard.Bytes(from)
			b, berr := to.Shard.Bytes(to)
			if aerr != nil || berr != nil || !bytes.Equal(a, b) || to.DType != format.DTypeBF16 {
				t.Errorf("%s: bytes differ from the source (%v, %v)", f, aerr, berr)
			}
		}
		if !slices.Equal(to.Shape, from.Shape) || strings.ToLower(string(to.DType)) != f {
			t.Errorf("%s: %s%v", f, to.DType, to.Shape)
		}
		if norm := snap.Tensor("model.norm.weight"); norm.DType != format.DTypeF32 {
			t.Errorf("%s: the norm is %s", f, norm.DType)
		}
		_ = snap.Close()
	}
}

// TestFP8GoesThroughUnchanged: the codes and the scales of an FP8 checkpoint.
func TestFP8GoesThroughUnchanged(t *testing.T) {
	dir, out := fixtures.Path(t, "glm_moe_dsa_fp8"), outDir(t)
	// The embeddings and the head are BF16 there, of a shape that int8-row shares.
	must(t, dir, out, "--format", "fp8-e4m3-b128", "--io-bits", "8", "-q")
	src, err := format.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	snap, err := format.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = src.Close(), snap.Close() }()
	checked := 0
	for _, name := range src.Names() {
		if src.Tensor(name).DType != format.DTypeFP8 {
			continue
		}
		for from, to := range map[string]string{name: name, name + "_scale_inv": name + ".qs"} {
			a, aerr := src.Tensor(from).Shard.Bytes(src.Tensor(from))
			b, berr := snap.Tensor(to).Shard.Bytes(snap.Tensor(to))
			if aerr != nil || berr != nil || !bytes.Equal(a, b) {
				t.Errorf("%s differs from %s", to, from)
			}
		}
		checked++
	}
	if checked != 104 {
		t.Errorf("%d FP8 matrices, want 104", checked)
	}
}

func TestE8TinyGLMsMTPBlockIsRecognised(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	stdout, _ := must(t, "plan", dir)
	if !strings.Contains(stdout, "\nmtp ") {
		t.Errorf("no row for the MTP block in\n%s", stdout)
	}
	stdout, _ = must(t, "plan", dir, "--recipe", "colibri", "--allow-ambiguous", "-v")
	if !strings.Contains(stdout, "left out by the recipe: MTP block (47 tensors), indexer (30 tensors)\n") || !strings.Contains(stdout, "left out: model.layers.6.eh_proj.weight\n") {
		t.Errorf("the plan does not say that the MTP block is left out:\n%s", stdout)
	}
	fixtures.EditJSON(t, filepath.Join(dir, "config.json"), func(c map[string]any) { delete(c, "num_nextn_predict_layers") })
	code, _, stderr := run(t, "plan", dir)
	if code != cli.Unsupported || !strings.Contains(stderr, "behind the last layer that config.json announces: an MTP block needs num_nextn_predict_layers\n    model.layers.6.eh_proj.weight\n") {
		t.Errorf("exit %d, stderr\n%s", code, stderr)
	}
}

func TestE5UnknownArchitectureStopsBeforeAnyByte(t *testing.T) {
	dir, out := fixtures.TinyGLMDir(t), outDir(t)
	fixtures.EditJSON(t, filepath.Join(dir, "config.json"), func(c map[string]any) { c["model_type"] = "another" })
	code, _, stderr := run(t, dir, out)
	if code != cli.Unsupported || !strings.Contains(stderr, `no such architecture (model_type) (found "another"`) {
		t.Errorf("exit %d, stderr\n%s", code, stderr)
	}
}

func TestD10LayersThatAreAbsent(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	rewrite(t, dir, func(x *format.Tensor, data []byte) []byte {
		if strings.HasPrefix(x.Name, "model.layers.2.") || strings.HasPrefix(x.Name, "model.layers.3.") || x.Name == "model.norm.weight" {
			return nil
		}
		return data
	})
	code, _, stderr := run(t, dir, outDir(t))
	if code != cli.Corrupt || !strings.Contains(stderr, "model.layers.{2-3}.* (2 whole layers: 76 tensors): missing tensor; 1 shard seen: incomplete download, or config.json of another model?") || !strings.Contains(stderr, "model.norm.weight (norm): missing") {
		t.Errorf("exit %d, stderr\n%s", code, stderr)
	}
}

func TestE6NestedPrefixStopsTheRun(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	snap, err := format.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := snap.Shards[0].Path
	_ = snap.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Same length, so that the header stays what it is.
	data = bytes.Replace(data, []byte(`"model.embed_tokens.weight"`), []byte(`"model.language.token.embd"`), 1)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := run(t, dir, outDir(t))
	if code != cli.Corrupt || !strings.Contains(stderr, "model.embed_tokens.weight (embed): missing") || !strings.Contains(stderr, "not a tensor of this architecture") {
		t.Errorf("exit %d, stderr\n%s", code, stderr)
	}
}

func TestE10Heads(t *testing.T) {
	for _, tt := range []struct {
		name      string
		tie, head any
		code      int
		says      string
	}{
		{"tied without a head", true, nil, 0, ""},
		{"untied without a head", false, nil, cli.Corrupt, "lm_head.weight (head): missing"},
		{"tied with a head", true, "keep", 0, "lm_head.weight is there although the embeddings are tied"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := fixtures.TinyGLMDir(t)
			fixtures.EditJSON(t, filepath.Join(dir, "config.json"), func(c map[string]any) { c["tie_word_embeddings"] = tt.tie })
			rewrite(t, dir, func(x *format.Tensor, data []byte) []byte {
				if tt.head == nil && x.Name == "lm_head.weight" {
					return nil
				}
				return data
			})
			code, _, stderr := run(t, "plan", dir)
			if code != tt.code || !strings.Contains(stderr, tt.says) {
				t.Errorf("exit %d, stderr\n%s", code, stderr)
			}
		})
	}
}

func TestE11TokenBeyondTheEmbedding(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	must(t, "plan", dir) // an embedding with rows to spare is fine: 4096 rows, the last token is 4095
	path := filepath.Join(dir, "tokenizer.json")
	tokenizer := map[string]any{}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &tokenizer)
	}
	if err != nil {
		t.Fatal(err)
	}
	added := tokenizer["added_tokens"].([]any)
	added[len(added)-1].(map[string]any)["id"] = 4096
	if data, err = json.Marshal(tokenizer); err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	code, _, stderr := run(t, "plan", dir)
	if code != cli.Corrupt || !strings.Contains(stderr, "tokens that the embedding has no row for (found ids up to 4096, wanted at most 4095, by vocab_size)") {
		t.Errorf("exit %d, stderr\n%s", code, stderr)
	}
}

func TestTokenizerOfAnotherKindIsCopiedWithAWarning(t *testing.T) {
	dir, out := fixtures.TinyGLMDir(t), outDir(t)
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(`{"model":{"type":"WordPiece","vocab":{"a":0}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	_, stderr := must(t, dir, out)
	if !strings.Contains(stderr, "run will take token ids only, no text: ") || !strings.Contains(stderr, "WordPiece") {
		t.Errorf("stderr\n%s", stderr)
	}
	if _, err := os.Stat(filepath.Join(out, "tokenizer.json")); err != nil {
		t.Error(err)
	}
}

func TestE3CompanionsAreCopied(t *testing.T) {
	dir, out := fixtures.TinyGLMDir(t), outDir(t)
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	config = append([]byte("\xef\xbb\xbf"), config...)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "generation_config.json")); err != nil {
		t.Fatal(err)
	}
	_, stderr := must(t, dir, out)
	if !strings.Contains(stderr, "generation_config.json is missing beside the checkpoint") {
		t.Errorf("stderr\n%s", stderr)
	}
	if got, err := os.ReadFile(filepath.Join(out, "config.json")); err != nil || !bytes.Equal(got, config) {
		t.Errorf("config.json was not copied with its byte order mark: %v", err)
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		a, aerr := os.ReadFile(filepath.Join(dir, name))
		b, berr := os.ReadFile(filepath.Join(out, name))
		if aerr != nil || berr != nil || !bytes.Equal(a, b) {
			t.Errorf("%s was not copied", name)
		}
	}
}

// TestA8BitsAreAchieved: what was asked for is what the headers say.
func TestA8BitsAreAchieved(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	for bits, want := range map[string]string{"8": "int8-row", "4": "int4-grouped/64", "3": "int3-g64", "2": "int2-row"} {
		out := outDir(t)
		stdout, _ := must(t, dir, out, "--xbits", bits, "--json")
		var r report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(r.Roles, func(s quantize.RoleSummary) bool { return s.Role == "expert" })
		if got := fmt.Sprint(r.Roles[i].Formats); got != fmt.Sprintf("[{%s 120}]", want) {
			t.Errorf("report of --xbits %s: %s", bits, got)
		}
		snap, err := format.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := snap.Spec("model.layers.3.mlp.experts.5.down_proj.weight", 192, 128)
		if err != nil || spec.Name() != want {
			t.Errorf("--xbits %s wrote %v (%v), want %s", bits, spec, err, want)
		}
		_ = snap.Close()
	}
}

func TestReports(t *testing.T) {
	dir, out := fixtures.TinyGLMDir(t), outDir(t)
	stdout, stderr := must(t, "--dry-run", dir)
	if stderr != "" || !strings.Contains(stdout, "expert           120    2.9 M  ") || !strings.Contains(stdout, "14.6 MB → 6.2 MB · 6.75 bits/weight · 99.8 % of 7.3 M parameters quantised · 1 shard of at most 6.2 MB\n") {
		t.Errorf("dry run: stdout\n%s\nstderr\n%s", stdout, stderr)
	}
	if plan, _ := must(t, "plan", dir); plan != stdout {
		t.Errorf("plan and --dry-run differ:\n%s\n%s", plan, stdout)
	}
	stdout, stderr = must(t, dir, out)
	if !strings.HasPrefix(stderr, "GlmMoeDsa, recipe balanced: 282 tensors, 14.6 MB → 6.2 MB (6.75 bits/weight) in 1 shard\n") ||
		!strings.Contains(stdout, "GB/s · verified in ") || !strings.Contains(stdout, "worst tensor ") {
		t.Errorf("stdout\n%s\nstderr\n%s", stdout, stderr)
	}
	stdout, stderr = must(t, dir, out, "--json", "--resume")
	var r report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || stderr != "" {
		t.Fatalf("%v, stderr %q", err, stderr)
	}
	if r.Result.Kept != 1 || r.Result.Written != 0 || !r.Destination.Complete || r.Total.Tensors != 282 || r.Verification.Worst.Error <= 0 || len(r.Files) != 4 {
		t.Errorf("%+v", r)
	}
	stdout, _ = must(t, dir, out, "-v")
	for _, line := range []string{`tensor +source +format +container +shard +error`, `model\.layers\.2\.self_attn\.kv_b_proj\.weight +BF16\[448 128\] +int8-row +59\.1 kB +out-00000\.safetensors +0\.6\d\d %`, `model\.norm\.weight +BF16\[192\] +f32 +768 B +out-00000\.safetensors +0`} {
		if !regexp.MustCompile("(?m)^" + line + "$").MatchString(stdout) {
			t.Errorf("-v: no line %s in\n%s", line, stdout)
		}
	}
	stdout, _ = must(t, dir, out, "--verify=false", "-q")
	if !strings.Contains(stdout, "complete already") || strings.Contains(stdout, "verified") {
		t.Errorf("stdout\n%s", stdout)
	}
}

func TestWrongUses(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{}, cli.Usage, "missing argument CHECKPOINT"},
		{[]string{dir}, cli.Usage, "missing argument OUT"},
		{[]string{"--dry-run"}, cli.Usage, "missing argument CHECKPOINT"},
		{[]string{"--list", dir}, cli.Usage, "unexpected argument"},
		{[]string{dir, "x", "y"}, cli.Usage, `unexpected argument "y"`},
		{[]string{dir, "x", "--recipe", "tiny"}, cli.Usage, `no such recipe (found "tiny", wanted balanced,`},
		{[]string{dir, "x", "--recipe", "./none.json"}, cli.Usage, "--recipe: ./none.json: cannot open: no such file or directory"},
		{[]string{dir, "x", "--format", "q4"}, cli.Usage, `--format (found "q4"`},
		{[]string{dir, "x", "--group-size", "many"}, cli.Usage, `--group-size (found "many", wanted a number)`},
		{[]string{dir, "x", "--group-size", "100"}, cli.Usage, "--group-size (found 100, wanted 0"},
		{[]string{dir, "x", "--xbits", "5"}, cli.Usage, "--xbits (found 5, wanted 16, 8, 4, 3 or 2)"},
		{[]string{dir, "x", "--max-shard-size", "big"}, cli.Usage, `--max-shard-size (found "big", wanted a size such as 500M or 5G)`},
		{[]string{dir, "x", "--resume", "--overwrite"}, cli.Usage, "resume"},
		{[]string{dir, filepath.Join(t.TempDir(), "x"), "--resume"}, cli.Usage, "there is no earlier run to continue"},
		{[]string{dir, "x", "--tensor", "nothing=bf16"}, cli.Usage, "override nothing=bf16 matches no tensor"},
		{[]string{dir, dir}, cli.Usage, "is the checkpoint itself"},
		{[]string{dir, filepath.Join(dir, "config.json")}, cli.Failed, "config.json: is a file (wanted a directory"},
		{[]string{dir, filepath.Join(dir, "no", "such", "parent")}, cli.Failed, filepath.Join("no", "such") + " first"},
		{[]string{filepath.Join(dir, "none"), "x"}, cli.Failed, "no such file or directory"},
		{[]string{dir, "x", "--ebit", "4"}, cli.Usage, "did you mean --ebits?"},
	} {
		code, stdout, stderr := run(t, tt.args...)
		if code != tt.code || !strings.Contains(stderr, tt.says) || stdout != "" {
			t.Errorf("%q: exit %d, want %d and %q, stderr\n%s", tt.args, code, tt.code, tt.says, stderr)
		}
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("a wrong use made a directory")
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"5G": 5e9, "500M": 5e8, "1.5GB": 15e8, "2t": 2e12, "1000": 1000, "10KB": 10000, "7B": 7, "0": 0, "-1G": 0, "G": 0, "5 G": 0, "9999999T": 0} {
		got, err := size(text)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
}

func TestListNamesEverything(t *testing.T) {
	stdout, _ := must(t, "--list")
	for _, in := range format.Formats() {
		if !strings.Contains(stdout, "\n"+in.Name) {
			t.Errorf("no format %s", in.Name)
		}
	}
	for _, r := range quantize.Recipes() {
		if !strings.Contains(stdout, "\n"+r.Name+": "+r.Doc) {
			t.Errorf("no recipe %s", r.Name)
		}
	}
	for _, r := range quantize.Roles() {
		if !strings.Contains(stdout, "\n"+r.String()+" ") {
			t.Errorf("no role %s", r)
		}
	}
	var c struct {
		Formats, Recipes, Architectures []struct{ Name string }
	}
	stdout, _ = must(t, "--list", "--json")
	if err := json.Unmarshal([]byte(stdout), &c); err != nil || len(c.Formats) != len(format.Formats()) || len(c.Recipes) != len(quantize.Recipes()) || len(c.Architectures) == 0 {
		t.Errorf("%v: %+v", err, c)
	}
}

func TestInterruptedLeavesNothingBehind(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := outDir(t)
	code, _, stderr := runContext(t, ctx, fixtures.TinyGLMDir(t), out, "-q")
	if code != cli.Interrupted || stderr != "convert: interrupted; no shard was finished, nothing is left\n" {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("nothing was finished, yet the directory is there")
	}
}
