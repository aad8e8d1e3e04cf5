package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestWriterGolden pins the bytes of a file: the layout is a promise.
func TestWriterGolden(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	entries := []Entry{
		{"b", DTypeU8, []int{3}}, {"a", DTypeU8, []int{2}}, {"s", DTypeF32, nil}, {"h\"", DTypeBF16, []int{1, 2}}, {"z", DTypeF32, []int{0, 5}},
	}
	meta := map[string]string{"format": "pt", "a<b": "\u2028"}
	w, err := Create(path, entries, meta)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]string{"b": "bbb", "a": "aa", "s": "ssss", "h\"": "hhhh"} {
		if err := w.WriteAt(name, []byte(p), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	header := `{"__metadata__":{"a<b":"` + "\u2028" + `","format":"pt"},` +
		`"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},` +
		`"z":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]},` +
		`"h\"":{"dtype":"BF16","shape":[1,2],"data_offsets":[4,8]},` +
		`"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},` +
		`"a":{"dtype":"U8","shape":[2],"data_offsets":[11,13]}}`
	for (len(header)+8)%64 != 0 {
		header += " "
	}
	want := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+"sssshhhhbbbaa"...)
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\n got %q\nwant %q", err, got, want)
	}
	if n := FileSize(entries, meta); n != int64(len(want)) {
		t.Errorf("FileSize is %d, wanted %d", n, len(want))
	}
}

