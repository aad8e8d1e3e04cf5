package kernel

import (
	"encoding/binary"
	"math"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// The exact part of the integer products multiplies polynomials. A word holds
// the codes of `fields` columns as a number Σ w_f·Xᶠ, its mate holds their
// activations the other way round, Σ q_f·Xᶠ⁻¹⁻ᶠ from the highest power down,
// and the highest coefficient of word·mate, modulo 2⁶⁴, is Σ w_f·q_f. With
// X = 2¹⁶ one multiplication makes four products of codes of at most 4 bits
// (|w·q| ≤ 8·127, so the sum of 32 products fits a field), with X = 2³² two
// products of int8 codes (a block's 64 sum to less than 2²⁴).

// layout is what the products need to know of a weight format.
type layout struct {
	bits       int // of the activations; 0 for float weights
	group      int // columns of a scale group; 0: one scale a row, -1: the matrix's Group
	blockBytes int // packed bytes of a block of 64 columns
	fields     int // codes in a word
	// A run of step·fields columns makes step words; field f of word i of
	// the run is its column i + f·step.
	step int
	// spread writes the words of whole blocks, as many as dst has room for.
	spread func(dst []uint64, row []byte)
}

// layouts has one row for each integer format that run serves.
var layouts = [256]layout{
	format.Int8Row:     {12, 0, 64, 2, 4, spreadInt8},
	format.Int4Row:     {8, 0, 32, 4, 4, spreadInt4},
	format.Int2Row:     {8, 0, 16, 4, 8, spreadInt2},
	format.Int4Grouped: {8, -1, 32, 4, 4, spreadInt4},
	format.Int3G64:     {8, 64, 24, 4, 8, spreadInt3},
}

// repeat times a small number is that number in each 16-bit field.
const repeat = 0x0001000100010001

func spreadInt8(dst []uint64, row []byte) {
	for ; len(dst) >= 4; dst, row = dst[4:], row[8:] {
		x := binary.LittleEndian.Uint64(row) ^ 0x8080808080808080 // to code + 128
		const mask, bias = 0x000000ff000000ff, 0x0000008000000080
		dst[0] = x&mask - bias
		dst[1] = x>>8&mask - bias
		dst[2] = x>>16&mask - bias
		dst[3] = x>>24&mask - bias
	}
}

func spreadInt4(dst []uint64, row []byte) {
	for ; len(dst) >= 4; dst, row = dst[4:], row[8:] {
		x := binary.LittleEndian.Uint64(row)
		dst[0] = x&(15*repeat) - 8*repeat
		dst[1] = x>>4&(15*repeat) - 8*repeat
		dst[2] = x>>8&(15*repeat) - 8*repeat
		dst[3] = x>>12&(15*repeat) - 8*repeat
	}
}

func spreadInt2(dst []uint64, row []byte) {
	for ; len(dst) >= 8; dst, row = dst[8:], row[8:] {
		x := binary.LittleEndian.Uint64(row)
		for i := range dst[:8] {
			dst[i] = x&(3*repeat) - 2*repeat
			x >>= 2
		}
	}
}

func spreadInt3(dst []uint64, row []byte) {
	for ; len(dst) >= 16; dst, row = dst[16:], row[24:] {
		high := binary.LittleEndian.Uint64(row[16:])
		for half := range 2 {
			x := binary.LittleEndian.Uint64(row[8*half:])
			h := high >> (32 * half) & 0xffffffff // its bytes go to the fields, column i + 8f to bit i of field f
			h = (h | h<<16) & 0x0000ffff0000ffff
			h = (h | h<<8) & (0xff * repeat) << 2
			d := dst[8*half:][:8]
			for i := range d {
				d[i] = (x&(3*repeat) | h&(4*repeat)) - 4*repeat
				x >>= 2
				h >>= 1
			}
		}
	}
}

// mates writes the mates of a row's words for the activations q.
func mates(dst []uint64, q []int16, fields, step int) {
	shift := 64 / fields
	for len(q) > 0 {
		run := q[:fields*step]
		for i := range step {
			var m uint64
			for f := 0; f < len(run); f += step {
				m = m<<shift + uint64(run[i+f])
			}
			dst[i] = m
		}
		dst, q = dst[step:], q[len(run):]
	}
}

// wideSums writes the dot product of each block of int8 codes.
func wideSums(d []int32, words, mates []uint64) {
	for b := range d {
		w, m := (*[32]uint64)(words[b*32:]), (*[32]uint64)(mates[b*32:])
		var t0, t1 uint64
		for i := 0; i < 32; i += 8 {
			t0 += w[i]*m[i] + w[i+1]*m[i+1] + w[i+2]*m[i+2] + w[i+3]*m[i+3]
			t1 += w[i+4]*m[i+4] + w[i+5]*m[i+5] + w[i+6]*m[i+6] + w[i+7]*m[i+7]
		}
		d[b] = int32((t0 + t1 + 1<<31) >> 32)
	}
}

// narrowSums writes the dot product of each block of codes of up to 4 bits.
func narrowSums(d []int32, words, mates []uint64) {
	for b := range d {
		w, m := (*[16]uint64)(words[b*16:]), (*[16]uint64)(mates[b*16:])
		t0 := w[0]*m[0] + w[1]*m[1] + w[2]*m[2] + w[3]*m[3] + w[4]*m[4] + w[5]*m[5] + w[6]*m[6] + w[7]*m[7]
		t1 := w[8]*m[8] + w[9]*m[9] + w[10]*m[10] + w[11]*m[11] + w[12]*m[12] + w[13]*m[13] + w[14]*m[14] + w[15]*m[15]
		d[b] = int32(int64(t0+1<<47)>>48) + int32(int64(t1+1<<47)>>48)
	}
}

// quarterSums writes the dot product of each 16 columns of int4 codes.
func quarterSums(d []int32, words, mates []uint64) {
	for i := range d {
		w, m := (*[4]uint64)(words[i*4:]), (*[4]uint64)(mates[i*4:])
		d[i] = int32(int64(w[0]*m[0]+w[1]*m[1]+w[2]*m[2]+w[3]*m[3]+1<<47) >> 48)
	}
}

// Dequant writes row `row` of m to dst[Cols] as float32, code times scale with
// one rounding: quantize's decoder. A format without one gives NaN; Check
// refuses it.
func Dequant(m quantize.Matrix, row int, dst []float32) {
	if dequantSIMD(m, row, 1, dst) {
		return
	}
	c, err := quantize.CodecFor(m.Format)
	if err != nil {
		fillNaN(dst)
		return
	}
	c.Decode(m, row, dst)
}

func fillNaN(dst []float32) {
	for i := range dst {
		dst[i] = float32(math.NaN())
	}
}
