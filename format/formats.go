package format

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ID names a weight format. Files carry the name, never the number.
type ID uint8

// The weight formats. The first nine have the ordinals that the colibri engine
// uses; plain tensors of every float type are its ordinal 0.
const (
	F32 ID = iota
	Int8Row
	Int4Row
	Int2Row
	Int4Grouped
	Int3G64
	E8
	MXFP4
	FP8
	BF16
	F16
	numFormats
)

// Info is a row of the format table. Rows and columns are those of a matrix
// W[O,I]; every size is per row, so that a matrix can be written row by row.
type Info struct {
	ID      ID
	Name    string // the public identity, as stamps and flags spell it
	Ordinal int    // colibri's fmt number
	DType   DType  // of the tensor N; U8 for packed codes
	Packed  bool   // has a companion N.qs and a one-dimensional N
	Write   bool   // convert can produce it
	Run     bool   // run can compute with it
	// RowBytes is the packed bytes of one row of cols columns.
	RowBytes func(cols int) int
	// Block is the [rows, cols] that share one scale; 0 means the whole row,
	// and for Int4Grouped the columns are Spec.Group.
	BlockRows, BlockCols int
	Pad                  string // what fills the last byte or group of a row
	Value                string // how a code becomes a number
}

func times(n int) func(int) int      { return func(cols int) int { return cols * n } }
func per(n, bytes int) func(int) int { return func(cols int) int { return ceil(cols, n) * bytes } }

var table = [numFormats]Info{
	F32:         {F32, "f32", 0, DTypeF32, false, true, true, times(4), 0, 0, "", "plain"},
	Int8Row:     {Int8Row, "int8-row", 1, DTypeU8, true, true, true, times(1), 1, 0, "", "q·s[o]"},
	Int4Row:     {Int4Row, "int4-row", 2, DTypeU8, true, true, true, per(2, 1), 1, 0, "high nibble 0", "(nib−8)·s[o], low nibble = even column"},
	Int2Row:     {Int2Row, "int2-row", 3, DTypeU8, true, true, true, per(4, 1), 1, 0, "bits 0", "(c−2)·s[o], column 4i+k at bits 2k"},
	Int4Grouped: {Int4Grouped, "int4-grouped", 4, DTypeU8, true, true, true, per(2, 1), 1, 0, "high nibble 0", "(nib−8)·s[o,g], low nibble = even column"},
	Int3G64:     {Int3G64, "int3-g64", 5, DTypeU8, true, true, true, per(64, 24), 1, 64, "code 4", "(u−4)·s[o,g]; 16 bytes of low 2 bits, 8 bytes of high bits"},
	E8:          {E8, "e8-iq3-lattice", 6, DTypeU8, true, false, false, per(256, 98), 0, 0, "", "rotated rows on the IQ3 lattice"},
	MXFP4:       {MXFP4, "mxfp4", 7, DTypeU8, true, false, false, per(2, 1), 1, 32, "", "e2m1·2^(e−127)"},
	FP8:         {FP8, "fp8-e4m3-b128", 8, DTypeU8, true, true, true, times(1), 128, 128, "", "e4m3·s[o/128,i/128]"},
	BF16:        {BF16, "bf16", 0, DTypeBF16, false, true, true, times(2), 0, 0, "", "plain"},
	F16:         {F16, "f16", 0, DTypeF16, false, true, true, times(2), 0, 0, "", "plain"},
}

// Formats is the table in the order of the IDs.
func Formats() []Info { return slices.Clone(table[:]) }

// Info is the format's row of the table.
func (id ID) Info() Info {
	if id >= numFormats {
		return Info{ID: id, Name: "format-" + strconv.Itoa(int(id))}
	}
	return table[id]
}

func (id ID) String() string { return id.Info().Name }

// GroupSizes are the group sizes that an engine can find again from the number
// of scales, in the order in which it tries them.
var GroupSizes = []int{16, 32, 48, 64, 96, 128, 192, 256}

// Spec is a matrix [Rows, Cols] without its bytes. Group is the number of
// columns that share a scale for Int4Grouped and 0 for every other format.
type Spec struct {
	Format     ID
	Rows, Cols int
	Group      int
}

// Name is the format with its group size, "int4-grouped/64", as users write it.
func (s Spec) Name() string {
	if s.Format == Int4Grouped {
		return s.Format.String() + "/" + strconv.Itoa(s.Group)
	}
	return s.Format.String()
}

func (s Spec) String() string { return fmt.Sprintf("%s[%d,%d]", s.Name(), s.Rows, s.Cols) }

// RowBytes is the bytes of one packed row.
func (s Spec) RowBytes() int { return s.Format.Info().RowBytes(s.Cols) }

// Bytes is the bytes of the tensor N.
func (s Spec) Bytes() int64 { return int64(s.Rows) * int64(s.RowBytes()) }

// ScaleCols is the number of scales along a row (the width of the scale grid).
func (s Spec) ScaleCols() int {
	switch in := s.Format.Info(); {
	case s.Format == Int4Grouped:
		return ceil(s.Cols, s.Group)
	case s.Format == E8:
		return 1
	case !in.Packed:
		return 0
	case in.BlockCols == 0:
		return 1
	default:
		return ceil(s.Cols, in.BlockCols)
	}
}

// ScaleRows is the number of rows of the scale grid.
func (s Spec) ScaleRows() int {
	in := s.Format.Info()
	switch {
	case s.Format == E8:
		return 1 // one tag for the whole tensor
	case !in.Packed:
		return 0
	default:
		return ceil(s.Rows, in.BlockRows)
	}
}

// Scales is the number of scales of the matrix.
func (s Spec) Scales() int64 { return int64(s.ScaleRows()) * int64(s.ScaleCols()) }

// ScaleBytes is the bytes of the tensor N.qs: float32, but one byte a scale for mxfp4.
func (s Spec) ScaleBytes() int64 {
	if s.Format == MXFP4 {
		return s.Scales()
	}
	return 4 * s.Scales()
}

// BitsPerWeight counts codes and scales.
func (s Spec) BitsPerWeight() float64 {
	n := float64(s.Rows) * float64(s.Cols)
	if n == 0 {
		return 0
	}
	return 8 * float64(s.Bytes()+s.ScaleBytes()) / n
}

// ParseFormat reads a format as users write it: a name, optionally with a
// group size after a slash. The group is 0 where none was written.
func ParseFormat(text string) (ID, int, error) {
	name, size, cut := strings.Cut(text, "/")
	for _, in := range table {
		if in.Name != name {
			continue
		}
		if !cut {
			return in.ID, 0, nil
		}
		gs, err := strconv.Atoi(size)
		if err != nil || in.ID != Int4Grouped || !slices.Contains(GroupSizes, gs) {
			return 0, 0, &Error{Kind: ErrUsage, What: "no such group size", Found: text,
				Wanted: fmt.Sprintf("int4-grouped/N with N one of %v", GroupSizes)}
		}
		return in.ID, gs, nil
	}
	names := make([]string, 0, len(table))
	for _, in := range table {
		names = append(names, in.Name)
	}
	return 0, 0, &Error{Kind: ErrUsage, What: "no such format", Found: text, Wanted: strings.Join(names, ", ")}
}

// ceil is a/b rounded up; 0 for the group size that an incomplete Spec lacks.
func ceil(a, b int) int {
	if b <= 0 {
		return 0
	}
	return (a + b - 1) / b
}
