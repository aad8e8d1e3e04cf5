//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"hawkmoth/internal/msl"
)

// EmulatorOptions say how the emulator runs kernels.
type EmulatorOptions struct {
	Seed    uint64  // permutes what has no order: threads, threadgroups, dispatches; 0: none
	Workers int     // threads of the host; 0: all processors
	Check   bool    // find races, accesses out of bounds, misaligned or of memory never written
	Limits  *Limits // what the device claims to be able to do; nil: an Apple GPU's
}

// emulatorLimits are those of Apple's smallest GPU.
var emulatorLimits = Limits{MaxBuffer: 1 << 40, Memory: 1 << 40, ThreadgroupMemory: 32 << 10, Threads: 1024, Page: 16 << 10,
	SIMD: true, Unified: true, Residency: true}

// OpenEmulator makes a device that runs kernels on the CPU, slowly and exactly.
// Without clang it fails with ErrNoDevice.
func OpenEmulator(o EmulatorOptions) (Device, error) {
	if _, err := msl.Clang(); err != nil {
		return nil, fmt.Errorf("emulator: %w: %w", ErrNoDevice, err)
	}
	if o.Workers == 0 {
		o.Workers = goruntime.GOMAXPROCS(0)
	}
	if o.Limits == nil {
		o.Limits = &emulatorLimits
	}
	return &emuDevice{o}, nil
}

var emulatorDriver = Driver{
	Name: "emulator",
	Devices: func() ([]string, error) {
		if _, err := msl.Clang(); err != nil {
			return nil, fmt.Errorf("emulator: %w: %w", ErrNoDevice, err)
		}
		return []string{"CPU emulator"}, nil
	},
	Open: func(int) (Device, error) { return OpenEmulator(EmulatorOptions{}) },
}

type emuDevice struct{ o EmulatorOptions }

func (d *emuDevice) Name() string   { return "CPU emulator" }
func (d *emuDevice) Limits() Limits { return *d.o.Limits }
func (d *emuDevice) Close() error   { return nil }

type emuLibrary struct {
	d *emuDevice
	m *msl.Module
}

func (d *emuDevice) NewLibrary(name, source string) (Library, error) {
	if l := msl.Lint(source); len(l) > 0 {
		return nil, fmt.Errorf("%s is outside the portable subset: %s", name, strings.Join(l, "; "))
	}
	f, err := msl.Parse(name, source)
	if err != nil {
		return nil, err
	}
	m, err := msl.Load(f, d.o.Check)
	if err != nil {
		return nil, err
	}
	return &emuLibrary{d, m}, nil
}

func (l *emuLibrary) Release() {}

type emuPipeline struct {
	d    *emuDevice
	m    *msl.Module
	k    *msl.Kernel
	vals []msl.Value
}

func (l *emuLibrary) NewPipeline(kernel string, constants ...Constant) (Pipeline, error) {
	k := l.m.Kernel(kernel)
	if k == nil {
		return nil, fmt.Errorf("%s: no kernel %s", l.m.Name, kernel)
	}
	p := &emuPipeline{d: l.d, m: l.m, k: k}
	for _, c := range constants {
		p.vals = append(p.vals, msl.Value(c))
	}
	return p, l.m.Check(p.vals)
}

func (p *emuPipeline) Threads() int { return p.d.o.Limits.Threads }
func (p *emuPipeline) Release()     {}

type emuBuffer struct {
	d      *emuDevice
	b      []byte
	init   []byte // of a Private buffer under check: 1 where something was written
	mem    []byte // the mapping behind b, with an inaccessible page at its end
	memory Memory
	ro     bool
}

