// The arm64 kernels, as clang compiles them to the words of neon_arm64.s (see
// wordgen). Leaf functions of one pointer, without constants in memory and
// without a stack. Nothing is fused but what is written so.
#include <arm_neon.h>
#include <stdint.h>

#define KERNEL __attribute__((preserve_none)) void

// activation, tile and floatTile are the structs of those names in Go.
typedef struct {
	int64_t n, bits;
	int16_t *q;
	int64_t q_len, q_cap;
	float *scale;
	int64_t scale_len, scale_cap;
	int8_t *codes;
	int64_t codes_len, codes_cap;
	int32_t *sums;
	int64_t sums_len, sums_cap;
} activation;

typedef struct {
	const uint8_t *w[4], *tail[4];
	const float *s[4], *tail_s[4];
	const activation *act;
	int64_t n, quads, has_tail;
	const char *next, *next_s;
	float *acc, *out;
	float scales[4];
	int64_t half; // bytes between the sums of blocks and those of halves
	const float *row_scale;
} tile;

typedef struct {
	const uint8_t *w[4], *tail[4];
	float *const *x; // slice headers, 24 bytes each
	int64_t cols, tail_cols;
	const float *s[4];
	const char *next;
	float *out;
} float_tile;

enum { ROW = 0, G64 = 1, G128 = 2, G256 = 4, G32 = 8 };

#define INLINE static inline __attribute__((always_inline))

INLINE float32x4_t scales_of(const float *s, int64_t quad, int mode) {
	if (mode == G64) return vld1q_f32(s + 4 * quad);
	if (mode == G128) {
		float32x2_t v = vld1_f32(s + 2 * quad);
		return vcombine_f32(vdup_lane_f32(v, 0), vdup_lane_f32(v, 1));
	}
	return vdupq_n_f32(s[quad]);
}

// quad4 is four blocks of one row of int4 codes with every vector.
INLINE void quad4(const tile *t, const uint8_t *w, const float *s, int64_t at, int64_t quad, int mode, int r) {
	uint8x16_t low = vdupq_n_u8(15);
	int8x16_t c[16]; // of each block two vectors of even columns, two of odd
#pragma clang loop unroll(full)
	for (int i = 0; i < 8; i++) {
		uint8x16_t v = vld1q_u8(w + 16 * i);
		c[i / 2 * 4 + i % 2] = vreinterpretq_s8_u8(vandq_u8(v, low));
		c[i / 2 * 4 + 2 + i % 2] = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
	}
	const activation *a = t->act;
	float *acc = t->acc + 4 * r;
#pragma clang loop unroll(disable)
	for (int64_t i = t->n; i > 0; i--, a++, acc += 16) {
		const int8_t *q = a->codes + 256 * quad;
		int32x4_t d[4];
		if (mode == G32) {
			int32x4_t d2[4];
#pragma clang loop unroll(full)
			for (int b = 0; b < 4; b++) {
				const int8_t *p = q + 128 * (b / 2) + 32 * (b % 2);
				d[b] = vdotq_s32(vdotq_s32(vdupq_n_s32(0), c[4 * b], vld1q_s8(p)), c[4 * b + 2], vld1q_s8(p + 64));
				d2[b] = vdotq_s32(vdotq_s32(vdupq_n_s32(0), c[4 * b + 1], vld1q_s8(p + 16)), c[4 * b + 3], vld1q_s8(p + 80));
			}
			int32x4_t first = vpaddq_s32(vpaddq_s32(d[0], d[1]), vpaddq_s32(d[2], d[3]));
			int32x4_t second = vpaddq_s32(vpaddq_s32(d2[0], d2[1]), vpaddq_s32(d2[2], d2[3]));
			const int32_t *sums = (const int32_t *)((const char *)(a->sums + 4 * quad) + t->half);
			first = vsubq_s32(first, vld1q_s32(sums));
			second = vsubq_s32(second, vld1q_s32((const int32_t *)((const char *)sums + t->half)));
			float32x4_t x = vld1q_f32(a->scale + 4 * quad);
			float32x4x2_t g = vld2q_f32(s + 8 * at);
			float32x4_t sum = vfmaq_f32(vld1q_f32(acc), vmulq_f32(x, g.val[0]), vcvtq_f32_s32(first));
			vst1q_f32(acc, vfmaq_f32(sum, vmulq_f32(x, g.val[1]), vcvtq_f32_s32(second)));
			continue;
		}
#pragma clang loop unroll(full)
		for (int b = 0; b < 4; b++) {
			const int8_t *p = q + 128 * (b / 2) + 32 * (b % 2);
			int32x4_t e = vdotq_s32(vdupq_n_s32(0), c[4 * b], vld1q_s8(p));
			e = vdotq_s32(e, c[4 * b + 1], vld1q_s8(p + 16));
			e = vdotq_s32(e, c[4 * b + 2], vld1q_s8(p + 64));
			d[b] = vdotq_s32(e, c[4 * b + 3], vld1q_s8(p + 80));
		}
		int32x4_t sum = vpaddq_s32(vpaddq_s32(d[0], d[1]), vpaddq_s32(d[2], d[3]));
		float32x4_t f = vcvtq_f32_s32(vsubq_s32(sum, vld1q_s32(a->sums + 4 * quad)));
		float32x4_t k = vld1q_f32(a->scale + 4 * quad);
		if (mode != ROW) k = vmulq_f32(k, scales_of(s, at, mode));
		vst1q_f32(acc, vfmaq_f32(vld1q_f32(acc), k, f));
	}
}

