package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// quantizeBlocks rounds whole blocks of 64.
func quantizeBlocks(v *width) {
	text("quantize"+v.suffix, "x *float32, blocks int, limit float32, q *int16, scale *float32", "rounds whole blocks as Quantize does.")
	x, n, q, scale := arg("x"), arg("blocks"), arg("q"), arg("scale")
	at, err := Param("limit").Resolve()
	if err != nil {
		panic(err)
	}
	vectors := 64 / v.lanes // 4 or 8
	in := v.r[:vectors]
	m, t := v.r[8], v.r[9]
	abs, shift, floor, limit := v.r[10], v.r[11], v.r[12], v.r[13]
	v.load(pattern(0x7fffffff), abs)
	v.load(float(3<<22), shift)
	v.load(float(1e-8), floor)
	VBROADCASTSS(at.Addr, limit)
	if !v.wide() {
		v.load(pattern(0xffff), v.r[14])
	}
	Label("block")
	for i, r := range in {
		VMOVUPS(mem(x, 4*v.lanes*i), r)
		if i == 0 {
			VANDPS(abs, r, m)
			continue
		}
		VANDPS(abs, r, t)
		VPMAXUD(t, m, m)
	}
	if v.wide() {
		VEXTRACTI64X4(Imm(1), m, reg.Y9)
		VPMAXUD(reg.Y9, reg.Y8, reg.Y8)
	}
	VEXTRACTI128(Imm(1), reg.Y8, reg.X9)
	VPMAXUD(reg.X9, reg.X8, reg.X8)
	VPSHUFD(U8(0x4e), reg.X8, reg.X9)
	VPMAXUD(reg.X9, reg.X8, reg.X8)
	VPSHUFD(U8(0xb1), reg.X8, reg.X9)
	VPMAXUD(reg.X9, reg.X8, reg.X8)
	VDIVSS(reg.X13, reg.X8, reg.X8)
	VMAXSS(reg.X8, reg.X12, reg.X8) // a NaN is the second operand and stays
	VMOVSS(reg.X8, mem(scale, 0))
	VBROADCASTSS(reg.X8, m)
	for _, r := range in {
		VDIVPS(m, r, r)
		VADDPS(shift, r, r)
	}
	for i := 0; i < vectors; i += 2 {
		if v.wide() {
			VPMOVDW(in[i], mem(q, 32*i))
			VPMOVDW(in[i+1], mem(q, 32*i+32))
			continue
		}
		VANDPS(v.r[14], in[i], in[i])
		VANDPS(v.r[14], in[i+1], in[i+1])
		VPACKUSDW(in[i+1], in[i], in[i])
		VPERMQ(U8(0xd8), in[i], in[i])
		VMOVDQU(in[i], mem(q, 16*i))
	}
	ADDQ(U32(256), x)
	ADDQ(U32(128), q)
	ADDQ(Imm(4), scale)
	DECQ(n)
	JNZ(LabelRef("block"))
	end()

	if v.wide() {
		return
	}
	text("pack"+v.suffix, "q *int16, pairs int, codes *int8, sums *int32, half int", "makes the int8 form of pairs of blocks; the sums of half blocks follow half bytes behind those of blocks.")
	q, n, codes, sums, half := arg("q"), arg("pairs"), arg("codes"), arg("sums"), arg("half")
	y := ymm
	byte0, ones := y[14], y[15]
	VBROADCASTSS(pattern(0xff), byte0)
	VBROADCASTSS(pattern(0x00010001), ones)
	Label("pair")
	for b := range 2 {
		VPXOR(y[8], y[8], y[8])
		for i := range 4 { // sixteen columns
			VMOVDQU(mem(q, 128*b+32*i), y[i])
			VPMADDWD(ones, y[i], y[9])
			VPADDD(y[9], y[8], y[8])
			if i == 1 {
				VMOVDQA(y[8], y[10])
				VPXOR(y[8], y[8], y[8])
			}
		}
		for h := 0; h < 4; h += 2 { // even columns are the low words of the dwords
			VPAND(byte0, y[h], y[4])
			VPAND(byte0, y[h+1], y[5])
			VPSRLD(Imm(16), y[h], y[6])
			VPSRLD(Imm(16), y[h+1], y[7])
			VPAND(byte0, y[6], y[6])
			VPAND(byte0, y[7], y[7])
			for k, r := range []int{4, 6} {
				VPACKUSDW(y[r+1], y[r], y[r])
				VPERMQ(U8(0xd8), y[r], y[r])
				VEXTRACTI128(Imm(1), y[r], xmm[r+1])
				VPACKUSWB(xmm[r+1], xmm[r], xmm[r])
				VMOVDQU(xmm[r], mem(codes, 32*b+64*k+8*h))
			}
		}
		for k, h := range []int{10, 8} {
			VEXTRACTI128(Imm(1), y[h], xmm[9])
			VPADDD(xmm[9], xmm[h], xmm[h])
			VPSHUFD(U8(0x4e), xmm[h], xmm[9])
			VPADDD(xmm[9], xmm[h], xmm[h])
			VPSHUFD(U8(0xb1), xmm[h], xmm[9])
			VPADDD(xmm[9], xmm[h], xmm[h])
			VPSLLD(Imm(3), xmm[h], xmm[h])
			VMOVD(xmm[h], memX(sums, half, uint8(1+k), 4*b))
		}
		VPADDD(xmm[10], xmm[8], xmm[8])
		VMOVD(xmm[8], mem(sums, 4*b))
	}
	ADDQ(U32(256), q)
	ADDQ(U32(128), codes)
	ADDQ(Imm(8), sums)
	DECQ(n)
	JNZ(LabelRef("pair"))
	end()
}

