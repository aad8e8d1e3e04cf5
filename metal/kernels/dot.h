// Products of some rows of a matrix with up to eight activations by one
// simdgroup: four rows of eight lanes with rounded activations, eight rows of
// four lanes with floats.

// Where a product's operands are.
#define UNROLL _Pragma("clang loop unroll(full)")

struct Operands {
  Codes codes;
  uint blocks; // of 64 columns in an activation
  uint wide;   // 2: codes are aligned for loads of 16 bytes, 1: of 8; floats too, and cols % 32 == 0
  bool cut;    // group borders fall inside blocks
  bool dots;   // the device multiplies bytes four at a time
  uint tile;   // vectors at most, a constant
  uint quads_ahead; // loads, constants too
  uint units_ahead;
};

// Sums of products of bytes, and of two 16-bit numbers with the low and the
// high bytes of a word. Devices that have instructions for them bring their own.
#ifndef HAS_DOTS
static inline int signed_byte(uint x, uint i) {
  return int(x << (24u - 8u * i)) >> 24;
}

static inline int dot4(uint a, uint b, int c) {
  UNROLL
  for (uint i = 0; i < 4u; i++) c += signed_byte(a, i) * signed_byte(b, i);
  return c;
}

static inline int dot2_low(uint a, uint b, int c) {
  return c + (int(a << 16u) >> 16) * signed_byte(b, 0u) + (int(a) >> 16) * signed_byte(b, 1u);
}

static inline int dot2_high(uint a, uint b, int c) {
  return dot2_low(a, b >> 16u, c);
}
#endif

// The codes of half a block, 32 columns, as they lie in memory.
struct RawHalf {
  uint4 a;
  uint4 b;
  float scale; // of the block, where blocks have one
};

// Codes of up to 4 bits as factors: words of two, code + code' * 2^16.
struct HalfBlock {
  uint w[16];
};

static inline uint4 load16(bool wide, device const uchar* p, uint n) {
  if (wide) return stream16(p);
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
    const uint2 v = stream8(p);
    return uint4(v.x, v.y, 0u, 0u);
  }
  return load16(false, p, min(n, 8u));
}

static inline RawHalf load_half(Operands o, device const uchar* row, device const float* s, uint col, bool inside) {
  const uint format = o.codes.format;
  RawHalf r;
  r.a = uint4(0u);
  r.b = uint4(0u);
  r.scale = 1.0f;
  if (inside || col < o.codes.cols) {
    if (format == FORMAT_INT4_GROUPED && !o.cut) r.scale = s[col / o.codes.group];
    if (format == FORMAT_INT8_ROW) {
      // A lane's 32 bytes come in two loads, so that a cache should keep them.
      if (inside) {
        r.a = *(device const uint4*)(row + col);
        r.b = *(device const uint4*)(row + col + 16);
        return r;
      }
      r.a = load16(o.wide != 0u, row + col, o.codes.cols - col);
      if (col + 16u < o.codes.cols) r.b = load16(o.wide != 0u, row + col + 16u, o.codes.cols - col - 16u);
    } else if (format == FORMAT_INT2_ROW) {
      r.a = load8(o.wide != 0u, row + col / 4u, o.codes.row_bytes - col / 4u);
    } else if (format == FORMAT_INT3_G64) {
      device const uchar* g = row + col / 64u * 24u;
      const uint half_of = col / 32u % 2u;
      r.a = load8(o.wide != 0u, g + 8u * half_of, 8u);
      r.b.x = o.wide != 0u ? stream4(g + 16u + 4u * half_of) : load4bytes(g + 16u + 4u * half_of);
    } else {
      r.a = load16(o.wide != 0u, row + col / 2u, o.codes.row_bytes - col / 2u);
    }
  }
  return r;
}

