package metal

import (
	"errors"
	"fmt"
	"slices"

	"hawkmoth/format"
	"hawkmoth/runtime"
)

// Options say how a backend uses its device. None of them changes a bit.
type Options struct {
	Device  Device   // closed with the backend
	Threads int      // of the CPU backend that takes what the device cannot; ≤ 0: one a core
	Disable []string // see Switches
}

// Switches are what Options.Disable can turn off, to find a fault or to measure
// what something is worth.
var Switches = []string{"gpu-prefill", "fused-attention", "gpu-experts", "residency", "concurrency"}

// Backend runs commands on a GPU. What the device cannot do goes to a CPU
// backend, which gives the same bits, and is counted with its reason.
type Backend struct {
	dev    Device
	limits Limits
	cpu    *runtime.CPU
	off    map[string]bool // of Switches
	table  bounds

	queue     Queue
	libraries map[string]Library
	pipelines map[special]Pipeline

	vecs     []*vector // by Vec.ID
	weights  []*weight
	pending  []*weight // loaded, without a place on the device yet
	spans    []Buffer  // of the weights
	reached  []Buffer  // by kernels through addresses: the spans and empty
	resident []func()
	constant *vector // the small vectors of the model
	empty    *vector // bound where a kernel has no use for a parameter
	memory   MemoryUse

	scratch  [numScratch]*vector
	ropes    map[ropeKey]*ropeTable
	experts  map[*runtime.ExpertWeights]*expertTable
	programs map[*runtime.Cmd]*program
	enc      recorder
	inflight []CommandBuffer
	counts   map[countKey]*Count
}

// bounds keep grids and scratch memory small; tests make them smaller.
type bounds struct {
	batch   int // tokens of one pass over the commands
	outputs int // of one product: larger grids lost results in the field
	scores  int // of attention at a time
}

var usualBounds = bounds{batch: 2048, outputs: 1 << 25, scores: 1 << 24}

// vector is a buffer with what the host needs to share it with the CPU backend.
type vector struct {
	buf  Buffer
	id   int    // tells the buffers that commands use apart
	host []byte // the content on unified devices, else a copy made for the CPU
	size int
}

// MemoryUse is what the backend holds of the device's memory, in bytes.
type MemoryUse struct {
	Wrapped  int64 `json:"wrapped_bytes"` // weights read where they are mapped
	Copied   int64 `json:"copied_bytes"`  // weights copied to the device
	Buffers  int64 `json:"buffer_bytes"`
	Resident bool  `json:"resident"` // the system keeps the weights wired
}

