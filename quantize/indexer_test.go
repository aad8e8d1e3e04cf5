package quantize

import (
	"errors"
	"strings"
	"testing"

	"hawkmoth/format"
)

// TestIndexersAreAllOrNone: a layer without its indexer makes the others of no
// use, which nobody may find out at run time.
func TestIndexersAreAllOrNone(t *testing.T) {
	indexer := Want{Name: "model.layers.1.self_attn.indexer.k_norm.weight", Shape: []int{8}, Role: Norm, Layer: 1, Optional: true}
	mtp := indexer
	mtp.MTP = true
	other := Want{Name: "lm_head.weight", Role: Head, Optional: true}
	for _, tc := range []struct {
		name   string
		found  int
		absent []Want
		bad    bool
	}{
		{"all", 10, nil, false},
		{"none", 0, []Want{indexer}, false},
		{"a part", 9, []Want{indexer}, true},
		{"all but the MTP block's", 10, []Want{mtp}, false},
		{"all, and something else is absent", 10, []Want{other}, false},
	} {
		err := IndexerProblem("dir", tc.found, tc.absent)
		if (err != nil) != tc.bad || tc.bad && (!errors.Is(err, format.ErrIncomplete) || !strings.Contains(err.Error(), indexer.Name)) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
