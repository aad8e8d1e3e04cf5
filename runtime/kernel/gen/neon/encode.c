// The arm64 functions of package quantize, as clang compiles them to the words
// of encode_arm64.s (see wordgen). Leaf functions of one pointer, without
// constants in memory and without a stack.
#include <arm_neon.h>
#include <stdint.h>

#define KERNEL __attribute__((preserve_none)) void
#define INLINE static inline __attribute__((always_inline))

// strip is the struct of that name in Go; n is a multiple of 32.
typedef struct {
	uint8_t *dst;
	const uint8_t *src;
	int64_t n;
	float scale, shift;
	uint32_t top;
} strip;

KERNEL vecWidenBF16(strip *t) {
	const uint16_t *src = (const uint16_t *)t->src;
	float *dst = (float *)t->dst;
	for (int64_t i = 0; i < t->n; i += 8) {
		uint16x8_t x = vld1q_u16(src + i);
		vst1q_f32(dst + i, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)));
		vst1q_f32(dst + i + 4, vreinterpretq_f32_u32(vshll_high_n_u16(x, 16)));
	}
}

KERNEL vecWidenF16(strip *t) {
	const uint16_t *src = (const uint16_t *)t->src;
	float *dst = (float *)t->dst;
	for (int64_t i = 0; i < t->n; i += 8) {
		float16x8_t x = vreinterpretq_f16_u16(vld1q_u16(src + i));
		vst1q_f32(dst + i, vcvt_f32_f16(vget_low_f16(x)));
		vst1q_f32(dst + i + 4, vcvt_high_f32_f16(x));
	}
}

// It goes over binary16, which has room for every e4m3 value/256.
KERNEL vecWidenFP8(strip *t) {
	float *dst = (float *)t->dst;
	uint16x8_t low = vdupq_n_u16(0x7f);
	float32x4_t up = vdupq_n_f32(256), scale = vdupq_n_f32(t->scale);
	for (int64_t i = 0; i < t->n; i += 8) {
		uint16x8_t c = vmovl_u8(vld1_u8(t->src + i));
		uint16x8_t x = vandq_u16(c, low);
		uint16x8_t nan = vceqq_u16(x, low);
		x = vorrq_u16(vshlq_n_u16(x, 7), vshlq_n_u16(vbicq_u16(c, low), 8));
		float16x8_t h = vreinterpretq_f16_u16(vorrq_u16(x, nan));
		vst1q_f32(dst + i, vmulq_f32(vmulq_f32(vcvt_f32_f16(vget_low_f16(h)), up), scale));
		vst1q_f32(dst + i + 4, vmulq_f32(vmulq_f32(vcvt_high_f32_f16(h), up), scale));
	}
}

// bytes_of narrows four times four numbers below 256.
INLINE uint8x16_t bytes_of(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
	uint16x8_t ab = vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
	uint16x8_t cd = vuzp1q_u16(vreinterpretq_u16_u32(c), vreinterpretq_u16_u32(d));
	return vuzp1q_u8(vreinterpretq_u8_u16(ab), vreinterpretq_u8_u16(cd));
}

INLINE uint32x4_t rounded(const float *src, float32x4_t scale, float32x4_t shift) {
	return vreinterpretq_u32_f32(vaddq_f32(vdivq_f32(vld1q_f32(src), scale), shift));
}

INLINE uint8x16_t round16(const float *src, float32x4_t scale, float32x4_t shift) {
	return bytes_of(rounded(src, scale, shift), rounded(src + 4, scale, shift), rounded(src + 8, scale, shift), rounded(src + 12, scale, shift));
}

KERNEL vecRound8(strip *t) {
	const float *src = (const float *)t->src;
	float32x4_t scale = vdupq_n_f32(t->scale), shift = vdupq_n_f32(t->shift);
	for (int64_t i = 0; i < t->n; i += 16) vst1q_u8(t->dst + i, round16(src + i, scale, shift));
}

