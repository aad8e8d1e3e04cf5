package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// planes512 are the constants of planar codes.
type planes512 struct{ order, split, even, odd, low, high, nib, twice Mem }

var planes planes512

func newPlanes() planes512 {
	return planes512{
		order: dwords("blocksOfRows", 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
		split: byteTable("everySecond", lane(func(k int) int { return k%8*2 + k/8 })),
		even:  qwords("evenQuads", 0, 2, 4, 6, 8, 10, 12, 14),
		odd:   qwords("oddQuads", 1, 3, 5, 7, 9, 11, 13, 15),
		low:   qwords("int3Low", 0, 1, 3, 4, 6, 7, 13, 14),
		high:  qwords("int3High", 2, 2, 5, 5, 12, 12, 15, 15),
		nib:   qwords("int3Nibbles", 0, 4, 0, 4, 0, 4, 0, 4),
		twice: byteTable("int3Twice", lane(func(k int) int { return k/2 + k%2*8 })),
	}
}

// fourPlanes makes bytes of the 2-bit codes in t0.
func fourPlanes(w []reg.VecPhysical, k narrowRegs) {
	VPANDD(k.mask, k.t0, w[0])
	for p := 1; p < 4; p++ {
		VPSRLW(Imm(uint64(2*p)), k.t0, w[p])
		VPANDD(k.mask, w[p], w[p])
	}
}

func planes2(raw Mem, w []reg.VecPhysical, k narrowRegs) {
	k.touch()
	VMOVDQU32(raw, k.t0)
	fourPlanes(w, k)
}

// planes3 gathers a block's 16 bytes of low bits in a lane, and of its 64 high
// bits a nibble for every four columns.
func planes3(raw Mem, w []reg.VecPhysical, k narrowRegs) {
	k.touch()
	low, high := k.t0, k.t1
	VMOVDQU32(raw, low)
	VMOVDQU32(low, high)
	VPERMT2Q(raw.Offset(32), k.low, low)
	VPERMT2Q(raw.Offset(32), k.high, high)
	k.touch()
	VPSRLVQ(planes.nib, high, high)
	VPSHUFB(k.twice, high, high)
	fourPlanes(w, k)
	const orAnd = 0xf8 // w | high&four
	for p, shift := range []func(...Op){VPSLLW, VPSLLW, nil, VPSRLW} {
		h := high
		if shift != nil {
			h = k.t0
			shift(Imm(uint64(max(2-p, p-2))), high, h)
		}
		VPTERNLOGD(U8(orAnd), k.four, h, w[p])
	}
}

// arrangePlanes writes int8 activations in the order of planar codes.
func arrangePlanes() {
	text("arrangePlanesAVX512", "dst, codes *int8, quads int", "writes the columns 4k+p of each block of a quad into lane b of its register p.")
	dst, codes, n := arg("dst"), arg("codes"), arg("quads")
	acts, even, odd, split, plane := zmm[:4], zmm[4], zmm[5], zmm[6], zmm[7]
	VMOVDQU32(planes.even, even)
	VMOVDQU32(planes.odd, odd)
	VMOVDQU32(planes.split, split)
	Label("quad")
	for i := range acts { // even columns of two blocks, their odd ones
		VMOVDQU32(mem(codes, 64*i), acts[i])
		VPSHUFB(split, acts[i], acts[i])
	}
	for i := range 2 {
		VMOVDQA32(acts[i], plane)
		VPERMT2Q(acts[i+2], even, plane)
		VPERMT2Q(acts[i+2], odd, acts[i])
		VMOVDQU32(plane, mem(dst, 64*i))
		VMOVDQU32(acts[i], mem(dst, 64*(i+2)))
	}
	ADDQ(U32(quadActs), codes)
	ADDQ(U32(quadActs), dst)
	DECQ(n)
	JNZ(LabelRef("quad"))
	end()
}

// planarDots sets d[0] to the dots of four rows, a block a lane.
func planarDots(w, acts, d []reg.VecPhysical, ones reg.VecPhysical) {
	for r := range 4 {
		VPXORD(d[r], d[r], d[r])
		for p := range 4 {
			VPDPBUSD(acts[p], w[4*r+p], d[r])
		}
	}
	for _, pair := range [][2]int{{0, 1}, {2, 3}, {0, 2}} {
		VPACKSSDW(d[pair[1]], d[pair[0]], d[pair[0]])
		VPMADDWD(ones, d[pair[0]], d[pair[0]])
	}
}
