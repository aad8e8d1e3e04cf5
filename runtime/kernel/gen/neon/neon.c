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

// number keeps a constant out of memory.
INLINE uint64_t number(uint64_t n) {
	__asm__("" : "+r"(n));
	return n;
}

INLINE int block_bytes(int bits) { return bits == 4 ? 32 : bits == 3 ? 24 : 16; }

// unpack makes two vectors of a block's even columns and two of its odd ones.
INLINE void unpack(int8x16_t *c, const uint8_t *w, int bits) {
	if (bits == 4) {
		uint8x16_t low = vdupq_n_u8(15);
#pragma clang loop unroll(full)
		for (int i = 0; i < 2; i++) {
			uint8x16_t v = vld1q_u8(w + 16 * i);
			c[i] = vreinterpretq_s8_u8(vandq_u8(v, low));
			c[2 + i] = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
		}
		return;
	}
	uint8x16_t low = vdupq_n_u8(3), v = vld1q_u8(w);
	uint8x16_t e0 = vandq_u8(v, low), o0 = vandq_u8(vshrq_n_u8(v, 2), low), e1 = vandq_u8(vshrq_n_u8(v, 4), low), o1 = vshrq_n_u8(v, 6);
	uint8x16_t u[4] = {vzip1q_u8(e0, e1), vzip2q_u8(e0, e1), vzip1q_u8(o0, o1), vzip2q_u8(o0, o1)};
	if (bits == 3) { // the third bits: column k's is bit k of the eight bytes behind
		uint8x16_t high = vcombine_u8(vld1_u8(w + 16), vdup_n_u8(0)), four = vdupq_n_u8(4);
		uint8x16_t index = vcombine_u8(vcreate_u8(number(0x0101010100000000)), vcreate_u8(number(0x0303030302020202)));
		uint8x16_t even = vreinterpretq_u8_u32(vdupq_n_u32(number(0x40100401))), odd = vreinterpretq_u8_u32(vdupq_n_u32(number(0x80200802)));
		uint8x16_t first = vqtbl1q_u8(high, index), second = vqtbl1q_u8(high, vaddq_u8(index, four));
		u[0] = vorrq_u8(u[0], vandq_u8(vtstq_u8(first, even), four));
		u[1] = vorrq_u8(u[1], vandq_u8(vtstq_u8(second, even), four));
		u[2] = vorrq_u8(u[2], vandq_u8(vtstq_u8(first, odd), four));
		u[3] = vorrq_u8(u[3], vandq_u8(vtstq_u8(second, odd), four));
	}
#pragma clang loop unroll(full)
	for (int i = 0; i < 4; i++) c[i] = vreinterpretq_s8_u8(u[i]);
}

// zeros is the zero point times the sums of blocks: 8·ΣQ is at hand.
INLINE int32x4_t zeros(int32x4_t sums, int bits) { return bits == 4 ? sums : bits == 3 ? vshrq_n_s32(sums, 1) : vshrq_n_s32(sums, 2); }

