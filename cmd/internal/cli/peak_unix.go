//go:build unix

package cli

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// PeakMemory is the largest resident size of the process so far, in bytes; 0
// where the system does not tell.
func PeakMemory() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	peak := int64(u.Maxrss)
	if runtime.GOOS != "darwin" && runtime.GOOS != "ios" {
		peak *= 1024 // everyone but Apple counts kilobytes
	}
	return peak
}
