package quantize

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"hawkmoth/format"
)

// Item is one tensor of a plan: where it comes from and what it becomes.
type Item struct {
	Want   Want
	Source *Source
	// Spec is what is written. A tensor without rows to quantise is one row of
	// plain floats.
	Spec format.Spec
	// PassThrough says that the source's codes and scales go through unchanged.
	PassThrough bool
	// Instead says why the format has another name than the recipe asked for.
	Instead string
	// HeadRows is the rows of one attention head, 0 where errors per head say nothing.
	HeadRows int
	// Under is what an overlay replaces, where the values come from elsewhere.
	Under *Source
}

// Params is the number of weights.
func (it *Item) Params() int64 { return int64(it.Spec.Rows) * int64(it.Spec.Cols) }

// Bytes is what the tensor and its scales take in the container.
func (it *Item) Bytes() int64 { return it.Spec.Bytes() + it.Spec.ScaleBytes() }

// Packed says whether the tensor is written as codes and scales.
func (it *Item) Packed() bool { return it.Spec.Format.Info().Packed }

// role is the role under which reports count the item: the MTP block's
// matrices are one row.
func (it *Item) role() Role {
	if it.Want.MTP && !it.Want.exact() {
		return MTP
	}
	return it.Want.Role
}

func (it *Item) entries() []format.Entry {
	if !it.Packed() {
		return []format.Entry{{Name: it.Want.Name, DType: it.Spec.Format.Info().DType, Shape: it.Want.Shape}}
	}
	return []format.Entry{
		{Name: it.Want.Name, DType: format.DTypeU8, Shape: []int{int(it.Spec.Bytes())}},
		{Name: it.Want.Name + format.ScaleSuffix, DType: format.DTypeF32, Shape: []int{int(it.Spec.Scales())}},
	}
}

// fp8ScaleSuffix names the tensor with the scales of an FP8 matrix.
const fp8ScaleSuffix = "_scale_inv"

// FileCopy is a file that goes into the container as it is.
type FileCopy struct {
	Name string `json:"name"`
	Size int64  `json:"bytes"`
}

// companions are the files beside the weights and what is lost without them;
// those with nothing to lose are copied where they exist.
var companions = []struct{ name, lost string }{
	{"config.json", "the container cannot be loaded"},
	{"tokenizer.json", "the container takes token ids only, no text"},
	{"tokenizer_config.json", "the tokenizer's defaults and chat template are unknown"},
	{"generation_config.json", "the stop tokens come from config.json and the tokenizer alone"},
	{"chat_template.jinja", ""}, {"chat_template.json", ""}, {"special_tokens_map.json", ""}, {"added_tokens.json", ""},
	{"vocab.json", ""}, {"merges.txt", ""}, {"tokenizer.model", ""}, {"LICENSE", ""},
}

// PlanOptions are the consents and limits of a plan.
type PlanOptions struct {
	MaxShard       int64 // bytes of a shard; 0 is DefaultMaxShard
	AllowAmbiguous bool  // write what only its stamp tells from another format
	AllowBigger    bool  // quantise even if that makes nothing smaller
	// AllowRequantize converts a converted container, from its decoded values.
	AllowRequantize bool
}

// DefaultMaxShard is the size at which a shard is full, in bytes.
const DefaultMaxShard = 5_000_000_000

// Plan is everything that a conversion will do, decided from headers alone.
type Plan struct {
	Recipe   *Recipe
	Options  PlanOptions
	Items    []Item // in reading order
	Shards   []OutShard
	Files    []FileCopy
	Dropped  []Want // tensors of the checkpoint that the recipe leaves out
	Warnings []string
	// EachTensor makes Verify give the error of every tensor.
	EachTensor bool

	snap *format.Snapshot
}

