// SPDX-License-Identifier: Apache-2.0
// What both passes of conv_attention's gradient sweep (backward_sm90.cuh) share: a consumer
// warpgroup's state, its barriers, and the parts of a step that are the same for rows and keys.
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/tile/order.cuh"
#include "ops/conv_attention/gradient_feed_sm90.cuh"

namespace fovea::cuda {

// NaN stays NaN.
__device__ __forceinline__ float at_most(float x, float y) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
}

template <class Shape>
class ConvGradientTile90 {
 public:
  // A lane's fragments of tiles and sums.  They are an object apart: until loops over an array are
  // unrolled, the compiler keeps all that lies beside it in memory.
  struct Fragments {
    float x[1][Shape::BN / 8][4];  // A, then p, then dS
    float y[1][Shape::BN / 8][4];  // dP, then dA
    float s[Shape::BN / 8][4];     // S of the next tile
    float sum[Shape::D / 8][4];    // dq or dk
  };

  __device__ __forceinline__ ConvGradientTile90(const ConvAttendBackward& b,
                                                const ConvGradientWork& more, unsigned char* shared,
                                                int group, Fragments& fragments)
      : b(b),
        c(b.forward),
        more(more),
        shared(shared),
        base(shared_address(shared)),
        group(group),
        lane(threadIdx.x % 32),
        warp(sm90::uniform(threadIdx.x / 32 % 4)),
        unit(b.forward.attend.score.scale * (1.f / kScoreUnit)),
        history(static_cast<int>(b.forward.history)),
        scores(base + layout.scores),
        place(sm90::uniform(group * 64 + warp * 16)),
        leads(group == 0),
        x(fragments.x),
        y(fragments.y),
        s(fragments.s),
        sum(fragments.sum) {
    static_assert(Shape::Groups == 2);
  }

 protected:
  static constexpr int Dtype = Shape::Dtype, BN = Shape::BN, N = BN / 8;
  static constexpr bool Keys = Shape::keys;
  using Bands = typename Shape::Bands;
  using Shared = ConvGradientShared90<Shape>;
  using PipelineState = typename Shared::TilePipe::State;
  static constexpr ConvGradientLayout90<Shape> layout = Shared::layout;
  // Named barriers; 1 + group is the warpgroup's own.
  enum { kScoresWritten = 3, kDaWritten, kScoresRead, kDaRead, kBoth };

  // Where a step's tiles of S and dA lie, and those of the tile before.
  struct Tiles {
    int buffer;
    uint32_t s, s_behind, da, da_behind;
    __device__ __forceinline__ Tiles(const ConvGradientTile90& of, int buffer)
        : buffer(buffer),
          s(of.scores_at(buffer)),
          s_behind(of.scores_at(buffer ^ 1)),
          da(s + 2 * Shape::score_bytes),
          da_behind(s_behind + 2 * Shape::score_bytes) {}
  };

  // ---- barriers

  __device__ __forceinline__ auto line_pipe() const { return Shared{base}.line_pipe(); }
  __device__ __forceinline__ auto tile_pipe() const { return Shared{base}.tile_pipe(); }
  __device__ __forceinline__ void release(int stage) const {
    if (lane == 0) sm90::barrier_arrive(tile_pipe().empty(PipelineState{stage}));
  }
  __device__ __forceinline__ static void meet_both() { sm90::named_barrier_sync(kBoth, 256); }
  // The leader lets the follower read its tile.
  __device__ __forceinline__ void hand_over(int barrier) const {
    if (leads) sm90::named_barrier_arrive(barrier, 256);
  }
  // The warpgroup's own tile is written and, for the follower, the leader's.
  __device__ __forceinline__ void wait_written(int barrier) const {
    if (leads)
      sm90::named_barrier_sync(1, 128);
    else
      sm90::named_barrier_sync(barrier, 256);
  }
  // The follower reads the leader's tile no more.
  __device__ __forceinline__ void give_back(int barrier) const {
    if (!leads) sm90::named_barrier_arrive(barrier, 256);
  }
  // Nobody reads any more what is about to be overwritten.
  __device__ __forceinline__ void wait_read(int barrier) const {
    if (leads)
      sm90::named_barrier_sync(barrier, 256);
    else
      sm90::named_barrier_sync(2, 128);
  }

  // ---- shared memory

