//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"hawkmoth/internal/msl"
)

//go:embed ptx/kernels.ptx.zst
var ptxArchive []byte

var compiled = sync.OnceValues(func() (map[string]msl.Compiled, error) { return msl.Unpack(ptxArchive) })

var cudaDriver = Driver{
	Name: "cuda",
	Devices: func() ([]string, error) {
		lib, err := libcuda()
		if err != nil {
			return nil, err
		}
		var names []string
		for i := range lib.count {
			name, err := lib.name(i)
			if err != nil {
				return nil, err
			}
			names = append(names, name)
		}
		return names, nil
	},
	Open: func(index int) (Device, error) {
		lib, err := libcuda()
		if err != nil {
			return nil, err
		}
		return lib.open(index)
	},
}

type cudaDevice struct {
	*cudaLib
	name    string
	ctx     uintptr
	ord     int32
	limits  Limits
	early   bool // kernels may start before those that they depend on have finished
	kernels map[string]msl.Compiled
}

func (lib *cudaLib) open(index int) (_ Device, err error) {
	if index < 0 || index >= lib.count {
		return nil, fmt.Errorf("cuda: %w %d: there are %d", ErrNoDevice, index, lib.count)
	}
	d := &cudaDevice{cudaLib: lib}
	if d.kernels, err = compiled(); err != nil {
		return nil, err
	}
	if d.name, err = lib.name(index); err != nil {
		return nil, err
	}
	ord, ctx, total := new(int32), new(uintptr), new(uint64)
	if err := errors.Join(
		lib.call("cuDeviceGet", uintptr(unsafe.Pointer(ord)), uintptr(index)),
		lib.call("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(ctx)), uintptr(*ord)),
		lib.call("cuDeviceTotalMem_v2", uintptr(unsafe.Pointer(total)), uintptr(*ord))); err != nil {
		return nil, err
	}
	d.ord, d.ctx = *ord, *ctx
	major, minor := d.attribute(attrMajor), d.attribute(attrMinor)
	if major*10+minor < 75 {
		_ = d.Close()
		return nil, fmt.Errorf("cuda: %w: %s has compute capability %d.%d, kernels need 7.5", ErrNoDevice, d.name, major, minor)
	}
	d.early = major >= 9 && lib.fn[addDependencies] != 0
	d.limits = Limits{MaxBuffer: int(*total), Memory: int(*total - *total/16), ThreadgroupMemory: 48 << 10, Threads: 1024, Page: 1, SIMD: true, Dots: true}
	return d, nil
}

func (d *cudaDevice) attribute(a uintptr) int {
	v := new(int32)
	_ = d.call("cuDeviceGetAttribute", uintptr(unsafe.Pointer(v)), a, uintptr(d.ord))
	return int(*v)
}

func (d *cudaDevice) Name() string   { return d.name }
func (d *cudaDevice) Limits() Limits { return d.limits }

func (d *cudaDevice) Close() error { return d.call("cuDevicePrimaryCtxRelease_v2", uintptr(d.ord)) }

type cudaLibrary struct {
	d          *cudaDevice
	name, hash string
}

// NewLibrary compiles nothing: pipelines are found among those made from the
// same text by go generate.
func (d *cudaDevice) NewLibrary(name, source string) (Library, error) {
	return &cudaLibrary{d, name, msl.TextHash(source)}, nil
}

func (l *cudaLibrary) Release() {}

type cudaPipeline struct {
	d      *cudaDevice
	name   string
	module uintptr
	fn     uintptr
	params []msl.EntryParam
	size   int // bytes of all parameters
	max    int
}

func (l *cudaLibrary) NewPipeline(kernel string, constants ...Constant) (Pipeline, error) {
	key := Variant{l.name, kernel, constants}.Key()
	k, ok := l.d.kernels[key]
	switch {
	case !ok:
		return nil, fmt.Errorf("cuda: no PTX for %s: is it one of metal.Variants, and was go generate ./metal run?", key)
	case k.Hash != l.hash:
		return nil, fmt.Errorf("cuda: the PTX for %s was made from another text: run go generate ./metal", key)
	}
	p := &cudaPipeline{d: l.d, name: kernel, params: k.Entry.Params}
	for _, q := range p.params {
		p.size = align(p.size, q.Align) + q.Size
	}
	module, fn, threads := new(uintptr), new(uintptr), new(int32)
	err := l.d.do(func() error {
		if err := l.d.load(module, k.PTX); err != nil {
			return err
		}
		entry := append([]byte(k.Entry.Name), 0)
		return errors.Join(l.d.call("cuModuleGetFunction", uintptr(unsafe.Pointer(fn)), *module, uintptr(unsafe.Pointer(&entry[0]))),
			l.d.call("cuFuncGetAttribute", uintptr(unsafe.Pointer(threads)), 0, *fn)) // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	p.module, p.fn, p.max = *module, *fn, int(*threads)/32*32
	return p, nil
}

// load assembles PTX for the device; the assembler's text goes into the error.
func (d *cudaDevice) load(module *uintptr, ptx string) error {
	if d.early {
		ptx = msl.Early(ptx)
	}
	text := append([]byte(ptx), 0)
	log := make([]byte, 4096)
	// CU_JIT_ERROR_LOG_BUFFER and its size
	options := &[2]int32{5, 6}
	values := &struct {
		log  unsafe.Pointer
		size uintptr
	}{unsafe.Pointer(&log[0]), uintptr(len(log))}
	err := d.call("cuModuleLoadDataEx", uintptr(unsafe.Pointer(module)), uintptr(unsafe.Pointer(&text[0])), 2, uintptr(unsafe.Pointer(options)), uintptr(unsafe.Pointer(values)))
	if err != nil {
		s, _, _ := strings.Cut(string(log), "\x00")
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(s))
	}
	return err
}

func align(n, a int) int { return (n + a - 1) / a * a }

func (p *cudaPipeline) Threads() int   { return p.max }
func (p *cudaPipeline) String() string { return "kernel " + p.name }

func (p *cudaPipeline) Release() {
	_ = p.d.do(func() error { return p.d.call("cuModuleUnload", p.module) })
}

type cudaBuffer struct {
	d    *cudaDevice
	host []byte // of Shared (page-locked) and wrapped buffers
	dev  uintptr
	n    int
	lock bool // host is page-locked memory of ours
}

func (d *cudaDevice) NewBuffer(n int, m Memory) (Buffer, error) {
	if n <= 0 || n > d.limits.MaxBuffer {
		return nil, fmt.Errorf("%w: buffer of %d bytes", ErrMemory, n)
	}
	b := &cudaBuffer{d: d, n: n, lock: m == Shared}
	err := d.do(func() error {
		p := new(uintptr)
		if !b.lock {
			err := d.call("cuMemAlloc_v2", uintptr(unsafe.Pointer(p)), uintptr(n))
			b.dev = *p
			return err
		}
		// mapped into every context's addresses
		if err := d.call("cuMemHostAlloc", uintptr(unsafe.Pointer(p)), uintptr(n), 1|2); err != nil {
			return err
		}
		b.host = unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(p))), n)
		err := d.call("cuMemHostGetDevicePointer_v2", uintptr(unsafe.Pointer(p)), *p, 0)
		b.dev = *p
		return err
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Wrap uploads the pages.
func (d *cudaDevice) Wrap(pages []byte) (Buffer, error) {
	if len(pages) == 0 {
		return nil, errors.New("no pages to wrap")
	}
	b, err := d.NewBuffer(len(pages), Private)
	if err != nil {
		return nil, err
	}
	if err := b.Write(0, pages); err != nil {
		b.Release()
		return nil, err
	}
	b.(*cudaBuffer).host = pages
	return b, nil
}

func (b *cudaBuffer) Len() int        { return b.n }
func (b *cudaBuffer) Bytes() []byte   { return b.host }
func (b *cudaBuffer) Address() uint64 { return uint64(b.dev) }

func (b *cudaBuffer) check(off int, p []byte) error {
	if off < 0 || off > b.n-len(p) {
		return fmt.Errorf("bytes [%d, %d) of a buffer of %d", off, off+len(p), b.n)
	}
	return nil
}

func (b *cudaBuffer) Read(off int, p []byte) error {
	if err := b.check(off, p); err != nil || len(p) == 0 {
		return err
	}
	if b.host != nil {
		copy(p, b.host[off:])
		return nil
	}
	return b.d.do(func() error {
		return b.d.call("cuMemcpyDtoH_v2", uintptr(unsafe.Pointer(&p[0])), b.dev+uintptr(off), uintptr(len(p)))
	})
}

func (b *cudaBuffer) Write(off int, p []byte) error {
	if err := b.check(off, p); err != nil || len(p) == 0 {
		return err
	}
	if b.host != nil {
		copy(b.host[off:], p)
		return nil
	}
	return b.d.do(func() error {
		return b.d.call("cuMemcpyHtoD_v2", b.dev+uintptr(off), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	})
}

func (b *cudaBuffer) Zero() error {
	if b.lock {
		clear(b.host)
		return nil
	}
	return b.d.do(func() error {
		return errors.Join(b.d.call("cuMemsetD8_v2", b.dev, 0, uintptr(b.n)), b.d.call("cuStreamSynchronize", 0))
	})
}

func (b *cudaBuffer) Release() {
	if b.n == 0 {
		return
	}
	_ = b.d.do(func() error {
		if b.lock {
			return b.d.call("cuMemFreeHost", uintptr(unsafe.Pointer(&b.host[0])))
		}
		return b.d.call("cuMemFree_v2", b.dev)
	})
	b.n, b.host, b.dev = 0, nil, 0
}
