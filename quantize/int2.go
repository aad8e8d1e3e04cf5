package quantize

import "encoding/binary"

// int2-row: four codes a byte, column 4i+k at bits 2k, one scale a row;
// w = (c−2)·s. The bits after a row's end are 0.

func encodeInt2(code []byte, scales, w []float32, _ int) {
	s := absmaxScale(w, 1)
	scales[0] = s
	var u [64]byte
	for len(w) >= len(u) && vector(opRound8, len(u), u[:], w, s, rintShift+2) == len(u) {
		for k := 0; k < len(u); k += 8 {
			binary.LittleEndian.PutUint16(code[k/4:], uint16(pack2(binary.LittleEndian.Uint64(u[k:]))))
		}
		code, w = code[len(u)/4:], w[len(u):]
	}
	for i := range code {
		var b byte
		for k, x := range w[4*i : min(4*i+4, len(w))] {
			b |= byte(rint(x/s)+2) & 3 << (2 * k)
		}
		code[i] = b
	}
}

func decodeInt2(dst []float32, code []byte, scales []float32, _ int) {
	s := scales[0]
	for i, c := range code {
		for k := range dst[4*i : min(4*i+4, len(dst))] {
			dst[4*i+k] = float32(int(c>>(2*k)&3)-2) * s
		}
	}
}
