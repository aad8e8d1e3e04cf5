package quantize

import "math"

// int4-row: two codes a byte, the even column in the low nibble, one scale a
// row; w = (nib−8)·s. The high nibble of an odd row's last byte is 0.

func encodeInt4(code []byte, scales, w []float32, _ int) {
	scales[0] = encodeNibbles(code, w)
}

func decodeInt4(dst []float32, code []byte, scales []float32, _ int) {
	decodeNibbles(dst, code, scales[0])
}

// encodeNibbles packs w under one scale, which it returns. It rounds as rint
// does, with the zero point in the sum: the last four bits of it are the code.
func encodeNibbles(code []byte, w []float32) float32 {
	const shift = rintShift + 8
	s := absmaxScale(w, 7)
	code = code[:(len(w)+1)/2]
	n := vector(opRound4, len(w), code, w, s, shift)
	code, w = code[n/2:], w[n:]
	for ; len(w) >= 8 && len(code) >= 4; w, code = w[8:], code[4:] {
		x, c := w[:8], code[:4]
		for i := range c {
			c[i] = byte(math.Float32bits(x[2*i]/s+shift)&15 | math.Float32bits(x[2*i+1]/s+shift)<<4)
		}
	}
	for i := range code {
		c := math.Float32bits(w[2*i]/s+shift) & 15
		if 2*i+1 < len(w) {
			c |= math.Float32bits(w[2*i+1]/s+shift) << 4
		}
		code[i] = byte(c)
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
