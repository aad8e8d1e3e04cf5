//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"hawkmoth/internal/msl"
)

// cudaStreams is how many dispatches of a concurrent encoder run at a time.
const cudaStreams = 4

// cudaQueue launches on one stream, in order, and spreads what an encoder calls
// concurrent over the others, which wait for the first and it for them.
type cudaQueue struct {
	d       *cudaDevice
	streams [cudaStreams]uintptr
	joins   [cudaStreams]uintptr // events

	mu   sync.Mutex
	free []*cudaCommands
}

func (d *cudaDevice) NewQueue() (Queue, error) {
	q := &cudaQueue{d: d}
	err := d.do(func() error {
		for i := range q.streams {
			s, e := new(uintptr), new(uintptr)
			// CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING
			if err := errors.Join(d.call("cuStreamCreate", uintptr(unsafe.Pointer(s)), 1),
				d.call("cuEventCreate", uintptr(unsafe.Pointer(e)), 2)); err != nil {
				return err
			}
			q.streams[i], q.joins[i] = *s, *e
		}
		return nil
	})
	return q, err
}

func (q *cudaQueue) KeepResident(...Buffer) (func(), error) {
	return nil, fmt.Errorf("%w has residency sets here", ErrNoDevice)
}

func (q *cudaQueue) Release() {
	_ = q.d.do(func() error {
		var errs []error
		for i := range q.streams {
			errs = append(errs, q.d.call("cuStreamDestroy_v2", q.streams[i]), q.d.call("cuEventDestroy_v2", q.joins[i]))
		}
		for _, c := range q.free {
			errs = append(errs, q.d.call("cuEventDestroy_v2", c.begin), q.d.call("cuEventDestroy_v2", c.end))
		}
		return errors.Join(errs...)
	})
}

func (q *cudaQueue) CommandBuffer() CommandBuffer {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.free); n > 0 {
		c := q.free[n-1]
		q.free = q.free[:n-1]
		*c = cudaCommands{q: q, begin: c.begin, end: c.end, launches: c.launches[:0], args: c.args[:0]}
		return c
	}
	c := &cudaCommands{q: q}
	b, e := new(uintptr), new(uintptr)
	c.fail(q.d.do(func() error {
		return errors.Join(q.d.call("cuEventCreate", uintptr(unsafe.Pointer(b)), 0), q.d.call("cuEventCreate", uintptr(unsafe.Pointer(e)), 0))
	}))
	c.begin, c.end = *b, *e
	return c
}

// cudaLaunch is one kernel launch; its arguments are args[off : off+size].
type cudaLaunch struct {
	p         *cudaPipeline
	grid, tg  Size
	shared    int
	off, size int
	after     bool // a barrier stands before it
}

// launchArgs is cuLaunchKernel's extra parameter: the packed arguments.
type launchArgs struct {
	bufferTag uintptr // CU_LAUNCH_PARAM_BUFFER_POINTER
	buffer    unsafe.Pointer
	sizeTag   uintptr // CU_LAUNCH_PARAM_BUFFER_SIZE
	size      *uintptr
	end       uintptr
}

type cudaCommands struct {
	q          *cudaQueue
	launches   []cudaLaunch
	args       []byte
	barrier    bool
	open       bool
	committed  bool
	begin, end uintptr // events
	err        error
	times      Times
	e          cudaEncoder
}

func (c *cudaCommands) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *cudaCommands) Encoder(concurrent bool) Encoder {
	if c.open {
		c.fail(errors.New("encoder opened before the last one ended"))
	}
	c.open, c.barrier = true, true
	c.e = cudaEncoder{c: c, concurrent: concurrent}
	return &c.e
}

func (c *cudaCommands) Commit() {
	if c.err != nil || c.committed || c.open {
		c.fail(errors.New("commit for the second time or with an open encoder"))
		return
	}
	c.committed = true
	c.fail(c.q.d.do(c.launch))
}

func (c *cudaCommands) launch() error {
	q, d := c.q, c.q.d
	if err := d.call("cuEventRecord", c.begin, q.streams[0]); err != nil {
		return err
	}
	size := new(uintptr)
	extra := &launchArgs{bufferTag: 1, sizeTag: 2, size: size}
	for i := 0; i < len(c.launches); {
		j := i + 1
		for j < len(c.launches) && !c.launches[j].after {
			j++
		}
		width := min(j-i, cudaStreams)
		if err := q.fork(width); err != nil {
			return err
		}
		for k := i; k < j; k++ {
			l := &c.launches[k]
			extra.buffer, *size = nil, uintptr(l.size)
			if l.size > 0 {
				extra.buffer = unsafe.Pointer(&c.args[l.off])
			}
			if err := d.call("cuLaunchKernel", l.p.fn, uintptr(l.grid.X), uintptr(max(l.grid.Y, 1)), uintptr(max(l.grid.Z, 1)),
				uintptr(l.tg.X), uintptr(max(l.tg.Y, 1)), uintptr(max(l.tg.Z, 1)), uintptr(l.shared), q.streams[(k-i)%width], 0, uintptr(unsafe.Pointer(extra))); err != nil {
				return fmt.Errorf("kernel %s: %w", l.p.name, err)
			}
		}
		if err := q.join(width); err != nil {
			return err
		}
		i = j
	}
	return d.call("cuEventRecord", c.end, q.streams[0])
}

