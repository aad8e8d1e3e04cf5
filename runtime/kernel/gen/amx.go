package main

import (
	"encoding/binary"
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in the struct amxPanel of package kernel.
const (
	aW, aTail, aS, aRowScale, aQuads, aHasTail = 0, 256, 512, 768, 896, 904
	aAllQuads, aNext, aTiles, aPacked          = 912, 920, 928, 936
	aScales, aVectors, aOut, aAt, aMask        = 944, 952, 960, 968, 976
	aSums, aAcc, aAct, aDst, aBlocks           = 984, 992, 1000, 1128, 1136
	amxRows                                    = 32 // of a panel
	pairBytes                                  = 2 * tileBytes
)

func init() { families["amx"] = amxFamily }

func amxFamily() {
	amxSpread("amxSpreadInt4", codes512{128, 3, unpack4, 0x0f0f0f0f, false})
	amxSpread("amxSpreadInt3", codes512{96, 2, unpack3, 0x03030303, false})
	amxSpread("amxSpreadInt2", codes512{64, 1, unpack2, 0x03030303, false})
	amxSpread("amxSpreadInt8", codes512{bytes: 256})
	amxPack("amxPackNarrow", false)
	amxPack("amxPackWide", true)
	config := make([]uint32, 16)
	config[0] = 1 // the palette of eight tiles of 16 rows of 64 bytes
	for i := range 4 {
		config[4+i] = 64<<16 | 64
	}
	config[12], config[13] = 0x10101010, 0x10101010
	c := dwords("amxConfig", config...)
	amxMultiply("amxMultiplyGrouped", c, true, false)
	amxMultiply("amxMultiplyRow", c, false, false)
	amxMultiply("amxMultiplyWide", c, false, true)
}

// amx writes an instruction that Go's assembler does not know, with its text
// beside it: VEX prefix with the operand v (a tile, or 0) and the mandatory
// prefix pp, opcode, the rest (Intel's manual, volume 2, TILE… and TDP…).
func amx(text string, reads []Op, v, pp, opcode byte, rest ...byte) {
	Comment(text)
	code := append([]byte{0xc4, 0xe2, (^v&15)<<3 | pp, opcode}, rest...)
	for ; len(code) >= 4; code = code[4:] {
		Instruction(&ir.Instruction{Opcode: "LONG", Operands: []Op{U32(binary.LittleEndian.Uint32(code))}, Inputs: reads})
	}
	for _, b := range code {
		Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []Op{U8(b)}, Inputs: reads})
	}
}

// The registers of tiles' addresses, whose numbers go into the bytes.
var amxNames = map[reg.Register]string{reg.RCX: "rcx", reg.RDX: "rdx", reg.RBX: "rbx", reg.RSI: "rsi"}

var amxNumber = map[reg.Register]byte{reg.RCX: 1, reg.RDX: 2, reg.RBX: 3, reg.RSI: 6}

var amxStride = reg.RDX // always 64

func amxMem(text string, pp, tile byte, base reg.Register, disp int) {
	rest := binary.LittleEndian.AppendUint32([]byte{0x84 | tile<<3, amxNumber[amxStride]<<3 | amxNumber[base]}, uint32(disp))
	amx(text, []Op{base, amxStride}, 0, pp, 0x4b, rest...)
}

// address is a tile's address as assemblers for Intel's syntax write it.
func address(base reg.Register, disp int) string {
	text := fmt.Sprintf("[%s + %s + %d]", amxNames[base], amxNames[amxStride], disp)
	return strings.Replace(text, " + 0]", "]", 1)
}

func tileLoad(tile byte, base reg.Register, disp int) {
	amxMem(fmt.Sprintf("tileloadd tmm%d, %s", tile, address(base, disp)), 3, tile, base, disp)
}

func tileStore(tile byte, base reg.Register, disp int) {
	amxMem(fmt.Sprintf("tilestored %s, tmm%d", address(base, disp), tile), 2, tile, base, disp)
}

func tileZero(tile byte) { amx(fmt.Sprintf("tilezero tmm%d", tile), nil, 0, 3, 0x49, 0xc0|tile<<3) }