// quad8 is quad4 for int8 codes; the activations are 16·hi + lo.
INLINE void quad8(const tile *t, const uint8_t *w, int64_t quad, int64_t quads, int r) {
	const activation *a = t->act;
	float *acc = t->acc + 4 * r;
#pragma clang loop unroll(disable)
	for (int64_t i = t->n; i > 0; i--, a++, acc += 16) {
		const int8_t *hi = a->codes + 256 * quad, *lo = hi + 256 * quads;
		int32x4_t d[4];
#pragma clang loop unroll(full)
		for (int b = 0; b < 4; b++) {
			int32x4_t h = vdupq_n_s32(0), l = h;
#pragma clang loop unroll(full)
			for (int k = 64 * b; k < 64 * b + 64; k += 16) {
				int8x16_t c = vld1q_s8((const int8_t *)w + k);
				h = vdotq_s32(h, c, vld1q_s8(hi + k));
				l = vdotq_s32(l, c, vld1q_s8(lo + k));
			}
			d[b] = vaddq_s32(vshlq_n_s32(h, 4), l);
		}
		int32x4_t sum = vpaddq_s32(vpaddq_s32(d[0], d[1]), vpaddq_s32(d[2], d[3]));
		vst1q_f32(acc, vfmaq_f32(vld1q_f32(acc), vld1q_f32(a->scale + 4 * quad), vcvtq_f32_s32(sum)));
	}
}

INLINE void ask(const char **p, int bytes) {
	for (int i = 0; i < bytes; i += 64) __builtin_prefetch(*p + i, 0, 2);
	*p += bytes;
}

INLINE void begin(const tile *t) {
	float32x4_t zero = vdupq_n_f32(0);
	float *acc = t->acc;
#pragma clang loop unroll(disable)
	for (int64_t i = t->n; i > 0; i--, acc += 16) {
		vst1q_f32(acc, zero);
		vst1q_f32(acc + 4, zero);
		vst1q_f32(acc + 8, zero);
		vst1q_f32(acc + 12, zero);
	}
}

INLINE void finish(const tile *t) {
	float *acc = t->acc, *out = t->out;
#pragma clang loop unroll(disable)
	for (int64_t i = t->n; i > 0; i--, acc += 16, out += 4) {
		float32x4_t a = vpaddq_f32(vld1q_f32(acc), vld1q_f32(acc + 4));
		float32x4_t b = vpaddq_f32(vld1q_f32(acc + 8), vld1q_f32(acc + 12));
		vst1q_f32(out, vmulq_f32(vpaddq_f32(a, b), vld1q_f32(t->row_scale)));
	}
}

