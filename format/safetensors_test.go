package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func TestA3aShapeAndBytesDisagree(t *testing.T) {
	_, err := openBytes(t, fileBytes("{"+entryJSON("w", "F32", "[4,4]", 0, 16)+"}", 16))
	wantError(t, err, ErrCorrupt, "model.safetensors", "w: ", "[4 4]", "F32", "16 bytes", "wanted 64")
}

func TestA3bShapeProductOverflow(t *testing.T) {
	for _, shape := range []string{
		"[4294967296,4294967296,2]", "[4294967296,4294967296,4294967296,4294967296]", "[9223372036854775807]",
		"[0,4294967296,4294967296,4294967296]", "[3037000500,3037000500]",
	} {
		for _, dtype := range []string{"F32", "U8", "F4"} {
			b := fileBytes("{"+entryJSON("w", dtype, shape, 0, 0)+","+entryJSON("w.qs", "F32", "[0]", 0, 0)+"}", 0)
			if _, err := openBytes(t, b); err == nil {
				t.Errorf("%s%s was accepted", dtype, shape)
			}
		}
	}
}

func TestD1ShapeLargerThanFile(t *testing.T) {
	_, err := openBytes(t, fileBytes("{"+entryJSON("w", "F32", "[1000,1000]", 0, 4)+"}", 4))
	wantError(t, err, ErrCorrupt, "w: ", "4 bytes", "4000000")
}

func TestD2OffsetsOutsideTheFile(t *testing.T) {
	for _, offsets := range []string{"[1099511627776,1099511627792]", "[-16,0]", "[9223372036854775800,9223372036854775816]",
		"[9223372036854775791,9223372036854775807]", "[18446744073709551600,18446744073709551616]", "[0,1e1]", "[0,16.0]", "[0]", "[0,8,16]", "null", `"0"`, "{}"} {
		h := `{"w":{"dtype":"F32","shape":[4],"data_offsets":` + offsets + `}}`
		if _, err := openBytes(t, fileBytes(h, 16)); err == nil {
			t.Errorf("offsets %s were accepted", offsets)
		} else {
			wantError(t, err, ErrCorrupt, "w: ")
		}
	}
}

func TestD3OverlapHoleAndReversal(t *testing.T) {
	for _, c := range []struct {
		name, header string
		data         int
		words        []string
	}{
		{"overlap", entryJSON("a", "U8", "[64]", 0, 64) + "," + entryJSON("b", "U8", "[64]", 32, 96), 96, []string{"b: ", "overlaps with a"}},
		{"same range", entryJSON("a", "U8", "[8]", 0, 8) + "," + entryJSON("b", "U8", "[8]", 0, 8), 8, []string{"overlaps"}},
		{"inside", entryJSON("a", "U8", "[64]", 0, 64) + "," + entryJSON("b", "U8", "[8]", 8, 16), 64, []string{"b: ", "overlaps with a"}},
		{"empty tensor inside another", entryJSON("a", "U8", "[64]", 0, 64) + "," + entryJSON("b", "U8", "[0]", 8, 8), 64, []string{"b: ", "overlaps with a"}},
		{"hole", entryJSON("a", "U8", "[16]", 0, 16) + "," + entryJSON("b", "U8", "[16]", 32, 48), 48, []string{"b: ", "hole of 16 bytes after a"}},
		{"hole at the start", entryJSON("a", "U8", "[16]", 16, 32), 32, []string{"a: ", "hole of 16 bytes"}},
		{"reversed", entryJSON("a", "U8", "[64]", 64, 0), 64, []string{"a: ", "begin after their end", "[64,0]"}},
		{"bytes after the last tensor", entryJSON("a", "U8", "[16]", 0, 16), 17, []string{"1 bytes follow the last tensor"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := openBytes(t, fileBytes("{"+c.header+"}", c.data))
			wantError(t, err, ErrCorrupt, c.words...)
		})
	}
}

