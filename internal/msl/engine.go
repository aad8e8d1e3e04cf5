//go:build linux && (amd64 || arm64) && !nogpu

package msl

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Region is memory that a dispatch may touch; the layout is shim/emu.h's.
type Region struct {
	Ptr  unsafe.Pointer
	Len  uint64
	Init unsafe.Pointer // a byte for each byte, 0 where nothing was written; nil: all was
	RO   uint32         // 1: the kernel must not write it
	// 1: some dispatch between the same two barriers writes the buffer
	Track uint32
}

// Dispatch is one grid of threadgroups; the layout is shim/emu.h's.
type Dispatch struct {
	Bufs   [31]Region
	extra  unsafe.Pointer
	nextra uint64
	consts [2]uintptr
	Seed   uint64 // 0: threadgroups and threads in order; else permuted
	Shared [8]uint32
	Grid   [3]uint32
	Tg     [3]uint32
}

// Module is a kernel file made executable on this machine.
type Module struct {
	*File
	engine  *engine
	run     uintptr
	set     uintptr
	consts  [2]uintptr
	kernels map[string]uintptr
	sizes   map[string][31]int // of the structs behind references
	literal string             // values that the constants have now
}

// engine runs one dispatch at a time: constants and the checker's shadows are
// the process's.
type engine struct {
	sync.Mutex
	path            string
	barrier, forget uintptr
}

var (
	modulesMu sync.Mutex
	modules   = map[string]*Module{} // by path of the library
	engines   = map[bool]*engine{}
)

func flags() []string {
	target, march := "x86_64-linux-gnu", []string{"-march=x86-64-v3"}
	if goruntime.GOARCH == "arm64" {
		target, march = "aarch64-linux-gnu", []string{"-march=armv8.2-a+fp16"}
	}
	return slices.Concat(common, []string{"--target=" + target, "-fsigned-char", "-fPIC", "-shared", "-g1",
		"-Xclang", "-ffloat16-excess-precision=none", "-Werror=double-promotion"}, march)
}

func engineFor(check bool) (*engine, error) {
	if e := engines[check]; e != nil {
		return e, nil
	}
	args := append(flags(), "-O2", "-ftls-model=initial-exec")
	if check {
		args = append(args, "-include", "check.cpp")
	}
	path, err := clang("emu.cpp", ".so", args...)
	if err != nil {
		return nil, err
	}
	h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	e := &engine{path: path}
	if check {
		e.barrier, err = purego.Dlsym(h, "msl_chk_host_barrier")
		if err == nil {
			e.forget, err = purego.Dlsym(h, "msl_chk_forget")
		}
		if err != nil {
			return nil, err
		}
	}
	engines[check] = e
	return e, nil
}

// checkFlags call a hook before every load and store and at undefined
// behaviour; check.cpp has the hooks.
var checkFlags = []string{"-O1", "-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0",
	"-fsanitize=alignment,shift,signed-integer-overflow,bounds,float-cast-overflow,bool", "-fsanitize-recover=all",
	"-Xclang", "-fsanitize-minimal-runtime", "-nostdlib"}

