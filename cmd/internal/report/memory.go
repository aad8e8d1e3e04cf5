package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// Memory is what a run needs of memory and disk, all in bytes. The MTP block
// is left out: run loads it for drafts only.
type Memory struct {
	Context      int   `json:"context"` // tokens
	Budget       int64 `json:"budget"`  // 0 if none was given
	Resident     int64 `json:"resident"`
	KVCache      int64 `json:"kv_cache"`
	IndexerCache int64 `json:"indexer_cache"`
	State        int64 `json:"state"`   // of recurrent layers, whatever the context
	Buffers      int64 `json:"buffers"` // about
	Minimum      int64 `json:"minimum"` // the five above and the experts of one layer's token
	Whole        int64 `json:"whole"`   // with all experts in memory

	Experts        int   `json:"experts"`
	ExpertBytes    int64 `json:"expert_bytes"`
	SmallestExpert int64 `json:"smallest_expert"`
	LargestExpert  int64 `json:"largest_expert"`
	TokenBytes     int64 `json:"token_bytes"` // of the experts that a token is routed to

	// The rest needs a budget.
	Verdict      string  `json:"verdict"`
	ExpertCache  int64   `json:"expert_cache"` // what is left for experts
	Held         int     `json:"held"`         // experts that fit, smallest first
	Residency    float64 `json:"residency"`    // share of the experts' bytes
	HitRate      float64 `json:"hit_rate"`     // if every expert is as likely as any other, which is the worst case for a cache
	ReadPerToken int64   `json:"read_per_token"`
}

// The verdicts about a budget.
const (
	FitsWhole   = "fits"
	FitsStreams = "fits with experts on disk"
	FitsNot     = "does not fit"
)

// AddMemory fills in Memory for a context of tokens and a budget of bytes; 0
// is no budget. It is format.ErrUsage without a known model, and for a context
// beyond the model's.
func (r *Report) AddMemory(context int, budget int64) error {
	if err := r.needsModel("--memory"); err != nil {
		return err
	}
	c := r.config
	if context < 1 || context > c.MaxPositions {
		return &format.Error{Kind: format.ErrUsage, What: "--ctx-size", Found: fmt.Sprint(context), Wanted: fmt.Sprintf("1 … %d, the model's max_position_embeddings", c.MaxPositions)}
	}
	m := &Memory{Context: context, Budget: budget}
	sizes := r.expertSizes(m)
	m.KVCache, m.IndexerCache = c.CacheBytes(context, r.Indexer.State == "present")
	m.State = c.StateBytes(min(context, runtime.DefaultChunk))
	m.Buffers = c.BufferBytes(context, min(context, runtime.DefaultChunk), r.Indexer.State == "present")
	base := m.Resident + m.KVCache + m.IndexerCache + m.State + m.Buffers
	m.Whole = base + m.ExpertBytes
	m.Minimum = base + int64(c.ExpertsPerToken)*m.LargestExpert
	if budget > 0 {
		m.plan(base, sizes)
	}
	r.Memory = m
	return nil
}

// expertSizes adds up what is always in memory, and returns the bytes of every
// routed expert.
func (r *Report) expertSizes(m *Memory) []int64 {
	type id struct{ layer, expert int }
	experts, layers := map[id]int64{}, map[int]int64{}
	for _, f := range mainModel(r.census.Found) {
		n := bytesOf(f)
		if f.Role != quantize.Expert {
			m.Resident += n
			continue
		}
		experts[id{f.Layer, f.Expert}] += n
		layers[f.Layer] += n
		m.ExpertBytes += n
	}
	var sizes []int64
	for _, n := range experts {
		sizes = append(sizes, n)
	}
	slices.Sort(sizes)
	if m.Experts = len(sizes); m.Experts > 0 {
		m.SmallestExpert, m.LargestExpert = sizes[0], sizes[len(sizes)-1]
	}
	for _, n := range layers {
		m.TokenBytes += n / int64(max(r.config.Experts, 1)) * int64(r.config.ExpertsPerToken)
	}
	return sizes
}

