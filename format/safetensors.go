package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"os"
	"slices"
	"sync"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
)

// maxHeader is the header limit of the safetensors library, in bytes.
const maxHeader = 100_000_000

// ScaleSuffix makes the name of a packed matrix's scales out of the matrix's name.
const ScaleSuffix = ".qs"

// Tensor is one entry of a shard's header.
//
// Offset is counted from the start of the file. Size is what the header's
// offsets say; for a U8 tensor with a companion of scales it need not be the
// product of Shape, which some writers fill with the shape of the matrix.
type Tensor struct {
	Name         string
	DType        DType
	Shape        []int
	Offset, Size int64 // bytes
	Shard        *Shard
}

// Elements is the product of the shape; 1 for a scalar.
func (t *Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// Shard is an open safetensors file whose header has been validated.
type Shard struct {
	Path       string // the name it was opened by; links are not resolved
	Size       int64  // bytes of the file
	HeaderSize int64  // bytes of the JSON header; data starts at 8 + HeaderSize
	Metadata   map[string]string
	Tensors    []*Tensor // by offset, then in the order of the header

	file   *os.File
	mu     sync.Mutex
	mapped []byte
	closed bool
}

// OpenShard reads and validates the header of a safetensors file and maps
// nothing. The error is a *Error or, for several faults, a Problems; every
// tensor that breaks a rule is in it.
func OpenShard(path string) (*Shard, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	s := &Shard{Path: path, file: f}
	st, err := f.Stat()
	if err == nil {
		s.Size = st.Size()
		err = s.readHeader(f)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return s, nil
}

// openFile opens a regular file and names broken links.
func openFile(path string) (*os.File, error) {
	st, err := os.Stat(path) // first, since opening a pipe would wait for its other end
	switch {
	case err == nil && !st.Mode().IsRegular():
		return nil, &Error{Kind: ErrCorrupt, Path: path, What: "not a regular file"}
	case err == nil:
		f, err := os.Open(path)
		if err != nil {
			return nil, fileError(path, "cannot open", err)
		}
		return f, nil
	}
	if target, lerr := os.Readlink(path); lerr == nil {
		// Not wrapped: the name is there, so it is not fs.ErrNotExist.
		return nil, &Error{Kind: ErrIncomplete, Path: path, What: "broken link to " + target + ": incomplete download?"}
	}
	return nil, fileError(path, "cannot open", err)
}

// strangers are other files that people hand to a safetensors reader.
var strangers = []struct{ prefix, what string }{
	{"version https://git-lfs.github.com/", "a Git LFS pointer"},
	{"GGUF", "a GGUF file"},
	{"PK\x03\x04", "a PyTorch archive"},
	{"<", "a web page"},
}

func looksLike(head []byte) string {
	for _, s := range strangers {
		if bytes.HasPrefix(head, []byte(s.prefix)) {
			return " (looks like " + s.what + ")"
		}
	}
	return ""
}

// readHeader reads Size bytes of r as far as the header goes and checks them.
func (s *Shard) readHeader(r io.ReaderAt) error {
	head := make([]byte, min(s.Size, 64))
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, s.Size), head); err != nil {
		return fileError(s.Path, "cannot read", err)
	}
	bad := func(what, found, wanted string) error {
		return &Error{Kind: ErrCorrupt, Path: s.Path, What: what, Found: found, Wanted: wanted}
	}
	var n uint64
	if s.Size >= 8 {
		n = binary.LittleEndian.Uint64(head)
	}
	// A length of a real header may begin with the letters of a stranger.
	stranger, outside := looksLike(head), n > maxHeader || int64(n) > s.Size-8
	switch {
	case s.Size < 8 || outside && stranger != "":
		return bad(fmt.Sprintf("shard is %d bytes, not a safetensors file%s", s.Size, stranger), "", "")
	case n > maxHeader:
		return bad("not a safetensors file: header length is out of range", fmt.Sprintf("%d bytes", n), fmt.Sprintf("at most %d", maxHeader))
	case outside:
		return bad("shard is truncated inside its header", fmt.Sprintf("%d bytes", s.Size), fmt.Sprintf("at least %d", 8+n))
	}
	s.HeaderSize = int64(n)
	header := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(r, 8, int64(n)), header); err != nil {
		return fileError(s.Path, "cannot read the header", err)
	}
	if n == 0 || header[0] != '{' {
		return bad("header does not begin with {", fmt.Sprintf("%.8q", header), "")
	}
	problems, err := s.parseHeader(header)
	if err != nil {
		return &Error{Kind: ErrCorrupt, Path: s.Path, What: "header is not a safetensors header", Err: err}
	}
	problems = append(problems, s.checkLayout()...)
	if len(problems) == 1 {
		return problems[0]
	}
	return problems.Err()
}

