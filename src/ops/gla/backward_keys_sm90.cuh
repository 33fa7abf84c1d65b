// SPDX-License-Identifier: Apache-2.0
// x_gla_backward with key gates on Hopper, in chunks of 64 tokens: three kernels.
//   intra_sm90.cuh         Q~, K~, A, dots and the factors e^G of every chunk, as the forward does,
//                          without `scale`
//   gla_key_states_sm90    two chains in one launch, which keep the state of every chunk in bf16:
//                          H = e^G H + K~' V from the first chunk on,
//                          W = e^G W + Q~' dO from the last one on, scale W ends as dstate_in
//   gla_key_gradient_sm90  a block a chunk and head, with H before the chunk and W after it:
//     dA = scale dO V'                  rounded as an operand
//     dq_t = scale w_t . (dO_t H') + sum over s of dA_ts w_ts . k_s
//     dk_s = r_s + sum over t of dA_ts w_ts . q_t,   r_s = scale w_s . (V_s W')
//     dv   = scale (K~ W' + A' dO) + dO act'(dot v) dot
//     dg_t = scale e^G . rowsum(H W) + sum over s < t of k_s . r_s
//            + sum over i >= t of q_i . dq_i - k_i . (dk_i - r_i)         of each key channel
//   w_t decays from the chunk's first token up to t, w_s after s up to its end, w_ts after s up to
//   t.  With read_before row t's own decay is in neither w_t nor w_ts, s = t is left out, and dg_t
//   takes q_i . dq_i of i > t alone.
// Sums over pairs are cut as intra_sm90.cuh cuts A: 32, 16 and 8 tokens apart by tensor cores.  A
// level's sums need the decays between the row and its boundary.  So levels go from coarse to fine
// in one accumulator: times the decays of the block between, plus the next level's product.
// Within eight tokens pairs are f32, where a lane owns two channels, as in intra_sm90.cuh.
//   Two warpgroups for each 64 channels: rows of dq, rows of dk.  Value tiles of dv go round.
//   Then a warp has eight tokens of 64 channels.
// Shared memory of gla_key_gradient_sm90: rows of three levels, Q, K; A, K~, and of each 64 value
// columns dO, V, H, W, in whose place sums of dq, dk and r follow; tables.
//
//   | barrier      | who arrives | who waits | what it guards                                   |
//   | full 0       | TMA         | all       | Q, K                                             |
//   | full 1       | TMA         | all       | A, K~, dO, V, H, W                               |
//   | after totals | all         | all       | totals of eight tokens, to be read               |
//   | after rows   | all         | all       | rows of levels, zeroed rows of dO and V          |
//   | after tiles  | all         | all       | products of tiles have ended: sums in their place |
//   | after sums   | all         | all       | sums of dq, dk and r, dA of eight tokens         |
//   | after groups | all         | all       | sums of gates over eight tokens, of the bonus    |
//
// gla_key_states_sm90: warp 0 is the producer, warpgroup 1 has the state as in forward_sm90.cuh.
//
//   | barrier    | who arrives       | who waits | what it guards                               |
//   | keys full  | producer, TMA     | state     | K~ or Q~, V or dO, factors of a chunk        |
//   | keys empty | warps of state    | producer  | the same, to be written                      |
//   | tail       | producer, TMA     | producer  | tiles with rows to be zeroed                 |
//   | 1          | the state's warps | the same  | a place of two: read by TMA; written         |
#pragma once
#include "cuda/loop/chain_sm90.cuh"
#include "cuda/tile/convert.cuh"
#include "ops/gla/backward.cuh"
#include "ops/gla/intra_sm90.cuh"
#include "ops/gla/state_walk_sm90.cuh"

namespace fovea::cuda {

// ---- states

template <int Dtype_, int D_, int Stages_>
struct GlaStatesShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Stages = Stages_;
  using TileQ = Swizzled<kChainTokens, D>;
  using TileV = Swizzled<kChainTokens, kChainColumns>;
  using TileH = Swizzled<kChainColumns, D>;
  using Keys = sm90::Pipeline<Stages>;
  static constexpr int key_bytes = TileQ::bytes + TileV::bytes + gla_key_factors(D);
  static constexpr int key_stage = TileQ::bytes + TileV::bytes + 1024;
};

template <class Shape>
struct GlaStatesShared90 : sm90::SharedLayout {
  int keys = tiles(Shape::key_stage, Shape::Stages);
  int h = tiles(Shape::TileH::bytes, 2);
  int key_pipe = this->pipeline(Shape::Stages);
  int tail = barriers();
};

