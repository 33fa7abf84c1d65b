// SPDX-License-Identifier: Apache-2.0
// Scores of x_select_token on Hopper: of one query head's list
//   score(i, j) = scale s_j sum_n w(i, n) max(<q(i, n), k(j)>, floor)
// as keys of core/pick.h.  floor: 0 for relu_weighted, -inf for dot.  s_j: the scale of key j's
// codes.
//   A tile is 128 keys x 256 columns (row, head), head fastest: the keys are wgmma's rows, so that
//   the heads of a score lie in one thread and its three neighbours.  A work unit is a group of
//   256 / Heads rows of a list head.  Q of a unit stays in shared memory while its keys pass.
//   A block takes a run of the chunk's tiles, in the order of units and keys; runs are of one
//   length.  Warp 0 of warpgroup 0 is the producer.  The two consumer warpgroups own 64 keys each;
//   the sums of one run under the product of the other.
// Shared memory: two tiles of Q, three or four of K, and what the rows of a unit see.
//
//   barrier          arrives                    waits             guards
//   q_full, k_full   TMA's bytes                consumer          a stage of Q, of K
//   q_empty, k_empty a lane of each of 8 warps  producer          the same stage
//   named 1 + n      warpgroup n                warpgroup n       what its unit's rows see
//   named 3 + n      the other warpgroup        warpgroup n       ping-pong: its turn to multiply
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/launch.h"
#include "cuda/tile/mma_sm90.cuh"
#include "cuda/tile/order.cuh"
#include "ops/select/score_product_sm90.cuh"

namespace fovea::cuda {

// What a row may select: keys [low, high) and [first_low, first_high).
struct TokenSeen90 {
  int low, high, first_low, first_high;
  int64_t at;
};

// A warpgroup's unit, in shared memory.
template <int Rows>
struct TokenUnit90 {
  int64_t key_batch;
  const uint8_t* mask;  // of the first row
  int key_begin, keys, key_head;
  TokenSeen90 seen[Rows];
  // Of lane t of four: heads 16 n + 2 t, + 1, + 8, + 9 of a row.
  alignas(16) float4 weight[Rows][kTokenSums / Rows / 16][4];
};

template <int Dtype, int D, int Heads>
struct TokenShape90 : ScoreShape90<Dtype, D, Heads, TokenUnit90> {};

// ---- the producer, a warp

template <class Shape>
__device__ __forceinline__ void copy_tokens(const TokenScores90& call, const TokenMaps90& maps,
                                            const TokenSpan90& span, TokenRings90<Shape> rings) {
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  const int lane = threadIdx.x % 32;
  TokenWalk90 walk(call, span);
  TokenGroup group;
#pragma unroll 1
  for (; walk.open(group); walk.close()) {
    const Sequence& q = group.sequence;
    sm90::barrier_wait(rings.q_empty(), rings.q_at.phase ^ 1);
    if (lane == 0) {
      sm90::barrier_expect(rings.q_full(), TileQ::bytes);
#pragma unroll
      for (int panel = 0; panel < TileQ::panels; ++panel)
        sm90::tma_load_box(rings.q() + panel * TileQ::panel_bytes, maps.q, rings.q_full(),
                           panel * TileQ::box, walk.first_head(),
                           static_cast<int>(q.row_begin + group.first), static_cast<int>(q.batch));
    }
    rings.q_at.next();
    const int head = walk.key_head();
#pragma unroll 1
    for (int tile = walk.tile; tile < walk.last; ++tile) {
      const TokenBox90 box = box_of(call, q, tile);
      sm90::barrier_wait(rings.k_empty(), rings.k_at.phase ^ 1);
      if (lane == 0) sm90::barrier_expect(rings.k_full(), TileK::bytes);
      __syncwarp();
      if (lane < call.boxes) {
#pragma unroll
        for (int panel = 0; panel < TileK::panels; ++panel)
          sm90::tma_load_box(
              rings.k() + panel * TileK::panel_bytes + lane * call.box_keys * TileK::row_bytes,
              maps.k, rings.k_full(), panel * TileK::box, box.row, head, box.batch);
      }
      rings.k_at.next();
    }
  }
}

// ---- a consumer warpgroup

template <class Shape>
struct TokenConsumer90 : ScoreProduct90<Shape> {
  using Base = ScoreProduct90<Shape>;
  using Base::group, Base::rings, Base::left, Base::x, Base::N, Base::kTurn;
  using Base::release, Base::product, Base::own_key;
  static constexpr int Heads = Shape::Heads, Rows = Shape::Rows;
  static constexpr int HeadGroups = Heads / 8;
  using Unit = typename Shape::Unit;
  const TokenScores90& call;
  Unit& unit;
  // Of the unit: keys [full_begin, full_end) can be selected by every row.
  int full_begin, full_end;
  int rows;
  uint32_t* to;  // the lane's first row
  float scale[2];
  bool present[2];

