//go:build !noasm

package quantize

import "golang.org/x/sys/cpu"

// haveVectors says whether the machine has what the assembly wants.
var haveVectors = cpu.X86.HasAVX2 && cpu.X86.HasF16C
