// SPDX-License-Identifier: Apache-2.0
// Appends rows to the cache.  The arithmetic is append_row.h's, which the host runs too.
//
//   | kernel | owner                       | types                   | unit                       |
//   | wide   | `lanes` threads own a token | compiled                | 16 bytes of the wider type |
//   | narrow | the same                    | at run time             | an element: any layout     |
//   | row    | a warp owns a head row      | the cache's at run time | an element: norm, scales   |
//
// A thread has about four units: V columns of a head row, or V column pairs that rotate.  Keys come
// before values where they share types.
// A norm's 32 lanes hold partial sums; the butterfly adds them in the host's order (addition
// commutes).  key_len_out has its own launch: it may be key_len, which every block reads.
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

__device__ float load(const void* x, int32_t dtype, int64_t i) {
  if (dtype == FOVEA_F32) return static_cast<const float*>(x)[i];
  if (dtype == FOVEA_F16) return to_float(static_cast<const F16*>(x)[i]);
  return to_float(static_cast<const Bf16*>(x)[i]);
}

template <class T>
__device__ void store_as(void* y, int64_t i, float value) {
  static_cast<T*>(y)[i] = from_float<T>(value);
}
__device__ void store(void* y, int32_t dtype, int64_t i, float value) {
  switch (dtype) {
    case FOVEA_F32:
      return store_as<float>(y, i, value);
    case FOVEA_F16:
      return store_as<F16>(y, i, value);
    case FOVEA_BF16:
      return store_as<Bf16>(y, i, value);
    case FOVEA_E4M3:
      return store_as<E4m3>(y, i, value);
    case FOVEA_E5M2:
      return store_as<E5m2>(y, i, value);
    default:
      return store_as<int8_t>(y, i, value);
  }
}

// One unit of a token: V columns of a head row.
template <class New, class Cache>
struct Wide {
  static constexpr int V = kWide<New, Cache>;
  static __device__ void move(const AppendPart& part, int64_t from, int64_t to, const Turn& turn,
                              int64_t unit, float scale) {
    append_unit<V, false>(part, turn, unit, part.fresh.as<New>() + from,
                          part.cache.as<Cache>() + to, 1, scale);
  }
};

// One column, of types known at run time.
struct Narrow {
  static constexpr int V = 1;
  static __device__ void move(const AppendPart& part, int64_t from, int64_t to, const Turn& turn,
                              int64_t unit, float scale) {
    const void* x = part.fresh.data;
    void* y = part.cache.data;
    const int64_t step_x = part.fresh.stride[3], step_y = part.cache.stride[3];
    const auto read = [&](int64_t c, float(&value)[1]) {
      value[0] = load(x, part.fresh_dtype, from + c * step_x);
    };
    const auto write = [&](int64_t c, const float(&value)[1]) {
      store(y, part.cache_dtype, to + c * step_y, value[0]);
    };
    // As bits: a NaN keeps its payload.
    const auto copy = [&](int64_t c) {
      if (part.fresh_dtype != part.cache_dtype) return false;
      const int64_t i = from + c * step_x, j = to + c * step_y;
      if (part.fresh_dtype == FOVEA_F32)
        static_cast<uint32_t*>(y)[j] = static_cast<const uint32_t*>(x)[i];
      else
        static_cast<uint16_t*>(y)[j] = static_cast<const uint16_t*>(x)[i];
      return true;
    };
    append_columns<1>(part, turn, unit, scale, read, write, copy);
  }
};

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    append_kernel(const __grid_constant__ Append a, bool with_k, bool with_v, int lanes) {
  const int64_t units_k = units_of(a.k, with_k, Unit::V);
  const int64_t units = units_k + units_of(a.v, with_v, Unit::V);
  const int64_t slots = a.slots, tokens = kThreads / lanes;
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
      const AppendPart& part = keys ? a.k : a.v;
      const int64_t number = keys ? w : w - units_k;
      const int64_t row = row_units(part.rope, part.width, Unit::V);
      const int64_t head = quotient(number, row);
      Unit::move(part, fresh_offset(part, to) + head * part.fresh.stride[2],
                 (keys ? offset_k : offset_v) + head * part.cache.stride[2], turn,
                 number - head * row, scale_of(part, head));
    }
  }
}