KERNEL vecRound4(strip *t) {
	const float *src = (const float *)t->src;
	float32x4_t scale = vdupq_n_f32(t->scale), shift = vdupq_n_f32(t->shift);
	uint8x16_t low = vdupq_n_u8(15);
	for (int64_t i = 0; i < t->n; i += 32) {
		uint8x16_t a = round16(src + i, scale, shift), b = round16(src + i + 16, scale, shift);
		uint8x16_t even = vandq_u8(vuzp1q_u8(a, b), low), odd = vuzp2q_u8(a, b);
		vst1q_u8(t->dst + i / 2, vsliq_n_u8(even, odd, 4));
	}
}

KERNEL vecNarrowBF16(strip *t) {
	const float *src = (const float *)t->src;
	uint16_t *dst = (uint16_t *)t->dst;
	uint32x4_t half = vdupq_n_u32(0x7fff), one = vdupq_n_u32(1), quiet = vdupq_n_u32(1 << 22);
	for (int64_t i = 0; i < t->n; i += 8) {
		uint32x4_t r[2];
#pragma clang loop unroll(full)
		for (int h = 0; h < 2; h++) {
			float32x4_t x = vld1q_f32(src + i + 4 * h);
			uint32x4_t b = vreinterpretq_u32_f32(x);
			uint32x4_t up = vaddq_u32(vaddq_u32(b, half), vandq_u32(vshrq_n_u32(b, 16), one));
			r[h] = vbslq_u32(vceqq_f32(x, x), up, vorrq_u32(b, quiet));
		}
		vst1q_u16(dst + i, vuzp2q_u16(vreinterpretq_u16_u32(r[0]), vreinterpretq_u16_u32(r[1])));
	}
}

KERNEL vecNarrowF16(strip *t) {
	const float *src = (const float *)t->src;
	uint16_t *dst = (uint16_t *)t->dst;
	for (int64_t i = 0; i < t->n; i += 8) {
		float16x8_t x = vcvt_high_f16_f32(vcvt_f16_f32(vld1q_f32(src + i)), vld1q_f32(src + i + 4));
		vst1q_u16(dst + i, vreinterpretq_u16_f16(x));
	}
}

// It rounds as fp8Code does.
INLINE uint32x4_t fp8_code(const float *src, float32x4_t scale) {
	uint32x4_t b = vreinterpretq_u32_f32(vdivq_f32(vld1q_f32(src), scale));
	uint32x4_t a = vandq_u32(b, vdupq_n_u32(0x7fffffff)), sign = vandq_u32(vshrq_n_u32(b, 24), vdupq_n_u32(0x80));
	uint32x4_t r = vaddq_u32(vaddq_u32(a, vdupq_n_u32(0x7ffff)), vandq_u32(vshrq_n_u32(a, 20), vdupq_n_u32(1)));
	r = vminq_u32(vsubq_u32(vshrq_n_u32(r, 20), vdupq_n_u32((127 - 7) << 3)), vdupq_n_u32(0x7e));
	uint32x4_t tiny = vreinterpretq_u32_f32(vaddq_f32(vreinterpretq_f32_u32(a), vdupq_n_f32(16384)));
	r = vbslq_u32(vcltq_u32(a, vdupq_n_u32(0x3c800000)), vandq_u32(tiny, vdupq_n_u32(0xff)), r);
	r = vbslq_u32(vcgtq_u32(a, vdupq_n_u32(0x7f800000)), vdupq_n_u32(0x7f), r);
	return vorrq_u32(r, sign);
}

KERNEL vecRoundFP8(strip *t) {
	const float *src = (const float *)t->src;
	float32x4_t scale = vdupq_n_f32(t->scale);
	for (int64_t i = 0; i < t->n; i += 16)
		vst1q_u8(t->dst + i, bytes_of(fp8_code(src + i, scale), fp8_code(src + i + 4, scale), fp8_code(src + i + 8, scale), fp8_code(src + i + 12, scale)));
}

KERNEL vecMaxAbs(strip *t) {
	const uint32_t *src = (const uint32_t *)t->src;
	uint32x4_t mask = vdupq_n_u32(0x7fffffff), a = vdupq_n_u32(0), b = a;
	for (int64_t i = 0; i < t->n; i += 8) {
		a = vmaxq_u32(a, vandq_u32(vld1q_u32(src + i), mask));
		b = vmaxq_u32(b, vandq_u32(vld1q_u32(src + i + 4), mask));
	}
	t->top = vmaxvq_u32(vmaxq_u32(a, b));
}
