package metal

import (
	"cmp"
	"slices"

	"hawkmoth/runtime"
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

// Count is how often an operation of a layer ran, and where.
type Count struct {
	Layer int           `json:"layer"` // -1 outside the layers
	Stage runtime.Stage `json:"-"`
	Op    string        `json:"op"`
	GPU   int64         `json:"gpu"`
	CPU   int64         `json:"cpu"`
	Why   string        `json:"why"` // it ran on the CPU
}

type countKey struct {
	layer int
	stage runtime.Stage
	op    runtime.Kind
	why   string
}

func (b *Backend) counter(c runtime.Cmd, reason error) *Count {
	key := countKey{layer: c.Layer, stage: c.Stage, op: c.Kind()}
	if reason != nil {
		key.why = reason.Error()
	}
	if b.counts[key] == nil {
		b.counts[key] = &Count{Layer: c.Layer, Stage: c.Stage, Op: c.Kind().String(), Why: key.why}
	}
	return b.counts[key]
}

// Ran is how often something ran in each place.
type Ran struct {
	GPU int64 `json:"gpu"`
	CPU int64 `json:"cpu"`
}

// WeightsRan is how often the operations of each weight ran, in the order in
// which they were loaded.
func (b *Backend) WeightsRan() []Ran {
	index := map[*weight]int{}
	for i, w := range b.weights {
		index[w] = i
	}
	list := make([]Ran, len(b.weights))
	for _, p := range b.programs {
		for _, s := range p.steps {
			for _, w := range weightsOf(s.cmd.Op) {
				at := &list[index[w.(*weight)]]
				at.GPU += s.ran.GPU
				at.CPU += s.ran.CPU
			}
		}
	}
	return list
}

func weightsOf(op runtime.Op) []runtime.Weight {
	switch op := op.(type) {
	case runtime.Embed:
		return []runtime.Weight{op.W}
	case runtime.MatMul:
		return op.W
	case runtime.RMSNorm:
		return []runtime.Weight{op.W}
	case runtime.LayerNorm:
		return []runtime.Weight{op.W, op.B}
	case runtime.MLA:
		return []runtime.Weight{op.KVB}
	case runtime.Route:
		return []runtime.Weight{op.Bias}
	case runtime.Experts:
		var list []runtime.Weight
		for _, e := range op.Expert {
			list = append(list, e.Gate, e.Up, e.Down)
		}
		return list
	}
	return nil
}
