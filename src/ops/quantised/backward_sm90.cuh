// SPDX-License-Identifier: Apache-2.0
// SageBwd's gradient on Hopper, five products in one pass, one owner for dk and dv.  Of 64 rows and
// 64 keys:
//   x' = scale q_scale k_scale k^ q^',  p' = 2^(x' log2(e) - lse2),  ds' = p' (v dout' - delta)
//   dv += p^' dout^,  dk += ds^' q_scale q^,  dq += ds^ k_scale k^
// ^ of p and ds: codes of i8, and the scale of their tile.
//
// A block owns 128 keys of a sequence and key head.  Its mainloop takes the row tiles of the
// group's heads.  Its frame is attention's (attend_bwd_sm90.cuh): the order of blocks, the drain
// of dq into the workspace, and the epilogues.
//
//   | warps           | role                                                    |
//   | 0               | producer                                                |
//   | 1, 2            | drain: add dq of odd and of even tiles to the workspace |
//   | warpgroups 1, 2 | consumers of 64 keys each                               |
//
// A consumer's 64 keys and a tile of 64 rows are one tile of the method.  Its scores are transposed
// (keys by rows): p^' and ds^' are register operands, whose other operand has rows contiguous in
// v_perm16's order.  ds^ alone goes through shared memory, rows by keys in that order.  There each
// consumer reads both key tiles for its half of the columns of dq; of 64 columns it makes all.
// A product of codes has sums in i32.  It makes 64 columns at a time; they join f32 sums with the
// scales of their tiles while the next product runs.
// Shared memory: BackwardShared90, of which K, Q and dout are pairs of tiles, then QuantShared90.
// Its mbarriers, of which ds full guards ds^ of both key tiles and its scales, and beside them:
//
//   | barrier    | who arrives         | who waits     | what it guards                         |
//   | named 1, 2 | a consumer's warps  | the same      | the largest p and ds of each warp      |
//   | named 3    | the second consumer | the first     | its turn to make dP                    |
//   | named 4    | the first consumer  | the second    | the same                               |
//
// A consumer forms dq of a tile in the step after, so that it may be half a step ahead of the other
// one: their exponentials and products then take turns.  ds^ has three buffers.  A consumer writes
// one once the tile before is full.  By then both have read what lay there. Source: SageBwd
// (2505.11594), algorithm 3; FlashAttention-3 (2407.08608).
#pragma once
#include <new>

#include "cuda/launch.h"
#include "cuda/loop/backward_dq_sm90.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/tile/mma_codes_sm80.cuh"
#include "ops/quantised/backward.cuh"

namespace fovea::cuda {

template <class Shape>
struct QuantLayout90;

// A tile behind another.
template <class First, class Second>
struct TilePair {
  static constexpr int second = First::bytes, bytes = First::bytes + Second::bytes;
};

template <QuantGradient90 C>
struct QuantShape90 {
  static constexpr int Dtype = C.dtype, D = C.d, E = C.e, BM = kTileTokens, BN = 128;
  static constexpr int StagesQ = 2, StagesS = 3;
  static constexpr int groups = BN / 64, threads = 128 * (groups + 1);
  static constexpr int producer_regs = 24, consumer_regs = 240;  // registers a thread
  using KeyCodes = sm90::Bytes<BN, D, D>;
  using KeyColumns = sm90::Bytes<D, BN, 128>;
  using RowCodes = sm90::Bytes<BM, D, D>;
  using RowColumns = sm90::Bytes<D, BM, 64>;
  using Dout = Swizzled<BM, E>;
  using DoutColumns = sm90::Bytes<E, BM, 64>;
  static_assert(KeyCodes::panels == 1 && RowCodes::panels == 1, "a box is a tile");
  using TileK = TilePair<KeyCodes, KeyColumns>;
  using TileV = Swizzled<BN, E>;
  struct TileQ : TilePair<RowCodes, RowColumns> {
    static constexpr int panels = D / 64;  // of dq
  };
  using TileO = TilePair<Dout, DoutColumns>;
  using TileS = sm90::Bytes<BM, BN, 128>;
  static constexpr int chunks = TileQ::panels, dq_buffers = groups,
                       dq_bytes = chunks * kChunkFloats * 4 / groups;
  static_assert((D == 64 || D == 128) && E == D, "half of dq's columns for each consumer");
  static constexpr int row_stats_bytes = sizeof(QuantRows);
  static constexpr int shared_bytes = QuantLayout90<QuantShape90>().bytes;
};

// What a consumer knows of its keys.  It lies in shared memory: registers are scarce.
struct alignas(16) QuantKeys {
  WindowRows rows;                  // the block's
  PlainPairs::FullTiles full, met;  // row tiles of which all rows, or some, see all keys, or some
  int begin;                        // the first key
  float k_scale;
};

template <class Shape>
struct QuantLayout90 : BackwardLayout90<Shape> {
  int keys = this->template of<QuantKeys>(Shape::groups),
      most = this->add(Shape::groups * 4 * 8, 16),
      ds_scales = this->template of<float>(Shape::StagesS * Shape::groups);
};

template <class Shape>
struct QuantShared90 : BackwardShared90<Shape> {
  using typename BackwardShared90<Shape>::QState;
  using typename BackwardShared90<Shape>::DoutState;
  using typename BackwardShared90<Shape>::DsState;
  static constexpr QuantLayout90<Shape> own = QuantLayout90<Shape>();