template <class Shape>
class GlaStates90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D;
  using TileQ = typename Shape::TileQ;
  using TileV = typename Shape::TileV;
  using TileH = typename Shape::TileH;
  using KeyState = typename Shape::Keys::State;
  static constexpr GlaStatesShared90<Shape> kShared = GlaStatesShared90<Shape>();

 public:
  static constexpr int shared_bytes = kShared.bytes;  // the base is aligned
  static constexpr int threads = 256;

  __device__ GlaStates90(const GlaKeyGradientWork90& work, unsigned char* base)
      : w_(work),
        a_(work.a),
        base_(base),
        at_(shared_address(base)),
        keys_{at_ + kShared.key_pipe},
        walk_(work.a, work.chains, work.forward.tiles) {}

  __device__ void init() const {
    if (threadIdx.x == 0) {
      keys_.init(1, 4), sm90::barrier_init(at_ + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }

  // Warp 0.
  __device__ void produce() const {
    const int batch = static_cast<int>(walk_.run.batch), column = walk_.tile * kChainColumns;
    KeyState key;
    uint32_t tail = 0;
    for (int i = 0; i < walk_.chunks; ++i, key.next()) {
      const int c = walk_.chunk(i);
      const ChunkRows rows = walk_.rows(c);
      const uint32_t tile = key_tile(key);
      const auto load = [&](uint32_t barrier) {
        if (threadIdx.x % 32 != 0) return;
        const int64_t at = slot(c) * a_.heads + walk_.head;
        const unsigned char* keys = w_.forward.keys + at * gla_key_stride(D);
        const unsigned char* scaled =
            walk_.reversed ? w_.forward.queries + at * gla_query_stride(D) : keys;
        sm90::barrier_expect(barrier, Shape::key_bytes);
        sm90::tma_load(tile, scaled, TileQ::bytes, barrier);
        sm90::tma_load(tile + TileQ::bytes + TileV::bytes, keys + TileQ::bytes, gla_key_factors(D),
                       barrier);
        if (walk_.reversed)
          sm90::tma_load_box(tile + TileQ::bytes, w_.dout, barrier, column, rows.row, walk_.head,
                             batch);
        else
          sm90::tma_load_box(tile + TileQ::bytes, w_.forward.v, barrier, column, rows.row,
                             static_cast<int>(a_.value_head(walk_.head)), batch);
      };
      fill_stage(keys_, key, rows.whole(), at_ + kShared.tail, tail, load,
                 [&] { zero_other_rows<TileV>(tile + TileQ::bytes, rows.from, rows.left); });
    }
  }

  // Warpgroup 1.
  __device__ void move_state() const {
    ChainState<D> state;
    const int64_t column = int64_t{walk_.tile} * kChainColumns;
    if (walk_.reversed)
      state.load({w_.dstate_out, FOVEA_F32}, w_.dstate_out ? walk_.run.sequence : -1, walk_.head,
                 column),
          multiply(state, 1 / a_.scale);
    else
      state.load(a_.state_in, a_.state_in ? walk_.run.state : -1, walk_.head, column);
    KeyState key;
    for (int i = 0; i < walk_.chunks; ++i, key.next()) {
      float sum[D / 8][4];
      const uint32_t k = key_tile(key);
      keys_.wait(key);
      sm90::fence();
      sm90::product_transposed<Dtype, kChainTokens>(sum, sm90::descriptor(k + TileQ::bytes),
                                                    sm90::descriptor(k, TileQ::panel_bytes));
      sm90::commit();
      const auto* all =
          reinterpret_cast<const float*>(base_ + (k + TileQ::bytes + TileV::bytes - at_));
      const int2 zero = *reinterpret_cast<const int2*>(all + D);
      const bool zeros = zero.x | zero.y;
      if (walk_.reversed && zeros) state.clear(all);
      keep(state, i, walk_.chunk(i));
      sm90::wait<0>();
      sm90::pin(sum);
      state.advance(all, zeros, sum);
      __syncwarp();
      keys_.release(key);
    }
    if (threadIdx.x % 128 == 0) sm90::tma_store_wait<0>();
    if (!walk_.reversed) {
      const int64_t to = a_.state_out ? a_.run.out_row(walk_.run.sequence) : -1;
      if (to >= 0) state.store(a_.state_out, to, walk_.head, column);
      return;
    }
    if (!w_.dstate_in) return;
    multiply(state, a_.scale);
    state.store({w_.dstate_in, FOVEA_F32}, walk_.run.sequence, walk_.head, column);
  }

 private:
  __device__ static void multiply(ChainState<D>& state, float by) {
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) state.x[j][c] *= by;
  }
  __device__ int64_t slot(int c) const {
    return w_.forward.slot(walk_.run.sequence, walk_.run.begin, c);
  }
  __device__ uint32_t key_tile(const KeyState& at) const {
    return at_ + kShared.keys + at.stage * Shape::key_stage;
  }
  // The i-th state of the walk, that of chunk c.
  __device__ void keep(const ChainState<D>& state, int i, int c) const {
    const uint32_t from = at_ + kShared.h + i % 2 * TileH::bytes;
    const bool first = threadIdx.x % 128 == 0;
    if (first) sm90::tma_store_wait_read<1>();
    sm90::named_barrier_sync(1, 128);
    state.template publish<Dtype>(from, nullptr);
    sm90::fence_shared();
    sm90::named_barrier_sync(1, 128);
    if (!first) return;
    const int64_t at = (slot(c) * a_.heads + walk_.head) * w_.forward.tiles + walk_.tile;
    sm90::tma_store((walk_.reversed ? w_.slopes : w_.states) + at * TileH::bytes, from,
                    TileH::bytes);
    sm90::tma_store_commit();
  }

  const GlaKeyGradientWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  typename Shape::Keys keys_;
  StateWalk walk_;
};

template <class Shape>
__global__ void __launch_bounds__(GlaStates90<Shape>::threads, 1)
    gla_key_states_sm90_kernel(const __grid_constant__ GlaKeyGradientWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const GlaStates90<Shape> block(work, shared);
  block.init();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (warp == 0) block.produce();
  if (warp >= 4) block.move_state();
}

// ---- gradients

__device__ __forceinline__ float2 operator+(float2 x, float2 y) {
  return make_float2(x.x + y.x, x.y + y.y);
}
__device__ __forceinline__ float2 operator-(float2 x, float2 y) {
  return make_float2(x.x - y.x, x.y - y.y);
}
__device__ __forceinline__ float2 operator*(float by, float2 x) {
  return make_float2(by * x.x, by * x.y);
}
__device__ __forceinline__ float2 fmaf2(float2 x, float2 y, float2 z) {
  return make_float2(fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y));
}
__device__ __forceinline__ float2 decayed(float2 by, float2 x) {
  return make_float2(fovea::decayed(by.x, x.x), fovea::decayed(by.y, x.y));
}

// Slopes of GateMap in raw gates, for those that no bound holds.
struct GateSlopes {
  float rate, over;  // exp of the rate; the bound, or 1 / tau

  __device__ GateSlopes(const GateMap& gate, float log_rate)
      : rate(exp_of(log_rate)),
        over(gate.map == FOVEA_X_GATE_MAP_BOUNDED ? gate.bound : 1 / gate.tau) {}
  // 1 / (1 + 2^x)
  __device__ static float part(float x) { return __fdividef(1, 1 + exp2_fast(x)); }
  // x: times log2 e.
  template <int Map>
  __device__ float slope(float x) const {
    if constexpr (Map == FOVEA_X_GATE_MAP_SOFTPLUS) return -rate * part(-x);
    if constexpr (Map == FOVEA_X_GATE_MAP_LOG_SIGMOID) return over * part(x);
    if constexpr (Map == FOVEA_X_GATE_MAP_EXP) return -exp2_fast(x);
    return -over * rate * part(-rate * x) * part(rate * x);
  }
  template <int Map>
  __device__ void slopes(float2 (&x)[kGateTokens], float2 bias) const {
    bias.x *= kLog2E, bias.y *= kLog2E;
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i)
      x[i] = make_float2(slope<Map>(fmaf(x[i].x, kLog2E, bias.x)),
                         slope<Map>(fmaf(x[i].y, kLog2E, bias.y)));
  }
  __device__ void operator()(const GateMap& gate, float2 (&x)[kGateTokens], float2 bias) const {
    switch (gate.map) {
      case FOVEA_X_GATE_MAP_SOFTPLUS:
        return slopes<FOVEA_X_GATE_MAP_SOFTPLUS>(x, bias);
      case FOVEA_X_GATE_MAP_BOUNDED:
        return slopes<FOVEA_X_GATE_MAP_BOUNDED>(x, bias);
      case FOVEA_X_GATE_MAP_LOG_SIGMOID:
        return slopes<FOVEA_X_GATE_MAP_LOG_SIGMOID>(x, bias);
      default:
        return slopes<FOVEA_X_GATE_MAP_EXP>(x, bias);
    }
  }
};

