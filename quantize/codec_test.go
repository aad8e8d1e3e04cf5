package quantize

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
)

func plainSpec(id format.ID, rows, cols int) format.Spec {
	return format.Spec{Format: id, Rows: rows, Cols: cols}
}

func groupedSpec(rows, cols, gs int) format.Spec {
	return format.Spec{Format: format.Int4Grouped, Rows: rows, Cols: cols, Group: gs}
}

// specs is every format that has a codec at one shape; grouped in every size.
func specs(rows, cols int) (all []format.Spec) {
	for _, c := range Codecs() {
		if c.ID != format.Int4Grouped {
			all = append(all, plainSpec(c.ID, rows, cols))
			continue
		}
		for _, gs := range format.GroupSizes {
			all = append(all, groupedSpec(rows, cols, gs))
		}
	}
	return all
}

func packed(s format.Spec) bool { return s.Format.Info().Packed }

// encodeAll is a fresh matrix holding w [Rows, Cols].
func encodeAll(t testing.TB, s format.Spec, w []float32) Matrix {
	t.Helper()
	c, err := CodecFor(s.Format)
	if err != nil {
		t.Fatal(err)
	}
	m := NewMatrix(s)
	c.Encode(m, 0, s.Rows, w)
	return m
}

func decodeAll(t testing.TB, m Matrix) []float32 {
	t.Helper()
	c, err := CodecFor(m.Format)
	if err != nil {
		t.Fatal(err)
	}
	w := make([]float32, m.Rows*m.Cols)
	for r := range m.Rows {
		c.Decode(m, r, w[r*m.Cols:(r+1)*m.Cols])
	}
	return w
}

func scaleBits(s ...uint32) []float32 {
	f := make([]float32, len(s))
	for i, b := range s {
		f[i] = math.Float32frombits(b)
	}
	return f
}

func zeros(n int) []float32 { return make([]float32, n) }

func ramp8() []float32 {
	w := make([]float32, 64)
	for k := range w {
		w[k] = float32(k%8-4) / 4
	}
	return w
}