// packWide makes the bytes and sums of 12-bit activations: q = 16·hi + lo, the hi
// first; sums are 128·Σq.
func packWide(v *width) {
	if v.wide() {
		return
	}
	text("packWide"+v.suffix, "q *int16, blocks int, hi, lo *int8, sums *int32", "makes the two bytes of blocks of 12-bit activations.")
	q, n, hi, lo, sums := arg("q"), arg("blocks"), arg("hi"), arg("lo"), arg("sums")
	y := ymm
	VBROADCASTSS(pattern(0x000f000f), y[14])
	VBROADCASTSS(pattern(0x00010001), y[15])
	Label("block")
	VPXOR(y[8], y[8], y[8])
	for h := range 2 {
		for i := range 2 {
			VMOVDQU(mem(q, 64*h+32*i), y[i])
			VPMADDWD(y[15], y[i], y[9])
			VPADDD(y[9], y[8], y[8])
			VPAND(y[14], y[i], y[2+i])
			VPSRAW(Imm(4), y[i], y[i])
		}
		for r, to := range []reg.Register{hi, lo} {
			a, b := y[2*r], y[2*r+1]
			VPACKSSWB(b, a, a)
			VPERMQ(U8(0xd8), a, a)
			VMOVDQU(a, mem(to, 32*h))
		}
	}
	VEXTRACTI128(Imm(1), y[8], xmm[9])
	VPADDD(xmm[9], xmm[8], xmm[8])
	VPSHUFD(U8(0x4e), xmm[8], xmm[9])
	VPADDD(xmm[9], xmm[8], xmm[8])
	VPSHUFD(U8(0xb1), xmm[8], xmm[9])
	VPADDD(xmm[9], xmm[8], xmm[8])
	VPSLLD(Imm(7), xmm[8], xmm[8])
	VMOVD(xmm[8], mem(sums, 0))
	ADDQ(U32(128), q)
	ADDQ(Imm(64), hi)
	ADDQ(Imm(64), lo)
	ADDQ(Imm(4), sums)
	DECQ(n)
	JNZ(LabelRef("block"))
	end()
}

// accumulate adds rows times their weights to acc, one after the other; as
// many columns as registers stay in them over all rows.
func accumulate(v *width, picked bool) {
	name, args := "accumulate", "acc *float32, cols int, w *float32, n int, rows *float32, stride int"
	if picked {
		name, args = "accumulatePicked", args+", picks *int32"
	}
	text(name+v.suffix, args, "adds w[i]·rows[i] to acc[cols] for i < n, fused, in order; rows are stride bytes apart.")
	acc, cols, w, n, rows, stride := arg("acc"), arg("cols"), arg("w"), arg("n"), arg("rows"), arg("stride")
	var picks reg.GPVirtual
	if picked {
		picks = arg("picks")
	}
	x := v.r[len(v.r)-1]
	mask := v.r[len(v.r)-2]
	columns := func(label string, count int, a access) {
		for c := range count {
			a.load(mem(acc, 4*v.lanes*c), v.r[c])
		}
		row, i := GP64(), GP64()
		MOVQ(rows, row)
		XORQ(i, i)
		Label(label)
		VBROADCASTSS(memX(w, i, 4, 0), x)
		if picked {
			MOVLQSX(memX(picks, i, 4, 0), row)
			IMULQ(stride, row)
			ADDQ(rows, row)
		}
		for c := range count {
			m := mem(row, 4*v.lanes*c)
			switch {
			case a.tail && v.wide():
				VFMADD231PS(m, x, reg.K1, v.r[c])
			case a.tail:
				VMASKMOVPS(m, mask, v.r[1])
				VFMADD231PS(v.r[1], x, v.r[0]) // the other lanes are not stored
			default:
				VFMADD231PS(m, x, v.r[c])
			}
		}
		if !picked {
			ADDQ(stride, row)
		}
		INCQ(i)
		CMPQ(i, n)
		JL(LabelRef(label))
		for c := range count {
			a.store(v.r[c], mem(acc, 4*v.lanes*c))
		}
	}
	counts := []int{16, 4, 1}
	if !v.wide() {
		counts = []int{8, 1}
	}
	for _, count := range counts {
		next := fmt.Sprintf("below%d", count)
		Label(fmt.Sprintf("by%d", count))
		CMPQ(cols, U32(uint32(count*v.lanes)))
		JL(LabelRef(next))
		columns(fmt.Sprintf("rows%d", count), count, access{v: v})
		ADDQ(U32(uint32(4*count*v.lanes)), acc)
		ADDQ(U32(uint32(4*count*v.lanes)), rows)
		SUBQ(U32(uint32(count*v.lanes)), cols)
		JMP(LabelRef(fmt.Sprintf("by%d", count)))
		Label(next)
	}
	TESTQ(cols, cols)
	JZ(LabelRef("done"))
	v.tailMask(cols, mask)
	columns("last", 1, access{v: v, tail: true, mask: mask})
	Label("done")
	end()
}

