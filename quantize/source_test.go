package quantize

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
)

type testTensor struct {
	name  string
	dtype format.DType
	shape []int
	data  []byte
}

func f32Tensor(name string, shape []int, w []float32) testTensor {
	b := make([]byte, 4*len(w))
	F32ToBytes(b, w)
	return testTensor{name, format.DTypeF32, shape, b}
}

func bf16Tensor(name string, shape []int, w []float32) testTensor {
	b := make([]byte, 2*len(w))
	F32ToBF16(b, w)
	return testTensor{name, format.DTypeBF16, shape, b}
}

func f16Tensor(name string, shape []int, w []float32) testTensor {
	b := make([]byte, 2*len(w))
	F32ToF16(b, w)
	return testTensor{name, format.DTypeF16, shape, b}
}

func fp8Tensor(name string, shape []int, codes []byte) testTensor {
	return testTensor{name, format.DTypeFP8, shape, codes}
}

func writeShard(t testing.TB, path string, tensors []testTensor) {
	t.Helper()
	header, data := map[string]rawTensor{}, []byte{}
	for _, x := range tensors {
		at := len(data)
		data = append(data, x.data...)
		header[x.name] = rawTensor{DType: x.dtype, Shape: x.shape, Offsets: [2]int{at, len(data)}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	if err := os.WriteFile(path, append(append(file, text...), data...), 0o644); err != nil {
		t.Fatal(err)
	}
}

// openShards is a snapshot of one shard for each list.
func openShards(t testing.TB, shards ...[]testTensor) *format.Snapshot {
	t.Helper()
	dir := t.TempDir()
	for i, tensors := range shards {
		writeShard(t, filepath.Join(dir, fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))), tensors)
	}
	return open(t, dir)
}

func open(t testing.TB, dir string) *format.Snapshot {
	t.Helper()
	snap, err := format.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = snap.Close() })
	return snap
}

func matrixWant(name string, rows, cols int) Want { return Want{Name: name, Shape: []int{rows, cols}} }

func readAll(t testing.TB, snap *format.Snapshot, w Want) []float32 {
	t.Helper()
	s, err := OpenSource(snap, w)
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]float32, s.Rows*s.Cols)
	if err := s.ReadRows(&SourceBuffer{}, 0, s.Rows, dst); err != nil {
		t.Fatal(err)
	}
	return dst
}

// wantError checks the kind and that the text has every part.
func wantError(t *testing.T, err, kind error, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error %v, want kind %v", err, kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

// exactHalves is small integers, which every float type holds exactly.
func exactHalves(n int) []float32 {
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(i%511-255) / 8
	}
	return w
}

func TestSourceDtypes(t *testing.T) {
	w := exactHalves(3 * 70)
	snap := openShards(t, []testTensor{
		f32Tensor("a", []int{3, 70}, w), bf16Tensor("b", []int{3, 70}, w), f16Tensor("c", []int{3, 70}, w),
		bf16Tensor("norm", []int{210}, w), bf16Tensor("conv", []int{3, 7, 10}, w),
	})
	for _, want := range []Want{matrixWant("a", 3, 70), matrixWant("b", 3, 70), matrixWant("c", 3, 70),
		{Name: "norm", Shape: []int{210}}, matrixWant("norm", 1, 210), {Name: "conv", Shape: []int{3, 7, 10}}} {
		if got := readAll(t, snap, want); !sameBits(got, w) {
			t.Errorf("%s: the values differ", want.Name)
		}
		s, _ := OpenSource(snap, want)
		if size := snap.Tensor(want.Name).Size; s.Bytes() != size || s.DType != snap.Tensor(want.Name).DType {
			t.Errorf("%s: %d bytes of %s, want %d", want.Name, s.Bytes(), s.DType, size)
		}
	}
	for _, want := range []Want{matrixWant("a", 70, 3), matrixWant("norm", 210, 1), {Name: "norm", Shape: []int{211}}, {Name: "a", Shape: []int{210}}} {
		_, err := OpenSource(snap, want)
		wantError(t, err, format.ErrCorrupt, want.Name, "shape", fmt.Sprint(want.Shape), fmt.Sprint(snap.Tensor(want.Name).Shape))
	}
	_, err := OpenSource(snap, matrixWant("absent", 3, 70))
	wantError(t, err, format.ErrIncomplete, "absent", "missing")
}

