package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/report"
	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// realSizes is a model with the sizes of GLM-5.2 that colibri's kernels ask for, and
// as little else as possible; its weights are left out.
func realSizes() map[string]any {
	return map[string]any{"model_type": "glm_moe_dsa", "vocab_size": 64, "hidden_size": 6144, "num_hidden_layers": 4, "num_attention_heads": 64, "intermediate_size": 128,
		"max_position_embeddings": 4096, "num_nextn_predict_layers": 0, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
		"q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
		"first_k_dense_replace": 2}
}

// hollow writes headers whose data are holes.
func hollow(t *testing.T, config map[string]any, stamped bool, choose func(w quantize.Want) format.Spec) string {
	t.Helper()
	m := &model{t: t, config: config, stamps: map[string]format.Spec{}}
	c := configOf(t, m)
	for _, w := range c.Arch.Tensors(c) {
		s := choose(w)
		s.Rows, s.Cols = 1, w.Shape[0]
		if w.Matrix() {
			s.Rows, s.Cols = w.Shape[0], w.Shape[1]
		}
		if in := s.Format.Info(); !in.Packed {
			m.tensors = append(m.tensors, tensor{format.Entry{Name: w.Name, DType: in.DType, Shape: w.Shape}, nil})
			continue
		}
		m.tensors = append(m.tensors, tensor{format.Entry{Name: w.Name, DType: format.DTypeU8, Shape: []int{int(s.Bytes())}}, nil},
			tensor{format.Entry{Name: w.Name + format.ScaleSuffix, DType: format.DTypeF32, Shape: []int{int(s.Scales())}}, nil})
		m.stamps[w.Name] = s
	}
	dir := t.TempDir()
	m.writeConfig(dir)
	writeHollow(t, filepath.Join(dir, theShard), m, stamped)
	return dir
}

func predicted(t *testing.T, dir, engine string) report.Placement {
	t.Helper()
	r := inspected(t, 0, dir, "--engine", engine)
	if len(r.Placements) != 1 || r.Placements[0].By != engine {
		t.Fatalf("%+v", r.Placements)
	}
	return r.Placements[0]
}

// TestF3PredictionByFormat asks both engines about GLM-5.2's sizes in many
// formats.
func TestF3PredictionByFormat(t *testing.T) {
	int8, int4, grouped := format.Spec{Format: format.Int8Row}, format.Spec{Format: format.Int4Row}, format.Spec{Format: format.Int4Grouped, Group: 64}
	base := map[quantize.Role]format.Spec{quantize.KVB: grouped, quantize.Expert: grouped}
	with := func(role quantize.Role, s format.Spec) map[quantize.Role]format.Spec {
		m := map[quantize.Role]format.Spec{quantize.KVB: grouped, quantize.Expert: grouped}
		m[role] = s
		return m
	}
	for _, tt := range []struct {
		name    string
		formats map[quantize.Role]format.Spec // others int8-row
		old     [4]string                     // GPU layers of 1.6: decode attention, whole layer, experts, large products
		now     [4]string
		words   string // of 1.12's reasons and warnings
	}{
		{"as 1.12 likes it", base, [4]string{"", "", "", ""}, [4]string{"0-3", "2-3", "2-3", "0-3"}, ""},
		{"kv_b int8", with(quantize.KVB, int8), [4]string{"", "", "", "0-3"}, [4]string{"", "", "2-3", "0-3"}, "--tensors kv_b_proj --format int4-grouped --group-size 64"},
		{"kv_b int4-row", with(quantize.KVB, int4), [4]string{"0-3", "2-3", "", "0-3"}, [4]string{"0-3", "2-3", "2-3", "0-3"}, ""},
		{"kv_b fp8", with(quantize.KVB, format.Spec{Format: format.FP8}), [4]string{"", "", "", ""}, [4]string{"", "", "2-3", ""}, "stops at the first token"},
		{"kv_b int3", with(quantize.KVB, format.Spec{Format: format.Int3G64}), [4]string{"", "", "", ""}, [4]string{"", "", "2-3", ""}, "wanted int4-row or int4-grouped"},
		{"o_proj fp8", with(quantize.Out, format.Spec{Format: format.FP8}), [4]string{"", "", "", ""}, [4]string{"", "", "2-3", ""}, "--role attn --role o_proj --format int8-row"},
		{"shared bf16", with(quantize.Shared, format.Spec{Format: format.BF16}), [4]string{"", "", "", ""}, [4]string{"0-3", "", "2-3", "0-1"}, "plain floats are quantised at load"},
		{"experts int3", with(quantize.Expert, format.Spec{Format: format.Int3G64}), [4]string{"", "", "", ""}, [4]string{"0-3", "2-3", "", "0-3"}, "takes its number for bf16"},
		{"experts int4-row", with(quantize.Expert, int4), [4]string{"", "", "2-3", ""}, [4]string{"0-3", "2-3", "2-3", "0-3"}, ""},
		{"experts int2", with(quantize.Expert, format.Spec{Format: format.Int2Row}), [4]string{"", "", "", ""}, [4]string{"0-3", "2-3", "", "0-3"}, "--role expert --format int4-grouped --group-size 64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := hollow(t, realSizes(), true, func(w quantize.Want) format.Spec {
				if s, ok := tt.formats[w.Role]; ok {
					return s
				}
				if !w.Matrix() || w.Role == quantize.Router {
					return format.Spec{Format: format.F32}
				}
				return int8
			})
			for engine, want := range map[string][4]string{"colibri-1.6": tt.old, "colibri-1.12": tt.now} {
				p := predicted(t, dir, engine)
				if len(p.Dimensions) > 0 {
					t.Errorf("%s: %v", engine, p.Dimensions)
				}
				var got [4]string
				for i := range got {
					got[i] = p.Paths[i].GPU
					if x := p.Paths[i]; x.GPULayers+x.CPULayers+x.MisreadLayers != map[int]int{0: 4, 1: 2, 2: 2, 3: 4}[i] {
						t.Errorf("%s: %+v", engine, x)
					}
				}
				if got != want {
					t.Errorf("%s: %q, want %q", engine, got, want)
				}
			}
			_, stdout, _ := runInspect(dir, "--engine", "colibri-1.12")
			holds(t, stdout, tt.words)
			if tt.words == "" && (strings.Contains(stdout, "read wrongly") || strings.Contains(stdout, "warnings")) {
				t.Error(stdout)
			}
		})
	}
}