// weights is rows of normal values whose size differs from row to row.
func weights(seed uint64, rows, cols int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := make([]float32, rows*cols)
	for r := range rows {
		size := math.Exp2(float64(rng.IntN(40) - 30))
		for i := range cols {
			w[r*cols+i] = float32(rng.NormFloat64() * size)
		}
	}
	return w
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// The worked examples of docs/container.md.
func TestWorkedExamples(t *testing.T) {
	for _, tc := range []struct {
		spec   format.Spec
		w      []float32
		bytes  string
		scales []float32
	}{
		{plainSpec(format.Int8Row, 1, 4), []float32{.5, -1, .25, 0}, "40812000", scaleBits(0x3c010204)},
		{plainSpec(format.Int4Row, 1, 5), []float32{.7, -.3, .1, -.7, .2}, "5f190a", scaleBits(0x3dcccccd)},
		{plainSpec(format.Int2Row, 1, 8), []float32{1, -1, .4, -.6, .5, -.5, 0, -2}, "aa6a", []float32{2}},
		{groupedSpec(1, 32, 16), slices.Concat([]float32{.7, -.35}, zeros(14), []float32{.07, -.02}, zeros(14)),
			"4f" + strings.Repeat("88", 7) + "6f" + strings.Repeat("88", 7), []float32{.1, .01}},
		{plainSpec(format.Int3G64, 1, 64), ramp8(), strings.Repeat("e9a4", 8) + strings.Repeat("f0", 8), []float32{.33333334}},
	} {
		m := encodeAll(t, tc.spec, tc.w)
		if got := hex.EncodeToString(m.W); got != tc.bytes {
			t.Errorf("%v: bytes %s, want %s", tc.spec, got, tc.bytes)
		}
		if !sameBits(m.S, tc.scales) {
			t.Errorf("%v: scales %v, want %v", tc.spec, m.S, tc.scales)
		}
	}
}

// Every format that can be computed with has a codec, the others are refused.
func TestCodecForEveryFormat(t *testing.T) {
	for _, in := range format.Formats() {
		c, err := CodecFor(in.ID)
		switch {
		case in.Write && (err != nil || c.ID != in.ID || c.Encode == nil || c.Decode == nil):
			t.Errorf("%s: %v", in.Name, err)
		case !in.Write && (!errors.Is(err, format.ErrUnsupported) || !strings.Contains(err.Error(), in.Name)):
			t.Errorf("%s: %v, want it named and unsupported", in.Name, err)
		}
	}
	if _, err := CodecFor(200); !errors.Is(err, format.ErrUnsupported) {
		t.Errorf("an unknown format: %v", err)
	}
}

// At 1.5·2²³ a float32 addition rounds to the nearest even integer: every
// multiple of 1/16 and its neighbours in the range of the codes and beyond.
func TestRintIsRoundHalfToEven(t *testing.T) {
	check := func(x float32) {
		if got, want := rint(x), int32(math.RoundToEven(float64(x))); got != want {
			t.Fatalf("rint(%v) = %d, want %d", x, got, want)
		}
	}
	for i := -16 * 300; i <= 16*300; i++ {
		x := float32(i) / 16
		check(x)
		check(math.Nextafter32(x, 1e9))
		check(math.Nextafter32(x, -1e9))
	}
	for _, x := range []float32{1e-45, -1e-45, 1 << 22, -1 << 22, 1<<22 - .5, -1<<22 + .5} {
		check(x)
	}
}

// The quotient never leaves the range of the codes, so nothing is clipped:
// the largest weight of a block, whatever its bits, becomes ±qmax.
func TestLargestWeightTakesTheLargestCode(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for range 200_000 {
		x := math.Float32frombits(rng.Uint32()&0x7fffffff | 1)
		if x != x || math.IsInf(float64(x), 0) {
			continue
		}
		for _, qmax := range []float32{1, 3, 7, 127} {
			s := absmaxScale([]float32{0, -x}, qmax)
			if got := rint(-x / s); s > scaleFloor && got != -int32(qmax) || got < -int32(qmax) || got > 0 {
				t.Fatalf("%v at qmax %v: code %d, scale %v", -x, qmax, got, s)
			}
		}
	}
}

func TestCodecsAgreeWithTheTable(t *testing.T) {
	for _, shape := range [][2]int{{1, 1}, {3, 2}, {3, 5}, {2, 63}, {2, 64}, {2, 65}, {3, 100}, {130, 200}, {2, 576}, {257, 129}} {
		w := weights(uint64(shape[0]*1000+shape[1]), shape[0], shape[1])
		for _, s := range specs(shape[0], shape[1]) {
			if !packed(s) {
				continue
			}
			m, want := encodeAll(t, s, w), naiveEncode(s, w)
			if !bytes.Equal(m.W, want.W) || !sameBits(m.S, want.S) {
				t.Errorf("%v: the bytes differ from those of the table", s)
			}
			for i, x := range decodeAll(t, m) {
				if y := naiveDecode(m, i/s.Cols, i%s.Cols); math.Float32bits(x) != math.Float32bits(y) {
					t.Fatalf("%v: W[%d,%d] = %v, want %v", s, i/s.Cols, i%s.Cols, x, y)
				}
			}
		}
	}
}

// Any codes and scales decode as the table says, also those that absmax never writes.
func TestEveryCodeDecodes(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 0))
	for _, s := range specs(3, 200) {
		if !packed(s) {
			continue
		}
		m := NewMatrix(s)
		for i := range m.W {
			m.W[i] = byte(rng.Uint32())
		}
		for i := range m.S {
			m.S[i] = float32(rng.NormFloat64()) // a negative scale is legal
		}
		for i, x := range decodeAll(t, m) {
			y := naiveDecode(m, i/s.Cols, i%s.Cols)
			if math.Float32bits(x) != math.Float32bits(y) && (x == x || y == y) {
				t.Fatalf("%v: W[%d,%d] = %v, want %v", s, i/s.Cols, i%s.Cols, x, y)
			}
		}
	}
}

