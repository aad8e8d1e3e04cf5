package main

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() { families["vector"] = vectorFamily }

// width is one of the two register widths with what differs between them.
type width struct {
	suffix string
	lanes  int
	r      []reg.VecPhysical
}

var widths = []*width{{"AVX512", 16, zmm}, {"AVX2", 8, ymm}}

func (v *width) wide() bool { return v.lanes == 16 }

// constants, one 32-bit pattern repeated, shared by both widths.
var patterns = map[uint32]Mem{}

func pattern(bits uint32) Mem {
	m, ok := patterns[bits]
	if !ok {
		m = dwords(fmt.Sprintf("dword%08x", bits), repeated(bits, 8)...)
		patterns[bits] = m
	}
	return m
}

func float(x float32) Mem { return pattern(math.Float32bits(x)) }

// load sets r to a constant.
func (v *width) load(m Mem, r reg.VecPhysical) { VBROADCASTSS(m, r) }

// where sets dst to value in the lanes in which a ⟨op⟩ b, an immediate of VCMPPS.
func (v *width) where(op uint64, a, b, value, dst, tmp reg.VecPhysical) {
	if v.wide() {
		VCMPPS(Imm(op), b, a, reg.K2)
		VMOVAPS(value, reg.K2, dst)
		return
	}
	VCMPPS(Imm(op), b, a, tmp)
	VBLENDVPS(tmp, value, dst, dst)
}

// The orders of VCMPPS: equal, less, not less or equal, unordered.
const (
	cmpEQ, cmpLT, cmpLE, cmpUnord, cmpGT = 0, 1, 2, 3, 14
)

// access is a load or store of a vector, all of it or the tail's lanes.
type access struct {
	v    *width
	tail bool
	mask reg.VecPhysical // AVX2
}

func (a access) load(m Mem, r reg.VecPhysical) {
	switch {
	case !a.tail:
		VMOVUPS(m, r)
	case a.v.wide():
		VMOVUPS_Z(m, reg.K1, r)
	default:
		VMASKMOVPS(m, a.mask, r)
	}
}

func (a access) store(r reg.VecPhysical, m Mem) {
	switch {
	case !a.tail:
		VMOVUPS(r, m)
	case a.v.wide():
		VMOVUPS(r, reg.K1, m)
	default:
		VMASKMOVPS(r, a.mask, m)
	}
}

// each calls body with the offset register of every vector of n elements, the
// last with only the lanes that are left. mask is a free register.
func (v *width) each(n reg.GPVirtual, mask reg.VecPhysical, body func(a access, at reg.Register)) {
	at := GP64()
	XORQ(at, at)
	Label("vector")
	CMPQ(n, Imm(uint64(v.lanes)))
	JL(LabelRef("tail"))
	body(access{v: v}, at)
	ADDQ(Imm(uint64(4*v.lanes)), at)
	SUBQ(Imm(uint64(v.lanes)), n)
	JMP(LabelRef("vector"))
	Label("tail")
	TESTQ(n, n)
	JZ(LabelRef("done"))
	v.tailMask(n, mask)
	body(access{v: v, tail: true, mask: mask}, at)
	Label("done")
}

var tailLanes Mem

// tailMask makes the mask of n lanes, in K1 or in mask.
func (v *width) tailMask(n reg.GPVirtual, mask reg.VecPhysical) {
	if v.wide() {
		bits, one := GP64(), GP64()
		MOVQ(I32(-1), one)
		BZHIQ(n, one, bits)
		KMOVW(bits.As32(), reg.K1)
		return
	}
	p, k := GP64(), GP64()
	LEAQ(tailLanes, p)
	MOVQ(n, k)
	NEGQ(k)
	VMOVDQU(memX(p, k, 4, 32), mask)
}

// text begins a function.
func text(name, args, doc string) {
	TEXT(name, NOSPLIT, "func("+args+")")
	Pragma("noescape")
	Doc(name + " " + doc)
}

func arg(name string) reg.GPVirtual {
	r := GP64()
	Load(Param(name), r)
	return r
}

func end() {
	VZEROUPPER()
	RET()
}

