package runtime

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/internal/fixtures/converted"
	"hawkmoth/quantize"
)

// oracle is a reference file: transformers' results for a checkpoint.
type oracle struct {
	t     *testing.T
	shard *format.Shard
}

func openOracle(t *testing.T, name string) *oracle {
	t.Helper()
	shard, err := format.OpenShard(fixtures.Path(t, name+".oracle.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shard.Close() })
	return &oracle{t, shard}
}

func (o *oracle) tensor(name string) *format.Tensor {
	for _, t := range o.shard.Tensors {
		if t.Name == name {
			return t
		}
	}
	return nil
}

func (o *oracle) floats(name string) []float32 {
	o.t.Helper()
	f, err := o.shard.Floats(o.tensor(name))
	if err != nil {
		o.t.Fatal(err)
	}
	return f
}

func (o *oracle) ids(name string) []int32 {
	o.t.Helper()
	raw, err := o.shard.Bytes(o.tensor(name))
	if err != nil {
		o.t.Fatal(err)
	}
	var ids []int32
	for ; len(raw) > 0; raw = raw[4:] {
		ids = append(ids, int32(binary.LittleEndian.Uint32(raw)))
	}
	return ids
}

func load(t *testing.T, dir string, threads int) *Model {
	t.Helper()
	m, err := Load(dir, NewCPU(threads))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func session(t *testing.T, m *Model, ctx, chunk int) *Session {
	t.Helper()
	s, err := m.NewSession(ctx, chunk)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// allLogits runs ids from an empty context and copies the logits of every position.
func allLogits(t *testing.T, s *Session, ids []int32) [][]float32 {
	t.Helper()
	var rows [][]float32
	s.Rewind(0)
	if err := s.Append(context.Background(), ids, func(_ int, l []float32) error {
		rows = append(rows, slices.Clone(l))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return rows
}

func argmax(l []float32) int32 {
	best := 0
	for i, v := range l {
		if v > l[best] {
			best = i
		}
	}
	return int32(best)
}

// continueGreedily holds ids against the reference's; a different token is
// allowed only where its margin is below 1e-3, and ends the comparison.
func continueGreedily(t *testing.T, s *Session, prompt, want []int32, margin []float32) {
	t.Helper()
	timeline := slices.Clone(prompt)
	for i, id := range want {
		logits, err := s.Sync(context.Background(), timeline)
		if err != nil {
			t.Fatal(err)
		}
		if got := argmax(logits); got != id {
			if margin[i] > 1e-3 {
				t.Errorf("greedy token %d is %d, the reference has %d by a margin of %g", i, got, id, margin[i])
			}
			return
		}
		timeline = append(timeline, id)
	}
}

func TestTinyGLM(t *testing.T) {
	var ref struct {
		NLL    float64 `json:"nll_8x256"`
		Greedy map[string]struct {
			Prompt []int32   `json:"prompt_ids"`
			IDs    []int32   `json:"ids"`
			Margin []float32 `json:"margin"`
			Text   string    `json:"text"`
		} `json:"greedy"`
	}
	data, err := os.ReadFile(fixtures.Path(t, "tiny-glm.oracle.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &ref); err != nil {
		t.Fatal(err)
	}
	m := load(t, fixtures.TinyGLMDir(t), 0)
	s := session(t, m, 256, 0)
	p, err := s.Score(context.Background(), openOracle(t, "tiny-glm").ids("input_ids"), 256, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("NLL %.6f, reference %.6f", p.NLL, ref.NLL)
	if p.Windows != 8 || math.Abs(p.NLL-ref.NLL) > 1e-4 {
		t.Errorf("NLL %v over %d windows, want %v over 8", p.NLL, p.Windows, ref.NLL)
	}
	if len(ref.Greedy) != 3 {
		t.Fatalf("%d greedy texts, want 3", len(ref.Greedy))
	}
	for text, g := range ref.Greedy {
		if got := m.Tokenizer.Encode(text); !slices.Equal(got, g.Prompt) {
			t.Errorf("%q encodes to %v, want %v", text, got, g.Prompt)
		}
		if got := m.Tokenizer.Decode(g.IDs); got != g.Text {
			t.Errorf("ids decode to %q, want %q", got, g.Text)
		}
		continueGreedily(t, s, g.Prompt, g.IDs, g.Margin)
		sure := slices.IndexFunc(g.Margin, func(m float32) bool { return m < 1e-3 })
		if sure < 0 {
			sure = len(g.IDs)
		}
		if len(g.IDs) != 64 || len(g.Margin) != 64 || sure == 0 {
			t.Errorf("%q: %d ids, %d margins, %d of them sure", text, len(g.IDs), len(g.Margin), sure)
		}
		if got := generated(t, s, g.Prompt, sure); !slices.Equal(got, g.IDs[:sure]) || m.Tokenizer.Decode(got) != m.Tokenizer.Decode(g.IDs[:sure]) {
			t.Errorf("%q is continued by %q, the reference has %q", text, m.Tokenizer.Decode(got), m.Tokenizer.Decode(g.IDs[:sure]))
		}
	}
}

// generated is a greedy continuation of n tokens.
func generated(t *testing.T, s *Session, prompt []int32, n int) (ids []int32) {
	t.Helper()
	sampler, err := NewSampler(SamplerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Generate(context.Background(), prompt, Generation{Max: n, Sampler: sampler, Each: func(id int32, _ []float32) error {
		ids = append(ids, id)
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	return ids
}

// convert makes a container of a fixture with one format for every matrix.
func convert(t *testing.T, source string, flags quantize.Flags) string {
	t.Helper()
	return converted.Container(t, source, func(config []byte) ([]quantize.Want, error) {
		c, err := ReadConfig(config)
		if err != nil {
			return nil, err
		}
		return c.Arch.Tensors(c), nil
	}, "balanced", flags)
}

// formats that the bit tests run: every one that convert writes.
func bitFormats() []format.Spec {
	var specs []format.Spec
	for _, in := range format.Formats() {
		switch {
		case in.ID == format.Int4Grouped:
			for _, gs := range []int{16, 48, 64, 128} {
				specs = append(specs, format.Spec{Format: in.ID, Group: gs})
			}
		case in.Write && in.Run:
			specs = append(specs, format.Spec{Format: in.ID})
		}
	}
	return specs
}

// TestSameBits: one prefill = single steps = any chunking, with 1, 2 and 7
// threads, for every format, over more positions than attention takes at a
// time. Both models have indexers; the second's select every position.
func TestSameBits(t *testing.T) {
	ids := make([]int32, 290)
	for i := range ids {
		ids[i] = int32(i * 131 % 320)
	}
	for _, tt := range []struct {
		model string
		ways  []struct{ threads, chunk int } // the first is compared with the others
	}{
		{"glm_moe_dsa", []struct{ threads, chunk int }{{1, len(ids)}, {1, 1}, {2, 3}, {2, 100}, {7, 1}, {7, DefaultChunk}, {7, len(ids)}}},
		{"glm_moe_dsa_dense_attention", []struct{ threads, chunk int }{{1, len(ids)}, {2, 1}, {7, 100}}},
	} {
		for _, spec := range bitFormats() {
			t.Run(tt.model+"/"+spec.Name(), func(t *testing.T) {
				dir := convert(t, fixtures.Path(t, tt.model), quantize.Flags{Format: spec.Name()})
				var want [][]float32
				for _, way := range tt.ways {
					got := allLogits(t, session(t, load(t, dir, way.threads), len(ids), way.chunk), ids)
					if want == nil {
						want = got
					}
					if at, ok := sameBits(got, want); !ok {
						t.Errorf("threads %d, chunk %d: logits differ at %s", way.threads, way.chunk, at)
					}
				}
			})
		}
	}
}

func sameBits(a, b [][]float32) (string, bool) {
	for i := range b {
		for j := range b[i] {
			if math.Float32bits(a[i][j]) != math.Float32bits(b[i][j]) {
				return fmt.Sprintf("position %d, token %d: %x, %x", i, j, math.Float32bits(a[i][j]), math.Float32bits(b[i][j])), false
			}
		}
	}
	return "", len(a) == len(b)
}

// TestSameBitsOfAll: the same for every architecture, as its checkpoint is and
// converted; a decode step allocates nothing. What was BF16 and is converted to
// BF16 gives the checkpoint's bits, fused experts included.
func TestSameBitsOfAll(t *testing.T) {
	for _, name := range oracles {
		var original [][]float32
		for _, spec := range []string{"", "bf16", "int4-grouped"} {
			t.Run(name+" "+spec, func(t *testing.T) {
				dir := fixtures.Path(t, name)
				if spec != "" {
					dir = convert(t, dir, quantize.Flags{Format: spec})
				}
				ids := openOracle(t, name).ids("input_ids")
				var want [][]float32
				for _, threads := range []int{1, 7} {
					m := load(t, dir, threads)
					for _, chunk := range []int{len(ids), 1, 7} {
						got := allLogits(t, session(t, m, len(ids), chunk), ids)
						if want == nil {
							want = got
						}
						if at, ok := sameBits(got, want); !ok {
							t.Errorf("threads %d, chunk %d: logits differ at %s", threads, chunk, at)
						}
					}
				}
				switch spec {
				case "":
					original = want
				case "bf16":
					if at, ok := sameBits(want, original); !ok && name != "glm_moe_dsa_fp8" {
						t.Errorf("the checkpoint's logits differ at %s", at)
					}
				}
				s := session(t, load(t, dir, 2), 200, 0)
				step := func() {
					if err := s.Append(context.Background(), ids[:1], nil); err != nil {
						t.Fatal(err)
					}
				}
				if step(); testing.AllocsPerRun(40, step) != 0 {
					t.Error("a token allocates")
				}
			})
		}
	}
}

// TestRewindAndPrefix: a timeline that was changed gives the bits of a fresh one.
func TestRewindAndPrefix(t *testing.T) {
	for _, name := range []string{"glm_moe_dsa", "gpt_oss", "qwen3_next"} {
		t.Run(name, func(t *testing.T) { rewindAndPrefix(t, name) })
	}
}

func rewindAndPrefix(t *testing.T, name string) {
	m := load(t, fixtures.Path(t, name), 2)
	ids := openOracle(t, name).ids("input_ids")
	s, fresh := session(t, m, 64, 8), session(t, m, 64, 8)
	changed := slices.Clone(ids)
	changed[20] = (changed[20] + 1) % 320
	for _, timeline := range [][]int32{ids, changed, ids[:10], ids[:10], changed[:30], ids} {
		got, err := s.Sync(context.Background(), timeline)
		if err != nil {
			t.Fatal(err)
		}
		rows := allLogits(t, fresh, timeline)
		if at, ok := sameBits([][]float32{got}, rows[len(rows)-1:]); !ok {
			t.Errorf("after %d tokens: %s", len(timeline), at)
		}
	}
}

// TestSameBitsAcrossChunks: few tokens over a cache of more than one chunk of
// positions take another way through attention than a prefill does.
func TestSameBitsAcrossChunks(t *testing.T) {
	for _, name := range []string{"glm_moe_dsa", "glm_moe_dsa_dense_attention", "glm4_moe", "gpt_oss", "qwen3_next"} {
		t.Run(name, func(t *testing.T) {
			ids := make([]int32, 600)
			for i := range ids {
				ids[i] = int32(i * 131 % 320)
			}
			ids = ids[:min(len(ids), 512)] // the model's limit
			m := load(t, fixtures.Path(t, name), 3)
			want := allLogits(t, session(t, m, len(ids), len(ids)), ids)
			for _, n := range []int{1, 3, 7} {
				s := session(t, m, len(ids), 0)
				from := 250
				if err := s.Append(context.Background(), ids[:from], nil); err != nil {
					t.Fatal(err)
				}
				for ; from+n < len(ids); from += n + 40 {
					var rows [][]float32
					if err := s.Append(context.Background(), ids[from:from+n], func(_ int, l []float32) error {
						rows = append(rows, slices.Clone(l))
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					if at, ok := sameBits(rows, want[from:from+n]); !ok {
						t.Fatalf("%d tokens from %d on: %s", n, from, at)
					}
					if err := s.Append(context.Background(), ids[from+n:min(from+n+40, len(ids))], nil); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// TestNoAllocationPerToken: a decode step of a warm session allocates nothing.
func TestNoAllocationPerToken(t *testing.T) {
	m := load(t, convert(t, fixtures.Path(t, "glm_moe_dsa"), quantize.Flags{}), 2)
	s := session(t, m, 512, 0)
	prompt := make([]int32, 300)
	token := []int32{7}
	step := func() {
		if err := s.Append(context.Background(), token, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Append(context.Background(), prompt, nil); err != nil {
		t.Fatal(err)
	}
	step()
	if n := testing.AllocsPerRun(50, step); n != 0 {
		t.Errorf("%v allocations a token", n)
	}
}

// TestClosedSessionFreesItsBuffers: what a session allocated is given back, and
// other sessions of the model go on.
func TestClosedSessionFreesItsBuffers(t *testing.T) {
	m := load(t, fixtures.Path(t, "glm_moe_dsa"), 1)
	live := func() (n int) {
		be := m.be.(*CPU)
		for i := range be.floats {
			if be.floats[i] != nil || be.ints[i] != nil {
				n++
			}
		}
		return n
	}
	keep := session(t, m, 16, 0)
	before := live()
	s := session(t, m, 16, 0)
	if live() <= before {
		t.Fatal("a session allocated nothing")
	}
	s.Close()
	s.Close()
	if n := live(); n != before {
		t.Errorf("%d buffers are left, %d before the session", n, before)
	}
	if _, err := keep.Sync(context.Background(), []int32{1, 2, 3}); err != nil {
		t.Error(err)
	}
}

// TestContextBeyondMemory: a cache that cannot be had is an error with both
// numbers, not the end of the process.
func TestContextBeyondMemory(t *testing.T) {
	if availableMemory() == 0 {
		t.Skip("SKIPPED: the system does not tell its memory")
	}
	m := load(t, fixtures.Path(t, "glm_moe_dsa"), 1)
	m.Config.MaxPositions = 1 << 40
	if _, err := m.NewSession(1<<40, 0); !errors.Is(err, format.ErrUsage) || !strings.Contains(err.Error(), "does not fit into memory") {
		t.Errorf("got %v", err)
	}
}
