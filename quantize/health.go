package quantize

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"

	"hawkmoth/format"
)

// Defect is a way in which the bytes of a matrix are wrong.
type Defect uint8

// The defects. Negative scales are legal, and so is every code but the two
// NaNs of FP8.
const (
	NaNWeight Defect = iota
	InfWeight
	NaNScale
	InfScale
	ZeroScale
	HugeScale // finite, but not times the format's largest code
	BadPad    // what follows a row's last column is not the format's padding
	numDefects
)

var defectNames = [numDefects]string{"NaN weights", "infinite weights", "NaN scales", "infinite scales", "zero scales",
	"scales that make weights infinite", "rows with illegal padding"}

func (d Defect) String() string { return defectNames[d] }

// Defects lists every defect in order.
func Defects() []Defect {
	all := make([]Defect, numDefects)
	for i := range all {
		all[i] = Defect(i)
	}
	return all
}

// Tally counts a defect. Row and Col are the first weight that it touches.
type Tally struct {
	Count    int64
	Row, Col int
}

func (t *Tally) add(n int64, row, col int) {
	if n > 0 && (t.Count == 0 || cmp.Or(cmp.Compare(row, t.Row), cmp.Compare(col, t.Col)) < 0) {
		t.Row, t.Col = row, col
	}
	t.Count += n
}

// Health is what the bytes of a matrix say about it. A group is the columns of
// one row that share a scale, or 64 columns where a whole row does; it is dead
// if all its codes mean zero. A row's halves meet at the last border of groups
// at or before its middle.
type Health struct {
	Defects        [numDefects]Tally
	NegativeScales int64
	Rows, Groups   int64
	DeadGroups     int64
	DeadHalves     int64 // rows with one dead half and a living one
	DeadRows       int64
}

// Sound says whether there is no defect.
func (h *Health) Sound() bool {
	for _, t := range h.Defects {
		if t.Count > 0 {
			return false
		}
	}
	return true
}

// Add counts a part of the matrix that begins at a row.
func (h *Health) Add(row int, part Health) {
	for d, t := range part.Defects {
		h.Defects[d].add(t.Count, row+t.Row, t.Col)
	}
	h.NegativeScales += part.NegativeScales
	h.Rows += part.Rows
	h.Groups += part.Groups
	h.DeadGroups += part.DeadGroups
	h.DeadHalves += part.DeadHalves
	h.DeadRows += part.DeadRows
}

// anatomy is how to look at eight bytes of a format's codes at once.
type anatomy struct {
	largest float64   // magnitude of a code; 0 for a format without scales
	zero    [3]uint64 // words in which every code means zero, repeating
	sign    uint64    // bits that make no difference to a zero
	// exponent and one: where the bits of a value's exponent are all set, the
	// value is not finite and adding one to them carries into the sign.
	exponent, one uint64
}

var anatomies = map[format.ID]anatomy{
	format.F32:         {sign: 0x80000000_80000000, exponent: 0x7f800000_7f800000, one: 0x00800000_00800000},
	format.BF16:        {sign: 0x8000_8000_8000_8000, exponent: 0x7f80_7f80_7f80_7f80, one: 0x0080_0080_0080_0080},
	format.F16:         {sign: 0x8000_8000_8000_8000, exponent: 0x7c00_7c00_7c00_7c00, one: 0x0400_0400_0400_0400},
	format.FP8:         {largest: fp8Max, sign: 0x80808080_80808080, exponent: 0x7f7f7f7f_7f7f7f7f, one: 0x01010101_01010101},
	format.Int8Row:     {largest: 128},
	format.Int4Row:     {largest: 8, zero: same(0x88888888_88888888)},
	format.Int4Grouped: {largest: 8, zero: same(0x88888888_88888888)},
	format.Int3G64:     {largest: 4, zero: [3]uint64{0, 0, ^uint64(0)}},
	format.Int2Row:     {largest: 2, zero: same(0xaaaaaaaa_aaaaaaaa)},
	format.MXFP4:       {largest: 6, sign: 0x88888888_88888888},
	format.E8:          {}, // its scales only, see e8Scales
}

func same(w uint64) [3]uint64 { return [3]uint64{w, w, w} }

// CheckHealth counts what is wrong with a matrix and what in it is dead. The error
// is format.ErrUnsupported for a format without a row in the table, and
// format.ErrCorrupt where codes and scales are not those of the Spec.
func CheckHealth(m Matrix) (Health, error) {
	a, ok := anatomies[m.Format]
	switch {
	case !ok:
		return Health{}, &format.Error{Kind: format.ErrUnsupported, What: "cannot examine weight format", Found: m.Format.String()}
	case int64(len(m.W)) != m.Bytes() || int64(len(m.S)) != m.Scales():
		return Health{}, &format.Error{Kind: format.ErrCorrupt, What: "sizes of " + m.String(),
			Found: fmt.Sprintf("%d bytes, %d scales", len(m.W), len(m.S)), Wanted: fmt.Sprintf("%d, %d", m.Bytes(), m.Scales())}
	}
	h := Health{Rows: int64(m.Rows)}
	h.scales(m, a.largest)
	if m.Format == format.E8 {
		h.e8Scales(m)
		return h, nil
	}
	x := examiner{m: m, a: a, block: cmp.Or(m.Group, m.Format.Info().BlockCols, 64), mask: padMask(m.Spec)}
	for r := range m.Rows {
		x.row(&h, r)
	}
	return h, nil
}

