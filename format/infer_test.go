package format

import (
	"fmt"
	"slices"
	"testing"
)

// byHand is the size of a packed matrix after the table of the container
// format, written without the code under test.
func byHand(id ID, o, i, gs int64) (nb, ns int64) {
	up := func(a, b int64) int64 { return (a + b - 1) / b }
	switch id {
	case Int8Row:
		return o * i, o * 4
	case Int4Row:
		return o * up(i, 2), o * 4
	case Int2Row:
		return o * up(i, 4), o * 4
	case Int4Grouped:
		return o * up(i, 2), o * up(i, gs) * 4
	case Int3G64:
		return o * up(i, 64) * 24, o * up(i, 64) * 4
	case E8:
		return o * up(i, 256) * 98, 4
	case MXFP4:
		return o * up(i, 2), o * up(i, 32)
	case FP8:
		return o * i, up(o, 128) * up(i, 128) * 4
	case F32:
		return o * i * 4, 0
	case BF16, F16:
		return o * i * 2, 0
	}
	panic("unknown format")
}

// inferByHand is the rule of the container format in plain words; "" means refused.
func inferByHand(nb, ns, o, i int64) string {
	is := func(id ID) bool {
		b, s := byHand(id, o, i, 1)
		return nb == b && ns == s
	}
	switch {
	case is(E8):
		return "e8-iq3-lattice"
	case is(Int8Row):
		return "int8-row"
	case is(FP8):
		return "fp8-e4m3-b128"
	case is(Int4Row):
		return "int4-row"
	}
	for _, gs := range []int64{16, 32, 48, 64, 96, 128, 192, 256} {
		if b, s := byHand(Int4Grouped, o, i, gs); gs <= i && ns > 4*o && nb == b && ns == s {
			return fmt.Sprintf("int4-grouped/%d", gs)
		}
	}
	for _, id := range []ID{Int2Row, Int3G64, MXFP4} {
		if is(id) {
			return id.String()
		}
	}
	return ""
}

var (
	awkwardRows = []int{1, 2, 3, 8, 48, 100, 128, 129, 257, 512, 6144}
	awkwardCols = func() []int {
		cols := []int{384, 385, 389, 392, 500, 512, 513, 576, 577, 768, 1000, 1023, 1024, 1408, 2048, 4304, 6144, 7168, 16384}
		for i := 1; i <= 300; i++ {
			cols = append(cols, i)
		}
		return cols
	}()
)

// packedSpecs is every packed format with every group size.
func packedSpecs(rows, cols int) []Spec {
	var all []Spec
	for _, in := range Formats() {
		s := Spec{Format: in.ID, Rows: rows, Cols: cols}
		switch {
		case in.ID == Int4Grouped:
			for _, gs := range GroupSizes {
				s.Group = gs
				all = append(all, s)
			}
		case in.Packed:
			all = append(all, s)
		}
	}
	return all
}

func TestSpecSizesOfEveryFormat(t *testing.T) {
	for _, in := range Formats() {
		if (in.DType == DTypeU8) != in.Packed || in.Packed && in.Ordinal != int(in.ID) || !in.Packed && in.Ordinal != 0 {
			t.Errorf("%s: dtype %s, ordinal %d", in.Name, in.DType, in.Ordinal)
		}
		for _, o := range awkwardRows {
			for _, i := range awkwardCols {
				for _, gs := range GroupSizes {
					s := Spec{Format: in.ID, Rows: o, Cols: i}
					if in.ID == Int4Grouped {
						s.Group = gs
					}
					nb, ns := byHand(in.ID, int64(o), int64(i), int64(gs))
					if s.Bytes() != nb || s.ScaleBytes() != ns || int64(s.RowBytes())*int64(o) != nb {
						t.Fatalf("%v: %d+%d bytes, wanted %d+%d", s, s.Bytes(), s.ScaleBytes(), nb, ns)
					}
				}
			}
		}
	}
}

