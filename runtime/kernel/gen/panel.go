package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in the struct panel of package kernel.
const (
	pW, pTail, pQuads, pHasTail, pNext, pTiles      = 0, 128, 256, 264, 272, 280
	pAct, pAllQuads, pScales, pOut, pRowScale, pBuf = 288, 320, 328, 336, 344, 408
	tileBytes                                       = 1024 // of a block of 16 rows
)

func init() { families["panel"] = panelFamily }

func panelFamily() {
	spread("spreadInt4AVX512", 128, func(raw Mem, w []reg.VecPhysical, k narrowRegs) { unpack4(raw, w, k) }, 0x0f0f0f0f, false)
	spread("spreadInt2AVX512", 64, func(raw Mem, w []reg.VecPhysical, k narrowRegs) { unpack2(raw, w, k) }, 0x03030303, false)
	spread("spreadInt3AVX512", 96, func(raw Mem, w []reg.VecPhysical, k narrowRegs) { unpack3(raw, w, k) }, 0x03030303, true)
	spread("spreadInt8AVX512", 256, func(raw Mem, w []reg.VecPhysical, k narrowRegs) {
		for b := range 4 {
			VPXORD(raw.Offset(64*b), k.mask, w[b])
		}
	}, 0x80808080, false)
	multiply("multiplyInt4GroupedAVX512", 3, true, false)
	multiply("multiplyInt4RowAVX512", 3, false, false)
	multiply("multiplyInt3GroupedAVX512", 2, true, false)
	multiply("multiplyInt2RowAVX512", 1, false, false)
	multiply("multiplyInt8RowAVX512", 3, false, true)
}

// spread turns sixteen rows into tiles: of each block sixteen vectors that hold
// four columns of every row, in the order of the activations' bytes.
func spread(name string, bytes int, unpack func(Mem, []reg.VecPhysical, narrowRegs), mask uint32, four bool) {
	p := function(name, "func(t *byte)", name+" spreads a panel.")
	buf := GP64()
	MOVQ(mem(p, pBuf), buf)
	k := narrowRegs{mask: reg.Z31, t0: reg.Z16, t1: reg.Z17, four: reg.Z30}
	VPBROADCASTD(constant(mask), k.mask)
	left, off, ahead, tiles := GP64(), GP64(), GP64(), GP64()
	MOVQ(mem(p, pQuads), left)
	MOVQ(mem(p, pNext), ahead)
	MOVQ(mem(p, pTiles), tiles)
	XORQ(off, off)
	rows := func(at int, label string) {
		VPBROADCASTD(constant(mask), k.mask)
		if four {
			VPBROADCASTD(constant(0x04040404), k.four)
		}
		r, to := GP64(), GP64()
		XORQ(r, r)
		MOVQ(buf, to)
		Label(label)
		row := GP64()
		MOVQ(memX(p, r, 8, at), row)
		ADDQ(off, row)
		unpack(mem(row, 0), zmm, k)
		for i := range 4 {
			VMOVDQU32(zmm[i], mem(to, 1024*i))
		}
		ADDQ(Imm(64), to)
		INCQ(r)
		CMPQ(r, Imm(16))
		JL(LabelRef(label))
		for i := range 4 {
			transpose(mem(buf, 1024*i), func(j int) Mem {
				switch {
				case bytes == 256: // one block
					return mem(tiles, tileBytes*i+64*j)
				default: // the even or odd columns of two blocks
					return mem(tiles, tileBytes*(i/2*2+j/8)+64*(i%2*8+j%8))
				}
			})
		}
		ADDQ(U32(4*tileBytes), tiles)
	}
	TESTQ(left, left)
	JZ(LabelRef("rest"))
	Label("quad")
	prefetch(ahead, 16*bytes)
	rows(pW, "row")
	ADDQ(U32(uint32(bytes)), off)
	DECQ(left)
	JNZ(LabelRef("quad"))
	Label("rest")
	CMPQ(mem(p, pHasTail), Imm(0))
	JE(LabelRef("end"))
	XORQ(off, off)
	rows(pTail, "lastrow")
	Label("end")
	end()
}

// transpose reads sixteen rows of sixteen dwords and writes its columns.
func transpose(src Mem, dst func(int) Mem) {
	a, b := zmm[:16], zmm[16:]
	for i := range 16 {
		VMOVDQU32(src.Offset(64*i), a[i])
	}
	for i := 0; i < 16; i += 2 {
		VPUNPCKLDQ(a[i+1], a[i], b[i])
		VPUNPCKHDQ(a[i+1], a[i], b[i+1])
	}
	for g := 0; g < 16; g += 4 {
		for h := range 2 {
			VPUNPCKLQDQ(b[g+2+h], b[g+h], a[g+2*h])
			VPUNPCKHQDQ(b[g+2+h], b[g+h], a[g+2*h+1])
		}
	}
	for c := range 4 {
		VSHUFI32X4(U8(0x44), a[4+c], a[c], b[0])
		VSHUFI32X4(U8(0xee), a[4+c], a[c], b[1])
		VSHUFI32X4(U8(0x44), a[12+c], a[8+c], b[2])
		VSHUFI32X4(U8(0xee), a[12+c], a[8+c], b[3])
		for h := range 2 {
			VSHUFI32X4(U8(0x88), b[2+h], b[h], b[4])
			VMOVDQU32(b[4], dst(8*h+c))
			VSHUFI32X4(U8(0xdd), b[2+h], b[h], b[4])
			VMOVDQU32(b[4], dst(8*h+4+c))
		}
	}
}

