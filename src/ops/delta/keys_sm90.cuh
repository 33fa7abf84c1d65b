// SPDX-License-Identifier: Apache-2.0
// What x_delta_forward under a key gate needs of a chunk of 64 tokens that no state is in, by a
// block for each chunk and head.  With P_t the sum of the log2 gates up to t of a channel, S_s that
// after s, k^ and q^ divided by their norms, and a sum over channels c:
//   M_ts = beta_t sum_c k^_tc k^_sc 2^(P_t - P_s), s < t      T = (1 + M)^-1
//   A_ts = scale sum_c q^_tc k^_sc 2^(P_t - P_s),  s <= t
//   Q~ = q 2^P,  K~ = k 2^P,  K- = k 2^S
// A warp has 16 tokens, a lane d / 32 channels of each: sums of gates are in registers.  Gates are
// bounded by -160, where 2^g is 0, so sums are finite and a reset is exact.
// Scores of 16 rows and 16 columns are products of two scaled operands: rows 2^(P_t - P_I), columns
// 2^(P_I - P_s), I before the rows' first token.  Both are at most 1, but for columns of the same
// tokens.  Those are at most 2^100, else the block is made in halves: 8 rows by 8 columns before
// them, 4 by 4, 2 by 2, 1 by 1, and the diagonal.  No factor there is above 1.
// Columns are stored for rows of their own tokens, and scaled for later ones in registers.
//   | shared memory | who writes    | who reads            |
//   | q, k: rows    | a warp its 16 | the same warp        |
//   | e: columns    | a warp its 16 | warps from it on     |
//   | totals, norms | a warp its 16 | all                  |
//   | m: M          | a warp its 16 | all                  |
//   | q: A; m: T    | a warp its 16 | TMA                  |
// Between a writer and another reader lies a barrier of the block.
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/launch.h"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/order.cuh"
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

template <int D>
struct DeltaKeysShared : sm90::SharedLayout {
  using Tile = Swizzled<kChainTokens, D>;
  int q = tiles(Tile::bytes > kDeltaScoreStride ? Tile::bytes : kDeltaScoreStride);
  int k = tiles(Tile::bytes);
  int e = tiles(Tile::bytes);
  int m = tiles(kChainTokens * kInverseStride * 4);
  int total = of<float4>(D);            // [warp][channel]: the sum of its gates
  int to_rows = of<float4>(6 * D / 4);  // [warp and an earlier one][channel]: factors of columns
  int norm = of<float4>(2 * 64 / 4);    // |k|^-1, |q|^-1; 0 past the last token
  int beta = of<float4>(kChainTokens / 4);
  int vectors = of<float4>((sizeof(DeltaVectors) + D * 4 + 15) / 16);
  int stored = of<int32_t>();
  int phase = of<uint32_t>();
  int full = barriers(1);  // q and k, as TMA loads them
};

template <int D>
class DeltaKeys {
  static constexpr int Dtype = FOVEA_BF16;
  static constexpr int C = D / 32;  // channels of a lane
  using Tile = Swizzled<kChainTokens, D>;
  using TileT = Swizzled<kChainTokens, kChainTokens>;
  static constexpr DeltaKeysShared<D> kShared = DeltaKeysShared<D>();
  static constexpr int kSums = kChainTokens / 8;
  static constexpr int kRows = 16;  // tokens of a warp

  // Two channels a word.
  struct Piece {
    uint32_t word[C / 2];
    __device__ float operator[](int c) const {
      return c % 2 ? float_of(word[c / 2] & 0xffff0000u) : float_of(word[c / 2] << 16);
    }
  };

 public:
  static constexpr int shared_bytes = (kShared.bytes + 1023) / 1024 * 1024;  // of a worker
  static constexpr int workers = 3;                                          // of a multiprocessor
  static_assert(workers * (shared_bytes + 1024) <= 228 * 1024);

  // `thread`: threadIdx.x, hidden from what would keep all that follows from it in registers.
  __device__ DeltaKeys(const DeltaWork90& work, unsigned char* shared, int thread)
      : w_(work),
        a_(work.a),
        worker_(sm90::uniform(thread / 128)),
        lane_(thread % 32),
        warp_(sm90::uniform(thread % 128 / 32)),
        base_(shared + worker_ * shared_bytes),
        at_(shared_address(base_)),
        m_(reinterpret_cast<float*>(base_ + kShared.m)) {}

