package quantize

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"hawkmoth/format"
)

// converted plans, converts and verifies a checkpoint.
func converted(t *testing.T, snap *format.Snapshot, f Flags) (*Plan, string, *Verification) {
	t.Helper()
	p := planOf(t, snap, recipe(t, "balanced", f), PlanOptions{AllowBigger: true})
	out := outDir(t)
	execute(t, p, out, ExecuteOptions{})
	v, err := Verify(t.Context(), p, out, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p, out, v
}

// TestB2OutlierCostsLessInGroups: a row with one weight 50 times the others.
func TestB2OutlierCostsLessInGroups(t *testing.T) {
	w := ramp(4 * 256)
	for i := range 4 {
		w[i*256+17] = 50
	}
	snap := checkpoint(t, bf16Tensor("model.layers.0.mlp.up_proj.weight", []int{4, 256}, w))
	errors := map[string]float64{}
	for _, f := range []string{"int4-row", "int4-grouped/64", "int8-row", "bf16"} {
		_, _, v := converted(t, snap, Flags{Format: f})
		errors[f] = v.Roles[0].Error
		if v.Worst.Tensor != "model.layers.0.mlp.up_proj.weight" || v.Worst.Format != f || v.Worst.Error != v.Roles[0].Error {
			t.Errorf("%s: %+v", f, v)
		}
	}
	if errors["int4-row"] < 0.15 || errors["int4-grouped/64"] > 0.8*errors["int4-row"] || errors["int8-row"] > 0.5*errors["int4-grouped/64"] || errors["bf16"] != 0 {
		t.Errorf("errors %v", errors)
	}
}

// TestB3ZerosAreExact: no scale is zero, no error is 0/0.
func TestB3ZerosAreExact(t *testing.T) {
	w := make([]float32, 2*64)
	for i := range w[64:] {
		w[64+i] = float32(math.Copysign(0, -1))
	}
	snap := checkpoint(t, bf16Tensor("model.layers.0.mlp.up_proj.weight", []int{2, 64}, w))
	for _, c := range Codecs() {
		if _, _, v := converted(t, snap, Flags{Format: c.ID.String()}); v.Worst.Error != 0 || v.BelowFloor != 0 {
			t.Errorf("%s: %+v", c.ID, v)
		}
	}
}

// TestB4RowsBelowTheScaleFloorAreCounted: too small for any scale.
func TestB4RowsBelowTheScaleFloorAreCounted(t *testing.T) {
	w := ramp(4 * 64)
	for i := range 64 {
		w[64+i] *= 1e-9
		w[2*64+i] = 0
	}
	snap := checkpoint(t, bf16Tensor("model.layers.0.mlp.up_proj.weight", []int{4, 64}, w))
	for format, want := range map[string]int{"int4-row": 1, "int8-row": 1, "int2-row": 1, "int3-g64": 1, "int4-grouped/16": 1, "bf16": 0} {
		if _, _, v := converted(t, snap, Flags{Format: format}); v.BelowFloor != want {
			t.Errorf("%s: %d rows, want %d", format, v.BelowFloor, want)
		}
	}
}

// TestA8OtherFormatsThanPlannedAreFound in the headers, all of them.
func TestA8OtherFormatsThanPlannedAreFound(t *testing.T) {
	snap := checkpoint(t, matrix("model.layers.0.mlp.up_proj.weight", 8, 128), matrix("model.layers.1.mlp.up_proj.weight", 8, 128))
	_, out, _ := converted(t, snap, Flags{Format: "int8-row"})
	p := planOf(t, snap, recipe(t, "balanced", Flags{Format: "int4-grouped/64"}), PlanOptions{})
	_, err := Verify(t.Context(), p, out, 1, nil)
	wantError(t, err, format.ErrCorrupt, "model.layers.0.mlp.up_proj.weight: was not written as planned (found U8[1024], wanted U8[512])",
		"model.layers.1.mlp.up_proj.weight: has another format than planned (found int8-row[8,128], wanted int4-grouped/64[8,128])")
}

func TestVerifyFindsChangedBytes(t *testing.T) {
	snap := checkpoint(t, matrix("model.layers.0.mlp.up_proj.weight", 8, 128), bf16Tensor("model.norm.weight", []int{128}, ramp(128)))
	p, out, before := converted(t, snap, Flags{Format: "int8-row"})
	path := filepath.Join(out, "out-00000.safetensors")
	flip := func(name string) {
		t.Helper()
		s := open(t, out)
		at := s.Tensor(name).Offset + 3
		data, err := os.ReadFile(path)
		if err == nil {
			data[at] ^= 0x41
			err = os.WriteFile(path, bytes.Clone(data), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	codes, scales := "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight.qs"
	for _, tc := range []struct{ name, says string }{{codes, "up_proj.weight: codes of rows 0 to 7 are not what the source gives"},
		{scales, "up_proj.weight: scales of rows 0 to 7"}, {"model.norm.weight", "model.norm.weight: values of rows 0 to 0"}} {
		flip(tc.name)
		_, err := Verify(t.Context(), p, out, 1, nil)
		wantError(t, err, format.ErrCorrupt, tc.says)
		flip(tc.name)
	}
	if after, err := Verify(t.Context(), p, out, 1, nil); err != nil || after.Worst != before.Worst {
		t.Errorf("undamaged again: %v, %v before and %v after", err, before.Worst, after)
	}
}

// TestB5ValuesBeyondAFormatAreRefused: a finite weight must not become infinite.
func TestB5ValuesBeyondAFormatAreRefused(t *testing.T) {
	for _, tc := range []struct {
		format string
		value  float32
		ok     bool
	}{{"f16", 65519, true}, {"f16", 65520, false}, {"f16", -1e5, false}, {"bf16", 3.38e38, true}, {"f32", 1e38, true}, {"bf16", 3.4e38, false}, {"int8-row", 3.4e38, true}} {
		w := make([]float32, 8*128)
		w[3*128+5] = tc.value
		name := "model.layers.0.mlp.up_proj.weight"
		raw := make([]byte, 4*len(w))
		F32ToBytes(raw, w)
		snap := checkpoint(t, testTensor{name, format.DTypeF32, []int{8, 128}, raw})
		p := planOf(t, snap, recipe(t, "balanced", Flags{Format: tc.format}), PlanOptions{AllowBigger: true})
		out := outDir(t)
		_, err := Execute(t.Context(), p, out, ExecuteOptions{})
		if tc.ok {
			if err != nil {
				t.Errorf("%s of %v: %v", tc.format, tc.value, err)
			}
			continue
		}
		wantError(t, err, format.ErrUnsupported, name, "row 3, column 5")
		if _, err := os.Stat(filepath.Join(out, "out-00000.safetensors")); err == nil {
			t.Errorf("%s of %v: a shard stands under its final name", tc.format, tc.value)
		}
	}
}
