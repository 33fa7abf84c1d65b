// SPDX-License-Identifier: Apache-2.0
// A chunk of 64 tokens of a head under a key gate, for what x_delta_forward makes of it before any
// state is known.  Four warps work at an item, a chunk and head; one block has several such
// workers. A warp has 16 tokens, a lane d / 32 channels of each.  Here: items, sums of gates,
// norms, and the factors that scale rows and columns.
//   Gates are log2, and bounded by -160, where 2^g is 0.  So sums are finite and a reset is exact.
//   Rows of a warp are scaled to before its first token, 2^P, P the sum of its gates.  Columns are
//   scaled to the same, 2^-P, where the warp's gates sum up to -100 or more; else to its last
//   token. Columns for rows of later warps are scaled on in registers: no factor there is above 1.
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/launch.h"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/pipeline_sm90.cuh"
#include "ops/delta/forward.cuh"
#include "ops/delta/inverse_sm90.cuh"

namespace fovea::cuda {

constexpr float kGateLeast = -160;  // log2: 2^g is 0 below
constexpr float kGateRange = 100;   // log2: two-sided products have factors up to its power of two

// A gate as log2 of its decay, by instructions of few bits where they do.
enum class Log2Map { log, power, bounded, softplus };

class Log2Gate {
 public:
  __device__ Log2Gate(const Recur& a, int64_t head)
      : least_(a.gate.bound > 0 ? fmaxf(-a.gate.bound * kLog2E, kGateLeast) : kGateLeast) {
    const int map = a.gate.map;
    kind = map == FOVEA_X_GATE_MAP_LOG       ? Log2Map::log
           : map == FOVEA_X_GATE_MAP_EXP     ? Log2Map::power
           : map == FOVEA_X_GATE_MAP_BOUNDED ? Log2Map::bounded
                                             : Log2Map::softplus;
    factor_ = -kLog2E, inner_ = kLog2E;
    if (map == FOVEA_X_GATE_MAP_LOG_SIGMOID) factor_ = -1 / a.gate.tau, inner_ = -kLog2E;
    if (map != FOVEA_X_GATE_MAP_SOFTPLUS && map != FOVEA_X_GATE_MAP_BOUNDED) return;
    const float rate = exp_of(a.rate_of(head));
    if (map == FOVEA_X_GATE_MAP_SOFTPLUS) factor_ = -rate;
    if (map == FOVEA_X_GATE_MAP_BOUNDED) factor_ *= a.gate.bound, inner_ = -rate * kLog2E;
  }
  // x: with its bias.  NaN stays.
  template <Log2Map Kind>
  __device__ float of(float x) const {
    if constexpr (Kind == Log2Map::log) return bounded(x * kLog2E);
    const float z = x * inner_, power = exp2_fast(z);
    if constexpr (Kind == Log2Map::power) return bounded(factor_ * power);
    if constexpr (Kind == Log2Map::bounded) return bounded(__fdividef(factor_, 1 + power));
    return bounded(factor_ * (z > 24 ? z : log2_plus(power)));
  }

  Log2Map kind;

 private:
  __device__ float bounded(float x) const { return x < least_ ? least_ : x; }
  // log2(1 + x), x >= 0
  __device__ static float log2_plus(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1 + x));
    const float series = x * (1 + x * (-1.f / 2 + x * (1.f / 3 + x * (-1.f / 4 + x * (1.f / 5)))));
    return x < 1.f / 16 ? series * kLog2E : y;
  }

  float least_, factor_, inner_;
};

// What shared memory has beside tiles: M, then T; tables.
template <int D>
struct DeltaChunkShared : sm90::SharedLayout {
  using Tile = Swizzled<kChainTokens, D>;
  int e = tiles(Tile::bytes);
  int m = tiles(kChainTokens * kInverseStride * 4);
  int total = of<float4>(D);            // [warp][channel]: the sum of its gates
  int to_rows = of<float4>(6 * D / 4);  // [warp and an earlier one][channel]: factors of columns
  int norm = of<float4>(2 * 64 / 4);    // |k|^-1, |q|^-1; 0 past the last token
  int beta = of<float4>(kChainTokens / 4);
  int vectors = of<float4>((sizeof(DeltaVectors) + D * 4 + 15) / 16);
  int full = barriers(1);  // tiles, as TMA loads them
};

template <int D, class Shared>
class DeltaChunk90 {
 protected:
  static constexpr int Dtype = FOVEA_BF16;
  static constexpr int C = D / 32;  // channels of a lane
  using Tile = Swizzled<kChainTokens, D>;
  using TileT = Swizzled<kChainTokens, kChainTokens>;
  static constexpr Shared kShared = Shared();
  static constexpr int kSums = kChainTokens / 8;
  static constexpr int kRows = 16;  // tokens of a warp
  using Sums = float[kSums][4];

