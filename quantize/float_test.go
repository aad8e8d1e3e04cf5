package quantize

import (
	"encoding/binary"
	"math"
	"testing"
)

type half struct {
	name   string
	eb, mb int
	widen  func([]float32, []byte)
	narrow func([]byte, []float32)
}

var halves = []half{
	{"bf16", 8, 7, BF16ToF32, F32ToBF16},
	{"f16", 5, 10, F16ToF32, F32ToF16},
}

func (h half) wide(c uint16) float32 {
	var x [1]float32
	h.widen(x[:], le16(c))
	return x[0]
}

func (h half) code(x float32) uint16 {
	var b [2]byte
	h.narrow(b[:], []float32{x})
	return binary.LittleEndian.Uint16(b[:])
}

// Subnormals flushed to zero, truncation instead of rounding, NaN become Inf.
func TestB15HalfFloatsWidenExactly(t *testing.T) {
	for _, h := range halves {
		for c := range 1 << 16 {
			got, want := h.wide(uint16(c)), naiveHalf(uint16(c), h.eb, h.mb)
			switch {
			case math.IsNaN(want):
				if got == got {
					t.Errorf("%s %#04x: %v, want NaN", h.name, c, got)
				}
				if back := h.code(got); naiveHalf(back, h.eb, h.mb) == naiveHalf(back, h.eb, h.mb) {
					t.Errorf("%s %#04x: NaN came back as %#04x", h.name, c, back)
				}
			case math.Float32bits(got) != math.Float32bits(float32(want)) || float64(got) != want:
				t.Errorf("%s %#04x: %v, want %v", h.name, c, got, want)
			case h.code(got) != uint16(c):
				t.Errorf("%s %#04x: came back as %#04x", h.name, c, h.code(got))
			}
		}
	}
}

// Between two neighbours the nearer wins, at the middle the even one; so does
// the middle between the largest finite value and the next power of two.
func TestB15HalfFloatsRoundToNearestEven(t *testing.T) {
	for _, h := range halves {
		inf := uint16(1<<h.eb-1) << h.mb
		for c := range inf {
			lo, hi := naiveHalf(c, h.eb, h.mb), naiveHalf(c+1, h.eb, h.mb)
			if c+1 == inf {
				hi = math.Ldexp(1, 1<<(h.eb-1))
			}
			middle, even := float32((lo+hi)/2), c+c%2
			if float64(middle) != (lo+hi)/2 {
				t.Fatalf("%s %#04x: the middle is not a float32", h.name, c)
			}
			for _, tc := range []struct {
				x    float32
				want uint16
			}{
				{math.Nextafter32(middle, 0), c},
				{middle, even},
				{math.Nextafter32(middle, float32(math.Inf(1))), c + 1},
			} {
				if got := h.code(tc.x); got != tc.want {
					t.Errorf("%s: %v becomes %#04x, want %#04x", h.name, tc.x, got, tc.want)
				}
				if got := h.code(-tc.x); got != tc.want|0x8000 {
					t.Errorf("%s: %v becomes %#04x, want %#04x", h.name, -tc.x, got, tc.want|0x8000)
				}
			}
		}
	}
}

// A NaN whose payload lies in the bits that narrowing drops.
func TestB15NarrowingKeepsNaN(t *testing.T) {
	for _, h := range halves {
		for _, b := range []uint32{0x7f800001, 0xff800001, 0x7fc00000, 0x7fffffff, 0xffffffff} {
			c := h.code(math.Float32frombits(b))
			if x := naiveHalf(c, h.eb, h.mb); x == x || uint32(c>>15) != b>>31 {
				t.Errorf("%s: NaN %#08x becomes %#04x", h.name, b, c)
			}
		}
		for sign, x := range []float64{math.Inf(1), math.Inf(-1)} {
			if got := naiveHalf(h.code(float32(x)), h.eb, h.mb); got != x {
				t.Errorf("%s: infinity %d becomes %v", h.name, sign, got)
			}
		}
	}
}

func TestF32BytesKeepEveryBit(t *testing.T) {
	for _, b := range []uint32{0, 1 << 31, 1, 0x7f800001, 0xffc00123, 0x3f800000} {
		var buf [4]byte
		F32ToBytes(buf[:], []float32{math.Float32frombits(b)})
		var x [1]float32
		BytesToF32(x[:], buf[:])
		if got := math.Float32bits(x[0]); got != b || binary.LittleEndian.Uint32(buf[:]) != b {
			t.Errorf("%#08x came back as %#08x", b, got)
		}
	}
}
