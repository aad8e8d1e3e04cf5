//go:build arm64 && !darwin && !noasm

package kernel

// systemHasI8MM adds nothing to what package cpu knows.
func systemHasI8MM() bool { return false }
