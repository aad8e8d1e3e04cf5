// Package report says what a snapshot is: one struct, made from headers alone,
// from which both the text and the JSON of inspect are written.
package report

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// Schema is the version of Report as JSON. It grows when a field is renamed,
// removed or changes its meaning; new fields do not change it.
const Schema = 1

// The verdicts about a snapshot.
const (
	Loadable    = "loadable"
	NotLoadable = "not loadable"
	Unknown     = "unknown" // there is no config.json to hold the tensors against
)

// Report is what there is to know about a snapshot. docs/report.md describes
// the JSON field by field.
type Report struct {
	Schema       int           `json:"schema"`
	Path         string        `json:"path"`
	Kind         string        `json:"kind"`    // "container" with packed matrices, else "checkpoint"
	Verdict      string        `json:"verdict"` // see the constants
	Unknown      []string      `json:"unknown"` // what the files do not tell
	Shards       int           `json:"shards"`
	FileBytes    int64         `json:"file_bytes"`
	Total        Size          `json:"total"` // of all matrices and vectors, the MTP block's too
	Formats      []FormatSize  `json:"formats"`
	Architecture *Architecture `json:"architecture,omitempty"`
	Parameters   *Parameters   `json:"parameters,omitempty"`
	Roles        []RoleSize    `json:"roles"`
	MTP          *Block        `json:"mtp,omitempty"`
	Indexer      *Block        `json:"indexer,omitempty"`
	Completeness *Completeness `json:"completeness,omitempty"`
	Stamps       Stamps        `json:"stamps"`
	Tokenizer    *Tokenizer    `json:"tokenizer,omitempty"`
	Origin       *Origin       `json:"origin,omitempty"`
	Overlays     []Overlay     `json:"overlays"`
	Placement    []string      `json:"placement"` // of a container: a line for Metal, and one for the newest engine that runs it
	Problems     []Problem     `json:"problems"`  // all that keeps the model from loading
	Warnings     []string      `json:"warnings"`

	Placements   []Placement   `json:"placements,omitempty"`
	Memory       *Memory       `json:"memory,omitempty"`
	Against      *Against      `json:"against,omitempty"`
	Layers       []Layer       `json:"layers,omitempty"`
	Tensors      []Tensor      `json:"tensors,omitempty"`
	Verification *Verification `json:"verification,omitempty"`

	snap   *format.Snapshot
	config *runtime.Config
	wants  []quantize.Want
	census *quantize.Census
	errors map[string]quantize.Difference // by tensor, of AddAgainst

	faults   []error         // what Problems lists
	damaged  format.Problems // of the MTP block
	oneByOne bool            // problems, in the text

	unfinished bool // a conversion stopped here
}

// Size adds up tensors. Bytes are those of codes and scales.
type Size struct {
	Tensors       int     `json:"tensors"`
	Parameters    int64   `json:"parameters"` // 0 where shapes are unknown
	Bytes         int64   `json:"bytes"`
	BitsPerWeight float64 `json:"bits_per_weight"`
}

func (s *Size) add(params, bytes int64) {
	s.Tensors++
	s.Parameters += params
	s.Bytes += bytes
	if s.Parameters > 0 {
		s.BitsPerWeight = 8 * float64(s.Bytes) / float64(s.Parameters)
	}
}

// FormatSize adds up the tensors of a format, or of an element type where
// formats are unknown.
type FormatSize struct {
	Format string `json:"format"` // "int4-grouped/64"
	Group  int    `json:"group"`  // columns that share a scale; 0 where the format has none to choose
	Size
}

// RoleSize adds up the tensors of a role; everything in the MTP block is "mtp".
type RoleSize struct {
	Role    string        `json:"role"`
	Formats []FormatCount `json:"formats"` // most tensors first
	Size
}

// FormatCount is how many tensors have a format.
type FormatCount struct {
	Format  string `json:"format"`
	Tensors int    `json:"tensors"`
}

// Architecture is what config.json says about the model's shape.
type Architecture struct {
	Name            string `json:"name"`
	ModelType       string `json:"model_type"`
	Layers          int    `json:"layers"`
	DenseLayers     int    `json:"dense_layers"`
	Hidden          int    `json:"hidden"`
	Heads           int    `json:"heads"`
	Experts         int    `json:"experts"`
	ExpertsPerToken int    `json:"experts_per_token"`
	SharedExperts   int    `json:"shared_experts"`
	Vocabulary      int    `json:"vocabulary"`
	Context         int    `json:"context"` // positions
	MTPLayers       int    `json:"mtp_layers"`
	Attention       string `json:"attention"` // in words
	IndexTopK       int    `json:"index_topk"`
	Tied            bool   `json:"tied"` // lm_head is the embedding
}

// Parameters counts weights without the MTP block. What a token reads is one
// row of the embedding, the experts it is routed to, and everything else.
type Parameters struct {
	Total       int64 `json:"total"`
	Active      int64 `json:"active"`
	ActiveBytes int64 `json:"active_bytes"`
	MTP         int64 `json:"mtp"`
	Quantised   int64 `json:"quantised"` // in packed matrices, the MTP block's too
}

