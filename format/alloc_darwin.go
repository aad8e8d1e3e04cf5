package format

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// preallocate gives a file its final size and, where the file system can, its
// blocks, so that a full disk is found before any work.
func preallocate(f *os.File, n int64) error {
	if n > 0 {
		err := unix.FcntlFstore(f.Fd(), unix.F_PREALLOCATE, &unix.Fstore_t{
			Flags: unix.F_ALLOCATEALL, Posmode: unix.F_PEOFPOSMODE, Length: n,
		})
		if errors.Is(err, unix.ENOSPC) {
			return err
		}
	}
	return f.Truncate(n)
}
