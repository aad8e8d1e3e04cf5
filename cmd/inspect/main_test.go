package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/cmd/internal/report"
	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
)

const (
	qA     = "model.layers.0.self_attn.q_a_proj.weight"
	kvB    = "model.layers.0.self_attn.kv_b_proj.weight"
	ehProj = "model.layers.2.eh_proj.weight"
)

func TestFixturesAreLoadable(t *testing.T) {
	for _, tt := range []struct {
		dir, kind, indexer, mtp string
		formats                 []string
	}{
		{"tiny-glm-g64", "container", "absent", "absent", []string{"int4-grouped/64", "int8-row", "f32"}},
		{"glm_moe_dsa", "checkpoint", "present", "none", []string{"bf16"}},
		{"glm_moe_dsa_fp8", "checkpoint", "present", "none", []string{"fp8-e4m3-b128", "bf16"}},
		{"glm_moe_dsa_dense_attention", "checkpoint", "present", "none", []string{"bf16"}},
	} {
		r := inspected(t, 0, fixtures.Path(t, tt.dir), "--verify", "--layers", "--tensors")
		var formats []string
		for _, f := range r.Formats {
			formats = append(formats, f.Format)
		}
		if r.Kind != tt.kind || r.Verdict != report.Loadable || r.Indexer.State != tt.indexer || r.MTP.State != tt.mtp || fmt.Sprint(formats) != fmt.Sprint(tt.formats) {
			t.Errorf("%s: %+v %v %v", tt.dir, r.Kind, r.Verdict, formats)
		}
		if c := r.Completeness; c.Found != c.Wanted || c.Missing+c.Wrong+c.Extra != 0 || c.Absent+c.Incomplete != "" {
			t.Errorf("%s: %+v", tt.dir, c)
		}
		var bytes int64
		for _, x := range r.Tensors {
			bytes += x.Bytes
		}
		if len(r.Tensors) != r.Total.Tensors || bytes != r.Total.Bytes || r.Verification.Bytes != bytes || r.Verification.Tensors != r.Total.Tensors {
			t.Errorf("%s: %d tensors of %d bytes listed, %+v counted, %d bytes in %d verified", tt.dir, len(r.Tensors), bytes, r.Total, r.Verification.Bytes, r.Verification.Tensors)
		}
	}
}

// TestParameters compares the sums with a count by hand.
func TestParameters(t *testing.T) {
	r := inspected(t, 0, synthesise(t, small(), in(format.BF16, 0)).save())
	const (
		embed    = 40 * 64
		attn     = 64*64 + 64*64 + (128+16)*64 + 2*(16+32)*128 + 64*64 + 64 + 128 // q_a, q_b, kv_a, kv_b, o_proj, two norms
		indexer  = 32*64 + 16*64 + 2*16 + 2*64
		norms    = 2 * 64
		dense    = 3 * 96 * 64
		expert   = 3 * 32 * 64
		router   = 4*64 + 4
		total    = 2*embed + 2*(attn+indexer+norms) + dense + router + expert + 4*expert + 64
		active   = total - embed + 64 - 2*expert
		mtpTotal = attn + indexer + norms + router + 5*expert + 64*128 + 3*64
	)
	if p := r.Parameters; p.Total != total || p.Active != active || p.MTP != mtpTotal || p.Quantised != 0 {
		t.Errorf("%+v, want %d, %d active, %d in the MTP block", p, total, active, mtpTotal)
	}
}

func TestA1GroupSizeFromScaleCount(t *testing.T) {
	m := synthesise(t, small(), in(format.Int4Grouped, 64))
	r := inspected(t, 0, m.saveAs(false), "--tensors")
	if x := tensorNamed(t, r, kvB); x.Format != "int4-grouped/64" || x.Group != 64 || x.Read != "inferred" || fmt.Sprint(x.Shape) != "[96 128]" {
		t.Errorf("%+v", x)
	}
	// A count that matches no layout is refused by name.
	m.set(kvB+".qs", format.DTypeF32, []int{96*2 + 1}, make([]byte, 4*(96*2+1)))
	r = inspected(t, 4, m.saveAs(false))
	holds(t, messages(r), "corrupt: ", "model.safetensors: "+kvB, "[96,128]", "6144 bytes of codes, 772 of scales", "int4-grouped/64 6144+768")
}

func TestA3BytesOfNoFormat(t *testing.T) {
	m := synthesise(t, small(), in(format.Int8Row, 0))
	m.set(qA, format.DTypeU8, []int{1000}, make([]byte, 1000))
	r := inspected(t, 4, m.saveAs(false))
	holds(t, messages(r), "corrupt: ", "model.safetensors: "+qA, "bytes fit no format of [64,64]", "1000 bytes of codes, 256 of scales", "shape [1000]")
	if r.Completeness.Wrong != 1 || r.Completeness.Missing != 0 || r.Completeness.Incomplete != "0" {
		t.Errorf("%+v", r.Completeness)
	}
}

