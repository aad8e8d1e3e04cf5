package quantize

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"hawkmoth/format"
)

// OverlayRequest says which tensors of a base are replaced, and by what.
type OverlayRequest struct {
	Roles  []Role         // the tensors of these roles in every layer,
	Match  *regexp.Regexp // and those whose name it finds; nil for none
	Choice Choice
	// MTP takes the MTP block's tensors too; without it they are taken only
	// where nothing else is asked for.
	MTP  bool
	Name string // prefix of the shards' names; found if empty
	Dir  string // a directory of its own; empty for inside the base
	// HeadRows is the rows of kv_b that belong to one attention head; errors
	// are given per head then.
	HeadRows       int
	MaxShard       int64 // bytes; 0 is DefaultMaxShard
	AllowAmbiguous bool  // as in PlanOptions
	// IndexOnly accepts an overlay that colibri cannot read in place, because
	// it takes names that the index leaves out for a part of the model.
	IndexOnly bool
}

// selection is the request as flags spell it.
func (r *OverlayRequest) selection() string {
	var parts []string
	for _, role := range r.Roles {
		parts = append(parts, "--role "+role.String())
	}
	if r.Match != nil {
		parts = append(parts, "--tensors "+r.Match.String())
	}
	return strings.Join(parts, " ")
}

// finds says whether a tensor is asked for.
func (r *OverlayRequest) finds(w Want) bool {
	role := w.Role
	if w.MTP && !w.exact() && slices.Contains(r.Roles, MTP) {
		role = MTP
	}
	return slices.Contains(r.Roles, role) || r.Match != nil && r.Match.MatchString(w.Name)
}

// Overlay is a plan whose shards replace tensors of a finished container.
type Overlay struct {
	Plan
	Request  OverlayRequest
	Name     string
	Base     *format.Snapshot
	FromBase bool   // the source is the base itself
	MTPLeft  []Want // of the MTP block, asked for but left as they are
	// Held is the overlay of the base that has these tensors already: this
	// one, finished by an earlier run.
	Held *OverlayInfo

	under []Found // what the items replace, in their order
}

// InPlace says whether the shards go into the base's own directory.
func (o *Overlay) InPlace() bool { return o.Request.Dir == "" }

// Dir is where the shards go.
func (o *Overlay) Dir() string {
	if o.InPlace() {
		return o.Base.Dir
	}
	return o.Request.Dir
}

// Replaced counts what the overlay takes the place of, by format.
func (o *Overlay) Replaced() (total Summary) {
	for i := range o.under {
		f := &o.under[i]
		total.add(&Item{Want: f.Want, Source: f.Source(), Spec: f.Spec})
	}
	return total
}

// NewOverlay decides an overlay of a base from headers alone. The values come
// from a checkpoint, or from the base itself if from is nil; both stay open as
// long as the overlay is used. Every problem is returned at once.
func NewOverlay(base, from *format.Snapshot, wants []Want, req OverlayRequest) (*Overlay, error) {
	p := &overlayPlanner{o: &Overlay{Request: req, Base: base, FromBase: from == nil}}
	source := from
	if source == nil {
		source = base
	}
	p.Plan = Plan{Recipe: &Recipe{Name: "overlay"}, Options: PlanOptions{MaxShard: req.MaxShard, AllowAmbiguous: req.AllowAmbiguous}, snap: source, EachTensor: true,
		Warnings: slices.Clone(base.Warnings)}
	if p.Options.MaxShard == 0 {
		p.Options.MaxShard = DefaultMaxShard
	}
	census, problems := TakeCensus(base, wants)
	if err := problems.Err(); err != nil {
		return nil, err
	}
	var err error
	if p.overlays, err = Overlays(base.Dir); err != nil {
		return nil, err
	}
	if from != nil {
		p.settle(wants)
	}
	p.choose(census)
	p.unchanged()
	p.ambiguous()
	p.families(census)
	p.lowMTP()
	p.losses()
	if err := p.problems.Err(); err != nil {
		return nil, err
	}
	if err := p.held(); err != nil {
		return nil, err
	}
	if err := p.name(); err != nil {
		return nil, err
	}
	p.Recipe.Shards = p.o.Name
	p.layOut()
	if p.o.InPlace() {
		p.readers()
	}
	p.o.Plan = p.Plan
	if err := p.problems.Err(); err != nil {
		return nil, err
	}
	return p.o, p.finish()
}

type overlayPlanner struct {
	planner
	o        *Overlay
	overlays []OverlayInfo // inside the base
	holders  []*OverlayInfo
}

