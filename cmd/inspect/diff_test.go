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

	"hawkmoth/cmd/internal/report"
	"hawkmoth/format"
)

func diffed(t *testing.T, wanted int, args ...string) *report.Diff {
	t.Helper()
	code, stdout, stderr := runInspect(append(append([]string{"diff"}, args...), "--json")...)
	if code != wanted {
		t.Errorf("exit code %d, want %d\n%s", code, wanted, stderr)
	}
	d := &report.Diff{}
	if err := json.Unmarshal([]byte(stdout), d); err != nil {
		t.Fatalf("%v in %.200s", err, stdout)
	}
	if strings.Contains(stdout, ":null") {
		t.Errorf("null in %s", stdout)
	}
	return d
}

func TestDiff(t *testing.T) {
	base := func(change func(m *model)) string {
		m := synthesise(t, small(), in(format.Int8Row, 0))
		if change != nil {
			change(m)
		}
		return m.save()
	}
	a := base(nil)
	type want struct {
		code int
		what map[string]string // by tensor
		same int
	}
	const tensors = 86
	for _, tt := range []struct {
		name    string
		change  func(m *model)
		headers want
		values  want
	}{
		{"equal", nil, want{0, nil, tensors}, want{0, nil, tensors}},
		{"another format", func(m *model) {
			m.put(kvB, format.Spec{Format: format.Int4Grouped, Rows: 96, Cols: 128, Group: 64}, nil, make([]float32, 96*128))
		}, want{1, map[string]string{kvB: "format"}, tensors - 1}, want{1, map[string]string{kvB: "format"}, tensors - 1}},
		{"another value", func(m *model) { m.data(kvB)[7] ^= 64 }, want{0, nil, tensors}, want{1, map[string]string{kvB: "values"}, tensors - 1}},
		{"another scale", func(m *model) { m.data(kvB + ".qs")[2] ^= 64 }, want{0, nil, tensors}, want{1, map[string]string{kvB: "values"}, tensors - 1}},
		{"a tensor less, a tensor more", func(m *model) {
			m.drop(func(name string) bool { return name == norm0 })
			m.set("stranger", format.DTypeF32, []int{1}, make([]byte, 4))
		}, want{1, map[string]string{norm0: "only in A", "stranger": "only in B"}, tensors - 1}, want{1, map[string]string{norm0: "only in A", "stranger": "only in B"}, tensors - 1}},
		{"not a number", func(m *model) {
			binary.LittleEndian.PutUint32(m.data(norm0), math.Float32bits(float32(math.NaN())))
		}, want{0, nil, tensors}, want{1, map[string]string{norm0: "values"}, tensors - 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := base(tt.change)
			for _, x := range []struct {
				args []string
				want
			}{{[]string{a, b}, tt.headers}, {[]string{a, b, "--values"}, tt.values}} {
				d := diffed(t, x.code, x.args...)
				got := map[string]string{}
				for _, y := range d.Tensors {
					got[y.Name] = y.What
				}
				if fmt.Sprint(got) != fmt.Sprint(x.what) && len(got)+len(x.what) > 0 || d.Same != x.same || d.Equal != (x.code == 0) || d.Values != (len(x.args) == 3) {
					t.Errorf("%v: %v, %d same of %d; want %v, %d", x.args[2:], got, d.Same, d.Compared, x.what, x.same)
				}
				code, stdout, stderr := runInspect(append([]string{"diff", "-q"}, x.args...)...)
				if code != x.code || (stderr != "") != (code != 0) || strings.Contains(stdout, "\nequal in") != (code == 0) {
					t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
				}
				for name, what := range x.what {
					holds(t, stdout, name, what)
				}
			}
		})
	}
}

func TestDiffOfShapesAndConfig(t *testing.T) {
	config := small()
	config["vocab_size"] = 48
	a, b := synthesise(t, small(), in(format.BF16, 0)).save(), synthesise(t, config, in(format.BF16, 0)).save()
	d := diffed(t, 1, a, b, "--values")
	if fmt.Sprint(d.Config) != "[vocab_size]" || len(d.Tensors) != 2 || d.Tensors[0].What != "shape" || fmt.Sprint(d.Tensors[0].ShapeA, d.Tensors[0].ShapeB) != "[40 64] [48 64]" {
		t.Errorf("%+v", d)
	}
	_, stdout, stderr := runInspect("diff", a, b)
	holds(t, stdout, "config.json differs in vocab_size", "[40,64]", "[48,64]")
	holds(t, stderr, "differ: 2 tensors, 1 key of config.json")
}