// fp8Twin is the configuration under which the indexer's weights_proj is
// [4,512], whose FP8 and int8 forms have the same sizes.
func fp8Twin() (map[string]any, string) {
	c := small()
	c["hidden_size"], c["index_n_heads"] = 512, 4
	return c, "model.layers.0.self_attn.indexer.weights_proj.weight"
}

func TestA4Int8OrFP8(t *testing.T) {
	config, twin := fp8Twin()
	m := synthesise(t, config, in(format.Int8Row, 0))
	r := inspected(t, 0, m.saveAs(false), "--tensors", twin)
	if x := tensorNamed(t, r, twin); x.Format != "int8-row" || x.Read != "inferred" || fmt.Sprint(x.Candidates) != "[int8-row fp8-e4m3-b128]" {
		t.Errorf("unstamped: %+v", x)
	}
	if r.Stamps.Unconfirmed != 3 {
		t.Errorf("unstamped: %+v", r.Stamps)
	}
	holds(t, strings.Join(r.Warnings, "\n"), "3 tensors without a stamp can be read as int8-row or fp8-e4m3-b128; read as int8-row: "+twin)

	m.put(twin, format.Spec{Format: format.FP8, Rows: 4, Cols: 512}, nil, make([]float32, 4*512))
	r = inspected(t, 0, m.save(), "--tensors", twin)
	if x := tensorNamed(t, r, twin); x.Format != "fp8-e4m3-b128" || x.Read != "stamped" || fmt.Sprint(x.Candidates) != "[fp8-e4m3-b128 int8-row]" {
		t.Errorf("stamped: %+v", x)
	}
	if r.Stamps.Decisive != 1 || r.Stamps.Unconfirmed != 0 {
		t.Errorf("stamped: %+v", r.Stamps)
	}

	m.stamps[qA] = format.Spec{Format: format.FP8, Rows: 64, Cols: 512}
	holds(t, messages(inspected(t, 4, m.save())), "corrupt: ", qA, "stamped fp8-e4m3-b128 but the bytes are int8-row of [64,512]")
}

func TestA5UE8M0ScalesAreNamed(t *testing.T) {
	m := synthesise(t, small(), in(format.FP8, 0))
	m.set(kvB+".qs", format.DTypeU8, []int{1}, []byte{127})
	r := inspected(t, 3, m.saveAs(false))
	holds(t, messages(r), "unsupported: ", kvB, "ue8m0 scales, not supported")
}

func TestA7FormatWithoutKernel(t *testing.T) {
	m := synthesise(t, small(), in(format.Int8Row, 0))
	s := format.Spec{Format: format.E8, Rows: 96, Cols: 128}
	m.set(kvB, format.DTypeU8, []int{int(s.Bytes())}, make([]byte, s.Bytes()))
	m.set(kvB+".qs", format.DTypeF32, []int{1}, binary.LittleEndian.AppendUint32(nil, math.Float32bits(6)))
	m.stamps[kvB] = s
	holds(t, messages(inspected(t, 3, m.save())), "unsupported: ", kvB, "e8-iq3-lattice")
}

// TestB1DeadDraftHead has an eh_proj whose halves differ in size as in the field.
func TestB1DeadDraftHead(t *testing.T) {
	for _, tt := range []struct {
		spec format.Spec
		dead bool
	}{{format.Spec{Format: format.Int4Row}, true}, {format.Spec{Format: format.Int4Grouped, Group: 64}, false}, {format.Spec{Format: format.Int8Row}, false}} {
		m := synthesise(t, small(), in(format.Int8Row, 0))
		values := make([]float32, 64*128)
		for i := range values {
			values[i] = float32(math.Sin(float64(i))) * 0.05
			if i%128 >= 64 {
				values[i] *= 30
			}
		}
		tt.spec.Rows, tt.spec.Cols = 64, 128
		m.put(ehProj, tt.spec, nil, values)
		r := inspected(t, 0, m.save(), "--verify")
		predicted := strings.Contains(strings.Join(r.Verification.Warnings, "\n"), ehProj+": 100 % of the rows have an all-zero half")
		warned := strings.Contains(strings.Join(r.Warnings, "\n"), "hardly ever be accepted")
		if predicted != tt.dead || warned != tt.dead {
			t.Errorf("%v: warned %v, predicted %v, want %v: %v", tt.spec, warned, predicted, tt.dead, r.Verification.Warnings)
		}
		width := map[string]int{}
		for _, f := range r.MTP.Formats {
			width[f.Format] = f.Tensors
		}
		if r.MTP.State != "present" || r.MTP.Layers != "2" || width[tt.spec.Name()] == 0 || width["f32"] != 1 {
			t.Errorf("%v: %+v", tt.spec, r.MTP)
		}
	}
}

