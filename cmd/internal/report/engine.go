package report

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

//go:embed engines.json
var engineData []byte

// engine is what is known of another engine: what decides there whether a
// tensor meets the GPU, and what it reads wrongly. A format is meant in every
// group size.
type engine struct {
	Name        string       `json:"name"`
	Title       string       `json:"title"`
	Source      string       `json:"source"`
	ModelTypes  []string     `json:"model_types"`
	ReadsIndex  bool         `json:"reads_index"`  // else the first shard in byte order wins
	ReadsStamps bool         `json:"reads_stamps"` // of formats, not of group sizes, and not of routed experts
	Formats     []string     `json:"formats"`      // that it loads at all
	Paths       []enginePath `json:"paths"`
	Misreads    []misreading `json:"misreads"`
}

type enginePath struct {
	Path   string         `json:"path"`
	Layers string         `json:"layers"` // "sparse", or all
	Dims   map[string]int `json:"dims"`   // for which the kernels are compiled
	Limits []string       `json:"limits"` // that formats do not decide
	Gates  []engineGate   `json:"gates"`  // a layer passes all
}

type engineGate struct {
	Roles   []string `json:"roles"`
	Formats []string `json:"formats"`
	Uniform bool     `json:"uniform"` // the first tensor of a layer decides how all are read
	Why     string   `json:"why"`
	Cure    string   `json:"cure"` // arguments of convert overlay; ROLE is the tensor's
}

type misreading struct {
	Paths   []string `json:"paths"` // that go wrong
	Roles   []string `json:"roles"`
	Formats []string `json:"formats"`
	Text    string   `json:"text"`
	Cure    string   `json:"cure"`
}

func engines() ([]engine, error) {
	var file struct {
		Engines []engine `json:"engines"`
	}
	d := json.NewDecoder(strings.NewReader(string(engineData)))
	d.DisallowUnknownFields()
	err := d.Decode(&file)
	return file.Engines, err
}

// Engines lists the names that AddEngine knows.
func Engines() []string {
	list, _ := engines() // a test reads the file
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	return names
}

// dims are the model's sizes under the names that profiles use.
func (r *Report) dims() map[string]int {
	c := r.config
	return map[string]int{"hidden": c.Hidden, "heads": c.Heads, "q_lora": c.QLoRA, "kv_lora": c.KVLoRA, "qk_nope": c.Nope, "qk_rope": c.Rope, "v_head": c.ValueHd,
		"experts": c.Experts, "experts_per_token": c.ExpertsPerToken, "shared_experts": c.SharedExperts, "expert_width": c.MoEIntermediate}
}

// AddEngine predicts what another engine would run on the GPU. It is
// format.ErrUsage for a name that is not in the data and without a known
// model, format.ErrUnsupported for a model that the engine does not run.
func (r *Report) AddEngine(name string) error {
	if err := r.needsModel("--engine"); err != nil {
		return err
	}
	list, err := engines()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(e engine) bool { return e.Name == name })
	if i < 0 {
		return &format.Error{Kind: format.ErrUsage, What: "--engine", Found: name, Wanted: strings.Join(Engines(), ", ")}
	}
	e := &list[i]
	if !slices.Contains(e.ModelTypes, r.config.ModelType) {
		return &format.Error{Kind: format.ErrUnsupported, Path: r.Path, What: "--engine " + name + " does not run this architecture", Found: r.config.ModelType, Wanted: strings.Join(e.ModelTypes, ", ")}
	}
	r.Placements = append(r.Placements, r.placeEngine(e))
	return nil
}

