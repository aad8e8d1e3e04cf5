package quantize

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"hawkmoth/format"
)

// Source is a matrix [Rows, Cols] of a checkpoint or a container, whatever it
// is held as, read row by row as float32. A tensor without rows to quantise is
// one row.
//
// An FP8 matrix has a grid of scales [⌈Rows/128⌉, ⌈Cols/128⌉] that multiply
// its codes, in the tensor of the same name with "_scale_inv", in any shard.
// A packed matrix has its scales in the tensor with ".qs".
type Source struct {
	Name       string
	Rows, Cols int
	DType      format.DType
	Stored     format.Spec // what Tensor holds; a checkpoint's FP8 is fp8-e4m3-b128

	Tensor *format.Tensor
	Offset int64          // of the first element in Tensor, bytes
	apart  strides        // where the elements are not one after the other
	Scales *format.Tensor // nil for plain floats
}

// Packed says whether the source is a container's codes, quantised already.
func (s *Source) Packed() bool { return s.DType == format.DTypeU8 }

// strides is how many elements apart the rows and the columns of a matrix are
// in a fused tensor; zero where it is contiguous. Its elements take size bytes,
// the gaps included.
type strides struct {
	row, col int
	size     int64
}

// gather copies the rows [row, row+n) of a matrix from where they are apart;
// from begins with its first element.
func (s *Source) gather(dst, from []byte, row, n int) {
	width := s.DType.Bits() / 8
	for r := row; r < row+n; r++ {
		for c := range s.Cols {
			at := (r*s.apart.row + c*s.apart.col) * width
			copy(dst[:width], from[at:at+width])
			dst = dst[width:]
		}
	}
}

// SourceBuffer is the memory that reading needs, to be used again; each
// goroutine has its own. The zero value is ready.
type SourceBuffer struct {
	raw, grid []byte
	fused     []byte // what a matrix whose elements are apart is gathered from
	fusedOf   *Source
	scales    []float32
	first     int // row of the matrix that raw begins with
}

// widen is how the plain dtypes become float32, exactly.
var widen = map[format.DType]func(dst []float32, src []byte){
	format.DTypeF32:  BytesToF32,
	format.DTypeBF16: BF16ToF32,
	format.DTypeF16:  F16ToF32,
}

// widenScales is the same for scales.
var widenScales = map[format.DType]func(dst []float32, src []byte){
	format.DTypeF32:  BytesToF32,
	format.DTypeBF16: BF16ToF32,
	format.DTypeE8M0: E8M0ToF32,
}

// OpenSource finds a wanted tensor in a checkpoint, by its own name or as rows
// of a fused 3-D tensor [E, rows, in], or as codes and scales in a container,
// and validates it; nothing but headers is read. Errors are
// format.ErrIncomplete for an absent tensor or scale grid, ErrUnsupported for a
// dtype, ErrCorrupt for a shape. Codes whose group size the bytes do not tell
// are read as Snapshot.Spec does; Census.Found knows better.
func OpenSource(snap *format.Snapshot, w Want) (*Source, error) {
	s := &Source{Name: w.Name, Rows: 1, Cols: 1, Tensor: snap.Tensor(w.Name)}
	if w.Matrix() {
		s.Rows, s.Cols = w.Shape[0], w.Shape[1]
	} else {
		for _, n := range w.Shape {
			s.Cols *= n
		}
	}
	fused := s.Tensor == nil && w.Fused != ""
	if fused {
		s.Tensor = snap.Tensor(w.Fused)
	}
	if s.Tensor == nil {
		return nil, snap.Missing(w.Name)
	}
	s.DType = s.Tensor.DType
	if s.Scales = snap.Tensor(w.Name + format.ScaleSuffix); s.Packed() && s.Scales != nil {
		var err error
		s.Stored, err = snap.Spec(w.Name, s.Rows, s.Cols)
		return s, err
	}
	s.Scales, s.Stored = nil, format.Spec{Format: sourceFormats[s.DType], Rows: s.Rows, Cols: s.Cols}
	if widen[s.DType] == nil && (s.DType != format.DTypeFP8 || fused || !w.Matrix()) {
		what := "dtype of a weight"
		if fused {
			what = "dtype of fused experts"
		}
		return nil, s.fail(format.ErrUnsupported, what, string(s.DType), "F32, BF16, F16, or F8_E4M3 for a matrix of its own")
	}
	switch shape := s.Tensor.Shape; {
	case fused:
		if err := s.slice(w); err != nil {
			return nil, err
		}
	case !slices.Equal(shape, w.Shape) && !(s.Rows == 1 && slices.Equal(shape, []int{s.Cols})):
		return nil, s.fail(format.ErrCorrupt, "shape", fmt.Sprintf("%v, %d bytes", shape, s.Tensor.Size), fmt.Sprint(w.Shape))
	}
	if s.DType == format.DTypeFP8 {
		return s, s.findScales(snap)
	}
	return s, nil
}

