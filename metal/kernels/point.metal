// Operations on one element at a time, and rotary embeddings.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "numbers.h"

struct PointArgs {
  uint n;
  uint a_stride;
  uint b_stride;
  uint y_stride;
};

// One thread an element (x) of a row (y), in all kernels of this file.
kernel void silu_mul(device const float* gate [[buffer(0)]],
                     device const float* up [[buffer(1)]],
                     device float* y [[buffer(2)]],
                     constant PointArgs& args [[buffer(3)]],
                     uint2 at [[thread_position_in_grid]]) {
  if (at.x < args.n) {
    const float g = silu_fixed(gate[ulong(at.y) * args.a_stride + at.x]);
    y[ulong(at.y) * args.y_stride + at.x] = g * up[ulong(at.y) * args.b_stride + at.x];
  }
}

kernel void add(device const float* x [[buffer(0)]],
                device float* y [[buffer(1)]],
                constant PointArgs& args [[buffer(2)]],
                uint2 at [[thread_position_in_grid]]) {
  if (at.x < args.n) {
    const ulong i = ulong(at.y) * args.y_stride + at.x;
    y[i] = y[i] + x[ulong(at.y) * args.a_stride + at.x];
  }
}

struct RopeArgs {
  uint x_stride;
  uint y_stride;
  uint x_width;
  uint x_at;
  uint y_width;
  uint y_at;
  uint n;
  uint interleave;
  uint items; // pairs of a head, and its other columns if they are copied
  uint heads;
  uint position; // of the first row
};

// x counts the items of all heads.
kernel void rope(device const float* x [[buffer(0)]],
                 device const float* cosines [[buffer(1)]],
                 device const float* sines [[buffer(2)]],
                 device float* y [[buffer(3)]],
                 constant RopeArgs& args [[buffer(4)]],
                 uint2 at [[thread_position_in_grid]]) {
  const uint head = at.x / args.items;
  const uint item = at.x % args.items;
  if (head < args.heads) {
    device const float* src = x + ulong(at.y) * args.x_stride + head * args.x_width;
    device float* dst = y + ulong(at.y) * args.y_stride + head * args.y_width;
    const uint half_n = args.n / 2u;
    if (item < half_n) {
      const uint i = args.x_at + (args.interleave != 0u ? 2u * item : item);
      const float a = src[i];
      const float b = src[i + (args.interleave != 0u ? 1u : half_n)];
      const ulong angle = ulong(args.position + at.y) * half_n + item;
      const float c = cosines[angle];
      const float s = sines[angle];
      const float bs = b * s;
      const float as = a * s;
      dst[args.y_at + item] = fma(a, c, -bs);
      dst[args.y_at + item + half_n] = fma(b, c, as);
    } else {
      uint i = item - half_n;
      if (i >= args.y_at) i += args.n;
      dst[i] = src[i];
    }
  }
}
