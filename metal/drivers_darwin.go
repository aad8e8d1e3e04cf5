//go:build (amd64 || arm64) && !nogpu

package metal

var drivers = []Driver{metalDriver}