// OnlyQ: without what rows of dk and dv read.
template <int D, bool OnlyQ>
struct GlaKeyGradientShared90 : sm90::SharedLayout {
  using Tile = Swizzled<kChainTokens, D>;
  using Panel = Swizzled<kChainTokens, kChainColumns>;
  static constexpr int kPanels = D / 64, kWarps = 8 * kPanels, kLevels = 3;
  static constexpr int score_bytes = kGlaScores + kChainTokens * 4;  // A and dots
  static constexpr int value_bytes = 2 * Panel::bytes + (OnlyQ ? 1 : 2) * Tile::bytes;
  // Sums of dq, dk and r: rows of D and a pad, so that four rows share no bank.
  static constexpr int kRow = D + 8;
  static constexpr int sum_bytes = kChainTokens * kRow * 4;

  int rows = tiles(Tile::bytes, kLevels);
  int q = tiles(OnlyQ ? 0 : Tile::bytes);
  int k = tiles(Tile::bytes);
  int totals = of<float2>(kGateGroups * D / 2);
  int ends = of<float2>(kWarps * D / 2);  // of H W
  int near = of<float4>(kGateGroups * kGateTokens * kGateTokens / 4);
  int de = of<float>(kChainTokens);
  int full = barriers(2);
  int k_tilde = tiles(OnlyQ ? 0 : Tile::bytes);  // from here on: what sums take the place of
  int scores = tiles(OnlyQ ? 0 : score_bytes);
  int values = tiles(0);  // of each 64 value columns: dO, V, H, W

  // In the place of rows, of eight tokens each: sums of gates, of k r and of the bonus.
  static constexpr int table_bytes = kGateGroups * D * 4;
  int groups = rows, reads = rows + table_bytes, bonuses = rows + 2 * table_bytes;

  constexpr int all(int64_t tiles) const {
    const int end = values + static_cast<int>(tiles) * value_bytes;
    const int sums = k_tilde + (OnlyQ ? 1 : 3) * sum_bytes;
    return end > sums ? end : sums;
  }
};

// OnlyQ: dq alone, or the output of a call with value gates (value_sm90.cu).  The warpgroups of dk
// wait, and Q, A, K~ and W are not there.
template <int Dtype, int D, bool Before, bool OnlyQ>
class GlaKeyGradient90 {
  using Tile = Swizzled<kChainTokens, D>;
  using TileH = Swizzled<kChainColumns, D>;
  using Panel = Swizzled<kChainTokens, kChainColumns>;
  using Decays = float2[kGateTokens];
  using Sums = float[kChainColumns / 8][4];
  using Operand = uint32_t[kChainTokens / 16][4];
  using Layout = GlaKeyGradientShared90<D, OnlyQ>;
  static constexpr Layout kShared = Layout();
  static constexpr int kSums = kChainColumns / 8;

 public:
  static constexpr int threads = 256 * Layout::kPanels;
  static constexpr int blocks = D == 64 ? 2 : 1;  // of a multiprocessor
  static constexpr int shared_bytes(int64_t tiles) { return kShared.all(tiles); }

  __device__ GlaKeyGradient90(const GlaKeyGradientWork90& work, unsigned char* base)
      : w_(work), a_(work.a), base_(base), at_(shared_address(base)) {}

  __device__ void run() {
    if (!find(blockIdx.x)) {
      if (!OnlyQ && w_.dbonus && threadIdx.x < D)
        w_.dbonus[(int64_t{slot_} * a_.heads + head_) * D + threadIdx.x] = 0;
      return;
    }
    if (threadIdx.x == 0) {
      sm90::barrier_init(full(0), 1), sm90::barrier_init(full(1), 1);
      sm90::barrier_init_done();
      load_rows(), load_values();
    }
    Decays a;
    find_decays(a);
    __syncthreads();
    sm90::barrier_wait(full(0), 0);
    if (!OnlyQ) clear_rows(kShared.q);
    clear_rows(kShared.k);
    write_levels(a);
    if (threadIdx.x / 32 == threads / 32 - 1) prefetch_next();
    sm90::barrier_wait(full(1), 0);
    clear_values();
    sm90::fence_shared();
    __syncthreads();
    if constexpr (!OnlyQ) {
      if (gated()) find_ends();
      if (a_.bonus) find_de();
      make_dv();
    }
    const bool works = !OnlyQ || !of_keys();
    Sums sum, score;
    if (works) over_values(sum, score);
    __syncthreads();
    if (works) add_levels(sum, score);
    __syncthreads();
    if constexpr (OnlyQ)
      finish_queries(a);
    else
      finish(a);
  }

 private:
  // ---- the chunk