// NaN or Inf was found only after quantising, or when the model babbled.
func TestB5NonFiniteSourceIsRefused(t *testing.T) {
	for _, make := range []func(string, []int, []float32) testTensor{f32Tensor, bf16Tensor, f16Tensor} {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			w := exactHalves(4 * 64)
			w[2*64+5], w[3*64] = float32(bad), float32(bad)
			snap := openShards(t, []testTensor{make("w.weight", []int{4, 64}, w)})
			s, err := OpenSource(snap, matrixWant("w.weight", 4, 64))
			if err != nil {
				t.Fatal(err)
			}
			var buf SourceBuffer
			if err := s.ReadRows(&buf, 0, 2, w[:128]); err != nil {
				t.Errorf("the rows before: %v", err)
			}
			for _, rows := range [][2]int{{0, 4}, {2, 1}, {3, 1}} {
				err := s.ReadRows(&buf, rows[0], rows[1], w[:rows[1]*64])
				wantError(t, err, format.ErrCorrupt, snap.Shards[0].Path, "w.weight", "2 weights are not finite", fmt.Sprintf("%v at row 2, column 5", bad))
			}
		}
	}
}

func allCodes() []byte {
	codes := make([]byte, 256)
	for i := range codes {
		codes[i] = byte(i)
	}
	return codes
}

// A NaN code among FP8 weights is reported like any other NaN, −0 is not.
func TestB6NaNCodesAreRefused(t *testing.T) {
	one := f32Tensor("w_scale_inv", []int{1, 1}, []float32{1})
	codes := allCodes()
	snap := openShards(t, []testTensor{fp8Tensor("w", []int{2, 128}, codes), one})
	s, err := OpenSource(snap, matrixWant("w", 2, 128))
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{snap.Shards[0].Path, "w", "2 weights are not finite", "NaN at row 0, column 127", "code 0x7f, scale 1"}
	wantError(t, s.ReadRows(&SourceBuffer{}, 0, 2, make([]float32, 256)), format.ErrCorrupt, texts...)
	wantError(t, s.ReadCodes(1, 1, make([]byte, 128)), format.ErrCorrupt, texts...)

	codes[0x7f], codes[0xff] = 0x80, 0
	got := readAll(t, openShards(t, []testTensor{fp8Tensor("w", []int{2, 128}, codes), one}), matrixWant("w", 2, 128))
	for i, x := range got {
		if want := float32(naiveFP8(codes[i])); math.Float32bits(x) != math.Float32bits(want) {
			t.Errorf("code %#02x is %v, want %v", codes[i], x, want)
		}
	}
}

// Scale grids of partial blocks were a size mismatch; a grid of the wrong shape must be one.
func TestB8FP8EdgeBlocks(t *testing.T) {
	codes := make([]byte, 130*300)
	for i := range codes {
		codes[i] = byte(i*7) % 0x7f
	}
	scales := []float32{1, .5, .25, 3, -5, 7}
	for _, tc := range []struct {
		cols int
		grid []int
		ok   bool
	}{
		{200, []int{2, 2}, true}, {200, []int{1, 2}, false}, {200, []int{2, 1}, false}, {200, []int{4}, false},
		{300, []int{2, 3}, true}, {300, []int{3, 2}, false}, {300, []int{6}, false}, {300, []int{1, 6}, false},
	} {
		n := 1
		for _, d := range tc.grid {
			n *= d
		}
		weight := fp8Tensor("w", []int{130, tc.cols}, codes[:130*tc.cols])
		snap := openShards(t, []testTensor{f32Tensor("w_scale_inv", tc.grid, scales[:n]), weight})
		want := matrixWant("w", 130, tc.cols)
		if !tc.ok {
			_, err := OpenSource(snap, want)
			wantError(t, err, format.ErrCorrupt, "w: ", "w_scale_inv", fmt.Sprint(tc.grid), fmt.Sprintf("⌈130/128⌉ × ⌈%d/128⌉", tc.cols), fmt.Sprintf("[2 %d]", (tc.cols+127)/128))
			continue
		}
		m := Matrix{Spec: plainSpec(format.FP8, 130, tc.cols), W: weight.data, S: scales}
		for i, x := range readAll(t, snap, want) {
			if y := naiveDecode(m, i/tc.cols, i%tc.cols); math.Float32bits(x) != math.Float32bits(y) {
				t.Fatalf("[130 %d]: W[%d,%d] = %v, want %v", tc.cols, i/tc.cols, i%tc.cols, x, y)
			}
		}
	}
}