func (h *Health) scales(m Matrix, largest float64) {
	in, n := m.Format.Info(), m.ScaleCols()
	width := cmp.Or(m.Group, in.BlockCols)
	for i, s := range m.S {
		if s > 1e-30 && s < 1e30 {
			continue
		}
		row, col := i/n*in.BlockRows, i%n*width
		switch v := float64(s); {
		case v != v:
			h.Defects[NaNScale].add(1, row, col)
		case math.IsInf(v, 0):
			h.Defects[InfScale].add(1, row, col)
		case v == 0:
			h.Defects[ZeroScale].add(1, row, col)
		case math.Abs(v)*largest > math.MaxFloat32:
			h.Defects[HugeScale].add(1, row, col)
		}
		if s < 0 {
			h.NegativeScales++
		}
	}
}

// e8Scales looks at the half-precision scale that ends each 98 bytes of e8.
func (h *Health) e8Scales(m Matrix) {
	const bytes, cols = 98, 256
	perRow := m.RowBytes() / bytes
	for i := range m.Rows * perRow {
		d := binary.LittleEndian.Uint16(m.W[(i+1)*bytes-2:])
		switch {
		case d&0x7fff > 0x7c00:
			h.Defects[NaNScale].add(1, i/perRow, i%perRow*cols)
		case d&0x7fff == 0x7c00:
			h.Defects[InfScale].add(1, i/perRow, i%perRow*cols)
		}
	}
}

// padMask is the bits of a row's last byte that hold no column.
func padMask(s format.Spec) byte {
	switch s.Format {
	case format.Int4Row, format.Int4Grouped:
		return byte(0xf0 * (s.Cols % 2))
	case format.Int2Row:
		if rest := s.Cols % 4; rest > 0 {
			return 0xff << (2 * rest)
		}
	}
	return 0
}

type examiner struct {
	m     Matrix
	a     anatomy
	block int  // columns of a group
	mask  byte // of the padding in a row's last byte
	last  [128]byte
}

func (x *examiner) row(h *Health, r int) {
	in, n := x.m.Format.Info(), x.m.RowBytes()
	code, size := x.m.W[r*n:(r+1)*n], in.RowBytes(x.block)
	groups := (x.m.Cols + x.block - 1) / x.block
	middle := x.m.Cols / 2 / x.block
	dead, left := 0, 0
	for g := range groups {
		b := code[g*size : min((g+1)*size, n)]
		if g == groups-1 {
			b = x.padding(h, b, r)
		}
		alive, strange := x.a.scan(b)
		if !alive {
			dead++
			if g < middle {
				left++
			}
		}
		if strange {
			x.weights(h, b, r, g*x.block)
		}
	}
	h.Groups += int64(groups)
	h.DeadGroups += int64(dead)
	switch {
	case dead == groups:
		h.DeadRows++
	case middle > 0 && (left == middle || dead-left == groups-middle):
		h.DeadHalves++
	}
}

// scan says whether some code is not zero and whether some value is not finite.
func (a *anatomy) scan(b []byte) (alive, strange bool) {
	var live, odd uint64
	i := 0
	for ; len(b) >= 8; b = b[8:] {
		w := binary.LittleEndian.Uint64(b)
		live |= (w ^ a.zero[i]) &^ a.sign
		odd |= (w&a.exponent + a.one) & a.sign
		if i++; i == len(a.zero) {
			i = 0
		}
	}
	if len(b) > 0 {
		var rest [8]byte
		binary.LittleEndian.PutUint64(rest[:], a.zero[0])
		copy(rest[:], b)
		w := binary.LittleEndian.Uint64(rest[:])
		live |= (w ^ a.zero[0]) &^ a.sign
		odd |= (w&a.exponent + a.one) & a.sign
	}
	return live != 0, odd != 0
}

// padding checks what follows the last column and returns the row's last group
// with zeros there.
func (x *examiner) padding(h *Health, b []byte, r int) []byte {
	if rest := x.m.Cols % int3Group; x.m.Format == format.Int3G64 && rest > 0 {
		lo0, lo1, hi := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
		if rest <= 32 {
			lo0 >>= 2 * rest
		} else {
			lo0, lo1 = 0, lo1>>(2*(rest-32))
		}
		if lo0|lo1|^hi>>rest != 0 {
			h.Defects[BadPad].add(1, r, x.m.Cols)
		}
	}
	if x.mask == 0 {
		return b
	}
	b = append(x.last[:0], b...)
	last := &b[len(b)-1]
	if *last&x.mask != 0 {
		h.Defects[BadPad].add(1, r, x.m.Cols)
	}
	*last = *last&^x.mask | byte(x.a.zero[0])&x.mask
	return b
}

// weights counts the values of a group that are not finite.
func (x *examiner) weights(h *Health, b []byte, r, col int) {
	var values [128]float32
	v := values[:min(x.block, x.m.Cols-col)]
	if x.m.Format == format.FP8 {
		FP8ToF32(v, b)
	} else {
		widen[x.m.Format.Info().DType](v, b)
	}
	for i, f := range v {
		switch {
		case f != f:
			h.Defects[NaNWeight].add(1, r, col+i)
		case math.IsInf(float64(f), 0):
			h.Defects[InfWeight].add(1, r, col+i)
		}
	}
}
