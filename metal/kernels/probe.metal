// Does the device compute as docs/arithmetic.md says?
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct ProbeArgs {
  uint n;
};

// One thread a row of three operands a, b, c: four results each.
kernel void probe(device const float* in [[buffer(0)]],
                  device float* out [[buffer(1)]],
                  constant ProbeArgs& args [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
  if (i < args.n) {
    const float a = in[3u * i];
    const float b = in[3u * i + 1u];
    const float c = in[3u * i + 2u];
    device float* r = out + 4u * i;
    r[0] = a * b + c;
    r[1] = fma(a, b, c);
    r[2] = a / b;
    r[3] = precise::sqrt(c);
  }
}

struct StreamArgs {
  uint n;      // vectors
  uint stride; // threads of the grid
};

// Reads everything once; what it writes depends on all of it.
kernel void stream(device const uint4* in [[buffer(0)]],
                   device uint* out [[buffer(1)]],
                   constant StreamArgs& args [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) {
  uint4 x = uint4(0u);
  for (uint j = i; j < args.n; j += args.stride) x ^= in[j];
  out[i] = x.x ^ x.y ^ x.z ^ x.w;
}
