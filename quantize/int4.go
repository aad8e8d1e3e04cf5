package quantize

// int4-row: two codes a byte, the even column in the low nibble, one scale a
// row; w = (nib−8)·s. The high nibble of an odd row's last byte is 0.

func encodeInt4(code []byte, scales, w []float32, _ int) {
	scales[0] = encodeNibbles(code, w)
}

func decodeInt4(dst []float32, code []byte, scales []float32, _ int) {
	decodeNibbles(dst, code, scales[0])
}

// encodeNibbles packs w under one scale, which it returns.
func encodeNibbles(code []byte, w []float32) float32 {
	s := absmaxScale(w, 7)
	n := len(w) / 2
	code = code[:(len(w)+1)/2]
	for i := range n {
		lo := rint(w[2*i]/s) + 8
		hi := rint(w[2*i+1]/s) + 8
		code[i] = byte(lo&15 | hi<<4)
	}
	if len(w)%2 != 0 {
		code[n] = byte(rint(w[2*n]/s)+8) & 15
	}
	return s
}

func decodeNibbles(dst []float32, code []byte, s float32) {
	n := len(dst) / 2
	code = code[:(len(dst)+1)/2]
	for i, c := range code[:n] {
		dst[2*i] = float32(int(c&15)-8) * s
		dst[2*i+1] = float32(int(c>>4)-8) * s
	}
	if len(dst)%2 != 0 {
		dst[2*n] = float32(int(code[n]&15)-8) * s
	}
}