  __device__ explicit QuantShared90(unsigned char* memory) : BackwardShared90<Shape>(memory) {}
  __device__ const QuantRows& rows(const QState& at) const {
    return *reinterpret_cast<const QuantRows*>(this->memory + this->row_stats(at));
  }
  __device__ QuantKeys& keys(int group) const {
    return reinterpret_cast<QuantKeys*>(this->memory + own.keys)[group];
  }
  // The largest p and |ds| of each warp of a consumer, as bits.
  __device__ uint2* most(int group) const {
    return reinterpret_cast<uint2*>(this->memory + own.most) + group * 4;
  }
  // What turns products of ds^ into terms of dq, for each key tile.
  __device__ float* ds_scales(const DsState& at) const {
    return reinterpret_cast<float*>(this->memory + own.ds_scales) + at.stage * Shape::groups;
  }
  // Of ds^, from the memory's begin.
  __device__ static int ds_at(const DsState& at) {
    return BackwardShared90<Shape>::layout.ds + at.stage * Shape::TileS::bytes;
  }
};

// The producer warp: codes of K and V once, then codes of Q with what the row tile has, and dout,
// of each row tile.  Of rows of another sequence codes are finite numbers, of which products are
// not used; dout of those is zeroed.
template <class Shape>
__device__ __forceinline__ void produce_quant_tiles(const QuantGradient& x, const QuantMaps90& maps,
                                                    const WindowRows& row_tiles, int shares,
                                                    const QuantShared90<Shape>& shared) {
  using Shared = QuantShared90<Shape>;
  constexpr int BM = Shape::BM;
  const Attend& a = x.forward();
  const Sequence& seq = shared.sequence();
  const BackwardBlock& block = shared.block();
  const bool leads = threadIdx.x % 32 == 0;
  const auto first_column = [&](const IntVector& start, int64_t tokens) {
    return static_cast<int>(first_entry(start, tokens, block.r, kCodeRun) * kCodeRun);
  };
  if (leads) {
    const int key_begin = block.n * Shape::BN, key_batch = static_cast<int>(seq.key_batch),
              key_row = static_cast<int>(seq.key_begin) + key_begin, head = block.g / shares;
    sm90::barrier_expect(shared.kv_full(), Shape::TileK::bytes);
    sm90::tma_load_box(shared.base, maps.k, shared.kv_full(), 0, key_row, head, key_batch);
    sm90::tma_load_box(shared.base + Shape::TileK::second, maps.k_columns, shared.kv_full(),
                       first_column(a.sequences.key_start, a.t) + key_begin, 0, head, key_batch);
    sm90::tma_load_tile<typename Shape::TileV>(shared.base + Shared::layout.v, maps.v,
                                               shared.kv_full(), key_row, head, key_batch);
  }
  const int column = first_column(a.sequences.query_start, a.s),
            batch = static_cast<int>(seq.batch),
            first_tile = static_cast<int>(x.first_tile(seq, block.r));
  typename Shared::QState q_at;
  uint32_t raw_phase = 0, step = 0;
  row_tiles.each([&](int h, int m) {
    const int row = static_cast<int>(seq.row_begin) + m * BM,
              tile = h * x.tiles.total + first_tile + m;
    shared.q_pipe().acquire(q_at);
    if (leads) {
      const uint32_t full = shared.q_pipe().full(q_at), to = shared.q(q_at);
      sm90::barrier_expect(full, Shape::TileQ::bytes + Shape::row_stats_bytes);
      sm90::tma_load_box(to, maps.q, full, 0, row, h, batch);
      sm90::tma_load_box(to + Shape::TileQ::second, maps.q_columns, full, column + m * BM, 0, h,
                         batch);
      sm90::tma_load(shared.base + shared.row_stats(q_at), x.rows + tile, Shape::row_stats_bytes,
                     full);
    }
    q_at.next();
    const typename Shared::DoutState dout_at{static_cast<int>(step % 2), step / 2 % 2};
    ++step;
    const uint32_t full = shared.dout_pipe().full(dout_at), to = shared.dout(dout_at);
    shared.dout_pipe().acquire(dout_at);
    copy_present<typename Shape::Dout, BM>(
        to, maps.dout, full, shared.raw(), raw_phase, row, h, batch,
        FirstRows{seq.row_begin + seq.rows < a.s ? static_cast<int>(seq.rows) - m * BM : BM},
        Shape::DoutColumns::bytes);
    if (leads)
      sm90::tma_load_box(to + Shape::TileO::second, maps.dout_columns, full, 0, 0, tile, 0);
  });
}

// A consumer warpgroup: 64 of the block's keys.
template <class Shape>
class QuantConsumer90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BM = Shape::BM;
  static constexpr int N = 8;  // groups of 8 columns of a product
  static constexpr int Panels = D / 64;
  static constexpr int DqN = N * Panels / Shape::groups;  // of a consumer's part of dq
  using KeyCodes = typename Shape::KeyCodes;
  using KeyColumns = typename Shape::KeyColumns;
  using RowCodes = typename Shape::RowCodes;
  using RowColumns = typename Shape::RowColumns;
  using DoutColumns = typename Shape::DoutColumns;
  using TileS = typename Shape::TileS;
  using Shared = QuantShared90<Shape>;
  using State = typename Shared::DoutState;
  using DsState = typename Shared::DsState;
  static_assert(std::is_same_v<State, typename Shared::QState>);

