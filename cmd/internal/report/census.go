package report

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// takeCensus holds the snapshot against the tensors of its architecture and
// fills in everything that follows from that.
func (r *Report) takeCensus() {
	c := r.config
	r.wants = c.Arch.Tensors(c)
	r.Architecture = &Architecture{Name: c.Arch.Name, ModelType: c.ModelType, Layers: c.Layers, Hidden: c.Hidden, Heads: c.Heads,
		Experts: c.Experts, ExpertsPerToken: c.ExpertsPerToken, SharedExperts: c.SharedExperts, Vocabulary: c.VocabSize,
		Context: c.MaxPositions, MTPLayers: c.MTPLayers, Attention: c.Attention(), IndexTopK: c.IndexTopK, Tied: c.Tied}
	for l := range c.Layers {
		r.Architecture.DenseLayers += one(!c.Sparse(l))
	}
	var problems format.Problems
	r.census, problems = quantize.TakeCensus(r.snap, r.wants)
	r.completeness(problems)
	if _, err := quantize.Indexers(r.snap, r.wants); err != nil {
		r.problem(err)
	}
	r.unsupported()
	r.sizes()
	r.stamps()
	r.MTP = r.block(func(w quantize.Want) bool { return w.MTP && !w.SharedWithModel() })
	for _, err := range r.damaged {
		r.MTP.State = "damaged"
		r.MTP.Wrong = append(r.MTP.Wrong, err.Error())
	}
	r.Indexer = r.block(func(w quantize.Want) bool { return !w.MTP && w.InIndexer() })
	r.warnBlocks()
	r.warnExtra()
}

// held says whether some tensor of the snapshot is or contains a wanted one.
func (r *Report) held(w quantize.Want) bool {
	return r.snap.Tensor(w.Name) != nil || w.Fused != "" && r.snap.Tensor(w.Fused) != nil
}

// completeness counts tensors and layers. Of the census's problems it takes
// those of single tensors; what is missing it lists itself, layer by layer.
func (r *Report) completeness(problems format.Problems) {
	c := &Completeness{Found: len(r.census.Found), Extra: len(r.census.Extra), ExtraNames: []string{}}
	if c.Extra > 0 {
		c.ExtraNames = format.Collapse(r.census.Extra)
	}
	r.Completeness = c
	found := map[string]bool{}
	for i := range r.census.Found {
		f := &r.census.Found[i]
		found[f.Name] = true
		if f.Optional {
			c.Found--
		}
	}
	type layer struct{ wanted, held, good int }
	layers := map[int]*layer{}
	var missing []quantize.Want
	for _, w := range r.wants {
		if w.Optional {
			continue
		}
		c.Wanted++
		held := r.held(w)
		if !held {
			missing = append(missing, w)
		}
		if w.Layer < 0 {
			continue
		}
		l := layers[w.Layer]
		if l == nil {
			l = &layer{}
			layers[w.Layer] = l
		}
		l.wanted++
		l.held += one(held)
		l.good += one(found[w.Name])
	}
	c.Missing = len(missing)
	c.Complete = rangesOf(layers, func(l *layer) bool { return l.good == l.wanted })
	c.Incomplete = rangesOf(layers, func(l *layer) bool { return l.held > 0 && l.good < l.wanted })
	c.Absent = rangesOf(layers, func(l *layer) bool { return l.held == 0 })
	if !r.unfinished { // from which all of it follows
		r.problem(quantize.MissingProblems(r.snap, r.wants, missing))
	}
	if len(missing) > 0 && r.Origin != nil && !r.unfinished {
		r.Warnings = append(r.Warnings, quantize.ManifestName+" records a conversion that may not have been finished: the same convert command continues it")
	}
	for _, err := range problems {
		var e *format.Error
		c.Wrong++
		if errors.As(err, &e) && r.inMTP(e.Tensor) {
			r.damaged = append(r.damaged, err)
			continue
		}
		r.problem(err)
	}
}