  __device__ bool find(uint32_t block) {
    const auto heads = static_cast<uint32_t>(a_.heads), count = static_cast<uint32_t>(a_.run.count);
    const uint32_t slot = block / heads, in = slot / count;
    head_ = static_cast<int>(block - slot * heads), slot_ = static_cast<int>(slot);
    const int64_t sequence = a_.run.start ? sequence_of(slot) : slot - in * count;
    const RunTokens run = a_.run[sequence];
    const int64_t first =
        (a_.run.start ? slot - w_.forward.slot(sequence, run.begin, 0) : in) * kChainTokens;
    batch_ = static_cast<int>(run.batch), token_ = static_cast<int>(run.begin + first);
    left_ = static_cast<int>(clamp_i64(run.count - first, 0, kChainTokens));
    from_ = static_cast<int>(clamp_i64(run.from - first, 0, kChainTokens));
    if (OnlyQ && w_.outputs && from_ >= left_) return false;
    return left_ > 0;
  }
  // Packed: the sequence with the last first slot that is at most `slot`.
  __device__ int64_t sequence_of(int64_t slot) const {
    int64_t low = 0, high = a_.run.count - 1;
    while (low < high) {
      const int64_t middle = high - (high - low) / 2;
      if (w_.forward.slot(middle, clamp_i64(a_.run.start[middle], 0, a_.run.s), 0) <= slot)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  // Of the warp's tokens, those that there are: see GlaIntraChunk.
  __device__ int own_rows() const {
    const int rows = left_ - kGateTokens * group();
    return sm90::uniform(rows < 0 ? 0 : rows < kGateTokens ? rows : kGateTokens);
  }
  __device__ bool gated() const { return w_.dgate || w_.dg; }
  __device__ int tiles() const { return w_.forward.tiles; }

  __device__ uint32_t full(int i) const { return at_ + kShared.full + 8 * i; }
  __device__ uint32_t value_tile(int tile) const {
    return at_ + kShared.values + tile * Layout::value_bytes;
  }
  __device__ static uint32_t v_in() { return Panel::bytes; }
  __device__ static uint32_t h_in() { return 2 * Panel::bytes; }
  __device__ static uint32_t w_in() { return 2 * Panel::bytes + TileH::bytes; }

  // By one thread.
  __device__ void load_rows() const {
    sm90::barrier_expect(full(0), (OnlyQ ? 1 : 2) * Tile::bytes);
    if (!OnlyQ)
      sm90::tma_load_panels<Tile>(at_ + kShared.q, w_.forward.q, full(0), token_,
                                  head_ / w_.forward.query_share, batch_);
    sm90::tma_load_panels<Tile>(at_ + kShared.k, w_.forward.k, full(0), token_,
                                head_ / w_.forward.key_share, batch_);
  }
  __device__ void load_values() const {
    const int64_t at = int64_t{slot_} * a_.heads + head_;
    const int64_t place = at * tiles();
    const int value_head = static_cast<int>(a_.value_head(head_));
    sm90::barrier_expect(
        full(1), (OnlyQ ? 0 : Tile::bytes + Layout::score_bytes) + tiles() * Layout::value_bytes);
    for (int j = 0; j < tiles(); ++j) {
      const uint32_t to = value_tile(j);
      sm90::tma_load_box(to, w_.dout, full(1), j * kChainColumns, token_, head_, batch_);
      sm90::tma_load_box(to + v_in(), w_.forward.v, full(1), j * kChainColumns, token_, value_head,
                         batch_);
      sm90::tma_load(to + h_in(), w_.states + (place + j) * TileH::bytes, TileH::bytes, full(1));
      if (!OnlyQ)
        sm90::tma_load(to + w_in(), w_.slopes + (place + j) * TileH::bytes, TileH::bytes, full(1));
    }
    if (OnlyQ) return;
    sm90::tma_load(at_ + kShared.k_tilde, w_.forward.keys + at * gla_key_stride(D), Tile::bytes,
                   full(1));
    sm90::tma_load(at_ + kShared.scores,
                   w_.forward.queries + at * gla_query_stride(D) + Tile::bytes, Layout::score_bytes,
                   full(1));
  }

  // What the block that should follow on this multiprocessor will read, to L2: by a warp.
  __device__ void prefetch_next() const {
    const uint32_t block = blockIdx.x + w_.ahead;
    if (block >= gridDim.x) return;
    GlaKeyGradient90 next(w_, base_);
    if (!next.find(block)) return;
    if (threadIdx.x % 32 == 0) next.prefetch();
    const int64_t bytes = a_.gate_key.dtype == FOVEA_F32 ? 4 : 2;
    const auto* gates = static_cast<const unsigned char*>(a_.gate_key.view.data);
    if (a_.gate_key.view.stride[3] != 1) return;
    for (int t = threadIdx.x % 32; t < next.left_; t += 32) {
      const int64_t at = a_.gate_key.offset(int64_t{next.batch_}, int64_t{next.token_} + t,
                                            int64_t{next.head_}, int64_t{0});
      for (int c = 0; c < D * bytes; c += 128) sm90::prefetch_line(gates + at * bytes + c);
    }
  }
  __device__ void prefetch() const {
    const int64_t at = int64_t{slot_} * a_.heads + head_, tile = at * tiles();
    const int value_head = static_cast<int>(a_.value_head(head_));
#pragma unroll
    for (int panel = 0; panel < Tile::panels; ++panel) {
      if (!OnlyQ)
        sm90::tma_prefetch_box(w_.forward.q, panel * 64, token_, head_ / w_.forward.query_share,
                               batch_);
      sm90::tma_prefetch_box(w_.forward.k, panel * 64, token_, head_ / w_.forward.key_share,
                             batch_);
    }
    for (int j = 0; j < tiles(); ++j) {
      sm90::tma_prefetch_box(w_.dout, j * kChainColumns, token_, head_, batch_);
      sm90::tma_prefetch_box(w_.forward.v, j * kChainColumns, token_, value_head, batch_);
    }
    sm90::tma_prefetch(w_.states + tile * TileH::bytes, tiles() * TileH::bytes);
    if (OnlyQ) return;
    sm90::tma_prefetch(w_.slopes + tile * TileH::bytes, tiles() * TileH::bytes);
    sm90::tma_prefetch(w_.forward.keys + at * gla_key_stride(D), Tile::bytes);
    sm90::tma_prefetch(w_.forward.queries + at * gla_query_stride(D) + Tile::bytes,
                       Layout::score_bytes);
  }

  // ---- a lane has two channels of eight tokens

  __device__ static int panel() {
    return threadIdx.x / 256;
  }
  __device__ static int group() {
    return threadIdx.x / 32 % kGateGroups;
  }
  __device__ static int channel() {
    return sm90::unhoisted(static_cast<int>(64 * panel() + threadIdx.x % 32 * 2));
  }
  __device__ static int place(int first, int i) {
    return (first ^ (i * 16)) + i * kPanelRowBytes;
  }
  __device__ static int first_place() {
    return static_cast<int>(Tile::at(kGateTokens * group(), channel() / kChunk)) +
           threadIdx.x % 4 * 4;
  }
  __device__ float2 row(int tile, int first, int i) const {
    return pair_of<Dtype>(*reinterpret_cast<const uint32_t*>(base_ + tile + place(first, i)));
  }
  __device__ float2* table(int at) const {
    return reinterpret_cast<float2*>(base_ + at);
  }
  __device__ float2 total(int group) const {
    return table(kShared.totals)[group * (D / 2) + channel() / 2];
  }

  __device__ float2 bias() const {
    return a_.bias ? make_float2(*a_.bias.at(head_, channel()), *a_.bias.at(head_, channel() + 1))
                   : float2{};
  }
  __device__ void find_decays(Decays& a) const {
    const int rows = own_rows();
    load_channels(a, a_.gate_key,
                  a_.gate_key.offset(int64_t{batch_}, int64_t{token_} + kGateTokens * group(),
                                     int64_t{head_}, int64_t{channel()}),
                  w_.forward.gate_pairs, rows);
    unpack_channels<Dtype>(a, a_.gate_key.dtype);
    DecayMap(a_.gate, a_.rate_of(head_))(a_.gate, a, bias(), rows);
    float2 total = a[0];
#pragma unroll
    for (int n = 1; n < kGateTokens; ++n) total = total * a[n];
    table(kShared.totals)[group() * (D / 2) + channel() / 2] = total;
  }
  // Tokens past the sequence's last have no key and no query.
  __device__ void clear_rows(int tile) const {
    for (int i = own_rows(); i < kGateTokens; ++i)
      *reinterpret_cast<uint32_t*>(base_ + tile + place(first_place(), i)) = 0;
  }
  // Rows past the last token; of dO, those before the first output too.
  __device__ void clear_values() const {
    if (left_ == kChainTokens && from_ == 0) return;
    for (int i = static_cast<int>(threadIdx.x); i < tiles() * kChainTokens * kPanelChunks;
         i += threads) {
      const int row = i / kPanelChunks % kChainTokens;
      const uint32_t to =
          value_tile(i / (kPanelChunks * kChainTokens)) + Panel::at(row, i % kPanelChunks);
      if (row >= left_ || row < from_) sm90::store_zeros(to);
      if (row >= left_) sm90::store_zeros(to + v_in());
    }
  }

  // Of levels 32, 16 and 8: q of rows after the level's boundary, k of rows before it, each with
  // the decays between.
  __device__ void write_levels(const Decays& a) const {
    const int g = group(), at = sm90::unhoisted(first_place());
    Decays left, right;
    float2 prefix = make_float2(1, 1), suffix = prefix;
    if (!OnlyQ)
#pragma unroll
      for (int i = 0; i < kGateTokens; ++i) {
        if (!Before) prefix = prefix * a[i];
        left[i] = prefix * row(kShared.q, at, i);
        if (Before) prefix = prefix * a[i];
      }
#pragma unroll
    for (int i = kGateTokens - 1; i >= 0; --i)
      right[i] = suffix * row(kShared.k, at, i), suffix = suffix * a[i];
    const float2 one = make_float2(1, 1);
    // Not `?:`, which would put both in local memory.
    if (g % 2)
      put_left(2, at, left, one);
    else
      put_rows(2, at, right, one);
    // dq multiplies these rows by zeros: what lay there may be a NaN.
    if (OnlyQ && g % 2) clear_level(2, at);
    if (g % 4 >= 2)
      put_left(1, at, left, g % 4 == 3 ? total(g - 1) : one);
    else
      put_rows(1, at, right, g % 4 == 0 ? total(g + 1) : one);
    float2 by = one;
#pragma unroll
    for (int i = 0; i < kGateGroups; ++i)
      if (i / 4 == g / 4 && (g < 4 ? i > g : i < g)) by = by * total(i);
    if (g < 4)
      put_rows(0, at, right, by);
    else
      put_left(0, at, left, by);
  }
  // Rows that dk alone reads.
  __device__ void put_left(int level, int at, const Decays& rows, float2 by) const {
    if (!OnlyQ) put_rows(level, at, rows, by);
  }
  __device__ void clear_level(int level, int at) const {
    unsigned char* tile = base_ + kShared.rows + level * Tile::bytes;
#pragma unroll
    for (int n = 0; n < kGateTokens; ++n) *reinterpret_cast<uint32_t*>(tile + place(at, n)) = 0;
  }
  __device__ void put_rows(int level, int at, const Decays& rows, float2 by) const {
    unsigned char* tile = base_ + kShared.rows + level * Tile::bytes;
#pragma unroll
    for (int n = 0; n < kGateTokens; ++n) {
      const float2 x = rows[n] * by;
      *reinterpret_cast<uint32_t*>(tile + place(at, n)) = pack<Dtype>(x.x, x.y);
    }
  }

  // ---- what needs value columns

  // H W by key channel, a partial sum a warp.
  __device__ void find_ends() const {
    constexpr int kPieces = D / 8, kRows = threads / kPieces;
    const int piece = threadIdx.x % kPieces, first = threadIdx.x / kPieces;
    float sum[8] = {};
    for (int j = 0; j < tiles(); ++j)
#pragma unroll
      for (int n = 0; n < kChainColumns / kRows; ++n) {
        const unsigned char* from =
            base_ + (value_tile(j) - at_) + TileH::at(first + n * kRows, piece);
        const uint4 h = *reinterpret_cast<const uint4*>(from + h_in());
        const uint4 w = *reinterpret_cast<const uint4*>(from + w_in());
        const uint32_t x[4] = {h.x, h.y, h.z, h.w}, y[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 one = pair_of<Dtype>(x[i]), other = pair_of<Dtype>(y[i]);
          sum[2 * i] = fmaf(one.x, other.x, sum[2 * i]);
          sum[2 * i + 1] = fmaf(one.y, other.y, sum[2 * i + 1]);
        }
      }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int step = kPieces; step < 32; step *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], step);
    if (threadIdx.x % 32 >= kPieces) return;
    auto* to =
        reinterpret_cast<float4*>(table(kShared.ends) + threadIdx.x / 32 * (D / 2)) + 2 * piece;
    to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
  }
  __device__ const float* dots() const {
    return reinterpret_cast<const float*>(base_ + kShared.scores + kGlaScores);
  }
  // Of the dot of a token's own bonus: dO . act'(dot v) v.
  __device__ void find_de() const {
    constexpr int kEach = threads / kChainTokens;
    const int t = threadIdx.x / kEach;
    const float dot = a_.scale * dots()[t];
    float sum = 0;
    for (int c = threadIdx.x % kEach; c < tiles() * kPanelChunks; c += kEach) {
      const unsigned char* from =
          base_ + (value_tile(c / kPanelChunks) - at_) + Panel::at(t, c % kPanelChunks);
      const uint4 o = *reinterpret_cast<const uint4*>(from);
      const uint4 v = *reinterpret_cast<const uint4*>(from + v_in());
      const uint32_t x[4] = {o.x, o.y, o.z, o.w}, y[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 out = pair_of<Dtype>(x[i]), value = pair_of<Dtype>(y[i]);
        sum = fmaf(out.x * a_.bonus_slope(dot * value.x), value.x, sum);
        sum = fmaf(out.y * a_.bonus_slope(dot * value.y), value.y, sum);
      }
    }
#pragma unroll
    for (int step = 1; step < kEach; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % kEach) return;
    reinterpret_cast<float*>(base_ + kShared.de)[t] = a_.scale * sum;
    if (t < left_) w_.de[(int64_t{batch_} * a_.s + token_ + t) * a_.heads + head_] = sum;
  }

