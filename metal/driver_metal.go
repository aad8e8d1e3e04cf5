//go:build (darwin || linux) && (amd64 || arm64) && !nogpu

package metal

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
)

// metalDriver is in the table of drivers on macOS; elsewhere it is built for the
// test that runs it against a stand-in for Objective-C.
var metalDriver = Driver{
	Name: "metal",
	Devices: func() (names []string, err error) {
		if err := loadObjC(); err != nil {
			return nil, err
		}
		pool(func() {
			all := copyDevices()
			for _, d := range all {
				names = append(names, goString(msg(d, sel.name)))
				msg(d, sel.release)
			}
		})
		if len(names) == 0 {
			return nil, fmt.Errorf("metal: %w", ErrNoDevice)
		}
		return names, nil
	},
	Open: openMetal,
}

// copyDevices are all devices, retained, the system's default first. Programs
// without a window server may have no default device and yet several.
func copyDevices() []id {
	var all []id
	first, _, _ := purego.SyscallN(objc.device)
	if first != 0 {
		all = append(all, first)
	}
	array, _, _ := purego.SyscallN(objc.devices)
	if array == 0 {
		return all
	}
	defer msg(array, sel.release)
	for i := range msg(array, sel.count) {
		if d := msg(array, sel.objectAtIndex, i); d != first {
			all = append(all, msg(d, sel.retain))
		}
	}
	return all
}

// Values of Metal's headers.
const (
	familyApple7      = 1007 // simdgroup reductions and matrices
	languageVersion30 = 3 << 16
	languageVersion32 = 3<<16 + 2
	mathModeSafe      = 0
	mathPrecise       = 1
	storageShared     = 0
	hazardUntracked   = 1 << 8 // what orders dispatches are our barriers
	dispatchConcurent = 1
	barrierBuffers    = 1
	usageRead         = 1
	statusCompleted   = 4
	typeFloat         = 3
	typeInt           = 29
	typeUInt          = 33
	typeBool          = 53
)

type metalDevice struct {
	id     id
	name   string
	limits Limits
}

func openMetal(index int) (dev Device, err error) {
	if err := loadObjC(); err != nil {
		return nil, err
	}
	pool(func() {
		all := copyDevices()
		for i, d := range all {
			if i != index {
				msg(d, sel.release)
			}
		}
		if index < 0 || index >= len(all) {
			err = fmt.Errorf("metal: %w %d: there are %d", ErrNoDevice, index, len(all))
			return
		}
		d := all[index]
		dev = &metalDevice{id: d, name: goString(msg(d, sel.name)), limits: Limits{
			MaxBuffer:         int(msg(d, sel.maxBufferLength)),
			Memory:            int(msg(d, sel.recommendedMaxWorkingSetSize)),
			ThreadgroupMemory: int(msg(d, sel.maxThreadgroupMemoryLength)),
			Threads:           1024,
			Page:              16 << 10,
			SIMD:              yes(d, sel.supportsFamily, familyApple7),
			Unified:           yes(d, sel.hasUnifiedMemory),
			Residency:         responds(d, sel.newResidencySet),
		}}
	})
	return dev, err
}

func (d *metalDevice) Name() string   { return d.name }
func (d *metalDevice) Limits() Limits { return d.limits }

func (d *metalDevice) Close() error {
	pool(func() { msg(d.id, sel.release) })
	return nil
}

type metalLibrary struct{ dev, id id }

// NewLibrary asks for arithmetic that neither fuses nor approximates.
func (d *metalDevice) NewLibrary(name, source string) (lib Library, err error) {
	pool(func() {
		text := nsString(source)
		if text == 0 {
			err = fmt.Errorf("%s: the text is not UTF-8", name)
			return
		}
		defer msg(text, sel.release)
		o := instance("MTLCompileOptions")
		defer msg(o, sel.release)
		if responds(o, sel.setMathMode) { // macOS 15
			msg(o, sel.setLanguageVersion, languageVersion32)
			msg(o, sel.setMathMode, mathModeSafe)
			msg(o, sel.setMathFloatingPointFunctions, mathPrecise)
		} else {
			msg(o, sel.setLanguageVersion, languageVersion30)
			msg(o, sel.setFastMathEnabled, 0)
		}
		e := new(id)
		l := msg(d.id, sel.newLibraryWithSource, text, o, uintptr(unsafe.Pointer(e)))
		if l == 0 { // an error beside a library is a warning
			err = nsError("compile "+name, *e)
			return
		}
		lib = &metalLibrary{d.id, l}
	})
	return lib, err
}

