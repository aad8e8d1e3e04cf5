package runtime

import (
	"context"
	"math"
	"slices"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
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