// NewPlan decides a conversion of the tensors that an architecture wants,
// without reading a weight. It returns every problem of the whole job at once.
func NewPlan(snap *format.Snapshot, wants []Want, recipe *Recipe, opts PlanOptions) (*Plan, error) {
	if opts.MaxShard == 0 {
		opts.MaxShard = DefaultMaxShard
	}
	p := &planner{Plan: Plan{Recipe: recipe, Options: opts, Warnings: slices.Clone(snap.Warnings), snap: snap}}
	if snap.Converted() && !opts.AllowRequantize {
		return nil, &format.Error{Kind: format.ErrUsage, Path: snap.Dir, What: "is a converted container already",
			Wanted: "the checkpoint that it was made from; or convert overlay, which replaces some of its tensors; or --allow-requantize, which adds a second loss to the first"}
	}
	p.settle(wants)
	if opts.MaxShard < 0 {
		p.fail(format.ErrUsage, "", "largest shard", fmt.Sprint(opts.MaxShard), "a number of bytes above 0")
	}
	p.items(wants)
	p.unknown(wants)
	p.ambiguous()
	p.mtp(wants)
	p.indexer(wants)
	p.sizes()
	p.requantised()
	p.files()
	if err := p.problems.Err(); err != nil {
		if p.cures == len(p.problems) {
			p.refused.error = err
			return nil, &p.refused
		}
		return nil, err
	}
	p.layOut()
	return &p.Plan, nil
}

// Refused is the problems of a plan that other flags would allow.
type Refused struct {
	error
	Tensors []string // overrides, as --tensor spells them
	Bigger  bool     // PlanOptions.AllowBigger
}

func (r *Refused) Unwrap() error { return r.error }

type planner struct {
	Plan
	problems format.Problems
	refused  Refused
	cures    int               // problems that refused cures
	settled  map[string]*Found // packed matrices of the source as its census reads them
}

// settle reads the packed matrices of a source: a census knows the group sizes
// that the bytes of one matrix do not tell.
func (p *planner) settle(wants []Want) {
	if !p.snap.Converted() {
		return
	}
	census, _ := TakeCensus(p.snap, wants) // what is wrong shows when it is opened
	p.settled = map[string]*Found{}
	for i := range census.Found {
		if f := &census.Found[i]; f.Tensor.DType == format.DTypeU8 {
			p.settled[f.Name] = f
		}
	}
	for _, r := range census.Uncertain {
		p.warn("%s", r)
	}
}

// open is OpenSource as the census reads it.
func (p *planner) open(w Want) (*Source, error) {
	f := p.settled[w.Name]
	if f == nil {
		if p.settled != nil { // say what the census said
			if _, err := find(p.snap, w); err != nil {
				return nil, err
			}
		}
		return OpenSource(p.snap, w)
	}
	if _, err := CodecFor(f.Spec.Format); err != nil {
		return nil, &format.Error{Kind: format.ErrUnsupported, Path: f.Tensor.Shard.Path, Tensor: w.Name, What: "cannot be read", Err: err}
	}
	return f.Source(), nil
}

// requantised says what is quantised a second time.
func (p *planner) requantised() {
	names := map[string][]string{}
	for i := range p.Items {
		if it := &p.Items[i]; it.Source.Packed() && !it.PassThrough {
			from := it.Source.Stored.Name()
			names[from] = append(names[from], it.Want.Name)
		}
	}
	for _, from := range slices.Sorted(maps.Keys(names)) {
		p.warn("decoded from %s and encoded again, which adds a second loss to the first: %s", from, strings.Join(format.Collapse(names[from]), ", "))
	}
}

func (p *planner) fail(kind error, tensor, what, found, wanted string) {
	p.problems = append(p.problems, &format.Error{Kind: kind, Path: p.snap.Dir, Tensor: tensor, What: what, Found: found, Wanted: wanted})
}

func (p *planner) warn(text string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(text, args...))
}

// sourceOf is the tensor that holds a wanted one, itself or fused; nil if absent.
func sourceOf(snap *format.Snapshot, w Want) *format.Tensor {
	if t := snap.Tensor(w.Name); t != nil || w.Fused == "" {
		return t
	}
	return snap.Tensor(w.Fused)
}

