// Products of some rows of a matrix with up to eight activations by one
// simdgroup: four rows of eight lanes with rounded activations, eight rows of
// four lanes with floats.

// Where a product's operands are.
#define UNROLL _Pragma("clang loop unroll(full)")

struct Operands {
  Codes codes;
  uint blocks; // of 64 columns in an activation
  bool wide;   // codes and floats are aligned for vector loads, and cols % 32 == 0
  bool cut;    // group borders fall inside blocks
  uint tile;   // vectors at most, a constant
};

// The codes of half a block, 32 columns, as they lie in memory.
struct RawHalf {
  uint4 a;
  uint4 b;
};

// The same as factors. Formats of up to 4 bits are words of two codes,
// code + code' * 2^16; int8 codes stay as they are, four to a word.
struct HalfBlock {
  uint w[16];
};

static inline uint4 load16(bool wide, device const uchar* p, uint n) {
  if (wide) return *(device const uint4*)p;
  uint4 v = uint4(0u);
  UNROLL
  for (uint i = 0; i < 4u; i++) {
    uint x = 0u;
    UNROLL
    for (uint k = 0; k < 4u; k++) {
      if (4u * i + k < n) x |= uint(p[4u * i + k]) << (8u * k);
    }
    v[i] = x;
  }
  return v;
}

static inline uint4 load8(bool wide, device const uchar* p, uint n) {
  if (wide) {
    const uint2 v = *(device const uint2*)p;
    return uint4(v.x, v.y, 0u, 0u);
  }
  return load16(false, p, min(n, 8u));
}

static inline RawHalf load_half(Operands o, device const uchar* row, uint col) {
  const uint format = o.codes.format;
  RawHalf r;
  r.a = uint4(0u);
  r.b = uint4(0u);
  if (col < o.codes.cols) {
    if (format == FORMAT_INT8_ROW) {
      r.a = load16(o.wide, row + col, o.codes.cols - col);
      if (col + 16u < o.codes.cols) r.b = load16(o.wide, row + col + 16u, o.codes.cols - col - 16u);
    } else if (format == FORMAT_INT2_ROW) {
      r.a = load8(o.wide, row + col / 4u, o.codes.row_bytes - col / 4u);
    } else if (format == FORMAT_INT3_G64) {
      device const uchar* g = row + col / 64u * 24u;
      const uint half_of = col / 32u % 2u;
      r.a = load8(o.wide, g + 8u * half_of, 8u);
      r.b.x = o.wide ? *(device const uint*)(g + 16u + 4u * half_of) : load4bytes(g + 16u + 4u * half_of);
    } else {
      r.a = load16(o.wide, row + col / 2u, o.codes.row_bytes - col / 2u);
    }
  }
  return r;
}

static inline void unpack(uint format, RawHalf r, thread HalfBlock& b) {
  if (format == FORMAT_INT8_ROW) {
    UNROLL
    for (uint i = 0; i < 4u; i++) {
      b.w[i] = r.a[i];
      b.w[i + 4u] = r.b[i];
    }
  } else if (format == FORMAT_INT2_ROW) {
    UNROLL
    for (uint i = 0; i < 2u; i++) {
      UNROLL
      for (uint k = 0; k < 8u; k++) b.w[8u * i + k] = ((r.a[i] >> (2u * k)) & 0x00030003u) - 0x00020002u;
    }
  } else if (format == FORMAT_INT3_G64) {
    UNROLL
    for (uint i = 0; i < 2u; i++) {
      uint h = (r.b.x >> (16u * i)) & 0xFFFFu;
      h = (h | (h << 8u)) & 0x00FF00FFu;
      UNROLL
      for (uint k = 0; k < 8u; k++) {
        b.w[8u * i + k] = (((r.a[i] >> (2u * k)) & 0x00030003u) | (((h >> k) & 0x00010001u) << 2u)) - 0x00040004u;
      }
    }
  } else {
    UNROLL
    for (uint i = 0; i < 4u; i++) {
      UNROLL
      for (uint k = 0; k < 4u; k++) b.w[4u * i + k] = ((r.a[i] >> (4u * k)) & 0x000F000Fu) - 0x00080008u;
    }
  }
}

