// The weight formats. The numbers are those of format.ID.
#define FORMAT_F32 0u
#define FORMAT_INT8_ROW 1u
#define FORMAT_INT4_ROW 2u
#define FORMAT_INT2_ROW 3u
#define FORMAT_INT4_GROUPED 4u
#define FORMAT_INT3_G64 5u
#define FORMAT_FP8 8u
#define FORMAT_BF16 9u
#define FORMAT_F16 10u

static inline uint load2bytes(device const uchar* p) {
  return uint(p[0]) | (uint(p[1]) << 8u);
}

static inline uint load4bytes(device const uchar* p) {
  return load2bytes(p) | (load2bytes(p + 2) << 16u);
}

// E4M3: bias 7, subnormals of 2^-9, no infinities.
static inline float widen_fp8(uint c) {
  const uint magnitude = c & 0x7Fu;
  float v = as_type<float>((magnitude << 20u) + 0x3C000000u);
  if (magnitude < 8u) v = float(magnitude) * 0.001953125f;
  if (magnitude == 0x7Fu) v = as_type<float>(0x7FC00000u);
  return (c & 0x80u) != 0u ? -v : v;
}

static inline float widen_bf16(uint c) {
  return as_type<float>(c << 16u);
}

static inline float widen_f16(uint c) {
  return float(as_type<half>(ushort(c)));
}

// Four of a word, which must be numbers, times a scale. As halves their magnitudes
// are 2^-8 of what they are, those below the smallest normal one too; the scale
// makes up for it.
static inline float4 widen_fp8_halves(uint w, float scale) {
  const uint even = ((w << 8u) & 0x80008000u) | ((w << 7u) & 0x3F803F80u);
  const uint odd = (w & 0x80008000u) | ((w >> 1u) & 0x3F803F80u);
  return float4(widen_f16(even & 0xFFFFu) * scale, widen_f16(odd & 0xFFFFu) * scale, widen_f16(even >> 16u) * scale, widen_f16(odd >> 16u) * scale);
}

// A matrix as the decoders need it.
struct Codes {
  uint format;
  uint cols;
  uint row_bytes;
  uint scale_cols;
  uint group; // columns of a group of int4-grouped
};

// The weight in a row and column as a number: code times scale, one rounding.
static inline float weight_at(Codes m, device const uchar* w, device const float* scales, uint row, uint col) {
  device const uchar* r = w + ulong(row) * m.row_bytes;
  device const float* s = scales + ulong(row) * m.scale_cols;
  switch (m.format) {
    case FORMAT_INT8_ROW:
      return float(int(uint(r[col]) << 24u) >> 24) * s[0];
    case FORMAT_INT4_ROW:
      return float(int((uint(r[col / 2u]) >> (col % 2u * 4u)) & 15u) - 8) * s[0];
    case FORMAT_INT2_ROW:
      return float(int((uint(r[col / 4u]) >> (col % 4u * 2u)) & 3u) - 2) * s[0];
    case FORMAT_INT4_GROUPED:
      return float(int((uint(r[col / 2u]) >> (col % 2u * 4u)) & 15u) - 8) * s[col / m.group];
    case FORMAT_INT3_G64: {
      const uint k = col % 64u;
      device const uchar* g = r + col / 64u * 24u;
      const uint low = (uint(g[k / 4u]) >> (k % 4u * 2u)) & 3u;
      const uint high = (uint(g[16u + k / 8u]) >> (k % 8u)) & 1u;
      return float(int(low | (high << 2u)) - 4) * s[col / 64u];
    }
    case FORMAT_FP8:
      return widen_fp8(r[col]) * scales[ulong(row / 128u) * m.scale_cols + col / 128u];
    case FORMAT_BF16:
      return widen_bf16(load2bytes(r + 2u * col));
    case FORMAT_F16:
      return widen_f16(load2bytes(r + 2u * col));
    default:
      return as_type<float>(load4bytes(r + 4u * col));
  }
}
