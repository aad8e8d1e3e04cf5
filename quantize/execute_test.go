package quantize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
)

// execute converts into a directory and must succeed.
func execute(t testing.TB, p *Plan, dir string, o ExecuteOptions) *Result {
	t.Helper()
	r, err := Execute(t.Context(), p, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// oraclePlan converts a small model of seven shards into many small ones.
func oraclePlan(t testing.TB, name string, f Flags) *Plan {
	t.Helper()
	snap := open(t, fixtures.Path(t, "glm_moe_dsa"))
	r, err := RecipeFor(name)
	if err == nil {
		r, err = r.With(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(snap, wantsOf(snap, 0), r, PlanOptions{MaxShard: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// stopAfter cancels a context when n shards have been begun.
func stopAfter(t testing.TB, n int32) (context.Context, ExecuteOptions) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var begun atomic.Int32
	return ctx, ExecuteOptions{Shard: func(string, bool) {
		if begun.Add(1) > n {
			cancel()
		}
	}}
}

func sameFiles(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s should not be there", name)
		}
	}
	for name, data := range want {
		if have, ok := got[name]; !ok || have != data {
			t.Errorf("%s differs (%d bytes, want %d)", name, len(have), len(data))
		}
	}
}

func outDir(t testing.TB) string { return filepath.Join(t.TempDir(), "out") }

func TestSameBytesWithAnyThreadsAndBuffers(t *testing.T) {
	p := oraclePlan(t, "small", Flags{Tensors: []string{"layers.1=int2-row", "layers.2=int3-g64", "o_proj=int8-row"}})
	want := outDir(t)
	execute(t, p, want, ExecuteOptions{Threads: 1})
	for _, threads := range []int{2, 7, 32} {
		got := outDir(t)
		execute(t, p, got, ExecuteOptions{Threads: threads})
		sameFiles(t, files(t, got), files(t, want))
	}
}

// TestCopiesAreByteIdentical: a byte-order mark and a missing last newline are
// the file's own.
func TestCopiesAreByteIdentical(t *testing.T) {
	snap := checkpoint(t, f32Tensor("model.layers.0.self_attn.q_a_proj.weight", []int{64, 64}, ramp(64*64)))
	small := map[string]string{"config.json": "\xef\xbb\xbf{\r\n}", "tokenizer.json": "\xef\xbb\xbf{ }\n\n", "chat_template.jinja": "\xef\xbb\xbfx\r\n", "merges.txt": "a b"}
	for name, text := range small {
		if err := os.WriteFile(filepath.Join(snap.Dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := outDir(t)
	p := planOf(t, snap, recipe(t, "balanced", Flags{}), PlanOptions{})
	for range 2 { // the second run finds all of it done
		execute(t, p, out, ExecuteOptions{})
		got := files(t, out)
		for name, text := range small {
			if got[name] != text {
				t.Errorf("%s: %q, want %q", name, got[name], text)
			}
		}
	}
	for _, f := range p.Files {
		if f.Size != int64(len(small[f.Name])) {
			t.Errorf("%s: %d bytes planned, want %d", f.Name, f.Size, len(small[f.Name]))
		}
	}
}

// TestBlocksJoin: a matrix of several blocks is what one call encodes.
func TestBlocksJoin(t *testing.T) {
	const rows, cols = 1500, 1001
	w := ramp(rows * cols)
	snap := checkpoint(t, f32Tensor("model.layers.0.self_attn.q_a_proj.weight", []int{rows, cols}, w))
	for _, c := range Codecs() {
		out := outDir(t)
		p := planOf(t, snap, recipe(t, "balanced", Flags{Format: c.ID.String()}), PlanOptions{AllowAmbiguous: true})
		if n := len(blocks(p.Items)); n < 2 {
			t.Fatalf("%d blocks", n)
		}
		var done atomic.Int64
		execute(t, p, out, ExecuteOptions{Progress: func(n int64) { done.Add(n) }})
		if done.Load() != 4*rows*cols {
			t.Errorf("%s: progress of %d bytes, want %d", c.ID, done.Load(), 4*rows*cols)
		}
		whole := NewMatrix(p.Items[0].Spec)
		c.Encode(whole, 0, rows, w)
		got, err := bindPair(open(t, out), p.Items[0].Want.Name, rows, cols)
		if err != nil || !slices.Equal(got.W, whole.W) || !slices.Equal(got.S, whole.S) {
			t.Errorf("%s: blocks differ from the whole (%v)", c.ID, err)
		}
	}
}

// TestFP8GoesThroughInBlocks: codes and scales of several blocks of rows.
func TestFP8GoesThroughInBlocks(t *testing.T) {
	const rows, cols, name = 1500, 1001, "model.layers.0.self_attn.q_a_proj.weight"
	codes := make([]byte, rows*cols)
	for i := range codes {
		codes[i] = byte(i*31%0x7f) | byte(i>>3)&0x80
	}
	codes[5] = 0x80 // -0 goes through as well
	scales := weights(3, 12, 8)
	snap := checkpoint(t, fp8Tensor(name, []int{rows, cols}, codes), f32Tensor(name+fp8ScaleSuffix, []int{12, 8}, scales))
	p := planOf(t, snap, recipe(t, "balanced", Flags{Format: "fp8-e4m3-b128"}), PlanOptions{})
	if n := len(blocks(p.Items)); n < 2 || !p.Items[0].PassThrough {
		t.Fatalf("%d blocks, through %v", n, p.Items[0].PassThrough)
	}
	out := outDir(t)
	execute(t, p, out, ExecuteOptions{})
	got, err := bindPair(open(t, out), name, rows, cols)
	if err != nil || !slices.Equal(got.W, codes) || !slices.Equal(got.S, scales) {
		t.Errorf("codes or scales changed (%v)", err)
	}
}

// TestC9EmptyTensorsAreWritten as they are.
func TestC9EmptyTensorsAreWritten(t *testing.T) {
	snap := checkpoint(t, matrix("model.layers.0.mlp.up_proj.weight", 8, 64), f32Tensor("model.empty_norm", []int{0}, nil), f32Tensor("model.scalar_norm", []int{}, []float32{2}))
	p, out, _ := converted(t, snap, Flags{})
	if len(p.Items) != 3 {
		t.Fatalf("%d items", len(p.Items))
	}
	c := open(t, out)
	if e, s := c.Tensor("model.empty_norm"), c.Tensor("model.scalar_norm"); e == nil || e.Size != 0 || s == nil || s.Size != 4 {
		t.Errorf("%+v, %+v", e, s)
	}
}

// TestE1KilledAnywhere kills conversions with SIGKILL at 50 random points. At
// each, what has its final name is complete; continued, the directory is that
// of an undisturbed run.
func TestE1KilledAnywhere(t *testing.T) {
	if goruntime.GOOS == "windows" {
		t.Skip("SKIPPED: no SIGKILL on windows")
	}
	if out := os.Getenv("QUANTIZE_TEST_OUT"); out != "" {
		killedChild(t, out)
		return
	}
	p := oraclePlan(t, "balanced", Flags{})
	ref := outDir(t)
	execute(t, p, ref, ExecuteOptions{})
	want := files(t, ref)
	rng := rand.New(rand.NewPCG(1, 2))
	kills, stages := 0, map[string]int{}
	for kills < 50 {
		out := outDir(t)
		for first := rng.IntN(3) > 0; ; first = false {
			at, delay := min(rng.IntN(1250), 1000), time.Duration(rng.IntN(1<<rng.IntN(15)))*time.Microsecond
			if first {
				at = 0
			}
			cmd := child(t, "TestE1KilledAnywhere", "QUANTIZE_TEST_OUT="+out, "QUANTIZE_TEST_AT="+strconv.Itoa(at), "QUANTIZE_TEST_DELAY="+delay.String())
			text, err := cmd.CombinedOutput()
			if err == nil {
				break // it was quicker than its killer
			}
			if state := cmd.ProcessState.String(); state != "signal: killed" {
				t.Fatalf("child: %s\n%s", state, text)
			}
			kills++
			stages[checkFinalNames(t, out, want)]++
		}
		execute(t, p, out, ExecuteOptions{})
		sameFiles(t, files(t, out), want)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d kills: %v", kills, stages)
}

// TestE1KilledAtEveryStage makes sure of the stages that chance may miss. Each
// run ends in the middle of one: by SIGKILL where the conversion calls back,
// by a name that cannot be written where it does not.
func TestE1KilledAtEveryStage(t *testing.T) {
	if goruntime.GOOS == "windows" {
		t.Skip("SKIPPED: no SIGKILL on windows")
	}
	p := oraclePlan(t, "balanced", Flags{})
	last := len(p.Shards) - 1
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	die := func() {
		_ = self.Kill()
		select {} // no further, not even by another goroutine's mercy
	}
	begun := -1
	stages := map[string]struct {
		stop   func(out string) ExecuteOptions // ends the run
		killed bool
		left   string // as checkFinalNames says
		temp   string // a temporary file that is left
		shards int
	}{
		"reading":                 {func(string) ExecuteOptions { return ExecuteOptions{Shard: func(string, bool) { die() }} }, true, "first shard", "", 0},
		"writing the first shard": {func(string) ExecuteOptions { return ExecuteOptions{Threads: 1, Progress: func(int64) { die() }} }, true, "first shard", p.Shards[0].Name + ".tmp", 0},
		"writing a later shard": {func(string) ExecuteOptions {
			return ExecuteOptions{Threads: 1, Shard: func(string, bool) { begun++ }, Progress: func(int64) {
				if begun == 3 {
					die()
				}
			}}
		}, true, "some shards", p.Shards[3].Name + ".tmp", 3},
		"between shards": {func(string) ExecuteOptions {
			return ExecuteOptions{Shard: func(string, bool) {
				if begun++; begun == 2 {
					die()
				}
			}}
		}, true, "some shards", "", 2},
		"before a shard is recorded": {blocked(t, p, 1, ManifestName), false, "some shards", "", 2},
		"before the small files":     {blocked(t, p, last, "config.json"), false, "some shards", "", last + 1},
		"before the index":           {blocked(t, p, last, indexName), false, "some shards", "", last + 1},
	}
	if name := os.Getenv("QUANTIZE_TEST_STAGE"); name != "" {
		out := os.Getenv("QUANTIZE_TEST_OUT")
		execute(t, p, out, stages[name].stop(out))
		return
	}
	ref := outDir(t)
	execute(t, p, ref, ExecuteOptions{})
	want := files(t, ref)
	for name, stage := range stages {
		t.Run(name, func(t *testing.T) {
			out := outDir(t)
			if stage.killed {
				cmd := child(t, "TestE1KilledAtEveryStage", "QUANTIZE_TEST_OUT="+out, "QUANTIZE_TEST_STAGE="+name)
				if text, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.String() != "signal: killed" {
					t.Fatalf("child: %v\n%s", err, text)
				}
			} else {
				if _, err := Execute(t.Context(), p, out, stage.stop(out)); err == nil {
					t.Fatal("nothing stopped the run")
				}
				for _, blocker := range []string{ManifestName, "config.json", indexName} {
					if err := os.RemoveAll(filepath.Join(out, blocker+".tmp")); err != nil {
						t.Fatal(err)
					}
				}
			}
			if left := checkFinalNames(t, out, want); left != stage.left {
				t.Errorf("left %q, want %q", left, stage.left)
			}
			shards, temps := 0, []string{}
			for name := range files(t, out) {
				switch filepath.Ext(name) {
				case ".safetensors":
					shards++
				case ".tmp":
					temps = append(temps, name)
				}
			}
			if shards != stage.shards || strings.Join(temps, " ") != stage.temp {
				t.Errorf("%d shards and %v are left, want %d and %q", shards, temps, stage.shards, stage.temp)
			}
			execute(t, p, out, ExecuteOptions{})
			sameFiles(t, files(t, out), want)
		})
	}
}

// blocked makes a run fail where it writes a file after a shard has begun: a
// directory that cannot be removed has the temporary file's name.
func blocked(t *testing.T, p *Plan, shard int, name string) func(out string) ExecuteOptions {
	return func(out string) ExecuteOptions {
		return ExecuteOptions{Shard: func(begun string, _ bool) {
			if begun == p.Shards[shard].Name {
				if err := os.MkdirAll(filepath.Join(out, name+".tmp", "x"), 0o755); err != nil {
					t.Error(err)
				}
			}
		}}
	}
}

// killedChild converts and is killed a while after some thousandths of what
// was left to do.
func killedChild(t *testing.T, out string) {
	at, err := strconv.ParseInt(os.Getenv("QUANTIZE_TEST_AT"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	delay, err := time.ParseDuration(os.Getenv("QUANTIZE_TEST_DELAY"))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p := oraclePlan(t, "balanced", Flags{})
	d, err := Survey(p, out, false)
	if err != nil {
		t.Fatal(err)
	}
	var left int64
	for i, s := range p.Shards {
		if !d.Kept[i] {
			left += s.Source
		}
	}
	at = left * at / 1000
	var done atomic.Int64
	execute(t, p, out, ExecuteOptions{Threads: 2, Progress: func(n int64) {
		if now := done.Add(n); now >= at && now-n < max(at, 1) {
			go func() {
				time.Sleep(delay)
				_ = self.Kill()
			}()
		}
	}})
}

// checkFinalNames compares the files under their final names with those of a
// finished run and says how far the killed run was.
func checkFinalNames(t *testing.T, out string, want map[string]string) string {
	t.Helper()
	if _, err := os.Stat(out); err != nil {
		return "nothing"
	}
	got, shards := files(t, out), 0
	for name, data := range got {
		switch {
		case strings.HasSuffix(name, ".tmp"):
		case name == ManifestName:
			var m Manifest
			if err := json.Unmarshal([]byte(data), &m); err != nil {
				t.Errorf("%s is partial: %v", name, err)
			}
			for _, s := range m.Shards {
				if got[s.Name] != want[s.Name] {
					t.Errorf("%s is recorded but not whole", s.Name)
				}
			}
		case data != want[name]:
			t.Errorf("%s has its name but not its content: %d bytes of %d", name, len(data), len(want[name]))
		default:
			if strings.HasSuffix(name, ".safetensors") {
				shards++
			}
		}
	}
	switch _, complete := got[indexName]; {
	case complete:
		for name := range want {
			if got[name] != want[name] {
				t.Errorf("the index is there but %s is not whole", name)
			}
		}
		return "complete"
	case shards > 0:
		return "some shards"
	}
	return "first shard"
}

func TestCancelledContinues(t *testing.T) {
	p := oraclePlan(t, "balanced", Flags{})
	ref, out := outDir(t), outDir(t)
	execute(t, p, ref, ExecuteOptions{})
	ctx, o := stopAfter(t, 3)
	if _, err := Execute(ctx, p, out, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	left := files(t, out)
	if len(left) != 4 || left["out-00002.safetensors"] == "" || left[ManifestName] == "" {
		t.Errorf("left: %d files", len(left))
	}
	if r := execute(t, p, out, ExecuteOptions{}); r.Kept != 3 || r.Written != len(p.Shards)-3 {
		t.Errorf("%+v of %d shards", r, len(p.Shards))
	}
	sameFiles(t, files(t, out), files(t, ref))
	if r := execute(t, p, out, ExecuteOptions{}); r.Written != 0 {
		t.Errorf("a complete container was written again: %+v", r)
	}
}

// TestA10OtherFlagsAreRefused: with the recorded and the requested values, and
// nothing is touched.
func TestA10OtherFlagsAreRefused(t *testing.T) {
	out := outDir(t)
	ctx, o := stopAfter(t, 1)
	if _, err := Execute(ctx, oraclePlan(t, "small", Flags{}), out, o); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	before := files(t, out)
	n := 32
	for _, tt := range []struct {
		recipe string
		flags  Flags
		says   []string
	}{
		{"small", Flags{GroupSize: &n}, []string{"roles.expert differs (found recorded int4-grouped/64, wanted int4-grouped/32)", "roles.kv_b differs"}},
		{"small", Flags{Bits: map[string]int{"ebits": 8}}, []string{"roles.expert differs (found recorded int4-grouped/64, wanted int8-row)"}},
		{"balanced", Flags{}, []string{"recipe differs (found recorded small, wanted balanced)"}},
		{"small", Flags{Tensors: []string{"lm_head=bf16"}}, []string{"tensors[0] differs (found recorded none, wanted lm_head=bf16)"}},
	} {
		_, err := Execute(t.Context(), oraclePlan(t, tt.recipe, tt.flags), out, ExecuteOptions{})
		wantError(t, err, format.ErrConflict, append(tt.says, "belongs to another conversion", "--overwrite")...)
		sameFiles(t, files(t, out), before)
	}
}

// TestPassesOfOneContainer: colibri's converter writes the MTP block and the
// indexers in passes of their own into one directory. Here each has its own,
// and the words of the refusal join them.
func TestPassesOfOneContainer(t *testing.T) {
	snap := open(t, fixtures.TinyGLMDir(t))
	plan := func(name string) *Plan {
		p, err := NewPlan(snap, wantsOf(snap, 6), recipe(t, name, Flags{}), PlanOptions{MaxShard: 1 << 20, AllowAmbiguous: true})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	out := outDir(t)
	execute(t, plan("colibri"), out, ExecuteOptions{})
	want := map[string]bool{}
	for name := range files(t, out) {
		want[name] = true
	}
	for recipe, prefix := range map[string]string{"colibri-mtp": "out-mtp-", "colibri-indexer": "out-idx-"} {
		_, err := Survey(plan(recipe), out, false)
		wantError(t, err, format.ErrConflict, "holds another pass", "move its "+prefix+"*.safetensors here", "found recipe colibri, wanted recipe "+recipe)
		pass := outDir(t)
		execute(t, plan(recipe), pass, ExecuteOptions{})
		_, err = Survey(plan("colibri"), pass, false)
		wantError(t, err, format.ErrConflict, "holds another pass", "move its out-*.safetensors here")
		for name := range files(t, pass) {
			if strings.HasPrefix(name, prefix) {
				want[name] = true
				if err := os.Rename(filepath.Join(pass, name), filepath.Join(out, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	joined := open(t, out)
	for _, w := range wantsOf(snap, 6) {
		if missing := joined.Tensor(w.Name) == nil; missing != (w.MTP && w.InIndexer()) {
			t.Errorf("%s: missing is %v", w.Name, missing)
		}
	}
	if r := execute(t, plan("colibri"), out, ExecuteOptions{}); r.Written > 0 {
		t.Errorf("%d shards are written anew", r.Written)
	}
	got := files(t, out)
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is gone", name)
		}
	}
}

func TestAnotherCheckpointOfTheSameShapesIsRefused(t *testing.T) {
	w := ramp(64 * 64)
	out := outDir(t)
	run := func() error {
		snap := checkpoint(t, bf16Tensor("model.layers.0.mlp.up_proj.weight", []int{64, 64}, w))
		_, err := Execute(t.Context(), planOf(t, snap, recipe(t, "balanced", Flags{}), PlanOptions{}), out, ExecuteOptions{})
		return err
	}
	if err := run(); err != nil {
		t.Fatal(err)
	}
	w[100] = 0.25
	wantError(t, run(), format.ErrConflict, "source model.safetensors.sha256 differs")
}

func TestResumeValidatesFinishedShards(t *testing.T) {
	p := oraclePlan(t, "balanced", Flags{})
	ref := outDir(t)
	execute(t, p, ref, ExecuteOptions{})
	want := files(t, ref)
	const name = "out-00001.safetensors"
	for what, harm := range map[string]func(path string) error{
		"absent":    os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, int64(len(want[name])-1)) },
		"another shard": func(path string) error {
			return os.WriteFile(path, []byte(want["out-00002.safetensors"]), 0o644)
		},
		"its stamps changed": func(path string) error {
			return os.WriteFile(path, []byte(strings.Replace(want[name], "int8-row", "int4-row", 1)), 0o644)
		},
	} {
		if err := harm(filepath.Join(ref, name)); err != nil {
			t.Fatal(err)
		}
		if r := execute(t, p, ref, ExecuteOptions{}); r.Written != 1 {
			t.Errorf("%s: %d shards were written, want 1", what, r.Written)
		}
		sameFiles(t, files(t, ref), want)
	}
}

// TestE1OldContainerSurvivesAFailedOverwrite, and no index claims a mixture.
func TestE1OldContainerSurvivesAFailedOverwrite(t *testing.T) {
	old, other := oraclePlan(t, "balanced", Flags{}), oraclePlan(t, "balanced", Flags{Format: "int4-grouped/32"})
	if len(old.Shards) <= len(other.Shards) {
		t.Fatal("the old container should have more shards")
	}
	out, ref := outDir(t), outDir(t)
	execute(t, old, out, ExecuteOptions{})
	execute(t, other, ref, ExecuteOptions{})
	before := files(t, out)

	ctx, o := stopAfter(t, 0)
	o.Overwrite = true
	if _, err := Execute(ctx, other, out, o); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	sameFiles(t, files(t, out), before)

	ctx, o = stopAfter(t, 2)
	o.Overwrite = true
	if _, err := Execute(ctx, other, out, o); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	mixed := files(t, out)
	if _, ok := mixed[indexName]; ok {
		t.Error("an index claims a mixture of two containers")
	}
	last := old.Shards[len(old.Shards)-1].Name
	if mixed[last] != before[last] {
		t.Errorf("%s did not survive until it is replaced", last)
	}
	if r := execute(t, other, out, ExecuteOptions{}); r.Kept != 2 {
		t.Errorf("continued with %d shards kept, want 2", r.Kept)
	}
	sameFiles(t, files(t, out), files(t, ref))

	execute(t, other, out, ExecuteOptions{Overwrite: true}) // the same job anew
	sameFiles(t, files(t, out), files(t, ref))
}

func TestDirectoriesOfOthersAreRefused(t *testing.T) {
	p := oraclePlan(t, "balanced", Flags{})
	make := func(names ...string) string {
		dir := t.TempDir()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	for _, tt := range []struct {
		files []string
		over  bool
		says  string // "" is accepted
	}{
		{nil, false, ""},
		{[]string{".DS_Store", "out-00000.safetensors.tmp", "hawkmoth.json.tmp"}, false, ""},
		{[]string{"notes.txt"}, false, "is not empty and has no hawkmoth.json of an earlier run; --overwrite converts into it all the same (found notes.txt)"},
		{[]string{"config.json"}, false, "is not empty"},
		{[]string{"notes.txt", "config.json"}, true, ""},
		{[]string{"model-00001.safetensors"}, false, "holds shards that no conversion recorded; move them away (found model-00001.safetensors)"},
		{[]string{"model-00001.safetensors"}, true, "holds shards that no conversion recorded"},
		{[]string{"hawkmoth.json"}, false, "hawkmoth.json: not a record of a conversion"},
		{[]string{"hawkmoth.json"}, true, ""},
	} {
		dir := make(tt.files...)
		before := files(t, dir)
		_, err := Execute(t.Context(), p, dir, ExecuteOptions{Overwrite: tt.over})
		switch {
		case tt.says == "" && err != nil:
			t.Errorf("%v: %v", tt.files, err)
		case tt.says != "":
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v: error %v, want %q", tt.files, err, tt.says)
			}
			sameFiles(t, files(t, dir), before)
		case slices.ContainsFunc(tt.files, func(name string) bool { return strings.HasSuffix(name, ".tmp") }):
			for name := range files(t, dir) {
				if strings.HasSuffix(name, ".tmp") {
					t.Errorf("the stale %s is still there", name)
				}
			}
		}
	}
	if _, err := Execute(t.Context(), p, filepath.Dir(p.Items[0].Source.Tensor.Shard.Path), ExecuteOptions{Overwrite: true}); !errors.Is(err, format.ErrUsage) {
		t.Errorf("converting into the checkpoint: %v", err)
	}
}

// TestRecordThatNamesOtherFilesIsRefused: what it names may be removed.
func TestRecordThatNamesOtherFilesIsRefused(t *testing.T) {
	for _, record := range []string{`{"tool":"x","replaces":["../../secret"]}`, `{"tool":"x","shards":[{"name":"notes.txt"}]}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, ManifestName), []byte(record), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := ReadManifest(dir)
		wantError(t, err, format.ErrCorrupt, "not the name of a shard")
	}
}

func TestTwoConversionsDoNotMeet(t *testing.T) {
	if goruntime.GOOS == "windows" {
		t.Skip("SKIPPED: no locks on directories on windows")
	}
	dir := t.TempDir()
	held, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	p := oraclePlan(t, "balanced", Flags{})
	_, err = Execute(t.Context(), p, dir, ExecuteOptions{})
	wantError(t, err, format.ErrConflict, "another conversion is writing here")
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	execute(t, p, dir, ExecuteOptions{})
}

// TestB5NonFiniteSourceStops: with tensor, place, count and shard, and nothing
// is left under a final name.
func TestB5NonFiniteSourceStops(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		w := ramp(4 * 64)
		w[2*64+5], w[3*64+7] = bad, bad
		snap := checkpoint(t, bf16Tensor("model.layers.0.mlp.up_proj.weight", []int{4, 64}, w))
		for _, f := range []string{"int4-grouped/16", "bf16"} {
			out := outDir(t)
			_, err := Execute(t.Context(), planOf(t, snap, recipe(t, "balanced", Flags{Format: f}), PlanOptions{}), out, ExecuteOptions{})
			wantError(t, err, format.ErrCorrupt, "model.safetensors", "model.layers.0.mlp.up_proj.weight", "2 weights are not finite", "row 2, column 5", fmt.Sprint(bad))
			if _, err := os.Stat(out); err == nil {
				t.Error("something is left of a conversion without a shard")
			}
		}
	}
}

func TestB6FP8NaNCodeStops(t *testing.T) {
	codes := make([]byte, 256)
	for i := range codes {
		codes[i] = byte(i)
	}
	for name, codes := range map[string][]byte{"all codes": codes, "finite codes": []byte(strings.ReplaceAll(strings.ReplaceAll(string(codes), "\x7f", "\x80"), "\xff", "\x80"))} {
		snap := checkpoint(t, fp8Tensor("model.layers.0.mlp.up_proj.weight", []int{2, 128}, codes), f32Tensor("model.layers.0.mlp.up_proj.weight_scale_inv", []int{1, 1}, []float32{1}))
		for _, f := range []string{"fp8-e4m3-b128", "int4-row"} {
			out := outDir(t)
			p := planOf(t, snap, recipe(t, "balanced", Flags{Format: f}), PlanOptions{AllowAmbiguous: true})
			_, err := Execute(t.Context(), p, out, ExecuteOptions{})
			if name == "finite codes" {
				if err != nil {
					t.Errorf("%s: %v", f, err)
				}
				continue
			}
			wantError(t, err, format.ErrCorrupt, "2 weights are not finite", "row 0, column 127", "0x7f")
		}
	}
}

// TestC8FusedExpertsGiveTheSameBytes as one matrix an expert.
func TestC8FusedExpertsGiveTheSameBytes(t *testing.T) {
	gateUp, down := ramp(4*32*16), ramp(4*16*16)
	slices.Reverse(down)
	fused := checkpoint(t, bf16Tensor("model.layers.0.mlp.experts.gate_up_proj", []int{4, 32, 16}, gateUp), bf16Tensor("model.layers.0.mlp.experts.down_proj", []int{4, 16, 16}, down))
	var apart []testTensor
	for _, w := range fusedWants() {
		from := down[w.Expert*256:]
		if strings.HasSuffix(w.Fused, "gate_up_proj") {
			from = gateUp[w.Expert*512+w.FusedRow*16:]
		}
		apart = append(apart, bf16Tensor(w.Name, []int{16, 16}, from[:256]))
	}
	var shards [2]string
	for i, snap := range []*format.Snapshot{fused, checkpoint(t, apart...)} {
		p, err := NewPlan(snap, fusedWants(), recipe(t, "balanced", Flags{}), PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out := outDir(t)
		execute(t, p, out, ExecuteOptions{})
		shards[i] = files(t, out)["out-00000.safetensors"]
	}
	if shards[0] != shards[1] || shards[0] == "" {
		t.Error("fused experts give other bytes")
	}
}

// BenchmarkExecute converts 96 MB of BF16 expert matrices; the rate is that of
// the source.
func BenchmarkExecute(b *testing.B) {
	var tensors []testTensor
	w := weights(1, 2048, 6144)
	for i := range 4 {
		tensors = append(tensors, bf16Tensor(fmt.Sprintf("model.layers.0.mlp.experts.%d.up_proj.weight", i), []int{2048, 6144}, w))
	}
	snap := checkpoint(b, tensors...)
	for _, f := range []string{"int4-grouped/64", "int8-row", "int4-row", "int3-g64", "int2-row", "fp8-e4m3-b128", "bf16"} {
		r, err := RecipeFor("balanced")
		if err == nil {
			r, err = r.With(Flags{Format: f})
		}
		if err != nil {
			b.Fatal(err)
		}
		p, err := NewPlan(snap, wantsOf(snap, 0), r, PlanOptions{})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(f, func(b *testing.B) {
			b.SetBytes(p.Total().BytesIn)
			for b.Loop() {
				execute(b, p, outDir(b), ExecuteOptions{})
			}
		})
	}
}

// TestSourceTouchedBetweenRuns: shards made of another state of the source are
// made anew, whatever the samples of its content say.
func TestSourceTouchedBetweenRuns(t *testing.T) {
	snap := checkpoint(t, matrix("model.layers.0.mlp.up_proj.weight", 64, 128), matrix("model.layers.1.mlp.up_proj.weight", 64, 128), matrix("model.layers.2.mlp.up_proj.weight", 64, 128))
	p := planOf(t, snap, recipe(t, "balanced", Flags{Format: "int8-row"}), PlanOptions{MaxShard: 12000})
	if len(p.Shards) != 3 {
		t.Fatalf("%d shards", len(p.Shards))
	}
	half := func(out string) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		_, err := Execute(ctx, p, out, ExecuteOptions{Shard: func(name string, _ bool) {
			if name == p.Shards[2].Name {
				stop()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("stopped with %v", err)
		}
	}
	for _, tc := range []struct {
		touch bool
		kept  int
	}{{false, 2}, {true, 0}} {
		out := outDir(t)
		half(out)
		if tc.touch {
			path := snap.Shards[0].Path
			st, err := os.Stat(path)
			if err == nil {
				later := st.ModTime().Add(time.Second)
				err = os.Chtimes(path, later, later)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		r, err := Execute(t.Context(), p, out, ExecuteOptions{})
		if err != nil || r.Kept != tc.kept {
			t.Errorf("touched %v: %+v, %v; want %d kept", tc.touch, r, err, tc.kept)
		}
		if m, err := ReadManifest(out); err != nil || m.Modified != nil {
			t.Errorf("the finished record has times: %+v, %v", m, err)
		}
	}
}