  // Value tiles of dv, in turn.
  __device__ void make_dv() const {
    if (!w_.dv) return;
    const int row = warp_row(), pair = threadIdx.x % 4 * 2;
    for (int j = sm90::uniform(threadIdx.x / 128); j < tiles(); j += threads / 128) {
      const uint32_t tile = value_tile(j);
      Sums o;
      sm90::fence();
      sm90::product_rows<Dtype, D, Tile, TileH>(o, sm90::descriptor(at_ + kShared.k_tilde),
                                                sm90::descriptor(tile + w_in()));
      sm90::product_transposed<Dtype, kChainTokens>(o, sm90::descriptor(at_ + kShared.scores),
                                                    sm90::descriptor(tile), true);
      sm90::commit();
      sm90::wait<0>();
      sm90::pin(o);
#pragma unroll
      for (int n = 0; n < kSums; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[n][i] *= a_.scale;
      if (a_.bonus) {
        const unsigned char* from = base_ + (tile - at_) + 2 * pair;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float dot = a_.scale * dots()[row + 8 * h];
#pragma unroll
          for (int n = 0; n < kSums; ++n) {
            const uint32_t at = Panel::at(row + 8 * h, n);
            const float2 out = pair_of<Dtype>(*reinterpret_cast<const uint32_t*>(from + at));
            const float2 v = pair_of<Dtype>(*reinterpret_cast<const uint32_t*>(from + at + v_in()));
            o[n][2 * h] = fmaf(dot * a_.bonus_slope(dot * v.x), out.x, o[n][2 * h]);
            o[n][2 * h + 1] = fmaf(dot * a_.bonus_slope(dot * v.y), out.y, o[n][2 * h + 1]);
          }
        }
      }
      store(o, j * kChainColumns, row);
    }
  }
  __device__ static int warp_row() {
    return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  }
  __device__ void store(const Sums& o, int column, int row) const {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row + 8 * h;
      const int64_t to =
          w_.dv.offset(int64_t{batch_}, int64_t{token_} + t, int64_t{head_}, int64_t{column});
      if (w_.dv.dtype == FOVEA_F32) {
        if (t >= left_) continue;
#pragma unroll
        for (int n = 0; n < kSums; ++n)
          *reinterpret_cast<float2*>(w_.dv.view.template as<float>() + to + 8 * n + 2 * lane) =
              make_float2(o[n][2 * h], o[n][2 * h + 1]);
        continue;
      }
#pragma unroll
      for (int m = 0; m < kSums; m += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = pack<Dtype>(o[m + i][2 * h], o[m + i][2 * h + 1]);
        quad_transpose(words);
        if (t < left_)
          __stcs(reinterpret_cast<uint4*>(w_.dv.view.template as<uint16_t>() + to + 8 * (m + lane)),
                 make_uint4(words[0], words[1], words[2], words[3]));
      }
    }
  }

  // ---- rows of dq, 0, or of dk, 1, by warpgroups

  __device__ static int of_keys() {
    return sm90::uniform(threadIdx.x / 128 % 2);
  }

  // dO H' and dO V', or V W' and V dO'.
  __device__ __forceinline__ void over_values(Sums& sum, Sums& score) const {
    const bool keys = of_keys();
    const uint32_t own = panel() * TileH::panel_bytes;
    for (int j = 0; j < tiles(); ++j) {
      const uint32_t tile = value_tile(j);
      const uint64_t x = sm90::descriptor(tile + (keys ? v_in() : 0));
      const uint64_t y = sm90::descriptor(tile + (keys ? 0 : v_in()));
      const uint64_t z = sm90::descriptor(tile + (keys ? w_in() : h_in()) + own);
      sm90::fence();
      sm90::product_panel<Dtype>(sum, x, z, j > 0);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        sm90::Wgmma<Dtype, kChainColumns>::template ss<0>(score, x + 2 * k, y + 2 * k, j > 0 || k);
      sm90::commit();
      sm90::wait<0>();
      sm90::pin(sum), sm90::pin(score);
    }
  }

  // The totals of tokens 8 g .. 8 g + 7, of the lane's columns 8 j, 8 j + 1.
  __device__ float2 total_of(int g, int j) const {
    return table(kShared.totals)[g * (D / 2) + panel() * 32 + 4 * j + threadIdx.x % 4];
  }
  // What lies at an index that is the same in a warp.
  __device__ static void pick(uint32_t (&to)[4], const Operand& from, int index) {
#pragma unroll
    for (int k = 0; k < kChainTokens / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (k == 0 || index == k) to[i] = from[k][i];
  }
  // sum += scores of 16 tokens from 16 step on, times their rows of a level.
  __device__ __forceinline__ void add_level(Sums& sum, const uint32_t (&scores)[4], int level,
                                            int step) const {
    const int lane = threadIdx.x % 32;
    const uint32_t b = at_ + kShared.rows + level * Tile::bytes + panel() * Tile::panel_bytes +
                       step * 16 * kPanelRowBytes + Panel::at(outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int j = 0; j < kSums / 2; ++j) {
      uint32_t rows[4];
      load_matrices_transposed(rows, Panel::pair(b, j));
      mma<Dtype>(sum[2 * j], scores, rows[0], rows[1]);
      mma<Dtype>(sum[2 * j + 1], scores, rows[2], rows[3]);
    }
  }
  // Rows First .. of 0: row, 1: row + 8.
  template <int First, int End>
  __device__ static __forceinline__ void multiply(float (&x)[4], float2 by) {
#pragma unroll
    for (int h = First; h < End; ++h)
      x[2 * h] = fovea::decayed(by.x, x[2 * h]), x[2 * h + 1] = fovea::decayed(by.y, x[2 * h + 1]);
  }

  __device__ __forceinline__ void add_levels(Sums& sum, Sums& score) const {
    const bool keys = of_keys();
    const int w = sm90::uniform(threadIdx.x / 32 % 4);
    Operand p;
    uint32_t one[4];
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) score[j][i] *= a_.scale;
    pack_operand<Dtype>(reinterpret_cast<uint32_t(&)[1][kChainTokens / 16][4]>(p),
                        reinterpret_cast<float(&)[1][kChainTokens / 8][4]>(score));
    // Decays between the row and the end of the chunk that the state is at, coarse ones first.
    const bool far = keys ? w < 2 : w >= 2, middle = keys ? w % 2 == 0 : w % 2 == 1;
    const int next = keys ? w + 1 : w - 1;  // the other 16 of the row's 32 tokens
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      float2 by = make_float2(a_.scale, a_.scale);
      if (far) {
        const int g = keys ? 4 : 0;
        by = by * (total_of(g, j) * total_of(g + 1, j)) * (total_of(g + 2, j) * total_of(g + 3, j));
      }
      multiply<0, 2>(sum[j], by);
    }
    if (keys && gated()) give_reads(sum, w, middle);
    if (far) {
      const int step = keys ? 2 : 0;
      pick(one, p, step), add_level(sum, one, 0, step);
      pick(one, p, step + 1), add_level(sum, one, 0, step + 1);
    }
    if (middle) {
#pragma unroll
      for (int j = 0; j < kSums; ++j)
        multiply<0, 2>(sum[j], total_of(2 * next, j) * total_of(2 * next + 1, j));
      pick(one, p, next), add_level(sum, one, 1, next);
    }
    pick(one, p, w);
    if ((keys || OnlyQ) && panel() == 0) {
      auto* near = reinterpret_cast<float2*>(base_ + kShared.near) + 2 * w * 32 + threadIdx.x % 32;
      near[0] = pair_of<Dtype>(one[0]), near[32] = pair_of<Dtype>(one[3]);
    }
    if (keys) {
#pragma unroll
      for (int j = 0; j < kSums; ++j) multiply<0, 1>(sum[j], total_of(2 * w + 1, j));
      one[0] = one[1] = one[3] = 0;
    } else {
#pragma unroll
      for (int j = 0; j < kSums; ++j) multiply<1, 2>(sum[j], total_of(2 * w, j));
      one[0] = one[2] = one[3] = 0;
    }
    add_level(sum, one, 2, w);
    float* to = sums(keys) + warp_row() * Layout::kRow + 64 * panel() + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(to + 8 * h * Layout::kRow + 8 * j) =
            make_float2(sum[j][2 * h], sum[j][2 * h + 1]);
  }
  // r, which all of its decays but those of the row's own eight tokens are missing.
  __device__ __forceinline__ void give_reads(const Sums& sum, int w, bool middle) const {
    float* to = sums(2) + warp_row() * Layout::kRow + 64 * panel() + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      float2 by = make_float2(1, 1);
      if (middle) by = total_of(2 * w + 2, j) * total_of(2 * w + 3, j);
#pragma unroll
      for (int h = 1; h >= 0; --h) {
        if (h == 0) by = by * total_of(2 * w + 1, j);
        *reinterpret_cast<float2*>(to + 8 * h * Layout::kRow + 8 * j) =
            decayed(by, make_float2(sum[j][2 * h], sum[j][2 * h + 1]));
      }
    }
  }
  // 0: of dq, 1: of dk, 2: of r.
  __device__ float* sums(int which) const {
    return reinterpret_cast<float*>(base_ + kShared.k_tilde + which * Layout::sum_bytes);
  }

  // ---- a lane has two channels of eight tokens again

  __device__ float2& sum_of(int which, int i) const {
    return *reinterpret_cast<float2*>(sums(which) + (kGateTokens * group() + i) * Layout::kRow +
                                      channel());
  }
  // Two channels of a token of an output; `first`: those of the warp's first token.
  __device__ static void put(const Floats<4>& to, int64_t first, int i, float2 x) {
    const int64_t at = first + i * to.view.stride[1];
    if (to.dtype == FOVEA_F32)
      *reinterpret_cast<float2*>(to.view.template as<float>() + at) = x;
    else
      *reinterpret_cast<uint32_t*>(to.view.template as<uint16_t>() + at) = pack<Dtype>(x.x, x.y);
  }
  __device__ int64_t first_of(const Floats<4>& to) const {
    return to ? to.offset(int64_t{batch_}, int64_t{token_} + kGateTokens * group(), int64_t{head_},
                          int64_t{channel()})
              : 0;
  }

  // Here dA of eight tokens lies as [t][s].
  __device__ void finish_queries(const Decays& a) const {
    const int rows = own_rows(), at = sm90::unhoisted(first_place());
    const int first = w_.outputs ? from_ - kGateTokens * group() : 0;
    const int64_t dq_at = first_of(w_.dq);
    Decays k;
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i) k[i] = row(kShared.k, at, i);
    float2 prefix = make_float2(1, 1);