func (l *metalLibrary) Release() { pool(func() { msg(l.id, sel.release) }) }

type metalPipeline struct {
	id   id
	name string
	max  int
}

func (l *metalLibrary) NewPipeline(kernel string, constants ...Constant) (p Pipeline, err error) {
	pool(func() {
		values := instance("MTLFunctionConstantValues")
		defer msg(values, sel.release)
		for _, c := range constants {
			b := new([4]byte)
			var t uintptr
			switch v := c.Value.(type) {
			case bool:
				t = typeBool
				*(*bool)(unsafe.Pointer(b)) = v
			case int32:
				t = typeInt
				*(*int32)(unsafe.Pointer(b)) = v
			case uint32:
				t = typeUInt
				*(*uint32)(unsafe.Pointer(b)) = v
			case float32:
				t = typeFloat
				*(*float32)(unsafe.Pointer(b)) = v
			default:
				err = fmt.Errorf("kernel %s: function constant %d has type %T", kernel, c.Index, c.Value)
				return
			}
			msg(values, sel.setConstantValue, uintptr(unsafe.Pointer(b)), t, uintptr(c.Index))
		}
		name := nsString(kernel)
		defer msg(name, sel.release)
		e := new(id)
		f := msg(l.id, sel.newFunctionWithName, name, values, uintptr(unsafe.Pointer(e)))
		if f == 0 {
			err = nsError("kernel "+kernel, *e)
			return
		}
		defer msg(f, sel.release)
		*e = 0
		ps := msg(l.dev, sel.newComputePipelineStateWithFunction, f, uintptr(unsafe.Pointer(e)))
		if ps == 0 {
			err = nsError("kernel "+kernel, *e)
			return
		}
		if w := msg(ps, sel.threadExecutionWidth); w != 32 {
			msg(ps, sel.release)
			err = fmt.Errorf("kernel %s: simdgroups of %d threads, not 32", kernel, w)
			return
		}
		p = &metalPipeline{ps, kernel, int(msg(ps, sel.maxTotalThreadsPerThreadgroup)) / 32 * 32}
	})
	return p, err
}

func (p *metalPipeline) Threads() int   { return p.max }
func (p *metalPipeline) String() string { return "kernel " + p.name }
func (p *metalPipeline) Release()       { pool(func() { msg(p.id, sel.release) }) }

type metalBuffer struct {
	id      id
	b       []byte
	private bool
}

func (d *metalDevice) NewBuffer(n int, m Memory) (buf Buffer, err error) {
	err = fmt.Errorf("%w: buffer of %d bytes", ErrMemory, n)
	if n <= 0 || n > d.limits.MaxBuffer {
		return nil, err
	}
	pool(func() {
		if b := msg(d.id, sel.newBufferWithLength, uintptr(n), storageShared|hazardUntracked); b != 0 {
			c := msg(b, sel.contents)
			buf, err = &metalBuffer{b, unsafe.Slice((*byte)(pointer(c)), n), m == Private}, nil
		}
	})
	return buf, err
}

func (d *metalDevice) Wrap(pages []byte) (buf Buffer, err error) {
	if len(pages) == 0 || len(pages)%d.limits.Page != 0 || uintptr(unsafe.Pointer(&pages[0]))%uintptr(d.limits.Page) != 0 || len(pages) > d.limits.MaxBuffer {
		return nil, fmt.Errorf("wrapped memory must be whole pages of %d bytes, at most %d bytes together (got %d)", d.limits.Page, d.limits.MaxBuffer, len(pages))
	}
	err = fmt.Errorf("%w: %d bytes cannot be wrapped", ErrMemory, len(pages))
	pool(func() {
		if b := msg(d.id, sel.newBufferWithBytesNoCopy, uintptr(unsafe.Pointer(&pages[0])), uintptr(len(pages)), storageShared|hazardUntracked, 0); b != 0 {
			buf, err = &metalBuffer{id: b, b: pages}, nil
		}
	})
	return buf, err
}

