package runtime

import (
	"os"
	"path/filepath"
	goruntime "runtime"
)

// physicalCores counts the cores that the system lists, each once however many
// hardware threads it has, but not more than the process may use.
func physicalCores() int {
	seen := map[string]bool{}
	files, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings")
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil {
			seen[string(data)] = true
		}
	}
	if n := goruntime.GOMAXPROCS(0); len(seen) == 0 || n < len(seen) {
		return n
	}
	return len(seen)
}