func TestSpecExamplesOfTheContainerFormat(t *testing.T) {
	for _, c := range []struct {
		s      Spec
		nb, ns int64
	}{
		{Spec{Int4Grouped, 28672, 512, 64}, 7340032, 917504},
		{Spec{Int4Grouped, 4, 128, 64}, 256, 32},
		{Spec{Int4Grouped, 8, 100, 64}, 400, 64},
		{Spec{Int8Row, 3, 5, 0}, 15, 12},
		{Spec{Int4Row, 3, 5, 0}, 9, 12},
		{Spec{Int2Row, 3, 5, 0}, 6, 12},
		{Spec{Int3G64, 2, 65, 0}, 96, 16},
		{Spec{FP8, 130, 200, 0}, 26000, 16},
		{Spec{E8, 3, 257, 0}, 588, 4},
		{Spec{BF16, 3, 5, 0}, 30, 0},
	} {
		if c.s.Bytes() != c.nb || c.s.ScaleBytes() != c.ns {
			t.Errorf("%v: %d+%d bytes, wanted %d+%d", c.s, c.s.Bytes(), c.s.ScaleBytes(), c.nb, c.ns)
		}
	}
	if bpw := (Spec{Int4Grouped, 64, 64, 64}).BitsPerWeight(); bpw != 4.5 {
		t.Errorf("%v bits a weight, wanted 4.5", bpw)
	}
}

func TestFormatNamesAreReadBack(t *testing.T) {
	for _, in := range Formats() {
		if id, gs, err := ParseFormat(in.Name); id != in.ID || gs != 0 || err != nil {
			t.Errorf("%s: %v/%d, %v", in.Name, id, gs, err)
		}
	}
	for _, gs := range GroupSizes {
		s := Spec{Format: Int4Grouped, Group: gs}
		if id, got, err := ParseFormat(s.Name()); id != Int4Grouped || got != gs || err != nil {
			t.Errorf("%s: %v/%d, %v", s.Name(), id, got, err)
		}
	}
	for _, text := range []string{"", "q4", "int4-grouped/", "int4-grouped/40", "int4-grouped/-64", "int4-row/64", "int8-row/", "Int8-row", "int8-row "} {
		_, _, err := ParseFormat(text)
		wantError(t, err, ErrUsage)
	}
	if name := ID(200).String(); name != "format-200" {
		t.Errorf("unknown format is %q", name)
	}
}

// TestInferGivesTheSpecBack is the round trip of every format, shape and group
// size, against the rule written by hand.
func TestInferGivesTheSpecBack(t *testing.T) {
	for _, o := range awkwardRows {
		for _, i := range awkwardCols {
			for _, s := range packedSpecs(o, i) {
				want := inferByHand(s.Bytes(), s.ScaleBytes(), int64(o), int64(i))
				got, err := Infer(s.Bytes(), s.ScaleBytes(), o, i)
				if err != nil || got.Name() != want || got.Rows != o || got.Cols != i {
					t.Fatalf("%v is read as %v (%v), by hand as %q", s, got, err, want)
				}
				other, yes := Ambiguous(s)
				if bad := want != s.Canonical().Name(); yes != bad || yes && other != got {
					t.Fatalf("%v is read as %s, ambiguous %v %v", s, want, other, yes)
				}
				if !yes && got != s.Canonical() {
					t.Fatalf("%v is not ambiguous and yet read as %v", s, got)
				}
				all := Candidates(s.Bytes(), s.ScaleBytes(), o, i)
				if len(all) == 0 || all[0] != got || !slices.Contains(all, s.Canonical()) {
					t.Fatalf("%v is read as %v, the candidates are %v", s, got, all)
				}
				for _, c := range all {
					if c.Bytes() != s.Bytes() || c.ScaleBytes() != s.ScaleBytes() {
						t.Fatalf("%v: candidate %v has other bytes", s, c)
					}
				}
			}
		}
	}
}

// TestInferRefusesWhatNobodyWrites tries every small pair of byte counts.
func TestInferRefusesWhatNobodyWrites(t *testing.T) {
	for _, shape := range [][2]int{{1, 1}, {2, 33}, {3, 96}, {1, 385}} {
		for nb := range int64(400) {
			for ns := range int64(40) {
				want := inferByHand(nb, ns, int64(shape[0]), int64(shape[1]))
				got, err := Infer(nb, ns, shape[0], shape[1])
				if (err == nil) != (want != "") || err == nil && got.Name() != want {
					t.Fatalf("%v: %d+%d bytes are read as %v (%v), by hand as %q", shape, nb, ns, got, err, want)
				}
			}
		}
	}
}

