package metal

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// weight is a matrix with its places on the device.
type weight struct {
	m      quantize.Matrix
	cpu    runtime.Weight
	codes  spot
	scales spot
	vec    spot // the row of a vector as f32
	floats []float32
	wide   uint8 // alignment for vector loads, see isWide
	why    error // not on the device at all
}

// Spec implements runtime.Weight.
func (w *weight) Spec() format.Spec { return w.m.Spec }

// spot is a place in a buffer.
type spot struct {
	buf Buffer
	off int
}

// address is the place as kernels find it through a pointer.
func (s spot) address() uint64 { return s.buf.Address() + uint64(s.off) }

// Load implements runtime.Backend. The bytes get their place on the device with
// the first Alloc or Run after it, when it is known which of them lie together.
func (b *Backend) Load(m quantize.Matrix) (runtime.Weight, error) {
	cw, err := b.cpu.Load(m)
	if err != nil {
		return nil, err
	}
	w := &weight{m: m, cpu: cw}
	if m.Rows == 1 {
		codec, err := quantize.CodecFor(m.Format)
		if err != nil {
			return nil, err
		}
		w.floats = make([]float32, m.Cols)
		codec.Decode(m, 0, w.floats)
	}
	b.weights, b.pending = append(b.weights, w), append(b.pending, w)
	return w, nil
}

// memoryRange is bytes of a weight and where to note their place.
type memoryRange struct {
	from, to uintptr
	bytes    []byte
	spot     *spot
	w        *weight
}

// gap is how many bytes that are no weights a span may hold between two that are.
const gap = 1 << 20

// place gives the weights loaded since the last time their places: what lies
// together in a mapped file is wrapped together, so that a model takes few
// buffers; weights in ordinary memory are copied.
func (b *Backend) place() error {
	if len(b.pending) == 0 {
		return nil
	}
	if err := b.wait(0); err != nil {
		return err
	}
	var mapped, loose []memoryRange
	add := func(w *weight, s *spot, p []byte) {
		*s = spot{b.empty.buf, 0}
		if len(p) == 0 {
			return
		}
		at := uintptr(unsafe.Pointer(&p[0]))
		r := memoryRange{at, at + uintptr(len(p)), p, s, w}
		if format.Mapping(p) != nil {
			mapped = append(mapped, r)
		} else {
			loose = append(loose, r)
		}
	}
	for _, w := range b.pending {
		add(w, &w.codes, w.m.W)
		add(w, &w.scales, bytesOfFloats(w.m.S))
	}
	if err := errors.Join(b.wrapAll(mapped), b.copyAll(loose), b.placeVectors()); err != nil {
		return err
	}
	for _, w := range b.pending {
		w.wide = isWide(w)
	}
	b.pending = nil
	b.reached = append(slices.Clone(b.spans), b.empty.buf)
	return b.keepResident()
}

// NoRoom gives the weights loaded so far their places and tells of those for
// which the device has none: the CPU runs what reads them. nil if there are none.
func (b *Backend) NoRoom() (*Notice, error) {
	if err := b.place(); err != nil {
		return nil, err
	}
	var n int
	var bytes int64
	for _, w := range b.weights {
		if w.why != nil {
			n++
			bytes += int64(len(w.m.W) + 4*len(w.m.S))
		}
	}
	if n == 0 {
		return nil, nil //nolint:nilnil // said above
	}
	return &Notice{
		Kind: "memory", Cure: "convert to smaller formats, or choose a device with more memory, see --list-devices",
		Text: fmt.Sprintf("no room on the device for %d of %d weights (%s); the CPU runs what reads them", n, len(b.weights), format.Bytes(bytes)),
	}, nil
}

// wrapAll wraps ranges of mapped files in spans of whole pages.
func (b *Backend) wrapAll(ranges []memoryRange) error {
	slices.SortStableFunc(ranges, func(a, b memoryRange) int { return cmp.Compare(a.from, b.from) })
	unit := uintptr(max(b.limits.Page, 64))
	page := min(unit, uintptr(os.Getpagesize()))
	up := func(n uintptr) uintptr { return (n + unit - 1) &^ (unit - 1) }
	for len(ranges) > 0 {
		from := ranges[0].from &^ (page - 1)
		to, n := ranges[0].to, 1
		file := &format.Mapping(ranges[0].bytes)[0]
		for ; n < len(ranges) && ranges[n].from <= to+gap && &format.Mapping(ranges[n].bytes)[0] == file; n++ {
			grown := max(to, ranges[n].to)
			if up(grown-from) > uintptr(b.limits.MaxBuffer) {
				break
			}
			to = grown
		}
		if err := b.wrap(ranges[:n], from, up(to-from)); err != nil {
			return err
		}
		ranges = ranges[n:]
	}
	return nil
}

