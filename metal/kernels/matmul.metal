// Matrix times vectors, docs/arithmetic.md sections 2 and 3.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "numbers.h"
#include "codes.h"
#include "dot.h"

constant uint FORMAT [[function_constant(0)]];
constant uint WIDE [[function_constant(1)]];
constant bool CUT [[function_constant(2)]];
constant uint TILE [[function_constant(3)]];
constant bool DOTS [[function_constant(4)]];

// Z is the third dimension of the grid: heads, or 1.
struct MatMulArgs {
  uint first;      // row of the matrix
  uint rows;       // that are computed
  uint row_step;   // between heads
  uint cols;
  uint row_bytes;
  uint scale_cols;
  uint group;
  uint blocks;
  uint count;      // vectors
  uint x_stride;   // between vectors, in elements or in rows of the rounded ones
  uint x_step;     // between heads
  uint y_stride;
  uint y_step;
};

static inline Operands operands(constant MatMulArgs& args) {
  const Codes m = {FORMAT, args.cols, args.row_bytes, args.scale_cols, args.group};
  const Operands o = {m, args.blocks, WIDE, CUT, DOTS, TILE, quads_ahead(FORMAT, TILE), units_ahead(FORMAT, TILE)};
  return o;
}

// Four rows a simdgroup (x), TILE vectors (y), a head (z).
kernel void matmul_int(device const uchar* w [[buffer(0)]],
                       device const float* scales [[buffer(1)]],
                       device const uint* q [[buffer(2)]],
                       device const float* sx [[buffer(3)]],
                       device float* y [[buffer(4)]],
                       constant MatMulArgs& args [[buffer(5)]],
                       uint3 tg [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]],
                       uint sg [[simdgroup_index_in_threadgroup]],
                       uint nsg [[simdgroups_per_threadgroup]]) {
  const uint row = (tg.x * nsg + sg) * 4u + lane / 8u;
  const bool live = row < args.rows;
  const uint first = tg.y * TILE;
  const uint n = min(TILE, args.count - first);
  uint at[8];
  float acc[8];
  UNROLL
  for (uint i = 0; i < TILE; i++) at[i] = (first + min(i, n - 1u)) * args.x_stride + tg.z * args.x_step;
  const uint from = args.first + tg.z * args.row_step + (live ? row : 0u);
  int_row(operands(args), w, scales, from, q, sx, at, lane % 8u, acc);
  UNROLL
  for (uint i = 0; i < TILE; i++) {
    if (live && i < n && lane % 8u == 0u) y[ulong(first + i) * args.y_stride + tg.z * args.y_step + row] = acc[i];
  }
}

// The same for float weights, eight rows a simdgroup.
kernel void matmul_float(device const uchar* w [[buffer(0)]],
                         device const float* scales [[buffer(1)]],
                         device const float* x [[buffer(2)]],
                         device float* y [[buffer(3)]],
                         constant MatMulArgs& args [[buffer(4)]],
                         uint3 tg [[threadgroup_position_in_grid]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint sg [[simdgroup_index_in_threadgroup]],
                         uint nsg [[simdgroups_per_threadgroup]]) {
  const uint row = (tg.x * nsg + sg) * 8u + lane / 4u;
  const bool live = row < args.rows;
  const uint first = tg.y * TILE;
  const uint n = min(TILE, args.count - first);
  ulong at[8];
  float acc[8];
  UNROLL
  for (uint i = 0; i < TILE; i++) at[i] = ulong(first + min(i, n - 1u)) * args.x_stride + tg.z * args.x_step;
  const uint from = args.first + tg.z * args.row_step + (live ? row : 0u);
  float_row(operands(args), w, scales, from, x, at, lane % 4u, acc);
  UNROLL
  for (uint i = 0; i < TILE; i++) {
    if (live && i < n && lane % 4u == 0u) y[ulong(first + i) * args.y_stride + tg.z * args.y_step + row] = acc[i];
  }
}
