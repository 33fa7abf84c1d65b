// SPDX-License-Identifier: Apache-2.0
// What x_delta_forward of the low-rank form under a key gate needs of a chunk of 64 tokens that no
// state is in.  With P_t the sum of the log2 gates up to t of a channel, E_t that before t, S_s
// that after s, k^ and q^ divided by their norms, and a sum over channels c:
//   T = (1 - stril(sum_c a_tc b_sc 2^(E_t - P_s)))^-1,   G_ts = sum_c a_tc k^_sc 2^(E_t - P_s), s <
//   t B_ts, A_ts = scale sum_c q^_tc (b_sc, k^_sc) 2^(P_t - P_s),  s <= t Q~ = q 2^P,  A~ = a 2^E,
//   B- = b 2^S,  K- = k 2^S
// Scores are products of scaled rows of q and a, and of scaled columns of b and k (chunk_sm90.cuh),
// those of strong gates in halves, as in keys_sm90.cuh.
//   | shared memory     | who writes                | who reads            |
//   | q, a: rows        | TMA, then a warp its 16   | the same warp        |
//   | k, b: columns     | TMA, then a warp its 16   | warps from it on     |
//   | sums of gates     | a warp its 16, in e and m | the same warp        |
//   | m: M; totals      | a warp its 16             | all                  |
//   | q: B, a: G        | a warp its 16             | TMA                  |
//   | k: A; b: factors  | a warp its 16, once no warp reads columns | TMA  |
// Between a writer and another reader lies a barrier of the block.
#pragma once
#include "ops/delta/chunk_sm90.cuh"

namespace fovea::cuda {

template <int D>
struct DeltaLowShared : DeltaChunkShared<D> {
  using Tile = Swizzled<kChainTokens, D>;
  int q = this->tiles(Tile::bytes);
  int a = this->tiles(Tile::bytes);
  int k = this->tiles(Tile::bytes);
  int b = this->tiles(Tile::bytes);
};

template <int D>
class DeltaLow : public DeltaChunk90<D, DeltaLowShared<D>> {
  using Base = DeltaChunk90<D, DeltaLowShared<D>>;
  using Base::find, Base::floats, Base::has, Base::sums, Base::scan, Base::norms, Base::scales,
      Base::raw, Base::place, Base::put, Base::rescale, Base::scaled, Base::write_inverse,
      Base::load_floats;
  using Base::kShared, Base::kSums, Base::kRows, Base::Dtype, Base::C, Base::w_, Base::a_,
      Base::lane_, Base::warp_, Base::base_, Base::at_, Base::m_, Base::slot_, Base::batch_,
      Base::token_, Base::head_, Base::left_, Base::outputs_;
  using typename Base::Piece, typename Base::Scales, typename Base::Sums, typename Base::Tile,
      typename Base::TileT;

 public:
  using Base::Base;
  static constexpr int blocks = 2;  // of a multiprocessor
  static_assert(blocks * (Base::shared_bytes + 1024) <= 228 * 1024);

