//go:build linux && (amd64 || arm64) && !nogpu

package metal

var drivers = []Driver{cudaDriver, emulatorDriver}