  // Two channels a word.
  struct Piece {
    uint32_t word[C / 2];
    __device__ float operator[](int c) const {
      return c % 2 ? float_of(word[c / 2] & 0xffff0000u) : float_of(word[c / 2] << 16);
    }
  };
  // Of the lane's channels: the warp's sum of gates, the decays before its tokens and after them,
  // and a bit for each whose columns are scaled to the last token.
  struct Scales {
    float total[C], before[C], after[C];
    uint32_t strong;
  };

 public:
  // The base is aligned: a kilobyte more would cost a block of each multiprocessor.
  static constexpr int shared_bytes = kShared.bytes;

  __device__ DeltaChunk90(const DeltaWork90& work, unsigned char* shared)
      : w_(work),
        a_(work.a),
        lane_(threadIdx.x % 32),
        warp_(sm90::uniform(threadIdx.x / 32)),
        base_(shared),
        at_(shared_address(base_)),
        m_(reinterpret_cast<float*>(base_ + kShared.m)) {}

 protected:
  __device__ float* floats(int at) const { return reinterpret_cast<float*>(base_ + at); }
  __device__ DeltaVectors& vectors() const {
    return *reinterpret_cast<DeltaVectors*>(base_ + kShared.vectors);
  }

  // The block's chunk; false: the sequence has none there.
  __device__ bool find(uint32_t block) {
    const auto heads = static_cast<uint32_t>(a_.heads);
    const uint32_t slot = block / heads;
    head_ = block - slot * heads;
    slot_ = slot;
    const int64_t sequence =
        a_.run.start ? w_.sequence_of(slot_) : slot / static_cast<uint32_t>(w_.chunks);
    const RunTokens run = a_.run[sequence];
    const int64_t first = (slot_ - w_.slot(sequence, run.begin)) * kChainTokens;
    if (first >= run.count) return false;
    left_ = static_cast<int>(clamp_i64(run.count - first, 0, kChainTokens));
    outputs_ = a_.o && first + left_ > run.from;  // rows before the first output have none
    token_ = static_cast<int>(run.begin + first), batch_ = static_cast<int>(run.batch);
    return true;
  }
  // Whether the warp's token i exists.
  __device__ bool has(int i) const { return kRows * warp_ + i < left_; }

  // ---- sums of gates

  // Where the sum of the gates up to the warp's token i lies, from an even channel on, in the
  // warp's rows of M and, of tokens from 8 on, of e.  There a token has its own row of 256 bytes
  // and that of the token 8 before it.
  __device__ float* sums(int i, int channel) const {
    constexpr int kPieces = D / 32;  // of 128 bytes
    const int chunk = channel / 4, piece = chunk / 8;
    int at = kShared.m + kRows * warp_ * kInverseStride * 4 + (i * kPieces + piece) * 128;
    if (kPieces > 2 && i >= 8)
      at = kShared.e + piece % 2 * Tile::panel_bytes +
           (kRows * warp_ + (piece < 2 ? i : i - 8)) * kPanelRowBytes;
    return floats(at + (chunk % 8 ^ i % 8) * 16) + channel % 4;
  }