func (m *Memory) plan(base int64, sizes []int64) {
	m.ExpertCache = max(m.Budget-base, 0)
	left := m.ExpertCache
	var held int64
	for _, n := range sizes {
		if n > left {
			break
		}
		left -= n
		held += n
		m.Held++
	}
	if m.ExpertBytes > 0 {
		m.Residency = float64(held) / float64(m.ExpertBytes)
		m.HitRate = float64(m.Held) / float64(m.Experts)
	}
	switch {
	case m.Budget < m.Minimum:
		m.Verdict, m.ExpertCache, m.Held, m.Residency, m.HitRate = FitsNot, 0, 0, 0, 0
	case m.Held == m.Experts:
		m.Verdict = FitsWhole
	default:
		m.Verdict = FitsStreams
	}
	m.ReadPerToken = int64((1 - m.HitRate) * float64(m.TokenBytes))
	if m.Experts == 0 {
		m.ReadPerToken = 0
	}
}

// WriteMemory writes Memory.
func (r *Report) WriteMemory(w io.Writer) error {
	m := r.Memory
	var l lines
	l.f("memory of a run with %d tokens of context", m.Context)
	t := cli.NewTable("part", "bytes", "")
	t.Add("weights outside the routed experts", cli.Bytes(m.Resident), "")
	what := "cache of latents"
	if r.config.KVLoRA == 0 {
		what = "cache of keys and values"
	}
	if m.State > 0 {
		t.Add("state of the recurrent layers", cli.Bytes(m.State), "whatever the context")
	}
	if m.KVCache > 0 {
		t.Add(what, cli.Bytes(m.KVCache), fmt.Sprintf("%s a token", cli.Bytes(m.KVCache/int64(m.Context))))
	}
	switch {
	case m.IndexerCache > 0:
		t.Add("cache of the indexer's keys", cli.Bytes(m.IndexerCache), fmt.Sprintf("%s a token", cli.Bytes(m.IndexerCache/int64(m.Context))))
	case r.Indexer.State == "present":
		t.Add("cache of the indexer's keys", cli.Bytes(0), fmt.Sprintf("none up to %d tokens, where every position is selected", r.config.IndexTopK))
	}
	t.Add("buffers, about", cli.Bytes(m.Buffers), "")
	experts := fmt.Sprintf("%d of %s each", m.Experts, cli.Bytes(m.LargestExpert))
	if m.SmallestExpert != m.LargestExpert {
		experts = fmt.Sprintf("%d of %s to %s", m.Experts, cli.Bytes(m.SmallestExpert), cli.Bytes(m.LargestExpert))
	}
	t.Add("routed experts", cli.Bytes(m.ExpertBytes), experts)
	t.Add("everything in memory", cli.Bytes(m.Whole), "")
	t.Add("least that works", cli.Bytes(m.Minimum), "experts are read from disk when they are needed")
	l.WriteString(t.String())
	l.f("\ndisk: %s of files; a token is routed to %s of experts", cli.Bytes(r.FileBytes), cli.Bytes(m.TokenBytes))
	if m.Budget > 0 {
		l.f("\n%s %s", cli.Bytes(m.Budget), m.verdict())
	}
	return l.to(w)
}

func (m *Memory) verdict() string {
	switch m.Verdict {
	case FitsNot:
		text := fmt.Sprintf("does not fit: %s are missing", cli.Bytes(m.Minimum-m.Budget))
		if caches := m.KVCache + m.IndexerCache; caches > 0 {
			text += fmt.Sprintf("; a shorter context (--ctx-size) saves %s a token", cli.Bytes(caches/int64(m.Context)))
		}
		return text
	case FitsWhole:
		return fmt.Sprintf("fits: everything is in memory and %s are left for the page cache", cli.Bytes(m.Budget-m.Whole))
	}
	text := fmt.Sprintf("fits with experts on disk: %s hold %d of %d experts (%s)", cli.Bytes(m.ExpertCache), m.Held, m.Experts, cli.Share(m.Residency))
	text += fmt.Sprintf("\na token finds at least %s of its experts there (all equally likely; real texts have favourites) and reads at most %s", cli.Share(m.HitRate), cli.Bytes(m.ReadPerToken))
	const disk = 1e9
	return text + fmt.Sprintf("\neach GB/s of disk is good for %s tok/s at least, before any other cost", cli.Rate(disk/float64(cmp.Or(m.ReadPerToken, 1))))
}