// parseHeader fills Metadata and Tensors. Faults of single tensors are
// problems, a header that cannot be read on is an error.
func (s *Shard) parseHeader(header []byte) (Problems, error) {
	var problems Problems
	d := jsontext.NewDecoder(bytes.NewBuffer(header))
	err := readObject(d, func(name []byte) error {
		if string(name) == "__metadata__" {
			return s.parseMetadata(d)
		}
		t := &Tensor{Name: string(name), Shard: s}
		raw, err := t.parse(d)
		if err != nil {
			return err
		}
		if raw != "" {
			problems = append(problems, s.problem(t, "bad header entry", raw, ""))
			return nil
		}
		s.Tensors = append(s.Tensors, t)
		return nil
	})
	if err == nil {
		_, err = d.ReadToken()
		if err == nil {
			err = fmt.Errorf("bytes after the header's object")
		} else if err == io.EOF {
			err = nil
		}
	}
	return problems, err
}

func (s *Shard) parseMetadata(d *jsontext.Decoder) error {
	if d.PeekKind() == 'n' {
		return d.SkipValue()
	}
	s.Metadata = map[string]string{}
	return readObject(d, func(name []byte) error {
		key := string(name)
		value, ok, err := readString(d)
		if err == nil && !ok {
			err = fmt.Errorf("__metadata__ value of %q is not a string", key)
		}
		s.Metadata[key] = value
		return err
	})
}

// parse reads one tensor's object. The text says what is wrong with it alone.
func (t *Tensor) parse(d *jsontext.Decoder) (string, error) {
	if d.PeekKind() != '{' {
		return "not an object", d.SkipValue()
	}
	var begin, end int64
	var bad string
	seen := 0
	err := readObject(d, func(key []byte) error {
		switch string(key) {
		case "dtype":
			seen |= 1
			text, ok, err := readString(d)
			if t.DType = DType(text); err == nil && (!ok || t.DType.Bits() == 0) {
				bad = fmt.Sprintf("unknown dtype %q", text)
			}
			return err
		case "shape":
			seen |= 2
			shape, ok, err := readInts(d)
			if err == nil && !ok {
				bad = "shape is not a list of sizes"
			}
			t.Shape = make([]int, len(shape))
			for i, n := range shape {
				if t.Shape[i] = int(n); int64(t.Shape[i]) != n {
					bad = "shape is out of range"
				}
			}
			return err
		case "data_offsets":
			seen |= 4
			off, ok, err := readInts(d)
			switch {
			case err != nil:
			case !ok || len(off) != 2:
				bad = "data_offsets is not a pair of offsets"
			case off[0] > off[1]:
				bad = fmt.Sprintf("data_offsets begin after their end: [%d,%d]", off[0], off[1])
			default:
				begin, end = off[0], off[1]
			}
			return err
		}
		return d.SkipValue()
	})
	if start := 8 + t.Shard.HeaderSize; err == nil && bad == "" {
		t.Offset, t.Size = start+begin, end-begin
		if seen != 7 {
			bad = "dtype, shape or data_offsets is missing"
		} else if end > 1<<62 {
			bad = fmt.Sprintf("data_offsets are out of range: [%d,%d]", begin, end)
		}
	}
	return bad, err
}