// Block is an optional part of the model: the MTP block or the indexers.
type Block struct {
	State   string        `json:"state"`   // "present", "partial", "damaged", "absent", or "none" if config.json has none
	Layers  string        `json:"layers"`  // that should have it: "0-2,6,10"
	Formats []FormatCount `json:"formats"` // of its matrices
	Missing []string      `json:"missing"` // names that differ in numbers only share a line
	Wrong   []string      `json:"wrong"`   // tensors that do not fit, of an MTP block; an indexer's are problems
}

// Completeness holds the snapshot against the tensors that config.json asks for.
type Completeness struct {
	Wanted     int      `json:"wanted"` // without optional ones
	Found      int      `json:"found"`
	Missing    int      `json:"missing"`
	Wrong      int      `json:"wrong"`      // there, but of a wrong shape, type or size
	Complete   string   `json:"complete"`   // layers, as ranges
	Incomplete string   `json:"incomplete"` // layers that lack or misshape some tensors
	Absent     string   `json:"absent"`     // layers without any tensor
	Extra      int      `json:"extra"`      // tensors that the model does not read
	ExtraNames []string `json:"extra_names"`
}

// Stamps says how the formats of packed matrices are known.
type Stamps struct {
	Packed    int `json:"packed"`  // matrices
	Stamped   int `json:"stamped"` // the metadata names their format
	Ambiguous int `json:"ambiguous"`
	// Unconfirmed are the ambiguous ones without a stamp; Decisive are the
	// stamped ones that the byte counts alone would make something else.
	Unconfirmed int `json:"unconfirmed"`
	Decisive    int `json:"decisive"`
}

// Tokenizer is what tokenizer.json holds.
type Tokenizer struct {
	IDs  int `json:"ids"`  // the highest token id + 1
	Rows int `json:"rows"` // of the embedding
}

// Origin is who made a container, from its manifest.
type Origin struct {
	Tool   string `json:"tool"`
	Recipe string `json:"recipe"`
}

// Overlay is an overlay that a directory of the snapshot's shards records.
type Overlay struct {
	Name     string   `json:"name"`
	State    string   `json:"state"`  // see quantize.OverlayInfo
	Format   string   `json:"format"` // as it was asked for
	From     string   `json:"from"`   // "base", or the name of the checkpoint's directory
	Tensors  int      `json:"tensors"`
	Bytes    int64    `json:"bytes"`
	Replaces []string `json:"replaces"` // formats of the base; empty for a directory of its own
}

// Problem is one thing that keeps the model from loading.
type Problem struct {
	Kind    string `json:"kind"` // "corrupt", "incomplete", "unsupported", "failed"
	Message string `json:"message"`
	Path    string `json:"path,omitempty"`
	Tensor  string `json:"tensor,omitempty"`
	What    string `json:"what,omitempty"`
	Found   string `json:"found,omitempty"`
	Wanted  string `json:"wanted,omitempty"`
}

func empty(path string) *Report {
	return &Report{Schema: Schema, Path: path, Verdict: Loadable, Unknown: []string{}, Formats: []FormatSize{}, Roles: []RoleSize{}, Overlays: []Overlay{}, Placement: []string{},
		Problems: []Problem{}, Warnings: []string{}}
}

// Failed is the report about a snapshot that format.Open refuses; nothing but
// the problems is known.
func Failed(path string, err error) *Report {
	r := empty(path)
	unfinished := quantize.Unfinished(path)
	if unfinished != nil {
		r.problem(unfinished)
	}
	if _, kind := cli.Code(err); unfinished == nil || kind != "incomplete" { // which follows from it
		r.problem(err)
	}
	r.conclude()
	return r
}

// Build makes the report from the headers and the small files of a snapshot.
// What is wrong with the model is in the report; the error is about files that
// cannot be read.
func Build(snap *format.Snapshot) (*Report, error) {
	r := empty(snap.Dir)
	r.snap, r.Shards, r.Kind = snap, len(snap.Shards), "checkpoint"
	if snap.Converted() {
		r.Kind = "container"
	}
	for _, s := range snap.Shards {
		r.FileBytes += s.Size
	}
	r.Warnings = append(r.Warnings, snap.Warnings...)
	if n, example := r.indexDecides(); n > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("readers that ignore the index, as old colibri does, take the first file in byte order and so %s from other shards, such as %s", plural(n, "tensor"), example))
	}
	if err := r.origin(); err != nil {
		return nil, err
	}
	if err := r.overlays(); err != nil {
		return nil, err
	}
	known, err := r.readConfig()
	if err != nil {
		return nil, err
	}
	if known {
		r.takeCensus()
		r.Placement = append(r.Placement, r.placementLines()...)
		err = r.tokenizer()
	} else {
		r.plain()
	}
	r.conclude()
	return r, err
}

// ListAll makes the text list problems one by one instead of grouped.
func (r *Report) ListAll() { r.oneByOne = true }

// damageCode is the exit code that a damaged MTP block makes.
func (r *Report) damageCode() int {
	code, _ := cli.Code(r.damaged.Err())
	return code
}

