// SPDX-License-Identifier: Apache-2.0
// The pass over rows of conv_attention's gradient sweep (backward_sm90.cuh): dq and dweight.
//   dq[i] = sum_j dS[i,j] k[j];  dweight[u,v] = sum dA[i,j] S[i - above + u, j - left + v]
//   A lane holds lse and delta of its two rows.  Where registers are `crowded` it loads them again
//   for each tile.
#pragma once
#include "ops/conv_attention/gradient_tile_sm90.cuh"

namespace fovea::cuda {

template <class Shape>
class ConvRowGradient90 : public ConvGradientTile90<Shape> {
  using Base = ConvGradientTile90<Shape>;
  static_assert(!Shape::keys);

 public:
  struct Fragments : Base::Fragments {
    float taps[Shape::Pairs][Shape::Ahead][4];  // dweight
    float2 own_stats[2];                        // lse and delta of the lane's rows
  };

  __device__ __forceinline__ ConvRowGradient90(const ConvAttendBackward& b,
                                               const ConvGradientWork& more, unsigned char* shared,
                                               int group, Fragments& fragments)
      : Base(b, more, shared, group, fragments),
        taps(fragments.taps),
        own_stats(fragments.own_stats) {}

 protected:
  using Base::b, Base::c, Base::more, Base::shared, Base::group, Base::lane, Base::warp,
      Base::place, Base::history, Base::at, Base::mine, Base::more_sums, Base::x, Base::y,
      Base::sum, Base::row_stats;
  using Base::BN, Base::N, Base::Keys;
  using typename Base::Bands;
  using typename Base::Tiles;
  static constexpr int Pairs = Shape::Pairs, Ahead = Shape::Ahead;

  __device__ __forceinline__ void begin_work() {
#pragma unroll
    for (int p = 0; p < Pairs; ++p)
#pragma unroll
      for (int i = 0; i < Ahead; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) taps[p][i][e] = 0.f;
  }
  __device__ __forceinline__ void begin_head(int n) {
    Base::begin_head(n);
    if constexpr (!Shape::crowded) read_stats();
  }
  // Rows fetch nothing of a tile of columns beside what the producer does.
  __device__ __forceinline__ void begin_tiles(int, int) const {}
  __device__ __forceinline__ void columns_there() const {}

  // dq and dweight of tile t, whose A is in x and whose dP is in y.
  template <bool Final>
  __device__ __forceinline__ void backward(int t, const Tiles& tiles) {
    const int dp_stage = this->stage_before(1);
    make_da(t);
    this->release(dp_stage);
    this->wait_read(Base::kDaRead);
    this->put(tiles.da, y[0]);
    if constexpr (Shape::roomy && !Final) this->issue_scores_ahead();
    this->hand_over(Base::kDaWritten);
    this->wait_written(Base::kDaWritten);
    weigh_taps(tiles.s, tiles.s_behind, tiles.da);
    if constexpr (!Final) this->give_back(Base::kScoresRead);
    if constexpr (Final && Shape::crowded) this->release_lines();
    const int column = this->make_ds(t, tiles.da, tiles.da_behind);
    if constexpr (!Final) this->give_back(Base::kDaRead);
    this->issue_sums(t, column);
  }

  __device__ __forceinline__ void store() {
    this->store_sums(b.dq);
    this->meet_both();
    store_taps();
  }

 private:
  // lse takes the grain, the unit of dA, into the exponent of p.
  __device__ __forceinline__ void read_stats() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = mine + 8 * half;
      own_stats[half] = make_float2(-kNegativeInfinity, 0.f);
      if (i >= 0 && i < this->work().rows) own_stats[half] = __ldg(row_stats + i);
      own_stats[half].x += log2_of(this->work().grain);
    }
  }

  // dA = p (dP - delta) to y.  A weight is at most 1, whatever the rounding of large scores makes
  // of it.
  __device__ __forceinline__ void make_da(int t) {
    if constexpr (Shape::crowded) read_stats();
    const float top = -log2_of(this->work().grain);
    this->each(t, 0, t * BN, history, [&](int j, int e, bool seen) {
      const float2 of = own_stats[e / 2];
      const float p = exp2_fast(at_most(fmaf(x[0][j][e], kScoreUnit * kLog2E, -of.x), top));
      y[0][j][e] = seen ? p * (y[0][j][e] - of.y) : 0.f;
    });
  }

  // dweight's sums, by the warp's lines: two shifts by rows x 8 keys against 8 keys.
  __device__ __forceinline__ void weigh_taps(uint32_t s, uint32_t behind, uint32_t da) {
    const uint32_t part = this->part_at();
    uint32_t keep[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      keep[half] = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int local = place + half * 8 + lane % 4 * 2 + i - this->reach().halo;
        if (local >= 0 && local < this->reach().own(Shape::BM)) keep[half] |= 0xffffu << (16 * i);
      }
    }
    uint32_t left[Pairs];
