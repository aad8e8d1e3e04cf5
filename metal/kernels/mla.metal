// Absorbed multi-head latent attention, docs/arithmetic.md section 4. All rows of
// a launch belong to some tokens of the batch; token z sees the positions up to
// its own, or those that the indexer selected.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "numbers.h"
#include "codes.h"
#include "ready.h"

constant uint FORMAT [[function_constant(0)]]; // of kv_b; only qabs reads it
constant uint TILE [[function_constant(1)]];   // tokens of qabs, positions of half a simdgroup in score
constant bool WIDE [[function_constant(2)]];   // kv_b, or the latents, are aligned for vector loads
constant bool SELECTS [[function_constant(3)]]; // tokens may see selected positions only

#define CHUNK 256u // positions that are summed before they join the others
#define UNROLL _Pragma("clang loop unroll(full)")
#define HEADS 8u     // of a simdgroup
#define PART 64u     // columns of score's tiles
#define PADDED 80u   // so that the halves of a simdgroup read other banks
#define STAGE 32u    // positions whose probabilities a simdgroup holds
#define AHEAD 8u     // latents that are loaded ahead

struct QAbsArgs {
  uint cols; // of kv_b: the width of a latent
  uint row_bytes;
  uint scale_cols;
  uint group;
  uint nope;
  uint head_rows;
  uint rope;
  uint heads;
  uint q_stride;
  uint q_width;
  uint rope_stride;
  uint count;
};

// Four neighbouring weights of a row as they lie in memory.
struct RawFour {
  uint4 v;
  float scale;
};

static inline RawFour load_weights(Codes m, device const uchar* w, device const float* scales, uint row, uint col) {
  device const uchar* r = w + ulong(row) * m.row_bytes;
  device const float* s = scales + ulong(row) * m.scale_cols;
  RawFour f;
  f.v = uint4(0u);
  f.scale = 1.0f;
  switch (m.format) {
    case FORMAT_INT8_ROW:
      f.v.x = *(device const uint*)(r + col);
      f.scale = s[0];
      break;
    case FORMAT_INT4_ROW:
      f.v.x = *(device const ushort*)(r + col / 2u);
      f.scale = s[0];
      break;
    case FORMAT_INT2_ROW:
      f.v.x = r[col / 4u];
      f.scale = s[0];
      break;
    case FORMAT_INT4_GROUPED:
      f.v.x = *(device const ushort*)(r + col / 2u);
      f.scale = s[col / m.group];
      break;
    case FORMAT_INT3_G64:
      f.v.x = r[col / 64u * 24u + col % 64u / 4u];
      f.v.y = r[col / 64u * 24u + 16u + col % 64u / 8u];
      f.scale = s[col / 64u];
      break;
    case FORMAT_FP8:
      f.v.x = *(device const uint*)(r + col);
      f.scale = scales[ulong(row / 128u) * m.scale_cols + col / 128u];
      break;
    case FORMAT_BF16:
    case FORMAT_F16: {
      const uint2 x = *(device const uint2*)(r + 2u * col);
      f.v.x = x.x;
      f.v.y = x.y;
      break;
    }
    default:
      f.v = *(device const uint4*)(r + 4u * col);
  }
  return f;
}

// code - bias, which is exact: the code is the low bits of a number of 2^23.
static inline float small(uint code, float bias) {
  return as_type<float>(code | 0x4B000000u) - (8388608.0f + bias);
}

static inline float weight_of(uint format, RawFour f, uint col, uint k) {
  switch (format) {
    case FORMAT_INT8_ROW:
      return small(((f.v.x >> (8u * k)) & 255u) ^ 128u, 128.0f) * f.scale;
    case FORMAT_INT4_ROW:
    case FORMAT_INT4_GROUPED:
      return small((f.v.x >> (4u * k)) & 15u, 8.0f) * f.scale;
    case FORMAT_INT2_ROW:
      return small((f.v.x >> (2u * (col % 4u + k))) & 3u, 2.0f) * f.scale;
    case FORMAT_INT3_G64:
      return small(((f.v.x >> (2u * (col % 4u + k))) & 3u) | (((f.v.y >> (col % 8u + k)) & 1u) << 2u), 4.0f) * f.scale;
    case FORMAT_FP8:
      return widen_fp8((f.v.x >> (8u * k)) & 0xFFu) * f.scale;
    case FORMAT_BF16:
      return widen_bf16((f.v[k / 2u] >> (16u * (k % 2u))) & 0xFFFFu);
    case FORMAT_F16:
      return widen_f16((f.v[k / 2u] >> (16u * (k % 2u))) & 0xFFFFu);
    default:
      return as_type<float>(f.v[k]);
  }
}