// TestB1DeadGroups: whole rows that are lost predict the same as halves.
func TestB1DeadGroups(t *testing.T) {
	m := synthesise(t, small(), in(format.Int8Row, 0))
	for row := 0; row < 64; row += 2 {
		clear(m.data(ehProj)[row*128:][:128])
	}
	holds(t, strings.Join(inspected(t, 0, m.save(), "--verify").Verification.Warnings, "\n"), ehProj+": 50 % of the groups of columns are all zero, so the MTP block's drafts")
}

func TestMTPBlockThatIsIncomplete(t *testing.T) {
	m := synthesise(t, small(), in(format.Int8Row, 0))
	m.drop(func(name string) bool { return name == ehProj })
	r := inspected(t, 0, m.save())
	if r.MTP.State != "partial" || fmt.Sprint(r.MTP.Missing) != "["+ehProj+"]" {
		t.Errorf("%+v", r.MTP)
	}
	holds(t, strings.Join(r.Warnings, "\n"), "MTP block is incomplete and of no use: missing "+ehProj)
}

func bf16(x float32) uint16 { return uint16(math.Float32bits(x) >> 16) }

func TestB5VerifyNamesEveryBadValue(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	scale := func(x float32, i int) func(*model) {
		return func(m *model) { binary.LittleEndian.PutUint32(m.data(kvB + ".qs")[4*i:], math.Float32bits(x)) }
	}
	value := func(x float32, i int) func(*model) {
		return func(m *model) { binary.LittleEndian.PutUint16(m.data(qA)[2*i:], bf16(x)) }
	}
	for _, tt := range []struct {
		name   string
		format format.ID
		group  int
		damage func(*model)
		want   report.Finding // what is wrong, where
	}{
		{"NaN in bf16", format.BF16, 0, value(nan, 2*64+5), report.Finding{Tensor: qA, What: "NaN weights", Count: 1, Row: 2, Column: 5}},
		{"Inf in bf16", format.BF16, 0, value(-inf, 63*64+63), report.Finding{Tensor: qA, What: "infinite weights", Count: 1, Row: 63, Column: 63}},
		{"NaN scale", format.Int4Grouped, 64, scale(nan, 5), report.Finding{Tensor: kvB, What: "NaN scales", Count: 1, Row: 2, Column: 64}},
		{"Inf scale", format.Int8Row, 0, scale(inf, 95), report.Finding{Tensor: kvB, What: "infinite scales", Count: 1, Row: 95}},
		{"zero scale", format.Int3G64, 0, scale(0, 3), report.Finding{Tensor: kvB, What: "zero scales", Count: 1, Row: 1, Column: 64}},
		{"huge scale", format.Int2Row, 0, scale(-3e38, 0), report.Finding{Tensor: kvB, What: "scales that make weights infinite", Count: 1}},
		{"NaN code", format.FP8, 0, func(m *model) { m.data(kvB)[3*128+1], m.data(kvB)[9*128] = 0x7f, 0xff }, report.Finding{Tensor: kvB, What: "NaN weights", Count: 2, Row: 3, Column: 1}},
		{"padding", format.Int3G64, 0, func(m *model) { m.data("model.layers.0.mlp.down_proj.weight")[24+15] = 1 }, report.Finding{Tensor: "model.layers.0.mlp.down_proj.weight", What: "rows with illegal padding", Count: 1, Row: 0, Column: 96}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := synthesise(t, small(), in(tt.format, tt.group))
			if r := inspected(t, 0, m.save(), "--verify"); len(r.Verification.Findings) != 0 {
				t.Fatalf("sound: %+v", r.Verification.Findings)
			}
			tt.damage(m)
			dir := m.save()
			if r := inspected(t, 0, dir); r.Verification != nil {
				t.Errorf("verified without being asked")
			}
			tt.want.Shard = "model.safetensors"
			r := inspected(t, 4, dir, "--verify", "-t", "3")
			if v := r.Verification; len(v.Findings) != 1 || v.Findings[0] != tt.want {
				t.Errorf("%+v, want %+v", v.Findings, tt.want)
			}
			code, stdout, stderr := runInspect(dir, "--verify")
			holds(t, stdout, fmt.Sprintf("%s in model.safetensors: %d %s, the first at row %d, column %d", tt.want.Tensor, tt.want.Count, tt.want.What, tt.want.Row, tt.want.Column))
			holds(t, stderr, "verification: 1 finding")
			if code != 4 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestVerifyInPieces has a matrix that several goroutines read.
func TestVerifyInPieces(t *testing.T) {
	const rows, name = 70000, "model.embed_tokens.weight"
	config := small()
	config["vocab_size"] = rows
	m := synthesise(t, config, func(w quantize.Want) (format.Spec, bool) {
		if w.Role == quantize.Embed || w.Role == quantize.Head {
			return format.Spec{Format: format.FP8}, !w.MTP
		}
		return format.Spec{Format: format.F32}, !w.MTP
	})
	m.data(name)[(rows-1)*64+3], m.data(name)[66000*64] = 0xff, 0x7f
	clear(m.data(name + ".qs")[4*546:][:4])
	clear(m.data(name)[5*64:][:64])
	dir := m.save()
	want := []report.Finding{
		{Tensor: name, Shard: "model.safetensors", What: "NaN weights", Count: 2, Row: 66000},
		{Tensor: name, Shard: "model.safetensors", What: "zero scales", Count: 1, Row: 546 * 128},
	}
	for _, threads := range []string{"1", "7"} {
		v := inspected(t, 4, dir, "--verify", "-t", threads).Verification
		if fmt.Sprint(v.Findings) != fmt.Sprint(want) {
			t.Errorf("%s threads: %+v, want %+v", threads, v.Findings, want)
		}
		if h := v.Roles[0]; h.Role != "embed" || h.Rows != rows || h.DeadRows != 1 || h.Groups != rows {
			t.Errorf("%s threads: %+v", threads, h)
		}
	}
	// Without a model, a tensor is one long run.
	m = &model{t: t}
	long := make([]byte, 4*3_000_000)
	binary.LittleEndian.PutUint32(long[4*2_999_999:], math.Float32bits(float32(math.Inf(1))))
	binary.LittleEndian.PutUint32(long[4*2_500_000:], math.Float32bits(float32(math.Inf(-1))))
	m.set("long", format.DTypeF32, []int{3_000_000}, long)
	dir = t.TempDir()
	m.write(filepath.Join(dir, "model.safetensors"), false, all)
	v := inspected(t, 4, dir, "--verify").Verification
	if f := (report.Finding{Tensor: "long", Shard: "model.safetensors", What: "infinite weights", Count: 2, Column: 2_500_000}); len(v.Findings) != 1 || v.Findings[0] != f {
		t.Errorf("%+v", v.Findings)
	}
}

func TestVerifyStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root := command()
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	if code := cli.Execute(ctx, root, []string{fixtures.Path(t, "tiny-glm-g64"), "--verify"}); code != cli.Interrupted {
		t.Errorf("exit code %d", code)
	}
}

func TestNegativeScalesAreLegal(t *testing.T) {
	m := synthesise(t, small(), in(format.Int4Row, 0))
	m.data(kvB + ".qs")[3] ^= 0x80
	r := inspected(t, 0, m.save(), "--verify")
	for _, h := range r.Verification.Roles {
		want := int64(0)
		if h.Role == "kv_b" {
			want = 1
		}
		if h.NegativeScales != want {
			t.Errorf("%+v", h)
		}
	}
}

func TestC6TinyMatrixAndNullBits(t *testing.T) {
	config := small()
	config["quantization"] = map[string]any{"bits": nil}
	m := synthesise(t, config, in(format.Int4Grouped, 128))
	r := inspected(t, 0, m.save(), "--tensors", "*down_proj*")
	name := "model.layers.1.mlp.experts.3.down_proj.weight" // [64,32]
	if x := tensorNamed(t, r, name); x.Format != "int4-row" || x.Bytes != 64*16+64*4 {
		t.Errorf("%+v", x)
	}
}

func TestC7OneGroupARow(t *testing.T) {
	dir := synthesise(t, small(), in(format.Int4Grouped, 64)).saveAs(false)
	name := "model.layers.1.mlp.experts.0.down_proj.weight" // [64,32]
	r := inspected(t, 0, dir, "--tensors", name)
	if x := tensorNamed(t, r, name); x.Format != "int4-row" || x.Note != "int4, one scale per row (group ≥ row or per-row)" {
		t.Errorf("%+v", x)
	}
	_, stdout, _ := runInspect("--tensors", name, dir)
	holds(t, stdout, "int4, one scale per row (group ≥ row or per-row)")
}

// TestC8FusedExperts has routed experts as 3-D tensors.
func TestC8FusedExperts(t *testing.T) {
	m := synthesise(t, small(), in(format.BF16, 0))
	m.drop(func(name string) bool { return strings.HasPrefix(name, "model.layers.1.mlp.experts.") })
	m.set("model.layers.1.mlp.experts.gate_up_proj", format.DTypeBF16, []int{4, 64, 64}, make([]byte, 2*4*64*64))
	m.set("model.layers.1.mlp.experts.down_proj", format.DTypeBF16, []int{4, 64, 32}, make([]byte, 2*4*64*32))
	r := inspected(t, 0, m.save(), "--tensors", "--verify")
	if x := tensorNamed(t, r, "model.layers.1.mlp.experts.3.up_proj.weight"); x.Format != "bf16" || x.Note != "in model.layers.1.mlp.experts.gate_up_proj" || x.Bytes != 2*32*64 {
		t.Errorf("%+v", x)
	}
	if r.Completeness.Extra != 0 || r.Verification.Bytes != r.Total.Bytes {
		t.Errorf("%+v %+v %+v", r.Completeness, r.Verification, r.Total)
	}
	m.set("model.layers.1.mlp.experts.down_proj", format.DTypeBF16, []int{4, 32, 64}, make([]byte, 2*4*64*32))
	r = inspected(t, 4, m.save())
	holds(t, messages(r), "model.layers.1.mlp.experts.down_proj", "[4 32 64]")
	_, stdout, _ := runInspect(m.save())
	if strings.Count(stdout, "\n") > 60 {
		t.Errorf("more than a screen:\n%s", stdout)
	}
}

// overlaid writes kv_b of layer 0 into a second shard, in another format.
func overlaid(t *testing.T, index func() map[string]string) string {
	t.Helper()
	dir := synthesise(t, small(), in(format.Int8Row, 0)).save()
	o := &model{t: t, stamps: map[string]format.Spec{}}
	o.put(kvB, format.Spec{Format: format.Int4Grouped, Rows: 96, Cols: 128, Group: 64}, nil, make([]float32, 96*128))
	o.write(filepath.Join(dir, "model-overlay-1.safetensors"), true, all)
	if index != nil {
		data, err := json.Marshal(map[string]any{"weight_map": index()})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestD8DuplicatesAndTheIndex(t *testing.T) {
	shard := func(name string) func() map[string]string {
		return func() map[string]string { return map[string]string{kvB: name, kvB + ".qs": name} }
	}
	r := inspected(t, 0, overlaid(t, shard("model-overlay-1.safetensors")), "--tensors", kvB)
	if x := tensorNamed(t, r, kvB); x.Format != "int4-grouped/64" || x.Shard != "model-overlay-1.safetensors" {
		t.Errorf("%+v", x)
	}
	r = inspected(t, 0, overlaid(t, shard("model.safetensors")), "--tensors", kvB)
	if x := tensorNamed(t, r, kvB); x.Format != "int8-row" || x.Shard != "model.safetensors" {
		t.Errorf("%+v", x)
	}
	r = inspected(t, 4, overlaid(t, nil))
	holds(t, messages(r), kvB+": held by several shards and there is no model.safetensors.index.json to decide", kvB+".qs: held by")
	r = inspected(t, 4, overlaid(t, shard("third.safetensors")))
	holds(t, messages(r), "third.safetensors: shard is missing", "the index maps it to a third shard, third.safetensors")
	split := func() map[string]string {
		return map[string]string{kvB: "model-overlay-1.safetensors", kvB + ".qs": "model.safetensors"}
	}
	holds(t, messages(inspected(t, 4, overlaid(t, split))), "codes and scales come from different shards")
}

func TestD9FirstShardIsMissing(t *testing.T) {
	m := synthesise(t, small(), in(format.Int8Row, 0))
	dir := t.TempDir()
	m.writeConfig(dir)
	part := func(name string) int {
		switch {
		case strings.HasPrefix(name, "model.layers.2."):
			return 3
		case strings.HasPrefix(name, "model.layers.0."):
			return 1
		case strings.HasPrefix(name, "model.layers.1."):
			return 2
		}
		return 0
	}
	for i, shard := range []string{"out-00000", "out-00001", "out-00002", "out-mtp-00000"} {
		if i > 0 {
			m.write(filepath.Join(dir, shard+".safetensors"), true, func(name string) bool { return part(strings.TrimSuffix(name, ".qs")) == i })
		}
	}
	r := inspected(t, 4, dir)
	holds(t, messages(r), "incomplete: ", "model.embed_tokens.weight (embed)", "3 shards seen", "out-00000.safetensors", "incomplete download?")
	_, stdout, _ := runInspect(dir)
	holds(t, stdout, "not loadable, 3 problems", "model.embed_tokens.weight (embed)", "model.norm.weight (norm)", "lm_head.weight (head)", "layers 0-1")
}

func TestD10LayersAreMissing(t *testing.T) {
	config := small()
	config["num_hidden_layers"], config["mlp_layer_types"] = 6, nil
	m := synthesise(t, config, in(format.Int8Row, 0))
	m.drop(func(name string) bool {
		return name == "model.norm.weight" || strings.HasPrefix(name, "model.layers.2.") || strings.HasPrefix(name, "model.layers.4.")
	})
	dir := m.save()
	r := inspected(t, 4, dir)
	if c := r.Completeness; c.Complete != "0-1,3,5" || c.Absent != "2,4" || c.Incomplete != "" || c.Missing != 2*26+1 {
		t.Errorf("%+v", c)
	}
	holds(t, messages(r), "model.layers.{2,4}.* (2 whole layers: 52 tensors)", "model.norm.weight (norm)")
	_, stdout, _ := runInspect(dir, "--layers")
	holds(t, stdout, "norm missing", "\n2,4    missing  missing")
}

func TestD11IndexNamesShardsThatAreAbsent(t *testing.T) {
	dir := synthesise(t, small(), in(format.BF16, 0)).save()
	index := `{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors","` + qA + `":"model.safetensors"}}`
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(index), 0o644); err != nil {
		t.Fatal(err)
	}
	r := inspected(t, 4, dir)
	holds(t, messages(r), "model-00001-of-00002.safetensors: shard is missing", "model-00002-of-00002.safetensors: shard is missing", "incomplete download?")
	_, stdout, stderr := runInspect(dir)
	holds(t, stdout, "not loadable, 2 problems", "model-00002-of-00002.safetensors")
	holds(t, stderr, "2 problems")
}

func TestE10TiedEmbeddings(t *testing.T) {
	for _, tt := range []struct {
		name string
		tie  any
		head bool
		code int
		text string // of the problem or warning
	}{
		{"tied, no head", true, false, 0, ""},
		{"untied, no head", false, false, 4, "lm_head.weight (head)"},
		{"no word, no head", nil, false, 4, "lm_head.weight (head)"},
		{"tied, with a head", true, true, 0, "tie_word_embeddings is true, yet lm_head.weight is there: it is used"},
		{"untied, with a head", false, true, 0, ""},
	} {
		m := synthesise(t, small(), in(format.BF16, 0))
		m.config["tie_word_embeddings"] = tt.tie
		if !tt.head {
			m.drop(func(name string) bool { return name == "lm_head.weight" })
		}
		r := inspected(t, tt.code, m.save())
		text := messages(r) + strings.Join(r.Warnings, "\n")
		if !strings.Contains(text, tt.text) || tt.text == "" && strings.Contains(text, "lm_head") {
			t.Errorf("%s: %s", tt.name, text)
		}
		// A tied embedding is read whole for every token.
		want := inspected(t, 0, synthesise(t, small(), in(format.BF16, 0)).save()).Parameters.Active
		if tt.code == 0 && !tt.head {
			if r.Parameters.Active != want-64 {
				t.Errorf("%s: %d active, want %d", tt.name, r.Parameters.Active, want-64)
			}
		}
	}
}

func TestE11TokenizerAndEmbedding(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	if r := inspected(t, 0, dir); r.Tokenizer.IDs != 4096 || r.Tokenizer.Rows != 4096 {
		t.Errorf("%+v", r.Tokenizer)
	}
	path := filepath.Join(dir, "tokenizer.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var tok map[string]any
	if err := json.Unmarshal(data, &tok); err != nil {
		t.Fatal(err)
	}
	added := tok["added_tokens"].([]any)
	extra := map[string]any{}
	for k, v := range added[0].(map[string]any) {
		extra[k] = v
	}
	extra["id"], extra["content"] = 4096, "<|one too many|>"
	tok["added_tokens"] = append(added, extra)
	if data, err = json.Marshal(tok); err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	holds(t, messages(inspected(t, 4, dir)), "tokens that the embedding has no row for (found ids up to 4096, wanted at most 4095")
}

func TestSingleFile(t *testing.T) {
	dir := synthesise(t, small(), in(format.Int8Row, 0)).save()
	r := inspected(t, 0, filepath.Join(dir, "model.safetensors"), "--verify")
	if r.Verdict != report.Loadable || r.Completeness.Missing != 0 {
		t.Errorf("%+v", r)
	}
	code, _, stderr := runInspect(fixtures.Path(t, "glm_moe_dsa/model-00001-of-00007.safetensors"))
	if code != 4 {
		t.Errorf("exit code %d", code)
	}
	holds(t, stderr, "only this file was read")
}

func TestWithoutConfig(t *testing.T) {
	m := synthesise(t, small(), in(format.Int4Grouped, 64))
	binary.LittleEndian.PutUint32(m.data(kvB + ".qs")[40:], 0)
	binary.LittleEndian.PutUint32(m.data("model.norm.weight")[4:], math.Float32bits(float32(math.NaN())))
	m.set("position_ids", "I64", []int{3}, make([]byte, 24))
	m.set("scalar", format.DTypeF32, nil, make([]byte, 4))
	dir := t.TempDir()
	m.write(filepath.Join(dir, "model.safetensors"), true, all)
	r := inspected(t, 0, dir, "--tensors")
	if r.Verdict != report.Unknown || r.Architecture != nil || r.Parameters != nil || r.Completeness != nil {
		t.Errorf("%+v", r)
	}
	holds(t, strings.Join(r.Unknown, "\n"), "no config.json", "cannot be known")
	if x := tensorNamed(t, r, kvB); x.Format != "int4-grouped/64" || x.Read != "stamped" || x.Bytes != 96*64+96*2*4 {
		t.Errorf("%+v", x)
	}
	if x := tensorNamed(t, r, "position_ids"); x.Format != "I64" {
		t.Errorf("%+v", x)
	}
	if r.Formats[0].Format != "packed" {
		t.Errorf("%+v", r.Formats)
	}
	code, stdout, _ := runInspect(dir)
	holds(t, stdout, "tensors only", "not known", "packed")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	if code, _, stderr := runInspect(dir, "--layers"); code != 2 || !strings.Contains(stderr, "needs a config.json") {
		t.Errorf("--layers: %d %s", code, stderr)
	}
	// Scales are known by name, floats by type.
	v := inspected(t, 4, dir, "--verify").Verification
	want := []report.Finding{
		{Tensor: kvB + ".qs", Shard: "model.safetensors", What: "zero scales", Count: 1, Column: 10},
		{Tensor: "model.norm.weight", Shard: "model.safetensors", What: "NaN weights", Count: 1, Column: 1},
	}
	if fmt.Sprint(v.Findings) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", v.Findings, want)
	}
	if v.Opaque == 0 {
		t.Error("integers have no rules")
	}
}

func TestUnknownArchitecture(t *testing.T) {
	m := synthesise(t, small(), in(format.BF16, 0))
	m.config["model_type"] = "nobody_knows"
	dir := m.save()
	r := inspected(t, 3, dir, "--tensors", qA)
	holds(t, messages(r), "unsupported: ", "nobody_knows", "glm_moe_dsa")
	if r.Verdict != report.NotLoadable || tensorNamed(t, r, qA).Format != "BF16" {
		t.Errorf("%+v", r)
	}
	m.config["model_type"], m.config["rope_scaling"], m.config["vocab_size"] = "glm_moe_dsa", map[string]any{"type": "yarn"}, "many"
	r = inspected(t, 4, m.save())
	holds(t, messages(r), "rope_scaling", "vocab_size")
}

func TestExtraTensors(t *testing.T) {
	m := synthesise(t, small(), in(format.BF16, 0))
	for _, name := range []string{"model.layers.7.input_layernorm.weight", "stranger", qA + "_scale_inv"} {
		m.set(name, format.DTypeF32, []int{2}, make([]byte, 8))
	}
	r := inspected(t, 0, m.save())
	if r.Completeness.Extra != 3 {
		t.Errorf("%+v", r.Completeness)
	}
	holds(t, strings.Join(r.Warnings, "\n"), "behind the last layer are ignored; an MTP block needs num_nextn_predict_layers in config.json: model.layers.7.", "not the model's are ignored: stranger", "scales without FP8 weights are ignored: "+qA)
}

func TestNamesAreSafeForTerminals(t *testing.T) {
	m := synthesise(t, small(), in(format.BF16, 0))
	m.set("evil\x1b[31m\nname", format.DTypeF32, []int{1}, binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.NaN()))))
	dir := m.save()
	for _, args := range [][]string{{dir}, {dir, "--tensors"}, {dir, "--verify", "-q"}} {
		_, stdout, stderr := runInspect(args...)
		if strings.ContainsAny(stdout+stderr, "\x1b") || !strings.Contains(stdout, `evil\x1b[31m\nname`) {
			t.Errorf("%v: %q %q", args, stdout, stderr)
		}
	}
}

