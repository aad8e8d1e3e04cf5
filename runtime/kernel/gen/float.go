package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in the struct floatTile of package kernel.
const (
	fW, fTail, fX        = 0, 32, 64
	fCols, fTailCols, fS = 72, 80, 88
	fNext, fOut, fMask   = 120, 128, 136
	fAsk                 = 208
	sliceHeader          = 24
	fp8Columns           = 128 // columns that share a scale
	line                 = 64
)

func init() { families["float"] = floatFamily }

// weights is how a float format's bytes become float32.
type weights struct {
	name string
	size int // bytes each
	// widen loads 16 (AVX-512) or 8 (AVX2) weights from raw; scale is fp8's.
	widen512 func(raw Mem, dst, scale reg.VecPhysical)
	widen256 func(raw Mem, dst reg.VecPhysical, scale Mem)
	prepare  func()
	one      bool // row ahead is asked for, by its columns; else whole tiles in order
}

func floatFamily() {
	f16Mask := dwords("halfMask", repeated(0xbfffbfff, 8)...)
	abs := dwords("absMask", repeated(0x7fffffff, 8)...)
	byte256 := dwords("float256", repeated(0x43800000, 8)...)
	top := dwords("float480", repeated(0x43f00000, 8)...)
	score := weights{name: "f32Score", size: 4, one: true,
		widen512: func(raw Mem, dst, _ reg.VecPhysical) { VMOVUPS(raw, dst) },
		widen256: func(raw Mem, dst reg.VecPhysical, _ Mem) { VMOVUPS(raw, dst) },
	}
	formats := []weights{score,
		{name: "f32", size: 4,
			widen512: func(raw Mem, dst, _ reg.VecPhysical) { VMOVUPS(raw, dst) },
			widen256: func(raw Mem, dst reg.VecPhysical, _ Mem) { VMOVUPS(raw, dst) },
		},
		{name: "bf16", size: 2,
			widen512: func(raw Mem, dst, _ reg.VecPhysical) {
				VPMOVZXWD(raw, dst)
				VPSLLD(Imm(16), dst, dst)
			},
			widen256: func(raw Mem, dst reg.VecPhysical, _ Mem) {
				VPMOVZXWD(raw, dst)
				VPSLLD(Imm(16), dst, dst)
			},
		},
		{name: "f16", size: 2,
			widen512: func(raw Mem, dst, _ reg.VecPhysical) { VCVTPH2PS(raw, dst) },
			widen256: func(raw Mem, dst reg.VecPhysical, _ Mem) { VCVTPH2PS(raw, dst) },
		},
		// e4m3 shifted into place is a half 256 times too small, but for the
		// code of NaN, which reads as 480.
		{name: "fp8", size: 1,
			widen512: func(raw Mem, dst, scale reg.VecPhysical) {
				y := ymm32[vecIndex(dst)]
				VPMOVZXBW(raw, y)
				VPSLLW(Imm(8), y, y)
				VPSRAW(Imm(1), y, y)
				VPANDD(reg.Y31, y, y)
				VCVTPH2PS(y, dst)
				VMULPS(reg.Z30, dst, dst)
				VANDPS(reg.Z28, dst, reg.Z27)
				VCMPPS(Imm(0), reg.Z29, reg.Z27, reg.K2)
				VPORD(reg.Z28, dst, reg.K2, dst)
				VMULPS(scale, dst, dst)
			},
			widen256: func(raw Mem, dst reg.VecPhysical, scale Mem) {
				x, tmp := xmm[vecIndex(dst)], reg.Y15
				VPMOVZXBW(raw, x)
				VPSLLW(Imm(8), x, x)
				VPSRAW(Imm(1), x, x)
				VPAND(f16Mask, x, x)
				VCVTPH2PS(x, dst)
				VMULPS(byte256, dst, dst)
				VANDPS(abs, dst, tmp)
				VCMPPS(Imm(0), top, tmp, tmp)
				VORPS(tmp, dst, dst)
				VBROADCASTSS(scale, tmp)
				VMULPS(tmp, dst, dst)
			},
			prepare: func() {
				for i, m := range []Mem{abs, top, byte256, f16Mask} {
					VBROADCASTSS(m, []reg.VecPhysical{reg.Z28, reg.Z29, reg.Z30, reg.Z31}[i])
				}
			},
		},
	}
	for _, f := range formats {
		for _, n := range []int{1, 2, 4} {
			if f.name == "fp8" {
				fp8VBMI(n)
			} else {
				float512(f, n)
			}
		}
		float256(f, 4, 1)
		float256(f, 2, 2)
		if f.size < 4 {
			widen(f, "AVX512")
			widen(f, "AVX2")
		}
	}
	readAll512()
	readAll256()
}

