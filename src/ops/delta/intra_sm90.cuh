// SPDX-License-Identifier: Apache-2.0
// What x_delta_forward needs of a chunk of 64 tokens that no state is in, by a block for each chunk
// and head.  With D_ts the sum of the log gates after s up to t, and k^, q^ divided by their norms:
//   M_ts = beta_t k^_t k^_s 2^D_ts, s < t      T = (1 + M)^-1
//   A_ts = scale q^_t k^_s 2^D_ts,  s <= t, for each output of the head
// Norms are factors of rows and columns in f32: q and k are never rounded again.
// T by inverse_sm90.cuh.
// Decays are products of powers of 2 at most 1, whose exponents are sums of the gates they cover.
// Shared memory: K; Q, then A; M, then T; decays.
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/launch.h"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/pipeline_sm90.cuh"
#include "ops/delta/forward.cuh"
#include "ops/delta/inverse_sm90.cuh"

namespace fovea::cuda {

// Decays of a chunk, times |k_s|^-1 where s is a column.
struct DeltaDecay {
  float gate[64], prefix[64], beta[64];
  float norm[128];          // |k|^-1, |q|^-1
  float within[64];         // 2^(of P_t, what the block of t adds)
  float before[3][64];      // [I - 1][s]: of D_ts, what rows before block I add; I > block of s
  float block[4][16 * 16];  // within a block, at(t, s); 0 where s > t
  float total[4];
  DeltaVectors vectors;

  __device__ static int at(int t, int s) { return t * 16 + (s ^ (t & 2) * 4); }
};

template <int D>
struct DeltaIntraShared : sm90::SharedLayout {
  using TileQ = Swizzled<kChainTokens, D>;
  int k = tiles(TileQ::bytes);
  int q = tiles(TileQ::bytes > kDeltaScoreStride ? TileQ::bytes : kDeltaScoreStride);
  int m = tiles(kChainTokens * kInverseStride * 4);
  int decay = of<float4>((sizeof(DeltaDecay) + 15) / 16);
  int full = barriers(2);
};

// Decays of a chunk by four warps, and what they weigh.
class DeltaDecays {
 protected:
  static constexpr int kSums = kChainTokens / 8;

  __device__ explicit DeltaDecays(const Recur& a, DeltaDecay* decay = nullptr)
      : a_(a), decay_(decay) {}

  __device__ static int warp() { return threadIdx.x % 128 / 32; }

  // Gates, beta and sums of gates in blocks of 16 tokens, a block a warp.
  __device__ void scan(float beta_least) {
    const int lane = threadIdx.x % 32, in = lane % 16, warp = this->warp();
    const int i = 16 * warp + in;
    const int64_t token = run_.begin + first_ + i;
    float gate = 0, beta = 0;
    if (i < left_) {
      if (a_.gate_head) gate = a_.head_gate(run_.batch, token, head_).value * kLog2E;
      beta = a_.beta_at(run_.batch, token, head_).value;
      if (fabsf(beta) < beta_least) beta = copysignf(beta_least, beta);
    }
    float up = gate, down = gate;
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
      const float above = __shfl_up_sync(~0u, up, step, 16);
      const float below = __shfl_down_sync(~0u, down, step, 16);
      if (in >= step) up += above;
      if (in + step < 16) down += below;
    }
    down = __shfl_down_sync(~0u, down, 1, 16);
    if (lane >= 16) return;
    decay_->gate[i] = gate, decay_->prefix[i] = up;
    decay_->beta[i] = beta, decay_->vectors.suffix[i] = in == 15 ? 0 : down;
    if (in == 15) decay_->total[warp] = up;
  }

