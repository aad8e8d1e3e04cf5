package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"maps"
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

// finished is a checkpoint and the container that the balanced recipe makes of it.
func finished(t *testing.T) (checkpoint, base string) {
	t.Helper()
	checkpoint, base = fixtures.TinyGLMDir(t), outDir(t)
	must(t, checkpoint, base, "-q", "--verify=false")
	return checkpoint, base
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// contents is every file of a directory by name.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range names(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(data)
	}
	return all
}

func overlayOf(t *testing.T, stdout string) overlayReport {
	t.Helper()
	var r overlayReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	return r
}

// score is the mean negative log-likelihood of a snapshot on windows that the
// model was tested on in training.
func score(t *testing.T, dir string, overlays ...string) runtime.Perplexity {
	t.Helper()
	oracle, err := format.OpenShard(fixtures.Path(t, "tiny-glm.oracle.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = oracle.Close() }()
	raw, err := oracle.Bytes(oracle.Tensors[0])
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int32, 3*256)
	if _, err := binary.Decode(raw[:4*len(ids)], binary.LittleEndian, ids); err != nil {
		t.Fatal(err)
	}
	m, err := runtime.Load(dir, runtime.NewCPU(2), overlays...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	if len(m.Warnings) > 0 {
		t.Errorf("%s: warnings %v", dir, m.Warnings)
	}
	s, err := m.NewSession(256, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Score(t.Context(), ids, 256, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestOverlayRuns: kv_b to int4-grouped/64 over a container, inside it and
// apart, folded in, and to plain floats; each runs, and costs what its format
// costs.
func TestOverlayRuns(t *testing.T) {
	checkpoint, base := finished(t)
	before := contents(t, base)
	was := score(t, base)
	apart, exact := outDir(t), outDir(t)
	must(t, "overlay", base, "--role", "kv_b", "--format", "int4-grouped/64", "--from", checkpoint, "-o", apart, "-q")
	must(t, "overlay", base, "--tensors", `self_attn\.kv_b_proj`, "--format", "bf16", "--from", checkpoint, "-o", exact, "-q")
	must(t, "overlay", base, "--role", "kv_b", "--format", "int4-grouped/64", "--from", checkpoint, "-q")
	inside := score(t, base)
	t.Logf("perplexity of %d tokens: %.4f with kv_b in int8-row, %.4f in int4-grouped/64", was.Tokens, was.Value, inside.Value)
	if inside.Value == was.Value || math.Abs(inside.NLL-was.NLL) > 0.05 {
		t.Errorf("perplexity %v, was %v", inside.Value, was.Value)
	}
	must(t, "overlay", "--remove", "kvb", base)
	if !maps.Equal(contents(t, base), before) {
		t.Error("the base is not as it was")
	}
	if p := score(t, base, apart); p != inside {
		t.Errorf("in a directory of its own: %v, inside %v", p.Value, inside.Value)
	}
	plain := score(t, base, exact)
	if plain.Value == was.Value || math.Abs(plain.NLL-was.NLL) > 0.01 {
		t.Errorf("plain floats over codes: %v, was %v", plain.Value, was.Value)
	}
	must(t, "overlay", "--merge", "kvb", "-o", apart, base)
	if p := score(t, base); p != inside {
		t.Errorf("folded in: %v, inside %v", p.Value, inside.Value)
	}
	must(t, "overlay", base, "--role", "kv_b", "--format", "bf16", "--from", checkpoint, "-q", "--index-only")
	if p := score(t, base); p != plain {
		t.Errorf("plain floats inside: %v, apart %v", p.Value, plain.Value)
	}
	must(t, "overlay", "--merge", "kvb", base)
	if p := score(t, base); p != plain {
		t.Errorf("plain floats folded in: %v, apart %v", p.Value, plain.Value)
	}
}

func TestOverlayReports(t *testing.T) {
	checkpoint, base := finished(t)
	args := []string{"overlay", base, "--role", "kv_b", "--format", "int4-grouped", "--from", checkpoint}
	stdout, stderr := must(t, append(args, "--dry-run")...)
	for _, says := range []string{"kv_b        6  344.1 k", "replaces int8-row of the base, 354.8 kB that stay there unread: model.layers.{0-5}.self_attn.kv_b_proj.weight (6 tensors)\n",
		"the MTP block keeps its own, --mtp replaces them too: model.layers.6.self_attn.kv_b_proj.weight\n", "688.1 kB → 193.5 kB · 4.50 bits/weight · kvb-00000.safetensors in " + base + " · 195.6 kB to write"} {
		if !strings.Contains(stdout, says) || stderr != "" {
			t.Errorf("a plan does not say %q:\n%s%s", says, stdout, stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(base, "kvb-00000.safetensors")); err == nil {
		t.Fatal("a plan wrote")
	}
	stdout, stderr = must(t, append(args, "-v")...)
	for _, says := range []string{"model.layers.5.self_attn.kv_b_proj.weight  bf16[448,128]  int4-grouped/64", "error of what is replaced: 0.6", "error of each of 24 heads of kv_b: 10", "verified in "} {
		if !strings.Contains(stdout, says) {
			t.Errorf("no %q in\n%s", says, stdout)
		}
	}
	if !strings.Contains(stderr, "overlay kvb: model.layers.{0-5}.self_attn.kv_b_proj.weight (6 tensors), int8-row → int4-grouped/64 (193.5 kB) from "+checkpoint) || !strings.Contains(stderr, "convert overlay --remove kvb "+base+" gives the base back") {
		t.Errorf("stderr\n%s", stderr)
	}
	stdout, stderr = must(t, append(args, "--json")...)
	r := overlayOf(t, stdout)
	if stderr != "" || !r.Destination.Complete || r.Result.Kept != 1 || r.Overlay != "kvb" || !r.InPlace || r.Total.Tensors != 6 || len(r.Verification.Tensors) != 6 || len(r.Verification.Heads[5].Errors) != 4 || len(r.MTPLeft) != 1 || r.Replaced.Tensors != 6 {
		t.Errorf("%s%s", stdout, stderr)
	}
	if stdout, _ = must(t, append(args, "--verify=false")...); !strings.Contains(stdout, "complete already\n") {
		t.Errorf("stdout\n%s", stdout)
	}

	stdout, _ = must(t, "overlay", "--list", base)
	if !strings.Contains(stdout, "kvb      in use        6  195.6 kB  int4-grouped/64  int8-row  ") || !strings.Contains(stdout, "kvb replaces int8-row: model.layers.{0-5}.self_attn.kv_b_proj.weight (6 tensors)\n") {
		t.Errorf("list\n%s", stdout)
	}
	var l overlayList
	stdout, _ = must(t, "overlay", "--list", base, "--json")
	if err := json.Unmarshal([]byte(stdout), &l); err != nil || len(l.Overlays) != 1 || l.Overlays[0].Tensors != 6 || l.Others == nil {
		t.Errorf("%v: %s", err, stdout)
	}
	before := contents(t, base)
	stdout, _ = must(t, "overlay", "--merge", "kvb", base, "--dry-run")
	if !strings.Contains(stdout, "would fold 6 tensors of kvb into 1 shard of "+base) || !maps.Equal(contents(t, base), before) {
		t.Errorf("merge --dry-run\n%s", stdout)
	}
	stdout, _ = must(t, "overlay", "--merge", "kvb", base)
	if !strings.HasPrefix(stdout, "folded 6 tensors of kvb into 1 shard of "+base) || !strings.Contains(stdout, "less on disk") {
		t.Errorf("merge\n%s", stdout)
	}
	if stdout, _ = must(t, "overlay", "--list", base); stdout != "no overlays\n" {
		t.Errorf("list\n%s", stdout)
	}
}

// TestMergeGivesTheMetalRecipe: a container that was cured is one that was made
// so, to the byte.
func TestMergeGivesTheMetalRecipe(t *testing.T) {
	checkpoint, base := finished(t)
	metal := outDir(t)
	must(t, checkpoint, metal, "-q", "--verify=false", "--recipe", "colibri-metal")
	must(t, "overlay", base, "--role", "kv_b", "--format", "int4-grouped/64", "--from", checkpoint, "-q")
	must(t, "overlay", "--merge", "kvb", base)
	got, want := contents(t, base), contents(t, metal)
	delete(got, "hawkmoth.json")
	delete(want, "hawkmoth.json")
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s differs", name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
}

func TestOverlaysOfOthersAreListed(t *testing.T) {
	_, base := finished(t)
	const kv = "model.layers.0.self_attn.kv_b_proj.weight"
	snap, err := format.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	x, q := snap.Tensor(kv), snap.Tensor(kv+".qs")
	entries := []format.Entry{{Name: kv, DType: x.DType, Shape: x.Shape}, {Name: kv + ".qs", DType: q.DType, Shape: q.Shape}}
	w, err := format.Create(filepath.Join(base, "model-overlay-1.safetensors"), entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []*format.Tensor{x, q} {
		data, err := from.Shard.Bytes(from)
		if err == nil {
			err = w.WriteAt(from.Name, data, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	_ = snap.Close()
	index := filepath.Join(base, "model.safetensors.index.json")
	data, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(data), `"`+kv+`": "out-00000`, `"`+kv+`": "model-overlay-1`, 1)
	text = strings.Replace(text, `"`+kv+`.qs": "out-00000`, `"`+kv+`.qs": "model-overlay-1`, 1)
	if err := os.WriteFile(index, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	stdout, _ := must(t, "overlay", "--list", base)
	if !strings.HasPrefix(stdout, "model-overlay-1.safetensors, ") || !strings.Contains(stdout, "which this command did not write, replaces "+kv) {
		t.Errorf("list\n%s", stdout)
	}
}

func TestOverlayWrongUses(t *testing.T) {
	checkpoint, base := finished(t)
	before := contents(t, base)
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{}, cli.Usage, "missing argument BASE"},
		{[]string{base}, cli.Usage, "--role or --tensors is needed"},
		{[]string{base, "--role", "kv_b"}, cli.Usage, "--format is needed, such as int4-grouped/64"},
		{[]string{base, "--role", "kvb", "--format", "q4"}, cli.Usage, `--role (found "kvb", wanted embed, head,`},
		{[]string{base, "--role", "kv_b", "--format", "q4"}, cli.Usage, `--format (found "q4"`},
		{[]string{base, "--role", "kv_b", "--format", "int4-grouped", "--group-size", "100"}, cli.Usage, "--group-size (found 100"},
		{[]string{base, "--tensors", "(", "--format", "bf16"}, cli.Usage, "--tensors: not a regular expression"},
		{[]string{base, "--tensors", "kvb_proj", "--format", "int4-row"}, cli.Usage, "kv_b_proj.weight"},
		{[]string{base, "--role", "kv_b", "--format", "bf16", "--from", checkpoint}, cli.Usage, "colibri would take the new plain floats for packed codes"},
		{[]string{base, "--role", "attn", "--format", "int4-grouped/64", "--from", checkpoint}, cli.Usage, "--allow-ambiguous"},
		{[]string{base, "--list", "--role", "kv_b"}, cli.Usage, "exclude each other"},
		{[]string{base, "--remove", "kvb"}, cli.Usage, `has no overlay "kvb", nor any other`},
		{[]string{base, "--merge", "kvb"}, cli.Usage, `has no overlay "kvb", nor any other`},
		{[]string{filepath.Join(base, "config.json"), "--role", "kv_b", "--format", "int4-row"}, cli.Usage, "is a file"},
		{[]string{filepath.Join(base, "none"), "--role", "kv_b", "--format", "int4-row"}, cli.Failed, "no such file"},
		{[]string{base, "--role", "kv_b", "--format", "int4-row", "--from", filepath.Join(base, "none")}, cli.Failed, "no such file"},
		{[]string{base, "--role", "kv_b", "--format", "int4-row", "-o", base}, cli.Usage, "is the base itself"},
	} {
		code, stdout, stderr := run(t, append([]string{"overlay"}, tt.args...)...)
		if code != tt.code || !strings.Contains(stderr, tt.says) || stdout != "" {
			t.Errorf("%q: exit %d, want %d and %q, stderr\n%s", tt.args, code, tt.code, tt.says, stderr)
		}
	}
	if !maps.Equal(contents(t, base), before) {
		t.Error("a wrong use changed the base")
	}
}

// TestAnotherCheckpointIsNoticed: one of the same shapes fits everywhere, but
// not the values of the base.
func TestAnotherCheckpointIsNoticed(t *testing.T) {
	checkpoint, base := finished(t)
	rewrite(t, checkpoint, func(x *format.Tensor, data []byte) []byte {
		if strings.Contains(x.Name, "layers.3.self_attn.kv_b_proj") {
			for i := 1; i < len(data); i += 2 {
				data[i] ^= 0x80 // the other sign
			}
		}
		return data
	})
	_, stderr := must(t, "overlay", base, "--role", "kv_b", "--format", "int4-row", "--from", checkpoint)
	if !strings.Contains(stderr, "model.layers.3.self_attn.kv_b_proj.weight of the base is 200 % off the values of "+checkpoint+": is that the checkpoint that the base was made from?") {
		t.Errorf("stderr\n%s", stderr)
	}
}

func TestContainersNeedConsentToBeConverted(t *testing.T) {
	_, base := finished(t)
	out := outDir(t)
	args := []string{base, out, "--recipe", "small", "--group-size", "32"}
	code, _, stderr := run(t, args...)
	if code != cli.Usage || !strings.Contains(stderr, "is a converted container already") || !strings.Contains(stderr, "convert overlay") || !strings.Contains(stderr, "--allow-requantize") {
		t.Errorf("exit %d, stderr\n%s", code, stderr)
	}
	_, stderr = must(t, append(args, "--allow-requantize")...)
	if !strings.Contains(stderr, "decoded from int8-row and encoded again") {
		t.Errorf("stderr\n%s", stderr)
	}
	if p := score(t, out); p.Value > 60 {
		t.Errorf("perplexity %v", p.Value)
	}
}

func TestInterruptedOverlayLeavesTheBase(t *testing.T) {
	_, base := finished(t)
	before := names(t, base)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, _, stderr := runContext(t, ctx, "overlay", base, "--role", "kv_b", "--format", "int4-row", "-q")
	if code != cli.Interrupted || !strings.HasSuffix(stderr, "convert: interrupted; the base is as it was; the same command continues\n") {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
	if after := names(t, base); !slices.Equal(after, before) {
		t.Errorf("left %v", after)
	}
}
