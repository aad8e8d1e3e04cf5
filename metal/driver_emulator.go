//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	goruntime "runtime"
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
	Name:     "emulator",
	Emulated: true,
	Devices: func() ([]string, error) {
		if _, err := msl.Clang(); err != nil {
			return nil, fmt.Errorf("emulator: %w: %w", ErrNoDevice, err)
		}
		return []string{emulatorName}, nil
	},
	Open: func(int) (Device, error) { return OpenEmulator(EmulatorOptions{}) },
}

type emuDevice struct{ o EmulatorOptions }

func (d *emuDevice) Name() string   { return emulatorName }
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

func (p *emuPipeline) Threads() int   { return p.d.o.Limits.Threads }
func (p *emuPipeline) String() string { return "kernel " + p.k.Name }
func (p *emuPipeline) Release()       {}

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

func (q *emuQueue) CommandBuffer() CommandBuffer {
	c := &emuCommands{d: q.d}
	c.commands = commands{driver: c, limits: q.d.o.Limits}
	return c
}

func (q *emuQueue) Release() {}

func (q *emuQueue) KeepResident(b ...Buffer) (func(), error) {
	if !q.d.o.Limits.Residency {
		return nil, errNoResidency
	}
	for _, x := range b {
		if x.Len() == 0 {
			return nil, errors.New("a released buffer cannot be kept resident")
		}
	}
	return func() {}, nil
}

type emuCommands struct {
	commands
	d   *emuDevice
	gpu time.Duration
}

// launch runs everything, the dispatches between two barriers in any order.
func (c *emuCommands) launch() error {
	start := time.Now()
	defer func() { c.gpu = time.Since(start) }()
	var rng *rand.Rand
	if c.d.o.Seed != 0 {
		rng = rand.New(rand.NewPCG(c.d.o.Seed, 1))
	}
	for i := range c.dispatches {
		c.check(&c.dispatches[i])
	}
	if len(c.errs) > 0 {
		return nil
	}
	return c.segments(func(seg []dispatch) error {
		if rng != nil {
			rng.Shuffle(len(seg), func(i, j int) { seg[i], seg[j] = seg[j], seg[i] })
		}
		written := map[*emuBuffer]bool{}
		for i := range seg {
			k := seg[i].pipeline.(*emuPipeline).k
			for _, b := range c.of(&seg[i]) {
				if p := k.Buffer(b.index); b.buf != nil && !p.Const {
					written[b.buf.(*emuBuffer)] = true
				}
			}
		}
		for i := range seg {
			if err := c.run(&seg[i], written); err != nil {
				return err
			}
		}
		seg[0].pipeline.(*emuPipeline).m.Barrier()
		return nil
	})
}

// check compares the bindings with the kernel's parameters.
func (c *emuCommands) check(d *dispatch) {
	k := d.pipeline.(*emuPipeline).k
	bound := d.bound
	for _, p := range k.Params {
		switch {
		case p.Attr == "threadgroup" && d.shared[p.Index] == 0:
			c.bad("kernel %s: threadgroup memory %d (%s) has no length", k.Name, p.Index, p.Name)
		case p.Attr == "buffer" && bound>>p.Index&1 == 0:
			c.bad("kernel %s: argument %d (%s) is not bound", k.Name, p.Index, p.Name)
		case p.Attr == "buffer":
			bound &^= 1 << p.Index
		}
	}
	for _, b := range c.of(d) {
		p := k.Buffer(b.index)
		switch {
		case bound>>b.index&1 == 1:
			c.bad("kernel %s: argument %d is bound but no parameter", k.Name, b.index)
		case strings.HasSuffix(p.Type, "&") != (b.buf == nil):
			c.bad("kernel %s: argument %d (%s): SetBytes is for references, SetBuffer for pointers", k.Name, p.Index, p.Name)
		case b.buf == nil && b.bytes.hi-b.bytes.lo != d.pipeline.(*emuPipeline).m.Size(k.Name, b.index):
			c.bad("kernel %s: argument %d (%s) is %d bytes, bound are %d", k.Name, p.Index, p.Name, d.pipeline.(*emuPipeline).m.Size(k.Name, b.index), b.bytes.hi-b.bytes.lo)
		case b.buf != nil && b.buf.Len() == 0:
			c.bad("kernel %s: argument %d (%s) was released", k.Name, p.Index, p.Name)
		}
	}
	for _, b := range c.used[d.used.lo:d.used.hi] {
		if b.Len() == 0 {
			c.bad("kernel %s: a used buffer was released", k.Name)
		}
	}
}

func (c *emuCommands) run(d *dispatch, written map[*emuBuffer]bool) error {
	p := d.pipeline.(*emuPipeline)
	var pin goruntime.Pinner
	defer pin.Unpin()
	region := func(b *emuBuffer, off int, ro bool) msl.Region {
		r := msl.Region{Ptr: unsafe.Pointer(&b.b[off]), Len: uint64(len(b.b) - off)}
		if ro || b.ro {
			r.RO = 1
		}
		if written[b] {
			r.Track = 1
		}
		if b.init != nil {
			pin.Pin(&b.init[off])
			r.Init = unsafe.Pointer(&b.init[off])
		}
		return r
	}
	m := msl.Dispatch{Seed: c.d.o.Seed, Grid: [3]uint32{uint32(d.groups.X), uint32(d.groups.Y), uint32(d.groups.Z)},
		Tg: [3]uint32{uint32(d.threads.X), uint32(d.threads.Y), uint32(d.threads.Z)}}
	for i, n := range d.shared {
		m.Shared[i] = uint32(n)
	}
	for _, b := range c.of(d) {
		if b.buf != nil {
			m.Bufs[b.index] = region(b.buf.(*emuBuffer), b.off, p.k.Buffer(b.index).Const)
			continue
		}
		at := &c.bytes[b.bytes.lo]
		pin.Pin(at)
		m.Bufs[b.index] = msl.Region{Ptr: unsafe.Pointer(at), Len: uint64(b.bytes.hi - b.bytes.lo), RO: 1}
	}
	var extra []msl.Region
	for _, b := range c.used[d.used.lo:d.used.hi] {
		extra = append(extra, region(b.(*emuBuffer), 0, true))
	}
	return p.m.Run(p.k.Name, p.vals, &m, extra, c.d.o.Workers)
}

func (c *emuCommands) finish() (Times, error) { return Times{GPU: c.gpu}, nil }
