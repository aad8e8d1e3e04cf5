//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"errors"
	"testing"
)

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

func TestProbeOnTheEmulator(t *testing.T) {
	for _, o := range []EmulatorOptions{{}, {Seed: 7}, {Check: true, Seed: 3}} {
		if err := Probe(emulator(t, o)); err != nil {
			t.Error(err)
		}
	}
}