// Load compiles and loads a file; check builds the version that finds races,
// accesses out of bounds, misaligned or of memory never written.
func Load(f *File, check bool) (*Module, error) {
	text, err := f.cpu()
	if err != nil {
		return nil, err
	}
	modulesMu.Lock()
	defer modulesMu.Unlock()
	e, err := engineFor(check)
	if err != nil {
		return nil, err
	}
	args := flags()
	if check {
		args = append(args, checkFlags...)
	} else {
		args = append(args, "-O2")
	}
	path, err := clang(text, ".so", append(args, "-Wl,-rpath,"+filepath.Dir(e.path), "-L"+filepath.Dir(e.path), "-l:"+filepath.Base(e.path))...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	if m := modules[path]; m != nil {
		return m, nil
	}
	h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	m := &Module{File: f, engine: e, kernels: map[string]uintptr{}, sizes: map[string][31]int{}}
	var find, size, table, bounds uintptr
	for _, s := range []struct {
		name string
		dst  *uintptr
	}{{"msl_find", &find}, {"msl_size", &size}, {"msl_run", &m.run}, {"msl_kernels", &table}, {"msl_constant", &m.set}, {"msl_const_range", &bounds}} {
		if *s.dst, err = purego.Dlsym(h, s.name); err != nil {
			return nil, err
		}
	}
	for i := range m.consts {
		m.consts[i], _, _ = purego.SyscallN(bounds, uintptr(i))
	}
	for _, k := range f.Kernels {
		name := append([]byte(k.Name), 0)
		m.kernels[k.Name], _, _ = purego.SyscallN(find, table, uintptr(unsafe.Pointer(&name[0])))
		var sizes [31]int
		for i := range sizes {
			n, _, _ := purego.SyscallN(size, table, uintptr(unsafe.Pointer(&name[0])), uintptr(i))
			sizes[i] = int(uint32(n))
		}
		m.sizes[k.Name] = sizes
	}
	modules[path] = m
	return m, nil
}

// Check says whether the values fit the file's function constants.
func (m *Module) Check(vals []Value) error {
	_, err := m.literals(vals)
	return err
}

// Size is the size in bytes of the struct that a kernel takes by reference as
// argument index.
func (m *Module) Size(kernel string, index int) int { return m.sizes[kernel][index] }

// Run executes a dispatch on workers threads. extra are regions that the kernel
// reaches through pointers in its arguments.
func (m *Module) Run(kernel string, vals []Value, d *Dispatch, extra []Region, workers int) error {
	m.engine.Lock()
	defer m.engine.Unlock()
	if err := m.setConstants(vals); err != nil {
		return err
	}
	d.consts = m.consts
	var pin goruntime.Pinner
	defer pin.Unpin()
	pin.Pin(d)
	if len(extra) > 0 {
		pin.Pin(&extra[0])
		d.extra, d.nextra = unsafe.Pointer(&extra[0]), uint64(len(extra))
	}
	n := uint64(d.Grid[0]) * uint64(d.Grid[1]) * uint64(d.Grid[2])
	if m.engine.barrier != 0 {
		workers = 1
	}
	w := min(uint64(workers), n)
	errs := make([]error, w)
	part := func(i uint64) {
		var msg [1024]byte
		r, _, _ := purego.SyscallN(m.run, m.kernels[kernel], uintptr(unsafe.Pointer(d)), uintptr(n*i/w), uintptr(n*(i+1)/w),
			uintptr(unsafe.Pointer(&msg[0])), uintptr(len(msg)))
		if int32(r) != 0 {
			s, _, _ := strings.Cut(string(msg[:]), "\x00")
			errs[i] = fmt.Errorf("kernel %s: %s", kernel, symbolize(s))
		}
	}
	var wg sync.WaitGroup
	for i := uint64(1); i < w; i++ {
		wg.Go(func() { part(i) })
	}
	part(0)
	wg.Wait()
	return errors.Join(errs...)
}

func (m *Module) setConstants(vals []Value) error {
	lits, err := m.literals(vals)
	if err != nil {
		return err
	}
	all := strings.Join(lits, " ")
	if all == m.literal {
		return nil
	}
	m.literal = all
	for _, v := range vals {
		var b [4]byte
		p := unsafe.Pointer(&b)
		switch x := v.Value.(type) {
		case bool:
			*(*bool)(p) = x
		case int32:
			*(*int32)(p) = x
		case uint32:
			*(*uint32)(p) = x
		case float32:
			*(*float32)(p) = x
		}
		purego.SyscallN(m.set, uintptr(v.Index), uintptr(p))
	}
	return nil
}

// Barrier orders the dispatches before it against those after it.
func (m *Module) Barrier() {
	if m.engine.barrier != 0 {
		m.engine.Lock()
		defer m.engine.Unlock()
		purego.SyscallN(m.engine.barrier)
	}
}

// Forget tells the checker that a buffer ending at end is gone.
func Forget(end unsafe.Pointer) {
	modulesMu.Lock()
	e := engines[true]
	modulesMu.Unlock()
	if e != nil {
		e.Lock()
		defer e.Unlock()
		purego.SyscallN(e.forget, uintptr(end))
	}
}

var rePC = regexp.MustCompile(`(/\S+\.so)\+(0x[0-9a-f]+)`)

// symbolize replaces offsets into a library by the kernel file's lines.
func symbolize(s string) string {
	return rePC.ReplaceAllStringFunc(s, func(x string) string {
		f := rePC.FindStringSubmatch(x)
		for _, tool := range []string{"llvm-symbolizer-19", "llvm-symbolizer"} {
			out, err := exec.Command(tool, "--no-inlines", "--functions=none", "--obj="+f[1], f[2]).Output()
			if err == nil {
				line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
				return filepath.Base(line)
			}
		}
		return x
	})
}
