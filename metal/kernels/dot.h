// Products of four rows of a matrix with up to eight activations by one
// simdgroup: eight lanes a row.

// Where a product's operands are.
struct Operands {
  Codes codes;
  uint blocks; // of 64 columns in an activation
  bool wide;   // a lane's codes are aligned for vector loads and cols % 32 == 0
  bool cut;    // group borders fall inside blocks
  uint tile;   // vectors at most, a constant
};

// Half a block, 32 columns. Formats of up to 4 bits are words of two codes,
// code + code' * 2^16; int8 codes stay as they are, four to a word.
struct HalfBlock {
  uint w[16];
};

static inline uint4 load16(bool wide, device const uchar* p, uint n) {
  if (wide) return *(device const uint4*)p;
  uint4 v = uint4(0u);
  for (uint i = 0; i < 4u; i++) {
    uint x = 0u;
    for (uint k = 0; k < 4u; k++) {
      if (4u * i + k < n) x |= uint(p[4u * i + k]) << (8u * k);
    }
    v[i] = x;
  }
  return v;
}

static inline uint2 load8(bool wide, device const uchar* p, uint n) {
  if (wide) return *(device const uint2*)p;
  const uint4 v = load16(false, p, min(n, 8u));
  return uint2(v.x, v.y);
}

static inline void load_half(Operands o, device const uchar* row, uint col, thread HalfBlock& b) {
  const uint format = o.codes.format;
  if (format == FORMAT_INT8_ROW) {
    const uint4 x = load16(o.wide, row + col, o.codes.cols - col);
    uint4 y = uint4(0u);
    if (col + 16u < o.codes.cols) y = load16(o.wide, row + col + 16u, o.codes.cols - col - 16u);
    for (uint i = 0; i < 4u; i++) {
      b.w[i] = x[i];
      b.w[i + 4u] = y[i];
    }
  } else if (format == FORMAT_INT2_ROW) {
    const uint2 x = load8(o.wide, row + col / 4u, o.codes.row_bytes - col / 4u);
    for (uint i = 0; i < 2u; i++) {
      for (uint k = 0; k < 8u; k++) b.w[8u * i + k] = ((x[i] >> (2u * k)) & 0x00030003u) - 0x00020002u;
    }
  } else if (format == FORMAT_INT3_G64) {
    device const uchar* g = row + col / 64u * 24u;
    const uint half_of = col / 32u % 2u;
    const uint2 x = load8(o.wide, g + 8u * half_of, 8u);
    const uint high = o.wide ? *(device const uint*)(g + 16u + 4u * half_of) : load4bytes(g + 16u + 4u * half_of);
    for (uint i = 0; i < 2u; i++) {
      uint h = (high >> (16u * i)) & 0xFFFFu;
      h = (h | (h << 8u)) & 0x00FF00FFu;
      for (uint k = 0; k < 8u; k++) {
        b.w[8u * i + k] = (((x[i] >> (2u * k)) & 0x00030003u) | (((h >> k) & 0x00010001u) << 2u)) - 0x00040004u;
      }
    }
  } else {
    const uint4 x = load16(o.wide, row + col / 2u, o.codes.row_bytes - col / 2u);
    for (uint i = 0; i < 4u; i++) {
      for (uint k = 0; k < 4u; k++) b.w[4u * i + k] = ((x[i] >> (4u * k)) & 0x000F000Fu) - 0x00080008u;
    }
  }
}

// The exact product of words [from, from + 8) with their mates.
static inline int narrow_dot(thread const HalfBlock& b, device const uint* q, uint from) {
  uint t = 0u;
  for (uint k = from; k < from + 8u; k++) t += b.w[k] * q[k];
  return int(t + 0x8000u) >> 16;
}

static inline int wide_dot(thread const HalfBlock& b, device const uint* q) {
  int t = 0;
  for (uint k = 0; k < 8u; k++) {
    const uint w = b.w[k];
    const uint lo = q[2u * k];
    const uint hi = q[2u * k + 1u];
    t += (int(w << 24u) >> 24) * (int(lo << 16u) >> 16);
    t += (int(w << 16u) >> 24) * (int(lo) >> 16);
    t += (int(w << 8u) >> 24) * (int(hi << 16u) >> 16);
    t += (int(w) >> 24) * (int(hi) >> 16);
  }
  return t;
}