var (
	xmm   = []reg.VecPhysical{reg.X0, reg.X1, reg.X2, reg.X3, reg.X4, reg.X5, reg.X6, reg.X7, reg.X8, reg.X9, reg.X10, reg.X11, reg.X12, reg.X13, reg.X14, reg.X15}
	ymm32 = []reg.VecPhysical{reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7, reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15,
		reg.Y16, reg.Y17, reg.Y18, reg.Y19, reg.Y20, reg.Y21, reg.Y22, reg.Y23, reg.Y24, reg.Y25, reg.Y26, reg.Y27, reg.Y28, reg.Y29, reg.Y30, reg.Y31}
)

// vecIndex is the number of a vector register.
func vecIndex(r reg.VecPhysical) int { return int(r.PhysicalIndex()) }

// floatFrame is what the float kernels of both widths share: the pointers and
// the walk along the columns.
type floatFrame struct {
	t     reg.GPVirtual
	w, x  []reg.GPVirtual
	col   reg.GPVirtual
	left  reg.GPVirtual
	ahead reg.GPVirtual
	size  int
	one   bool
}

func newFloatFrame(name string, rows, n, size int, one bool) floatFrame {
	f := floatFrame{size: size, one: one}
	f.t = function(name, "func(t *byte)", fmt.Sprintf("%s multiplies %d rows with %d vectors.", name, rows, n))
	for r := range rows {
		w := GP64()
		MOVQ(mem(f.t, fW+8*r), w)
		f.w = append(f.w, w)
	}
	x := GP64()
	MOVQ(mem(f.t, fX), x)
	for s := range n {
		p := GP64()
		MOVQ(mem(x, sliceHeader*s), p)
		f.x = append(f.x, p)
	}
	f.col, f.left, f.ahead = GP64(), GP64(), GP64()
	XORQ(f.col, f.col)
	MOVQ(mem(f.t, fCols), f.left)
	next := fNext
	if one {
		next = fAsk
	}
	MOVQ(mem(f.t, next), f.ahead)
	return f
}

// walk calls body for 16 columns at a time, four lines of code a cache line
// of each row where they suffice, and leaves the place of the rest in col.
func (f floatFrame) walk(body func(chunk int)) {
	perLine := line / f.size
	Label("line")
	CMPQ(f.left, Imm(uint64(perLine)))
	JL(LabelRef("chunk"))
	rows := len(f.w)
	for c := 0; c < perLine; c += 16 {
		if f.one {
			PREFETCHT1(memX(f.ahead, f.col, uint8(f.size), 0))
			body(c)
			continue
		}
		for at := c * rows / perLine; at < (c+16)*rows/perLine; at++ {
			PREFETCHT1(mem(f.ahead, line*at))
		}
		body(c)
	}
	if !f.one {
		ADDQ(U32(uint32(line*rows)), f.ahead)
	}
	ADDQ(Imm(uint64(perLine)), f.col)
	SUBQ(Imm(uint64(perLine)), f.left)
	JMP(LabelRef("line"))
	Label("chunk")
	CMPQ(f.left, Imm(16))
	JL(LabelRef("rest"))
	body(0)
	ADDQ(Imm(16), f.col)
	SUBQ(Imm(16), f.left)
	JMP(LabelRef("chunk"))
	Label("rest")
}

// tail calls body if columns are left.
func (f floatFrame) tail(body func()) {
	CMPQ(mem(f.t, fTailCols), Imm(0))
	JE(LabelRef("sums"))
	body()
	Label("sums")
}