func (p *overlayPlanner) fail(kind error, tensor, what, found, wanted string) {
	p.problems = append(p.problems, &format.Error{Kind: kind, Path: p.o.Base.Dir, Tensor: tensor, What: what, Found: found, Wanted: wanted})
}

// choose makes an item of every tensor that is asked for.
func (p *overlayPlanner) choose(census *Census) {
	req := &p.o.Request
	var exact []Want
	var found []*Found
	main := 0
	for i := range census.Found {
		f := &census.Found[i]
		switch {
		case !req.finds(f.Want):
		case req.Choice.Format.Info().Packed && f.exact():
			exact = append(exact, f.Want)
		default:
			found = append(found, f)
			if !f.MTP {
				main++
			}
		}
	}
	if len(found) > 0 {
		p.idle(found, exact)
	}
	for _, f := range found {
		if f.MTP && !req.MTP && main > 0 && !slices.Contains(req.Roles, MTP) {
			p.o.MTPLeft = append(p.o.MTPLeft, f.Want)
			continue
		}
		p.item(f)
	}
	switch {
	case len(p.Items)+len(p.problems) > 0:
	case len(exact) > 0:
		p.fail(format.ErrUsage, "", fmt.Sprintf("%s finds only what must stay exact: %s", req.selection(), collapse(exact)), "", "a pattern for other matrices, or f32, bf16 or f16")
	default:
		var names []string
		for i := range census.Found {
			names = append(names, census.Found[i].Name)
		}
		wanted := "a role that this model has"
		tied := slices.IndexFunc(census.Absent, func(w Want) bool { return w.Tied != "" && req.finds(w) })
		switch {
		case tied >= 0:
			wanted = tiedText(census.Absent[tied])
		case req.Match != nil:
			wanted = "a part of a name, such as " + strings.Join(nearest(req.Match.String(), names, 3), ", ")
		}
		p.fail(format.ErrUsage, "", req.selection()+" finds no tensor", "", wanted)
	}
}

// idle refuses the parts of a request that find nothing beside others that do.
func (p *overlayPlanner) idle(found []*Found, exact []Want) {
	none := func(what string, is func(*Found) bool) {
		if !slices.ContainsFunc(found, is) {
			p.fail(format.ErrUsage, "", what+" finds no tensor", "", "what this model has")
		}
	}
	for _, role := range p.o.Request.Roles {
		one := OverlayRequest{Roles: []Role{role}}
		if slices.ContainsFunc(exact, one.finds) {
			p.fail(format.ErrUsage, "", "--role "+role.String()+" must stay exact", "", "f32, bf16 or f16")
			continue
		}
		none("--role "+role.String(), func(f *Found) bool { return one.finds(f.Want) })
	}
	if p.o.Request.MTP {
		none("--mtp", func(f *Found) bool { return f.MTP })
	}
}

func collapse(wants []Want) string {
	var names []string
	for _, w := range wants {
		names = append(names, w.Name)
	}
	return strings.Join(format.Collapse(names), ", ")
}

func (p *overlayPlanner) item(f *Found) {
	if f.Tensor.Name != f.Name {
		p.fail(format.ErrUnsupported, f.Name, "is held inside "+f.Tensor.Name+", of which an overlay cannot replace a part", "", "a converted container as base")
		return
	}
	below, err := p.below(f)
	if err != nil {
		p.problems = append(p.problems, err)
		return
	}
	source := below.Source()
	if p.o.FromBase {
		_, err = CodecFor(below.Spec.Format)
		if err != nil {
			err = &format.Error{Kind: format.ErrUnsupported, Path: f.Tensor.Shard.Path, Tensor: f.Name, What: "cannot be read", Err: err}
		}
	} else {
		source, err = p.open(f.Want)
	}
	if err != nil {
		p.problems = append(p.problems, err)
		return
	}
	it := newItem(f.Want, source, p.o.Request.Choice)
	if _, err := CodecFor(below.Spec.Format); err == nil && !p.o.FromBase {
		it.Under = below.Source()
	}
	if f.Role == KVB {
		it.HeadRows = p.o.Request.HeadRows
	}
	p.Items = append(p.Items, it)
	p.o.under = append(p.o.under, below)
}

// below is a tensor of the base without the overlay that holds it now.
func (p *overlayPlanner) below(f *Found) (Found, error) {
	shard := filepath.Base(f.Tensor.Shard.Path)
	i := slices.IndexFunc(p.overlays, func(o OverlayInfo) bool {
		return slices.ContainsFunc(o.Shards, func(s FinishedShard) bool { return s.Name == shard })
	})
	if i < 0 {
		return *f, nil
	}
	info := &p.overlays[i]
	if !slices.Contains(p.holders, info) {
		p.holders = append(p.holders, info)
	}
	if info.State == OverlayMerging { // held refuses it
		return *f, nil
	}
	g, err := info.record.below(p.o.Base, f)
	if err != nil && (p.o.FromBase || p.o.InPlace()) {
		return g, err
	}
	if err != nil {
		return *f, nil
	}
	return g, nil
}

