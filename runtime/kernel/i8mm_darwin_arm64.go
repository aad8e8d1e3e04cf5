//go:build !noasm

package kernel

import "golang.org/x/sys/unix"

// systemHasI8MM asks macOS, whose processors have it from the M2 on.
func systemHasI8MM() bool {
	v, err := unix.SysctlUint32("hw.optional.arm.FEAT_I8MM")
	return err == nil && v != 0
}
