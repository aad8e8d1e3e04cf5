package format

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// dataAlign is the alignment of the data section in bytes; with the widest
// elements first every tensor is then aligned to its element.
const dataAlign = 64

const tempSuffix = ".tmp"

// Entry is a tensor to be written: its name, element type and shape.
type Entry struct {
	Name  string
	DType DType
	Shape []int
}

// layout is the header of a file and where each tensor's bytes go.
type layout struct {
	header  []byte // length prefix, JSON and padding
	tensors []span // in file order
	size    int64  // bytes of the whole file
}

type span struct {
	name         string
	offset, size int64
}

// plan orders the entries by element width, widest first, then as given.
func plan(entries []Entry, meta map[string]string) (*layout, error) {
	var problems Problems
	bad := func(e Entry, what string) {
		problems = append(problems, &Error{Kind: ErrUsage, Tensor: e.Name, What: what, Found: fmt.Sprintf("%s%v", e.DType, e.Shape)})
	}
	tooLong := func(n int64) error {
		return &Error{Kind: ErrUsage, What: "too many tensors for one file: header is too long", Found: fmt.Sprintf("%d bytes", n), Wanted: fmt.Sprintf("at most %d", maxHeader)}
	}
	seen := make(map[string]bool, len(entries))
	var names int64
	for _, e := range entries {
		if names += int64(len(e.Name)); names > maxHeader {
			return nil, tooLong(names)
		}
		_, ok := shapeBytes(e.DType, e.Shape)
		switch {
		case e.Name == "__metadata__" || !utf8.ValidString(e.Name):
			bad(e, "not a name for a tensor")
		case seen[e.Name]:
			bad(e, "written twice to one file")
		case e.DType.Bits() == 0:
			bad(e, "unknown dtype")
		case !ok || slices.ContainsFunc(e.Shape, func(d int) bool { return d < 0 }):
			bad(e, "shape has no whole number of bytes that a file can hold")
		}
		seen[e.Name] = true
	}
	for key, value := range meta {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			problems = append(problems, &Error{Kind: ErrUsage, What: "metadata is not UTF-8", Found: strconv.Quote(key)})
		}
	}
	if err := problems.Err(); err != nil {
		return nil, err
	}
	sorted := slices.Clone(entries)
	slices.SortStableFunc(sorted, func(a, b Entry) int { return cmp.Compare(b.DType.Bits(), a.DType.Bits()) })

	l := &layout{header: append(make([]byte, 8), '{')}
	comma := func() {
		if len(l.header) > 9 {
			l.header = append(l.header, ',')
		}
	}
	if len(meta) > 0 {
		keys := make([]string, 0, len(meta))
		for key := range meta {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		l.header = append(l.header, `"__metadata__":{`...)
		for i, key := range keys {
			if i > 0 {
				l.header = append(l.header, ',')
			}
			l.header = append(appendQuoted(l.header, key), ':')
			l.header = appendQuoted(l.header, meta[key])
		}
		l.header = append(l.header, '}')
	}
	var at int64
	for _, e := range sorted {
		size, _ := shapeBytes(e.DType, e.Shape)
		if at > 1<<62-size {
			return nil, &Error{Kind: ErrUsage, Tensor: e.Name, What: "the file would be larger than a file can be"}
		}
		comma()
		l.header = appendQuoted(l.header, e.Name)
		l.header = fmt.Appendf(l.header, `:{"dtype":%q,"shape":[`, string(e.DType))
		for i, d := range e.Shape {
			if i > 0 {
				l.header = append(l.header, ',')
			}
			l.header = strconv.AppendInt(l.header, int64(d), 10)
		}
		l.header = fmt.Appendf(l.header, `],"data_offsets":[%d,%d]}`, at, at+size)
		l.tensors = append(l.tensors, span{e.Name, at, size})
		at += size
	}
	l.header = append(l.header, '}')
	for len(l.header)%dataAlign != 0 {
		l.header = append(l.header, ' ')
	}
	n := int64(len(l.header))
	if n-8 > maxHeader {
		return nil, tooLong(n - 8)
	}
	binary.LittleEndian.PutUint64(l.header, uint64(n-8))
	for i := range l.tensors {
		l.tensors[i].offset += n
	}
	l.size = n + at
	return l, nil
}

func appendQuoted(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // fails for invalid UTF-8 only
	return dst
}

// FileSize is the bytes of the file that Create would write; 0 for entries that it refuses.
func FileSize(entries []Entry, meta map[string]string) int64 {
	l, err := plan(entries, meta)
	if err != nil {
		return 0
	}
	return l.size
}

// Writer fills the tensors of a safetensors file in any order. The same
// entries, metadata and bytes give the same file.
type Writer struct {
	path    string
	file    *os.File
	tensors map[string]*filling
	order   []*filling

	mu   sync.Mutex
	done bool
}

type filling struct {
	span
	written []piece // disjoint, sorted, never touching
}

type piece struct{ from, to int64 }

