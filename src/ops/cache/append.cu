// SPDX-License-Identifier: Apache-2.0
// New rows into the cache; the arithmetic is append_row.h's, which the host runs too.
// Without a norm `lanes` threads own one token, about four units of it each, keys and then values
// where they share types; a unit is V columns of a head row, or V column pairs that turn; V
// elements are 16 bytes of the wider type where layout allows, else one.  With a norm a warp owns a
// head row: its lanes hold the 32 partial sums, and the butterfly adds them in the host's order
// (addition commutes).  key_len_out comes in a launch of its own: it may be key_len, which every
// block reads.
#include "core/dtype.h"
#include "cuda/launch.h"
#include "ops/cache/append_row.h"

namespace fovea {
namespace {

constexpr char kOp[] = "cache_append";
constexpr int kThreads = 256;

FOVEA_HD int64_t units_of(const AppendPart& part, bool present, int v) {
  return present ? part.heads * row_units(part.rope, part.width, v) : 0;
}

template <class New, class Cache, int V>
__device__ void append_one(const AppendPart& part, const AppendToken& to, int64_t offset,
                           const Turn& turn, int64_t w) {
  const int64_t units = row_units(part.rope, part.width, V), head = quotient(w, units);
  append_unit<V>(part, turn, w - head * units,
                 part.fresh.as<New>() + fresh_offset(part, to) + head * part.fresh.stride[2],
                 part.cache.as<Cache>() + offset + head * part.cache.stride[2], 1,
                 scale_of(part, head));
}

template <class New, class Cache, int V>
__global__ void __launch_bounds__(kThreads)
    append_kernel(const __grid_constant__ Append a, bool with_k, bool with_v, int lanes) {
  const int64_t units_k = units_of(a.k, with_k, V), units = units_k + units_of(a.v, with_v, V);
  const int64_t slots = token_slots(a.sequences), tokens = kThreads / lanes;
  for (int64_t slot = blockIdx.x * tokens + threadIdx.x / lanes; slot < slots;
       slot += gridDim.x * tokens) {
    const AppendToken to = append_token(a, slot);
    if (to.number < 0) continue;
    const int64_t offset_k = with_k ? cache_offset(a, a.k, to) : -1;
    const int64_t offset_v = with_v ? cache_offset(a, a.v, to) : -1;
    if (offset_k < 0 && offset_v < 0) continue;
    Turn turn{};
    if (a.k.rope.cos) turn = turn_at(a.k.rope, to.position, 1);
    for (int64_t w = threadIdx.x % lanes; w < units; w += lanes) {
      const bool keys = w < units_k;
      append_one<New, Cache, V>(keys ? a.k : a.v, to, keys ? offset_k : offset_v, turn,
                                keys ? w : w - units_k);
    }
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
    const int64_t slot = quotient(w, part.heads), head = w - slot * part.heads;
    const AppendToken to = append_token(a, slot);
    if (to.number < 0) continue;
    const int64_t offset = cache_offset(a, part, to);
    if (offset < 0) continue;
    const New* x = part.fresh.as<New>() + fresh_offset(part, to) + head * part.fresh.stride[2];
    Cache* y = part.cache.as<Cache>() + offset + head * part.cache.stride[2];
    double squares = lane_squares(part, x, lane);
    for (int step = kLanes / 2; step; step /= 2)
      squares += __shfl_xor_sync(0xffffffffu, squares, step);
    const double factor = norm_factor(part, squares);
    Turn turn{};
    if (part.rope.cos) turn = turn_at(part.rope, to.position, 1);
    for (int64_t unit = lane; unit < units; unit += kLanes)
      append_unit<1>(part, turn, unit, x, y, factor, scale_of(part, head));
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
      const int64_t work = units_of(a.k, with_k, v) + units_of(a.v, with_v, v);
      if (!work) return;
      const int lanes = lanes_of((work + 3) / 4, kThreads);
      const int64_t blocks = cuda::ceil_div(token_slots(a.sequences), int64_t{kThreads / lanes});
      if (is_wide)
        cuda::launch<append_kernel<New, Cache, kV>>(ctx, kOp, blocks, kThreads, 0, a, with_k,
                                                    with_v, lanes);
      else
        cuda::launch<append_kernel<New, Cache, 1>>(ctx, kOp, blocks, kThreads, 0, a, with_k, with_v,
                                                   lanes);
    });
  });
}

std::string offer(const Context&, const Append& a, Plan& plan) {
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
      cuda::launch<append_length_kernel>(
          ctx, kOp, cuda::ceil_div(a.sequences.count, int64_t{kThreads}), kThreads, 0, a);
  };
  return "";
}

}  // namespace

extern const Kernel<Append> cache_append_cuda = {"", offer};

}  // namespace fovea
