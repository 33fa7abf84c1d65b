// SPDX-License-Identifier: Apache-2.0
// x_gla_backward on Hopper where many state heads share one head of q and k, as Mamba-2's groups
// do, with a head gate or none, in chunks of 64 tokens.  dq and dk are summed over those heads in
// registers; dv has its chain (backward_sm90.cuh).
//   gla_shared_states_sm90    two chains in one launch, which keep the state of every chunk:
//                             H = e^G H + (V e^S select)' K from the first chunk on,
//                             W = e^G W + (dO scale e^P)' Q from the last one on
//   gla_shared_gradient_sm90  a block a chunk and `each` heads of a group, with H before the chunk
//                             and W after it.  With P = (dO V') . scale e^D, sums over heads:
//     dq = sum of scale e^P . (dO H) + (sum of P . select_s) K
//     dk = sum of select . e^S . (V W) + (sum of select_s . P') Q
//   Sums of P are rounded once, as operands.  q . dq of each head, and k . dk without select, are
//   sums of the same f32 terms before that, with Q K' in f32: dgate_head and dselect take them.
// States are in bf16, [value][key].  Rows past a sequence's last token, and rows of dO and Q before
// the first output, are zeroed by the producer: 0 times NaN is NaN.
//
// gla_shared_states_sm90: a block takes a sequence, a head, 64 value columns and a direction.
//   Warp 0 is the producer, warps 1 to 3 make the decays of every third chunk, warpgroup 1 has the
//   state as in forward_sm90.cuh.
//
//   | barrier    | who arrives                     | who waits       | what it guards           |
//   | keys full  | producer, TMA, a warp of decays | state           | K, V, decays of a chunk  |
//   | keys empty | warps of the state              | producer, gates | the same, to be written  |
//   | tail       | producer, TMA                   | producer        | tiles with rows to zero  |
//   | 1          | the state's warps               | the same        | the tile of H: read by   |
//   |            |                                 |                 | TMA; written             |
//
// gla_shared_gradient_sm90: warp 0 is the producer, warps 1 to 3 make the decays of every third
//   head, warpgroup 1 has 64 rows of dq, warpgroup 2 those of dk.
//
//   | barrier     | who arrives       | who waits        | what it guards                         |
//   | rows        | TMA               | warpgroups       | Q, K                                   |
//   | keys full   | producer, TMA     | warpgroups       | V, dO, H, W of 64 value columns        |
//   | keys empty  | their warps       | producer         | the same, to be written                |
//   | gates full  | a warp of decays  | warpgroups       | decays and select of a head            |
//   | gates empty | warpgroups' warps | warps of decays  | the same, to be written                |
//   | tail        | producer, TMA     | producer         | tiles with rows to be zeroed           |
//   | 1           | both warpgroups   | the same         | zeroed rows of Q and K; then Q K'      |
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/chain_reversed_sm90.cuh"
#include "cuda/loop/chain_sm90.cuh"
#include "ops/gla/backward.cuh"
#include "ops/gla/state_walk_sm90.cuh"

namespace fovea::cuda {

constexpr int kSharedGateWarps = 3;

// Decays of a chunk and head; in gradients without select, which is beside them.
struct alignas(16) GlaSharedDecay {
  float select[kChainTokens];
  ChainDecay decay;
};

// ---- states

template <int Dtype_, int D_, int Stages_>
struct GlaSharedShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Stages = Stages_;
  using TileQ = Swizzled<kChainTokens, D>;
  using TileV = Swizzled<kChainTokens, kChainColumns>;
  using TileH = Swizzled<kChainColumns, D>;
  using Keys = sm90::Pipeline<Stages>;
  static constexpr int key_bytes = TileQ::bytes + TileV::bytes;
  static constexpr int threads = 256;
  static constexpr int producer_regs = 40, state_regs = 208;  // of 128: two blocks
};

template <class Shape>
struct GlaSharedStatesLayout90 : sm90::SharedLayout {
  int keys = tiles(Shape::key_bytes, Shape::Stages);
  int h = tiles(Shape::TileH::bytes);
  int decays = of<GlaSharedDecay>(Shape::Stages);
  int key_pipe = this->pipeline(Shape::Stages);
  int tail = barriers();
};