// Missing scales were read from uninitialised memory; scales in another shard were missing.
func TestB9FP8ScalesInAnotherShard(t *testing.T) {
	weight := fp8Tensor("x.weight", []int{2, 128}, make([]byte, 256))
	scale := bf16Tensor("x.weight_scale_inv", []int{1, 1}, []float32{.5})
	orphan := f32Tensor("y.weight_scale_inv", []int{1, 1}, []float32{1})
	weight.data[3] = 0x38 // 1.0
	if got := readAll(t, openShards(t, []testTensor{scale, orphan}, []testTensor{weight}), matrixWant("x.weight", 2, 128)); got[3] != .5 {
		t.Errorf("a scale of another shard: %v, want 0.5", got[3])
	}
	_, err := OpenSource(openShards(t, []testTensor{weight}, []testTensor{orphan}), matrixWant("x.weight", 2, 128))
	wantError(t, err, format.ErrIncomplete, "x.weight:", "x.weight_scale_inv")
}

// Scales of one byte are powers of two: 134 was read as NaN, and the NaN 255 as
// infinity, in the scales of kv_b_proj.
func TestA5B7PowerOfTwoScales(t *testing.T) {
	codes := make([]byte, 256*256)
	for i := range codes {
		codes[i] = 0x38 // 1.0
	}
	scaled := func(grid ...byte) *format.Snapshot {
		return openShards(t, []testTensor{fp8Tensor("w", []int{256, 256}, codes), {"w_scale_inv", format.DTypeE8M0, []int{2, 2}, grid}})
	}
	want := matrixWant("w", 256, 256)
	snap := scaled(134, 127, 126, 0)
	got := readAll(t, snap, want)
	for at, x := range map[int]float32{0: 128, 128: 1, 128 * 256: .5, 128*256 + 128: 0x1p-127} {
		if got[at] != x {
			t.Errorf("weight %d: %v, want %v", at, got[at], x)
		}
	}
	census, problems := TakeCensus(snap, []Want{want})
	if len(problems) > 0 || len(census.Found) != 1 {
		t.Fatal(problems)
	}
	if m, err := census.Found[0].Bind(); err != nil || !slices.Equal(m.S, []float32{128, 1, .5, 0x1p-127}) {
		t.Errorf("bound as %v, %v", m.S, err)
	}
	s, err := OpenSource(scaled(127, 255, 127, 127), want)
	if err != nil {
		t.Fatal(err)
	}
	err = s.ReadRows(&SourceBuffer{}, 0, 2, make([]float32, 512))
	wantError(t, err, format.ErrCorrupt, "w: 16384 weights are not finite", "row 0, column 128", "scale NaN")
	_, err = s.ReadScales(&SourceBuffer{}, 0, 2)
	wantError(t, err, format.ErrCorrupt, "block row 0, column 1", "NaN")
}

// An unsupported dtype was met after many GB of copying.
func TestB10UnsupportedDtypes(t *testing.T) {
	for _, d := range []format.DType{"I8", "U8", "I32", "I64", "F64", "BOOL", "F8_E5M2", "F8_E8M0"} {
		snap := openShards(t, []testTensor{{"w", d, []int{2, 4}, make([]byte, 8*d.Bits()/8)}})
		_, err := OpenSource(snap, matrixWant("w", 2, 4))
		wantError(t, err, format.ErrUnsupported, "w: ", string(d), "F8_E4M3")
	}
	codes := fp8Tensor("w", []int{2, 4}, make([]byte, 8))
	for _, d := range []format.DType{"F8_E5M2", format.DTypeF16} {
		snap := openShards(t, []testTensor{codes, {"w_scale_inv", d, []int{1, 1}, make([]byte, d.Bits()/8)}})
		_, err := OpenSource(snap, matrixWant("w", 2, 4))
		wantError(t, err, format.ErrUnsupported, "w: ", "w_scale_inv", string(d), "F32, BF16 or F8_E8M0")
	}
	_, err := OpenSource(openShards(t, []testTensor{fp8Tensor("norm", []int{8}, make([]byte, 8))}), Want{Name: "norm", Shape: []int{8}})
	wantError(t, err, format.ErrUnsupported, "norm", "F8_E4M3")
}