// room says why n bytes more do not fit on the device.
func (b *Backend) room(n int) error {
	used := b.memory.Wrapped + b.memory.Copied + b.memory.Buffers + int64(n)
	switch {
	case n > b.limits.MaxBuffer:
		return fmt.Errorf("%d bytes in a buffer of at most %d", n, b.limits.MaxBuffer)
	case !b.limits.Unified && used > int64(b.limits.Memory):
		return fmt.Errorf("%d bytes of %d", used, b.limits.Memory)
	}
	return nil
}

// leave leaves weights to the CPU.
func leave(ranges []memoryRange, why error) {
	for _, r := range ranges {
		r.w.why = &Reason{Cause: ForMemory, Err: &format.Error{Kind: format.ErrUnsupported, What: "no room on the device", Err: why}}
	}
}

// wrap makes one span visible to the device; what it cannot read where it is,
// is copied.
func (b *Backend) wrap(ranges []memoryRange, from, n uintptr) error {
	if err := b.room(int(n)); err != nil {
		leave(ranges, err)
		return nil
	}
	first := ranges[0]
	buf, err := b.dev.Wrap(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&first.bytes[0]), -int(first.from-from))), n))
	if err != nil {
		return b.copyAll(ranges)
	}
	if b.limits.Unified {
		b.memory.Wrapped += int64(n)
	} else {
		b.memory.Copied += int64(n)
	}
	b.spans = append(b.spans, buf)
	for _, r := range ranges {
		*r.spot = spot{buf, int(r.from - from)}
	}
	return nil
}

// copyAll copies ranges into as few buffers as the device allows.
func (b *Backend) copyAll(ranges []memoryRange) error {
	const align = 256
	for len(ranges) > 0 {
		size, n := 0, 0
		for ; n < len(ranges) && (n == 0 || size+len(ranges[n].bytes) <= b.limits.MaxBuffer); n++ {
			size += ceil(len(ranges[n].bytes), align) * align
		}
		err := b.room(size)
		var buf Buffer
		if err == nil {
			kind := Private
			if b.limits.Unified {
				kind = Shared
			}
			buf, err = b.dev.NewBuffer(size, kind)
		}
		if err != nil {
			leave(ranges[:n], err)
			ranges = ranges[n:]
			continue
		}
		b.spans = append(b.spans, buf)
		b.memory.Copied += int64(size)
		at := 0
		for _, r := range ranges[:n] {
			if err := buf.Write(at, r.bytes); err != nil {
				return err
			}
			*r.spot = spot{buf, at}
			at += ceil(len(r.bytes), align) * align
		}
		ranges = ranges[n:]
	}
	return nil
}

// placeVectors copies the vectors, made f32, into one buffer.
func (b *Backend) placeVectors() error {
	n := 0
	for _, w := range b.weights {
		n += len(w.floats)
	}
	if n == 0 {
		return nil
	}
	v, err := b.vector(4 * n)
	if err != nil {
		return err
	}
	b.release(b.constant)
	b.constant = v
	at := 0
	for _, w := range b.weights {
		if len(w.floats) == 0 {
			continue
		}
		w.vec = spot{v.buf, at}
		if err := v.buf.Write(at, bytesOfFloats(w.floats)); err != nil {
			return err
		}
		at += 4 * len(w.floats)
	}
	return nil
}

// isWide says how every lane of a product can load its codes: 2 in vectors of 16
// bytes, 1 in those of 8, 0 one by one.
func isWide(w *weight) uint8 {
	if w.m.Cols%32 != 0 {
		return 0
	}
	whole, half := 16, 8
	switch w.m.Format {
	case format.Int8Row, format.Int4Row, format.Int4Grouped:
		half = whole
	case format.Int2Row, format.Int3G64:
		whole = half
	}
	for i, align := range []int{whole, half} {
		if w.codes.off%align == 0 && w.m.RowBytes()%align == 0 {
			return uint8(2 - i)
		}
	}
	return 0
}

func (b *Backend) keepResident() error {
	for _, f := range b.resident {
		f()
	}
	b.resident, b.memory.Resident = nil, false
	if !b.limits.Residency || b.off["residency"] || len(b.spans) == 0 {
		return nil
	}
	release, err := b.queue.KeepResident(b.spans...)
	if err != nil {
		return err
	}
	b.resident, b.memory.Resident = append(b.resident, release), true
	return nil
}

func bytesOfFloats(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}
