package hawkmoth_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
)

// fault is an error as --json prints it.
type fault struct {
	Kind, Message, Path, Tensor string
}

// faultsOf runs a command that must fail and lists what is wrong.
func faultsOf(t *testing.T, bin string, args ...string) (code int, faults []fault) {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.Command(bin, append(args, "--json")...)
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("%s %q: %v", bin, args, err)
	}
	var report struct{ Problems []fault } // of inspect
	if len(stdout) > 0 {
		if err := json.Unmarshal(stdout, &report); err != nil {
			t.Fatalf("%s %q: %v in %s", bin, args, err, stdout)
		}
	}
	if faults = report.Problems; faults == nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n") // warnings, then the error
		var e struct {
			Error struct {
				fault
				Problems []fault
			}
		}
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil {
			t.Fatalf("%s %q: %v in %s", bin, args, err, stderr.String())
		}
		if faults = e.Error.Problems; faults == nil {
			faults = []fault{e.Error.fault}
		}
	}
	slices.SortFunc(faults, func(a, b fault) int { return strings.Compare(a.Message, b.Message) })
	return exit.ExitCode(), faults
}

// TestOneMessageForOneFault: convert, inspect and run say the same about the
// same fault, with the same exit code.
func TestOneMessageForOneFault(t *testing.T) {
	convert, inspect, run := build(t, "convert"), build(t, "inspect"), build(t, "run")
	for _, tt := range []struct {
		name string
		make func(t *testing.T) string
		code int
		says []string
	}{
		{"A3 fewer bytes than the shape", header(func(h map[string]any) {
			h["model.layers.0.mlp.up_proj.weight"].(map[string]any)["shape"] = []int{1000, 1000}
		}), 4, []string{"model-00001-of-00002.safetensors: model.layers.0.mlp.up_proj.weight: ", "bytes disagree"}},
		{"A3 a shape without a product", header(func(h map[string]any) {
			h["model.layers.0.mlp.up_proj.weight"].(map[string]any)["shape"] = []int64{4294967296, 4294967296, 2}
		}), 4, []string{"model.layers.0.mlp.up_proj.weight: ", "shape"}},
		{"A3 a weight of no format", func(t *testing.T) string {
			dir := t.TempDir()
			copyTree(t, dir, fixtures.Path(t, "tiny-glm-g64"))
			resize(t, dir, "model.layers.0.self_attn.kv_b_proj.weight", 1000)
			return dir
		}, 4, []string{"model.layers.0.self_attn.kv_b_proj.weight: bytes fit no format of [448,128]", "found 1000 bytes of codes"}},
		{"B9 scales that are missing", func(t *testing.T) string {
			dir := t.TempDir()
			copyTree(t, dir, fixtures.Path(t, "tiny-glm-g64"))
			resize(t, dir, "model.layers.0.self_attn.kv_b_proj.weight.qs", 0)
			return dir
		}, 4, []string{"model.layers.0.self_attn.kv_b_proj.weight: packed codes without their scales"}},
		{"scales without their weight", func(t *testing.T) string {
			dir := t.TempDir()
			copyTree(t, dir, fixtures.Path(t, "tiny-glm-g64"))
			resize(t, dir, "model.layers.0.self_attn.kv_b_proj.weight", 0)
			return dir
		}, 4, []string{"model.layers.0.self_attn.kv_b_proj.weight (kv_b): missing tensor"}},
		{"D2 a range beyond the file", header(func(h map[string]any) {
			h["model.layers.0.mlp.up_proj.weight"].(map[string]any)["data_offsets"] = []int64{1 << 40, 1<<40 + 16}
		}), 4, []string{"model.layers.0.mlp.up_proj.weight: "}},
		{"D6 a truncated shard", func(t *testing.T) string {
			dir := two(t)
			path := filepath.Join(dir, "model-00002-of-00002.safetensors")
			st, err := os.Stat(path)
			if err == nil {
				err = os.Truncate(path, st.Size()-1)
			}
			if err != nil {
				t.Fatal(err)
			}
			return dir
		}, 4, []string{"model-00002-of-00002.safetensors: ", "1 bytes are missing"}},
		{"D9 the first of numbered shards is missing", func(t *testing.T) string {
			dir := two(t)
			remove(t, filepath.Join(dir, "model-00001-of-00002.safetensors"))
			remove(t, filepath.Join(dir, "model.safetensors.index.json"))
			return dir
		}, 4, []string{"model-00001-of-00002.safetensors: shard is missing from the numbering: incomplete download?"}},
		{"D9 the first of a series is missing", func(t *testing.T) string {
			dir := two(t)
			remove(t, filepath.Join(dir, "model-00001-of-00002.safetensors"))
			remove(t, filepath.Join(dir, "model.safetensors.index.json"))
			if err := os.Rename(filepath.Join(dir, "model-00002-of-00002.safetensors"), filepath.Join(dir, "out-00001.safetensors")); err != nil {
				t.Fatal(err)
			}
			return dir
		}, 4, []string{"model.embed_tokens.weight (embed): missing tensor; 1 shard seen, the numbering lacks out-00000.safetensors: incomplete download? fetch these files again", "model.layers.0.* (1 whole layer: "}},
		{"D11 the index names a shard that is missing", func(t *testing.T) string {
			dir := two(t)
			remove(t, filepath.Join(dir, "model-00002-of-00002.safetensors"))
			return dir
		}, 4, []string{"model-00002-of-00002.safetensors: shard is missing, the index maps "}},
		{"D10 layers are missing", dropped("model.layers.1.", "model.layers.3.", "model.norm.weight"), 4,
			[]string{"model.layers.{1,3}.* (2 whole layers: ", "model.norm.weight (norm): missing tensor; 1 shard seen: incomplete download, or config.json of another model?"}},
		{"a conversion that was interrupted", unfinished(true), 4, []string{": unfinished conversion, 1 of 3 shards; the same convert command continues"}},
		{"a conversion that was interrupted in its first shard", unfinished(false), 4, []string{": unfinished conversion, 0 of 3 shards; the same convert command continues"}},
		{"an indexer in part", dropped("model.layers.3.self_attn.indexer.wk."), 4, []string{": the indexer is there in part only: missing model.layers.3.self_attn.indexer.wk.weight"}},
		{"E10 untied without a head", dropped("lm_head.weight"), 4, []string{"lm_head.weight (head): missing tensor"}},
		{"E11 a token without a row", func(t *testing.T) string {
			dir := fixtures.TinyGLMDir(t)
			fixtures.EditJSON(t, filepath.Join(dir, "tokenizer.json"), func(tok map[string]any) {
				added := tok["added_tokens"].([]any)
				added[len(added)-1].(map[string]any)["id"] = 4096
			})
			return dir
		}, 4, []string{string(filepath.Separator) + "tokenizer.json: tokens that the embedding has no row for (found ids up to 4096, wanted at most 4095, by vocab_size)"}},
		{"a tensor of another shape", config(func(c map[string]any) { c["intermediate_size"] = 511 }), 4, []string{"model.layers.0.mlp.down_proj.weight: shape"}},
		{"stop tokens that cannot be read", func(t *testing.T) string {
			dir := fixtures.TinyGLMDir(t)
			fixtures.EditJSON(t, filepath.Join(dir, "generation_config.json"), func(c map[string]any) { c["eos_token_id"] = "end" })
			return dir
		}, 4, []string{string(filepath.Separator) + `generation_config.json: eos_token_id (found "end", wanted a token id or a list of them)`}},
		{"another architecture", config(func(c map[string]any) { c["model_type"] = "another" }), 3, []string{string(filepath.Separator) + `config.json: no such architecture (model_type) (found "another"`}},
		{"unknown keys", config(func(c map[string]any) { c["attention_sinks"], c["hidden_act"] = 4, "gelu" }), 3, []string{`key "attention_sinks" is not known`, "hidden_act changes the maths"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tt.make(t)
			code, want := faultsOf(t, run, dir, "-p", "x")
			if code != tt.code {
				t.Errorf("run: exit %d, want %d", code, tt.code)
			}
			for _, part := range tt.says {
				if !slices.ContainsFunc(want, func(f fault) bool { return strings.Contains(f.Message, part) }) {
					t.Errorf("run: no %q in %+v", part, want)
				}
			}
			for name, args := range map[string][]string{convert: {"plan", dir, "--allow-requantize"}, inspect: {dir}} {
				code, got := faultsOf(t, name, args...)
				if code != tt.code || !slices.Equal(got, want) {
					t.Errorf("%s: exit %d\n%s\nrun:\n%s", filepath.Base(name), code, lines(got), lines(want))
				}
			}
		})
	}
}

