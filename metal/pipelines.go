package metal

import (
	"hawkmoth/format"
)

// special is a specialised kernel as the backend asks for it; what a kernel has
// no constant for stays zero.
type special struct {
	kernel  string
	format  format.ID
	wide    uint8 // of weight
	cut     bool
	dots    bool
	selects bool // attention to selected positions
	tile    uint8
	layout  layout
}

// anyFormat stands for experts whose formats or group sizes differ.
const anyFormat format.ID = 255

// layout is how rounded activations lie in memory; see round.metal.
type layout uint8

const (
	plainPairs layout = iota // int8-row
	matesBy4                 // int4
	matesBy8                 // int2, int3
	numLayouts
)

// layouts are those that the formats' products read; float formats have none.
var layouts = map[format.ID]layout{format.Int8Row: plainPairs, format.Int4Row: matesBy4, format.Int4Grouped: matesBy4,
	format.Int2Row: matesBy8, format.Int3G64: matesBy8}

// tiles are how many vectors a product takes at a time.
var tiles = []uint8{1, 4, 8}

// tileFor is the tile for n vectors.
func tileFor(n int) uint8 {
	for _, t := range tiles {
		if n <= int(t) {
			return t
		}
	}
	return tiles[len(tiles)-1]
}

// cuts says whether group borders fall inside blocks of activations.
func cuts(s format.Spec) bool { return s.Format == format.Int4Grouped && s.Group%64 != 0 }

// kernelFiles says where each kernel is and which of a special's fields its
// file's function constants are, in the order of their indices.
var kernelOf = map[string]struct {
	file      string
	constants func(s special) []any
}{
	"embed":             {"embed.metal", ofFormat},
	"round_activations": {"round.metal", func(s special) []any { return []any{uint32(s.layout), s.dots} }},
	"matmul_int":        {"matmul.metal", ofMatMul},
	"matmul_float":      {"matmul.metal", ofMatMul},
	"matmul_few":        {"matmul.metal", ofMatMul},
	"rmsnorm":           {"norm.metal", none},
	"layernorm":         {"norm.metal", none},
	"silu_mul":          {"point.metal", none},
	"add":               {"point.metal", none},
	"rope":              {"point.metal", none},
	"qabs":              {"mla.metal", ofAttention},
	"qabs_one":          {"mla.metal", ofAttention},
	"score":             {"mla.metal", ofAttention},
	"softmax":           {"mla.metal", ofAttention},
	"latent":            {"mla.metal", ofAttention},
	"latent_sum":        {"mla.metal", ofAttention},
	"index_score":       {"index.metal", none},
	"topk":              {"index.metal", none},
	"route":             {"moe.metal", ofExperts},
	"group_pairs":       {"moe.metal", ofExperts},
	"expert_matmul":     {"moe.metal", ofExperts},
	"expert_sum":        {"moe.metal", ofExperts},
}

func none(special) []any       { return nil }
func ofFormat(s special) []any { return []any{uint32(s.format)} }
func ofAttention(s special) []any {
	return []any{uint32(s.format), uint32(s.tile), s.wide != 0, s.selects}
}
func ofMatMul(s special) []any {
	return []any{uint32(s.format), uint32(s.wide), s.cut, uint32(s.tile), s.dots}
}

func ofExperts(s special) []any { return []any{uint32(s.format), s.cut, uint32(s.tile), s.dots} }

func (s special) variant() Variant {
	k := kernelOf[s.kernel]
	v := Variant{File: k.file, Kernel: s.kernel}
	for i, c := range k.constants(s) {
		v.Constants = append(v.Constants, Constant{i, c})
	}
	return v
}

// matMulKernel is the product with a matrix for n vectors. Matrices that are
// not aligned for vector loads are rare and share the largest tile.
func matMulKernel(kernel string, s format.Spec, wide uint8, n int, dots bool) special {
	t := tiles[len(tiles)-1]
	if wide > 0 {
		t = tileFor(n)
	}
	return special{kernel: kernel, format: s.Format, wide: wide, cut: cuts(s), tile: t, dots: dots && !isFloat(s.Format)}
}

// fewRows is the product of one vector with few rows of floats.
func fewRows(f format.ID) special {
	return special{kernel: "matmul_few", format: f, wide: 1, tile: 1}
}

// backendVariants are all specialisations that the backend asks for on a device
// with or without instructions for products of bytes.
func backendVariants(dots bool) []Variant {
	var all []Variant
	add := func(s special) { all = append(all, s.variant()) }
	for l := range numLayouts {
		add(special{kernel: "round_activations", layout: l, dots: dots})
	}
	for _, k := range []string{"rmsnorm", "layernorm", "silu_mul", "add", "rope", "latent_sum", "index_score", "topk",
		"route", "group_pairs", "expert_sum"} {
		add(special{kernel: k})
	}
	add(special{kernel: "softmax"})
	add(special{kernel: "softmax", selects: true})
	for _, wide := range []uint8{0, 2} {
		for _, selects := range []bool{false, true} {
			for _, t := range scoreTiles {
				add(special{kernel: "score", tile: t, wide: wide, selects: selects})
			}
			add(special{kernel: "latent", wide: wide, selects: selects})
		}
	}
	experts := func(s special) {
		for _, t := range []uint8{1, tiles[len(tiles)-1]} {
			s.kernel, s.tile, s.dots = "expert_matmul", t, dots
			add(s)
		}
	}
	experts(special{format: anyFormat})
	for _, f := range formats {
		add(special{kernel: "embed", format: f})
		add(special{kernel: "qabs", format: f, tile: tiles[len(tiles)-1]})
		for _, t := range tiles[1:] {
			add(special{kernel: "qabs", format: f, tile: t, wide: 2})
		}
		add(special{kernel: "qabs_one", format: f})
		experts(special{format: f})
		kernel := "matmul_int"
		if isFloat(f) {
			kernel = "matmul_float"
			if f != format.FP8 {
				add(fewRows(f))
			}
		}
		groups := []int{64}
		if f == format.Int4Grouped {
			groups = append(groups, 16)
			experts(special{format: f, cut: true})
		}
		for _, g := range groups {
			s := format.Spec{Format: f, Group: g}
			add(matMulKernel(kernel, s, 0, 1, dots))
			for _, t := range tiles {
				if isFloat(f) {
					add(matMulKernel(kernel, s, 1, int(t), dots))
				}
				add(matMulKernel(kernel, s, 2, int(t), dots))
			}
		}
	}
	return all
}
