// SPDX-License-Identifier: Apache-2.0
// What x_gla_forward with key gates needs of a chunk of 64 tokens that no state is in, by a block
// for each chunk and state head (loop/key_gates_sm90.cuh).  With w_ts the decays after s up to t:
//   Q~_t = scale q_t w_t     w_t  from the chunk's first token up to t
//   K~_s = select k_s w_s    w_s  after s up to the chunk's end
//   A_ts = scale q_t . w_ts . k_s select, s <= t      dot_t = scale q_t . (bonus . k_t)
// With read_before, row t reads the state before its token: its own decay and its own key are not
// among them.
//   A lane owns two channels of eight tokens in registers, a warp 64 channels: it writes Q~, K~ and
// the rows of every level.  After a barrier each warp makes tiles of scores by mma.sync.
// Shared memory: a tile of scaled rows for each level, A, the totals of groups of eight tokens,
// sums of near scores and dots.
//
//
//   | barrier, of all threads | what it guards                                            |
//   | totals                  | totals of the groups, select and A's zeros, to be read    |
//   | rows                    | rows of the levels, near sums and dots, to be read        |
//   | scores                  | A, to be read; the rows and sums, to be written           |
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/key_gates_sm90.cuh"
#include "cuda/tile/pipeline_sm90.cuh"
#include "ops/gla/forward.cuh"

namespace fovea::cuda {

template <int D>
struct GlaIntraShared : sm90::SharedLayout {
  static constexpr int kPanels = D / 64;
  int rows = tiles(Swizzled<kChainTokens, D>::bytes, kGateLevels);
  int scores = tiles(kGlaScores);
  int totals = of<float2>(kGateGroups * D / 2);
  int near = of<float>(kPanels * kGateGroups * kNearParts * kNearPairs);
  int dots = of<float>(kPanels * kChainTokens);
  int selects = of<float>(kChainTokens);
};

template <int Dtype, int D, bool Before>
class GlaIntra {
  using Tile = Swizzled<kChainTokens, D>;
  using TileA = Swizzled<kChainTokens, kChainTokens>;
  static constexpr GlaIntraShared<D> kShared = GlaIntraShared<D>();
  static constexpr int kPanels = D / 64;
  using Decays = float2[kGateTokens];
  using Words = uint32_t[kGateTokens];  // bf16 of two channels

 public:
  static constexpr int threads = 32 * kGateGroups * kPanels;
  static constexpr int shared_bytes = kShared.bytes;  // the base is aligned
  static constexpr int blocks = 2;                    // of a multiprocessor, at least

  __device__ GlaIntra(const GlaWork90& work, unsigned char* base)
      : w_(work), a_(work.a), base_(base), at_(shared_address(base)) {}

  __device__ void run(uint32_t block) {
    const auto heads = static_cast<uint32_t>(a_.heads);
    const uint32_t slot = block / heads;
    head_ = block - slot * heads, slot_ = slot;
    const int64_t sequence =
        a_.run.start ? sequence_of(slot_) : slot / static_cast<uint32_t>(w_.chunks);
    const RunTokens run = a_.run[sequence];
    const int64_t first = (slot_ - w_.slot(sequence, run.begin)) * kChainTokens;
    if (first >= run.count) return;
    batch_ = run.batch, token_ = run.begin + first + kGateTokens * group();
    left_ = static_cast<int>(clamp_i64(run.count - first - kGateTokens * group(), 0, kGateTokens));
    // Rows before the first output have none.
    const int64_t outputs = a_.o && first + kChainTokens > run.from ? a_.outputs() : 0;
    Decays a;
    Words k;
    load_channels(a, a_.gate_key, offset(a_.gate_key, head_), w_.gate_pairs, left_);
    load_words(k, a_.k, offset(a_.k, a_.key_head(head_)), left_);
    float2 bias{};
    if (a_.bias)
      bias = make_float2(*a_.bias.at(head_, channel()), *a_.bias.at(head_, channel() + 1));
    DecayMap(a_.gate, a_.rate_of(head_))(a_.gate, a, bias, left_);
    float2 total = a[0];
#pragma unroll
    for (int i = 1; i < kGateTokens; ++i) total = total * a[i];
    totals()[group() * (D / 2) + channel() / 2] = total;
    clear_scores();
    if (a_.select && threadIdx.x % 32 < left_ && panel() == 0)
      selects()[kGateTokens * group() + threadIdx.x % 32] =
          a_.select(batch_, token_ + threadIdx.x % 32, head_);
    __syncthreads();
    write_keys(k, a, total);
    for (int64_t j = 0; j < outputs; ++j) output(j, k, a);
  }

