//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"errors"
	"strings"
	"testing"

	"hawkmoth/format"
)

// bentDevice computes as devices do that are not asked to be exact.
type bentDevice struct {
	Device
	old, new string
}

func (d bentDevice) Name() string { return "bent device" }

func (d bentDevice) NewLibrary(name, source string) (Library, error) {
	if strings.Count(source, d.old) != 1 {
		return nil, errors.New("the probe has no " + d.old)
	}
	return d.Device.NewLibrary(name, strings.Replace(source, d.old, d.new, 1))
}

func TestProbeRefusesDevicesThatAreNotExact(t *testing.T) {
	d := emulator(t, EmulatorOptions{})
	for _, tt := range []struct{ old, new, want string }{
		{"r[0] = a * b + c;", "r[0] = fma(a, b, c);", "a product and a sum are fused"},
		{"r[1] = fma(a, b, c);", "r[1] = a * b + c;", "a product and a sum are fused"},
		{"r[2] = a / b;", "r[2] = a * (1.0f / b);", "division or square root is not correctly rounded"},
		{"precise::sqrt(c)", "c * (1.0f / precise::sqrt(c))", "division or square root is not correctly rounded"},
		{"r[2] = a / b;", "r[2] = abs(a / b) < 0x1p-126f ? 0.0f : a / b;", "denormals are flushed to zero"},
		{"r[3] = precise::sqrt(c);", "r[3] = min(precise::sqrt(c), 3.0e38f);", "infinities are not kept"},
	} {
		err := Probe(bentDevice{d, tt.old, tt.new})
		if !errors.Is(err, format.ErrUnsupported) || !strings.Contains(err.Error(), "bent device: "+tt.want) {
			t.Errorf("%s: %v, want %s", tt.new, err, tt.want)
		}
	}
	limits := emulatorLimits
	limits.SIMD = false
	if err := Probe(emulator(t, EmulatorOptions{Limits: &limits})); err == nil || !strings.Contains(err.Error(), "simdgroups of 32") {
		t.Errorf("a device without simdgroup operations: %v", err)
	}
	if err := Probe(bentDevice{d, "", "kernel void broken("}); err == nil || !strings.Contains(err.Error(), "cannot be checked") {
		t.Errorf("a device that does not compile: %v", err)
	}
}