func TestD5StubShards(t *testing.T) {
	lfs := "version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 5368709120\n"
	for _, c := range []struct {
		bytes string
		words []string
	}{
		{"", []string{"shard is 0 bytes, not a safetensors file"}},
		{"1234567", []string{"shard is 7 bytes, not a safetensors file"}},
		{lfs, []string{fmt.Sprintf("shard is %d bytes, not a safetensors file (looks like a Git LFS pointer)", len(lfs))}},
		{"GGUF\x03\x00\x00\x00\x00\x00\x00\x00", []string{"GGUF"}},
		{"<!DOCTYPE html><html>", []string{"web page"}},
		{"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00", []string{"PyTorch"}},
	} {
		_, err := openBytes(t, []byte(c.bytes))
		wantError(t, err, ErrCorrupt, c.words...)
	}
}

// A header of 60 bytes has '<' for its first byte.
func TestHeaderLengthThatLooksLikeAWebPage(t *testing.T) {
	h := "{" + entryJSON("a", "U8", "[2]", 0, 2) + "}"
	for len(h)%256 != '<' {
		h += " "
	}
	if _, err := openBytes(t, fileBytes(h, 2)); err != nil {
		t.Error(err)
	}
}

func TestD6TruncatedShard(t *testing.T) {
	h := "{" + entryJSON("a", "F32", "[16]", 0, 64) + "," + entryJSON("b", "F32", "[16]", 64, 128) + "}"
	whole := fileBytes(h, 128)
	for _, cut := range []int{1, 63, 64, 65, 128} {
		_, err := openBytes(t, whole[:len(whole)-cut])
		wantError(t, err, ErrCorrupt, fmt.Sprintf("truncated: %d bytes are missing", cut))
	}
	for n := range len(whole) {
		if _, err := openBytes(t, whole[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes were accepted", n, len(whole))
		}
	}
	if _, err := openBytes(t, whole); err != nil {
		t.Fatal(err)
	}
}

func TestC9ZeroSizeAndScalarTensors(t *testing.T) {
	for _, c := range []struct {
		name, header string
		data         int
		ok           bool
	}{
		{"scalar", entryJSON("a", "F32", "[]", 0, 4), 4, true},
		{"zero elements", entryJSON("a", "F32", "[0]", 0, 0), 0, true},
		{"zero columns", entryJSON("a", "U8", "[2,0]", 0, 0), 0, true},
		{"two at one offset", entryJSON("a", "F32", "[0]", 4, 4) + "," + entryJSON("b", "F32", "[0]", 4, 4) + "," + entryJSON("c", "F32", "[1]", 0, 4), 4, true},
		{"between others", entryJSON("c", "U8", "[4]", 4, 8) + "," + entryJSON("z", "U8", "[0]", 4, 4) + "," + entryJSON("a", "U8", "[4]", 0, 4), 8, true},
		{"one element in no bytes", entryJSON("a", "F32", "[1]", 0, 0), 0, false},
		{"no tensor", "", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := openBytes(t, fileBytes("{"+c.header+"}", c.data))
			if (err == nil) != c.ok {
				t.Fatalf("error %v, wanted acceptance %v", err, c.ok)
			}
			if err != nil {
				return
			}
			for _, x := range s.Tensors {
				b, err := s.Bytes(x)
				if err != nil || b == nil || int64(len(b)) != x.Size {
					t.Errorf("%s: %v, %v", x.Name, b, err)
				}
				if x.DType == DTypeF32 {
					if f, err := s.Floats(x); err != nil || f == nil || int64(len(f)) != x.Elements() {
						t.Errorf("%s: %v, %v", x.Name, f, err)
					}
				}
			}
		})
	}
}