// inMTP says whether a tensor belongs to the MTP block, which run reads for drafts only.
func (r *Report) inMTP(name string) bool {
	name, _, _ = strings.Cut(name, " in ") // a slice of fused experts
	return slices.ContainsFunc(r.wants, func(w quantize.Want) bool { return w.MTP && (w.Name == name || w.Fused == name) })
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func rangesOf[T any](set map[int]T, is func(T) bool) string {
	var list []int
	for n, v := range set {
		if is(v) {
			list = append(list, n)
		}
	}
	return format.Ranges(list)
}

// unsupported asks the backend about every matrix of the main model, as
// loading it does.
func (r *Report) unsupported() {
	cpu := runtime.NewCPU(1)
	for _, f := range r.census.Readings() {
		if f.MTP {
			continue
		}
		if err := cpu.Supports(runtime.KindOf(f.Want), f.Spec); err != nil {
			r.problem(&format.Error{Kind: format.ErrUnsupported, Path: f.Tensor.Shard.Path, Tensor: f.Name, What: "cannot run", Err: err})
		}
	}
}

// bytesOf is the codes of a found tensor and its scales as they are stored.
func bytesOf(f *quantize.Found) int64 {
	n := f.Spec.Bytes()
	if f.Scales != nil {
		n += f.Scales.Size
	}
	return n
}

func paramsOf(f *quantize.Found) int64 { return int64(f.Spec.Rows) * int64(f.Spec.Cols) }

// roleOf is the role under which a tensor is added up.
func roleOf(w quantize.Want) quantize.Role {
	if w.MTP {
		return quantize.MTP
	}
	return w.Role
}

func (r *Report) sizes() {
	formats, byRole := sums{}, map[quantize.Role]*RoleSize{}
	roleFormats := map[quantize.Role]counts{}
	var p Parameters
	var experts, expertBytes int64
	for i := range r.census.Found {
		f := &r.census.Found[i]
		n, bytes, role := paramsOf(f), bytesOf(f), roleOf(f.Want)
		r.Total.add(n, bytes)
		formats.add(f.Spec.Name(), f.Spec.Group, n, bytes)
		if byRole[role] == nil {
			byRole[role], roleFormats[role] = &RoleSize{Role: role.String()}, counts{}
		}
		byRole[role].add(n, bytes)
		roleFormats[role][f.Spec.Name()]++
		if f.Spec.Format.Info().Packed {
			p.Quantised += n
		}
		switch {
		case f.MTP:
			p.MTP += n
			continue
		case f.Role == quantize.Expert:
			experts += n
			expertBytes += bytes
		case f.Role == quantize.Embed && !r.headIsEmbed():
			p.Active += int64(f.Spec.Cols)
			p.ActiveBytes += bytes / int64(f.Spec.Rows)
		default:
			p.Active += n
			p.ActiveBytes += bytes
		}
		p.Total += n
	}
	share, of := int64(r.config.ExpertsPerToken), int64(max(r.config.Experts, 1))
	p.Active += experts / of * share
	p.ActiveBytes += expertBytes / of * share
	r.Parameters, r.Formats = &p, formats.list()
	for _, role := range quantize.Roles() {
		if s := byRole[role]; s != nil {
			s.Formats = roleFormats[role].list()
			r.Roles = append(r.Roles, *s)
		}
	}
}

// headIsEmbed says whether the embedding is read whole, as the head.
func (r *Report) headIsEmbed() bool {
	return slices.ContainsFunc(r.census.Absent, func(w quantize.Want) bool { return w.Tied != "" })
}

func (r *Report) stamps() {
	s := &r.Stamps
	var example *quantize.Found
	others := 0
	several := map[format.Spec]bool{} // whether bytes fit another reading, of few shapes for many tensors
	for i := range r.census.Found {
		f := &r.census.Found[i]
		if f.Tensor.DType != format.DTypeU8 {
			continue
		}
		s.Packed++
		stamped := r.snap.Stamped(f.Name)
		s.Stamped += one(stamped)
		ambiguous, known := several[f.Spec]
		if !known {
			ambiguous = len(r.snap.Candidates(f.Name, f.Spec.Rows, f.Spec.Cols)) > 1
			several[f.Spec] = ambiguous
		}
		if !ambiguous {
			continue
		}
		s.Ambiguous++
		if stamped {
			_, decisive := format.Ambiguous(f.Spec)
			s.Decisive += one(decisive)
			continue
		}
		s.Unconfirmed++
		if f.Spec.Format == format.Int4Grouped {
			continue // the census says what it made of these
		}
		others++
		if example == nil {
			example = f
		}
	}
	for _, u := range r.census.Uncertain {
		r.Warnings = append(r.Warnings, u.String())
	}
	if example != nil {
		readings := names(r.snap.Candidates(example.Name, example.Spec.Rows, example.Spec.Cols))
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s without a stamp can be read as %s; read as %s: %s",
			plural(others, "tensor"), strings.Join(readings, " or "), example.Spec.Name(), example.Name))
	}
}

func names(specs []format.Spec) []string {
	list := make([]string, len(specs))
	for i, s := range specs {
		list[i] = s.Name()
	}
	return list
}

