package format

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// preallocate gives a file its final size and, where the file system can, its
// blocks, so that a full disk is found before any work.
func preallocate(f *os.File, n int64) error {
	if n == 0 {
		return nil
	}
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, n)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
			return f.Truncate(n)
		default:
			return err
		}
	}
}
