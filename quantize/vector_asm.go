//go:build (amd64 || arm64) && !noasm

package quantize

func runVector(op vectorOp, t *byte) {
	switch op {
	case opWidenBF16:
		vecWidenBF16(t)
	case opWidenF16:
		vecWidenF16(t)
	case opWidenFP8:
		vecWidenFP8(t)
	case opNarrowBF16:
		vecNarrowBF16(t)
	case opNarrowF16:
		vecNarrowF16(t)
	case opRoundFP8:
		vecRoundFP8(t)
	case opRound8:
		vecRound8(t)
	case opRound4:
		vecRound4(t)
	case opMaxAbs:
		vecMaxAbs(t)
	}
}