// slice points the source at its expert's elements: a whole expert, or one of
// two matrices (or vectors) of equal height that are one after the other or take
// turns; Want.FusedT says that both are transposed.
func (s *Source) slice(w Want) error {
	shape := s.Tensor.Shape
	step := max(w.FusedStep, 1)
	rows, high := s.Rows, 0 // of the matrix, of the expert
	ok := len(shape) == len(w.Shape)+1 && w.Expert >= 0 && w.Expert < shape[0] && w.FusedRow >= 0
	switch {
	case !ok:
	case !w.Matrix():
		rows, high = s.Cols, shape[1]
		if step > 1 {
			s.apart.col = step
		}
	case w.FusedT:
		high = shape[2]
		ok = shape[1] == s.Cols
		s.apart.row, s.apart.col = step, high
	default:
		high = shape[1]
		ok = shape[2] == s.Cols
		if step > 1 {
			s.apart.row, s.apart.col = step*s.Cols, 1
		}
	}
	if !ok || high != rows && high != 2*rows || w.FusedRow+(rows-1)*step >= high {
		return s.fail(format.ErrCorrupt, fmt.Sprintf("rows %d to %d of expert %d are not in the fused experts", w.FusedRow, w.FusedRow+rows*step, w.Expert),
			fmt.Sprint(shape), fmt.Sprintf("[more than %d, %d or %d, %d]", w.Expert, rows, 2*rows, s.Cols))
	}
	width := int64(s.DType.Bits() / 8)
	first := w.FusedRow
	if w.Matrix() && !w.FusedT {
		first *= s.Cols
	}
	whole := int64(high)
	if w.Matrix() {
		whole *= int64(s.Cols)
	}
	s.Offset += (int64(w.Expert)*whole + int64(first)) * width
	s.apart.size = (whole - int64(first)) * width
	if s.apart.row == 0 && s.apart.col == 0 {
		s.apart = strides{}
	}
	return nil
}

func (s *Source) findScales(snap *format.Snapshot) error {
	name := s.Name + fp8ScaleSuffix
	s.Scales = snap.Tensor(name)
	if s.Scales == nil {
		return s.fail(format.ErrIncomplete, "FP8 codes without their scales "+name, "", "")
	}
	grid := []int{s.Stored.ScaleRows(), s.Stored.ScaleCols()}
	if !slices.Equal(s.Scales.Shape, grid) {
		return s.fail(format.ErrCorrupt, fmt.Sprintf("scale grid %s of a matrix [%d %d]", name, s.Rows, s.Cols),
			fmt.Sprint(s.Scales.Shape), fmt.Sprintf("%v: ⌈%d/128⌉ × ⌈%d/128⌉", grid, s.Rows, s.Cols))
	}
	if d := s.Scales.DType; widenScales[d] == nil {
		return s.fail(format.ErrUnsupported, "dtype of the scale grid "+name, string(d), "F32, BF16 or F8_E8M0")
	}
	return nil
}