// Fused experts were left as they were: 91 % of the weights.
func TestC8SourceSlicesFusedExperts(t *testing.T) {
	up, down := exactHalves(4*32*16), exactHalves(4*16*16)
	snap := openShards(t, []testTensor{
		bf16Tensor("mlp.experts.gate_up_proj", []int{4, 32, 16}, up), bf16Tensor("mlp.experts.down_proj", []int{4, 16, 16}, down),
		fp8Tensor("fp8.experts", []int{4, 16, 16}, make([]byte, 4*16*16)),
	})
	fused := func(e, row int, in string) Want {
		return Want{Name: fmt.Sprintf("mlp.experts.%d.weight", e), Shape: []int{16, 16}, Expert: e, Fused: in, FusedRow: row}
	}
	for e := range 4 {
		for _, tc := range []struct {
			want Want
			w    []float32
		}{
			{fused(e, 0, "mlp.experts.gate_up_proj"), up[e*512 : e*512+256]},
			{fused(e, 16, "mlp.experts.gate_up_proj"), up[e*512+256 : e*512+512]},
			{fused(e, 0, "mlp.experts.down_proj"), down[e*256 : e*256+256]},
		} {
			if got := readAll(t, snap, tc.want); !sameBits(got, tc.w) {
				t.Errorf("expert %d, row %d of %s: the values differ", e, tc.want.FusedRow, tc.want.Fused)
			}
			if s, _ := OpenSource(snap, tc.want); s.Bytes() != 512 {
				t.Errorf("expert %d reads %d bytes, want 512", e, s.Bytes())
			}
		}
	}
	for _, bad := range []Want{
		fused(4, 0, "mlp.experts.gate_up_proj"), fused(0, 17, "mlp.experts.gate_up_proj"), fused(0, 16, "mlp.experts.down_proj"), fused(-1, 0, "mlp.experts.down_proj"),
		{Name: "t", Shape: []int{16, 32}, Fused: "mlp.experts.gate_up_proj"}, {Name: "t", Shape: []int{8, 16}, Fused: "mlp.experts.gate_up_proj"},
	} {
		_, err := OpenSource(snap, bad)
		wantError(t, err, format.ErrCorrupt, bad.Name, bad.Fused, "[4 ")
	}
	_, err := OpenSource(snap, fused(0, 0, "fp8.experts"))
	wantError(t, err, format.ErrUnsupported, "fp8.experts", "F8_E4M3")
}

// Strict tools refused files that hold tensors without elements or dimensions.
func TestC9ScalarsAndEmptyTensors(t *testing.T) {
	snap := openShards(t, []testTensor{
		f32Tensor("scalar", scalarShape(), []float32{2.5}), f32Tensor("empty", []int{0}, nil), {"codes", format.DTypeU8, []int{2, 0}, nil},
		bf16Tensor("rows", []int{0, 5}, nil), bf16Tensor("columns", []int{3, 0}, nil), f32Tensor("after", []int{1}, []float32{7}),
	})
	for _, tc := range []struct {
		want Want
		w    []float32
	}{
		{Want{Name: "scalar", Shape: scalarShape()}, []float32{2.5}}, {Want{Name: "empty", Shape: []int{0}}, nil},
		{matrixWant("rows", 0, 5), nil}, {matrixWant("columns", 3, 0), nil}, {Want{Name: "after", Shape: []int{1}}, []float32{7}},
	} {
		if got := readAll(t, snap, tc.want); !sameBits(got, tc.w) {
			t.Errorf("%s: %v, want %v", tc.want.Name, got, tc.w)
		}
		if len(tc.want.Shape) == 2 {
			if m, err := bindPair(snap, tc.want.Name, tc.want.Shape[0], tc.want.Shape[1]); err != nil || len(m.W) != 0 {
				t.Errorf("%s: bound to %d bytes, %v", tc.want.Name, len(m.W), err)
			}
		}
	}
}

// scalarShape is the shape of a scalar, [] and not null in JSON.
func scalarShape() []int { return []int{} }

