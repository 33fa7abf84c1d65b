// SPDX-License-Identifier: Apache-2.0
// Codes of i4 as i8, which Hopper's tensor cores multiply: the same integers, so products and sums
// are those of i4.
//   to[2 c] = the low half of byte c,  to[2 c + 1] = the high half
// A block owns kThreads kPieces pieces of 8 bytes of q or of k, a thread every kThreads-th of them.
#include "cuda/launch.h"
#include "ops/quant/forward.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256, kPieces = 4;
constexpr int kBlock = kThreads * kPieces;

struct Packed {
  View<4> from;
  uint4* to;
  int64_t rows, heads;  // of a batch, of a row
  int64_t each, count;  // pieces of a head's row; of all
  bool dense;           // rows stand side by side

  __device__ const uint2* at(int64_t piece) const {
    if (dense) return from.as<const uint2>() + piece;
    const int64_t head = quotient(piece, each), row = quotient(head, heads),
                  batch = quotient(row, rows);
    const int64_t offset = batch * from.stride[0] + (row - batch * rows) * from.stride[1] +
                           (head - row * heads) * from.stride[2] + 8 * (piece - head * each);
    return reinterpret_cast<const uint2*>(from.as<const uint8_t>() + offset);
  }
};

// Four bytes as eight: their low and high halves in turn.
__device__ uint2 unpack(uint32_t x) {
  // A sign is bit 3 of a half: copied to the four bits above, by a product that carries nothing on.
  const auto extended = [](uint32_t low) { return low | (low & 0x08080808u) * 30; };
  const uint32_t even = extended(x & 0x0f0f0f0fu), odd = extended(x >> 4 & 0x0f0f0f0fu);
  return {__byte_perm(even, odd, 0x5140), __byte_perm(even, odd, 0x7362)};
}

__global__ void __launch_bounds__(kThreads)
    quant_unpack_kernel(const __grid_constant__ Packed q, const __grid_constant__ Packed k,
                        int64_t q_blocks, int64_t blocks) {
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const bool of_k = block >= q_blocks;
    const Packed& x = of_k ? k : q;
    const int64_t first = (of_k ? block - q_blocks : block) * kBlock + threadIdx.x;
    uint2 codes[kPieces] = {};
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (first + i * kThreads < x.count) codes[i] = *x.at(first + i * kThreads);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (first + i * kThreads >= x.count) break;
      const uint2 low = unpack(codes[i].x), high = unpack(codes[i].y);
      x.to[first + i * kThreads] = {low.x, low.y, high.x, high.y};
    }
  }
}

Packed packed(const View<4>& from, int64_t batch, int64_t rows, int64_t heads, int64_t d,
              int8_t* to) {
  const int64_t *stride = from.stride, bytes = d / 2;
  const bool dense = (heads == 1 || stride[2] == bytes) &&
                     (rows == 1 || stride[1] == heads * bytes) &&
                     (batch == 1 || stride[0] == rows * heads * bytes);
  return {from,      reinterpret_cast<uint4*>(to),       rows, heads,
          bytes / 8, batch * rows * heads * (bytes / 8), dense};
}

}  // namespace

void quant_unpack(Context& ctx, const QuantAttend& a, int8_t* q, int8_t* k) {
  const Attend& call = a.attend;
  const Packed of_q = packed(call.q, call.b, call.s, call.h, call.d, q);
  const Packed of_k = packed(call.k, call.sequences.caches, call.t, call.g, call.d, k);
  const int64_t q_blocks = ceil_div(of_q.count, kBlock);
  const int64_t blocks = q_blocks + ceil_div(of_k.count, kBlock);
  launch<quant_unpack_kernel>(ctx, "quant_forward", blocks, kThreads, 0, of_q, of_k, q_blocks,
                              blocks);
}

}  // namespace fovea::cuda