template <class Shape>
class GlaSharedStates90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D;
  using TileQ = typename Shape::TileQ;
  using TileV = typename Shape::TileV;
  using TileH = typename Shape::TileH;
  using KeyState = typename Shape::Keys::State;
  static constexpr GlaSharedStatesLayout90<Shape> kShared = GlaSharedStatesLayout90<Shape>();

 public:
  static constexpr int shared_bytes = kShared.bytes;  // the base is aligned

  __device__ GlaSharedStates90(const GlaSharedWork90& work, unsigned char* base)
      : w_(work),
        a_(work.a),
        base_(base),
        at_(shared_address(base)),
        keys_{at_ + kShared.key_pipe},
        walk_(work.a, work.chains, work.tiles) {}

  __device__ static void init(unsigned char* base) {
    if (threadIdx.x == 0) {
      const uint32_t at = shared_address(base);
      typename Shape::Keys{at + kShared.key_pipe}.init(2, 4);
      sm90::barrier_init(at + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }

  // Warp 0.
  __device__ void produce() const {
    const int batch = static_cast<int>(walk_.run.batch), head = walk_.head;
    const bool reversed = walk_.reversed;
    const int row_head =
        reversed ? head / static_cast<int>(a_.heads / a_.h) : static_cast<int>(a_.key_head(head));
    const int value_head = reversed ? head : static_cast<int>(a_.value_head(head));
    KeyState key;
    uint32_t tail = 0;
    for (int i = 0; i < walk_.chunks; ++i, key.next()) {
      const ChunkRows rows = walk_.rows(walk_.chunk(i));
      const uint32_t tile = key_tile(key);
      const auto load = [&](uint32_t barrier) {
        if (threadIdx.x % 32 != 0) return;
        sm90::barrier_expect(barrier, Shape::key_bytes);
        sm90::tma_load_panels<TileQ>(tile, reversed ? w_.q : w_.k, barrier, rows.row, row_head,
                                     batch);
        sm90::tma_load_box(tile + TileQ::bytes, reversed ? w_.dout : w_.v, barrier,
                           walk_.tile * kChainColumns, rows.row, value_head, batch);
      };
      fill_stage(keys_, key, rows.whole(), at_ + kShared.tail, tail, load, [&] {
        zero_other_rows<TileQ>(tile, rows.from, rows.left);
        zero_other_rows<TileV>(tile + TileQ::bytes, rows.from, rows.left);
      });
    }
  }

  // Warps 1 to 3.
  __device__ void make_decays(int warp) const {
    KeyState key;
    const float shift = a_.bias ? *a_.bias.at(walk_.head, 0) : 0.f, rate = a_.rate_of(walk_.head);
    for (int i = 0; i < walk_.chunks; ++i, key.next()) {
      if (i % kSharedGateWarps != warp - 1) continue;
      const int64_t first = int64_t{walk_.chunk(i)} * kChainTokens, left = walk_.run.count - first;
      ChainGates gates;
      gates.load(a_, walk_.run, first, walk_.head, left);
      gates.map(a_, shift, rate, left);
      keys_.acquire(key);
      gates.decays(decay(key), a_.scale);
      __syncwarp();
      if (threadIdx.x % 32 == 0) keys_.arrive(key);
    }
  }

  // Warpgroup 1.
  __device__ void move_state() const {
    ChainState<D> state;
    const int64_t column = int64_t{walk_.tile} * kChainColumns;
    if (walk_.reversed)
      state.load({w_.dstate_out, FOVEA_F32}, w_.dstate_out ? walk_.run.sequence : -1, walk_.head,
                 column);
    else
      state.load(a_.state_in, a_.state_in ? walk_.run.state : -1, walk_.head, column);
    KeyState key;
    for (int i = 0; i < walk_.chunks; ++i, key.next()) {
      float sum[D / 8][4];
      uint32_t values[kChainTokens / 16][4];
      const uint32_t k = key_tile(key);
      keys_.wait(key);
      const ChainDecay& by = decay(key);
      load_values<Dtype>(values, k + TileQ::bytes, walk_.reversed ? by.row : by.suffix);
      const float all = by.all;
      sm90::fence();
      sm90::product_columns<Dtype>(sum, values, sm90::descriptor(k, TileQ::panel_bytes), false);
      sm90::commit();
      keep(state, walk_.chunk(i));
      keep_before(state, walk_.chunk(i));
      sm90::wait<0>();
      sm90::pin(sum);
      hold(values);
      keys_.release(key);
      state.advance(all, sum);
    }
    if (threadIdx.x % 128 == 0) sm90::tma_store_wait<0>();
    if (w_.kept_states) keep_at(state, walk_.reversed ? 0 : ceil_div(walk_.chunks, kSegmentChunks));
    if (walk_.reversed && w_.dstate_in)
      state.store({w_.dstate_in, FOVEA_F32}, walk_.run.sequence, walk_.head, column);
  }

 private:
  static constexpr int kSegmentChunks = GlaGradientWork90::segment / kChainTokens;

  __device__ static int ceil_div(int x, int y) { return (x + y - 1) / y; }
  __device__ uint32_t key_tile(const KeyState& at) const {
    return at_ + kShared.keys + at.stage * Shape::key_bytes;
  }
  __device__ ChainDecay& decay(const KeyState& at) const {
    return reinterpret_cast<GlaSharedDecay*>(base_ + kShared.decays)[at.stage].decay;
  }
  // Registers of an operand stay its own until here.
  static __device__ __forceinline__ void hold(uint32_t (&x)[kChainTokens / 16][4]) {
#pragma unroll
    for (int k = 0; k < kChainTokens / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(x[k][i])::"memory");
  }
  // H before chunk c, or W after it.
  __device__ void keep(const ChainState<D>& state, int c) const {
    const uint32_t from = at_ + kShared.h;
    const bool first = threadIdx.x % 128 == 0;
    if (first) sm90::tma_store_wait_read<0>();
    sm90::named_barrier_sync(1, 128);
    state.template publish<Dtype>(from, nullptr);
    sm90::fence_shared();
    sm90::named_barrier_sync(1, 128);
    if (!first) return;
    const int64_t at =
        (w_.slot(walk_.run.sequence, walk_.run.begin, c) * a_.heads + walk_.head) * w_.tiles +
        walk_.tile;
    sm90::tma_store((walk_.reversed ? w_.slopes : w_.states) + at * TileH::bytes, from,
                    TileH::bytes);
    sm90::tma_store_commit();
  }
  // In f32 around segments, for the gradients of gates.
  __device__ void keep_before(const ChainState<D>& state, int c) const {
    const int at = c + (walk_.reversed ? 1 : 0);  // chunks before the state
    if (!w_.kept_states || (at % kSegmentChunks && (!walk_.reversed || at != walk_.chunks))) return;
    keep_at(state, ceil_div(at, kSegmentChunks));
  }
  __device__ void keep_at(const ChainState<D>& state, int i) const {
    const int64_t place =
        (GlaGradientWork90::place(a_, walk_.run, i) * a_.heads + walk_.head) * w_.tiles +
        walk_.tile;
    float4* to = (walk_.reversed ? w_.kept_slopes : w_.kept_states) + place * (D / 8 * 128) +
                 threadIdx.x % 128;
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
      __stcs(to + 128 * j, make_float4(state.x[j][0], state.x[j][1], state.x[j][2], state.x[j][3]));
  }

  const GlaSharedWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  typename Shape::Keys keys_;
  StateWalk walk_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 2)
    gla_shared_states_sm90_kernel(const __grid_constant__ GlaSharedWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Block = GlaSharedStates90<Shape>;
  Block::init(shared);
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (warp == 0)
      Block(work, shared).produce();
    else
      Block(work, shared).make_decays(warp);
  } else {
    sm90::setmaxnreg_inc<Shape::state_regs>();
    Block(work, shared).move_state();
  }
}

