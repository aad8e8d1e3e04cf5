// Rows of the embedding.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "codes.h"

constant uint FORMAT [[function_constant(0)]];

struct EmbedArgs {
  uint cols;
  uint row_bytes;
  uint scale_cols;
  uint group;
  uint y_stride;
};

struct Tokens {
  uint id[512];
};

// One thread a column (x) of a token (y).
kernel void embed(device const uchar* w [[buffer(0)]],
                  device const float* scales [[buffer(1)]],
                  device float* y [[buffer(2)]],
                  constant EmbedArgs& args [[buffer(3)]],
                  constant Tokens& tokens [[buffer(4)]],
                  uint2 at [[thread_position_in_grid]]) {
  if (at.x < args.cols) {
    const Codes m = {FORMAT, args.cols, args.row_bytes, args.scale_cols, args.group};
    y[ulong(at.y) * args.y_stride + at.x] = weight_at(m, w, scales, tokens.id[at.y], at.x);
  }
}