INLINE void int4(const tile *t, int mode) {
	begin(t);
	const char *next = t->next, *next_s = t->next_s;
	int64_t q = 0;
#pragma clang loop unroll(disable)
	for (; q < t->quads; q++) {
		ask(&next, 512);
		if (mode != ROW) ask(&next_s, mode == G32 ? 128 : 64 / mode);
#pragma clang loop unroll(disable)
		for (int64_t r = 0; r < 4; r++) quad4(t, t->w[r] + 128 * q, t->s[r], q, q, mode, r);
	}
	if (t->has_tail) {
#pragma clang loop unroll(disable)
		for (int64_t r = 0; r < 4; r++) quad4(t, t->tail[r], t->tail_s[r], 0, q, mode == ROW || mode == G32 ? mode : G64, r);
	}
	finish(t);
}

KERNEL int4RowNEON(const tile *t) { int4(t, ROW); }
KERNEL int4G32NEON(const tile *t) { int4(t, G32); }
KERNEL int4G64NEON(const tile *t) { int4(t, G64); }
KERNEL int4G128NEON(const tile *t) { int4(t, G128); }
KERNEL int4G256NEON(const tile *t) { int4(t, G256); }

KERNEL int8RowNEON(const tile *t) {
	begin(t);
	const char *next = t->next;
	int64_t q = 0, all = t->quads + t->has_tail;
#pragma clang loop unroll(disable)
	for (; q < t->quads; q++) {
		ask(&next, 1024);
#pragma clang loop unroll(disable)
		for (int64_t r = 0; r < 4; r++) quad8(t, t->w[r] + 256 * q, q, all, r);
	}
	if (t->has_tail) {
#pragma clang loop unroll(disable)
		for (int64_t r = 0; r < 4; r++) quad8(t, t->tail[r], q, all, r);
	}
	finish(t);
}

enum { F32, BF16, F16 };

INLINE float32x4_t widen(const uint8_t *w, int64_t i, int format) {
	if (format == F32) return vld1q_f32((const float *)w + i);
	if (format == BF16) return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)w + i), 16));
	return vcvt_f32_f16(vld1_f16((const float16_t *)w + i));
}

// floats is four rows with one vector; the columns are a multiple of sixteen.
INLINE void floats(const float_tile *t, int format) {
	float32x4_t a[16];
#pragma clang loop unroll(full)
	for (int i = 0; i < 16; i++) a[i] = vdupq_n_f32(0);
	const uint8_t *w0 = t->w[0], *w1 = t->w[1], *w2 = t->w[2], *w3 = t->w[3];
	const float *x = t->x[0];
	const char *next = t->next;
	int64_t cols = t->cols;
#pragma clang loop unroll(disable)
	for (int64_t i = 0; i < cols; i += 16) {
		ask(&next, format == F32 ? 256 : 128);
#pragma clang loop unroll(full)
		for (int j = 0; j < 4; j++) {
			float32x4_t v = vld1q_f32(x + i + 4 * j);
			a[j] = vfmaq_f32(a[j], widen(w0, i + 4 * j, format), v);
			a[4 + j] = vfmaq_f32(a[4 + j], widen(w1, i + 4 * j, format), v);
			a[8 + j] = vfmaq_f32(a[8 + j], widen(w2, i + 4 * j, format), v);
			a[12 + j] = vfmaq_f32(a[12 + j], widen(w3, i + 4 * j, format), v);
		}
	}
#pragma clang loop unroll(full)
	for (int r = 0; r < 4; r++) {
		float32x4_t s = vaddq_f32(vaddq_f32(a[4 * r], a[4 * r + 2]), vaddq_f32(a[4 * r + 1], a[4 * r + 3]));
		float32x2_t h = vadd_f32(vget_low_f32(s), vget_high_f32(s));
		t->out[r] = vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
	}
}

