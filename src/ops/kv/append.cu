// SPDX-License-Identifier: Apache-2.0
// x_kv_append: a thread owns a group on its way into a page, then an element of the tails, then a
// counter.  A launch each: tails are read before they are written, and counters by all.  Where a
// block has all tails of a sequence, it counts too.
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/tile/order.cuh"
#include "ops/kv/append_item.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kv_append";
constexpr int kThreads = 256;

// Blocks [tile of a sequence's items].
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(const __grid_constant__ KvAppend a, int64_t tiles, int64_t work) {
  pdl_wait();
  const int64_t keys = a.key_items(), items = keys + a.value_items();
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t r = quotient(w, tiles), item = (w - r * tiles) * kThreads + threadIdx.x;
    if (item >= items) continue;
    const KvAppend::Turn t = a.turn(r);
    if (t.row < 0) continue;
    item < keys ? kv::quantise_keys(a, t, item) : kv::quantise_values(a, t, item - keys);
  }
}

__global__ void __launch_bounds__(kThreads)
    tails_kernel(const __grid_constant__ KvAppend a, int64_t newest, int64_t work) {
  pdl_wait();
  const int64_t columns = max(a.cache.d, a.cache.e);
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t r = quotient(w, newest), n = w - r * newest;
    const KvAppend::Turn t = a.turn(r);
    __syncthreads();  // the counter is read
    if (t.row < 0) continue;
    for (int64_t i = threadIdx.x; i < a.cache.g * columns; i += kThreads) {
      const int64_t head = quotient(i, columns);
      kv::to_tails(a, t, n, head, i - head * columns);
    }
    if (newest == 1 && threadIdx.x == 0) kv::count(a, t);
  }
}

__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ KvAppend a) {
  pdl_wait();
  for (int64_t r = blockIdx.x * int64_t{kThreads} + threadIdx.x; r < a.sequences.count;
       r += int64_t{gridDim.x} * kThreads)
    if (const KvAppend::Turn t = a.turn(r); t.row >= 0) kv::count(a, t);
}

}  // namespace

void count_appended(Context& ctx, const KvAppend& a) {
  launch_pdl<count_kernel>(ctx, kOp, ceil_div(a.sequences.count, int64_t{kThreads}), kThreads, 0,
                           a);
}

namespace {

void append(Context& ctx, const KvAppend& a) {
  const int64_t count = a.sequences.count;
  const int64_t tiles = ceil_div(a.key_items() + a.value_items(), int64_t{kThreads});
  launch_pdl<quantise_kernel>(ctx, kOp, count * tiles, kThreads, 0, a, tiles, count * tiles);
  append_tails(ctx, a);
}

}  // namespace

void append_tails(Context& ctx, const KvAppend& a) {
  const int64_t count = a.sequences.count;
  const int64_t newest = std::min(a.sequences.query_max, a.cache.ring());
  launch_pdl<tails_kernel>(ctx, kOp, count * newest, kThreads, 0, a, newest, count * newest);
  if (newest != 1) count_appended(ctx, a);
}

}  // namespace cuda

extern const Kernel<KvAppend> kv_append_simt = {
    "simt", [](const Context&, const KvAppend& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) { cuda::append(ctx, a); };
      return Text();
    }};

}  // namespace fovea
