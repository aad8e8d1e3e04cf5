package quantize

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"hawkmoth/format"
	"hawkmoth/internal/guard"
)

// plainly runs f without the vector functions.
func plainly(f func()) {
	defer func(had bool) { haveVectors = had }(haveVectors)
	haveVectors = false
	f()
}

// atTheEnd is a copy of s that ends where no memory is mapped.
func atTheEnd[T any](t testing.TB, s []T) []T {
	if len(s) == 0 {
		return nil
	}
	size := len(s) * int(unsafe.Sizeof(s[0]))
	out := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(guard.Bytes(t, size)))), len(s))
	copy(out, s)
	return out
}

var vectorLengths = []int{1, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 160, 192, 255, 256, 1000}

func TestVectorsEncodeAndDecodeTheSameBytes(t *testing.T) {
	if !haveVectors {
		t.Skip("SKIPPED: no vector functions here")
	}
	r := rand.New(rand.NewPCG(1, 71))
	for _, c := range codecs {
		for _, cols := range vectorLengths {
			for _, group := range groupsOf(c.ID) {
				spec := format.Spec{Format: c.ID, Rows: 3, Cols: cols, Group: group}
				w := make([]float32, 3*cols)
				for i := range w {
					switch w[i] = float32(r.NormFloat64()); r.IntN(9) {
					case 0: // a tie of the scale that the last value sets
						w[i] = float32(r.IntN(255)-127) / 2
					case 1:
						w[i] = float32(math.Copysign(0, float64(r.IntN(2)-1)))
					case 2:
						w[i] *= 1e-6
					}
				}
				w[r.IntN(cols)] = 127
				w = atTheEnd(t, w)
				name := fmt.Sprintf("%s of %d columns, seed 1", spec.Name(), cols)
				got, want := NewMatrix(spec), NewMatrix(spec)
				got.W = atTheEnd(t, got.W)
				c.Encode(got, 0, 3, w)
				plainly(func() { c.Encode(want, 0, 3, w) })
				if !bytes.Equal(got.W, want.W) {
					t.Errorf("%s: other codes", name)
				}
				for i := range want.S {
					if got.S[i] != want.S[i] {
						t.Errorf("%s: scale %d = %v, want %v", name, i, got.S[i], want.S[i])
					}
				}
				a, b := atTheEnd(t, make([]float32, cols)), make([]float32, cols)
				c.Decode(got, 2, a)
				plainly(func() { c.Decode(want, 2, b) })
				sameFloats(t, name+" decoded", a, b)
			}
		}
	}
}

func groupsOf(id format.ID) []int {
	if id == format.Int4Grouped {
		return []int{16, 32, 48, 64, 128}
	}
	return []int{0}
}

// sameFloats compares bits, of NaN only that it is one.
func sameFloats(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if g, w := math.Float32bits(got[i]), math.Float32bits(want[i]); g != w && (got[i] == got[i] || want[i] == want[i]) {
			t.Fatalf("%s: [%d] = %#x, want %#x", what, i, g, w)
		}
	}
}

func TestVectorsWidenEveryCode(t *testing.T) {
	all := make([]byte, 2<<16)
	for c := range 1 << 16 {
		binary.LittleEndian.PutUint16(all[2*c:], uint16(c))
	}
	eight := make([]byte, 256)
	for c := range eight {
		eight[c] = byte(c)
	}
	for _, c := range []struct {
		name  string
		widen func([]float32, []byte)
		codes []byte
		n     int
	}{
		{"bf16", BF16ToF32, all, 1 << 16},
		{"f16", F16ToF32, all, 1 << 16},
		{"fp8", FP8ToF32, eight, 256},
		{"fp8 times 0.37", func(dst []float32, src []byte) { fp8Scaled(dst, src, []float32{0.37, 0.37}) }, eight, 256},
	} {
		got, want := make([]float32, c.n), make([]float32, c.n)
		c.widen(got, c.codes)
		plainly(func() { c.widen(want, c.codes) })
		sameFloats(t, c.name, got, want)
	}
}

// Every kind of float32 there is: random bits, and the neighbours of all that
// is halfway between two values of a narrow format.
func TestVectorsNarrowEveryKind(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 72))
	var w []float32
	for range 1 << 16 {
		w = append(w, math.Float32frombits(r.Uint32()))
		for _, bits := range []int{12, 13, 15, 16, 19, 20} {
			x := r.Uint32()&^(1<<bits-1) | 1<<(bits-1)
			w = append(w, math.Float32frombits(x-1), math.Float32frombits(x), math.Float32frombits(x+1))
		}
		w = append(w, float32(r.NormFloat64())*float32(math.Exp2(float64(r.IntN(40)-30))))
	}
	w = append(w, 0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 65504, 65519, 65520, 448, 464, 465)
	w = w[:len(w)&^31]
	for _, c := range []struct {
		name   string
		narrow func([]byte, []float32)
		size   int
		nan    func(code []byte) bool
	}{
		{"bf16", F32ToBF16, 2, func(c []byte) bool { return binary.LittleEndian.Uint16(c)&0x7fff > 0x7f80 }},
		{"f16", F32ToF16, 2, func(c []byte) bool { return binary.LittleEndian.Uint16(c)&0x7fff > 0x7c00 }},
		{"fp8", func(dst []byte, w []float32) {
			for i := vector(opRoundFP8, len(w), dst, w, 1, 0); i < len(w); i++ {
				dst[i] = fp8Code(w[i])
			}
		}, 1, func(c []byte) bool { return c[0]&0x7f == 0x7f }},
	} {
		got, want := make([]byte, len(w)*c.size), make([]byte, len(w)*c.size)
		c.narrow(got, w)
		plainly(func() { c.narrow(want, w) })
		for i := range w {
			g, e := got[i*c.size:][:c.size], want[i*c.size:][:c.size]
			if !bytes.Equal(g, e) && !(c.nan(g) && c.nan(e)) {
				t.Fatalf("%s of %#x = %x, want %x", c.name, math.Float32bits(w[i]), g, e)
			}
		}
	}
	if got, want := maxAbs(w[:len(w)-32]), float32(0); true {
		plainly(func() { want = maxAbs(w[:len(w)-32]) })
		if math.Float32bits(got) != math.Float32bits(want) {
			t.Errorf("maxAbs = %x, want %x", math.Float32bits(got), math.Float32bits(want))
		}
	}
}

func TestPackedBits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 73))
	for range 1000 {
		x := r.Uint64()
		var two, one uint64
		for k := range 8 {
			two |= x >> (8 * k) & 3 << (2 * k)
			one |= x >> (8 * k) & 1 << k
		}
		if pack2(x) != two || pack1(x) != one {
			t.Fatalf("pack2(%#x) = %#x, want %#x; pack1 %#x, want %#x", x, pack2(x), two, pack1(x), one)
		}
	}
}
