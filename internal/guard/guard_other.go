//go:build !unix

package guard

// Bytes is plain memory where there are no pages to protect.
func Bytes(_ T, n int) []byte { return make([]byte, n) }