  __device__ void scan() const {
    const Log2Gate gate(a_, head_);
    if (a_.gate_key.dtype == FOVEA_F32)
      scan_of<float>(gate);
    else
      scan_of<Bf16>(gate);
  }
  template <class T>
  __device__ void scan_of(const Log2Gate& gate) const {
    const T* from = a_.gate_key.view.template as<const T>() +
                    a_.gate_key.offset(batch_, token_ + kRows * warp_, head_, lane_ * C);
    const int64_t step = a_.gate_key.view.stride[1];
#pragma unroll
    for (int i = 0; i < kRows; ++i) copy_gates<T>(i, has(i) ? from + i * step : from);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    if (gate.kind == Log2Map::log) add<T, Log2Map::log>(gate);
    if (gate.kind == Log2Map::power) add<T, Log2Map::power>(gate);
    if (gate.kind == Log2Map::bounded) add<T, Log2Map::bounded>(gate);
    if (gate.kind == Log2Map::softplus) add<T, Log2Map::softplus>(gate);
  }
  // Gates of f32 go where their sums will be, others to the rows of e.
  template <class T>
  __device__ uint32_t gates(int i) const {
    return sizeof(T) == 4 ? shared_address(sums(i, lane_ * C))
                          : at_ + kShared.e + place(kRows * warp_ + i);
  }
  template <class T>
  __device__ void copy_gates(int i, const T* from) const {
    constexpr int kBytes = C * sizeof(T);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(gates<T>(i)), "l"(from),
                 "n"(kBytes), "r"(has(i) ? kBytes : 0)
                 : "memory");
  }
  template <class T, Log2Map Kind>
  __device__ void add(const Log2Gate& gate) const {
    float bias[C] = {}, sum[C] = {}, whole = 0;  // of a lane's token: the gate of the head
    if (a_.bias) {
#pragma unroll
      for (int c = 0; c < C; ++c) bias[c] = *a_.bias.at(head_, lane_ * C + c);
    }
    const int in = lane_ % kRows;
    if (a_.gate_head && has(in))
      whole = gate.template of<Kind>(a_.gate_head(batch_, token_ + kRows * warp_ + in, head_));
#pragma unroll 4
    for (int i = 0; i < kRows; ++i) {
      float x[C];
      if constexpr (sizeof(T) == 4)
        load_floats(x, sums(i, lane_ * C));
      else
        unpack(x, load_piece(base_ + (gates<T>(i) - at_)));
      const float more = __shfl_sync(~0u, whole, i);  // after all lanes have read the row
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float one = gate.template of<Kind>(x[c] + bias[c]) + more;
        sum[c] += !has(i) ? 0 : one < kGateLeast ? kGateLeast : one;
      }
      store_floats(sums(i, lane_ * C), sum);
      __syncwarp();
    }
    store_floats(floats(kShared.total) + warp_ * D + lane_ * C, sum);
  }
  __device__ static void load_floats(float (&to)[C], const float* from) {
    if constexpr (C == 4) {
      const float4 x = *reinterpret_cast<const float4*>(from);
      to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    } else {
      const float2 x = *reinterpret_cast<const float2*>(from);
      to[0] = x.x, to[1] = x.y;
    }
  }
  __device__ static void store_floats(float* to, const float (&x)[C]) {
    if constexpr (C == 4)
      *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    else
      *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
  }
  __device__ static Piece load_piece(const unsigned char* from) {
    Piece x;
    if constexpr (C == 4) {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      x.word[0] = two.x, x.word[1] = two.y;
    } else {
      x.word[0] = *reinterpret_cast<const uint32_t*>(from);
    }
    return x;
  }
  __device__ static void unpack(float (&to)[C], const Piece& x) {
#pragma unroll
    for (int c = 0; c < C; ++c) to[c] = x[c];
  }

  // ---- norms and factors

  // Squares are the diagonal of a warp's 16 rows times themselves.
  __device__ void norms(int tile, int to) const {
    float factor[2] = {1, 1};
    if (a_.l2_norm && (!to || outputs_)) {
      float sum[2][4] = {};
      const uint32_t from =
          at_ + tile + Tile::at(kRows * warp_ + outer_row(lane_), outer_chunk(lane_));
#pragma unroll 4
      for (int n = 0; n < D / 16; ++n) {
        uint32_t x[4];
        load_matrices(x, Tile::pair(from, n));
        mma<Dtype>(sum[0], x, x[0], x[2]);
        mma<Dtype>(sum[1], x, x[1], x[3]);
      }
      const bool odd = lane_ / 4 % 2;
      factor[0] = rsqrtf((odd ? sum[0][1] : sum[0][0]) + a_.eps);
      factor[1] = rsqrtf((odd ? sum[1][3] : sum[1][2]) + a_.eps);
    }
    __syncwarp();
    if (lane_ % 4 != lane_ / 8) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int in = lane_ / 4 + 8 * h, i = kRows * warp_ + in;
      const float norm = has(in) ? factor[h] : 0.f;
      floats(kShared.norm)[to + i] = norm;
      if (to) continue;
      vectors().answer[i] = vectors().suffix[i] = norm;
      float by = has(in) ? beta(token_ + i) : 0.f;
      if (has(in) && fabsf(by) < w_.beta_least) by = copysignf(w_.beta_least, by);
      floats(kShared.beta)[i] = by;
    }
  }
  __device__ float beta(int64_t token) const {
    if (!a_.beta) return 1;
    const float x = a_.beta(batch_, token, head_);
    if (a_.beta_map == FOVEA_X_BETA_MAP_NONE) return x;
    const float factor = a_.beta_map == FOVEA_X_BETA_MAP_TWO_SIGMOID ? 2 : 1;
    return __fdividef(factor, 1 + exp2_fast(-kLog2E * x));
  }

  // Factors of the lane's channels, and those of columns for rows of the warp.
  __device__ Scales scales() const {
    Scales by;
    by.strong = 0;
    const int channel = lane_ * C;
    float to_rows[3][C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float sums[2] = {0, 0};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float one = floats(kShared.total)[w * D + channel + c];
        if (w == warp_) by.total[c] = one;
        if (w < warp_) sums[0] += one;
        if (w > warp_) sums[1] += one;
        if (w == 3) continue;
        to_rows[w][c] = one >= -kGateRange ? one : 0;
#pragma unroll
        for (int from = 0; from < w; ++from) to_rows[from][c] += w < warp_ ? one : 0;
      }
      const bool high = !(by.total[c] >= -kGateRange);
      by.strong |= static_cast<uint32_t>(high) << c;
      by.before[c] = exp2_fast(sums[0]),
      by.after[c] = exp2_fast(sums[1] + (high ? 0 : by.total[c]));
      if (warp_ == 0) {
        const bool resets = exp2_fast(this->sums(0, channel)[c]) == 0;
        floats(kShared.vectors)[kDeltaChannels / 4 + channel + c] =
            resets ? -0.f : exp2_fast(sums[1] + by.total[c]);
      }
    }
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      if (j >= warp_) continue;
#pragma unroll
      for (int c = 0; c < C; ++c) to_rows[j][c] = exp2_fast(to_rows[j][c]);
      store_floats(factors(j) + channel, to_rows[j]);
    }
    return by;
  }
  // Of columns of warp j for rows of the warp, which is a later one.
  __device__ float* factors(int j) const {
    return floats(kShared.to_rows) + (warp_ * (warp_ - 1) / 2 + j) * D;
  }
  // Channels of token i as loaded; rows past the last token are of others.
  __device__ Piece raw(int at, int i, bool loaded) const {
    if (!loaded || !has(i)) return Piece{};
    return load_piece(base_ + at);
  }
  // Where the lane's channels of a row lie in a tile.
  __device__ uint32_t place(int row) const {
    constexpr int kLanes = 8 / C;  // of a chunk
    return Tile::at(row, lane_ / kLanes) + lane_ % kLanes * (2 * C);
  }
  __device__ static void put(unsigned char* to, const Piece& x, const float (&by)[C]) {
    uint32_t word[C / 2];
#pragma unroll
    for (int c = 0; c < C; c += 2) word[c / 2] = pack<Dtype>(x[c] * by[c], x[c + 1] * by[c + 1]);
    if constexpr (C == 4)
      *reinterpret_cast<uint2*>(to) = make_uint2(word[0], word[1]);
    else
      *reinterpret_cast<uint32_t*>(to) = word[0];
  }

  // Columns of warp j, step n of 16 channels, to before the warp's first token.
  __device__ void rescale(uint32_t (&columns)[4], int j, int n) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 by =
          *reinterpret_cast<const float2*>(factors(j) + 16 * n + 8 * h + lane_ % 4 * 2);
