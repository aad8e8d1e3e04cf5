//go:build amd64 && !linux && !noasm

package kernel

// amxPermitted is false where nobody has tried how the system lends the tiles.
func amxPermitted() bool { return false }
