//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"context"
	"fmt"
	"maps"
	"math"
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

// TestCheckedKernels: products, attention and experts of every format under the
// checker, in several schedules, also with memory that nothing has written.
func TestCheckedKernels(t *testing.T) {
	private := emulatorLimits
	private.Unified = false
	for seed := range uint64(4) {
		for _, s := range testSpecs() {
			w := newTwin(t, emulator(t, EmulatorOptions{Check: true, Seed: seed, Limits: &private}))
			for _, cols := range []int{96, 100} {
				s.Rows, s.Cols = 36, cols
				m := w.load(s)
				x, y := w.alloc(5, cols, runtime.Float), w.alloc(5, s.Rows, runtime.Float)
				op := func(a runtime.Weight) []runtime.Op {
					return []runtime.Op{runtime.MatMul{X: x.All(), W: []runtime.Weight{a}, Y: []runtime.View{y.All()}}}
				}
				w.run(s.String(), op(m.gpu), op(m.cpu), runtime.Batch{S: 5})
				w.run(s.String(), op(m.gpu), op(m.cpu), runtime.Batch{S: 1})

				s.Rows = 2 * (8 + 10)
				kvb := w.load(s)
				q, qr := w.alloc(3, 2*8, runtime.Float), w.alloc(3, 2*4, runtime.Float)
				cache, out := w.alloc(280, cols+4, runtime.Float), w.alloc(3, 2*10, runtime.Float)
				attend := func(a runtime.Weight) []runtime.Op {
					return []runtime.Op{runtime.MLA{Q: q.All(), QRope: qr.All(), Y: out.All(), Cache: cache, KVB: a, Heads: 2, QWidth: 8, Nope: 8, Rope: 4, Value: 10, KVLoRA: cols, Scale: 0.3}}
				}
				w.run(s.String(), attend(kvb.gpu), attend(kvb.cpu), runtime.Batch{S: 3, Pos: 277})

				gpu, cpu := make([]runtime.ExpertWeights, 3), make([]runtime.ExpertWeights, 3)
				for e := range gpu {
					in := s
					in.Rows = 32
					down := s
					down.Rows, down.Cols = cols, 32
					a, b, c := w.load(in), w.load(in), w.load(down)
					gpu[e], cpu[e] = runtime.ExpertWeights{Gate: a.gpu, Up: b.gpu, Down: c.gpu}, runtime.ExpertWeights{Gate: a.cpu, Up: b.cpu, Down: c.cpu}
				}
				ids, weights := w.alloc(5, 2, runtime.Int), w.alloc(5, 2, runtime.Float)
				z := w.alloc(5, cols, runtime.Float)
				for i := range w.mem[ids.ID] {
					w.mem[ids.ID][i] = math.Float32frombits(uint32(i%2 + i/4%2))
				}
				w.put(ids)
				moe := func(e []runtime.ExpertWeights) []runtime.Op {
					return []runtime.Op{runtime.Experts{X: x.All(), IDs: ids, Weights: weights.All(), Expert: e, Y: z.All()}}
				}
				w.run(s.String(), moe(gpu), moe(cpu), runtime.Batch{S: 5})
			}
		}
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
			switch n, err := b.NoRoom(); {
			case err != nil:
				t.Fatal(err)
			case (n != nil) != (c.name == "no room"):
				t.Errorf("no room: %+v", n)
			}
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

// TestFamiliesBitForBit: every architecture gives the CPU's bits on a device
// with memory of its own; what has no kernel runs on the CPU, as predicted.
func TestFamiliesBitForBit(t *testing.T) {
	for name, whole := range map[string]bool{"deepseek_v3": true, "deepseek_v32": true, "glm4_moe_lite": true, "glm4_moe": false, "llama": false, "qwen3": false,
		"qwen3_moe": false, "olmoe": false, "mixtral": false, "minimax_m2": false, "gpt_oss": false, "qwen3_next": false} {
		t.Run(name, func(t *testing.T) {
			ids, dir := oracleIDs(t, name)[:24], fixtures.Path(t, name)
			want := logits(t, load(t, dir, runtime.NewCPU(1)), ids, 20, 20, true)
			l := emulator(t, EmulatorOptions{}).Limits()
			l.Unified = false
			d := emulator(t, EmulatorOptions{Limits: &l})
			b := newBackend(t, d)
			m := load(t, dir, b)
			compare(t, name, logits(t, m, ids, 20, 7, true), want)
			predicted, counted := map[string]bool{}, map[string]bool{}
			for _, p := range Place(m.Config.Needs(), modelWants(m), l) {
				if p.Why != nil {
					predicted[p.Why.Error()] = true
				}
			}
			for _, c := range b.Counts() {
				if c.CPU > 0 {
					counted[c.Why] = true
				}
			}
			if !maps.Equal(predicted, counted) || (len(counted) == 0) != whole {
				t.Errorf("predicted %v, counted %v", predicted, counted)
			}
		})
	}
}