  __device__ TokenConsumer90(const TokenScores90& call, Unit& unit, int group,
                             const TokenRings90<Shape>& rings)
      : Base(group, rings), call(call), unit(unit) {}

  __device__ __forceinline__ void run(const TokenSpan90& span) {
    TokenWalk90 walk(call, span);
    TokenGroup at;
    left = span.tiles;
    if (group == 1 && left > 0) sm90::named_barrier_arrive(kTurn, 256);
#pragma unroll 1
    for (; walk.open(at); walk.close()) {
      open(walk, at);
      sm90::barrier_wait(rings.q_full(), rings.q_at.phase);
#pragma unroll 1
      for (int tile = walk.tile; tile < walk.last; ++tile) {
        sm90::barrier_wait(rings.k_full(), rings.k_at.phase);
        product();
        find_keys(tile * kTokenKeys);
        sm90::wait<0>();
        sm90::pin(x);
        release(rings.k_empty());
        rings.k_at.next();
        if (tile + 1 == walk.last) release(rings.q_empty());
        take(tile * kTokenKeys);
      }
      rings.q_at.next();
    }
  }

 private:
  // What the warpgroup's scores ask of a unit.
  __device__ __forceinline__ void open(const TokenWalk90& walk, const TokenGroup& at) {
    const SelectToken& a = call.a;
    const Sequence& q = at.sequence;
    const int thread = threadIdx.x % 128;
    rows = static_cast<int>(at.rows);
    sm90::named_barrier_sync(1 + group, 128);
    if (thread < rows) {
      const TokenRow own = a.row(q, at.first + thread);
      const auto key = [](int64_t x) { return static_cast<int>(x); };
      unit.seen[thread] = {key(own.seen.low), key(own.seen.high), key(own.seen.first_low),
                           key(own.seen.first_high), own.at};
      unit.mask = a.mask_row(q, walk.list(), at.first);
      unit.key_batch = q.key_batch, unit.key_begin = static_cast<int>(q.key_begin);
      unit.keys = static_cast<int>(q.keys), unit.key_head = walk.key_head();
    }
    for (int m = thread; m < kTokenSums; m += 128) {
      const int i = m / Heads, n = m % Heads;
      float* const of = &unit.weight[i][n / 16][n % 8 / 2].x;
      of[n % 16 / 8 * 2 + n % 2] =
          i < rows && n < a.group() ? a.weight_of(q, at.first + i, walk.first_head() + n) : 0.f;
    }
    sm90::named_barrier_sync(1 + group, 128);
    int64_t begin = unit.seen[rows - 1].low, end = unit.seen[0].high;
    if (begin < a.first_keys) begin = a.first_keys;
    if (a.last_keys) {
      const int64_t from = a.attend.mask.axis.from(unit.seen[0].at - a.last_keys + 1);
      if (end > from) end = from;
    }
    if (a.block_mask || end < 0) end = 0;
    full_begin = static_cast<int>(begin < INT32_MAX ? begin : INT32_MAX);
    full_end = static_cast<int>(end);
    to =
        call.key + (int64_t{walk.unit} * call.rows_each + threadIdx.x % 4) * call.pitch + own_key();
  }
  // The scales of the lane's two keys, and whether their pages are there.
  __device__ __forceinline__ void find_keys(int tile) {
    const Attend& at = call.a.attend;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scale[half] = 1.f, present[half] = true;
      if (!at.sequences.page && !at.k_scale) continue;
      int row = unit.key_begin + min(tile + own_key() + 8 * half, unit.keys - 1);
      int64_t batch = unit.key_batch;
      if (at.sequences.page) {
        const int page = static_cast<int>(at.sequences.page), number = row / page;
        batch = *at.sequences.page_table.template at<int32_t>(batch, number);
        row -= number * page;
        present[half] = batch >= 0 && batch < at.sequences.pool;
      }
      if (at.k_scale && present[half]) scale[half] = *at.k_scale.at(batch, row, unit.key_head);
    }
  }

  __device__ __forceinline__ bool selects(int row, int key) const {
    const SelectToken& a = call.a;
    const TokenSeen90& own = unit.seen[row];
    TokenRow at;
    at.seen = {own.low, own.high, own.first_low, own.first_high}, at.at = own.at;
    return a.selects(at, key) &&
           (!unit.mask || a.allows(unit.mask + row * a.block_mask.stride[2], key));
  }

