// SPDX-License-Identifier: Apache-2.0
// x_project's products on Hopper: C = A B, z times, sums in f32, operands by TMA.
// A block owns tiles of Rows x Columns elements of C, one after the other.  A producer thread loads
// steps of 64 terms of A and B, also those of the tiles to come.  Two consumer warpgroups multiply
// a tile: each half of its rows, or half of its columns where it has 64 rows.
// A tile of an operand is [row][term] and [column][term], or [term][row] and [term][column] in
// panels of 64: as it lies in memory.  Terms, rows and columns past the last are zeros.
//
// Shared memory: barriers; for each warpgroup 64 rows of C on their way out; the ring of steps, A
// and B of each side by side.  A block with few steps takes no more of the ring than those.
//
//   | barrier      | who arrives          | who waits | what it guards                     |
//   | of the ring  | cuda/tile/pipeline_sm90.cuh                                           |
//   | kEmpty + n   | warpgroup n          | the same  | its rows of C, to be written       |
//   | kFilled + n  | warpgroup n          | the same  | its rows of C, to be stored by TMA |
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/order.cuh"
#include "cuda/tile/pipeline_sm90.cuh"
#include "ops/project/product.cuh"

namespace fovea::cuda {

template <int Dtype_, int Rows_, int Columns_, Turned T>
struct ProductShape90 {
  static constexpr int Dtype = Dtype_, Rows = Rows_, Columns = Columns_;
  static constexpr bool terms_a = T == Turned::a, terms_b = T != Turned::b;  // terms are rows
  // Columns of warpgroups, and a warpgroup's part in fragments of 64 rows and of 8 columns.
  static constexpr int Groups = Rows == kProductRows ? 2 : 1;
  static constexpr int M = Rows * Groups / (2 * kProductRows), N = Columns / Groups / 8;
  static constexpr int panel_bytes = kProductTerms * kPanelRowBytes;
  static constexpr int a_bytes = Rows * kPanelRowBytes;
  static constexpr int stage_bytes = a_bytes + Columns * kPanelRowBytes;
  static constexpr int Stages = 192 * 1024 / stage_bytes;
  using Out = Swizzled<kProductRows, std::min(N * 8, 128)>;
  static constexpr int warps = 8, threads = (warps + 4) * 32;
  static constexpr int producer_regs = 40, consumer_regs = 232;
  static constexpr int out = 1024, ring = out + 2 * Out::bytes;
  static constexpr int shared_bytes(int64_t steps) {
    return ring + static_cast<int>(std::min<int64_t>(steps, Stages)) * stage_bytes;
  }
  static_assert(ring + Stages * stage_bytes <= 227 * 1024);
};

struct ProductItem90 {
  int z, part, batch, row, column, begin, end;  // begin, end: steps
  __device__ ProductItem90(const ProductWork90& w, int i) {
    column = i;
    int head = w.across.split(column);
    row = w.section.split(head);
    z = w.down.split(row), part = w.sections.split(z);
    z = z * w.section.by + head, batch = w.tiles.split(row);
    begin = part * w.steps, end = min(begin + w.steps, w.all);
  }
};

template <class S>
__device__ __forceinline__ void product_feed(const ProductWork90& w, const ProductMaps90& maps,
                                             sm90::Pipeline<S::Stages> ring, uint32_t stages) {
  typename sm90::Pipeline<S::Stages>::State at;
#pragma unroll 1
  for (int i = blockIdx.x; i < w.items; i += gridDim.x) {
    const ProductItem90 item(w, i);
    const int row = item.row * S::Rows, column = item.column * S::Columns;
    int chunk = item.begin, batch = w.chunks.split(chunk);
    int head = item.z * w.heads + w.batches.split(batch);
#pragma unroll 1
    for (int step = item.begin; step < item.end; ++step, at.next()) {
      const int head_a = w.share_a.quotient(head), head_b = w.share_b.quotient(head);
      const int term = chunk * kProductTerms;
      const uint32_t to = stages + at.stage * S::stage_bytes, full = ring.full(at);
      ring.acquire(at);
      ring.expect(at, S::stage_bytes);
      if constexpr (S::terms_a) {
#pragma unroll
        for (int panel = 0; panel < S::Rows / 64; ++panel)
          sm90::tma_load_box(to + panel * S::panel_bytes, maps.a, full, row + panel * 64, term,
                             head_a, batch);
      } else {
        sm90::tma_load_box(to, maps.a, full, term, row, head_a, item.batch);
      }
      if constexpr (S::terms_b) {
#pragma unroll
        for (int panel = 0; panel < S::Columns / 64; ++panel)
          sm90::tma_load_box(to + S::a_bytes + panel * S::panel_bytes, maps.b, full,
                             column + panel * 64, term, head_b, batch);
      } else {
        sm90::tma_load_box(to + S::a_bytes, maps.b, full, term, column, head_b, 0);
      }
      if (++chunk < w.chunks.by) continue;
      chunk = 0;
      if (++batch < w.batches.by) continue;
      batch = 0, ++head;
    }
  }
}

// The warpgroup's products of a step.
template <class S>
__device__ __forceinline__ void product_step(float (&d)[S::M][S::N][4], uint64_t a, uint64_t b,
                                             bool accumulate) {
  constexpr int a_next = S::terms_a ? 128 : 2, b_next = S::terms_b ? 128 : 2;
  constexpr int a_tile = (S::terms_a ? S::panel_bytes : kProductRows * kPanelRowBytes) / 16;
#pragma unroll
  for (int k = 0; k < kProductTerms / 16; ++k)
#pragma unroll
    for (int i = 0; i < S::M; ++i)
      sm90::Wgmma<S::Dtype, S::N * 8>::template ss<S::terms_b, S::terms_a>(
          d[i], a + i * a_tile + k * a_next, b + k * b_next, accumulate || k);
}

// Where a warpgroup's 64 rows of C lie.
struct ProductPlace90 {
  int row, column, z, batch, part;
};

// Sums as they are: two columns a store.
template <int N>
__device__ __forceinline__ void product_store_sums(const ProductWork90& w,
                                                   const ProductPlace90& place,
                                                   const float (&d)[N][4]) {
  const int lane = threadIdx.x % 32, own = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = place.row + own + half * 8, first = place.column + lane % 4 * 2;
    float* const to = w.sums + place.part * w.c_part + place.z * w.c_head +
                      place.batch * w.c_batch + row * w.c_row + first;
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (row < w.rows && first + j * 8 < w.columns)
        *reinterpret_cast<float2*>(to + j * 8) = make_float2(d[j][2 * half], d[j][2 * half + 1]);
  }
}

