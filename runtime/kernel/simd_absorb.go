//go:build (amd64 || arm64) && !noasm

package kernel

import (
	"hawkmoth/format"
	"hawkmoth/quantize"
)

// absorbKernel sets acc[256] to the sum of n rows times their q, decoded in
// registers. Rows of codes and scales are so many bytes apart.
type absorbKernel func(acc, q *float32, n int, codes *byte, stride int, scale *float32, scaleStride int)

const (
	// absorbColumns is how many columns a kernel takes.
	absorbColumns = 256
	// absorbQueries is how many queries make one decoding for all of them
	// cheaper than one in registers for each.
	absorbQueries = 8
)

// absorbRows is qabsSIMD where the level has a kernel for the matrix.
func absorbRows(dst, q [][]float32, m quantize.Matrix, rowStart int) bool {
	run := absorbFor(m.Spec)
	if run == nil || m.Cols == 0 || m.Cols%absorbColumns != 0 {
		return false
	}
	rowBytes, scales := m.RowBytes(), m.ScaleCols()
	for s, d := range dst {
		n := len(q[s])
		if n == 0 {
			clear(d)
			continue
		}
		codes, scale := m.W[rowStart*rowBytes:][:n*rowBytes], m.S
		if len(scale) > 0 {
			scale = scale[rowStart*scales:][:n*scales]
		}
		for c := 0; c < m.Cols; c += absorbColumns {
			at := &zero
			if m.Format == format.Int4Grouped {
				at = &scale[c/m.Group]
			} else if len(scale) > 0 {
				at = &scale[0]
			}
			run(&d[c], &q[s][0], n, &codes[c*rowBytes/m.Cols], rowBytes, at, 4*scales)
		}
	}
	return true
}