#pragma unroll
    for (int p = 0; p < Pairs; ++p) {
      const int d = min(2 * p + lane / 8 % 2, this->reach().lines - 1);
      left[p] = static_cast<uint32_t>(max(place + lane / 16 * 8 + lane % 8 - d, 0)) * 16;
    }
    if (Bands::alone(Pairs - 1, this->reach().lines))
      add_taps<true>(s, behind, da, part, keep, left);
    else
      add_taps<false>(s, behind, da, part, keep, left);
  }

  // Alone: the last shift has no partner (tile/convolve_sm80.cuh).
  template <bool Alone>
  __device__ __forceinline__ void add_taps(uint32_t s, uint32_t behind, uint32_t da, uint32_t part,
                                           const uint32_t (&keep)[2],
                                           const uint32_t (&left)[Pairs]) {
    uint32_t right[N][2], a[2][4];
#pragma unroll
    for (int i = 0; i < N + Ahead - 1; ++i) {
      if (i < N && i % 2 == 0) {
        uint32_t r[4];
        load_matrices_transposed(r, da + part + i * Shape::block_bytes);
        right[i][0] = r[0] & keep[0], right[i][1] = r[1] & keep[1];
        right[i + 1][0] = r[2] & keep[0], right[i + 1][1] = r[3] & keep[1];
      }
      const uint32_t block =
          i < N ? s + i * Shape::block_bytes : behind + (i - N) * Shape::block_bytes;
#pragma unroll
      for (int p = 0; p < Pairs - Alone; ++p) {
        uint32_t r[4];
        load_matrices_transposed(r, block + left[p]);
#pragma unroll
        for (int k = 0; k < Ahead; ++k)
          if (i - k >= 0 && i - k < N)
            mma<FOVEA_F16>(taps[p][k], r, right[i - k][0], right[i - k][1]);
      }
      if (!Alone || i % 2) continue;
      const uint32_t(&old)[4] = a[i / 2 % 2 ^ 1];
      uint32_t(&r)[4] = a[i / 2 % 2];
      load_matrices_transposed(r, block + left[Pairs - 1] + lane / 8 % 2 * Shape::block_bytes);
      if (i > 0)
        mma<FOVEA_F16>(taps[Pairs - 1][0], {old[1], r[0], old[3], r[2]}, right[i - 1][0],
                       right[i - 1][1]);
      if (i < N) mma<FOVEA_F16>(taps[Pairs - 1][0], r, right[i][0], right[i][1]);
    }
  }

  // The warp's part of dweight.  The 16 x 8 Ahead sums of a pair of shifts go through a `room` of
  // the warp's own in the tiles of S and dA.  A tap is the sum of 8 of them, one of each column.
  __device__ __forceinline__ void store_taps() const {
    const int number = group * 4 + warp, warps = 4 * Shape::Groups;
    const ConvReach& reach = this->reach();
    const int64_t head = this->work().r * c.attend.h + this->work().head;
    float* const room = reinterpret_cast<float*>(shared + Base::layout.scores +
                                                 number * (4 * Shape::score_bytes / warps));
    const float grain = grain_of(more.largest[head]) * kScoreUnit;
    double* to = more.dweight +
                 ((head * more.order.row_tiles + this->work().tile) * warps + number) * c.taps();
#pragma unroll
    for (int p = 0; p < Pairs; ++p) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < Ahead; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const bool alone = Bands::alone(p, reach.lines);
          const int half = alone ? 0 : e / 2, block = alone ? 2 * i + e / 2 : i;
          if (block < Ahead)
            room[(lane / 4 + half * 8) * (8 * Ahead) + block * 8 + lane % 4 * 2 + e % 2] =
                taps[p][i][e];
        }
      __syncwarp();
      for (int i = lane; i < 2 * reach.columns; i += 32) {
        const int d = 2 * p + i / reach.columns, v = i % reach.columns;
        if (d >= reach.lines || !more.dweight) continue;
        float all = 0.f;
#pragma unroll
        for (int n = 0; n < 8; ++n)
          all += room[((v + n) % 8 + i / reach.columns * 8) * (8 * Ahead) + (v + n) / 8 * 8 + n];
        to[(reach.lines - 1 - d) * reach.columns + v] = all * grain;
      }
    }
  }

  float (&taps)[Pairs][Ahead][4];
  float2 (&own_stats)[2];
};

}  // namespace fovea::cuda
