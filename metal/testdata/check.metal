// Kernels for the checker's tests: staging through threadgroup memory,
// reductions in and across simdgroups, matrices, pointers in structs.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

constant uint FC_GROUP [[function_constant(0)]]; // weights for each scale

static inline float tree(float v) {
  for (ushort o = 16; o > 0; o /= 2) v += simd_shuffle_xor(v, o);
  return v;
}

struct NormArgs {
  uint n;
  float eps;
};

// One threadgroup a row.
kernel void norm(device const float* x [[buffer(0)]],
                 device float* y [[buffer(1)]],
                 constant NormArgs& args [[buffer(2)]],
                 threadgroup float* part [[threadgroup(0)]],
                 uint row [[threadgroup_position_in_grid]],
                 uint tid [[thread_position_in_threadgroup]],
                 uint nth [[threads_per_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]],
                 uint sg [[simdgroup_index_in_threadgroup]],
                 uint nsg [[simdgroups_per_threadgroup]]) {
  device const float* xr = x + ulong(row) * args.n;
  float s = 0.0f;
  for (uint i = tid; i < args.n; i += nth) s = fma(xr[i], xr[i], s);
  s = tree(s);
  if (lane == 0) part[sg] = s;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float t = tree(lane < nsg ? part[lane] : 0.0f);
  const float r = 1.0f / precise::sqrt(t / float(args.n) + args.eps);
  for (uint i = tid; i < args.n; i += nth) y[ulong(row) * args.n + i] = xr[i] * r;
}

struct GemvArgs {
  uint rows;
  uint cols;
};

// One simdgroup a row; activations are staged in chunks of 256.
kernel void gemv(device const uchar* w [[buffer(0)]],
                 device const float* scales [[buffer(1)]],
                 device const float* x [[buffer(2)]],
                 device float* y [[buffer(3)]],
                 constant GemvArgs& args [[buffer(4)]],
                 threadgroup float* xs [[threadgroup(0)]],
                 uint tg [[threadgroup_position_in_grid]],
                 uint tid [[thread_position_in_threadgroup]],
                 uint nth [[threads_per_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]],
                 uint sg [[simdgroup_index_in_threadgroup]],
                 uint nsg [[simdgroups_per_threadgroup]]) {
  const uint row = tg * nsg + sg;
  const bool live = row < args.rows;
  device const uchar* wr = w + ulong(live ? row : 0u) * (args.cols / 2u);
  device const float* sr = scales + ulong(live ? row : 0u) * (args.cols / FC_GROUP);
  float acc = 0.0f;
  for (uint base = 0; base < args.cols; base += 256u) {
    const uint n = min(256u, args.cols - base);
    for (uint i = tid; i < n; i += nth) xs[i] = x[base + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lane * 8u; i < n; i += 256u) {
      const uchar4 q = *(device const uchar4*)(wr + (base + i) / 2u);
      float d = 0.0f;
      for (uint j = 0; j < 4u; j++) {
        d = fma(float(int(q[j] & 15) - 8), xs[i + 2u * j], d);
        d = fma(float(int(q[j] >> 4) - 8), xs[i + 2u * j + 1u], d);
      }
      acc = fma(sr[(base + i) / FC_GROUP], d, acc);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  acc = tree(acc);
  if (lane == 0 && live) y[row] = acc;
}

struct GemmArgs {
  uint n;
  uint k; // a multiple of 32
};

// y[8][n] = x[8][k] · w[n][k]: four simdgroups, 32 columns a threadgroup.
kernel void gemm(device const half* w [[buffer(0)]],
                 device const half* x [[buffer(1)]],
                 device float* y [[buffer(2)]],
                 constant GemmArgs& args [[buffer(3)]],
                 threadgroup half* sx [[threadgroup(0)]],
                 uint tg [[threadgroup_position_in_grid]],
                 uint tid [[thread_position_in_threadgroup]],
                 uint sg [[simdgroup_index_in_threadgroup]]) {
  const uint n0 = tg * 32u + sg * 8u;
  simdgroup_float8x8 c = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k0 = 0; k0 < args.k; k0 += 32u) {
    for (uint i = tid; i < 256u; i += 128u) sx[i] = x[ulong(i / 32u) * args.k + k0 + i % 32u];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < 32u; k += 8u) {
      simdgroup_half8x8 a, b;
      simdgroup_load(a, sx + k, 32);
      simdgroup_load(b, w + ulong(n0) * args.k + k0 + k, args.k, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(c, a, b, c);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  simdgroup_store(c, y + n0, args.n);
}

struct Part {
  device const float* p;
  uint n;
  int shift;
};

// y[i] = the sum of the parts' elements i, by address.
kernel void gather(device const Part* parts [[buffer(0)]],
                   device float* y [[buffer(1)]],
                   constant uint& count [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) {
  float s = 0.0f;
  for (uint j = 0; j < count; j++) {
    if (i < parts[j].n) s += parts[j].p[i] * float(1 << parts[j].shift);
  }
  y[i] = s;
}
