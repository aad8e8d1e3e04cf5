package quantize

import (
	"math/rand/v2"
	"testing"

	"hawkmoth/format"
)

// TestFitGroupsFindsTheGroupSize encodes rows in every group size and asks the
// codes under which of the sizes with equal scale counts it was.
func TestFitGroupsFindsTheGroupSize(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		cols, group int
		sizes       []int
	}{{96, 64, []int{48, 64}}, {96, 48, []int{48, 64}}, {192, 128, []int{96, 128}}, {576, 256, []int{192, 256}}, {100, 64, []int{64, 96}}, {71, 48, []int{48, 64}}} {
		m := NewMatrix(format.Spec{Format: format.Int4Grouped, Rows: 50, Cols: tt.cols, Group: tt.group})
		w := make([]float32, 50*tt.cols)
		for i := range w {
			w[i] = float32(rng.NormFloat64())
		}
		clear(w[:tt.cols]) // a dead row says nothing
		codec, err := CodecFor(format.Int4Grouped)
		if err != nil {
			t.Fatal(err)
		}
		codec.Encode(m, 0, 50, w)
		for _, f := range FitGroups(m.W, tt.cols, tt.sizes) {
			if (f.Flat == 0) != (f.Group == tt.group) || f.Groups != 49*int64((tt.cols+f.Group-1)/f.Group) {
				t.Errorf("%d columns in groups of %d: %+v", tt.cols, tt.group, f)
			}
		}
	}
}

// TestScanInt4 compares eight bytes at once with one code after the other.
func TestScanInt4(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		b := make([]byte, 8)
		for i := range b {
			b[i] = 0x88
			for shift := 0; shift < 8; shift += 4 {
				if rng.IntN(12) == 0 {
					b[i] = b[i]&^(15<<shift) | byte(rng.IntN(16))<<shift
				}
			}
		}
		alive, extreme := scanInt4(b, 16)
		var slowAlive, slowExtreme bool
		for i := range 16 {
			a, e := scanInt4(b[i/2:i/2+1], 1)
			if i%2 == 1 {
				a, e = scanInt4([]byte{b[i/2] >> 4}, 1)
			}
			slowAlive, slowExtreme = slowAlive || a, slowExtreme || e
		}
		if alive != slowAlive || extreme != slowExtreme {
			t.Fatalf("%x: %v %v, want %v %v", b, alive, extreme, slowAlive, slowExtreme)
		}
	}
}

func TestCompare(t *testing.T) {
	dir := t.TempDir()
	w := []float32{1, -2, 3, 4, 0, 1}
	entries := []format.Entry{{Name: "a", DType: format.DTypeF32, Shape: []int{2, 3}}, {Name: "b", DType: format.DTypeBF16, Shape: []int{2, 3}}, {Name: "c", DType: format.DTypeF32, Shape: []int{2, 3}}}
	out, err := format.Create(dir+"/x.safetensors", entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, half := make([]byte, 24), make([]byte, 12)
	F32ToBytes(raw, w)
	F32ToBF16(half, w)
	for name, p := range map[string][]byte{"a": raw, "b": half} {
		if err := out.WriteAt(name, p, 0); err != nil {
			t.Fatal(err)
		}
	}
	w[3] = 2
	F32ToBytes(raw, w)
	if err := out.WriteAt("c", raw, 0); err != nil {
		t.Fatal(err)
	}
	if err := out.Commit(); err != nil {
		t.Fatal(err)
	}
	snap, err := format.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snap.Close() }()
	source := func(name string) *Source {
		s, err := OpenSource(snap, Want{Name: name, Shape: []int{2, 3}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	var c Comparer
	var read int64
	d, err := c.Compare(source("a"), source("b"), func(n int64) { read += n })
	if err != nil || d.Differ != 0 || d.Values != 6 || d.Relative != 0 || read != 12 {
		t.Errorf("%+v, %v, %d bytes", d, err, read)
	}
	d, err = c.Compare(source("a"), source("c"), nil)
	if err != nil || d.Differ != 1 || d.Largest != 2 || d.Relative < 0.359 || d.Relative > 0.3593 { // sqrt(4/31)
		t.Errorf("%+v, %v", d, err)
	}
	part := d
	part.Add(d)
	if part.Relative != d.Relative || part.Values != 12 || part.Differ != 2 {
		t.Errorf("%+v", part)
	}
}