// askLines is how many lines of a row are asked for, one a row of the sum.
const askLines = 32

// accumulateFour is accumulate for four weight lists, whose sums share the loads
// of the rows, and as many columns as registers allow.
func accumulateFour(v *width) {
	count := 4
	if !v.wide() {
		count = 2
	}
	text("accumulateFour"+v.suffix, "t *byte", fmt.Sprintf("adds rows to %d columns of four sums; t is a *fourSums.", count*v.lanes))
	t := arg("t")
	sum := func(q, c int) reg.VecPhysical { return v.r[q*count+c] }
	row, x := v.r[4*count:5*count], v.r[5*count:]
	var acc, w [4]reg.GPVirtual
	for q := range acc {
		acc[q], w[q] = GP64(), GP64()
		MOVQ(mem(t, 8*q), acc[q])
		for c := range count {
			VMOVUPS(mem(acc[q], 4*v.lanes*c), sum(q, c))
		}
		MOVQ(mem(t, 32+8*q), w[q])
	}
	p, i := GP64(), GP64()
	XORQ(i, i)
	picks, asks, ask := GP64(), GP64(), GP64()
	LEAQ(mem(t, 96), asks)
	MOVQ(mem(t, 88), picks)
	MOVQ(mem(t, 64), p)
	TESTQ(picks, picks)
	JNZ(LabelRef("picked"))
	step := func(label string) {
		TESTQ(U32(askLines-1), i)
		JNZ(LabelRef(label))
		MOVQ(mem(asks, 0), ask)
		ADDQ(Imm(8), asks)
		Label(label)
		PREFETCHT1(mem(ask, 0))
		ADDQ(Imm(line), ask)
		for c := range count {
			VMOVUPS(mem(p, 4*v.lanes*c), row[c])
		}
		for q := range 4 {
			b := x[q%2]
			VBROADCASTSS(memX(w[q], i, 4, 0), b)
			for c := range count {
				VFMADD231PS(row[c], b, sum(q, c))
			}
		}
		INCQ(i)
		CMPQ(i, mem(t, 80))
	}
	stride := picks
	MOVQ(mem(t, 72), stride)
	Label("row")
	step("ask")
	LEAQ(memX(p, stride, 1, 0), p)
	JL(LabelRef("row"))
	JMP(LabelRef("done"))
	Label("picked")
	MOVLQSX(memX(picks, i, 4, 0), p)
	IMULQ(mem(t, 72), p)
	ADDQ(mem(t, 64), p)
	step("askPicked")
	JL(LabelRef("picked"))
	Label("done")
	for q := range acc {
		r := GP64()
		MOVQ(mem(t, 8*q), r)
		for c := range count {
			VMOVUPS(sum(q, c), mem(r, 4*v.lanes*c))
		}
	}
	end()
}

// countAtLeast counts the scores that are not below a threshold; NaN is below.
func countAtLeast(v *width) {
	TEXT("countAtLeast"+v.suffix, NOSPLIT, "func(p *float32, n int, t float32) int")
	Pragma("noescape")
	Doc("countAtLeast" + v.suffix + " counts the numbers of p that are at least t.")
	p, n := arg("p"), arg("n")
	at, err := Param("t").Resolve()
	if err != nil {
		panic(err)
	}
	t, x := v.r[0], v.r[1]
	VBROADCASTSS(at.Addr, t)
	total := GP64()
	XORQ(total, total)
	v.each(n, v.r[2], func(a access, at reg.Register) {
		bits := GP64()
		a.load(memX(p, at, 1, 0), x)
		switch {
		case v.wide() && a.tail:
			VCMPPS(Imm(13), t, x, reg.K1, reg.K2)
			KMOVW(reg.K2, bits.As32())
		case v.wide():
			VCMPPS(Imm(13), t, x, reg.K2)
			KMOVW(reg.K2, bits.As32())
		default:
			VCMPPS(Imm(13), t, x, x)
			if a.tail {
				VANDPS(a.mask, x, x)
			}
			VMOVMSKPS(x, bits.As32())
		}
		POPCNTQ(bits, bits)
		ADDQ(bits, total)
	})
	Store(total, ReturnIndex(0))
	end()
}

