// SPDX-License-Identifier: Apache-2.0
// What x_delta_forward under a key gate needs of a chunk of 64 tokens that no state is in.  With
// P_t the sum of the log2 gates up to t of a channel, S_s that after s, k^ and q^ divided by their
// norms, and a sum over channels c:
//   M_ts = beta_t sum_c k^_tc k^_sc 2^(P_t - P_s), s < t      T = (1 + M)^-1
//   A_ts = scale sum_c q^_tc k^_sc 2^(P_t - P_s),  s <= t
//   Q~ = q 2^P, for gradients q^ 2^P,  K~ = k 2^P,  K- = k 2^S
// Scores are products of scaled rows of q and k, and of scaled columns of k (chunk_sm90.cuh). Where
// gates of a warp are too strong for that, the scores of its tokens with themselves are made in
// halves: 8 rows by 8 columns before them, 4 by 4, 2 by 2, 1 by 1, and the diagonal.
//   | shared memory | who writes                | who reads            |
//   | q, k: rows    | TMA, then a warp its 16   | the same warp        |
//   | e: columns    | a warp its 16             | warps from it on     |
//   | sums of gates | a warp its 16, in e and m | the same warp        |
//   | totals, norms | a warp its 16             | all                  |
//   | m: M          | a warp its 16             | all                  |
//   | q: A; m: T    | a warp its 16             | TMA                  |
// Between a writer and another reader lies a barrier of the block.
#pragma once
#include "ops/delta/chunk_sm90.cuh"

namespace fovea::cuda {

template <int D>
struct DeltaKeysShared : DeltaChunkShared<D> {
  using Tile = Swizzled<kChainTokens, D>;
  int q = this->tiles(Tile::bytes > kDeltaScoreStride ? Tile::bytes : kDeltaScoreStride);
  int k = this->tiles(Tile::bytes);
};

template <int D>
class DeltaKeys : public DeltaChunk90<D, DeltaKeysShared<D>> {
  using Base = DeltaChunk90<D, DeltaKeysShared<D>>;
  using Base::find, Base::floats, Base::vectors, Base::has, Base::sums, Base::scan, Base::norms,
      Base::scales, Base::factors, Base::raw, Base::place, Base::put, Base::rescale, Base::scaled,
      Base::write_inverse, Base::load_floats, Base::store_floats;
  using Base::kShared, Base::kSums, Base::kRows, Base::Dtype, Base::C, Base::w_, Base::a_,
      Base::lane_, Base::warp_, Base::base_, Base::at_, Base::m_, Base::slot_, Base::batch_,
      Base::token_, Base::head_, Base::left_, Base::outputs_;
  using typename Base::Piece, typename Base::Scales, typename Base::Sums, typename Base::Tile,
      typename Base::TileT;

 public:
  using Base::Base;
  static constexpr int blocks = 3;  // of a multiprocessor
  static_assert(blocks * (Base::shared_bytes + 1024) <= 228 * 1024);

  __device__ void run(uint32_t block) {
    if (!find(block)) return;
    if (threadIdx.x == 0) load();
    Sums x, y;
    Own own;
    scan();
    __syncthreads();
    sm90::barrier_wait(at_ + kShared.full, 0);
    norms(kShared.k, 0), norms(kShared.q, 64);
    const bool wide = scale(own);
    __syncthreads();
    products(x, y, wide);
    if (wide) replace(x, y, own);
    weigh(x, y);
    __syncwarp();
    if (outputs_) write_scores(y);
    DeltaInverse<Dtype>(m_).invert_block();
    __syncthreads();
    write_vectors();
    write_inverse();
    sm90::fence_shared();
    __syncthreads();
    if (threadIdx.x == 0) store();
  }

 private:
  // Scores of the warp's tokens with themselves.
  struct Own {
    float k[2][4], q[2][4];
  };

