package quantize

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
)

// matrix is a BF16 tensor [rows, cols] of values in [-1, 1).
func matrix(name string, rows, cols int) testTensor {
	return bf16Tensor(name, []int{rows, cols}, ramp(rows*cols))
}

// planOf plans the tensors of a checkpoint under their roles.
func planOf(t *testing.T, snap *format.Snapshot, r *Recipe, o PlanOptions) *Plan {
	t.Helper()
	p, err := NewPlan(snap, wantsOf(snap, 0), r, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func formatOf(p *Plan, name string) string {
	for i := range p.Items {
		if p.Items[i].Want.Name == name {
			return p.Items[i].Spec.Name()
		}
	}
	return "absent"
}

func wantWarning(t *testing.T, p *Plan, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.Contains(w, part) }) {
			t.Errorf("no warning says %q in %q", part, p.Warnings)
		}
	}
}

func TestPlanOfTinyGLM(t *testing.T) {
	snap := open(t, fixtures.TinyGLMDir(t))
	p, err := NewPlan(snap, wantsOf(snap, 6), recipe(t, "balanced", Flags{}), PlanOptions{MaxShard: 1_000_000})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Warnings) != 0 || len(p.Dropped) != 0 {
		t.Errorf("warnings %q, dropped %v", p.Warnings, p.Dropped)
	}
	for name, want := range map[string]string{
		"model.layers.1.mlp.experts.0.up_proj.weight": "int4-grouped/64", "model.layers.6.mlp.experts.0.up_proj.weight": "int8-row",
		"model.layers.0.self_attn.kv_b_proj.weight": "int8-row", "model.layers.1.mlp.gate.weight": "f32", "model.norm.weight": "f32",
	} {
		if got := formatOf(p, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	var bytes int64
	for _, r := range p.ByRole() {
		bytes += r.BytesOut
	}
	if total := p.Total(); total.Tensors != len(snap.Names()) || total.BytesOut != bytes || total.BytesIn != 2*(7_312_016+48) { // 48 biases are F32
		t.Errorf("total %+v", total)
	}
	items := 0
	for i, s := range p.Shards {
		if want := fmt.Sprintf("out-%05d.safetensors", i); s.Name != want || s.Size > 1_000_000 {
			t.Errorf("shard %s of %d bytes, want %s of at most 1000000", s.Name, s.Size, want)
		}
		for j := range s.Items {
			if s.Items[j].Want.Name != p.Items[items].Want.Name {
				t.Fatalf("shard %d holds %s, want %s", i, s.Items[j].Want.Name, p.Items[items].Want.Name)
			}
			items++
		}
	}
	if items != len(p.Items) {
		t.Errorf("shards hold %d tensors of %d", items, len(p.Items))
	}
}

func TestPlanSaysWhatIsLeftOut(t *testing.T) {
	snap := open(t, fixtures.TinyGLMDir(t))
	p, err := NewPlan(snap, wantsOf(snap, 6), recipe(t, "colibri", Flags{}), PlanOptions{AllowAmbiguous: true})
	if err != nil {
		t.Fatal(err)
	}
	parts, names := p.LeftOut()
	if want := []string{"MTP block (47 tensors)", "indexer (30 tensors)"}; !slices.Equal(parts, want) {
		t.Errorf("parts %q, want %q", parts, want)
	}
	if !slices.Contains(names, "model.layers.{0-6}.self_attn.indexer.wk.weight (7 tensors)") || !slices.Contains(names, "model.layers.6.eh_proj.weight") {
		t.Errorf("names %q", names)
	}
}

// TestPairStaysInOneShard: codes and scales that were split would be refused
// by every reader.
func TestPairStaysInOneShard(t *testing.T) {
	snap := checkpoint(t, matrix("a.weight", 64, 64), matrix("b.weight", 64, 64), f32Tensor("norm", []int{64}, ramp(64)))
	for size := int64(1); size < 20_000; size += 997 {
		p := planOf(t, snap, recipe(t, "balanced", Flags{Format: "int8-row"}), PlanOptions{MaxShard: size})
		for _, s := range p.Shards {
			names := map[string]bool{}
			for _, e := range s.Entries {
				names[e.Name] = true
			}
			for _, e := range s.Entries {
				base, scales := strings.CutSuffix(e.Name, ".qs")
				if e.DType == format.DTypeU8 && !names[e.Name+".qs"] || scales && !names[base] {
					t.Fatalf("at %d bytes %s is alone in %s", size, e.Name, s.Name)
				}
			}
			if s.Size > size && len(s.Items) > 1 {
				t.Errorf("%s has %d bytes, want at most %d", s.Name, s.Size, size)
			}
		}
	}
}

func TestA4FP8WhereInt8IsReadNeedsAStamp(t *testing.T) {
	snap := checkpoint(t, matrix("model.layers.0.self_attn.o_proj.weight", 2, 256), matrix("model.layers.0.mlp.experts.0.up_proj.weight", 8, 1024))
	fp8 := recipe(t, "balanced", Flags{Format: "fp8-e4m3-b128"})
	_, err := NewPlan(snap, wantsOf(snap, 0), fp8, PlanOptions{})
	wantError(t, err, format.ErrUsage, "fp8-e4m3-b128[2,256] is taken for int8-row where stamps are not read: model.layers.0.self_attn.o_proj.weight", "--allow-ambiguous",
		"fp8-e4m3-b128[8,1024] is taken for int8-row", "stamps of routed experts are not read everywhere")
	_, err = NewPlan(snap, wantsOf(snap, 0), fp8, PlanOptions{AllowAmbiguous: true})
	wantError(t, err, format.ErrUsage, "fp8-e4m3-b128[8,1024]")
	if strings.Contains(err.Error(), "o_proj") {
		t.Errorf("consent does not cover o_proj: %v", err)
	}
	stamped := recipe(t, "balanced", Flags{Format: "fp8-e4m3-b128", Tensors: []string{"experts=int8-row"}})
	p := planOf(t, snap, stamped, PlanOptions{AllowAmbiguous: true})
	if stamp := p.Shards[0].Meta[format.KeyFormats]; !strings.Contains(stamp, `"model.layers.0.self_attn.o_proj.weight":"fp8-e4m3-b128"`) {
		t.Errorf("stamps %s", stamp)
	}
}

func TestB1MTPAtFourBitsARowWarns(t *testing.T) {
	snap := checkpoint(t, matrix("model.layers.0.mlp.up_proj.weight", 8, 128), matrix("model.layers.1.eh_proj.weight", 8, 128))
	for _, tt := range []struct {
		flags Flags
		warns bool
	}{
		{Flags{}, false},
		{Flags{Bits: map[string]int{"mtp-bits": 4}}, false}, // grouped keeps it alive
		{Flags{Format: "int4-row"}, true},
		{Flags{Bits: map[string]int{"mtp-bits": 2}}, true},
		{Flags{Tensors: []string{"eh_proj=int4-row"}}, true},
	} {
		p, err := NewPlan(snap, wantsOf(snap, 1), recipe(t, "balanced", tt.flags), PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		warned := slices.ContainsFunc(p.Warnings, func(w string) bool {
			return strings.Contains(w, "drafts will hardly ever be accepted") && strings.Contains(w, "model.layers.1.eh_proj.weight")
		})
		if warned != tt.warns {
			t.Errorf("%+v: warnings %q, want one: %v", tt.flags, p.Warnings, tt.warns)
		}
	}
}

func fp8Pair(name string, rows, cols int, grid ...int) []testTensor {
	return []testTensor{fp8Tensor(name, []int{rows, cols}, make([]byte, rows*cols)), f32Tensor(name+"_scale_inv", grid, make([]float32, grid[0]*grid[1]))}
}

func TestB8AllWrongScaleGridsAreNamed(t *testing.T) {
	var tensors []testTensor
	for name, grid := range map[string][]int{"a.weight": {2, 2}, "b.weight": {1, 2}, "c.weight": {2, 1}} {
		tensors = append(tensors, fp8Pair(name, 130, 200, grid...)...)
	}
	snap := checkpoint(t, tensors...)
	_, err := NewPlan(snap, wantsOf(snap, 0), recipe(t, "balanced", Flags{}), PlanOptions{})
	wantError(t, err, format.ErrCorrupt, "b.weight: scale grid", "found [1 2], wanted [2 2]", "c.weight: scale grid", "found [2 1]")
	if strings.Contains(err.Error(), "a.weight: scale grid") {
		t.Errorf("the right grid is refused: %v", err)
	}
}

func TestB9MissingScalesStopAndOrphansWarn(t *testing.T) {
	pair := fp8Pair("a.weight", 8, 64, 1, 1)
	alone := fp8Tensor("b.weight", []int{8, 64}, make([]byte, 512))
	snap := openShards(t, []testTensor{pair[0], alone}, []testTensor{pair[1]})
	_, err := NewPlan(snap, wantsOf(snap, 0), recipe(t, "balanced", Flags{}), PlanOptions{})
	wantError(t, err, format.ErrIncomplete, "b.weight", "b.weight_scale_inv")
	if strings.Contains(err.Error(), "a.weight") {
		t.Errorf("scales in another shard are not found: %v", err)
	}
	orphan := f32Tensor("c.weight_scale_inv", []int{1, 1}, []float32{1})
	p := planOf(t, checkpoint(t, matrix("c.weight", 8, 64), orphan), recipe(t, "balanced", Flags{}), PlanOptions{})
	wantWarning(t, p, "scales without an FP8 weight are left out: c.weight_scale_inv")
}

func TestB10CensusOfUnsupportedDTypes(t *testing.T) {
	var tensors []testTensor
	for i := range 3 {
		tensors = append(tensors, testTensor{fmt.Sprintf("model.layers.%d.mlp.up_proj.weight", i), "I8", []int{2, 16}, make([]byte, 32)})
	}
	tensors = append(tensors, testTensor{"model.layers.0.mlp.down_proj.weight", "U8", []int{2, 16}, make([]byte, 32)}, matrix("lm_head.weight", 2, 16))
	snap := checkpoint(t, tensors...)
	_, err := NewPlan(snap, wantsOf(snap, 0), recipe(t, "balanced", Flags{}), PlanOptions{})
	wantError(t, err, format.ErrUnsupported, "3 tensors of dtype I8, such as: ", "model.layers.0.mlp.up_proj.weight", "1 tensors of dtype U8, such as: ", "model.layers.0.mlp.down_proj.weight")
	if n := strings.Count(err.Error(), "\n"); n != 1 {
		t.Errorf("%d lines, want one a dtype:\n%v", n+1, err)
	}
}

// TestC2RowsThatNoGroupDivides: legal, with a shorter last group.
func TestC2RowsThatNoGroupDivides(t *testing.T) {
	snap := checkpoint(t, matrix("a.weight", 8, 100), matrix("b.weight", 4, 4304))
	p := planOf(t, snap, recipe(t, "balanced", Flags{Format: "int4-grouped/64"}), PlanOptions{})
	for i, want := range []int64{8 * 2, 4 * 68} {
		if got := p.Items[i].Spec.Scales(); got != want {
			t.Errorf("%s has %d scales, want %d", p.Items[i].Want.Name, got, want)
		}
	}
}

func TestC3EveryTensorThatDoesNotFitIsListed(t *testing.T) {
	var tensors []testTensor
	for i := range 5 {
		tensors = append(tensors, matrix(fmt.Sprintf("model.layers.%d.self_attn.q_a_proj.weight", i), 4, 192))
	}
	snap := checkpoint(t, append(tensors, matrix("lm_head.weight", 4, 96), matrix("model.embed_tokens.weight", 4, 256))...)
	_, err := NewPlan(snap, wantsOf(snap, 0), recipe(t, "balanced", Flags{Format: "int4-grouped/128"}), PlanOptions{})
	wantError(t, err, format.ErrUsage,
		"int4-grouped/128 with rows of 192 columns is taken for int4-grouped/96 where stamps are not read: model.layers.{0-4}.self_attn.q_a_proj.weight (5 tensors)", "--allow-ambiguous")
	p := planOf(t, snap, recipe(t, "balanced", Flags{Format: "int4-grouped/128"}), PlanOptions{AllowAmbiguous: true})
	if got := formatOf(p, "model.layers.0.self_attn.q_a_proj.weight"); got != "int4-grouped/128" {
		t.Errorf("with consent it is %s", got)
	}
	if groups := p.Shards[0].Meta[format.KeyGroups]; !strings.Contains(groups, `"model.layers.4.self_attn.q_a_proj.weight":128`) {
		t.Errorf("stamps of groups %s", groups)
	}
}

func TestC4OverrideThatDoesNotFit(t *testing.T) {
	snap := checkpoint(t, matrix("model.layers.0.self_attn.q_a_proj.weight", 8, 100), matrix("model.layers.0.mlp.gate.weight", 8, 100),
		f32Tensor("model.norm.weight", []int{100}, ramp(100)))
	tests := []struct {
		override string
		parts    []string
	}{
		{"attn=int4-grouped/96", []string{"int4-grouped/96 with rows of 100 columns is taken for int4-grouped/64", "model.layers.0.self_attn.q_a_proj.weight"}},
		{"norm|gate=int8-row", []string{"override norm|gate=int8-row would quantise what must stay exact: model.layers.0.mlp.gate.weight, model.norm.weight"}},
		{"self_attention=int8-row", []string{"override self_attention=int8-row matches no tensor (wanted a part of a name, such as model.layers.0.self_attn.q_a_proj.weight"}},
	}
	for _, tt := range tests {
		_, err := NewPlan(snap, wantsOf(snap, 0), recipe(t, "balanced", Flags{Tensors: []string{tt.override}}), PlanOptions{})
		wantError(t, err, format.ErrUsage, tt.parts...)
	}
	if near := nearest("kvb", []string{"model.norm.weight", "model.layers.0.self_attn.kv_b_proj.weight", "lm_head.weight"}, 1); len(near) != 1 || !strings.Contains(near[0], "kv_b") {
		t.Errorf("nearest to kvb: %q", near)
	}
	_, err := NewPlan(snap, wantsOf(snap, 0), recipe(t, "balanced", Flags{Tensors: []string{"q_a=int8-row", "q_.=bf16"}}), PlanOptions{})
	wantError(t, err, format.ErrUsage, "override q_a=int8-row (found 1 tensors that the recipe leaves out or a later override decides")
}

// TestC5OtherNamesAreSummed: what is written under another name than asked for
// is listed with its bytes and the reason.
func TestC5OtherNamesAreSummed(t *testing.T) {
	snap := checkpoint(t, matrix("model.layers.1.mlp.experts.0.up_proj.weight", 8, 64), matrix("model.layers.1.mlp.experts.1.up_proj.weight", 8, 64), matrix("model.layers.1.mlp.experts.0.down_proj.weight", 8, 128))
	p := planOf(t, snap, recipe(t, "balanced", Flags{}), PlanOptions{})
	want := Renamed{Format: "int4-row", Why: "a row of 64 columns has one group: the same bytes as int4-grouped/64",
		Tensors: []string{"model.layers.1.mlp.experts.{0-1}.up_proj.weight (2 tensors)"}, Bytes: 2 * (8*32 + 8*4)}
	if got := p.Substitutions(); len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestC6TinyMatrixHasOneGroup(t *testing.T) {
	p := planOf(t, checkpoint(t, matrix("a.weight", 4, 32)), recipe(t, "balanced", Flags{Format: "int4-grouped/128"}), PlanOptions{})
	if s := p.Items[0].Spec; s.ScaleCols() != 1 || s.Scales() != 4 {
		t.Errorf("%v has %d scales, want 4", s, s.Scales())
	}
}

func fusedWants() []Want {
	var wants []Want
	for e := range 4 {
		for i, name := range []string{"gate_proj", "up_proj"} {
			wants = append(wants, Want{Name: fmt.Sprintf("model.layers.0.mlp.experts.%d.%s.weight", e, name), Shape: []int{16, 16}, Role: Expert, Expert: e,
				Fused: "model.layers.0.mlp.experts.gate_up_proj", FusedRow: 16 * i})
		}
		wants = append(wants, Want{Name: fmt.Sprintf("model.layers.0.mlp.experts.%d.down_proj.weight", e), Shape: []int{16, 16}, Role: Expert, Expert: e,
			Fused: "model.layers.0.mlp.experts.down_proj"})
	}
	return wants
}

func TestC8PlanSplitsFusedExperts(t *testing.T) {
	snap := checkpoint(t, bf16Tensor("model.layers.0.mlp.experts.gate_up_proj", []int{4, 32, 16}, ramp(4*32*16)),
		bf16Tensor("model.layers.0.mlp.experts.down_proj", []int{4, 16, 16}, ramp(4*16*16)))
	p, err := NewPlan(snap, fusedWants(), recipe(t, "balanced", Flags{}), PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if total := p.Total(); total.Tensors != 12 || total.Quantised != 12*256 || total.BytesIn != 2*12*256 {
		t.Errorf("total %+v", total)
	}
}

func TestC8LittleQuantisedWarns(t *testing.T) {
	snap := checkpoint(t, matrix("model.layers.0.mlp.up_proj.weight", 8, 64), matrix("lm_head.weight", 64, 64))
	p := planOf(t, snap, recipe(t, "balanced", Flags{Tensors: []string{"lm_head=bf16"}}), PlanOptions{})
	wantWarning(t, p, "only 11.1 % of the parameters are quantised")
}

// TestC10TensorsOfOtherRankAreCopied: never emitted empty.
func TestC10TensorsOfOtherRankAreCopied(t *testing.T) {
	snap := checkpoint(t, matrix("a.weight", 64, 64), bf16Tensor("patch.weight", []int{6, 3, 2, 2}, ramp(72)), bf16Tensor("scalar", []int{}, []float32{1}))
	p := planOf(t, snap, recipe(t, "balanced", Flags{}), PlanOptions{})
	for name, shape := range map[string][]int{"patch.weight": {6, 3, 2, 2}, "scalar": {}} {
		i := slices.IndexFunc(p.Shards[0].Entries, func(e format.Entry) bool { return e.Name == name })
		if e := p.Shards[0].Entries[i]; e.DType != format.DTypeF32 || !slices.Equal(e.Shape, shape) {
			t.Errorf("%+v, want F32 %v", e, shape)
		}
	}
}

func layersOf(layers ...int) (tensors []testTensor) {
	for _, l := range layers {
		tensors = append(tensors, matrix(fmt.Sprintf("model.layers.%d.mlp.up_proj.weight", l), 2, 16), matrix(fmt.Sprintf("model.layers.%d.mlp.down_proj.weight", l), 2, 16))
	}
	return tensors
}

func TestD10LayerGapsAreRanges(t *testing.T) {
	whole := checkpoint(t, layersOf(0, 1, 2, 3, 4, 5)...)
	snap := checkpoint(t, layersOf(0, 1, 3, 5)[:7]...)
	_, err := NewPlan(snap, wantsOf(whole, 0), recipe(t, "balanced", Flags{}), PlanOptions{})
	wantError(t, err, format.ErrIncomplete, ": model.layers.{2,4}.* (2 whole layers: 4 tensors): missing tensor; 1 shard seen: incomplete download, or config.json of another model?", "model.layers.5.mlp.down_proj.weight (dense): missing tensor")
	if strings.Contains(err.Error(), "layers.2.") {
		t.Errorf("a whole layer is listed by tensor: %v", err)
	}
}

func TestE5QuantisedMustBeSmaller(t *testing.T) {
	snap := checkpoint(t, append(fp8Pair("a.weight", 128, 128, 1, 1), f32Tensor("norm", []int{128}, ramp(128)))...)
	int8 := recipe(t, "balanced", Flags{Format: "int8-row"})
	_, err := NewPlan(snap, wantsOf(snap, 0), int8, PlanOptions{})
	wantError(t, err, format.ErrUsage, "would not be smaller than the source (found 16.9 kB, wanted less than 16.4 kB, or --allow-bigger)")
	planOf(t, snap, int8, PlanOptions{AllowBigger: true})
	planOf(t, snap, recipe(t, "balanced", Flags{Format: "fp8-e4m3-b128"}), PlanOptions{}) // goes through unchanged
	planOf(t, snap, recipe(t, "balanced", Flags{Format: "f32"}), PlanOptions{})           // not a quantisation
}

func TestE6UnclassifiedNamesStopTheRun(t *testing.T) {
	snap := checkpoint(t, append(layersOf(0, 1), matrix("model.language_model.embed_tokens.weight", 2, 16), matrix("model.layers.0.mlp.odd.weight", 2, 16),
		matrix("model.layers.1.mlp.odd.weight", 2, 16), f32Tensor("model.layers.0.self_attn.rotary_emb.inv_freq", []int{2}, ramp(2)))...)
	_, err := NewPlan(snap, wantsOf(checkpoint(t, layersOf(0, 1)...), 0), recipe(t, "balanced", Flags{}), PlanOptions{})
	wantError(t, err, format.ErrUnsupported, "model.language_model.embed_tokens.weight: not a tensor of this architecture",
		"model.layers.{0-1}.mlp.odd.weight (2 tensors): not a tensor of this architecture")
	if strings.Contains(err.Error(), "inv_freq") {
		t.Errorf("a computed buffer stops the run: %v", err)
	}
}

func TestE8LayerBehindTheLastIsNamed(t *testing.T) {
	_, err := NewPlan(checkpoint(t, layersOf(0, 1, 2)...), wantsOf(checkpoint(t, layersOf(0, 1)...), 0), recipe(t, "balanced", Flags{}), PlanOptions{})
	wantError(t, err, format.ErrUnsupported, "model.layers.2.mlp.up_proj.weight: behind the last layer that config.json announces: an MTP block needs num_nextn_predict_layers")

	snap := checkpoint(t, layersOf(0, 1, 2)...)
	for name, want := range map[string]string{"balanced": "int8-row", "colibri": "absent"} {
		p, err := NewPlan(snap, wantsOf(snap, 2), recipe(t, name, Flags{}), PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := formatOf(p, "model.layers.2.mlp.up_proj.weight"); got != want || (want == "absent") != (len(p.Dropped) == 2) {
			t.Errorf("%s: the MTP layer is %s, want %s; dropped %v", name, got, want, p.Dropped)
		}
	}
}

func TestMTPBlockThatIsNotWhole(t *testing.T) {
	whole := checkpoint(t, layersOf(0, 1)...)
	wants := wantsOf(whole, 1)
	for i := range wants {
		wants[i].Optional = wants[i].MTP
	}
	for n, text := range map[int]string{2: "the checkpoint has no MTP block", 3: "the MTP block is incomplete and of no use: missing model.layers.1.mlp.down_proj.weight"} {
		p, err := NewPlan(checkpoint(t, layersOf(0, 1)[:n]...), wants, recipe(t, "balanced", Flags{}), PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		wantWarning(t, p, text)
	}
}

func TestE10TiedAndUntiedHeads(t *testing.T) {
	embed := matrix("model.embed_tokens.weight", 64, 64)
	tied := func(name string) []Want {
		return []Want{{Name: embed.name, Shape: embed.shape, Role: Embed, Layer: -1},
			{Name: "lm_head.weight", Shape: embed.shape, Role: Head, Layer: -1, Tied: name, Optional: name != ""}}
	}
	balanced := recipe(t, "balanced", Flags{})
	p, err := NewPlan(checkpoint(t, embed), tied(embed.name), balanced, PlanOptions{})
	if err != nil || len(p.Items) != 1 {
		t.Errorf("tied without a head: %v", err)
	}
	census, _ := TakeCensus(checkpoint(t, embed), tied(embed.name))
	if all := census.Readings(); len(census.Found) != 1 || len(all) != 2 || all[1].Role != Head || all[1].Tensor.Name != embed.name {
		t.Errorf("a tied embedding is read as %+v", all)
	}
	_, err = NewPlan(checkpoint(t, embed), tied(embed.name), recipe(t, "balanced", Flags{Tensors: []string{"lm_head=bf16"}}), PlanOptions{})
	wantError(t, err, format.ErrUsage, "override lm_head=bf16 matches no tensor (wanted model.embed_tokens.weight, which is the head too")
	_, err = NewPlan(checkpoint(t, embed), tied(""), balanced, PlanOptions{})
	wantError(t, err, format.ErrIncomplete, "lm_head.weight (head): missing tensor")
	p, err = NewPlan(checkpoint(t, embed, matrix("lm_head.weight", 64, 64)), tied(embed.name), balanced, PlanOptions{})
	if err != nil || len(p.Items) != 2 {
		t.Fatalf("tied with a head: %v", err)
	}
	wantWarning(t, p, "lm_head.weight is there although the embeddings are tied")
}

// TestE12BitsPerWeightCountTheScales: a grouped container is bigger than one
// scale a row, and the plan says by how much.
func TestE12BitsPerWeightCountTheScales(t *testing.T) {
	snap := checkpoint(t, matrix("model.layers.0.mlp.experts.0.up_proj.weight", 8, 256))
	for format, want := range map[string]float64{"int4-grouped/64": 4.5, "int4-row": 4.125, "int8-row": 8.125, "bf16": 16} {
		p := planOf(t, snap, recipe(t, "balanced", Flags{Format: format}), PlanOptions{})
		if got := p.ByRole()[0]; got.BitsPerWeight != want || got.Role != "expert" || p.Total().BitsPerWeight != want {
			t.Errorf("%s: %+v, want %v bits", format, got, want)
		}
	}
}

func TestContainerIsNotConvertedAgain(t *testing.T) {
	snap := open(t, fixtures.Path(t, "tiny-glm-g64"))
	_, err := NewPlan(snap, wantsOf(snap, 0), recipe(t, "balanced", Flags{}), PlanOptions{})
	wantError(t, err, format.ErrUsage, "is a converted container already")
}

func TestMissingCompanionsAreNamedBeforeTheStart(t *testing.T) {
	p := planOf(t, checkpoint(t, matrix("a.weight", 64, 64)), recipe(t, "balanced", Flags{}), PlanOptions{})
	wantWarning(t, p, "tokenizer.json is missing beside the checkpoint", "generation_config.json is missing", "tokenizer_config.json is missing")
	if len(p.Files) != 1 || p.Files[0] != (FileCopy{"config.json", 2}) {
		t.Errorf("files %v", p.Files)
	}
}

// BenchmarkPlan decides the 46,080 expert matrices of a large model.
func BenchmarkPlan(b *testing.B) {
	var tensors []testTensor
	for l := range 60 {
		for e := range 256 {
			for _, m := range []string{"gate_proj", "up_proj", "down_proj"} {
				tensors = append(tensors, matrix(fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s.weight", l, e, m), 1, 16))
			}
		}
	}
	snap := checkpoint(b, tensors...)
	wants := wantsOf(snap, 0)
	r, err := RecipeFor("balanced")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := NewPlan(snap, wants, r, PlanOptions{AllowBigger: true}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMoreClaimsThanColibriReads: it gives a container up beyond 4096 claims in
// colibri.fmt, which carries the matrices that bytes alone would misread.
func TestMoreClaimsThanColibriReads(t *testing.T) {
	var wants []Want
	for i := range format.MaxClaims + 1 {
		wants = append(wants, Want{Name: fmt.Sprintf("model.layers.0.mlp.experts.%d.up_proj.weight", i), Shape: []int{2, 96}, Role: Expert, Expert: i})
	}
	p := &planner{Plan: Plan{Options: PlanOptions{AllowAmbiguous: true}, snap: &format.Snapshot{Dir: "dir"}}}
	for _, w := range wants {
		p.Items = append(p.Items, Item{Want: w, Spec: format.Spec{Format: format.Int4Grouped, Group: 64, Rows: 2, Cols: 96}})
	}
	p.ambiguous()
	wantError(t, p.problems.Err(), format.ErrUsage, "4097", "4096")
	p.problems, p.Items = nil, p.Items[1:]
	p.ambiguous()
	if err := p.problems.Err(); err != nil {
		t.Error(err)
	}
}