  __device__ void tables() {
    const int lane = threadIdx.x % 32, in = lane % 16, warp = this->warp();
    if (const int i = threadIdx.x % 128; i < 64) {
      const int b = i / 16;
      const float norm = decay_->norm[i];
      float earlier = 0, later = decay_->vectors.suffix[i];
#pragma unroll
      for (int other = 0; other < 4; ++other) {
        const float total = decay_->total[other];
        if (other < b) earlier += total;
        if (other > b) decay_->before[other - 1][i] = norm * exp2_fast(later), later += total;
      }
      decay_->within[i] = exp2_fast(decay_->prefix[i]);
      const float answer = norm * exp2_fast(earlier + decay_->prefix[i]);
      const float suffix = norm * exp2_fast(later);
      decay_->vectors.answer[i] = answer, decay_->vectors.suffix[i] = suffix;
      const int zero = __any_sync(~0u, answer == 0 || suffix == 0);
      if (i % 32 == 0) decay_->vectors.zero[i / 32] = zero;
      if (i == 63) decay_->vectors.all = exp2_fast(earlier + decay_->total[3]);
    }
    const float norm = decay_->norm[16 * warp + in];
    float sum = 0;
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      if (t > in) sum += decay_->gate[16 * warp + t];
      if (t / 8 == lane / 16)
        decay_->block[warp][DeltaDecay::at(t, in)] = t < in ? 0 : norm * exp2_fast(sum);
    }
  }

  // x_ts times row[.] 2^D_ts |k_s|^-1, where s is at most t.
  __device__ void weigh(float (&x)[kSums][4], const float (&row)[2]) const {
    const int warp = this->warp(), at = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
    const float* in = decay_->within + 16 * warp + at;
    const float within[2] = {row[0] * in[0], row[1] * in[8]};
    const float* before = decay_->before[warp > 0 ? warp - 1 : 0] + pair;
    const float* block = decay_->block[warp];
    float2 own[2][2];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        own[j][h] =
            *reinterpret_cast<const float2*>(block + DeltaDecay::at(at + 8 * h, 8 * j + pair));
        own[j][h].x *= row[h], own[j][h].y *= row[h];
      }
      // No branches: a warp's place is no constant.
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const bool left = j / 2 < warp, here = j / 2 == warp;
      float2 column{};
      if (j < kSums - 2) column = *reinterpret_cast<const float2*>(before + 8 * j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 diagonal = own[j % 2][h];
        const float low = left ? within[h] * column.x : here ? diagonal.x : 0.f;
        const float high = left ? within[h] * column.y : here ? diagonal.y : 0.f;
        x[j][2 * h] = decayed(low, x[j][2 * h]);
        x[j][2 * h + 1] = decayed(high, x[j][2 * h + 1]);
      }
    }
  }

  const Recur& a_;
  DeltaDecay* decay_;
  RunTokens run_;
  int64_t first_;
  int head_, left_;
};

template <int Dtype, int D>
class DeltaIntra : DeltaDecays {
  using TileQ = Swizzled<kChainTokens, D>;
  using TileT = Swizzled<kChainTokens, kChainTokens>;
  static constexpr DeltaIntraShared<D> kShared = DeltaIntraShared<D>();

 public:
  // The base is aligned: a kilobyte more would cost a block of each multiprocessor.
  static constexpr int shared_bytes = kShared.bytes;
  // Of a multiprocessor; operands of two parts take more registers.
  static constexpr int blocks = Dtype == FOVEA_F16 ? 3 : 4;
  static_assert(blocks * (shared_bytes + 1024) <= 228 * 1024);

  __device__ DeltaIntra(const DeltaWork90& work, unsigned char* base)
      : DeltaDecays(work.a, reinterpret_cast<DeltaDecay*>(base + kShared.decay)),
        w_(work),
        base_(base),
        at_(shared_address(base_)),
        m_(reinterpret_cast<float*>(base_ + kShared.m)) {}

