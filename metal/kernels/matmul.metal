// Matrix times vectors, docs/arithmetic.md sections 2 and 3.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "numbers.h"
#include "codes.h"
#include "ready.h"
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
  next_may_start(); // mostly what is small
  const uint row = (tg.x * nsg + sg) * 4u + lane / 8u;
  const bool live = row < args.rows;
  const uint first = tg.y * TILE;
  const uint n = min(TILE, args.count - first);
  uint at[8];
  float acc[8];
  UNROLL
  for (uint i = 0; i < TILE; i++) at[i] = (first + min(i, n - 1u)) * args.x_stride + tg.z * args.x_step;
  const uint from = args.first + tg.z * args.row_step + (live ? row : 0u);
  // inputs_ready(); comes from within, when the first weights are on their way.
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
  // inputs_ready(); comes from within.
  float_row(operands(args), w, scales, from, x, at, lane % 4u, acc);
  UNROLL
  for (uint i = 0; i < TILE; i++) {
    if (live && i < n && lane % 4u == 0u) y[ulong(first + i) * args.y_stride + tg.z * args.y_step + row] = acc[i];
  }
  next_may_start();
}

#define FEW 48u // runs of sixteen columns that are loaded ahead

// One weight of a row as it lies in memory.
static inline uint load_one(device const uchar* r, uint col) {
  if (FORMAT == FORMAT_F32) return stream4(r + 4u * col);
  return *(device const ushort*)(r + 2u * col);
}

static inline float widen_one(uint v) {
  if (FORMAT == FORMAT_F32) return as_type<float>(v);
  return FORMAT == FORMAT_BF16 ? widen_bf16(v) : widen_f16(v);
}

// The same where there are few rows, not in fp8: two a simdgroup, a stripe each lane;
// one vector (y).
kernel void matmul_few(device const uchar* w [[buffer(0)]],
                       device const float* scales [[buffer(1)]],
                       device const float* x [[buffer(2)]],
                       device float* y [[buffer(3)]],
                       constant MatMulArgs& args [[buffer(4)]],
                       uint3 tg [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]],
                       uint sg [[simdgroup_index_in_threadgroup]],
                       uint nsg [[simdgroups_per_threadgroup]]) {
  const uint row = (tg.x * nsg + sg) * 2u + lane / 16u;
  const bool live = row < args.rows;
  const uint from = args.first + tg.z * args.row_step + (live ? row : 0u);
  device const uchar* r = w + ulong(from) * args.row_bytes;
  device const float* v = x + ulong(tg.y) * args.x_stride + tg.z * args.x_step;
  const uint h = lane % 16u;
  const uint last = args.cols - 1u;
  uint raw[FEW];
  UNROLL
  for (uint k = 0; k < FEW; k++) raw[k] = load_one(r, min(h + 16u * k, last));
  inputs_ready();
  float xs[FEW];
  UNROLL
  for (uint k = 0; k < FEW; k++) xs[k] = v[min(h + 16u * k, last)];
  float acc = 0.0f;
  for (uint col = h; col < args.cols; col += 16u * FEW) {
    uint next[FEW];
    float then[FEW];
    UNROLL
    for (uint k = 0; k < FEW; k++) {
      next[k] = load_one(r, min(col + 16u * (FEW + k), last));
      then[k] = v[min(col + 16u * (FEW + k), last)];
    }
    simdgroup_barrier(mem_flags::mem_none);
    UNROLL
    for (uint k = 0; k < FEW; k++) {
      const uint at = col + 16u * k;
      if (at < args.cols) acc = fma(widen_one(raw[k]), xs[k], acc);
    }
    UNROLL
    for (uint k = 0; k < FEW; k++) {
      raw[k] = next[k];
      xs[k] = then[k];
    }
  }
  acc = tree16(acc);
  if (live && h == 0u) y[ulong(tg.y) * args.y_stride + tg.z * args.y_step + row] = acc;
  next_may_start();
}
