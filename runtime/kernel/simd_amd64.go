//go:build amd64 && !noasm

package kernel

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"hawkmoth/format"
)

//go:generate sh gen/all.sh

var isas = func() []isa {
	have := []isa{plain}
	x := &cpu.X86
	if x.HasAVX2 && x.HasFMA && x.HasF16C && x.HasBMI2 {
		have = append(have, avx2)
		if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512VNNI {
			have = append(have, avx512)
			if x.HasAMXTile && x.HasAMXInt8 && amxPermitted() {
				have = append(have, amx)
			}
		}
	}
	return have
}()

var tileTable = [...]map[tileKey]tileKernel{
	avx2: {
		{format.Int8Row, 0}:       {int8RowAVX2, 2, 0, nil, nil},
		{format.Int4Row, 0}:       {int4RowAVX2, 2, 0, nil, nil},
		{format.Int2Row, 0}:       {int2RowAVX2, 2, 0, nil, nil},
		{format.Int3G64, 0}:       {int3G64AVX2, 2, 64, nil, nil},
		{format.Int4Grouped, 32}:  {int4G32AVX2, 2, 32, nil, nil},
		{format.Int4Grouped, 64}:  {int4G64AVX2, 2, 64, nil, nil},
		{format.Int4Grouped, 128}: {int4G128AVX2, 2, 128, nil, nil},
		{format.Int4Grouped, 256}: {int4G256AVX2, 2, 256, nil, nil},
	},
	avx512: {
		{format.Int8Row, 0}:       {int8RowAVX512, 2, 0, nil, nil},
		{format.Int4Row, 0}:       {int4RowAVX512, 4, 0, nil, nil},
		{format.Int2Row, 0}:       {int2RowAVX512, 4, 0, nil, arrangePlanesAVX512},
		{format.Int3G64, 0}:       {int3G64AVX512, 4, 64, nil, arrangePlanesAVX512},
		{format.Int4Grouped, 32}:  {int4G32AVX512, 4, 32, nil, nil},
		{format.Int4Grouped, 64}:  {int4G64AVX512, 4, 64, nil, nil},
		{format.Int4Grouped, 128}: {int4G128AVX512, 4, 128, nil, nil},
		{format.Int4Grouped, 256}: {int4G256AVX512, 4, 256, nil, nil},
	},
}

// floatKernels lists the float kernels by the vectors they take; the first
// takes one.
var floatTable = [...]map[format.ID][]floatKernel{
	avx2: {
		format.F32:  {{f32By1AVX2, 4, 1, 16}, {f32By2AVX2, 2, 2, 16}},
		format.BF16: {{bf16By1AVX2, 4, 1, 16}, {bf16By2AVX2, 2, 2, 16}},
		format.F16:  {{f16By1AVX2, 4, 1, 16}, {f16By2AVX2, 2, 2, 16}},
		format.FP8:  {{fp8By1AVX2, 4, 1, 16}, {fp8By2AVX2, 2, 2, 16}},
	},
	avx512: {
		format.F32:  {{f32By1AVX512, 4, 1, 16}, {f32By2AVX512, 4, 2, 16}, {f32By4AVX512, 4, 4, 16}},
		format.BF16: {{bf16By1AVX512, 4, 1, 16}, {bf16By2AVX512, 4, 2, 16}, {bf16By4AVX512, 4, 4, 16}},
		format.F16:  {{f16By1AVX512, 4, 1, 16}, {f16By2AVX512, 4, 2, 16}, {f16By4AVX512, 4, 4, 16}},
		format.FP8:  fp8Kernels(),
	},
}

// fp8Kernels of the level avx512 want VBMI, which its oldest processors lack.
func fp8Kernels() []floatKernel {
	if cpu.X86.HasAVX512VBMI {
		return []floatKernel{{fp8By1VBMI, 4, 1, 64}, {fp8By2VBMI, 4, 2, 64}, {fp8By4VBMI, 4, 4, 64}}
	}
	return []floatKernel{{fp8By1AVX2, 4, 1, 16}, {fp8By2AVX2, 2, 2, 16}}
}

func tiles() map[tileKey]tileKernel { return tileTable[min(active, avx512)] }

func floatKernels(id format.ID) []floatKernel { return floatTable[min(active, avx512)][id] }

// manyTiles says that the integer kernels go from tile to tile.
const manyTiles = true

// floatTails says that the float kernels take any number of columns.
const floatTails = true

// f32Tile multiplies four rows with n vectors, of which dotVectors may be
// taken; t stays on the stack.
func f32Tile(t *floatTile, n int) {
	p := (*byte)(unsafe.Pointer(t))
	switch {
	case active >= avx512 && n == 4:
		f32ScoreBy4AVX512(p)
	case active >= avx512 && n == 2:
		f32ScoreBy2AVX512(p)
	case active >= avx512:
		f32ScoreBy1AVX512(p)
	default:
		f32ScoreBy1AVX2(p)
	}
}

// sumColumns is how many columns accumulateFour takes, a multiple of that of
// every level.
const sumColumns = 64

func accumulateFour(t *byte, columns int) {
	if active >= avx512 {
		accumulateFourAVX512(t)
		return
	}
	f := *(*fourSums)(unsafe.Pointer(t))
	for c := range columns / 16 {
		if c > 0 { // a pointer never goes behind its row
			f.rows = unsafe.Add(f.rows, 64)
			for q := range f.acc {
				f.acc[q] = unsafe.Add(f.acc[q], 64)
			}
		}
		accumulateFourAVX2((*byte)(unsafe.Pointer(&f)))
	}
}

