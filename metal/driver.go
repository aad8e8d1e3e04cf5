package metal

import (
	"errors"
	"time"
)

// What a driver reports besides its own text; errors.Is finds them.
var (
	ErrNoDevice = errors.New("no device") // the driver or what it needs is missing on this machine
	ErrMemory   = errors.New("out of device memory")
)

var errNoResidency = errors.New("this device has no residency sets")

// Driver opens the devices of one kind.
type Driver struct {
	Name string // metal, cuda or emulator
	// Emulated says that kernels run on the CPU, slowly: nobody wants such a
	// device who did not ask for it.
	Emulated bool
	// Devices names the devices in the order of their indices. The error wraps
	// ErrNoDevice and says what is missing.
	Devices func() ([]string, error)
	Open    func(index int) (Device, error)
}

// Size counts threadgroups of a grid or threads of a threadgroup. Y and Z may
// be left 0 and mean 1. Limits of all devices: X < 2^31, Y and Z < 65,536.
type Size struct{ X, Y, Z int }

// Count is the number of elements.
func (s Size) Count() int { return s.X * max(s.Y, 1) * max(s.Z, 1) }

// Constant is the value of one function constant: a bool, int32, uint32 or
// float32. A pipeline needs a value for every function constant of its file.
type Constant struct {
	Index int
	Value any
}

// Memory says who reads and writes a buffer.
type Memory uint8

const (
	// Shared memory is seen by both sides: by the host before Commit and after
	// Wait. It is for small inputs and results.
	Shared Memory = iota
	// Private memory belongs to the device; the host copies with Read and Write.
	Private
)

// Limits are what a device can do.
type Limits struct {
	MaxBuffer         int  // bytes of one buffer
	Memory            int  // bytes that may be in use without harm to the system
	ThreadgroupMemory int  // bytes for one threadgroup
	Threads           int  // threads of one threadgroup
	Page              int  // Wrap needs memory that starts and ends at multiples of it
	Dots              bool // instructions for products of bytes (dot4 of kernels/dot.h)
	SIMD              bool // shuffles, reductions and matrices over simdgroups of 32
	Unified           bool // the host's memory is the device's: Wrap copies nothing
	Residency         bool // Queue.KeepResident works
}

// Device makes objects. All methods are safe for concurrent use.
type Device interface {
	Name() string
	Limits() Limits
	// NewLibrary compiles Metal Shading Language text; name is the file's name
	// for messages (and for finding the text's PTX).
	NewLibrary(name, source string) (Library, error)
	// NewBuffer allocates n > 0 bytes of undefined content. It fails with
	// ErrMemory if there are not enough.
	NewBuffer(n int, m Memory) (Buffer, error)
	// Wrap makes whole pages of the host's memory readable by kernels. They
	// must stay mapped and unchanged until Release. Nothing is copied if the
	// device is Unified; otherwise they are uploaded once, here.
	Wrap(pages []byte) (Buffer, error)
	NewQueue() (Queue, error)
	Close() error
}

// Library is compiled kernel text.
type Library interface {
	// NewPipeline specialises a kernel.
	NewPipeline(kernel string, constants ...Constant) (Pipeline, error)
	Release()
}

// Pipeline is a specialised kernel.
type Pipeline interface {
	Threads() int // of one threadgroup, at most
	Release()
}

// Buffer is memory that kernels see. Read, Write, Zero, Bytes and Release need
// every command buffer that uses the buffer to be finished.
type Buffer interface {
	Len() int
	// Bytes is the content of a Shared or wrapped buffer, nil of a Private one.
	Bytes() []byte
	Read(off int, p []byte) error
	Write(off int, p []byte) error
	Zero() error
	// Address is where kernels find the buffer through a pointer in a struct;
	// such a dispatch names the buffer with Encoder.Use.
	Address() uint64
	Release()
}

// Queue runs command buffers in the order of their Commit: whatever one wrote
// is seen by the next.
type Queue interface {
	CommandBuffer() CommandBuffer
	// KeepResident tells the system that the buffers are in use until release
	// is called. It fails without Limits.Residency.
	KeepResident(b ...Buffer) (release func(), err error)
	Release()
}

// CommandBuffer collects encoders, one open at a time. It is used by one
// goroutine; every one must be waited for. After Wait it must not be used
// again, except for Times before the queue's next CommandBuffer.
type CommandBuffer interface {
	// Encoder opens an encoder. In a concurrent one, dispatches may run in any
	// order and at the same time between barriers; otherwise each sees what the
	// one before it wrote. The end of an encoder is a barrier.
	Encoder(concurrent bool) Encoder
	Commit()
	// Wait returns what went wrong while encoding or running.
	Wait() error
	// Times are valid after Wait.
	Times() Times
}

// Times say where a command buffer's time went. The emulator reports only GPU.
type Times struct {
	Schedule time.Duration // the system's work to schedule it
	Queue    time.Duration // between that and the start on the device
	GPU      time.Duration // on the device
}

// Encoder records dispatches. What was set holds for one Dispatch only, so that
// a forgotten binding is an error and not the previous kernel's. Mistakes are
// reported by CommandBuffer.Wait.
type Encoder interface {
	SetPipeline(p Pipeline)
	// SetBuffer binds b from byte off on, a multiple of the element's size, to a
	// pointer. What a kernel declares const must not be written by the same
	// dispatch through another binding and then read again.
	SetBuffer(index int, b Buffer, off int)
	// SetBytes binds a copy of at most 4,096 bytes to a constant reference.
	SetBytes(index int, p []byte)
	// SetThreadgroupMemory gives threadgroup argument index n bytes, a multiple of 16.
	SetThreadgroupMemory(index, n int)
	// Use names buffers that the dispatch reads through pointers.
	Use(b ...Buffer)
	// Dispatch runs groups threadgroups of threads threads, a multiple of 32.
	Dispatch(groups, threads Size)
	// Barrier orders all dispatches before it against all after it.
	Barrier()
	End()
}
