package runtime

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePages asks for large pages under a buffer that nobody has touched yet:
// rows picked out of a long cache would else cost a walk of the page table each.
// It is a hint, so that a refusal changes nothing.
func hugePages(f []float32) {
	const page, worth = 2 << 20, 8 << 20
	if 4*len(f) < worth {
		return
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
	from := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (page - 1))
	_ = unix.Madvise(b[from:from+(len(b)-from)&^(page-1)], unix.MADV_HUGEPAGE)
}