KERNEL f32NEON(const float_tile *t) { floats(t, F32); }
KERNEL bf16NEON(const float_tile *t) { floats(t, BF16); }
KERNEL f16NEON(const float_tile *t) { floats(t, F16); }

// vec is the argument of the kernels on vectors: pointers, a count, a number.
typedef struct {
	float *a, *b, *c, *d;
	int64_t n, m, stride;
	const int32_t *picks;
	float x;
	float consts[13]; // of exp: log2e, shift, −hi, −lo, min, max, poly
} vec;

KERNEL addNEON(const vec *v) {
	float *a = v->a, *b = v->b;
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n -= 4, a += 4, b += 4) vst1q_f32(a, vaddq_f32(vld1q_f32(a), vld1q_f32(b)));
}

KERNEL scaleByNEON(const vec *v) {
	float *y = v->a, *x = v->b, *w = v->c;
	float32x4_t r = vdupq_n_f32(v->x);
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n -= 4, y += 4, x += 4, w += 4) vst1q_f32(y, vmulq_f32(vmulq_f32(vld1q_f32(x), r), vld1q_f32(w)));
}

KERNEL divideNEON(const vec *v) {
	float *p = v->a;
	float32x4_t z = vdupq_n_f32(v->x);
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n -= 4, p += 4) vst1q_f32(p, vdivq_f32(vld1q_f32(p), z));
}

INLINE float32x4_t exp4(const vec *v, float32x4_t x) {
	const float *k = v->consts;
	float32x4_t shift = vdupq_n_f32(k[1]);
	float32x4_t shifted = vaddq_f32(vmulq_f32(x, vdupq_n_f32(k[0])), shift);
	float32x4_t n = vsubq_f32(shifted, shift);
	float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(k[2]));
	r = vfmaq_f32(r, n, vdupq_n_f32(k[3]));
	float32x4_t p = vdupq_n_f32(k[6]);
#pragma clang loop unroll(full)
	for (int i = 7; i < 13; i++) p = vfmaq_f32(vdupq_n_f32(k[i]), p, r);
	uint32x4_t e = vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23);
	float32x4_t y = vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p), e));
	y = vbslq_f32(vcltq_f32(x, vdupq_n_f32(k[4])), vdupq_n_f32(0), y);
	y = vbslq_f32(vcgtq_f32(x, vdupq_n_f32(k[5])), vreinterpretq_f32_u32(vdupq_n_u32(0x7f7fffff)), y);
	return vbslq_f32(vceqq_f32(x, x), y, vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000)));
}

KERNEL siluMulNEON(const vec *v) {
	float *d = v->a, *g = v->b, *u = v->c;
	float32x4_t one = vdupq_n_f32(1);
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n -= 4, d += 4, g += 4, u += 4) {
		float32x4_t x = vld1q_f32(g);
		float32x4_t s = vdivq_f32(x, vaddq_f32(one, exp4(v, vnegq_f32(x))));
		vst1q_f32(d, vmulq_f32(s, vld1q_f32(u)));
	}
}

// expSumNEON sets a[n] to exp(a−x) and b[16] to the sums of the stripes; n is a
// multiple of sixteen.
KERNEL expSumNEON(const vec *v) {
	float *p = v->a;
	float32x4_t top = vdupq_n_f32(v->x), s[4];
#pragma clang loop unroll(full)
	for (int j = 0; j < 4; j++) s[j] = vdupq_n_f32(0);
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n -= 16, p += 16) {
#pragma clang loop unroll(full)
		for (int j = 0; j < 4; j++) {
			float32x4_t e = exp4(v, vsubq_f32(vld1q_f32(p + 4 * j), top));
			vst1q_f32(p + 4 * j, e);
			s[j] = vaddq_f32(s[j], e);
		}
	}
#pragma clang loop unroll(full)
	for (int j = 0; j < 4; j++) vst1q_f32(v->b + 4 * j, s[j]);
}

