package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

const (
	dense1   = "model.layers.0.mlp.down_proj.weight" // [64,96]
	expert0  = "model.layers.1.mlp.experts.0.gate_proj.weight"
	norm0    = "model.layers.0.input_layernorm.weight"
	theShard = "model.safetensors"
)

// every gives all packed matrices one format, and plain floats in bf16 where
// the format is zero.
func every(id format.ID, group int) func(t *testing.T) *model {
	return func(t *testing.T) *model { return synthesise(t, small(), in(id, group)) }
}

// odd is a model whose rows end inside a byte.
func odd(id format.ID) func(t *testing.T) *model {
	return func(t *testing.T) *model {
		config := small()
		config["intermediate_size"] = 97
		return synthesise(t, config, in(id, 0))
	}
}

// TestDamage is thirty ways to damage a snapshot. inspect --verify finds each,
// names tensor and shard, and exits with 4.
func TestDamage(t *testing.T) {
	float := func(name string, i int, x float32) func(*model) {
		return func(m *model) { binary.LittleEndian.PutUint32(m.data(name)[4*i:], math.Float32bits(x)) }
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	header := func(change func(h map[string]any)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) { rewriteHeader(t, filepath.Join(dir, theShard), change) }
	}
	for _, tt := range []struct {
		name   string
		model  func(*testing.T) *model
		damage func(*model)
		file   func(t *testing.T, dir string) // what happens to the written directory
		tensor string
		shard  string
		words  string
	}{
		// Values.
		{name: "NaN scale", model: every(format.Int4Grouped, 64), damage: float(kvB+".qs", 5, nan), tensor: kvB, words: "NaN scales"},
		{name: "infinite scale", model: every(format.Int8Row, 0), damage: float(kvB+".qs", 5, inf), tensor: kvB, words: "infinite scales"},
		{name: "zero scale", model: every(format.Int3G64, 0), damage: float(expert0+".qs", 0, 0), tensor: expert0, words: "zero scales"},
		{name: "scale beyond float32", model: every(format.Int2Row, 0), damage: float(qA+".qs", 1, 3e38), tensor: qA, words: "scales that make weights infinite"},
		{name: "NaN in an FP8 code", model: every(format.FP8, 0), damage: func(m *model) { m.data(qA)[77] = 0xff }, tensor: qA, words: "NaN weights"},
		{name: "NaN in bf16", model: every(format.BF16, 0), damage: func(m *model) { binary.LittleEndian.PutUint16(m.data(kvB)[8:], 0x7fc0) }, tensor: kvB, words: "NaN weights"},
		{name: "infinity in f16", model: every(format.F16, 0), damage: func(m *model) { binary.LittleEndian.PutUint16(m.data(kvB)[8:], 0xfc00) }, tensor: kvB, words: "infinite weights"},
		{name: "infinity in a norm", model: every(format.Int8Row, 0), damage: float(norm0, 3, -inf), tensor: norm0, words: "infinite weights"},
		{name: "NaN in a tensor of nobody's", model: every(format.Int8Row, 0), damage: func(m *model) {
			m.set("stranger", format.DTypeF32, []int{1}, binary.LittleEndian.AppendUint32(nil, math.Float32bits(nan)))
		}, tensor: "stranger", words: "NaN weights"},
		{name: "padding nibble", model: odd(format.Int4Row), damage: func(m *model) { m.data(dense1)[48] |= 0x30 }, tensor: dense1, words: "illegal padding"},
		{name: "padding of int2", model: odd(format.Int2Row), damage: func(m *model) { m.data(dense1)[24] |= 0x80 }, tensor: dense1, words: "illegal padding"},
		{name: "padding of int3", model: odd(format.Int3G64), damage: func(m *model) { m.data(dense1)[47] &^= 0x80 }, tensor: dense1, words: "illegal padding"},
		{name: "another group size than the codes'", model: func(t *testing.T) *model {
			m := synthesise(t, small(), in(format.Int4Grouped, 64))
			m.stamps[dense1] = format.Spec{Format: format.Int4Grouped, Rows: 64, Cols: 96, Group: 48}
			return m
		}, tensor: dense1, words: "is read in groups of 48, while its codes are in groups of 64"},

		// Shapes, sizes, stamps.
		{name: "codes of another count", model: every(format.Int8Row, 0), damage: func(m *model) { m.set(kvB, format.DTypeU8, []int{12000}, make([]byte, 12000)) }, tensor: kvB, words: "codes"},
		{name: "scales of another count", model: every(format.Int4Grouped, 64), damage: func(m *model) { m.set(kvB+".qs", format.DTypeF32, []int{191}, make([]byte, 4*191)) }, tensor: kvB, words: "764 of scales"},
		{name: "scales of another type", model: every(format.Int8Row, 0), damage: func(m *model) { m.set(kvB+".qs", "I32", []int{96}, make([]byte, 4*96)) }, tensor: kvB, words: "scales"},
		{name: "no scales", model: every(format.Int8Row, 0), damage: func(m *model) {
			m.tensors = append(m.tensors[:m.index(kvB+".qs")], m.tensors[m.index(kvB+".qs")+1:]...)
		}, tensor: kvB, words: "without their scales"},
		{name: "no codes", model: every(format.Int8Row, 0), damage: func(m *model) { m.tensors = append(m.tensors[:m.index(kvB)], m.tensors[m.index(kvB)+1:]...) }, tensor: kvB, shard: "-", words: "missing tensor"},
		{name: "transposed", model: every(format.BF16, 0), damage: func(m *model) { m.tensors[m.index(kvB)].Shape = []int{128, 96} }, tensor: kvB, words: "shape"},
		{name: "norm of another length", model: every(format.BF16, 0), damage: func(m *model) { m.set(norm0, format.DTypeF32, []int{63}, make([]byte, 252)) }, tensor: norm0, words: "shape"},
		{name: "stamp of another format", model: every(format.Int8Row, 0), damage: func(m *model) { m.stamps[kvB] = format.Spec{Format: format.Int4Row, Rows: 96, Cols: 128} }, tensor: kvB, words: "stamped int4-row but the bytes are int8-row"},
		{name: "misshapen MTP tensor", model: every(format.BF16, 0), damage: func(m *model) { m.tensors[m.index(ehProj)].Shape = []int{128, 64} }, tensor: ehProj, words: "which only drafts read"},

		// Files and headers.
		{name: "one byte short", model: every(format.Int8Row, 0), file: cutFile(1), tensor: "model.layers", words: "truncated: 1 bytes are missing"},
		{name: "half the file", model: every(format.Int8Row, 0), file: cutFile(100000), tensor: "model.layers", words: "tensors after it"},
		{name: "overlap", model: every(format.BF16, 0), file: header(func(h map[string]any) { moveTensor(h, kvB, -2) }), tensor: "model.layers", words: "overlaps with"},
		{name: "range beyond the file", model: every(format.BF16, 0), file: header(func(h map[string]any) { moveTensor(h, kvB, 1<<40) }), tensor: kvB, words: "hole"},
		{name: "more elements than bytes", model: every(format.BF16, 0), file: header(func(h map[string]any) { h[kvB].(map[string]any)["shape"] = []int{1000, 1000} }), tensor: kvB, words: "bytes disagree"},
		{name: "shape without a size", model: every(format.BF16, 0), file: header(func(h map[string]any) { h[kvB].(map[string]any)["shape"] = []int64{1 << 40, 1 << 40} }), tensor: kvB, words: "shape"},
		{name: "no such element type", model: every(format.BF16, 0), file: header(func(h map[string]any) { h[kvB].(map[string]any)["dtype"] = "BF17" }), tensor: kvB, words: "BF17"},

		// Several shards.
		{name: "a name twice", model: every(format.Int8Row, 0), file: second(true), tensor: kvB, words: "held by several shards"},
		{name: "codes here, scales there", model: every(format.Int8Row, 0), file: second(false), tensor: kvB, words: "codes and scales come from different shards"},
		{name: "two shards that claim different formats", model: every(format.Int8Row, 0), file: func(t *testing.T, dir string) {
			o := &model{t: t, stamps: map[string]format.Spec{}}
			o.set("other", format.DTypeF32, []int{1}, make([]byte, 4))
			w, err := format.Create(filepath.Join(dir, "other.safetensors"), []format.Entry{o.tensors[0].Entry}, map[string]string{format.KeyFormats: fmt.Sprintf(`{%q:"int4-row"}`, kvB)})
			if err == nil {
				err = w.WriteAt("other", make([]byte, 4), 0)
			}
			if err == nil {
				err = w.Commit()
			}
			if err != nil {
				t.Fatal(err)
			}
		}, tensor: kvB, shard: "other.safetensors", words: "two shards claim different formats"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := tt.model(t)
			if tt.damage != nil {
				tt.damage(m)
			}
			dir := m.save()
			if tt.file != nil {
				tt.file(t, dir)
			}
			code, stdout, _ := runInspect(dir, "--verify", "-q")
			if code != cli.Corrupt {
				t.Errorf("exit code %d", code)
			}
			shard := tt.shard
			if shard == "" {
				shard = theShard
			}
			named := false
			for line := range strings.Lines(stdout) {
				named = named || strings.Contains(line, tt.tensor) && (shard == "-" || strings.Contains(line, shard))
			}
			if !named || !strings.Contains(stdout, tt.words) {
				t.Errorf("no line with %s and %s, or no %q in:\n%s", tt.tensor, shard, tt.words, stdout)
			}
			r := inspected(t, cli.Corrupt, dir, "--verify")
			data, err := json.Marshal(r)
			if err != nil || !strings.Contains(string(data), tt.tensor) {
				t.Errorf("JSON without the tensor: %v", err)
			}
		})
	}
}

