// SPDX-License-Identifier: Apache-2.0
// Scores of x_select_token with pool_keys on Hopper: of a block of keys J and a list head
//   score(i, J) = max over j in J of scale sum_n <q(i, n), k(j)>
// as keys of core/pick.h.  The sum is over the query heads n of the list head, or a mean, or a max.
//   A tile is 256 rows (row, head), head fastest, x 128 keys.  A work unit is a group of rows under
//   up to 64 heads of a key head, so one tile of K serves all list heads of it.
//   The keys of a sum lie in one thread and its three neighbours.  A tile has one score of each row
//   for its 128 keys, or one for each pool_keys of them.
//   A block takes a run of the chunk's tiles, in the order of units and keys; runs are of one
//   length.  Warp 0 of warpgroup 0 is the producer.  Consumer warpgroup n owns rows 64 n and
//   64 n + 128 of a tile, a product each: the maxima of one run under the other.  Products of
//   which no row is in use are left out, so a decode step costs a quarter.
// Shared memory: Q of a unit, four to eight tiles of K, and what the rows of the unit see.
//
//   barrier          arrives                    waits             guards
//   q_full, k_full   TMA's bytes                consumers         Q; a stage of K, its `absent`
//   q_empty, k_empty a lane of each of 8 warps  producer          the same
//   named 1 + n      warpgroup n                warpgroup n       what its rows see
#pragma once
#include <climits>

#include "cuda/launch.h"
#include "cuda/tile/mma_sm90.cuh"
#include "cuda/tile/order.cuh"
#include "ops/select/token_blocks.cuh"
#include "ops/select/token_walk_sm90.cuh"

namespace fovea::cuda {

// What a row may select: [low, high) and [first_low, first_high) but [out_low, out_high).
struct TokenBlocksSeen90 {
  int low, high, first_low, first_high, out_low, out_high;
  __device__ bool operator()(int key) const {
    return ((key >= low && key < high) || (key >= first_low && key < first_high)) &&
           (key < out_low || key >= out_high);
  }
};

__device__ inline TokenBlocksSeen90 seen_of(const SelectToken& a, const Sequence& q, int64_t i) {
  const TokenRow row = a.row(q, i);
  const auto key = [](int64_t x) { return static_cast<int>(clamp_i64(x, 0, INT_MAX)); };
  const auto after = [&](int64_t x) { return key(x > a.first_keys ? x : a.first_keys); };
  TokenBlocksSeen90 seen{after(row.seen.low),
                         key(row.seen.high),
                         after(row.seen.first_low),
                         key(row.seen.first_high),
                         0,
                         0};
  if (!a.last_keys) return seen;
  constexpr int64_t far = int64_t{1} << 34;  // more than rows lie behind any key
  const int64_t last = a.last_keys < far ? a.last_keys : far;
  seen.out_low = key(a.attend.mask.axis.from(row.at - last + 1));
  seen.out_high = key(a.attend.mask.axis.from(row.at + 1));
  return seen;
}

template <int Dtype_, int D_>
struct TokenBlocksShape90 {
  static constexpr int Dtype = Dtype_, D = D_;
  using TileQ = Swizzled<kTokenSums, D>;
  using TileK = Swizzled<kTokenKeys, D>;
  static constexpr int QStages = 1, Stages = D > 64 ? 4 : 8, warps = 8;
  static constexpr int producer_regs = 56, consumer_regs = 224;
  static constexpr int keys = TileQ::bytes, barriers = keys + Stages * TileK::bytes;
  // Behind the barriers: of each stage of K which boxes are absent, then what rows see.
  static constexpr int absent = barriers + 16 * (QStages + Stages), seen = absent + 4 * Stages;
  static constexpr int seen_bytes = kTokenSums * static_cast<int>(sizeof(TokenBlocksSeen90));
  static constexpr int shared_bytes = (seen + 15) / 16 * 16 + seen_bytes;
  static_assert(shared_bytes <= 227 * 1024);
};

// ---- the producer, a warp

template <class Shape>
__device__ __forceinline__ void copy_blocks(const TokenBlocks90& call, const TokenMaps90& maps,
                                            const TokenSpan90& span, uint32_t* s_absent,
                                            TokenRings90<Shape> rings) {
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  const int lane = threadIdx.x % 32;
  TokenWalk90 walk(call, span);
  TokenGroup group;
#pragma unroll 1
  for (; walk.open(group); walk.close()) {
    const Sequence& q = group.sequence;
    const int part = walk.unit % call.group_units, key_head = part / call.parts;
    const int head = key_head * static_cast<int>(call.a.key_group()) +
                     ((part - key_head * call.parts) << call.log_heads);
    // K runs ahead while rows of the unit before still need Q.
    const int ahead = min(walk.last - walk.tile, Shape::Stages) - 1 + walk.tile;
#pragma unroll 1
    for (int tile = walk.tile; tile < walk.last; ++tile) {
      const TokenBox90 box = box_of(call, q, tile);
      const uint32_t absent = __ballot_sync(~0u, lane < call.boxes && box.batch < 0);
      sm90::barrier_wait(rings.k_empty(), rings.k_at.phase ^ 1);
      if (lane == 0) {
        s_absent[rings.k_at.stage] = absent;
        sm90::barrier_expect(rings.k_full(), TileK::bytes);
      }
      __syncwarp();
      if (lane < call.boxes) {
#pragma unroll
        for (int panel = 0; panel < TileK::panels; ++panel)
          sm90::tma_load_box(
              rings.k() + panel * TileK::panel_bytes + lane * call.box_keys * kPanelRowBytes,
              maps.k, rings.k_full(), panel * 64, box.row, key_head, box.batch);
      }
      rings.k_at.next();
      if (tile != ahead) continue;
      sm90::barrier_wait(rings.q_empty(), rings.q_at.phase ^ 1);
      if (lane == 0) {
        const int row = static_cast<int>(q.row_begin + group.first);
        sm90::barrier_expect(rings.q_full(), TileQ::bytes);
        // A map of more than one head has heads before rows.
#pragma unroll
        for (int panel = 0; panel < TileQ::panels; ++panel)
          sm90::tma_load_box(rings.q() + panel * TileQ::panel_bytes, maps.q, rings.q_full(),
                             panel * 64, call.log_heads ? head : row, call.log_heads ? row : head,
                             static_cast<int>(q.batch));
      }
      rings.q_at.next();
    }
  }
}

// ---- a consumer warpgroup

template <class Shape>
struct TokenBlocksConsumer90 {
  static constexpr int N = kTokenKeys / 8;
  const TokenBlocks90& call;
  TokenBlocksSeen90* const s_seen;  // of the unit's rows
  const uint32_t* const s_absent;
  const int group;
  TokenRings90<Shape> rings;
  float x[2][N][4];
  // Of the unit, for the products of rows 64 group and 64 group + 128.
  int rows, full_begin[2], full_end[2];  // keys [full_begin, full_end): every row may select them
  uint32_t* to[2][2];                    // the lane's rows, 8 apart; nullptr: nothing to write