 private:
  __device__ static int panel() {
    return threadIdx.x / (32 * kGateGroups);
  }
  __device__ static int group() {
    return threadIdx.x / 32 % kGateGroups;
  }
  __device__ static int channel() {
    return 64 * panel() + threadIdx.x % 32 * 2;
  }
  // Of the lane's two channels in row i of its group.
  __device__ static uint32_t place(int i) {
    return Tile::at(kGateTokens * group() + i, channel() / kChunk) + threadIdx.x % 4 * 4;
  }
  __device__ float2* totals() const {
    return reinterpret_cast<float2*>(base_ + kShared.totals);
  }
  __device__ float* near(int panel, int part) const {
    return reinterpret_cast<float*>(base_ + kShared.near) +
           (panel * kGateGroups * kNearParts + part) * kNearPairs;
  }
  __device__ float* dots(int panel) const {
    return reinterpret_cast<float*>(base_ + kShared.dots) + panel * kChainTokens;
  }
  __device__ float* selects() const {
    return reinterpret_cast<float*>(base_ + kShared.selects);
  }
  __device__ int64_t offset(const Floats<4>& x, int64_t head) const {
    return x.offset(batch_, token_, head, int64_t{channel()});
  }
  __device__ int64_t output_head(int64_t j) const {
    return head_ * a_.outputs() + j;
  }
  // Packed: the sequence with the last first slot that is at most `slot`.
  __device__ int64_t sequence_of(int64_t slot) const {
    int64_t low = 0, high = a_.run.count - 1;
    while (low < high) {
      const int64_t middle = high - (high - low) / 2;
      if (w_.slot(middle, clamp_i64(a_.run.start[middle], 0, a_.run.s)) <= slot)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  // Row i of the group, times select.
  __device__ float2 key(const Words& k, int i) const {
    float2 x = pair_of<Dtype>(k[i]);
    if (a_.select) {
      const float by = selects()[kGateTokens * group() + i];
      x = x * make_float2(by, by);
    }
    return x;
  }
  // The totals of groups first .. end - 1.
  __device__ float2 product(int first, int end) const {
    float2 all = make_float2(1, 1);
    for (int i = first; i < end; ++i) all = all * totals()[i * (D / 2) + channel() / 2];
    return all;
  }
  __device__ void put(int level, int i, float2 x) const {
    *reinterpret_cast<uint32_t*>(base_ + kShared.rows + level * Tile::bytes + place(i)) =
        pack<Dtype>(x.x, x.y);
  }
  __device__ void clear_scores() const {
    for (int i = threadIdx.x * 16; i < kGlaScores; i += threads * 16)
      sm90::store_zeros(at_ + kShared.scores + i);
  }

  // K~, the factors of the chunk, and right rows.
  __device__ void write_keys(const Words& k, const Decays& a, float2 total) const {
    unsigned char* to = w_.keys + (slot_ * a_.heads + head_) * gla_key_stride(D);
    const int g = group();
    const float2 after = product(g + 1, kGateGroups);
    const float2 by[2] = {product(g + 1, kGateGroups / 2), product(g + 1, g / 4 * 4 + 2)};
    float2 suffix = make_float2(1, 1);
#pragma unroll
    for (int i = kGateTokens - 1; i >= 0; --i) {
      const float2 row = key(k, i), here = suffix * row, all = suffix * after;
      // What a reset drops is dropped, whatever it is.
      *reinterpret_cast<uint32_t*>(to + place(i)) =
          pack<Dtype>(decayed(all.x, row.x), decayed(all.y, row.y));
      if (g < 4) put(0, i, here * by[0]);
      if (g % 4 < 2) put(1, i, here * by[1]);
      if (g % 2 == 0) put(2, i, here);
      suffix = suffix * a[i];
    }
#pragma unroll
    for (int n = 0; n < kGateTokens; n += 2 * kNear) {
      float2 w = make_float2(1, 1);
#pragma unroll
      for (int i = n + kNear - 1; i >= n; --i) put(3, i, w * key(k, i)), w = w * a[i];
    }
    if (g != 0) return;
    auto* factors = reinterpret_cast<float*>(to + Tile::bytes);
    const float2 all = total * after;
    reinterpret_cast<float2*>(factors)[channel() / 2] = all;
    const int zero = __any_sync(~0u, all.x == 0 || all.y == 0);
    if (threadIdx.x % 32 == 0) reinterpret_cast<int32_t*>(factors + D)[panel()] = zero;
    if (kPanels == 1 && threadIdx.x == 0) reinterpret_cast<int32_t*>(factors + D)[1] = 0;
  }

  // Q~ and left rows of an output.
  __device__ void write_queries(unsigned char* to, const Words& q, const Decays& a) const {
    const int g = group();
    const float2 scale = make_float2(a_.scale, a_.scale), before = scale * product(0, g);
    const float2 by[2] = {product(4, g), product(g / 4 * 4 + 2, g)};
    float2 prefix = make_float2(1, 1), near = make_float2(1, 1);
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i) {
      if (i % kNear == 0) near = make_float2(1, 1);
      if (!Before) prefix = prefix * a[i], near = near * a[i];
      const float2 row = pair_of<Dtype>(q[i]), here = prefix * row;
      *reinterpret_cast<uint32_t*>(to + place(i)) = pack_two(here * before);
      if (g >= 4) put(0, i, here * by[0]);
      if (g % 4 >= 2) put(1, i, here * by[1]);
      if (g % 2) put(2, i, here);
      if (i % (2 * kNear) >= kNear) put(3, i, near * row);
      if (Before) prefix = prefix * a[i], near = near * a[i];
    }
  }
  __device__ static float hidden(float x) { return float_of(sm90::unhoisted(bits_of(x))); }
  __device__ static uint32_t pack_two(float2 x) {
    return pack<Dtype>(x.x, x.y);
  }

  // Scores of pairs within four tokens, of the warp's channels.
  __device__ void near_sums(const Words& q, const Words& k, const Decays& a) const {
#pragma unroll
    for (int part = 0; part < kNearParts; ++part) {
      float sum[kNearPairs];
#pragma unroll
      for (int s = 0; s < kNear; ++s) {
        const int from = part * kNear;
        float2 w = key(k, from + s);
#pragma unroll
        for (int t = s; t < kNear; ++t) {
          float& x = sum[t * (t + 1) / 2 + s];
          if (!Before && t > s) w = w * a[from + t];
          const float2 row = pair_of<Dtype>(q[from + t]);
          x = Before && t == s ? 0 : fmaf(w.x, row.x, w.y * row.y);
          if (Before && t > s) w = w * a[from + t];
        }
      }
      int index;
      sum_lanes(sum, index);
      if (index >= 0) near(panel(), group() * kNearParts + part)[index] = sum[0];
    }
  }
  __device__ void own_sums(const Words& q, const Words& k) const {
    const float2 bonus =
        make_float2(*a_.bonus.at(head_, channel()), *a_.bonus.at(head_, channel() + 1));
    float sum[kGateTokens];
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i) {
      const float2 two = pair_of<Dtype>(q[i]) * (bonus * key(k, i));
      sum[i] = two.x + two.y;
    }
    int index;
    sum_lanes(sum, index);
    if (index >= 0) dots(panel())[kGateTokens * group() + index] = sum[0];
  }