// TestDiffMeasuresWhatQuantisingCosts compares a checkpoint with its container.
func TestDiffMeasuresWhatQuantisingCosts(t *testing.T) {
	a := synthesise(t, small(), in(format.F32, 0)).save()
	b := synthesise(t, small(), in(format.Int4Grouped, 64)).save()
	d := diffed(t, 1, a, b, "--values")
	for _, x := range d.Tensors {
		if x.What != "format" || x.FormatA != "f32" || x.Error < 0.02 || x.Error > 0.2 || x.Differ == 0 || x.Largest == 0 || x.BytesB >= x.BytesA {
			t.Errorf("%+v", x)
		}
	}
	if len(d.Tensors) < 50 || d.Same == 0 {
		t.Errorf("%d differ, %d same", len(d.Tensors), d.Same)
	}
	// --against says the same of each tensor.
	r := inspected(t, 0, b, "--against", a, "--tensors", "--layers")
	byName := map[string]float64{}
	for _, x := range d.Tensors {
		byName[x.Name] = x.Error
	}
	for _, x := range r.Tensors {
		if x.Error == nil || *x.Error != byName[x.Name] {
			t.Errorf("%s: %v, want %v", x.Name, x.Error, byName[x.Name])
		}
	}
	for _, l := range r.Layers {
		for _, c := range l.Roles {
			if len(c.Formats) > 0 && (c.Error == nil || c.Worst == nil || *c.Worst < *c.Error*0.9) {
				t.Errorf("layer %d %s: %v %v", l.Layer, c.Role, c.Error, c.Worst)
			}
		}
	}
	if x := r.Against; x.Tensors != len(r.Tensors) || len(x.Missing)+len(x.Unreadable) > 0 || len(x.Roles) == 0 {
		t.Errorf("%+v", x)
	}
	_, stdout, _ := runInspect(b, "--against", a, "-q")
	holds(t, stdout, "relative error against "+a, "kv_b", "worst tensor")
}

func TestAgainstAnotherModel(t *testing.T) {
	b := synthesise(t, small(), in(format.Int8Row, 0))
	other := t.TempDir()
	o := &model{t: t}
	o.set("x", format.DTypeF32, []int{1}, make([]byte, 4))
	o.write(filepath.Join(other, theShard), false, all)
	code, _, stderr := runInspect(b.save(), "--against", other)
	if code != 2 || !strings.Contains(stderr, "not a checkpoint of this model") {
		t.Errorf("%d %s", code, stderr)
	}
	part := synthesise(t, small(), in(format.BF16, 0))
	part.drop(func(name string) bool { return strings.HasPrefix(name, "model.layers.1.") })
	binary.LittleEndian.PutUint16(part.data(qA), 0x7fc0)
	r := inspected(t, 4, b.save(), "--against", part.save())
	if len(r.Against.Missing) == 0 || len(r.Against.Unreadable) != 1 || !strings.Contains(r.Against.Unreadable[0], qA) {
		t.Errorf("%+v", r.Against)
	}
	// Tensors of the same names and other shapes are another model's.
	config := small()
	config["vocab_size"], config["q_lora_rank"] = 48, 32
	wrong := synthesise(t, config, in(format.BF16, 0)).save()
	r = inspected(t, 4, b.save(), "--against", wrong)
	holds(t, strings.Join(r.Against.Differs, "\n"), "shape", "model.embed_tokens.weight", "[48 64]", "[40 64]")
	code, stdout, stderr := runInspect(b.save(), "--against", wrong)
	holds(t, stdout, "not the checkpoint of this model", "model.embed_tokens.weight")
	holds(t, stderr, "not the checkpoint of this model (found ", " tensors of other shapes")
	if code != 4 || len(r.Against.Missing) > 0 || r.Against.Tensors == 0 {
		t.Errorf("%d %+v", code, r.Against)
	}
}

func TestDiffOfPlainTensors(t *testing.T) {
	write := func(x float32, n byte) string {
		m := &model{t: t}
		m.set("f", format.DTypeF32, []int{2}, binary.LittleEndian.AppendUint32(make([]byte, 4), math.Float32bits(x)))
		m.set("i", "I8", []int{4}, []byte{1, 2, 3, n})
		dir := t.TempDir()
		m.write(filepath.Join(dir, theShard), false, all)
		return dir
	}
	a := write(2, 4)
	if d := diffed(t, 0, a, write(2, 4), "--values"); d.Compared != 2 || len(d.Config) > 0 {
		t.Errorf("%+v", d)
	}
	d := diffed(t, 1, a, write(1, 5), "--values")
	if len(d.Tensors) != 2 || d.Tensors[0].Error != 0.5 || d.Tensors[1].What != "values" {
		t.Errorf("%+v", d)
	}
	if err := os.WriteFile(filepath.Join(a, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if d := diffed(t, 1, a, write(2, 4)); fmt.Sprint(d.Config) != "[config.json]" {
		t.Errorf("%+v", d)
	}
}

func TestDiffUsage(t *testing.T) {
	dir := synthesise(t, small(), in(format.BF16, 0)).save()
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, theShard), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"diff"}, 2, "missing argument A"},
		{[]string{"diff", dir}, 2, "missing argument B"},
		{[]string{"diff", dir, dir, dir}, 2, "unexpected argument"},
		{[]string{"diff", dir, dir, "--value"}, 2, "did you mean --values?"},
		{[]string{"diff", dir, dir, "-t", "-1"}, 2, "must not be negative"},
		{[]string{"diff", dir, filepath.Join(dir, "nowhere")}, 1, "no such file"},
		{[]string{"diff", dir, damaged}, 4, "not a safetensors file"},
		{[]string{"diff", dir, filepath.Join(dir, theShard)}, 0, "equal in shape and format"},
	} {
		code, stdout, stderr := runInspect(tt.args...)
		if code != tt.code || !strings.Contains(stdout+stderr, tt.text) {
			t.Errorf("%v: %d %s%s, want %d %s", tt.args, code, stdout, stderr, tt.code, tt.text)
		}
	}
}