#pragma unroll
    for (int t = 0; t < kGateTokens; ++t) {
      const float4* near =
          reinterpret_cast<const float4*>(base_ + kShared.near) + (group() * kGateTokens + t) * 2;
      const float4 low = near[0], high = near[1];
      const float score[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      prefix = prefix * a[t];
      float2 dq = decayed(prefix, sum_of(0, t)), by = make_float2(1, 1);
#pragma unroll
      for (int s = t; s >= 0; --s) {
        dq = fmaf2(score[s] * by, k[s], dq);
        by = by * a[s];
      }
      if (t >= first && t < rows) put(w_.dq, dq_at, t, dq);
    }
  }
  __device__ void finish(const Decays& a) const {
    const int rows = own_rows(), at = sm90::unhoisted(first_place());
    const int64_t dq_at = first_of(w_.dq), dk_at = first_of(w_.dk);
    Decays q, dq, x;
    float2 prefix = make_float2(1, 1), all = make_float2(0, 0), reads = all;
    float2 bonus = all, of_bonus = all;
    if (a_.bonus)
      bonus = make_float2(*a_.bonus.at(head_, channel()), *a_.bonus.at(head_, channel() + 1));
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i) {
      q[i] = row(kShared.q, at, i);
      if (!Before) prefix = prefix * a[i];
      dq[i] = decayed(prefix, sum_of(0, i));
      if (Before) prefix = prefix * a[i];
    }
