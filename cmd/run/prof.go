package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"hawkmoth/runtime"
)

// profiled is the PROF report, on standard error as text or in the end event
// of --json.
type profiled struct {
	Stages      []runtime.StageShare `json:"stages"`
	Latency     runtime.Latency      `json:"decode_latency"`
	ExpertLoads int                  `json:"expert_loads"`
	Verdict     string               `json:"verdict"`
}

func profileOf(m *runtime.Model, s *runtime.Session) *profiled {
	c, ok := m.Backend().(*runtime.CPU)
	if !ok {
		return nil
	}
	p := c.Profile()
	return &profiled{p.Shares(), s.Latencies(), p.Experts, p.Verdict()}
}

func (p *profiled) print(cmd *cobra.Command) error {
	w := cmd.ErrOrStderr()
	var err error
	line := func(text string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, text+"\n", args...)
		}
	}
	line("\nPROF: time by stage")
	for _, s := range p.Stages {
		line("  %-32s %9.3f s  %5.1f %%", s.Stage, s.Seconds, 100*s.Share)
	}
	if l := p.Latency; l.Count > 0 {
		line("PROF: decode of a token: p50 %.1f ms · p90 %.1f ms · p99 %.1f ms · max %.1f ms (%d tokens)", l.P50, l.P90, l.P99, l.Max, l.Count)
	}
	line("PROF: %d expert loads · %s", p.ExpertLoads, p.Verdict)
	return err
}
