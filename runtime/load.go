package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// Model is a snapshot that is ready to run on one backend. Sessions share it.
type Model struct {
	Config   *Config
	Snapshot *format.Snapshot
	Text
	Census   *quantize.Census
	Warnings []string // what differs from the model as trained

	be      Backend
	weights map[string]Weight
	indexer bool // the layers have their indexers
	mtp     mtpWeights
}

// Load opens a snapshot directory, holds it against its architecture and binds
// every weight. Everything wrong is reported at once; nothing is computed.
func Load(dir string, be Backend, overlays ...string) (*Model, error) {
	if err := quantize.Unfinished(dir); err != nil {
		return nil, err // all that is missing follows from it
	}
	snap, err := format.Open(dir, overlays...)
	if err != nil {
		return nil, err
	}
	m := &Model{Snapshot: snap, be: be, weights: map[string]Weight{}}
	if err := m.load(); err != nil {
		return nil, errors.Join(err, snap.Close())
	}
	return m, nil
}

func (m *Model) load() error {
	var err error
	if m.Config, err = OpenConfig(m.Snapshot); err != nil {
		return err
	}
	var wants []quantize.Want
	for _, w := range m.Config.Arch.Tensors(m.Config) {
		if !w.MTP {
			wants = append(wants, w)
		}
	}
	census, problems := quantize.TakeCensus(m.Snapshot, wants)
	m.Census = census
	problems = append(problems, quantize.MissingProblems(m.Snapshot, wants, census.Missing)...)
	if m.indexer, err = quantize.Indexers(m.Snapshot, wants); err != nil {
		problems = append(problems, err)
	}
	problems = append(problems, m.unsupported()...)
	if m.Text, err = OpenText(m.Snapshot, m.Config); err != nil {
		problems = append(problems, err)
	}
	if err := problems.Err(); err != nil {
		return err
	}
	for i := range census.Found {
		f := &census.Found[i]
		mat, err := f.Bind()
		if err != nil {
			return err
		}
		if m.weights[f.Name], err = m.be.Load(mat); err != nil {
			return err
		}
	}
	m.warn()
	return nil
}

// unsupported asks the backend about every matrix, as the inspector does.
func (m *Model) unsupported() format.Problems {
	var problems format.Problems
	for _, f := range m.Census.Readings() {
		if err := m.be.Supports(KindOf(f.Want), f.Spec); err != nil {
			problems = append(problems, &format.Error{Kind: format.ErrUnsupported, Path: f.Tensor.Shard.Path, Tensor: f.Name, What: "cannot run", Err: err})
		}
	}
	return problems
}

// KindOf is the operation that reads a tensor.
func KindOf(w quantize.Want) Kind {
	switch {
	case w.Role == quantize.Embed:
		return KindEmbed
	case w.Role == quantize.KVB:
		return KindMLA
	case w.Role == quantize.Expert:
		return KindExperts
	case w.Role == quantize.RouterBias:
		return KindRoute
	case !w.Matrix() && w.InIndexer():
		return KindLayerNorm // of its keys; queries have none
	case !w.Matrix():
		return KindRMSNorm
	default:
		return KindMatMul
	}
}

// Text is how a model reads and writes text.
type Text struct {
	Tokenizer *Tokenizer // nil if the model takes token ids only, for the reason in NoText
	NoText    error      // of OpenTokenizer
	Stops     []int32    // generation_config ∪ config ∪ the tokenizer's own end tokens
}

// OpenText reads what a model needs for text beside its weights. A tokenizer
// that is absent or of a kind that is not served is no error: the model runs
// on token ids. Everything else that is wrong is reported at once.
func OpenText(snap *format.Snapshot, c *Config) (Text, error) {
	text := Text{Stops: slices.Clone(c.EOS)}
	var problems format.Problems
	t, err := OpenTokenizer(snap, c.VocabSize)
	switch {
	case err == nil:
		text.Tokenizer = t
		text.Stops = append(text.Stops, t.EOS()...)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, format.ErrUnsupported):
		text.NoText = err
	default:
		problems = append(problems, err)
	}
	stops, err := generationStops(snap)
	if err != nil {
		problems = append(problems, err)
	}
	text.Stops = append(text.Stops, stops...)
	slices.Sort(text.Stops)
	text.Stops = slices.Compact(text.Stops)
	if len(problems) == 1 {
		return text, problems[0]
	}
	return text, problems.Err()
}

// generationStops is the end tokens of generation_config.json, if it is there.
func generationStops(snap *format.Snapshot) ([]int32, error) {
	const name = "generation_config.json"
	data, err := snap.ReadJSONFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	o := &object{path: filepath.Join(snap.Dir, name)}
	if err := json.Unmarshal(data, &o.raw); err != nil {
		return nil, &format.Error{Kind: format.ErrCorrupt, Path: o.path, What: "not a JSON object", Err: err}
	}
	return o.ids("eos_token_id"), o.problems.Err()
}

func (m *Model) warn() {
	if !m.indexer && m.Config.IndexTopK > 0 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("no indexer weights: attention is dense; beyond %d tokens that is not the model as trained", m.Config.IndexTopK))
	}
	if m.Config.Tied && m.weights[m.Config.Prefix+"lm_head.weight"] != nil {
		m.Warnings = append(m.Warnings, "tie_word_embeddings is true, yet lm_head.weight is there: it is used")
	}
	if n := len(m.Census.Extra); n > 0 {
		var extra []string
		for _, name := range m.Census.Extra {
			if !m.isMTP(name) {
				extra = append(extra, name)
			}
		}
		if len(extra) > 0 {
			m.Warnings = append(m.Warnings, fmt.Sprintf("%d tensors are not the model's and are ignored: %v", len(extra), format.Collapse(extra)))
		}
	}
	for _, r := range m.Census.Uncertain {
		m.Warnings = append(m.Warnings, r.String())
	}
	m.Warnings = append(m.Warnings, m.Snapshot.Warnings...)
}

func (m *Model) isMTP(name string) bool {
	for l := m.Config.Layers; l < m.Config.Layers+m.Config.MTPLayers; l++ {
		if p := m.Config.Prefix + layerPrefix(l); len(name) > len(p) && name[:len(p)] == p {
			return true
		}
	}
	return false
}

// bind finds a loaded weight; a tied head is the embedding.
func (m *Model) bind(name string) (Weight, error) {
	if w := m.weights[name]; w != nil {
		return w, nil
	}
	for _, w := range m.Census.Absent {
		if w.Name == name && w.Tied != "" {
			return m.bind(w.Tied)
		}
	}
	return nil, &format.Error{Kind: format.ErrIncomplete, Path: m.Snapshot.Dir, Tensor: name, What: "missing tensor"}
}

// badScales names the matrices whose scales are not finite, for the report
// after non-finite logits.
func (m *Model) badScales() []string {
	var bad []string
	for i := range m.Census.Found {
		f := &m.Census.Found[i]
		if f.Scales == nil {
			continue
		}
		mat, err := f.Bind()
		if err == nil && slices.ContainsFunc(mat.S, func(s float32) bool { return math.IsNaN(float64(s)) || math.IsInf(float64(s), 0) }) {
			bad = append(bad, f.Name)
		}
	}
	return bad
}

// Backend is what the model runs on.
func (m *Model) Backend() Backend { return m.be }

// Close releases the backend and the mapped shards.
func (m *Model) Close() error { return errors.Join(m.be.Close(), m.Snapshot.Close()) }