  __device__ void load() const {
    const uint32_t full = at_ + kShared.full;
    sm90::barrier_init(full, 1);
    sm90::barrier_init_done();
    sm90::barrier_expect(full, (outputs_ ? 2 : 1) * Tile::bytes);
    sm90::tma_load_panels<Tile>(at_ + kShared.k, w_.k, full, token_, head_ / w_.key_share, batch_);
    if (outputs_)
      sm90::tma_load_panels<Tile>(at_ + kShared.q, w_.q, full, token_, head_ / w_.query_share,
                                  batch_);
  }
  // Rows and columns of the products, and the tiles of the chain.  Returns whether the warp's own
  // block was made apart: then it is in `own`.
  __device__ bool scale(Own& own) const {
    __syncwarp();  // norms
    const Scales by = scales();
    const bool wide = __any_sync(~0u, by.strong);
    if (wide) halves(own);
    const int64_t at_head = slot_ * a_.heads + head_;
    unsigned char* keys = w_.inverses + at_head * delta_keys_bytes(D) + kDeltaKeysAt;
    unsigned char* queries = w_.scores + at_head * delta_query_bytes(D) + kDeltaScoreStride;
    // From the last token on: columns of a token take the place of sums of it and of the token 8
    // after it.
#pragma unroll 4
    for (int i = kRows - 1; i >= 0; --i) {
      float sum[C], up[C], down[C];
      const uint32_t at = place(kRows * warp_ + i);
      load_floats(sum, sums(i, lane_ * C));
      const Piece q = raw(kShared.q + at, i, outputs_), k = raw(kShared.k + at, i, true);
      __syncwarp();
#pragma unroll
      for (int c = 0; c < C; ++c)
        up[c] = exp2_fast(sum[c]),
        down[c] = exp2_fast((by.strong >> c & 1 ? by.total[c] : 0) - sum[c]);
      put(base_ + kShared.q + at, q, up), put(base_ + kShared.k + at, k, up);
      put(base_ + kShared.e + at, k, down);
#pragma unroll
      for (int c = 0; c < C; ++c) up[c] *= by.before[c], down[c] *= by.after[c];
      put(keys + at, k, up), put(keys + Tile::bytes + at, k, down);
      if (outputs_) {
        const float by_norm = w_.norm_bytes ? floats(kShared.norm)[64 + kRows * warp_ + i] : 1.f;
#pragma unroll
        for (int c = 0; c < C; ++c) up[c] *= by_norm;
        put(queries + at, q, up);
      }
    }
    return wide;
  }

  // ---- a block of strong gates

