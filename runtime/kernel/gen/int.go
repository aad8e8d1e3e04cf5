package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in the struct tile of package kernel, and in Activation.
const (
	tW, tTail, tS, tTailS          = 0, 32, 64, 96
	tAct, tN, tQuads, tHasTail     = 128, 136, 144, 152
	tNext, tNextS                  = 160, 168
	tAcc, tOut, tHalf, tRowScale   = 176, 184, 208, 216
	tTiles, tStepW, tStepS, tStepR = 224, 232, 240, 248
	actQ, actScale, actCodes       = 16, 40, 64
	actSums, actSize               = 88, 112
	quadActs                       = 256 // bytes of int8 activations of four blocks
	perRow, perBlock, per2, per4   = 0, 1, 2, 4
	perHalf                        = 8 // two scales a block
)

func init() { families["int"] = intFamily }

func intFamily() {
	idx := dwords("stripeOrder", 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)
	lanes := dwords("everyFourth", 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12)
	spread2 := dwords("spreadPairs", 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)
	spread4 := dwords("spreadFours", 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)
	even := dwords("evenScales", 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
	odd := dwords("oddScales", 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
	c := consts512{idx, lanes, spread2, spread4, even, odd}
	planes = newPlanes()
	int4 := codes512{128, 3, unpack4, 0x0f0f0f0f, false}
	narrow512("int4RowAVX512", int4, perRow, c)
	narrow512("int4G32AVX512", int4, perHalf, c)
	narrow512("int4G64AVX512", int4, perBlock, c)
	narrow512("int4G128AVX512", int4, per2, c)
	narrow512("int4G256AVX512", int4, per4, c)
	narrow512("int2RowAVX512", codes512{64, 1, planes2, 0x03030303, true}, perRow, c)
	narrow512("int3G64AVX512", codes512{96, 2, planes3, 0x03030303, true}, perBlock, c)
	arrangePlanes()
	wide512("int8RowAVX512")
	avx2Family()
}

// codes512 is how a format's codes of 256 columns become bytes: bytes a row,
// log2 of the zero point, the unpacking, the mask it uses.
type codes512 struct {
	bytes  int
	zero   int // the zero point is 1<<zero
	unpack func(raw Mem, w []reg.VecPhysical, k narrowRegs)
	mask   uint32
	planar bool // column 4k+p is byte k of register p, a block a lane
}

type consts512 struct{ idx, lanes, spread2, spread4, even, odd Mem }

type narrowRegs struct {
	mask, t0, t1, four reg.VecPhysical
	low, high, twice   reg.VecPhysical // of planar int3
	ask                func()          // for a line ahead, once a line unpacked; nil asks for none
}

func (k narrowRegs) touch() {
	if k.ask != nil {
		k.ask()
	}
}

var zmm = []reg.VecPhysical{reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
	reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31}

// unpack4 splits the nibbles of two pairs of blocks: low ones are the even columns.
func unpack4(raw Mem, w []reg.VecPhysical, k narrowRegs) {
	for p := range 2 {
		k.touch()
		VMOVDQU32(raw.Offset(64*p), k.t0)
		VPANDD(k.mask, k.t0, w[2*p])
		VPSRLD(Imm(4), k.t0, k.t0)
		VPANDD(k.mask, k.t0, w[2*p+1])
	}
}

// spread2Bits makes bytes of the 2-bit codes in the words of t0 (one byte
// each): even columns in even, odd in odd.
func spread2Bits(k narrowRegs, even, odd reg.VecPhysical) {
	VPSLLW(Imm(4), k.t0, k.t1)
	VPORD(k.t1, k.t0, k.t0)
	VPANDD(k.mask, k.t0, even)
	VPSRLW(Imm(2), k.t0, k.t0)
	VPANDD(k.mask, k.t0, odd)
}

func unpack2(raw Mem, w []reg.VecPhysical, k narrowRegs) {
	for p := range 2 {
		VPMOVZXBW(raw.Offset(32*p), k.t0)
		spread2Bits(k, w[2*p], w[2*p+1])
	}
}

// unpack3 adds the third bit to where its mask bit is set: the masks of the
// even and odd columns are picked out of the 64 high bits of each group.
func unpack3(raw Mem, w []reg.VecPhysical, k narrowRegs) {
	for p := range 2 {
		VMOVDQU32(raw.Offset(48*p), k.t0.AsX())
		VINSERTI32X4(Imm(1), raw.Offset(48*p+24), k.t0.AsY(), k.t0.AsY())
		VPMOVZXBW(k.t0.AsY(), k.t0)
		spread2Bits(k, w[2*p], w[2*p+1])
		for odd := range 2 {
			e, o := GP64(), GP64()
			pick := GP64()
			MOVQ(U64(0x5555555555555555<<odd), pick)
			MOVQ(raw.Offset(48*p+16), e)
			PEXTQ(pick, e, e)
			MOVQ(raw.Offset(48*p+40), o)
			PEXTQ(pick, o, o)
			SHLQ(Imm(32), o)
			ORQ(o, e)
			KMOVQ(e, reg.K1)
			VPADDB(k.four, w[2*p+odd], reg.K1, w[2*p+odd])
		}
	}
}

// narrow512 is the product of four rows of at most 4-bit codes with any number
// of int8 activation vectors, 256 columns at a time: the codes become bytes
// once, then every vector meets them. Its sums of 4·k products stay below 2¹⁵
// until the last step, so that pairs can be added by packing.
func narrow512(name string, f codes512, scales int, c consts512) {
	t := function(name, "func(t *byte)", name+" multiplies four rows with t.n vectors.")
	w, acts, d := zmm[:16], zmm[16:20], zmm[20:28]
	scale, mask, order, ones := zmm[28], zmm[29], zmm[30], zmm[31]
	k := narrowRegs{mask: mask, t0: d[0], t1: d[1]}

	tmp := GP32()
	MOVL(U32(f.mask), tmp)
	VPBROADCASTD(tmp, mask)
	MOVL(U32(0x00010001), tmp)
	VPBROADCASTD(tmp, ones)
	if f.zero == 2 {
		k.low, k.high, k.twice, k.four = d[4], d[5], d[6], d[7]
		VPBROADCASTD(constant(0x04040404), k.four)
		VMOVDQU32(planes.low, k.low)
		VMOVDQU32(planes.high, k.high)
		VMOVDQU32(planes.twice, k.twice)
	}
	Label("tile")
	if f.planar {
		VMOVDQU32(planes.order, order)
	} else {
		VMOVDQU32(c.idx, order)
	}
	clearAcc(t, zmm[0])
	at := start(t)
	k.ask = at.ask
	at.eachQuad(t, 4, f.bytes, func(wAt, sAt, scales int) {
		if scales == perHalf {
			VPBROADCASTD(constant(f.mask), mask)
		}
		for r := range 4 {
			row := at.row(t, wAt, r)
			f.unpack(mem(row, 0), w[4*r:], k)
		}
		loadScales512(t, sAt, at.scale, scales, scale, d[3], mask, c)
		eachVector(t, func(act, acc reg.Register) {
			p := GP64()
			MOVQ(mem(act, actCodes), p)
			for i := range acts {
				VMOVDQU32(memX(p, at.act, 1, 64*i), acts[i])
			}
			if f.planar {
				planarDots(w, acts, d, ones)
				VPERMD(d[0], order, d[1])
				f.finish(act, acc, at, scales, scale, d)
				return
			}
			for i := range d { // d[2r] has blocks 0 and 1, d[2r+1] blocks 2 and 3 of row r
				VPXORD(d[i], d[i], d[i])
			}
			for half := range 2 {
				for i := range d {
					VPDPBUSD(acts[2*(i%2)+half], w[4*(i/2)+2*(i%2)+half], d[i])
				}
			}
			for r := range 4 {
				VPACKSSDW(d[2*r+1], d[2*r], d[2*r])
				VPMADDWD(ones, d[2*r], d[2*r])
			}
			for r := 0; r < 4; r += 2 {
				VPACKSSDW(d[2*r+2], d[2*r], d[2*r])
				VPMADDWD(ones, d[2*r], d[2*r])
			}
			VSHUFI32X4(U8(0x88), d[4], d[0], d[1]) // the first halves of the blocks
			VSHUFI32X4(U8(0xdd), d[4], d[0], d[2])
			if scales == perHalf {
				half := GP64()
				MOVQ(mem(t, tHalf), half)
				MOVQ(mem(act, actSums), p)
				ADDQ(at.quad, p)
				VMOVUPS(mem(acc, 0), d[0])
				for h, s := range []reg.VecPhysical{scale, mask} {
					sum := d[1+h]
					VPERMD(sum, order, sum)
					ADDQ(half, p)
					VBROADCASTI32X4(mem(p, 0), d[3])
					VPSUBD(d[3], sum, sum)
					VCVTDQ2PS(sum, sum)
					x := GP64()
					MOVQ(mem(act, actScale), x)
					VBROADCASTF32X4(memX(x, at.quad, 1, 0), d[3])
					VMULPS(d[3], s, d[3])
					VFMADD231PS(d[3], sum, d[0])
				}
				VMOVUPS(d[0], mem(acc, 0))
				return
			}
			VPADDD(d[1], d[2], d[1])
			VPERMD(d[1], order, d[1])
			f.finish(act, acc, at, scales, scale, d)
		})
	}, scales)

	VMOVDQU32(c.lanes, order)
	rows := zmm[1].AsX()
	VMOVUPS(rowScales(t), rows)
	eachOut(t, 4, func(acc, out reg.Register) {
		a, b := zmm[2], zmm[3]
		VMOVUPS(mem(acc, 0), a)
		VPERMILPS(U8(0xb1), a, b)
		VADDPS(a, b, a)
		VPERMILPS(U8(0x4e), a, b)
		VADDPS(a, b, a)
		VPERMPS(a, order, a)
		VMULPS(a.AsX(), rows, a.AsX())
		VMOVUPS(a.AsX(), mem(out, 0))
	})
	end()
}

// finish adds the dots d[1], a row a lane, less the zero point's share, to acc.
func (f codes512) finish(act, acc reg.Register, at *place, scales int, scale reg.VecPhysical, d []reg.VecPhysical) {
	p := GP64()
	MOVQ(mem(act, actSums), p)
	VBROADCASTI32X4(memX(p, at.quad, 1, 0), d[2])
	if f.zero < 3 {
		VPSRAD(Imm(uint64(3-f.zero)), d[2], d[2])
	}
	VPSUBD(d[2], d[1], d[1])
	VCVTDQ2PS(d[1], d[1])
	MOVQ(mem(act, actScale), p)
	VBROADCASTF32X4(memX(p, at.quad, 1, 0), d[3])
	if scales != perRow {
		VMULPS(d[3], scale, d[3])
	}
	VMOVUPS(mem(acc, 0), d[0])
	VFMADD231PS(d[3], d[1], d[0])
	VMOVUPS(d[0], mem(acc, 0))
}

// rowScales is where the scales of the tile's rows are.
func rowScales(t reg.Register) Mem {
	p := GP64()
	MOVQ(mem(t, tRowScale), p)
	return mem(p, 0)
}

// loadScales512 sets scale to those of the four rows' four blocks.
func loadScales512(t reg.Register, sAt int, off reg.Register, scales int, scale, tmp, second reg.VecPhysical, c consts512) {
	if scales == perRow {
		return
	}
	row := func(r int) Mem {
		p := GP64()
		MOVQ(mem(t, sAt+8*r), p)
		return memX(p, off, 1, 0)
	}
	switch scales {
	case perBlock:
		VMOVUPS(row(0), scale.AsX())
		for r := 1; r < 4; r++ {
			VINSERTF32X4(Imm(uint64(r)), row(r), scale, scale)
		}
	case perHalf: // of each block's halves to scale and second
		VMOVUPS(row(0), scale.AsY())
		VINSERTF64X4(Imm(1), row(1), scale, scale)
		VMOVUPS(row(2), tmp.AsY())
		VINSERTF64X4(Imm(1), row(3), tmp, tmp)
		VMOVDQU32(c.odd, second)
		VPERMI2PS(tmp, scale, second)
		VMOVDQU32(c.even, reg.Z27)
		VPERMI2PS(tmp, scale, reg.Z27)
		VMOVAPS(reg.Z27, scale)
	case per2:
		for h := range 2 {
			x := scale.AsX()
			if h == 1 {
				x = tmp.AsX()
			}
			VMOVSD(row(2*h), x)
			VMOVHPS(row(2*h+1), x, x)
		}
		VINSERTF32X4(Imm(1), tmp.AsX(), scale, scale)
		VMOVDQU32(c.spread2, tmp)
		VPERMPS(scale, tmp, scale)
	case per4:
		VMOVSS(row(0), scale.AsX())
		for r := 1; r < 4; r++ {
			VINSERTPS(Imm(uint64(r<<4)), row(r), scale.AsX(), scale.AsX())
		}
		VMOVDQU32(c.spread4, tmp)
		VPERMPS(scale, tmp, scale)
	}
}

// place is where a kernel stands in its rows: bytes from their start.
type place struct {
	weight, scale, act, quad, left, ahead, aheadS reg.GPVirtual
	asked, lines                                  int // of the quad's lines ahead
}

func start(t reg.Register) *place {
	p := &place{weight: GP64(), scale: GP64(), act: GP64(), quad: GP64(), left: GP64(), ahead: GP64(), aheadS: GP64()}
	for _, r := range []reg.GPVirtual{p.weight, p.scale, p.act, p.quad} {
		XORQ(r, r)
	}
	MOVQ(mem(t, tQuads), p.left)
	MOVQ(mem(t, tNext), p.ahead)
	MOVQ(mem(t, tNextS), p.aheadS)
	return p
}

// row is the place of row r.
func (p *place) row(t reg.Register, wAt, r int) reg.Register {
	row := GP64()
	MOVQ(mem(t, wAt+8*r), row)
	ADDQ(p.weight, row)
	return row
}

// prefetch asks for the next bytes of the rows that come after these, in the
// order of the memory, which is what the hardware follows.
func prefetch(ahead reg.Register, bytes int) {
	for line := 0; line < bytes; line += 64 {
		PREFETCHT1(mem(ahead, line))
	}
	ADDQ(U32(uint32(bytes)), ahead)
}

// ask asks for the next line of the rows that come after these, if there are
// more in this quad. Between the loads it is faster than all at once.
func (p *place) ask() {
	if p.asked < p.lines {
		PREFETCHT1(mem(p.ahead, line*p.asked))
		p.asked++
	}
}

// scaleBytes is the size of a row's scales of a quad.
func scaleBytes(scales int) int {
	if scales == perHalf {
		return 32
	}
	return 16 / scales
}

// eachQuad runs body for the whole quads of the rows, then for the padded one.
// bytes is the size of a quad's codes in a row.
func (p *place) eachQuad(t reg.Register, rows, bytes int, body func(wAt, sAt, scales int), scales int) {
	TESTQ(p.left, p.left)
	JZ(LabelRef("rest"))
	Label("quad")
	if scales != perRow {
		prefetch(p.aheadS, rows*scaleBytes(scales))
	}
	label = "vector"
	p.asked, p.lines = 0, rows*bytes/line
	body(tW, tS, scales)
	for p.asked < p.lines {
		p.ask()
	}
	p.lines = 0
	ADDQ(U32(uint32(rows*bytes)), p.ahead)
	ADDQ(U32(uint32(bytes)), p.weight)
	if scales != perRow {
		ADDQ(Imm(uint64(scaleBytes(scales))), p.scale)
	}
	ADDQ(U32(quadActs), p.act)
	ADDQ(Imm(16), p.quad)
	DECQ(p.left)
	JNZ(LabelRef("quad"))
	Label("rest")
	CMPQ(mem(t, tHasTail), Imm(0))
	JE(LabelRef("sums"))
	XORQ(p.weight, p.weight)
	XORQ(p.scale, p.scale)
	label = "lastvector"
	if scales != perRow && scales != perHalf {
		scales = perBlock
	}
	body(tTail, tTailS, scales)
	Label("sums")
}

var label string

// eachVector runs body with the addresses of each vector's Activation and sums.
func eachVector(t reg.Register, body func(act, acc reg.Register)) {
	act, acc, n := GP64(), GP64(), GP64()
	MOVQ(mem(t, tAct), act)
	MOVQ(mem(t, tAcc), acc)
	MOVQ(mem(t, tN), n)
	Label(label)
	body(act, acc)
	ADDQ(Imm(actSize), act)
	ADDQ(Imm(64), acc)
	DECQ(n)
	JNZ(LabelRef(label))
}

func clearAcc(t reg.Register, zero reg.VecPhysical) {
	acc, n := GP64(), GP64()
	MOVQ(mem(t, tAcc), acc)
	MOVQ(mem(t, tN), n)
	VPXOR(zero.AsY(), zero.AsY(), zero.AsY())
	Label("clear")
	VMOVUPS(zero.AsY(), mem(acc, 0))
	VMOVUPS(zero.AsY(), mem(acc, 32))
	ADDQ(Imm(64), acc)
	DECQ(n)
	JNZ(LabelRef("clear"))
}

// eachOut runs body for every vector and goes on to the next tile, if there is
// one. What it leaves in the struct points into the last.
func eachOut(t reg.Register, rows int, body func(acc, out reg.Register)) {
	acc, out, n := GP64(), GP64(), GP64()
	MOVQ(mem(t, tAcc), acc)
	MOVQ(mem(t, tOut), out)
	MOVQ(mem(t, tN), n)
	Label("out")
	body(acc, out)
	ADDQ(Imm(64), acc)
	ADDQ(Imm(16), out)
	DECQ(n)
	JNZ(LabelRef("out"))
	DECQ(mem(t, tTiles))
	JZ(LabelRef("end"))
	MOVQ(out, mem(t, tOut))
	step := GP64()
	MOVQ(mem(t, tStepW), step)
	for r := range rows {
		ADDQ(step, mem(t, tW+8*r))
	}
	ADDQ(step, mem(t, tNext))
	MOVQ(mem(t, tStepS), step)
	for r := range rows {
		ADDQ(step, mem(t, tS+8*r))
	}
	ADDQ(step, mem(t, tNextS))
	MOVQ(mem(t, tStepR), step)
	ADDQ(step, mem(t, tRowScale))
	JMP(LabelRef("tile"))
	Label("end")
}

func constant(v uint32) reg.Register {
	r := GP32()
	MOVL(U32(v), r)
	return r
}

// wide512 is the product of two rows of int8 codes with int16 activations.
func wide512(name string) {
	t := function(name, "func(t *byte)", name+" multiplies two rows with t.n vectors.")
	w, d := zmm[:16], zmm[20:28]
	Label("tile")
	clearAcc(t, zmm[0])
	at := start(t)
	at.eachQuad(t, 2, 256, func(wAt, _, _ int) {
		for r := range 2 {
			row := at.row(t, wAt, r)
			for i := range 8 {
				if i%2 == 0 {
					at.ask()
				}
				VPMOVSXBW(mem(row, 32*i), w[8*r+i])
			}
		}
		eachVector(t, func(act, acc reg.Register) {
			p := GP64()
			MOVQ(mem(act, actQ), p)
			for i := range d { // d[4r+b] is block b of row r
				VPXORD(d[i], d[i], d[i])
			}
			for half := range 2 {
				for i := range d {
					VPDPWSSD(memX(p, at.act, 2, 128*(i%4)+64*half), w[2*i+half], d[i])
				}
			}
			for i := 0; i < 8; i += 2 {
				addPairs(VPUNPCKLQDQ, VPUNPCKHQDQ, d[i], d[i+1], zmm[28])
			}
			for i := 0; i < 8; i += 4 {
				VSHUFPS(U8(0x88), d[i+2], d[i], zmm[28])
				VSHUFPS(U8(0xdd), d[i+2], d[i], zmm[29])
				VPADDD(zmm[28], zmm[29], d[i])
			}
			VSHUFI32X4(U8(0x44), d[4], d[0], d[1])
			VSHUFI32X4(U8(0xee), d[4], d[0], d[2])
			VPADDD(d[1], d[2], d[1])
			VSHUFI32X4(U8(0x08), d[1], d[1], d[2])
			VSHUFI32X4(U8(0x0d), d[1], d[1], d[3])
			VPADDD(reg.Y22, reg.Y23, reg.Y21)
			finishRow2(act, acc, at, VBROADCASTF32X4, reg.Y21, reg.Y22, reg.Y23)
		})
	}, perRow)
	out2(t)
}

// finishRow2 adds the sums of two rows' four blocks to their stripes.
func finishRow2(act, acc reg.Register, at *place, broadcast func(...Op), d, c, a reg.VecPhysical) {
	p := GP64()
	VCVTDQ2PS(d, d)
	MOVQ(mem(act, actScale), p)
	broadcast(memX(p, at.quad, 1, 0), c)
	VMOVUPS(mem(acc, 0), a)
	VFMADD231PS(c, d, a)
	VMOVUPS(a, mem(acc, 0))
}

func addPairs(low, high func(...Op), a, b, tmp reg.VecPhysical) {
	low(b, a, tmp)
	high(b, a, a)
	VPADDD(tmp, a, a)
}

// out2 writes the results of two rows.
func out2(t reg.Register) {
	rows := reg.Y1.AsX()
	VMOVSD(rowScales(t), rows)
	eachOut(t, 2, func(acc, out reg.Register) {
		a, b := reg.Y2, reg.Y3
		VMOVUPS(mem(acc, 0), a)
		VPERMILPS(U8(0xb1), a, b)
		VADDPS(a, b, a)
		VPERMILPS(U8(0x4e), a, b)
		VADDPS(a, b, a)
		VEXTRACTF128(Imm(1), a, b.AsX())
		VUNPCKLPS(b.AsX(), a.AsX(), a.AsX())
		VMULPS(a.AsX(), rows, a.AsX())
		VMOVLPS(a.AsX(), mem(out, 0))
	})
	end()
}