func (s *Source) rowBytes() int64 { return int64(s.Stored.RowBytes()) }

// Bytes is what reading the whole matrix reads from disk, scales included.
func (s *Source) Bytes() int64 {
	n := int64(s.Rows) * s.rowBytes()
	if s.Scales != nil {
		n += s.Scales.Size
	}
	return n
}

// ReadRows reads the rows [row, row+n) as float32 into dst [n, Cols], with
// plain reads of the file. A value that is not finite is format.ErrCorrupt; the
// error counts those of the whole matrix and names the first of them.
func (s *Source) ReadRows(buf *SourceBuffer, row, n int, dst []float32) error {
	if row < 0 || n < 0 || row > s.Rows-n || len(dst) != n*s.Cols {
		return s.badRows(row, n, len(dst))
	}
	if err := s.read(buf, row, n, dst); err != nil {
		return err
	}
	if finite(maxAbs(dst)) {
		return nil
	}
	return s.notFinite(buf)
}

// read is ReadRows for any values.
func (s *Source) read(buf *SourceBuffer, row, n int, dst []float32) error {
	if err := s.fetch(buf, row, n); err != nil {
		return err
	}
	return s.decode(buf, row, n, dst)
}

// fetch reads the rows [row, row+n) as they are stored.
func (s *Source) fetch(buf *SourceBuffer, row, n int) error {
	buf.first = row
	buf.raw = resize(buf.raw, n*int(s.rowBytes()))
	if s.apart.size > 0 {
		if buf.fusedOf != s {
			buf.fused, buf.fusedOf = resize(buf.fused, int(s.apart.size)), nil
			if err := s.readAt(s.Tensor, buf.fused, s.Offset); err != nil {
				return err
			}
			buf.fusedOf = s
		}
		s.gather(buf.raw, buf.fused, row, n)
		return nil
	}
	if err := s.readAt(s.Tensor, buf.raw, s.Offset+int64(row)*s.rowBytes()); err != nil || s.Scales == nil {
		return err
	}
	high := max(s.Stored.Format.Info().BlockRows, 1)
	top := row / high
	return s.readScales(buf, top, (row+n+high-1)/high-top)
}

// decode widens some of the rows that were fetched.
func (s *Source) decode(buf *SourceBuffer, row, n int, dst []float32) error {
	code := s.Stored.RowBytes()
	if s.Scales == nil {
		widen[s.DType](dst[:n*s.Cols], buf.raw[(row-buf.first)*code:])
		return nil
	}
	codec, err := CodecFor(s.Stored.Format)
	if err != nil {
		return err
	}
	m := Matrix{Spec: s.Stored}
	high, scales := max(s.Stored.Format.Info().BlockRows, 1), s.Stored.ScaleCols()
	for i := range n {
		m.W, m.S = buf.raw[(row+i-buf.first)*code:], buf.scales[((row+i)/high-buf.first/high)*scales:]
		codec.Decode(m, 0, dst[i*s.Cols:(i+1)*s.Cols])
	}
	return nil
}

// readScales reads n rows of the scale grid into buf.scales.
func (s *Source) readScales(buf *SourceBuffer, row, n int) error {
	count, width := n*s.Stored.ScaleCols(), s.Scales.DType.Bits()/8
	buf.grid, buf.scales = resize(buf.grid, count*width), resize(buf.scales, count)
	if err := s.readAt(s.Scales, buf.grid, int64(row*s.Stored.ScaleCols()*width)); err != nil {
		return err
	}
	widenScales[s.Scales.DType](buf.scales, buf.grid)
	return nil
}