func tileRelease() { amx("tilerelease", nil, 0, 0, 0x49, 0xc0) }

func tileConfig(base reg.Register) {
	amx(fmt.Sprintf("ldtilecfg [%s]", amxNames[base]), []Op{base}, 0, 0, 0x49, amxNumber[base])
}

// tileDot adds the products of signed bytes: sum[m][n] += Σ a[m][k]·b[k/4][n][k%4].
func tileDot(sum, a, b byte) {
	amx(fmt.Sprintf("tdpbssd tmm%d, tmm%d, tmm%d", sum, a, b), nil, b, 3, 0x5e, 0xc0|sum<<3|a)
}

// amxSpread turns the rows of a panel into tiles of signed bytes, of each block the
// even columns and then the odd ones, as the activations have them; of int8
// codes all as they lie.
func amxSpread(name string, f codes512) {
	p := function(name, "func(t *byte)", name+" makes tiles of a panel's rows.")
	k := narrowRegs{mask: reg.Z31, t0: reg.Z16, t1: reg.Z17, four: reg.Z30}
	zero, joined := reg.Z29, reg.Z18
	left, off, ahead, tiles := GP64(), GP64(), GP64(), GP64()
	MOVQ(mem(p, aQuads), left)
	MOVQ(mem(p, aNext), ahead)
	MOVQ(mem(p, aTiles), tiles)
	XORQ(off, off)
	if f.unpack != nil {
		VPBROADCASTD(constant(f.mask), k.mask)
		VPBROADCASTD(constant(0x04040404), k.four)
		VPBROADCASTD(constant(0x01010101<<f.zero), zero)
	}
	rows := func(at int, label string) {
		r, to := GP64(), GP64()
		XORQ(r, r)
		MOVQ(tiles, to)
		Label(label)
		row := GP64()
		MOVQ(memX(p, r, 8, at), row)
		ADDQ(off, row)
		if f.unpack == nil {
			for b := range 4 {
				VMOVDQU32(mem(row, 64*b), zmm[b])
				VMOVDQU32(zmm[b], mem(to, pairBytes*b))
			}
		} else {
			f.unpack(mem(row, 0), zmm, k)
			for i := range 4 {
				VPSUBB(zero, zmm[i], zmm[i])
			}
			joinHalves(func(b int) { VMOVDQU32(joined, mem(to, pairBytes*b)) }, joined)
		}
		ADDQ(Imm(64), to)
		INCQ(r)
		CMPQ(r, Imm(amxRows))
		JL(LabelRef(label))
		ADDQ(U32(4*pairBytes), tiles)
	}
	TESTQ(left, left)
	JZ(LabelRef("rest"))
	Label("quad")
	prefetch(ahead, amxRows*f.bytes)
	rows(aW, "row")
	ADDQ(U32(uint32(f.bytes)), off)
	DECQ(left)
	JNZ(LabelRef("quad"))
	Label("rest")
	CMPQ(mem(p, aHasTail), Imm(0))
	JE(LabelRef("end"))
	XORQ(off, off)
	rows(aTail, "lastrow")
	Label("end")
	end()
}

// joinHalves makes the four blocks of a quad out of zmm[:4]: even columns of
// blocks 0 and 1, their odd ones, and the same of blocks 2 and 3.
func joinHalves(use func(block int), joined reg.VecPhysical) {
	for b := range 4 {
		VSHUFI64X2(U8(0x44|b%2*0xaa), zmm[b/2*2+1], zmm[b/2*2], joined)
		use(b)
	}
}