// items decides every wanted tensor.
func (p *planner) items(wants []Want) {
	var missing []Want
	used := map[*Override]int{}
	census := map[format.DType]*unsupported{}
	for _, w := range wants {
		choice, override := p.Recipe.Choose(w)
		t := sourceOf(p.snap, w)
		if override != nil && (t != nil || !w.Optional) {
			used[override]++
		}
		switch {
		case choice.Drop:
			if t != nil {
				p.Dropped = append(p.Dropped, w)
			}
			continue
		case t == nil:
			if !w.Optional {
				missing = append(missing, w)
			}
			continue
		case w.Tied != "":
			p.warn("%s is there although the embeddings are tied: it is converted and used", w.Name)
		}
		source, err := p.open(w)
		switch {
		case errors.Is(err, format.ErrUnsupported):
			if census[t.DType] == nil {
				census[t.DType] = &unsupported{example: err}
			}
			census[t.DType].names = append(census[t.DType].names, w.Name)
			continue
		case err != nil:
			p.problems = append(p.problems, err)
			continue
		}
		p.Items = append(p.Items, newItem(w, source, choice))
	}
	p.problems = append(p.problems, MissingProblems(p.snap, wants, missing)...)
	for _, dtype := range slices.Sorted(maps.Keys(census)) {
		u := census[dtype]
		p.problems = append(p.problems, &format.Error{Kind: format.ErrUnsupported, Path: p.snap.Dir,
			What: fmt.Sprintf("%d tensors of dtype %s, such as", len(u.names), dtype), Err: u.example})
	}
	for _, b := range p.Recipe.bits {
		if !slices.ContainsFunc(p.Items, func(it Item) bool { return b.takes(it.Want) }) {
			p.fail(format.ErrUsage, "", "--"+b.Name+" matches no tensor", "a model without "+b.Doc, "")
		}
	}
	for i := range p.Recipe.Overrides {
		o := &p.Recipe.Overrides[i]
		if used[o] == 0 {
			p.unmatched(o, wants)
		}
	}
}

type unsupported struct {
	names   []string
	example error
}

func newItem(w Want, source *Source, c Choice) Item {
	it := Item{Want: w, Source: source, Spec: format.Spec{Format: c.Format, Rows: source.Rows, Cols: source.Cols, Group: c.Group}}
	if plain := it.Spec.Canonical(); plain != it.Spec {
		it.Spec = plain
		it.Instead = fmt.Sprintf("a row of %d columns has one group: the same bytes as %s", source.Cols, c)
	}
	it.PassThrough = source.Scales != nil && it.Spec == source.Stored
	return it
}

// unmatched reports an override that decided nothing.
func (p *planner) unmatched(o *Override, wants []Want) {
	var names, exact []string
	matched := 0
	for _, w := range wants {
		if sourceOf(p.snap, w) == nil {
			continue
		}
		names = append(names, w.Name)
		if !o.Match.MatchString(w.Name) {
			continue
		}
		matched++
		if c, _ := p.Recipe.Choose(w); w.exact() && !c.Drop {
			exact = append(exact, w.Name)
		}
	}
	what := "override " + o.String()
	tied := tiedTo(p.snap, wants, o.Match.MatchString)
	switch {
	case matched == 0 && tied != "":
		p.fail(format.ErrUsage, "", what+" matches no tensor", "", tied)
	case len(exact) > 0 && o.Choice.Format.Info().Packed:
		p.fail(format.ErrUsage, "", what+" would quantise what must stay exact: "+strings.Join(format.Collapse(exact), ", "), "", "a pattern for other matrices, or f32, bf16 or f16")
	case matched > 0:
		p.fail(format.ErrUsage, "", what, fmt.Sprintf("%d tensors that the recipe leaves out or a later override decides", matched), "a tensor that it decides")
	default:
		p.fail(format.ErrUsage, "", what+" matches no tensor", "", "a part of a name, such as "+strings.Join(nearest(o.Match.String(), names, 3), ", "))
	}
}

// tiedTo says which tensor is meant by a pattern that finds only a head which is
// not there since the embeddings are tied; empty for another pattern.
func tiedTo(snap *format.Snapshot, wants []Want, finds func(name string) bool) string {
	i := slices.IndexFunc(wants, func(w Want) bool { return w.Tied != "" && finds(w.Name) && sourceOf(snap, w) == nil })
	if i < 0 {
		return ""
	}
	return tiedText(wants[i])
}

