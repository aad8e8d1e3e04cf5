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
		var u [int3Group]byte
		for k := vector(opRound8, n, u[:], w, s, rintShift+4); k < n; k++ {
			u[k] = byte(rint(w[k]/s) + 4)
		}
		var lo [2]uint64
		hi := ^uint64(0) << n
		for k := 0; k < n; k += 8 {
			eight := binary.LittleEndian.Uint64(u[k:])
			lo[k/32&1] |= pack2(eight) << (2 * k & 63)
			hi |= pack1(eight>>2) << k
		}
		binary.LittleEndian.PutUint64(code, lo[0])
		binary.LittleEndian.PutUint64(code[8:], lo[1])
		binary.LittleEndian.PutUint64(code[16:], hi)
		code, w = code[int3Bytes:], w[n:]
	}
}

// pack2 gathers the last two bits of eight bytes, the first byte's lowest.
func pack2(x uint64) uint64 {
	x &= 0x0303030303030303
	x = (x | x>>6) & 0x000f000f000f000f
	x = (x | x>>12) & 0x000000ff000000ff
	return (x | x>>24) & 0xffff
}

// pack1 gathers the last bit of eight bytes, the first byte's lowest.
func pack1(x uint64) uint64 { return (x & 0x0101010101010101) * 0x0102040810204080 >> 56 }

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