// expTable is read from exp.go, where the constants stand once.
type expTable struct {
	log2e, hi, lo, min, max float32
	poly                    []float32
}

func readExp() (t expTable) {
	src, err := os.ReadFile("../exp.go")
	if err != nil {
		panic(err)
	}
	number := func(s string) float32 {
		x, err := strconv.ParseFloat(s, 32)
		if err != nil {
			panic(err)
		}
		return float32(x)
	}
	for name, p := range map[string]*float32{"Log2E": &t.log2e, "Ln2Hi": &t.hi, "Ln2Lo": &t.lo, "Min": &t.min, "Max": &t.max} {
		*p = number(string(regexp.MustCompile(`\b` + name + `: ([-+0-9a-fx.p]+)`).FindSubmatch(src)[1]))
	}
	list := regexp.MustCompile(`Poly: \[7\]float32\{(.*?)\}`).FindSubmatch(src)[1]
	for _, s := range regexp.MustCompile(`[^, ]+`).FindAllString(string(list), -1) {
		t.poly = append(t.poly, number(s))
	}
	return t
}

// exp sets y to eˣ of x, step by step as Exp does; x is kept.
func (v *width) exp(t expTable, x, y, a, b, c reg.VecPhysical) {
	v.load(float(t.log2e), a)
	VMULPS(a, x, a)
	v.load(float(3<<22), b)
	VADDPS(b, a, a) // shifted
	VSUBPS(b, a, b) // n
	v.load(float(-t.hi), c)
	VMOVAPS(x, y)
	VFMADD231PS(c, b, y)
	v.load(float(-t.lo), c)
	VFMADD231PS(c, b, y) // r
	v.load(float(t.poly[0]), b)
	for _, p := range t.poly[1:] {
		v.load(float(p), c)
		VFMADD213PS(c, y, b)
	}
	VPSLLD(Imm(23), a, a)
	VPADDD(a, b, y)
	v.load(float(t.min), a)
	v.load(pattern(0), b)
	v.where(cmpLT, x, a, b, y, c)
	v.load(float(t.max), a)
	v.load(float(math.MaxFloat32), b)
	v.where(cmpGT, x, a, b, y, c)
	v.load(pattern(0x7fc00000), b)
	v.where(cmpUnord, x, x, b, y, c)
}

func vectorFamily() {
	tailLanes = dwords("tailLanes", append(repeated(^uint32(0), 8), repeated(0, 8)...)...)
	t := readExp()
	for _, v := range widths {
		addTo(v)
		scaleBy(v)
		siluMul(v, t)
		softmax(v, t)
		quantizeBlocks(v)
		packWide(v)
		accumulate(v, false)
		accumulate(v, true)
		accumulateFour(v)
		indexSum(v)
		countAtLeast(v)
		decode(v)
	}
	absorbFamily()
}

func addTo(v *width) {
	text("add"+v.suffix, "out, y *float32, n int", "adds y to out.")
	out, y, n := arg("out"), arg("y"), arg("n")
	v.each(n, v.r[2], func(a access, at reg.Register) {
		a.load(memX(out, at, 1, 0), v.r[0])
		a.load(memX(y, at, 1, 0), v.r[1])
		VADDPS(v.r[1], v.r[0], v.r[0])
		a.store(v.r[0], memX(out, at, 1, 0))
	})
	end()
}

func scaleBy(v *width) {
	text("scaleBy"+v.suffix, "y, x, w *float32, n int, r float32", "sets y to (x·r)·w.")
	y, x, w, n := arg("y"), arg("x"), arg("w"), arg("n")
	p, err := Param("r").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(p.Addr, v.r[3])
	v.each(n, v.r[2], func(a access, at reg.Register) {
		a.load(memX(x, at, 1, 0), v.r[0])
		a.load(memX(w, at, 1, 0), v.r[1])
		VMULPS(v.r[3], v.r[0], v.r[0])
		VMULPS(v.r[1], v.r[0], v.r[0])
		a.store(v.r[0], memX(y, at, 1, 0))
	})
	end()
}

