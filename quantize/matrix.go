// Package quantize knows what a weight is: the packed formats with their
// encoders and decoders, the roles of tensors, recipes, and the plan and
// execution of a conversion.
package quantize

import "hawkmoth/format"

// Matrix is a packed weight W[Rows, Cols]: its codes and its scales, usually
// views into a mapped shard.
//
// W holds Rows rows of Spec.RowBytes bytes; S holds Spec.Scales values, the
// scale grid row by row ([ScaleRows, ScaleCols]). S is nil for plain floats.
type Matrix struct {
	format.Spec
	W []byte
	S []float32
}