  __device__ void run(uint32_t block) {
    if (!find(block)) return;
    if (threadIdx.x == 0) load();
    Scores<kSums> x;
    Scores<2> own;
    scan();
    __syncthreads();
    sm90::barrier_wait(at_ + kShared.full, 0);
    norms(kShared.k, 0), norms(kShared.q, 64);
    const bool wide = scale(own);
    __syncthreads();
    products(x, wide);
    if (wide) {
#pragma unroll
      for (int j = 0; j < kSums; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (j / 2 == warp_) x.take(j, c, own, j % 2);
    }
    weigh(x);
    __syncwarp();
    uint32_t last[1][kChainTokens / 16][4];
    pack_operand<Dtype>(last, reinterpret_cast<const float(&)[1][kSums][4]>(x.qk));
    stage(kShared.a, x.ak);
    if (outputs_) stage(kShared.q, x.qb);
    DeltaInverse<Dtype>(m_).invert_block();
    __syncthreads();
    stage(kShared.k, last[0]);
    const int i = 32 * warp_ + lane_;
    if (i < 64) floats(kShared.b)[i] = a_.scale * floats(kShared.norm)[64 + i];
    write_inverse();
    sm90::fence_shared();
    __syncthreads();
    if (threadIdx.x == 0) store();
  }

 private:
  // Scores of rows of a and q with columns of b and k, N blocks of 8 columns.
  template <int N>
  struct Scores {
    float ab[N][4], ak[N][4], qb[N][4], qk[N][4];

    __device__ void clear() {
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) ab[n][c] = ak[n][c] = qb[n][c] = qk[n][c] = 0;
    }
    __device__ void take(int n, int c, const Scores<2>& from, int m) {
      ab[n][c] = from.ab[m][c], ak[n][c] = from.ak[m][c];
      qb[n][c] = from.qb[m][c], qk[n][c] = from.qk[m][c];
    }
    // Blocks n and n + 1 of columns, in registers as load_matrices() gives them.
    __device__ void add(int n, const uint32_t (&a)[4], const uint32_t (&q)[4],
                        const uint32_t (&b)[2][2], const uint32_t (&k)[2][2]) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma<FOVEA_BF16>(ab[n + i], a, b[i][0], b[i][1]);
        mma<FOVEA_BF16>(ak[n + i], a, k[i][0], k[i][1]);
        mma<FOVEA_BF16>(qb[n + i], q, b[i][0], b[i][1]);
        mma<FOVEA_BF16>(qk[n + i], q, k[i][0], k[i][1]);
      }
    }
  };

  __device__ void load() const {
    const uint32_t full = at_ + kShared.full;
    sm90::barrier_init(full, 1);
    sm90::barrier_init_done();
    const auto tile = [&](int to, const CUtensorMap& map, int head) {
      sm90::tma_load_panels<Tile>(at_ + to, map, full, token_, head, batch_);
    };
    sm90::barrier_expect(full, (outputs_ ? 4 : 3) * Tile::bytes);
    tile(kShared.k, w_.k, head_ / w_.key_share);
    tile(kShared.a, w_.low_a, head_), tile(kShared.b, w_.low_b, head_);
    if (outputs_) tile(kShared.q, w_.q, head_ / w_.query_share);
  }
  // Rows and columns of the products, and the tiles of the chain.  Returns whether the warp's own
  // block was made apart: then it is in `own`.
  __device__ bool scale(Scores<2>& own) const {
    __syncwarp();  // norms
    const Scales by = scales();
    const bool wide = __any_sync(~0u, by.strong);
    if (wide) halves(own);
    const int64_t at_head = slot_ * a_.heads + head_;
    unsigned char* keys = w_.inverses + at_head * delta_low_bytes(D) + kDeltaLowKeysAt;
    unsigned char* queries = w_.scores + at_head * delta_low_query_bytes(D) + kDeltaLowQueryAt;
    float up[C], sum[C];
    load_floats(sum, sums(kRows - 1, lane_ * C));
#pragma unroll
    for (int c = 0; c < C; ++c) up[c] = exp2_fast(sum[c]);
#pragma unroll 2
    for (int i = kRows - 1; i >= 0; --i) {
      float earlier[C] = {}, before[C], down[C];  // `before`: 2^E
      if (i) load_floats(earlier, sums(i - 1, lane_ * C));
      const uint32_t at = place(kRows * warp_ + i);
      const Piece q = raw(kShared.q + at, i, outputs_), a = raw(kShared.a + at, i, true);
      const Piece k = raw(kShared.k + at, i, true), b = raw(kShared.b + at, i, true);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        before[c] = exp2_fast(earlier[c]);
        down[c] = exp2_fast((by.strong >> c & 1 ? by.total[c] : 0) - sum[c]);
      }
      put(base_ + kShared.q + at, q, up), put(base_ + kShared.a + at, a, before);
      put(base_ + kShared.k + at, k, down), put(base_ + kShared.b + at, b, down);
      float whole[C];
#pragma unroll
      for (int c = 0; c < C; ++c) {
        up[c] *= by.before[c], whole[c] = before[c] * by.before[c], down[c] *= by.after[c];
      }
      put(keys + at, a, whole), put(keys + Tile::bytes + at, b, down);
      put(keys + 2 * Tile::bytes + at, k, down);
      if (outputs_) {
        const float by_norm = w_.norm_bytes ? floats(kShared.norm)[64 + kRows * warp_ + i] : 1.f;
#pragma unroll
        for (int c = 0; c < C; ++c) up[c] *= by_norm;  // for gradients
        put(queries + at, q, up);
      }
#pragma unroll
      for (int c = 0; c < C; ++c) up[c] = before[c], sum[c] = earlier[c];
    }
    return wide;
  }

  // ---- a block of strong gates: levels as in keys_sm90.cuh

  __device__ void halves(Scores<2>& own) const {
    own.clear();
    halves<0, 2>(own), halves<2, 4>(own), halves<4, 5>(own);
    __syncwarp();
  }
  template <int From, int To>
  __device__ void halves(Scores<2>& own) const {
    Scores<2> level[To - From];
#pragma unroll
    for (int l = 0; l < To - From; ++l) level[l].clear();
#pragma unroll 1
    for (int n = 0; n < D / 16; ++n) multiply<From>(level, n);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = lane_ / 4 + c / 2 * 8, s = 8 * n + lane_ % 4 * 2 + c % 2;
#pragma unroll
        for (int l = From; l < To; ++l) {
          const bool wanted = l < 4 ? t > s && (t ^ s) >> l == 1 : t == s;
          if (wanted && has(t)) own.take(n, c, level[l - From], n);
        }
      }
  }
  template <int From, int Count>
  __device__ void multiply(Scores<2> (&level)[Count], int n) const {
    const uint32_t from = Tile::at(kRows * warp_ + outer_row(lane_), outer_chunk(lane_));
    const int channel = 16 * n + lane_ % 4 * 2;
    uint32_t raw_q[4], raw_a[4], raw_k[4], raw_b[4];
    load_matrices(raw_q, Tile::pair(at_ + kShared.q + from, n));
    load_matrices(raw_a, Tile::pair(at_ + kShared.a + from, n));
    load_matrices(raw_k, Tile::pair(at_ + kShared.k + from, n));
    load_matrices(raw_b, Tile::pair(at_ + kShared.b + from, n));
    // Register r of an operand: row lane / 4 + r % 2 * 8, channel + r / 2 * 8.
    const auto load = [&](int row, int r) {
      return *reinterpret_cast<const float2*>(sums(row, channel + r / 2 * 8));
    };
#pragma unroll
    for (int l = From; l < From + Count; ++l) {
      const int half = 1 << l;
      uint32_t q[4], a[4], k[4], b[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        q[r] = raw_q[r], a[r] = raw_a[r], k[r] = raw_k[r], b[r] = raw_b[r];
        if (l == 4) continue;
        const int i = lane_ / 4 + r % 2 * 8;
        const float2 pivot = load((i & -(2 * half)) + half - 1, r), sum = load(i, r);
        const float sign = i & half ? 1 : -1;
        const float low = exp2_fast(sign * (sum.x - pivot.x));
        const float high = exp2_fast(sign * (sum.y - pivot.y));
        // What a reads is before the row's own gate; the first of a half's rows is at the pivot.
        const float2 earlier = load(i & half ? i - 1 : i, r);
        q[r] = scaled(q[r], low, high), k[r] = scaled(k[r], low, high);
        b[r] = scaled(b[r], low, high);
        a[r] = scaled(a[r], exp2_fast(sign * (earlier.x - pivot.x)),
                      exp2_fast(sign * (earlier.y - pivot.y)));
      }
      level[l - From].add(0, a, q, {{b[0], b[2]}, {b[1], b[3]}}, {{k[0], k[2]}, {k[1], k[3]}});
    }
  }

  // ---- scores

  __device__ void products(Scores<kSums>& x, bool wide) const {
    x.clear();
    const uint32_t rows = Tile::at(kRows * warp_ + outer_row(lane_), outer_chunk(lane_));
    const uint32_t columns = at_ + Tile::at(inner_row(lane_), inner_chunk(lane_));
    const int last = wide ? warp_ : warp_ + 1;
#pragma unroll 2
    for (int n = 0; n < D / 16; ++n) {
      uint32_t q[4], a[4];
      load_matrices(q, Tile::pair(at_ + kShared.q + rows, n));
      load_matrices(a, Tile::pair(at_ + kShared.a + rows, n));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j >= last) continue;
        uint32_t b[4], k[4];
        load_matrices(b, Tile::pair(columns + kShared.b, n) + j * kRows * kPanelRowBytes);
        load_matrices(k, Tile::pair(columns + kShared.k, n) + j * kRows * kPanelRowBytes);
        if (j != warp_) rescale(b, j, n), rescale(k, j, n);
        x.add(2 * j, a, q, {{b[0], b[1]}, {b[2], b[3]}}, {{k[0], k[1]}, {k[2], k[3]}});
      }
    }
  }

  // -M goes to its place.
  __device__ void weigh(Scores<kSums>& x) const {
    const int first = kRows * warp_ + lane_ / 4, pair = lane_ % 4 * 2;
    const float* norm = floats(kShared.norm);
    const float by_query[2] = {a_.scale * norm[64 + first], a_.scale * norm[64 + first + 8]};
    float* to = m_ + first * kInverseStride + pair;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 column = *reinterpret_cast<const float2*>(norm + 8 * j + pair);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = first + c / 2 * 8, s = 8 * j + pair + c % 2;
        const float by = c % 2 ? column.y : column.x;
        x.ab[j][c] = s < t ? -x.ab[j][c] : 0;
        x.ak[j][c] = s < t ? by * x.ak[j][c] : 0;
        x.qb[j][c] = s <= t ? by_query[c / 2] * x.qb[j][c] : 0;
        x.qk[j][c] = s <= t ? by_query[c / 2] * by * x.qk[j][c] : 0;
      }
      *reinterpret_cast<float2*>(to + 8 * j) = make_float2(x.ab[j][0], x.ab[j][1]);
      *reinterpret_cast<float2*>(to + 8 * kInverseStride + 8 * j) =
          make_float2(x.ab[j][2], x.ab[j][3]);
    }
  }
  // Scores to the warp's rows of the first panel of a tile.
  __device__ void stage(int tile, const Sums& x) const {
    uint32_t p[1][kChainTokens / 16][4];
    pack_operand<Dtype>(p, reinterpret_cast<const float(&)[1][kSums][4]>(x));
    stage(tile, p[0]);
  }
  __device__ void stage(int tile, const uint32_t (&p)[kChainTokens / 16][4]) const {
    const uint32_t to =
        at_ + tile + TileT::at(kRows * warp_ + outer_row(lane_), outer_chunk(lane_));
#pragma unroll
    for (int k = 0; k < kChainTokens / 16; ++k) sm90::store_matrices(TileT::pair(to, k), p[k]);
  }
  __device__ void store() const {
    const int64_t at_head = slot_ * a_.heads + head_;
    unsigned char* keys = w_.inverses + at_head * delta_low_bytes(D);
    unsigned char* queries = w_.scores + at_head * delta_low_query_bytes(D);
    sm90::tma_store(keys, at_ + kShared.m, kDeltaTile + kDeltaChannels + D * 4);
    sm90::tma_store(keys + kDeltaKeysAt, at_ + kShared.a, kDeltaTile);
    if (outputs_) {
      sm90::tma_store(queries, at_ + kShared.q, kDeltaTile);
      sm90::tma_store(queries + kDeltaTile, at_ + kShared.b, kChainTokens * 4);
      sm90::tma_store(queries + kDeltaScoreStride, at_ + kShared.k, kDeltaTile);
    }
    sm90::tma_store_commit();
    sm90::tma_store_wait_read<0>();
  }
};

}  // namespace fovea::cuda