func TestD14UnalignedDataSection(t *testing.T) {
	const header = 0xa766
	h := "{" + entryJSON("w", "F32", "[3]", 0, 12) + "," + entryJSON("b", "U8", "[1]", 12, 13) + "," + entryJSON("x", "F32", "[2]", 13, 21) + "}"
	h += strings.Repeat(" ", header-len(h))
	b := fileBytes(h, 0)
	want := []float32{1.5, -0.25, float32(math.Inf(-1)), 7, 0x1p-149}
	for i, f := range want {
		if i == 3 {
			b = append(b, 0xee)
		}
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	s, err := openBytes(t, b)
	if err != nil {
		t.Fatal(err)
	}
	if s.HeaderSize != header || s.Tensors[0].Offset != 8+header {
		t.Errorf("header of %d bytes, data at %d", s.HeaderSize, s.Tensors[0].Offset)
	}
	var got []float32
	for _, x := range []*Tensor{s.Tensors[0], s.Tensors[2]} {
		f, err := s.Floats(x)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, f...)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("element %d is %v, wanted %v", i, got[i], want[i])
		}
	}
}

func TestHeaderLengthLimit(t *testing.T) {
	for _, n := range []uint64{maxHeader + 1, 1 << 40, 1<<63 - 9, 1 << 63, math.MaxUint64, math.MaxUint64 - 7} {
		b := append(binary.LittleEndian.AppendUint64(nil, n), "{}"...)
		_, err := openBytes(t, b)
		wantError(t, err, ErrCorrupt, "header length is out of range", strconv.FormatUint(n, 10))
	}
	_, err := openBytes(t, append(binary.LittleEndian.AppendUint64(nil, 3), "{}"...))
	wantError(t, err, ErrCorrupt, "truncated inside its header", "found 10 bytes", "at least 11")
}

func TestDuplicateKeysAreRefused(t *testing.T) {
	a := entryJSON("a", "U8", "[1]", 0, 1)
	for _, h := range []string{
		"{" + a + "," + a + "}",
		`{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`,
		`{"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}`,
		`{"__metadata__":{"k":"1","k":"1"},` + a + "}",
		`{"__metadata__":{},"__metadata__":{},` + a + "}",
		`{"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},` + a + "}",
	} {
		_, err := openBytes(t, fileBytes(h, 1))
		wantError(t, err, ErrCorrupt, "duplicate")
	}
}

func TestHeaderThatIsNotATable(t *testing.T) {
	a := entryJSON("a", "U8", "[1]", 0, 1)
	for _, h := range []string{
		"", "[]", "null", " {" + a + "}", "\xef\xbb\xbf{" + a + "}", "{" + a, "{" + a + "}x", "{" + a + "}{}", "{" + a + "}\x00", "{" + a + ",}", "{'a':1}",
		`{"a":1}`, `{"a":[]}`, `{"a":null}`, `{"a":{}}`, `{"a":{"dtype":"U8","shape":[1]}}`, `{"a":{"dtype":"U8","data_offsets":[0,1]}}`, `{"a":{"shape":[1],"data_offsets":[0,1]}}`,
		`{"a":{"dtype":"U7","shape":[1],"data_offsets":[0,1]}}`, `{"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}}`, `{"a":{"dtype":"u8","shape":[1],"data_offsets":[0,1]}}`,
		`{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}`, `{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}`, `{"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}}`,
		`{"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}}`, `{"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}}`,
		"{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
		`{"__metadata__":[],` + a + "}", `{"__metadata__":{"k":1},` + a + "}", `{"__metadata__":{"k":null},` + a + "}", `{"__metadata__":{"k":{}},` + a + "}",
		strings.Repeat(`{"a":`, 20000), `{"a":` + strings.Repeat("[", 20000),
		`{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,0]}}`, `{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}`,
	} {
		if _, err := openBytes(t, fileBytes(h, 1)); err == nil {
			t.Errorf("header %.80q was accepted", h)
		} else {
			wantError(t, err, ErrCorrupt, "model.safetensors")
		}
	}
	for _, h := range []string{"{" + a + "}", "{" + a + "}  \n\t ", `{"__metadata__":null,` + a + "}", `{"__metadata__":{"format":"pt"},` + a + "}",
		`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"comment":{"x":[1]}}}`, `{"a":{"data_offsets":[0,1],"shape":[2],"dtype":"F4"}}`} {
		if _, err := openBytes(t, fileBytes(h, 1)); err != nil {
			t.Errorf("header %q: %v", h, err)
		}
	}
}

