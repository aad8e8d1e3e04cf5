package quantize

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/x448/float16"
)

// Plain little-endian floats: f32, bf16 (the upper half of an f32) and f16
// (IEEE 754 binary16). Widening is exact, subnormals included; narrowing
// rounds to nearest, ties to even, and keeps NaN a NaN.

func encodeF32(code []byte, _, w []float32, _ int)  { F32ToBytes(code, w) }
func encodeBF16(code []byte, _, w []float32, _ int) { F32ToBF16(code, w) }
func encodeF16(code []byte, _, w []float32, _ int)  { F32ToF16(code, w) }

func decodeF32(dst []float32, code []byte, _ []float32, _ int)  { BytesToF32(dst, code) }
func decodeBF16(dst []float32, code []byte, _ []float32, _ int) { BF16ToF32(dst, code) }
func decodeF16(dst []float32, code []byte, _ []float32, _ int)  { F16ToF32(dst, code) }

// BytesToF32 reads len(dst) little-endian float32.
func BytesToF32(dst []float32, src []byte) {
	copy(floatBytes(dst), src[:4*len(dst)])
}

// F32ToBytes writes little-endian float32 to dst, 4 bytes each.
func F32ToBytes(dst []byte, src []float32) {
	copy(dst[:4*len(src)], floatBytes(src))
}

// floatBytes is the memory of floats: every platform here is little-endian,
// and scales are used as they lie in the file anyway.
func floatBytes(w []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), 4*len(w))
}

// BF16ToF32 widens len(dst) little-endian bfloat16.
func BF16ToF32(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	n := vector(opWidenBF16, len(dst), dst, src, 0, 0)
	for src, dst = src[2*n:], dst[n:]; len(dst) >= 4; src, dst = src[8:], dst[4:] {
		four, to := binary.LittleEndian.Uint64(src), dst[:4]
		to[0] = math.Float32frombits(uint32(four) << 16)
		to[1] = math.Float32frombits(uint32(four) & 0xffff0000)
		to[2] = math.Float32frombits(uint32(four>>32) << 16)
		to[3] = math.Float32frombits(uint32(four>>32) & 0xffff0000)
	}
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

// F32ToBF16 narrows src to little-endian bfloat16 in dst, 2 bytes each.
func F32ToBF16(dst []byte, src []float32) {
	dst = dst[:2*len(src)]
	for i := vector(opNarrowBF16, len(src), dst, src, 0, 0); i < len(src); i++ {
		b := math.Float32bits(src[i])
		if b<<1 > 0xff000000 {
			b |= 1 << 22 // a NaN whose payload is only in the lower half stays a NaN
		} else {
			b += 0x7fff + b>>16&1
		}
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(b>>16))
	}
}

// F16ToF32 widens len(dst) little-endian binary16.
func F16ToF32(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := vector(opWidenF16, len(dst), dst, src, 0, 0); i < len(dst); i++ {
		dst[i] = float16.Frombits(binary.LittleEndian.Uint16(src[2*i:])).Float32()
	}
}

// F32ToF16 narrows src to little-endian binary16 in dst, 2 bytes each; what
// rounds above 65504 becomes infinite.
func F32ToF16(dst []byte, src []float32) {
	dst = dst[:2*len(src)]
	for i := vector(opNarrowF16, len(src), dst, src, 0, 0); i < len(src); i++ {
		binary.LittleEndian.PutUint16(dst[2*i:], float16.Fromfloat32(src[i]).Bits())
	}
}

// E8M0ToF32 makes powers of two of UE8M0 bytes: 2^(e−127), NaN for 0xff.
func E8M0ToF32(dst []float32, src []byte) {
	for i, e := range src[:len(dst)] {
		dst[i] = float32(math.Ldexp(1, int(e)-127))
		if e == 0xff {
			dst[i] = float32(math.NaN())
		}
	}
}