// ---- gradients

template <class Shape>
struct GlaSharedGradientLayout90 : sm90::SharedLayout {
  static constexpr int kGates = 3;
  static constexpr int kRow = 72;  // of Q K': 64 and a pad, so that rows share few banks
  static constexpr int value_bytes = 2 * Shape::TileV::bytes + 2 * Shape::TileH::bytes;

  int q = tiles(Shape::TileQ::bytes);
  int k = tiles(Shape::TileQ::bytes);
  int values = tiles(value_bytes, Shape::Stages);  // V, dO, H, W
  int scores = of<float>(kChainTokens * kRow);
  int decays = of<GlaSharedDecay>(kGates);
  int value_pipe = this->pipeline(Shape::Stages);
  int gate_pipe = this->pipeline(kGates);
  int rows = barriers();
  int tail = barriers();
};

template <class Shape>
class GlaSharedGradient90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D;
  using TileQ = typename Shape::TileQ;
  using TileV = typename Shape::TileV;
  using TileH = typename Shape::TileH;
  using Layout = GlaSharedGradientLayout90<Shape>;
  using Gates = sm90::Pipeline<Layout::kGates>;
  using ValueState = typename Shape::Keys::State;
  using GateState = typename Gates::State;
  static constexpr Layout kShared = Layout();
  static constexpr int kScores = kChainTokens / 8, kSums = D / 8;

 public:
  static constexpr int threads = 384;
  static constexpr int producer_regs = 56, row_regs = 224;
  static constexpr int shared_bytes = kShared.bytes;  // the base is aligned

  __device__ GlaSharedGradient90(const GlaSharedWork90& work, unsigned char* base)
      : w_(work),
        a_(work.a),
        base_(base),
        at_(shared_address(base)),
        values_{at_ + kShared.value_pipe},
        gates_{at_ + kShared.gate_pipe} {
    const auto parts = static_cast<uint32_t>(w_.parts);
    const auto groups = static_cast<uint32_t>(a_.h), count = static_cast<uint32_t>(a_.run.count);
    uint32_t block = sm90::unhoisted(blockIdx.x);
    row_head_ = static_cast<int>(block % (groups * parts)), block /= groups * parts;
    slot_ = static_cast<int>(block);
    const int64_t sequence = a_.run.start ? sequence_of(slot_) : block % count;
    const RunTokens run = a_.run[sequence];
    const int64_t first =
        (a_.run.start ? slot_ - w_.slot(sequence, run.begin, 0) : block / count) * kChainTokens;
    run_ = run, first_ = first, batch_ = static_cast<int>(run.batch);
    token_ = static_cast<int>(run.begin + first);
    left_ = static_cast<int>(clamp_i64(run.count - first, 0, kChainTokens));
    from_ = static_cast<int>(clamp_i64(run.from - first, 0, left_));
    group_ = row_head_ / static_cast<int>(parts);
    const int share = static_cast<int>(a_.heads / a_.h);
    const int skipped = row_head_ % static_cast<int>(parts) * w_.each;
    head_ = group_ * share + skipped;
    heads_ = min(w_.each, share - skipped);
  }

  __device__ static void init(unsigned char* base) {
    if (threadIdx.x == 0) {
      const uint32_t at = shared_address(base);
      typename Shape::Keys{at + kShared.value_pipe}.init(1, 8);
      Gates{at + kShared.gate_pipe}.init(1, 8);
      sm90::barrier_init(at + kShared.rows, 1), sm90::barrier_init(at + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }
  __device__ bool empty() const { return left_ == 0; }

  // Warp 0.
  __device__ void produce() const {
    const int lane = threadIdx.x % 32, batch = batch_;
    if (lane == 0) {
      sm90::barrier_expect(at_ + kShared.rows, 2 * TileQ::bytes);
      sm90::tma_load_panels<TileQ>(at_ + kShared.q, w_.q, at_ + kShared.rows, token_, group_,
                                   batch);
      sm90::tma_load_panels<TileQ>(at_ + kShared.k, w_.k, at_ + kShared.rows, token_, group_,
                                   batch);
    }
    ValueState value;
    uint32_t tail = 0;
    for (int i = 0; i < heads_; ++i)
      for (int j = 0; j < w_.tiles; ++j, value.next()) {
        const int head = head_ + i;
        const int64_t place = (int64_t{slot_} * a_.heads + head) * w_.tiles + j;
        const uint32_t tile = value_tile(value);
        const auto load = [&](uint32_t barrier) {
          if (lane != 0) return;
          sm90::barrier_expect(barrier, Layout::value_bytes);
          sm90::tma_load_box(tile, w_.v, barrier, j * kChainColumns, token_,
                             static_cast<int>(a_.value_head(head)), batch);
          sm90::tma_load_box(tile + TileV::bytes, w_.dout, barrier, j * kChainColumns, token_, head,
                             batch);
          sm90::tma_load(tile + 2 * TileV::bytes, w_.states + place * TileH::bytes, TileH::bytes,
                         barrier);
          sm90::tma_load(tile + 2 * TileV::bytes + TileH::bytes, w_.slopes + place * TileH::bytes,
                         TileH::bytes, barrier);
        };
        fill_stage(values_, value, left_ == kChainTokens && from_ == 0, at_ + kShared.tail, tail,
                   load, [&] {
                     zero_tile_rows<TileV>(tile, left_, kChainTokens);
                     zero_other_rows<TileV>(tile + TileV::bytes, from_, left_);
                   });
      }
  }

  // Warps 1 to 3.
  __device__ void make_decays(int warp) const {
    // A warp has a stage of its own.
    static_assert(Layout::kGates == kSharedGateWarps);
    const int lane = threadIdx.x % 32;
    GateState gate;
    gate.stage = warp - 1;
    for (int head = head_ + warp - 1; head < head_ + heads_; head += kSharedGateWarps) {
      const float shift = a_.bias ? *a_.bias.at(head, 0) : 0.f, rate = a_.rate_of(head);
      ChainGates gates;
      gates.load(a_, run_, first_, head, left_);
      gates.map(a_, shift, rate, left_);
      gates_.acquire(gate);
      GlaSharedDecay& to = decay(gate);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        to.select[lane + 32 * h] = gates.select[h];
        gates.select[h] = lane + 32 * h < left_ ? 1 : 0;
      }
      gates.decays(to.decay, a_.scale);
      __syncwarp();
      if (lane == 0) gates_.arrive(gate);
      gate.phase ^= 1;
    }
  }

  // Warpgroups 1 and 2.
  __device__ void prepare(int warp) const {
    sm90::barrier_wait(at_ + kShared.rows, 0);
    if (warp % 4 == 0) {
      const bool keys = warp == 8;
      const uint32_t tile = at_ + (keys ? kShared.k : kShared.q);
      zero_other_rows<TileQ>(tile, keys ? 0 : from_, left_);
      sm90::fence_shared();
    }
    sm90::named_barrier_sync(1, 256);
    if (warp < 8) make_scores(own_row());
    sm90::named_barrier_sync(1, 256);
  }
  // Warpgroup 1: rows of dq; 2: of dk.
  template <bool Keys>
  __device__ void add_heads() const {
    float sum[kSums][4] = {}, weights[kScores][4] = {};
    ValueState value;
    GateState gate;
    for (int head = head_, end = head_ + heads_; head < end; ++head, gate.next())
      add_head<Keys>(sum, weights, value, gate, head);
    uint32_t p[kChainTokens / 16][4];
    pack_operand<Dtype>(reinterpret_cast<uint32_t(&)[1][kChainTokens / 16][4]>(p),
                        reinterpret_cast<float(&)[1][kScores][4]>(weights));
    sm90::fence();
    sm90::product_columns<Dtype>(
        sum, p, sm90::descriptor(at_ + (Keys ? kShared.q : kShared.k), TileQ::panel_bytes), true);
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(sum);
    store<Keys>(sum, own_row());
  }

 private:
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
  __device__ uint32_t value_tile(const ValueState& at) const {
    return at_ + kShared.values + at.stage * Layout::value_bytes;
  }
  __device__ GlaSharedDecay& decay(const GateState& at) const {
    return reinterpret_cast<GlaSharedDecay*>(base_ + kShared.decays)[at.stage];
  }
  // The lane's first row.  Addresses of it that left the loop over heads would be spilled.
  __device__ static int own_row() {
    return sm90::unhoisted(16 * (threadIdx.x % 128 / 32) + threadIdx.x % 32 / 4);
  }
  // Q K' of a row t and token s.
  __device__ float* score(int t, int s) const {
    return reinterpret_cast<float*>(base_ + kShared.scores) + t * Layout::kRow + s;
  }
  __device__ void make_scores(int row) const {
    float x[kScores][4];
    sm90::fence();
    sm90::product_rows<Dtype, D, TileQ, TileQ>(x, sm90::descriptor(at_ + kShared.q),
                                               sm90::descriptor(at_ + kShared.k));
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(x);
#pragma unroll
    for (int j = 0; j < kScores; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(score(row + 8 * h, 8 * j + threadIdx.x % 4 * 2)) =
            make_float2(x[j][2 * h], x[j][2 * h + 1]);
  }

  // A head's terms: of dq, or of dk.
  template <bool Keys>
  __device__ __forceinline__ void add_head(float (&sum)[kSums][4], float (&weights)[kScores][4],
                                           ValueState& value, const GateState& gate,
                                           int head) const {
    const int row = own_row();
    float x[kScores][4], y[kSums][4], dots[2] = {};
    ValueState last;
    for (int j = 0; j < w_.tiles; ++j) {
      last = value, value.next();
      const uint32_t tile = value_tile(last), dout = tile + TileV::bytes;
      values_.wait(last);
      const uint64_t own = sm90::descriptor(Keys ? tile : dout);
      const uint64_t other = sm90::descriptor(Keys ? dout : tile);
      const uint32_t state = tile + 2 * TileV::bytes + (Keys ? TileH::bytes : 0);
      sm90::fence();
#pragma unroll
      for (int k = 0; k < kChainColumns / 16; ++k)
        sm90::Wgmma<Dtype, kChainTokens>::template ss<0>(x, own + 2 * k, other + 2 * k, j || k);
      sm90::commit();
      sm90::product_panel<Dtype>(y, own, sm90::descriptor(state, TileH::panel_bytes), j > 0);
      sm90::commit();
      if (j + 1 == w_.tiles) break;
      sm90::wait<0>();
      sm90::pin(x), sm90::pin(y);
      values_.release(last);
    }
    const GlaSharedDecay& by = decay(gate);
    gates_.wait(gate);
    sm90::wait<1>();
    sm90::pin(x);
    weigh<Keys>(x, weights, dots, by, row);
    sm90::wait<0>();
    sm90::pin(y);
    values_.release(last);
    const float select[2] = {Keys ? by.select[row] : 1, Keys ? by.select[row + 8] : 1};
    const float* factors = Keys ? by.decay.suffix : by.decay.row;
    const float factor[2] = {factors[row], factors[row + 8]};
    __syncwarp();  // all lanes have read them
    gates_.release(gate);
    const uint32_t rows = (Keys ? kShared.k : kShared.q) + threadIdx.x % 4 * 4;
#pragma unroll
    for (int n = 0; n < kSums; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 with = unpack<Dtype>(
            *reinterpret_cast<const uint32_t*>(base_ + rows + TileQ::at(row + 8 * h, n)));
        const float low = decayed(factor[h], y[n][2 * h]);
        const float high = decayed(factor[h], y[n][2 * h + 1]);
        dots[h] = fmaf(low, with.x, fmaf(high, with.y, dots[h]));
        sum[n][2 * h] += Keys ? decayed(select[h], low) : low;
        sum[n][2 * h + 1] += Keys ? decayed(select[h], high) : high;
      }
    store_dots<Keys>(dots, sm90::unhoisted(head), row);
  }
  // Adds P . select to the weights, and dots of P with Q K'.
  template <bool Keys>
  __device__ __forceinline__ void weigh(const float (&x)[kScores][4], float (&weights)[kScores][4],
                                        float (&dots)[2], const GlaSharedDecay& from,
                                        int row) const {
    const ChainDecay& by = from.decay;
    const int warp = threadIdx.x % 128 / 32, in = row % 8, pair = threadIdx.x % 4 * 2;
    const float own_row[2] = {Keys ? from.select[row] : by.within[row],
                              Keys ? from.select[row + 8] : by.within[row + 8]};
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      const float2 column =
          *reinterpret_cast<const float2*>((Keys ? by.within : from.select) + 8 * j + pair);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int own = 2 * warp + h;
        if (Keys ? j < own : j > own) continue;
        float2 w, with;
        if (j == own) {
          w = Keys ? make_float2(by.block[own][ChainDecay::at(pair, in)],
                                 by.block[own][ChainDecay::at(pair + 1, in)])
                   : *reinterpret_cast<const float2*>(by.block[own] + ChainDecay::at(in, pair));
        } else if (Keys) {
          const float before = by.before[j > 0 ? j - 1 : 0][8 * own + in];
          w = make_float2(column.x * before, column.y * before);
        } else {
          const float2 before = *reinterpret_cast<const float2*>(by.before[own - 1] + 8 * j + pair);
          w = make_float2(own_row[h] * before.x, own_row[h] * before.y);
        }
        if (Keys)
          with =
              make_float2(*score(8 * j + pair, row + 8 * h), *score(8 * j + pair + 1, row + 8 * h));
        else
          with = *reinterpret_cast<const float2*>(score(row + 8 * h, 8 * j + pair));
        float low = decayed(w.x, x[j][2 * h]), high = decayed(w.y, x[j][2 * h + 1]);
        if (Keys) {
          dots[h] = fmaf(low, with.x, fmaf(high, with.y, dots[h]));
          low = decayed(own_row[h], low), high = decayed(own_row[h], high);
        } else {
          low = decayed(column.x, low), high = decayed(column.y, high);
          dots[h] = fmaf(low, with.x, fmaf(high, with.y, dots[h]));
        }
        weights[j][2 * h] += low, weights[j][2 * h + 1] += high;
      }
    }
  }
  // q . dq, or k . dk, of a head's rows.
  template <bool Keys>
  __device__ void store_dots(float (&dots)[2], int head, int row) const {
    float* to = Keys ? w_.k_dots : w_.q_dots;
    if (!to) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      dots[h] += __shfl_xor_sync(~0u, dots[h], 1);
      dots[h] += __shfl_xor_sync(~0u, dots[h], 2);
      const int t = row + 8 * h;
      if (threadIdx.x % 4 == 0 && t < left_ && (Keys || t >= from_))
        to[(int64_t{head} * a_.b + batch_) * a_.s + token_ + t] = dots[h];
    }
  }
  template <bool Keys>
  __device__ void store(const float (&sum)[kSums][4], int row) const {
    const int64_t heads = a_.h * w_.parts;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row + 8 * h;
      if (t >= left_ || (!Keys && t < from_)) continue;
      float* to = (Keys ? w_.dk : w_.dq) + ((batch_ * a_.s + token_ + t) * heads + row_head_) * D +
                  threadIdx.x % 4 * 2;
#pragma unroll
      for (int n = 0; n < kSums; ++n)
        *reinterpret_cast<float2*>(to + 8 * n) = make_float2(sum[n][2 * h], sum[n][2 * h + 1]);
    }
  }

  const GlaSharedWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  typename Shape::Keys values_;
  Gates gates_;
  RunTokens run_;
  int64_t first_;  // the chunk's first token, in the sequence
  int batch_, slot_, row_head_, group_, head_, heads_, token_, left_, from_;
};