// ReadCodes reads the codes of the rows [row, row+n) as they are into dst, n
// packed rows; FP8 codes that mean NaN are refused as ReadRows does.
func (s *Source) ReadCodes(row, n int, dst []byte) error {
	if s.Scales == nil || row < 0 || n < 0 || row > s.Rows-n || int64(len(dst)) != int64(n)*s.rowBytes() {
		return s.badRows(row, n, len(dst))
	}
	if err := s.readAt(s.Tensor, dst, s.Offset+int64(row)*s.rowBytes()); err != nil || s.Stored.Format != format.FP8 {
		return err
	}
	for _, c := range dst {
		if c&0x7f == 0x7f {
			return s.notFinite(&SourceBuffer{})
		}
	}
	return nil
}

// ReadScales reads n rows of the scale grid from a row of it on, into memory
// of buf; nil for plain floats. An FP8 matrix has a row of scales for 128 of
// its own. A scale that a container may not have is format.ErrCorrupt: zero,
// not finite, or so large that weights are infinite.
func (s *Source) ReadScales(buf *SourceBuffer, row, n int) ([]float32, error) {
	if s.Scales == nil {
		return nil, nil
	}
	if row < 0 || n < 0 || row > s.Stored.ScaleRows()-n {
		return nil, s.badRows(row, n, n)
	}
	if err := s.readScales(buf, row, n); err != nil {
		return nil, err
	}
	wide := s.Stored.ScaleCols()
	largest := float32(anatomies[s.Stored.Format].largest)
	for i, x := range buf.scales {
		if x == 0 || !finite(float32(x*largest)) {
			return nil, s.fail(format.ErrCorrupt, fmt.Sprintf("scale of block row %d, column %d of %s", row+i/wide, i%wide, s.Scales.Name),
				fmt.Sprint(x), "finite and not zero")
		}
	}
	return buf.scales, nil
}

func (s *Source) readAt(t *format.Tensor, p []byte, off int64) error {
	n, err := t.Shard.ReadAt(p, t.Offset+off)
	switch {
	case n == len(p):
		return nil
	case err == nil || err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return &format.Error{Kind: format.ErrCorrupt, Path: t.Shard.Path, Tensor: t.Name, What: "cannot read", Err: err}
}

func resize[T any](b []T, n int) []T { return slices.Grow(b[:0], n)[:n] }

// notFinite scans the whole matrix, so that the error is the same whichever
// rows came first.
func (s *Source) notFinite(buf *SourceBuffer) error {
	row := make([]float32, s.Cols)
	var first string
	count := 0
	for r := range s.Rows {
		if err := s.read(buf, r, 1, row); err != nil {
			return err
		}
		for c, x := range row {
			if finite(x) {
				continue
			}
			if count++; count > 1 {
				continue
			}
			first = fmt.Sprintf("%v at row %d, column %d", x, r, c)
			switch {
			case s.Stored.Format == format.FP8:
				first += fmt.Sprintf(": code 0x%02x, scale %v", buf.raw[c], buf.scales[c/fp8Block])
			case s.Scales != nil:
				first += fmt.Sprintf(": scale %v", buf.scales[c/cmp.Or(s.Stored.Group, s.Stored.Format.Info().BlockCols, s.Cols)])
			}
		}
	}
	return s.fail(format.ErrCorrupt, fmt.Sprintf("%d weights are not finite, the first is", count), first, "")
}

func finite(x float32) bool { return x-x == 0 }

func (s *Source) badRows(row, n, size int) error {
	return s.fail(format.ErrUsage, fmt.Sprintf("%d values for rows %d to %d of %s", size, row, row+n, s.DType), "", fmt.Sprintf("rows of [%d %d]", s.Rows, s.Cols))
}

func (s *Source) fail(kind error, what, found, wanted string) error {
	name := s.Name
	if s.Tensor.Name != name {
		name += " in " + s.Tensor.Name
	}
	return &format.Error{Kind: kind, Path: s.Tensor.Shard.Path, Tensor: name, What: what, Found: found, Wanted: wanted}
}
