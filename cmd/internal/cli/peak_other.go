//go:build !unix

package cli

// PeakMemory is the largest resident size of the process so far, in bytes; 0
// where the system does not tell.
func PeakMemory() int64 { return 0 }