#pragma unroll
    for (int s = 0; s < kGateTokens; ++s) {
      const float4* near =
          reinterpret_cast<const float4*>(base_ + kShared.near) + (group() * kGateTokens + s) * 2;
      const float4 low = near[0], high = near[1];
      const float score[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      const float2 k = row(kShared.k, at, s);
      float2 by = make_float2(1, 1), dk = make_float2(0, 0);
#pragma unroll
      for (int t = s + (Before ? 1 : 0); t < kGateTokens; ++t) {
        if (!Before && t > s) by = by * a[t];
        if (Before && t > s + 1) by = by * a[t - 1];
        const float2 m = score[t] * by;
        dq[t] = fmaf2(m, k, dq[t]), dk = fmaf2(m, q[t], dk);
      }
      if (Before && s + 1 < kGateTokens) by = by * a[kGateTokens - 1];
      dk = dk + decayed(by, sum_of(1, s));
      const float2 y = q[s] * dq[s];
      x[s] = y;
      if (gated()) {
        const float2 r = decayed(by, sum_of(2, s)), read = k * r;
        x[s] = fmaf2(k, r - dk, y), reads = reads + read, all = all + x[s];
        sum_of(2, s) = read;
      }
      if (Before) sum_of(0, s) = y;
      float2 own_q = dq[s], own_k = dk;
      if (a_.bonus) {
        const float de =
            reinterpret_cast<const float*>(base_ + kShared.de)[kGateTokens * group() + s];
        const float2 times = de * bonus;
        of_bonus = fmaf2(de * q[s], k, of_bonus);
        if (w_.dq_whole) own_q = fmaf2(times, k, own_q);
        if (w_.dk_whole) own_k = fmaf2(times, q[s], own_k);
      }
      if (s < rows && w_.dq) put(w_.dq, dq_at, s, own_q);
      if (s < rows && w_.dk) put(w_.dk, dk_at, s, own_k);
    }
    if (!gated() && !w_.dbonus) return;
    const int place = group() * (D / 2) + channel() / 2;
    table(kShared.groups)[place] = all, table(kShared.reads)[place] = reads;
    table(kShared.bonuses)[place] = of_bonus;
    __syncthreads();
    if (w_.dbonus && group() == 0) give_bonus();
    if (gated()) give_gates(a, x, rows);
  }
  // In the order of the groups.
  __device__ void give_bonus() const {
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int g = 0; g < kGateGroups; ++g)
      sum = sum + table(kShared.bonuses)[g * (D / 2) + channel() / 2];
    *reinterpret_cast<float2*>(w_.dbonus + (int64_t{slot_} * a_.heads + head_) * D + channel()) =
        sum;
  }
  __device__ void give_gates(const Decays& a, Decays& x, int rows) const {
    float2 sum = make_float2(0, 0), all = make_float2(a_.scale, a_.scale), read = sum;
#pragma unroll
    for (int n = 0; n < Layout::kWarps; ++n)
      sum = sum + table(kShared.ends)[n * (D / 2) + channel() / 2];
#pragma unroll
    for (int g = 0; g < kGateGroups; ++g) all = all * total(g);
    sum = decayed(all, sum);
#pragma unroll
    for (int g = kGateGroups - 1; g >= 0; --g) {
      if (g > group()) sum = sum + table(kShared.groups)[g * (D / 2) + channel() / 2];
      if (g < group()) read = read + table(kShared.reads)[g * (D / 2) + channel() / 2];
    }
    // Of all tokens before the one at hand.
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i) {
      const float2 one = sum_of(2, i);
      sum_of(2, i) = read, read = read + one;
    }