// Rows may be encoded in any pieces (FP8 in whole blocks).
func TestPiecesGiveTheSameBytes(t *testing.T) {
	const rows, cols = 300, 70
	w := weights(3, rows, cols)
	for _, s := range specs(rows, cols) {
		whole, pieces := encodeAll(t, s, w), NewMatrix(s)
		c, _ := CodecFor(s.Format)
		step := max(1, s.Format.Info().BlockRows)
		for row := 0; row < rows; row += step {
			n := min(step, rows-row)
			c.Encode(pieces, row, n, w[row*cols:(row+n)*cols])
		}
		if !bytes.Equal(whole.W, pieces.W) || !sameBits(whole.S, pieces.S) {
			t.Errorf("%v: the pieces differ from the whole", s)
		}
	}
}

func TestEmptyMatrices(t *testing.T) {
	for _, shape := range [][2]int{{0, 0}, {0, 8}, {3, 0}} {
		for _, s := range specs(shape[0], shape[1]) {
			m := encodeAll(t, s, nil)
			if got := decodeAll(t, m); len(got) != 0 || len(m.W) != 0 {
				t.Errorf("%v: %d bytes", s, len(m.W))
			}
		}
	}
}

// An all-zero or −0.0 block divided by zero.
func TestB3ZeroBlock(t *testing.T) {
	w := weights(4, 3, 64)
	negative := math.Float32frombits(1 << 31)
	for i := range 64 {
		w[64+i], w[128+i] = 0, negative
	}
	zero := map[format.ID]string{
		format.Int8Row:     strings.Repeat("00", 64),
		format.Int4Row:     strings.Repeat("88", 32),
		format.Int4Grouped: strings.Repeat("88", 32),
		format.Int2Row:     strings.Repeat("aa", 16),
		format.Int3G64:     strings.Repeat("00", 16) + strings.Repeat("ff", 8),
	}
	for _, s := range specs(3, 64) {
		m := encodeAll(t, s, w)
		for row := 1; row < 3; row++ {
			code := hex.EncodeToString(m.W[row*s.RowBytes() : (row+1)*s.RowBytes()])
			if want, ok := zero[s.Format]; ok && code != want {
				t.Errorf("%v: row %d is %s, want %s", s, row, code, want)
			}
		}
		for i, x := range decodeAll(t, m)[64:] {
			if x != 0 {
				t.Errorf("%v: zero %d decodes to %v", s, i, x)
			}
		}
		for i, x := range m.S {
			if !(x >= scaleFloor) {
				t.Errorf("%v: scale %d is %v", s, i, x)
			}
		}
	}
	for _, first := range [][]float32{zeros(128 * 128), slices.Repeat([]float32{negative}, 128*128)} {
		m := encodeAll(t, plainSpec(format.FP8, 128, 128), first)
		if m.S[0] != scaleFloor || decodeAll(t, m)[77] != 0 {
			t.Errorf("fp8: scale %v, value %v", m.S[0], decodeAll(t, m)[77])
		}
	}
}

// A tiny row must not make a scale of 0; the floor swallows it.
func TestB4TinyRowsTakeTheScaleFloor(t *testing.T) {
	w := slices.Repeat([]float32{1e-9, -1e-9}, 32)
	for _, s := range specs(1, 64) {
		if !packed(s) || s.Format == format.FP8 {
			continue
		}
		m := encodeAll(t, s, w)
		for i, x := range m.S {
			if x != scaleFloor {
				t.Errorf("%v: scale %d is %v, want %v", s, i, x, scaleFloor)
			}
		}
		for i, x := range decodeAll(t, m) {
			if x != 0 {
				t.Fatalf("%v: value %d is %v, want 0", s, i, x)
			}
		}
	}
}