func TestSourceRowsInPieces(t *testing.T) {
	const rows, cols = 300, 200
	codes, scales := make([]byte, rows*cols), []float32{1, 2, 4, 8, 16, 32}
	for i := range codes {
		codes[i] = byte(i*11) % 0x7f
	}
	snap := openShards(t, []testTensor{
		fp8Tensor("w", []int{rows, cols}, codes), f32Tensor("w_scale_inv", []int{3, 2}, scales), bf16Tensor("b", []int{rows, cols}, exactHalves(rows*cols)),
	})
	for _, name := range []string{"w", "b"} {
		want := matrixWant(name, rows, cols)
		whole := readAll(t, snap, want)
		s, _ := OpenSource(snap, want)
		var buf SourceBuffer
		for _, step := range []int{1, 7, 100, 128, 299} {
			for row := 0; row < rows; row += step {
				n := min(step, rows-row)
				got := make([]float32, n*cols)
				if err := s.ReadRows(&buf, row, n, got); err != nil {
					t.Fatal(err)
				}
				if !sameBits(got, whole[row*cols:(row+n)*cols]) {
					t.Fatalf("%s: rows %d to %d differ", name, row, row+n)
				}
			}
		}
		for _, bad := range [][3]int{{-1, 1, cols}, {rows, 1, cols}, {0, rows + 1, (rows + 1) * cols}, {0, 1, cols - 1}, {0, -1, 0}, {math.MaxInt, 2, 2 * cols}} {
			wantError(t, s.ReadRows(&buf, bad[0], bad[1], make([]float32, bad[2])), format.ErrUsage, name)
			wantError(t, s.ReadCodes(bad[0], bad[1], make([]byte, bad[2])), format.ErrUsage, name)
		}
	}
}

// FP8 goes through unchanged: the codes and scales as they are decode like the rows.
func TestFP8PassThrough(t *testing.T) {
	snap := open(t, fixtures.Path(t, "glm_moe_dsa_fp8"))
	seen := 0
	for _, name := range snap.Names() {
		x := snap.Tensor(name)
		if x.DType != format.DTypeFP8 {
			continue
		}
		seen++
		want := matrixWant(name, x.Shape[0], x.Shape[1])
		s, err := OpenSource(snap, want)
		if err != nil {
			t.Fatal(err)
		}
		m := NewMatrix(plainSpec(format.FP8, s.Rows, s.Cols))
		if err := s.ReadCodes(0, s.Rows, m.W); err != nil {
			t.Fatal(err)
		}
		if m.S, err = s.ReadScales(&SourceBuffer{}, 0, s.Stored.ScaleRows()); err != nil || int64(len(m.S)) != m.Scales() {
			t.Fatalf("%s: %d scales, %v", name, len(m.S), err)
		}
		bound, err := bindPair(snap, name, s.Rows, s.Cols)
		if err != nil {
			t.Fatal(err)
		}
		rows := readAll(t, snap, want)
		if !sameBits(decodeAll(t, m), rows) || !sameBits(decodeAll(t, bound), rows) {
			t.Errorf("%s: the codes decode to other values", name)
		}
	}
	if seen == 0 {
		t.Error("the fixture has no FP8 matrix")
	}
	s, err := OpenSource(snap, Want{Name: "model.norm.weight", Shape: []int{128}})
	if err != nil {
		t.Fatal(err)
	}
	if scales, err := s.ReadScales(&SourceBuffer{}, 0, 1); scales != nil || err != nil {
		t.Errorf("a BF16 vector has scales: %v, %v", scales, err)
	}
}

func TestPassThroughRefusesBadScales(t *testing.T) {
	for _, bad := range []float32{0, float32(math.NaN()), float32(math.Inf(-1)), math.MaxFloat32} {
		snap := openShards(t, []testTensor{
			fp8Tensor("w", []int{129, 129}, make([]byte, 129*129)), f32Tensor("w_scale_inv", []int{2, 2}, []float32{1, -1, bad, 1}),
		})
		s, err := OpenSource(snap, matrixWant("w", 129, 129))
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.ReadScales(&SourceBuffer{}, 0, s.Stored.ScaleRows())
		wantError(t, err, format.ErrCorrupt, "w: ", "w_scale_inv", "block row 1, column 0", fmt.Sprint(bad))
	}
}

