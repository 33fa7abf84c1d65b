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
#include "cuda/launch.h"
#include "cuda/tile/mma_sm90.cuh"
#include "cuda/tile/order.cuh"
#include "ops/select/token_scores.cuh"

namespace fovea::cuda {

template <int Dtype, int Rows, int D>
struct TokenTile90 : Swizzled<Rows, D> {
  static constexpr int box = 64, row_bytes = kPanelRowBytes;
  __device__ static uint64_t descriptor(uint32_t address) { return sm90::descriptor(address); }
};
template <int Rows, int D>
struct TokenTile90<FOVEA_E4M3, Rows, D> : sm90::Bytes<Rows, D, D> {
  static constexpr int box = D, row_bytes = D;
};

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

template <int Dtype_, int D_, int Heads_>
struct TokenShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Heads = Heads_, Rows = kTokenSums / Heads;
  using TileQ = TokenTile90<Dtype, kTokenSums, D>;
  using TileK = TokenTile90<Dtype, kTokenKeys, D>;
  static constexpr int QStages = 2, Stages = TileK::bytes > 16 * 1024 ? 3 : 4, warps = 8;
  static constexpr int producer_regs = 56, consumer_regs = 224;
  static constexpr int keys = QStages * TileQ::bytes, barriers = keys + Stages * TileK::bytes;
  // Behind the barriers: each warpgroup's unit; before them what find_span needs.
  using Unit = TokenUnit90<Rows>;
  static constexpr int units = barriers + 16 * (QStages + Stages);
  static constexpr int shared_bytes = units + 2 * static_cast<int>(sizeof(Unit));
  static_assert(shared_bytes <= 227 * 1024);
};

template <class Shape>
struct TokenRings90 {
  uint32_t base;
  sm90::PipelineState<Shape::QStages> q_at;
  sm90::PipelineState<Shape::Stages> k_at;
  __device__ uint32_t q() const { return base + q_at.stage * Shape::TileQ::bytes; }
  __device__ uint32_t k() const { return base + Shape::keys + k_at.stage * Shape::TileK::bytes; }
  __device__ uint32_t q_full() const { return base + Shape::barriers + q_at.stage * 16; }
  __device__ uint32_t q_empty() const { return q_full() + 8; }
  __device__ uint32_t k_full() const {
    return base + Shape::barriers + Shape::QStages * 16 + k_at.stage * 16;
  }
  __device__ uint32_t k_empty() const { return k_full() + 8; }
  __device__ void init() const {
    TokenRings90 at{base, {}, {}};
    for (; at.q_at.phase == 0; at.q_at.next())
      sm90::barrier_init(at.q_full(), 1), sm90::barrier_init(at.q_empty(), Shape::warps);
    for (; at.k_at.phase == 0; at.k_at.next())
      sm90::barrier_init(at.k_full(), 1), sm90::barrier_init(at.k_empty(), Shape::warps);
    sm90::barrier_init_done();
  }
};

// ---- which tiles a block owns

__device__ inline int tiles_of(const TokenScores90& call, const TokenGroup& group) {
  if (group.rows <= 0) return 0;
  const TokenRow row = call.a.row(group.sequence, group.first + group.rows - 1);
  return static_cast<int>((row.high + kTokenKeys - 1) / kTokenKeys);
}
__device__ inline TokenGroup group_of(const TokenScores90& call, int unit) {
  return call.groups.at(call.a.attend.sequences, call.first + unit / static_cast<int>(call.a.x));
}

// A run of tiles.
struct TokenSpan90 {
  int unit, tile;
  int64_t tiles;
};

struct TokenSpanShared90 {
  int64_t warp_sum[kTokenThreads / 32];
  TokenSpan90 span;
};

