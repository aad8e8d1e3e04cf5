package kernel

import "encoding/binary"

// isa is a level of the machine's instructions for which there is assembly.
type isa uint8

const (
	plain  isa = iota // Go
	avx2              // with FMA and F16C
	avx512            // F, BW, DQ, VL, VNNI
	neon              // with the dot product extension
)

func (i isa) String() string { return [...]string{"go", "avx2", "avx512", "neon"}[i] }

// isas lists the levels that this machine has, from the plainest; active is
// the one in use. Tests set it to each.
var active = isas[len(isas)-1]

// ISA names the instructions in use: go, avx2, avx512 or neon.
func ISA() string { return active.String() }

// readAll reads a word of every cache line.
func readAll(p []byte) (sum uint64) {
	for ; len(p) >= 64; p = p[64:] {
		sum += binary.LittleEndian.Uint64(p)
	}
	return sum
}