// multiply is the product of a panel with four activation vectors: a lane is a
// row, so that no sum crosses lanes.
func multiply(name string, zero int, groups, wide bool) {
	p := function(name, "func(t *byte)", name+" multiplies a panel with four vectors.")
	acc := func(s, stripe int) reg.VecPhysical { return zmm[4*s+stripe] }
	d0, d1 := zmm[16:20], zmm[20:24]
	w, scale, c, sum := zmm[24], zmm[25], zmm[26], zmm[27]
	for i := range 16 {
		VPXORD(zmm[i], zmm[i], zmm[i])
	}
	tiles, scales, off, quadAt, left := GP64(), GP64(), GP64(), GP64(), GP64()
	MOVQ(mem(p, pTiles), tiles)
	MOVQ(mem(p, pScales), scales)
	MOVQ(mem(p, pAllQuads), left)
	XORQ(off, off)
	XORQ(quadAt, quadAt)
	Label("quad")
	var codes [4]reg.GPVirtual
	for s := range codes {
		codes[s] = GP64()
		MOVQ(mem(p, pAct+8*s), codes[s])
		MOVQ(mem(codes[s], actCodes), codes[s])
		ADDQ(off, codes[s])
	}
	// The low parts of wide activations lie behind the high ones.
	low := GP64()
	if wide {
		MOVQ(mem(p, pAllQuads), low)
		SHLQ(Imm(8), low)
	}
	for b := range 4 {
		for s := range 4 {
			VPXORD(d0[s], d0[s], d0[s])
			VPXORD(d1[s], d1[s], d1[s])
		}
		for k := range 16 {
			VMOVDQU32(mem(tiles, tileBytes*b+64*k), w)
			for s := range 4 {
				switch {
				case wide:
					VPDPBUSD_BCST(mem(codes[s], 64*b+4*k), w, d0[s])
					VPDPBUSD_BCST(memX(codes[s], low, 1, 64*b+4*k), w, d1[s])
				case k < 8:
					VPDPBUSD_BCST(mem(codes[s], 128*(b/2)+32*(b%2)+4*k), w, d0[s])
				default:
					VPDPBUSD_BCST(mem(codes[s], 128*(b/2)+32*(b%2)+64+4*(k-8)), w, d1[s])
				}
			}
		}
		if groups {
			VMOVUPS(mem(scales, 64*b), scale)
		}
		for s := range 4 {
			if wide {
				VPSLLD(Imm(4), d0[s], d0[s])
			}
			VPADDD(d1[s], d0[s], d0[s])
			act, q := GP64(), GP64()
			MOVQ(mem(p, pAct+8*s), act)
			MOVQ(mem(act, actSums), q)
			if zero == 3 {
				VPSUBD_BCST(memX(q, quadAt, 1, 4*b), d0[s], d0[s])
			} else {
				VPBROADCASTD(memX(q, quadAt, 1, 4*b), sum)
				VPSRAD(Imm(uint64(3-zero)), sum, sum)
				VPSUBD(sum, d0[s], d0[s])
			}
			VCVTDQ2PS(d0[s], d0[s])
			MOVQ(mem(act, actScale), q)
			if groups {
				VMULPS_BCST(memX(q, quadAt, 1, 4*b), scale, c)
				VFMADD231PS(c, d0[s], acc(s, b))
			} else {
				VFMADD231PS_BCST(memX(q, quadAt, 1, 4*b), d0[s], acc(s, b))
			}
		}
	}
	ADDQ(U32(4*tileBytes), tiles)
	ADDQ(U32(256), scales)
	ADDQ(U32(256), off)
	ADDQ(Imm(16), quadAt)
	DECQ(left)
	JNZ(LabelRef("quad"))
	out := GP64()
	MOVQ(mem(p, pOut), out)
	VMOVUPS(mem(p, pRowScale), scale)
	for s := range 4 {
		VADDPS(acc(s, 1), acc(s, 0), acc(s, 0))
		VADDPS(acc(s, 3), acc(s, 2), acc(s, 2))
		VADDPS(acc(s, 2), acc(s, 0), acc(s, 0))
		VMULPS(scale, acc(s, 0), acc(s, 0))
		VMOVUPS(acc(s, 0), mem(out, 64*s))
	}
	end()
}