// A file that shrinks after it was opened is an error, not zeros.
func TestSourceOfShrunkFile(t *testing.T) {
	snap := openShards(t, []testTensor{bf16Tensor("w", []int{4, 64}, exactHalves(256))})
	s, err := OpenSource(snap, matrixWant("w", 4, 64))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(snap.Shards[0].Path, snap.Shards[0].Size-1); err != nil {
		t.Skipf("SKIPPED: cannot truncate an open file: %v", err)
	}
	err = s.ReadRows(&SourceBuffer{}, 0, 4, make([]float32, 256))
	wantError(t, err, format.ErrCorrupt, snap.Shards[0].Path, "w", "unexpected EOF")
}

// Every matrix of the packed fixture is what its own source encodes to. Its
// groups are of 64 columns, which rows of 96 do not tell from 48.
func TestBindPackedSnapshot(t *testing.T) {
	snap, source := open(t, fixtures.Path(t, "tiny-glm-g64")), open(t, fixtures.TinyGLMDir(t))
	seen := 0
	for _, name := range snap.Names() {
		if snap.Tensor(name+format.ScaleSuffix) == nil {
			continue
		}
		seen++
		shape := source.Tensor(name).Shape
		m, err := bindPair(snap, name, shape[0], shape[1])
		if err != nil {
			t.Fatal(err)
		}
		made := m.Spec
		if made.Format == format.Int4Grouped {
			made.Group = 64
		}
		want := encodeAll(t, made, readAll(t, source, matrixWant(name, shape[0], shape[1])))
		if !bytes.Equal(m.W, want.W) || !sameBits(m.S, want.S) {
			t.Errorf("%s as %v: the bytes differ from those of %v", name, m.Spec, made)
		}
	}
	if seen < 100 {
		t.Errorf("%d matrices", seen)
	}
}

func TestBindPlain(t *testing.T) {
	w := exactHalves(4 * 10)
	snap := openShards(t, []testTensor{
		f32Tensor("a", []int{4, 10}, w), bf16Tensor("b", []int{4, 10}, w), f16Tensor("c", []int{4, 10}, w),
		{"e8", format.DTypeU8, []int{98}, make([]byte, 98)}, f32Tensor("e8.qs", []int{1}, []float32{6}),
	})
	for name, id := range map[string]format.ID{"a": format.F32, "b": format.BF16, "c": format.F16} {
		m, err := bindPair(snap, name, 4, 10)
		if err != nil || m.Spec != plainSpec(id, 4, 10) || m.S != nil || !sameBits(decodeAll(t, m), w) {
			t.Errorf("%s: bound to %v, %v", name, m.Spec, err)
		}
	}
	for _, tc := range []struct {
		name       string
		rows, cols int
	}{{"a", 10, 4}, {"absent", 4, 10}, {"e8", 1, 256}} {
		if m, err := bindPair(snap, tc.name, tc.rows, tc.cols); err == nil || !strings.Contains(err.Error(), tc.name) {
			t.Errorf("%s [%d %d]: bound to %v, %v", tc.name, tc.rows, tc.cols, m.Spec, err)
		}
	}
}

func BenchmarkSource(b *testing.B) {
	const rows, cols = 128, 2048
	w := exactHalves(rows * cols)
	snap := openShards(b, []testTensor{
		f32Tensor("f32", []int{rows, cols}, w), bf16Tensor("bf16", []int{rows, cols}, w), f16Tensor("f16", []int{rows, cols}, w),
		fp8Tensor("fp8", []int{rows, cols}, make([]byte, rows*cols)), f32Tensor("fp8_scale_inv", []int{1, cols / 128}, w[1:1+cols/128]),
	})
	for _, name := range []string{"f32", "bf16", "f16", "fp8"} {
		s, err := OpenSource(snap, matrixWant(name, rows, cols))
		if err != nil {
			b.Fatal(err)
		}
		var buf SourceBuffer
		b.Run(name, func(b *testing.B) {
			b.SetBytes(4 * rows * cols)
			b.ReportAllocs()
			for b.Loop() {
				if err := s.ReadRows(&buf, 0, rows, w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// bindPair finds and binds one matrix that run can compute with.
func bindPair(snap *format.Snapshot, name string, rows, cols int) (Matrix, error) {
	f, err := find(snap, Want{Name: name, Shape: []int{rows, cols}})
	if err == nil && f.Tensor == nil {
		err = snap.Missing(name)
	}
	if err == nil {
		_, err = CodecFor(f.Spec.Format)
	}
	if err != nil {
		return Matrix{}, err
	}
	return f.Bind()
}
