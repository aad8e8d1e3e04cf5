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

var tiles = map[isa]map[tileKey]tileKernel{
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