// amxPack turns the bytes of sixteen activations into tiles: of each block
// sixteen rows that hold four columns of every vector. A tile has a second one
// beside it: of wide activations high and low parts, else the next sixteen.
func amxPack(name string, wide bool) {
	p := function(name, "func(t *byte)", name+" makes tiles of sixteen activations.")
	left, off, buf, dst := GP64(), GP64(), GP64(), GP64()
	MOVQ(mem(p, aAllQuads), left)
	MOVQ(mem(p, aSums), buf)
	MOVQ(mem(p, aDst), dst)
	XORQ(off, off)
	labels, low := []string{"row"}, GP64()
	if wide {
		labels = []string{"high", "low"}
		MOVQ(left, low)
		SHLQ(Imm(8), low)
	}
	Label("quad")
	for part, label := range labels {
		r, to := GP64(), GP64()
		XORQ(r, r)
		MOVQ(buf, to)
		Label(label)
		act := GP64()
		MOVQ(memX(p, r, 8, aAct), act)
		ADDQ(off, act)
		if part == 1 {
			ADDQ(low, act)
		}
		for i := range 4 {
			VMOVDQU32(mem(act, 64*i), zmm[i])
		}
		if wide {
			for b := range 4 {
				VMOVDQU32(zmm[b], mem(to, tileBytes*b))
			}
		} else {
			joinHalves(func(b int) { VMOVDQU32(reg.Z18, mem(to, tileBytes*b)) }, reg.Z18)
		}
		ADDQ(Imm(64), to)
		INCQ(r)
		CMPQ(r, Imm(16))
		JL(LabelRef(label))
		for b := range 4 {
			transpose(mem(buf, tileBytes*b), func(j int) Mem { return mem(dst, pairBytes*b+tileBytes*part+64*j) })
		}
	}
	ADDQ(U32(256), off)
	ADDQ(U32(4*pairBytes), dst)
	DECQ(left)
	JNZ(LabelRef("quad"))
	end()
}