// below finds a tensor that the overlay replaces, in the base's own shard.
func (r *OverlayRecord) below(base *format.Snapshot, f *Found) (Found, error) {
	g := Found{Want: f.Want}
	for shard, byFormat := range r.Replaces {
		for text, names := range byFormat {
			if !slices.Contains(names, f.Name) {
				continue
			}
			id, gs, err := format.ParseFormat(text)
			if err != nil {
				return g, err
			}
			g.Spec = format.Spec{Format: id, Rows: f.Spec.Rows, Cols: f.Spec.Cols, Group: gs}
			for _, sh := range base.Shards {
				if filepath.Base(sh.Path) != shard {
					continue
				}
				g.Tensor, g.Scales = tensorOf(sh, f.Name), tensorOf(sh, f.Name+format.ScaleSuffix)
			}
		}
	}
	if g.Tensor != nil && g.Tensor.DType == format.DTypeFP8 {
		g.Scales = base.Tensor(f.Name + fp8ScaleSuffix)
	}
	if g.Tensor == nil || g.Tensor.Size != g.Spec.Bytes() || g.Spec.Format.Info().Packed && (g.Scales == nil || g.Scales.DType == format.DTypeF32 && g.Scales.Size != g.Spec.ScaleBytes()) {
		return g, &format.Error{Kind: format.ErrIncomplete, Path: base.Dir, Tensor: f.Name, What: "is no longer what the overlay " + r.Name + " has replaced"}
	}
	return g, nil
}

func tensorOf(s *format.Shard, name string) *format.Tensor {
	i := slices.IndexFunc(s.Tensors, func(t *format.Tensor) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return s.Tensors[i]
}

// unchanged refuses an overlay that would change nothing.
func (p *overlayPlanner) unchanged() {
	for i := range p.Items {
		if !p.o.FromBase || p.Items[i].Spec != p.o.under[i].Spec.Canonical() {
			return
		}
	}
	if len(p.Items) > 0 {
		p.fail(format.ErrUsage, "", p.o.Request.selection()+" is "+p.Items[0].Spec.Name()+" already", "", "another format, or --from CHECKPOINT to quantise anew")
	}
}

// families warns where only some layers of a role change.
func (p *overlayPlanner) families(census *Census) {
	taken := map[string]bool{}
	touched := map[Role]bool{}
	for i := range p.Items {
		taken[p.Items[i].Want.Name] = true
		touched[p.Items[i].Want.Role] = true
	}
	for _, role := range Roles() {
		if !touched[role] || slices.Contains(exactRoles, role) {
			continue
		}
		in, out := map[int]bool{}, map[int]bool{}
		for i := range census.Found {
			switch f := &census.Found[i]; {
			case f.Role != role || f.MTP || f.Layer < 0:
			case taken[f.Name]:
				in[f.Layer] = true
			case f.Spec != (format.Spec{Format: p.o.Request.Choice.Format, Rows: f.Spec.Rows, Cols: f.Spec.Cols, Group: p.o.Request.Choice.Group}):
				out[f.Layer] = true
			}
		}
		for layer := range in {
			delete(out, layer)
		}
		if len(in) > 0 && len(out) > 0 {
			p.warn("%s changes in layers %s and not in layers %s: engines that choose a path for the whole model by one layer's format may misread or refuse the mixture (--role %s takes them all)",
				role, format.Ranges(slices.Collect(maps.Keys(in))), format.Ranges(slices.Collect(maps.Keys(out))), role)
		}
	}
}

// losses says what is quantised a second time.
func (p *overlayPlanner) losses() {
	if !p.o.FromBase {
		p.requantised()
		return
	}
	names := map[string][]Want{}
	for i := range p.Items {
		if it := &p.Items[i]; it.Source.Packed() && !it.PassThrough {
			names[it.Source.Stored.Name()] = append(names[it.Source.Stored.Name()], it.Want)
		}
	}
	for _, from := range slices.Sorted(maps.Keys(names)) {
		p.warn("the source is the container itself: %s is decoded from %s and encoded again, so the loss of %s is added to the one that it has; --from CHECKPOINT starts from the original weights",
			collapse(names[from]), from, p.o.Request.Choice)
	}
}
