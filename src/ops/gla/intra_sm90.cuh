// SPDX-License-Identifier: Apache-2.0
// What x_gla_forward with key gates needs of a chunk of 64 tokens and a state head that no state is
// in (loop/key_gates_sm90.cuh).  Blocks take chunks in turn; copies of the next one are under way.
// With w_ts the decays after s up to t:
//   Q~_t = scale q_t w_t     w_t  from the chunk's first token up to t
//   K~_s = k_s w_s           w_s  after s up to the chunk's end
//   A_ts = scale q_t . w_ts . k_s, s <= t             dot_t = scale q_t . (bonus . k_t)
// With read_before, row t reads the state before its token: its own decay and its own key are not
// among them.
//   A lane owns two channels of eight tokens, a warp 64 channels.  The lane has their decays in
// registers, and writes Q~, K~ and the rows of every level.  Then warps make tiles of scores by
// mma.sync.
// Shared memory: K, Q, rows of each level, A, totals of eight tokens, near sums, dots.
//
//   | barrier       | who arrives | who waits | what it guards                                 |
//   | full 0        | TMA         | all       | K, to be read                                  |
//   | full 1        | TMA         | all       | Q of an output, to be read                     |
//   | begun         | all         | all       | full 0 and 1, A's zeros, the first chunks      |
//   | after totals  | all         | all       | totals, to be read                             |
//   | before scores | all         | all       | rows, sums: to be read; K, Q: to be loaded     |
//   | after scores  | all         | all       | A: to be read; rows, sums, totals: to be made  |
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/key_gates_sm90.cuh"
#include "cuda/tile/pipeline_sm90.cuh"
#include "ops/gla/forward.cuh"

namespace fovea::cuda {

// A block's chunk.
struct GlaIntraChunk {
  int slot, head, batch;
  int token;     // its first
  int left;      // tokens that there are, 0 to 64
  int outputs;   // heads that have some
  int64_t next;  // where the block looks for the one after it

  // Of a warp's group of tokens, those that there are.  By a shuffle: else ptxas 13.0 compares the
  // result with 8 by a predicate of the clamping instruction, which is wrong below 0.
  __device__ int rows(int group) const {
    const int rows = left - kGateTokens * group;
    return sm90::uniform(rows < 0 ? 0 : rows < kGateTokens ? rows : kGateTokens);
  }
};

template <int D>
struct GlaIntraShared : sm90::SharedLayout {
  static constexpr int kPanels = D / 64;
  int k = tiles(Swizzled<kChainTokens, D>::bytes);
  int q = tiles(Swizzled<kChainTokens, D>::bytes);
  int rows = tiles(Swizzled<kChainTokens, D>::bytes, kGateLevels);
  int scores = tiles(kGlaScores);
  int totals = of<float2>(kGateGroups * D / 2);
  int near = of<float>(kPanels * kGateGroups * kNearParts * kNearPairs);
  int dots = of<float>(kPanels * kChainTokens);
  int chunks = of<GlaIntraChunk>(3);  // the one at hand and two that follow
  int full = barriers(2);
};

template <int Dtype, int D, bool Before>
class GlaIntra {
  using Tile = Swizzled<kChainTokens, D>;
  static constexpr GlaIntraShared<D> kShared = GlaIntraShared<D>();
  static constexpr int kPanels = D / 64;
  using Chunk = GlaIntraChunk;
  using Decays = float2[kGateTokens];

 public:
  static constexpr int threads = 32 * kGateGroups * kPanels;
  static constexpr int shared_bytes = kShared.bytes;  // the base is aligned
  static constexpr int blocks = D == 64 ? 3 : 2;      // of a multiprocessor

