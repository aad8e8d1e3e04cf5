package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// absorbColumns is how many columns' sums stay in registers over all rows.
const absorbColumns = 256

// absorbAhead is how many rows before their use the codes are asked for.
const absorbAhead = 16

// absorbFamily is the product of a vector with the columns of a matrix: weights
// are decoded in registers, row after row, and never stored.
func absorbFamily() {
	idx := func(first uint32) []uint32 { // interleaves the even and odd columns of 32
		v := make([]uint32, 16)
		for i := range v {
			v[i] = first + uint32(i)/2 + uint32(i)%2*16
		}
		return v
	}
	codes := make([]uint32, 16)
	for i := range codes {
		codes[i] = math.Float32bits(float32(i - 8))
	}
	low, high, table := dwords("interleaveLow", idx(0)...), dwords("interleaveHigh", idx(8)...), dwords("int4Values", codes...)

	for _, f := range []struct {
		name   string
		blocks int // of 64 columns that share a scale
	}{{"absorbInt4AVX512", 4}, {"absorbInt4G64AVX512", 1}, {"absorbInt4G128AVX512", 2}} {
		values, scaled, i, w := zmm[16], zmm[17], zmm[18:22], zmm[22:30]
		a := absorb(f.name, 128, func() { VMOVUPS(table, values) }, func(a absorbRow) {
			for b := range 4 {
				if b%f.blocks == 0 { // the sixteen products of a code and the scale
					VMULPS_BCST(mem(a.scale, 4*(b/f.blocks)), values, scaled)
				}
				for h := range 2 {
					c := 2*b + h
					even, odd := w[c%4*2], w[c%4*2+1]
					VPMOVZXBD(mem(a.codes, 16*c), i[c%4])
					VPERMPS(scaled, i[c%4], even)
					VPSRLD(Imm(4), i[c%4], i[c%4])
					VPERMPS(scaled, i[c%4], odd)
					VFMADD231PS(even, a.x, zmm[2*c])
					VFMADD231PS(odd, a.x, zmm[2*c+1])
				}
			}
		})
		for c := 0; c < 16; c += 2 {
			VMOVDQU32(low, w[0])
			VMOVDQU32(high, w[1])
			for h := range 2 {
				VPERMI2PS(zmm[c+1], zmm[c], w[h])
				VMOVUPS(w[h], mem(a, 64*(c+h)))
			}
		}
		end()
	}
	store := func(acc reg.Register) {
		for c := range 16 {
			VMOVUPS(zmm[c], mem(acc, 64*c))
		}
		end()
	}
	scale, w := zmm[16], zmm[17:25]
	store(absorb("absorbInt8AVX512", 256, func() {}, func(a absorbRow) {
		VBROADCASTSS(mem(a.scale, 0), scale)
		for c := range 16 {
			v := w[c%8]
			VPMOVSXBD(mem(a.codes, 16*c), v)
			VCVTDQ2PS(v, v)
			VMULPS(scale, v, v)
			VFMADD231PS(v, a.x, zmm[c])
		}
	}))
	store(absorb("absorbBF16AVX512", 512, func() {}, func(a absorbRow) {
		for c := range 16 {
			v := w[c%8]
			VPMOVZXWD(mem(a.codes, 32*c), v)
			VPSLLD(Imm(16), v, v)
			VFMADD231PS(v, a.x, zmm[c])
		}
	}))
}

// absorbRow is where a row's codes and scales of the columns lie, and its factor.
type absorbRow struct {
	codes, scale reg.Register
	x            reg.VecPhysical
}

// absorb sums up the rows of the columns that begin at codes; bytes is the size
// of their codes in a row. It returns where the sums belong.
func absorb(name string, bytes int, prepare func(), row func(absorbRow)) reg.Register {
	text(name, "acc *float32, q *float32, n int, codes *byte, stride int, scale *float32, scaleStride int",
		"sets acc[256] to Σ q[r] times row r of n, fused, in order; rows of codes and scales are stride and scaleStride bytes apart.")
	acc, q, n, codes, stride := arg("acc"), arg("q"), arg("n"), arg("codes"), arg("stride")
	scale, scaleStride := arg("scale"), arg("scaleStride")
	for c := range absorbColumns / 16 {
		VPXORD(zmm[c], zmm[c], zmm[c])
	}
	prepare()
	ahead := GP64()
	MOVQ(stride, ahead)
	IMUL3Q(Imm(absorbAhead), ahead, ahead)
	ADDQ(codes, ahead)
	x := zmm[31]
	Label("row")
	for at := 0; at < bytes; at += line {
		PREFETCHT1(mem(ahead, at))
	}
	VBROADCASTSS(mem(q, 0), x)
	row(absorbRow{codes, scale, x})
	ADDQ(Imm(4), q)
	ADDQ(stride, codes)
	ADDQ(stride, ahead)
	ADDQ(scaleStride, scale)
	DECQ(n)
	JNZ(LabelRef("row"))
	return acc
}