// The columns of S::Out from fragment First on, rounded, by TMA through shared memory `out`.
template <class S, int First>
__device__ __forceinline__ void product_store(const ProductMaps90& maps, const ProductWork90& w,
                                              const ProductPlace90& place, int group, uint32_t out,
                                              const float (&d)[S::N][4]) {
  constexpr int kEmpty = 1, kFilled = 3;  // named barriers
  const bool leads = threadIdx.x % 128 == 0;
  if (leads) sm90::tma_store_wait_read<0>();
  sm90::named_barrier_sync(kEmpty + group, 128);
  const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  const uint32_t at = out + S::Out::at(warp * 16 + outer_row(lane), outer_chunk(lane));
#pragma unroll
  for (int k = 0; k < S::Out::panels * 4; ++k) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&from)[4] = d[First + 2 * k + i / 2];
      words[i] = pack<S::Dtype>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
    }
    sm90::store_matrices(S::Out::pair(at, k), words);
  }
  sm90::fence_shared();
  sm90::named_barrier_sync(kFilled + group, 128);
  if (!leads) return;
#pragma unroll
  for (int panel = 0; panel < S::Out::panels; ++panel)
    if (const int column = place.column + First * 8 + panel * 64; column < w.columns)
      sm90::tma_store_box(maps.c, out + panel * S::Out::panel_bytes, column, place.row, place.z,
                          place.batch);
  sm90::tma_store_commit();
}