func (b *metalBuffer) Len() int { return len(b.b) }

func (b *metalBuffer) Bytes() []byte {
	if b.private {
		return nil
	}
	return b.b
}

func (b *metalBuffer) move(off, n int, f func(part []byte)) error {
	if off < 0 || off > len(b.b)-n {
		return fmt.Errorf("bytes [%d, %d) of a buffer of %d", off, off+n, len(b.b))
	}
	f(b.b[off : off+n])
	return nil
}

func (b *metalBuffer) Read(off int, p []byte) error {
	return b.move(off, len(p), func(part []byte) { copy(p, part) })
}

func (b *metalBuffer) Write(off int, p []byte) error {
	return b.move(off, len(p), func(part []byte) { copy(part, p) })
}

func (b *metalBuffer) Zero() error {
	clear(b.b)
	return nil
}

func (b *metalBuffer) Address() uint64 { return uint64(msg(b.id, sel.gpuAddress)) }

func (b *metalBuffer) Release() {
	if b.b != nil {
		pool(func() { msg(b.id, sel.release) })
		b.b = nil
	}
}

// metalQueue orders its encoders with one fence, because untracked buffers are
// not ordered by the system.
type metalQueue struct {
	d         *metalDevice
	id, fence id
	mu        sync.Mutex
	fenced    bool // some encoder updates the fence
	free      []*metalCommands
}

func (d *metalDevice) NewQueue() (q Queue, err error) {
	pool(func() {
		m := &metalQueue{d: d, id: msg(d.id, sel.newCommandQueue), fence: msg(d.id, sel.newFence)}
		if m.id == 0 || m.fence == 0 {
			err = errors.New("metal: no command queue")
			return
		}
		q = m
	})
	return q, err
}

func (q *metalQueue) Release() {
	pool(func() {
		msg(q.fence, sel.release)
		msg(q.id, sel.release)
	})
}

func (q *metalQueue) KeepResident(buffers ...Buffer) (release func(), err error) {
	if !q.d.limits.Residency {
		return nil, errNoResidency
	}
	pool(func() {
		desc := instance("MTLResidencySetDescriptor")
		defer msg(desc, sel.release)
		msg(desc, sel.setInitialCapacity, uintptr(len(buffers)))
		e := new(id)
		set := msg(q.d.id, sel.newResidencySet, desc, uintptr(unsafe.Pointer(e)))
		if set == 0 {
			err = nsError("residency set", *e)
			return
		}
		for _, b := range buffers {
			msg(set, sel.addAllocation, b.(*metalBuffer).id)
		}
		msg(set, sel.commit)
		msg(set, sel.requestResidency)
		msg(q.id, sel.addResidencySet, set)
		stop := keepAlive(set)
		release = sync.OnceFunc(func() {
			stop()
			pool(func() {
				msg(q.id, sel.removeResidencySet, set)
				msg(set, sel.endResidency)
				msg(set, sel.release)
			})
		})
	})
	return release, err
}

// residencyBeat is how often a residency set is asked for again: the system
// lets go of memory that was idle for a second or so, as while a user types.
var residencyBeat = 500 * time.Millisecond

