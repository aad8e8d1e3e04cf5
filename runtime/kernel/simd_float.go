//go:build (amd64 || arm64) && !noasm

package kernel

import (
	"unsafe"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// floatTile is the argument of the float kernels: up to four rows and as many
// vectors. The assembly knows the offsets.
type floatTile struct {
	w        [4]unsafe.Pointer // each row
	tail     [4]unsafe.Pointer // each row's last columns, padded to sixteen
	x        unsafe.Pointer    // the first of the vectors' slice headers
	cols     int               // a multiple of 16
	tailCols int
	s        [4]unsafe.Pointer // fp8: the scales of each row's blocks
	next     uintptr           // what to prefetch: the rows to come
	out      unsafe.Pointer    // [4][4]float32: vector, row
	bits     uint32            // a bit for each of the tail's columns
	lanes    [16]uint32        // all ones for each of them
	ask      uintptr           // what to prefetch in f32Tile: a row
}

var (
	_ [64]byte  = [unsafe.Offsetof(floatTile{}.x)]byte{}
	_ [128]byte = [unsafe.Offsetof(floatTile{}.out)]byte{}
	_ [140]byte = [unsafe.Offsetof(floatTile{}.lanes)]byte{}
	_ [208]byte = [unsafe.Offsetof(floatTile{}.ask)]byte{}
)

// floatKernel multiplies rows rows with n vectors, step columns at a time.
type floatKernel struct {
	run           func(*byte)
	rows, n, step int
}

// setColumns cuts the columns in steps of 16 or 64 and a tail.
func (t *floatTile) setColumns(cols, step int) {
	t.cols, t.tailCols = cols&^(step-1), cols&(step-1)
	t.bits = 1<<t.tailCols - 1
	for i := range t.lanes {
		t.lanes[i] = 0
		if i < t.tailCols {
			t.lanes[i] = ^uint32(0)
		}
	}
}

// cacheBytes is how many bytes of rows are taken for every four vectors before
// the next vectors, when there are many.
const cacheBytes = 128 << 10

// floatRowsSIMD is floatRows for the formats that the active level serves.
func floatRowsSIMD(m quantize.Matrix, lo, hi int, x, y [][]float32, from int, tmp *Scratch) bool {
	kernels := floatKernels(m.Format)
	if kernels == nil || !floatTails && m.Cols%16 != 0 {
		return false
	}
	for _, xs := range x {
		_ = xs[:m.Cols]
	}
	s := &tmp.simd
	t := &s.floats
	t.setColumns(m.Cols, kernels[0].step)
	rowBytes, size := m.RowBytes(), m.RowBytes()/max(1, m.Cols)
	s.out = grow(s.out, 16)
	t.out = unsafe.Pointer(unsafe.SliceData(s.out))
	if t.tailCols > 0 {
		s.tail = grow(s.tail, 4*64)
		clear(s.tail[:4*64])
		for r := range 4 {
			t.tail[r] = unsafe.Pointer(&s.tail[64*r])
		}
	}
	panel := 4
	if len(x) > 8 {
		panel = max(4, cacheBytes/max(1, rowBytes)&^3)
	}
	for top := lo; top < hi; top += panel {
		bottom := min(top+panel, hi)
		for i := 0; i < len(x); {
			k := kernels[0]
			for _, next := range kernels[1:] {
				if next.n <= len(x)-i {
					k = next
				}
			}
			t.x = unsafe.Pointer(&x[i])
			for o := top; o < bottom; o += k.rows {
				n := min(k.rows, bottom-o)
				for r := range k.rows {
					row := o + min(r, n-1)
					codes := m.W[row*rowBytes:][:rowBytes]
					t.w[r] = unsafe.Pointer(unsafe.SliceData(codes))
					if t.tailCols > 0 {
						copy(s.tail[64*r:], codes[t.cols*size:])
					}
					if m.Format == format.FP8 {
						t.s[r] = unsafe.Pointer(unsafe.SliceData(m.S[row/fp8Block*m.ScaleCols():][:m.ScaleCols()]))
					}
				}
				t.next = uintptr(t.w[0]) + ahead(k.rows*rowBytes)
				k.run((*byte)(unsafe.Pointer(t)))
				for j, ys := range y[i : i+k.n] {
					copy(ys[o-from:][:n], s.out[4*j:])
				}
			}
			i += k.n
		}
	}
	return true
}

// ReadAll reads p, a multiple of 64 bytes, as fast as one goroutine can, for
// measuring the memory's rate. The result depends on every cache line.
func ReadAll(p []byte) uint64 {
	n := len(p) / 64
	if n == 0 || active == plain {
		return readAll(p)
	}
	return readVec(first(p), n)
}