  __device__ TokenBlocksConsumer90(const TokenBlocks90& call, TokenBlocksSeen90* s_seen,
                                   const uint32_t* s_absent, int group,
                                   const TokenRings90<Shape>& rings)
      : call(call), s_seen(s_seen), s_absent(s_absent), group(group), rings(rings) {}

  __device__ __forceinline__ void run(const TokenSpan90& span) {
    TokenWalk90 walk(call, span);
    TokenGroup at;
#pragma unroll 1
    for (; walk.open(at); walk.close()) {
      open(walk, at);
      sm90::barrier_wait(rings.q_full(), rings.q_at.phase);
      const int used = rows << call.log_heads;
      if (used > first_row(1))
        sweep_two(walk);
      else
        sweep_one(walk, used > first_row(0));
      rings.q_at.next();
    }
  }

 private:
  __device__ __forceinline__ void release(uint32_t barrier) const {
    if (threadIdx.x % 32 == 0) sm90::barrier_arrive(barrier);
  }
  __device__ __forceinline__ int first_row(int product) const {
    return 64 * group + 128 * product;
  }
  // The lane's first row of a product, which has another 8 on.
  __device__ __forceinline__ int own_row(int product) const {
    return first_row(product) + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  }

  // What the warpgroup asks of a unit.
  __device__ __forceinline__ void open(const TokenWalk90& walk, const TokenGroup& at) {
    const SelectToken& a = call.a;
    const int log = call.log_heads, own = first_row(threadIdx.x / 64 % 2) + threadIdx.x % 64;
    const int slot = walk.unit / call.group_units, part = walk.unit - slot * call.group_units;
    const int key_head = part / call.parts, heads = static_cast<int>(a.key_group());
    const int first_head = (part - key_head * call.parts) << log;  // of the key head
    rows = static_cast<int>(at.rows);
    sm90::named_barrier_sync(1 + group, 128);
    if ((own >> log << log) == own && (own >> log) < rows)
      s_seen[own >> log] = seen_of(a, at.sequence, at.first + (own >> log));
    sm90::named_barrier_sync(1 + group, 128);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int begin = first_row(n) >> log, last = min((first_row(n) + 64) >> log, rows) - 1;
      full_begin[n] = INT_MAX, full_end[n] = 0;
      if (begin <= last) {
        full_begin[n] = s_seen[last].low, full_end[n] = s_seen[begin].high;
        if (a.last_keys) full_end[n] = min(full_end[n], s_seen[begin].out_low);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = own_row(n) + 8 * half, i = m >> log, head = first_head + m - (i << log);
        const int64_t list = quotient(int64_t{key_head} * heads + head, call.list);
        const bool written = i < rows && head < heads && head % call.list == 0;
        to[n][half] =
            written ? call.key + ((slot * a.x + list) * call.rows_each + i) * call.pitch : nullptr;
      }
    }
  }

