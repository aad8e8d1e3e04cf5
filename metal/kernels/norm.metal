// RMSNorm and LayerNorm, docs/arithmetic.md section 3.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "numbers.h"
#include "ready.h"

struct NormArgs {
  uint n;
  uint x_stride;
  uint y_stride;
  float eps;
};

#define UNROLL _Pragma("clang loop unroll(full)")
#define PART 8192u // elements in threadgroup memory at a time
#define KEPT 12u   // elements that a thread keeps

// One threadgroup a row: all threads load a part of it, sixteen lanes sum it.
kernel void rmsnorm(device const float* x [[buffer(0)]],
                    device const float* w [[buffer(1)]],
                    device float* y [[buffer(2)]],
                    constant NormArgs& args [[buffer(3)]],
                    threadgroup float* shared [[threadgroup(0)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint tid [[thread_index_in_threadgroup]],
                    uint threads [[threads_per_threadgroup]]) {
  device const float* r = x + ulong(row) * args.x_stride;
  device float* out = y + ulong(row) * args.y_stride;
  float gain[KEPT];
  UNROLL
  for (uint k = 0; k < KEPT; k++) gain[k] = tid + k * threads < args.n ? w[tid + k * threads] : 0.0f;
  inputs_ready();
  float v[KEPT];
  UNROLL
  for (uint k = 0; k < KEPT; k++) v[k] = tid + k * threads < args.n ? r[tid + k * threads] : 0.0f;
  float acc = 0.0f;
  for (uint start = 0; start < args.n; start += PART) {
    const uint end = min(PART, args.n - start);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (start == 0u) {
      UNROLL
      for (uint k = 0; k < KEPT; k++) {
        if (tid + k * threads < end) shared[tid + k * threads] = v[k];
      }
    }
    for (uint i = tid + (start == 0u ? KEPT * threads : 0u); i < end; i += threads) shared[i] = r[start + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // The next elements are loaded while some are added.
    const uint mine = tid < 16u ? end : 0u;
    uint i = tid;
    if (i + 112u < mine) {
      float e[8];
      UNROLL
      for (uint k = 0; k < 8u; k++) e[k] = shared[i + 16u * k];
      for (; i + 240u < mine; i += 128u) {
        float next[8];
        UNROLL
        for (uint k = 0; k < 8u; k++) next[k] = shared[i + 128u + 16u * k];
        UNROLL
        for (uint k = 0; k < 8u; k++) acc = fma(e[k], e[k], acc);
        UNROLL
        for (uint k = 0; k < 8u; k++) e[k] = next[k];
      }
      UNROLL
      for (uint k = 0; k < 8u; k++) acc = fma(e[k], e[k], acc);
      i += 128u;
    }
    for (; i < mine; i += 16u) acc = fma(shared[i], shared[i], acc);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < 32u) {
    acc = tree16(acc);
    if (tid == 0u) shared[0] = acc;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float mean = shared[0] / float(args.n);
  const float scale = 1.0f / precise::sqrt(mean + args.eps);
  UNROLL
  for (uint k = 0; k < KEPT; k++) {
    const float e = v[k] * scale;
    if (tid + k * threads < args.n) out[tid + k * threads] = e * gain[k];
  }
  for (uint i = tid + KEPT * threads; i < args.n; i += threads) {
    const float e = r[i] * scale;
    out[i] = e * w[i];
  }
}

kernel void layernorm(device const float* x [[buffer(0)]],
                      device const float* w [[buffer(1)]],
                      device const float* b [[buffer(2)]],
                      device float* y [[buffer(3)]],
                      constant NormArgs& args [[buffer(4)]],
                      threadgroup float* shared [[threadgroup(0)]],
                      uint row [[threadgroup_position_in_grid]],
                      uint tid [[thread_index_in_threadgroup]],
                      uint threads [[threads_per_threadgroup]]) {
  device const float* r = x + ulong(row) * args.x_stride;
  device float* out = y + ulong(row) * args.y_stride;
  if (tid < 32u) {
    float acc = 0.0f;
    if (tid < 16u) {
      for (uint i = tid; i < args.n; i += 16u) acc = acc + r[i];
    }
    const float mean = tree16(acc) / float(args.n);
    acc = 0.0f;
    if (tid < 16u) {
      for (uint i = tid; i < args.n; i += 16u) {
        const float c = r[i] - mean;
        acc = fma(c, c, acc);
      }
    }
    acc = tree16(acc);
    if (tid == 0u) {
      shared[0] = mean;
      shared[1] = acc;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float mean = shared[0];
  const float variance = shared[1] / float(args.n);
  const float scale = 1.0f / precise::sqrt(variance + args.eps);
  for (uint i = tid; i < args.n; i += threads) {
    const float c = r[i] - mean;
    const float v = c * scale;
    out[i] = fma(v, w[i], b[i]);
  }
}
