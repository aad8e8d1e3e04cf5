package quantize

import (
	"math"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
)

// 0x7f and 0xff were read as ±480, and a decoder had all subnormals wrong.
func TestB6FP8Table(t *testing.T) {
	codes, got := make([]byte, 256), make([]float32, 256)
	for c := range codes {
		codes[c] = byte(c)
	}
	FP8ToF32(got, codes)
	for c, x := range got {
		want := naiveFP8(byte(c))
		if math.IsNaN(want) != (x != x) || !math.IsNaN(want) && (float64(x) != want || math.Signbit(float64(x)) != math.Signbit(want)) {
			t.Errorf("%#02x: %v, want %v", c, x, want)
		}
	}
	finite := slices.DeleteFunc(slices.Clone(got), func(x float32) bool { return x != x })
	if len(finite) != 254 || slices.Max(finite) != 448 || slices.Min(finite) != -448 {
		t.Errorf("%d finite codes in [%v, %v], want 254 in [-448, 448]", len(finite), slices.Min(finite), slices.Max(finite))
	}
	if got[1] != 1.0/512 || math.Float32bits(got[0x80]) != 1<<31 {
		t.Errorf("subnormal step %v, 0x80 is %v", got[1], got[0x80])
	}
}

func TestFP8CodesRoundToNearestEven(t *testing.T) {
	check := func(x float32) {
		t.Helper()
		if got, want := fp8Code(x), naiveFP8Code(float64(x)); got != want && x == x {
			t.Errorf("%v becomes %#02x, want %#02x", x, got, want)
		}
	}
	for c := range byte(0x7f) {
		lo := float32(naiveFP8(c))
		hi := float32(512)
		if c < 0x7e {
			hi = float32(naiveFP8(c + 1))
		}
		middle := (lo + hi) / 2
		for _, x := range []float32{lo, middle, math.Nextafter32(middle, 0), math.Nextafter32(middle, 512)} {
			check(x)
			check(-x)
		}
	}
	for _, x := range []float32{1e-45, 1e-8, 448, 464, 480, 1e30, float32(math.Inf(1)), float32(math.Inf(-1))} {
		check(x)
	}
	for _, b := range []uint32{0x7f800001, 0xffc00000} {
		if got := fp8Code(math.Float32frombits(b)); got&0x7f != 0x7f {
			t.Errorf("NaN becomes %#02x", got)
		}
	}
}

// The oracle holds some matrices of the checkpoint as its own tools decode them.
func TestFP8DecodesLikeTheOracle(t *testing.T) {
	source := readTensors(t, fixtures.Path(t, "glm_moe_dsa_fp8/model.safetensors"))
	seen := 0
	for name, want := range readTensors(t, fixtures.Path(t, "glm_moe_dsa_fp8.oracle.safetensors")) {
		name, ok := strings.CutPrefix(name, "dequant.")
		if !ok {
			continue
		}
		seen++
		got, exact := source.floats(t, name), want.floats(t)
		if len(got) != len(exact) {
			t.Fatalf("%s: %d values, want %d", name, len(got), len(exact))
		}
		for i := range exact {
			if math.Float32bits(got[i]) != math.Float32bits(exact[i]) {
				t.Fatalf("%s: value %d is %v, want %v", name, i, got[i], exact[i])
			}
		}
	}
	if seen == 0 {
		t.Fatal("the oracle has no dequant tensors")
	}
}

func FuzzFP8(f *testing.F) {
	for _, x := range []float32{0, 1, -448, 1e-3, 0.0146484375, 460} {
		f.Add(math.Float32bits(x), byte(0x7f), uint32(0x3f800000))
	}
	f.Fuzz(func(t *testing.T, bits uint32, code byte, scale uint32) {
		x := math.Float32frombits(bits)
		if got, want := fp8Code(x), naiveFP8Code(float64(x)); x == x && got != want {
			t.Errorf("%v becomes %#02x, want %#02x", x, got, want)
		}
		var got [1]float32
		m := Matrix{Spec: format.Spec{Format: format.FP8, Rows: 1, Cols: 1}, W: []byte{code}, S: []float32{math.Float32frombits(scale)}}
		decodeFP8(m, 0, got[:])
		if want := naiveDecode(m, 0, 0); math.Float32bits(got[0]) != math.Float32bits(want) && want == want {
			t.Errorf("%#02x at scale %v is %v, want %v", code, m.S[0], got[0], want)
		}
		if w := fp8Values[code]; w == w && fp8Code(w) != code {
			t.Errorf("%#02x does not survive a round trip", code)
		}
	})
}
