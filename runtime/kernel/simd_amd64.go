//go:build amd64 && !noasm

package kernel

import (
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
		}
	}
	return have
}()

var tiles = [...]map[tileKey]tileKernel{
	avx2: {
		{format.Int8Row, 0}:     {int8RowAVX2, 2, 0},
		{format.Int4Row, 0}:     {int4RowAVX2, 2, 0},
		{format.Int2Row, 0}:     {int2RowAVX2, 2, 0},
		{format.Int3G64, 0}:     {int3G64AVX2, 2, 1},
		{format.Int4Grouped, 1}: {int4G64AVX2, 2, 1},
		{format.Int4Grouped, 2}: {int4G128AVX2, 2, 2},
		{format.Int4Grouped, 4}: {int4G256AVX2, 2, 4},
	},
	avx512: {
		{format.Int8Row, 0}:     {int8RowAVX512, 2, 0},
		{format.Int4Row, 0}:     {int4RowAVX512, 4, 0},
		{format.Int2Row, 0}:     {int2RowAVX512, 4, 0},
		{format.Int3G64, 0}:     {int3G64AVX512, 4, 1},
		{format.Int4Grouped, 1}: {int4G64AVX512, 4, 1},
		{format.Int4Grouped, 2}: {int4G128AVX512, 4, 2},
		{format.Int4Grouped, 4}: {int4G256AVX512, 4, 4},
	},
}

// floatKernels lists the float kernels by the vectors they take; the first
// takes one.
var floatKernels = [...]map[format.ID][]floatKernel{
	avx2: {
		format.F32:  {{f32By1AVX2, 4, 1}, {f32By2AVX2, 2, 2}},
		format.BF16: {{bf16By1AVX2, 4, 1}, {bf16By2AVX2, 2, 2}},
		format.F16:  {{f16By1AVX2, 4, 1}, {f16By2AVX2, 2, 2}},
		format.FP8:  {{fp8By1AVX2, 4, 1}, {fp8By2AVX2, 2, 2}},
	},
	avx512: {
		format.F32:  {{f32By1AVX512, 4, 1}, {f32By2AVX512, 4, 2}, {f32By4AVX512, 4, 4}},
		format.BF16: {{bf16By1AVX512, 4, 1}, {bf16By2AVX512, 4, 2}, {bf16By4AVX512, 4, 4}},
		format.F16:  {{f16By1AVX512, 4, 1}, {f16By2AVX512, 4, 2}, {f16By4AVX512, 4, 4}},
		format.FP8:  {{fp8By1AVX512, 4, 1}, {fp8By2AVX512, 4, 2}, {fp8By4AVX512, 4, 4}},
	},
}

var vectors = [...]*vectorKernels{
	avx2: {
		add:              addAVX2,
		scaleBy:          scaleByAVX2,
		siluMul:          siluMulAVX2,
		divide:           divideAVX2,
		pack:             packAVX2,
		accumulate:       accumulateAVX2,
		accumulatePicked: accumulatePickedAVX2,
		decodeInt8:       decodeInt8AVX2,
		decodeInt4:       decodeInt4AVX2,
		widen: map[format.ID]func(*float32, *byte, int, *float32){
			format.BF16: bf16WidenAVX2, format.F16: f16WidenAVX2, format.FP8: fp8WidenAVX2,
		},
	},
	avx512: {
		add:              addAVX512,
		scaleBy:          scaleByAVX512,
		siluMul:          siluMulAVX512,
		divide:           divideAVX512,
		pack:             packAVX512,
		accumulate:       accumulateAVX512,
		accumulatePicked: accumulatePickedAVX512,
		decodeInt8:       decodeInt8AVX512,
		decodeInt4:       decodeInt4AVX512,
		widen: map[format.ID]func(*float32, *byte, int, *float32){
			format.BF16: bf16WidenAVX512, format.F16: f16WidenAVX512, format.FP8: fp8WidenAVX512,
		},
	},
}

var panels = [...]map[format.ID]panelKernel{
	avx512: {
		format.Int8Row:     {spreadInt8AVX512, multiplyInt8RowAVX512},
		format.Int4Row:     {spreadInt4AVX512, multiplyInt4RowAVX512},
		format.Int4Grouped: {spreadInt4AVX512, multiplyInt4GroupedAVX512},
		format.Int3G64:     {spreadInt3AVX512, multiplyInt3GroupedAVX512},
		format.Int2Row:     {spreadInt2AVX512, multiplyInt2RowAVX512},
	},
}