 public:
  using Part = int32_t[N][4];  // a product: 64 keys or rows by 64 columns
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float dk[D / 8][4], dv[E / 8][4];
    Part x;
  };

  __device__ __forceinline__ QuantConsumer90(const QuantGradient& gradient,
                                             const BackwardWork& work, const WindowRows& rows,
                                             const Shared& shared, int group, Fragments& f)
      : gradient(gradient),
        work(work),
        shared(shared),
        group(group),
        lane(threadIdx.x % 32),
        warp(sm90::uniform(threadIdx.x / 32) % 4),
        ds_lane(TileS::at(lane / 4 % 2 * 9 + lane % 4 * 2, (group * 4 + warp) * 16) + lane / 8 * 4),
        tile(rows.first()),
        dk(f.dk),
        dv(f.dv),
        x(f.x) {
    const QuantKeys keys = find_keys(rows);  // shuffles: whole warps take part
    if (threadIdx.x % 128 == 0) shared.keys(group) = keys;
    sm90::named_barrier_sync(1 + group, 128);
  }

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int j = 0; j < D / 8; ++j) dk[j][c] = 0.f;
#pragma unroll
      for (int j = 0; j < E / 8; ++j) dv[j][c] = 0.f;
    }
    if (more()) {
      sm90::barrier_wait(shared.kv_full(), 0);
      issue_next_scores(true);
      sm90::wait<0>();
      sm90::pin(x);
      step<true>();
#pragma unroll 1
      while (another) step<false>();
      last_dq();
    }
    const Sequence& seq = shared.sequence();
    store_dv<Dtype>(gradient.b.call, work, seq, shared.block().g, own_key(), dv);
    store_dk<Dtype>(gradient.b.call, work, seq, shared.block().g, own_key(), dk);
  }

 private:
  __device__ __forceinline__ QuantKeys find_keys(const WindowRows& rows) const {
    const Sequence& seq = shared.sequence();
    const BackwardBlock& block = shared.block();
    const int begin = block.n * Shape::BN + group * 64, keys = static_cast<int>(seq.keys);
    if (begin >= keys) return {rows, {0, 0}, {0, 0}, begin, 0.f};
    const WindowRows met(gradient.forward(), seq, block.g, begin, min(begin + 64, keys), BM, false);
    const View<3>& scale = gradient.b.k_scale;
    return {rows,
            scores_now().pairs.full_tiles(BM, begin, begin + 64),
            {met.begin, met.end},
            begin,
            gradient.b.k_scales(seq, block.r,
                                block.g / work.shares)[begin / kTileTokens * scale.stride[2]]};
  }
  // Of q and dout; its stage says whether a tile is odd.
  __device__ State at() const {
    return {static_cast<int>(steps % 2), steps / 2 % 2};
  }
  // Where the warpgroup's half begins: 64 rows of `row_bytes`.
  __device__ uint32_t half(int row_bytes) const {
    return shared.base + sm90::unhoisted(group) * 64 * row_bytes;
  }
  __device__ bool more() const {
    return !shared.keys(group).rows.ends(tile);
  }
  // The first key of the lane.
  __device__ int own_key() const {
    return shared.keys(group).begin + warp * 16 + lane / 4;
  }
  // Made where it is used: only masked tiles need most of it.
  __device__ __forceinline__ AttentionDscores scores_now() const {
    return AttentionDscores(gradient.forward(), shared.sequence(), {work.shares});
  }

  // After the last tile these are scores of whatever the stage holds, and are not read.
  __device__ __forceinline__ void issue_next_scores(bool more) {
    if (more) shared.q_pipe().wait(at());
    sm90::fence();
    sm90::byte_product<FOVEA_I8, D, KeyCodes, RowCodes>(
        x, KeyCodes::descriptor(half(KeyCodes::Panel)), RowCodes::descriptor(shared.q(at())));
    sm90::commit();
  }
  __device__ __forceinline__ void issue_dp(float (&dp)[N][4]) {
    shared.dout_pipe().wait(at());
    sm90::fence();
    sm90::product_rows<Dtype, E, typename Shape::TileV, typename Shape::Dout>(
        dp, sm90::descriptor(half(kPanelRowBytes) + Shared::layout.v),
        sm90::descriptor(shared.dout(at())));
    sm90::commit();
  }
  // Codes times 64 columns of a tile, of dout or q by column.
  template <class Columns>
  __device__ __forceinline__ void issue_columns(Part& part, const uint32_t (&codes)[2][4],
                                                uint32_t columns, int panel) {
    sm90::fence();
    sm90::byte_product<FOVEA_I8, Columns>(
        part, codes, Columns::descriptor(columns + panel * 64 * Columns::Panel), false);
    sm90::commit();
  }
  // ds^ of the tile, and of the tile before.
  __device__ static DsState ds_of(uint32_t step) {
    return {static_cast<int>(step % Shape::StagesS), step / Shape::StagesS % 2};
  }
  __device__ DsState ds_now() const {
    return ds_of(steps);
  }
  __device__ DsState ds_before() const {
    return ds_of(steps - 1);
  }
  // A key tile's part of 64 columns of dq, of the tile before: the warpgroup's own, or all.
  __device__ __forceinline__ void issue_dq(Part& part, int key_tile) {
    sm90::fence();
    sm90::byte_product<FOVEA_I8, 64, TileS, KeyColumns>(
        part,
        TileS::descriptor(shared.base + Shared::ds_at(ds_before())) + TileS::step(2 * key_tile),
        KeyColumns::descriptor((Panels == 2 ? half(KeyColumns::Panel) : shared.base) +
                               Shape::TileK::second) +
            KeyColumns::step(2 * key_tile));
    sm90::commit();
  }
  // Waits for all products but the newest: sums of 64 columns from `panel` on += factor part.
  template <int Newest = 1, int Columns>
  __device__ __forceinline__ void fold(float (&sum)[Columns][4], Part& part, int panel,
                                       float factor) {
    sm90::wait<Newest>();
    sm90::pin(part);
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        sum[panel * N + j][c] = fmaf(factor, static_cast<float>(part[j][c]), sum[panel * N + j][c]);
  }

  // The lane's largest magnitude, or NaN; in four chains, since a fold keeps its order.
  __device__ __forceinline__ static float lane_most(const float (&y)[N][4]) {
    float most[4] = {};
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) most[c] = max_or_nan(most[c], fabsf(y[j][c]));
    return max_or_nan(max_or_nan(most[0], most[1]), max_or_nan(most[2], most[3]));
  }
  // The largest p and |ds| of the tile, from the lane's.  As bits: a NaN is above infinity.
  __device__ __forceinline__ float2 tile_most(float p, float ds) const {
    const uint32_t p_bits = __reduce_max_sync(~0u, __float_as_uint(p)),
                   ds_bits = __reduce_max_sync(~0u, __float_as_uint(ds));
    uint2* const of = shared.most(group);
    if (lane == 0) of[warp] = make_uint2(p_bits, ds_bits);
    sm90::named_barrier_sync(1 + group, 128);
    const uint4 low = reinterpret_cast<const uint4*>(of)[0],
                high = reinterpret_cast<const uint4*>(of)[1];
    return {__uint_as_float(max(max(low.x, low.z), max(high.x, high.z))),
            __uint_as_float(max(max(low.y, low.w), max(high.y, high.w)))};
  }

  // ds^ into shared memory.  A word of the operand has four rows of one key.  Lanes of two
  // neighbouring keys exchange halves, so that each has all four keys of a quarter of v_perm16's
  // run for two rows.
  __device__ __forceinline__ void put_ds(const uint32_t (&ds)[2][4]) const {
    const bool odd = lane & 4;
    const uint32_t next_row = ds_lane ^ TileS::at(1, 0);  // the other row of the pair
    unsigned char* const to = shared.memory + Shared::ds_at(ds_now());
    const auto store = [&](uint32_t at, uint32_t word) {
      *reinterpret_cast<uint32_t*>(to + at) = word;
    };
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t low = ds[k][2 * half], high = ds[k][2 * half + 1];
        const uint32_t mine = __byte_perm(low, high, odd ? 0x7362 : 0x5140),
                       other =
                           __shfl_xor_sync(~0u, __byte_perm(low, high, odd ? 0x5140 : 0x7362), 4);
        const int rows = (k * 32 + half * 16) * TileS::Panel;
        store(ds_lane + rows, __byte_perm(mine, other, odd ? 0x3726 : 0x5140));
        store(next_row + rows, __byte_perm(mine, other, odd ? 0x1504 : 0x7362));
      }
  }

  // One row tile: dv and dk; dq of the tile before; the scores of the next.
  template <bool First>
  __device__ __forceinline__ void step() {
    const int m = tile.m;
    const QuantRows& of = shared.rows(at());
    const float2* const stats = reinterpret_cast<const float2*>(of.lse) + lane % 4;
    const QuantKeys& keys = shared.keys(group);
    const bool whole = keys.full(m);
    // Read before the product begins: behind it shared memory answers late.
    float2 lse[4 * N];
#pragma unroll
    for (int j = 0; j < N / 2; ++j) lse[4 * j] = stats[4 * j];
    float k_scale = keys.k_scale, q_scale = of.q_scale;
    float p[N][4], dp[N][4];
    if (!First || group == 1) sm90::named_barrier_sync(3 + sm90::unhoisted(group), 256);
    issue_dp(dp);
    asm volatile("" : "+f"(k_scale), "+f"(q_scale)::"memory");  // not multiplied before
    if constexpr (!First) hand_on_dq();
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) p[j][c] = static_cast<float>(x[j][c]);
    AttentionDscores tile_scores = scores_now();
    tile_scores.pairs.factor *= k_scale * q_scale;