// A missing +8 zeroed all negative weights, and a nibble index inside the
// group aliased most groups: |w−w'| ≤ s/2 for every element.
func TestB18RoundTripOfARamp(t *testing.T) {
	w := make([]float32, 256)
	for i := range w {
		w[i] = float32(i)/127.5 - 1
	}
	for _, s := range specs(2, 128) {
		if packed(s) && s.Format != format.FP8 {
			checkRoundTrip(t, s, w)
		}
	}
}

// checkRoundTrip wants |w−w'| ≤ s/2 with the rounding of one quotient and one product.
func checkRoundTrip(t *testing.T, s format.Spec, w []float32) {
	t.Helper()
	m := encodeAll(t, s, w)
	for i, x := range decodeAll(t, m) {
		scale := float64(m.S[naiveScaleIndex(s, i/s.Cols, i%s.Cols)])
		slack := math.Abs(float64(w[i]))*math.Ldexp(1, -22) + math.Ldexp(1, -149)
		if diff := math.Abs(float64(x) - float64(w[i])); !(diff <= scale/2+slack) {
			t.Fatalf("%v: W[%d,%d] = %v came back as %v, scale %v", s, i/s.Cols, i%s.Cols, w[i], x, scale)
		}
	}
}

// Odd rows: the stride is ⌈I/2⌉ and the pad nibble is neither written nor read.
func TestC1OddColumns(t *testing.T) {
	for _, shape := range [][2]int{{3, 5}, {1, 1}, {7, 7}} {
		rows, cols := shape[0], shape[1]
		w := weights(5, rows, cols)
		for _, s := range []format.Spec{plainSpec(format.Int4Row, rows, cols), groupedSpec(rows, cols, 16)} {
			m := encodeAll(t, s, w)
			if len(m.W) != rows*((cols+1)/2) {
				t.Fatalf("%v: %d bytes", s, len(m.W))
			}
			before := decodeAll(t, m)
			for r := range rows {
				last := &m.W[(r+1)*s.RowBytes()-1]
				if *last>>4 != 0 {
					t.Errorf("%v: row %d ends with %#02x", s, r, *last)
				}
				*last |= 0xf0
			}
			if !sameBits(before, decodeAll(t, m)) {
				t.Errorf("%v: the pad nibble changes the weights", s)
			}
			checkRoundTrip(t, s, w)
		}
	}
}

func TestPadBits(t *testing.T) {
	for cols := 1; cols <= 65; cols++ {
		w := slices.Repeat([]float32{-1}, cols)
		two := encodeAll(t, plainSpec(format.Int2Row, 1, cols), w).W
		if used := (cols-1)%4*2 + 2; two[len(two)-1]>>used != 0 {
			t.Errorf("int2 of %d columns ends with %#02x", cols, two[len(two)-1])
		}
		three := encodeAll(t, plainSpec(format.Int3G64, 1, cols), w).W
		for i := cols; i%64 != 0; i++ {
			code := 0
			for k, at := range naiveBits(format.Int3G64, i) {
				code |= int(three[at.byte]) >> at.bit & 1 << k
			}
			if code != 4 {
				t.Fatalf("int3 of %d columns has pad code %d in column %d", cols, code, i)
			}
		}
	}
}

// Columns that are no multiple of the group: the last scale is made of its own
// columns only.
func TestC2LastGroupIsPartial(t *testing.T) {
	for _, tc := range []struct{ rows, cols, groups int }{{8, 100, 2}, {4, 4304, 68}} {
		w := make([]float32, tc.rows*tc.cols)
		for i := range w {
			w[i] = 70
			if i%tc.cols >= (tc.groups-1)*64 {
				w[i] = 0.7
			}
		}
		s := groupedSpec(tc.rows, tc.cols, 64)
		m := encodeAll(t, s, w)
		if len(m.S) != tc.rows*tc.groups {
			t.Fatalf("%v: %d scales, want %d", s, len(m.S), tc.rows*tc.groups)
		}
		for i, x := range m.S {
			want := float32(10)
			if i%tc.groups == tc.groups-1 {
				want = 0.1
			}
			if x != want {
				t.Errorf("%v: scale %d is %v, want %v", s, i, x, want)
			}
		}
		checkRoundTrip(t, s, weights(6, tc.rows, tc.cols))
	}
}