// TestTextIsNoFault: a model whose tokenizer is absent or of another kind loads
// in convert, inspect and run alike; each says that there is no text.
func TestTextIsNoFault(t *testing.T) {
	convert, inspect, run := build(t, "convert"), build(t, "inspect"), build(t, "run")
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, path string)
		says   string
	}{
		{"absent", remove, "tokenizer.json"},
		{"of another kind", func(t *testing.T, path string) {
			fixtures.EditJSON(t, path, func(tok map[string]any) { tok["model"] = map[string]any{"type": "Unigram", "vocab": []any{}} })
		}, `tokenizer.json: model "Unigram"`},
		{"of another kind, with faults that may not be any", func(t *testing.T, path string) {
			fixtures.EditJSON(t, path, func(tok map[string]any) {
				tok["normalizer"] = map[string]any{"type": "Lowercase"}
				tok["decoder"] = map[string]any{"kind": "none"}
			})
		}, `normalizer`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := fixtures.TinyGLMDir(t)
			tt.change(t, filepath.Join(dir, "tokenizer.json"))
			for _, c := range [][]string{{convert, "plan", dir}, {inspect, dir}, {run, "logits", dir, "--ids", "1,2", "-o", filepath.Join(t.TempDir(), "x.safetensors")}} {
				out, err := exec.Command(c[0], c[1:]...).CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v: %s", filepath.Base(c[0]), err, out)
				}
				if c[0] != run && !strings.Contains(string(out), tt.says) {
					t.Errorf("%s: no %q in %s", filepath.Base(c[0]), tt.says, out)
				}
			}
		})
	}
}