// The mates of half a block: word w is word w % 4 of the w / 4-th of four
// vectors that lie 8 lanes apart (see round.metal).
static inline int narrow_dot(thread const HalfBlock& b, device const uint4* q, uint from) {
  uint t = 0u;
  UNROLL
  for (uint k = from; k < from + 2u; k++) {
    const uint4 v = q[8u * k];
    t += b.w[4u * k] * v.x;
    t += b.w[4u * k + 1u] * v.y;
    t += b.w[4u * k + 2u] * v.z;
    t += b.w[4u * k + 3u] * v.w;
  }
  return int(t + 0x8000u) >> 16;
}

static inline int wide_pair(uint w, uint lo, uint hi) {
  return (int(w << 24u) >> 24) * (int(lo << 16u) >> 16) + (int(w << 16u) >> 24) * (int(lo) >> 16) +
         (int(w << 8u) >> 24) * (int(hi << 16u) >> 16) + (int(w) >> 24) * (int(hi) >> 16);
}

static inline int wide_dot(thread const HalfBlock& b, device const uint4* q) {
  int t = 0;
  UNROLL
  for (uint k = 0; k < 4u; k++) {
    const uint4 v = q[8u * k];
    t += wide_pair(b.w[2u * k], v.x, v.y);
    t += wide_pair(b.w[2u * k + 1u], v.z, v.w);
  }
  return t;
}

// Quads of blocks whose codes are loaded ahead, of one vector and of many, whose
// own loads take long enough.
#define AHEAD 4u
#define AHEAD_MANY 2u

// One quad of blocks of a row, of which the lane has half a block.
static inline void int_quad(Operands o, RawHalf raw, device const float* s, device const uint* q, device const float* sx, uint quad, bool live,
                            thread const uint* at, uint h, thread float* y) {
  const uint format = o.codes.format;
  const uint quads = (o.blocks + 3u) / 4u;
  const uint half_of = h % 2u;
  const uint block = quad * 4u + h / 2u;
  HalfBlock b;
  unpack(format, raw, b);
  float scale = 1.0f;
  if (live && !o.cut && format == FORMAT_INT4_GROUPED) scale = s[block * 64u / o.codes.group];
  if (live && format == FORMAT_INT3_G64) scale = s[block];
  UNROLL
  for (uint i = 0; i < o.tile; i++) {
    const ulong place = ulong(at[i]) * quads + quad;
    device const uint4* mates = (device const uint4*)q + place * 32u + h;
    float c = sx[place * 4u + h / 2u];
    int d0 = 0;
    int d1 = 0;
    if (format == FORMAT_INT8_ROW) {
      d0 = wide_dot(b, mates);
    } else {
      d0 = narrow_dot(b, mates, 0u);
      d1 = narrow_dot(b, mates, 2u);
    }
    if (!o.cut) {
      int d = d0 + d1;
      d = d + simd_shuffle_xor(d, ushort(1));
      if (format == FORMAT_INT4_GROUPED || format == FORMAT_INT3_G64) c = c * scale;
      if (live) y[i] = fma(c, float(d), y[i]);
    } else {
      const int e0 = simd_shuffle_xor(d0, ushort(1));
      const int e1 = simd_shuffle_xor(d1, ushort(1));
      int quarter[4];
      quarter[0] = half_of == 0u ? d0 : e0;
      quarter[1] = half_of == 0u ? d1 : e1;
      quarter[2] = half_of == 0u ? e0 : d0;
      quarter[3] = half_of == 0u ? e1 : d1;
      int sum = 0;
      uint first = block * 64u;
      UNROLL
      for (uint k = 0; k < 4u; k++) {
        sum += quarter[k];
        const uint end = block * 64u + 16u * k + 16u;
        if (k == 3u || end % o.codes.group == 0u) {
          if (live && first < o.codes.cols) {
            const float cs = c * s[first / o.codes.group];
            y[i] = fma(cs, float(sum), y[i]);
          }
          sum = 0;
          first = end;
        }
      }
    }
  }
}