// TestSoundModelsPass is what TestDamage starts from.
func TestSoundModelsPass(t *testing.T) {
	for _, make := range []func(*testing.T) *model{every(format.Int4Grouped, 64), every(format.Int4Grouped, 48), every(format.Int8Row, 0), every(format.FP8, 0), every(format.F16, 0), odd(format.Int4Row), odd(format.Int2Row), odd(format.Int3G64)} {
		m := make(t)
		if code, stdout, stderr := runInspect(m.save(), "--verify", "-q"); code != 0 {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
	}
}

func cutFile(n int64) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		path := filepath.Join(dir, theShard)
		st, err := os.Stat(path)
		if err == nil {
			err = os.Truncate(path, st.Size()-n)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// second writes kv_b of layer 0 into another shard: whole beside the first, or
// its scales alone, with an index that takes them.
func second(whole bool) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		o := &model{t: t, stamps: map[string]format.Spec{}}
		o.put(kvB, format.Spec{Format: format.Int8Row, Rows: 96, Cols: 128}, nil, make([]float32, 96*128))
		o.write(filepath.Join(dir, "second.safetensors"), false, func(name string) bool { return whole || name != kvB })
		if whole {
			return
		}
		data, err := json.Marshal(map[string]any{"weight_map": map[string]string{kvB + ".qs": "second.safetensors"}})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// rewriteHeader changes a shard's header and leaves its data as they are.
func rewriteHeader(t *testing.T, path string, change func(h map[string]any)) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(data)
	var h map[string]any
	if err := json.Unmarshal(data[8:8+n], &h); err != nil {
		t.Fatal(err)
	}
	change(h)
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	if err := os.WriteFile(path, append(append(out, text...), data[8+n:]...), 0o644); err != nil {
		t.Fatal(err)
	}
}

func moveTensor(h map[string]any, name string, by float64) {
	entry := h[name].(map[string]any)
	var moved []int64
	for _, x := range entry["data_offsets"].([]any) {
		moved = append(moved, int64(x.(float64)+by))
	}
	entry["data_offsets"] = moved
}

// TestDamagedMTPBlockLoads: only drafts need the block.
func TestDamagedMTPBlockLoads(t *testing.T) {
	m := synthesise(t, small(), in(format.BF16, 0))
	m.tensors[m.index(ehProj)].Shape = []int{128, 64}
	dir := m.save()
	r := inspected(t, 4, dir)
	if r.Verdict != "loadable" || len(r.Problems) != 0 || r.MTP.State != "damaged" || len(r.MTP.Wrong) != 1 || r.Completeness.Wrong != 1 || r.Completeness.Complete != "0-1" {
		t.Errorf("%+v %+v", r.MTP, r.Completeness)
	}
	_, stdout, stderr := runInspect(dir)
	holds(t, stdout, "loadable, MTP block damaged", "run works without it and its drafts, but it makes the exit code of inspect 4", ehProj+": shape (found [128 64]")
	holds(t, stderr, "loadable, but the MTP block is damaged")
	snap, err := format.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snap.Close() }()
	var wants []quantize.Want
	for _, w := range configOf(t, m).Arch.Tensors(configOf(t, m)) {
		if !w.MTP {
			wants = append(wants, w)
		}
	}
	if c, problems := quantize.TakeCensus(snap, wants); len(problems) > 0 || len(c.Missing) > 0 {
		t.Errorf("%v %v", problems, c.Missing)
	}
}