  __device__ void init() const {
    if (!leads()) return;
    sm90::barrier_init(at_ + kShared.full, 1), sm90::barrier_init_done();
    stored() = -1, phase() = 1;
  }
  // An item: a chunk of a head.  `next`: the one after it.
  __device__ void run(uint32_t item, uint32_t next) {
    if (!find(item)) return;
    if (leads()) {
      release(), load();
      stored() = slot_ * static_cast<int32_t>(a_.heads) + head_, phase() ^= 1;
    }
    meet();
    if (next < w_.items_end) prefetch(next);
    one();
  }
  // Of the next item, to the second cache: gates, q and k.
  __device__ void prefetch(uint32_t item) const {
    DeltaKeys next(*this);
    if (!next.find(item)) return;
    const int bytes = a_.gate_key.dtype == FOVEA_F32 ? 4 : 2, lines = D * bytes / 128;
    for (int i = 32 * warp_ + lane_; i < kChainTokens * lines; i += 128) {
      if (i / lines >= next.left_) break;
      const char* from =
          a_.gate_key.view.template as<const char>() +
          a_.gate_key.offset(next.batch_, next.token_ + i / lines, next.head_, 0) * bytes +
          i % lines * 128;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
    }
    if (!leads()) return;
    next.prefetch(w_.k, next.head_ / w_.key_share);
    if (next.outputs_) next.prefetch(w_.q, next.head_ / w_.query_share);
  }
  __device__ void prefetch(const CUtensorMap& map, int head) const {
#pragma unroll
    for (int panel = 0; panel < Tile::panels; ++panel)
      asm volatile(
          "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map),
          "r"(panel * 64), "r"(token_), "r"(head), "r"(batch_)
          : "memory");
  }
  // Once store() of the last item has ended: its chain may read what all threads wrote before their
  // last barrier.
  __device__ void release() const {
    if (stored() < 0) return;
    sm90::tma_store_wait<0>();
    if (!w_.ready) return;
    sm90::fence_proxy_async();
    __threadfence();
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(w_.ready + stored()), "r"(1)
                 : "memory");
  }
  __device__ bool leads() const {
    return lane_ == 0 && warp_ == 0;
  }

 private:
  using Sums = float[kSums][4];
  // Scores of the warp's tokens with themselves.
  struct Own {
    float k[2][4], q[2][4];
  };

  __device__ void one() {
    Sums x, y;
    Own own;
    scan();
    meet();
    sm90::barrier_wait(at_ + kShared.full, phase());
    norms(kShared.k, 0), norms(kShared.q, 64);
    const bool wide = scale(own);
    meet();
    products(x, y, wide);
    if (wide) replace(x, y, own);
    weigh(x, y);
    __syncwarp();
    if (outputs_) write_scores(y);
    DeltaInverse<Dtype>(m_).invert_block();
    meet();
    write_vectors();
    write_inverse();
    sm90::fence_shared();
    meet();
    if (leads()) store();
  }
  // A barrier of the worker.
  __device__ void meet() const {
    sm90::named_barrier_sync(1 + worker_, 128);
  }
  __device__ float* floats(int at) const {
    return reinterpret_cast<float*>(base_ + at);
  }
  // Where the leader's last item lies; -1: it had none.
  __device__ int32_t& stored() const {
    return *reinterpret_cast<int32_t*>(base_ + kShared.stored);
  }
  // Of the barrier `full`.
  __device__ uint32_t& phase() const {
    return *reinterpret_cast<uint32_t*>(base_ + kShared.phase);
  }
  __device__ DeltaVectors& vectors() const {
    return *reinterpret_cast<DeltaVectors*>(base_ + kShared.vectors);
  }

  // The item's chunk; false: the sequence has none there.  Where chains wait for them, the first
  // chunks of all sequences come first.
  __device__ bool find(uint32_t item) {
    const auto heads = static_cast<uint32_t>(a_.heads);
    uint32_t slot = item / heads;
    head_ = item - slot * heads;
    if (w_.ready) {
      const auto count = static_cast<uint32_t>(a_.run.count), chunk = slot / count;
      slot = (slot - chunk * count) * static_cast<uint32_t>(w_.chunks) + chunk;
    }
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
  __device__ void load() const {
    const uint32_t full = at_ + kShared.full;
    sm90::barrier_expect(full, (outputs_ ? 2 : 1) * Tile::bytes);
    sm90::tma_load_panels<Tile>(at_ + kShared.k, w_.k, full, token_, head_ / w_.key_share, batch_);
    if (outputs_)
      sm90::tma_load_panels<Tile>(at_ + kShared.q, w_.q, full, token_, head_ / w_.query_share,
                                  batch_);
  }
  // Whether the warp's token i exists.
  __device__ bool has(int i) const {
    return kRows * warp_ + i < left_;
  }

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
#pragma unroll 2
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

  // ---- norms, scaled tiles

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
      floats(kShared.beta)[i] = has(in) ? beta(token_ + i) : 0.f;
    }
  }
  __device__ float beta(int64_t token) const {
    if (!a_.beta) return 1;
    const float x = a_.beta(batch_, token, head_);
    if (a_.beta_map == FOVEA_X_BETA_MAP_NONE) return x;
    const float factor = a_.beta_map == FOVEA_X_BETA_MAP_TWO_SIGMOID ? 2 : 1;
    return __fdividef(factor, 1 + exp2_fast(-kLog2E * x));
  }

  // Rows and columns of the products, and the tiles of the chain.  Returns whether the warp's own
  // block was made apart: then it is in `own`.
  __device__ bool scale(Own& own) const {
    float total[C], before[C], after[C];
    uint32_t strong = 0;  // channels whose columns are scaled to their last token
    const int channel = lane_ * C;
    float to_rows[3][C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float sums[2] = {0, 0};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float one = floats(kShared.total)[w * D + channel + c];
        if (w == warp_) total[c] = one;
        if (w < warp_) sums[0] += one;
        if (w > warp_) sums[1] += one;
        if (w == 3) continue;
        to_rows[w][c] = one >= -kGateRange ? one : 0;
#pragma unroll
        for (int from = 0; from < w; ++from) to_rows[from][c] += w < warp_ ? one : 0;
      }
      const bool high = !(total[c] >= -kGateRange);
      strong |= static_cast<uint32_t>(high) << c;
      before[c] = exp2_fast(sums[0]), after[c] = exp2_fast(sums[1] + (high ? 0 : total[c]));
      if (warp_ == 0) {
        const bool resets = exp2_fast(this->sums(0, channel)[c]) == 0;
        floats(kShared.vectors)[kDeltaChannels / 4 + channel + c] =
            resets ? -0.f : exp2_fast(sums[1] + total[c]);
      }
    }
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      if (j >= warp_) continue;
#pragma unroll
      for (int c = 0; c < C; ++c) to_rows[j][c] = exp2_fast(to_rows[j][c]);
      store_floats(factors(j) + channel, to_rows[j]);
    }
    const bool wide = __any_sync(~0u, strong);
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
      load_floats(sum, sums(i, channel));
      const Piece q = raw(kShared.q + at, i, outputs_), k = raw(kShared.k + at, i, true);
      __syncwarp();
