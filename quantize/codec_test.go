package quantize

import (
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"testing"

	"hawkmoth/format"
)

// encodeAll is a fresh matrix holding w [rows, cols].
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

func join(parts ...[]float32) []float32 {
	var all []float32
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func ramp8() []float32 {
	w := make([]float32, 64)
	for k := range w {
		w[k] = float32(k%8-4) / 4
	}
	return w
}

// The worked examples of docs/container.md.
func TestWorkedExamples(t *testing.T) {
	for _, tc := range []struct {
		spec   format.Spec
		w      []float32
		bytes  string
		scales []float32
	}{
		{format.Spec{Format: format.Int8Row, Rows: 1, Cols: 4}, []float32{.5, -1, .25, 0}, "40812000", scaleBits(0x3c010204)},
		{format.Spec{Format: format.Int4Row, Rows: 1, Cols: 5}, []float32{.7, -.3, .1, -.7, .2}, "5f190a", scaleBits(0x3dcccccd)},
		{format.Spec{Format: format.Int2Row, Rows: 1, Cols: 8}, []float32{1, -1, .4, -.6, .5, -.5, 0, -2}, "aa6a", []float32{2}},
		{format.Spec{Format: format.Int4Grouped, Rows: 1, Cols: 32, Group: 16},
			join([]float32{.7, -.35}, zeros(14), []float32{.07, -.02}, zeros(14)),
			"4f" + strings.Repeat("88", 7) + "6f" + strings.Repeat("88", 7), []float32{.1, .01}},
		{format.Spec{Format: format.Int3G64, Rows: 1, Cols: 64}, ramp8(), strings.Repeat("e9a4", 8) + strings.Repeat("f0", 8), []float32{.33333334}},
	} {
		m := encodeAll(t, tc.spec, tc.w)
		if got := hex.EncodeToString(m.W); got != tc.bytes {
			t.Errorf("%v: bytes %s, want %s", tc.spec, got, tc.bytes)
		}
		if fmt.Sprint(m.S) != fmt.Sprint(tc.scales) {
			t.Errorf("%v: scales %v, want %v", tc.spec, m.S, tc.scales)
		}
	}
}
