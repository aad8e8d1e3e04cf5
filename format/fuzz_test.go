package format

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"hawkmoth/internal/fixtures"
)

// bounded fails if f allocates much more than its input is long.
func bounded(t *testing.T, n int, f func()) {
	t.Helper()
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	f()
	goruntime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > uint64(1<<20+500*n) {
		t.Errorf("%d bytes are allocated for an input of %d", used, n)
	}
}

// FuzzShardHeader fuzzes a header, the number of bytes after it, and how much
// the length before it is wrong.
func FuzzShardHeader(f *testing.F) {
	a, b := entryJSON("a", "F32", "[2,2]", 0, 16), entryJSON("b", "U8", "[3]", 16, 19)
	for _, h := range []string{"", "{}", "{" + a + "}", "{" + a + "," + b + "}", `{"__metadata__":{"format":"pt"},` + a + "}", "{" + b + "," + a + "}",
		"{" + entryJSON("w.qs", "F32", "[4]", 0, 16) + "," + entryJSON("w", "U8", "[4,64]", 16, 19) + "}", "{" + entryJSON("a", "F32", "[4294967296,4294967296,2]", 0, 19) + "}", "{" + a + "," + a + "}"} {
		f.Add([]byte(h), uint16(19), uint64(0))
		f.Add([]byte(h), uint16(16), uint64(0))
	}
	f.Add([]byte("sion https://git-lfs.github.com/spec/v1\n"), uint16(0), binary.LittleEndian.Uint64([]byte("version ")))
	f.Add([]byte("{}"), uint16(9), uint64(1))
	f.Add([]byte("{}"), uint16(9), uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, header []byte, data uint16, wrong uint64) {
		file := fileBytes(string(header), int(data))
		binary.LittleEndian.PutUint64(file, uint64(len(header))+wrong)
		s := &Shard{Path: "fuzz", Size: int64(len(file))}
		var err error
		bounded(t, len(file), func() { err = s.readHeader(bytes.NewReader(file)) })
		if err != nil {
			if len(err.Error()) > 4*maxText*(len(file)+2) {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
			return
		}
		at, seen := 8+s.HeaderSize, map[string]bool{}
		for _, x := range s.Tensors {
			if seen[x.Name] || x.Offset != at || x.Size < 0 || x.Elements() < 0 || x.DType.Bits() == 0 {
				t.Fatalf("accepted %+v at %d", x, at)
			}
			seen[x.Name] = true
			at += x.Size
		}
		if at != s.Size {
			t.Fatalf("accepted tensors to byte %d of %d", at, s.Size)
		}
		for _, x := range s.Tensors {
			if x.DType != DTypeU8 && x.Size*8 != x.Elements()*int64(x.DType.Bits()) {
				t.Fatalf("accepted %+v", x)
			}
		}
		_, _ = ParseStamps(s.Metadata)
	})
}

func FuzzStamps(f *testing.F) {
	meta := StampMetadata(map[string]Spec{"a": {Int4Grouped, 8, 96, 64}, "b": {FP8, 2, 256, 0}})
	f.Add(meta[KeyColibri], meta[KeyFormats], meta[KeyGroups])
	f.Add(`{"a":"int8-row","a":"int8-row"}`, `{"a":"int4-row"}`, `{"a":64}`)
	f.Add(`{"\u0061":"int8\u002drow"}`, `{"a":null}`, `{"a":1e2}`)
	f.Add(strings.Repeat("[", 100), "", "{}")
	f.Fuzz(func(t *testing.T, colibri, formats, groups string) {
		meta := map[string]string{KeyColibri: colibri, KeyFormats: formats, KeyGroups: groups}
		bounded(t, len(colibri)+len(formats)+len(groups), func() {
			stamps, err := ParseStamps(meta)
			if err != nil {
				return
			}
			for name, st := range stamps {
				if st.Format >= numFormats || st.Group != 0 && st.Format != Int4Grouped {
					t.Errorf("%q is stamped %v", name, st)
				}
				// What a JSON decoder that lets the last duplicate win says, must be it.
				var plain map[string]string
				if json.Unmarshal([]byte(formats), &plain) == nil && plain[name] != "" && plain[name] != st.Format.String() {
					t.Errorf("%q is stamped %v, the text says %q", name, st, plain[name])
				}
			}
		})
	})
}