// dotVectors is how many vectors f32Tile takes of n.
func dotVectors(n int) int {
	switch {
	case active < avx512 || n < 2:
		return 1
	case n < 4:
		return 2
	default:
		return 4
	}
}

func addVec(out, y []float32) {
	if active >= avx512 {
		addAVX512(first(out), first(y), len(out))
	} else {
		addAVX2(first(out), first(y), len(out))
	}
}

func scaleByVec(y, x, w []float32, r float32) {
	if active >= avx512 {
		scaleByAVX512(first(y), first(x), first(w), len(x), r)
	} else {
		scaleByAVX2(first(y), first(x), first(w), len(x), r)
	}
}

func siluMulVec(dst, gate, up []float32) {
	if active >= avx512 {
		siluMulAVX512(first(dst), first(gate), first(up), len(dst))
	} else {
		siluMulAVX2(first(dst), first(gate), first(up), len(dst))
	}
}

func divideVec(p []float32, z float32) {
	if active >= avx512 {
		divideAVX512(first(p), len(p), z)
	} else {
		divideAVX2(first(p), len(p), z)
	}
}

func greatestVec(p []float32, top *[16]float32) {
	if active >= avx512 {
		greatestAVX512(first(p), len(p), &top[0])
	} else {
		greatestAVX2(first(p), len(p), &top[0])
	}
}

func expSumVec(p []float32, top float32, sums *[16]float32) {
	if active >= avx512 {
		expSumAVX512(first(p), len(p), top, &sums[0])
	} else {
		expSumAVX2(first(p), len(p), top, &sums[0])
	}
}

func accumulateVec(acc, w []float32, rows *float32, stride int, picks *int32) {
	switch a, c, x, n := first(acc), len(acc), first(w), len(w); {
	case active >= avx512 && picks != nil:
		accumulatePickedAVX512(a, c, x, n, rows, stride, picks)
	case active >= avx512:
		accumulateAVX512(a, c, x, n, rows, stride)
	case picks != nil:
		accumulatePickedAVX2(a, c, x, n, rows, stride, picks)
	default:
		accumulateAVX2(a, c, x, n, rows, stride)
	}
}

func quantizeVec(x *float32, blocks int, limit float32, q *int16, scale *float32) {
	if active >= avx512 {
		quantizeAVX512(x, blocks, limit, q, scale)
	} else {
		quantizeAVX2(x, blocks, limit, q, scale)
	}
}

func packVec(q *int16, pairs int, codes *int8, sums *int32) {
	packAVX2(q, pairs, codes, sums, 8*pairs)
}

func packWideVec(q *int16, blocks int, hi, lo *int8, sums *int32) {
	packWideAVX2(q, blocks, hi, lo, sums)
}

func decodeInt8Vec(dst *float32, codes *byte, blocks int, scale *float32) {
	if active >= avx512 {
		decodeInt8AVX512(dst, codes, blocks, scale)
	} else {
		decodeInt8AVX2(dst, codes, blocks, scale)
	}
}

func decodeInt4Vec(dst *float32, codes *byte, blocks int, scale *float32, each int) {
	if active >= avx512 {
		decodeInt4AVX512(dst, codes, blocks, scale, each)
	} else {
		decodeInt4AVX2(dst, codes, blocks, scale, each)
	}
}

func absorbFor(s format.Spec) absorbKernel {
	if active < avx512 {
		return nil
	}
	switch {
	case s.Format == format.Int8Row:
		return absorbInt8AVX512
	case s.Format == format.BF16:
		return absorbBF16AVX512
	case s.Format == format.Int4Row, s.Format == format.Int4Grouped && s.Group%absorbColumns == 0:
		return absorbInt4AVX512
	case s.Format == format.Int4Grouped && s.Group == 64:
		return absorbInt4G64AVX512
	case s.Format == format.Int4Grouped && s.Group == 128:
		return absorbInt4G128AVX512
	}
	return nil
}

func widenVec(id format.ID, dst *float32, codes *byte, sixteens int, scale *float32) {
	switch wide := active >= avx512; {
	case id == format.BF16 && wide:
		bf16WidenAVX512(dst, codes, sixteens, scale)
	case id == format.BF16:
		bf16WidenAVX2(dst, codes, sixteens, scale)
	case id == format.F16 && wide:
		f16WidenAVX512(dst, codes, sixteens, scale)
	case id == format.F16:
		f16WidenAVX2(dst, codes, sixteens, scale)
	case wide:
		fp8WidenAVX512(dst, codes, sixteens, scale)
	default:
		fp8WidenAVX2(dst, codes, sixteens, scale)
	}
}

func indexSumVec(dots, w *float32, heads int, scale float32, dst *float32) {
	indexSumAVX2(dots, w, heads, scale, dst)
}

const haveCount = true

func countVec(p []float32, t float32) int {
	if active >= avx512 {
		return countAtLeastAVX512(first(p), len(p), t)
	}
	return countAtLeastAVX2(first(p), len(p), t)
}

func readVec(p *byte, lines int) uint64 {
	if active >= avx512 {
		return readAVX512(p, lines)
	}
	return readAVX2(p, lines)
}

var panels = [...]map[format.ID]panelKernel{
	avx512: {
		format.Int8Row:     {spreadInt8AVX512, multiplyInt8RowAVX512, 7},
		format.Int4Row:     {spreadInt4AVX512, multiplyInt4RowAVX512, 8},
		format.Int4Grouped: {spreadInt4AVX512, multiplyInt4GroupedAVX512, 8},
		format.Int3G64:     {spreadInt3AVX512, multiplyInt3GroupedAVX512, 10},
		format.Int2Row:     {spreadInt2AVX512, multiplyInt2RowAVX512, 10},
	},
}
