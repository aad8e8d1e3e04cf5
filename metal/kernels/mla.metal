// Absorbed multi-head latent attention, docs/arithmetic.md section 4. All rows of
// a launch belong to some tokens of the batch; token z sees the positions up to
// its own, or those that the indexer selected.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "numbers.h"
#include "codes.h"

constant uint FORMAT [[function_constant(0)]]; // of kv_b; only qabs reads it

#define CHUNK 256u // positions that are summed before they join the others
#define UNROLL _Pragma("clang loop unroll(full)")
#define HEADS 8u   // that share a latent

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

// One thread a column (x) of a head (y) for eight tokens (z): the query in the
// space of the latents, with its rotated part behind.
kernel void qabs(device const uchar* w [[buffer(0)]],
                 device const float* scales [[buffer(1)]],
                 device const float* q [[buffer(2)]],
                 device const float* q_rope [[buffer(3)]],
                 device float* query [[buffer(4)]],
                 constant QAbsArgs& args [[buffer(5)]],
                 uint3 at [[thread_position_in_grid]]) {
  const uint width = args.cols + args.rope;
  const uint first = at.z * 8u;
  const uint n = min(8u, args.count - first);
  const uint head = at.y;
  float acc[8];
  UNROLL
  for (uint i = 0; i < 8u; i++) acc[i] = 0.0f;
  if (at.x < args.cols) {
    const Codes m = {FORMAT, args.cols, args.row_bytes, args.scale_cols, args.group};
    for (uint start = 0; start < args.nope; start += 8u) {
      float v[8]; // loaded ahead
      UNROLL
      for (uint k = 0; k < 8u; k++) {
        v[k] = start + k < args.nope ? weight_at(m, w, scales, head * args.head_rows + start + k, at.x) : 0.0f;
      }
      UNROLL
      for (uint i = 0; i < 8u; i++) {
        device const float* p = q + ulong(first + i) * args.q_stride + head * args.q_width + start;
        UNROLL
        for (uint k = 0; k < 8u; k++) {
          if (i < n && start + k < args.nope) acc[i] = fma(p[k], v[k], acc[i]);
        }
      }
    }
  } else if (at.x < width) {
    UNROLL
    for (uint i = 0; i < 8u; i++) {
      if (i < n) acc[i] = q_rope[ulong(first + i) * args.rope_stride + head * args.rope + at.x - args.cols];
    }
  }
  UNROLL
  for (uint i = 0; i < 8u; i++) {
    if (i < n && at.x < width) query[(ulong(first + i) * args.heads + head) * width + at.x] = acc[i];
  }
}

struct AttendArgs {
  uint heads;
  uint width;        // of a row of the cache and of a query
  uint cols;         // of a latent
  uint position;     // of the first token
  uint topk;         // of the selection; 0: none
  uint score_stride;
  uint chunks;       // that share the work of a token
  float scale;
};

// How many positions a token sees, and whether they are the selected ones.
static inline uint seen(constant AttendArgs& args, uint token) {
  const uint n = args.position + token + 1u;
  return args.topk != 0u && n > args.topk ? args.topk : n;
}

static inline bool selected(constant AttendArgs& args, uint token) {
  return args.topk != 0u && args.position + token + 1u > args.topk;
}

