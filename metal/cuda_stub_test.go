//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"hawkmoth/internal/msl"
)

// stub is a libcuda whose launches run in the emulator, so that everything
// between the backend and the GPU's driver is tested without a GPU.
type stub struct {
	modules []stubModule
	errs    []string
	kernels map[string]msl.Compiled
}

type stubModule struct {
	k    msl.Compiled
	v    Variant
	m    *msl.Module
	vals []msl.Value
}

var (
	stubOnce sync.Once
	theStub  stub
	live     func() int32
	graphs   func() int32 // launches of graphs in thousands, and updates of launches in them
	stubLib  *cudaLib
	stubErr  error
)

func openStub(t *testing.T) (Device, *stub) {
	t.Helper()
	emulator(t, EmulatorOptions{})
	stubOnce.Do(func() {
		so, err := compileC(t, "testdata/libcuda.c")
		if err != nil {
			stubErr = err
			return
		}
		h, err := purego.Dlopen(so, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err != nil {
			stubErr = err
			return
		}
		var set func(m, l uintptr)
		purego.RegisterLibFunc(&set, h, "fake_set")
		purego.RegisterLibFunc(&live, h, "fake_live")
		purego.RegisterLibFunc(&graphs, h, "fake_graphs")
		set(purego.NewCallback(theStub.load), purego.NewCallback(theStub.launch))
		stubLib, stubErr = loadCUDA(so)
	})
	if stubErr != nil {
		t.Skip("SKIPPED: no libcuda stub: ", stubErr)
	}
	d, err := stubLib.open(0)
	if err != nil {
		t.Fatal(err)
	}
	withTestKernels(t, d)
	theStub.kernels = d.(*cudaDevice).kernels
	return d, &theStub
}

func (s *stub) load(ptx, id unsafe.Pointer) uintptr {
	text := cString(ptx)
	for _, v := range slices.Concat(Variants(true), testVariants) {
		k := s.kernels[v.Key()]
		if text != k.PTX && text != msl.Early(k.PTX) {
			continue
		}
		src, err := testSource(v.File)
		if err != nil {
			return 1
		}
		f, err := msl.Parse(v.File, src)
		if err != nil {
			return 1
		}
		m, err := msl.Load(f, false)
		if err != nil {
			return 1
		}
		mod := stubModule{k: k, v: v, m: m}
		for _, c := range v.Constants {
			mod.vals = append(mod.vals, msl.Value(c))
		}
		s.modules = append(s.modules, mod)
		*(*uint64)(id) = uint64(len(s.modules))
		return 0
	}
	return 1
}

func (s *stub) launch(p unsafe.Pointer) uintptr {
	a := *(*[10]uint64)(p)
	mod := s.modules[a[0]-1]
	args := unsafe.Slice(*(**byte)(unsafe.Pointer(&a[8])), a[9])
	d := msl.Dispatch{Grid: [3]uint32{uint32(a[1]), uint32(a[2]), uint32(a[3])}, Tg: [3]uint32{uint32(a[4]), uint32(a[5]), uint32(a[6])}}
	at, shared := 0, 0
	for _, q := range mod.k.Entry.Params {
		at = align(at, q.Align)
		switch q.Kind {
		case msl.Pointer:
			addr := binary.LittleEndian.Uint64(args[at:])
			d.Bufs[q.Index] = msl.Region{Ptr: *(*unsafe.Pointer)(unsafe.Pointer(&addr)), Len: 1 << 40}
		case msl.Bytes:
			d.Bufs[q.Index] = msl.Region{Ptr: unsafe.Pointer(&args[at]), Len: uint64(q.Size)}
		case msl.Shared:
			off := int(binary.LittleEndian.Uint32(args[at:]))
			if off < shared || off >= int(a[7]) {
				s.errs = append(s.errs, fmt.Sprintf("%s: shared memory at %d of %d", mod.v.Key(), off, a[7]))
			}
			d.Shared[q.Index] = uint32(a[7]) - uint32(off) // the most that it can be
			shared = off + 16
		}
		at += q.Size
	}
	if at != len(args) {
		s.errs = append(s.errs, fmt.Sprintf("%s: %d bytes of arguments, want %d", mod.v.Key(), len(args), at))
	}
	if err := mod.m.Run(mod.v.Kernel, mod.vals, &d, nil, 1); err != nil {
		s.errs = append(s.errs, err.Error())
	}
	return 0
}

func TestCUDAHostCode(t *testing.T) {
	d, s := openStub(t)
	if err := Probe(d); err != nil {
		t.Error(err)
	}
	b, err := d.NewBuffer(1<<33, Private)
	if !errors.Is(err, ErrMemory) {
		t.Errorf("a buffer beyond the memory: %v, %v", b, err)
	}
	lib, err := d.NewLibrary("probe.metal", "another text")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lib.NewPipeline("probe"); err == nil || !strings.Contains(err.Error(), "go generate") {
		t.Errorf("PTX of another text was accepted: %v", err)
	}
	exerciseDriver(t, d)
	if err := newChain(d, checkText(t)).run(); err != nil {
		t.Error(err)
	}
	was := graphs()
	exerciseGraphs(t, d)
	// The third and the fourth of four alike, with what differs in them, and nothing of the fifth's.
	if n := graphs() - was; n != 5*1000+2*3 {
		t.Errorf("%d launches of graphs with %d updates", n/1000, n%1000)
	}
	d.(*cudaDevice).early = false // as of older devices
	exerciseGraphs(t, d)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n := live(); n != 0 {
		t.Errorf("%d objects of the driver were not released", n)
	}
	for _, e := range s.errs {
		t.Error(e)
	}
}

// exerciseGraphs commits command buffers of the same kernels, more of which become
// graphs, with other arguments and sizes, and one of other kernels.
func exerciseGraphs(t *testing.T, d Device) {
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
	q, err := d.NewQueue()
	must(err)
	const parts, n = 6, 64
	y, err := d.NewBuffer(4*parts*n, Private)
	must(err)
	// Rounds of: the value and threadgroups of the parts, and where a barrier is.
	for i, round := range []struct {
		values  [parts]uint32
		groups  int
		barrier int
	}{
		{[parts]uint32{1, 2, 3, 4, 5, 6}, 2, 3}, {[parts]uint32{1, 2, 3, 4, 5, 6}, 2, 3}, {[parts]uint32{9, 2, 8, 4, 7, 6}, 2, 3},
		{[parts]uint32{9, 2, 8, 4, 7, 6}, 2, 3}, {[parts]uint32{9, 5, 8, 5, 7, 5}, 2, 3}, {[parts]uint32{1, 1, 1, 1, 1, 1}, 2, 2}, {[parts]uint32{3, 3, 3, 3, 3, 3}, 2, 2},
	} {
		must(y.Zero())
		c := q.CommandBuffer()
		e := c.Encoder(true)
		for p, v := range round.values {
			if p == round.barrier {
				e.Barrier()
			}
			e.SetPipeline(fill)
			e.SetBuffer(0, y, 4*p*n)
			e.SetBytes(1, u32(v*1000))
			e.Dispatch(Size{X: round.groups}, Size{X: 32})
		}
		e.End()
		c.Commit()
		must(c.Wait())
		got := make([]byte, 4*parts*n)
		must(y.Read(0, got))
		for j := range parts * n {
			want := round.values[j/n]*1000 + uint32(j%n)
			if j%n >= 32*round.groups {
				want = 0
			}
			if g := binary.LittleEndian.Uint32(got[4*j:]); g != want {
				t.Fatalf("round %d: element %d is %d, not %d", i, j, g, want)
			}
		}
	}
	y.Release()
	q.Release()
	fill.Release()
	lib.Release()
}

// testVariants are the kernels of the tests that run on real devices too.
var testVariants = slices.Concat([]Variant{
	{"driver.metal", "fill", driverConstants}, {"driver.metal", "mix", driverConstants}},
	checkVariants)

// testSource finds the text of a kernel file, the tests' or the product's.
func testSource(name string) (string, error) {
	switch name {
	case "driver.metal":
		return driverText, nil
	case "check.metal":
		b, err := os.ReadFile("testdata/check.metal")
		return string(b), err
	}
	return Source(name)
}

const testArchive = "testdata/tests.ptx.zst"

var update = flag.Bool("update", false, "compile "+testArchive+" anew")

// withTestKernels adds the tests' PTX to what a CUDA device has.
func withTestKernels(t *testing.T, d Device) {
	t.Helper()
	b, err := os.ReadFile(testArchive)
	if err != nil {
		t.Fatal(err)
	}
	extra, err := msl.Unpack(b)
	if err != nil {
		t.Fatal(err)
	}
	kernels := maps.Clone(d.(*cudaDevice).kernels)
	maps.Copy(kernels, extra)
	d.(*cudaDevice).kernels = kernels
}

// The tests' PTX is of their text, too.
func TestPTXOfTests(t *testing.T) {
	if *update {
		var all []msl.Compiled
		for _, v := range testVariants {
			k, err := compileVariant(v)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, k)
		}
		b, err := msl.Pack(all)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(testArchive, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := &cudaDevice{kernels: map[string]msl.Compiled{}}
	withTestKernels(t, d)
	for _, v := range testVariants {
		text, err := testSource(v.File)
		if err != nil {
			t.Fatal(err)
		}
		if k, ok := d.kernels[v.Key()]; !ok || k.Hash != msl.TextHash(text) {
			t.Errorf("%s: missing or of another text: run go test ./metal -run PTXOfTests -update", v.Key())
		}
	}
}

func compileVariant(v Variant) (msl.Compiled, error) {
	text, err := testSource(v.File)
	if err != nil {
		return msl.Compiled{}, err
	}
	f, err := msl.Parse(v.File, text)
	if err != nil {
		return msl.Compiled{}, err
	}
	var vals []msl.Value
	for _, c := range v.Constants {
		vals = append(vals, msl.Value(c))
	}
	ptx, e, err := msl.PTX(f, v.Kernel, vals)
	return msl.Compiled{Key: v.Key(), Hash: msl.TextHash(text), Entry: e, PTX: strings.TrimRight(string(ptx), "\n")}, err
}

// What the compiler makes now is what is embedded; checked for a few kernels.
func TestPTXIsReproducible(t *testing.T) {
	emulator(t, EmulatorOptions{})
	archive, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	all := Variants(true)
	for i := 0; i < len(all); i += max(1, len(all)/8) {
		k, err := compileVariant(all[i])
		if err != nil {
			t.Fatal(err)
		}
		if was := archive[k.Key]; was.PTX != k.PTX {
			t.Errorf("%s is not what clang makes of it now: run go generate ./metal", k.Key)
		}
	}
}

// The same tests on a real device, if there is one.
func TestCUDADevice(t *testing.T) {
	names, err := cudaDriver.Devices()
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	for i, name := range names {
		d, err := cudaDriver.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("device %d: %s", i, name)
		withTestKernels(t, d)
		exerciseDriver(t, d)
		exerciseGraphs(t, d)
		for range 3 {
			if err := newChain(d, checkText(t)).run(); err != nil {
				t.Error(err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The embedded PTX must have been made from the kernels as they are.
func TestPTXIsCurrent(t *testing.T) {
	archive, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	all := maps.Clone(archive)
	for _, v := range Variants(true) {
		text, err := Source(v.File)
		if err != nil {
			t.Fatal(err)
		}
		if k, ok := all[v.Key()]; !ok || k.Hash != msl.TextHash(text) {
			t.Errorf("%s: missing or of another text: run go generate ./metal", v.Key())
		}
		delete(all, v.Key())
	}
	for key := range all {
		t.Errorf("%s is in the archive and no variant", key)
	}
}
