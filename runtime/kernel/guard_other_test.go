//go:build !unix

package kernel

import "testing"

func guarded(_ testing.TB, n int) []byte { return make([]byte, n) }
