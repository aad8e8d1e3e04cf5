package quantize

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
)

// TestIndexersAreAllOrNone: a layer without its indexer makes the others of no
// use, which nobody may find out at run time.
func TestIndexersAreAllOrNone(t *testing.T) {
	const indexer = ".self_attn.indexer.k_norm.weight"
	name := []string{"model.layers.0", "model.layers.1", "model.layers.2"}
	var wants []Want
	for l, layer := range name {
		wants = append(wants, Want{Name: layer + ".norm.weight", Shape: []int{8}, Role: Norm, Layer: l, MTP: l == 2},
			Want{Name: layer + indexer, Shape: []int{8}, Role: Norm, Layer: l, MTP: l == 2, Optional: true})
	}
	wants = append(wants, Want{Name: "lm_head.weight", Shape: []int{8}, Role: Head, Layer: -1, Optional: true})
	for _, tc := range []struct {
		name         string
		absent       []string
		present, bad bool
	}{
		{"all", nil, true, false},
		{"none", []string{name[0] + indexer, name[1] + indexer, name[2] + indexer}, false, false},
		{"none but the MTP block's", []string{name[0] + indexer, name[1] + indexer}, false, false},
		{"a part", []string{name[1] + indexer}, true, true},
		{"all but the MTP block's", []string{name[2] + indexer}, true, false},
		{"all, and something else is absent", []string{"lm_head.weight"}, true, false},
		{"all of the layers that are there", []string{name[1] + indexer, name[1] + ".norm.weight"}, true, false},
	} {
		var tensors []testTensor
		for _, w := range wants {
			if !slices.Contains(tc.absent, w.Name) {
				tensors = append(tensors, f32Tensor(w.Name, w.Shape, ramp(8)))
			}
		}
		present, err := Indexers(checkpoint(t, tensors...), wants)
		if present != tc.present || (err != nil) != tc.bad || tc.bad && (!errors.Is(err, format.ErrIncomplete) || !strings.Contains(err.Error(), "in part only: missing "+name[1]+indexer)) {
			t.Errorf("%s: %v, %v", tc.name, present, err)
		}
	}
}
