// The scalar functions of docs/arithmetic.md. The literals are those of
// runtime/kernel, the shortest decimals that name the same numbers.

// exp of section 5.
static inline float exp_fixed(float x) {
  const float scaled = x * 1.44269502f;
  const float shifted = scaled + 12582912.0f;
  const float n = shifted - 12582912.0f;
  float r = fma(n, -0.693145752f, x);
  r = fma(n, -1.42860677e-06f, r);
  float p = fma(0.00138145406f, r, 0.00836874545f);
  p = fma(p, r, 0.041668389f);
  p = fma(p, r, 0.166665211f);
  p = fma(p, r, 0.49999994f);
  p = fma(p, r, 1.0f);
  p = fma(p, r, 1.0f);
  const float e = as_type<float>(as_type<uint>(p) + (as_type<uint>(shifted) << 23u));
  if (x < -87.0f) return 0.0f;
  if (x > 88.0f) return 3.40282347e+38f;
  return x != x ? x : e;
}

static inline float sigmoid_fixed(float x) {
  return 1.0f / (1.0f + exp_fixed(-x));
}

static inline float silu_fixed(float x) {
  return x / (1.0f + exp_fixed(-x));
}

// The halving tree over sixteen stripes, one a lane; both halves of the
// simdgroup form their own.
static inline float tree16(float acc) {
  acc = acc + simd_shuffle_xor(acc, ushort(8));
  acc = acc + simd_shuffle_xor(acc, ushort(4));
  acc = acc + simd_shuffle_xor(acc, ushort(2));
  return acc + simd_shuffle_xor(acc, ushort(1));
}

// The same where each of eight lanes holds the stripes 2h and 2h+1.
static inline float tree8(float even, float odd) {
  for (ushort o = 4; o > 0; o = o / 2) {
    even = even + simd_shuffle_xor(even, o);
    odd = odd + simd_shuffle_xor(odd, o);
  }
  return even + odd;
}