#pragma unroll
    for (int i = kGateTokens - 1; i >= 0; --i) {
      sum = sum + x[i];
      float2 dg = sum + sum_of(2, i);
      if (Before) dg = dg - sum_of(0, i);
      x[i] = make_float2(a[i].x == 0 ? 0 : dg.x, a[i].y == 0 ? 0 : dg.y);
    }
    const int64_t token = int64_t{token_} + kGateTokens * group();
    if (w_.dg) {
      float* to = w_.dg + ((int64_t{batch_} * a_.s + token) * a_.heads + head_) * D + channel();
#pragma unroll
      for (int i = 0; i < kGateTokens; ++i, to += a_.heads * D)
        if (i < rows) *reinterpret_cast<float2*>(to) = x[i];
    }
    if (!w_.dgate) return;
    const int64_t at = first_of(w_.dgate);
    if (a_.gate.bound > 0 && a_.gate.map != FOVEA_X_GATE_MAP_BOUNDED)
      return give_bounded(x, token, at, rows);
    if (a_.gate.map != FOVEA_X_GATE_MAP_LOG) {
      Decays slopes;
      load_channels(slopes, a_.gate_key,
                    a_.gate_key.offset(int64_t{batch_}, token, int64_t{head_}, int64_t{channel()}),
                    w_.forward.gate_pairs, rows);
      unpack_channels<Dtype>(slopes, a_.gate_key.dtype);
      GateSlopes(a_.gate, a_.rate_of(head_))(a_.gate, slopes, bias());
#pragma unroll
      for (int i = 0; i < kGateTokens; ++i)
        x[i] = make_float2(by_slope(x[i].x, slopes[i].x), by_slope(x[i].y, slopes[i].y));
    }
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i)
      if (i < rows) put(w_.dgate, at, i, x[i]);
  }
  // Where a bound may hold a gate.
  __device__ void give_bounded(const Decays& dg, int64_t token, int64_t at, int rows) const {
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i) sum_of(0, i) = dg[i];
#pragma unroll 1
    for (int i = 0; i < rows; ++i) {
      const float2 one = sum_of(0, i);
      const auto slope = [&](int more) {
        return a_.key_gate(batch_, token + i, head_, channel() + more).slope;
      };
      put(w_.dgate, at, i, make_float2(by_slope(one.x, slope(0)), by_slope(one.y, slope(1))));
    }
  }
  __device__ static float by_slope(float dg, float slope) {
    return dg == 0 || slope == 0 ? 0 : dg * slope;
  }

  const GlaKeyGradientWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  int slot_, head_, batch_, token_, left_, from_;
};

template <int Dtype, int D, bool Before, bool OnlyQ>
__global__ void __launch_bounds__(GlaKeyGradient90<Dtype, D, Before, OnlyQ>::threads,
                                  GlaKeyGradient90<Dtype, D, Before, OnlyQ>::blocks)
    gla_key_gradient_sm90_kernel(const __grid_constant__ GlaKeyGradientWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  GlaKeyGradient90<Dtype, D, Before, OnlyQ>(work, shared).run();
}

template <GlaKeyGradientConfig90 C>
GlaKeyGradientInstance90 gla_key_gradient_sm90_instance() {
  constexpr auto launcher = [](Context& ctx, const char* op, const GlaKeyGradientWork90& work) {
    using States = GlaStates90<GlaStatesShape90<C.dtype, C.d, C.stages>>;
    const GlaWork90& tiles = work.forward;
    const int64_t chunks = tiles.slots * work.a.heads;
    const auto run = [&]<bool Before, bool OnlyQ>() {
      using Intra = GlaIntra<C.dtype, C.d, Before>;
      using Gradient = GlaKeyGradient90<C.dtype, C.d, Before, OnlyQ>;
      static_assert(States::shared_bytes <= 227 * 1024);
      static_assert(Gradient::shared_bytes(2) <= 227 * 1024);
      const int64_t most = int64_t{device_info(ctx).multiprocessors} * Intra::blocks;
      launch<gla_intra_sm90_kernel<C.dtype, C.d, Before>>(
          ctx, op, chunks < most ? chunks : most, Intra::threads, Intra::shared_bytes, tiles);
      launch<gla_key_states_sm90_kernel<GlaStatesShape90<C.dtype, C.d, C.stages>>>(
          ctx, op, (OnlyQ ? 1 : 2) * work.chains, States::threads, States::shared_bytes, work);
      if (OnlyQ && !work.dq) return;
      GlaKeyGradientWork90 ahead = work;
      ahead.ahead = device_info(ctx).multiprocessors * Gradient::blocks;
      launch<gla_key_gradient_sm90_kernel<C.dtype, C.d, Before, OnlyQ>>(
          ctx, op, chunks, Gradient::threads, Gradient::shared_bytes(tiles.tiles), ahead);
    };
    if (work.only_q) return run.template operator()<false, true>();
    work.a.read_before ? run.template operator()<true, false>()
                       : run.template operator()<false, false>();
  };
  return {C.dtype, C.d, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                             \
  namespace fovea::cuda {                                               \
  template GlaKeyGradientInstance90                                     \
  gla_key_gradient_sm90_instance<GlaKeyGradientConfig90 __VA_ARGS__>(); \
  }