// 64 positions (x) of eight heads (y) of a token (z): four positions for each
// eight lanes, at a time, so that a query is loaded once for them.
kernel void score(device const float* query [[buffer(0)]],
                  device const float* cache [[buffer(1)]],
                  device const uint* select [[buffer(2)]],
                  device float* scores [[buffer(3)]],
                  constant AttendArgs& args [[buffer(4)]],
                  uint3 tg [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint sg [[simdgroup_index_in_threadgroup]]) {
  const uint n = seen(args, tg.z);
  const uint head = tg.y * HEADS;
  const uint heads = min(HEADS, args.heads - head);
  const uint h = lane % 8u;
  const uint rows = tg.z * args.heads + head;
  device const float* q = query + ulong(rows) * args.width;
  const uint first = tg.x * 64u + sg * 16u + lane / 8u;
  if (tg.x * 64u + sg * 16u < n) {
    ulong row[4];
    UNROLL
    for (uint k = 0; k < 4u; k++) {
      uint t = first + 4u * k < n ? first + 4u * k : 0u;
      if (selected(args, tg.z)) t = select[ulong(tg.z) * args.topk + t];
      row[k] = ulong(t) * args.width;
    }
    float even[8][4];
    float odd[8][4];
    UNROLL
    for (uint i = 0; i < HEADS; i++) {
      UNROLL
      for (uint k = 0; k < 4u; k++) {
        even[i][k] = 0.0f;
        odd[i][k] = 0.0f;
      }
    }
    const uint whole = args.width % 2u == 0u ? args.width : 0u; // rows that two floats may be loaded of
    for (uint i = 2u * h; i < whole; i += 16u) {
      float2 v[4];
      UNROLL
      for (uint k = 0; k < 4u; k++) v[k] = *(device const float2*)(cache + row[k] + i);
      UNROLL
      for (uint j = 0; j < HEADS; j++) {
        if (j < heads) {
          const float2 x = *(device const float2*)(q + j * args.width + i);
          UNROLL
          for (uint k = 0; k < 4u; k++) {
            even[j][k] = fma(x.x, v[k].x, even[j][k]);
            odd[j][k] = fma(x.y, v[k].y, odd[j][k]);
          }
        }
      }
    }
    for (uint i = whole + 2u * h; i < args.width; i += 16u) {
      UNROLL
      for (uint j = 0; j < HEADS; j++) {
        UNROLL
        for (uint k = 0; k < 4u; k++) {
          if (j < heads) even[j][k] = fma(q[j * args.width + i], cache[row[k] + i], even[j][k]);
          if (j < heads && i + 1u < args.width) odd[j][k] = fma(q[j * args.width + i + 1u], cache[row[k] + i + 1u], odd[j][k]);
        }
      }
    }
    UNROLL
    for (uint j = 0; j < HEADS; j++) {
      UNROLL
      for (uint k = 0; k < 4u; k++) {
        const float s = tree8(even[j][k], odd[j][k]) * args.scale;
        if (h == 0u && j < heads && first + 4u * k < n) scores[ulong(rows + j) * args.score_stride + first + 4u * k] = s;
      }
    }
  }
}

// One threadgroup a token and head.
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
  float top = as_type<float>(0xFF800000u);
  for (uint i = tid; i < n; i += threads) {
    const float s = p[i];
    if (s > top) top = s;
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
  threadgroup float* part = shared + 12;
  float acc = 0.0f;
  for (uint start = 0; start < n; start += 2048u) {
    const uint end = min(2048u, n - start);
    for (uint i = tid; i < end; i += threads) part[i] = exp_fixed(p[start + i] - top);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint mine = tid < 16u ? end : 0u;
    for (uint i = tid; i < mine; i += 16u) acc = acc + part[i];
    for (uint i = tid; i < end; i += threads) p[start + i] = part[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (sg == 0u) {
    acc = tree16(acc);
    if (lane == 0u) shared[nsg] = acc;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float z = shared[nsg];
  for (uint i = tid; i < n; i += threads) p[i] = p[i] / z;
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

// One thread a column (x) of eight heads (y) of a token and chunk (z); with
// args.chunks = 1 all chunks of the token.
kernel void latent(device const float* scores [[buffer(0)]],
                   device const float* cache [[buffer(1)]],
                   device const uint* select [[buffer(2)]],
                   device float* latents [[buffer(3)]],
                   constant AttendArgs& args [[buffer(4)]],
                   uint3 at [[thread_position_in_grid]]) {
  const uint token = at.z / args.chunks;
  const uint part = at.z % args.chunks;
  const bool chosen = selected(args, token);
  device const uint* list = select + ulong(token) * (chosen ? args.topk : 0u);
  const uint n = seen(args, token);
  uint from = 0u;
  uint to = n;
  if (args.chunks > 1u) {
    from = min(n, part * CHUNK);
    to = min(n, (part + 1u) * CHUNK);
    if (chosen) {
      from = lower_bound(list, n, part * CHUNK);
      to = lower_bound(list, n, (part + 1u) * CHUNK);
    }
  }
  const uint head = at.y * HEADS;
  const uint heads = min(HEADS, args.heads - head);
  device const float* p = scores + ulong(token * args.heads + head) * args.score_stride;
  float sum[8];
  float acc[8];
  UNROLL
  for (uint k = 0; k < HEADS; k++) {
    sum[k] = 0.0f;
    acc[k] = 0.0f;
  }
  if (at.x < args.cols) {
    uint chunk = part;
    uint j = from;
    while (j < to) {
      const uint t = chosen ? list[j] : j;
      const uint last = j + 3u < to ? (chosen ? list[j + 3u] : j + 3u) : 0xFFFFFFFFu;
      if (t / CHUNK != chunk) {
        chunk = t / CHUNK;
        UNROLL
        for (uint k = 0; k < HEADS; k++) {
          sum[k] = sum[k] + acc[k];
          acc[k] = 0.0f;
        }
      }
      if (j % 4u == 0u && last / CHUNK == chunk) { // four at a time
        float v[4];
        UNROLL
        for (uint i = 0; i < 4u; i++) v[i] = cache[ulong(chosen ? list[j + i] : j + i) * args.width + at.x];
        UNROLL
        for (uint k = 0; k < HEADS; k++) {
          if (k < heads) {
            const float4 x = *(device const float4*)(p + ulong(k) * args.score_stride + j);
            acc[k] = fma(x.x, v[0], acc[k]);
            acc[k] = fma(x.y, v[1], acc[k]);
            acc[k] = fma(x.z, v[2], acc[k]);
            acc[k] = fma(x.w, v[3], acc[k]);
          }
        }
        j += 4u;
      } else {
        const float v = cache[ulong(t) * args.width + at.x];
        UNROLL
        for (uint k = 0; k < HEADS; k++) {
          if (k < heads) acc[k] = fma(p[ulong(k) * args.score_stride + j], v, acc[k]);
        }
        j += 1u;
      }
    }
    UNROLL
    for (uint k = 0; k < HEADS; k++) {
      if (k < heads) latents[(ulong(at.z) * args.heads + head + k) * args.cols + at.x] = sum[k] + acc[k];
    }
  }
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