// checkLayout verifies shapes against bytes and that the tensors fill the data
// section without overlap or hole, to the last byte of the file.
func (s *Shard) checkLayout() Problems {
	var problems Problems
	add := func(t *Tensor, what, found, wanted string) {
		problems = append(problems, s.problem(t, what, found, wanted))
	}
	names := make(map[string]bool, len(s.Tensors))
	for _, t := range s.Tensors {
		names[t.Name] = true
	}
	for _, t := range s.Tensors {
		switch want, ok := shapeBytes(t.DType, t.Shape); {
		case !ok:
			add(t, "shape has no whole number of bytes that a file can hold", fmt.Sprintf("%s%v", t.DType, t.Shape), "")
		case want != t.Size && (t.DType != DTypeU8 || !names[t.Name+ScaleSuffix]):
			add(t, fmt.Sprintf("shape %v of %s and its bytes disagree", t.Shape, t.DType), fmt.Sprintf("%d bytes", t.Size), fmt.Sprintf("%d", want))
		}
	}
	slices.SortStableFunc(s.Tensors, func(a, b *Tensor) int {
		if a.Offset != b.Offset {
			return cmpInt(a.Offset, b.Offset)
		}
		return cmpInt(a.Size, b.Size)
	})
	at, last := 8+s.HeaderSize, "the header"
	for _, t := range s.Tensors {
		switch {
		case t.Offset > at:
			add(t, fmt.Sprintf("hole of %d bytes after %s", t.Offset-at, last), "", "")
		case t.Offset < at:
			add(t, "data overlaps with "+last, "", "")
		}
		if end := t.Offset + t.Size; end >= at {
			at, last = end, t.Name
		}
	}
	if at != s.Size && len(problems) == 0 || at > s.Size {
		what, cut := fmt.Sprintf("%d bytes follow the last tensor", s.Size-at), &Tensor{}
		if at > s.Size {
			first := slices.IndexFunc(s.Tensors, func(t *Tensor) bool { return t.Offset+t.Size > s.Size })
			cut, what = s.Tensors[first], fmt.Sprintf("shard is truncated: %d bytes are missing", at-s.Size)
			if more := len(s.Tensors) - first - 1; more > 0 {
				what += fmt.Sprintf(", here and in the %d tensors after it", more)
			}
		}
		problems = append(problems, s.problem(cut, what, fmt.Sprintf("%d bytes", s.Size), fmt.Sprint(at)))
	}
	return problems
}

func (s *Shard) problem(t *Tensor, what, found, wanted string) error {
	return &Error{Kind: ErrCorrupt, Path: s.Path, Tensor: t.Name, What: what, Found: found, Wanted: wanted}
}

// shapeBytes is the size of a tensor; false if it overflows or ends inside a byte.
func shapeBytes(d DType, shape []int) (int64, bool) {
	n, zero := uint64(d.Bits()), false
	for _, dim := range shape {
		hi, lo := bits.Mul64(n, uint64(dim))
		if dim == 0 {
			zero = true // but the other sizes must still make sense
			continue
		}
		if hi != 0 || lo > 1<<62 {
			return 0, false
		}
		n = lo
	}
	if zero {
		return 0, true
	}
	return int64(n / 8), n%8 == 0
}