func TestA1GroupSizeFromScaleCount(t *testing.T) {
	s, err := Infer(256, 32, 4, 128)
	if want := (Spec{Int4Grouped, 4, 128, 64}); err != nil || s != want || s.ScaleCols() != 2 {
		t.Errorf("%v, %v, wanted %v", s, err, want)
	}
	_, err = Infer(256, 3*4*4+4, 4, 128)
	wantError(t, err, ErrCorrupt, "[4,128]", "256 bytes of codes, 52 of scales", "int4-row 256+16", "int4-grouped/64 256+32")
}

func TestA3cUnknownByteCountIsNotInt2(t *testing.T) {
	_, err := Infer(100, 16, 4, 64)
	wantError(t, err, ErrCorrupt, "[4,64]", "100 bytes of codes, 16 of scales", "int8-row 256+16", "int4-row 128+16", "int2-row 64+16", "int3-g64 96+16")
}

func TestA4Int8AndFP8AtTheCollision(t *testing.T) {
	for _, shape := range [][2]int{{1, 64}, {2, 256}, {8, 1024}, {48, 6144}, {6144, 16384}} {
		fp8 := Spec{Format: FP8, Rows: shape[0], Cols: shape[1]}
		int8 := Spec{Format: Int8Row, Rows: shape[0], Cols: shape[1]}
		if shape[0] != 6144 && fp8.ScaleBytes() != int8.ScaleBytes() {
			t.Fatalf("%v does not collide", fp8)
		}
		got, err := Infer(fp8.Bytes(), fp8.ScaleBytes(), shape[0], shape[1])
		if err != nil || got != int8 {
			t.Errorf("%v is read as %v, %v", fp8, got, err)
		}
		if other, yes := Ambiguous(fp8); !yes || other != int8 {
			t.Errorf("%v: ambiguous %v %v", fp8, other, yes)
		}
		if other, yes := Ambiguous(int8); yes {
			t.Errorf("%v is the incumbent and yet ambiguous with %v", int8, other)
		}
		if all := Candidates(fp8.Bytes(), fp8.ScaleBytes(), shape[0], shape[1]); !slices.Equal(all, []Spec{int8, fp8}) {
			t.Errorf("candidates %v", all)
		}
	}
	if _, yes := Ambiguous(Spec{Format: FP8, Rows: 256, Cols: 256}); yes {
		t.Error("fp8 [256,256] is ambiguous")
	}
}

func TestA5UE8M0ScalesAreNamed(t *testing.T) {
	_, err := Infer(256*256, 4, 256, 256)
	wantError(t, err, ErrUnsupported, "ue8m0 scales, not supported")
	for _, shape := range [][2]int{{1, 385}, {1, 512}, {2, 1000}, {8, 4096}} {
		o, i := shape[0], shape[1]
		blocks := int64(ceil(o, 128) * ceil(i, 128))
		if got, err := Infer(int64(o*i), blocks, o, i); err != nil || got.Format != Int8Row {
			t.Errorf("%v: %v, %v, wanted the incumbent", shape, got, err)
		}
	}
}