  template <int Product>
  __device__ __forceinline__ void multiply() {
    using TileQ = typename Shape::TileQ;
    using TileK = typename Shape::TileK;
    // The first step overwrites x: its registers are free until then.
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) asm volatile("" : "=f"(x[Product][j][c]));
    const uint64_t q = sm90::descriptor(rings.q() + first_row(Product) * kPanelRowBytes);
    const uint64_t k = sm90::descriptor(rings.k());
    sm90::fence();
    sm90::product_rows<Shape::Dtype, Shape::D, TileQ, TileK>(x[Product], q, k);
    sm90::commit();
  }
  // Both products: the second is in flight while the first is taken.
  __device__ __forceinline__ void sweep_two(const TokenWalk90& walk) {
#pragma unroll 1
    for (int tile = walk.tile; tile < walk.last; ++tile) {
      sm90::barrier_wait(rings.k_full(), rings.k_at.phase);
      const uint32_t absent = s_absent[rings.k_at.stage];
      multiply<0>();
      multiply<1>();
      sm90::wait<1>();
      sm90::pin(x[0]);
      take(x[0], 0, tile, absent);
      sm90::wait<0>();
      sm90::pin(x[1]);
      release(rings.k_empty());
      rings.k_at.next();
      if (tile + 1 == walk.last) release(rings.q_empty());
      take(x[1], 1, tile, absent);
    }
  }
  // The first product, or none.
  __device__ __forceinline__ void sweep_one(const TokenWalk90& walk, bool any) {
#pragma unroll 1
    for (int tile = walk.tile; tile < walk.last; ++tile) {
      sm90::barrier_wait(rings.k_full(), rings.k_at.phase);
      const uint32_t absent = s_absent[rings.k_at.stage];
      if (any) {
        multiply<0>();
        sm90::wait<0>();
        sm90::pin(x[0]);
      }
      release(rings.k_empty());
      rings.k_at.next();
      if (tile + 1 == walk.last) release(rings.q_empty());
      if (any) take(x[0], 0, tile, absent);
    }
  }

  __device__ __forceinline__ void take(float (&scores)[N][4], int product, int tile,
                                       uint32_t absent) {
    const int from = tile * kTokenKeys;
    if (call.list > 1 && call.a.reduce != FOVEA_X_SELECT_REDUCE_MAX) add_heads(scores);
    uint32_t any[2] = {~0u, ~0u};
    if (absent || from < full_begin[product] || from + kTokenKeys > full_end[product])
      hide(scores, own_row(product), from, absent, any);
    switch (call.cells) {
      case 1:
        return put<1>(scores, to[product], tile, any);
      case 2:
        return put<2>(scores, to[product], tile, any);
      case 4:
        return put<4>(scores, to[product], tile, any);
      default:
        return put<8>(scores, to[product], tile, any);
    }
  }
  // Heads of a list head are rows of the tile, which lie in lanes four apart.
  __device__ __forceinline__ void add_heads(float (&scores)[N][4]) const {
#pragma unroll 1
    for (int step = 4; step < 4 * call.list; step *= 2)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) scores[j][c] += __shfl_xor_sync(~0u, scores[j][c], step);
  }
  // Scores of keys that a row may not select are -inf.  Bit 2 j + n of any: key 8 j + n of a lane
  // of the row's four may be.
  __device__ __forceinline__ void hide(float (&scores)[N][4], int first, int from, uint32_t absent,
                                       uint32_t (&any)[2]) const {
    const int log_box = __ffs(call.box_keys) - 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = (first + 8 * half) >> call.log_heads;
      uint32_t bits = 0;
      if (i < rows) {
        const TokenBlocksSeen90 seen = s_seen[i];
#pragma unroll 1
        for (int j = 0; j < N; ++j) {
          const int key = from + 8 * j + threadIdx.x % 4 * 2;
          const uint32_t both = seen(key) | static_cast<uint32_t>(seen(key + 1)) << 1;
          if (!(absent >> ((8 * j) >> log_box) & 1)) bits |= both << (2 * j);
        }
      }
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int n = 0; n < 2; ++n)
          if (!(bits >> (2 * j + n) & 1)) scores[j][2 * half + n] = -INFINITY;
      bits |= __shfl_xor_sync(~0u, bits, 1);
      any[half] = bits | __shfl_xor_sync(~0u, bits, 2);
    }
  }
  // The scores of a tile's cells.  NaN is passed over, as a key at -inf would be.
  template <int Cells>
  __device__ __forceinline__ void put(const float (&scores)[N][4], uint32_t* const (&rows_to)[2],
                                      int tile, const uint32_t (&any)[2]) const {
    constexpr int Each = N / Cells;
    constexpr uint32_t Keys = static_cast<uint32_t>((uint64_t{1} << 2 * Each) - 1);
    const SelectToken& a = call.a;
#pragma unroll
    for (int cell = 0; cell < Cells; ++cell)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = -INFINITY;
#pragma unroll
        for (int j = cell * Each; j < (cell + 1) * Each; ++j)
          top = fmaxf(top, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        if (a.reduce == FOVEA_X_SELECT_REDUCE_MAX)
#pragma unroll 1
          for (int step = 4; step < 4 * call.list; step *= 2)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
        if (threadIdx.x % 4 != cell % 4 || !rows_to[half]) continue;
        float score = rounded_product(a.scale, top);
        if (a.reduce == FOVEA_X_SELECT_REDUCE_MEAN)
          score = __fdiv_rn(score, static_cast<float>(call.list));
        const bool there = any[half] >> (2 * Each * cell) & Keys;
        rows_to[half][int64_t{tile} * Cells + cell] = there ? pick_key(score) : 0u;
      }
  }
};

