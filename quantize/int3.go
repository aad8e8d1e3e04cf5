package quantize

import "encoding/binary"

// int3-g64: 24 bytes and one scale for every 64 columns of a row; code u is
// 0…7 and w = (u−4)·s. The first 16 bytes hold the low two bits of the codes,
// column k at bits 2k; the last 8 bytes hold the high bits, column k at bit k.
// The columns after a row's end hold u = 4.
const (
	int3Group = 64
	int3Bytes = 24
)

func encodeInt3(code []byte, scales, w []float32, _ int) {
	for g := range scales {
		n := min(int3Group, len(w))
		s := absmaxScale(w[:n], 3)
		scales[g] = s
		var lo [2]uint64
		hi := ^uint64(0) << n
		for k, x := range w[:n] {
			u := uint64(rint(x/s) + 4)
			lo[k/32&1] |= (u & 3) << (2 * k & 63)
			hi |= (u >> 2 & 1) << (k & 63)
		}
		binary.LittleEndian.PutUint64(code, lo[0])
		binary.LittleEndian.PutUint64(code[8:], lo[1])
		binary.LittleEndian.PutUint64(code[16:], hi)
		code, w = code[int3Bytes:], w[n:]
	}
}

func decodeInt3(dst []float32, code []byte, scales []float32, _ int) {
	for _, s := range scales {
		n := min(int3Group, len(dst))
		lo := [2]uint64{binary.LittleEndian.Uint64(code), binary.LittleEndian.Uint64(code[8:])}
		hi := binary.LittleEndian.Uint64(code[16:])
		for k := range dst[:n] {
			u := lo[k/32&1]>>(2*k&63)&3 | hi>>(k&63)&1<<2
			dst[k] = float32(int(u)-4) * s
		}
		code, dst = code[int3Bytes:], dst[n:]
	}
}