// TestEngineReadsWrongly is what other engines make of what is right here.
func TestEngineReadsWrongly(t *testing.T) {
	grouped := func(n int) format.Spec { return format.Spec{Format: format.Int4Grouped, Group: n} }
	plain := func(w quantize.Want) bool { return !w.Matrix() || w.Role == quantize.Router }
	for _, tt := range []struct {
		name    string
		config  map[string]any
		stamped bool
		choose  func(w quantize.Want) format.Spec
		words   string
		misread string // layers of the experts' path
	}{
		{"group sizes mixed in a block", realSizes(), true, func(w quantize.Want) format.Spec {
			switch {
			case plain(w):
				return format.Spec{}
			case w.Layer == 3 && w.Expert == 7:
				return grouped(128)
			}
			return grouped(64)
		}, "expert int4-grouped/128 and int4-grouped/64: one block in several formats or group sizes", "3"},
		{"an overlay that skips the dense layers", realSizes(), true, func(w quantize.Want) format.Spec {
			switch {
			case plain(w):
				return format.Spec{}
			case w.Role == quantize.KVB && w.Layer >= 2:
				return grouped(64)
			}
			return format.Spec{Format: format.Int8Row}
		}, "kv_b is int8-row in the dense layers 0-1 and int4-grouped/64 in the others", ""},
		{"a group size that only the stamp tells", small(), true, func(w quantize.Want) format.Spec {
			switch {
			case plain(w):
				return format.Spec{}
			case w.Name == dense1: // [64,96]
				return grouped(64)
			}
			return format.Spec{Format: format.Int8Row}
		}, "int4-grouped/64 is read as int4-grouped/48, since that engine goes by the byte counts: " + dense1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := hollow(t, tt.config, tt.stamped, tt.choose)
			p := predicted(t, dir, "colibri-1.12")
			if _, stdout, _ := runInspect(dir, "--layers", "--engine", "colibri-1.12"); strings.Contains(stdout, "int4/128+int4/64!") != (tt.misread != "") || !strings.Contains(stdout, "read wrongly, by colibri-1.12") {
				t.Error(stdout)
			}
			text := strings.Join(p.Warnings, "\n")
			for _, x := range p.Paths {
				for _, y := range x.Reasons {
					text += "\n" + y.Role + " " + y.Format + ": " + y.Why
				}
			}
			holds(t, text, tt.words)
			if got := p.Paths[2].Misread; got != tt.misread {
				t.Errorf("misread %q, want %q", got, tt.misread)
			}
		})
	}
}