// Create starts the file path as path + ".tmp" with its final size and its
// header; Commit gives it its name. A stale temporary file is replaced. The
// error wraps the operating system's and says which of the usual causes it is.
func Create(path string, entries []Entry, meta map[string]string) (*Writer, error) {
	l, err := plan(entries, meta)
	if err != nil {
		return nil, withPath(err, path)
	}
	f, err := createTemp(path, l.size)
	if err != nil {
		return nil, err
	}
	w := &Writer{path: path, file: f, tensors: make(map[string]*filling, len(l.tensors))}
	for _, s := range l.tensors {
		t := &filling{span: s}
		w.tensors[s.name] = t
		w.order = append(w.order, t)
	}
	if _, err := f.WriteAt(l.header, 0); err != nil {
		_ = w.Abort()
		return nil, fileError(path, "cannot write", err)
	}
	return w, nil
}

// createTemp makes path + ".tmp" with n bytes.
func createTemp(path string, n int64) (*os.File, error) {
	switch st, err := os.Stat(path); {
	case err != nil:
	case st.IsDir():
		return nil, &Error{Path: path, What: "cannot create: a directory has this name"}
	case !st.Mode().IsRegular(): // a rename would take its place
		return nil, &Error{Path: path, What: "cannot create: a device or a pipe has this name"}
	}
	if err := os.Remove(path + tempSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fileError(path+tempSuffix, "cannot remove a stale temporary file", err)
	}
	f, err := os.OpenFile(path+tempSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fileError(path, "cannot create", err)
	}
	if err := preallocate(f, n); err != nil {
		_ = f.Close()
		_ = os.Remove(f.Name())
		return nil, fileError(path, fmt.Sprintf("cannot reserve %d bytes", n), err)
	}
	return f, nil
}

// WriteAt writes bytes of a tensor from byte off of that tensor on. It is safe
// for concurrent use; writing a byte again is allowed.
func (w *Writer) WriteAt(name string, p []byte, off int64) error {
	t := w.tensors[name]
	if t == nil || off < 0 || off > t.size || int64(len(p)) > t.size-off {
		what, wanted := "no such tensor in this file", ""
		if t != nil {
			what, wanted = "write outside the tensor", fmt.Sprintf("%d bytes", t.size)
		}
		return &Error{Kind: ErrUsage, Path: w.path, Tensor: name, What: what, Found: fmt.Sprintf("[%d,%d)", off, off+int64(len(p))), Wanted: wanted}
	}
	if _, err := w.file.WriteAt(p, t.offset+off); err != nil {
		return fileError(w.path, "cannot write", err)
	}
	w.mu.Lock()
	t.add(piece{off, off + int64(len(p))})
	w.mu.Unlock()
	return nil
}

// add merges a range with those that it meets.
func (t *filling) add(p piece) {
	i, _ := slices.BinarySearchFunc(t.written, p.from, func(q piece, from int64) int { return cmp.Compare(q.to, from) })
	j := i
	for j < len(t.written) && t.written[j].from <= p.to {
		p.from, p.to = min(p.from, t.written[j].from), max(p.to, t.written[j].to)
		j++
	}
	t.written = slices.Replace(t.written, i, j, p)
}

func (t *filling) complete() bool {
	return t.size == 0 || len(t.written) == 1 && t.written[0] == piece{0, t.size}
}

// Commit makes the file durable under its final name. Every byte of every
// tensor must have been written; otherwise, and on any failure, the temporary
// file is removed and the final name is untouched.
func (w *Writer) Commit() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return &Error{Kind: ErrUsage, Path: w.path, What: "file is already committed or aborted"}
	}
	w.done = true
	var problems Problems
	for _, t := range w.order {
		if !t.complete() {
			problems = append(problems, &Error{Kind: ErrIncomplete, Path: w.path, Tensor: t.name, What: "not all bytes were written"})
		}
	}
	if err := problems.Err(); err != nil {
		_ = w.discard()
		return err
	}
	return publish(w.file, w.path)
}

// Abort removes the temporary file. It does nothing after Commit or Abort.
func (w *Writer) Abort() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return nil
	}
	w.done = true
	return w.discard()
}

func (w *Writer) discard() error {
	_ = w.file.Close()
	if err := os.Remove(w.file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fileError(w.file.Name(), "cannot remove", err)
	}
	return nil
}

// publish makes a temporary file durable, renames it and closes it.
func publish(f *os.File, path string) error {
	err := f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fileError(path, "cannot write", err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fileError(path, "cannot sync the directory", err)
	}
	return nil
}

// WriteFileAtomic writes a small file so that its name never holds a part of
// it, not even after a crash: temporary file, fsync, rename, fsync of the directory.
func WriteFileAtomic(path string, data []byte) error {
	f, err := createTemp(path, int64(len(data)))
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		_ = f.Close()
		_ = os.Remove(f.Name())
		return fileError(path, "cannot write", err)
	}
	return publish(f, path)
}

// CanWrite says before the work what WriteFileAtomic and Create would say after
// it; nothing stays behind.
func CanWrite(path string) error {
	f, err := createTemp(path, 0)
	if err != nil {
		return err
	}
	_ = f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return fileError(path, "cannot write", err)
	}
	return nil
}

// withPath adds the file to errors that were made without knowing it.
func withPath(err error, path string) error {
	switch e := err.(type) {
	case *Error:
		e.Path = path
	case Problems:
		for _, p := range e {
			_ = withPath(p, path)
		}
	}
	return err
}