func TestEveryFaultIsReportedAtOnce(t *testing.T) {
	h := "{" + entryJSON("a", "F32", "[3]", 0, 16) + "," + entryJSON("b", "F9", "[4]", 16, 32) + "," + entryJSON("c", "BF16", "[4]", 40, 48) + "}"
	_, err := openBytes(t, fileBytes(h, 48))
	wantError(t, err, ErrCorrupt, "a: shape", `b: bad header entry (found unknown dtype "F9")`, "c: hole")
	list, ok := err.(Problems)
	if !ok || len(list) != 3 {
		t.Errorf("%d problems of %T, wanted 3 Problems", len(list), err)
	}
}

func TestEveryDTypeHasItsWidth(t *testing.T) {
	for d, bits := range dtypeBits {
		n := 8 * 8 / bits * bits / 8 // bytes of 64/bits elements
		if bits == 6 {
			n = 3 // four elements
		}
		h := "{" + entryJSON("a", string(d), fmt.Sprintf("[%d]", n*8/bits), 0, int64(n)) + "}"
		if _, err := openBytes(t, fileBytes(h, n)); err != nil {
			t.Errorf("%s: %v", d, err)
		}
		h = "{" + entryJSON("a", string(d), fmt.Sprintf("[%d]", n*8/bits), 0, int64(n)+1) + "}"
		if _, err := openBytes(t, fileBytes(h, n+1)); err == nil {
			t.Errorf("%s: one byte too many was accepted", d)
		}
	}
}

func TestPackedCodesAreExemptFromTheirShape(t *testing.T) {
	qs := entryJSON("w.qs", "F32", "[4]", 0, 16)
	s, err := openBytes(t, fileBytes("{"+qs+","+entryJSON("w", "U8", "[4,64]", 16, 144)+"}", 144))
	if err != nil {
		t.Fatal(err)
	}
	if w := s.Tensors[1]; w.Size != 128 || w.Elements() != 256 {
		t.Errorf("%d bytes, %d elements", w.Size, w.Elements())
	}
	_, err = openBytes(t, fileBytes("{"+entryJSON("w", "U8", "[4,64]", 0, 128)+"}", 128))
	wantError(t, err, ErrCorrupt, "w: ", "128 bytes", "256")
	_, err = openBytes(t, fileBytes("{"+qs+","+entryJSON("w", "I8", "[4,64]", 16, 144)+"}", 144))
	wantError(t, err, ErrCorrupt, "w: ", "128 bytes", "256")
}

func TestTensorsAreInOrderOfOffset(t *testing.T) {
	s, err := openBytes(t, fileBytes("{"+entryJSON("c", "U8", "[2]", 3, 5)+","+entryJSON("a", "U8", "[1]", 0, 1)+","+entryJSON("b", "U8", "[2]", 1, 3)+"}", 5))
	if err != nil {
		t.Fatal(err)
	}
	at := 8 + s.HeaderSize
	for i, x := range s.Tensors {
		b, err := s.Bytes(x)
		if err != nil || x.Name != string("abc"[i]) || x.Offset != at || b[0] != byte(at-8-s.HeaderSize) || x.Shard != s {
			t.Errorf("tensor %d: %+v %v %v", i, x, b, err)
		}
		at += x.Size
	}
}

