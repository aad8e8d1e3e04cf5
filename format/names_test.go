package format

import (
	"slices"
	"testing"
)

func TestCollapse(t *testing.T) {
	got := Collapse([]string{
		"a.weight", "layers.0.mlp.up.weight", "layers.1.mlp.up.weight", "layers.5.mlp.up.weight", "b.7.c",
		"layers.3.experts.0.w", "layers.3.experts.1.w", "layers.4.experts.0.w",
	})
	want := []string{"a.weight", "layers.{0-1,5}.mlp.up.weight (3 tensors)", "b.7.c", "layers.{3-4}.experts.{0-1}.w (3 tensors)"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Ranges([]int{31, 4, 5, 6, 77, 5}); got != "4-6,31,77" {
		t.Errorf("Ranges: %q", got)
	}
}
