package quantize

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"hawkmoth/format"
)

// encoded is a healthy matrix in a format: random weights, none of them small.
func encoded(t *testing.T, s format.Spec) Matrix {
	t.Helper()
	c, err := CodecFor(s.Format)
	if err != nil {
		t.Fatal(err)
	}
	m := NewMatrix(s)
	rng := rand.New(rand.NewPCG(1, uint64(s.Format)))
	w := make([]float32, s.Rows*s.Cols)
	for i := range w {
		w[i] = (1 + rng.Float32()/2) * float32(1-2*rng.IntN(2))
	}
	c.Encode(m, 0, s.Rows, w)
	return m
}

func healthOf(t *testing.T, m Matrix) Health {
	t.Helper()
	h, err := CheckHealth(m)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// zeroBytes is the byte of codes that mean zero; int3 has none.
var zeroBytes = map[format.ID]byte{format.Int4Row: 0x88, format.Int4Grouped: 0x88, format.Int2Row: 0xaa}

// kill writes zeros into the columns [from, to) of a row.
func kill(m Matrix, row, from, to int) {
	in, n := m.Format.Info(), m.RowBytes()
	code := m.W[row*n:][in.RowBytes(from):in.RowBytes(to)]
	for i := range code {
		code[i] = zeroBytes[m.Format]
		if m.Format == format.Int3G64 && i%int3Bytes >= 16 {
			code[i] = 0xff
		}
	}
}

func TestHealthOfEveryFormat(t *testing.T) {
	const rows, cols = 130, 260
	bad := map[Defect]float32{NaNScale: float32(math.NaN()), InfScale: float32(math.Inf(-1)), ZeroScale: 0, HugeScale: 3e38}
	for _, in := range format.Formats() {
		spec := format.Spec{Format: in.ID, Rows: rows, Cols: cols}
		if in.ID == format.Int4Grouped {
			spec.Group = 64
		}
		t.Run(in.Name, func(t *testing.T) {
			if _, err := CodecFor(in.ID); err != nil {
				// Formats that are only read: zero bytes are legal codes.
				m := NewMatrix(spec)
				for i := range m.S {
					m.S[i] = 1
				}
				if h := healthOf(t, m); !h.Sound() || h.Rows != rows {
					t.Errorf("zero bytes: %+v", h)
				}
				m.S[0] = float32(math.NaN())
				if h := healthOf(t, m); h.Defects[NaNScale] != (Tally{1, 0, 0}) {
					t.Errorf("NaN scale: %+v", h)
				}
				return
			}
			block := max(spec.Group, in.BlockCols)
			if block == 0 {
				block = 64
			}
			groups := int64(rows * ((cols + block - 1) / block))
			h := healthOf(t, encoded(t, spec))
			if want := (Health{Rows: rows, Groups: groups}); h != want {
				t.Fatalf("healthy: %+v, want %+v", h, want)
			}
			t.Run("dead", func(t *testing.T) {
				m := encoded(t, spec)
				half := cols / 2 / block * block
				kill(m, 1, 0, cols&^3)
				if cols%4 != 0 {
					t.Fatal("cols must be a multiple of 4")
				}
				kill(m, 3, 0, half)
				kill(m, 129, half, cols)
				kill(m, 5, 0, block)
				inHalf, all := int64(half/block), int64((cols+block-1)/block)
				want := Health{Rows: rows, Groups: groups, DeadRows: 1, DeadHalves: 2, DeadGroups: all + inHalf + all - inHalf + 1}
				if half == block { // a dead group is a dead half
					want.DeadHalves++
				}
				if h := healthOf(t, m); h != want {
					t.Errorf("%+v, want %+v", h, want)
				}
			})
			for d, s := range bad {
				if !in.Packed {
					break
				}
				m := encoded(t, spec)
				last := len(m.S) - 1
				m.S[last] = s
				m.S[0] = -m.S[0]
				want := Health{Rows: rows, Groups: groups, NegativeScales: 1}
				want.Defects[d] = Tally{1, last / spec.ScaleCols() * in.BlockRows, last % spec.ScaleCols() * max(spec.Group, in.BlockCols)}
				if d == InfScale { // the one in the table is negative
					want.NegativeScales++
				}
				if h := healthOf(t, m); h != want {
					t.Errorf("%v: %+v, want %+v", d, h, want)
				}
			}
		})
	}
}

func TestB6HealthSeesEveryValueThatIsNotFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, id := range []format.ID{format.F32, format.BF16, format.F16} {
		spec := format.Spec{Format: id, Rows: 3, Cols: 70}
		for _, at := range []int{0, 1, 63, 64, 69, 70 + 5, 209} {
			m := encoded(t, spec)
			w := make([]float32, 70)
			row, col := at/70, at%70
			w[col] = nan
			w[69-col] = inf
			c, _ := CodecFor(id)
			c.Encode(m, row, 1, w)
			h := healthOf(t, m)
			if h.Defects[NaNWeight] != (Tally{1, row, col}) || h.Defects[InfWeight] != (Tally{1, row, 69 - col}) {
				t.Errorf("%v at %d: %+v", id, at, h.Defects)
			}
		}
	}
	m := NewMatrix(format.Spec{Format: format.FP8, Rows: 2, Cols: 128})
	for i := range m.W {
		m.W[i] = byte(i)
	}
	m.S[0] = 1
	if h := healthOf(t, m); h.Defects[NaNWeight] != (Tally{2, 0, 127}) || h.Defects[InfWeight].Count != 0 {
		t.Errorf("all FP8 codes: %+v", h.Defects)
	}
}

