// SPDX-License-Identifier: Apache-2.0
// New rows into the cache; the arithmetic is append_row.h's, which the host runs too.
// Without a norm a thread owns one unit of one head row: V columns, or V column pairs that turn; V
// elements are 16 bytes of the wider type where layout allows, else one.  Keys and values of the
// same types share a launch, each with blocks of its own.  With a norm a warp owns a row: its lanes
// hold the 32 partial sums, the butterfly adds them in the host's order (addition commutes).
// key_len_out comes in a launch of its own: it may be key_len, which every block reads.
#include "core/dtype.h"
#include "cuda/launch.h"
#include "ops/cache/append_row.h"

namespace fovea {
namespace {

constexpr char kOp[] = "cache_append";
constexpr int kThreads = 256;

template <class New, class Cache, int V>
__device__ void append_one(const Append& a, const AppendPart& part, int64_t w) {
  const int64_t units = row_units(part.rope, part.width, V);
  const int64_t unit = w % units, head = w / units % part.heads;
  const AppendToken to = append_token(a, w / units / part.heads);
  if (to.number < 0) return;
  const int64_t offset = cache_offset(a, part, to, head);
  if (offset < 0) return;
  Turn turn{};
  if (part.rope.cos) turn = turn_at(part.rope, to.position, 1);
  const float scale = part.scale ? part.scale.as<float>()[head * part.scale.stride[0]] : 1;
  append_unit<V>(part, turn, unit, part.fresh.as<New>() + fresh_offset(part, to, head),
                 part.cache.as<Cache>() + offset, 1, scale);
}

FOVEA_HD int64_t unit_work(const Append& a, const AppendPart& part, int v) {
  return part ? token_slots(a.sequences) * part.heads * row_units(part.rope, part.width, v) : 0;
}

FOVEA_HD int64_t blocks_of(int64_t work) {
  return (work + kThreads - 1) / kThreads;
}

template <class New, class Cache, int V>
__global__ void __launch_bounds__(kThreads)
    append_kernel(const __grid_constant__ Append a, bool with_k, bool with_v) {
  const int64_t work_k = with_k ? unit_work(a, a.k, V) : 0, blocks_k = blocks_of(work_k);
  const int64_t work_v = with_v ? unit_work(a, a.v, V) : 0, blocks = blocks_k + blocks_of(work_v);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const bool keys = block < blocks_k;
    const int64_t w = (keys ? block : block - blocks_k) * kThreads + threadIdx.x;
    if (w < (keys ? work_k : work_v)) append_one<New, Cache, V>(a, keys ? a.k : a.v, w);
  }
}

template <class New, class Cache>
__global__ void __launch_bounds__(kThreads) append_norm_kernel(const __grid_constant__ Append a) {
  const AppendPart& part = a.k;
  const int lane = threadIdx.x % kLanes;
  const int64_t units = row_units(part.rope, part.width, 1);
  const int64_t rows = token_slots(a.sequences) * part.heads;
  for (int64_t w = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / kLanes; w < rows;
       w += int64_t{gridDim.x} * (kThreads / kLanes)) {
    const int64_t head = w % part.heads;
    const AppendToken to = append_token(a, w / part.heads);
    if (to.number < 0) continue;
    const int64_t offset = cache_offset(a, part, to, head);
    if (offset < 0) continue;
    const New* x = part.fresh.as<New>() + fresh_offset(part, to, head);
    double squares = lane_squares(part, x, lane);
    for (int step = kLanes / 2; step; step /= 2)
      squares += __shfl_xor_sync(0xffffffffu, squares, step);
    const double factor = norm_factor(part, squares);
    Turn turn{};
    if (part.rope.cos) turn = turn_at(part.rope, to.position, 1);
    const float scale = part.scale ? part.scale.as<float>()[head * part.scale.stride[0]] : 1;
    for (int64_t unit = lane; unit < units; unit += kLanes)
      append_unit<1>(part, turn, unit, x, part.cache.as<Cache>() + offset, factor, scale);
  }
}

__global__ void __launch_bounds__(kThreads) append_length_kernel(const __grid_constant__ Append a) {
  for (int64_t r = blockIdx.x * int64_t{kThreads} + threadIdx.x; r < a.sequences.count;
       r += int64_t{gridDim.x} * kThreads)
    a.key_len_out.as<int32_t>()[r * a.key_len_out.stride[0]] =
        static_cast<int32_t>(a.length_after(r));
}

void append_parts(Context& ctx, const Append& a, bool with_k, bool with_v) {
  const AppendPart& part = with_k ? a.k : a.v;
  with_fp(part.fresh_dtype, [&](auto fresh) {
    with_cache_type(part.cache_dtype, [&](auto cache) {
      using New = decltype(fresh);
      using Cache = decltype(cache);
      constexpr int kV = kWide<New, Cache>;
      if (part.norm_weight) {
        const int64_t rows = token_slots(a.sequences) * part.heads;
        cuda::launch<append_norm_kernel<New, Cache>>(
            ctx, kOp, cuda::ceil_div(rows * kLanes, int64_t{kThreads}), kThreads, 0, a);
        return;
      }
      const bool is_wide = (!with_k || wide<New, Cache>(a.k)) && (!with_v || wide<New, Cache>(a.v));
      const int v = is_wide ? kV : 1;
      const int64_t blocks = (with_k ? blocks_of(unit_work(a, a.k, v)) : 0) +
                             (with_v ? blocks_of(unit_work(a, a.v, v)) : 0);
      if (is_wide)
        cuda::launch<append_kernel<New, Cache, kV>>(ctx, kOp, blocks, kThreads, 0, a, with_k,
                                                    with_v);
      else
        cuda::launch<append_kernel<New, Cache, 1>>(ctx, kOp, blocks, kThreads, 0, a, with_k,
                                                   with_v);
    });
  });
}

std::string refuses(const Context&, const Append&) {
  return "";
}

void prepare(const Context&, const Append& a, Plan& plan) {
  const AppendPart& part = a.k ? a.k : a.v;
  plan.kernel +=
      std::string(".") + dtype_name(part.fresh_dtype) + "." + dtype_name(part.cache_dtype);
  plan.launch = [a](Context& ctx, void*) {
    const bool together = a.k && a.v && !a.k.norm_weight && a.k.fresh_dtype == a.v.fresh_dtype &&
                          a.k.cache_dtype == a.v.cache_dtype;
    if (together) {
      append_parts(ctx, a, true, true);
    } else {
      if (a.k) append_parts(ctx, a, true, false);
      if (a.v) append_parts(ctx, a, false, true);
    }
    if (a.key_len_out)
      cuda::launch<append_length_kernel>(ctx, kOp, blocks_of(a.sequences.count), kThreads, 0, a);
  };
}

}  // namespace

const Kernel<Append> cache_append_cuda = {"cache_append.cuda", refuses, prepare};

}  // namespace fovea