// The block's run of equally long ones; called by all threads.
__device__ inline TokenSpan90 find_span(const TokenScores90& call, TokenSpanShared90& s) {
  const int each = (call.units + kTokenThreads - 1) / kTokenThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, call.units);
  const int end = min(begin + each, call.units), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t own = 0;
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit) own += tiles_of(call, group_of(call, unit));
  int64_t sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int64_t other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) s.warp_sum[warp] = sum;
  __syncthreads();
  int64_t before = sum - own, all = 0;
  for (int w = 0; w < kTokenThreads / 32; ++w) {
    if (w < warp) before += s.warp_sum[w];
    all += s.warp_sum[w];
  }
  const int64_t from = all * blockIdx.x / gridDim.x, to = all * (blockIdx.x + 1) / gridDim.x;
  if (threadIdx.x == 0) s.span = {0, 0, 0};
  __syncthreads();
  if (from < to && before <= from && from < before + own) {
    int unit = begin;
    int64_t at = from - before;
    for (;; ++unit) {
      const int tiles = tiles_of(call, group_of(call, unit));
      if (at < tiles) break;
      at -= tiles;
    }
    s.span = {unit, static_cast<int>(at), to - from};
  }
  __syncthreads();
  return s.span;
}

// The units of a run, and of each the tiles [tile, last).
struct TokenWalk90 {
  const TokenScores90& call;
  int unit, tile, last;
  int64_t left;

  __device__ TokenWalk90(const TokenScores90& call, const TokenSpan90& span)
      : call(call), unit(span.unit), tile(span.tile), last(0), left(span.tiles) {}
  // The next unit that has tiles of the run; false: there is none.
  __device__ __forceinline__ bool open(TokenGroup& group) {
#pragma unroll 1
    for (; left > 0 && unit < call.units; ++unit, tile = 0) {
      group = group_of(call, unit);
      const int tiles = tiles_of(call, group);
      if (tile >= tiles) continue;
      last = static_cast<int>(tile + left < tiles ? tile + left : tiles);
      return true;
    }
    return false;
  }
  __device__ void close() {
    left -= last - tile, tile = 0, ++unit;
  }
  __device__ int list() const {
    return unit % static_cast<int>(call.a.x);
  }
  __device__ int first_head() const {
    return list() * static_cast<int>(call.a.group());
  }
  __device__ int key_head() const {
    return first_head() / static_cast<int>(call.a.key_group());
  }
};

// ---- the producer, a warp

template <class Shape>
__device__ __forceinline__ void copy_tokens(const TokenScores90& call, const TokenMaps90& maps,
                                            const TokenSpan90& span, TokenRings90<Shape> rings) {
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  const int lane = threadIdx.x % 32;
  const Sequences& sequences = call.a.attend.sequences;
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
      const int key = tile * kTokenKeys + lane * call.box_keys;
      int row = static_cast<int>(q.key_begin) + key, batch = static_cast<int>(q.key_batch);
      if (sequences.page && lane < call.boxes) {
        const int page = static_cast<int>(sequences.page), number = row / page;
        batch = key < q.keys ? *sequences.page_table.at<int32_t>(q.key_batch, number) : -1;
        if (batch < 0 || batch >= sequences.pool) batch = -1;
        row -= number * page;
      }
      sm90::barrier_wait(rings.k_empty(), rings.k_at.phase ^ 1);
      if (lane == 0) sm90::barrier_expect(rings.k_full(), TileK::bytes);
      __syncwarp();
      if (lane < call.boxes) {
#pragma unroll
        for (int panel = 0; panel < TileK::panels; ++panel)
          sm90::tma_load_box(
              rings.k() + panel * TileK::panel_bytes + lane * call.box_keys * TileK::row_bytes,
              maps.k, rings.k_full(), panel * TileK::box, row, head, batch);
      }
      rings.k_at.next();
    }
  }
}

// ---- a consumer warpgroup

// max(x, floor) that keeps NaN.
__device__ __forceinline__ float not_below(float x, float floor) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(floor));
  return y;
}