// One row times o.tile rounded vectors, at[s] being their rows in q and sx; every
// lane of the eight gets y[s]. Stripe j of the four belongs to the lanes 2j
// and 2j+1, which hold half of its block each.
static inline void int_row(Operands o, device const uchar* w, device const float* scales, uint row, device const uint* q,
                           device const float* sx, thread const uint* at, uint h, thread float* y) {
  device const uchar* r = w + ulong(row) * o.codes.row_bytes;
  device const float* s = scales + ulong(row) * o.codes.scale_cols;
  const uint format = o.codes.format;
  const uint quads = (o.blocks + 3u) / 4u;
  const uint whole = o.wide ? o.codes.cols / 256u : 0u;
  const uint ahead = o.tile == 1u ? AHEAD : AHEAD_MANY;
  UNROLL
  for (uint i = 0; i < o.tile; i++) y[i] = 0.0f;
  uint quad = 0u;
  if (whole >= ahead) {
    RawHalf raw[AHEAD];
    UNROLL
    for (uint u = 0; u < ahead; u++) raw[u] = load_half(o, r, u * 256u + h * 32u);
    for (; quad + ahead <= whole; quad += ahead) {
      RawHalf next[AHEAD];
      const uint then = quad + 2u * ahead <= whole ? quad + ahead : quad; // at the end what is there anyway
      UNROLL
      for (uint u = 0; u < ahead; u++) next[u] = load_half(o, r, (then + u) * 256u + h * 32u);
      UNROLL
      for (uint u = 0; u < ahead; u++) int_quad(o, raw[u], s, q, sx, quad + u, true, at, h, y);
      UNROLL
      for (uint u = 0; u < ahead; u++) raw[u] = next[u];
    }
  }
  for (; quad < quads; quad++) {
    int_quad(o, load_half(o, r, quad * 256u + h * 32u), s, q, sx, quad, quad * 4u + h / 2u < o.blocks, at, h, y);
  }
  UNROLL
  for (uint i = 0; i < o.tile; i++) {
    float acc = y[i];
    acc = acc + simd_shuffle_xor(acc, ushort(2));
    acc = acc + simd_shuffle_xor(acc, ushort(4));
    y[i] = format == FORMAT_INT8_ROW || format == FORMAT_INT4_ROW || format == FORMAT_INT2_ROW ? s[0] * acc : acc;
  }
}

// Four neighbouring float weights of a row, as they lie in memory; 0 past the
// row's end.
static inline uint4 load_four(Operands o, device const uchar* r, uint col) {
  const uint format = o.codes.format;
  uint4 v = uint4(0u);
  if (format == FORMAT_F32) {
    if (o.wide) return *(device const uint4*)(r + 4u * col);
    UNROLL
    for (uint k = 0; k < 4u; k++) {
      if (col + k < o.codes.cols) v[k] = load4bytes(r + 4u * (col + k));
    }
  } else if (format == FORMAT_FP8) {
    if (o.wide) {
      v.x = *(device const uint*)(r + col);
    } else {
      UNROLL
      for (uint k = 0; k < 4u; k++) {
        if (col + k < o.codes.cols) v.x |= uint(r[col + k]) << (8u * k);
      }
    }
  } else {
    if (o.wide) {
      const uint2 x = *(device const uint2*)(r + 2u * col);
      return uint4(x.x, x.y, 0u, 0u);
    }
    UNROLL
    for (uint k = 0; k < 4u; k++) {
      if (col + k < o.codes.cols) v[k / 2u] |= load2bytes(r + 2u * (col + k)) << (16u * (k % 2u));
    }
  }
  return v;
}

