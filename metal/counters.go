package metal

import (
	"cmp"
	"slices"
)

// Counts is how often every operation ran, and where, by layer and stage.
func (b *Backend) Counts() []Count {
	list := make([]Count, 0, len(b.counts))
	for _, c := range b.counts {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Layer, b.Layer), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Why, b.Why))
	})
	return list
}