// quad4 is four blocks of one row of narrow codes with every vector.
INLINE void quad4(const tile *t, const uint8_t *w, const float *s, int64_t at, int64_t quad, int mode, int r, int bits) {
	int8x16_t c[16]; // of each block two vectors of even columns, two of odd
#pragma clang loop unroll(full)
	for (int b = 0; b < 4; b++) unpack(c + 4 * b, w + block_bytes(bits) * b, bits);
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
		float32x4_t f = vcvtq_f32_s32(vsubq_s32(sum, zeros(vld1q_s32(a->sums + 4 * quad), bits)));
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

INLINE void narrow(const tile *t, int mode, int bits) {
	begin(t);
	const char *next = t->next, *next_s = t->next_s;
	int64_t q = 0;
#pragma clang loop unroll(disable)
	for (; q < t->quads; q++) {
		ask(&next, 16 * block_bytes(bits));
		if (mode != ROW) ask(&next_s, mode == G32 ? 128 : 64 / mode);
#pragma clang loop unroll(disable)
		for (int64_t r = 0; r < 4; r++) quad4(t, t->w[r] + 4 * block_bytes(bits) * q, t->s[r], q, q, mode, r, bits);
	}
	if (t->has_tail) {
#pragma clang loop unroll(disable)
		for (int64_t r = 0; r < 4; r++) quad4(t, t->tail[r], t->tail_s[r], 0, q, mode == ROW || mode == G32 ? mode : G64, r, bits);
	}
	finish(t);
}

KERNEL int4RowNEON(const tile *t) { narrow(t, ROW, 4); }
KERNEL int4G32NEON(const tile *t) { narrow(t, G32, 4); }
KERNEL int4G64NEON(const tile *t) { narrow(t, G64, 4); }
KERNEL int4G128NEON(const tile *t) { narrow(t, G128, 4); }
KERNEL int4G256NEON(const tile *t) { narrow(t, G256, 4); }
KERNEL int3G64NEON(const tile *t) { narrow(t, G64, 3); }
KERNEL int2RowNEON(const tile *t) { narrow(t, ROW, 2); }

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

// fp8x16 widens sixteen e4m3 codes by way of binary16, which has room for every
// value/256, and multiplies them with their scale.
INLINE void fp8x16(float32x4_t *x, const uint8_t *w, float32x4_t scale) {
	uint8x16_t c = vld1q_u8(w);
	uint16x8_t low = vdupq_n_u16(0x7f);
	float32x4_t up = vdupq_n_f32(256);
#pragma clang loop unroll(full)
	for (int i = 0; i < 2; i++) {
		uint16x8_t v = i ? vmovl_high_u8(c) : vmovl_u8(vget_low_u8(c));
		uint16x8_t m = vandq_u16(v, low), nan = vceqq_u16(m, low);
		m = vorrq_u16(vshlq_n_u16(m, 7), vshlq_n_u16(vbicq_u16(v, low), 8));
		float16x8_t h = vreinterpretq_f16_u16(vorrq_u16(m, nan));
		x[2 * i] = vmulq_f32(vmulq_f32(vcvt_f32_f16(vget_low_f16(h)), up), scale);
		x[2 * i + 1] = vmulq_f32(vmulq_f32(vcvt_high_f32_f16(h), up), scale);
	}
}

// fp8NEON is floats for e4m3 with a scale every 128 columns.
KERNEL fp8NEON(const float_tile *t) {
	const float *x = t->x[0];
	const char *next = t->next;
	int64_t cols = t->cols;
#pragma clang loop unroll(disable)
	for (int64_t r = 0; r < 4; r++) {
		const uint8_t *w = t->w[r];
		const float *s = t->s[r];
		float32x4_t a[4];
#pragma clang loop unroll(full)
		for (int j = 0; j < 4; j++) a[j] = vdupq_n_f32(0);
#pragma clang loop unroll(disable)
		for (int64_t i = 0; i < cols; i += 16) {
			float32x4_t v[4];
			fp8x16(v, w + i, vld1q_dup_f32(s + i / 128));
			__builtin_prefetch(next, 0, 2);
			next += 16;
#pragma clang loop unroll(full)
			for (int j = 0; j < 4; j++) a[j] = vfmaq_f32(a[j], v[j], vld1q_f32(x + i + 4 * j));
		}
		float32x4_t sum = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
		float32x2_t h = vadd_f32(vget_low_f32(sum), vget_high_f32(sum));
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
// four_sums is the struct fourSums in Go.
typedef struct {
	float *acc[4];
	const float *w[4];
	const float *rows;
	int64_t stride, n;
	const int32_t *picks;
} four_sums;

// accumulateFourNEON adds rows to 64 columns of four sums, sixteen at a time.
KERNEL accumulateFourNEON(const four_sums *t) {
	float *a0 = t->acc[0], *a1 = t->acc[1], *a2 = t->acc[2], *a3 = t->acc[3];
	const float *w0 = t->w[0], *w1 = t->w[1], *w2 = t->w[2], *w3 = t->w[3];
	int64_t n = t->n, stride = t->stride;
	const int32_t *picks = t->picks;
#pragma clang loop unroll(disable)
	for (int64_t at = 0; at < 64; at += 16) {
		const char *rows = (const char *)(t->rows + at), *row = rows;
		float32x4_t s[16];
#pragma clang loop unroll(full)
		for (int c = 0; c < 4; c++) {
			s[c] = vld1q_f32(a0 + at + 4 * c);
			s[4 + c] = vld1q_f32(a1 + at + 4 * c);
			s[8 + c] = vld1q_f32(a2 + at + 4 * c);
			s[12 + c] = vld1q_f32(a3 + at + 4 * c);
		}
#pragma clang loop unroll(disable)
		for (int64_t i = 0; i < n; i++) {
			if (picks) row = rows + picks[i] * stride;
			float x0 = w0[i], x1 = w1[i], x2 = w2[i], x3 = w3[i];
#pragma clang loop unroll(full)
			for (int c = 0; c < 4; c++) {
				float32x4_t v = vld1q_f32((const float *)row + 4 * c);
				s[c] = vfmaq_n_f32(s[c], v, x0);
				s[4 + c] = vfmaq_n_f32(s[4 + c], v, x1);
				s[8 + c] = vfmaq_n_f32(s[8 + c], v, x2);
				s[12 + c] = vfmaq_n_f32(s[12 + c], v, x3);
			}
			row += stride;
		}
#pragma clang loop unroll(full)
		for (int c = 0; c < 4; c++) {
			vst1q_f32(a0 + at + 4 * c, s[c]);
			vst1q_f32(a1 + at + 4 * c, s[4 + c]);
			vst1q_f32(a2 + at + 4 * c, s[8 + c]);
			vst1q_f32(a3 + at + 4 * c, s[12 + c]);
		}
	}
}

// greatestNEON sets b[0..3] to the greatest of a[n], n a multiple of four, and
// of what is there; NaN is never greater.
KERNEL greatestNEON(const vec *v) {
	const float *a = v->a;
	float32x4_t top = vld1q_f32(v->b);
#pragma clang loop unroll(disable)
	for (int64_t n = v->n; n > 0; n -= 4, a += 4) {
		float32x4_t x = vld1q_f32(a);
		top = vbslq_f32(vcgtq_f32(x, top), x, top);
	}
	vst1q_f32(v->b, top);
}

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

// I8MM: a product of two rows of eight bytes with two others at once, for four
// rows of a matrix and two vectors.
#define I8MM __attribute__((target("i8mm")))

// pairs makes eight vectors of two rows' eight bytes each out of two rows' 64.
I8MM INLINE void pairs(int8x16_t *m, const int8x16_t *a, const int8x16_t *b) {
#pragma clang loop unroll(full)
	for (int i = 0; i < 4; i++) {
		int64x2_t x = vreinterpretq_s64_s8(a[i]), y = vreinterpretq_s64_s8(b[i]);
		m[2 * i] = vreinterpretq_s8_s64(vtrn1q_s64(x, y));
		m[2 * i + 1] = vreinterpretq_s8_s64(vtrn2q_s64(x, y));
	}
}

I8MM INLINE int32x4_t products(const int8x16_t *m, const int8x16_t *v) {
	int32x4_t d = vdupq_n_s32(0);
#pragma clang loop unroll(full)
	for (int i = 0; i < 8; i++) d = vmmlaq_s32(d, m[i], v[i]);
	return d;
}

// of two vectors or rows, as a product of pairs has them.
INLINE float32x4_t columns_of(const float *a, const float *b) {
	float32x2_t x = vld1_lane_f32(b, vld1_dup_f32(a), 1);
	return vcombine_f32(x, x);
}

INLINE float32x4_t rows_of(const float *a, const float *b) { return vcombine_f32(vld1_dup_f32(a), vld1_dup_f32(b)); }

// add_block adds the products of four rows and a pair of vectors to the stripe
// of a block; acc is [row pair][stripe][2·2].
INLINE void add_block(float *acc, int b, const int32x4_t *d, float32x4_t x, const float32x4_t *s, int mode) {
#pragma clang loop unroll(full)
	for (int p = 0; p < 2; p++) {
		float32x4_t c = mode == ROW ? x : vmulq_f32(x, s[p]);
		float *to = acc + 16 * p + 4 * b;
		vst1q_f32(to, vfmaq_f32(vld1q_f32(to), c, vcvtq_f32_s32(d[p])));
	}
}

I8MM INLINE void block4(const tile *t, const uint8_t *const *w, const float32x4_t *s, int64_t quad, int b, int mode, int bits) {
	int8x16_t m[2][8];
#pragma clang loop unroll(full)
	for (int p = 0; p < 2; p++) {
		int8x16_t c[2][4];
		unpack(c[0], w[2 * p], bits);
		unpack(c[1], w[2 * p + 1], bits);
		pairs(m[p], c[0], c[1]);
	}
	const activation *a = t->act;
	float *acc = t->acc;
#pragma clang loop unroll(disable)
	for (int64_t i = t->n; i > 1; i -= 2, a += 2, acc += 32) {
		int8x16_t u[4], v[4], q[8];
#pragma clang loop unroll(full)
		for (int k = 0; k < 4; k++) {
			int64_t at = 256 * quad + 128 * (b / 2) + 32 * (b % 2) + 64 * (k / 2) + 16 * (k % 2);
			u[k] = vld1q_s8(a[0].codes + at);
			v[k] = vld1q_s8(a[1].codes + at);
		}
		pairs(q, u, v);
		int32x2_t sum = vld1_lane_s32(a[1].sums + 4 * quad + b, vld1_dup_s32(a[0].sums + 4 * quad + b), 1);
		int32x4_t zero = zeros(vcombine_s32(sum, sum), bits);
		int32x4_t d[2] = {vsubq_s32(products(m[0], q), zero), vsubq_s32(products(m[1], q), zero)};
		add_block(acc, b, d, columns_of(a[0].scale + 4 * quad + b, a[1].scale + 4 * quad + b), s, mode);
	}
}

I8MM INLINE void block8(const tile *t, const uint8_t *const *w, int64_t quad, int64_t quads, int b) {
	int8x16_t c[4][4], m[2][8];
#pragma clang loop unroll(full)
	for (int r = 0; r < 4; r++)
#pragma clang loop unroll(full)
		for (int k = 0; k < 4; k++) c[r][k] = vld1q_s8((const int8_t *)w[r] + 16 * k);
	pairs(m[0], c[0], c[1]);
	pairs(m[1], c[2], c[3]);
	const activation *a = t->act;
	float *acc = t->acc;
#pragma clang loop unroll(disable)
	for (int64_t i = t->n; i > 1; i -= 2, a += 2, acc += 32) {
		int32x4_t d[2];
#pragma clang loop unroll(full)
		for (int part = 0; part < 2; part++) { // high, then low
			int8x16_t u[4], v[4], q[8];
#pragma clang loop unroll(full)
			for (int k = 0; k < 4; k++) {
				int64_t at = 256 * (quad + quads * part) + 64 * b + 16 * k;
				u[k] = vld1q_s8(a[0].codes + at);
				v[k] = vld1q_s8(a[1].codes + at);
			}
			pairs(q, u, v);
#pragma clang loop unroll(full)
			for (int p = 0; p < 2; p++) {
				int32x4_t x = products(m[p], q);
				d[p] = part ? vaddq_s32(vshlq_n_s32(d[p], 4), x) : x;
			}
		}
		add_block(acc, b, d, columns_of(a[0].scale + 4 * quad + b, a[1].scale + 4 * quad + b), 0, ROW);
	}
}

// finish_pairs writes the results of all vectors but an odd last one.
INLINE void finish_pairs(const tile *t) {
	const float *acc = t->acc, *rows = t->row_scale;
	float *out = t->out;
#pragma clang loop unroll(disable)
	for (int64_t i = t->n; i > 1; i -= 2, acc += 32, out += 8) {
#pragma clang loop unroll(full)
		for (int p = 0; p < 2; p++) {
			const float *a = acc + 16 * p;
			float32x4_t y = vaddq_f32(vaddq_f32(vld1q_f32(a), vld1q_f32(a + 4)), vaddq_f32(vld1q_f32(a + 8), vld1q_f32(a + 12)));
			y = vmulq_f32(y, rows_of(rows + 2 * p, rows + 2 * p + 1));
			vst1q_lane_f32(out + 2 * p, y, 0);
			vst1q_lane_f32(out + 4 + 2 * p, y, 1);
			vst1q_lane_f32(out + 2 * p + 1, y, 2);
			vst1q_lane_f32(out + 5 + 2 * p, y, 3);
		}
	}
}

// narrow_pairs takes an even number of vectors.
I8MM INLINE void narrow_pairs(const tile *t, int mode, int bits) {
	begin(t);
	const char *next = t->next;
	int64_t all = t->quads + t->has_tail;
#pragma clang loop unroll(disable)
	for (int64_t q = 0; q < all; q++) {
		int tail = q == t->quads;
		ask(&next, 16 * block_bytes(bits));
#pragma clang loop unroll(disable)
		for (int b = 0; b < 4; b++) {
			const uint8_t *w[4];
			float32x4_t s[2];
#pragma clang loop unroll(full)
			for (int r = 0; r < 4; r++) w[r] = tail ? t->tail[r] + block_bytes(bits) * b : t->w[r] + block_bytes(bits) * (4 * q + b);
			if (mode != ROW) {
				int64_t at = tail ? b : (4 * q + b) / mode;
				const float *const *rows = tail ? t->tail_s : t->s;
				s[0] = rows_of(rows[0] + at, rows[1] + at);
				s[1] = rows_of(rows[2] + at, rows[3] + at);
			}
			block4(t, w, s, q, b, mode, bits);
		}
	}
	finish_pairs(t);
}

I8MM KERNEL int4RowI8MM(const tile *t) { narrow_pairs(t, ROW, 4); }
I8MM KERNEL int4G64I8MM(const tile *t) { narrow_pairs(t, G64, 4); }
I8MM KERNEL int4G128I8MM(const tile *t) { narrow_pairs(t, G128, 4); }
I8MM KERNEL int4G256I8MM(const tile *t) { narrow_pairs(t, G256, 4); }
I8MM KERNEL int2RowI8MM(const tile *t) { narrow_pairs(t, ROW, 2); }

I8MM KERNEL int8RowI8MM(const tile *t) {
	begin(t);
	const char *next = t->next;
	int64_t all = t->quads + t->has_tail;
#pragma clang loop unroll(disable)
	for (int64_t q = 0; q < all; q++) {
		ask(&next, 1024);
#pragma clang loop unroll(disable)
		for (int b = 0; b < 4; b++) {
			const uint8_t *w[4];
#pragma clang loop unroll(full)
			for (int r = 0; r < 4; r++) w[r] = q == t->quads ? t->tail[r] + 64 * b : t->w[r] + 256 * q + 64 * b;
			block8(t, w, q, all, b);
		}
	}
	finish_pairs(t);
}
