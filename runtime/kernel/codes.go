package kernel

import (
	"encoding/binary"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// layout is what the products need to know of a weight format.
type layout struct {
	bits   int // of the activations; 0 for float weights
	group  int // columns of a scale group; 0: one scale a row, -1: the matrix's Group
	unpack func(dst []int8, row []byte)
}

// layouts has one row for each format that run serves.
var layouts = [256]layout{
	format.Int8Row:     {12, 0, unpackInt8},
	format.Int4Row:     {8, 0, unpackInt4},
	format.Int2Row:     {8, 0, unpackInt2},
	format.Int4Grouped: {8, -1, unpackInt4},
	format.Int3G64:     {8, 64, unpackInt3},
}

// The unpackers write the signed codes of the first len(dst) columns of a row.

func unpackInt8(dst []int8, row []byte) {
	row = row[:len(dst)]
	for i := range dst {
		dst[i] = int8(row[i])
	}
}

func unpackInt4(dst []int8, row []byte) {
	n := len(dst) / 2
	for i, c := range row[:n] {
		dst[2*i] = int8(c&15) - 8
		dst[2*i+1] = int8(c>>4) - 8
	}
	if len(dst)%2 != 0 {
		dst[2*n] = int8(row[n]&15) - 8
	}
}

func unpackInt2(dst []int8, row []byte) {
	for i := range dst {
		dst[i] = int8(row[i/4]>>(2*(i%4))&3) - 2
	}
}

func unpackInt3(dst []int8, row []byte) {
	for len(dst) > 0 {
		d := dst[:min(64, len(dst))]
		hi := binary.LittleEndian.Uint64(row[16:24])
		for k := range d {
			d[k] = int8(row[k/4]>>(2*(k%4))&3|byte(hi>>k&1)<<2) - 4
		}
		dst, row = dst[len(d):], row[24:]
	}
}

// Dequant writes row `row` of m to dst[Cols] as float32, code times scale with
// one rounding: quantize's decoder. A format without one gives zeros; Check
// refuses it.
func Dequant(m quantize.Matrix, row int, dst []float32) {
	c, err := quantize.CodecFor(m.Format)
	if err != nil {
		clear(dst)
		return
	}
	c.Decode(m, row, dst)
}
