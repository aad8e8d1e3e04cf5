//go:build !amd64 || noasm

package kernel

import "hawkmoth/quantize"

// The plain Go code does everything.

var isas = []isa{plain}

type simdScratch struct{}

func quantizeSIMD(*Activation, []float32, int) bool { return false }

func intRowsSIMD(quantize.Matrix, int, int, []Activation, [][]float32, int, *Scratch) bool {
	return false
}

func floatRowsSIMD(quantize.Matrix, int, int, [][]float32, [][]float32, int, *Scratch) bool {
	return false
}

// ReadAll reads p, a multiple of 64 bytes, as fast as one goroutine can, for
// measuring the memory's rate. The result depends on every cache line.
func ReadAll(p []byte) uint64 { return readAll(p) }