// amxMultiply is the product of a panel with packed activations: 32 rows and 32
// vectors, or 16 in two parts. A lane is a vector, so that no sum crosses lanes.
// While the tiles of a block are multiplied, the sums of the block before are
// added to their stripe.
func amxMultiply(name string, config Mem, groups, wide bool) {
	p := function(name, "func(t *byte)", name+" multiplies a panel with packed vectors.")
	a, b, sums := reg.RSI, reg.RBX, reg.RCX
	LEAQ(config, a)
	tileConfig(a)
	MOVQ(U32(64), amxStride)
	MOVQ(mem(p, aPacked), b)
	MOVQ(mem(p, aSums), sums)
	sixteens := 2
	if wide {
		sixteens = 1
	}

	Label("pair")
	acc, n := GP64(), GP64()
	MOVQ(mem(p, aAcc), acc)
	MOVQ(U32(amxRows*2), n)
	VPXORD(zmm[0], zmm[0], zmm[0])
	Label("clear")
	for i := range 4 {
		VMOVUPS(zmm[0], mem(acc, 64*i))
	}
	ADDQ(U32(256), acc)
	DECQ(n)
	JNZ(LabelRef("clear"))

	left, at, stripe := GP64(), GP64(), GP64()
	MOVQ(mem(p, aTiles), a)
	MOVQ(mem(p, aBlocks), left)
	XORQ(at, at)
	XORQ(stripe, stripe)
	multiplyTiles := func() {
		tileLoad(4, a, 0)
		tileLoad(6, b, 0)
		tileLoad(5, a, tileBytes)
		tileLoad(7, b, tileBytes)
		for i := range byte(4) {
			tileZero(i)
		}
		for i := range byte(4) {
			tileDot(i, 4+i/2, 6+i%2)
		}
		ADDQ(U32(pairBytes), a)
		ADDQ(U32(pairBytes), b)
	}
	storeTiles := func() {
		for i := range 4 {
			tileStore(byte(i), sums, tileBytes*i)
		}
	}
	multiplyTiles()
	storeTiles()

	Label("block")
	DECQ(left)
	JZ(LabelRef("add"))
	multiplyTiles()
	Label("add")
	sx, from, r := GP64(), GP64(), GP64()
	MOVQ(mem(p, aScales), sx)
	x := zmm[28:30]
	for i := range sixteens {
		VMOVUPS(mem(sx, 64*i), x[i])
	}
	ADDQ(U32(uint32(64*sixteens)), mem(p, aScales))
	MOVQ(mem(p, aAcc), acc)
	ADDQ(stripe, acc)
	MOVQ(sums, from)
	for half := range 2 { // rows of the first and the second tile
		label := []string{"first", "second"}[half]
		MOVQ(U32(uint32(64*half/4)), r)
		Label(label)
		for row := range 4 {
			s := GP64()
			if groups {
				MOVQ(memX(p, r, 8, aS+8*row), s)
				ADDQ(at, s)
			}
			if wide {
				d := zmm[row]
				VPSLLD(Imm(4), mem(from, 64*row), d)
				VPADDD(mem(from, tileBytes+64*row), d, d)
				VCVTDQ2PS(d, d)
				VMOVUPS(mem(acc, 64*row), zmm[8+row])
				VFMADD231PS(x[0], d, zmm[8+row])
				VMOVUPS(zmm[8+row], mem(acc, 64*row))
				continue
			}
			for i := range 2 {
				d, c, sum := zmm[2*row+i], x[i], zmm[8+2*row+i]
				VCVTDQ2PS(mem(from, tileBytes*i+64*row), d)
				if groups {
					c = zmm[16+2*row+i]
					VMULPS_BCST(mem(s, 0), x[i], c)
				}
				VMOVUPS(mem(acc, 64*(2*row+i)), sum)
				VFMADD231PS(c, d, sum)
				VMOVUPS(sum, mem(acc, 64*(2*row+i)))
			}
		}
		ADDQ(U32(256), from)
		ADDQ(U32(uint32(4*64*sixteens)), acc)
		ADDQ(Imm(4), r)
		CMPQ(r, Imm(uint64(16+16*half)))
		JL(LabelRef(label))
		ADDQ(U32(tileBytes), from)
	}
	stripeBytes := uint32(amxRows * 64 * sixteens)
	ADDQ(Imm(4), at)
	ADDQ(U32(stripeBytes), stripe)
	ANDQ(U32(4*stripeBytes-1), stripe)
	TESTQ(left, left)
	JZ(LabelRef("trees"))
	storeTiles()
	JMP(LabelRef("block"))

	// The sums' room takes the results, a row of sixteen vectors after the other.
	Label("trees")
	XORQ(r, r)
	MOVQ(mem(p, aAcc), acc)
	MOVQ(sums, from)
	Label("tree")
	for i := range sixteens {
		y := zmm[4*i : 4*i+4]
		for j := range 4 {
			VMOVUPS(mem(acc, int(stripeBytes)*j+64*i), y[j])
		}
		VADDPS(y[1], y[0], y[0])
		VADDPS(y[3], y[2], y[2])
		VADDPS(y[2], y[0], y[0])
		VMULPS_BCST(memX(p, r, 4, aRowScale), y[0], y[0])
		VMOVUPS(y[0], mem(from, pairBytes*i))
	}
	ADDQ(U32(uint32(64*sixteens)), acc)
	ADDQ(Imm(64), from)
	INCQ(r)
	CMPQ(r, Imm(amxRows))
	JL(LabelRef("tree"))

	mask := GP64()
	MOVQ(mem(p, aMask), mask)
	KMOVQ(mask, reg.K1)
	SHRQ(Imm(16), mask)
	KMOVQ(mask, reg.K2)
	for i := range sixteens {
		MOVQ(mem(p, aAcc), acc)
		for half := range 2 {
			transpose(mem(sums, pairBytes*i+tileBytes*half), func(j int) Mem { return mem(acc, tileBytes*half+64*j) })
		}
		MOVQ(U32(16), n)
		label := []string{"out", "out2"}[i]
		Label(label)
		to := GP64()
		MOVQ(mem(p, aOut), to)
		MOVQ(mem(to, 0), to)
		ADDQ(mem(p, aAt), to)
		VMOVUPS(mem(acc, 0), zmm[0])
		VMOVUPS(mem(acc, tileBytes), zmm[1])
		VMOVUPS(zmm[0], reg.K1, mem(to, 0))
		VMOVUPS(zmm[1], reg.K2, mem(to, 64))
		ADDQ(Imm(64), acc)
		ADDQ(Imm(8), mem(p, aOut))
		DECQ(mem(p, aVectors))
		JZ(LabelRef("end"))
		DECQ(n)
		JNZ(LabelRef(label))
	}
	JMP(LabelRef("pair"))
	Label("end")
	tileRelease()
	end()
}