func (r *Report) placeEngine(e *engine) Placement {
	p := Placement{By: e.Name, Source: e.Source, Dimensions: []string{}, Warnings: []string{}}
	have := r.dims()
	odd := map[string]bool{}
	for _, path := range e.Paths {
		for dim, n := range path.Dims {
			odd[dim] = odd[dim] || have[dim] != n
		}
	}
	for _, dim := range slices.Sorted(maps.Keys(odd)) {
		if odd[dim] {
			p.Dimensions = append(p.Dimensions, fmt.Sprintf("%s is %d, wanted %d", dim, have[dim], e.dim(dim)))
		}
	}
	for i := range e.Paths {
		placed := r.place(e, &e.Paths[i])
		for dim := range e.Paths[i].Dims {
			placed.Blocked = placed.Blocked || odd[dim]
		}
		p.Paths = append(p.Paths, placed)
	}
	r.misreads(e, &p)
	return p
}

func (e *engine) dim(name string) int {
	for _, p := range e.Paths {
		if n, ok := p.Dims[name]; ok {
			return n
		}
	}
	return 0
}

// place sends the model's matrices down a path.
func (r *Report) place(e *engine, path *enginePath) PlacedPath {
	p := newPlacer(path.Path, path.Limits)
	kinds := map[int]map[string]int{} // layer → formats of a uniform gate
	for _, f := range mainModel(r.census.Found) {
		if !f.Matrix() || path.Layers == "sparse" && (f.Layer < 0 || !r.config.SparseMLP[f.Layer]) {
			continue
		}
		gate := path.gate(f.Role)
		if gate == nil {
			continue
		}
		p.see(f.Layer)
		name, role := f.Spec.Name(), f.Role.String()
		switch bad := e.misreading(f); {
		case bad != nil && slices.Contains(bad.Paths, path.Path):
			p.off(f.Layer, PlacedReason{State: misread, Role: role, Format: name, Why: bad.Text, Cure: r.overlayCommand(bad.Cure, f.Spec.Format)})
		case !slices.Contains(gate.Formats, f.Spec.Format.String()):
			p.off(f.Layer, PlacedReason{State: onCPU, Role: role, Format: name, Why: gate.refusal(f.Spec.Format), Cure: r.overlayCommand(strings.ReplaceAll(gate.Cure, "ROLE", role), f.Spec.Format)})
		}
		if gate.Uniform {
			if kinds[f.Layer] == nil {
				kinds[f.Layer] = map[string]int{}
			}
			kinds[f.Layer][name]++
		}
	}
	for _, layer := range slices.Sorted(maps.Keys(kinds)) {
		if k := kinds[layer]; len(k) > 1 {
			role := path.Gates[0].Roles[0]
			p.off(layer, PlacedReason{State: misread, Role: role, Format: strings.Join(slices.Sorted(maps.Keys(k)), " and "),
				Why: "one block in several formats or group sizes: the engine reads all of it as its first tensor is", Cure: r.overlayCommand(path.Gates[0].Cure, format.F32)})
		}
	}
	return p.done()
}

func (p *enginePath) gate(role quantize.Role) *engineGate {
	for i := range p.Gates {
		if slices.Contains(p.Gates[i].Roles, role.String()) {
			return &p.Gates[i]
		}
	}
	return nil
}

// refusal says why a format does not pass.
func (g *engineGate) refusal(id format.ID) string {
	why := "wanted " + wanted(g.Formats)
	if g.Why != "" {
		why += ", " + g.Why
	}
	switch {
	case len(g.Formats) == 0:
		why = g.Why
	case !id.Info().Packed:
		why = "plain floats are quantised at load as that engine's own flags say"
	}
	return why
}

func (e *engine) misreading(f *quantize.Found) *misreading {
	for i := range e.Misreads {
		m := &e.Misreads[i]
		if slices.Contains(m.Roles, f.Role.String()) && slices.Contains(m.Formats, f.Spec.Format.String()) {
			return m
		}
	}
	return nil
}

