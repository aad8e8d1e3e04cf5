package report

import (
	"context"
	"errors"
	"io"
	goruntime "runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

// Against is how far the values are from those of a checkpoint. An error is
// the relative RMS error sqrt(Σ(w−w')²/Σw²), w the checkpoint's.
type Against struct {
	Checkpoint string      `json:"checkpoint"`
	Tensors    int         `json:"tensors"`    // that were compared
	Differs    []string    `json:"differs"`    // tensors that have another shape in the checkpoint, or cannot be read there
	Missing    []string    `json:"missing"`    // the checkpoint does not have; names that differ in numbers only share a line
	Unreadable []string    `json:"unreadable"` // what keeps a tensor from being compared
	Roles      []RoleError `json:"roles"`

	differ, missing int // tensors
}

// Err is nil if every tensor was compared.
func (a *Against) Err(path string) error {
	e := &format.Error{Kind: format.ErrIncomplete, Path: path, What: "--against " + a.Checkpoint + ": not everything could be compared"}
	var parts []string
	if a.differ > 0 {
		e.Kind, e.What = format.ErrCorrupt, "--against "+a.Checkpoint+": not the checkpoint of this model"
		parts = append(parts, plural(a.differ, "tensor")+" of other shapes")
	}
	if a.missing > 0 {
		parts = append(parts, plural(a.missing, "tensor")+" not in the checkpoint")
	}
	if n := len(a.Unreadable); n > 0 {
		parts = append(parts, plural(n, "tensor")+" that cannot be compared")
	}
	if len(parts) == 0 {
		return nil
	}
	e.Found = strings.Join(parts, ", ")
	return e
}

// RoleError is the error of all tensors of a role; everything in the MTP block
// is "mtp".
type RoleError struct {
	Role        string  `json:"role"`
	Tensors     int     `json:"tensors"`
	Error       float64 `json:"error"`
	Worst       float64 `json:"worst"`
	WorstTensor string  `json:"worst_tensor"`
}

// pair is two tensors to compare.
type pair struct {
	a, b *quantize.Source
	diff quantize.Difference
	err  error
}

// compare fills in the differences of all pairs. What is wrong with a tensor
// is in its pair; the error is about the run.
func compare(ctx context.Context, pairs []pair, threads int, progress *cli.Progress) error {
	if threads < 1 {
		threads = goruntime.GOMAXPROCS(0)
	}
	g, ctx := errgroup.WithContext(ctx)
	queue := make(chan *pair)
	g.Go(func() error {
		defer close(queue)
		for i := range pairs {
			select {
			case queue <- &pairs[i]:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range threads {
		g.Go(func() error {
			var c quantize.Comparer
			for p := range queue {
				p.diff, p.err = c.Compare(p.a, p.b, progress.Add)
			}
			return nil
		})
	}
	return g.Wait()
}

// AgainstBytes is how many bytes AddAgainst tells of.
func (r *Report) AgainstBytes() int64 {
	var n int64
	if r.census != nil {
		for i := range r.census.Found {
			n += r.census.Found[i].Spec.Bytes()
		}
	}
	return n
}

// AddAgainst compares every tensor with the checkpoint's and fills in Against;
// the errors show in Layers and Tensors that are added later. Progress may be
// nil. It is format.ErrUsage without a known model.
func (r *Report) AddAgainst(ctx context.Context, checkpoint *format.Snapshot, threads int, progress *cli.Progress) error {
	if err := r.needsModel("--against"); err != nil {
		return err
	}
	a := &Against{Checkpoint: checkpoint.Dir, Differs: []string{}, Missing: []string{}, Unreadable: []string{}, Roles: []RoleError{}}
	var missing []string
	var pairs []pair
	var found []*quantize.Found
	theirs, refused := quantize.TakeCensus(checkpoint, r.wants)
	sources := map[string]*quantize.Found{}
	for i := range theirs.Found {
		sources[theirs.Found[i].Name] = &theirs.Found[i]
	}
	wrong := map[string]error{}
	for _, err := range refused {
		var e *format.Error
		if errors.As(err, &e) {
			name, _, _ := strings.Cut(e.Tensor, " in ") // a slice of fused experts
			wrong[name] = err
		}
	}
	var differ []error
	for i := range r.census.Found {
		f := &r.census.Found[i]
		if s := sources[f.Name]; s != nil {
			pairs = append(pairs, pair{a: s.Source(), b: f.Source()})
			found = append(found, f)
			continue
		}
		if err := wrong[f.Name]; err != nil {
			differ = append(differ, err)
			continue
		}
		missing = append(missing, f.Name)
	}
	if len(pairs)+len(differ) == 0 {
		return &format.Error{Kind: format.ErrUsage, Path: checkpoint.Dir, What: "--against: not a checkpoint of this model: it has none of its tensors"}
	}
	if err := compare(ctx, pairs, threads, progress); err != nil {
		return err
	}
	a.differ, a.missing = len(differ), len(missing)
	if len(differ) > 0 {
		a.Differs = cli.Grouped(differ, false)
	}
	if len(missing) > 0 {
		a.Missing = format.Collapse(missing)
	}
	r.errors = map[string]quantize.Difference{}
	sums, roles := map[quantize.Role]*quantize.Difference{}, map[quantize.Role]*RoleError{}
	for i := range pairs {
		p, f := &pairs[i], found[i]
		if p.err != nil {
			a.Unreadable = append(a.Unreadable, p.err.Error())
			continue
		}
		a.Tensors++
		r.errors[f.Name] = p.diff
		role := roleOf(f.Want)
		e := roles[role]
		if e == nil {
			e = &RoleError{Role: role.String(), WorstTensor: f.Name}
			roles[role], sums[role] = e, &quantize.Difference{}
		}
		e.Tensors++
		sums[role].Add(p.diff)
		if p.diff.Relative > e.Worst {
			e.Worst, e.WorstTensor = p.diff.Relative, f.Name
		}
	}
	for _, role := range quantize.Roles() {
		if e := roles[role]; e != nil {
			e.Error = sums[role].Relative
			a.Roles = append(a.Roles, *e)
		}
	}
	r.Against = a
	return nil
}

// WriteAgainst writes Against.
func (r *Report) WriteAgainst(w io.Writer) error {
	a := r.Against
	var l lines
	l.f("relative error against %s, %s", a.Checkpoint, plural(a.Tensors, "tensor"))
	t := cli.NewTable("role", "tensors", "error", "worst", "worst tensor")
	for _, e := range a.Roles {
		t.Add(e.Role, e.Tensors, cli.RelativeError(e.Error), cli.RelativeError(e.Worst), e.WorstTensor)
	}
	l.f("")
	l.WriteString(t.String())
	l.section("not the checkpoint of this model", most(a.Differs, maxLines, "more lines"))
	l.section("not in the checkpoint", most(a.Missing, maxLines, "more names"))
	l.section("not compared", most(a.Unreadable, maxLines, "more"))
	return l.to(w)
}

// cellErrors sums up the errors of a layer's role; nil without --against.
func (r *Report) cellErrors(names []string) (all, worst *float64) {
	var sum quantize.Difference
	for _, name := range names {
		d, ok := r.errors[name]
		if !ok {
			continue
		}
		sum.Add(d)
		if worst == nil || d.Relative > *worst {
			x := d.Relative
			worst = &x
		}
	}
	if worst != nil {
		all = &sum.Relative
	}
	return all, worst
}

// errorOf is a tensor's error, nil where it is not known.
func (r *Report) errorOf(name string) *float64 {
	if d, ok := r.errors[name]; ok {
		return &d.Relative
	}
	return nil
}

// worstErrors is the names with the largest errors first.
func (r *Report) worstErrors(n int) []string {
	var names []string
	for i := range r.census.Found {
		if _, ok := r.errors[r.census.Found[i].Name]; ok {
			names = append(names, r.census.Found[i].Name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int {
		switch x, y := r.errors[a].Relative, r.errors[b].Relative; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return names[:min(n, len(names))]
}
