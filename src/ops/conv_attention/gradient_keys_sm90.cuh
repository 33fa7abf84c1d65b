// SPDX-License-Identifier: Apache-2.0
// The pass over keys of conv_attention's gradient sweep (backward_sm90.cuh): dk and dv.
//   dk[j] = sum_i dS[i,j] q[i];  dv[j] = sum_i p[i,j] dout[i]
//   The columns are rows: their lse and delta come by cp.async, a tile ahead, to a buffer of the
//   warpgroup's own.
#pragma once
#include "ops/conv_attention/gradient_tile_sm90.cuh"

namespace fovea::cuda {

template <class Shape>
class ConvKeyGradient90 : public ConvGradientTile90<Shape> {
  using Base = ConvGradientTile90<Shape>;
  static_assert(Shape::keys);

 public:
  struct Fragments : Base::Fragments {
    float dv[Shape::E / 8][4];
  };

  __device__ __forceinline__ ConvKeyGradient90(const ConvAttendBackward& b,
                                               const ConvGradientWork& more, unsigned char* shared,
                                               int group, Fragments& fragments)
      : Base(b, more, shared, group, fragments), dv(fragments.dv) {}

 protected:
  using Base::b, Base::more, Base::shared, Base::base, Base::group, Base::lane, Base::history,
      Base::mine, Base::more_sums, Base::x, Base::y, Base::sum, Base::row_stats;
  using Base::BN, Base::N, Base::Dtype;
  using typename Base::Tiles;

  __device__ __forceinline__ void begin_work() {}
  __device__ __forceinline__ void begin_tiles(int t, int buffer) const { fetch_stats(t, buffer); }
  // The tile's lse and delta have come; the next barrier shows them to the warpgroup.
  __device__ __forceinline__ void columns_there() const { copy_wait<0>(); }

  // dk and dv of tile t, whose A is in x and, unless `late`, whose dP is in y.
  template <bool Final>
  __device__ __forceinline__ void backward(int t, const Tiles& tiles) {
    if constexpr (Shape::late) this->issue_dp(t);
    const int dp_stage = this->stage_before(1);
    if constexpr (!Final) {
      this->give_back(Base::kScoresRead);
      fetch_stats(t - 1, tiles.buffer ^ 1);
    }
    make_da(t, tiles.buffer);
    issue_dv(dp_stage);
    this->wait_read(Base::kDaRead);
    this->put(tiles.da, y[0]);
    if constexpr (Shape::roomy && !Final) this->issue_scores_ahead();
    this->hand_over(Base::kDaWritten);
    this->wait_written(Base::kDaWritten);
    const int column = this->make_ds(t, tiles.da, tiles.da_behind);
    if constexpr (!Final) this->give_back(Base::kDaRead);
    sm90::wait<Shape::roomy && !Final ? 1 : 0>();
    sm90::pin(dv);
    this->release(this->stage_before(1));
    if constexpr (Shape::late && !Final) this->issue_scores_ahead();
    this->issue_sums(t, column);
  }

  __device__ __forceinline__ void store() {
    this->store_sums(b.dk);
    this->store_lines(b.dv, static_cast<int>(b.forward.attend.e), dv, 1.f, this->reach().below);
  }

 private:
  __device__ __forceinline__ int stats_at(int buffer) const {
    return Base::layout.row_stats + (group * 2 + buffer) * (BN * 8);
  }
  // lse and delta of the rows of tile t, by cp.async.
  __device__ __forceinline__ void fetch_stats(int t, int buffer) const {
    const int n = threadIdx.x % 128;
    if (n < BN)
      copy_pair(base + stats_at(buffer) + n * 8,
                row_stats + min(t * BN + n, this->work().rows - 1));
    copy_commit();
  }

  // p to x, dA = p (dP - delta) to y.  A weight is at most 1, whatever the rounding of large scores
  // makes of it.
  __device__ __forceinline__ void make_da(int t, int buffer) {
    const float inverse = inverse_of(this->work().grain);
    const auto* stats = reinterpret_cast<const float4*>(shared + stats_at(buffer)) + lane % 4;
    float4 of;
    const auto weight = [&](int j, int e, bool seen) {
      if (e == 0) of = stats[j * 4];
      const float p =
          exp2_fast(at_most(fmaf(x[0][j][e], kScoreUnit * kLog2E, -(e % 2 ? of.z : of.x)), 0.f));
      x[0][j][e] = seen ? p : 0.f;
    };
    const auto gradient = [&](int j, int e, bool seen) {
      if (Shape::late && e == 0) of = stats[j * 4];
      y[0][j][e] = seen ? x[0][j][e] * (y[0][j][e] - (e % 2 ? of.w : of.y)) * inverse : 0.f;
    };
    const int lag = this->reach().below;
    if constexpr (Shape::late) {
      this->each(t, lag, t * BN, history, weight);
      sm90::wait<0>();
      sm90::pin(y[0]);
      this->each(t, lag, t * BN, history, gradient);
    } else {
      this->each(t, lag, t * BN, history,
                 [&](int j, int e, bool seen) { weight(j, e, seen), gradient(j, e, seen); });
    }
  }

  // dv += p' dout, of the stage that dP was made of.
  __device__ __forceinline__ void issue_dv(int stage) {
    uint32_t weights[1][N / 2][4];
    pack_operand<Dtype>(weights, x);
    sm90::fence();
    sm90::product_columns<Dtype>(dv, weights[0],
                                 sm90::descriptor(this->stage_at(stage), Shape::TileE::panel_bytes),
                                 more_sums);
    sm90::commit();
  }

  float (&dv)[Shape::E / 8][4];
};

}  // namespace fovea::cuda
