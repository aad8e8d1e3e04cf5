package format

import (
	"slices"
	"sync"
	"unsafe"
)

// mappings are the live mappings of shards.
var mappings struct {
	sync.Mutex
	list [][]byte
}

func trackMapping(b []byte) {
	mappings.Lock()
	defer mappings.Unlock()
	mappings.list = append(mappings.list, b)
}

func forgetMapping(b []byte) {
	mappings.Lock()
	defer mappings.Unlock()
	mappings.list = slices.DeleteFunc(mappings.list, func(m []byte) bool { return unsafe.SliceData(m) == unsafe.SliceData(b) })
}

// Mapping is the mapping of a file that holds all of p, or nil: then p is
// ordinary memory. A device may read whole pages of a mapping where they are.
func Mapping(p []byte) []byte {
	mappings.Lock()
	defer mappings.Unlock()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	for _, m := range mappings.list {
		if from := uintptr(unsafe.Pointer(unsafe.SliceData(m))); at >= from && at+uintptr(len(p)) <= from+uintptr(len(m)) {
			return m
		}
	}
	return nil
}