func TestBytesOfAnotherShardAreRefused(t *testing.T) {
	s, err := openBytes(t, fileBytes("{"+entryJSON("a", "U8", "[1]", 0, 1)+"}", 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []*Tensor{{Offset: 1 << 40, Size: 1}, {Offset: math.MaxInt64, Size: math.MaxInt64}, {Offset: -1, Size: 1}, {Offset: 0, Size: -1}, {Offset: 0, Size: s.Size + 1}} {
		if _, err := s.Bytes(x); err == nil {
			t.Errorf("%+v was accepted", x)
		}
	}
}

func TestFloatsOfAnotherDType(t *testing.T) {
	s, err := openBytes(t, fileBytes("{"+entryJSON("a", "BF16", "[2]", 0, 4)+"}", 4))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Floats(s.Tensors[0])
	wantError(t, err, ErrUnsupported, "a: ", "BF16", "F32")
}

func TestShardIsMappedOnceForEverybody(t *testing.T) {
	s, err := openBytes(t, fileBytes("{"+entryJSON("a", "F32", "[1024]", 0, 4096)+"}", 4096))
	if err != nil {
		t.Fatal(err)
	}
	if s.mapped != nil {
		t.Error("opening maps the file")
	}
	x := s.Tensors[0]
	p := make([]byte, 16)
	if n, err := s.ReadAt(p, x.Offset+16); n != 16 || err != nil || p[0] != 16 {
		t.Errorf("ReadAt: %d, %v, %v", n, err, p)
	}
	if _, err := s.ReadAt(p, s.Size); err != io.EOF {
		t.Errorf("ReadAt behind the end: %v", err)
	}
	if s.mapped != nil {
		t.Error("ReadAt maps the file")
	}
	var wg sync.WaitGroup
	views := make([][]byte, 8)
	for i := range views {
		wg.Go(func() { views[i], _ = s.Bytes(x) })
	}
	wg.Wait()
	for i, v := range views {
		if len(v) != 4096 || &v[0] != &views[0][0] || cap(v) != len(v) {
			t.Fatalf("view %d: %d bytes, another mapping", i, len(v))
		}
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = s.Bytes(x)
	wantError(t, err, fs.ErrClosed)
}

func TestFileThatShrinksAfterOpeningIsNotMapped(t *testing.T) {
	s, err := openBytes(t, fileBytes("{"+entryJSON("a", "F32", "[1024]", 0, 4096)+"}", 4096))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(s.Path, s.Size-1); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	_, err = s.Bytes(s.Tensors[0])
	wantError(t, err, ErrCorrupt, "changed its size")
}

func TestOpenThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	_, err := OpenShard(filepath.Join(dir, "absent.safetensors"))
	wantError(t, err, fs.ErrNotExist, "absent.safetensors")
	_, err = OpenShard(dir)
	wantError(t, err, ErrCorrupt, "not a regular file")
}

func TestErrorTextIsSafeForATerminal(t *testing.T) {
	h := `{"\u001b[2Jx\n":{"dtype":"U8","shape":[2],"data_offsets":[0,1]},"` + strings.Repeat("n", 100000) + `":{"dtype":"U8","shape":[2],"data_offsets":[1,2]}}`
	_, err := openBytes(t, fileBytes(h, 2))
	wantError(t, err, ErrCorrupt, `\x1b[2Jx\n`)
	if s := err.Error(); strings.Contains(s, "\x1b") || len(s) > 10000 {
		t.Errorf("message of %d bytes: %.100q", len(s), s)
	}
}

func manyTensors(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"__metadata__":{"format":"pt"}`)
	for i := range n {
		fmt.Fprintf(&b, `,"model.layers.%d.mlp.experts.%d.gate_proj.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[%d,%d]}`, i/256, i%256, 12*i, 12*i+12)
	}
	b.WriteByte('}')
	return fileBytes(b.String(), 12*n)
}

// BenchmarkOpenShard opens a file of 60,000 tensors.
func BenchmarkOpenShard(b *testing.B) {
	file := manyTensors(60000)
	path := writeBytes(b, filepath.Join(b.TempDir(), "model.safetensors"), file)
	b.SetBytes(int64(binary.LittleEndian.Uint64(file)))
	b.ReportAllocs()
	for b.Loop() {
		s, err := OpenShard(path)
		if err != nil || len(s.Tensors) != 60000 {
			b.Fatal(err)
		}
		_ = s.Close()
	}
}
