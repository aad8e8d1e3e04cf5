//go:build nogpu || !(linux || darwin) || !(amd64 || arm64)

package metal

var drivers []Driver