#define ROWS_AHEAD 8u // of kv_b

// One thread four columns (x) of a head (y) for TILE tokens (z): the query in the
// space of the latents, with its rotated part behind.
kernel void qabs(device const uchar* w [[buffer(0)]],
                 device const float* scales [[buffer(1)]],
                 device const float* q [[buffer(2)]],
                 device const float* q_rope [[buffer(3)]],
                 device float* query [[buffer(4)]],
                 constant QAbsArgs& args [[buffer(5)]],
                 uint3 at [[thread_position_in_grid]]) {
  const uint width = args.cols + args.rope;
  const uint first = at.z * TILE;
  const uint n = min(TILE, args.count - first);
  const uint head = at.y;
  const Codes m = {FORMAT, args.cols, args.row_bytes, args.scale_cols, args.group};
  const uint col = 4u * at.x;
  const uint from = WIDE && col < args.cols ? col : 0u;
  device const float* p[8];
  float acc[8][4];
  UNROLL
  for (uint i = 0; i < TILE; i++) {
    p[i] = q + ulong(first + min(i, n - 1u)) * args.q_stride + head * args.q_width;
    UNROLL
    for (uint c = 0; c < 4u; c++) acc[i][c] = 0.0f;
  }
  uint row = 0u;
  const uint whole = WIDE ? args.nope : 0u;
  for (; row + ROWS_AHEAD <= whole; row += ROWS_AHEAD) {
    RawFour v[ROWS_AHEAD];
    UNROLL
    for (uint k = 0; k < ROWS_AHEAD; k++) v[k] = load_weights(m, w, scales, head * args.head_rows + row + k, from);
    simdgroup_barrier(mem_flags::mem_none); // compilers must not move the loads
    UNROLL
    for (uint k = 0; k < ROWS_AHEAD; k++) {
      UNROLL
      for (uint c = 0; c < 4u; c++) {
        const float y = weight_of(FORMAT, v[k], from, c);
        UNROLL
        for (uint i = 0; i < TILE; i++) acc[i][c] = fma(p[i][row + k], y, acc[i][c]);
      }
    }
  }
  for (; row < args.nope; row++) {
    UNROLL
    for (uint c = 0; c < 4u; c++) {
      const float x = col + c < args.cols ? weight_at(m, w, scales, head * args.head_rows + row, col + c) : 0.0f;
      UNROLL
      for (uint i = 0; i < TILE; i++) acc[i][c] = fma(p[i][row], x, acc[i][c]);
    }
  }
  UNROLL
  for (uint i = 0; i < TILE; i++) {
    UNROLL
    for (uint c = 0; c < 4u; c++) {
      if (i < n && col + c < width) {
        float y = acc[i][c];
        if (col + c >= args.cols) y = q_rope[ulong(first + i) * args.rope_stride + head * args.rope + col + c - args.cols];
        query[(ulong(first + i) * args.heads + head) * width + col + c] = y;
      }
    }
  }
  next_may_start();
}

#define TILE_BYTES 12288u // of kv_b in threadgroup memory
#define TILE_COLS 128u
#define TILE_SCALES 9u     // of a row in its columns, at most

static inline uint tile_row_bytes() {
  switch (FORMAT) {
    case FORMAT_F32:
      return 512u;
    case FORMAT_BF16:
    case FORMAT_F16:
      return 256u;
    case FORMAT_INT8_ROW:
    case FORMAT_FP8:
      return 128u;
    case FORMAT_INT3_G64:
      return 48u;
    case FORMAT_INT2_ROW:
      return 32u;
    default:
      return 64u;
  }
}