template <class S>
__device__ __forceinline__ void product_sums(const ProductWork90& w, const ProductMaps90& maps,
                                             sm90::Pipeline<S::Stages> ring, uint32_t shared) {
  const int group = sm90::uniform(static_cast<int>(threadIdx.x) / 128);
  const int own_row = S::Groups == 1 ? group * S::M * kProductRows : 0;
  const int own_column = S::Groups == 1 ? 0 : group * S::N * 8;
  const uint32_t stages = shared + S::ring, out = shared + S::out + group * S::Out::bytes;
  const uint32_t own_a = own_row * kPanelRowBytes;  // a panel of 64 terms has as many bytes
  const uint32_t own_b = S::a_bytes + own_column * kPanelRowBytes;
  typename sm90::Pipeline<S::Stages>::State at, before;
  float d[S::M][S::N][4];
#pragma unroll 1
  for (int i = blockIdx.x; i < w.items; i += gridDim.x) {
    const ProductItem90 item(w, i);
#pragma unroll 1
    for (int step = item.begin; step < item.end; ++step) {
      const uint32_t stage = stages + at.stage * S::stage_bytes;
      ring.wait(at);
      sm90::fence();
      product_step<S>(d, sm90::descriptor(stage + own_a),
                      sm90::descriptor(stage + own_b, S::terms_b ? S::panel_bytes : 16),
                      step > item.begin);
      sm90::commit();
      sm90::wait<1>();
      if (step > item.begin) ring.release(before);
      before = at, at.next();
    }
    sm90::wait<0>();
#pragma unroll
    for (int m = 0; m < S::M; ++m) sm90::pin(d[m]);
    ring.release(before);
#pragma unroll
    for (int m = 0; m < S::M; ++m) {
      const ProductPlace90 place{item.row * S::Rows + own_row + m * kProductRows,
                                 item.column * S::Columns + own_column, item.z, item.batch,
                                 item.part};
      if (place.row >= w.rows) continue;
      if (w.sums) {
        product_store_sums(w, place, d[m]);
      } else {
        product_store<S, 0>(maps, w, place, group, out, d[m]);
        if constexpr (S::N > 16) product_store<S, 16>(maps, w, place, group, out, d[m]);
      }
    }
  }
  if (threadIdx.x % 128 == 0) sm90::tma_store_wait_read<0>();  // the block's memory ends
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    product_sm90(const __grid_constant__ ProductWork90 w,
                 const __grid_constant__ ProductMaps90 maps) {
  extern __shared__ __align__(1024) unsigned char s_memory[];
  const uint32_t shared = shared_address(s_memory);
  const sm90::Pipeline<S::Stages> ring{shared};
  const int warp = sm90::uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp == S::warps && sm90::elect_one()) {
    ring.init(1, S::warps);
    sm90::barrier_init_done();
    sm90::prefetch_map(maps.a), sm90::prefetch_map(maps.b);
  }
  __syncthreads();
  pdl_trigger();
  if (warp < S::warps) {
    sm90::setmaxnreg_inc<S::consumer_regs>();
    product_sums<S>(w, maps, ring, shared);
  } else {
    sm90::setmaxnreg_dec<S::producer_regs>();
    if (warp != S::warps || !sm90::elect_one()) return;
    pdl_wait();
    product_feed<S>(w, maps, ring, shared + S::ring);
  }
}

template <int Dtype, int Rows, int Columns, Turned T>
void launch_product_sm90(Context& ctx, const char* op, const ProductWork90& w,
                         const ProductMaps90& maps) {
  using Shape = ProductShape90<Dtype, Rows, Columns, T>;
  const int blocks = std::min(w.items, device_info(ctx).multiprocessors);
  launch_pdl<product_sm90<Shape>>(ctx, op, blocks, Shape::threads,
                                  Shape::shared_bytes(ceil_div(w.items, blocks) * w.steps), w,
                                  maps);
}

template <int Dtype, int Rows, int Columns>
ProductInstance90 project_product_sm90_instance() {
  constexpr auto launcher = [](Context& ctx, const char* op, Turned turned, const ProductWork90& w,
                               const ProductMaps90& maps) {
    turned == Turned::a ? launch_product_sm90<Dtype, Rows, Columns, Turned::a>(ctx, op, w, maps)
    : turned == Turned::b
        ? launch_product_sm90<Dtype, Rows, Columns, Turned::b>(ctx, op, w, maps)
        : launch_product_sm90<Dtype, Rows, Columns, Turned::neither>(ctx, op, w, maps);
  };
  return {Dtype, Rows, Columns, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, rows, columns) \
  template fovea::cuda::ProductInstance90    \
  fovea::cuda::project_product_sm90_instance<dtype, rows, columns>();