// misreads fills in the warnings: each kind of trouble once, with the tensors.
func (r *Report) misreads(e *engine, p *Placement) {
	type trouble struct{ what, cure string }
	names := map[trouble][]string{}
	var order []trouble
	add := func(name, cure, what string, args ...any) {
		x := trouble{fmt.Sprintf(what, args...), cure}
		if names[x] == nil {
			order = append(order, x)
		}
		names[x] = append(names[x], name)
	}
	type reading struct {
		other format.Spec
		yes   bool
	}
	ambiguous := map[format.Spec]reading{} // of few shapes, for many tensors
	for _, f := range mainModel(r.census.Found) {
		if !slices.Contains(e.Formats, f.Spec.Format.String()) {
			add(f.Name, "", "%s is not loaded", f.Spec.Name())
		}
		if m := e.misreading(f); m != nil {
			add(f.Name, r.overlayCommand(m.Cure, f.Spec.Format), "%s as %s: %s", f.Role, f.Spec.Name(), m.Text)
		}
		as, known := ambiguous[f.Spec]
		if !known {
			as.other, as.yes = format.Ambiguous(f.Spec)
			ambiguous[f.Spec] = as
		}
		if as.yes && (!e.ReadsStamps || f.Role == quantize.Expert || f.Spec.Format == format.Int4Grouped) {
			add(f.Name, "", "%s is read as %s, since that engine goes by the byte counts", f.Spec.Name(), as.other.Name())
		}
	}
	for _, x := range order {
		text := x.what + ": " + strings.Join(most(format.Collapse(names[x]), 4, "more"), ", ")
		if x.cure != "" {
			text += "; cure: " + x.cure
		}
		p.Warnings = append(p.Warnings, text)
	}
	p.Warnings = append(p.Warnings, r.halfOverlays()...)
	if !e.ReadsIndex {
		if n, example := r.indexDecides(); n > 0 {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s come from other shards, since that engine ignores the index and takes the first file in byte order, such as %s", plural(n, "tensor"), example))
		}
	}
}

// halfOverlays warns of roles whose format is another in the dense layers than
// in the sparse ones, as an overlay leaves it that has skipped some.
func (r *Report) halfOverlays() []string {
	formats := map[quantize.Role][2]map[string]map[int]bool{}
	for _, f := range mainModel(r.census.Found) {
		if f.Layer < 0 || !f.Matrix() || f.Role != quantize.KVB && f.Role != quantize.Attn && f.Role != quantize.Out {
			continue
		}
		kinds, ok := formats[f.Role]
		if !ok {
			kinds = [2]map[string]map[int]bool{{}, {}}
			formats[f.Role] = kinds
		}
		k := kinds[one(r.config.SparseMLP[f.Layer])]
		if k[f.Spec.Name()] == nil {
			k[f.Spec.Name()] = map[int]bool{}
		}
		k[f.Spec.Name()][f.Layer] = true
	}
	var list []string
	for _, role := range quantize.Roles() {
		dense, sparse := formats[role][0], formats[role][1]
		if len(dense) != 1 || len(sparse) != 1 {
			continue
		}
		for d, in := range dense {
			for s := range sparse {
				if d != s {
					list = append(list, fmt.Sprintf("%s is %s in the dense layers %s and %s in the others: an overlay that has skipped them? It must hold all layers", role, d, format.Ranges(slices.Collect(maps.Keys(in))), s))
				}
			}
		}
	}
	return list
}

// indexDecides counts the tensors that a reader without the index takes from
// another shard of the directory, the first in byte order.
func (r *Report) indexDecides() (n int, example string) {
	held := 0
	for _, s := range r.snap.Shards {
		held += len(s.Tensors)
	}
	if held == len(r.snap.Names()) {
		return 0, "" // no name is held twice
	}
	first := map[string]*format.Shard{}
	for _, s := range r.snap.Shards {
		for _, t := range s.Tensors {
			if first[t.Name] == nil {
				first[t.Name] = s
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(first)) {
		switch t := r.snap.Tensor(name); {
		case t == nil: // scales that the index hides
		case t.Shard != first[name]:
			if n++; n == 1 {
				example = fmt.Sprintf("%s from %s instead of %s", name, filepath.Base(first[name].Path), filepath.Base(t.Shard.Path))
			}
		}
	}
	return n, example
}
