//go:build unix && !linux && !darwin

package format

import "os"

func preallocate(f *os.File, n int64) error { return f.Truncate(n) }