static inline float4 widen_four(uint format, uint4 v, float scale) {
  if (format == FORMAT_FP8) {
    return float4(widen_fp8(v.x & 0xFFu) * scale, widen_fp8((v.x >> 8u) & 0xFFu) * scale, widen_fp8((v.x >> 16u) & 0xFFu) * scale,
                  widen_fp8(v.x >> 24u) * scale);
  }
  if (format == FORMAT_BF16) {
    return float4(widen_bf16(v.x & 0xFFFFu), as_type<float>(v.x & 0xFFFF0000u), widen_bf16(v.y & 0xFFFFu), as_type<float>(v.y & 0xFFFF0000u));
  }
  if (format == FORMAT_F16) {
    return float4(widen_f16(v.x & 0xFFFFu), widen_f16(v.x >> 16u), widen_f16(v.y & 0xFFFFu), widen_f16(v.y >> 16u));
  }
  return float4(as_type<float>(v.x), as_type<float>(v.y), as_type<float>(v.z), as_type<float>(v.w));
}

// Four stripes of a run of sixteen columns.
static inline void float_run(Operands o, uint4 raw, device const float* s, device const float* x, uint col, thread const ulong* at,
                             thread float4* acc) {
  const float scale = o.codes.format == FORMAT_FP8 ? s[col / 128u] : 1.0f;
  const float4 v = widen_four(o.codes.format, raw, scale);
  UNROLL
  for (uint i = 0; i < o.tile; i++) {
    if (o.wide) {
      const float4 xv = *(device const float4*)(x + at[i] + col);
      acc[i].x = fma(v.x, xv.x, acc[i].x);
      acc[i].y = fma(v.y, xv.y, acc[i].y);
      acc[i].z = fma(v.z, xv.z, acc[i].z);
      acc[i].w = fma(v.w, xv.w, acc[i].w);
    } else {
      UNROLL
      for (uint k = 0; k < 4u; k++) {
        if (col + k < o.codes.cols) acc[i][k] = fma(v[k], x[at[i] + col + k], acc[i][k]);
      }
    }
  }
}

// Runs of sixteen floats that are loaded ahead.
#define RUNS 8u
#define RUNS_MANY 2u

// One row times o.tile float vectors, at[s] being where they start in x; lane h
// of four holds the stripes 4h to 4h+3, and every one gets y[s].
static inline void float_row(Operands o, device const uchar* w, device const float* scales, uint row, device const float* x,
                             thread const ulong* at, uint h, thread float* y) {
  device const uchar* r = w + ulong(row) * o.codes.row_bytes;
  device const float* s = scales;
  if (o.codes.format == FORMAT_FP8) s = scales + ulong(row / 128u) * o.codes.scale_cols;
  const uint runs = (o.codes.cols + 15u) / 16u;
  const uint whole = o.wide ? o.codes.cols / 16u : 0u;
  const uint ahead = o.tile == 1u ? RUNS : RUNS_MANY;
  float4 acc[8];
  UNROLL
  for (uint i = 0; i < o.tile; i++) acc[i] = float4(0.0f);
  uint run = 0u;
  if (whole >= ahead) {
    uint4 raw[RUNS];
    UNROLL
    for (uint u = 0; u < ahead; u++) raw[u] = load_four(o, r, u * 16u + 4u * h);
    for (; run + ahead <= whole; run += ahead) {
      uint4 next[RUNS];
      const uint then = run + 2u * ahead <= whole ? run + ahead : run; // at the end what is there anyway
      UNROLL
      for (uint u = 0; u < ahead; u++) next[u] = load_four(o, r, (then + u) * 16u + 4u * h);
      UNROLL
      for (uint u = 0; u < ahead; u++) float_run(o, raw[u], s, x, (run + u) * 16u + 4u * h, at, acc);
      UNROLL
      for (uint u = 0; u < ahead; u++) raw[u] = next[u];
    }
  }
  for (; run < runs; run++) {
    const uint col = run * 16u + 4u * h;
    if (col < o.codes.cols) float_run(o, load_four(o, r, col), s, x, col, at, acc);
  }
  UNROLL
  for (uint i = 0; i < o.tile; i++) {
    float4 a = acc[i];
    UNROLL
    for (ushort d = 2; d > 0; d = d / 2) {
      UNROLL
      for (uint k = 0; k < 4u; k++) a[k] = a[k] + simd_shuffle_xor(a[k], d);
    }
    y[i] = (a.x + a.z) + (a.y + a.w);
  }
}