// TestIndexThatOldEnginesIgnore has an overlay whose name sorts behind the base.
func TestIndexThatOldEnginesIgnore(t *testing.T) {
	dir := overlaid(t, func() map[string]string {
		return map[string]string{kvB: "z-overlay.safetensors", kvB + ".qs": "z-overlay.safetensors"}
	})
	rename(t, filepath.Join(dir, "model-overlay-1.safetensors"), filepath.Join(dir, "z-overlay.safetensors"))
	holds(t, strings.Join(predicted(t, dir, "colibri-1.6").Warnings, "\n"), "2 tensors come from other shards", kvB+" from model.safetensors instead of z-overlay.safetensors")
	if w := fmt.Sprint(predicted(t, dir, "colibri-1.12").Warnings); strings.Contains(w, "other shards") {
		t.Error(w)
	}
	holds(t, strings.Join(inspected(t, 0, dir).Warnings, "\n"), "readers that ignore the index")
}

func TestEngineOfAnotherArchitecture(t *testing.T) {
	code, stdout, stderr := runInspect(fixtures.Path(t, "glm_moe_dsa"), "--engine", "colibri-9")
	if code != 2 || stdout != "" || !strings.Contains(stderr, "no such engine (found colibri-9, wanted colibri-1.6, colibri-1.12)") {
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
}

// TestCureIsACommandThatWorks goes the whole way on a small model: the
// prediction names a command, the command runs, the prediction changes, and
// the container runs before and after.
func TestCureIsACommandThatWorks(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds the commands")
	}
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", bin+"/", "hawkmoth/cmd/convert", "hawkmoth/cmd/run").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "snapshot")
	do := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(filepath.Join(bin, name), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	do("convert", fixtures.TinyGLMDir(t), dir, "--kvb-bits", "8", "-q")
	text := filepath.Join(t.TempDir(), "text")
	writeText(t, text)
	before := do("run", "ppl", dir, text, "-q")
	p := predicted(t, dir, "colibri-1.12")
	a := p.Paths[0]
	if a.CPU != "0-5" || a.GPU != "" || len(a.Reasons) != 1 || !a.Blocked || len(p.Dimensions) == 0 {
		t.Fatalf("%+v", a)
	}
	words := strings.Fields(a.Reasons[0].Cure)
	if fmt.Sprint(words) != "[convert overlay "+dir+" --tensors kv_b_proj --format int4-grouped --group-size 64]" {
		t.Fatalf("%v", words)
	}
	do(words[0], words[1:]...)
	if a := predicted(t, dir, "colibri-1.12").Paths[0]; a.GPU != "0-5" || a.CPU != "" || len(a.Reasons) > 0 {
		t.Errorf("%+v", a)
	}
	if _, summary, _ := runInspect(dir); !strings.Contains(summary, "\noverlays      kvb, in use: 6 tensors of int4-grouped/64 over int8-row, made of the base itself\n") {
		t.Errorf("the overlay is not named:\n%s", summary)
	}
	after := do("run", "ppl", dir, text, "-q")
	t.Logf("before: %s after: %s", before, after)
	if before == after {
		t.Error("the overlay changed nothing")
	}
}

// TestMemoryIsWhatASessionTakes compares the plan with a session's caches.
func TestMemoryIsWhatASessionTakes(t *testing.T) {
	for _, name := range []string{"glm_moe_dsa", "qwen3_next", "gpt_oss"} {
		dir := fixtures.Path(t, name)
		m, err := runtime.Load(dir, runtime.NewCPU(1))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = m.Close() }()
		for _, n := range []int{1, 7, m.Config.IndexTopK + 1, m.Config.MaxPositions} {
			s, err := m.NewSession(n, 0)
			if err != nil {
				t.Fatal(err)
			}
			p := inspected(t, 0, dir, "-c", fmt.Sprint(n)).Memory
			if p.KVCache+p.IndexerCache+p.State != s.CacheBytes() {
				t.Errorf("%s, %d tokens: %d + %d + %d bytes planned, %d taken", name, n, p.KVCache, p.IndexerCache, p.State, s.CacheBytes())
			}
		}
	}
}

// TestConstantStateIsNoTokens: what recurrent layers keep is not divided by the context.
func TestConstantStateIsNoTokens(t *testing.T) {
	dir := fixtures.Path(t, "qwen3_next")
	a, b := inspected(t, 0, dir, "-c", "300").Memory, inspected(t, 0, dir, "-c", "400").Memory
	if a.State == 0 || a.State != b.State || a.KVCache%300 != 0 || a.KVCache/300 != b.KVCache/400 {
		t.Errorf("%+v\n%+v", a, b)
	}
	_, stdout, _ := runInspect(dir, "-c", "300")
	holds(t, stdout, "state of the recurrent layers", "whatever the context")
}