func float512(f weights, n int) {
	const rows = 4
	fr := newFloatFrame(fmt.Sprintf("%sBy%dAVX512", f.name, n), rows, n, f.size, f.one)
	acc := func(r, s int) reg.VecPhysical { return zmm[r*n+s] }
	w, x := zmm[16:20], zmm[20]
	for i := range rows * n {
		VPXORD(zmm[i], zmm[i], zmm[i])
	}
	fr.walk(func(chunk int) {
		for r := range rows {
			f.widen512(memX(fr.w[r], fr.col, uint8(f.size), chunk*f.size), w[r], nil)
		}
		for s := range n {
			VMOVUPS(memX(fr.x[s], fr.col, 4, 4*chunk), x)
			for r := range rows {
				VFMADD231PS(x, w[r], acc(r, s))
			}
		}
	})
	fr.tail(func() {
		mask := GP32()
		MOVL(mem(fr.t, fMask), mask)
		KMOVW(mask, reg.K1)
		for r := range rows {
			if f.size == 4 {
				VMOVUPS_Z(memX(fr.w[r], fr.col, 4, 0), reg.K1, w[r])
				continue
			}
			p := GP64()
			MOVQ(mem(fr.t, fTail+8*r), p)
			f.widen512(mem(p, 0), w[r], nil)
		}
		for s := range n {
			VMOVUPS_Z(memX(fr.x[s], fr.col, 4, 0), reg.K1, x)
			for r := range rows {
				VFMADD231PS(x, w[r], reg.K1, acc(r, s))
			}
		}
	})
	sums512(fr.t, rows, n)
}

// sums512 adds up the stripes of the first rows·n registers.
func sums512(t reg.Register, rows, n int) {
	out := GP64()
	MOVQ(mem(t, fOut), out)
	for s := range n {
		for r := range rows {
			a, y := zmm[r*n+s], ymm32[r*n+s]
			VEXTRACTF64X4(Imm(1), a, reg.Y20)
			VADDPS(reg.Y20, y, reg.Y20)
			VEXTRACTF32X4(Imm(1), reg.Y20, reg.X21)
			VADDPS(reg.X21, reg.X20, reg.X20)
			VPERMILPS(U8(0x4e), reg.X20, reg.X21)
			VADDPS(reg.X21, reg.X20, reg.X20)
			VPERMILPS(U8(0xb1), reg.X20, reg.X21)
			VADDPS(reg.X21, reg.X20, reg.X20)
			VMOVSS(reg.X20, mem(out, 16*s+4*r))
		}
	}
	VZEROUPPER()
	RET()
}

// e4m3 is the bfloat16 of a code below 128: every value fits.
func e4m3(c int) uint16 {
	v := math.Ldexp(float64(8+c&7), c>>3-10)
	switch {
	case c == 127:
		return 0x7fc0
	case c < 8:
		v = math.Ldexp(float64(c), -9)
	}
	return uint16(math.Float32bits(float32(v)) >> 16)
}