template <class New>
__global__ void __launch_bounds__(kThreads)
    append_row_kernel(const __grid_constant__ Append a, bool keys) {
  const AppendPart& part = keys ? a.k : a.v;
  const int lane = threadIdx.x % kLanes;
  const int64_t units = row_units(part.rope, part.width, 1);
  const int64_t rows = a.slots * part.heads;
  for (int64_t w = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / kLanes; w < rows;
       w += int64_t{gridDim.x} * (kThreads / kLanes)) {
    const int64_t slot = quotient(w, part.heads), head = w - slot * part.heads;
    const AppendToken to = append_token(a, slot);
    if (to.number < 0) continue;
    const int64_t offset = cache_offset(a, part, to);
    if (offset < 0) continue;
    const New* x = part.fresh.as<New>() + fresh_offset(part, to) + head * part.fresh.stride[2];
    const int64_t y = offset + head * part.cache.stride[2];
    double factor = 1;
    if (part.norm_weight) {
      double squares = lane_squares(part, x, lane);
      for (int step = kLanes / 2; step; step /= 2)
        squares += __shfl_xor_sync(0xffffffffu, squares, step);
      factor = norm_factor(part, squares);
    }
    Turn turn{};
    if (part.rope.cos) turn = turn_at(part.rope, to.position, 1);
    const auto read = [&](int64_t c, float(&value)[1]) {
      value[0] = normed(part, to_float(x[c * part.fresh.stride[3]]), c, factor);
    };
    const auto write = [&](int64_t c, const float(&value)[1]) {
      store(part.cache.data, part.cache_dtype, y + c * part.cache.stride[3], value[0]);
    };
    if (part.scale_out) {
      const auto most = [](float amax) {
        for (int step = kLanes / 2; step; step /= 2)
          amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
        return amax;
      };
      append_scaled(part, turn, lane, kLanes, scale_row(a, part, to, head), read, most,
                    [&](int64_t c, float value) {
                      const float one[1] = {value};
                      write(c, one);
                    });
      continue;
    }
    for (int64_t unit = lane; unit < units; unit += kLanes)
      append_columns<1>(part, turn, unit, scale_of(part, head), read, write,
                        [](int64_t) { return false; });
  }
}

__global__ void __launch_bounds__(kThreads) append_length_kernel(const __grid_constant__ Append a) {
  for (int64_t r = blockIdx.x * int64_t{kThreads} + threadIdx.x; r < a.sequences.count;
       r += int64_t{gridDim.x} * kThreads)
    a.key_len_out.as<int32_t>()[r * a.key_len_out.stride[0]] =
        static_cast<int32_t>(a.length_after(r));
}

template <class Unit>
void append_units(Context& ctx, const Append& a, bool with_k, bool with_v) {
  const int64_t work = units_of(a.k, with_k, Unit::V) + units_of(a.v, with_v, Unit::V);
  if (!work) return;
  const int lanes = lanes_of((work + 3) / 4, kThreads);
  const int64_t blocks = cuda::ceil_div(a.slots, int64_t{kThreads / lanes});
  cuda::launch<append_kernel<Unit>>(ctx, kOp, blocks, kThreads, 0, a, with_k, with_v, lanes);
}

void append_parts(Context& ctx, const Append& a, bool with_k, bool with_v) {
  const AppendPart& part = with_k ? a.k : a.v;
  with_fp(part.fresh_dtype, [&](auto fresh) {
    using New = decltype(fresh);
    if (part.norm_weight || part.scale_out) {
      if (!part.width && !part.scale_out) return;  // nothing but scales to write
      const int64_t rows = a.slots * part.heads;
      cuda::launch<append_row_kernel<New>>(
          ctx, kOp, cuda::ceil_div(rows * kLanes, int64_t{kThreads}), kThreads, 0, a, with_k);
      return;
    }
    with_cache_type(part.cache_dtype, [&](auto cache) {
      using Cache = decltype(cache);
      if ((!with_k || wide<New, Cache>(a.k)) && (!with_v || wide<New, Cache>(a.v)))
        append_units<Wide<New, Cache>>(ctx, a, with_k, with_v);
      else
        append_units<Narrow>(ctx, a, with_k, with_v);
    });
  });
}

Text offer(const Context&, const Append& a, Plan& plan) {
  const AppendPart& part = a.k ? a.k : a.v;
  plan.kernel += Text(".") + dtype_name(part.fresh_dtype) + "." + dtype_name(part.cache_dtype);
  plan.launch = [a](Context& ctx, void*) {
    const bool together = a.k && a.v && !a.k.norm_weight && !a.k.scale_out && !a.v.scale_out &&
                          a.k.fresh_dtype == a.v.fresh_dtype && a.k.cache_dtype == a.v.cache_dtype;
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