  __device__ void put_score(int t, int s, float x) const {
    *reinterpret_cast<uint16_t*>(base_ + kShared.scores + TileA::at(t, s / kChunk) +
                                 s % kChunk * 2) = static_cast<uint16_t>(pack<Dtype>(x, 0));
  }
  // Scores from the rows of the levels, a tile a warp, and from the near sums.
  __device__ void scores() const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, n = lane % 4 * 2;
    for (int i = warp; i < LevelTile::kCount; i += threads / 32) {
      const LevelTile tile(i);
      float sums[4];
      level_product<Dtype, D>(sums, tile, at_ + kShared.rows + tile.level * Tile::bytes);
      const int s = tile.right_row(n);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (tile.counts(row + 8 * h, n))
          *reinterpret_cast<uint32_t*>(
              base_ + kShared.scores + TileA::at(tile.left + row + 8 * h, s / kChunk) +
              s % kChunk * 2) = pack<Dtype>(a_.scale * sums[2 * h], a_.scale * sums[2 * h + 1]);
    }
    for (int i = threadIdx.x; i < kChainTokens / kNear * kNearPairs; i += threads) {
      const int part = i / kNearPairs, pair = i % kNearPairs;
      float sum = near(0, part)[pair];
      if (kPanels > 1) sum += near(1, part)[pair];
      const int t = pair >= 6 ? 3 : pair >= 3 ? 2 : pair >= 1 ? 1 : 0;
      put_score(part * kNear + t, part * kNear + pair - t * (t + 1) / 2, a_.scale * sum);
    }
  }

  __device__ void output(int64_t j, Words& k, Decays& a) const {
    // Products of keys and decays would be kept from output to output.
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i)
      k[i] = sm90::unhoisted(k[i]), a[i].x = hidden(a[i].x), a[i].y = hidden(a[i].y);
    Words q;
    unsigned char* to = w_.queries + (slot_ * a_.heads_out + output_head(j)) * gla_query_stride(D);
    load_words(q, a_.q, offset(a_.q, a_.query_head(output_head(j))), left_);
    write_queries(to, q, a);
    near_sums(q, k, a);
    if (a_.bonus) own_sums(q, k);
    __syncthreads();
    scores();
    if (a_.bonus && threadIdx.x < kChainTokens) {
      float dot = dots(0)[threadIdx.x];
      if (kPanels > 1) dot += dots(1)[threadIdx.x];
      reinterpret_cast<float*>(to + Tile::bytes + kGlaScores)[threadIdx.x] = a_.scale * dot;
    }
    __syncthreads();
    for (int i = threadIdx.x * 16; i < kGlaScores; i += threads * 16)
      *reinterpret_cast<uint4*>(to + Tile::bytes + i) =
          *reinterpret_cast<const uint4*>(base_ + kShared.scores + i);
  }

  const GlaWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  int64_t slot_, head_, batch_, token_;  // the lane's first token
  int left_;                             // of the lane's tokens that there are
};

template <int Dtype, int D, bool Before>
__global__ void __launch_bounds__(GlaIntra<Dtype, D, Before>::threads,
                                  GlaIntra<Dtype, D, Before>::blocks)
    gla_intra_sm90_kernel(const __grid_constant__ GlaWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  GlaIntra<Dtype, D, Before>(work, shared).run(blockIdx.x);
}

}  // namespace fovea::cuda