  // Both are read again each time: registers are few.
  __device__ __forceinline__ const ConvGradientSlot& work() const {
    return *reinterpret_cast<const ConvGradientSlot*>(shared + layout.slot);
  }
  __device__ __forceinline__ const ConvReach& reach() const { return work().reach; }
  __device__ __forceinline__ uint32_t stage_at(int stage) const {
    return base + layout.ring + stage * Shape::stage_bytes;
  }
  // The stage that was `at` some tiles ago.
  __device__ __forceinline__ int stage_before(int tiles) const {
    return at.stage < tiles ? at.stage + Shape::Stages - tiles : at.stage - tiles;
  }
  __device__ __forceinline__ uint32_t scores_at(int buffer) const {
    return scores + buffer * Shape::score_bytes;
  }
  __device__ __forceinline__ uint32_t da_at(int buffer) const {
    return scores_at(buffer) + 2 * Shape::score_bytes;
  }
  // Where the lane writes its part of a tile of f16.
  __device__ __forceinline__ uint32_t part_at() const {
    const uint32_t lane = sm90::unhoisted(threadIdx.x % 32);
    return lane / 16 * Shape::block_bytes + (place + lane % 16) * 16;
  }
  __device__ __forceinline__ void put(uint32_t to, const float (&x)[N][4]) const {
    const uint32_t part = part_at();
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
      const uint32_t packed[4] = {pack<FOVEA_F16>(x[2 * k][0], x[2 * k][1]),
                                  pack<FOVEA_F16>(x[2 * k][2], x[2 * k][3]),
                                  pack<FOVEA_F16>(x[2 * k + 1][0], x[2 * k + 1][1]),
                                  pack<FOVEA_F16>(x[2 * k + 1][2], x[2 * k + 1][3])};
      sm90::store_matrices(to + part + 2 * k * Shape::block_bytes, packed);
    }
  }
  __device__ __forceinline__ void convolve(float (&y)[N][4], int turned, uint32_t here,
                                           uint32_t behind) const {
    Bands::convolve(y, base + layout.bands + turned * Bands::table_bytes, place, 0, reach().lines,
                    [&](int block) {
                      return block < N ? here + block * Shape::block_bytes
                                       : behind + (block - N) * Shape::block_bytes;
                    });
  }

  // ---- a work item, a head

  // Copies the producer's next work item to where both warpgroups read it.  False: there is none.
  __device__ __forceinline__ bool take_work() {
    line_pipe().wait(line_at);
    line_at.next();
    meet_both();  // the last work item is done with
    if (const int i = threadIdx.x - 128; i < static_cast<int>(sizeof(ConvGradientSlot) / 4))
      reinterpret_cast<int32_t*>(shared + layout.slot)[i] =
          reinterpret_cast<const int32_t*>(shared + layout.next_slot)[i];
    meet_both();
    if (__all_sync(~0u, !work().any)) return false;
    first = sm90::uniform(work().line + place);
    mine = first + lane / 4;
    d_lines = sm90::uniform(base + group * 64 * kPanelRowBytes);
    e_lines = d_lines + layout.line_e;
    more_sums = false;
    idle = Keys && place + 16 <= 2 * reach().halo;
    find_plain();
    return true;
  }

  __device__ __forceinline__ void begin_head(int n) {
    const int head = sm90::uniform(work().head + n);
    const Attend& a = c.attend;
    number = n;
    row_stats = more.row_stats + (work().seq.batch * a.h + head) * a.s + work().seq.row_begin;
    load_bands(head);
  }

  // The producer may plan the next work item and copy its lines.  Called once they are read for the
  // last time or, `crowded`, where there is a register for it.
  __device__ __forceinline__ void release_lines() const {
    if (number == work().heads - 1 && lane == 0) sm90::barrier_arrive(line_pipe().empty(line_at));
  }

  // ---- a tile of columns

  // f(j, e, seen) of columns from `column` on, of tile t; the lines are `lag` before S's.
  template <class F>
  __device__ __forceinline__ void each(int t, int lag, int column, int least, F f) const {
    if (t >= plain && t < plain_end) {
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) f(j, e, true);
      return;
    }
    int from[2], to[2];
    span(lag, 0, least, from[0], to[0]), span(lag, 1, least, from[1], to[1]);
    const int first = column + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = first + j * 8 + e % 2;
        f(j, e, column >= from[e / 2] && column < to[e / 2]);
      }
  }

  // S of the next tile, whose stage is `of`.
  __device__ __forceinline__ void issue_scores(const PipelineState& of) {
    tile_pipe().wait(of);
    sm90::fence();
    sm90::product_rows<Dtype, Shape::D, typename Shape::LineD, typename Shape::TileD>(
        s, sm90::descriptor(sm90::unhoisted(d_lines)), sm90::descriptor(stage_at(of.stage)));
    sm90::commit();
  }
  // The same while the stage of dS's product, which comes first, is still to be used.
  __device__ __forceinline__ void issue_scores_ahead() {
    auto next = at;
    next.next();
    issue_scores(next);
  }
  __device__ __forceinline__ void retire_scores() {
    sm90::pin(s);
    release(at.stage);
    at.next();
  }
  __device__ __forceinline__ void scale_scores(int t) {
    each(t, 0, t * BN - reach().low, 0,
         [&](int j, int e, bool seen) { s[j][e] = seen ? s[j][e] * unit : 0.f; });
  }
  // dP = dout v' of the tile's columns, to y.
  __device__ __forceinline__ void issue_dp(int t) {
    tile_pipe().wait(at);
    if constexpr (Keys) {
      // Rows without an output belong to others: a weight of 0 would not undo a NaN there.
      const int low = history - t * BN, high = work().rows - t * BN;
      if (low > 0 || high < BN)
        keep_rows<typename Shape::TileE, Shape>(shared + (stage_at(at.stage) - base), low, high,
                                                group);
    }
    sm90::fence();
    sm90::product_rows<Dtype, Shape::E, typename Shape::LineE, typename Shape::TileE>(
        y[0], sm90::descriptor(sm90::unhoisted(e_lines)), sm90::descriptor(stage_at(at.stage)));
    sm90::commit();
    at.next();
  }
  // dS to x, not masked yet, of this tile's dA and of the one before.  Returns its first column.
  __device__ __forceinline__ int make_ds(int t, uint32_t da, uint32_t behind) {
    const int column = t * BN + reach().high;
    if (idle) {
#pragma unroll
      for (int j = 0; j < N * 4; ++j) x[0][j / 4][j % 4] = 0.f;
    } else {
      convolve(x[0], 1, da, behind);
    }
    return column;
  }
  // dq += dS k, or dk += dS' q; `column` is what make_ds() returned.
  __device__ __forceinline__ void issue_sums(int t, int column) {
    each(t, reach().halo, column, 0, [&](int j, int e, bool seen) {
      if (!seen) x[0][j][e] = 0.f;
    });
    uint32_t operand[1][N / 2][4];
    pack_operand<Dtype>(operand, x);
    tile_pipe().wait(at);
    const int last = Keys ? work().rows : work().keys;
    if (column < 0 || column + BN > last)
      keep_rows<typename Shape::TileD, Shape>(shared + (stage_at(at.stage) - base), -column,
                                              last - column, group);
    sm90::fence();
    sm90::product_columns<Dtype>(sum, operand[0],
                                 sm90::descriptor(stage_at(at.stage), Shape::TileD::panel_bytes),
                                 more_sums);
    sm90::commit();
    more_sums = true;
    at.next();
  }
  // The sums are waited for; their stage was `at` so many tiles ago.  It is kept nowhere: registers
  // are few.
  __device__ __forceinline__ void retire_sums(int tiles) {
    sm90::pin(sum);
    release(stage_before(tiles));
  }

  // Sums of the lane's own lines, the first of which S has at `mine`, the sums `lag` before.
  template <int M>
  __device__ __forceinline__ void store_lines(const View<4>& out, int width, float (&x)[M][4],
                                              float factor, int lag) const {
    if (!out) return;
#pragma unroll
    for (int j = 0; j < M; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!more_sums) x[j][e] = 0.f;
    const Sequence& seq = work().seq;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = mine + 8 * half - lag, local = line - work().line - reach().halo;
      const bool own =
          local >= 0 && local < reach().own(Shape::BM) && line < (Keys ? work().keys : work().rows);
      const int64_t at = Keys
                             ? seq.key_batch * out.stride[0] +
                                   (seq.key_begin + line) * out.stride[1] + work().g * out.stride[2]
                             : row_offset(seq, line, work().head, out.stride);
      store_row<Dtype>(own ? static_cast<uint16_t*>(out.data) + at : nullptr, width, x, half,
                       factor);
    }
  }
  // dq or dk.
  __device__ __forceinline__ void store_sums(const View<4>& out) const {
    store_lines(out, static_cast<int>(c.attend.d), sum, c.attend.score.scale * work().grain,
                reach().halo);
  }

  // ---- state

  const ConvAttendBackward& b;
  const ConvAttend& c;
  const ConvGradientWork& more;
  unsigned char* const shared;
  const uint32_t base;
  const int group, lane, warp;
  const float unit;
  const int history;
  const uint32_t scores;
  const int place;   // the warp's first of the block's lines
  const bool leads;  // the leader's lines are read by the follower's convolutions
  PipelineState at;
  sm90::Pipeline<1>::State line_at;

  // Of the work item.
  int first;  // the line that S has at `place`
  int mine;   // and at the lane's
  uint32_t d_lines, e_lines;
  // In tiles [plain, plain_end) all of S, A and dS is there and seen, and A's rows have outputs.
  int plain, plain_end;
  bool more_sums;
  bool idle;  // all dS of the warp belong to the halo

  // Of the walk over the columns of one query head.
  int number;               // of the work item's heads
  const float2* row_stats;  // the head's lse and delta by row

  float (&x)[1][N][4], (&y)[1][N][4], (&s)[N][4], (&sum)[Shape::D / 8][4];

 private:
  // Found once a work item: what it is made of would be loaded again for each tile.
  __device__ __forceinline__ void find_plain() {
    const int &rows = work().rows, &keys = work().keys, &ahead = work().ahead;
    const int lines = Keys ? keys : rows, columns = Keys ? rows : keys;
    int least = Keys ? max(reach().low, history) : reach().low, most = columns;
    if (Keys) least = max(least, first + 15 - ahead + 1 + reach().low);
    if (!Keys) most = min(most, first - reach().halo + ahead);
    const bool there =
        first >= reach().halo && first + 16 <= lines && (Keys || first - reach().below >= history);
    plain = sm90::uniform(there ? (least + BN - 1) / BN : columns);
    plain_end = sm90::uniform((most - reach().high) / BN);
  }

  // The columns that line `mine - lag + 8 half` sees, of rows from `least` on: [from, to).
  __device__ __forceinline__ void span(int lag, int half, int least, int& from, int& to) const {
    const int &rows = work().rows, &keys = work().keys, &ahead = work().ahead;
    const int n = sm90::unhoisted(mine) - lag + 8 * half;
    if constexpr (Keys) {
      from = n < 0 || n >= keys ? rows : max(n - ahead + 1, least), to = rows;
    } else {
      from = 0, to = n < least || n >= rows ? 0 : min(n + ahead, keys);
    }
  }

  // The head's bands of both convolutions; zeros where the first tile's convolutions read behind
  // it.
  __device__ __forceinline__ void load_bands(int head) const {
    constexpr int Pairs = Shape::Pairs, Ahead = Shape::Ahead;
    meet_both();  // the last head's bands and tiles are done with
    // Its taps by way of the tile of S that is written first, all loads in flight at once.
    float* const staged = reinterpret_cast<float*>(shared + layout.scores);
    static_assert(2 * Pairs * (8 * Ahead - 7) * 4 <= 64 * 16);  // lines of the leader
    const int thread = threadIdx.x - 128;
    for (int i = thread; i < reach().lines * reach().columns; i += 256)
      staged[i] = reach().tap(c, head, i / reach().columns, i % reach().columns);
    if (threadIdx.x % 128 < 64)
#pragma unroll
      for (int i = 0; i < Ahead - 1; ++i) {
        const uint32_t to =
            scores_at(0) + i * Shape::block_bytes + (group * 64 + threadIdx.x % 64) * 16;
        sm90::store_zeros(to + Shape::score_bytes);
        sm90::store_zeros(to + 3 * Shape::score_bytes);
      }
    meet_both();
    const int lines = reach().lines, columns = reach().columns;
    for (int i = thread; i < 2 * Pairs * Ahead * 32; i += 256) {
      const int turned = i / (Pairs * Ahead * 32), p = i / (Ahead * 32) % Pairs;
      *reinterpret_cast<uint2*>(shared + layout.bands + i * 8) =
          Bands::band(i / Ahead % 32, p, i % Ahead, lines, columns, [&](int d, int v) {
            return staged[turned ? (lines - 1 - d) * columns + columns - 1 - v : d * columns + v];
          });
    }
    meet_both();
  }
};

}  // namespace fovea::cuda
