//go:build windows

package format

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapFile maps the first n bytes of a file read-only.
func mapFile(f *os.File, n int) ([]byte, error) {
	h, err := windows.CreateFileMapping(windows.Handle(f.Fd()), nil, windows.PAGE_READONLY, 0, 0, nil)
	if err != nil {
		return nil, os.NewSyscallError("CreateFileMapping", err)
	}
	// The view keeps the mapping alive.
	defer func() { _ = windows.CloseHandle(h) }()
	addr, err := windows.MapViewOfFile(h, windows.FILE_MAP_READ, 0, 0, uintptr(n))
	if err != nil {
		return nil, os.NewSyscallError("MapViewOfFile", err)
	}
	// Through a pointer to addr, since vet takes a uintptr conversion for an error.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n), nil
}

func unmapFile(b []byte) error {
	return windows.UnmapViewOfFile(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// syncDir does nothing: Windows cannot flush a directory.
func syncDir(string) error { return nil }

func preallocate(f *os.File, n int64) error { return f.Truncate(n) }
