package quantize

// int4-grouped: the codes of int4-row with a scale for every `group` columns
// of a row; the last group has only the columns that are left. Group sizes are
// even, so a group begins at a byte.

func encodeInt4Grouped(code []byte, scales, w []float32, group int) {
	for g := range scales {
		n := min(group, len(w))
		scales[g] = encodeNibbles(code, w[:n])
		code, w = code[(n+1)/2:], w[n:]
	}
}

func decodeInt4Grouped(dst []float32, code []byte, scales []float32, group int) {
	for _, s := range scales {
		n := min(group, len(dst))
		decodeNibbles(dst[:n], code, s)
		code, dst = code[(n+1)/2:], dst[n:]
	}
}
