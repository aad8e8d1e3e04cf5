// Mixture of experts: routing and the chosen experts, docs/arithmetic.md section 6.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "numbers.h"
#include "codes.h"
#include "ready.h"
#include "dot.h"
#include "order.h"

#define ANY_FORMAT 255u

constant uint FORMAT [[function_constant(0)]]; // of all experts, or ANY_FORMAT
constant bool CUT [[function_constant(1)]];
constant uint TILE [[function_constant(2)]];
constant bool DOTS [[function_constant(3)]];

struct RouteArgs {
  uint experts;
  uint groups;
  uint top_groups;
  uint topk;
  uint normalize;
  uint x_stride;
  uint w_stride;
  float scale;
};

// How many of n keys come before the i-th in descending order; they end with
// zeros up to a multiple of four.
static inline uint rank(threadgroup const uint* keys, uint n, uint i) {
  const uint key = keys[i];
  uint r = 0u;
  for (uint j = 0; j < n; j += 4u) {
    const uint4 v = *(threadgroup const uint4*)(keys + j);
    UNROLL
    for (uint k = 0; k < 4u; k++) {
      if (j + k < n && (v[k] > key || (v[k] == key && j + k < i))) r += 1u;
    }
  }
  return r;
}

// One threadgroup a token. shared holds the sigmoids of the experts; their
// choices, then what of them is taken; the keys of these; then for each group its
// key and whether it competes.
kernel void route(device const float* x [[buffer(0)]],
                  device const float* bias [[buffer(1)]],
                  device uint* ids [[buffer(2)]],
                  device float* weights [[buffer(3)]],
                  constant RouteArgs& args [[buffer(4)]],
                  threadgroup float* shared [[threadgroup(0)]],
                  uint token [[threadgroup_position_in_grid]],
                  uint tid [[thread_index_in_threadgroup]],
                  uint threads [[threads_per_threadgroup]]) {
  const uint n = args.experts;
  const uint padded = (n + 3u) / 4u * 4u;
  threadgroup float* sigmoids = shared;
  threadgroup float* choice = shared + padded;
  threadgroup uint* keys = (threadgroup uint*)(shared + 2u * padded);
  threadgroup uint* group_key = (threadgroup uint*)(shared + 3u * padded);
  threadgroup uint* competes = group_key + (args.groups + 3u) / 4u * 4u;
  const float lowest = as_type<float>(0xFF800000u);
  for (uint i = tid; i < padded; i += threads) {
    const float s = i < n ? sigmoid_fixed(x[ulong(token) * args.x_stride + i]) : 0.0f;
    const float c = i < n ? s + bias[i] : lowest;
    sigmoids[i] = s;
    choice[i] = c;
    keys[i] = i < n ? order_key(c) : 0u;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (args.groups > 1u) {
    const uint size = n / args.groups;
    for (uint g = tid; g < (args.groups + 3u) / 4u * 4u; g += threads) {
      float first = lowest;
      float second = lowest;
      for (uint i = 0; i < (g < args.groups ? size : 0u); i++) {
        const float c = choice[g * size + i];
        if (c > first) {
          second = first;
          first = c;
        } else if (c > second) {
          second = c;
        }
      }
      group_key[g] = g < args.groups ? order_key(size > 1u ? first + second : first) : 0u;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint g = tid; g < args.groups; g += threads) competes[g] = rank(group_key, args.groups, g) < args.top_groups ? 1u : 0u;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < n; i += threads) {
      if (i / size < args.groups && competes[i / size] == 0u) keys[i] = order_key(lowest);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  threadgroup uint* taken = (threadgroup uint*)choice; // by rank
  for (uint i = tid; i < n; i += threads) {
    const uint r = rank(keys, n, i);
    if (r < args.topk) taken[r] = i;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint count = min(args.topk, n);
  for (uint k = tid; k < count; k += threads) {
    uint place = 0u;
    for (uint j = 0; j < count; j++) place += taken[j] < taken[k] ? 1u : 0u;
    ids[ulong(token) * args.topk + place] = taken[k];
    keys[place] = taken[k];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint k = 0; k < count; k++) sum = sum + sigmoids[keys[k]];
  const float norm = sum + 1e-20f;
  for (uint k = tid; k < count; k += threads) {
    float w = sigmoids[keys[k]];
    if (args.normalize != 0u) w = w / norm;
    weights[ulong(token) * args.w_stride + k] = w * args.scale;
  }
}

struct GroupArgs {
  uint pairs; // of a token and one of its experts
  uint topk;
  uint experts;
  uint tile;
  uint tiles; // at most
};

struct Tile {
  uint expert;
  uint first; // pair, in the order by expert
  uint count;
};

// One threadgroup: the pairs in the order of their experts. token[i] is the
// token of the i-th pair of that order, place[p] where the pair p went.
kernel void group_pairs(device const uint* ids [[buffer(0)]],
                        device uint* token [[buffer(1)]],
                        device uint* place [[buffer(2)]],
                        device Tile* tiles [[buffer(3)]],
                        constant GroupArgs& args [[buffer(4)]],
                        threadgroup uint* shared [[threadgroup(0)]],
                        uint tid [[thread_index_in_threadgroup]],
                        uint threads [[threads_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint* first = shared;
  threadgroup uint* first_tile = shared + args.experts + 1u;
  // The few pairs of one token find their places alone.
  const bool one = args.pairs == args.topk && args.tiles == args.pairs;
  for (uint p = tid; p < (one ? args.pairs : 0u); p += threads) {
    uint at = 0u;
    for (uint j = 0; j < args.pairs; j++) at += ids[j] < ids[p] || (ids[j] == ids[p] && j < p) ? 1u : 0u;
    token[at] = 0u;
    place[p] = at;
    tiles[at].expert = ids[p];
    tiles[at].first = at;
    tiles[at].count = 1u;
  }
  const uint experts = one ? 0u : args.experts;
  for (uint e = tid; e < experts; e += threads) {
    uint count = 0u;
    for (uint p = 0; p < args.pairs; p++) {
      if (ids[p] == e) count += 1u;
    }
    first[e] = count;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < 32u && !one) {
    uint pair = 0u;
    uint t = 0u;
    for (uint e = 0; e < args.experts; e += 32u) {
      const uint count = e + lane < args.experts ? first[e + lane] : 0u;
      uint pairs = count;
      uint part = (count + args.tile - 1u) / args.tile;
      const uint mine = part;
      for (ushort o = 1; o < 32; o = o * 2) {
        const uint a = simd_shuffle_up(pairs, o);
        const uint b = simd_shuffle_up(part, o);
        if (lane >= o) {
          pairs += a;
          part += b;
        }
      }
      if (e + lane < args.experts) {
        first[e + lane] = pair + pairs - count;
        first_tile[e + lane] = t + part - mine;
      }
      pair += simd_shuffle(pairs, ushort(31));
      t += simd_shuffle(part, ushort(31));
    }
    if (lane == 0u) {
      first[args.experts] = pair;
      first_tile[args.experts] = t;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint e = tid; e < experts; e += threads) {
    uint at = first[e];
    const uint end = first[e + 1u];
    if (at < end) {
      for (uint p = 0; p < args.pairs; p++) {
        if (ids[p] == e) {
          token[at] = p / args.topk;
          place[p] = at;
          at += 1u;
        }
      }
    }
    uint t = first_tile[e];
    for (uint i = first[e]; i < end; i += args.tile) {
      tiles[t].expert = e;
      tiles[t].first = i;
      tiles[t].count = min(args.tile, end - i);
      t += 1u;
    }
  }
  for (uint t = (one ? args.tiles : first_tile[args.experts]) + tid; t < args.tiles; t += threads) tiles[t].count = 0u;
}

// One matrix of an expert; a block may hold experts of several formats.
struct Expert {
  device const uchar* w;
  device const float* scales;
  uint format;
  uint row_bytes;
  uint scale_cols;
  uint group;
  uint wide;
  uint unused;
};

struct ExpertArgs {
  uint matrix; // 0 gate, 1 up, 2 down
  uint rows;
  uint cols;
  uint blocks;
  uint x_stride;
  uint y_stride;
  uint by_pair; // vectors are those of the pairs, not of the tokens
  uint narrow;  // float vectors are not aligned for vector loads
};

// Four rows a simdgroup (x) of the expert of a tile (y), or eight where its
// weights are floats. The rounded vectors come in every layout that some expert
// needs.
kernel void expert_matmul(device const Expert* experts [[buffer(0)]],
                          device const Tile* tiles [[buffer(1)]],
                          device const uint* token [[buffer(2)]],
                          device const float* x [[buffer(3)]],
                          device const uint* q0 [[buffer(4)]],
                          device const float* sx0 [[buffer(5)]],
                          device const uint* q1 [[buffer(6)]],
                          device const float* sx1 [[buffer(7)]],
                          device const uint* q2 [[buffer(8)]],
                          device const float* sx2 [[buffer(9)]],
                          device float* y [[buffer(10)]],
                          constant ExpertArgs& args [[buffer(11)]],
                          uint2 tg [[threadgroup_position_in_grid]],
                          uint lane [[thread_index_in_simdgroup]],
                          uint sg [[simdgroup_index_in_threadgroup]],
                          uint nsg [[simdgroups_per_threadgroup]]) {
  const uint first = tiles[tg.y].first;
  const uint n = tiles[tg.y].count;
  if (n > 0u) {
    const uint e = tiles[tg.y].expert * 3u + args.matrix;
    device const uchar* w = experts[e].w;
    device const float* scales = experts[e].scales;
    const bool any = FORMAT == ANY_FORMAT;
    const uint format = any ? experts[e].format : FORMAT;
    const uint group = experts[e].group;
    const Codes m = {format, args.cols, experts[e].row_bytes, experts[e].scale_cols, group};
    const bool rounded = format != FORMAT_FP8 && format != FORMAT_BF16 && format != FORMAT_F16 && format != FORMAT_F32;
    const uint lanes = rounded ? 8u : 4u; // of a row
    const uint row = (tg.x * nsg + sg) * (32u / lanes) + lane / lanes;
    const bool live = row < args.rows;
    const uint from = live ? row : 0u;
    const bool cut = any ? format == FORMAT_INT4_GROUPED && group % 64u != 0u : CUT;
    const Operands o = {m, args.blocks, any ? (rounded || args.narrow == 0u ? experts[e].wide : 0u) : 2u, cut, DOTS, TILE,
                        quads_ahead(FORMAT, TILE), units_ahead(FORMAT, TILE)};
    uint at[8];
    ulong start[8];
    float acc[8];
    UNROLL
    for (uint i = 0; i < TILE; i++) {
      const uint pair = first + min(i, n - 1u);
      at[i] = args.by_pair != 0u ? pair : token[pair];
      start[i] = ulong(at[i]) * args.x_stride;
    }
    if (format == FORMAT_INT8_ROW) {
      int_row(o, w, scales, from, q0, sx0, at, lane % 8u, acc);
    } else if (format == FORMAT_INT4_ROW || format == FORMAT_INT4_GROUPED) {
      int_row(o, w, scales, from, q1, sx1, at, lane % 8u, acc);
    } else if (format == FORMAT_INT2_ROW || format == FORMAT_INT3_G64) {
      int_row(o, w, scales, from, q2, sx2, at, lane % 8u, acc);
    } else if ((tg.x * nsg + sg) * 8u < args.rows) {
      float_row(o, w, scales, from, x, start, lane % 4u, acc);
    }
    UNROLL
    for (uint i = 0; i < TILE; i++) {
      if (live && i < n && lane % lanes == 0u) y[ulong(first + i) * args.y_stride + row] = acc[i];
    }
  }
  next_may_start();
}

struct SumArgs {
  uint cols;
  uint topk;
  uint w_stride;
  uint y_stride;
};

// One thread a column (x) of a token (y): its experts in increasing order.
kernel void expert_sum(device const float* down [[buffer(0)]],
                       device const float* weights [[buffer(1)]],
                       device const uint* place [[buffer(2)]],
                       device float* y [[buffer(3)]],
                       constant SumArgs& args [[buffer(4)]],
                       uint2 at [[thread_position_in_grid]]) {
  if (at.x < args.cols) {
    float acc = 0.0f;
    for (uint k = 0; k < args.topk; k++) {
      const ulong row = place[at.y * args.topk + k];
      acc = fma(weights[ulong(at.y) * args.w_stride + k], down[row * args.cols + at.x], acc);
    }
    y[ulong(at.y) * args.y_stride + at.x] = acc;
  }
}
