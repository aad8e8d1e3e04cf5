package quantize

import (
	"math"
	"unsafe"
)

// strip is the argument of the vector functions, which take a multiple of
// stripColumns values. The assembly knows the offsets.
type strip struct {
	dst, src     unsafe.Pointer
	n            int
	scale, shift float32
	top          uint32
}

const stripColumns = 32

// vectorOp is a vector function, an optimisation of the Go code that calls it.
type vectorOp uint8

const (
	opWidenBF16 vectorOp = iota
	opWidenF16
	opWidenFP8 // times scale
	opNarrowBF16
	opNarrowF16
	opRoundFP8 // of src/scale
	opRound8   // the last byte of src/scale + shift
	opRound4   // the last four bits of it, two a byte
	opMaxAbs
)

// vector runs op over as many of n values as it takes, and says how many those
// are: none without assembly.
func vector[D, S any](op vectorOp, n int, dst []D, src []S, scale, shift float32) int {
	n &^= stripColumns - 1
	if !haveVectors || n == 0 {
		return 0
	}
	t := strip{unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src)), n, scale, shift, 0}
	runVector(op, (*byte)(unsafe.Pointer(&t)))
	return n
}

// vectorMaxAbs is maxAbs of the first n values; n is 0 without assembly.
func vectorMaxAbs(w []float32) (n int, top float32) {
	n = len(w) &^ (stripColumns - 1)
	if !haveVectors || n == 0 {
		return 0, 0
	}
	t := strip{src: unsafe.Pointer(unsafe.SliceData(w)), n: n}
	runVector(opMaxAbs, (*byte)(unsafe.Pointer(&t)))
	return n, math.Float32frombits(t.top)
}
