package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fileBytes is a safetensors file made by hand, so that it may be wrong.
func fileBytes(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range data {
		b = append(b, byte(i))
	}
	return b
}

func writeBytes(t testing.TB, path string, b []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// openBytes opens a hand-made file and closes it when the test ends.
func openBytes(t testing.TB, b []byte) (*Shard, error) {
	t.Helper()
	s, err := OpenShard(writeBytes(t, filepath.Join(t.TempDir(), "model.safetensors"), b))
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// writeShard writes a good file whose bytes are pseudo-random.
func writeShard(t testing.TB, path string, meta map[string]string, entries ...Entry) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := Create(path, entries, meta)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(entries))))
	for _, e := range entries {
		n, _ := shapeBytes(e.DType, e.Shape)
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		if err := w.WriteAt(e.Name, p, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return path
}

// pair is the two entries of a packed matrix.
func pair(name string, s Spec) []Entry {
	return []Entry{
		{name, DTypeU8, []int{int(s.Bytes())}},
		{name + ScaleSuffix, DTypeF32, []int{int(s.Scales())}},
	}
}

func vec(name string, n int) Entry { return Entry{name, DTypeF32, []int{n}} }

func openSnapshot(t testing.TB, dir string, overlays ...string) *Snapshot {
	t.Helper()
	s, err := Open(dir, overlays...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// wantError checks the kind of an error and that its text has all the words.
func wantError(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, wanted one with %q", words)
	}
	if kind != nil && !errors.Is(err, kind) {
		t.Errorf("error %q is not %q", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}

func entryJSON(name, dtype, shape string, begin, end int64) string {
	return fmt.Sprintf(`%q:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, name, dtype, shape, begin, end)
}