func TestMemoryPlan(t *testing.T) {
	// Two layers with experts, of which the second's are twice as large.
	config := small()
	config["num_hidden_layers"], config["mlp_layer_types"], config["num_nextn_predict_layers"] = 3, []string{"dense", "sparse", "sparse"}, 0
	dir := synthesise(t, config, func(w quantize.Want) (format.Spec, bool) {
		if w.Role == quantize.Expert && w.Layer == 1 {
			return format.Spec{Format: format.BF16}, true
		}
		return format.Spec{Format: format.F32}, true
	}).save()
	const small, large = 3 * 32 * 64 * 2, 3 * 32 * 64 * 4
	base := inspected(t, 0, dir, "-c", "16").Memory
	fixed := base.Resident + base.KVCache + base.IndexerCache + base.Buffers
	if base.Verdict != "" || base.ExpertBytes != 4*(small+large) || base.SmallestExpert != small || base.LargestExpert != large || base.Experts != 8 ||
		base.TokenBytes != 2*(small+large) || base.KVCache != 3*16*144*4 || base.IndexerCache != 3*16*16*4 || base.Whole != fixed+base.ExpertBytes || base.Minimum != fixed+2*large {
		t.Errorf("%+v", base)
	}
	for _, tt := range []struct {
		budget  int64
		verdict string
		held    int
		hit     float64
		read    int64
	}{
		{fixed + 2*large - 1, report.FitsNot, 0, 0, 2 * (small + large)},
		{fixed + 2*large, report.FitsStreams, 4, 0.5, small + large},
		{fixed + 4*small + large, report.FitsStreams, 5, 0.625, (small + large) * 3 / 4},
		{fixed + 4*(small+large), report.FitsWhole, 8, 1, 0},
	} {
		m := inspected(t, 0, dir, "-c", "16", "--memory", fmt.Sprint(tt.budget)).Memory
		if m.Verdict != tt.verdict || m.Held != tt.held || m.HitRate != tt.hit || m.ReadPerToken != tt.read {
			t.Errorf("%d: %+v, want %+v", tt.budget, m, tt)
		}
		code, stdout, _ := runInspect(dir, "-c", "16", "--memory", fmt.Sprint(tt.budget))
		if code != 0 || !strings.Contains(stdout, tt.verdict) {
			t.Errorf("%d: %s", code, stdout)
		}
	}
	if m := inspected(t, 0, dir, "--memory", "1G").Memory; m.Context != 64 {
		t.Errorf("%+v", m)
	}
}

// TestF1RefusalsAreCounted: the engine refuses grouped experts above its own
// counter; the prediction counts every matrix, with the reason.
func TestF1RefusalsAreCounted(t *testing.T) {
	dir := hollow(t, realSizes(), true, func(w quantize.Want) format.Spec {
		if !w.Matrix() || w.Role == quantize.Router {
			return format.Spec{}
		}
		return format.Spec{Format: format.Int4Grouped, Group: 64}
	})
	e := predicted(t, dir, "colibri-1.6").Paths[2]
	if e.Path != "routed experts" || e.CPU != "2-3" || e.CPULayers != 2 || len(e.Reasons) != 1 || e.Reasons[0].Tensors != 2*256*3 || !strings.Contains(e.Reasons[0].Why, "without being counted") {
		t.Errorf("%+v", e)
	}
	// F2: and kv_b in groups, which that version takes for no kind of its own.
	if a := predicted(t, dir, "colibri-1.6").Paths[0]; a.CPU != "0-3" || a.Reasons[0].Role != "kv_b" || !strings.HasSuffix(a.Reasons[0].Cure, "--tensors kv_b_proj --format int4-row") {
		t.Errorf("%+v", a)
	}
}

// TestC7OneGroupIsPlacedAsPerRow: with one group a row, grouped int4 is per-row
// int4 to the loader, and so to the prediction.
func TestC7OneGroupIsPlacedAsPerRow(t *testing.T) {
	config := realSizes()
	config["kv_lora_rank"] = 64
	dir := hollow(t, config, false, func(w quantize.Want) format.Spec {
		switch {
		case w.Role == quantize.KVB: // rows of 64
			return format.Spec{Format: format.Int4Grouped, Group: 64}
		case !w.Matrix() || w.Role == quantize.Router:
			return format.Spec{}
		}
		return format.Spec{Format: format.Int8Row}
	})
	p := predicted(t, dir, "colibri-1.6")
	if a := p.Paths[0]; a.GPU != "0-3" || !a.Blocked || fmt.Sprint(p.Dimensions) != "[kv_lora is 64, wanted 512]" {
		t.Errorf("%+v %v", a, p.Dimensions)
	}
}