// accumulateNEON adds c[i]·row i of b to a[n], in order, m rows; n is a multiple
// of four.
INLINE void columns(const vec *v, int64_t at, int count) {
	float32x4_t s[16];
	float *acc = v->a + at;
	const char *rows = (const char *)(v->b + at);
#pragma clang loop unroll(full)
	for (int j = 0; j < count; j++) s[j] = vld1q_f32(acc + 4 * j);
#pragma clang loop unroll(disable)
	for (int64_t i = 0; i < v->m; i++) {
		int64_t t = v->picks ? v->picks[i] : i;
		const float *row = (const float *)(rows + t * v->stride);
		float32x4_t w = vdupq_n_f32(v->c[i]);
#pragma clang loop unroll(full)
		for (int j = 0; j < count; j++) s[j] = vfmaq_f32(s[j], w, vld1q_f32(row + 4 * j));
	}
#pragma clang loop unroll(full)
	for (int j = 0; j < count; j++) vst1q_f32(acc + 4 * j, s[j]);
}

KERNEL accumulateNEON(const vec *v) {
	int64_t at = 0;
#pragma clang loop unroll(disable)
	for (; at + 64 <= v->n; at += 64) columns(v, at, 16);
#pragma clang loop unroll(disable)
	for (; at < v->n; at += 4) columns(v, at, 1);
}

// quantizeNEON rounds n blocks of a: the codes go to c as int16, the scales to b.
KERNEL quantizeNEON(const vec *v) {
	const float *x = v->a;
	float *scale = v->b;
	int16_t *q = (int16_t *)v->c;
	float32x4_t shift = vdupq_n_f32(v->consts[1]);
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n--, x += 64, q += 64, scale++) {
		uint32x4_t top = vdupq_n_u32(0), abs = vdupq_n_u32(0x7fffffff);
#pragma clang loop unroll(full)
		for (int i = 0; i < 64; i += 4) top = vmaxq_u32(top, vandq_u32(abs, vreinterpretq_u32_f32(vld1q_f32(x + i))));
		float32x4_t s = vdivq_f32(vreinterpretq_f32_u32(vdupq_n_u32(vmaxvq_u32(top))), vdupq_n_f32(v->x));
		s = vmaxq_f32(s, vdupq_n_f32(v->consts[0])); // a NaN stays
		*scale = vgetq_lane_f32(s, 0);
#pragma clang loop unroll(full)
		for (int i = 0; i < 64; i += 4) {
			uint32x4_t u = vreinterpretq_u32_f32(vaddq_f32(vdivq_f32(vld1q_f32(x + i), s), shift));
			vst1_s16(q + i, vreinterpret_s16_u16(vmovn_u32(u)));
		}
	}
}

// packNEON makes the bytes of n pairs of int8 blocks of c at b, their sums at d.
KERNEL packNEON(const vec *v) {
	const int16_t *q = (const int16_t *)v->c;
	int8_t *codes = (int8_t *)v->b;
	int32_t *sums = (int32_t *)v->d;
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n--, q += 128, codes += 128, sums += 2) {
#pragma clang loop unroll(full)
		for (int b = 0; b < 2; b++) {
			int32_t half[2];
#pragma clang loop unroll(full)
			for (int h = 0; h < 2; h++) {
				int32x4_t sum = vdupq_n_s32(0);
				const int16_t *p = q + 64 * b + 32 * h;
				int16x8_t k0 = vld1q_s16(p), k1 = vld1q_s16(p + 8), k2 = vld1q_s16(p + 16), k3 = vld1q_s16(p + 24);
				sum = vpadalq_s16(vpadalq_s16(vpadalq_s16(vpadalq_s16(sum, k0), k1), k2), k3);
				half[h] = vaddvq_s32(sum) * 8;
				*(int32_t *)((char *)(sums + b) + v->stride * (1 + h)) = half[h];
				int16x8_t even0 = vuzp1q_s16(k0, k1), odd0 = vuzp2q_s16(k0, k1), even1 = vuzp1q_s16(k2, k3), odd1 = vuzp2q_s16(k2, k3);
				vst1q_s8(codes + 32 * b + 16 * h, vcombine_s8(vmovn_s16(even0), vmovn_s16(even1)));
				vst1q_s8(codes + 32 * b + 16 * h + 64, vcombine_s8(vmovn_s16(odd0), vmovn_s16(odd1)));
			}
			sums[b] = half[0] + half[1];
		}
	}
}