// NewBuffer ends the buffer at an inaccessible page and fills it with 0xFF,
// which is NaN in every float type.
func (d *emuDevice) NewBuffer(n int, m Memory) (Buffer, error) {
	if n <= 0 || n > d.o.Limits.MaxBuffer {
		return nil, fmt.Errorf("%w: buffer of %d bytes", ErrMemory, n)
	}
	page := os.Getpagesize()
	size := (n + page - 1) / page * page
	mem, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		err = unix.Mprotect(mem[size:], unix.PROT_NONE)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: buffer of %d bytes: %w", ErrMemory, n, err)
	}
	start := (size - n) &^ 15
	b := &emuBuffer{d: d, mem: mem, b: mem[start : start+n : start+n], memory: m}
	fill(b.b, 0xFF)
	if d.o.Check && m == Private {
		b.init = make([]byte, n)
	}
	return b, nil
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func (d *emuDevice) Wrap(pages []byte) (Buffer, error) {
	page := d.o.Limits.Page
	if len(pages) == 0 || uintptr(unsafe.Pointer(&pages[0]))%uintptr(os.Getpagesize()) != 0 || len(pages)%page != 0 || len(pages) > d.o.Limits.MaxBuffer {
		return nil, fmt.Errorf("wrapped memory must be whole pages of %d bytes, at most %d bytes together (got %d)", page, d.o.Limits.MaxBuffer, len(pages))
	}
	return &emuBuffer{d: d, b: pages, ro: true}, nil
}

func (b *emuBuffer) Len() int { return len(b.b) }

func (b *emuBuffer) Bytes() []byte {
	if b.memory == Private {
		return nil
	}
	return b.b
}

func (b *emuBuffer) Address() uint64 { return uint64(uintptr(unsafe.Pointer(&b.b[0]))) }

func (b *emuBuffer) Read(off int, p []byte) error {
	return b.move(off, len(p), func(m, _ []byte) { copy(p, m) })
}

func (b *emuBuffer) Write(off int, p []byte) error {
	return b.move(off, len(p), func(m, init []byte) { copy(m, p); fill(init, 1) })
}

func (b *emuBuffer) Zero() error {
	return b.move(0, len(b.b), func(m, init []byte) { clear(m); fill(init, 1) })
}

func (b *emuBuffer) move(off, n int, f func(m, init []byte)) error {
	if off < 0 || n < 0 || off > len(b.b)-n {
		return fmt.Errorf("bytes [%d, %d) of a buffer of %d", off, off+n, len(b.b))
	}
	var init []byte
	if b.init != nil {
		init = b.init[off : off+n]
	}
	f(b.b[off:off+n], init)
	return nil
}

func (b *emuBuffer) Release() {
	if b.b == nil {
		return
	}
	msl.Forget(unsafe.Add(unsafe.Pointer(&b.b[0]), len(b.b)))
	if b.mem != nil {
		_ = unix.Munmap(b.mem)
	}
	b.b, b.mem = nil, nil
}

type emuQueue struct{ d *emuDevice }

func (d *emuDevice) NewQueue() (Queue, error) { return &emuQueue{d}, nil }

func (q *emuQueue) CommandBuffer() CommandBuffer { return &emuCommands{d: q.d} }
func (q *emuQueue) Release()                     {}

func (q *emuQueue) KeepResident(b ...Buffer) (func(), error) {
	if !q.d.o.Limits.Residency {
		return nil, fmt.Errorf("%w has residency sets here", ErrNoDevice)
	}
	for _, x := range b {
		if x.(*emuBuffer).b == nil {
			return nil, errors.New("a released buffer cannot be kept resident")
		}
	}
	return func() {}, nil
}

type emuBinding struct {
	buf   *emuBuffer
	off   int
	bytes []byte
}

func (b *emuBinding) set() bool { return b.buf != nil || b.bytes != nil }

type emuDispatch struct {
	p      *emuPipeline
	bind   [31]emuBinding
	shared [8]uint32
	use    []*emuBuffer
	grid   [3]uint32
	tg     [3]uint32
}

// emuCommands are segments of dispatches between barriers.
type emuCommands struct {
	d         *emuDevice
	segments  [][]*emuDispatch
	open      bool
	committed bool
	errs      []error
	gpu       time.Duration
}

