//go:build !(amd64 || arm64) || noasm

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

func dotSIMD([]float32, []float32) (float32, bool)                                { return 0, false }
func scoreSIMD(_, _ [][]float32, _ []float32, _ int, _ []int32, _ float32) bool   { return false }
func scoreOneSIMD(_, _, _, _ []float32, _ int, _ []int32, _ float32) bool         { return false }
func latentSIMD(_, _ [][]float32, _ []float32, _ int, _ []int32, _ *Scratch) bool { return false }
func addScaledSIMD([]float32, float32, []float32) bool                            { return false }
func addSIMD(_, _ []float32) bool                                                 { return false }
func scaleBySIMD(_, _, _ []float32, _ float32) bool                               { return false }
func siluMulSIMD(_, _, _ []float32) bool                                          { return false }
func softmaxSIMD([]float32, float32) bool                                         { return false }
func indexSIMD(_, _, _, _ []float32, _ int, _ float32) bool                       { return false }
func dequantSIMD(quantize.Matrix, int, int, []float32) bool                       { return false }
func qabsSIMD(_, _ [][]float32, _ quantize.Matrix, _ int, _ *Scratch) bool        { return false }
func kthSIMD([]float32, int) (float32, bool)                                      { return 0, false }