// TestWriterReaderRoundTrip writes random entries in random pieces from several goroutines.
func TestWriterReaderRoundTrip(t *testing.T) {
	var dtypes []DType
	for d := range dtypeBits {
		dtypes = append(dtypes, d)
	}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var entries []Entry
		for i := range rng.IntN(30) {
			e := Entry{Name: fmt.Sprintf("t%d", i), DType: dtypes[rng.IntN(len(dtypes))]}
			for range rng.IntN(4) {
				e.Shape = append(e.Shape, 8*rng.IntN(6)) // whole bytes for every width
			}
			if bits := e.DType.Bits(); len(e.Shape) == 0 && bits%8 != 0 {
				e.Shape = []int{8}
			}
			entries = append(entries, e)
		}
		path := filepath.Join(t.TempDir(), "m.safetensors")
		w, err := Create(path, entries, map[string]string{"seed": fmt.Sprint(seed)})
		if err != nil {
			t.Fatal(err)
		}
		data := map[string][]byte{}
		var wg sync.WaitGroup
		for _, e := range entries {
			n, _ := shapeBytes(e.DType, e.Shape)
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			data[e.Name] = p
			for _, at := range rng.Perm(len(p)/100 + 1) {
				wg.Go(func() {
					from, to := at*100, min(at*100+130, len(p)) // pieces overlap
					if err := w.WriteAt(e.Name, p[from:to], int64(from)); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		s, err := OpenShard(path)
		if err != nil {
			t.Fatal(err)
		}
		if s.Size != FileSize(entries, s.Metadata) || (8+s.HeaderSize)%64 != 0 || len(s.Tensors) != len(entries) || s.Metadata["seed"] != fmt.Sprint(seed) {
			t.Errorf("seed %d: %d bytes, header %d, %d tensors", seed, s.Size, s.HeaderSize, len(s.Tensors))
		}
		for _, x := range s.Tensors {
			b, err := s.Bytes(x)
			if err != nil || !bytes.Equal(b, data[x.Name]) {
				t.Errorf("seed %d: %s differs, %v", seed, x.Name, err)
			}
			if width := int64(x.DType.Bits()+7) / 8; x.Size > 0 && x.DType.Bits()%8 == 0 && x.Offset%width != 0 {
				t.Errorf("seed %d: %s of %s at %d is not aligned", seed, x.Name, x.DType, x.Offset)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWriterIsDeterministic(t *testing.T) {
	entries := append(pair("w", Spec{Int4Grouped, 8, 128, 64}), vec("norm", 7))
	meta := StampMetadata(map[string]Spec{"w": {Int4Grouped, 8, 128, 64}})
	var first []byte
	for range 3 {
		b, err := os.ReadFile(writeShard(t, filepath.Join(t.TempDir(), "m.safetensors"), meta, entries...))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		}
		if !bytes.Equal(first, b) {
			t.Error("same entries, other bytes")
		}
	}
}

func TestCommitNeedsEveryByte(t *testing.T) {
	for _, c := range []struct {
		name   string
		pieces [][2]int64
		ok     bool
	}{
		{"none", nil, false},
		{"no start", [][2]int64{{1, 16}}, false},
		{"no end", [][2]int64{{0, 15}}, false},
		{"hole", [][2]int64{{0, 8}, {9, 16}}, false},
		{"twice the same half", [][2]int64{{0, 8}, {0, 8}}, false},
		{"empty writes", [][2]int64{{0, 8}, {16, 16}, {8, 8}}, false},
		{"backwards", [][2]int64{{12, 16}, {8, 12}, {4, 8}, {0, 4}}, true},
		{"middle last", [][2]int64{{0, 4}, {12, 16}, {2, 13}}, true},
		{"whole over pieces", [][2]int64{{2, 3}, {5, 6}, {9, 10}, {0, 16}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "m.safetensors")
			w, err := Create(path, []Entry{{"a", DTypeU8, []int{16}}, {"z", DTypeU8, []int{0}}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range c.pieces {
				if err := w.WriteAt("a", make([]byte, p[1]-p[0]), p[0]); err != nil {
					t.Fatal(err)
				}
			}
			err = w.Commit()
			if c.ok && err != nil {
				t.Fatal(err)
			}
			want := 1
			if !c.ok {
				wantError(t, err, ErrIncomplete, "m.safetensors", "a: not all bytes")
				want = 0
			}
			if list, _ := os.ReadDir(dir); len(list) != want {
				t.Errorf("%d files are left, wanted %d", len(list), want)
			}
			wantError(t, w.Commit(), ErrUsage, "already committed")
			if err := w.Abort(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWriteOutsideATensor(t *testing.T) {
	w, err := Create(filepath.Join(t.TempDir(), "m.safetensors"), []Entry{{"a", DTypeU8, []int{16}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Abort() }()
	for _, c := range []struct {
		name string
		n    int
		off  int64
	}{{"b", 1, 0}, {"a", 17, 0}, {"a", 1, 16}, {"a", 1, -1}, {"a", 2, 1<<63 - 1}, {"a", 0, 17}} {
		wantError(t, w.WriteAt(c.name, make([]byte, c.n), c.off), ErrUsage, c.name+": ")
	}
}

func TestEntriesThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	for _, c := range []struct {
		entries []Entry
		words   []string
	}{
		{[]Entry{vec("a", 1), vec("a", 2)}, []string{"a: ", "twice"}},
		{[]Entry{vec("__metadata__", 1)}, []string{"not a name"}},
		{[]Entry{vec("a\xff", 1)}, []string{"not a name"}},
		{[]Entry{{"a", "F9", []int{1}}}, []string{"a: ", "unknown dtype"}},
		{[]Entry{{"a", DTypeF32, []int{-1}}}, []string{"a: ", "shape"}},
		{[]Entry{{"a", DTypeF32, []int{1 << 31, 1 << 31, 1 << 31}}}, []string{"a: ", "shape"}},
		{[]Entry{{"a", "F4", []int{3}}}, []string{"a: ", "shape"}},
		{[]Entry{{"a", DTypeU8, []int{1 << 58}}, {"b", DTypeU8, []int{1 << 58}}, {"c", "F9", nil}, vec("a", 1)}, []string{"c: ", "a: ", "twice"}},
	} {
		_, err := Create(path, c.entries, nil)
		wantError(t, err, ErrUsage, append(c.words, "m.safetensors")...)
		if n := FileSize(c.entries, nil); n != 0 {
			t.Errorf("FileSize is %d", n)
		}
	}
	_, err := Create(path, nil, map[string]string{"k": "\xff"})
	wantError(t, err, ErrUsage, "UTF-8")
	long := strings.Repeat("n", 2_600_000)
	many := make([]Entry, 40)
	for i := range many {
		many[i] = vec(long[i:], 1)
	}
	_, err = Create(path, many, nil)
	wantError(t, err, ErrUsage, "too many tensors")
	if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 0 {
		t.Errorf("%d files are left", len(list))
	}
}

// TestE1NothingUnderTheFinalName: an unfinished file never has the final name,
// a finished one survives a failed attempt to replace it, and a stale temporary
// file is in nobody's way.
func TestE1NothingUnderTheFinalName(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	entries := []Entry{{"a", DTypeU8, []int{1000}}}
	abandoned, err := Create(path, entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := abandoned.WriteAt("a", make([]byte, 500), 0); err != nil {
		t.Fatal(err)
	}
	_ = abandoned.file.Close() // as a killed process leaves it
	if _, err := os.Stat(path); err == nil {
		t.Fatal("an unfinished file has the final name")
	}
	writeShard(t, path, nil, entries...)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := Create(path, entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteAt("a", make([]byte, 999), 0); err != nil {
		t.Fatal(err)
	}
	wantError(t, w.Commit(), ErrIncomplete)
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, good) {
		t.Errorf("the good file is gone or changed, %v", err)
	}
	w, err = Create(path, entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Abort(); err != nil {
			t.Error(err)
		}
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("%d files, wanted the good one", len(list))
	}
}

func TestE4OutputProblemsAreNamed(t *testing.T) {
	dir := t.TempDir()
	file := writeBytes(t, filepath.Join(dir, "file"), []byte("x"))
	sealed := filepath.Join(dir, "sealed")
	if err := os.Mkdir(sealed, 0o555); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(dir, "taken.safetensors")
	if err := os.Mkdir(taken, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path string
		is         error
		word       string
		skip       bool
	}{
		{"no directory", filepath.Join(dir, "absent", "m.safetensors"), fs.ErrNotExist, "no such file or directory", false},
		{"directory is a file", filepath.Join(file, "m.safetensors"), syscall.ENOTDIR, "is a file, not a directory", goruntime.GOOS == "windows"},
		{"not permitted", filepath.Join(sealed, "m.safetensors"), fs.ErrPermission, "not permitted", os.Geteuid() <= 0},
		{"name is a directory", taken, nil, "a directory has this name", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.skip {
				t.Skip("SKIPPED: this user or system cannot be refused that way")
			}
			_, err := Create(c.path, []Entry{vec("a", 1)}, nil)
			wantError(t, err, c.is, c.path, c.word)
			wantError(t, WriteFileAtomic(c.path, []byte("{}")), c.is, c.path, c.word)
			if _, err := os.Stat(c.path + tempSuffix); err == nil {
				t.Error("a temporary file is left")
			}
		})
	}
}

func TestE4FullDiskIsFoundBeforeAnyWork(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	w, err := Create(path, []Entry{{"a", DTypeU8, []int{1 << 43}}}, nil)
	if err == nil {
		_ = w.Abort()
		t.Skip("SKIPPED: this file system has 8 TB or cannot reserve")
	}
	wantError(t, err, nil, path, "cannot reserve", "8796093022")
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("%d files are left", len(list))
	}
}

func TestWriteFileAtomic(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	for _, text := range []string{"{}", `{"longer":true}`, "", "x"} {
		writeBytes(t, path+tempSuffix, []byte("stale and much longer than anything that follows"))
		if err := WriteFileAtomic(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("%q, %v, wanted %q", b, err, text)
		}
		if _, err := os.Stat(path + tempSuffix); err == nil {
			t.Error("the temporary file is left")
		}
	}
}