func tiedText(head Want) string {
	return head.Tied + ", which is the head too: the embeddings are tied"
}

// unknown reports tensors that no part of the architecture reads, and FP8
// scales without a weight.
func (p *planner) unknown(wants []Want) {
	known := map[string]bool{}
	last := -1
	for _, w := range wants {
		known[w.Name] = true
		if w.Fused != "" {
			known[w.Fused] = true
		}
		last = max(last, w.Layer)
	}
	var strangers, beyond, orphans, ignored []string
	for _, name := range p.snap.Names() {
		base, scale := strings.CutSuffix(name, fp8ScaleSuffix)
		packed, isPair := strings.CutSuffix(name, format.ScaleSuffix)
		codes := p.snap.Tensor(packed)
		switch t := p.snap.Tensor(base); {
		case known[name], isPair && known[packed] && p.settled != nil && (codes == nil || codes.DType == format.DTypeU8):
		case scale && t != nil && t.DType == format.DTypeFP8:
		case scale:
			orphans = append(orphans, name)
		case strings.HasSuffix(name, ".rotary_emb.inv_freq"): // computed from config.json
			ignored = append(ignored, name)
		case layerOf(name) > last:
			beyond = append(beyond, name)
		default:
			strangers = append(strangers, name)
		}
	}
	for _, list := range []struct {
		names []string
		what  string
	}{{orphans, "scales without an FP8 weight are left out: %s"}, {ignored, "left out, computed from config.json: %s"}} {
		if len(list.names) > 0 {
			p.warn(list.what, strings.Join(format.Collapse(list.names), ", "))
		}
	}
	for _, line := range format.Collapse(strangers) {
		p.fail(format.ErrUnsupported, line, "not a tensor of this architecture", "", "")
	}
	for _, line := range format.Collapse(beyond) {
		p.fail(format.ErrUnsupported, line, "behind the last layer that config.json announces: an MTP block needs num_nextn_predict_layers", "", "")
	}
}

// layerOf is N of "…layers.N.…", or -1.
func layerOf(name string) int {
	_, rest, _ := strings.Cut(name, "layers.")
	n := -1
	if _, err := fmt.Sscanf(rest, "%d.", &n); err != nil {
		return -1
	}
	return n
}

// ambiguous refuses what a reader without stamps takes for another format.
func (p *planner) ambiguous() {
	type pair struct {
		what   string
		other  format.Spec
		expert bool
	}
	found := map[pair][]string{}
	var order []pair
	claims := 0
	for i := range p.Items {
		it := &p.Items[i]
		other, yes := format.Ambiguous(it.Spec)
		if !yes || !it.Packed() {
			continue
		}
		claims++
		expert := it.Want.Role == Expert && it.Spec.Format == format.FP8 // colibri reads experts without their stamps
		if p.Options.AllowAmbiguous && !expert {
			continue
		}
		what := fmt.Sprintf("%s with rows of %d columns", it.Spec.Name(), it.Spec.Cols)
		if it.Spec.Format == format.FP8 {
			what = it.Spec.String()
		}
		k := pair{what, format.Spec{Format: other.Format, Group: other.Group}, expert}
		if found[k] == nil {
			order = append(order, k)
		}
		found[k] = append(found[k], it.Want.Name)
	}
	if p.Options.AllowAmbiguous && claims > format.MaxClaims {
		p.fail(format.ErrUsage, "", "matrices that only a stamp tells apart, more than colibri reads", fmt.Sprint(claims), fmt.Sprintf("at most %d, by another format or group size", format.MaxClaims))
	}
	for _, k := range order {
		wanted := "another format or group size, or --allow-ambiguous to rely on the stamp"
		if k.expert {
			wanted = "another format: stamps of routed experts are not read everywhere"
		}
		p.fail(format.ErrUsage, "", fmt.Sprintf("%s is taken for %s where stamps are not read: %s", k.what, k.other.Name(), strings.Join(format.Collapse(found[k]), ", ")), "", wanted)
		if k.other.Format.Info().Write {
			p.cures++
			for _, pattern := range patterns(found[k]) {
				p.refused.Tensors = append(p.refused.Tensors, pattern+"="+k.other.Name())
			}
		}
	}
}