func siluMul(v *width, t expTable) {
	text("siluMul"+v.suffix, "dst, gate, up *float32, n int", "sets dst to SiLU(gate)·up.")
	dst, gate, up, n := arg("dst"), arg("gate"), arg("up"), arg("n")
	v.each(n, v.r[7], func(a access, at reg.Register) {
		g, x, e := v.r[0], v.r[1], v.r[2]
		a.load(memX(gate, at, 1, 0), g)
		v.load(pattern(1<<31), x)
		VXORPS(x, g, x)
		v.exp(t, x, e, v.r[3], v.r[4], v.r[5])
		v.load(float(1), x)
		VADDPS(x, e, e)
		VDIVPS(e, g, g)
		a.load(memX(up, at, 1, 0), x)
		VMULPS(x, g, g)
		a.store(g, memX(dst, at, 1, 0))
	})
	end()
}

// softmax is in three passes, as functions of their own: the greatest score,
// the exponentials with their sixteen sums, the quotients.
func softmax(v *width, t expTable) {
	text("greatest"+v.suffix, "p *float32, n int, top *float32", "sets top[16] to the greatest of p in each stripe, −Inf for none.")
	p, n, top := arg("p"), arg("n"), arg("top")
	v.load(pattern(0xff800000), v.r[0])
	if !v.wide() {
		VMOVAPS(v.r[0], v.r[3])
	}
	v.each(n, v.r[2], func(a access, at reg.Register) {
		a.load(memX(p, at, 1, 0), v.r[1])
		switch {
		case a.tail && v.wide():
			VMAXPS(v.r[0], v.r[1], reg.K1, v.r[0])
		case a.tail:
			VMAXPS(v.r[0], v.r[1], v.r[1])
			VBLENDVPS(a.mask, v.r[1], v.r[0], v.r[0])
		default:
			VMAXPS(v.r[0], v.r[1], v.r[0])
		}
	})
	VMOVUPS(v.r[0], mem(top, 0))
	if !v.wide() {
		VMOVUPS(v.r[3], mem(top, 32))
	}
	end()

	text("expSum"+v.suffix, "p *float32, n int, top float32, sums *float32", "sets p to exp(p−top) and sums[16] to the sums of its stripes.")
	p, n, sums := arg("p"), arg("n"), arg("sums")
	at, err := Param("top").Resolve()
	if err != nil {
		panic(err)
	}
	m, acc := v.r[8], v.r[9:11]
	VBROADCASTSS(at.Addr, m)
	for _, r := range acc {
		VXORPS(r, r, r)
		if v.wide() {
			break
		}
	}
	swap := func() { // AVX2 takes the halves of the stripes by turns
		if !v.wide() {
			VMOVAPS(acc[0], v.r[0])
			VMOVAPS(acc[1], acc[0])
			VMOVAPS(v.r[0], acc[1])
		}
	}
	turns := GP64()
	XORQ(turns, turns)
	v.each(n, v.r[7], func(a access, at reg.Register) {
		x, e := v.r[0], v.r[1]
		a.load(memX(p, at, 1, 0), x)
		VSUBPS(m, x, x)
		v.exp(t, x, e, v.r[2], v.r[3], v.r[4])
		a.store(e, memX(p, at, 1, 0))
		switch {
		case a.tail && v.wide():
			VADDPS(e, acc[0], reg.K1, acc[0])
		case a.tail:
			VADDPS(e, acc[0], e)
			VBLENDVPS(a.mask, e, acc[0], acc[0])
		default:
			VADDPS(e, acc[0], acc[0])
		}
		swap()
		INCQ(turns)
	})
	if !v.wide() {
		TESTQ(U32(1), turns)
		JZ(LabelRef("even"))
		swap()
		Label("even")
		VMOVUPS(acc[1], mem(sums, 32))
	}
	VMOVUPS(acc[0], mem(sums, 0))
	end()

	text("divide"+v.suffix, "p *float32, n int, z float32", "divides p by z.")
	p, n = arg("p"), arg("n")
	at, err = Param("z").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(at.Addr, v.r[1])
	v.each(n, v.r[2], func(a access, at reg.Register) {
		a.load(memX(p, at, 1, 0), v.r[0])
		VDIVPS(v.r[1], v.r[0], v.r[0])
		a.store(v.r[0], memX(p, at, 1, 0))
	})
	end()
}