func TestEveryProblemAtOnce(t *testing.T) {
	m := synthesise(t, small(), in(format.BF16, 0))
	m.drop(func(name string) bool { return name == kvB })
	m.set(qA, format.DTypeBF16, []int{64, 63}, make([]byte, 2*64*63))
	m.set("model.norm.weight", "I32", []int{64}, make([]byte, 4*64))
	m.set("stranger", format.DTypeF32, []int{2}, make([]byte, 8))
	m.config["vocab_size"] = 41
	r := inspected(t, 4, m.save())
	text := messages(r)
	holds(t, text, kvB+" (kv_b): missing tensor", qA+": shape (found [64 63]", "model.norm.weight", "I32", "model.embed_tokens.weight: shape (found [40 64]", "lm_head.weight: shape")
	if len(r.Problems) != 5 || r.Completeness.Wrong != 4 || r.Completeness.Missing != 1 || r.Completeness.Extra != 1 {
		t.Errorf("%+v\n%s", r.Completeness, text)
	}
}

func TestDamagedFiles(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join(synthesise(t, small(), in(format.Int8Row, 0)).save(), "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		data []byte
		text string
	}{
		{"empty", nil, "shard is 0 bytes, not a safetensors file"},
		{"LFS pointer", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), "looks like a Git LFS pointer"},
		{"one byte short", whole[:len(whole)-1], "truncated: 1 bytes are missing"},
		{"a byte more", append(whole[:len(whole):len(whole)], 0), "1 bytes follow the last tensor"},
		{"header", append([]byte{255, 255, 255, 255, 255, 255, 255, 255}, whole[8:]...), "header length is out of range"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), tt.data, 0o644); err != nil {
			t.Fatal(err)
		}
		r := inspected(t, 4, dir)
		holds(t, messages(r), "model.safetensors", tt.text)
		if r.Verdict != report.NotLoadable {
			t.Errorf("%s: %+v", tt.name, r)
		}
		code, stdout, stderr := runInspect(dir, "--verify", "--layers")
		holds(t, stdout, tt.text)
		if code != 4 || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: %d %s", tt.name, code, stderr)
		}
	}
}