#pragma unroll
      for (int i = h; i < 4; i += 2) columns[i] = scaled(columns[i], by.x, by.y);
    }
  }

  __device__ static uint32_t scaled(uint32_t two, float low, float high) {
    return pack<Dtype>(float_of(two << 16) * low, float_of(two & 0xffff0000u) * high);
  }
  // T and the vectors, in the place of M.
  __device__ void write_inverse() const {
    DeltaInverse<Dtype>(m_).write(floats(kShared.beta), [] { __syncthreads(); });
    constexpr int kFloats = kDeltaChannels / 4 + D;
    constexpr int kZero = offsetof(DeltaVectors, zero) / 4;
    const float* from = floats(kShared.vectors);
    const int i = 32 * warp_ + lane_;
    for (int n = i; n < kFloats; n += 128)
      if (n < kZero || n >= kDeltaChannels / 4) floats(kShared.m + kDeltaTile)[n] = from[n];
    if (warp_) return;
    bool zero = false;
#pragma unroll
    for (int c = 0; c < C; ++c) zero |= from[kDeltaChannels / 4 + lane_ * C + c] == 0;
    zero = __any_sync(~0u, zero);
    if (lane_) return;
    auto& flags = reinterpret_cast<DeltaVectors*>(base_ + kShared.m + kDeltaTile)->zero;
    flags[0] = left_ < kChainTokens, flags[1] = zero;
  }

  const DeltaWork90& w_;
  const Recur& a_;
  const int lane_, warp_;
  unsigned char* base_;
  uint32_t at_;
  float* m_;
  uint32_t slot_;
  int batch_, token_, head_, left_;
  bool outputs_;
};

// The kernel of a class of chunks.
template <class Chunk>
__global__ void __launch_bounds__(128, Chunk::blocks)
    delta_chunks_sm90_kernel(const __grid_constant__ DeltaWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Chunk(work, shared).run(blockIdx.x);
}

}  // namespace fovea::cuda