// Two neighbouring weights of a tile's row without their scale; col is even.
static inline float2 two_codes(threadgroup const uchar* r, uint col) {
  switch (FORMAT) {
    case FORMAT_INT8_ROW: {
      const uint v = uint(*(threadgroup const ushort*)(r + col)) ^ 0x8080u;
      return float2(small(v & 255u, 128.0f), small(v >> 8u, 128.0f));
    }
    case FORMAT_INT4_ROW:
    case FORMAT_INT4_GROUPED: {
      const uint v = r[col / 2u];
      return float2(small(v & 15u, 8.0f), small(v >> 4u, 8.0f));
    }
    case FORMAT_INT2_ROW: {
      const uint v = uint(r[col / 4u]) >> (col % 4u * 2u);
      return float2(small(v & 3u, 2.0f), small((v >> 2u) & 3u, 2.0f));
    }
    case FORMAT_INT3_G64: {
      threadgroup const uchar* g = r + col / 64u * 24u;
      const uint v = uint(g[col % 64u / 4u]) >> (col % 4u * 2u);
      const uint u = uint(g[16u + col % 64u / 8u]) >> (col % 8u);
      return float2(small((v & 3u) | ((u & 1u) << 2u), 4.0f), small(((v >> 2u) & 3u) | ((u & 2u) << 1u), 4.0f));
    }
    case FORMAT_FP8: {
      const uint v = *(threadgroup const ushort*)(r + col);
      return float2(widen_fp8(v & 255u), widen_fp8(v >> 8u));
    }
    case FORMAT_BF16:
    case FORMAT_F16: {
      const uint v = *(threadgroup const uint*)(r + 2u * col);
      if (FORMAT == FORMAT_BF16) return float2(widen_bf16(v & 0xFFFFu), widen_bf16(v >> 16u));
      return float2(widen_f16(v & 0xFFFFu), widen_f16(v >> 16u));
    }
    default:
      return *(threadgroup const float2*)(r + 4u * col);
  }
}

// The same for one token (z): 128 columns (x) of a head (y), two a thread of 64, by
// tiles of rows in threadgroup memory. Behind the columns are those of the rotated part.
kernel void qabs_one(device const uchar* w [[buffer(0)]],
                     device const float* scales [[buffer(1)]],
                     device const float* q [[buffer(2)]],
                     device const float* q_rope [[buffer(3)]],
                     device float* query [[buffer(4)]],
                     constant QAbsArgs& args [[buffer(5)]],
                     threadgroup uchar* tile [[threadgroup(0)]],
                     threadgroup float* factors [[threadgroup(1)]],
                     uint3 tg [[threadgroup_position_in_grid]],
                     uint tid [[thread_index_in_threadgroup]]) {
  const uint head = tg.y;
  const uint col0 = tg.x * TILE_COLS;
  const uint bytes = tile_row_bytes();
  const uint most = min(TILE_BYTES / bytes, 192u); // rows of a tile
  const uint vectors = bytes / 8u;
  const uint inside = min(max(args.cols, col0) - col0, TILE_COLS); // columns
  const uint here = FORMAT == FORMAT_INT3_G64 ? (inside + 63u) / 64u * 3u : inside * vectors / TILE_COLS; // vectors of a row
  const bool one_scale = FORMAT == FORMAT_INT8_ROW || FORMAT == FORMAT_INT4_ROW || FORMAT == FORMAT_INT2_ROW;
  const bool has_scale = one_scale || FORMAT == FORMAT_INT4_GROUPED || FORMAT == FORMAT_INT3_G64 || FORMAT == FORMAT_FP8;
  uint size = args.cols; // columns of a scale
  if (FORMAT == FORMAT_INT4_GROUPED) size = args.group;
  if (FORMAT == FORMAT_INT3_G64) size = 64u;
  if (FORMAT == FORMAT_FP8) size = 128u;
  const uint first = has_scale && !one_scale ? col0 / size : 0u;
  const uint count = has_scale && here > 0u ? (one_scale ? 1u : (min(col0 + TILE_COLS, args.cols) - 1u) / size - first + 1u) : 0u;
  const uint col = 2u * tid;
  const uint at = one_scale || here == 0u ? 0u : (col0 + min(col, args.cols - 1u - col0)) / size - first; // the thread's scale
  device const float* x = q + ulong(tg.z) * args.q_stride + head * args.q_width;
  float a = 0.0f;
  float b = 0.0f;
  for (uint start = 0; start < args.nope; start += most) {
    const uint rows = min(most, args.nope - start);
    const uint base = head * args.head_rows + start;
    if (start > 0u) threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < rows * vectors; i += 64u * 12u) {
      uint2 v[12];
      UNROLL
      for (uint k = 0; k < 12u; k++) {
        const uint j = i + 64u * k;
        v[k] = uint2(0u);
        if (j < rows * vectors && j % vectors < here) {
          v[k] = *(device const uint2*)(w + ulong(base + j / vectors) * args.row_bytes + col0 / TILE_COLS * bytes + 8u * (j % vectors));
        }
      }
      simdgroup_barrier(mem_flags::mem_none);
      UNROLL
      for (uint k = 0; k < 12u; k++) {
        if (i + 64u * k < rows * vectors) *(threadgroup uint2*)(tile + 8u * (i + 64u * k)) = v[k];
      }
    }
    for (uint i = tid; i < rows * count; i += 64u) {
      const uint row = base + i / count;
      factors[192u + i] = scales[ulong(FORMAT == FORMAT_FP8 ? row / 128u : row) * args.scale_cols + first + i % count];
    }
    inputs_ready();
    for (uint i = tid; i < rows; i += 64u) factors[i] = x[start + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (here > 0u) {
      threadgroup const float* s = factors + 192u + at;
      threadgroup const uchar* r = tile;
      _Pragma("clang loop unroll_count(8)")
      for (uint row = 0; row < rows; row++) {
        float2 y = two_codes(r, col);
        if (has_scale) y = y * s[row * count];
        a = fma(factors[row], y.x, a);
        b = fma(factors[row], y.y, b);
        r += bytes;
      }
    }
  }
  inputs_ready();
  const uint width = args.cols + args.rope;
  device float* out = query + (ulong(tg.z) * args.heads + head) * width;
  device const float* rotated = q_rope + ulong(tg.z) * args.rope_stride + head * args.rope;
  UNROLL
  for (uint k = 0; k < 2u; k++) {
    const uint c = col0 + col + k;
    if (c < args.cols) out[c] = k == 0u ? a : b;
    if (c >= args.cols && c < width) out[c] = rotated[c - args.cols];
  }
  next_may_start();
}

