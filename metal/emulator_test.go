//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"hawkmoth/internal/msl"
)

// compileC makes a shared object of a C file for this architecture.
func compileC(t testing.TB, file string) (string, error) {
	t.Helper()
	cc, err := msl.Clang()
	if err != nil {
		return "", err
	}
	so := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(file), ".c")+".so")
	target := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[goruntime.GOARCH] + "-linux-gnu"
	if out, err := exec.Command(cc, "-x", "c", "--target="+target, "-O1", "-shared", "-fPIC", "-o", so, file).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return so, nil
}

// emulator opens the emulator; without clang the test is skipped, visibly.
func emulator(t testing.TB, o EmulatorOptions) Device {
	t.Helper()
	d, err := OpenEmulator(o)
	if errors.Is(err, ErrNoDevice) {
		t.Skip("SKIPPED: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func init() { moreDevices["emulator with dots"] = emulatorWithDots }

// emulatorWithDots claims the instructions that NVIDIA's devices have.
func emulatorWithDots(t testing.TB) Device {
	t.Helper()
	l := emulatorLimits
	l.Dots = true
	return emulator(t, EmulatorOptions{Limits: &l})
}

func TestEmulatorDriver(t *testing.T) {
	for _, o := range []EmulatorOptions{{}, {Seed: 9, Workers: 1}, {Seed: 5, Check: true}} {
		exerciseDriver(t, emulator(t, o))
	}
}
