//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// TestSchedules: no order of threads, threadgroups and dispatches that the
// barriers allow makes a difference, and the checker finds nothing.
func TestSchedules(t *testing.T) {
	dir := convert(t, fixtures.Path(t, "glm_moe_dsa"), quantize.Flags{Format: "int4-grouped/64"})
	ids := oracleIDs(t, "glm_moe_dsa")[:24]
	want := logits(t, load(t, dir, runtime.NewCPU(1)), ids, 18, 18, true)
	for seed := range uint64(4) {
		b := newBackend(t, emulator(t, EmulatorOptions{Check: true, Seed: seed}))
		compare(t, fmt.Sprint("seed ", seed), logits(t, load(t, dir, b), ids, 18, 18, true), want)
		onlyGPU(t, b)
	}
}

// TestSwitchesChangeNoBit: what is switched off, or missing on the device, goes
// to the CPU with its reason; every bit stays.
func TestSwitchesChangeNoBit(t *testing.T) {
	dir := convert(t, fixtures.Path(t, "glm_moe_dsa"), quantize.Flags{Format: "int8-row"})
	ids := oracleIDs(t, "glm_moe_dsa")[:30]
	want := logits(t, load(t, dir, runtime.NewCPU(1)), ids, 24, 24, true)
	split := emulatorLimits
	split.Unified = false // buffers are copied to the CPU and back
	plain := emulatorLimits
	plain.SIMD, plain.Residency = false, false
	small := emulatorLimits
	small.Unified, small.Memory = false, 1 // no room for weights
	for _, c := range []struct {
		name    string
		limits  *Limits
		disable []string
		why     string // of all that ran on the CPU
		resides bool
	}{
		{name: "all", resides: true},
		{name: "discrete", limits: &split, resides: true},
		{name: "concurrency", disable: []string{"concurrency"}, resides: true},
		{name: "residency", disable: []string{"residency"}},
		{name: "gpu-prefill", disable: []string{"gpu-prefill"}, why: "switched off: gpu-prefill", resides: true},
		{name: "fused-attention", disable: []string{"fused-attention"}, why: "switched off: fused-attention", resides: true},
		{name: "gpu-experts", disable: []string{"gpu-experts"}, why: "switched off: gpu-experts", resides: true},
		{name: "gpu-experts, discrete", limits: &split, disable: []string{"gpu-experts", "fused-attention"}, why: "switched off", resides: true},
		{name: "no simdgroups", limits: &plain, why: "simdgroups"},
		{name: "no room", limits: &small, why: "no room on the device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBackend(t, emulator(t, EmulatorOptions{Limits: c.limits}), c.disable...)
			m := load(t, dir, b)
			for _, chunk := range []int{24, 5} {
				compare(t, c.name, logits(t, m, ids, 24, chunk, true), want)
			}
			if c.why == "" {
				onlyGPU(t, b)
			}
			var cpu int64
			for _, n := range b.Counts() {
				cpu += n.CPU
				if n.CPU > 0 && !strings.Contains(n.Why, c.why) {
					t.Errorf("%+v", n)
				}
			}
			if (cpu > 0) != (c.why != "") || b.Memory().Resident != c.resides {
				t.Errorf("%d on the CPU, memory %+v", cpu, b.Memory())
			}
		})
	}
}

// TestSmallPieces: passes, products and scores cut into small pieces.
func TestSmallPieces(t *testing.T) {
	dir := convert(t, fixtures.Path(t, "glm_moe_dsa"), quantize.Flags{Format: "int3-g64"})
	ids := oracleIDs(t, "glm_moe_dsa")[:30]
	want := logits(t, load(t, dir, runtime.NewCPU(1)), ids, 24, 24, true)
	for _, disable := range [][]string{nil, {"gpu-experts", "fused-attention"}} {
		b := newBackend(t, emulator(t, EmulatorOptions{}), disable...)
		b.table = bounds{batch: 10, outputs: 500, scores: 200}
		compare(t, fmt.Sprint(disable), logits(t, load(t, dir, b), ids, 24, 24, true), want)
	}
}

// TestNoAllocationPerToken: encoding a decode step of a warm session allocates nothing.
func TestNoAllocationPerToken(t *testing.T) {
	dir := fixtures.Path(t, "glm_moe_dsa")
	b := newBackend(t, &silent{Device: emulator(t, EmulatorOptions{})})
	s, err := load(t, dir, b).NewSession(512, 0)
	if err != nil {
		t.Fatal(err)
	}
	token := []int32{7}
	step := func() {
		if err := s.Append(context.Background(), token, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Append(context.Background(), make([]int32, 300), nil); err != nil {
		t.Fatal(err)
	}
	step()
	if n := testing.AllocsPerRun(50, step); n != 0 {
		t.Errorf("%v allocations a token", n)
	}
	if n := b.Encoded(); n.CommandBuffers > 120 {
		t.Errorf("%+v: more than two command buffers a token", n)
	}
}

// silent is a device whose command buffers do nothing.
type (
	silent         struct{ Device }
	silentQueue    struct{ Queue }
	silentCommands struct{}
)

func (d *silent) NewQueue() (Queue, error) {
	q, err := d.Device.NewQueue()
	return &silentQueue{q}, err
}

func (*silentQueue) CommandBuffer() CommandBuffer { return silentCommands{} }

func (silentCommands) Encoder(bool) Encoder          { return silentCommands{} }
func (silentCommands) Commit()                       {}
func (silentCommands) Wait() error                   { return nil }
func (silentCommands) Times() Times                  { return Times{} }
func (silentCommands) SetPipeline(Pipeline)          {}
func (silentCommands) SetBuffer(int, Buffer, int)    {}
func (silentCommands) SetBytes(int, []byte)          {}
func (silentCommands) SetThreadgroupMemory(_, _ int) {}
func (silentCommands) Use(...Buffer)                 {}
func (silentCommands) Dispatch(_, _ Size)            {}
func (silentCommands) Barrier()                      {}
func (silentCommands) End()                          {}
