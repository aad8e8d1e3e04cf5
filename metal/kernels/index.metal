// The indexer of DeepSeek sparse attention (arXiv:2512.02556) and its selection.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "numbers.h"
#include "order.h"

struct IndexArgs {
  uint heads;
  uint dim;
  uint position; // of the first token
  uint topk;
  uint q_stride;
  uint w_stride;
  uint score_stride;
  float scale;
  float head_scale;
};

// 64 positions (x) of a token (z), eight lanes a position. Tokens that see no
// more than args.topk positions attend to all of them.
kernel void index_score(device const float* q [[buffer(0)]],
                        device const float* w [[buffer(1)]],
                        device const float* keys [[buffer(2)]],
                        device float* scores [[buffer(3)]],
                        constant IndexArgs& args [[buffer(4)]],
                        uint3 tg [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint sg [[simdgroup_index_in_threadgroup]],
                        uint nsg [[simdgroups_per_threadgroup]]) {
  const uint n = args.position + tg.z + 1u;
  const uint h = lane % 8u;
  const uint end = n > args.topk ? min(n, (tg.x + 1u) * 64u) : 0u;
  for (uint first = tg.x * 64u; first < end; first += nsg * 4u) {
    const uint j = first + sg * 4u + lane / 8u;
    device const float* key = keys + ulong(j < end ? j : 0u) * args.dim;
    float acc = 0.0f;
    for (uint head = 0; head < args.heads; head++) {
      device const float* qh = q + ulong(tg.z) * args.q_stride + head * args.dim;
      float even = 0.0f;
      float odd = 0.0f;
      for (uint i = 2u * h; i < args.dim; i += 16u) {
        even = fma(qh[i], key[i], even);
        if (i + 1u < args.dim) odd = fma(qh[i + 1u], key[i + 1u], odd);
      }
      float s = tree8(even, odd) * args.scale;
      if (s <= 0.0f) s = 0.0f; // a NaN stays
      const float wh = w[ulong(tg.z) * args.w_stride + head] * args.head_scale;
      acc = fma(wh, s, acc);
    }
    if (h == 0u && j < end) scores[ulong(tg.z) * args.score_stride + j] = acc;
  }
}

// The sum over a threadgroup; shared holds a number for each simdgroup.
static inline uint total(uint v, threadgroup uint* shared, uint lane, uint sg, uint nsg) {
  for (ushort o = 16; o > 0; o = o / 2) v = v + simd_shuffle_xor(v, o);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0u) shared[sg] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint sum = 0u;
  for (uint i = 0; i < nsg; i++) sum += shared[i];
  return sum;
}

// One threadgroup a token: the positions of the args.topk largest scores in
// increasing order, the lowest first among equals.
kernel void topk(device const float* scores [[buffer(0)]],
                 device uint* select [[buffer(1)]],
                 constant IndexArgs& args [[buffer(2)]],
                 threadgroup uint* shared [[threadgroup(0)]],
                 uint token [[threadgroup_position_in_grid]],
                 uint tid [[thread_index_in_threadgroup]],
                 uint threads [[threads_per_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]],
                 uint sg [[simdgroup_index_in_threadgroup]],
                 uint nsg [[simdgroups_per_threadgroup]]) {
  const uint n = args.position + token + 1u;
  device const float* s = scores + ulong(token) * args.score_stride;
  device uint* out = select + ulong(token) * args.topk;
  if (n > args.topk) {
    // The key of the last one taken, bit by bit: the largest that at least topk reach.
    uint last = 0u;
    for (uint bit = 0x80000000u; bit != 0u; bit = bit / 2u) {
      uint count = 0u;
      for (uint i = tid; i < n; i += threads) {
        if (order_key(s[i]) >= (last | bit)) count += 1u;
      }
      if (total(count, shared, lane, sg, nsg) >= args.topk) last = last | bit;
    }
    uint above = 0u;
    for (uint i = tid; i < n; i += threads) {
      if (order_key(s[i]) > last) above += 1u;
    }
    const uint need = args.topk - total(above, shared, lane, sg, nsg); // of those that equal it
    uint greater = 0u; // before this run of threads
    uint equal = 0u;
    for (uint first = 0; first < n; first += threads) {
      const uint i = first + tid;
      const uint key = i < n ? order_key(s[i]) : 0u;
      const bool is_greater = i < n && key > last;
      const bool is_equal = i < n && key == last;
      const uint mine = (is_greater ? 1u : 0u) + (is_equal ? 0x10000u : 0u);
      uint scan = mine;
      for (ushort o = 1; o < 32; o = o * 2) {
        const uint v = simd_shuffle_up(scan, o);
        if (lane >= o) scan += v;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (lane == 31u) shared[sg] = scan;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      uint before = scan - mine;
      uint sum = 0u;
      for (uint g = 0; g < nsg; g++) {
        if (g < sg) before += shared[g];
        sum += shared[g];
      }
      const uint equals = equal + (before >> 16u);
      const uint place = greater + (before & 0xFFFFu) + min(equals, need);
      if (is_greater || (is_equal && equals < need)) out[place] = i;
      greater += sum & 0xFFFFu;
      equal += sum >> 16u;
    }
  }
}
