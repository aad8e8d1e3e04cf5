package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
)

// drafting is a session of a model with an MTP block that always drafts.
func drafting(t *testing.T, m *Model, ctx, chunk, n int) *Session {
	t.Helper()
	s := session(t, m, ctx, chunk)
	if err := s.Draft(Drafting{Tokens: n, Always: true}); err != nil {
		t.Fatal(err)
	}
	return s
}

// spoken is what a generation says, with the logits of every token.
type spoken struct {
	ids    []int32
	logits [][]float32
	ended  Ended
}

func speak(t *testing.T, s *Session, prompt []int32, max int, opt SamplerOptions, stops ...int32) (r spoken) {
	t.Helper()
	sampler, err := NewSampler(opt)
	if err != nil {
		t.Fatal(err)
	}
	r.ended, err = s.Generate(context.Background(), prompt, Generation{Max: max, Sampler: sampler, Stops: stops, Each: func(id int32, l []float32) error {
		r.ids, r.logits = append(r.ids, id), append(r.logits, slices.Clone(l))
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r spoken) same(t *testing.T, want spoken) {
	t.Helper()
	if !slices.Equal(r.ids, want.ids) || r.ended != want.ended {
		t.Errorf("%v, %s\nwant %v, %s", r.ids, r.ended, want.ids, want.ended)
	} else if at, ok := sameBits(r.logits, want.logits); !ok {
		t.Errorf("logits differ at %s", at)
	}
}

// trained are the models whose MTP block was trained with them, and the share
// of positions of the reference's first 4 windows at which its argmax is the
// model's next argmax: shared/tools/mtp_check.py, in numpy on bf16 weights.
var trained = []struct {
	name       string
	acceptance float64
}{{"tiny-glm", 0.622}, {"small-glm", 0.580}}

func trainedDir(t *testing.T, name string) string {
	t.Helper()
	if name == "tiny-glm" {
		return fixtures.TinyGLMDir(t)
	}
	return fixtures.Shared(t, "models/"+name)
}

// TestDraftsChangeNoBit: what is said with drafts has the ids and the logits of
// what is said without, greedily and sampled, wherever it ends.
func TestDraftsChangeNoBit(t *testing.T) {
	for _, tt := range trained {
		t.Run(tt.name, func(t *testing.T) {
			m := load(t, trainedDir(t, tt.name), 2)
			prompt := m.Tokenizer.Encode("It was a dark night, and the old man said to the king")
			for _, opt := range []SamplerOptions{{}, {Temp: 0.8, Seed: 7}, {Temp: 1.2, TopK: 40, TopP: 0.95, RepeatPenalty: 1.3, Seed: 1}} {
				want := speak(t, session(t, m, 96, 0), prompt, 60, opt)
				for _, n := range []int{1, 2, 5} {
					s := drafting(t, m, 96, map[int]int{1: 0, 2: 2, 5: 7}[n], n)
					speak(t, s, prompt, 60, opt).same(t, want)
					if st := s.Drafts(); len(s.Tokens()) != len(prompt)+59 || st.Tokens != 59 || st.Passes >= 59 || st.Accepted == 0 || st.Accepted > st.Drafted {
						t.Errorf("%d tokens, %+v", len(s.Tokens()), st)
					}
				}
			}
			for _, end := range []struct {
				ctx, max int
				stop     []int32
			}{{len(prompt) + 9, 60, nil}, {96, 9, nil}, {96, 1, nil}, {len(prompt), 5, nil}, {96, 60, speak(t, session(t, m, 96, 0), prompt, 30, SamplerOptions{}).ids[29:]}} {
				want := session(t, m, end.ctx, 0)
				text := speak(t, want, prompt, end.max, SamplerOptions{}, end.stop...)
				s := drafting(t, m, end.ctx, 0, 4)
				speak(t, s, prompt, end.max, SamplerOptions{}, end.stop...).same(t, text)
				if at, ok := sameBits([][]float32{s.Logits()}, [][]float32{want.Logits()}); !ok || s.Logits() == nil {
					t.Errorf("%+v: the last logits differ at %s", end, at)
				}
				if !slices.Equal(s.Tokens(), want.Tokens()) {
					t.Errorf("%+v: the timeline is %v, want %v", end, s.Tokens(), want.Tokens())
				}
			}
		})
	}
}

// TestDraftAcceptance: the block computes what it was trained to.
func TestDraftAcceptance(t *testing.T) {
	for _, tt := range trained {
		t.Run(tt.name, func(t *testing.T) {
			dir := trainedDir(t, tt.name)
			m := load(t, dir, 2)
			var ids []int32
			if tt.name == "tiny-glm" {
				ids = openOracle(t, tt.name).ids("input_ids")
			} else {
				shard, err := format.OpenShard(fixtures.Shared(t, "models/"+tt.name+".oracle.safetensors"))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = shard.Close() }()
				ids = (&oracle{t, shard}).ids("input_ids")
			}
			right, positions := 0, 0
			for w := range 4 {
				s := drafting(t, m, 512, 0, 1)
				window := ids[256*w:][:256]
				var main []int32
				if err := s.Append(context.Background(), window, func(_ int, l []float32) error {
					main = append(main, argmax(l))
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				rows, err := s.draft.feed(context.Background(), window)
				if err != nil || rows != 255 {
					t.Fatal(rows, err)
				}
				for i := range rows {
					id, err := s.draft.say(i, 300) // far from what the block reads
					if err != nil {
						t.Fatal(err)
					}
					if positions++; id == main[i+1] {
						right++
					}
				}
			}
			got := float64(right) / float64(positions)
			t.Logf("acceptance %.4f of %d positions, reference %.3f", got, positions, tt.acceptance)
			if math.Abs(got-tt.acceptance) > 0.005 {
				t.Errorf("acceptance %.4f, the reference has %.3f", got, tt.acceptance)
			}
		})
	}
}

// withMTP is a copy of an oracle's checkpoint with a random MTP block. change
// replaces a tensor's values, by nothing to leave it out, and its shape unless nil.
func withMTP(t *testing.T, name string, change func(tensor string, values []float32) ([]float32, []int)) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(fixtures.Path(t, name))); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(dir, "model.safetensors.index.json")) // all shards then
	if err := os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "a.safetensors")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var config map[string]any
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	config["num_nextn_predict_layers"] = 1
	if data, err = json.Marshal(config); err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := ReadConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 5))
	var entries []format.Entry
	content := map[string][]byte{}
	for _, w := range c.Arch.Tensors(c) {
		if !w.MTP {
			continue
		}
		n := 1
		for _, d := range w.Shape {
			n *= d
		}
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(rng.NormFloat64() / 8)
		}
		shape := w.Shape
		if change != nil {
			if values, shape = change(w.Name, values); shape == nil {
				shape = w.Shape
			}
		}
		if len(values) == 0 {
			continue
		}
		raw := make([]byte, 4*len(values))
		quantize.F32ToBytes(raw, values)
		entries, content[w.Name] = append(entries, format.Entry{Name: w.Name, DType: format.DTypeF32, Shape: shape}), raw
	}
	if len(entries) == 0 {
		return dir
	}
	w, err := format.Create(filepath.Join(dir, "out-mtp-00000.safetensors"), entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range content {
		if err := w.WriteAt(name, raw, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// drafted is what a session drafts behind a timeline and a token, with the
// logits of the last draft.
func drafted(t *testing.T, s *Session, timeline []int32, next int32) (guess []int32, row []float32) {
	t.Helper()
	if _, err := s.Sync(context.Background(), timeline); err != nil {
		t.Fatal(err)
	}
	guess, err := s.draft.propose(context.Background(), next, s.draft.Tokens)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(guess), slices.Clone(s.draft.row)
}

// TestDraftsOfAllFamilies: every family with an MTP block drafts; what a
// session says does not change, and what it drafts depends on its timeline
// alone, whatever it ran and took back before and however it was cut to pieces.
func TestDraftsOfAllFamilies(t *testing.T) {
	for _, name := range []string{"glm_moe_dsa", "deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite"} {
		t.Run(name, func(t *testing.T) {
			m := load(t, withMTP(t, name, func(tensor string, v []float32) ([]float32, []int) {
				if name == "glm4_moe" && strings.Contains(tensor, "shared_head.head") || name == "deepseek_v3" && strings.Contains(tensor, ".embed_tokens.") {
					return nil, nil // the model's own
				}
				return v, nil
			}), 2)
			ids := openOracle(t, name).ids("input_ids")
			for _, opt := range []SamplerOptions{{}, {Temp: 0.5, Seed: 3}} {
				want := speak(t, session(t, m, 64, 0), ids[:20], 40, opt)
				for _, n := range []int{1, 3} {
					speak(t, drafting(t, m, 64, 0, n), ids[:20], 40, opt).same(t, want)
				}
			}
			old := drafting(t, m, 64, 8, 3)
			if index := func(c Cmd) bool { return c.Kind() == KindIndex }; slices.ContainsFunc(old.draft.body, index) != (m.Config.IndexTopK > 0) {
				t.Error("the block's indexer is not used")
			}
			speak(t, old, ids[:9], 30, SamplerOptions{Temp: 1, Seed: 5})
			changed := slices.Clone(ids)
			changed[20]++
			for _, timeline := range [][]int32{ids, changed, ids[:10], ids[:10], changed[:30], ids, ids[:1]} {
				guess, row := drafted(t, old, timeline, 9)
				for _, chunk := range []int{1, 64} {
					want, wantRow := drafted(t, drafting(t, m, 64, chunk, 3), timeline, 9)
					if at, ok := sameBits([][]float32{row}, [][]float32{wantRow}); !ok || !slices.Equal(guess, want) {
						t.Errorf("after %d tokens: drafts %v, want %v; logits differ at %s", len(timeline), guess, want, at)
					}
				}
				if again, _ := drafted(t, old, timeline, 9); !slices.Equal(again, guess) {
					t.Errorf("the same drafts again are %v, were %v", again, guess)
				}
			}
		})
	}
}

// TestDraftsOfOneTimeline: turns of a conversation keep what they have in
// common, with and without drafts the same.
func TestDraftsOfOneTimeline(t *testing.T) {
	m := load(t, fixtures.TinyGLMDir(t), 2)
	with, without := drafting(t, m, 256, 0, 3), session(t, m, 256, 0)
	line := m.Tokenizer.Encode("The king said: ")
	for turn := range 4 {
		opt := SamplerOptions{Temp: 0.7, Seed: uint64(turn)}
		a, b := with.Ran(), without.Ran()
		want := speak(t, without, line, 20+turn, opt)
		speak(t, with, line, 20+turn, opt).same(t, want)
		if at, ok := sameBits([][]float32{with.Logits()}, [][]float32{without.Logits()}); !ok {
			t.Errorf("turn %d: the timeline's logits differ at %s", turn, at)
		}
		if !slices.Equal(with.Tokens(), without.Tokens()) || with.Ran()-a < without.Ran()-b {
			t.Errorf("turn %d: %v, want %v", turn, with.Tokens(), without.Tokens())
		}
		line = append(append(line, want.ids[:15]...), m.Tokenizer.Encode(" and then ")...)
	}
}

// TestDraftsFollowTheDistribution: what the sampler accepts and what it takes
// instead are together distributed as its probabilities, to five standard
// deviations.
func TestDraftsFollowTheDistribution(t *testing.T) {
	m := load(t, fixtures.TinyGLMDir(t), 2)
	prompt := m.Tokenizer.Encode("The old man said")
	s := drafting(t, m, 64, 0, 1)
	sampler, err := NewSampler(SamplerOptions{Temp: 0.8, TopK: 8, Seed: 11})
	if err != nil {
		t.Fatal(err)
	}
	// Pairs of tokens: the second is the first that a draft is verified for.
	const runs = 1200
	counts, expected := map[[2]int32]int{}, map[[2]int32]float64{}
	probabilities := func(l []float32) map[int32]float64 {
		order := make([]int32, len(l))
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(l[b], l[a]) })
		p, sum := map[int32]float64{}, 0.0
		for _, id := range order[:8] {
			p[id] = math.Exp(float64(l[id]-l[order[0]]) / 0.8)
			sum += p[id]
		}
		for id := range p {
			p[id] /= sum
		}
		return p
	}
	var first map[int32]float64
	for range runs {
		var pair [2]int32
		n := 0
		if _, err := s.Generate(context.Background(), prompt, Generation{Max: 3, Sampler: sampler, Each: func(id int32, l []float32) error {
			if first == nil {
				first = probabilities(l)
			}
			if n < 2 {
				pair[n] = id
			}
			if _, known := expected[[2]int32{pair[0], -1}]; n == 1 && !known {
				expected[[2]int32{pair[0], -1}] = 0
				for next, p := range probabilities(l) {
					expected[[2]int32{pair[0], next}] = first[pair[0]] * p
				}
			}
			n++
			return nil
		}}); err != nil {
			t.Fatal(err)
		}
		counts[pair]++
	}
	total := 0.0
	for pair, p := range expected {
		total += p
		if d := math.Abs(float64(counts[pair])-runs*p) / math.Sqrt(runs*p*(1-p)+1); d > 5 {
			t.Errorf("%v: %d of %d, expected %.1f", pair, counts[pair], runs, runs*p)
		}
	}
	for pair := range counts {
		if _, ok := expected[pair]; !ok {
			t.Errorf("%v is not among the likely", pair)
		}
	}
	if st := s.Drafts(); math.Abs(total-1) > 0.02 || st.Accepted < runs/10 || st.Drafted-st.Accepted < runs/10 {
		t.Errorf("the test sees %.3f of the probability; %+v", total, st)
	}
}

// TestDraftAllocates nothing a token, accepted or not.
func TestDraftAllocates(t *testing.T) {
	m := load(t, fixtures.TinyGLMDir(t), 2)
	s := drafting(t, m, 2000, 0, 2)
	sampler, err := NewSampler(SamplerOptions{Temp: 0.8})
	if err != nil {
		t.Fatal(err)
	}
	g := &turn{Generation: Generation{Max: 1 << 20, Sampler: sampler, Each: func(int32, []float32) error { return nil }}, s: s, line: make([]int32, 0, MaxDraft+1)}
	g.row = g.verify
	logits, err := s.Sync(context.Background(), make([]int32, 300))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.choose(s.tokens, logits); err != nil {
		t.Fatal(err)
	}
	step := func() {
		if err := g.step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		step()
	}
	if n := testing.AllocsPerRun(50, step); n != 0 {
		t.Errorf("%v allocations a pass", n)
	}
	if st := s.Drafts(); st.Accepted == 0 || st.Accepted == st.Drafted {
		t.Errorf("%+v", st)
	}
}

// TestMTPBlockThatCannotDraft: the reason is an error of LoadMTP's, the model
// runs all the same, and a block of little use is warned of.
func TestMTPBlockThatCannotDraft(t *testing.T) {
	const block = "model.layers.4."
	drop := func(what string) func(string, []float32) ([]float32, []int) {
		return func(name string, v []float32) ([]float32, []int) {
			if strings.Contains(name, what) {
				return nil, nil
			}
			return v, nil
		}
	}
	for name, tt := range map[string]struct {
		change  func(string, []float32) ([]float32, []int)
		kind    error
		want    string
		warning string
	}{
		"none":       {drop(block), format.ErrIncomplete, "the MTP block is not there, though config.json announces one", ""},
		"no eh_proj": {drop("eh_proj"), format.ErrIncomplete, "the MTP block is incomplete: missing " + block + "eh_proj.weight", ""},
		"no experts": {drop(block + "mlp.experts"), format.ErrIncomplete, "missing " + block + "mlp.experts.{0-7}.gate_proj.weight (8 tensors)", ""},
		"shape": {func(name string, v []float32) ([]float32, []int) {
			if strings.HasSuffix(name, "enorm.weight") {
				return v[:8], []int{8}
			}
			return v, nil
		}, format.ErrCorrupt, "enorm.weight: shape", ""},
		"no indexer": {drop(block + "self_attn.indexer"), nil, "", ""},
		"dead": {func(name string, v []float32) ([]float32, []int) {
			if strings.HasSuffix(name, "eh_proj.weight") {
				clear(v)
			}
			return v, nil
		}, nil, "", "eh_proj.weight: 100 % of the rows have an all-zero half"},
	} {
		t.Run(name, func(t *testing.T) {
			m := load(t, withMTP(t, "glm_moe_dsa", tt.change), 2)
			warnings, err := m.LoadMTP()
			again, err2 := m.LoadMTP()
			if tt.kind == nil && err != nil || !errors.Is(err, tt.kind) || err != nil && !strings.Contains(err.Error(), tt.want) || err2 != err {
				t.Errorf("%v, then %v", err, err2)
			}
			if text := strings.Join(warnings, "\n"); (text == "") != (tt.warning == "") || !strings.Contains(text, tt.warning) || len(again) != len(warnings) {
				t.Errorf("warnings %q", text)
			}
			s := session(t, m, 40, 0)
			if err := s.Draft(Drafting{Tokens: 2, Always: true}); (err == nil) != (tt.kind == nil) {
				t.Error(err)
			}
			ids := openOracle(t, "glm_moe_dsa").ids("input_ids")[:20]
			speak(t, s, ids, 15, SamplerOptions{}).same(t, speak(t, session(t, m, 40, 0), ids, 15, SamplerOptions{}))
		})
	}
	plain := load(t, fixtures.Path(t, "olmoe"), 1)
	if _, err := plain.LoadMTP(); !errors.Is(err, format.ErrUnsupported) || !strings.Contains(err.Error(), "the model has no MTP block") {
		t.Error(err)
	}
	for _, n := range []int{-1, MaxDraft + 1} {
		if err := session(t, plain, 8, 0).Draft(Drafting{Tokens: n}); !errors.Is(err, format.ErrUsage) {
			t.Error(n, err)
		}
	}
	rough := load(t, convert(t, fixtures.TinyGLMDir(t), quantize.Flags{Format: "int4-row"}), 2)
	if warnings, err := rough.LoadMTP(); err != nil || !strings.Contains(strings.Join(warnings, "\n"), "the MTP block has one scale a row at 4 bits or fewer") {
		t.Error(warnings, err)
	}
}

// TestDraftsFreeTheirBuffers with the session.
func TestDraftsFreeTheirBuffers(t *testing.T) {
	m := load(t, fixtures.TinyGLMDir(t), 1)
	live := func() (n int) {
		for _, f := range m.be.(*CPU).floats {
			if f != nil {
				n++
			}
		}
		return n
	}
	plain := session(t, m, 32, 0)
	before := live()
	s := drafting(t, m, 32, 0, 1)
	if extra, kept := s.CacheBytes()-plain.CacheBytes(), int64(4*32*(192+128+16)); extra != kept {
		t.Errorf("drafts cost %d bytes of cache, want %d: hidden states and latents", extra, kept)
	}
	s.Close()
	if n := live(); n != before {
		t.Errorf("%d buffers are left, %d before", n, before)
	}
}

// TestPace: drafts pause where they cost more than they save and are tried
// again, ever more seldom; where they pay they stay.
func TestPace(t *testing.T) {
	run := func(p *pace, passes int, cost func(drafts bool, i int) (tokens int, took time.Duration)) (drafts int) {
		for i := range passes {
			if p.drafts {
				drafts++
			}
			tokens, took := cost(p.drafts, i)
			p.ran(tokens, took)
		}
		return drafts
	}
	slow := func(drafts bool, _ int) (int, time.Duration) {
		if drafts {
			return 1, 15 * time.Millisecond
		}
		return 1, 10 * time.Millisecond
	}
	fast := func(drafts bool, _ int) (int, time.Duration) {
		if drafts {
			return 2, 15 * time.Millisecond
		}
		return 1, 10 * time.Millisecond
	}
	p := newPace()
	if n := run(&p, 16, slow); n != 8 {
		t.Errorf("%d of the first 16 passes draft, want 8", n)
	}
	if n := run(&p, 4000, slow); n < 8 || n > 60 {
		t.Errorf("%d of 4000 passes draft though it does not pay", n)
	}
	if n := run(&p, 6000, fast); n < 3000 {
		t.Errorf("%d of 6000 passes draft though it pays now", n)
	}
	if n := run(&p, 4000, fast); n < 3600 {
		t.Errorf("%d of 4000 passes draft though it pays", n)
	}
	if n := run(&p, 4000, slow); n > 300 {
		t.Errorf("%d of 4000 passes draft though it pays no more", n)
	}
}

// TestStoppedDraftsLeaveTheirTimeline: whatever ends a generation within a pass
// of a draft, the timeline holds what was said but for its last token, and goes
// on as one that never drafted.
func TestStoppedDraftsLeaveTheirTimeline(t *testing.T) {
	m := load(t, fixtures.TinyGLMDir(t), 2)
	prompt := m.Tokenizer.Encode("Once upon a time there was a")
	want := speak(t, session(t, m, 128, 0), prompt, 60, SamplerOptions{})
	greedy, err := NewSampler(SamplerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	for _, chunk := range []int{0, 1, 2} {
		s := drafting(t, m, 128, chunk, 4)
		for n := 1; n < 20; n++ {
			for _, cancelled := range []bool{false, true} {
				ctx, cancel := context.WithCancel(context.Background())
				said := 0
				_, err := s.Generate(ctx, prompt, Generation{Max: 60, Sampler: greedy, Each: func(id int32, _ []float32) error {
					if said++; id != want.ids[said-1] {
						t.Fatalf("token %d is %d, want %d", said, id, want.ids[said-1])
					}
					switch {
					case said < n:
					case cancelled:
						cancel()
					default:
						return stop
					}
					return nil
				}})
				cancel()
				if cancelled && !errors.Is(err, context.Canceled) || !cancelled && !errors.Is(err, stop) {
					t.Fatal(err)
				}
				whole := slices.Concat(prompt, want.ids[:said-1])
				if !slices.Equal(s.Tokens(), whole) {
					t.Fatalf("stopped at %d: the timeline is %v, want %v", n, s.Tokens(), whole)
				}
				logits, err := s.Sync(context.Background(), whole)
				if err != nil {
					t.Fatal(err)
				}
				if at, ok := sameBits([][]float32{logits}, want.logits[said-1:said]); !ok {
					t.Fatalf("stopped at %d: logits differ at %s", n, at)
				}
			}
		}
	}
}
