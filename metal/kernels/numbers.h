// exp and silu as the polynomial of docs/arithmetic.md; the literals are those
// of runtime/kernel.
static inline float exp_poly(float x) {
  const float shifted = x * 1.44269502f + 12582912.0f; // two roundings: contraction is off
  const float n = shifted - 12582912.0f;
  float r = fma(n, -0.693145752f, x);
  r = fma(n, -1.42860677e-06f, r);
  float p = 0.0f;
  return p;
}