  // Scores of the warp's tokens with themselves, each pair by the half in which t and s part:
  // level l has pairs of 2^l rows and the 2^l columns before them, level 4 the diagonal.
  __device__ void halves(Own& own) const {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) own.k[n][c] = own.q[n][c] = 0;
    halves<0, 2>(own), halves<2, 4>(own), halves<4, 5>(own);
    __syncwarp();
  }
  template <int From, int To>
  __device__ void halves(Own& own) const {
    Own level[To - From];
#pragma unroll
    for (int l = 0; l < To - From; ++l)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) level[l].k[n][c] = level[l].q[n][c] = 0;
#pragma unroll 1
    for (int n = 0; n < D / 16; ++n) multiply<From>(level, n);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = lane_ / 4 + c / 2 * 8, s = 8 * n + lane_ % 4 * 2 + c % 2;
#pragma unroll
        for (int l = From; l < To; ++l) {
          const Own& from = level[l - From];
          const bool wanted = l < 4 ? t > s && (t ^ s) >> l == 1 : t == s;
          if (wanted && has(t)) own.k[n][c] = from.k[n][c], own.q[n][c] = from.q[n][c];
        }
      }
  }
  // Step n of 16 channels, scaled in registers.
  template <int From, int Count>
  __device__ void multiply(Own (&level)[Count], int n) const {
    const uint32_t from = Tile::at(kRows * warp_ + outer_row(lane_), outer_chunk(lane_));
    const int channel = 16 * n + lane_ % 4 * 2;
    uint32_t queries[4], keys[4];
    float2 sum[4];
    load_matrices(queries, Tile::pair(at_ + kShared.q + from, n));
    load_matrices(keys, Tile::pair(at_ + kShared.k + from, n));
    // Register r of an operand: row lane / 4 + r % 2 * 8, channel + r / 2 * 8.
    const auto load = [&](int row, int r) {
      return *reinterpret_cast<const float2*>(sums(row, channel + r / 2 * 8));
    };
#pragma unroll
    for (int r = 0; r < 4; ++r) sum[r] = load(lane_ / 4 + r % 2 * 8, r);
#pragma unroll
    for (int l = From; l < From + Count; ++l) {
      const int half = 1 << l;
      uint32_t q[4], k[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        q[r] = queries[r], k[r] = keys[r];
        if (l == 4) continue;
        const int i = lane_ / 4 + r % 2 * 8;
        const float2 pivot = load((i & -(2 * half)) + half - 1, r);  // the last column
        const float sign = i & half ? 1 : -1;
        const float low = exp2_fast(sign * (sum[r].x - pivot.x));
        const float high = exp2_fast(sign * (sum[r].y - pivot.y));
        q[r] = scaled(q[r], low, high), k[r] = scaled(k[r], low, high);
      }
      Own& to = level[l - From];
      mma<Dtype>(to.k[0], k, k[0], k[2]), mma<Dtype>(to.k[1], k, k[1], k[3]);
      mma<Dtype>(to.q[0], q, k[0], k[2]), mma<Dtype>(to.q[1], q, k[1], k[3]);
    }
  }
  __device__ void replace(Sums& x, Sums& y, const Own& own) const {
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (j / 2 == warp_) x[j][c] = own.k[j % 2][c], y[j][c] = own.q[j % 2][c];
  }

  // ---- scores

  // x: K with K, y: Q with K, of the warp's rows and the columns up to them.
  __device__ void products(Sums& x, Sums& y, bool wide) const {
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[j][c] = y[j][c] = 0;
    const uint32_t a = Tile::at(kRows * warp_ + outer_row(lane_), outer_chunk(lane_));
    const uint32_t b = at_ + kShared.e + Tile::at(inner_row(lane_), inner_chunk(lane_));
    const int last = wide ? warp_ : warp_ + 1;
#pragma unroll 4
    for (int n = 0; n < D / 16; ++n) {
      uint32_t rows[4], keys[4];
      load_matrices(rows, Tile::pair(at_ + kShared.q + a, n));
      load_matrices(keys, Tile::pair(at_ + kShared.k + a, n));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j >= last) continue;
        uint32_t columns[4];
        load_matrices(columns, Tile::pair(b, n) + j * kRows * kPanelRowBytes);
        if (j != warp_) rescale(columns, j, n);
        mma<Dtype>(x[2 * j], keys, columns[0], columns[1]);
        mma<Dtype>(x[2 * j + 1], keys, columns[2], columns[3]);
        mma<Dtype>(y[2 * j], rows, columns[0], columns[1]);
        mma<Dtype>(y[2 * j + 1], rows, columns[2], columns[3]);
      }
    }
  }
  // M and A of the warp's rows: M goes to its place.
  __device__ void weigh(Sums& x, Sums& y) const {
    const int first = kRows * warp_ + lane_ / 4, pair = lane_ % 4 * 2;
    const float* norm = floats(kShared.norm);
    float by_key[2], by_query[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      by_key[h] = floats(kShared.beta)[first + 8 * h] * norm[first + 8 * h];
      by_query[h] = a_.scale * norm[64 + first + 8 * h];
    }
    float* to = m_ + first * kInverseStride + pair;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 column = *reinterpret_cast<const float2*>(norm + 8 * j + pair);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = first + c / 2 * 8, s = 8 * j + pair + c % 2;
        const float by = c % 2 ? column.y : column.x;
        x[j][c] = s < t ? by_key[c / 2] * by * x[j][c] : 0;
        y[j][c] = s <= t ? by_query[c / 2] * by * y[j][c] : 0;
      }
      *reinterpret_cast<float2*>(to + 8 * j) = make_float2(x[j][0], x[j][1]);
      *reinterpret_cast<float2*>(to + 8 * kInverseStride + 8 * j) = make_float2(x[j][2], x[j][3]);
    }
  }

  // A, in the place of the warp's rows of Q.
  __device__ void write_scores(const Sums& y) const {
    uint32_t p[1][kChainTokens / 16][4];
    pack_operand<Dtype>(p, reinterpret_cast<const float(&)[1][kSums][4]>(y));
    const uint32_t to =
        at_ + kShared.q + TileT::at(kRows * warp_ + outer_row(lane_), outer_chunk(lane_));
#pragma unroll
    for (int k = 0; k < kChainTokens / 16; ++k) sm90::store_matrices(TileT::pair(to, k), p[0][k]);
  }
  // Factors of Q~'s rows, once no warp reads Q.
  __device__ void write_vectors() const {
    const int i = 32 * warp_ + lane_;
    if (i < 64) floats(kShared.q + kDeltaTile)[i] = a_.scale * floats(kShared.norm)[64 + i];
  }
  __device__ void store() const {
    sm90::tma_store(w_.inverses + (slot_ * a_.heads + head_) * int64_t{delta_keys_bytes(D)},
                    at_ + kShared.m, kDeltaTile + kDeltaChannels + D * 4);
    if (outputs_)
      sm90::tma_store(w_.scores + (slot_ * a_.heads + head_) * int64_t{delta_query_bytes(D)},
                      at_ + kShared.q, kDeltaScoreBytes);
    sm90::tma_store_commit();
    sm90::tma_store_wait_read<0>();
  }
};

}  // namespace fovea::cuda