#pragma unroll
      for (int c = 0; c < C; ++c)
        up[c] = exp2_fast(sum[c]), down[c] = exp2_fast((strong >> c & 1 ? total[c] : 0) - sum[c]);
      put(base_ + kShared.q + at, q, up), put(base_ + kShared.k + at, k, up);
      put(base_ + kShared.e + at, k, down);
#pragma unroll
      for (int c = 0; c < C; ++c) up[c] *= before[c], down[c] *= after[c];
      put(keys + at, k, up), put(keys + Tile::bytes + at, k, down);
      if (outputs_) put(queries + at, q, up);
    }
    return wide;
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
  __device__ static uint32_t scaled(uint32_t two, float low, float high) {
    return pack<Dtype>(float_of(two << 16) * low, float_of(two & 0xffff0000u) * high);
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
  // T and the vectors, in the place of M.
  __device__ void write_inverse() const {
    DeltaInverse<Dtype>(m_).write(floats(kShared.beta), [&] { meet(); });
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
  __device__ void store() const {
    sm90::tma_store(w_.inverses + (slot_ * a_.heads + head_) * int64_t{delta_keys_bytes(D)},
                    at_ + kShared.m, kDeltaTile + kDeltaChannels + D * 4);
    if (outputs_)
      sm90::tma_store(w_.scores + (slot_ * a_.heads + head_) * int64_t{delta_query_bytes(D)},
                      at_ + kShared.q, kDeltaScoreBytes);
    sm90::tma_store_commit();
  }
  const DeltaWork90& w_;
  const Recur& a_;
  const int worker_, lane_, warp_;
  unsigned char* base_;
  uint32_t at_;
  float* m_;
  uint32_t slot_;
  int batch_, token_, head_, left_;
  bool outputs_;
};

template <int D>
__global__ void __launch_bounds__(128 * DeltaKeys<D>::workers, 1)
    delta_keys_sm90_kernel(const __grid_constant__ DeltaWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if (work.ready) pdl_trigger();
  const auto thread = [] { return sm90::unhoisted(static_cast<int>(threadIdx.x)); };
  constexpr int kWorkers = DeltaKeys<D>::workers;
  const uint32_t step = gridDim.x * kWorkers;
  DeltaKeys<D>(work, shared, thread()).init();
  // Neighbours in memory are made at a time.
  for (uint32_t item = work.items_begin + threadIdx.x / 128 * gridDim.x + blockIdx.x;
       item < work.items_end; item += step)
    DeltaKeys<D>(work, shared, thread()).run(item, item + step);
  const DeltaKeys<D> last(work, shared, thread());
  if (last.leads()) last.release();
}

}  // namespace fovea::cuda