  __device__ GlaIntra(const GlaWork90& work, unsigned char* base)
      : w_(work), a_(work.a), base_(base), at_(shared_address(base)) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      sm90::barrier_init(full(0), 1), sm90::barrier_init(full(1), 1);
      sm90::barrier_init_done();
      find(0, blockIdx.x), load_chunk(0), find(1, here(0).next);
    }
    clear_scores();
    __syncthreads();
    Decays a;
    load_gates(a, here(0));
    uint32_t phase = 0, query_phase = 0;
    for (int i = 0; here(i).left > 0; i = i == 2 ? 0 : i + 1, phase ^= 1) {
      const Chunk& chunk = here(i);
      slot_ = chunk.slot, head_ = chunk.head, left_ = chunk.rows(group());
      const int outputs = chunk.outputs;
      float2 bias{};
      if (a_.bias)
        bias = make_float2(*a_.bias.at(head_, channel()), *a_.bias.at(head_, channel() + 1));
      unpack_channels<Dtype>(a, a_.gate_key.dtype);
      DecayMap(a_.gate, a_.rate_of(head_))(a_.gate, a, bias, left_);
      float2 total = a[0];
#pragma unroll
      for (int n = 1; n < kGateTokens; ++n) total = total * a[n];
      totals()[group() * (D / 2) + channel() / 2] = total;
      __syncthreads();
      sm90::barrier_wait(full(0), phase);
      clear_rows(kShared.k);
      write_keys(a);
      for (int j = 0; j < outputs; ++j, query_phase ^= 1) {
        sm90::barrier_wait(full(1), query_phase);
        write_output(j, a);
        __syncthreads();
        if (j + 1 < outputs) {
          if (threadIdx.x == 0) load_query(here(i), j + 1);
        } else {
          ahead(i, a);
        }
        scores(j);
      }
      if (outputs == 0) {
        __syncthreads();
        ahead(i, a);
      }
    }
  }

 private:
  __device__ GlaIntraChunk& here(int i) const {
    return reinterpret_cast<GlaIntraChunk*>(base_ + kShared.chunks)[i];
  }
  // The block's next chunk, `block` or a later one, by one thread.
  // The first chunks are last: chains find them in L2.
  __device__ void find(int i, int64_t block) const {
    Chunk to{};
    const auto heads = static_cast<uint32_t>(a_.heads), count = static_cast<uint32_t>(a_.run.count);
    for (; block < w_.slots * a_.heads && to.left == 0; block += gridDim.x) {
      const uint32_t order = static_cast<uint32_t>(block) / heads;
      to.slot = static_cast<int>(w_.slots - 1 - order);
      to.head = static_cast<int>(static_cast<uint32_t>(block) - order * heads);
      const uint32_t slot = to.slot, chunk = slot / count;
      const int64_t sequence = a_.run.start ? sequence_of(to.slot) : slot - chunk * count;
      const RunTokens run = a_.run[sequence];
      const int64_t first =
          (a_.run.start ? to.slot - w_.slot(sequence, run.begin, 0) : chunk) * kChainTokens;
      to.batch = static_cast<int>(run.batch), to.token = static_cast<int>(run.begin + first);
      to.left = static_cast<int>(clamp_i64(run.count - first, 0, kChainTokens));
      // Rows before the first output have none.
      to.outputs = a_.o && first + kChainTokens > run.from ? w_.outputs : 0;
    }
    to.next = block;
    here(i) = to;
  }
  // K and the first Q of a chunk, by one thread.
  __device__ void load_chunk(int i) const {
    const Chunk& chunk = here(i);
    if (chunk.left == 0) return;
    sm90::tma_load_tile<Tile>(at_ + kShared.k, w_.k, full(0), chunk.token,
                              chunk.head / w_.key_share, chunk.batch);
    if (chunk.outputs > 0) load_query(chunk, 0);
  }
  __device__ void load_query(const Chunk& chunk, int j) const {
    sm90::tma_load_tile<Tile>(at_ + kShared.q, w_.q, full(1), chunk.token,
                              (chunk.head * w_.outputs + j) / w_.query_share, chunk.batch);
  }
  __device__ void load_gates(Decays& a, const Chunk& chunk) const {
    load_channels(
        a, a_.gate_key,
        a_.gate_key.offset(int64_t{chunk.batch}, int64_t{chunk.token} + kGateTokens * group(),
                           int64_t{chunk.head}, int64_t{channel()}),
        w_.gate_pairs, chunk.rows(group()));
  }
  // Once no thread reads K and Q of chunk i: copies for the next one, and which is after that.
  __device__ void ahead(int i, Decays& a) const {
    const int next = i == 2 ? 0 : i + 1;
    if (threadIdx.x == threads - 32)
      load_chunk(next), find(next == 2 ? 0 : next + 1, here(next).next);
    load_gates(a, here(next));
  }
  __device__ static int panel() {
    return threadIdx.x / (32 * kGateGroups);
  }
  __device__ static int group() {
    return threadIdx.x / 32 % kGateGroups;
  }
  __device__ static int channel() {
    return sm90::unhoisted(static_cast<int>(64 * panel() + threadIdx.x % 32 * 2));
  }
  __device__ uint32_t full(int i) const {
    return at_ + kShared.full + 8 * i;
  }
  // Where the lane's two channels of row i of its group are in a tile.
  __device__ static int place(int first, int i) {
    return (first ^ (i * 16)) + i * kPanelRowBytes;
  }
  __device__ static int first_place() {
    return static_cast<int>(Tile::at(kGateTokens * group(), channel() / kChunk)) +
           threadIdx.x % 4 * 4;
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
  // Packed: the sequence with the last first slot that is at most `slot`.
  __device__ int64_t sequence_of(int64_t slot) const {
    int64_t low = 0, high = a_.run.count - 1;
    while (low < high) {
      const int64_t middle = high - (high - low) / 2;
      if (w_.slot(middle, clamp_i64(a_.run.start[middle], 0, a_.run.s), 0) <= slot)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  __device__ float2 row(int tile, int first, int i) const {
    return pair_of<Dtype>(*reinterpret_cast<const uint32_t*>(base_ + tile + place(first, i)));
  }
  __device__ static void put(unsigned char* tile, int first, int i, float2 x) {
    *reinterpret_cast<uint32_t*>(tile + place(first, i)) = pack<Dtype>(x.x, x.y);
  }
  // Tokens past the sequence's last have no key and no query.
  __device__ void clear_rows(int tile) const {
    if (left_ == kGateTokens) return;
    for (int i = left_; i < kGateTokens; ++i)
      *reinterpret_cast<uint32_t*>(base_ + tile + place(first_place(), i)) = 0;
    sm90::fence_shared();
  }
  __device__ float2 total(int group) const {
    return totals()[group * (D / 2) + channel() / 2];
  }
  __device__ void clear_scores() const {
    for (int i = threadIdx.x * 16; i < kGlaScores; i += threads * 16)
      sm90::store_zeros(at_ + kShared.scores + i);
  }

  __device__ unsigned char* level(int i) const {
    return base_ + kShared.rows + i * Tile::bytes;
  }

  // K~, the factors of the chunk, and right rows.
  __device__ void write_keys(const Decays& a) const {
    unsigned char* to = w_.keys + (int64_t{slot_} * a_.heads + head_) * gla_key_stride(D);
    const int g = group(), at = sm90::unhoisted(first_place());
    Decays here;
    float2 suffix = make_float2(1, 1), near = suffix, by = suffix;
#pragma unroll
    for (int i = kGateTokens - 1; i >= 0; --i) {
      const float2 k = row(kShared.k, at, i);
      here[i] = suffix * k;
      if (i % (2 * kNear) < kNear) put(level(3), at, i, near * k), near = near * a[i];
      suffix = suffix * a[i];
    }
#pragma unroll
    for (int i = 1; i < kGateGroups / 2; ++i)
      if (i > g) by = by * total(i);
    if (g % 2 == 0) put_rows(2, at, here, make_float2(1, 1));
    if (g % 4 < 2) put_rows(1, at, here, g % 4 == 0 ? total(g + 1) : make_float2(1, 1));
    if (g < 4) put_rows(0, at, here, by);
#pragma unroll
    for (int i = kGateGroups / 2; i < kGateGroups; ++i)
      if (i > g) by = by * total(i);
    const float2 all = suffix * by;
    const int zero = __any_sync(~0u, all.x == 0 || all.y == 0);
    if (zero) drop(here, a, by);
    put_all(to, at, here, by);
    if (g != 0) return;
    auto* factors = reinterpret_cast<float*>(to + Tile::bytes);
    reinterpret_cast<float2*>(factors)[channel() / 2] = all;
    if (threadIdx.x % 32 == 0) reinterpret_cast<int32_t*>(factors + D)[panel()] = zero;
    if (kPanels == 1 && threadIdx.x == 0) reinterpret_cast<int32_t*>(factors + D)[1] = 0;
  }
  // What a reset drops is dropped, whatever it is.
  __device__ static void drop(Decays& here, const Decays& a, float2 after) {
#pragma unroll
    for (int i = kGateTokens - 1; i >= 0; --i) {
      if (after.x == 0) here[i].x = 0;
      if (after.y == 0) here[i].y = 0;
      after = after * a[i];
    }
  }
  __device__ void put_rows(int i, int at, const Decays& rows, float2 by) const {
#pragma unroll
    for (int n = 0; n < kGateTokens; ++n) put(level(i), at, n, rows[n] * by);
  }
  // To memory: a tile whose address is a multiple of 128.
  __device__ static void put_all(unsigned char* tile, int at, const Decays& rows, float2 by) {
    const uintptr_t first = sm90::unhoisted(reinterpret_cast<uintptr_t>(tile) + at);
#pragma unroll
    for (int n = 0; n < kGateTokens; ++n)
      *reinterpret_cast<uint32_t*>((first ^ (n * 16)) + n * kPanelRowBytes) =
          pack<Dtype>(rows[n].x * by.x, rows[n].y * by.y);
  }

  // Q~ and left rows of an output.
  __device__ void write_queries(unsigned char* to, const Decays& a) const {
    const int g = group(), at = sm90::unhoisted(first_place());
    Decays here;
    float2 prefix = make_float2(1, 1), near = prefix, by = prefix;
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i) {
      if (i % kNear == 0) near = make_float2(1, 1);
      if (!Before) prefix = prefix * a[i], near = near * a[i];
      const float2 q = row(kShared.q, at, i);
      here[i] = prefix * q;
      if (i % (2 * kNear) >= kNear) put(level(3), at, i, near * q);
      if (Before) prefix = prefix * a[i], near = near * a[i];
    }
#pragma unroll
    for (int i = kGateGroups / 2; i < kGateGroups - 1; ++i)
      if (i < g) by = by * total(i);
    if (g % 2) put_rows(2, at, here, make_float2(1, 1));
    if (g % 4 >= 2) put_rows(1, at, here, g % 4 == 3 ? total(g - 1) : make_float2(1, 1));
    if (g >= 4) put_rows(0, at, here, by);
    float2 first = make_float2(a_.scale, a_.scale);
#pragma unroll
    for (int i = 0; i < kGateGroups / 2; ++i)
      if (i < g) first = first * total(i);
    put_all(to, at, here, first * by);
  }
  // What is made of them is made again for each output, not kept in registers.
  __device__ static void forget(Decays& x) {
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i) {
      x[i].x = float_of(sm90::unhoisted(bits_of(x[i].x)));
      x[i].y = float_of(sm90::unhoisted(bits_of(x[i].y)));
    }
  }

  // Scores of pairs within four tokens, of the warp's channels.
  __device__ void near_sums(const Decays& a) const {
    const int at = sm90::unhoisted(first_place());
#pragma unroll
    for (int part = 0; part < kNearParts; ++part) {
      const int from = part * kNear;
      float sum[kNearPairs];
      float2 q[kNear];
#pragma unroll
      for (int t = 0; t < kNear; ++t) q[t] = row(kShared.q, at, from + t);
#pragma unroll
      for (int s = 0; s < kNear; ++s) {
        float2 w = row(kShared.k, at, from + s);
#pragma unroll
        for (int t = s; t < kNear; ++t) {
          if (!Before && t > s) w = w * a[from + t];
          sum[t * (t + 1) / 2 + s] = Before && t == s ? 0 : fmaf(w.x, q[t].x, w.y * q[t].y);
          if (Before && t > s) w = w * a[from + t];
        }
      }
      int index;
      sum_lanes(sum, index);
      if (index >= 0) near(panel(), group() * kNearParts + part)[index] = sum[0];
    }
  }
  __device__ void own_sums() const {
    const int at = sm90::unhoisted(first_place());
    const float2 bonus =
        make_float2(*a_.bonus.at(head_, channel()), *a_.bonus.at(head_, channel() + 1));
    float sum[kGateTokens];
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i) {
      const float2 two = row(kShared.q, at, i) * (bonus * row(kShared.k, at, i));
      sum[i] = two.x + two.y;
    }
    int index;
    sum_lanes(sum, index);
    if (index >= 0) dots(panel())[kGateTokens * group() + index] = sum[0];
  }

  __device__ unsigned char* score(uint32_t t, uint32_t s) const {
    return base_ + kShared.scores + panel_place(t, s / kChunk) + s % kChunk * 2;
  }
  // Scores from the rows of the levels, a tile a warp, and from the near sums.
  __device__ void level_scores() const {
    const uint32_t thread = sm90::unhoisted(threadIdx.x), lane = thread % 32;
    const uint32_t row = lane / 4, n = lane % 4 * 2;
    for (uint32_t i = thread / 32; i < LevelTile::kCount; i += threads / 32) {
      const LevelTile tile(i);
      float sums[4];
      level_product<Dtype, D>(sums, tile, at_ + kShared.rows + tile.level * Tile::bytes, lane);
      unsigned char* to = score(tile.left + row, tile.right_row(n));
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (tile.counts(row + 8 * h, n))
          *reinterpret_cast<uint32_t*>(to + 8 * h * kPanelRowBytes) =
              pack<Dtype>(a_.scale * sums[2 * h], a_.scale * sums[2 * h + 1]);
    }
    for (uint32_t i = thread; i < kChainTokens / kNear * kNearPairs; i += threads) {
      const uint32_t part = i / kNearPairs, pair = i % kNearPairs;
      float sum = near(0, 0)[i];
      if (kPanels > 1) sum += near(1, 0)[i];
      const uint32_t t = (pair >= 1) + (pair >= 3) + (pair >= 6);
      *reinterpret_cast<uint16_t*>(score(part * kNear + t, part * kNear + pair - t * (t + 1) / 2)) =
          static_cast<uint16_t>(pack<Dtype>(a_.scale * sum, 0));
    }
  }

  // Q~, A and the dots of an output.
  __device__ unsigned char* answers(int j) const {
    const int64_t head = head_ * w_.outputs + sm90::unhoisted(j);
    return w_.queries + (slot_ * a_.heads_out + head) * gla_query_stride(D);
  }
  // What threads make of Q.
  __device__ void write_output(int j, Decays& a) const {
    clear_rows(kShared.q);
    forget(a);
    write_queries(answers(j), a);
    near_sums(a);
    if (a_.bonus) own_sums();
  }
  __device__ void scores(int j) const {
    level_scores();
    if (a_.bonus && threadIdx.x < kChainTokens) {
      float dot = dots(0)[threadIdx.x];
      if (kPanels > 1) dot += dots(1)[threadIdx.x];
      reinterpret_cast<float*>(answers(j) + Tile::bytes + kGlaScores)[threadIdx.x] = a_.scale * dot;
    }
    __syncthreads();
    for (uint32_t i = sm90::unhoisted(threadIdx.x) * 16; i < kGlaScores; i += threads * 16)
      *reinterpret_cast<uint4*>(answers(j) + Tile::bytes + i) =
          *reinterpret_cast<const uint4*>(base_ + kShared.scores + i);
  }

  const GlaWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  int slot_, head_, left_;  // of the lane's tokens, how many there are
};

template <int Dtype, int D, bool Before>
__global__ void __launch_bounds__(GlaIntra<Dtype, D, Before>::threads,
                                  GlaIntra<Dtype, D, Before>::blocks)
    gla_intra_sm90_kernel(const __grid_constant__ GlaWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  GlaIntra<Dtype, D, Before>(work, shared).run();
}

}  // namespace fovea::cuda
