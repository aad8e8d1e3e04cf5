package metal

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"hawkmoth/internal/msl"
)

// devices are all that this machine has, opened; what is missing is skipped,
// visibly.
func devices(t *testing.T, run func(t *testing.T, d Device)) {
	t.Helper()
	for _, dr := range Drivers() {
		names, err := dr.Devices()
		if err != nil {
			t.Run(dr.Name, func(t *testing.T) {
				if !errors.Is(err, ErrNoDevice) {
					t.Fatal(err)
				}
				t.Skip("SKIPPED: ", err)
			})
		}
		for i := range names {
			t.Run(dr.Name, func(t *testing.T) {
				d, err := dr.Open(i)
				if err != nil {
					t.Fatal(err)
				}
				runAndClose(t, d, run)
			})
		}
	}
	for name, open := range moreDevices {
		t.Run(name, func(t *testing.T) { runAndClose(t, open(t), run) })
	}
}

func runAndClose(t *testing.T, d Device, run func(t *testing.T, d Device)) {
	t.Helper()
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	run(t, d)
}

func TestProbe(t *testing.T) {
	devices(t, func(t *testing.T, d Device) {
		t.Logf("%s: %+v", d.Name(), d.Limits())
		if !d.Limits().SIMD {
			t.Skip("SKIPPED: ", d.Name(), " has no simdgroup operations: ", Probe(d))
		}
		if err := Probe(d); err != nil {
			t.Error(err)
		}
		size := 1 << 20
		if d.Name() != emulatorName {
			size = 1 << 30
		}
		b, err := Bandwidth(d, size)
		if err != nil || b <= 0 {
			t.Errorf("bandwidth %g, %v", b, err)
		}
		t.Logf("%s reads %.1f GB/s", d.Name(), b/1e9)
	})
}

// Every pipeline that the backend may ask for can be made. Apple's virtual
// machines only compile: they have no simdgroup operations.
func TestEveryVariantCompiles(t *testing.T) {
	devices(t, func(t *testing.T, d Device) {
		libs := map[string]Library{}
		for _, v := range Variants(d.Limits().Dots) {
			if libs[v.File] == nil {
				text, err := Source(v.File)
				if err != nil {
					t.Fatal(err)
				}
				if libs[v.File], err = d.NewLibrary(v.File, text); err != nil {
					t.Fatal(err)
				}
			}
			if !d.Limits().SIMD {
				continue
			}
			p, err := libs[v.File].NewPipeline(v.Kernel, v.Constants...)
			if err != nil {
				t.Errorf("%s: %v", v.Key(), err)
				continue
			}
			if p.Threads() < 256 {
				t.Errorf("%s: only %d threads in a threadgroup", v.Key(), p.Threads())
			}
			p.Release()
		}
		for _, l := range libs {
			l.Release()
		}
		t.Logf("%s: %d pipelines of %d files", d.Name(), len(Variants(d.Limits().Dots)), len(libs))
	})
}

// The kernel files are in the subset that every compiler reads alike, and the
// table of variants names each kernel at least once.
func TestKernelFiles(t *testing.T) {
	_, clang := msl.Clang()
	for _, name := range Sources() {
		text, err := Source(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range msl.Lint(text) {
			t.Errorf("%s: %s", name, l)
		}
		f, err := msl.Parse(name, text)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range f.Kernels {
			if !slices.ContainsFunc(Variants(false), func(v Variant) bool { return v.File == name && v.Kernel == k.Name }) {
				t.Errorf("%s: no variant of kernel %s", name, k.Name)
			}
		}
		if clang == nil {
			if err := msl.CheckTypes(f); err != nil {
				t.Error(err)
			}
		}
	}
	if clang != nil {
		t.Log("SKIPPED: address spaces: ", clang)
	}
	for _, dots := range []bool{false, true} {
		keys := map[string]bool{}
		for _, v := range Variants(dots) {
			if keys[v.Key()] {
				t.Errorf("%s stands twice in the table", v.Key())
			}
			keys[v.Key()] = true
			if !strings.HasSuffix(v.File, ".metal") {
				t.Errorf("%s is no kernel file", v.File)
			}
		}
	}
}
