//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"hawkmoth/format"
)

// fake is an Objective-C run time with Metal over the emulator. It knows the
// classes, counts references and keeps a list of what the host code does wrong.
type fake struct {
	sync.Mutex
	t       testing.TB
	device  Device
	objects map[uintptr]*object
	next    uintptr
	pools   map[int][][]uintptr // by thread: what each pool releases
	wrong   []string
	calls   map[string]int
	devices [2]uintptr

	// what this system is like
	noDefault, old, other, narrow, fails bool
}

type object struct {
	kind string
	rc   int
	v    any
	open bool
}

type fakeResult struct{ i, f uint64 }

// theFake is the running test's: the stand-in library is loaded once.
var (
	theFake  *fake
	fakeOnce sync.Once
	fakeErr  error
)

func newFake(t testing.TB, setup func(f *fake)) *fake {
	t.Helper()
	f := &fake{t: t, device: emulator(t, EmulatorOptions{Seed: 3}), objects: map[uintptr]*object{}, next: 0x10000, pools: map[int][][]uintptr{}, calls: map[string]int{}}
	if setup != nil {
		setup(f)
	}
	for i := range f.devices {
		f.devices[i] = uintptr(f.add("device", i))
	}
	fakeOnce.Do(func() {
		so, err := compileC(t, "testdata/objc.c")
		if err != nil {
			fakeErr = err
			return
		}
		h, err := purego.Dlopen(so, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err != nil {
			fakeErr = err
			return
		}
		var set func(uintptr)
		purego.RegisterLibFunc(&set, h, "fake_set")
		set(purego.NewCallback(func(s, self, a, s1, s2, r unsafe.Pointer) uintptr {
			theFake.handle(uintptr(self), cString(s), (*[6]uint64)(a), (*mtlSize)(s1), (*mtlSize)(s2), (*fakeResult)(r))
			return 0
		}))
		objcPath, frameworks = so, []string{so}
	})
	if fakeErr != nil {
		t.Skip("SKIPPED: no stand-in for Objective-C: ", fakeErr)
	}
	theFake = f
	return f
}

func (f *fake) add(kind string, v any) uint64 {
	f.next += 16
	f.objects[f.next] = &object{kind: kind, rc: 1, v: v}
	return uint64(f.next)
}

func (f *fake) bad(s string, a ...any) { f.wrong = append(f.wrong, fmt.Sprintf(s, a...)) }

// autoreleased gives the object to the thread's innermost pool.
func (f *fake) autoreleased(o uint64) uint64 {
	tid := unix.Gettid()
	p := f.pools[tid]
	if len(p) == 0 {
		f.bad("a %s was autoreleased without a pool", f.objects[uintptr(o)].kind)
		return o
	}
	p[len(p)-1] = append(p[len(p)-1], uintptr(o))
	return o
}

func (f *fake) release(p uintptr) {
	o := f.objects[p]
	if o == nil {
		f.bad("release of a freed object %#x", p)
		return
	}
	if o.rc--; o.rc == 0 {
		if o.kind == "encoder" && o.open {
			f.bad("encoder freed before endEncoding")
		}
		delete(f.objects, p)
	}
}

// receivers are the kinds that answer each selector.
var receivers = map[string]string{
	"name": "device", "registryID": "device", "hasUnifiedMemory": "device", "supportsFamily:": "device", "maxBufferLength": "device",
	"recommendedMaxWorkingSetSize": "device", "maxThreadgroupMemoryLength": "device", "newCommandQueue": "device", "newFence": "device",
	"newBufferWithLength:options:": "device", "newBufferWithBytesNoCopy:length:options:deallocator:": "device",
	"newLibraryWithSource:options:error:": "device", "newComputePipelineStateWithFunction:error:": "device", "newResidencySetWithDescriptor:error:": "device",
	"newFunctionWithName:constantValues:error:": "library", "setConstantValue:type:atIndex:": "MTLFunctionConstantValues",
	"setMathMode:": "MTLCompileOptions", "setMathFloatingPointFunctions:": "MTLCompileOptions", "setFastMathEnabled:": "MTLCompileOptions",
	"setLanguageVersion:": "MTLCompileOptions", "setInitialCapacity:": "MTLResidencySetDescriptor",
	"addAllocation:": "residency", "requestResidency": "residency", "endResidency": "residency",
	"contents": "buffer", "gpuAddress": "buffer", "commandBufferWithUnretainedReferences": "queue", "addResidencySet:": "queue", "removeResidencySet:": "queue",
	"computeCommandEncoderWithDispatchType:": "commands", "waitUntilCompleted": "commands", "status": "commands", "error": "commands",
	"GPUStartTime": "commands", "GPUEndTime": "commands", "kernelStartTime": "commands", "kernelEndTime": "commands",
	"setComputePipelineState:": "encoder", "setBuffer:offset:atIndex:": "encoder", "setBytes:length:atIndex:": "encoder",
	"setThreadgroupMemoryLength:atIndex:": "encoder", "useResource:usage:": "encoder", "waitForFence:": "encoder", "updateFence:": "encoder",
	"dispatchThreadgroups:threadsPerThreadgroup:": "encoder", "memoryBarrierWithScope:": "encoder", "endEncoding": "encoder",
	"maxTotalThreadsPerThreadgroup": "pipeline", "threadExecutionWidth": "pipeline", "UTF8String": "NSString", "initWithUTF8String:": "NSString",
	"count": "NSArray", "objectAtIndex:": "NSArray", "localizedDescription": "NSError",
}

var classNames = []string{"NSString", "MTLCompileOptions", "MTLFunctionConstantValues", "MTLResidencySetDescriptor"}

// arg is the value of an object that was passed, which must be of a kind.
func (f *fake) arg(p uint64, kind string) any {
	o := f.objects[uintptr(p)]
	if o == nil || o.kind != kind {
		f.bad("an argument is no %s", kind)
		return nil
	}
	return o.v
}

func at[T any](p uint64) *T { return (*T)(pointer(uintptr(p))) }

// event is a function of the run time or of Metal that is no message.
func (f *fake) event(name string, p uint64, r *fakeResult) {
	tid := unix.Gettid()
	switch name {
	case "push":
		f.pools[tid] = append(f.pools[tid], nil)
		r.i = uint64(len(f.pools[tid]))
	case "pop":
		n := len(f.pools[tid])
		if uint64(n) != p {
			f.bad("pool %d popped on a thread that has %d", p, n)
			return
		}
		for _, o := range f.pools[tid][n-1] {
			f.release(o)
		}
		f.pools[tid] = f.pools[tid][:n-1]
	case "default":
		if !f.noDefault {
			f.objects[f.devices[0]].rc++
			r.i = uint64(f.devices[0])
		}
	case "all":
		r.i = f.add("NSArray", nil)
	}
}

func (f *fake) handle(self uintptr, s string, a *[6]uint64, s1, s2 *mtlSize, r *fakeResult) {
	f.Lock()
	defer f.Unlock()
	switch self {
	case 0: // objc_getClass
		if i := slices.Index(classNames, s); i >= 0 {
			r.i = uint64(16 + i)
		} else {
			f.bad("class %s", s)
		}
		return
	case 1:
		f.event(s, a[0], r)
		return
	}
	f.calls[s]++
	if self >= 16 && self < 16+uintptr(len(classNames)) {
		if s != "alloc" {
			f.bad("+[%s %s]", classNames[self-16], s)
		}
		r.i = f.add(classNames[self-16], nil)
		return
	}
	o := f.objects[self]
	if o == nil {
		f.bad("message %s to a freed or unknown object %#x", s, self)
		return
	}
	if k, ok := receivers[s]; ok && k != o.kind {
		f.bad("-[%s %s]", o.kind, s)
		return
	}
	if !f.common(self, o, s, a, r) && !f.encode(o, s, a, s1, s2) {
		f.make(o, s, a, r)
	}
}

// common are the messages of every object, and getters.
func (f *fake) common(self uintptr, o *object, s string, a *[6]uint64, r *fakeResult) bool {
	constants := map[string]uint64{"hasUnifiedMemory": 0xFF01, "maxBufferLength": 1 << 30, "recommendedMaxWorkingSetSize": 1 << 31,
		"maxThreadgroupMemoryLength": 32768, "maxTotalThreadsPerThreadgroup": 1024, "threadExecutionWidth": 32, "count": uint64(len(f.devices)), "status": 4}
	floats := map[string]float64{"kernelStartTime": 1, "kernelEndTime": 1.25, "GPUStartTime": 1.5, "GPUEndTime": 2}
	if v, ok := constants[s]; ok {
		r.i = v
		if s == "threadExecutionWidth" && f.narrow {
			r.i = 16
		}
		if s == "status" && f.fails {
			r.i = 5
		}
		return true
	}
	if v, ok := floats[s]; ok {
		r.f = math.Float64bits(v)
		return true
	}
	switch s {
	case "init", "retain":
		if s == "retain" {
			o.rc++
		}
		r.i = uint64(self)
	case "release":
		f.release(self)
	case "respondsToSelector:":
		// bits beyond the first byte of a BOOL are not defined
		r.i = 0xAB00
		if !f.old {
			r.i |= 1
		}
	case "supportsFamily:":
		if a[0] == familyApple7 && !f.other {
			r.i = 1
		}
	case "initWithUTF8String:":
		o.v = cString(pointer(uintptr(a[0])))
		r.i = uint64(self)
	case "UTF8String":
		b := append([]byte(o.v.(string)), 0)
		r.i = uint64(uintptr(unsafe.Pointer(&b[0])))
		f.objects[self].v = o.v
		keep = append(keep, b)
	case "name":
		r.i = f.autoreleased(f.add("NSString", fmt.Sprintf("Fake M%d", o.v)))
	case "objectAtIndex:":
		r.i = uint64(f.devices[a[0]])
	case "localizedDescription":
		r.i = f.autoreleased(f.add("NSString", o.v.(error).Error()))
	case "error":
		r.i = f.autoreleased(f.add("NSError", errors.New("the GPU hangs")))
	default:
		return false
	}
	return true
}

var keep [][]byte

// encode are the messages that go on to the emulator's encoder.
func (f *fake) encode(o *object, s string, a *[6]uint64, s1, s2 *mtlSize) bool {
	e, _ := o.v.(Encoder)
	size := func(s *mtlSize) Size { return Size{int(s.w), int(s.h), int(s.d)} }
	switch s {
	case "setComputePipelineState:":
		if p, ok := f.arg(a[0], "pipeline").(Pipeline); ok {
			e.SetPipeline(p)
		}
	case "setBuffer:offset:atIndex:":
		if b, ok := f.arg(a[0], "buffer").(Buffer); ok {
			e.SetBuffer(int(a[2]), b, int(a[1]))
		}
	case "setBytes:length:atIndex:":
		e.SetBytes(int(a[2]), unsafe.Slice(at[byte](a[0]), a[1]))
	case "setThreadgroupMemoryLength:atIndex:":
		e.SetThreadgroupMemory(int(a[1]), int(a[0]))
	case "useResource:usage:":
		if b, ok := f.arg(a[0], "buffer").(Buffer); ok && a[1] == usageRead {
			e.Use(b)
		}
	case "dispatchThreadgroups:threadsPerThreadgroup:":
		e.Dispatch(size(s1), size(s2))
	case "memoryBarrierWithScope:":
		if a[0] != barrierBuffers {
			f.bad("barrier of scope %d", a[0])
		}
		e.Barrier()
	case "waitForFence:", "updateFence:":
		f.arg(a[0], "fence")
	case "endEncoding":
		o.open = false
		e.End()
	default:
		return false
	}
	return true
}

// make are the messages that make or change objects.
func (f *fake) make(o *object, s string, a *[6]uint64, r *fakeResult) {
	fail := func(slot uint64, err error) { *at[uint64](slot) = f.autoreleased(f.add("NSError", err)) }
	switch s {
	case "newCommandQueue":
		q, _ := f.device.NewQueue()
		r.i = f.add("queue", q)
	case "newFence":
		r.i = f.add("fence", nil)
	case "newBufferWithLength:options:", "newBufferWithBytesNoCopy:length:options:deallocator:":
		var b Buffer
		var err error
		if options := a[1]; s[len("newBufferWith")] == 'L' {
			b, err = f.device.NewBuffer(int(a[0]), Shared)
			if options != 0x100 {
				f.bad("buffer options %#x", options)
			}
		} else {
			b, err = f.device.Wrap(unsafe.Slice(at[byte](a[0]), a[1]))
			if a[2] != 0x100 || a[3] != 0 {
				f.bad("no-copy options %#x", a[2])
			}
		}
		if err == nil {
			r.i = f.add("buffer", b)
		}
	case "contents":
		r.i = uint64(uintptr(unsafe.Pointer(&o.v.(Buffer).Bytes()[0])))
	case "gpuAddress":
		r.i = o.v.(Buffer).Address()
	case "setMathMode:", "setMathFloatingPointFunctions:":
		if f.old || a[0] != map[string]uint64{"setMathMode:": mathModeSafe, "setMathFloatingPointFunctions:": mathPrecise}[s] {
			f.bad("%s %d", s, a[0])
		}
	case "setFastMathEnabled:":
		if !f.old || a[0] != 0 {
			f.bad("%s %d", s, a[0])
		}
	case "setLanguageVersion:", "setInitialCapacity:", "requestResidency", "endResidency":
	case "newLibraryWithSource:options:error:":
		text, _ := f.arg(a[0], "NSString").(string)
		f.arg(a[1], "MTLCompileOptions")
		l, err := f.device.NewLibrary("source.metal", text)
		if err != nil {
			fail(a[2], err)
			return
		}
		fail(a[2], errors.New("warning: an error beside a library is no error"))
		r.i = f.add("library", l)
	case "setConstantValue:type:atIndex:":
		c := Constant{Index: int(a[2])}
		switch a[1] {
		case typeBool:
			c.Value = *at[bool](a[0])
		case typeInt:
			c.Value = *at[int32](a[0])
		case typeUInt:
			c.Value = *at[uint32](a[0])
		case typeFloat:
			c.Value = *at[float32](a[0])
		default:
			f.bad("constant of type %d", a[1])
		}
		all, _ := o.v.([]Constant)
		o.v = append(all, c)
	case "newFunctionWithName:constantValues:error:":
		name, _ := f.arg(a[0], "NSString").(string)
		constants, _ := f.arg(a[1], "MTLFunctionConstantValues").([]Constant)
		p, err := o.v.(Library).NewPipeline(name, constants...)
		if err != nil {
			fail(a[2], err)
			return
		}
		r.i = f.add("function", p)
	case "newComputePipelineStateWithFunction:error:":
		r.i = f.add("pipeline", f.arg(a[0], "function"))
	case "newResidencySetWithDescriptor:error:":
		f.arg(a[0], "MTLResidencySetDescriptor")
		r.i = f.add("residency", 0)
	case "addAllocation:":
		f.arg(a[0], "buffer")
	case "addResidencySet:", "removeResidencySet:":
		f.arg(a[0], "residency")
	case "commandBufferWithUnretainedReferences":
		r.i = f.autoreleased(f.add("commands", o.v.(Queue).CommandBuffer()))
	case "computeCommandEncoderWithDispatchType:":
		r.i = f.autoreleased(f.add("encoder", o.v.(CommandBuffer).Encoder(a[0] == dispatchConcurent)))
		f.objects[uintptr(r.i)].open = true
	case "commit":
		if c, ok := o.v.(CommandBuffer); ok {
			c.Commit()
		}
	case "waitUntilCompleted":
		if err := o.v.(CommandBuffer).Wait(); err != nil {
			f.bad("%v", err)
		}
	default:
		f.bad("unknown selector -[%s %s]", o.kind, s)
	}
}

// done checks that nothing was done wrong and nothing is left but the devices.
func (f *fake) done() {
	f.t.Helper()
	for _, w := range f.wrong {
		f.t.Error("host code: ", w)
	}
	for p, o := range f.objects {
		if o.kind != "device" || o.rc != 1 {
			f.t.Errorf("%s %#x has %d references left", o.kind, p, o.rc)
		}
	}
	for tid, p := range f.pools {
		if len(p) > 0 {
			f.t.Errorf("thread %d is left with %d pools", tid, len(p))
		}
	}
}

func TestMetalHostCode(t *testing.T) {
	f := newFake(t, nil)
	names, err := metalDriver.Devices()
	if err != nil || !slices.Equal(names, []string{"Fake M0", "Fake M1"}) {
		t.Errorf("devices %q, %v", names, err)
	}
	d, err := openMetal(0)
	if err != nil {
		t.Fatal(err)
	}
	want := Limits{MaxBuffer: 1 << 30, Memory: 1 << 31, ThreadgroupMemory: 32768, Threads: 1024, Page: 16384, SIMD: true, Unified: true, Residency: true}
	if d.Name() != "Fake M0" || d.Limits() != want {
		t.Errorf("%s: %+v", d.Name(), d.Limits())
	}
	if err := Probe(d); err != nil {
		t.Error(err)
	}
	exerciseDriver(t, d)
	testHeartbeat(t, f, d)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	f.done()
	for _, s := range []string{"useResource:usage:", "waitForFence:", "setThreadgroupMemoryLength:atIndex:", "addAllocation:"} {
		if f.calls[s] == 0 {
			t.Errorf("%s was never sent", s)
		}
	}
}

// A residency set is asked for again while it is held, and not after.
func testHeartbeat(t *testing.T, f *fake, d Device) {
	t.Helper()
	defer func(old time.Duration) { residencyBeat = old }(residencyBeat)
	residencyBeat = time.Millisecond
	count := func() int {
		f.Lock()
		defer f.Unlock()
		return f.calls["requestResidency"]
	}
	b, err := d.NewBuffer(64, Private)
	if err != nil {
		t.Fatal(err)
	}
	q, err := d.NewQueue()
	if err != nil {
		t.Fatal(err)
	}
	release, err := q.KeepResident(b)
	if err != nil {
		t.Fatal(err)
	}
	for first := count(); count() < first+3; {
		goruntime.Gosched()
	}
	release()
	release()
	q.Release()
	b.Release()
	f.Lock()
	defer f.Unlock()
	for _, o := range f.objects {
		if o.kind == "residency" {
			t.Error("the residency set is left")
		}
	}
}

func TestMetalSystems(t *testing.T) {
	for _, tt := range []struct {
		name  string
		setup func(*fake)
		index int
		want  string // in the error of Probe
	}{
		{"no default device", func(f *fake) { f.noDefault = true }, 1, ""},
		{"before macOS 15", func(f *fake) { f.old = true }, 0, ""},
		{"no Apple7", func(f *fake) { f.other = true }, 0, "simdgroups of 32"},
		{"simdgroups of 16", func(f *fake) { f.narrow = true }, 0, "simdgroups of 16 threads"},
		{"a hanging GPU", func(f *fake) { f.fails = true }, 0, "status 5: the GPU hangs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t, tt.setup)
			d, err := openMetal(tt.index)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("Fake M%d", tt.index); d.Name() != want {
				t.Errorf("%s, want %s", d.Name(), want)
			}
			err = Probe(d)
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, format.ErrUnsupported) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("probe: %v, want %q", err, tt.want)
			}
			if d.Limits().Residency == f.old {
				t.Errorf("residency %v", d.Limits().Residency)
			}
			if _, err := openMetal(2); !errors.Is(err, ErrNoDevice) {
				t.Errorf("device 2: %v", err)
			}
			if _, err := d.NewLibrary("bad.metal", "kernel void k() { double d; }"); err == nil || !strings.Contains(err.Error(), "double does not exist") {
				t.Errorf("the compiler's text is lost: %v", err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			f.done()
		})
	}
}