struct AttendArgs {
  uint heads;
  uint width;        // of a row of the cache and of a query
  uint cols;         // of a latent
  uint position;     // of the first token
  uint topk;         // of the selection; 0: none
  uint score_stride;
  uint chunks;       // that share the work of a token
  uint span;         // positions of a threadgroup in score, a multiple of 32
  float scale;
};

// How many positions a token sees, and whether they are the selected ones.
static inline uint seen(constant AttendArgs& args, uint token) {
  const uint n = args.position + token + 1u;
  return SELECTS && n > args.topk ? args.topk : n;
}

static inline bool selected(constant AttendArgs& args, uint token) {
  return SELECTS && args.position + token + 1u > args.topk;
}

// Lanes that are d apart halve what they hold: n numbers are left to each. A macro,
// since compilers unroll the loops of functions before they know n.
#define HALVE(acc, more, n, d)                                      \
  UNROLL                                                            \
  for (uint i = 0; i < n; i++) {                                    \
    const float kept = (lane & d) != 0u ? more[i] : acc[i];         \
    const float other = (lane & d) != 0u ? acc[i] : more[i];        \
    acc[i] = kept + simd_shuffle_xor(other, ushort(d));             \
  }

// Four neighbouring columns of a row; anything beyond its end.
static inline float4 four_of(device const float* row, uint col, uint cols) {
  if (WIDE) return *(device const float4*)(row + (col < cols ? col : 0u));
  float4 v = float4(0.0f);
  UNROLL
  for (uint k = 0; k < 4u; k++) {
    if (col + k < cols) v[k] = row[col + k];
  }
  return v;
}