// indexSum is the sum over the heads of an indexer for four keys.
func indexSum(v *width) {
	if v.wide() {
		return // four lanes are all there is
	}
	text("indexSumAVX2", "dots *float32, w *float32, heads int, scale float32, dst *float32", "sets dst[4] to the sum over h of w[h]·max(dots[h][4]·scale, 0), fused.")
	dots, w, n, dst := arg("dots"), arg("w"), arg("heads"), arg("dst")
	at, err := Param("scale").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(at.Addr, reg.X3)
	VXORPS(reg.X0, reg.X0, reg.X0)
	VXORPS(reg.X2, reg.X2, reg.X2)
	Label("head")
	VMULPS(mem(dots, 0), reg.X3, reg.X1)
	VCMPPS(Imm(cmpLE), reg.X2, reg.X1, reg.X4)
	VANDNPS(reg.X1, reg.X4, reg.X1)
	VBROADCASTSS(mem(w, 0), reg.X5)
	VFMADD231PS(reg.X1, reg.X5, reg.X0)
	ADDQ(Imm(16), dots)
	ADDQ(Imm(4), w)
	DECQ(n)
	JNZ(LabelRef("head"))
	VMOVUPS(reg.X0, mem(dst, 0))
	end()
}

// decode writes blocks of 64 columns as float32.
func decode(v *width) {
	bytes := func(src Mem, dst reg.Register, scale reg.VecPhysical, i int) {
		VPMOVSXBD(src, v.r[0])
		VCVTDQ2PS(v.r[0], v.r[0])
		VMULPS(scale, v.r[0], v.r[0])
		VMOVUPS(v.r[0], mem(dst, 4*v.lanes*i))
	}
	args := "dst *float32, codes *byte, blocks int, scale *float32"
	text("decodeInt8"+v.suffix, args, "writes blocks of 64 int8 codes times scale[0].")
	dst, codes, n, scale := arg("dst"), arg("codes"), arg("blocks"), arg("scale")
	VBROADCASTSS(mem(scale, 0), v.r[1])
	Label("block")
	PREFETCHT1(mem(codes, 4096))
	for i := range 64 / v.lanes {
		bytes(mem(codes, v.lanes*i), dst, v.r[1], i)
	}
	ADDQ(Imm(64), codes)
	ADDQ(U32(256), dst)
	DECQ(n)
	JNZ(LabelRef("block"))
	end()

	text("decodeInt4"+v.suffix, args+", each int", "writes blocks of 64 int4 codes times scale[b/each].")
	dst, codes, n, scale = arg("dst"), arg("codes"), arg("blocks"), arg("scale")
	each := arg("each")
	left := GP64()
	buf := AllocLocal(64)
	mask, eight := v.r[2], v.r[3]
	v.load(pattern(0x0f0f0f0f), mask)
	v.load(pattern(0x08080808), eight)
	MOVQ(each, left)
	Label("block")
	PREFETCHT1(mem(codes, 4096))
	for i := range 16 / v.lanes {
		VPMOVZXBW(mem(codes, 16*i), v.r[0])
		VPSLLW(Imm(4), v.r[0], v.r[4])
		if v.wide() {
			VPORD(v.r[4], v.r[0], v.r[0])
			VPANDD(mask, v.r[0], v.r[0])
			VPSUBB(eight, v.r[0], v.r[0])
			VMOVDQU32(v.r[0], buf)
		} else {
			VPOR(v.r[4], v.r[0], v.r[0])
			VPAND(mask, v.r[0], v.r[0])
			VPSUBB(eight, v.r[0], v.r[0])
			VMOVDQU(v.r[0], buf.Offset(32*i))
		}
	}
	VBROADCASTSS(mem(scale, 0), v.r[1])
	for i := range 64 / v.lanes {
		bytes(buf.Offset(v.lanes*i), dst, v.r[1], i)
	}
	ADDQ(Imm(32), codes)
	ADDQ(U32(256), dst)
	DECQ(left)
	JNZ(LabelRef("same"))
	MOVQ(each, left)
	ADDQ(Imm(4), scale)
	Label("same")
	DECQ(n)
	JNZ(LabelRef("block"))
	end()
}