func TestC6GroupLargerThanTheRow(t *testing.T) {
	s := Spec{Int4Grouped, 4, 32, 128}
	if s.ScaleCols() != 1 || s.Scales() != 4 || s.ScaleBytes() != 16 {
		t.Errorf("%v: %d scales a row, %d bytes", s, s.ScaleCols(), s.ScaleBytes())
	}
	if got, err := Infer(64, 16, 4, 32); err != nil || got != (Spec{Int4Row, 4, 32, 0}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestC7OneGroupARowIsPerRow(t *testing.T) {
	for _, gs := range GroupSizes {
		for _, cols := range []int{1, 2, 15, 16, gs - 1, gs} {
			s := Spec{Int4Grouped, 3, cols, gs}
			if cols > gs {
				continue
			}
			row := Spec{Int4Row, 3, cols, 0}
			if s.Canonical() != row || s.Bytes() != row.Bytes() || s.ScaleBytes() != row.ScaleBytes() {
				t.Errorf("%v is not %v", s, row)
			}
			other, yes := Ambiguous(s)
			rowOther, rowYes := Ambiguous(row)
			if yes != rowYes || other != rowOther {
				t.Errorf("%v: ambiguous %v %v, but %v %v per row", s, other, yes, rowOther, rowYes)
			}
		}
		if s := (Spec{Int4Grouped, 3, gs + 1, gs}); s.Canonical() != s {
			t.Errorf("%v has two groups and is taken for one scale a row", s)
		}
	}
}

func TestAmbiguousGroupSizes(t *testing.T) {
	for _, c := range []struct{ cols, gs, read int }{{96, 64, 48}, {192, 128, 96}, {576, 256, 192}} {
		other, yes := Ambiguous(Spec{Int4Grouped, 8, c.cols, c.gs})
		if !yes || other != (Spec{Int4Grouped, 8, c.cols, c.read}) {
			t.Errorf("%d columns in groups of %d: %v %v, wanted groups of %d", c.cols, c.gs, other, yes, c.read)
		}
	}
	for _, cols := range []int{512, 2048, 6144, 7168} {
		for _, gs := range GroupSizes {
			if other, yes := Ambiguous(Spec{Int4Grouped, 8, cols, gs}); yes {
				t.Errorf("%d columns in groups of %d are read as %v", cols, gs, other)
			}
		}
	}
}

func TestCollisionsOfTheContainerFormat(t *testing.T) {
	for _, c := range []struct{ s, read Spec }{
		{Spec{Int3G64, 8, 24, 0}, Spec{Int8Row, 8, 24, 0}},
		{Spec{Int3G64, 8, 47, 0}, Spec{Int4Row, 8, 47, 0}},
		{Spec{Int3G64, 8, 48, 0}, Spec{Int4Row, 8, 48, 0}},
		{Spec{Int3G64, 8, 95, 0}, Spec{Int4Grouped, 8, 95, 48}},
		{Spec{Int3G64, 8, 96, 0}, Spec{Int4Grouped, 8, 96, 48}},
		{Spec{Int3G64, 8, 143, 0}, Spec{Int4Grouped, 8, 143, 48}},
		{Spec{Int3G64, 8, 144, 0}, Spec{Int4Grouped, 8, 144, 48}},
		{Spec{Int8Row, 1, 98, 0}, Spec{E8, 1, 98, 0}},
		{Spec{FP8, 100, 98, 0}, Spec{E8, 100, 98, 0}},
		{Spec{MXFP4, 8, 256, 0}, Spec{Int4Grouped, 8, 256, 128}},
	} {
		if other, yes := Ambiguous(c.s); !yes || other != c.read {
			t.Errorf("%v: %v %v, wanted %v", c.s, other, yes, c.read)
		}
	}
}

func TestInferOfImpossibleSizes(t *testing.T) {
	for _, shape := range [][2]int{{0, 4}, {4, 0}, {-1, 4}, {4, -1}, {MaxDim + 1, 1}, {1, MaxDim + 1}} {
		_, err := Infer(16, 16, shape[0], shape[1])
		wantError(t, err, ErrUnsupported, "out of range")
		if all := Candidates(0, 0, shape[0], shape[1]); len(all) > 0 {
			t.Errorf("%v: %v", shape, all)
		}
	}
	for _, nb := range []int64{-1, 0, 1<<63 - 1} {
		if _, err := Infer(nb, nb, MaxDim, MaxDim); err == nil {
			t.Errorf("%d bytes were accepted", nb)
		}
	}
	for _, s := range []Spec{{Format: Int4Grouped, Rows: 4, Cols: 4}, {Format: Int4Grouped, Rows: 4, Cols: 400}, {Format: Int8Row}, {Format: BF16, Rows: 2, Cols: 2}, {Format: Int8Row, Rows: 1 << 62, Cols: 1 << 62}} {
		if other, yes := Ambiguous(s); yes {
			t.Errorf("%v is ambiguous with %v", s, other)
		}
	}
}
