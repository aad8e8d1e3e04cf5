//go:build !noasm

package quantize

// haveVectors is a variable so that tests can compare.
var haveVectors = true