  __device__ void run(uint32_t block) {
    const auto heads = static_cast<uint32_t>(a_.heads);
    const uint32_t slot = block / heads;
    head_ = block - slot * heads, slot_ = slot;
    const int64_t sequence =
        a_.run.start ? w_.sequence_of(slot_) : slot / static_cast<uint32_t>(w_.chunks);
    run_ = a_.run[sequence];
    first_ = (slot_ - w_.slot(sequence, run_.begin)) * kChainTokens;
    if (first_ >= run_.count) return;
    left_ = static_cast<int>(clamp_i64(run_.count - first_, 0, kChainTokens));
    // Rows before the first output have none.
    outputs_ = a_.o && first_ + left_ > run_.from ? w_.outputs : 0;
    if (threadIdx.x == 0) {
      sm90::barrier_init(full(0), 1), sm90::barrier_init(full(1), 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      sm90::tma_load_tile<TileQ>(at_ + kShared.k, w_.k, full(0),
                                 static_cast<int>(run_.begin + first_), head_ / w_.key_share,
                                 static_cast<int>(run_.batch));
      if (outputs_) load_query(0);
    }
    float x[kSums][4], y[kSums][4];
    uint32_t p[kChainTokens / 16][4];
    scan(w_.beta_least);
    const uint64_t k = sm90::descriptor(at_ + kShared.k), q = sm90::descriptor(at_ + kShared.q);
    sm90::barrier_wait(full(0), 0);
    if (outputs_) sm90::barrier_wait(full(1), 0);
    sm90::fence();
    sm90::product_rows<Dtype, D, TileQ, TileQ>(x, k, k);
    // Without outputs y is of no use, but a branch between products would serialise them.
    sm90::product_rows<Dtype, D, TileQ, TileQ>(y, q, k);
    sm90::commit();
    norms(0), norms(1);
    __syncthreads();
    tables();
    __syncthreads();
    sm90::wait<0>();
    sm90::pin(x), sm90::pin(y);
    weigh_keys(x);
    if (outputs_) weigh_scores(p, y);
    __syncwarp();
    DeltaInverse<Dtype>(m_).invert_block();
    __syncthreads();
    if (outputs_) write_scores(p);
    write_inverse();
    sm90::fence_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
      sm90::tma_store(w_.inverses + (slot_ * a_.heads + head_) * kDeltaInverseStride,
                      at_ + kShared.m, kDeltaInverseBytes + w_.norm_bytes);
      if (outputs_) store_scores(0);
      sm90::tma_store_commit();
    }
    for (int j = 1; j < outputs_; ++j) next_output(j);
    if (threadIdx.x == 0) sm90::tma_store_wait_read<0>();
  }

 private:
  __device__ uint32_t full(int i) const { return at_ + kShared.full + 8 * i; }
  __device__ int64_t output_head(int j) const { return int64_t{head_} * w_.outputs + j; }
  __device__ void load_query(int j) const {
    sm90::tma_load_tile<TileQ>(
        at_ + kShared.q, w_.q, full(1), static_cast<int>(run_.begin + first_),
        static_cast<int>(output_head(j)) / w_.query_share, static_cast<int>(run_.batch));
  }
  __device__ void store_scores(int j) const {
    sm90::tma_store(w_.scores + (slot_ * a_.heads_out + output_head(j)) * kDeltaScoreStride,
                    at_ + kShared.q, kDeltaScoreBytes + w_.norm_bytes);
  }

