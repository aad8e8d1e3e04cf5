package metal

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// commands is the command buffer of every driver: it records what is encoded,
// refuses what no device would accept and hands the rest over at Commit. So a
// mistake is an error here and not the end of the process in a system library.
type commands struct {
	driver interface {
		// launch starts the dispatches; finish waits for them and makes c free for
		// another use. Without a successful launch finish still gives back what c holds.
		launch() error
		finish() (Times, error)
	}
	limits     *Limits
	dispatches []dispatch
	bindings   []binding // of all dispatches
	bytes      []byte    // of all SetBytes
	used       []Buffer  // of all Use
	enc        encoder
	open       bool
	committed  bool
	errs       []error
	times      Times
}

// dispatch is one recorded call; its bindings and used buffers are ranges of
// the command buffer's.
type dispatch struct {
	pipeline           Pipeline
	bindings, used     span
	shared             [8]int // bytes of threadgroup memory by index
	groups, threads    Size   // without zeros
	after              bool   // whatever was recorded before must be finished
	sharedBytes, bound int    // sum of shared; bit set of bound indices
}

type span struct{ lo, hi int }

// binding is a buffer, or a span of the command buffer's bytes.
type binding struct {
	index int
	buf   Buffer
	off   int
	bytes span
}

// reset empties c for another use and keeps its memory.
func (c *commands) reset() {
	clear(c.bindings)
	clear(c.used)
	clear(c.dispatches)
	c.dispatches, c.bindings, c.bytes, c.used = c.dispatches[:0], c.bindings[:0], c.bytes[:0], c.used[:0]
	c.open, c.committed, c.errs = false, false, nil
}

const maxMistakes = 20

func (c *commands) bad(format string, args ...any) {
	if len(c.errs) < maxMistakes {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

func (c *commands) Encoder(concurrent bool) Encoder {
	if c.open || c.committed {
		c.bad("encoder opened before the last one ended or after Commit")
	}
	c.open = true
	c.enc = encoder{c: c, concurrent: concurrent}
	c.enc.start(true)
	return &c.enc
}

func (c *commands) Commit() {
	if c.open || c.committed {
		c.bad("commit with an open encoder or for the second time")
	}
	if len(c.errs) == 0 {
		if err := c.driver.launch(); err != nil {
			c.errs = append(c.errs, err)
		}
	}
	c.committed = true
}

func (c *commands) Wait() error {
	if !c.committed {
		c.bad("wait before commit")
	}
	times, err := c.driver.finish()
	c.times = times
	return errors.Join(append(c.errs, err)...)
}

func (c *commands) Times() Times { return c.times }

// segments are the ranges of dispatches between barriers.
func (c *commands) segments(yield func([]dispatch) error) error {
	for i := 0; i < len(c.dispatches); {
		j := i + 1
		for j < len(c.dispatches) && !c.dispatches[j].after {
			j++
		}
		if err := yield(c.dispatches[i:j]); err != nil {
			return err
		}
		i = j
	}
	return nil
}

type encoder struct {
	c          *commands
	concurrent bool
	ended      bool
	cur        dispatch
}

// start begins the next dispatch.
func (e *encoder) start(after bool) {
	e.cur = dispatch{after: after, bindings: span{len(e.c.bindings), 0}, used: span{len(e.c.used), 0}}
}

func (e *encoder) SetPipeline(p Pipeline) { e.cur.pipeline = p }

func (e *encoder) bind(b binding) {
	if b.index < 0 || b.index > 30 || e.cur.bound>>b.index&1 == 1 {
		e.c.bad("argument %d bound twice or beyond 30", b.index)
		return
	}
	e.cur.bound |= 1 << b.index
	e.c.bindings = append(e.c.bindings, b)
}

func (e *encoder) SetBuffer(index int, b Buffer, off int) {
	if b == nil || off < 0 || off >= b.Len() {
		e.c.bad("argument %d bound to no buffer or outside of it (offset %d)", index, off)
		return
	}
	e.bind(binding{index: index, buf: b, off: off})
}

func (e *encoder) SetBytes(index int, p []byte) {
	if len(p) == 0 || len(p) > 4096 {
		e.c.bad("argument %d bound to %d bytes (1 to 4096)", index, len(p))
		return
	}
	// structs of kernels may hold pointers
	for len(e.c.bytes)%16 != 0 {
		e.c.bytes = append(e.c.bytes, 0)
	}
	at := len(e.c.bytes)
	e.c.bytes = append(e.c.bytes, p...)
	e.bind(binding{index: index, bytes: span{at, len(e.c.bytes)}})
}

func (e *encoder) SetThreadgroupMemory(index, n int) {
	if index < 0 || index > 7 || n <= 0 || n%16 != 0 {
		e.c.bad("threadgroup memory %d of %d bytes, no multiple of 16", index, n)
		return
	}
	e.cur.sharedBytes += n - e.cur.shared[index]
	e.cur.shared[index] = n
}

func (e *encoder) Use(b ...Buffer) { e.c.used = append(e.c.used, b...) }

func (e *encoder) Dispatch(groups, threads Size) {
	c, d := e.c, e.cur
	d.bindings.hi, d.used.hi = len(c.bindings), len(c.used)
	d.groups, d.threads = groups.filled(), threads.filled()
	e.start(!e.concurrent)
	switch n := d.threads.Count(); {
	case e.ended || d.pipeline == nil:
		c.bad("dispatch without a pipeline or after End")
	case n <= 0 || n%32 != 0 || n > d.pipeline.Threads():
		c.bad("%v: %d threads in a threadgroup (a multiple of 32, at most %d)", d.pipeline, n, d.pipeline.Threads())
	case d.groups.X <= 0 || d.groups.X >= 1<<31 || d.groups.Y <= 0 || d.groups.Y >= 1<<16 || d.groups.Z <= 0 || d.groups.Z >= 1<<16:
		c.bad("%v: grid of %d × %d × %d threadgroups", d.pipeline, d.groups.X, d.groups.Y, d.groups.Z)
	case d.sharedBytes > c.limits.ThreadgroupMemory:
		c.bad("%v: %d bytes of threadgroup memory (limit %d)", d.pipeline, d.sharedBytes, c.limits.ThreadgroupMemory)
	default:
		c.dispatches = append(c.dispatches, d)
	}
}

func (s Size) filled() Size { return Size{s.X, max(s.Y, 1), max(s.Z, 1)} }

func (e *encoder) Barrier() { e.cur.after = true }

func (e *encoder) End() {
	if e.ended {
		e.c.bad("encoder ended twice")
	}
	e.ended, e.c.open = true, false
}

// of is the bindings of a dispatch in the order of their indices.
func (c *commands) of(d *dispatch) []binding {
	b := c.bindings[d.bindings.lo:d.bindings.hi]
	slices.SortFunc(b, func(x, y binding) int { return x.index - y.index })
	return b
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