// fork lets streams 1 to width-1 go on where stream 0 stands.
func (q *cudaQueue) fork(width int) error {
	if width < 2 {
		return nil
	}
	errs := []error{q.d.call("cuEventRecord", q.joins[0], q.streams[0])}
	for i := 1; i < width; i++ {
		errs = append(errs, q.d.call("cuStreamWaitEvent", q.streams[i], q.joins[0], 0))
	}
	return errors.Join(errs...)
}

// join lets stream 0 wait for streams 1 to width-1.
func (q *cudaQueue) join(width int) error {
	var errs []error
	for i := 1; i < width; i++ {
		errs = append(errs, q.d.call("cuEventRecord", q.joins[i], q.streams[i]), q.d.call("cuStreamWaitEvent", q.streams[0], q.joins[i], 0))
	}
	return errors.Join(errs...)
}

func (c *cudaCommands) Wait() error {
	if !c.committed {
		c.fail(errors.New("wait before commit"))
	}
	start := time.Now()
	err := c.q.d.do(func() error {
		if c.err != nil {
			return c.q.d.call("cuStreamSynchronize", c.q.streams[0])
		}
		ms := new(float32)
		err := errors.Join(c.q.d.call("cuEventSynchronize", c.end),
			c.q.d.call("cuEventElapsedTime", uintptr(unsafe.Pointer(ms)), c.begin, c.end))
		c.times.GPU = time.Duration(float64(*ms) * float64(time.Millisecond))
		c.times.Queue = max(0, time.Since(start)-c.times.GPU)
		return err
	})
	c.fail(err)
	c.q.mu.Lock()
	c.q.free = append(c.q.free, c)
	c.q.mu.Unlock()
	return c.err
}

func (c *cudaCommands) Times() Times { return c.times }

type cudaBinding struct {
	addr    uintptr
	off, n  int // of bytes in the encoder's
	isBytes bool
}

type cudaEncoder struct {
	c          *cudaCommands
	concurrent bool
	p          *cudaPipeline
	bind       [31]cudaBinding
	bytes      []byte
	shared     [8]int
}

func (e *cudaEncoder) SetPipeline(p Pipeline) { e.p = p.(*cudaPipeline) }

func (e *cudaEncoder) SetBuffer(index int, b Buffer, off int) {
	cb := b.(*cudaBuffer)
	if off < 0 || off >= cb.n {
		e.c.fail(fmt.Errorf("buffer %d bound at offset %d of %d bytes", index, off, cb.n))
	}
	e.bind[index] = cudaBinding{addr: cb.dev + uintptr(off)}
}

func (e *cudaEncoder) SetBytes(index int, p []byte) {
	e.bind[index] = cudaBinding{off: len(e.bytes), n: len(p), isBytes: true}
	e.bytes = append(e.bytes, p...)
}

func (e *cudaEncoder) SetThreadgroupMemory(index, n int) { e.shared[index] = n }

func (e *cudaEncoder) Use(...Buffer) {}

func (e *cudaEncoder) Dispatch(groups, threads Size) {
	c := e.c
	p := e.p
	if p == nil {
		c.fail(errors.New("dispatch without a pipeline"))
		return
	}
	c.args = append(c.args, make([]byte, align(len(c.args), 16)-len(c.args))...)
	l := cudaLaunch{p: p, grid: groups, tg: threads, off: len(c.args), size: p.size, after: c.barrier}
	c.args = append(c.args, make([]byte, p.size)...)
	if err := e.pack(&l, c.args[l.off:]); err != nil {
		c.fail(fmt.Errorf("kernel %s: %w", p.name, err))
	}
	c.launches = append(c.launches, l)
	c.barrier = !e.concurrent
	e.p, e.bind, e.shared, e.bytes = nil, [31]cudaBinding{}, [8]int{}, e.bytes[:0]
}

// pack writes the arguments of a launch in the order and at the places that the
// kernel takes them.
func (e *cudaEncoder) pack(l *cudaLaunch, args []byte) error {
	at := 0
	for _, q := range l.p.params {
		at = align(at, q.Align)
		switch b := &e.bind[q.Index]; q.Kind {
		case msl.Pointer:
			if b.addr == 0 {
				return fmt.Errorf("buffer %d is not bound", q.Index)
			}
			binary.LittleEndian.PutUint64(args[at:], uint64(b.addr))
		case msl.Bytes:
			if !b.isBytes || b.n < q.Size {
				return fmt.Errorf("argument %d needs %d bytes, got %d", q.Index, q.Size, b.n)
			}
			copy(args[at:at+q.Size], e.bytes[b.off:])
		case msl.Shared:
			if e.shared[q.Index] == 0 {
				return fmt.Errorf("threadgroup memory %d has no length", q.Index)
			}
			binary.LittleEndian.PutUint32(args[at:], uint32(l.shared))
			l.shared += align(e.shared[q.Index], 16)
		}
		at += q.Size
	}
	return nil
}

func (e *cudaEncoder) Barrier() { e.c.barrier = true }

func (e *cudaEncoder) End() { e.c.open, e.c.barrier = false, true }
