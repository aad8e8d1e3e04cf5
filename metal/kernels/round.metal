// Activations rounded to integers, docs/arithmetic.md section 1.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#define UNROLL _Pragma("clang loop unroll(full)")

constant uint LAYOUT [[function_constant(0)]];
constant bool DOTS [[function_constant(1)]];

struct RoundArgs {
  uint cols;
  uint blocks;
  uint x_stride;
  uint heads;  // rows that belong together
  uint chunks; // that the rows are sums of, each of all rows that belong together
};

// One simdgroup a block (x) of a row (y); each lane rounds two elements and
// writes one word. The layouts: 0 is two int16 in their order, 1 and 2 are
// the mates q[a + n] + q[a] * 2^16 of words that hold the codes of the columns
// a and a + n, n being 4 and 8. With DOTS they are bytes instead, in the order
// of the codes' words with one shift: the columns a + 2i and a + 4i, i < 4.
kernel void round_activations(device const float* x [[buffer(0)]],
                              device uint* q [[buffer(1)]],
                              device float* sx [[buffer(2)]],
                              constant RoundArgs& args [[buffer(3)]],
                              uint2 tg [[threadgroup_position_in_grid]],
                              uint lane [[thread_index_in_simdgroup]],
                              uint sg [[simdgroup_index_in_threadgroup]],
                              uint nsg [[simdgroups_per_threadgroup]]) {
  const uint block = tg.x * nsg + sg;
  const bool live = block < (args.blocks + 3u) / 4u * 4u; // quads are filled up
  uint a = 2u * lane;
  uint b = a + 1u;
  if (LAYOUT == 1u) {
    a = lane / 4u * 8u + lane % 4u;
    b = a + 4u;
  }
  if (LAYOUT == 2u) {
    a = lane / 8u * 16u + lane % 8u;
    b = a + 8u;
  }
  const uint word_of = lane / 2u;
  if (DOTS && LAYOUT == 1u) {
    a = word_of / 2u * 8u + word_of % 2u + 4u * (lane % 2u);
    b = a + 2u;
  }
  if (DOTS && LAYOUT == 2u) {
    a = word_of / 4u * 16u + word_of % 4u + 8u * (lane % 2u);
    b = a + 4u;
  }
  const uint step = args.heads * args.x_stride;
  device const float* r = x + ulong(tg.y / args.heads) * args.chunks * step + tg.y % args.heads * args.x_stride;
  const uint first = block * 64u;
  const bool has_a = first + a < args.cols;
  const bool has_b = first + b < args.cols;
  float va = has_a ? r[first + a] : 0.0f;
  float vb = has_b ? r[first + b] : 0.0f;
  if (args.chunks > 1u) {
    va = 0.0f + va;
    vb = 0.0f + vb;
    for (uint c = 1u; c < args.chunks; c += 8u) {
      float pa[8];
      float pb[8];
      UNROLL
      for (uint i = 0; i < 8u; i++) {
        const ulong at = ulong(min(c + i, args.chunks - 1u)) * step + first;
        pa[i] = has_a ? r[at + a] : 0.0f;
        pb[i] = has_b ? r[at + b] : 0.0f;
      }
      UNROLL
      for (uint i = 0; i < 8u; i++) {
        if (c + i < args.chunks) {
          va = va + pa[i];
          vb = vb + pb[i];
        }
      }
    }
  }
  // Magnitudes compare as integers, NaN above all.
  uint top = max(as_type<uint>(va) & 0x7FFFFFFFu, as_type<uint>(vb) & 0x7FFFFFFFu);
  for (ushort o = 16; o > 0; o = o / 2) top = max(top, simd_shuffle_xor(top, o));
  const float limit = LAYOUT == 0u ? 2047.0f : 127.0f;
  float scale = as_type<float>(top) / limit;
  if (scale < 1e-8f) scale = 1e-8f;
  // The low bits of the sum are the integer, ties to even.
  const float ra = va / scale;
  const float rb = vb / scale;
  const int qa = int(as_type<uint>(ra + 12582912.0f) << 16u) >> 16;
  const int qb = int(as_type<uint>(rb + 12582912.0f) << 16u) >> 16;
  // A quad of blocks is four times eight vectors of four words: the k-th of
  // lane h of a product holds the words 4k to 4k+3 of half h of its blocks.
  const ulong quad = ulong(tg.y) * ((args.blocks + 3u) / 4u) + block / 4u;
  const uint half_of = block % 4u * 2u + lane / 16u;
  const bool bytes = DOTS && LAYOUT != 0u;
  const uint two = (uint(qa) & 0xFFu) | ((uint(qb) & 0xFFu) << 8u);
  const uint mate = simd_shuffle_xor(two, ushort(1));
  if (live) {
    uint word = uint(qb) + (uint(qa) << 16u);
    if (LAYOUT == 0u) word = (uint(qa) & 0xFFFFu) | (uint(qb) << 16u);
    if (!bytes) q[quad * 128u + lane % 16u / 4u * 32u + half_of * 4u + lane % 4u] = word;
    // Bytes: two vectors, of which each lane but every other writes a word.
    if (bytes && lane % 2u == 0u) q[quad * 64u + word_of % 8u / 4u * 32u + half_of * 4u + word_of % 4u] = two | (mate << 16u);
    if (lane == 0u) sx[quad * 4u + block % 4u] = scale;
  }
}
