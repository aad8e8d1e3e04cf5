package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/runtime"
)

// logitsFile is what run logits wrote.
type logitsFile struct {
	meta   map[string]string
	shapes map[string]string
	logits []float32
	ids    map[string][]int32 // input_ids and greedy_ids
}

func readLogits(t *testing.T, path string) logitsFile {
	t.Helper()
	shard, err := format.OpenShard(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = shard.Close() }()
	f := logitsFile{meta: shard.Metadata, shapes: map[string]string{}, ids: map[string][]int32{}}
	for _, x := range shard.Tensors {
		f.shapes[x.Name] = fmt.Sprint(x.DType, x.Shape)
		raw, err := shard.Bytes(x)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(raw); i += 4 {
			bits := binary.LittleEndian.Uint32(raw[i:])
			if x.Name == "logits" {
				f.logits = append(f.logits, math.Float32frombits(bits))
			} else {
				f.ids[x.Name] = append(f.ids[x.Name], int32(bits))
			}
		}
	}
	return f
}

func listOf(ids []int32) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
}

func TestLogits(t *testing.T) {
	dir, want := fixtures.TinyGLMDir(t), tinyReference(t).Greedy[once]
	out := filepath.Join(t.TempDir(), "ours.safetensors")
	stdout, stderr := must(t, "logits", dir, "--ids", listOf(want.Prompt), "-n", "64", "-o", out)
	if stdout != "" || stderr != out+": input_ids [8], logits [8, 4096], greedy_ids [64]\n" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	got := readLogits(t, out)
	if shapes := fmt.Sprint(got.shapes); shapes != "map[greedy_ids:I32[64] input_ids:I32[8] logits:F32[8 4096]]" {
		t.Error(shapes)
	}
	if meta := fmt.Sprint(got.meta); meta != fmt.Sprintf("map[arithmetic:%d]", runtime.ArithmeticVersion) {
		t.Errorf("metadata %s: the file must not depend on where the model lies", meta)
	}
	if !slices.Equal(got.ids["input_ids"], want.Prompt) || !slices.Equal(got.ids["greedy_ids"], want.IDs) {
		t.Errorf("%v, want %v and %v", got.ids, want.Prompt, want.IDs)
	}
	m, err := runtime.Load(dir, runtime.NewCPU(3))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	s, err := m.NewSession(8, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), want.Prompt, func(i int, logits []float32) error {
		for id, v := range logits {
			if have := got.logits[i*4096+id]; math.Float32bits(v) != math.Float32bits(have) {
				return fmt.Errorf("position %d, token %d: %x in the file, %x computed", i, id, math.Float32bits(have), math.Float32bits(v))
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}

	// The file is the same for any spelling of the ids, any place of the model,
	// any number of threads and any chunk.
	whole, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.CopyFS(elsewhere, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "ids.txt")
	if err := os.WriteFile(text, []byte(strings.ReplaceAll(listOf(want.Prompt), ",", " \n")), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, args := range [][]string{{dir, "--ids", fmt.Sprintf("[%s]", listOf(want.Prompt))}, {dir, "--ids", text, "-t", "7"}, {elsewhere, "--ids", out, "--chunk", "3", "-q"}} {
		again := filepath.Join(t.TempDir(), fmt.Sprint(i))
		must(t, append([]string{"logits", "-n", "64", "-o", again}, args...)...)
		if data, err := os.ReadFile(again); err != nil || !bytes.Equal(data, whole) {
			t.Errorf("%q: another file (%v)", args, err)
		}
	}
}

// TestLogitsNeedNoTokenizer, and say nothing about one.
func TestLogitsNeedNoTokenizer(t *testing.T) {
	out := filepath.Join(t.TempDir(), "x")
	_, stderr := must(t, "logits", fixtures.Path(t, "glm_moe_dsa"), "--ids", "1,2,3", "-o", out)
	if stderr != out+": input_ids [3], logits [3, 320]\n" {
		t.Errorf("stderr %q", stderr)
	}
	if f := readLogits(t, out); len(f.ids) != 1 || len(f.logits) != 3*320 {
		t.Errorf("%v", f.shapes)
	}
}

// TestLogitsRefuse: nothing is computed or written, and what was there stays.
func TestLogitsRefuse(t *testing.T) {
	model, dir := fixtures.Path(t, "glm_moe_dsa"), t.TempDir()
	out := filepath.Join(dir, "out.safetensors")
	if err := os.WriteFile(out, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--ids", "1,2,3", "-c", "2"}, cli.Usage, "--ids with -n does not fit into the context (found 3 tokens, wanted at most 2, by --ctx-size)"},
		{[]string{"--ids", "1,2,3", "-n", "5", "-c", "6"}, cli.Usage, "(found 7 tokens, wanted at most 6, by --ctx-size)"},
		{[]string{"--ids", "1,2,3", "-n", "511"}, cli.Usage, "(found 513 tokens, wanted at most 512, the model's limit)"},
		{[]string{"--ids", "1,320"}, cli.Usage, "token id at index 1 (found 320, wanted 0 … 319)"},
		{[]string{"--ids", "1,-2"}, cli.Usage, "token id at index 1 (found -2"},
		{[]string{"--ids", "1,2,x"}, cli.Usage, `--ids (found "1,2,x", wanted token ids such as 1,2,3, or a file of them that exists)`},
		{[]string{"--ids", "1,99999999999"}, cli.Usage, "--ids"},
		{[]string{"--ids", ""}, cli.Usage, "--ids holds no token"},
		{[]string{"--ids", "1", "-n", "-1"}, cli.Usage, "-n must not be negative"},
		{[]string{"--ids", filepath.Join(model, "config.json")}, cli.Usage, "config.json: not a list of token ids"},
		{[]string{"--ids", filepath.Join(model, "model-00001-of-00007.safetensors")}, cli.Usage, "input_ids: no such tensor"},
		{[]string{"--ids", fixtures.Path(t, "tiny-glm.oracle.safetensors")}, cli.Usage, "input_ids: type and shape (found I32 [8 256], wanted I32 [S])"},
		{[]string{"--ids", "1", "-o", filepath.Join(dir, "no", "such")}, cli.Failed, "no such file or directory"},
	} {
		code, stdout, stderr := run(t, append([]string{"logits", model, "-o", out}, tt.args...)...)
		if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.says) {
			t.Errorf("%q: exit %d, stderr %q, want %d and %q", tt.args, code, stderr, tt.code, tt.says)
		}
	}
	if data, err := os.ReadFile(out); err != nil || string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
	holdsOnly(t, dir, "out.safetensors")
	// As many as fit.
	must(t, "logits", model, "-o", out, "--ids", "1,2,3", "-n", "5", "-c", "7")
	if f := readLogits(t, out); len(f.ids["greedy_ids"]) != 5 {
		t.Errorf("%v", f.shapes)
	}
}
