// The order of runtime/kernel's TopK: -0 equals +0, NaN is below everything.
static inline uint order_key(float x) {
  uint b = as_type<uint>(x);
  if (x == 0.0f) b = 0u;
  const uint key = b ^ (uint(int(b) >> 31) | 0x80000000u);
  return x != x ? 0u : key;
}
