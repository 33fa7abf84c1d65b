// SPDX-License-Identifier: Apache-2.0
// x_kv_append in the format of tiles: a block owns a tile of keys or of values on its way into a
// page.  Of its numbers x, columns of factor c and lines of factor l
//   c = next(c, dev(x / l)) of each column,  l = next(l, dev(x / c)) of each line
// in kTilePasses passes; a thread owns a column or a line, whose numbers it sums in order.  Then a
// thread owns a line: x / f16(c) is quantised.
//
// Shared memory: the 16-bit numbers of the tile, where they fit, else they are read where they lie.
// Tokens are rows of an odd number of words.  Then c, l, reciprocals, deviations and the best c.
// First tokens follow, and then tails and counters, of append.cu.
#include <algorithm>

#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/tile/order.cuh"
#include "ops/kv/append_tiles_item.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kv_append";
constexpr int kThreads = 256;
constexpr int kVectors = 7;

struct Tiles {
  KvAppend a;
  int pitch;  // numbers from a token to the next in shared memory; 0: the tile is not there
  int most;   // of a vector
};

// Numbers of a tile in use.
struct Numbers {
  const Tiles& plan;
  const KvAppend::Turn& turn;
  const kv::Tile& tile;
  const uint16_t* held;

  __device__ float at(int token, int channel) const {
    const kv::Cache& c = plan.a.cache;
    return kv::to_number(c, plan.pitch ? held[token * plan.pitch + channel]
                                       : *kv::tile_element(plan.a, turn, tile, token, channel));
  }
  __device__ float at_line(int line, int column) const {
    return tile.keys ? at(column, line) : at(line, column);
  }
};

// dev[m] of number(n, m) weight[n], n < count: a thread owns m.
template <class Number>
__device__ void deviations(int count, int width, const float* weight, float* dev,
                           const Number& number) {
  for (int m = threadIdx.x; m < width; m += kThreads) {
    float sum = 0;
    for (int n = 0; n < count; ++n) sum = __fadd_rn(sum, __fmul_rn(number(n, m), weight[n]));
    const float mean = __fdiv_rn(sum, static_cast<float>(count));
    float squares = 0;
    for (int n = 0; n < count; ++n) {
      const float off = __fsub_rn(__fmul_rn(number(n, m), weight[n]), mean);
      squares = __fadd_rn(squares, __fmul_rn(off, off));
    }
    dev[m] = __fsqrt_rn(__fdiv_rn(squares, static_cast<float>(count - 1)));
  }
}

// The spread of dev / factor, by a warp.
__device__ float spread(int count, const float* dev, const float* factor) {
  const int lane = threadIdx.x % 32;
  kv::Spread all(__fdiv_rn(dev[0], factor[0]));
  for (int m = lane; m < count; m += 32) all.add(__fdiv_rn(dev[m], factor[m]));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float largest = __shfl_xor_sync(~0u, all.largest, step);
    const float smallest = __shfl_xor_sync(~0u, all.smallest, step);
    all.add(largest), all.add(smallest);
  }
  return all.ratio();
}

