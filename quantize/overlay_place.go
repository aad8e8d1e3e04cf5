package quantize

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"hawkmoth/format"
)

// held finds out whether the tensors are in an overlay of the base already.
func (p *overlayPlanner) held() error {
	if !p.o.InPlace() || len(p.holders) == 0 {
		return nil
	}
	info := p.holders[0]
	if i := slices.IndexFunc(p.holders, func(o *OverlayInfo) bool { return o.State == OverlayMerging }); i >= 0 {
		return beingMerged(p.o.Base.Dir, p.holders[i].Name)
	}
	if len(p.holders) == 1 && (p.o.Request.Name == "" || p.o.Request.Name == info.Name) {
		p.o.Held = info // finish compares the jobs
		return nil
	}
	return p.refuseHeld(info, nil)
}

func (p *overlayPlanner) refuseHeld(info *OverlayInfo, diff format.Problems) error {
	for _, e := range diff {
		if f, ok := e.(*format.Error); ok {
			f.Path = recordPath(p.o.Base.Dir, info.Name)
		}
	}
	var tensors []string
	for _, r := range info.Replaces {
		tensors = append(tensors, r.Names...)
	}
	first := &format.Error{Kind: format.ErrConflict, Path: p.o.Base.Dir,
		What:  fmt.Sprintf("the overlay %s, which is another job, replaces %s already", info.Name, strings.Join(tensors, ", ")),
		Found: info.Format, Wanted: fmt.Sprintf("a base without it: convert overlay --remove %s %s", info.Name, p.o.Base.Dir)}
	return append(format.Problems{first}, diff...)
}

// finish compares the job with the overlay that holds its tensors.
func (p *overlayPlanner) finish() error {
	info := p.o.Held
	if info == nil {
		return nil
	}
	r, err := p.o.record()
	if err != nil {
		return err
	}
	if diff := info.record.differences(r); len(diff) > 0 {
		return p.refuseHeld(info, diff)
	}
	return nil
}

// rolePrefix is how the shards of a role's overlay are called.
func rolePrefix(items []Item) string {
	role := items[0].role()
	for i := range items {
		if items[i].role() != role {
			return "overlay"
		}
	}
	return strings.ReplaceAll(strings.TrimSuffix(role.String(), "_proj"), "_", "")
}

// sortFirst are put before a name so that it sorts before more and more others.
var sortFirst = []string{"", "a-", "0-", "0-0-", "0-0-0-"}

// name finds the prefix of the shards. Readers that ignore the index take the
// first path in byte order, so it sorts before every shard of the base.
func (p *overlayPlanner) name() error {
	if p.o.Held != nil {
		p.o.Name = p.o.Held.Name
		return nil
	}
	first := ""
	for _, s := range p.o.Base.Shards {
		name := filepath.Base(s.Path)
		own := slices.ContainsFunc(p.overlays, func(o OverlayInfo) bool {
			return slices.ContainsFunc(o.Shards, func(f FinishedShard) bool { return f.Name == name })
		})
		if !own && (first == "" || name < first) {
			first = name
		}
	}
	sorts := func(name string) bool { return !p.o.InPlace() || first == "" || overlayShard(name, 99999) < first }
	if name := p.o.Request.Name; name != "" {
		switch {
		case !overlayName.MatchString(name):
			return &format.Error{Kind: format.ErrUsage, What: "name of an overlay", Found: fmt.Sprintf("%q", name), Wanted: "letters a-z, digits and -"}
		case !sorts(name):
			return &format.Error{Kind: format.ErrUsage, What: "name of an overlay", Found: name, Wanted: "one that sorts before " + first + ", since engines that ignore the index take the first file"}
		case p.taken(name):
			return &format.Error{Kind: format.ErrConflict, Path: p.o.Dir(), What: "another overlay has that name", Found: name, Wanted: "another --name"}
		}
		p.o.Name = name
		return nil
	}
	for n := 1; ; n++ {
		for _, before := range sortFirst {
			name := before + rolePrefix(p.Items)
			if n > 1 {
				name = fmt.Sprintf("%s-%d", name, n)
			}
			if sorts(name) && !p.taken(name) {
				p.o.Name = name
				return nil
			}
		}
		if n > len(p.overlays)+1 {
			return &format.Error{Kind: format.ErrUnsupported, Path: p.o.Base.Dir, What: "no name sorts before that of the first shard", Found: first, Wanted: "-o DIR, a directory of its own"}
		}
	}
}

// taken says whether another finished overlay of the base has the name. In a
// directory of its own, and for one that was not finished, Survey compares the jobs.
func (p *overlayPlanner) taken(name string) bool {
	return p.o.InPlace() && slices.ContainsFunc(p.overlays, func(o OverlayInfo) bool {
		return o.Name == name && o.State != OverlayUnfinished && o.State != OverlayShadowed
	})
}

// readers refuses what colibri would misread inside the base. It looks scales
// and claims of formats up by name in every shard, whatever the index says.
func (p *overlayPlanner) readers() {
	claims := map[string]format.ID{}
	for _, s := range p.o.Base.Shards {
		stamps, err := format.ParseStamps(map[string]string{format.KeyColibri: s.Metadata[format.KeyColibri]})
		if err != nil {
			continue // none
		}
		for name, st := range stamps {
			claims[name] = st.Format
		}
	}
	var plain, claimed []Want
	for i := range p.Items {
		it := &p.Items[i]
		id, ok := claims[it.Want.Name]
		switch {
		case !it.Packed() && p.o.under[i].Tensor.DType == format.DTypeU8:
			plain = append(plain, it.Want)
		case it.Packed() && ok && id != it.Spec.Format:
			claimed = append(claimed, it.Want)
		}
	}
	for _, c := range []struct {
		wants []Want
		why   string
	}{
		{plain, "colibri would take the new plain floats for packed codes, since it finds the scales that stay in the base whatever the index says"},
		{claimed, "colibri would refuse the new format, since the stamps that stay in the base name another one"},
	} {
		switch {
		case len(c.wants) == 0:
		case p.o.Request.IndexOnly:
			p.warn("%s: %s; merge the overlay (convert overlay --merge %s) before colibri reads it", collapse(c.wants), c.why, p.o.Name)
		default:
			p.fail(format.ErrUsage, "", collapse(c.wants)+": "+c.why, "",
				"-o DIR, a directory of its own for run --overlay DIR; or --index-only, which writes it here for readers of the index, such as run, and for --merge")
		}
	}
}
