//go:build unix

package report

import (
	"syscall"
	"time"
)

// cpuTime is what the process has used of all processors; other processes do
// not show in it.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
