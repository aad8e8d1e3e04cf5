package runtime

import (
	"bytes"
	"fmt"
	"os"
)

// availableMemory is what the system says can be used without swapping, in
// bytes; 0 where it does not tell.
func availableMemory() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		var kB int64
		if n, _ := fmt.Sscanf(string(line), "MemAvailable: %d kB", &kB); n == 1 {
			return kB * 1024
		}
	}
	return 0
}
