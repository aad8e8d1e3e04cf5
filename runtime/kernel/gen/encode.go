package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in the struct strip of package quantize.
const (
	stDst, stSrc, stN, stScale, stShift, stTop = 0, 8, 16, 24, 28, 32
	stripColumns                               = 32 // that a step takes
)

func init() { families["encode"] = encodeFamily }

// encodeFamily is for AVX2 with F16C: a conversion waits for the disk before it
// waits for wider registers.
func encodeFamily() {
	each("vecWidenBF16", "widens bfloat16", 2, 4, func(src, dst Mem, _ reg.GPVirtual) {
		for i := range 4 {
			x := YMM()
			VPMOVZXWD(src.Offset(16*i), x)
			VPSLLD(Imm(16), x, x)
			VMOVDQU(x, dst.Offset(32*i))
		}
	})
	each("vecWidenF16", "widens binary16", 2, 4, func(src, dst Mem, _ reg.GPVirtual) {
		for i := range 4 {
			x := YMM()
			VCVTPH2PS(src.Offset(16*i), x)
			VMOVUPS(x, dst.Offset(32*i))
		}
	})
	each("vecWidenFP8", "widens e4m3, times the scale", 1, 4, widenFP8)
	each("vecRound8", "rounds to bytes", 4, 1, func(src, dst Mem, p reg.GPVirtual) {
		codes := YMM()
		roundTo(src, p, 0xff, codes)
		VMOVDQU(codes, dst)
	})
	each("vecRound4", "rounds to pairs of four bits", 4, 0, func(src, dst Mem, p reg.GPVirtual) {
		codes, pair := YMM(), YMM()
		roundTo(src, p, 0x0f, codes)
		VPBROADCASTD(inMemory(0x10011001), pair)
		VPMADDUBSW(pair, codes, codes)
		VPACKUSWB(codes, codes, codes)
		VPERMQ(U8(0x08), codes, codes)
		VMOVDQU(codes.AsX(), dst)
	})
	each("vecNarrowBF16", "narrows to bfloat16", 4, 2, func(src, dst Mem, _ reg.GPVirtual) {
		var x [4]reg.VecVirtual
		half, one, quiet := YMM(), YMM(), YMM()
		VPBROADCASTD(inMemory(0x7fff), half)
		VPBROADCASTD(inMemory(1), one)
		VPBROADCASTD(inMemory(1<<22), quiet)
		for i := range x {
			x[i] = YMM()
			r, nan := YMM(), YMM()
			VMOVUPS(src.Offset(32*i), x[i])
			VCMPPS(Imm(3), x[i], x[i], nan)
			VPSRLD(Imm(16), x[i], r)
			VPAND(one, r, r)
			VPADDD(half, r, r)
			VPADDD(x[i], r, r)
			VPOR(quiet, x[i], x[i])
			VPBLENDVB(nan, x[i], r, x[i])
			VPSRLD(Imm(16), x[i], x[i])
		}
		for i := range 2 {
			VPACKUSDW(x[2*i+1], x[2*i], x[2*i])
			VPERMQ(U8(0xd8), x[2*i], x[2*i])
			VMOVDQU(x[2*i], dst.Offset(32*i))
		}
	})
	each("vecNarrowF16", "narrows to binary16", 4, 2, func(src, dst Mem, _ reg.GPVirtual) {
		for i := range 4 {
			x := YMM()
			VMOVUPS(src.Offset(32*i), x)
			VCVTPS2PH(Imm(0), x, dst.Offset(16*i))
		}
	})
	each("vecRoundFP8", "rounds to e4m3", 4, 1, roundFP8)
	maxAbs()
}

var words = map[string]Mem{}

// inMemory is a constant, of which each stands once in the file.
func inMemory(v ...uint32) Mem {
	name := fmt.Sprintf("word%x", v[0])
	if len(v) > 1 {
		name = "order"
	}
	m, ok := words[name]
	if !ok {
		m = dwords(name, v...)
		words[name] = m
	}
	return m
}

// each makes a loop over steps of 32 columns, from in to out bytes each; out 0
// is half a byte.
func each(name, doc string, in, out int, body func(src, dst Mem, p reg.GPVirtual)) {
	p := function(name, "func(t *byte)", name+" "+doc+"; t is a *strip.")
	src, dst, n := GP64(), GP64(), GP64()
	MOVQ(mem(p, stSrc), src)
	MOVQ(mem(p, stDst), dst)
	MOVQ(mem(p, stN), n)
	Label("step")
	body(mem(src, 0), mem(dst, 0), p)
	ADDQ(U32(uint32(stripColumns*in)), src)
	ADDQ(U32(uint32(max(stripColumns*out, stripColumns/2))), dst)
	SUBQ(Imm(stripColumns), n)
	JNZ(LabelRef("step"))
	end()
}

// bytesOf packs four registers of dwords below 256 into one.
func bytesOf(x [4]reg.VecVirtual, dst reg.VecVirtual) {
	VPACKUSDW(x[1], x[0], x[0])
	VPACKUSDW(x[3], x[2], x[2])
	VPACKUSWB(x[2], x[0], x[0])
	VMOVDQU(inMemory(0, 4, 1, 5, 2, 6, 3, 7), dst)
	VPERMD(x[0], dst, dst)
}

