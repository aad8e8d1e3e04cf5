package metal

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// oracleIDs are the prompt of a reference file.
func oracleIDs(t testing.TB, name string) (ids []int32) {
	t.Helper()
	s, err := format.OpenShard(fixtures.Path(t, name+".oracle.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	i := slices.IndexFunc(s.Tensors, func(t *format.Tensor) bool { return t.Name == "input_ids" })
	raw, err := s.Bytes(s.Tensors[i])
	if err != nil {
		t.Fatal(err)
	}
	for ; len(raw) > 0; raw = raw[4:] {
		ids = append(ids, int32(binary.LittleEndian.Uint32(raw)))
	}
	return ids
}

// convert makes a container of a checkpoint.
func convert(t testing.TB, source string, flags quantize.Flags) string {
	t.Helper()
	snap, err := format.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snap.Close() }()
	data, err := snap.ReadJSONFile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	c, err := runtime.ReadConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	recipe, err := quantize.RecipeFor("balanced")
	if err != nil {
		t.Fatal(err)
	}
	if recipe, err = recipe.With(flags); err != nil {
		t.Fatal(err)
	}
	plan, err := quantize.NewPlan(snap, c.Arch.Tensors(c), recipe, quantize.PlanOptions{AllowAmbiguous: true, AllowBigger: true})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "out")
	if _, err := quantize.Execute(context.Background(), plan, dir, quantize.ExecuteOptions{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func load(t testing.TB, dir string, be runtime.Backend) *runtime.Model {
	t.Helper()
	m, err := runtime.Load(dir, be)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func newBackend(t testing.TB, d Device, disable ...string) *Backend {
	t.Helper()
	b, err := New(Options{Device: d, Threads: 1, Disable: disable})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// logits runs a prompt in chunks, then decodes the rest token by token. The
// logits after every token of the prompt are kept where all is set, otherwise
// those after its last.
func logits(t testing.TB, m *runtime.Model, ids []int32, prompt, chunk int, all bool) (rows [][]float32) {
	t.Helper()
	s, err := m.NewSession(len(ids), chunk)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(_ int, l []float32) error {
		rows = append(rows, slices.Clone(l))
		return nil
	}
	each := keep
	if !all {
		each = nil
	}
	if err := s.Append(context.Background(), ids[:prompt], each); err != nil {
		t.Fatal(err)
	}
	if !all {
		_ = keep(0, s.Logits())
	}
	for i := prompt; i < len(ids); i++ {
		if err := s.Append(context.Background(), ids[i:i+1], nil); err != nil {
			t.Fatal(err)
		}
		_ = keep(0, s.Logits())
	}
	return rows
}

func compare(t testing.TB, name string, got, want [][]float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d rows of logits, want %d", name, len(got), len(want))
		return
	}
	for i := range want {
		for j := range want[i] {
			if math.Float32bits(got[i][j]) != math.Float32bits(want[i][j]) {
				t.Errorf("%s: row %d, token %d: %x, on the CPU %x", name, i, j, math.Float32bits(got[i][j]), math.Float32bits(want[i][j]))
				return
			}
		}
	}
}

// onlyGPU fails if anything ran on the CPU.
func onlyGPU(t testing.TB, b *Backend) {
	t.Helper()
	var n int64
	for _, c := range b.Counts() {
		n += c.GPU
		if c.CPU > 0 {
			t.Errorf("%+v", c)
		}
	}
	if n == 0 {
		t.Error("nothing ran on the device")
	}
}

// TestOraclesBitForBit: prefill whole and chunked and decode give the CPU's bits.
func TestOraclesBitForBit(t *testing.T) { gpus(t, testOraclesBitForBit) }

func testOraclesBitForBit(t *testing.T, open func() Device) {
	for _, name := range []string{"glm_moe_dsa", "glm_moe_dsa_dense_attention", "glm_moe_dsa_fp8"} {
		t.Run(name, func(t *testing.T) {
			ids := oracleIDs(t, name)
			for len(ids) < 72 {
				ids = append(ids, ids[len(ids)%5])
			}
			ids = ids[:72]
			dir := fixtures.Path(t, name)
			want := logits(t, load(t, dir, runtime.NewCPU(1)), ids, 48, 48, true)
			b := newBackend(t, open())
			m := load(t, dir, b)
			for _, chunk := range []int{48, 7} {
				compare(t, fmt.Sprint("chunk ", chunk), logits(t, m, ids, 48, chunk, true), want)
			}
			onlyGPU(t, b)
			if n := b.Memory(); n.Wrapped+n.Copied == 0 || n.Resident != b.limits.Residency {
				t.Errorf("memory %+v", n)
			}
		})
	}
}

// TestTinyGLMBitForBit: the trained model in every format.
func TestTinyGLMBitForBit(t *testing.T) { gpus(t, testTinyGLMBitForBit) }

func testTinyGLMBitForBit(t *testing.T, open func() Device) {
	source := fixtures.TinyGLMDir(t)
	ids := oracleIDs(t, "tiny-glm")[:64]
	dirs := map[string]string{"bf16": source}
	for _, f := range []string{"int8-row", "int4-row", "int4-grouped/64", "int4-grouped/128", "int3-g64", "fp8-e4m3-b128"} {
		dirs[f] = convert(t, source, quantize.Flags{Format: f})
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			want := logits(t, load(t, dir, runtime.NewCPU(1)), ids, 40, 40, false)
			b := newBackend(t, open())
			compare(t, name, logits(t, load(t, dir, b), ids, 40, 40, false), want)
			onlyGPU(t, b)
		})
	}
}

// TestDraftsBitForBit: the multi-token-prediction block runs on the device, and
// what is generated with drafts there is what the CPU says without.
func TestDraftsBitForBit(t *testing.T) { gpus(t, testDraftsBitForBit) }

func testDraftsBitForBit(t *testing.T, open func() Device) {
	dir := convert(t, fixtures.TinyGLMDir(t), quantize.Flags{})
	ids := oracleIDs(t, "tiny-glm")[:24]
	generate := func(m *runtime.Model, draft int) (rows [][]float32, stats runtime.DraftStats) {
		s, err := m.NewSession(64, 0)
		if err == nil {
			err = s.Draft(runtime.Drafting{Tokens: draft, Always: true})
		}
		if err != nil {
			t.Fatal(err)
		}
		greedy, err := runtime.NewSampler(runtime.SamplerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Generate(context.Background(), ids, runtime.Generation{Max: 20, Sampler: greedy, Each: func(_ int32, l []float32) error {
			rows = append(rows, slices.Clone(l))
			return nil
		}}); err != nil {
			t.Fatal(err)
		}
		return rows, s.Drafts()
	}
	cpu := load(t, dir, runtime.NewCPU(1))
	want, _ := generate(cpu, 0)
	_, drafts := generate(cpu, 2)
	b := newBackend(t, open())
	got, stats := generate(load(t, dir, b), 2)
	compare(t, "drafts", got, want)
	if stats != drafts || stats.Accepted == 0 {
		t.Errorf("%+v, on the CPU %+v", stats, drafts)
	}
	onlyGPU(t, b)
}