func TestB1HealthSeesRowsWithADeadHalf(t *testing.T) {
	w := make([]float32, 8*128)
	rng := rand.New(rand.NewPCG(2, 0))
	for i := range w {
		w[i] = 0.05 * float32(2*rng.Float64()-1)
		if i%128 >= 64 {
			w[i] *= 30
		}
	}
	for _, tt := range []struct {
		spec format.Spec
		want int64
	}{
		{format.Spec{Format: format.Int4Row, Rows: 8, Cols: 128}, 8},
		{format.Spec{Format: format.Int4Grouped, Rows: 8, Cols: 128, Group: 64}, 0},
		{format.Spec{Format: format.Int8Row, Rows: 8, Cols: 128}, 0},
	} {
		m := NewMatrix(tt.spec)
		c, _ := CodecFor(tt.spec.Format)
		c.Encode(m, 0, 8, w)
		if h := healthOf(t, m); h.DeadHalves != tt.want || h.DeadGroups != tt.want || !h.Sound() {
			t.Errorf("%v: %+v, want %d dead halves", tt.spec, h, tt.want)
		}
	}
}

func TestHealthSeesPadding(t *testing.T) {
	for _, tt := range []struct {
		id   format.ID
		cols int
		at   int // byte of the row
		bit  byte
		bad  bool
	}{
		{format.Int4Row, 5, 2, 0x10, true}, {format.Int4Row, 15, 7, 0x80, true}, {format.Int4Row, 5, 2, 0x01, false}, {format.Int4Row, 6, 2, 0x10, false},
		{format.Int4Grouped, 99, 49, 0x40, true}, {format.Int4Grouped, 99, 48, 0x40, false},
		{format.Int2Row, 5, 1, 0x04, true}, {format.Int2Row, 6, 1, 0x10, true}, {format.Int2Row, 7, 1, 0x40, true}, {format.Int2Row, 7, 1, 0x20, false}, {format.Int2Row, 8, 1, 0x80, false},
		{format.Int3G64, 100, 24 + 8, 0x80, false}, {format.Int3G64, 100, 24 + 9, 0x01, true}, {format.Int3G64, 100, 24 + 15, 0x80, true},
		{format.Int3G64, 100, 24 + 20, 0x10, true}, {format.Int3G64, 100, 24 + 20, 0x08, false}, {format.Int3G64, 100, 10, 0x08, false},
		{format.Int3G64, 96, 24 + 8, 0x01, true}, {format.Int3G64, 96, 24 + 7, 0x80, false}, {format.Int3G64, 60, 15, 0x01, true}, {format.Int3G64, 60, 14, 0x80, false}, {format.Int3G64, 60, 23, 0x08, false}, {format.Int3G64, 60, 23, 0x10, true},
	} {
		spec := format.Spec{Format: tt.id, Rows: 2, Cols: tt.cols}
		if tt.id == format.Int4Grouped {
			spec.Group = 64
		}
		m := encoded(t, spec)
		m.W[m.RowBytes()+tt.at] ^= tt.bit
		want := Tally{}
		if tt.bad {
			want = Tally{1, 1, tt.cols}
		}
		if h := healthOf(t, m); h.Defects[BadPad] != want {
			t.Errorf("%v byte %d bit %#x: %+v, want %+v", spec, tt.at, tt.bit, h.Defects[BadPad], want)
		}
	}
	// The padding of an odd row does not keep a dead group alive.
	m := NewMatrix(format.Spec{Format: format.Int4Row, Rows: 1, Cols: 5})
	copy(m.W, []byte{0x88, 0x88, 0x08})
	m.S[0] = 1
	if h := healthOf(t, m); h.DeadRows != 1 || h.DeadGroups != 1 {
		t.Errorf("odd dead row: %+v", h)
	}
}

func TestHealthOfParts(t *testing.T) {
	m := encoded(t, format.Spec{Format: format.FP8, Rows: 300, Cols: 200})
	m.W[260*200+7], m.W[140*200+9], m.S[5] = 0x7f, 0xff, 0
	kill(m, 299, 0, 128)
	whole := healthOf(t, m)
	var sum Health
	for _, lo := range []int{256, 0, 128} { // any order
		hi := min(lo+128, 300)
		part := Matrix{Spec: m.Spec, W: m.W[lo*200 : hi*200], S: m.S[lo/128*2 : (hi+127)/128*2]}
		part.Rows = hi - lo
		sum.Add(lo, healthOf(t, part))
	}
	if sum != whole || whole.Defects[NaNWeight] != (Tally{2, 140, 9}) || whole.Defects[ZeroScale] != (Tally{1, 256, 128}) {
		t.Errorf("parts %+v\nwhole %+v", sum, whole)
	}
}

func TestHealthRefusesWrongSizes(t *testing.T) {
	m := NewMatrix(format.Spec{Format: format.Int8Row, Rows: 2, Cols: 3})
	m.W = m.W[:5]
	if _, err := CheckHealth(m); !errors.Is(err, format.ErrCorrupt) {
		t.Errorf("short codes: %v", err)
	}
	if _, err := CheckHealth(Matrix{Spec: format.Spec{Format: 99}}); !errors.Is(err, format.ErrUnsupported) {
		t.Errorf("unknown format: %v", err)
	}
}

func BenchmarkHealth(b *testing.B) {
	for _, s := range []format.Spec{{Format: format.Int4Grouped, Rows: 256, Cols: 6144, Group: 64}, {Format: format.Int8Row, Rows: 256, Cols: 6144}, {Format: format.BF16, Rows: 256, Cols: 6144}, {Format: format.FP8, Rows: 256, Cols: 6144}} {
		b.Run(s.Name(), func(b *testing.B) {
			m := NewMatrix(s)
			for i := range m.S {
				m.S[i] = 1
			}
			b.SetBytes(s.Bytes() + s.ScaleBytes())
			for b.Loop() {
				if _, err := CheckHealth(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
