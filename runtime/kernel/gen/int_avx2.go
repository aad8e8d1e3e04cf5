package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var ymm = []reg.VecPhysical{reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7, reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15}

var halves Mem

func avx2Family() {
	halves = dwords("halfScales", 0, 2, 4, 6, 1, 3, 5, 7)
	ones := dwords("onesWords", repeated(0x00010001, 8)...)
	nibbles := dwords("maskNibbles", repeated(0x0f0f0f0f, 8)...)
	pairs := dwords("maskPairs", repeated(0x03030303, 8)...)
	fours := dwords("fours", repeated(0x04040404, 8)...)
	copies := dwords("copyBytes", 0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707)
	even := dwords("evenBits", repeated(0x40100401, 8)...)
	odd := dwords("oddBits", repeated(0x80200802, 8)...)
	for _, k := range []struct {
		name   string
		scales int
	}{{"int4RowAVX2", perRow}, {"int4G32AVX2", perHalf}, {"int4G64AVX2", perBlock}, {"int4G128AVX2", per2}, {"int4G256AVX2", per4}} {
		narrow256(k.name, 128, 3, k.scales, ones, nibbles, nil)
	}
	low := func(raw Mem, even, odd, tmp reg.VecPhysical) {
		VPMOVZXBW(raw, even)
		VPSLLW(Imm(4), even, tmp)
		VPOR(tmp, even, even)
		VPSRLW(Imm(2), even, odd)
		VPAND(pairs, even, even)
		VPAND(pairs, odd, odd)
	}
	narrow256("int2RowAVX2", 64, 1, perRow, ones, nibbles, func(raw Mem, block int, even, odd, tmp reg.VecPhysical) {
		low(raw.Offset(16*block), even, odd, tmp)
	})
	narrow256("int3G64AVX2", 96, 2, perBlock, ones, nibbles, func(raw Mem, block int, e, o, tmp reg.VecPhysical) {
		low(raw.Offset(24*block), e, o, tmp)
		high := reg.Y4 // the eight bytes of high bits, each four times
		VPBROADCASTQ(raw.Offset(24*block+16), high)
		VPSHUFB(copies, high, high)
		for _, half := range []struct {
			bits Mem
			w    reg.VecPhysical
		}{{even, e}, {odd, o}} {
			VPAND(half.bits, high, tmp)
			VPCMPEQB(half.bits, tmp, tmp)
			VPAND(fours, tmp, tmp)
			VPOR(tmp, half.w, half.w)
		}
	})
	wide256("int8RowAVX2")
}

