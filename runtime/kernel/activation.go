package kernel

import (
	"math"

	"hawkmoth/format"
)

// Block is the number of activations that share one scale and whose products
// are summed exactly.
const Block = 64

// Activation is a vector x[N] rounded to integers, one scale a block:
// x_i ≈ Q_i · Scale[i/Block].
//
// Only Quantize fills it: the assembly reads forms of Q that it keeps beside it.
type Activation struct {
	N, Bits int
	Q       []int16 // padded with zeros to a multiple of Block
	Scale   []float32
	codes   []int8  // Q as bytes, as the assembly reads them, in whole quads of blocks
	sums    []int32 // 8·ΣQ of each block, then of first and of second halves; 128·ΣQ if Bits is 12
}

// quad is the number of blocks whose sums go to the four stripes in one step.
const quad = 4

// minScale keeps zero and tiny blocks from dividing by zero.
const minScale float32 = 1e-8

// ActivationBits is the width to which the activations of a format's matrices
// are rounded: 12 for int8 weights, 8 for narrower ones, 0 for float weights,
// which take float32.
func ActivationBits(id format.ID) int { return layouts[id].bits }

// Quantize rounds x to integers of the given width (8 or 12) with
// Scale[b] = max(max|x|/Q, 1e-8) and Q = 127 or 2047, and reuses a's memory.
//
// A block that holds a NaN or an infinity gets the scale NaN, or an infinite
// scale and zeros, so that every product with it is NaN and cannot pass for a
// number.
func (a *Activation) Quantize(x []float32, bits int) {
	blocks := (len(x) + Block - 1) / Block
	whole := (blocks + quad - 1) / quad * quad
	a.N, a.Bits = len(x), bits
	a.Q, a.Scale = grow(a.Q, whole*Block), grow(a.Scale, whole)
	clear(a.Q[blocks*Block:])
	clear(a.Scale[blocks:])
	a.Q, a.Scale = a.Q[:blocks*Block], a.Scale[:blocks]
	if quantizeSIMD(a, x, bits) {
		return
	}
	a.codes, a.sums = a.codes[:0], a.sums[:0]
	quantizeBlocks(a, x, bits)
}

func quantizeBlocks(a *Activation, x []float32, bits int) {
	limit := float32(int(1)<<(bits-1) - 1)
	for b := range a.Scale {
		q := a.Q[b*Block:][:Block]
		xs := x[b*Block : min((b+1)*Block, len(x))]
		var top uint32 // magnitudes compare as integers, NaN above all
		for _, v := range xs {
			top = max(top, math.Float32bits(v)&0x7fffffff)
		}
		s := max(math.Float32frombits(top)/limit, minScale)
		a.Scale[b] = s
		for i, v := range xs {
			q[i] = int16(math.Float32bits(v/s + roundShift)) // the low bits are the integer
		}
		clear(q[len(xs):])
	}
}

// grow is s with length n, in new memory only if it does not fit.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// Scratch is the working memory of one goroutine. The zero value is ready.
type Scratch struct {
	words []uint64 // of one row
	mates []uint64 // of every activation
	sums  []int32
	tail  [Block]byte
	row   []float32
	chunk []float32
	ids   []int32
	simd  simdScratch
	one   [1][]float32 // a single query as a batch
	two   [1][]float32
	views [][]float32 // of the sums in chunk
}