// One row times n rounded vectors, at[s] being their rows in q and sx; every
// lane of the eight gets y[s]. Stripe j of the four belongs to the lanes 2j
// and 2j+1, which hold half of its block each.
static inline void int_row(Operands o, device const uchar* w, device const float* scales, uint row, device const uint* q,
                           device const float* sx, thread const uint* at, uint n, uint h, thread float* y) {
  device const uchar* r = w + ulong(row) * o.codes.row_bytes;
  device const float* s = scales + ulong(row) * o.codes.scale_cols;
  const uint half_of = h % 2u;
  for (uint i = 0; i < o.tile; i++) y[i] = 0.0f;
  for (uint first = 0; first < o.blocks; first += 4u) {
    const uint block = first + h / 2u;
    const uint col = block * 64u + half_of * 32u;
    const bool live = block < o.blocks;
    HalfBlock b;
    for (uint k = 0; k < 16u; k++) b.w[k] = 0u;
    if (live && col < o.codes.cols) load_half(o, r, col, b);
    for (uint i = 0; i < o.tile; i++) {
      if (i >= n) break;
      const uint place = at[i] * o.blocks + (live ? block : 0u);
      device const uint* mates = q + (ulong(place) * 32u + half_of * 16u);
      int d0 = 0;
      int d1 = 0;
      if (o.codes.format == FORMAT_INT8_ROW) {
        d0 = wide_dot(b, mates);
      } else {
        d0 = narrow_dot(b, mates, 0u);
        d1 = narrow_dot(b, mates, 8u);
      }
      if (!o.cut) {
        int d = d0 + d1;
        d = d + simd_shuffle_xor(d, ushort(1));
        if (live) {
          float c = sx[place];
          if (o.codes.format == FORMAT_INT4_GROUPED) c = c * s[block * 64u / o.codes.group];
          if (o.codes.format == FORMAT_INT3_G64) c = c * s[block];
          y[i] = fma(c, float(d), y[i]);
        }
      } else {
        const int e0 = simd_shuffle_xor(d0, ushort(1));
        const int e1 = simd_shuffle_xor(d1, ushort(1));
        int quarter[4];
        quarter[0] = half_of == 0u ? d0 : e0;
        quarter[1] = half_of == 0u ? d1 : e1;
        quarter[2] = half_of == 0u ? e0 : d0;
        quarter[3] = half_of == 0u ? e1 : d1;
        if (live) {
          const float scale = sx[place];
          int sum = 0;
          uint start = block * 64u;
          for (uint k = 0; k < 4u; k++) {
            sum += quarter[k];
            const uint end = block * 64u + 16u * k + 16u;
            if (k == 3u || end % o.codes.group == 0u) {
              if (start < o.codes.cols) {
                const float c = scale * s[start / o.codes.group];
                y[i] = fma(c, float(sum), y[i]);
              }
              sum = 0;
              start = end;
            }
          }
        }
      }
    }
  }
  for (uint i = 0; i < o.tile; i++) {
    float acc = y[i];
    acc = acc + simd_shuffle_xor(acc, ushort(2));
    acc = acc + simd_shuffle_xor(acc, ushort(4));
    const uint f = o.codes.format;
    y[i] = f == FORMAT_INT8_ROW || f == FORMAT_INT4_ROW || f == FORMAT_INT2_ROW ? s[0] * acc : acc;
  }
}

// Two neighbouring float weights of a row; the second is 0 past the row's end.
static inline float2 load_pair(Operands o, device const uchar* r, device const float* s, uint col) {
  const bool both = col + 1u < o.codes.cols;
  float a = 0.0f;
  float b = 0.0f;
  if (o.codes.format == FORMAT_F32) {
    if (o.wide) return *(device const float2*)(r + 4u * col);
    a = as_type<float>(load4bytes(r + 4u * col));
    if (both) b = as_type<float>(load4bytes(r + 4u * col + 4u));
  } else if (o.codes.format == FORMAT_FP8) {
    uint x = 0u;
    if (o.wide) {
      x = *(device const ushort*)(r + col);
    } else {
      x = r[col];
      if (both) x |= uint(r[col + 1u]) << 8u;
    }
    const float scale = s[col / 128u];
    a = widen_fp8(x & 0xFFu) * scale;
    b = widen_fp8(x >> 8u) * scale;
  } else {
    uint x = 0u;
    if (o.wide) {
      x = *(device const uint*)(r + 2u * col);
    } else {
      x = load2bytes(r + 2u * col);
      if (both) x |= load2bytes(r + 2u * col + 2u) << 16u;
    }
    if (o.codes.format == FORMAT_BF16) {
      a = widen_bf16(x & 0xFFFFu);
      b = as_type<float>(x & 0xFFFF0000u);
    } else {
      a = widen_f16(x & 0xFFFFu);
      b = widen_f16(x >> 16u);
    }
  }
  return float2(a, b);
}

// One row times n float vectors, at[s] being where they start in x; lane h
// holds the stripes 2h and 2h+1, and every lane of the eight gets y[s].
static inline void float_row(Operands o, device const uchar* w, device const float* scales, uint row, device const float* x,
                             thread const ulong* at, uint n, uint h, thread float* y, thread float* odd) {
  device const uchar* r = w + ulong(row) * o.codes.row_bytes;
  device const float* s = scales;
  if (o.codes.format == FORMAT_FP8) s = scales + ulong(row / 128u) * o.codes.scale_cols;
  for (uint i = 0; i < o.tile; i++) {
    y[i] = 0.0f;
    odd[i] = 0.0f;
  }
  for (uint col = 2u * h; col < o.codes.cols; col += 16u) {
    const float2 v = load_pair(o, r, s, col);
    for (uint i = 0; i < o.tile; i++) {
      if (i >= n) break;
      y[i] = fma(v.x, x[at[i] + col], y[i]);
      if (col + 1u < o.codes.cols) odd[i] = fma(v.y, x[at[i] + col + 1u], odd[i]);
    }
  }
  for (uint i = 0; i < o.tile; i++) y[i] = tree8(y[i], odd[i]);
}
