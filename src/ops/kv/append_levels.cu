// SPDX-License-Identifier: Apache-2.0
// x_kv_append in the formats of levels: a block owns a new token, of which a thread has every
// kThreads-th column.  Then a thread owns a group of keys of a channel, whose words hold many
// tokens, then a counter.  A launch each: norms are written before keys read them, and counters are
// read by all.
// Shared memory: a slot for each warp, for what the block's threads agree on.
#include "cuda/launch.h"
#include "cuda/tile/order.cuh"
#include "ops/kv/append_levels_item.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kv_append";
constexpr int kThreads = 256, kWarps = kThreads / 32;

// A token's threads: levels.h says what these are.  A slot is read by all before a barrier that
// stands ahead of the next write.
struct Block {
  uint64_t* slots;  // kWarps in shared memory
  int64_t lane, lanes = kThreads;

  __device__ explicit Block(uint64_t* shared) : slots(shared), lane(threadIdx.x) {}
  template <class Pick>
  __device__ uint64_t picked(uint64_t x, const Pick& pick) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = pick(x, __shfl_xor_sync(~0u, x, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
    __syncthreads();
    x = slots[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) x = pick(x, slots[i]);
    return x;
  }
  __device__ uint64_t most(uint64_t x) const {
    return picked(x, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }
  __device__ uint64_t least(uint64_t x) const {
    return picked(x, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
  }
  __device__ int64_t before(bool here) const {
    const uint32_t mine = __ballot_sync(~0u, here);
    __syncthreads();
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = mine;
    __syncthreads();
    int64_t count = __popc(mine & ((1u << threadIdx.x % 32) - 1));
    for (unsigned i = 0; i < threadIdx.x / 32; ++i) count += __popcll(slots[i]);
    return count;
  }
  __device__ int64_t all(bool here) const {
    return __syncthreads_count(here);
  }
  __device__ void meet() const {
    __syncthreads();
  }
};

__global__ void __launch_bounds__(kThreads)
    token_kernel(const __grid_constant__ KvAppend a, int64_t tokens, int64_t work) {
  __shared__ uint64_t slots[kWarps];
  pdl_wait();
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t r = quotient(w, tokens);
    const KvAppend::Turn t = a.turn(r);
    if (t.row >= 0) kv::append_token(a, t, w - r * tokens, Block(slots));
  }
}

__global__ void __launch_bounds__(kThreads)
    keys_kernel(const __grid_constant__ KvAppend a, int64_t tiles, int64_t work) {
  pdl_wait();
  const int64_t items = a.level_items();
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t r = quotient(w, tiles), item = (w - r * tiles) * kThreads + threadIdx.x;
    if (item >= items) continue;
    if (const KvAppend::Turn t = a.turn(r); t.row >= 0) kv::append_keys(a, t, item);
  }
}

void append(Context& ctx, const KvAppend& a) {
  const int64_t count = a.sequences.count, tokens = a.sequences.query_max;
  launch_pdl<token_kernel>(ctx, kOp, count * tokens, kThreads, 0, a, tokens, count * tokens);
  const int64_t tiles = tokens ? ceil_div(a.level_items(), int64_t{kThreads}) : 0;
  launch_pdl<keys_kernel>(ctx, kOp, count * tiles, kThreads, 0, a, tiles, count * tiles);
  count_appended(ctx, a);
}

}  // namespace
}  // namespace cuda

extern const Kernel<KvAppend> kv_append_levels_simt = {
    "simt", [](const Context&, const KvAppend& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) { cuda::append(ctx, a); };
      return Text();
    }};

}  // namespace fovea