// fp8VBMI looks 64 codes up in tables of the two bytes of their bfloat16.
func fp8VBMI(n int) {
	const rows = 4
	if n == 1 {
		for b := range 64 { // lane l, dword i: columns 4l+i, 16 more, 32 more, 48 more
			l, i := b/16, b%8/2
			col := 4*l + i + 16*(b%2) + 32*(b%16/8)
			fp8Arrange[b/4] |= uint32(col) << (b % 4 * 8)
		}
		for c := range 128 {
			fp8High[c/4] |= uint32(e4m3(c)>>8) << (c % 4 * 8)
			fp8Low[c/4] |= uint32(e4m3(c)&0xff) << (c % 4 * 8)
		}
		fp8Tables = [3]Mem{dwords("fp8Arrange", fp8Arrange[:]...), dwords("fp8High", fp8High[:]...), dwords("fp8Low", fp8Low[:]...)}
	}
	fr := newFloatFrame(fmt.Sprintf("fp8By%dVBMI", n), rows, n, 1, false)
	acc := func(r, s int) reg.VecPhysical { return zmm[r*n+s] }
	high0, high1, low0, low1 := zmm[16], zmm[17], zmm[18], zmm[19]
	arrange, sign, upper := zmm[20], zmm[21], zmm[22]
	scale := zmm[23:27]
	t := zmm[27:32]
	for i := range rows * n {
		VPXORD(zmm[i], zmm[i], zmm[i])
	}
	VMOVDQU32(fp8Tables[0], arrange)
	VMOVDQU32(fp8Tables[1], high0)
	VMOVDQU32(fp8Tables[1].Offset(64), high1)
	VMOVDQU32(fp8Tables[2], low0)
	VMOVDQU32(fp8Tables[2].Offset(64), low1)
	VPBROADCASTD(constant(0x80808080), sign)
	VPBROADCASTD(constant(0xffff0000), upper)
	scales := func() {
		b := GP64()
		MOVQ(fr.col, b)
		SHRQ(Imm(7), b)
		for r := range rows {
			p := GP64()
			MOVQ(mem(fr.t, fS+8*r), p)
			VBROADCASTSS(memX(p, b, 4, 0), scale[r])
		}
	}
	widen := func(r int, raw Mem) []reg.VecPhysical {
		VPERMB(raw, arrange, t[0])
		VMOVDQA32(t[0], t[1])
		VPERMI2B(high1, high0, t[1])
		VMOVDQA32(t[0], t[2])
		VPERMI2B(low1, low0, t[2])
		VPTERNLOGD(U8(0xf8), sign, t[0], t[1]) // t1 | t0&sign
		VPUNPCKLBW(t[1], t[2], t[3])
		VPUNPCKHBW(t[1], t[2], t[4])
		VPSLLD(Imm(16), t[3], t[0])
		VPANDD(upper, t[3], t[3])
		VPSLLD(Imm(16), t[4], t[1])
		VPANDD(upper, t[4], t[4])
		w := []reg.VecPhysical{t[0], t[3], t[1], t[4]}
		for _, v := range w {
			VMULPS(scale[r], v, v)
		}
		return w
	}
	Label("line")
	CMPQ(fr.left, Imm(0))
	JLE(LabelRef("rest"))
	scales()
	for r := range rows {
		PREFETCHT1(mem(fr.ahead, line*r))
		w := widen(r, memX(fr.w[r], fr.col, 1, 0))
		for s := range n {
			for c, v := range w {
				VFMADD231PS(memX(fr.x[s], fr.col, 4, 64*c), v, acc(r, s))
			}
		}
	}
	ADDQ(U32(uint32(line*rows)), fr.ahead)
	ADDQ(Imm(line), fr.col)
	SUBQ(Imm(line), fr.left)
	JMP(LabelRef("line"))
	Label("rest")
	fr.tail(func() {
		all, k := GP64(), GP64()
		MOVQ(I32(-1), all)
		MOVQ(mem(fr.t, fTailCols), k)
		BZHIQ(k, all, k)
		masks := []reg.OpmaskPhysical{reg.K1, reg.K2, reg.K3, reg.K4}
		KMOVQ(k, reg.K1)
		for c := 1; c < 4; c++ {
			KSHIFTRQ(Imm(uint64(16*c)), reg.K1, masks[c])
		}
		scales()
		for r := range rows {
			p := GP64()
			MOVQ(mem(fr.t, fTail+8*r), p)
			w := widen(r, mem(p, 0))
			for s := range n {
				for c, v := range w {
					VFMADD231PS(memX(fr.x[s], fr.col, 4, 64*c), v, masks[c], acc(r, s))
				}
			}
		}
	})
	sums512(fr.t, rows, n)
}

var (
	fp8Arrange      [16]uint32
	fp8High, fp8Low [32]uint32
	fp8Tables       [3]Mem
)

