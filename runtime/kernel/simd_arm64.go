//go:build arm64 && !noasm

package kernel

import (
	"math"
	"runtime"
	"unsafe"

	"golang.org/x/sys/cpu"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// Every Mac with an arm64 processor has the dot product.
var isas = func() []isa {
	switch {
	case !cpu.ARM64.HasASIMDDP && runtime.GOOS != "darwin":
		return []isa{plain}
	case cpu.ARM64.HasI8MM || systemHasI8MM():
		return []isa{plain, neon, i8mm}
	default:
		return []isa{plain, neon}
	}
}()

var tileTable = map[tileKey]tileKernel{
	{format.Int8Row, 0}:       {int8RowNEON, 4, 0, int8RowI8MM, nil},
	{format.Int4Row, 0}:       {int4RowNEON, 4, 0, int4RowI8MM, nil},
	{format.Int2Row, 0}:       {int2RowNEON, 4, 0, int2RowI8MM, nil},
	{format.Int3G64, 0}:       {int3G64NEON, 4, 64, nil, nil},
	{format.Int4Grouped, 32}:  {int4G32NEON, 4, 32, nil, nil},
	{format.Int4Grouped, 64}:  {int4G64NEON, 4, 64, int4G64I8MM, nil},
	{format.Int4Grouped, 128}: {int4G128NEON, 4, 128, int4G128I8MM, nil},
	{format.Int4Grouped, 256}: {int4G256NEON, 4, 256, int4G256I8MM, nil},
}

func tiles() map[tileKey]tileKernel {
	if active == plain {
		return nil
	}
	return tileTable
}

var floatTable = map[format.ID][]floatKernel{
	format.F32:  {{f32NEON, 4, 1, 16}},
	format.BF16: {{bf16NEON, 4, 1, 16}},
	format.F16:  {{f16NEON, 4, 1, 16}},
	format.FP8:  {{fp8NEON, 4, 1, 16}},
}

func floatKernels(id format.ID) []floatKernel {
	if active == plain {
		return nil
	}
	return floatTable[id]
}

// manyTiles says that the integer kernels go from tile to tile.
const manyTiles = false

// floatTails says that the float kernels take any number of columns; these
// want sixteens, fours where lanes do not add up.
const floatTails = false

type panelScratch struct{}

func panelRowsSIMD(quantize.Matrix, int, int, []Activation, [][]float32, int, *Scratch) bool {
	return false
}

func f32Tile(t *floatTile, _ int) { f32NEON((*byte)(unsafe.Pointer(t))) }

// sumColumns is how many columns accumulateFour takes.
const sumColumns = 64

func accumulateFour(t *byte, _ int) { accumulateFourNEON(t) }

// dotVectors is how many vectors f32Tile takes of n.
func dotVectors(int) int { return 1 }

// vec is the argument of the kernels on vectors. The assembly knows the offsets.
type vec struct {
	a, b, c, d unsafe.Pointer
	n, m       int
	stride     int
	picks      *int32
	x          float32
	consts     [13]float32
}

func (v *vec) arg() *byte { return (*byte)(unsafe.Pointer(v)) }

func (v *vec) setExp() {
	t := &expTable
	v.consts = [13]float32{t.Log2E, roundShift, -t.Ln2Hi, -t.Ln2Lo, t.Min, t.Max}
	copy(v.consts[6:], t.Poly[:])
}

func point[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }

func addVec(out, y []float32) {
	n := len(out) &^ 3
	v := vec{a: point(first(out)), b: point(first(y)), n: n}
	addNEON(v.arg())
	for i := n; i < len(out); i++ {
		out[i] += y[i]
	}
}

func scaleByVec(y, x, w []float32, r float32) {
	n := len(x) &^ 3
	v := vec{a: point(first(y)), b: point(first(x)), c: point(first(w)), n: n, x: r}
	scaleByNEON(v.arg())
	for i := n; i < len(x); i++ {
		y[i] = float32(x[i]*r) * w[i]
	}
}

func siluMulVec(dst, gate, up []float32) {
	n := len(dst) &^ 3
	v := vec{a: point(first(dst)), b: point(first(gate)), c: point(first(up)), n: n}
	v.setExp()
	siluMulNEON(v.arg())
	for i := n; i < len(dst); i++ {
		dst[i] = SiLU(gate[i]) * up[i]
	}
}

func divideVec(p []float32, z float32) {
	n := len(p) &^ 3
	v := vec{a: point(first(p)), n: n, x: z}
	divideNEON(v.arg())
	for i := n; i < len(p); i++ {
		p[i] /= z
	}
}

func greatestVec(p []float32, top *[16]float32) {
	for i := range top {
		top[i] = float32(math.Inf(-1))
	}
	n := len(p) &^ 3
	v := vec{a: point(first(p)), b: point(&top[0]), n: n}
	greatestNEON(v.arg())
	for _, s := range p[n:] {
		if s > top[0] {
			top[0] = s
		}
	}
}

func expSumVec(p []float32, top float32, sums *[16]float32) {
	n := len(p) &^ 15
	v := vec{a: point(first(p)), b: point(&sums[0]), n: n, x: top}
	v.setExp()
	expSumNEON(v.arg())
	for i := n; i < len(p); i++ {
		p[i] = Exp(p[i] - top)
		sums[i-n] += p[i]
	}
}

func accumulateVec(acc, w []float32, rows *float32, stride int, picks *int32) {
	v := vec{a: point(first(acc)), b: point(rows), c: point(first(w)), n: len(acc), m: len(w), stride: stride, picks: picks}
	accumulateNEON(v.arg())
}

func quantizeVec(x *float32, blocks int, limit float32, q *int16, scale *float32) {
	v := vec{a: point(x), b: point(scale), c: point(q), n: blocks, x: limit}
	v.consts[0], v.consts[1] = minScale, roundShift
	quantizeNEON(v.arg())
}

func packVec(q *int16, pairs int, codes *int8, sums *int32) {
	v := vec{b: point(codes), c: point(q), d: point(sums), n: pairs, stride: 8 * pairs}
	packNEON(v.arg())
}

func packWideVec(q *int16, blocks int, hi, lo *int8, sums *int32) {
	v := vec{a: point(hi), b: point(lo), c: point(q), d: point(sums), n: blocks}
	packWideNEON(v.arg())
}

func decodeInt8Vec(dst *float32, codes *byte, blocks int, scale *float32) {
	v := vec{a: point(dst), b: point(codes), c: point(scale), n: blocks}
	decodeInt8NEON(v.arg())
}

func decodeInt4Vec(dst *float32, codes *byte, blocks int, scale *float32, each int) {
	v := vec{a: point(dst), b: point(codes), c: point(scale), n: blocks, m: each}
	decodeInt4NEON(v.arg())
}

func widenVec(format.ID, *float32, *byte, int, *float32) {}

func indexSumVec(dots, w *float32, heads int, scale float32, dst *float32) {
	v := vec{a: point(dots), b: point(w), c: point(dst), n: heads, x: scale}
	indexSumNEON(v.arg())
}

const haveCount = false

func countVec([]float32, float32) int { return 0 }

func readVec(p *byte, lines int) uint64 { return readAll(unsafe.Slice(p, 64*lines)) }

func absorbFor(format.Spec) absorbKernel { return nil }