// patterns are regular expressions that find names, one for all that differ in
// numbers only.
func patterns(names []string) []string {
	set := map[string]bool{}
	for _, name := range names {
		parts := strings.Split(strings.TrimSuffix(name, ".weight"), ".")
		if i := slices.Index(parts, "layers"); i > 0 {
			parts = parts[i:]
		}
		for i, part := range parts {
			if i > 0 && strings.Trim(part, "0123456789") == "" {
				parts[i] = "[0-9]+"
			}
		}
		set[strings.Join(parts, ".")] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// sizes refuses a quantisation that makes nothing smaller and warns of one
// that leaves much as it was.
func (p *planner) sizes() {
	var in, out, params, packed int64
	for i := range p.Items {
		it := &p.Items[i]
		params += it.Params()
		if !it.Packed() {
			continue
		}
		packed += it.Params()
		if !it.PassThrough {
			in += it.Source.Bytes()
			out += it.Bytes()
		}
	}
	if out >= in && in > 0 && !p.Options.AllowBigger && len(p.problems) == 0 { // else it is not the whole plan
		p.fail(format.ErrUsage, "", "the quantised tensors would not be smaller than the source", format.Bytes(out), "less than "+format.Bytes(in)+", or --allow-bigger")
		p.refused.Bigger = true
		p.cures++
	}
	if packed > 0 && float64(packed) < 0.9*float64(params) {
		p.warn("only %.1f %% of the parameters are quantised", 100*float64(packed)/float64(params))
	}
}

// mtp says what is known to go wrong with multi-token-prediction blocks.
func (p *planner) mtp(wants []Want) {
	var absent []string
	present := 0
	for _, w := range wants {
		if c, _ := p.Recipe.Choose(w); !w.MTP || c.Drop || w.SharedWithModel() {
			continue
		}
		if sourceOf(p.snap, w) == nil {
			absent = append(absent, w.Name)
		} else {
			present++
		}
	}
	switch {
	case present == 0 && len(absent) > 0:
		p.warn("the checkpoint has no MTP block, though config.json announces one")
	case len(absent) > 0:
		p.warn("the MTP block is incomplete and of no use: missing %s", strings.Join(format.Collapse(absent), ", "))
	}
	p.lowMTP()
}

// indexer says what is wrong with the indexers that the recipe keeps.
func (p *planner) indexer(wants []Want) {
	kept := slices.DeleteFunc(slices.Clone(wants), func(w Want) bool {
		c, _ := p.Recipe.Choose(w)
		return c.Drop
	})
	present, err := Indexers(p.snap, kept)
	if err != nil {
		p.problems = append(p.problems, err)
	}
	if !present && slices.ContainsFunc(kept, func(w Want) bool { return !w.MTP && w.InIndexer() }) {
		p.warn("the checkpoint has no indexer: the container's attention will be dense")
	}
}

// lowMTP warns of one scale a row at few bits in the MTP block.
func (p *planner) lowMTP() {
	var low []string
	for i := range p.Items {
		it := &p.Items[i]
		if it.Want.MTP && it.Instead == "" && RoughForMTP(it.Spec.Format) {
			low = append(low, it.Want.Name)
		}
	}
	if len(low) > 0 {
		p.warn("the MTP block gets %s", RoughMTP(low))
	}
}

// files lists the companions, and what their absence costs.
func (p *planner) files() {
	for _, c := range companions {
		data, err := p.snap.ReadFile(c.name)
		switch {
		case err == nil:
			p.Files = append(p.Files, FileCopy{c.name, int64(len(data))})
		case !errors.Is(err, fs.ErrNotExist):
			p.problems = append(p.problems, err)
		case c.lost != "":
			p.warn("%s is missing beside the checkpoint: %s", c.name, c.lost)
		}
	}
}