// keepAlive asks for the set again and again until stop is called.
func keepAlive(set id) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		beat := time.NewTicker(residencyBeat)
		defer beat.Stop()
		for {
			select {
			case <-quit:
				return
			case <-beat.C:
				pool(func() { msg(set, sel.requestResidency) })
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func (q *metalQueue) CommandBuffer() CommandBuffer {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.free); n > 0 {
		c := q.free[n-1]
		q.free = q.free[:n-1]
		c.reset()
		return c
	}
	c := &metalCommands{q: q}
	c.commands = commands{driver: c, limits: &q.d.limits}
	return c
}

type metalCommands struct {
	commands
	q  *metalQueue
	id id
	// arguments of a dispatch, which arm64 passes by address
	groups, threads mtlSize
}

func (c *metalCommands) launch() (err error) {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	pool(func() {
		// Messages to nil do nothing: what was not made has to be noticed here.
		if c.id = msg(msg(c.q.id, sel.commandBuffer), sel.retain); c.id == 0 {
			err = errors.New("metal: no command buffer")
			return
		}
		if len(c.dispatches) > 0 && !c.encode() {
			err = errors.New("metal: no compute encoder")
			msg(c.id, sel.release)
			c.id = 0
			return
		}
		msg(c.id, sel.commit)
	})
	return err
}

// encode makes one concurrent encoder of all that was recorded; the ends of
// the recorded encoders are barriers in it. It is false if the system made none.
func (c *metalCommands) encode() bool {
	e := msg(c.id, sel.computeCommandEncoder, dispatchConcurent)
	if e == 0 {
		return false
	}
	if c.q.fenced {
		msg(e, sel.waitForFence, c.q.fence)
	}
	c.q.fenced = true
	for i := range c.dispatches {
		d := &c.dispatches[i]
		if d.after && i > 0 {
			msg(e, sel.memoryBarrierWithScope, barrierBuffers)
		}
		msg(e, sel.setComputePipelineState, d.pipeline.(*metalPipeline).id)
		for _, b := range c.bindings[d.bindings.lo:d.bindings.hi] {
			if b.buf != nil {
				msg(e, sel.setBuffer, b.buf.(*metalBuffer).id, uintptr(b.off), uintptr(b.index))
			} else {
				msg(e, sel.setBytes, uintptr(unsafe.Pointer(&c.bytes[b.bytes.lo])), uintptr(b.bytes.hi-b.bytes.lo), uintptr(b.index))
			}
		}
		for j, n := range d.shared {
			if n > 0 {
				msg(e, sel.setThreadgroupMemoryLength, uintptr(n), uintptr(j))
			}
		}
		for _, b := range c.used[d.used.lo:d.used.hi] {
			msg(e, sel.useResource, b.(*metalBuffer).id, usageRead)
		}
		c.dispatch(e, d)
	}
	msg(e, sel.updateFence, c.q.fence)
	msg(e, sel.endEncoding)
	return true
}

func (c *metalCommands) dispatch(e id, d *dispatch) {
	c.groups = mtlSize{uint64(d.groups.X), uint64(d.groups.Y), uint64(d.groups.Z)}
	c.threads = mtlSize{uint64(d.threads.X), uint64(d.threads.Y), uint64(d.threads.Z)}
	if goruntime.GOARCH == "amd64" {
		objc.sendSizes(e, sel.dispatchThreadgroups, c.groups, c.threads)
		return
	}
	// AAPCS64 passes structs over 16 bytes as the address of a copy
	msg(e, sel.dispatchThreadgroups, uintptr(unsafe.Pointer(&c.groups)), uintptr(unsafe.Pointer(&c.threads)))
}

func (c *metalCommands) finish() (t Times, err error) {
	if c.id != 0 {
		pool(func() {
			msg(c.id, sel.waitUntilCompleted)
			if s := msg(c.id, sel.status); s != statusCompleted {
				err = nsError(fmt.Sprintf("command buffer has status %d", s), msg(c.id, sel.err))
			}
			at := func(s id) float64 { return objc.sendFloat(c.id, s) }
			t.Schedule = seconds(at(sel.kernelEndTime) - at(sel.kernelStartTime))
			t.GPU = seconds(at(sel.gpuEndTime) - at(sel.gpuStartTime))
			t.Queue = seconds(max(0, at(sel.gpuStartTime)-at(sel.kernelEndTime)))
			msg(c.id, sel.release)
		})
		c.id = 0
	}
	c.q.mu.Lock()
	c.q.free = append(c.q.free, c)
	c.q.mu.Unlock()
	return t, err
}