#pragma unroll
    for (int j = N / 2; j < N; ++j) lse[4 * j] = stats[4 * j];
    weigh_tile(p, tile_scores, lse, m * BM + lane % 4 * 2, own_key(), whole);
    const float p_most = lane_most(p);
    sm90::wait<0>();
    sm90::pin(dp);
    sm90::named_barrier_arrive(4 - sm90::unhoisted(group), 256);
    dscore_tile(
        dp, tile_scores, [&](int j) { return make_float4(p[j][0], p[j][1], p[j][2], p[j][3]); },
        stats, whole);
    const float2 most = tile_most(p_most, lane_most(dp));
    const TileScale p_scale(most.x), ds_scale(most.y);
    // Where no row sees a key the products are 0, whatever the scales are.
    const bool met = keys.met(m);
    const float dv_factor = met ? p_scale.scale * of.dout.scale : 0.f,
                dk_factor = met ? ds_scale.scale * q_scale : 0.f;

    const uint32_t dout_columns = shared.dout(at()) + Shape::TileO::second,
                   q_columns = shared.q(at()) + Shape::TileQ::second;
    Part odd;
    Part& even = x;  // scores are p by now
    uint32_t codes[2][4], ds[2][4];
    code_operand(codes, p, p_scale.factor);
    issue_columns<DoutColumns>(even, codes, dout_columns, 0);
    code_operand(ds, dp, ds_scale.factor);
    if constexpr (!First) sm90::barrier_wait(shared.ds_full(ds_before()), ds_before().phase);
    put_ds(ds);
    if (threadIdx.x % 128 == 0)
      shared.ds_scales(ds_now())[group] = met ? ds_scale.scale * k_scale : 0.f;
    if constexpr (Panels == 2)
      issue_columns<DoutColumns>(odd, codes, dout_columns, 1);
    else
      issue_columns<RowColumns>(odd, ds, q_columns, 0);
    fold(dv, even, 0, dv_factor);
    sm90::fence_shared();
    __syncwarp();
    sm90::barrier_arrive_warp(shared.ds_full(ds_now()));
    if constexpr (Panels == 2) {
      issue_columns<RowColumns>(even, ds, q_columns, 0);
      fold(dv, odd, 1, dv_factor);
    }
    shared.dout_pipe().release(at());
    if constexpr (Panels == 2) {
      issue_columns<RowColumns>(odd, ds, q_columns, 1);
      fold(dk, even, 0, dk_factor);
    }
    if constexpr (First) {
      fold<0>(dk, odd, Panels - 1, dk_factor);
      shared.q_pipe().release(at());
      advance();
    } else {
      issue_dq(even, 0);
      fold(dk, odd, Panels - 1, dk_factor);
      shared.q_pipe().release(at());
      issue_dq(odd, 1);
      sum_dq<false>(odd);
    }
    sm90::wait<0>();
    sm90::pin(x);
  }
  // To the next tile, whose scores are issued.
  __device__ __forceinline__ void advance() {
    shared.keys(group).rows.next(tile);
    ++steps;
    another = more();  // asked for here: behind the stores of dq the answer comes late
    issue_next_scores(another);
  }

  // dq of both key tiles, of the tile before, to the drain's buffer; meanwhile the scores of the
  // next.  hand_on_dq() tells the drain.
  template <bool Last>
  __device__ __forceinline__ void sum_dq(Part& odd) {
    const float first = shared.ds_scales(ds_before())[0];
    float dq[DqN][4];
    if constexpr (Panels == 2) {
      sm90::wait<1>();
      sm90::pin(x);
#pragma unroll
      for (int j = 0; j < DqN; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) dq[j][c] = static_cast<float>(x[j][c]) * first;
    }
    // ptxas keeps the wait for the last product behind this branch.
    sm90::barrier_wait(shared.dq_empty(group), steps % 2);
    const float second = shared.ds_scales(ds_before())[1];
    sm90::wait<0>();
    sm90::pin(odd);
    if constexpr (Panels == 2) {
#pragma unroll
      for (int j = 0; j < DqN; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          dq[j][c] = fmaf(static_cast<float>(odd[j][c]), second, dq[j][c]);
    } else {
      sm90::pin(x);
      const auto take = [&]<int From>() {
#pragma unroll
        for (int j = 0; j < DqN; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            dq[j][c] = fmaf(static_cast<float>(odd[From + j][c]), second,
                            static_cast<float>(x[From + j][c]) * first);
      };
      group == 0 ? take.template operator()<0>() : take.template operator()<DqN>();
    }
    if constexpr (!Last) advance();
#pragma unroll
    for (int j = 0; j < DqN; ++j)
      *reinterpret_cast<float4*>(shared.memory + Shared::layout.dq + group * Shape::dq_bytes +
                                 (j * 128 + threadIdx.x % 128) * 16) =
          make_float4(dq[j][0], dq[j][1], dq[j][2], dq[j][3]);
  }
  // The step before stored dq of the tile before its own, from the third tile on.
  __device__ __forceinline__ void hand_on_dq() const {
    sm90::fence_shared();
    __syncwarp();
    if (steps > 1) sm90::barrier_arrive_warp(shared.dq_full(group, at().stage));
  }
  // After the last step.
  __device__ __forceinline__ void last_dq() {
    // The second consumer hands its last turn on too.
    if (group == 0) sm90::named_barrier_sync(3, 256);
    hand_on_dq();
    sm90::barrier_wait(shared.ds_full(ds_before()), ds_before().phase);
    Part odd;
    issue_dq(x, 0);
    issue_dq(odd, 1);
    sum_dq<true>(odd);
    sm90::fence_shared();
    __syncwarp();
    sm90::barrier_arrive_warp(shared.dq_full(group, at().stage ^ 1));
  }

  const QuantGradient& gradient;
  const BackwardWork& work;
  const Shared& shared;
  const int group, lane, warp;
  const uint32_t ds_lane;  // where the lane's words of ds^ begin
  uint32_t steps = 0;      // so far
  bool another;            // tile follows
  RowStep tile;
  float (&dk)[D / 8][4], (&dv)[E / 8][4];
  Part& x;  // scores, then every other product
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    quant_backward_sm90(const __grid_constant__ QuantGradient x,
                        const __grid_constant__ QuantMaps90 maps,
                        const __grid_constant__ BackwardWork work,
                        const __grid_constant__ BackwardGrid90 grid) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Attend& a = x.forward();
  const QuantShared90<Shape> shared(memory);
  const int warp = sm90::uniform(threadIdx.x / 32), group = sm90::uniform(threadIdx.x / 128) - 1;
  if (threadIdx.x < sizeof maps / sizeof maps.q) sm90::prefetch_map((&maps.q)[threadIdx.x]);
  if (threadIdx.x == 0) {
    shared.init(a, grid, 4 * Shape::groups);
    sm90::barrier_init_done();
  }
  __syncthreads();
  const Sequence& seq = shared.sequence();
  const BackwardBlock& block = shared.block();
  if (block.idle) return;
  const int keys = static_cast<int>(seq.keys), key_begin = block.n * Shape::BN;
  if (block.part >= 0) return store_part<Shape>(x.b.call, work, seq, block);
  if (key_begin >= keys) return;
  const WindowRows rows(a, seq, block.g, key_begin, min(key_begin + Shape::BN, keys), Shape::BM,
                        block.down);
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (rows.count() == 0) return;
    if (warp == 0)
      produce_quant_tiles<Shape>(x, maps, rows, work.shares, shared);
    else if (warp <= 2 && threadIdx.x % 32 == 0)
      drain_dq<Shape>(a, work, rows, warp - 1, shared);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    typename QuantConsumer90<Shape>::Fragments fragments;
    QuantConsumer90<Shape>(x, work, rows, shared, group, fragments).run();
  }
}

template <QuantGradient90 C>
QuantGradientInstance90 quant_backward_sm90_instance() {
  using Shape = QuantShape90<C>;
  constexpr auto launcher = [](Context& ctx, const QuantGradient& x, const QuantMaps90& maps,
                               const BackwardWork& work, const BackwardGrid90& grid) {
    launch<quant_backward_sm90<Shape>>(ctx, kQuantBackward, grid.total(), Shape::threads,
                                       Shape::shared_bytes, x, maps, work, grid);
  };
  return {C.dtype, C.d, C.e, Shape::BN, Shape::TileQ::panels, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                                     \
  namespace fovea::cuda {                                                                       \
  template QuantGradientInstance90 quant_backward_sm90_instance<QuantGradient90 __VA_ARGS__>(); \
  }