func TestManifestIsCompared(t *testing.T) {
	m, dir := synthesise(t, small(), in(format.Int8Row, 0)), t.TempDir()
	m.writeConfig(dir)
	m.write(filepath.Join(dir, "out-00000.safetensors"), true, all)
	st, err := os.Stat(filepath.Join(dir, "out-00000.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	record := func(shards ...quantize.FinishedShard) {
		data, err := json.Marshal(quantize.Manifest{Tool: "hawkmoth convert", Recipe: "small", Shards: shards})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, quantize.ManifestName), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	record(quantize.FinishedShard{Name: "out-00000.safetensors", Size: st.Size()})
	r := inspected(t, 0, dir, "--verify")
	if r.Verification.Manifest != "agrees" || r.Origin.Recipe != "small" {
		t.Errorf("%+v %+v", r.Verification, r.Origin)
	}
	record(quantize.FinishedShard{Name: "out-00000.safetensors", Size: st.Size() + 1}, quantize.FinishedShard{Name: "out-00001.safetensors"})
	r = inspected(t, 4, dir, "--verify")
	if r.Verification.Manifest != "disagrees" || len(r.Verification.Findings) != 2 {
		t.Errorf("%+v", r.Verification)
	}
}

func TestUsage(t *testing.T) {
	dir := synthesise(t, small(), in(format.BF16, 0)).save()
	for _, tt := range []struct {
		args []string
		code int
		text string
	}{
		{nil, 2, "missing argument DIR"},
		{[]string{dir, dir}, 2, "unexpected argument"},
		{[]string{dir, "--layer"}, 2, "did you mean --layers?"},
		{[]string{dir, "--tensors=["}, 2, "not a pattern"},
		{[]string{dir, "--tensors=nothing*"}, 2, "no tensor matches"},
		{[]string{dir, dir, "--tensors"}, 2, "write --tensors=GLOB DIR"},
		{[]string{dir, "-t", "-1", "--verify"}, 2, "must not be negative"},
		{[]string{filepath.Join(dir, "nowhere")}, 1, "no such file or directory"},
		{[]string{t.TempDir()}, 4, "no .safetensors file in this directory"},
		{[]string{filepath.Join(dir, "config.json")}, 4, "header length is out of range"},
	} {
		code, stdout, stderr := runInspect(tt.args...)
		if code != tt.code || !strings.Contains(stdout+stderr, tt.text) {
			t.Errorf("%v: %d %s%s, want %d %s", tt.args, code, stdout, stderr, tt.code, tt.text)
		}
	}
	for _, args := range [][]string{{dir, "--tensors", "*kv_b*"}, {"--tensors", "*kv_b*", dir}, {"--tensors=*kv_b*", dir}} {
		code, stdout, stderr := runInspect(args...)
		if code != 0 || strings.Count(stdout, "\n") != 4 || stderr != "" {
			t.Errorf("%v: %d %s%s", args, code, stdout, stderr)
		}
	}
}
