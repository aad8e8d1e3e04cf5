package runtime

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"hawkmoth/internal/fixtures"
)

// stories is a trained Llama of other people's making, in F32.
func stories(t *testing.T) *Session {
	t.Helper()
	return session(t, load(t, fixtures.Shared(t, "models/stories260K-hf"), 0), 512, 0)
}

func TestStoriesWindows(t *testing.T) {
	data, err := os.ReadFile(fixtures.Shared(t, "models/stories260K_eval.json"))
	if err != nil {
		t.Fatal(err)
	}
	var texts map[string]struct {
		Windows [][]int32 `json:"windows"`
		NLL     []float64 `json:"nll_per_window"`
	}
	if err := json.Unmarshal(data, &texts); err != nil {
		t.Fatal(err)
	}
	s := stories(t)
	for name, text := range texts {
		worst := 0.0
		for i, ids := range text.Windows {
			p, err := s.Score(context.Background(), ids, len(ids), nil)
			if err != nil {
				t.Fatal(err)
			}
			worst = max(worst, math.Abs(p.NLL-text.NLL[i]/float64(p.Tokens)))
		}
		t.Logf("%s: %d windows, off by at most %.2g nats a token", name, len(text.Windows), worst)
		if !(worst <= 1e-4) || len(text.Windows) == 0 {
			t.Errorf("%s: off by %g nats a token, allowed 1e-4", name, worst)
		}
	}
}

func TestStoriesGreedy(t *testing.T) {
	data, err := os.ReadFile(fixtures.Shared(t, "models/stories260K_golden.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	s := stories(t)
	for line := range strings.Lines(string(data)) {
		var golden struct {
			Prompt string    `json:"prompt"`
			IDs    []int32   `json:"ids"`
			Logits []float32 `json:"logits_last"`
			Greedy []int32   `json:"greedy"`
		}
		if err := json.Unmarshal([]byte(line), &golden); err != nil {
			t.Fatal(err)
		}
		logits, err := s.Sync(context.Background(), golden.IDs)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range golden.Logits {
			if d := math.Abs(float64(logits[i] - v)); !(d <= 1e-3) { // they are printed with six digits
				t.Errorf("%q: logit %d is off by %g", golden.Prompt, i, d)
				break
			}
		}
		timeline := slices.Clone(golden.IDs)
		for i, id := range golden.Greedy {
			if got := argmax(logits); got != id {
				t.Errorf("%q: token %d is %d, want %d", golden.Prompt, i, got, id)
				break
			}
			timeline = append(timeline, id)
			if logits, err = s.Sync(context.Background(), timeline); err != nil {
				t.Fatal(err)
			}
		}
	}
}