func (c *emuCommands) bad(format string, args ...any) {
	if len(c.errs) < 20 {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

func (c *emuCommands) Encoder(concurrent bool) Encoder {
	if c.open || c.committed {
		c.bad("encoder opened before the last one ended or after Commit")
	}
	c.open = true
	c.segments = append(c.segments, nil)
	return &emuEncoder{c: c, concurrent: concurrent, cur: new(emuDispatch)}
}

// Commit runs everything, the dispatches of a segment in any order.
func (c *emuCommands) Commit() {
	if c.open || c.committed {
		c.bad("commit with an open encoder or for the second time")
	}
	c.committed = true
	if len(c.errs) > 0 {
		return
	}
	start := time.Now()
	var rng *rand.Rand
	if c.d.o.Seed != 0 {
		rng = rand.New(rand.NewPCG(c.d.o.Seed, 1))
	}
	for _, seg := range c.segments {
		if rng != nil {
			rng.Shuffle(len(seg), func(i, j int) { seg[i], seg[j] = seg[j], seg[i] })
		}
		if err := c.run(seg); err != nil {
			c.errs = append(c.errs, err)
			break
		}
	}
	c.gpu = time.Since(start)
}

func (c *emuCommands) run(seg []*emuDispatch) error {
	written := map[*emuBuffer]bool{}
	for _, d := range seg {
		for _, p := range d.p.k.Params {
			if b := d.bind[p.Index].buf; p.Attr == "buffer" && !p.Const && b != nil {
				written[b] = true
			}
		}
	}
	for _, d := range seg {
		if err := d.run(written); err != nil {
			return err
		}
	}
	if len(seg) > 0 {
		seg[0].p.m.Barrier()
	}
	return nil
}

func (d *emuDispatch) run(written map[*emuBuffer]bool) error {
	region := func(b *emuBuffer, off int, ro bool) msl.Region {
		r := msl.Region{Ptr: unsafe.Pointer(&b.b[off]), Len: uint64(len(b.b) - off)}
		if ro || b.ro {
			r.RO = 1
		}
		if written[b] {
			r.Track = 1
		}
		if b.init != nil {
			r.Init = unsafe.Pointer(&b.init[off])
		}
		return r
	}
	var pin goruntime.Pinner
	defer pin.Unpin()
	m := msl.Dispatch{Seed: d.p.d.o.Seed, Shared: d.shared, Grid: d.grid, Tg: d.tg}
	for _, p := range d.p.k.Params {
		if p.Attr != "buffer" {
			continue
		}
		switch b := &d.bind[p.Index]; {
		case b.buf != nil:
			if b.buf.b == nil {
				return fmt.Errorf("kernel %s: buffer %d (%s) was released", d.p.k.Name, p.Index, p.Name)
			}
			m.Bufs[p.Index] = region(b.buf, b.off, p.Const)
		default:
			pin.Pin(&b.bytes[0])
			m.Bufs[p.Index] = msl.Region{Ptr: unsafe.Pointer(&b.bytes[0]), Len: uint64(len(b.bytes)), RO: 1}
		}
		if init := m.Bufs[p.Index].Init; init != nil {
			pin.Pin((*byte)(init))
		}
	}
	var extra []msl.Region
	for _, b := range d.use {
		if b.b == nil {
			return fmt.Errorf("kernel %s: a used buffer was released", d.p.k.Name)
		}
		r := region(b, 0, true)
		if r.Init != nil {
			pin.Pin((*byte)(r.Init))
		}
		extra = append(extra, r)
	}
	return d.p.m.Run(d.p.k.Name, d.p.vals, &m, extra, d.p.d.o.Workers)
}

func (c *emuCommands) Wait() error {
	if !c.committed {
		c.bad("wait before commit")
	}
	return errors.Join(c.errs...)
}

func (c *emuCommands) Times() Times { return Times{GPU: c.gpu} }

type emuEncoder struct {
	c          *emuCommands
	concurrent bool
	ended      bool
	cur        *emuDispatch
}

func (e *emuEncoder) SetPipeline(p Pipeline) { e.cur.p = p.(*emuPipeline) }

func (e *emuEncoder) SetBuffer(index int, b Buffer, off int) {
	eb := b.(*emuBuffer)
	if off < 0 || off >= len(eb.b) || index < 0 || index > 30 {
		e.c.bad("buffer %d bound at offset %d of %d bytes", index, off, len(eb.b))
		return
	}
	e.cur.bind[index] = emuBinding{buf: eb, off: off}
}

func (e *emuEncoder) SetBytes(index int, p []byte) {
	if len(p) == 0 || len(p) > 4096 || index < 0 || index > 30 {
		e.c.bad("%d bytes bound at index %d (limit 4096)", len(p), index)
		return
	}
	e.cur.bind[index] = emuBinding{bytes: slices.Clone(p)}
}

func (e *emuEncoder) SetThreadgroupMemory(index, n int) {
	if n <= 0 || n%16 != 0 || index < 0 || index > 7 {
		e.c.bad("threadgroup memory %d of %d bytes, not a multiple of 16", index, n)
		return
	}
	e.cur.shared[index] = uint32(n)
}

func (e *emuEncoder) Use(b ...Buffer) {
	for _, x := range b {
		e.cur.use = append(e.cur.use, x.(*emuBuffer))
	}
}

func (e *emuEncoder) Dispatch(groups, threads Size) {
	d := e.cur
	e.cur = new(emuDispatch)
	if e.ended || d.p == nil {
		e.c.bad("dispatch without a pipeline or after End")
		return
	}
	name, lim := d.p.k.Name, d.p.d.o.Limits
	if n := threads.Count(); n <= 0 || n > lim.Threads || n%32 != 0 {
		e.c.bad("kernel %s: %d threads in a threadgroup (a multiple of 32, at most %d)", name, n, lim.Threads)
		return
	}
	if groups.X <= 0 || groups.X >= 1<<31 || groups.Y < 0 || groups.Y >= 1<<16 || groups.Z < 0 || groups.Z >= 1<<16 {
		e.c.bad("kernel %s: grid of %v threadgroups", name, groups)
		return
	}
	total := 0
	for _, n := range d.shared {
		total += int(n)
	}
	if total > lim.ThreadgroupMemory {
		e.c.bad("kernel %s: %d bytes of threadgroup memory (limit %d)", name, total, lim.ThreadgroupMemory)
		return
	}
	if !e.bound(d) {
		return
	}
	d.grid = [3]uint32{uint32(groups.X), uint32(max(groups.Y, 1)), uint32(max(groups.Z, 1))}
	d.tg = [3]uint32{uint32(threads.X), uint32(max(threads.Y, 1)), uint32(max(threads.Z, 1))}
	last := len(e.c.segments) - 1
	e.c.segments[last] = append(e.c.segments[last], d)
	if !e.concurrent {
		e.Barrier()
	}
}

// bound reports whether exactly the kernel's parameters are bound.
func (e *emuEncoder) bound(d *emuDispatch) bool {
	before := len(e.c.errs)
	var want [31]bool
	for _, p := range d.p.k.Params {
		switch p.Attr {
		case "buffer":
			want[p.Index] = true
			b := &d.bind[p.Index]
			if !b.set() {
				e.c.bad("kernel %s: buffer %d (%s) is not bound", d.p.k.Name, p.Index, p.Name)
			}
			if value := strings.HasSuffix(p.Type, "&"); b.set() && value != (b.bytes != nil) {
				e.c.bad("kernel %s: argument %d (%s): SetBytes is for references, SetBuffer for pointers", d.p.k.Name, p.Index, p.Name)
			}
		case "threadgroup":
			if d.shared[p.Index] == 0 {
				e.c.bad("kernel %s: threadgroup memory %d (%s) has no length", d.p.k.Name, p.Index, p.Name)
			}
		}
	}
	for i := range d.bind {
		if d.bind[i].set() && !want[i] {
			e.c.bad("kernel %s: buffer %d is bound but no parameter", d.p.k.Name, i)
		}
	}
	return len(e.c.errs) == before
}

func (e *emuEncoder) Barrier() { e.c.segments = append(e.c.segments, nil) }

func (e *emuEncoder) End() {
	if e.ended {
		e.c.bad("encoder ended twice")
	}
	e.ended, e.c.open = true, false
	e.Barrier()
}
