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

	mu     sync.Mutex
	free   []*cudaCommands
	graphs []*cudaGraph // the one used last comes last
	shape  []graphShape // of the command buffer being launched
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
	return nil, errNoResidency
}

func (q *cudaQueue) Release() {
	_ = q.d.do(func() error {
		var errs []error
		for _, g := range q.graphs {
			errs = append(errs, q.drop(g))
		}
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
		c.reset()
		return c
	}
	c := &cudaCommands{q: q}
	c.commands = commands{driver: c, limits: &q.d.limits}
	c.extra = launchArgs{bufferTag: 1, buffer: unsafe.Pointer(&c.args), sizeTag: 2, size: &c.size}
	b, e := new(uintptr), new(uintptr)
	if err := q.d.do(func() error {
		return errors.Join(q.d.call("cuEventCreate", uintptr(unsafe.Pointer(b)), 0), q.d.call("cuEventCreate", uintptr(unsafe.Pointer(e)), 0))
	}); err != nil {
		c.errs = append(c.errs, err)
	}
	c.begin, c.end = *b, *e
	return c
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
	commands
	q          *cudaQueue
	begin, end uintptr // events
	started    time.Time
	running    bool

	args  [4096 + 31*8]byte // of one launch
	size  uintptr
	extra launchArgs
	node  kernelNode
}

func (c *cudaCommands) launch() error {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	c.started, c.running = time.Now(), true
	return c.q.d.do(func() error {
		if err := c.q.d.call("cuEventRecord", c.begin, c.q.streams[0]); err != nil {
			return err
		}
		done, err := c.launchGraph()
		if err == nil && !done {
			err = c.segments(c.launchSegment)
		}
		if err != nil {
			return err
		}
		return c.q.d.call("cuEventRecord", c.end, c.q.streams[0])
	})
}

func (c *cudaCommands) launchSegment(seg []dispatch) error {
	width := min(len(seg), cudaStreams)
	if err := c.q.fork(width); err != nil {
		return err
	}
	for i := range seg {
		l := &seg[i]
		p := l.pipeline.(*cudaPipeline)
		if err := c.pack(l, c.args[:p.size]); err != nil {
			return fmt.Errorf("%v: %w", p, err)
		}
		c.size = uintptr(p.size)
		if err := c.q.d.call("cuLaunchKernel", p.fn, uintptr(l.groups.X), uintptr(l.groups.Y), uintptr(l.groups.Z),
			uintptr(l.threads.X), uintptr(l.threads.Y), uintptr(l.threads.Z), uintptr(l.sharedBytes), c.q.streams[i%width], 0, uintptr(unsafe.Pointer(&c.extra))); err != nil {
			return fmt.Errorf("%v: %w", p, err)
		}
	}
	return c.q.join(width)
}

// pack writes the arguments of a launch in the order and at the places that the
// kernel takes them.
func (c *cudaCommands) pack(d *dispatch, args []byte) error {
	at, shared := 0, 0
	var byIndex [31]*binding
	for i := d.bindings.lo; i < d.bindings.hi; i++ {
		byIndex[c.bindings[i].index] = &c.bindings[i]
	}
	for _, q := range d.pipeline.(*cudaPipeline).params {
		at = align(at, q.Align)
		switch b := byIndex[q.Index]; q.Kind {
		case msl.Pointer:
			if b == nil || b.buf == nil {
				return fmt.Errorf("argument %d is bound to no buffer", q.Index)
			}
			binary.LittleEndian.PutUint64(args[at:], b.buf.Address()+uint64(b.off))
		case msl.Bytes:
			if b == nil || b.bytes.hi-b.bytes.lo != q.Size {
				return fmt.Errorf("argument %d needs %d bytes", q.Index, q.Size)
			}
			copy(args[at:at+q.Size], c.bytes[b.bytes.lo:])
		case msl.Shared:
			if d.shared[q.Index] == 0 {
				return fmt.Errorf("threadgroup memory %d has no length", q.Index)
			}
			binary.LittleEndian.PutUint32(args[at:], uint32(shared))
			shared += d.shared[q.Index]
		}
		at += q.Size
	}
	return nil
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

func (c *cudaCommands) finish() (t Times, err error) {
	if c.running {
		err = c.q.d.do(func() error {
			if len(c.errs) > 0 {
				return c.q.d.call("cuStreamSynchronize", c.q.streams[0])
			}
			ms := new(float32)
			err := errors.Join(c.q.d.call("cuEventSynchronize", c.end),
				c.q.d.call("cuEventElapsedTime", uintptr(unsafe.Pointer(ms)), c.begin, c.end))
			t.GPU = seconds(float64(*ms) / 1e3)
			t.Queue = max(0, time.Since(c.started)-t.GPU)
			return err
		})
		c.running = false
	}
	c.q.mu.Lock()
	c.q.free = append(c.q.free, c)
	c.q.mu.Unlock()
	return t, err
}