  // Columns past the list head's heads are 0 in Q, but their products with infinities are NaN.
  __device__ __forceinline__ void drop_absent(int heads) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (j % HeadGroups * 8 + threadIdx.x % 4 * 2 + c % 2 >= heads) x[j][c] = 0.f;
  }
  __device__ __forceinline__ void take(int tile) {
    const SelectToken& a = call.a;
    if (a.attend.k_scale && __any_sync(~0u, scale[0] < 0.f || scale[1] < 0.f)) {
      const float sign[2] = {scale[0] < 0.f ? -1.f : 1.f, scale[1] < 0.f ? -1.f : 1.f};
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) x[j][c] *= sign[c / 2];
      scale[0] = fabsf(scale[0]), scale[1] = fabsf(scale[1]);
    }
    if (a.group() < Heads) drop_absent(static_cast<int>(a.group()));
    const float floor = a.measure == FOVEA_X_SELECT_SCORE_RELU_WEIGHTED ? 0.f : -INFINITY;
    float sum[Rows][2];
#pragma unroll
    for (int i = 0; i < Rows; ++i) sum[i][0] = sum[i][1] = 0.f;
      // Heads ascend in each sum; rows are in turn, so that sums do not wait for themselves.
#pragma unroll
    for (int n = 0; n < HeadGroups; n += 2)
#pragma unroll
      for (int i = 0; i < Rows; ++i) {
        const float4 of = unit.weight[i][n / 2][threadIdx.x % 4];
        const float weight[4] = {of.x, of.y, of.z, of.w};
#pragma unroll
        for (int m = 0; m < 8; ++m) {
          const int c = m % 4;
          sum[i][c / 2] = fmaf(weight[m / 4 * 2 + c % 2],
                               max_or_nan(x[i * HeadGroups + n + m / 4][c], floor), sum[i][c / 2]);
        }
      }
    // Lane t of four adds up rows t, t + 4, ...
    const bool full = tile >= full_begin && tile + kTokenKeys <= full_end;
#pragma unroll
    for (int m = 0; m < Rows / 4; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float all = Base::quad_row(sum, 4 * m, half);
        if (a.attend.k_scale) all = __fmul_rn(scale[half], all);
        all = __fmul_rn(a.scale, all);
        if (a.reduce == FOVEA_X_SELECT_REDUCE_MEAN)
          all = __fdiv_rn(all, static_cast<float>(a.group()));
        const int row = 4 * m + threadIdx.x % 4;
        if (row >= rows) continue;
        uint32_t key = pick_key(all);
        if (!present[half] || !(full || selects(row, tile + own_key() + 8 * half))) key = 0;
        to[4 * m * call.pitch + tile + 8 * half] = key;
      }
  }
};

template <class Shape>
__global__ void __launch_bounds__(kTokenThreads, 1)
    token_scores_sm90(const __grid_constant__ TokenScores90 call,
                      const __grid_constant__ TokenMaps90 maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto* const units = reinterpret_cast<typename Shape::Unit*>(shared + Shape::units);
  pdl_trigger();
  const TokenRings90<Shape> rings{shared_address(shared), {}, {}};
  if (threadIdx.x == 0) {
    sm90::prefetch_map(maps.q), sm90::prefetch_map(maps.k);
    rings.init();
  }
  static_assert(sizeof(TokenSpanShared90<>) <= sizeof(typename Shape::Unit));
  const TokenSpan90 span = find_span(call, *reinterpret_cast<TokenSpanShared90<>*>(units));
  __syncthreads();  // a unit takes its place
  const int group = sm90::uniform(threadIdx.x / 128) - 1;
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (threadIdx.x >= 32) return;
    copy_tokens<Shape>(call, maps, span, rings);
    // The list kernel that read these keys' memory before has ended when this one does.
    pdl_wait();
    return;
  }
  sm90::setmaxnreg_inc<Shape::consumer_regs>();
  TokenConsumer90<Shape>(call, units[group], group, rings).run(span);
}

template <int Dtype, int D, int Heads>
TokenInstance90 select_token_sm90_instance() {
  using Shape = TokenShape90<Dtype, D, Heads>;
  return {Dtype, D, Heads,
          [](Context& ctx, const TokenScores90& call, const TokenMaps90& maps, bool behind) {
            constexpr const char* op = "x_select_token";
            const int64_t blocks = device_info(ctx).multiprocessors;
            if (behind)
              launch_pdl<token_scores_sm90<Shape>>(ctx, op, blocks, kTokenThreads,
                                                   Shape::shared_bytes, call, maps);
            else
              launch<token_scores_sm90<Shape>>(ctx, op, blocks, kTokenThreads, Shape::shared_bytes,
                                               call, maps);
          }};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, heads) \
  template fovea::cuda::TokenInstance90 fovea::cuda::select_token_sm90_instance<dtype, d, heads>();