  // Of K (0) or Q (1).  Squares are the diagonal of a warp's 16 rows times themselves.
  __device__ void norms(int which) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = 16 * warp + lane / 4, column = lane % 4 * 2;
    float factor[2] = {1, 1};
    if (a_.l2_norm && (which == 0 || outputs_)) {
      float sum[2][4] = {};
      const uint32_t tile = at_ + (which ? kShared.q : kShared.k);
      const uint32_t from = tile + TileQ::at(16 * warp + outer_row(lane), outer_chunk(lane));
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        uint32_t x[4];
        load_matrices(x, TileQ::pair(from, k));
        mma<Dtype>(sum[0], x, x[0], x[2]);
        mma<Dtype>(sum[1], x, x[1], x[3]);
      }
      const bool odd = lane / 4 % 2;
      factor[0] = rsqrtf((odd ? sum[0][1] : sum[0][0]) + a_.eps);
      factor[1] = rsqrtf((odd ? sum[1][3] : sum[1][2]) + a_.eps);
    }
    if (column != lane / 4 / 2 * 2) return;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      decay_->norm[64 * which + row + 8 * h] = row + 8 * h < left_ ? factor[h] : 0.f;
  }

  // M's blocks up to the diagonal; of a block there, what lies below the diagonal counts.
  __device__ void weigh_keys(float (&x)[kSums][4]) const {
    const int warp = threadIdx.x / 32, pair = threadIdx.x % 4 * 2;
    const int first = 16 * warp + threadIdx.x % 32 / 4;
    float* to = m_ + first * kInverseStride + pair;
    weigh(x, {decay_->beta[first] * decay_->norm[first],
              decay_->beta[first + 8] * decay_->norm[first + 8]});
    // Blocks right of the diagonal are zeros that nothing reads.
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      *reinterpret_cast<float2*>(to + 8 * j) = make_float2(x[j][0], x[j][1]);
      *reinterpret_cast<float2*>(to + 8 * kInverseStride + 8 * j) = make_float2(x[j][2], x[j][3]);
    }
  }
  __device__ void weigh_scores(uint32_t (&p)[kChainTokens / 16][4], float (&y)[kSums][4]) const {
    const float* norm = decay_->norm + 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    weigh(y, {a_.scale * norm[0], a_.scale * norm[8]});
    pack_operand<Dtype>(reinterpret_cast<uint32_t(&)[1][kChainTokens / 16][4]>(p),
                        reinterpret_cast<float(&)[1][kSums][4]>(y));
  }

  // T; then, once no warp reads M, the tile and the vectors in its place.
  __device__ void write_inverse() {
    DeltaInverse<Dtype>(m_).write(decay_->beta, [] { __syncthreads(); });
    const auto* from = reinterpret_cast<const float*>(&decay_->vectors);
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(DeltaVectors) / 4); i += 128)
      reinterpret_cast<float*>(base_ + kShared.m + kDeltaTile)[i] = from[i];
    if (threadIdx.x < 64)
      reinterpret_cast<float*>(base_ + kShared.m + kDeltaInverseBytes)[threadIdx.x] =
          decay_->norm[threadIdx.x];
  }

  // A in the place of Q, which no warp reads any more.
  __device__ void write_scores(const uint32_t (&p)[kChainTokens / 16][4]) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = threadIdx.x;
    const uint32_t to = at_ + kShared.q + TileT::at(16 * warp + outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int k = 0; k < kChainTokens / 16; ++k) sm90::store_matrices(TileT::pair(to, k), p[k]);
    if (i >= 64) return;
    float sum = decay_->prefix[i];
    for (int b = 0; b < i / 16; ++b) sum += decay_->total[b];
    reinterpret_cast<float*>(base_ + kShared.q + kDeltaTile)[i] =
        a_.scale * decay_->norm[64 + i] * exp2_fast(sum);
    reinterpret_cast<float*>(base_ + kShared.q + kDeltaScoreBytes)[i] = decay_->norm[64 + i];
  }

  __device__ void next_output(int j) {
    float y[kSums][4];
    uint32_t p[kChainTokens / 16][4];
    if (threadIdx.x == 0) sm90::tma_store_wait_read<0>(), load_query(j);
    sm90::barrier_wait(full(1), j % 2);
    sm90::fence();
    sm90::product_rows<Dtype, D, TileQ, TileQ>(y, sm90::descriptor(at_ + kShared.q),
                                               sm90::descriptor(at_ + kShared.k));
    sm90::commit();
    norms(1);
    sm90::wait<0>();
    sm90::pin(y);
    __syncthreads();
    weigh_scores(p, y);
    write_scores(p);
    sm90::fence_shared();
    __syncthreads();
    if (threadIdx.x == 0) store_scores(j), sm90::tma_store_commit();
  }

  const DeltaWork90& w_;
  unsigned char* base_;
  uint32_t at_;
  float* m_;
  int64_t slot_;
  int outputs_;
};

template <int Dtype, int D>
__global__ void __launch_bounds__(128, DeltaIntra<Dtype, D>::blocks)
    delta_intra_sm90_kernel(const __grid_constant__ DeltaWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  DeltaIntra<Dtype, D>(work, shared).run(blockIdx.x);
}

}  // namespace fovea::cuda