template <class Shape>
__global__ void __launch_bounds__(kTokenThreads, 1)
    token_blocks_sm90(const __grid_constant__ TokenBlocks90 call,
                      const __grid_constant__ TokenMaps90 maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto* const s_absent = reinterpret_cast<uint32_t*>(shared + Shape::absent);
  auto* const s_seen = reinterpret_cast<TokenBlocksSeen90*>(shared + (Shape::seen + 15) / 16 * 16);
  pdl_trigger();
  const TokenRings90<Shape> rings{shared_address(shared), {}, {}};
  if (threadIdx.x == 0) {
    sm90::prefetch_map(maps.q), sm90::prefetch_map(maps.k);
    rings.init();
  }
  static_assert(sizeof(TokenSpanShared90<>) <= Shape::seen_bytes);
  const TokenSpan90 span = find_span(call, *reinterpret_cast<TokenSpanShared90<>*>(s_seen));
  __syncthreads();  // what rows see takes its place
  const int group = sm90::uniform(threadIdx.x / 128) - 1;
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (threadIdx.x >= 32) return;
    copy_blocks<Shape>(call, maps, span, s_absent, rings);
    // The list kernel that read these keys' memory before has ended when this one does.
    pdl_wait();
    return;
  }
  sm90::setmaxnreg_inc<Shape::consumer_regs>();
  TokenBlocksConsumer90<Shape>(call, s_seen, s_absent, group, rings).run(span);
}

template <int Dtype, int D>
TokenBlocksInstance90 select_token_blocks_sm90_instance() {
  using Shape = TokenBlocksShape90<Dtype, D>;
  return {Dtype, D,
          [](Context& ctx, const TokenBlocks90& call, const TokenMaps90& maps, bool behind) {
            constexpr const char* op = "x_select_token";
            const int64_t blocks = device_info(ctx).multiprocessors;
            if (behind)
              launch_pdl<token_blocks_sm90<Shape>>(ctx, op, blocks, kTokenThreads,
                                                   Shape::shared_bytes, call, maps);
            else
              launch<token_blocks_sm90<Shape>>(ctx, op, blocks, kTokenThreads, Shape::shared_bytes,
                                               call, maps);
          }};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d)              \
  template fovea::cuda::TokenBlocksInstance90 \
  fovea::cuda::select_token_blocks_sm90_instance<dtype, d>();
