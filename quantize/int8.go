package quantize

// int8-row: one two's complement byte a weight, one scale a row; w = q·s.

func encodeInt8(code []byte, scales, w []float32, _ int) {
	s := absmaxScale(w, 127)
	scales[0] = s
	code = code[:len(w)]
	for i := vector(opRound8, len(w), code, w, s, rintShift); i < len(w); i++ {
		code[i] = byte(rint(w[i] / s))
	}
}

func decodeInt8(dst []float32, code []byte, scales []float32, _ int) {
	s := scales[0]
	code = code[:len(dst)]
	for i, c := range code {
		dst[i] = float32(int8(c)) * s
	}
}