// driverText has what a driver must carry: constants of all types, threadgroup
// memory, pointers in structs, offsets, order.
const driverText = `
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
constant uint FC_MUL [[function_constant(0)]];
constant bool FC_NEG [[function_constant(1)]];
constant int FC_ADD [[function_constant(2)]];
constant float FC_F [[function_constant(3)]];
struct Args {
  device const uint* far;
  uint n;
};
kernel void fill(device uint* y [[buffer(0)]], constant uint& v [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = v + i;
}
kernel void mix(device const uint* x [[buffer(0)]], device uint* y [[buffer(2)]], constant Args& a [[buffer(5)]],
                threadgroup uint* t [[threadgroup(0)]], threadgroup uint* u [[threadgroup(1)]], uint i [[thread_position_in_grid]],
                uint l [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  t[l] = i < a.n ? x[i] : 0u;
  u[n - 1u - l] = a.far[l];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint v = t[n - 1u - l] * FC_MUL + u[l] + uint(FC_ADD) + uint(FC_F);
  if (i < a.n) y[i] = FC_NEG ? 0u - v : v;
}
`

var driverConstants = []Constant{{0, uint32(3)}, {1, true}, {2, int32(-5)}, {3, float32(2.5)}}

func exerciseDriver(t *testing.T, d Device) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lib, err := d.NewLibrary("driver.metal", driverText)
	must(err)
	fill, err := lib.NewPipeline("fill", driverConstants...)
	must(err)
	mix, err := lib.NewPipeline("mix", driverConstants...)
	must(err)
	if _, err := lib.NewPipeline("mix", driverConstants[:2]...); err == nil {
		t.Error("a missing constant was accepted")
	}
	const n = 100
	x, err := d.NewBuffer(4*256, Private)
	must(err)
	y, err := d.NewBuffer(4*128, Shared)
	must(err)
	page := max(d.Limits().Page, 4096)
	mapped, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(err)
	defer func() { must(unix.Munmap(mapped)) }()
	// the host's pages may be smaller than the device's
	mem := mapped[-uintptr(unsafe.Pointer(&mapped[0]))%uintptr(page):][:page]
	table := make([]byte, 4*64)
	for i := range 64 {
		binary.LittleEndian.PutUint32(table[4*i:], uint32(1000*i))
	}
	copy(mem, table)
	far, err := d.Wrap(mem)
	must(err)
	if d.Limits().Page > 1 {
		if _, err := d.Wrap(mapped[1 : page+1]); err == nil {
			t.Error("memory that starts inside a page was wrapped")
		}
	}
	got := make([]byte, 4*64)
	must(far.Read(0, got))
	if !bytes.Equal(got, table) || far.Read(far.Len()-1, got) == nil {
		t.Error("Read")
	}
	must(x.Zero())
	must(x.Write(4, table[:8]))
	q, err := d.NewQueue()
	must(err)
	var release func()
	if d.Limits().Residency {
		release, err = q.KeepResident(x, y, far)
		must(err)
	}
	for round := range uint32(3) {
		cb := q.CommandBuffer()
		e := cb.Encoder(true)
		e.SetPipeline(fill)
		e.SetBuffer(0, x, 4*32)
		e.SetBytes(1, binary.LittleEndian.AppendUint32(nil, 7+round))
		e.Dispatch(Size{X: 4}, Size{X: 32})
		e.Barrier()
		e.SetPipeline(mix)
		e.SetBuffer(0, x, 4*32)
		e.SetBuffer(2, y, 0)
		e.SetBytes(5, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, far.Address()), n))
		e.SetThreadgroupMemory(0, 256)
		e.SetThreadgroupMemory(1, 256)
		e.Use(far)
		e.Dispatch(Size{X: 2}, Size{X: 64})
		e.End()
		cb.Commit()
		must(cb.Wait())
		if cb.Times().GPU <= 0 {
			t.Errorf("times %+v", cb.Times())
		}
		for i := range uint32(n) {
			l := i % 64
			j := i - l + 63 - l
			in := uint32(0)
			if j < n {
				in = 7 + round + j
			}
			if want := -(in*3 + 1000*(63-l) - 5 + 2); binary.LittleEndian.Uint32(y.Bytes()[4*i:]) != want {
				t.Fatalf("round %d: y[%d] = %d, want %d", round, i, binary.LittleEndian.Uint32(y.Bytes()[4*i:]), want)
			}
		}
	}
	cb := q.CommandBuffer()
	e := cb.Encoder(false)
	e.SetPipeline(fill)
	e.Dispatch(Size{X: 1}, Size{X: 33})
	e.SetPipeline(fill)
	e.SetBuffer(0, y, 1<<20)
	e.End()
	cb.Commit()
	if err := cb.Wait(); err == nil || !strings.Contains(err.Error(), "33 threads") || !strings.Contains(err.Error(), "offset 1048576") {
		t.Errorf("mistakes in encoding: %v", err)
	}
	if release != nil {
		release()
	}
	q.Release()
	for _, b := range []Buffer{x, y, far} {
		b.Release()
		b.Release()
	}
	fill.Release()
	mix.Release()
	lib.Release()
}