// New makes a backend on a device that passed Probe. The device belongs to the
// backend from then on, also if there is an error.
func New(o Options) (*Backend, error) {
	b := &Backend{dev: o.Device, limits: o.Device.Limits(), off: map[string]bool{}, table: usualBounds,
		libraries: map[string]Library{}, pipelines: map[special]Pipeline{}, ropes: map[ropeKey]*ropeTable{},
		experts: map[*runtime.ExpertWeights]*expertTable{}, programs: map[*runtime.Cmd]*program{}, counts: map[countKey]*Count{}}
	for _, s := range o.Disable {
		if !slices.Contains(Switches, s) {
			return nil, errors.Join(&format.Error{Kind: format.ErrUsage, What: "nothing to disable", Found: s, Wanted: fmt.Sprint(Switches)}, o.Device.Close())
		}
		b.off[s] = true
	}
	var err error
	if b.queue, err = b.dev.NewQueue(); err != nil {
		return nil, errors.Join(err, o.Device.Close())
	}
	b.cpu = runtime.NewCPU(o.Threads)
	if b.empty, err = b.vector(64); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Name implements runtime.Backend.
func (b *Backend) Name() string { return "gpu: " + b.dev.Name() }

// CPU is the backend that takes what the device cannot.
func (b *Backend) CPU() *runtime.CPU { return b.cpu }

// Memory is what the backend holds of the device's memory.
func (b *Backend) Memory() MemoryUse { return b.memory }

// Supports implements runtime.Backend: what the device cannot run, the CPU can.
// Why says which of them it is.
func (b *Backend) Supports(op runtime.Kind, s format.Spec) error { return b.cpu.Supports(op, s) }

// Why says why an operation with a weight of this format and shape runs on the
// CPU; nil means that it runs on the device.
func (b *Backend) Why(op runtime.Kind, s format.Spec) error {
	return why(op, s, b.limits, b.off)
}

// vector allocates n zeroed bytes.
func (b *Backend) vector(n int) (*vector, error) {
	kind := Private
	if b.limits.Unified {
		kind = Shared
	}
	buf, err := b.dev.NewBuffer(n, kind)
	if err != nil {
		return nil, err
	}
	if err := buf.Zero(); err != nil {
		buf.Release()
		return nil, err
	}
	b.memory.Buffers += int64(n)
	b.enc.ids++
	return &vector{buf: buf, id: b.enc.ids, host: buf.Bytes(), size: n}, nil
}

func (b *Backend) release(v *vector) {
	if v != nil {
		b.memory.Buffers -= int64(v.size)
		v.buf.Release()
	}
}

// Alloc implements runtime.Backend.
func (b *Backend) Alloc(rows, width int, elem runtime.Elem) (runtime.Vec, error) {
	if rows <= 0 || width <= 0 || rows > (1<<62)/4/width {
		return runtime.Vec{}, fmt.Errorf("buffer of %d × %d elements", rows, width)
	}
	if err := b.place(); err != nil {
		return runtime.Vec{}, err
	}
	v, err := b.vector(4 * rows * width)
	if err != nil {
		return runtime.Vec{}, err
	}
	vec := runtime.Vec{ID: len(b.vecs), Rows: rows, Width: width, Elem: elem}
	b.vecs = append(b.vecs, v)
	if v.host != nil {
		b.cpu.Lend(vec, v.host)
	}
	return vec, nil
}

// Free implements runtime.Backend; commands that still run finish first.
func (b *Backend) Free(v runtime.Vec) {
	if v.ID >= len(b.vecs) || b.vecs[v.ID] == nil {
		return
	}
	if err := b.wait(0); err != nil {
		b.enc.err = err // the next caller's to see
	}
	b.release(b.vecs[v.ID])
	b.vecs[v.ID] = nil
	b.cpu.Free(v)
}

// Run implements runtime.Backend. The commands may still be running when it
// returns; Read waits for them.
func (b *Backend) Run(cmds []runtime.Cmd, batch runtime.Batch) error {
	if len(cmds) == 0 || batch.S == 0 {
		return nil
	}
	if err := b.place(); err != nil {
		return err
	}
	p, err := b.program(cmds)
	if err != nil {
		return err
	}
	for first := 0; first < batch.S; first += b.table.batch {
		part := pass{Batch: batch, row: first}
		part.S = min(b.table.batch, batch.S-first)
		if err := b.pass(p, part); err != nil {
			if later := b.wait(0); !errors.Is(err, later) {
				err = errors.Join(err, later)
			}
			return err
		}
	}
	return nil
}

// Read implements runtime.Backend.
func (b *Backend) Read(v runtime.View, row int, dst []float32) error {
	if err := b.wait(0); err != nil {
		return err
	}
	return b.vecs[v.ID].buf.Read(4*(row*v.Width+v.Off), bytesOfFloats(dst[:v.N]))
}

// Close implements runtime.Backend.
func (b *Backend) Close() error {
	err := b.wait(0)
	for _, f := range b.resident {
		f()
	}
	for _, v := range slices.Concat(b.vecs, b.scratch[:], []*vector{b.constant, b.empty}) {
		b.release(v)
	}
	for _, t := range b.ropes {
		b.release(t.cos)
		b.release(t.sin)
	}
	for _, t := range b.experts {
		b.release(t.v)
	}
	for _, s := range b.spans {
		s.Release()
	}
	if b.queue != nil {
		b.queue.Release()
	}
	for _, p := range b.pipelines {
		p.Release()
	}
	for _, l := range b.libraries {
		l.Release()
	}
	return errors.Join(err, b.cpu.Close(), b.dev.Close())
}