// damage is the error of a model that loads although its MTP block is damaged.
func (r *Report) damage() error {
	if len(r.damaged) == 0 {
		return nil
	}
	return &format.Error{Path: r.Path, What: Loadable + ", but the MTP block is damaged", Err: r.damaged}
}

// Err is nil for a model that loads whole, or of which nothing says that it
// does not; its kind is the gravest of the problems.
func (r *Report) Err() error {
	kinds := map[string]error{"corrupt": format.ErrCorrupt, "incomplete": format.ErrIncomplete, "unsupported": format.ErrUnsupported}
	if len(r.Problems) == 0 {
		return r.damage()
	}
	e := &format.Error{Path: r.Path, What: NotLoadable + ": " + plural(len(r.Problems), "problem")}
	for _, kind := range []string{"corrupt", "incomplete", "unsupported"} {
		if slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.Kind == kind }) {
			e.Kind = kinds[kind]
			break
		}
	}
	return e
}

// readConfig says whether config.json describes a model that we know.
func (r *Report) readConfig() (bool, error) {
	var err error
	r.config, err = runtime.OpenConfig(r.snap)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.Verdict = Unknown
		r.Unknown = append(r.Unknown, "the model: there is no config.json, so shapes and formats of packed matrices, roles and completeness cannot be known")
		return false, nil
	case errors.Is(err, format.ErrUsage):
		r.Verdict = Unknown
		r.Unknown = append(r.Unknown, err.Error())
		return false, nil
	case err == nil:
		return true, nil
	}
	if _, kind := cli.Code(err); kind == "failed" {
		return false, err
	}
	r.problem(err)
	r.Unknown = append(r.Unknown, "the model: config.json is refused, so shapes and formats of packed matrices, roles and completeness cannot be known")
	return false, nil
}

func (r *Report) origin() error {
	m, err := quantize.ReadManifest(r.snap.Dir)
	if u := quantize.Unfinished(r.snap.Dir); u != nil {
		r.unfinished = true
		r.problem(u)
	}
	switch {
	case err == nil:
		r.Origin = &Origin{m.Tool, m.Recipe}
	case errors.Is(err, format.ErrCorrupt):
		r.Warnings = append(r.Warnings, err.Error())
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// overlays lists those of every directory that shards come from.
func (r *Report) overlays() error {
	seen := map[string]bool{}
	for _, s := range r.snap.Shards {
		dir := filepath.Dir(s.Path)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		list, err := quantize.Overlays(dir)
		if errors.Is(err, format.ErrCorrupt) {
			r.Warnings = append(r.Warnings, err.Error())
			continue
		} else if err != nil {
			return err
		}
		for _, o := range list {
			x := Overlay{o.Name, o.State, o.Format, o.From, o.Tensors, o.Bytes, []string{}}
			for _, replaced := range o.Replaces {
				x.Replaces = append(x.Replaces, replaced.Format)
			}
			r.Overlays = append(r.Overlays, x)
		}
	}
	return nil
}

func (r *Report) tokenizer() error {
	text, err := runtime.OpenText(r.snap, r.config)
	if text.NoText != nil {
		r.Warnings = append(r.Warnings, "the model takes token ids only, no text: "+text.NoText.Error())
	}
	if t := text.Tokenizer; t != nil {
		r.Tokenizer = &Tokenizer{t.VocabSize(), r.config.VocabSize}
	}
	if _, kind := cli.Code(err); kind == "failed" {
		return err
	}
	if err != nil {
		r.problem(err)
	}
	return nil
}

// problem adds an error, or each of a list of errors.
func (r *Report) problem(err error) {
	if list, ok := err.(format.Problems); ok {
		for _, e := range list {
			r.problem(e)
		}
		return
	}
	_, kind := cli.Code(err)
	p := Problem{Kind: kind, Message: format.Plain(err), What: format.Plain(err)}
	var e *format.Error
	if errors.As(err, &e) {
		p.Path, p.Tensor, p.What, p.Found, p.Wanted = e.Path, e.Tensor, e.Said(), e.Found, e.Wanted
	}
	r.Problems = append(r.Problems, p)
	r.faults = append(r.faults, err)
}

func (r *Report) conclude() {
	if len(r.Problems) > 0 {
		r.Verdict = NotLoadable
	}
}

// sums adds up tensors under a key.
type sums map[string]*FormatSize

func (s sums) add(name string, group int, params, bytes int64) {
	if s[name] == nil {
		s[name] = &FormatSize{Format: name, Group: group}
	}
	s[name].add(params, bytes)
}

// list is the sums, most bytes first.
func (s sums) list() []FormatSize {
	list := []FormatSize{}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		list = append(list, *s[name])
	}
	slices.SortStableFunc(list, func(a, b FormatSize) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return list
}

// counts is how often each format occurs.
type counts map[string]int

func (c counts) list() []FormatCount {
	list := []FormatCount{}
	for _, name := range slices.Sorted(maps.Keys(c)) {
		list = append(list, FormatCount{name, c[name]})
	}
	slices.SortStableFunc(list, func(a, b FormatCount) int { return cmp.Compare(b.Tensors, a.Tensors) })
	return list
}
