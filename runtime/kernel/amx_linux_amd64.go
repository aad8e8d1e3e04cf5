//go:build !noasm

package kernel

import "syscall"

// amxPermitted asks the system for the tile registers, which it keeps for
// processes that ask (Linux, Documentation/arch/x86/xstate.rst).
func amxPermitted() bool {
	const requestPermission, tileData = 0x1023, 18
	_, _, err := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, requestPermission, tileData, 0)
	return err == 0
}