template <class Shape>
struct TokenConsumer90 {
  static constexpr int Heads = Shape::Heads, Rows = Shape::Rows, N = kTokenSums / 8;
  static constexpr int HeadGroups = Heads / 8, Each = Rows / 4;  // Each: rows of a lane's scores
  static constexpr int kTurn = 3;
  using Unit = typename Shape::Unit;
  const TokenScores90& call;
  Unit& unit;
  const int group;
  TokenRings90<Shape> rings;
  int64_t left = 0;  // tiles to come
  float x[N][4];
  // Of the unit: keys [full_begin, full_end) can be selected by every row.
  int full_begin, full_end;
  int rows;
  uint32_t* to;  // the lane's first row
  float scale[2];
  bool present[2];

  __device__ TokenConsumer90(const TokenScores90& call, Unit& unit, int group,
                             const TokenRings90<Shape>& rings)
      : call(call), unit(unit), group(group), rings(rings) {}

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
  __device__ __forceinline__ void release(uint32_t barrier) const {
    if (threadIdx.x % 32 == 0) sm90::barrier_arrive(barrier);
  }
  template <int From, int To>
  __device__ __forceinline__ void steps(uint64_t keys, uint64_t rows) {
    using TileQ = typename Shape::TileQ;
    using TileK = typename Shape::TileK;
#pragma unroll
    for (int k = From; k < To; ++k)
      if constexpr (Shape::Dtype == FOVEA_E4M3)
        sm90::Wgmma<Shape::Dtype, kTokenSums>::ss(x, keys + TileK::step(k), rows + TileQ::step(k),
                                                  k != 0);
      else
        sm90::Wgmma<Shape::Dtype, kTokenSums>::template ss<0>(
            x, keys + k / 4 * (TileK::panel_bytes / 16) + k % 4 * 2,
            rows + k / 4 * (TileQ::panel_bytes / 16) + k % 4 * 2, k != 0);
    sm90::commit();
  }
  // The warpgroup's product, of which the last quarter is in flight when it ends; the other's may
  // follow then.
  __device__ __forceinline__ void product() {
    using TileQ = typename Shape::TileQ;
    using TileK = typename Shape::TileK;
    constexpr int Steps = Shape::D / (Shape::Dtype == FOVEA_E4M3 ? 32 : 16);
    const uint64_t keys = TileK::descriptor(rings.k() + group * 64 * TileK::row_bytes);
    const uint64_t rows = TileQ::descriptor(rings.q());
    // The first step overwrites x: its registers are free until then.
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) asm volatile("" : "=f"(x[j][c]));
    sm90::named_barrier_sync(kTurn + group, 256);
    sm90::fence();
    steps<0, Steps - Steps / 4 - (Steps < 4)>(keys, rows);
    steps<Steps - Steps / 4 - (Steps < 4), Steps>(keys, rows);
    sm90::wait<1>();
    if (--left > 0 || group == 0) sm90::named_barrier_arrive(kTurn + 1 - group, 256);
  }
  // The lane's first key of a tile, which has another 8 on.
  __device__ __forceinline__ int own_key() const {
    return group * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  }

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
                               not_below(x[i * HeadGroups + n + m / 4][c], floor), sum[i][c / 2]);
        }
      }
    // Lane t of four adds up rows t, t + 4, ...
    const bool low = threadIdx.x & 1, high = threadIdx.x & 2;
    const bool full = tile >= full_begin && tile + kTokenKeys <= full_end;
#pragma unroll
    for (int m = 0; m < Each; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float pair[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float a0 = sum[4 * m + n][half], a1 = sum[4 * m + 2 + n][half];
          pair[n] = (high ? a1 : a0) + __shfl_xor_sync(~0u, high ? a0 : a1, 2);
        }
        float all = (low ? pair[1] : pair[0]) + __shfl_xor_sync(~0u, low ? pair[0] : pair[1], 1);
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
  static_assert(sizeof(TokenSpanShared90) <= sizeof(typename Shape::Unit));
  const TokenSpan90 span = find_span(call, *reinterpret_cast<TokenSpanShared90*>(units));
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
