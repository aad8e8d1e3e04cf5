//go:build !linux

package runtime

// hugePages is for the system to decide.
func hugePages([]float32) {}
