//go:build nogpu || !(linux && (amd64 || arm64))

package metal

var drivers []Driver
