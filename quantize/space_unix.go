//go:build linux || darwin

package quantize

import (
	"os"

	"golang.org/x/sys/unix"
)

// freeBytes is the space that an ordinary user may still fill where dir lies;
// -1 if that cannot be told.
func freeBytes(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return -1
	}
	return int64(st.Bavail) * int64(st.Bsize)
}

// lock keeps a second conversion out of dir until the file is closed.
func lock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		_ = f.Close()
		return nil, err
	}
	return f, nil // file systems without locks go without
}
