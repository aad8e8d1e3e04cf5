package quantize

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"hawkmoth/format"
)

// OutShard is one file of the container.
type OutShard struct {
	Name    string // such as "out-00000.safetensors"
	Items   []Item // a part of Plan.Items
	Entries []format.Entry
	Meta    map[string]string // the stamps
	Size    int64             // bytes of the file
	Source  int64             // bytes to read for it
}

// layOut cuts the items into shards of at most MaxShard bytes; a tensor and
// its scales stay together, and one that is larger has a shard of its own.
func (p *planner) layOut() {
	var size int64
	start := 0
	for i := range p.Items {
		it := &p.Items[i]
		n := it.Bytes() + headerShare(it)
		if i > start && size+n > p.Options.MaxShard {
			p.shard(start, i)
			start, size = i, 0
		}
		size += n
	}
	if start < len(p.Items) {
		p.shard(start, len(p.Items))
	}
}

// headerShare bounds what an item adds to a shard's header: its entries, its
// stamps (each name once more) and its share of the padding.
func headerShare(it *Item) int64 {
	return int64(4*len(it.Want.Name) + 400)
}

func (p *planner) shard(from, to int) {
	s := OutShard{Name: fmt.Sprintf("%s-%05d.safetensors", p.Recipe.Shards, len(p.Shards)), Items: p.Items[from:to:to]}
	specs := map[string]format.Spec{}
	for i := range s.Items {
		it := &s.Items[i]
		s.Entries = append(s.Entries, it.entries()...)
		s.Source += it.Source.Bytes()
		if it.Packed() {
			specs[it.Want.Name] = it.Spec
		}
	}
	if len(specs) > 0 {
		s.Meta = format.StampMetadata(specs)
	}
	s.Size = format.FileSize(s.Entries, s.Meta)
	p.Shards = append(p.Shards, s)
}

// Count is how many tensors have a format.
type Count struct {
	Format  string `json:"format"`
	Tensors int    `json:"tensors"`
}

// Summary adds up tensors: how many, their weights, their bytes in the
// checkpoint and in the container with the scales.
type Summary struct {
	Tensors       int     `json:"tensors"`
	Parameters    int64   `json:"parameters"`
	Quantised     int64   `json:"quantised_parameters"`
	BytesIn       int64   `json:"source_bytes"`
	BytesOut      int64   `json:"bytes"`
	BitsPerWeight float64 `json:"bits_per_weight"`
	Formats       []Count `json:"formats"` // most tensors first
}

func (s *Summary) add(it *Item) {
	s.Tensors++
	s.Parameters += it.Params()
	s.BytesIn += it.Source.Bytes()
	s.BytesOut += it.Bytes()
	if it.Packed() {
		s.Quantised += it.Params()
	}
	if s.Parameters > 0 {
		s.BitsPerWeight = 8 * float64(s.BytesOut) / float64(s.Parameters)
	}
	name := it.Spec.Name()
	i := slices.IndexFunc(s.Formats, func(c Count) bool { return c.Format == name })
	if i < 0 {
		i = len(s.Formats)
		s.Formats = append(s.Formats, Count{Format: name})
	}
	s.Formats[i].Tensors++
	slices.SortStableFunc(s.Formats, func(a, b Count) int { return cmp.Compare(b.Tensors, a.Tensors) })
}

// Total adds up the whole plan.
func (p *Plan) Total() Summary {
	var s Summary
	for i := range p.Items {
		s.add(&p.Items[i])
	}
	return s
}

// RoleSummary adds up the tensors of a role; the MTP block's matrices are one.
type RoleSummary struct {
	Role string `json:"role"`
	Summary
}

// ByRole adds up the plan role by role, leaving out roles without tensors.
func (p *Plan) ByRole() []RoleSummary {
	var sums [numRoles]RoleSummary
	for i := range p.Items {
		r := p.Items[i].role()
		sums[r].Role = r.String()
		sums[r].add(&p.Items[i])
	}
	return slices.DeleteFunc(sums[:], func(s RoleSummary) bool { return s.Tensors == 0 })
}

// LeftOut says what the recipe leaves out: by part of the model, and by name.
func (p *Plan) LeftOut() (parts, names []string) {
	count := map[string]int{}
	for _, w := range p.Dropped {
		part := w.Role.String()
		switch {
		case w.MTP:
			part = "MTP block"
		case w.InIndexer():
			part = Indexer.String()
		}
		count[part]++
		names = append(names, w.Name)
	}
	for _, part := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%s (%d tensors)", part, count[part]))
	}
	return parts, format.Collapse(names)
}

// Renamed is a group of tensors whose format has another name than the recipe
// asked for.
type Renamed struct {
	Format  string   `json:"format"`
	Why     string   `json:"why"`
	Tensors []string `json:"tensors"` // collapsed
	Bytes   int64    `json:"bytes"`
}

// Substitutions lists what is not written under the name that was asked for.
func (p *Plan) Substitutions() []Renamed {
	var list []Renamed
	names := map[string][]string{}
	for i := range p.Items {
		it := &p.Items[i]
		if it.Instead == "" {
			continue
		}
		if names[it.Instead] == nil {
			list = append(list, Renamed{Format: it.Spec.Name(), Why: it.Instead})
		}
		names[it.Instead] = append(names[it.Instead], it.Want.Name)
		j := slices.IndexFunc(list, func(r Renamed) bool { return r.Why == it.Instead })
		list[j].Bytes += it.Bytes()
	}
	for i := range list {
		list[i].Tensors = format.Collapse(names[list[i].Why])
	}
	return list
}