static inline void unpack(uint format, RawHalf r, thread HalfBlock& b) {
  if (format == FORMAT_INT2_ROW) {
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

static inline int wide_dot(RawHalf r, device const uint4* q) {
  int t = 0;
  UNROLL
  for (uint k = 0; k < 4u; k++) {
    const uint4 v = q[8u * k];
    const uint lo = k < 2u ? r.a[2u * k % 4u] : r.b[2u * k % 4u];
    const uint hi = k < 2u ? r.a[2u * k % 4u + 1u] : r.b[2u * k % 4u + 1u];
    t = dot2_low(v.x, lo, t);
    t = dot2_high(v.y, lo, t);
    t = dot2_low(v.z, hi, t);
    t = dot2_high(v.w, hi, t);
  }
  return t;
}

// A quarter of a block, with bytes that lie in the order of the codes' words
// (see round.metal): the codes go to the top of bytes, where they are signed.
static inline int quarter_dot(uint format, RawHalf r, uint quarter, uint4 q) {
  int t = 0;
  if (format == FORMAT_INT2_ROW) {
    const uint w = r.a[quarter] ^ 0xAAAAAAAAu;
    UNROLL
    for (uint j = 0; j < 4u; j++) t = dot4((w << (6u - 2u * j)) & 0xC0C0C0C0u, q[j], t);
    return t >> 6;
  }
  if (format == FORMAT_INT3_G64) {
    const uint w = r.a[quarter];
    uint h = (r.b.x >> (16u * quarter)) & 0xFFFFu;
    h = (h | (h << 8u)) & 0x00FF00FFu;
    h = ((h | (h << 4u)) & 0x0F0F0F0Fu) ^ 0x0F0F0F0Fu;
    UNROLL
    for (uint j = 0; j < 4u; j++) {
      const uint low = j < 3u ? w << (5u - 2u * min(j, 2u)) : w >> 1u;
      t = dot4((low & 0x60606060u) | ((h << (7u - j)) & 0x80808080u), q[j], t);
    }
    return t >> 5;
  }
  UNROLL
  for (uint i = 0; i < 2u; i++) {
    const uint w = r.a[2u * quarter + i] ^ 0x88888888u;
    t = dot4((w << 4u) & 0xF0F0F0F0u, q[2u * i], t);
    t = dot4(w & 0xF0F0F0F0u, q[2u * i + 1u], t);
  }
  return t >> 4;
}

// Quads of blocks whose codes are loaded ahead, of one vector and of many, whose
// own loads take long enough. A barrier keeps compilers from moving the loads to
// where they are used, one by one.
#define AHEAD 8u
#define AHEAD_MANY 2u

static inline uint quads_ahead(uint format, uint tile) {
  if (tile > 1u) return AHEAD_MANY;
  return format == FORMAT_INT2_ROW ? AHEAD : AHEAD / 2u;
}

// One quad of blocks of a row, of which the lane has half a block.
static inline void int_quad(Operands o, RawHalf raw, device const float* s, device const uint* q, device const float* sx, uint quad, bool live,
                            thread const uint* at, uint h, thread float* y) {
  const uint format = o.codes.format;
  const uint quads = (o.blocks + 3u) / 4u;
  const uint half_of = h % 2u;
  const uint block = quad * 4u + h / 2u;
  float block_scale = 1.0f; // to load it ahead made int3 slower and int4 faster
  if (live && format == FORMAT_INT3_G64) block_scale = s[block];
  const bool bytes = o.dots && format != FORMAT_INT8_ROW;
  HalfBlock b;
  if (!o.dots && format != FORMAT_INT8_ROW) unpack(format, raw, b);
  UNROLL
  for (uint i = 0; i < o.tile; i++) {
    const ulong place = ulong(at[i]) * quads + quad;
    device const uint4* mates = (device const uint4*)q + place * (bytes ? 16u : 32u) + h;
    float c = sx[place * 4u + h / 2u];
    int d0 = 0;
    int d1 = 0;
    if (format == FORMAT_INT8_ROW) {
      d0 = wide_dot(raw, mates);
    } else if (bytes) {
      d0 = quarter_dot(format, raw, 0u, mates[0]);
      d1 = quarter_dot(format, raw, 1u, mates[8]);
    } else {
      d0 = narrow_dot(b, mates, 0u);
      d1 = narrow_dot(b, mates, 2u);
    }
    if (!o.cut) {
      int d = d0 + d1;
      d = d + simd_shuffle_xor(d, ushort(1));
      if (format == FORMAT_INT4_GROUPED || format == FORMAT_INT3_G64) c = c * (format == FORMAT_INT3_G64 ? block_scale : raw.scale);
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
  const uint whole = o.wide != 0u ? o.codes.cols / 256u : 0u;
  const uint ahead = o.quads_ahead;
  UNROLL
  for (uint i = 0; i < o.tile; i++) y[i] = 0.0f;
  uint quad = 0u;
  if (whole >= ahead) {
    RawHalf raw[AHEAD];
    UNROLL
    for (uint u = 0; u < ahead; u++) raw[u] = load_half(o, r, s, u * 256u + h * 32u, true);
    inputs_ready();
    for (;;) {
      simdgroup_barrier(mem_flags::mem_none);
      UNROLL
      for (uint u = 0; u < ahead; u++) int_quad(o, raw[u], s, q, sx, quad + u, true, at, h, y);
      quad += ahead;
      if (quad + ahead > whole) break;
      UNROLL
      for (uint u = 0; u < ahead; u++) raw[u] = load_half(o, r, s, (quad + u) * 256u + h * 32u, true);
    }
  }
  inputs_ready();
  for (; quad < quads; quad++) {
    int_quad(o, load_half(o, r, s, quad * 256u + h * 32u, false), s, q, sx, quad, quad * 4u + h / 2u < o.blocks, at, h, y);
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
    if (o.wide == 2u) return *(device const uint4*)(r + 4u * col);
    UNROLL
    for (uint k = 0; k < 4u; k++) {
      if (col + k < o.codes.cols) v[k] = load4bytes(r + 4u * (col + k));
    }
  } else if (format == FORMAT_FP8) {
    if (o.wide != 0u) {
      v.x = *(device const uint*)(r + col);
    } else {
      UNROLL
      for (uint k = 0; k < 4u; k++) {
        if (col + k < o.codes.cols) v.x |= uint(r[col + k]) << (8u * k);
      }
    }
  } else {
    if (o.wide != 0u) {
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

static inline void add_products(float4 v, float4 x, thread float4* acc) {
  acc[0].x = fma(v.x, x.x, acc[0].x);
  acc[0].y = fma(v.y, x.y, acc[0].y);
  acc[0].z = fma(v.z, x.z, acc[0].z);
  acc[0].w = fma(v.w, x.w, acc[0].w);
}

// Four stripes of a run of sixteen columns.
static inline void float_run(Operands o, float4 v, device const float* x, uint col, thread const ulong* at, thread float4* acc) {
  UNROLL
  for (uint i = 0; i < o.tile; i++) {
    if (o.wide != 0u) {
      const float4 xv = *(device const float4*)(x + at[i] + col);
      add_products(v, xv, acc + i);
    } else {
      UNROLL
      for (uint k = 0; k < 4u; k++) {
        if (col + k < o.codes.cols) acc[i][k] = fma(v[k], x[at[i] + col + k], acc[i][k]);
      }
    }
  }
}

// The part of a lane in a unit of some runs: 16 bytes at a time, but two
// times that in f32.
struct RawRuns {
  uint4 a;
  uint4 b;
  float scale;
};

static inline uint runs_of_unit(uint format) {
  return format == FORMAT_FP8 ? 4u : 2u;
}

static inline uint4 load_whole(Operands o, device const uchar* p) {
  if (o.wide == 2u) return stream16(p);
  const uint2 low = stream8(p);
  const uint2 high = stream8(p + 8);
  return uint4(low.x, low.y, high.x, high.y);
}

// p is the lane with its bits exchanged. In f32 it loads its stripes 4p to 4p+3 of
// two runs, in 16 bits those from 8 * (p / 2) on of run p % 2, in fp8 run p.
static inline RawRuns load_runs(Operands o, device const uchar* r, device const float* s, uint col, uint p) {
  const uint format = o.codes.format;
  RawRuns v;
  v.b = uint4(0u);
  v.scale = 1.0f;
  if (format == FORMAT_F32) {
    v.a = load_whole(o, r + 4u * (col + 4u * p));
    v.b = load_whole(o, r + 4u * (col + 16u + 4u * p));
  } else if (format == FORMAT_FP8) {
    v.a = load_whole(o, r + col + 16u * p);
    v.scale = s[col / 128u];
  } else {
    v.a = load_whole(o, r + 2u * (col + 8u * (p / 2u) + 16u * (p % 2u)));
  }
  return v;
}

// Lanes exchange what belongs to the other's stripes; d is the distance of lanes
// that differ in the bit that second is of.
static inline uint exchange(uint keep_first, uint keep_second, bool second, ushort d) {
  return simd_shuffle_xor(second ? keep_first : keep_second, d);
}

// The four stripes of a lane in the runs of a unit as numbers.
static inline void widen_runs(Operands o, RawRuns v, uint p, thread float4* f) {
  const uint format = o.codes.format;
  const bool low = p % 2u != 0u;
  const bool high = p / 2u != 0u;
  if (format == FORMAT_F32) {
    f[0] = widen_four(format, v.a, 1.0f);
    f[1] = widen_four(format, v.b, 1.0f);
  } else if (format == FORMAT_FP8) {
    // Words 0 and 1 of the runs p and p + 2, or 2 and 3 of p - 2 and p, then one of all runs.
    const uint m0 = high ? v.a.z : v.a.x;
    const uint m1 = high ? v.a.w : v.a.y;
    const uint t0 = exchange(v.a.x, v.a.z, high, ushort(1));
    const uint t1 = exchange(v.a.y, v.a.w, high, ushort(1));
    const uint f0 = high ? t0 : m0;
    const uint f1 = high ? t1 : m1;
    const uint g0 = high ? m0 : t0;
    const uint g1 = high ? m1 : t1;
    const uint e = exchange(f0, f1, low, ushort(2));
    const uint g = exchange(g0, g1, low, ushort(2));
    const float scale = v.scale * 256.0f;
    f[0] = widen_fp8_halves(low ? e : f0, scale);
    f[1] = widen_fp8_halves(low ? f1 : e, scale);
    f[2] = widen_fp8_halves(low ? g : g0, scale);
    f[3] = widen_fp8_halves(low ? g1 : g, scale);
  } else {
    // The lanes p and p + 1, which are two apart, have the same stripes of the two runs.
    const uint e0 = exchange(v.a.x, v.a.z, low, ushort(2));
    const uint e1 = exchange(v.a.y, v.a.w, low, ushort(2));
    f[0] = widen_four(format, uint4(low ? e0 : v.a.x, low ? e1 : v.a.y, 0u, 0u), 1.0f);
    f[1] = widen_four(format, uint4(low ? v.a.z : e0, low ? v.a.w : e1, 0u, 0u), 1.0f);
  }
}

// Whether the fast widening does not know one of the codes, which are no numbers,
// or the scale.
static inline bool is_odd(Operands o, RawRuns v) {
  uint bits = ((v.a.x & 0x7F7F7F7Fu) + 0x01010101u) | ((v.a.y & 0x7F7F7F7Fu) + 0x01010101u);
  bits = bits | ((v.a.z & 0x7F7F7F7Fu) + 0x01010101u) | ((v.a.w & 0x7F7F7F7Fu) + 0x01010101u);
  return o.codes.format == FORMAT_FP8 && ((bits & 0x80808080u) != 0u || !(abs(v.scale) < 1e36f));
}

// Units that are loaded ahead.
#define UNITS 8u

static inline uint units_ahead(uint format, uint tile) {
  const uint n = format == FORMAT_BF16 || format == FORMAT_F16 ? UNITS : UNITS / 2u;
  return tile == 1u ? n : n / 4u;
}

// One row times o.tile float vectors, at[s] being where they start in x; lane h
// of four holds the stripes 4p to 4p+3, p being h with its bits exchanged, and
// every one gets y[s].
static inline void float_row(Operands o, device const uchar* w, device const float* scales, uint row, device const float* x,
                             thread const ulong* at, uint h, thread float* y) {
  device const uchar* r = w + ulong(row) * o.codes.row_bytes;
  device const float* s = scales;
  if (o.codes.format == FORMAT_FP8) s = scales + ulong(row / 128u) * o.codes.scale_cols;
  const uint runs = (o.codes.cols + 15u) / 16u;
  const uint unit = runs_of_unit(o.codes.format);
  const uint whole = o.wide != 0u ? o.codes.cols / (16u * unit) : 0u;
  const uint ahead = o.units_ahead;
  const uint p = h / 2u + h % 2u * 2u;
  float4 acc[8];
  UNROLL
  for (uint i = 0; i < o.tile; i++) acc[i] = float4(0.0f);
  bool odd = false;
  uint at_unit = 0u;
  if (whole >= ahead) {
    RawRuns raw[UNITS];
    UNROLL
    for (uint u = 0; u < ahead; u++) raw[u] = load_runs(o, r, s, u * 16u * unit, p);
    inputs_ready();
    for (; at_unit + ahead <= whole; at_unit += ahead) {
      RawRuns next[UNITS];
      const uint then = at_unit + 2u * ahead <= whole ? at_unit + ahead : at_unit; // at the end what is there anyway
      UNROLL
      for (uint u = 0; u < ahead; u++) next[u] = load_runs(o, r, s, (then + u) * 16u * unit, p);
      // One vector is loaded ahead too, where that pays.
      const bool one = o.tile == 1u && o.codes.format == FORMAT_FP8;
      float4 xs[2u * UNITS];
      UNROLL
      for (uint k = 0; k < ahead * unit; k++) {
        if (one) xs[k] = *(device const float4*)(x + at[0] + (at_unit * unit + k) * 16u + 4u * p);
      }
      simdgroup_barrier(mem_flags::mem_none);
      UNROLL
      for (uint u = 0; u < ahead; u++) {
        odd = odd || is_odd(o, raw[u]);
        float4 f[4];
        widen_runs(o, raw[u], p, f);
        UNROLL
        for (uint k = 0; k < unit; k++) {
          if (one) {
            add_products(f[k], xs[u * unit + k], acc);
          } else {
            float_run(o, f[k], x, ((at_unit + u) * unit + k) * 16u + 4u * p, at, acc);
          }
        }
      }
      UNROLL
      for (uint u = 0; u < ahead; u++) raw[u] = next[u];
    }
  }
  inputs_ready();
  // What is left, and odd rows from their start on.
  uint run = unit * at_unit;
  uint flagged = odd ? 1u : 0u;
  flagged = flagged | simd_shuffle_xor(flagged, ushort(1));
  flagged = flagged | simd_shuffle_xor(flagged, ushort(2));
  if (flagged != 0u) {
    run = 0u;
    UNROLL
    for (uint i = 0; i < o.tile; i++) acc[i] = float4(0.0f);
  }
  for (; run < runs; run++) {
    const uint col = run * 16u + 4u * p;
    const float scale = o.codes.format == FORMAT_FP8 && col < o.codes.cols ? s[col / 128u] : 1.0f;
    if (col < o.codes.cols) float_run(o, widen_four(o.codes.format, load_four(o, r, col), scale), x, col, at, acc);
  }
  UNROLL
  for (uint i = 0; i < o.tile; i++) {
    float4 a = acc[i];
    UNROLL
    for (ushort d = 1; d < 4; d = d * 2) {
      UNROLL
      for (uint k = 0; k < 4u; k++) a[k] = a[k] + simd_shuffle_xor(a[k], d);
    }
    y[i] = (a.x + a.z) + (a.y + a.w);
  }
}
