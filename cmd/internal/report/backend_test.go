//go:build linux && (amd64 || arm64) && !nogpu

package report

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/metal"
	"hawkmoth/runtime"
)

// tight is a device whose buffers hold little, so that some weights do not
// reach it.
type tight struct {
	metal.Device
	bytes int
}

func (d tight) Limits() metal.Limits {
	l := d.Device.Limits()
	l.MaxBuffer = d.bytes
	return l
}

// TestPredictedIsCounted runs a model on the emulated GPU and compares what was
// counted, layer by layer and operation by operation, with the prediction.
func TestPredictedIsCounted(t *testing.T) {
	for _, tt := range []struct {
		fixture string
		bytes   int // of the largest buffer
		off     int // operations that stay on the CPU
	}{{"tiny-glm-g64", 1 << 40, 0}, {"tiny-glm-g64", 400_000, 2}, {"glm_moe_dsa", 1 << 40, 0}} {
		t.Run(fmt.Sprint(tt.fixture, " ", tt.bytes), func(t *testing.T) {
			device, err := metal.OpenEmulator(metal.EmulatorOptions{})
			if errors.Is(err, metal.ErrNoDevice) {
				t.Skipf("SKIPPED: %v", err)
			} else if err != nil {
				t.Fatal(err)
			}
			d := tight{device, tt.bytes}
			be, err := metal.New(metal.Options{Device: d, Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			dir := fixtures.Path(t, tt.fixture)
			m, err := runtime.Load(dir, be)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = m.Close() }()
			s, err := m.NewSession(32, 4)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Sync(t.Context(), []int32{1, 2, 3}); err != nil {
				t.Fatal(err)
			}
			snap, err := format.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = snap.Close() }()
			r, err := Build(snap)
			if err != nil {
				t.Fatal(err)
			}
			predicted := map[string]bool{} // layer, operation → on the GPU
			for _, p := range r.placeGPU("emulator", d.Limits()).Paths {
				for layer, state := range p.layers {
					predicted[fmt.Sprint(layer, " ", opsOf(t, p.Path))] = state == onGPU
				}
			}
			counted := map[string]bool{}
			for _, c := range be.Counts() {
				key := fmt.Sprint(c.Layer, " ", c.Op)
				on, seen := counted[key]
				counted[key] = (on || !seen) && c.CPU == 0
			}
			off := 0
			for key, on := range predicted {
				got, ok := counted[key]
				if !ok || got != on {
					t.Errorf("%s: predicted on the GPU %v, counted %v (%v)", key, on, got, ok)
				}
				if !on {
					off++
				}
			}
			if off != tt.off || len(predicted) < 10 {
				t.Errorf("%d of %d operations off the GPU, want %d", off, len(predicted), tt.off)
			}
		})
	}
}

// opsOf is the operation that counters call what a path is about.
func opsOf(t *testing.T, path string) string {
	for _, w := range ways {
		if w.path == path {
			return w.ops[0].String()
		}
	}
	t.Fatalf("no way %q", path)
	return ""
}

// TestBackendPrediction: every format that run reads has its kernels, others
// come with a cure that the same function accepts.
func TestBackendPrediction(t *testing.T) {
	snap, err := format.Open(fixtures.Path(t, "tiny-glm-g64"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snap.Close() }()
	r, err := Build(snap)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.census.Found {
		if f := &r.census.Found[i]; strings.Contains(f.Name, "layers.3.self_attn.kv_b_proj") {
			f.Spec = format.Spec{Format: format.E8, Rows: f.Spec.Rows, Cols: f.Spec.Cols}
		}
	}
	for _, name := range Backends {
		if err := r.AddBackend(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range r.Placements[:2] {
		a := p.Paths[3]
		if a.Path != "attention" || a.GPU != "0-2,4-5" || a.CPU != "3" || len(a.Reasons) != 1 {
			t.Fatalf("%+v", a)
		}
		if w := a.Reasons[0]; w.Format != "e8-iq3-lattice" || !strings.Contains(w.Why, "no attention kernel for this format") || !strings.HasSuffix(w.Cure, "--tensors kv_b_proj --format int4-grouped --group-size 64 --from CHECKPOINT") {
			t.Errorf("%+v", w)
		}
	}
	if p := r.Placements[2]; p.Paths[3].CPU != "0-5" || p.Paths[0].CPU != outside || p.Paths[2].CPU != "0-5, "+outside || len(p.Paths[3].Reasons) != 0 {
		t.Errorf("%+v", p)
	}
	if err := r.AddBackend("abacus"); !errors.Is(err, format.ErrUsage) {
		t.Error(err)
	}
}