func float256(f weights, rows, n int) {
	fr := newFloatFrame(fmt.Sprintf("%sBy%dAVX2", f.name, n), rows, n, f.size, f.one)
	acc := func(r, s, half int) reg.VecPhysical { return ymm[2*(r*n+s)+half] }
	w, x := ymm[8:12], ymm[12:14]
	for i := range 2 * rows * n {
		VXORPS(ymm[i], ymm[i], ymm[i])
	}
	scale := func(r int) Mem {
		if f.name != "fp8" {
			return Mem{}
		}
		b, p := GP64(), GP64()
		MOVQ(fr.col, b)
		SHRQ(Imm(7), b)
		MOVQ(mem(fr.t, fS+8*r), p)
		return memX(p, b, 4, 0)
	}
	// Half after half, so that one row's two registers of weights suffice.
	fr.walk(func(chunk int) {
		for half := range 2 {
			for r := range rows {
				f.widen256(memX(fr.w[r], fr.col, uint8(f.size), (chunk+8*half)*f.size), w[r], scale(r))
			}
			for s := range n {
				VMOVUPS(memX(fr.x[s], fr.col, 4, 4*chunk+32*half), x[0])
				for r := range rows {
					VFMADD231PS(x[0], w[r], acc(r, s, half))
				}
			}
		}
	})
	fr.tail(func() {
		mask := reg.Y14
		for half := range 2 {
			VMOVUPS(mem(fr.t, fMask+4+32*half), mask)
			for r := range rows {
				if f.size == 4 {
					VMASKMOVPS(memX(fr.w[r], fr.col, 4, 32*half), mask, w[r])
					continue
				}
				p := GP64()
				MOVQ(mem(fr.t, fTail+8*r), p)
				f.widen256(mem(p, 8*half*f.size), w[r], scale(r))
			}
			for s := range n {
				VMASKMOVPS(memX(fr.x[s], fr.col, 4, 32*half), mask, x[0])
				for r := range rows {
					a := acc(r, s, half)
					VMOVAPS(a, x[1])
					VFMADD231PS(x[0], w[r], x[1])
					VBLENDVPS(mask, x[1], a, a)
				}
			}
		}
	})
	out := GP64()
	MOVQ(mem(fr.t, fOut), out)
	for s := range n {
		for r := range rows {
			VADDPS(acc(r, s, 1), acc(r, s, 0), reg.Y12)
			VEXTRACTF128(Imm(1), reg.Y12, reg.X13)
			VADDPS(reg.X13, reg.X12, reg.X12)
			VPERMILPS(U8(0x4e), reg.X12, reg.X13)
			VADDPS(reg.X13, reg.X12, reg.X12)
			VPERMILPS(U8(0xb1), reg.X12, reg.X13)
			VADDPS(reg.X13, reg.X12, reg.X12)
			VMOVSS(reg.X12, mem(out, 16*s+4*r))
		}
	}
	VZEROUPPER()
	RET()
}

// readAll reads memory and does next to nothing with it.
func readAll512() {
	TEXT("readAVX512", NOSPLIT, "func(p *byte, lines int) uint64")
	Pragma("noescape")
	Doc("readAVX512 reads lines cache lines and returns their sum.")
	p, n := Load(Param("p"), GP64()), Load(Param("lines"), GP64())
	VPXORD(reg.Z0, reg.Z0, reg.Z0)
	Label("line")
	VPADDQ(Mem{Base: p}, reg.Z0, reg.Z0)
	ADDQ(Imm(line), p)
	DECQ(n)
	JNZ(LabelRef("line"))
	r := GP64()
	VMOVQ(reg.X0, r)
	VZEROUPPER()
	Store(r, ReturnIndex(0))
	RET()
}

func readAll256() {
	TEXT("readAVX2", NOSPLIT, "func(p *byte, lines int) uint64")
	Pragma("noescape")
	Doc("readAVX2 reads lines cache lines and returns their sum.")
	p, n := Load(Param("p"), GP64()), Load(Param("lines"), GP64())
	VPXOR(reg.Y0, reg.Y0, reg.Y0)
	Label("line")
	VPADDQ(Mem{Base: p}, reg.Y0, reg.Y0)
	VPADDQ(Mem{Base: p, Disp: 32}, reg.Y0, reg.Y0)
	ADDQ(Imm(line), p)
	DECQ(n)
	JNZ(LabelRef("line"))
	r := GP64()
	VMOVQ(reg.X0, r)
	VZEROUPPER()
	Store(r, ReturnIndex(0))
	RET()
}

// widen writes sixteens of weights as float32.
func widen(f weights, suffix string) {
	text(f.name+"Widen"+suffix, "dst *float32, codes *byte, sixteens int, scale *float32", "writes 16·sixteens weights as float32, fp8 times scale[0].")
	dst, codes, n, scale := arg("dst"), arg("codes"), arg("sixteens"), arg("scale")
	if suffix == "AVX512" && f.prepare != nil {
		f.prepare()
		VBROADCASTSS(mem(scale, 0), reg.Z26)
	}
	Label("sixteen")
	if suffix == "AVX512" {
		f.widen512(mem(codes, 0), reg.Z16, reg.Z26)
		VMOVUPS(reg.Z16, mem(dst, 0))
	} else {
		for half := range 2 {
			f.widen256(mem(codes, 8*half*f.size), reg.Y0, mem(scale, 0))
			VMOVUPS(reg.Y0, mem(dst, 32*half))
		}
	}
	ADDQ(Imm(uint64(16*f.size)), codes)
	ADDQ(Imm(64), dst)
	DECQ(n)
	JNZ(LabelRef("sixteen"))
	end()
}
