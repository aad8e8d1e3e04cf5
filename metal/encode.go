package metal

import (
	"unsafe"

	"hawkmoth/runtime"
)

// recorder is the command buffer that is being encoded. Dispatches run at the
// same time unless one needs what another wrote, or writes what another reads.
type recorder struct {
	ids     int // of vectors, given so far
	cb      CommandBuffer
	enc     Encoder
	err     error
	now     []access // of the dispatch being encoded
	before  []access // of all since the last barrier
	args    arguments
	barrier Barriers
}

// Barriers count what was encoded.
type Barriers struct {
	CommandBuffers int64 `json:"command_buffers"`
	Dispatches     int64 `json:"dispatches"`
	Barriers       int64 `json:"barriers"`
}

// Encoded is how much the backend has encoded.
func (b *Backend) Encoded() Barriers { return b.enc.barrier }

// arguments are the structs of the dispatch being encoded: fields, so that none
// is allocated.
type arguments struct {
	embed  embedArgs
	tokens tokens
	round  roundArgs
	matmul matMulArgs
	norm   normArgs
	point  pointArgs
	rope   ropeArgs
	qabs   qAbsArgs
	attend attendArgs
	index  indexArgs
	route  routeArgs
	group  groupArgs
	expert expertArgs
	sum    sumArgs
}

// access is a use of the columns [lo, hi) of a vector's rows, in bytes.
type access struct {
	id, lo, hi int
	write      bool
}

func (a access) conflicts(b access) bool {
	return a.id == b.id && (a.write || b.write) && a.lo < b.hi && b.lo < a.hi
}

// ref is a place in a vector and the columns that are used from there.
type ref struct {
	v           *vector
	off, lo, hi int
}

// view is where a view's rows of a pass start.
func (b *Backend) view(v runtime.View, p pass) ref {
	return ref{b.vecs[v.ID], 4 * (p.at(v)*v.Width + v.Off), 4 * v.Off, 4 * (v.Off + v.N)}
}

// rows are whole rows of a buffer from one on.
func (b *Backend) rows(v runtime.Vec, row int) ref {
	return ref{b.vecs[v.ID], 4 * row * v.Width, 0, 4 * v.Width}
}

func whole(v *vector) ref { return ref{v, 0, 0, v.size} }

// use starts a dispatch of a specialised kernel.
func (b *Backend) use(s special) bool {
	e := &b.enc
	if e.err != nil {
		return false
	}
	p := b.pipelines[s]
	if p == nil {
		if p, e.err = b.compile(s); e.err != nil {
			return false
		}
		b.pipelines[s] = p
	}
	if e.cb == nil {
		e.cb = b.queue.CommandBuffer()
		e.enc = e.cb.Encoder(!b.off["concurrency"])
		e.before = e.before[:0]
		e.barrier.CommandBuffers++
	}
	e.enc.SetPipeline(p)
	return true
}

func (b *Backend) compile(s special) (Pipeline, error) {
	v := s.variant()
	lib := b.libraries[v.File]
	if lib == nil {
		text, err := Source(v.File)
		if err != nil {
			return nil, err
		}
		if lib, err = b.dev.NewLibrary(v.File, text); err != nil {
			return nil, err
		}
		b.libraries[v.File] = lib
	}
	return lib.NewPipeline(v.Kernel, v.Constants...)
}

// in and out bind what a dispatch reads and writes.
func (b *Backend) in(index int, r ref)  { b.bind(index, r, false) }
func (b *Backend) out(index int, r ref) { b.bind(index, r, true) }

func (b *Backend) bind(index int, r ref, write bool) {
	b.enc.enc.SetBuffer(index, r.v.buf, r.off)
	b.enc.now = append(b.enc.now, access{r.v.id, r.lo, r.hi, write})
}

// at binds a part of the model, which nothing writes.
func (b *Backend) at(index int, s spot) { b.enc.enc.SetBuffer(index, s.buf, s.off) }

func arg[T any](b *Backend, index int, p *T) {
	b.enc.enc.SetBytes(index, unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)))
}

// dispatch runs what was bound, behind a barrier if it has to wait for anything.
func (b *Backend) dispatch(groups, threads Size) {
	e := &b.enc
	for _, a := range e.now {
		if e.conflict(a) {
			e.enc.Barrier()
			e.barrier.Barriers++
			e.before = e.before[:0]
			break
		}
	}
	e.before = append(e.before, e.now...)
	e.now = e.now[:0]
	e.enc.Dispatch(groups, threads)
	e.barrier.Dispatches++
}

func (e *recorder) conflict(a access) bool {
	for _, x := range e.before {
		if x.conflicts(a) {
			return true
		}
	}
	return false
}

// commit hands the command buffer to the device. At most two are in flight.
func (b *Backend) commit() {
	e := &b.enc
	if e.cb == nil {
		return
	}
	e.enc.End()
	e.cb.Commit()
	b.inflight = append(b.inflight, e.cb)
	e.cb, e.enc = nil, nil
	if err := b.wait(2); err != nil && e.err == nil {
		e.err = err
	}
}

// wait leaves at most n command buffers in flight.
func (b *Backend) wait(n int) error {
	if n == 0 && b.enc.cb != nil {
		b.enc.enc.End()
		b.enc.cb.Commit()
		b.inflight = append(b.inflight, b.enc.cb)
		b.enc.cb, b.enc.enc = nil, nil
	}
	err := b.enc.err
	b.enc.err = nil
	done := max(0, len(b.inflight)-n)
	for _, cb := range b.inflight[:done] {
		if e := cb.Wait(); err == nil {
			err = e
		}
	}
	b.inflight = append(b.inflight[:0], b.inflight[done:]...)
	return err
}

// scratchID names the working memory that dispatches share.
type scratchID int

const (
	scratchQ     = scratchID(numLayouts) * iota // rounded activations, one for each layout
	scratchSX                                   // their scales
	afterRounded                                // the first of the others
)

const (
	scratchQuery = afterRounded + iota
	scratchScores
	scratchParts
	scratchLatents
	scratchIndex
	scratchTokens // of the pairs of experts
	scratchPlaces
	scratchTiles
	scratchGate
	scratchUp
	scratchAct
	scratchDown
	numScratch
)

// work is scratch memory of at least n bytes; its content is undefined.
func (b *Backend) work(id scratchID, n int) ref {
	v := b.scratch[id]
	if v == nil || v.size < n {
		if err := b.wait(0); err != nil {
			b.enc.err = err
			return whole(b.empty)
		}
		b.release(v)
		b.scratch[id] = nil
		grown, err := b.vector(n + n/4 + 64)
		if err != nil {
			b.enc.err = err
			return whole(b.empty)
		}
		v = grown
		b.scratch[id] = v
	}
	return whole(v)
}
