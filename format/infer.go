package format

import (
	"fmt"
	"slices"
	"strings"
)

// MaxDim bounds the rows and the columns of a matrix so that no size overflows.
const MaxDim = 1 << 30

func inRange(rows, cols int) bool {
	return rows > 0 && cols > 0 && rows <= MaxDim && cols <= MaxDim
}

// Candidates is every reading of a packed matrix [rows, cols] that the bytes
// of its codes and of its scales allow. The first is what an engine takes that
// has nothing but the bytes, so the order is the rule: the e8 tag, then by
// bytes of codes int8 (before fp8, the incumbent), int4 (one scale a row, else
// the smallest group size), int2, int3; mxfp4, which no such engine reads, is last.
func Candidates(weightBytes, scaleBytes int64, rows, cols int) []Spec {
	if !inRange(rows, cols) {
		return nil
	}
	var found []Spec
	for _, s := range readings(rows, cols) {
		if s.Bytes() == weightBytes && s.ScaleBytes() == scaleBytes {
			found = append(found, s)
		}
	}
	return found
}

// readings is every packed spec of a shape that bytes alone can tell, in the
// order of preference.
func readings(rows, cols int) []Spec {
	all := []Spec{{Format: E8}, {Format: Int8Row}, {Format: FP8}, {Format: Int4Row}}
	for _, gs := range GroupSizes {
		if gs < cols { // with one group only, the matrix is int4-row
			all = append(all, Spec{Format: Int4Grouped, Group: gs})
		}
	}
	all = append(all, Spec{Format: Int2Row}, Spec{Format: Int3G64}, Spec{Format: MXFP4})
	for i := range all {
		all[i].Rows, all[i].Cols = rows, cols
	}
	return all
}

// Infer is the reading of a packed matrix without a stamp. Bytes that fit no
// format are ErrCorrupt, bytes of a layout that is known by name only are
// ErrUnsupported; nothing is ever guessed. The error lacks path and tensor.
func Infer(weightBytes, scaleBytes int64, rows, cols int) (Spec, error) {
	if found := Candidates(weightBytes, scaleBytes, rows, cols); len(found) > 0 {
		return found[0], nil
	}
	if !inRange(rows, cols) {
		return Spec{}, &Error{Kind: ErrUnsupported, What: "size of matrix is out of range", Found: fmt.Sprintf("[%d,%d]", rows, cols)}
	}
	fp8 := Spec{Format: FP8, Rows: rows, Cols: cols}
	if weightBytes == fp8.Bytes() && scaleBytes == fp8.Scales() {
		return Spec{}, &Error{Kind: ErrUnsupported, What: "fp8 weights with ue8m0 scales, not supported", Found: bytesText(weightBytes, scaleBytes)}
	}
	return Spec{}, &Error{Kind: ErrCorrupt, What: fmt.Sprintf("bytes fit no format of [%d,%d]", rows, cols),
		Found: bytesText(weightBytes, scaleBytes), Wanted: wantedText(weightBytes, rows, cols)}
}

func bytesText(w, s int64) string { return fmt.Sprintf("%d bytes of codes, %d of scales", w, s) }

// wantedText lists the formats whose codes have the right size, or else all.
func wantedText(weightBytes int64, rows, cols int) string {
	all := readings(rows, cols)
	if some := slices.DeleteFunc(slices.Clone(all), func(s Spec) bool { return s.Bytes() != weightBytes }); len(some) > 0 {
		all = some
	}
	var texts []string
	for _, s := range all {
		texts = append(texts, fmt.Sprintf("%s %d+%d", s.Name(), s.Bytes(), s.ScaleBytes()))
	}
	return strings.Join(texts, ", ")
}

// Canonical is the spec under which a matrix is read: int4-grouped with one
// group a row has the bytes and the meaning of int4-row.
func (s Spec) Canonical() Spec {
	if s.Format == Int4Grouped && s.Group > 0 && s.Group >= s.Cols {
		s.Format, s.Group = Int4Row, 0
	}
	return s
}

// Ambiguous says whether a reader without stamps would take the bytes of s for
// something else, and for what. Int4-grouped with one group a row is int4-row
// and not ambiguous; plain tensors carry their dtype and never are.
func Ambiguous(s Spec) (other Spec, yes bool) {
	s = s.Canonical()
	if !s.Format.Info().Packed || !inRange(s.Rows, s.Cols) || s.Format == Int4Grouped && s.Group <= 0 {
		return Spec{}, false
	}
	other, err := Infer(s.Bytes(), s.ScaleBytes(), s.Rows, s.Cols)
	if err != nil || other == s {
		return Spec{}, false
	}
	return other, true
}