template <class Shape>
__global__ void __launch_bounds__(GlaSharedGradient90<Shape>::threads, 1)
    gla_shared_gradient_sm90_kernel(const __grid_constant__ GlaSharedWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Block = GlaSharedGradient90<Shape>;
  Block::init(shared);
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (warp < 4) {
    sm90::setmaxnreg_dec<Block::producer_regs>();
    const Block block(work, shared);
    if (block.empty()) return;
    if (warp == 0)
      block.produce();
    else
      block.make_decays(warp);
  } else {
    sm90::setmaxnreg_inc<Block::row_regs>();
    const Block block(work, shared);
    if (block.empty()) return;
    block.prepare(warp);
    if (warp < 8)
      block.template add_heads<false>();
    else
      block.template add_heads<true>();
  }
}

template <GlaSharedConfig90 C>
GlaSharedInstance90 gla_shared_sm90_instance() {
  using Shape = GlaSharedShape90<C.dtype, C.d, C.stages>;
  using Values = GlaSharedShape90<C.dtype, C.d, C.values>;
  constexpr auto launcher = [](Context& ctx, const GlaSharedWork90& work) {
    using States = GlaSharedStates90<Shape>;
    using Gradient = GlaSharedGradient90<Values>;
    static_assert(2 * (States::shared_bytes + 1024) <= 228 * 1024);
    static_assert(Gradient::shared_bytes <= 227 * 1024);
    launch<gla_shared_states_sm90_kernel<Shape>>(ctx, "x_gla_backward", 2 * work.chains,
                                                 Shape::threads, States::shared_bytes, work);
    launch<gla_shared_gradient_sm90_kernel<Values>>(
        ctx, "x_gla_backward", work.slots * work.a.h * work.parts, Gradient::threads,
        Gradient::shared_bytes, work);
  };
  return {C.dtype, C.d, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                               \
  namespace fovea::cuda {                                                                 \
  template GlaSharedInstance90 gla_shared_sm90_instance<GlaSharedConfig90 __VA_ARGS__>(); \
  }
