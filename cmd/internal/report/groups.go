package report

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// GroupCheck is what the codes of int4-grouped matrices say about the group
// sizes that their byte counts fit.
type GroupCheck struct {
	Tensors    []string         `json:"tensors"` // names that differ in numbers only share a line
	Taken      int              `json:"taken"`   // the group size under which they are read
	Stamped    bool             `json:"stamped"`
	Supported  int              `json:"supported"` // the one that the codes support; 0 if they support none or several
	Candidates []GroupCandidate `json:"candidates"`
}

// GroupCandidate counts the groups of a group size. Method absmax leaves a
// code of magnitude 7 in each, so that a flat one is cut in the wrong place.
type GroupCandidate struct {
	Group  int   `json:"group"`
	Groups int64 `json:"groups"` // that hold more than zeros
	Flat   int64 `json:"flat"`
}

// groupSizes is the group sizes that a matrix's bytes fit, if there are several.
func (r *Report) groupSizes(f *quantize.Found) []int {
	if f.Spec.Format != format.Int4Grouped {
		return nil
	}
	var sizes []int
	for _, s := range r.snap.Candidates(f.Name, f.Spec.Rows, f.Spec.Cols) {
		if s.Format == format.Int4Grouped {
			sizes = append(sizes, s.Group)
		}
	}
	if len(sizes) < 2 {
		return nil
	}
	slices.Sort(sizes)
	return sizes
}

func (s *subject) addFits(fits []quantize.GroupFit) {
	if s.fits == nil {
		s.fits = fits
		return
	}
	for i := range fits {
		s.fits[i].Groups += fits[i].Groups
		s.fits[i].Flat += fits[i].Flat
	}
}

// supported is the group size that codes prove: the only one without a flat
// group, where there are enough groups for that not to be chance.
func supported(fits []quantize.GroupFit) int {
	const enough = 32
	found := 0
	for _, f := range fits {
		switch {
		case f.Groups < enough:
			return 0
		case f.Flat == 0 && found > 0:
			return 0
		case f.Flat == 0:
			found = f.Group
		}
	}
	return found
}

// checkGroups reads group sizes out of codes. A matrix that is read under
// another size than its codes prove is a finding: its weights are wrong.
func (v *Verification) checkGroups(subjects []*subject) {
	type key struct {
		taken, supported int
		stamped          bool
		sizes            string
	}
	index := map[key]int{}
	names := map[key][]string{}
	for _, s := range subjects {
		if s.sizes == nil || s.fits == nil {
			continue
		}
		k := key{s.spec.Group, supported(s.fits), s.stamped, fmt.Sprint(s.sizes)}
		i, ok := index[k]
		if !ok {
			i = len(v.Groups)
			index[k] = i
			g := GroupCheck{Taken: k.taken, Supported: k.supported, Stamped: k.stamped}
			for _, gs := range s.sizes {
				g.Candidates = append(g.Candidates, GroupCandidate{Group: gs})
			}
			v.Groups = append(v.Groups, g)
		}
		for j, f := range s.fits {
			v.Groups[i].Candidates[j].Groups += f.Groups
			v.Groups[i].Candidates[j].Flat += f.Flat
		}
		names[k] = append(names[k], s.found.Name)
		if k.supported != 0 && k.supported != k.taken {
			what := fmt.Sprintf("is read in groups of %d, while its codes are in groups of %d", k.taken, k.supported)
			v.Findings = append(v.Findings, Finding{Tensor: s.found.Name, Shard: filepath.Base(s.tensor.Shard.Path), What: what})
		}
	}
	for k, i := range index {
		v.Groups[i].Tensors = format.Collapse(names[k])
	}
}

// groups writes what the codes say about uncertain group sizes.
func (l *lines) groups(list []GroupCheck) {
	var items []string
	for _, g := range list {
		verdict := "the codes prove none of them"
		switch {
		case g.Supported == g.Taken:
			verdict = "the codes agree"
		case g.Supported > 0:
			verdict = fmt.Sprintf("the codes are in groups of %d", g.Supported)
		}
		var flat []string
		for _, c := range g.Candidates {
			flat = append(flat, fmt.Sprintf("%d: %d of %d groups without a code of magnitude 7", c.Group, c.Flat, c.Groups))
		}
		how := "read"
		if g.Stamped {
			how = "stamped"
		}
		items = append(items, fmt.Sprintf("%s: %s as %d, %s (%s)", strings.Join(most(g.Tensors, 3, "more names"), ", "), how, g.Taken, verdict, strings.Join(flat, "; ")))
	}
	l.section("group sizes that byte counts do not tell", items)
}