// A group wider than the row: one scale a row, the bytes of int4-row.
func TestC6GroupWiderThanTheRow(t *testing.T) {
	w := weights(7, 4, 32)
	m, row := encodeAll(t, groupedSpec(4, 32, 128), w), encodeAll(t, plainSpec(format.Int4Row, 4, 32), w)
	if len(m.S) != 4 || !sameBits(m.S, row.S) || !bytes.Equal(m.W, row.W) {
		t.Errorf("%d scales %v, bytes %x; want those of int4-row: %v, %x", len(m.S), m.S, m.W, row.S, row.W)
	}
}

// A non-finite weight that slipped through shows in the scale.
func TestB5NonFiniteWeightsMakeNonFiniteScales(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for _, s := range specs(4, 64) {
			w := weights(8, 4, 64)
			w[2*64+5] = float32(bad)
			m := encodeAll(t, s, w)
			if !packed(s) {
				continue
			}
			if x := float64(m.S[naiveScaleIndex(s, 2, 5)]); !math.IsNaN(x) && !math.IsInf(x, 1) {
				t.Errorf("%v: %v makes the scale %v", s, bad, x)
			}
		}
	}
}

func FuzzCodecs(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 0, 0, 0x80, 0x3f}, uint8(2), uint8(3))
	f.Add(bytes.Repeat([]byte{0, 0, 0x20, 0x41}, 130), uint8(65), uint8(7))
	f.Add([]byte{0, 0, 0xc0, 0x7f, 0, 0, 0x80, 0xff}, uint8(2), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, cols, pick uint8) {
		c := int(cols) + 1
		rows := len(data) / 4 / c
		w, finite := make([]float32, rows*c), true
		BytesToF32(w, data)
		for _, x := range w {
			finite = finite && x-x == 0
		}
		all := specs(rows, c)
		s := all[int(pick)%len(all)]
		m := encodeAll(t, s, w)
		back := decodeAll(t, m)
		if !packed(s) || !finite {
			return
		}
		want := naiveEncode(s, w)
		if !bytes.Equal(m.W, want.W) || !sameBits(m.S, want.S) {
			t.Fatalf("%v: bytes %x %v, want %x %v", s, m.W, m.S, want.W, want.S)
		}
		for i, x := range back {
			if y := naiveDecode(m, i/c, i%c); math.Float32bits(x) != math.Float32bits(y) {
				t.Fatalf("%v: value %d is %v, want %v", s, i, x, y)
			}
		}
		if s.Format != format.FP8 {
			checkRoundTrip(t, s, w)
		}
	})
}

func BenchmarkCodecs(b *testing.B) {
	const rows, cols = 128, 2048
	w := weights(9, rows, cols)
	for _, s := range []format.Spec{
		plainSpec(format.F32, rows, cols), plainSpec(format.BF16, rows, cols), plainSpec(format.F16, rows, cols), plainSpec(format.FP8, rows, cols),
		plainSpec(format.Int8Row, rows, cols), plainSpec(format.Int4Row, rows, cols), groupedSpec(rows, cols, 64), groupedSpec(rows, cols, 128),
		plainSpec(format.Int3G64, rows, cols), plainSpec(format.Int2Row, rows, cols),
	} {
		c, _ := CodecFor(s.Format)
		m, row := NewMatrix(s), make([]float32, cols)
		b.Run("encode/"+s.Name(), func(b *testing.B) {
			b.SetBytes(4 * rows * cols)
			b.ReportAllocs()
			for b.Loop() {
				c.Encode(m, 0, rows, w)
			}
		})
		b.Run("decode/"+s.Name(), func(b *testing.B) {
			b.SetBytes(4 * cols)
			b.ReportAllocs()
			for b.Loop() {
				c.Decode(m, 5, row)
			}
		})
	}
}