// roundTo makes bytes of the last bits of x/scale + shift.
func roundTo(src Mem, p reg.GPVirtual, mask uint32, codes reg.VecVirtual) {
	scale, shift, bits := YMM(), YMM(), YMM()
	VBROADCASTSS(mem(p, stScale), scale)
	VBROADCASTSS(mem(p, stShift), shift)
	VPBROADCASTD(inMemory(mask), bits)
	var x [4]reg.VecVirtual
	for i := range x {
		x[i] = YMM()
		VMOVUPS(src.Offset(32*i), x[i])
		VDIVPS(scale, x[i], x[i])
		VADDPS(shift, x[i], x[i])
		VPAND(bits, x[i], x[i])
	}
	bytesOf(x, codes)
}

// widenFP8 goes over binary16, which has room for every e4m3 value/256.
func widenFP8(src, dst Mem, p reg.GPVirtual) {
	low, nan, up, scale := YMM(), YMM(), YMM(), YMM()
	VPBROADCASTD(inMemory(0x007f007f), low)
	VPBROADCASTD(inMemory(0x43800000), up) // 256
	VBROADCASTSS(mem(p, stScale), scale)
	for i := range 2 {
		x, sign := YMM(), YMM()
		VPMOVZXBW(src.Offset(16*i), x)
		VPANDN(x, low, sign)
		VPAND(low, x, x)
		VPCMPEQW(low, x, nan)
		VPSLLW(Imm(7), x, x)
		VPSLLW(Imm(8), sign, sign)
		VPOR(sign, x, x)
		VPOR(nan, x, x)
		for h := range 2 {
			half, y := XMM(), YMM()
			VEXTRACTI128(U8(h), x, half)
			VCVTPH2PS(half, y)
			VMULPS(up, y, y)
			VMULPS(scale, y, y)
			VMOVUPS(y, dst.Offset(64*i+32*h))
		}
	}
}

// roundFP8 rounds as fp8Code does.
func roundFP8(src, dst Mem, p reg.GPVirtual) {
	scale, magnitude := YMM(), YMM()
	VBROADCASTSS(mem(p, stScale), scale)
	VPBROADCASTD(inMemory(0x7fffffff), magnitude)
	var x [4]reg.VecVirtual
	for i := range x {
		x[i] = YMM()
		a, r, t, m := YMM(), YMM(), YMM(), YMM()
		VMOVUPS(src.Offset(32*i), x[i])
		VDIVPS(scale, x[i], x[i])
		VPAND(magnitude, x[i], a)
		VPXOR(a, x[i], x[i])
		VPSRLD(Imm(24), x[i], x[i]) // the sign
		VPSRLD(Imm(20), a, r)
		VPBROADCASTD(inMemory(1), t)
		VPAND(t, r, r)
		VPADDD(a, r, r)
		VPBROADCASTD(inMemory(0x7ffff), t)
		VPADDD(t, r, r)
		VPSRLD(Imm(20), r, r)
		VPBROADCASTD(inMemory((127-7)<<3), t)
		VPSUBD(t, r, r)
		VPBROADCASTD(inMemory(0x7e), t)
		VPMINUD(t, r, r)
		VPBROADCASTD(inMemory(0x46800000), t) // 2¹⁴
		VADDPS(t, a, t)
		VPBROADCASTD(inMemory(0xff), m)
		VPAND(m, t, t)
		VPBROADCASTD(inMemory(0x3c800000), m) // 2⁻⁶
		VPCMPGTD(a, m, m)
		VPBLENDVB(m, t, r, r)
		VPBROADCASTD(inMemory(0x7f800000), m)
		VPCMPGTD(m, a, m)
		VPBROADCASTD(inMemory(0x7f), t)
		VPBLENDVB(m, t, r, r)
		VPOR(r, x[i], x[i])
	}
	codes := YMM()
	bytesOf(x, codes)
	VMOVDQU(codes, dst)
}

// maxAbs compares magnitudes as integers.
func maxAbs() {
	p := function("vecMaxAbs", "func(t *byte)", "vecMaxAbs finds the greatest magnitude's bits; t is a *strip.")
	src, n := GP64(), GP64()
	MOVQ(mem(p, stSrc), src)
	MOVQ(mem(p, stN), n)
	mask := YMM()
	VPBROADCASTD(inMemory(0x7fffffff), mask)
	var top [4]reg.VecVirtual
	for i := range top {
		top[i] = YMM()
		VPXOR(top[i], top[i], top[i])
	}
	Label("step")
	for i := range top {
		x := YMM()
		VPAND(mem(src, 32*i), mask, x)
		VPMAXUD(x, top[i], top[i])
	}
	ADDQ(U32(4*stripColumns), src)
	SUBQ(Imm(stripColumns), n)
	JNZ(LabelRef("step"))
	VPMAXUD(top[1], top[0], top[0])
	VPMAXUD(top[3], top[2], top[2])
	VPMAXUD(top[2], top[0], top[0])
	x, y := top[0].AsX(), XMM()
	VEXTRACTI128(U8(1), top[0], y)
	VPMAXUD(y, x, x)
	VPSHUFD(U8(0x4e), x, y)
	VPMAXUD(y, x, x)
	VPSHUFD(U8(0xb1), x, y)
	VPMAXUD(y, x, x)
	VMOVD(x, mem(p, stTop))
	end()
}