// TestOverlayAlone: an overlay without its model says what it is and where it goes.
func TestOverlayAlone(t *testing.T) {
	convert, inspect, run := build(t, "convert"), build(t, "inspect"), build(t, "run")
	dir := filepath.Join(t.TempDir(), "exact")
	if out, err := exec.Command(convert, "overlay", fixtures.Path(t, "tiny-glm-g64"), "--role", "kv_b", "--format", "bf16", "-o", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	says := dir + ": this is the overlay kvb, whose tensors replace those of a model (wanted the model's directory, with --overlay " + dir + ")"
	for _, c := range [][]string{{run, dir, "-p", "x"}, {convert, "plan", dir}} {
		if code, faults := faultsOf(t, c[0], c[1:]...); code != 2 || len(faults) != 1 || faults[0].Message != says {
			t.Errorf("%s: exit %d, %+v, want %s", filepath.Base(c[0]), code, faults, says)
		}
	}
	if out, err := exec.Command(inspect, dir).CombinedOutput(); err != nil || !strings.Contains(string(out), says) {
		t.Errorf("inspect: %v, no %q in\n%s", err, says, out)
	}
}

func lines(faults []fault) string {
	var b strings.Builder
	for _, f := range faults {
		fmt.Fprintf(&b, "  %+v\n", f)
	}
	return b.String()
}

func copyTree(t *testing.T, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// unfinished is what an interrupted conversion leaves, with a shard or without.
func unfinished(shard bool) func(*testing.T) string {
	return func(t *testing.T) string {
		const name = "out-00000.safetensors"
		dir, done := t.TempDir(), ""
		if shard {
			data, err := os.ReadFile(filepath.Join(fixtures.Path(t, "tiny-glm-g64"), name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			done = `{"name":"` + name + `","size":1}`
		}
		record := `{"tool":"hawkmoth convert","version":1,"shards":[` + done + `],"source_modified":{"model.safetensors":1},"shards_planned":3}`
		if err := os.WriteFile(filepath.Join(dir, "hawkmoth.json"), []byte(record), 0o644); err != nil {
			t.Fatal(err)
		}
		return dir
	}
}

// config is tiny-glm with another configuration.
func config(change func(map[string]any)) func(*testing.T) string {
	return func(t *testing.T) string {
		dir := fixtures.TinyGLMDir(t)
		fixtures.EditJSON(t, filepath.Join(dir, "config.json"), change)
		return dir
	}
}

// shards writes the tensors of a model again, each to the file that name says;
// "" leaves it out, and data gives the bytes.
func shards(t *testing.T, dir string, name func(tensor string) string, data func(x *format.Tensor, raw []byte) []byte) map[string]string {
	t.Helper()
	snap, err := format.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	headers, bodies, index := map[string]map[string]any{}, map[string][]byte{}, map[string]string{}
	for _, tensor := range snap.Names() {
		file, x := name(tensor), snap.Tensor(tensor)
		if file == "" {
			continue
		}
		raw, err := x.Shard.Bytes(x)
		if err != nil {
			t.Fatal(err)
		}
		shape := x.Shape
		if changed := data(x, raw); len(changed) != len(raw) {
			raw, shape = changed, []int{len(changed)}
			if len(raw) == 0 {
				continue
			}
		}
		if headers[file] == nil {
			headers[file] = map[string]any{}
		}
		at := len(bodies[file])
		headers[file][tensor] = map[string]any{"dtype": x.DType, "shape": shape, "data_offsets": []int{at, at + len(raw)}}
		bodies[file] = append(bodies[file], raw...)
		index[tensor] = file
	}
	paths := snap.Shards
	if err := snap.Close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range paths {
		remove(t, s.Path)
	}
	for file, h := range headers {
		writeShard(t, filepath.Join(dir, file), h, bodies[file])
	}
	return index
}

func writeShard(t *testing.T, path string, h map[string]any, body []byte) {
	t.Helper()
	text, err := json.Marshal(h)
	if err == nil {
		head := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
		err = os.WriteFile(path, append(head, body...), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func as(_ *format.Tensor, raw []byte) []byte { return raw }

// two is tiny-glm in two shards: what is outside the layers and layer 0, and
// the rest.
func two(t *testing.T) string {
	t.Helper()
	dir := fixtures.TinyGLMDir(t)
	index := shards(t, dir, func(name string) string {
		if !strings.HasPrefix(name, "model.layers.") || strings.HasPrefix(name, "model.layers.0.") {
			return "model-00001-of-00002.safetensors"
		}
		return "model-00002-of-00002.safetensors"
	}, as)
	data, err := json.Marshal(map[string]any{"weight_map": index})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// header is two with another header of the first shard.
func header(change func(h map[string]any)) func(*testing.T) string {
	return func(t *testing.T) string {
		dir := two(t)
		path := filepath.Join(dir, "model-00001-of-00002.safetensors")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n := binary.LittleEndian.Uint64(data)
		h := map[string]any{}
		if err := json.Unmarshal(data[8:8+n], &h); err != nil {
			t.Fatal(err)
		}
		change(h)
		writeShard(t, path, h, data[8+n:])
		return dir
	}
}

// dropped is tiny-glm without the tensors whose names begin so.
func dropped(prefixes ...string) func(*testing.T) string {
	return func(t *testing.T) string {
		dir := fixtures.TinyGLMDir(t)
		shards(t, dir, func(name string) string {
			if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
				return ""
			}
			return "model.safetensors"
		}, as)
		return dir
	}
}

// resize gives one tensor another number of bytes; 0 removes it.
func resize(t *testing.T, dir, tensor string, n int) {
	t.Helper()
	shards(t, dir, func(string) string { return "out.safetensors" }, func(x *format.Tensor, raw []byte) []byte {
		if x.Name == tensor {
			return make([]byte, n)
		}
		return raw
	})
}