// block collects an optional part of the model.
func (r *Report) block(in func(quantize.Want) bool) *Block {
	b := &Block{State: "none", Formats: []FormatCount{}, Missing: []string{}, Wrong: []string{}}
	layers, formats := map[int]bool{}, counts{}
	found := 0
	for i := range r.census.Found {
		if f := &r.census.Found[i]; in(f.Want) {
			found++
			layers[f.Layer] = true
			if f.Matrix() {
				formats[f.Spec.Name()]++
			}
		}
	}
	var missing []string
	for _, w := range r.census.Absent {
		if in(w) {
			missing = append(missing, w.Name)
			layers[w.Layer] = true
		}
	}
	if len(missing) > 0 {
		b.Missing = format.Collapse(missing)
	}
	b.Layers, b.Formats = format.Ranges(slices.Collect(maps.Keys(layers))), formats.list()
	switch {
	case found > 0 && len(missing) == 0:
		b.State = "present"
	case found > 0:
		b.State = "partial"
	case len(missing) > 0:
		b.State = "absent"
	}
	return b
}

func (r *Report) warnBlocks() {
	warn := func(text string, args ...any) { r.Warnings = append(r.Warnings, fmt.Sprintf(text, args...)) }
	if n := len(r.MTP.Wrong); n > 0 {
		warn("the MTP block is damaged and of no use; run works without it and its drafts, but it makes the exit code of inspect %d: %s", r.damageCode(), strings.Join(most(r.MTP.Wrong, 4, "more"), "; "))
	}
	if r.MTP.State == "partial" {
		warn("the MTP block is incomplete and of no use: missing %s", strings.Join(r.MTP.Missing, ", "))
	}
	var rough []string
	for i := range r.census.Found {
		f := &r.census.Found[i]
		if f.MTP && quantize.RoughForMTP(f.Spec.Format) {
			rough = append(rough, f.Name)
		}
	}
	if len(rough) > 0 {
		warn("the MTP block has %s; --verify counts dead halves", quantize.RoughMTP(rough))
	}
	switch r.Indexer.State {
	case "absent":
		warn("no indexer weights: attention is dense; beyond %d tokens that is not the model as trained", r.config.IndexTopK)
	}
	if r.config.Tied && !r.headIsEmbed() {
		warn("tie_word_embeddings is true, yet lm_head.weight is there: it is used")
	}
}

// warnExtra names tensors that the model does not read. Layers behind the last
// are likely an MTP block, FP8 scales without codes a damaged export.
func (r *Report) warnExtra() {
	var extra, behind, orphans []string
	last := r.config.Layers + r.config.MTPLayers
	for _, name := range r.census.Extra {
		_, rest, _ := strings.Cut(name, "layers.")
		number, _, _ := strings.Cut(rest, ".")
		n, err := strconv.Atoi(number)
		switch {
		case strings.HasSuffix(name, "_scale_inv"):
			orphans = append(orphans, name)
		case err == nil && n >= last:
			behind = append(behind, name)
		default:
			extra = append(extra, name)
		}
	}
	for _, list := range []struct {
		names []string
		what  string
	}{
		{orphans, "scales without FP8 weights are ignored"},
		{behind, "tensors behind the last layer are ignored; an MTP block needs num_nextn_predict_layers in config.json"},
		{extra, "tensors that are not the model's are ignored"},
	} {
		if len(list.names) > 0 {
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s: %s", list.what, strings.Join(most(format.Collapse(list.names), 8, "more names"), ", ")))
		}
	}
}

// plain adds up a snapshot without a model: element types instead of formats.
func (r *Report) plain() {
	formats := sums{}
	for _, name := range r.snap.Names() {
		t := r.snap.Tensor(name)
		base, isScale := strings.CutSuffix(name, format.ScaleSuffix)
		if w := r.snap.Tensor(base); isScale && w != nil && w.DType == format.DTypeU8 {
			continue
		}
		label, params, bytes := string(t.DType), t.Elements(), t.Size
		if q := r.snap.Tensor(name + format.ScaleSuffix); t.DType == format.DTypeU8 && q != nil {
			label, params, bytes = "packed", 0, t.Size+q.Size
			r.Stamps.Packed++
			r.Stamps.Stamped += one(r.snap.Stamped(name))
		}
		r.Total.add(params, bytes)
		formats.add(label, 0, params, bytes)
	}
	if r.Stamps.Packed > 0 {
		r.Total.Parameters, r.Total.BitsPerWeight = 0, 0
	}
	r.Formats = formats.list()
}

// most keeps the first n lines and says how many more there are.
func most(lines []string, n int, what string) []string {
	if len(lines) <= n {
		return lines
	}
	return append(slices.Clone(lines[:n]), fmt.Sprintf("… and %d %s", len(lines)-n, what))
}