func cmpInt(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Bytes is a read-only view of a tensor's bytes in the mapping of the file,
// which the first call makes. It is safe for concurrent use; the view is
// invalid after Close.
func (s *Shard) Bytes(t *Tensor) ([]byte, error) {
	if t.Size == 0 {
		return []byte{}, nil
	}
	all, err := s.mapping()
	if err != nil {
		return nil, err
	}
	if t.Offset < 0 || t.Size < 0 || t.Offset > int64(len(all))-t.Size {
		return nil, s.problem(t, "tensor is not in this shard", "", "")
	}
	return all[t.Offset : t.Offset+t.Size : t.Offset+t.Size], nil
}

func (s *Shard) mapping() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, fileError(s.Path, "cannot map", fs.ErrClosed)
	case s.mapped != nil:
		return s.mapped, nil
	}
	// Touching pages behind the end of a file that has shrunk kills the process.
	if st, err := s.file.Stat(); err != nil || st.Size() != s.Size {
		if err == nil {
			err = fmt.Errorf("the file changed its size since it was opened, %d to %d bytes", s.Size, st.Size())
		}
		return nil, &Error{Kind: ErrCorrupt, Path: s.Path, What: "cannot map", Err: err}
	}
	if int64(int(s.Size)) != s.Size {
		return nil, &Error{Kind: ErrUnsupported, Path: s.Path, What: "file is larger than the address space"}
	}
	all, err := mapFile(s.file, int(s.Size))
	if err != nil {
		return nil, fileError(s.Path, "cannot map", err)
	}
	s.mapped = all
	trackMapping(all)
	return all, nil
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// Floats is a view of an F32 tensor, or a copy where its bytes are not aligned
// to four. The error's kind is ErrUnsupported for another dtype.
func (s *Shard) Floats(t *Tensor) ([]float32, error) {
	if t.DType != DTypeF32 || t.Size%4 != 0 {
		return nil, &Error{Kind: ErrUnsupported, Path: s.Path, Tensor: t.Name, What: "dtype", Found: string(t.DType), Wanted: string(DTypeF32)}
	}
	b, err := s.Bytes(t)
	if err != nil || len(b) == 0 {
		return []float32{}, err
	}
	if p := unsafe.Pointer(unsafe.SliceData(b)); littleEndian && uintptr(p)%4 == 0 {
		return unsafe.Slice((*float32)(p), len(b)/4), nil
	}
	dst := make([]float32, len(b)/4)
	_, err = binary.Decode(b, binary.LittleEndian, dst)
	return dst, err
}

// ReadAt reads from the file without mapping it; off is absolute, as Tensor.Offset.
func (s *Shard) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.file.ReadAt(p, off)
	if err != nil && err != io.EOF {
		err = fileError(s.Path, "cannot read", err)
	}
	return n, err
}

// Close unmaps and closes the file; views become invalid. It may be called twice.
func (s *Shard) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var err error
	if s.mapped != nil {
		forgetMapping(s.mapped)
		err = unmapFile(s.mapped)
		s.mapped = nil
	}
	if cerr := s.file.Close(); err == nil {
		err = cerr
	}
	return err
}

// readObject calls member for each name of an object; member reads the value,
// after which the name's bytes are gone.
func readObject(d *jsontext.Decoder, member func(name []byte) error) error {
	tok, err := d.ReadToken()
	if err != nil {
		return err
	}
	if tok.Kind() != '{' {
		return fmt.Errorf("not a JSON object at offset %d", d.InputOffset())
	}
	var buf [128]byte
	for d.PeekKind() != '}' {
		v, err := d.ReadValue()
		if err != nil {
			return err
		}
		name, err := jsontext.AppendUnquote(buf[:0], v)
		if err != nil {
			return err
		}
		if err := member(name); err != nil {
			return err
		}
	}
	_, err = d.ReadToken()
	return err
}

// readString reads a value; false if it is not a string.
func readString(d *jsontext.Decoder) (string, bool, error) {
	if d.PeekKind() != '"' {
		return "", false, d.SkipValue()
	}
	tok, err := d.ReadToken()
	if err != nil {
		return "", false, err
	}
	return tok.String(), true, nil
}

// readInts reads a value; false if it is not a list of integers from 0 to 2^63-1.
func readInts(d *jsontext.Decoder) ([]int64, bool, error) {
	if d.PeekKind() != '[' {
		return nil, false, d.SkipValue()
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, false, err
	}
	list := make([]int64, 0, 4)
	ok := true
	for d.PeekKind() != ']' {
		v, err := d.ReadValue()
		if err != nil {
			return nil, false, err
		}
		n, good := parseSize(v)
		ok = ok && good
		list = append(list, n)
	}
	_, err := d.ReadToken()
	return list, ok, err
}

// parseSize reads plain digits; "1.0", "1e3" and "-0" are not sizes.
func parseSize(v []byte) (int64, bool) {
	var n int64
	if len(v) == 0 || len(v) > 19 {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, n >= 0
}
