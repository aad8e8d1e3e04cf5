//go:build !(amd64 || arm64) || noasm

package quantize

var haveVectors = false

func runVector(vectorOp, *byte) {}
