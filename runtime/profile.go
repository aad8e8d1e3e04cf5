package runtime

import (
	"fmt"
	"slices"
	"time"
)

// Stage is a share of a forward pass in the PROF report.
type Stage uint8

// The stages.
const (
	StageEmbed   Stage = iota
	StageNorm          // norms and residual sums between the blocks
	StageProject       // attention: q_a, q_b, kv_a, their norms, rotation, caching
	StageIndexer       // attention: scoring and selection
	StageAttend        // attention: score, softmax, value
	StageOutput        // attention: o_proj
	StageDense
	StageRouter
	StageExperts
	StageShared
	StageHead
	StageMTP // drafts: all that the multi-token-prediction block does
	numStages
)

var stageNames = [numStages]string{"embedding", "norms and sums", "attention: projection + RoPE", "attention: indexer", "attention: score·softmax·value",
	"attention: output projection", "dense MLP", "router", "routed experts", "shared experts", "lm_head", "drafts (MTP block)"}

func (s Stage) String() string { return stageNames[s] }

// Profile is where the time of a backend's commands went.
type Profile struct {
	Stages  [numStages]time.Duration
	Experts int // expert loads: one for each expert that a batch chose
}

// add charges a command.
func (p *Profile) add(s Stage, d time.Duration) { p.Stages[s] += d }

// StageShare is one row of the PROF report.
type StageShare struct {
	Stage   string  `json:"stage"`
	Seconds float64 `json:"seconds"`
	Share   float64 `json:"share"` // of the sum of all stages
}

// Shares lists the stages that took time, the longest first.
func (p *Profile) Shares() []StageShare {
	var total time.Duration
	for _, d := range p.Stages {
		total += d
	}
	var rows []StageShare
	for i, d := range p.Stages {
		if d > 0 {
			rows = append(rows, StageShare{Stage(i).String(), d.Seconds(), float64(d) / float64(total)})
		}
	}
	slices.SortStableFunc(rows, func(a, b StageShare) int {
		switch {
		case a.Seconds > b.Seconds:
			return -1
		case a.Seconds < b.Seconds:
			return 1
		}
		return 0
	})
	return rows
}

// Verdict names the stage to work on.
func (p *Profile) Verdict() string {
	rows := p.Shares()
	if len(rows) == 0 {
		return "nothing ran"
	}
	return fmt.Sprintf("%s takes %.0f %% of the time", rows[0].Stage, 100*rows[0].Share)
}

// Latency is the spread of the single-token forward passes, in milliseconds.
type Latency struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// Latencies is the spread of the session's single-token forward passes.
func (s *Session) Latencies() Latency {
	d := slices.Sorted(slices.Values(s.forward))
	if len(d) == 0 {
		return Latency{}
	}
	at := func(q float64) float64 { return 1e3 * d[min(int(q*float64(len(d))), len(d)-1)].Seconds() }
	return Latency{len(d), at(0.5), at(0.9), at(0.99), 1e3 * d[len(d)-1].Seconds()}
}