// narrow256 is narrow512 for two rows and AVX2. Nibbles wait for the vectors in
// registers, other codes, unpacked to bytes, on the stack.
func narrow256(name string, bytes, zero, scales int, ones, nibbles Mem, unpack func(raw Mem, block int, even, odd, tmp reg.VecPhysical)) {
	t := function(name, "func(t *byte)", name+" multiplies two rows with t.n vectors.")
	var codes Mem
	if unpack != nil {
		codes = AllocLocal(512)
	}
	scale, second := reg.Y14, reg.Y15
	Label("tile")
	clearAcc(t, reg.Y0)
	at := start(t)
	at.eachQuad(t, 2, bytes, func(wAt, sAt, scales int) {
		for r := range 2 {
			row := at.row(t, wAt, r)
			for b := range 4 {
				at.ask()
				if unpack == nil {
					VMOVDQU(mem(row, 32*b), ymm[4*r+b])
					continue
				}
				unpack(mem(row, 0), b, reg.Y0, reg.Y1, reg.Y2)
				VMOVDQU(reg.Y0, codes.Offset(256*r+64*b))
				VMOVDQU(reg.Y1, codes.Offset(256*r+64*b+32))
			}
		}
		row := func(r int) Mem {
			p := GP64()
			MOVQ(mem(t, sAt+8*r), p)
			return memX(p, at.scale, 1, 0)
		}
		tmp := reg.Y13
		switch scales {
		case perHalf: // of each block's halves to scale and second
			VMOVDQU(halves, second)
			VPERMPS(row(0), second, scale)
			VPERMPS(row(1), second, tmp)
			VPERM2F128(U8(0x31), tmp, scale, second)
			VPERM2F128(U8(0x20), tmp, scale, scale)
		case perBlock:
			VMOVUPS(row(0), scale.AsX())
			VINSERTF128(Imm(1), row(1), scale, scale)
		case per2:
			VMOVSD(row(0), scale.AsX())
			VMOVSD(row(1), tmp.AsX())
			VINSERTF128(Imm(1), tmp.AsX(), scale, scale)
			VUNPCKLPS(scale, scale, scale)
		case per4:
			VBROADCASTSS(row(0), scale.AsX())
			VBROADCASTSS(row(1), tmp.AsX())
			VINSERTF128(Imm(1), tmp.AsX(), scale, scale)
		}
		eachVector(t, func(act, acc reg.Register) {
			p := GP64()
			MOVQ(mem(act, actCodes), p)
			block := func(r, b int, d, tmp reg.VecPhysical) { // sixteen int16, 4 products each
				if unpack == nil {
					VPAND(nibbles, ymm[4*r+b], d)
					VPSRLW(Imm(4), ymm[4*r+b], tmp)
					VPAND(nibbles, tmp, tmp)
				} else {
					VMOVDQU(codes.Offset(256*r+64*b), d)
					VMOVDQU(codes.Offset(256*r+64*b+32), tmp)
				}
				VPMADDUBSW(memX(p, at.act, 1, 128*(b/2)+32*(b%2)), d, d)
				VPMADDUBSW(memX(p, at.act, 1, 128*(b/2)+32*(b%2)+64), tmp, tmp)
				VPADDW(tmp, d, d)
			}
			row0, d, tmp := reg.Y12, reg.Y8, reg.Y9
			for r := range 2 {
				for h := range 2 {
					a, b := ymm[8+2*h], ymm[11]
					block(r, 2*h, a, tmp)
					block(r, 2*h+1, b, tmp)
					VPUNPCKLQDQ(b, a, tmp)
					VPUNPCKHQDQ(b, a, a)
					VPADDW(tmp, a, a)
				}
				a, b := ymm[8], ymm[10]
				VSHUFPS(U8(0x88), b, a, tmp)
				VSHUFPS(U8(0xdd), b, a, a)
				VPADDW(tmp, a, a)
				VPMADDWD(ones, a, a)
				if r == 0 {
					VMOVDQA(a, row0)
				}
			}
			VPERM2I128(U8(0x20), d, row0, tmp)
			VPERM2I128(U8(0x31), d, row0, d)
			if scales == perHalf {
				half := GP64()
				MOVQ(mem(t, tHalf), half)
				MOVQ(mem(act, actSums), p)
				ADDQ(at.quad, p)
				VMOVUPS(mem(acc, 0), row0)
				for _, h := range [][2]reg.VecPhysical{{tmp, scale}, {d, second}} {
					sum := h[0]
					ADDQ(half, p)
					VBROADCASTI128(mem(p, 0), reg.Y10)
					VPSUBD(reg.Y10, sum, sum)
					VCVTDQ2PS(sum, sum)
					x := GP64()
					MOVQ(mem(act, actScale), x)
					VBROADCASTF128(memX(x, at.quad, 1, 0), reg.Y10)
					VMULPS(reg.Y10, h[1], reg.Y10)
					VFMADD231PS(reg.Y10, sum, row0)
				}
				VMOVUPS(row0, mem(acc, 0))
				return
			}
			VPADDD(tmp, d, d)
			MOVQ(mem(act, actSums), p)
			VBROADCASTI128(memX(p, at.quad, 1, 0), tmp)
			if zero < 3 {
				VPSRAD(Imm(uint64(3-zero)), tmp, tmp)
			}
			VPSUBD(tmp, d, d)
			VCVTDQ2PS(d, d)
			MOVQ(mem(act, actScale), p)
			VBROADCASTF128(memX(p, at.quad, 1, 0), tmp)
			if scales != perRow {
				VMULPS(tmp, scale, tmp)
			}
			VMOVUPS(mem(acc, 0), row0)
			VFMADD231PS(tmp, d, row0)
			VMOVUPS(row0, mem(acc, 0))
		})
	}, scales)
	out2(t)
}

// wide256 is wide512 with the codes widened anew for every vector.
func wide256(name string) {
	t := function(name, "func(t *byte)", name+" multiplies two rows with t.n vectors.")
	Label("tile")
	clearAcc(t, reg.Y0)
	at := start(t)
	at.eachQuad(t, 2, 256, func(wAt, _, _ int) {
		rows := []reg.Register{at.row(t, wAt, 0), at.row(t, wAt, 1)}
		eachVector(t, func(act, acc reg.Register) {
			p := GP64()
			MOVQ(mem(act, actQ), p)
			for r, row := range rows {
				for b := range 4 {
					at.ask()
					d, tmp := ymm[4*r+b], ymm[8+b]
					VPMOVSXBW(mem(row, 64*b), d)
					VPMADDWD(memX(p, at.act, 2, 128*b), d, d)
					for i := 1; i < 4; i++ {
						VPMOVSXBW(mem(row, 64*b+16*i), tmp)
						VPMADDWD(memX(p, at.act, 2, 128*b+32*i), tmp, tmp)
						VPADDD(tmp, d, d)
					}
				}
				d, tmp := ymm[4*r:], reg.Y12
				addPairs(VPUNPCKLQDQ, VPUNPCKHQDQ, d[0], d[1], tmp)
				addPairs(VPUNPCKLQDQ, VPUNPCKHQDQ, d[2], d[3], tmp)
				VSHUFPS(U8(0x88), d[2], d[0], tmp)
				VSHUFPS(U8(0xdd), d[2], d[0], d[0])
				VPADDD(tmp, d[0], d[0])
			}
			d, tmp := reg.Y0, reg.Y1
			VPERM2I128(U8(0x20), reg.Y4, d, tmp)
			VPERM2I128(U8(0x31), reg.Y4, d, d)
			VPADDD(tmp, d, d)
			finishRow2(act, acc, at, func(o ...Op) { VBROADCASTF128(o[0], o[1]) }, d, reg.Y1, reg.Y2)
		})
	}, perRow)
	out2(t)
}
