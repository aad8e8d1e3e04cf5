package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/metal"
	"hawkmoth/runtime"
)

// profiled is the PROF report, on standard error as text or in the end event
// of --json. On a GPU the stages are those that the CPU took over.
type profiled struct {
	Stages      []runtime.StageShare `json:"stages"`
	Latency     runtime.Latency      `json:"decode_latency"`
	ExpertLoads int                  `json:"expert_loads"`
	Verdict     string               `json:"verdict"`
	Counts      []metal.Count        `json:"operations,omitempty"` // of a GPU backend
	Memory      *metal.MemoryUse     `json:"device_memory,omitempty"`
}

func profileOf(at *placement, s *runtime.Session) *profiled {
	p := at.cpu.Profile()
	r := &profiled{Stages: p.Shares(), Latency: s.Latencies(), ExpertLoads: p.Experts, Verdict: p.Verdict()}
	if at.gpu != nil {
		use := at.gpu.Memory()
		r.Counts, r.Memory = at.gpu.Counts(), &use
		if len(r.Stages) == 0 {
			r.Verdict = "everything runs on the GPU"
		}
	}
	return r
}

func (p *profiled) print(cmd *cobra.Command) error {
	w := cmd.ErrOrStderr()
	var err error
	line := func(text string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, text+"\n", args...)
		}
	}
	if len(p.Stages) > 0 {
		line("\nPROF: time on the CPU by stage")
	}
	for _, s := range p.Stages {
		line("  %-32s %9.3f s  %7s", s.Stage, s.Seconds, cli.Share(s.Share))
	}
	if l := p.Latency; l.Count > 0 {
		line("PROF: decode of a token: p50 %.1f ms · p90 %.1f ms · p99 %.1f ms · max %.1f ms (%d tokens)", l.P50, l.P90, l.P99, l.Max, l.Count)
	}
	for _, c := range placesOf(p.Counts) {
		line("PROF: %s", c)
	}
	if m := p.Memory; m != nil {
		line("PROF: weights %s wrapped, %s copied · buffers %s · residency set %s", cli.Bytes(m.Wrapped), cli.Bytes(m.Copied), cli.Bytes(m.Buffers), map[bool]string{true: "on", false: "off"}[m.Resident])
	}
	if p.ExpertLoads > 0 {
		line("PROF: %d expert loads", p.ExpertLoads)
	}
	line("PROF: %s", p.Verdict)
	return err
}

// placesOf adds the counts of the operations that decide about speed up over
// the layers: "mla: GPU 480 · CPU 12 (reason: 12)".
func placesOf(counts []metal.Count) []string {
	type sum struct {
		gpu, cpu int64
		why      map[string]int64
	}
	sums := map[string]*sum{}
	for _, c := range counts {
		s := sums[c.Op]
		if s == nil {
			s = &sum{why: map[string]int64{}}
			sums[c.Op] = s
		}
		s.gpu, s.cpu = s.gpu+c.GPU, s.cpu+c.CPU
		if c.CPU > 0 {
			s.why[c.Why] += c.CPU
		}
	}
	var lines []string
	for _, op := range slices.Sorted(maps.Keys(sums)) {
		s := sums[op]
		text := fmt.Sprintf("%s: GPU %d · CPU %d", op, s.gpu, s.cpu)
		for _, why := range slices.Sorted(maps.Keys(s.why)) {
			text += fmt.Sprintf(" (%s: %d)", why, s.why[why])
		}
		lines = append(lines, text)
	}
	return lines
}