// FuzzSnapshot opens a directory with an index of the fuzzer's over three
// shards with duplicate names.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte(`{"weight_map":{"w":"b.safetensors","w.qs":"b.safetensors","x":"a.safetensors"}}`))
	f.Add([]byte(`{"metadata":{"total_size":1},"weight_map":{"w":"a.safetensors","w.qs":"b.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"w":"c.safetensors","w.qs":"../c.safetensors"}}`))
	f.Add([]byte("\xef\xbb\xbf{}"))
	dir := f.TempDir()
	spec := Spec{Int8Row, 2, 3, 0}
	writeShard(f, dir+"/a.safetensors", nil, append(pair("w", spec), vec("x", 1))...)
	writeShard(f, dir+"/b.safetensors", nil, pair("w", spec)...)
	writeShard(f, dir+"/c.safetensors", nil, vec("y", 1))
	f.Fuzz(func(t *testing.T, index []byte) {
		if err := os.WriteFile(filepath.Join(dir, indexName), index, 0o644); err != nil {
			t.Fatal(err)
		}
		bounded(t, len(index), func() {
			s, err := Open(dir)
			if err != nil {
				return
			}
			defer func() { _ = s.Close() }()
			w, q := s.Tensor("w"), s.Tensor("w.qs")
			if w == nil || q == nil || w.Shard != q.Shard || filepath.Base(w.Shard.Path) != s.Index["w"] {
				t.Errorf("accepted %v and %v", w, q)
			}
			for name, shard := range s.Index {
				if strings.ContainsAny(shard, `/\`) {
					t.Errorf("%q is in %q", name, shard)
				}
			}
		})
	})
}

func FuzzInfer(f *testing.F) {
	for _, s := range packedSpecs(8, 96) {
		f.Add(s.Bytes(), s.ScaleBytes(), s.Rows, s.Cols)
	}
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), math.MaxInt, math.MaxInt)
	f.Add(int64(-1), int64(4), 1<<30, 1<<30)
	f.Fuzz(func(t *testing.T, nb, ns int64, rows, cols int) {
		s, err := Infer(nb, ns, rows, cols)
		all := Candidates(nb, ns, rows, cols)
		if (err == nil) != (len(all) > 0) {
			t.Fatalf("%v, %v, candidates %v", s, err, all)
		}
		if err != nil {
			_ = err.Error()
			return
		}
		want := inferByHand(nb, ns, int64(rows), int64(cols))
		if s != all[0] || s.Name() != want || s.Bytes() != nb || s.ScaleBytes() != ns {
			t.Fatalf("%v, by hand %q, candidates %v", s, want, all)
		}
		for _, c := range all {
			other, yes := Ambiguous(c)
			if yes != (c != s) || yes && other != s {
				t.Fatalf("%v: ambiguous %v %v", c, other, yes)
			}
		}
	})
}

// TestRealHeadersSurviveEveryCut opens every prefix and every flipped byte of a
// real header: some are still valid, none may panic.
func TestRealHeadersSurviveEveryCut(t *testing.T) {
	file, err := os.ReadFile(fixtures.Path(t, "glm_moe_dsa/model-00001-of-00007.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	s := &Shard{Size: int64(len(file))}
	if err := s.readHeader(bytes.NewReader(file)); err != nil {
		t.Fatal(err)
	}
	end := 8 + int(s.HeaderSize)
	for i := 0; i < end; i++ {
		cut := &Shard{Size: int64(i)}
		if err := cut.readHeader(bytes.NewReader(file[:i])); err == nil {
			t.Fatalf("a file cut to %d bytes was accepted", i)
		}
		file[i] ^= 0x11
		flipped := &Shard{Size: int64(len(file))}
		if err := flipped.readHeader(bytes.NewReader(file)); err == nil {
			for _, x := range flipped.Tensors {
				if x.Offset < int64(end)-8 || x.Offset+x.Size > int64(len(file)) {
					t.Fatalf("byte %d flipped: %+v", i, x)
				}
			}
		}
		file[i] ^= 0x11
	}
}