// packWideNEON makes the two bytes of n blocks of c at a and b, their sums at d.
KERNEL packWideNEON(const vec *v) {
	const int16_t *q = (const int16_t *)v->c;
	int8_t *hi = (int8_t *)v->a, *lo = (int8_t *)v->b;
	int32_t *sums = (int32_t *)v->d;
	int16x8_t low = vdupq_n_s16(15);
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n--, q += 64, hi += 64, lo += 64, sums++) {
		int32x4_t sum = vdupq_n_s32(0);
#pragma clang loop unroll(full)
		for (int i = 0; i < 64; i += 16) {
			int16x8_t a = vld1q_s16(q + i), b = vld1q_s16(q + i + 8);
			sum = vpadalq_s16(vpadalq_s16(sum, a), b);
			vst1q_s8(hi + i, vcombine_s8(vmovn_s16(vshrq_n_s16(a, 4)), vmovn_s16(vshrq_n_s16(b, 4))));
			vst1q_s8(lo + i, vcombine_s8(vmovn_s16(vandq_s16(a, low)), vmovn_s16(vandq_s16(b, low))));
		}
		*sums = vaddvq_s32(sum) * 128;
	}
}

INLINE void decode16(float *dst, int8x16_t c, float32x4_t s) {
	int16x8_t l = vmovl_s8(vget_low_s8(c)), h = vmovl_s8(vget_high_s8(c));
	vst1q_f32(dst, vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(l))), s));
	vst1q_f32(dst + 4, vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(l))), s));
	vst1q_f32(dst + 8, vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(h))), s));
	vst1q_f32(dst + 12, vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(h))), s));
}

// decodeInt8NEON writes n blocks of 64 codes at b to a, times c[0].
KERNEL decodeInt8NEON(const vec *v) {
	float *dst = v->a;
	const int8_t *w = (const int8_t *)v->b;
	float32x4_t s = vdupq_n_f32(v->c[0]);
#pragma clang loop unroll(disable)
	for (int64_t n = 4 * v->n; n > 0; n--, dst += 16, w += 16) decode16(dst, vld1q_s8(w), s);
}

// decodeInt4NEON writes n blocks of 64 codes at b to a, times c[block/m].
KERNEL decodeInt4NEON(const vec *v) {
	float *dst = v->a;
	const uint8_t *w = (const uint8_t *)v->b;
	const float *scale = v->c;
	int64_t left = v->m;
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n--) {
		float32x4_t s = vdupq_n_f32(*scale);
#pragma clang loop unroll(full)
		for (int h = 0; h < 2; h++, dst += 32, w += 16) {
			uint8x16_t b = vld1q_u8(w);
			int8x16_t even = vreinterpretq_s8_u8(vsubq_u8(vandq_u8(b, vdupq_n_u8(15)), vdupq_n_u8(8)));
			int8x16_t odd = vreinterpretq_s8_u8(vsubq_u8(vshrq_n_u8(b, 4), vdupq_n_u8(8)));
			decode16(dst, vzip1q_s8(even, odd), s);
			decode16(dst + 16, vzip2q_s8(even, odd), s);
		}
		if (--left == 0) left = v->m, scale++;
	}
}

// indexSumNEON sets c[4] to the sum over n heads of b[h]·max(a[h][4]·x, 0), fused.
KERNEL indexSumNEON(const vec *v) {
	const float *dots = v->a, *w = v->b;
	float32x4_t scale = vdupq_n_f32(v->x), sum = vdupq_n_f32(0);
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n--, dots += 4, w++) {
		float32x4_t s = vmulq_f32(vld1q_f32(dots), scale);
		s = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(s), vcleq_f32(s, vdupq_n_f32(0))));
		sum = vfmaq_f32(sum, vdupq_n_f32(*w), s);
	}
	vst1q_f32(v->c, sum);
}
