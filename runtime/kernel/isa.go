package kernel

import (
	"encoding/binary"

	"hawkmoth/format"
)

// isa is a level of the machine's instructions for which there is assembly.
type isa uint8

const (
	plain  isa = iota // Go
	avx2              // with FMA, F16C and BMI2
	avx512            // F, BW, DQ, VL, VNNI
	amx               // avx512 with tiles of int8
	neon              // with the dot product extension
	i8mm              // neon with products of int8 matrices
)

func (i isa) String() string { return [...]string{"go", "avx2", "avx512", "amx", "neon", "i8mm"}[i] }

// isas lists the levels that this machine has, from the plainest; active is
// the one in use.
var active = isas[len(isas)-1]

// ISA names the instructions in use: go, avx2, avx512, amx, neon or i8mm.
func ISA() string { return active.String() }

// ISAs names the levels of instructions that this machine has, from go to the
// one that is used without asking. All give the same bits.
func ISAs() []string {
	names := make([]string, len(isas))
	for i, level := range isas {
		names[i] = level.String()
	}
	return names
}

// UseISA makes a level the one in use, for tests and comparisons;
// format.ErrUnsupported if the machine has it not. Nothing else of the package
// may run meanwhile, and an Activation must be rounded anew.
func UseISA(name string) error {
	for _, level := range isas {
		if level.String() == name {
			active = level
			return nil
		}
	}
	return &format.Error{Kind: format.ErrUnsupported, What: "instruction set", Found: name}
}

// readAll reads a word of every cache line.
func readAll(p []byte) (sum uint64) {
	for ; len(p) >= 64; p = p[64:] {
		sum += binary.LittleEndian.Uint64(p)
	}
	return sum
}