// args.span positions (x) of eight heads for each of eight simdgroups (y) of a token
// (z), 2 * TILE at a time, of which the halves of a simdgroup take every other one. Its
// lanes hold a stripe each of all sums. Queries and latents come by parts of 64 columns
// through threadgroup memory; the next part is loaded while one is in use.
kernel void score(device const float* query [[buffer(0)]],
                  device const float* cache [[buffer(1)]],
                  device const uint* select [[buffer(2)]],
                  device float* scores [[buffer(3)]],
                  constant AttendArgs& args [[buffer(4)]],
                  threadgroup float* rows [[threadgroup(0)]],
                  threadgroup float* queries [[threadgroup(1)]],
                  uint3 tg [[threadgroup_position_in_grid]],
                  uint tid [[thread_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint sg [[simdgroup_index_in_threadgroup]]) {
  const uint n = seen(args, tg.z);
  const uint head = tg.y * 8u * HEADS; // of the threadgroup
  const uint h = lane % 16u;
  const uint end = min(n, (tg.x + 1u) * args.span);
  const uint col = 4u * (tid % 16u); // that the thread loads
  const uint line = tid / 16u;       // and its first row, every 16th
  device const float* q[4];
  UNROLL
  for (uint j = 0; j < 4u; j++) {
    q[j] = query + (ulong(tg.z) * args.heads + min(head + line + 16u * j, args.heads - 1u)) * args.width;
  }
  threadgroup const float* mine_q = queries + sg * HEADS * PART + h;
  threadgroup const float* mine_v = rows + lane / 16u * PADDED + h;
  for (uint start = tg.x * args.span; start < end; start += 2u * TILE) {
    // Of four heads each: head * TILE + position. One array of both is too large for
    // some compilers to keep it in registers.
    float acc[64];
    float more[64];
    UNROLL
    for (uint i = 0; i < 4u * TILE; i++) {
      acc[i] = 0.0f;
      more[i] = 0.0f;
    }
    device const float* row[2];
    UNROLL
    for (uint j = 0; j < 2u; j++) {
      uint t = min(start + min(line + 16u * j, 2u * TILE - 1u), n - 1u);
      if (selected(args, tg.z)) t = select[ulong(tg.z) * args.topk + t];
      row[j] = cache + ulong(t) * args.width;
    }
    float4 x[4];
    float4 v[2];
    UNROLL
    for (uint j = 0; j < 4u; j++) x[j] = four_of(q[j], col, args.width);
    UNROLL
    for (uint j = 0; j < 2u; j++) v[j] = four_of(row[j], col, args.width);
    for (uint part = 0; part < args.width; part += PART) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      UNROLL
      for (uint j = 0; j < 2u; j++) {
        if (line + 16u * j < 2u * TILE) *(threadgroup float4*)(rows + (line + 16u * j) * PADDED + col) = v[j];
      }
      UNROLL
      for (uint j = 0; j < 4u; j++) *(threadgroup float4*)(queries + (line + 16u * j) * PART + col) = x[j];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      UNROLL
      for (uint j = 0; j < 4u; j++) x[j] = four_of(q[j], part + PART + col, args.width);
      UNROLL
      for (uint j = 0; j < 2u; j++) {
        if (line + 16u * j < 2u * TILE) v[j] = four_of(row[j], part + PART + col, args.width);
      }
      for (uint r = 0; r < PART; r += 16u) {
        if (part + r + h < args.width && head + sg * HEADS < args.heads) {
          float a[HEADS];
          UNROLL
          for (uint j = 0; j < HEADS; j++) a[j] = mine_q[j * PART + r];
          UNROLL
          for (uint k = 0; k < TILE; k++) {
            const float l = mine_v[2u * k * PADDED + r];
            UNROLL
            for (uint j = 0; j < 4u; j++) {
              acc[TILE * j + k] = fma(a[j], l, acc[TILE * j + k]);
              more[TILE * j + k] = fma(a[j + 4u], l, more[TILE * j + k]);
            }
          }
        }
      }
    }
    // The halving tree.
    HALVE(acc, more, 4u * TILE, 8u)
    HALVE(acc, (acc + 2u * TILE), 2u * TILE, 4u)
    HALVE(acc, (acc + TILE), TILE, 2u)
    HALVE(acc, (acc + TILE / 2u), TILE / 2u, 1u)
    // Left are TILE / 2 positions of a head.
    const uint mine = head + sg * HEADS + h / 2u;
    const uint from = start + TILE * (h % 2u) + lane / 16u;
    device float* out = scores + (ulong(tg.z) * args.heads + min(mine, args.heads - 1u)) * args.score_stride + from;
    UNROLL
    for (uint i = 0; i < TILE / 2u; i++) {
      if (mine < args.heads && from + 2u * i < n) out[2u * i] = acc[i] * args.scale;
    }
  }
  next_may_start();
}

// One threadgroup of 256 threads a token and head.
kernel void softmax(device float* scores [[buffer(0)]],
                    constant AttendArgs& args [[buffer(1)]],
                    threadgroup float* shared [[threadgroup(0)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint tid [[thread_index_in_threadgroup]],
                    uint threads [[threads_per_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint sg [[simdgroup_index_in_threadgroup]],
                    uint nsg [[simdgroups_per_threadgroup]]) {
  device float* p = scores + ulong(row) * args.score_stride;
  const uint n = seen(args, row / args.heads);
  const float lowest = as_type<float>(0xFF800000u);
  float top = lowest;
  for (uint start = tid; start < n; start += 16u * threads) {
    float s[16];
    UNROLL
    for (uint k = 0; k < 16u; k++) s[k] = start + k * threads < n ? p[start + k * threads] : lowest;
    UNROLL
    for (uint k = 0; k < 16u; k++) {
      if (s[k] > top) top = s[k];
    }
  }
  for (ushort o = 16; o > 0; o = o / 2) {
    const float s = simd_shuffle_xor(top, o);
    if (s > top) top = s;
  }
  if (lane == 0u) shared[sg] = top;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < nsg; i++) {
    const float s = shared[i];
    if (s > top) top = s;
  }
  // Stripe i mod 16 of the sum takes the elements in order, from a tile of them
  // that all threads compute.
  threadgroup float* part = shared + 32;
  float acc = 0.0f;
  for (uint start = 0; start < n; start += 4096u) {
    const uint end = min(4096u, n - start);
    float s[16];
    UNROLL
    for (uint k = 0; k < 16u; k++) s[k] = tid + k * 256u < end ? p[start + tid + k * 256u] : lowest;
    UNROLL
    for (uint k = 0; k < 16u; k++) {
      const uint i = tid + k * 256u;
      const float e = exp_fixed(s[k] - top);
      if (i < end) {
        part[i] = e;
        p[start + i] = e;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint i = tid;
    const uint mine = tid < 16u ? end : 0u;
    for (; i + 240u < mine; i += 256u) {
      float e[16];
      UNROLL
      for (uint k = 0; k < 16u; k++) e[k] = part[i + 16u * k];
      UNROLL
      for (uint k = 0; k < 16u; k++) acc = acc + e[k];
    }
    for (; i < mine; i += 16u) acc = acc + part[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (sg == 0u) {
    acc = tree16(acc);
    if (lane == 0u) shared[nsg] = acc;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float z = shared[nsg];
  for (uint start = tid; start < n; start += 16u * threads) {
    float e[16];
    UNROLL
    for (uint k = 0; k < 16u; k++) e[k] = start + k * threads < n ? p[start + k * threads] : 0.0f;
    UNROLL
    for (uint k = 0; k < 16u; k++) {
      if (start + k * threads < n) p[start + k * threads] = e[k] / z;
    }
  }
  next_may_start();
}

// The first place of the selection whose position is not below t.
static inline uint lower_bound(device const uint* list, uint n, uint t) {
  uint lo = 0u;
  uint hi = n;
  while (lo < hi) {
    const uint mid = (lo + hi) / 2u;
    if (list[mid] < t) {
      lo = mid + 1u;
    } else {
      hi = mid;
    }
  }
  return lo;
}

// A position joins the sums of eight heads.
static inline void add_position(threadgroup const float* p, float4 v, thread float4* acc) {
  const float4 low = *(threadgroup const float4*)p;
  const float4 high = *(threadgroup const float4*)(p + 4);
  UNROLL
  for (uint k = 0; k < HEADS; k++) {
    const float x = k < 4u ? low[k % 4u] : high[k % 4u];
    acc[k].x = fma(x, v.x, acc[k].x);
    acc[k].y = fma(x, v.y, acc[k].y);
    acc[k].z = fma(x, v.z, acc[k].z);
    acc[k].w = fma(x, v.w, acc[k].w);
  }
}

// A simdgroup sums 128 columns (x) of eight heads (y) of a token and a chunk (z);
// with args.chunks = 1 all chunks of the token.
kernel void latent(device const float* scores [[buffer(0)]],
                   device const float* cache [[buffer(1)]],
                   device const uint* select [[buffer(2)]],
                   device float* latents [[buffer(3)]],
                   constant AttendArgs& args [[buffer(4)]],
                   threadgroup float* shared [[threadgroup(0)]],
                   uint3 tg [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint sg [[simdgroup_index_in_threadgroup]],
                   uint nsg [[simdgroups_per_threadgroup]]) {
  const uint token = tg.z / args.chunks;
  const uint part = tg.z % args.chunks;
  const bool chosen = selected(args, token);
  device const uint* list = select + ulong(token) * (chosen ? args.topk : 0u);
  const uint n = seen(args, token);
  const uint head = (tg.y * nsg + sg) * HEADS;
  const uint col = tg.x * 128u + 4u * lane;
  device const uchar* from_col = (device const uchar*)(cache + (col < args.cols ? col : 0u));
  const uint row_bytes = 4u * args.width;
  const uint left = col < args.cols ? args.cols - col : 0u; // columns from there on
  threadgroup float* p = shared + sg * (STAGE * HEADS); // by position and head
  device const float* s[HEADS];
  float4 sum[HEADS];
  UNROLL
  for (uint k = 0; k < HEADS; k++) {
    s[k] = scores + (ulong(token) * args.heads + min(head + k, args.heads - 1u)) * args.score_stride;
    sum[k] = float4(0.0f);
  }
  const uint most = args.position + token + 1u; // beyond the last position
  uint last = args.chunks > 1u ? part + 1u : (most + CHUNK - 1u) / CHUNK;
  if (head >= args.heads) last = 0u;
  for (uint chunk = part; chunk < last; chunk++) {
    uint from = min(n, chunk * CHUNK);
    uint to = min(n, (chunk + 1u) * CHUNK);
    if (chosen) {
      from = lower_bound(list, n, chunk * CHUNK);
      to = lower_bound(list, n, (chunk + 1u) * CHUNK);
    }
    float4 acc[HEADS];
    UNROLL
    for (uint k = 0; k < HEADS; k++) acc[k] = float4(0.0f);
    // The probabilities of the next stage and the latents of the next positions
    // are loaded while others are in use.
    float e[HEADS];
    UNROLL
    for (uint k = 0; k < HEADS; k++) e[k] = from + lane < to ? s[k][from + lane] : 0.0f;
    float4 v[AHEAD];
    UNROLL
    for (uint i = 0; i < AHEAD; i++) {
      const uint j = min(from + i, n - 1u);
      v[i] = four_of((device const float*)(from_col + ulong(chosen ? list[j] : j) * row_bytes), 0u, left);
    }
    for (uint start = from; start < to; start += STAGE) {
      simdgroup_barrier(mem_flags::mem_threadgroup);
      UNROLL
      for (uint k = 0; k < HEADS; k++) p[lane * HEADS + k] = e[k];
      simdgroup_barrier(mem_flags::mem_threadgroup);
      const uint ahead = start + STAGE + lane;
      UNROLL
      for (uint k = 0; k < HEADS; k++) e[k] = ahead < to ? s[k][ahead] : 0.0f;
      const uint count = min(STAGE, to - start);
      if (count == STAGE) {
        UNROLL
        for (uint j = 0; j < STAGE; j += AHEAD) {
          float4 next[AHEAD];
          UNROLL
          for (uint i = 0; i < AHEAD; i++) {
            const uint t = min(start + j + AHEAD + i, n - 1u);
            next[i] = four_of((device const float*)(from_col + ulong(chosen ? list[t] : t) * row_bytes), 0u, left);
          }
          simdgroup_barrier(mem_flags::mem_none); // compilers must not move the loads
          UNROLL
          for (uint i = 0; i < AHEAD; i++) add_position(p + (j + i) * HEADS, v[i], acc);
          UNROLL
          for (uint i = 0; i < AHEAD; i++) v[i] = next[i];
        }
      } else {
        for (uint j = 0; j < count; j++) {
          const uint t = start + j;
          add_position(p + j * HEADS, four_of((device const float*)(from_col + ulong(chosen ? list[t] : t) * row_bytes), 0u, left), acc);
        }
      }
    }
    UNROLL
    for (uint k = 0; k < HEADS; k++) sum[k] = sum[k] + acc[k];
  }
  UNROLL
  for (uint k = 0; k < HEADS; k++) {
    if (head + k < args.heads) {
      device float* y = latents + (ulong(tg.z) * args.heads + head + k) * args.cols;
      UNROLL
      for (uint i = 0; i < 4u; i++) {
        if (col + i < args.cols) y[col + i] = sum[k][i];
      }
    }
  }
  next_may_start();
}

// One thread a column (x) of a head (y) of a token (z): the chunks in order.
kernel void latent_sum(device const float* parts [[buffer(0)]],
                       device float* latents [[buffer(1)]],
                       constant AttendArgs& args [[buffer(2)]],
                       uint3 at [[thread_position_in_grid]]) {
  if (at.x < args.cols) {
    float sum = 0.0f;
    for (uint c = 0; c < args.chunks; c++) {
      sum = sum + parts[((ulong(at.z) * args.chunks + c) * args.heads + at.y) * args.cols + at.x];
    }
    latents[(ulong(at.z) * args.heads + at.y) * args.cols + at.x] = sum;
  }
}