__global__ void __launch_bounds__(kThreads)
    tiles_kernel(const __grid_constant__ Tiles plan, int64_t items, int64_t work) {
  extern __shared__ float shared[];
  __shared__ float score[2];
  pdl_wait();
  const KvAppend& a = plan.a;
  const kv::Cache& c = a.cache;
  const int most = plan.most, warp = threadIdx.x / 32;
  float *column = shared, *line = column + most, *over_column = line + most;
  float *over_line = over_column + most, *column_dev = over_line + most;
  float *line_dev = column_dev + most, *best = line_dev + most;
  uint16_t* held = reinterpret_cast<uint16_t*>(best + most);
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t r = quotient(w, items);
    const KvAppend::Turn t = a.turn(r);
    kv::Tile tile;
    if (t.row < 0 || !kv::find_tile(a, t, w - r * items, tile)) continue;
    const int columns = static_cast<int>(tile.columns(c)), lines = static_cast<int>(tile.lines(c));
    const int width = static_cast<int>(tile.width(c));
    const Numbers x{plan, t, tile, held};
    __syncthreads();  // the tile before is done with
    for (int i = threadIdx.x; plan.pitch && i < c.group * width; i += kThreads) {
      const int n = i / width, channel = i - n * width;
      held[n * plan.pitch + channel] = *kv::tile_element(a, t, tile, n, channel);
    }
    for (int m = threadIdx.x; m < columns; m += kThreads) column[m] = over_column[m] = best[m] = 1;
    for (int n = threadIdx.x; n < lines; n += kThreads) line[n] = over_line[n] = 1;
    __syncthreads();
    const auto of_columns = [&] {
      deviations(lines, columns, over_line, column_dev,
                 [&](int n, int m) { return x.at_line(n, m); });
    };
    const auto of_lines = [&] {
      deviations(columns, lines, over_column, line_dev,
                 [&](int m, int n) { return x.at_line(n, m); });
    };
    const auto both = [&] {  // of all deviations, for every thread
      __syncthreads();
      if (warp == 0) {
        const float of = spread(columns, column_dev, column);
        if (threadIdx.x == 0) score[0] = of;
      } else if (warp == 1) {
        const float of = spread(lines, line_dev, line);
        if (threadIdx.x == 32) score[1] = of;
      }
      __syncthreads();
      return __fadd_rn(score[0], score[1]);
    };
    of_columns(), of_lines();
    float least = both();
    for (int pass = 0; pass < kv::kTilePasses && least == least; ++pass) {
      for (int m = threadIdx.x; m < columns; m += kThreads) {
        column[m] = kv::next_factor(column[m], column_dev[m]);
        over_column[m] = __fdiv_rn(1, column[m]);
      }
      __syncthreads();
      of_lines();  // a thread owns its lines
      for (int n = threadIdx.x; n < lines; n += kThreads) {
        line[n] = kv::next_factor(line[n], line_dev[n]);
        over_line[n] = __fdiv_rn(1, line[n]);
      }
      __syncthreads();
      of_columns();
      const float now = both();
      if (!(now <= least)) continue;
      least = now;
      for (int m = threadIdx.x; m < columns; m += kThreads) best[m] = column[m];
    }
    for (int m = threadIdx.x; m < columns; m += kThreads) {
      const F16 factor = from_float<F16>(best[m]);
      *tile.factor(c, m) = factor, best[m] = to_float(factor);
    }
    __syncthreads();
    for (int n = threadIdx.x; n < lines; n += kThreads)
      kv::put_line(c, tile, n, [&](int m) { return __fdiv_rn(x.at_line(n, m), best[m]); });
  }
}

__global__ void __launch_bounds__(kThreads)
    firsts_kernel(const __grid_constant__ KvAppend a, int64_t most, int64_t work) {
  pdl_wait();
  const int64_t columns = max(a.cache.d, a.cache.e);
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t r = quotient(w, most), n = w - r * most;
    const KvAppend::Turn t = a.turn(r);
    if (t.row < 0) continue;
    for (int64_t i = threadIdx.x; i < a.cache.g * columns; i += kThreads) {
      const int64_t head = quotient(i, columns);
      kv::to_firsts(a, t, n, head, i - head * columns);
    }
  }
}

int64_t shared_bytes(const Tiles& plan) {
  const int64_t vectors = int64_t{kVectors} * plan.most * 4;
  return vectors + int64_t{plan.a.cache.group} * plan.pitch * 2;
}

void append(Context& ctx, const Tiles& plan) {
  const KvAppend& a = plan.a;
  const int64_t count = a.sequences.count, items = a.tile_items();
  launch_pdl<tiles_kernel>(ctx, kOp, count * items, kThreads, shared_bytes(plan), plan, items,
                           count * items);
  if (const int64_t firsts = a.firsts_most())
    launch_pdl<firsts_kernel>(ctx, kOp, count * firsts, kThreads, 0, a, firsts, count * firsts);
  append_tails(ctx, a);
}

Text prepare(const Context& ctx, const KvAppend& a, Plan& plan) {
  const kv::Cache& c = a.cache;
  const int64_t width = std::max(c.d, c.e), most = std::max<int64_t>(width, c.group);
  const int64_t has = device_info(ctx).shared_block_bytes - 64;
  // Vectors need 28 bytes of each; a far greater extent is refused before it is an int.
  if (most > 65536) return reason("the larger of d, e and group", most, "at most 65536");
  Tiles p{a, static_cast<int>((width + 1) / 2 | 1) * 2, static_cast<int>(most)};
  if (shared_bytes(p) > has) p.pitch = 0;
  if (shared_bytes(p) > has) return reason_shared(shared_bytes(p), has);
  plan.launch = [p](Context& ctx, void*) { append(ctx, p); };
  return Text();
}

}  // namespace
}  // namespace cuda

extern const Kernel<KvAppend> kv_append_tiles_simt = {"simt", cuda::prepare};

}  // namespace fovea
