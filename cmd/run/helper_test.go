package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/clitest"
	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/internal/fixtures/converted"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// run is the command as a user types it, on the CPU, with nothing on standard input.
func run(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return clitest.Run(t.Context(), command(), nil, args...)
}

func runContext(t testing.TB, ctx context.Context, stdin io.Reader, args ...string) (int, string, string) {
	t.Helper()
	return clitest.Run(ctx, command(), stdin, args...)
}

// must runs the command, which has to succeed.
func must(t testing.TB, args ...string) (stdout, stderr string) {
	t.Helper()
	return clitest.Must(t, command(), args...)
}

// holds checks that some text has every part.
func holds(t testing.TB, text string, parts ...string) {
	t.Helper()
	clitest.Holds(t, text, parts...)
}

// reference is what transformers computed with tiny-glm.
type reference struct {
	NLL    float64 `json:"nll_8x256"`
	Greedy map[string]struct {
		Prompt []int32 `json:"prompt_ids"`
		IDs    []int32 `json:"ids"`
		Text   string  `json:"text"`
	} `json:"greedy"`
}

func tinyReference(t testing.TB) *reference {
	t.Helper()
	data, err := os.ReadFile(fixtures.Path(t, "tiny-glm.oracle.json"))
	r := &reference{}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err != nil || len(r.Greedy) != 3 {
		t.Fatalf("%v, %d greedy texts", err, len(r.Greedy))
	}
	return r
}

// container is tiny-glm-g64, which colibri's converter made, with the
// tokenizer of the checkpoint that it was made from.
func container(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tiny-glm-g64")
	if err := os.CopyFS(dir, os.DirFS(fixtures.Path(t, "tiny-glm-g64"))); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(fixtures.TinyGLMDir(t), "tokenizer.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// poke overwrites the i-th float of a tensor in its shard.
func poke(t testing.TB, dir, tensor string, i int64, v float32) {
	t.Helper()
	snap, err := format.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	x := snap.Tensor(tensor)
	if x == nil || x.DType != format.DTypeF32 || 4*i >= x.Size {
		t.Fatalf("%s: no such float", tensor)
	}
	path, at := x.Shard.Path, x.Offset+4*i
	if err := snap.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, werr := f.WriteAt(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)), at)
	if cerr := f.Close(); werr != nil || cerr != nil {
		t.Fatal(werr, cerr)
	}
}

// rewrite writes a model again as one shard; change gives each tensor's new
// data, or nil to leave it out.
func rewrite(t testing.TB, dir string, change func(name string, data []byte) []byte) {
	t.Helper()
	snap, err := format.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var entries []format.Entry
	data := map[string][]byte{}
	for _, name := range snap.Names() {
		x := snap.Tensor(name)
		raw, err := x.Shard.Bytes(x)
		if err != nil {
			t.Fatal(err)
		}
		if raw = change(name, slices.Clone(raw)); raw != nil {
			entries = append(entries, format.Entry{Name: name, DType: x.DType, Shape: x.Shape})
			data[name] = raw
		}
	}
	path := filepath.Join(dir, "rewritten")
	w, err := format.Create(path, entries, nil)
	for name, raw := range data {
		if err == nil {
			err = w.WriteAt(name, raw, 0)
		}
	}
	if err == nil {
		err = w.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := snap.Close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range snap.Shards {
		if err := os.Remove(s.Path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(path, filepath.Join(dir, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
}

// objects reads lines of JSON; no number may be anything but finite, and
// nothing may be null.
func objects[T any](t testing.TB, lines string) []T {
	t.Helper()
	var list []T
	for line := range strings.Lines(lines) {
		var v T
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&v); err != nil || d.More() || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%v in %q", err, line)
		}
		if strings.Contains(line, ":null") {
			t.Errorf("null in %s", line)
		}
		list = append(list, v)
	}
	return list
}

// holdsOnly checks that a directory holds only these files.
func holdsOnly(t testing.TB, dir string, names ...string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range list {
		found = append(found, e.Name())
	}
	if !slices.Equal(found, names) {
		t.Errorf("%s holds %q, want %q", dir, found, names)
	}
}

// convert makes a container as the command of that name does.
func convert(t testing.TB, source, recipe string, flags quantize.Flags) string {
	t.Helper()
	return converted.Container(t, source, func(config []byte) ([]quantize.Want, error) {
		c, err := runtime.ReadConfig(config)
		if err != nil {
			return nil, err
		}
		return c.Arch.Tensors(c), nil
	}, recipe, flags)
}
