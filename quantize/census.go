package quantize

import (
	"fmt"
	"slices"
	"strings"

	"hawkmoth/format"
)

// Found is a wanted tensor as a snapshot holds it.
type Found struct {
	Want
	Spec   format.Spec    // [1, n] for a vector
	Tensor *format.Tensor // codes, or the plain tensor
	Scales *format.Tensor // the .qs or the _scale_inv; nil for plain floats
	Offset int64          // of the matrix in Tensor, for a slice of fused experts
}

// Census is a model's tensors held against a snapshot, from headers alone.
type Census struct {
	Found  []Found  // in reading order
	Absent []Want   // optional and not there
	Extra  []string // in the snapshot, but not the model's
}

// TakeCensus looks every wanted tensor up. The problems are all that keeps the
// model from being read: missing tensors (names that differ only in numbers
// share a line), wrong shapes, formats that the byte counts do not allow.
func TakeCensus(snap *format.Snapshot, wants []Want) (*Census, format.Problems) {
	c := &Census{}
	var problems format.Problems
	var missing []string
	used := map[string]bool{}
	for _, w := range wants {
		f, err := find(snap, w)
		switch {
		case err != nil:
			problems = append(problems, err)
			used[w.Name], used[w.Name+".qs"] = true, true
			continue
		case f.Tensor != nil:
			used[f.Tensor.Name] = true
			if f.Scales != nil {
				used[f.Scales.Name] = true
			}
			c.Found = append(c.Found, f)
		case w.Optional:
			c.Absent = append(c.Absent, w)
		default:
			missing = append(missing, w.Name)
		}
	}
	for _, name := range snap.Names() {
		if !used[name] {
			c.Extra = append(c.Extra, name)
		}
	}
	if len(missing) > 0 {
		problems = append(problems, missingError(snap, missing, len(wants)))
	}
	return c, problems
}

// missingError says what is not there and what the directory looks like, so
// that the reader can tell an unfinished download from a wrong model.
func missingError(snap *format.Snapshot, missing []string, wanted int) error {
	lines := Collapse(missing)
	const most = 12
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("… and %d more lines", len(lines)-most))
	}
	what := fmt.Sprintf("%d of %d tensors are missing in %d shards: %s", len(missing), wanted, len(snap.Shards), strings.Join(lines, ", "))
	for _, w := range snap.Warnings {
		what += "; " + w
	}
	return &format.Error{Kind: format.ErrIncomplete, Path: snap.Dir, What: what}
}

// find looks one tensor up; a nil Tensor means that it is not there.
func find(snap *format.Snapshot, w Want) (Found, error) {
	f := Found{Want: w, Tensor: snap.Tensor(w.Name)}
	rows, cols := 1, w.Shape[0]
	if w.Matrix() {
		rows, cols = w.Shape[0], w.Shape[1]
	}
	switch {
	case f.Tensor == nil && w.Fused != "":
		return findFused(snap, f, rows, cols)
	case f.Tensor == nil:
		return f, nil
	case f.Tensor.DType == format.DTypeU8:
		var err error
		if f.Spec, err = snap.Spec(w.Name, rows, cols); err != nil {
			return f, err
		}
		f.Scales = snap.Tensor(w.Name + ".qs")
		return f, nil
	case !slices.Equal(f.Tensor.Shape, w.Shape):
		return f, f.problem("shape", fmt.Sprint(f.Tensor.Shape), fmt.Sprint(w.Shape))
	case f.Tensor.DType == format.DTypeFP8:
		return findFP8(snap, f, rows, cols)
	}
	id, ok := PlainFormat(f.Tensor.DType)
	if !ok {
		return f, f.problem("element type", string(f.Tensor.DType), "F32, BF16, F16, F8_E4M3 or U8 with a .qs")
	}
	f.Spec = format.Spec{Format: id, Rows: rows, Cols: cols}
	return f, nil
}

func (f *Found) problem(what, found, wanted string) error {
	return &format.Error{Kind: format.ErrCorrupt, Path: f.Tensor.Shard.Path, Tensor: f.Tensor.Name, What: what, Found: found, Wanted: wanted}
}

// PlainFormat is the weight format of an unpacked element type.
func PlainFormat(d format.DType) (format.ID, bool) {
	for _, in := range format.Formats() {
		if !in.Packed && in.DType == d {
			return in.ID, true
		}
	}
	return 0, false
}

// findFused finds a matrix as rows of one expert in a 3-D tensor.
func findFused(snap *format.Snapshot, f Found, rows, cols int) (Found, error) {
	t := snap.Tensor(f.Fused)
	if t == nil {
		return f, nil
	}
	f.Tensor = t
	if len(t.Shape) != 3 || f.Expert >= t.Shape[0] || f.FusedRow+rows > t.Shape[1] || t.Shape[2] != cols {
		return f, f.problem("shape of fused experts", fmt.Sprint(t.Shape), fmt.Sprintf("[> %d, ≥ %d, %d] for %s", f.Expert, f.FusedRow+rows, cols, f.Name))
	}
	id, ok := PlainFormat(t.DType)
	if !ok {
		return f, f.problem("element type of fused experts", string(t.DType), "F32, BF16 or F16")
	}
	f.Spec = format.Spec{Format: id, Rows: rows, Cols: cols}
	f.Offset = (int64(f.Expert)*int64(t.Shape[1]) + int64(f.FusedRow)) * int64(f.Spec.RowBytes())
	return f, nil
}

// findFP8 pairs the codes of an FP8 checkpoint with their block scales.
func findFP8(snap *format.Snapshot, f Found, rows, cols int) (Found, error) {
	f.Spec = format.Spec{Format: format.FP8, Rows: rows, Cols: cols}
	f.Scales = snap.Tensor(f.Name + "_scale_inv")
	grid := []int{f.Spec.ScaleRows(), f.Spec.ScaleCols()}
	switch {
	case f.Scales == nil:
		return f, f.problem("FP8 codes without their block scales "+f.Name+"_scale_inv", "", "")
	case !slices.Equal(f.Scales.Shape, grid):
		return f, f.problem("shape of "+f.Scales.Name, fmt.Sprint(f.Scales.Shape), fmt.Sprint(grid))
	case f.Scales.DType != format.DTypeF32 && f.Scales.DType != format.DTypeBF16:
		return f, f.problem("element type of "+f.Scales.Name, string(f.Scales.DType), "F32 or BF16")
	}
	return f, nil
}

// Bind makes the matrix: views into the mapped shard, no copy but for BF16
// block scales.
func (f *Found) Bind() (Matrix, error) {
	m := Matrix{Spec: f.Spec}
	w, err := f.Tensor.Shard.Bytes(f.Tensor)
	if err != nil {
		return m, err
	}
	m.W = w[f.Offset:][:f.Spec.Bytes()]
	switch {
	case f.Scales == nil:
	case f.Scales.DType == format.DTypeBF16:
		raw, err := f.Scales.Shard.Bytes(f.Scales)
		if err != nil {
			return m, err
		}
		m.S = make([]float32, f.Spec.Scales())
		BF16ToF32(m.S, raw)
	default:
		m.S, err = f.Scales.Shard.Floats(f.Scales)
	}
	return m, err
}
