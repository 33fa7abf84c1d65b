// SPDX-License-Identifier: Apache-2.0
// x_delta_forward on Hopper, with a head gate or none, in chunks of 64 tokens.  Of each chunk,
// intra_sm90.cuh first makes T, A and vectors of decays, norms and beta.  Then:
//   Y = V - answer . (K H),  U = (T beta) Y
//   O = scale |q|^-1 2^P . (Q H) + A U,   H = all H + (suffix . U)' K
// A chain is a sequence, a state head and 64 value columns.  `copies` blocks walk each chain: all
// of them move the state, and chunks' outputs go round among them.  So few chains fill the device,
// and no number of copies changes a bit.  Copy 0 writes states.  A chain may be one of several
// parts of a sequence (cuda/loop/parts.h): its first walk has tiles of M too, which are a state
// that begins as the identity, with V = 0.
//   Warpgroup 0: warp 0 is the producer.
//   Warpgroup 1: the state, transposed in registers in f32: 64 value columns as rows.  Sums,
//   packed, are the next A operand: H' of [K H]', Y' of U', U' of the state's sum.  That sum is
//   formed from zero and added by FFMA: the tensor core truncates, which would drift.
//   Warpgroup 2: outputs, 64 tokens as rows.
// Rows of K and V past a sequence's last token are zeroed by the producer: 0 times NaN is NaN.
// Shared memory: stages of K, V, T and vectors; of Q and A; two of H, two of U, both [value][..].
//
//   | barrier    | who arrives           | who waits       | what it guards           |
//   | keys full  | producer, TMA         | state           | K, V, T of a chunk       |
//   | keys empty | warps of the state    | producer        | the same, to be written  |
//   | q full     | producer, TMA         | outputs         | Q, A of a chunk and head |
//   | q empty    | warps of outputs      | producer        | the same, to be written  |
//   | h full     | warps of the state    | outputs         | H before a chunk         |
//   | h empty    | warps of outputs      | state           | the same, to be written  |
//   | u full     | warps of the state    | outputs         | U of a chunk             |
//   | u empty    | warps of outputs      | state           | the same, to be written  |
//   | tail       | producer, TMA         | producer        | K, V, T of the last one  |
//   | cluster    | every thread          | state           | state_in, to be written  |
#pragma once
#include "cuda/loop/chain_sm90.cuh"
#include "ops/delta/intra_sm90.cuh"
#include "ops/delta/keys_sm90.cuh"
#include "ops/delta/low_sm90.cuh"

namespace fovea::cuda {

template <DeltaConfig90 C>
struct DeltaShape90 {
  static constexpr int Dtype = C.dtype, D = C.d, Stages = C.stages, QStages = C.queries;
  static constexpr int Slots = C.slots;
  static constexpr bool Keyed = C.form != DeltaForm::head, Low = C.form == DeltaForm::low;
  static constexpr bool whole = false;  // chains are never parts, and keep no snapshots
  using TileQ = Swizzled<kChainTokens, D>;
  using TileV = Swizzled<kChainTokens, kChainColumns>;
  using TileT = Swizzled<kChainTokens, kChainTokens>;
  using TileH = Swizzled<kChainColumns, D>;
  using TileU = Swizzled<kChainColumns, kChainTokens>;
  using Keys = sm90::Pipeline<Stages>;
  using Queries = sm90::Pipeline<QStages>;
  using States = sm90::Pipeline<Slots>;
  // Where the parts of a stage lie: what answers, what the updates add, V, T and its vectors, G.
  // Without key gates the first two are K.
  static constexpr int key_stride = Low     ? delta_low_bytes(D)
                                    : Keyed ? delta_keys_bytes(D)
                                            : kDeltaInverseStride;
  static constexpr int at_v = Keyed ? key_stride : TileQ::bytes;
  static constexpr int at_inverse = Keyed ? 0 : at_v + TileV::bytes;
  static constexpr int at_mixed = kDeltaKeysAt;
  static constexpr int at_answer = Low ? kDeltaLowKeysAt : Keyed ? kDeltaKeysAt : 0;
  static constexpr int at_update = Keyed ? at_answer + TileQ::bytes : 0;
  static constexpr int at_values = at_update + TileQ::bytes;
  static constexpr int key_bytes = Keyed ? at_v + TileV::bytes : at_inverse + key_stride;
  static constexpr int key_loaded = Keyed ? key_bytes : at_inverse + kDeltaInverseBytes;
  static constexpr int query_stride = Low     ? delta_low_query_bytes(D)
                                      : Keyed ? delta_query_bytes(D)
                                              : kDeltaScoreStride;
  static constexpr int at_scores = Keyed ? 0 : TileQ::bytes;
  static constexpr int at_value_scores = kDeltaScoreStride;
  static constexpr int at_query = Low ? kDeltaLowQueryAt : Keyed ? kDeltaScoreStride : 0;
  static constexpr int query_bytes = Keyed ? query_stride : TileQ::bytes + query_stride;
  static constexpr int query_loaded = Keyed ? query_bytes : TileQ::bytes + kDeltaScoreBytes;
  static constexpr int threads = 384;
  static constexpr int producer_regs = 64, state_regs = 240, output_regs = 200;
};

template <class Shape>
struct DeltaShared90 : sm90::SharedLayout {
  int keys = tiles(Shape::key_bytes, Shape::Stages);
  int q = tiles(Shape::query_bytes, Shape::QStages);
  int h = tiles(Shape::TileH::bytes, Shape::Slots);
  int u = tiles(Shape::TileU::bytes, Shape::Slots);
  int v = Shape::Low ? tiles(Shape::TileU::bytes, Shape::Slots) : 0;  // V' of a low rank
  int times = Shape::Dtype == FOVEA_F16 ? of<float>(2 * Shape::Slots * kChainColumns) : 0;
  int key_pipe = this->pipeline(Shape::Stages);
  int q_pipe = this->pipeline(Shape::QStages);
  int h_pipe = this->pipeline(Shape::Slots);
  int u_pipe = this->pipeline(Shape::Slots);
  int tail = barriers();
};

// The block's part of its chain.
struct DeltaChain90 {
  RunTokens run;
  int64_t head, column, out_row, slot, part;
  uint32_t copy, copies, outputs;
  int begin;       // chunks that have outputs, from the first on
  int start, end;  // chunks that the block walks
  bool writes, has_output, carries, last, idle;

  __device__ DeltaChain90(const DeltaWork90& w, uint32_t block) {
    const Recur& a = w.a;
    const bool once = w.parts.count == 1;
    const auto own = static_cast<uint32_t>(w.tiles), heads = static_cast<uint32_t>(a.heads);
    const uint32_t tiles = own + (w.parts.first ? static_cast<uint32_t>(a.d) / kChainColumns : 0);
    const uint32_t parts = static_cast<uint32_t>(w.parts.count) - (w.parts.first ? 1 : 0);
    copies = static_cast<uint32_t>(w.copies), copy = block % copies, block /= copies;
    const uint32_t tile = block % tiles;
    carries = tile >= own, block /= tiles;
    column = int64_t{carries ? tile - own : tile} * kChainColumns;
    part = once ? 0 : block % parts, block = once ? block : block / parts;
    head = block % heads;
    run = a.run[block / heads];
    slot = w.slot(run.sequence, run.begin);
    outputs = static_cast<uint32_t>(a.outputs());
    out_row = a.run.out_row(run.sequence);
    writes = copy == 0 && (a.state_out || a.snapshot);
    has_output = static_cast<bool>(a.o) && run.from < run.count;
    begin = static_cast<int>(run.from / kChainTokens);
    end = static_cast<int>((run.count + kChainTokens - 1) / kChainTokens);
    start = 0, last = true, idle = false;
    if (!once) {
      const int64_t from = part * w.parts.chunks, to = from + w.parts.chunks;
      last = to >= end;
      // No token is in the part, or nothing reads what it carries.
      idle = part > 0 ? from >= end : carries;
      start = static_cast<int>(min(from, int64_t{end}));
      end = static_cast<int>(min(to, int64_t{end}));
      if (idle) end = start;
    }
    if (!writes && !w.parts.first)
      while (end > start && !owns(end - 1)) --end;
  }
  // Whether this block writes rows of a chunk: of an output head, of any.
  __device__ bool owns(int chunk, uint32_t output) const {
    const uint32_t before = static_cast<uint32_t>(chunk) % copies * (outputs % copies);
    return has_output && chunk >= begin && (before + output) % copies == copy;
  }
  __device__ bool owns(int chunk) const {
    const uint32_t all = outputs < copies ? outputs : copies;
    for (uint32_t j = 0; j < all; ++j)
      if (owns(chunk, j)) return true;
    return false;
  }
  __device__ int64_t first(int chunk) const { return int64_t{chunk} * kChainTokens; }
};

// Whether the block owns one chunk after the other: owns() without divisions.
class DeltaTurns {
 public:
  __device__ explicit DeltaTurns(const DeltaChain90& chain)
      : c_(chain),
        step_(static_cast<int>(chain.outputs % chain.copies)),
        before_(static_cast<int>(static_cast<uint32_t>(chain.start) % chain.copies *
                                 static_cast<uint32_t>(step_) % chain.copies)) {}
  __device__ bool owns(int chunk) const {
    const int behind = static_cast<int>(c_.copy) - before_;
    const int turn = behind < 0 ? behind + static_cast<int>(c_.copies) : behind;
    return c_.has_output && chunk >= c_.begin && turn < static_cast<int>(c_.outputs);
  }
  __device__ void next() {
    before_ += step_;
    if (before_ >= static_cast<int>(c_.copies)) before_ -= static_cast<int>(c_.copies);
  }

 private:
  const DeltaChain90& c_;
  int step_, before_;
};

// Sums as the A operand of the next product: x times by, where f16 ends at 65504.  Then a row past
// 2^13 is divided by a power of two, which `times` has for the lane's two rows.
template <int Dtype, int N>
__device__ __forceinline__ void pack_rows(uint32_t (&a)[N / 2][4], const float (&x)[N][4],
                                          float (&times)[2]) {
  float by[2] = {1, 1};
  times[0] = times[1] = 1;
  if constexpr (Dtype == FOVEA_F16) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = 0;
#pragma unroll
      for (int j = 0; j < N; ++j)
        most = fmaxf(most, fmaxf(fabsf(x[j][2 * h]), fabsf(x[j][2 * h + 1])));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const int past = static_cast<int>(bits_of(most) >> 23) - (127 + 12);
      if (past > 0)
        by[h] = float_of(static_cast<uint32_t>(127 - past) << 23),
        times[h] = float_of(static_cast<uint32_t>(127 + past) << 23);
    }
  }
#pragma unroll
  for (int k = 0; k < N / 2; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&from)[4] = x[2 * k + i / 2];
      const float low = from[i % 2 * 2], high = from[i % 2 * 2 + 1];
      a[k][i] = Dtype == FOVEA_F16 ? pack<Dtype>(low * by[i % 2], high * by[i % 2])
                                   : pack<Dtype>(low, high);
    }
}

// An A operand to a tile of 64 rows, and the factors of its rows.
template <int Dtype, class Tile, int Steps>
__device__ __forceinline__ void publish(uint32_t tile, float* to_times,
                                        const uint32_t (&a)[Steps][4], const float (&times)[2]) {
  const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16;
  if (Dtype == FOVEA_F16 && lane % 4 == 0) {
    to_times[first + lane / 4] = times[0];
    to_times[first + lane / 4 + 8] = times[1];
  }
  const uint32_t to = tile + Tile::at(first + outer_row(lane), outer_chunk(lane));
#pragma unroll
  for (int k = 0; k < Steps; ++k) sm90::store_matrices(Tile::pair(to, k), a[k]);
  sm90::fence_shared();
  __syncwarp();
}

// d += A B', A packed sums or a tile, B a tile [row][k].
template <int Dtype, class TileB, int N, int Steps>
__device__ __forceinline__ void add_rows(float (&d)[N][4], const uint32_t (&a)[Steps][4],
                                         uint64_t b) {
#pragma unroll
  for (int k = 0; k < Steps; ++k)
    sm90::Wgmma<Dtype, N * 8>::template rs<0>(
        d, a[k], b + k / 4 * (TileB::panel_bytes / 16) + k % 4 * 2, true);
}
template <int Dtype, int Depth, int N>
__device__ __forceinline__ void add_rows(float (&d)[N][4], uint64_t a, uint64_t b) {
  static_assert(Depth <= 64);
#pragma unroll
  for (int k = 0; k < Depth / 16; ++k)
    sm90::Wgmma<Dtype, N * 8>::template ss<0>(d, a + k * 2, b + k * 2, true);
}

template <class Shape>
class DeltaBlock90 {
 protected:
  static constexpr int Dtype = Shape::Dtype, D = Shape::D;
  static constexpr bool Keyed = Shape::Keyed, Low = Shape::Low;
  using TileQ = typename Shape::TileQ;
  using TileV = typename Shape::TileV;
  using TileT = typename Shape::TileT;
  using TileH = typename Shape::TileH;
  using TileU = typename Shape::TileU;
  static constexpr DeltaShared90<Shape> kShared = DeltaShared90<Shape>();

 public:
  static constexpr int shared_bytes = kShared.bytes + 1024;  // the base is aligned

  __device__ DeltaBlock90(const DeltaWork90& work, unsigned char* raw)
      : w_(work),
        a_(work.a),
        base_(raw + (-shared_address(raw) & 1023)),
        at_(shared_address(base_)),
        keys_{at_ + kShared.key_pipe},
        queries_{at_ + kShared.q_pipe},
        states_{at_ + kShared.h_pipe},
        updates_{at_ + kShared.u_pipe},
        chain_(work, blockIdx.x) {}

  __device__ void init() const {
    if (threadIdx.x == 0) {
      keys_.init(1, 4), queries_.init(1, 4), states_.init(4, 4), updates_.init(4, 4);
      sm90::barrier_init(at_ + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }

  // Warp 0.
  template <bool Outputs = true>
  __device__ void produce() const {
    const int lane = threadIdx.x % 32, batch = static_cast<int>(chain_.run.batch);
    const int key_head = static_cast<int>(a_.key_head(chain_.head));
    const int value_head = static_cast<int>(a_.value_head(chain_.head));
    const unsigned char* inverse =
        w_.inverses + (chain_.slot * a_.heads + chain_.head) * Shape::key_stride;
    KeyState key;
    QueryState query;
    if (carries()) zero_values();
    for (int c = start(); c < chain_.end; ++c, key.next()) {
      const int row = static_cast<int>(chain_.run.begin + chain_.first(c));
      const int64_t left = chain_.run.count - chain_.first(c);
      const uint32_t tile = key_tile(key);
      keys_.acquire(key);
      const auto load = [&](uint32_t barrier) {
        if (lane != 0) return;
        sm90::barrier_expect(barrier, Shape::key_loaded - (carries() ? TileV::bytes : 0));
        if constexpr (!Keyed)
          sm90::tma_load_panels<TileQ>(tile, w_.k, barrier, row, key_head, batch);
        if (!carries())
          sm90::tma_load_box(tile + Shape::at_v, w_.v, barrier, static_cast<int>(chain_.column),
                             row, value_head, batch);
        sm90::tma_load(tile + Shape::at_inverse, inverse + c * a_.heads * Shape::key_stride,
                       Keyed ? Shape::key_stride : kDeltaInverseBytes, barrier);
      };
      if (left >= kChainTokens) {
        load(keys_.full(key));
      } else {
        load(at_ + kShared.tail);
        sm90::barrier_wait(at_ + kShared.tail, 0);
        zero_rows(tile, static_cast<int>(left));
        sm90::fence_shared();
        __syncwarp();
        if (lane == 0) keys_.arrive(key);
      }
      for (uint32_t j = 0; Outputs && j < chain_.outputs; ++j) {
        if (!chain_.owns(c, j)) continue;
        queries_.acquire(query);
        if (lane == 0) {
          const uint32_t full = queries_.full(query);
          sm90::barrier_expect(full, Shape::query_loaded);
          if constexpr (!Keyed)
            sm90::tma_load_panels<TileQ>(q_tile(query), w_.q, full, row,
                                         static_cast<int>(a_.query_head(output_head(j))), batch);
          sm90::tma_load(
              q_tile(query) + Shape::at_scores,
              w_.scores + ((chain_.slot + c) * a_.heads_out + output_head(j)) * Shape::query_stride,
              Keyed ? Shape::query_stride : kDeltaScoreBytes, full);
        }
        query.next();
      }
    }
  }

  // Warpgroup 1.
  __device__ void move_state() const {
    ChainState<D> state;
    if (!Shape::whole && chain_.idle) return;
    begin_state(state);
    if (w_.cluster > 1) sm90::cluster_arrive(), sm90::cluster_wait();
    KeyState key;
    SlotState slot;
    DeltaTurns turns(chain_);
    for (int c = start(); c < chain_.end; ++c, key.next(), turns.next()) {
      const uint32_t k = key_tile(key);
      const DeltaVectors& by = *reinterpret_cast<const DeltaVectors*>(
          base_ + (k + Shape::at_inverse + kDeltaTile - at_));
      const bool owned = turns.owns(c);
      float u[kSums][4], times[2];
      float2 suffix[kSums];
      uint32_t packed[kChainTokens / 16][4];
      answer(state, k, by, key, slot, owned, packed, times);
      sm90::fence();
      sm90::product_rows<Dtype, TileT>(u, packed, sm90::descriptor(k + Shape::at_inverse));
      sm90::commit();
      load_factors(suffix, by.suffix);
      sm90::wait<0>();
      sm90::pin(u);
      if constexpr (Dtype == FOVEA_F16) {
#pragma unroll
        for (int j = 0; j < kSums; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) u[j][i] *= times[i / 2];
      }
      if constexpr (Low)
        update_low(state, k, by, key, slot, owned, u);
      else
        update(state, k, by, suffix, key, slot, owned, u);
      if (owned) slot.next();
      if (!Shape::whole && chain_.writes && a_.snapshot) keep(state, c);
    }
    if (Shape::whole) return;
    if (w_.parts.first)
      store_part(state);
    else if (chain_.writes && chain_.last && a_.state_out && chain_.out_row >= 0)
      state.store(a_.state_out, chain_.out_row, chain_.head, chain_.column);
  }

  // Warpgroup 2.
  __device__ void make_outputs() const {
    QueryState query;
    SlotState slot;
    DeltaTurns turns(chain_);
    for (int c = chain_.start; c < chain_.end; ++c, turns.next()) {
      if (!turns.owns(c)) continue;
      states_.wait(slot);
      for (uint32_t j = 0; j < chain_.outputs; ++j)
        if (chain_.owns(c, j)) output(c, j, query, slot);
      if constexpr (Dtype == FOVEA_F16) __syncwarp();  // all lanes have read `times`
      states_.release(slot), updates_.release(slot), slot.next();
    }
  }

 protected:
  using KeyState = typename Shape::Keys::State;
  using QueryState = typename Shape::Queries::State;
  using SlotState = typename Shape::States::State;
  static constexpr int kSums = kChainColumns / 8;

  __device__ uint32_t key_tile(const KeyState& at) const {
    return at_ + kShared.keys + at.stage * Shape::key_bytes;
  }
  __device__ uint32_t q_tile(const QueryState& at) const {
    return at_ + kShared.q + at.stage * Shape::query_bytes;
  }
  __device__ uint32_t h_tile(const SlotState& at) const {
    return at_ + kShared.h + at.stage * TileH::bytes;
  }
  __device__ uint32_t u_tile(const SlotState& at) const {
    return at_ + kShared.u + at.stage * TileU::bytes;
  }
  __device__ uint32_t v_tile(const SlotState& at) const {
    return at_ + kShared.v + at.stage * TileU::bytes;
  }
  // Factors of H's value columns (0), of U's (1).
  __device__ float* times(const SlotState& at, int which) const {
    return reinterpret_cast<float*>(base_ + kShared.times) + (2 * at.stage + which) * kChainColumns;
  }
  __device__ int64_t output_head(uint32_t j) const {
    return chain_.head * chain_.outputs + j;
  }

  // The row of a part in the states between parts.
  __device__ int64_t part_row() const {
    return chain_.run.sequence * w_.parts.count + chain_.part;
  }
  __device__ int start() const {
    return Shape::whole ? 0 : chain_.start;
  }
  __device__ bool carries() const {
    return !Shape::whole && chain_.carries;
  }
  // The state before the part; in the first walk zeros, of a carry the identity.
  __device__ void begin_state(ChainState<D>& state) const {
    if constexpr (Shape::whole)
      return state.load(a_.state_in, a_.state_in ? chain_.run.state : -1, chain_.head,
                        chain_.column);
    if (chain_.carries) return state.identity(static_cast<int>(chain_.column));
    if (w_.parts.count > 1 && !w_.parts.first)
      return state.load(w_.parts.state, part_row(), chain_.head, chain_.column);
    const bool given = a_.state_in && chain_.part == 0;
    state.load(a_.state_in, given ? chain_.run.state : -1, chain_.head, chain_.column);
    // The second walk may write the state where it lies.
    if (w_.parts.first && chain_.part == 0)
      state.store(w_.parts.state, part_row(), chain_.head, chain_.column);
  }
  __device__ void store_part(ChainState<D>& state) const {
    if (chain_.carries)
      state.store(w_.parts.carry, part_row(), chain_.head, chain_.column);
    else
      state.store(w_.parts.state, part_row() + 1, chain_.head, chain_.column);
  }

  // V of every stage, once: a carry loads none.
  __device__ void zero_values() const {
    constexpr int kRows = kChainTokens * kPanelChunks;
    for (int i = static_cast<int>(threadIdx.x % 32); i < Shape::Stages * kRows; i += 32)
      sm90::store_zeros(at_ + kShared.keys + i / kRows * Shape::key_bytes + Shape::at_v +
                        TileV::at(i % kRows / kPanelChunks, i % kPanelChunks));
    sm90::fence_shared();
    __syncwarp();
  }
  // Tiles of key gates have zeros there.
  __device__ void zero_rows(uint32_t tile, int left) const {
    constexpr int kPanels = Keyed ? 0 : TileQ::panels, kChunks = (kPanels + 1) * kPanelChunks;
    for (int i = left * kChunks + static_cast<int>(threadIdx.x % 32); i < kChainTokens * kChunks;
         i += 32) {
      const int chunk = i % kChunks;
      sm90::store_zeros(chunk < kPanels * kPanelChunks
                            ? tile + TileQ::at(i / kChunks, chunk)
                            : tile + Shape::at_v + TileV::at(i / kChunks, chunk % kPanelChunks));
    }
  }

  // The lane's columns of 64.
  __device__ static void load_factors(float2 (&to)[kSums], const float* from) {
#pragma unroll
    for (int j = 0; j < kSums; ++j)
      to[j] = *reinterpret_cast<const float2*>(from + 8 * j + threadIdx.x % 4 * 2);
  }
  // Whether a factor is 0: then nothing is left of what it multiplies, be it inf or NaN.
  __device__ static bool has_zero(const DeltaVectors& by) {
    return Keyed ? by.zero[0] : by.zero[0] || by.zero[1];
  }
  // Decays of the lane's key channels.
  __device__ static void load_channels(float2 (&to)[D / 8], const DeltaVectors& by) {
    const auto* from = reinterpret_cast<const float*>(&by) + kDeltaChannels / 4;
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
      to[j] = *reinterpret_cast<const float2*>(from + 8 * j + threadIdx.x % 4 * 2);
  }
  // Key channels that the first token resets.
  __device__ static void reset(ChainState<D>& state, const DeltaVectors& by) {
    float2 all[D / 8];
    load_channels(all, by);
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (bits_of(i % 2 ? all[j].y : all[j].x) == 0x80000000u) state.x[j][i] = 0;
  }

  // V' of a stage, as an A operand.
  __device__ static void load_v(uint32_t (&v)[kChainTokens / 16][4], uint32_t k) {
    const int lane = threadIdx.x % 32, chunk = threadIdx.x % 128 / 32 * 2 + inner_chunk(lane);
#pragma unroll
    for (int n = 0; n < kChainTokens / 16; ++n)
      load_matrices_transposed(v[n], k + Shape::at_v + TileV::at(16 * n + inner_row(lane), chunk));
  }

  // Publishes H, and packs Y = V - answer . (K H), whose rows are then to be multiplied by
  // `times`.
  __device__ __forceinline__ void answer(ChainState<D>& state, uint32_t k, const DeltaVectors& by,
                                         const KeyState& key, const SlotState& slot, bool owned,
                                         uint32_t (&packed)[kChainTokens / 16][4],
                                         float (&scaled)[2]) const {
    float y[kSums][4], from[2];
    uint32_t h[D / 16][4], v[kChainTokens / 16][4];
    if constexpr (Keyed) keys_.wait(key);
    if constexpr (Low)
      load_v(v, k);
    else if constexpr (Keyed)
      if (by.zero[1]) reset(state, by);
    pack_rows<Dtype>(h, state.x, from);
    if constexpr (!Keyed) keys_.wait(key);
    sm90::fence();
    sm90::product_rows<Dtype, TileQ>(y, h, sm90::descriptor(k + Shape::at_answer));
    if constexpr (Low) add_rows<Dtype, TileT>(y, v, sm90::descriptor(k + Shape::at_mixed));
    sm90::commit();
    if (owned) {
      states_.acquire(slot);
      publish<Dtype, TileH>(h_tile(slot), times(slot, 0), h, from);
      sm90::barrier_arrive_warp(states_.full(slot));
    }
    if constexpr (Low) {
      sm90::wait<0>();
      sm90::pin(y);
    } else {
      subtract(y, from, k, by);
    }
    pack_rows<Dtype>(packed, y, scaled);
  }
  // y becomes V - answer . (from . y), once its product has ended.
  __device__ __forceinline__ void subtract(float (&y)[kSums][4], const float (&from)[2], uint32_t k,
                                           const DeltaVectors& by) const {
    float2 factor[kSums];
    uint32_t v[kChainTokens / 16][4];
    load_v(v, k);
    load_factors(factor, by.answer);
    const bool zeros = has_zero(by);
    sm90::wait<0>();
    sm90::pin(y);
    if (zeros) {
#pragma unroll
      for (int j = 0; j < kSums; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if ((i % 2 ? factor[j].y : factor[j].x) == 0) y[j][i] = 0;
    }
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t two = v[j / 2][j % 2 * 2 + i];
        float low, high;
        if constexpr (Dtype == FOVEA_BF16) {
          low = float_of(two << 16), high = float_of(two & 0xffff0000u);
        } else {
          low = to_float(F16{static_cast<uint16_t>(two)});
          high = to_float(F16{static_cast<uint16_t>(two >> 16)});
          y[j][2 * i] *= from[i], y[j][2 * i + 1] *= from[i];
        }
        y[j][2 * i] = fmaf(-factor[j].x, y[j][2 * i], low);
        y[j][2 * i + 1] = fmaf(-factor[j].y, y[j][2 * i + 1], high);
      }
  }

  // Publishes U; the state becomes that after the chunk.
  __device__ __forceinline__ void update(ChainState<D>& state, uint32_t k, const DeltaVectors& by,
                                         const float2 (&suffix)[kSums], const KeyState& key,
                                         const SlotState& slot, bool owned,
                                         float (&u)[kSums][4]) const {
    float sum[D / 8][4], scaled[2], from[2];
    uint32_t packed[kChainTokens / 16][4], own[kChainTokens / 16][4];
    pack_rows<Dtype>(own, u, from);
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) u[j][i] *= i % 2 ? suffix[j].y : suffix[j].x;
    if (has_zero(by)) {
#pragma unroll
      for (int j = 0; j < kSums; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if ((i % 2 ? suffix[j].y : suffix[j].x) == 0) u[j][i] = 0;
    }
    pack_rows<Dtype>(packed, u, scaled);
    sm90::fence();
    sm90::product_columns<Dtype>(sum, packed,
                                 sm90::descriptor(k + Shape::at_update, TileQ::panel_bytes), false);
    sm90::commit();
    if (owned) {
      updates_.acquire(slot);
      publish<Dtype, TileU>(u_tile(slot), times(slot, 1), own, from);
      sm90::barrier_arrive_warp(updates_.full(slot));
    }
    if constexpr (Keyed) return advance(state, by, sum, key);
    const float all = by.all;
    sm90::wait<0>();
    sm90::pin(sum);
    keys_.release(key);
    if constexpr (Dtype == FOVEA_F16) {
#pragma unroll
      for (int j = 0; j < D / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j][i] *= scaled[i / 2];
    }
    if (all == 0) return state.advance(0, sum);
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) state.x[j][i] = fmaf(all, state.x[j][i], sum[j][i]);
  }

  // The same of a low rank, where V is added too.
  __device__ __forceinline__ void update_low(ChainState<D>& state, uint32_t k,
                                             const DeltaVectors& by, const KeyState& key,
                                             const SlotState& slot, bool owned,
                                             const float (&sums)[kSums][4]) const {
    float sum[D / 8][4], none[2];
    uint32_t u[kChainTokens / 16][4], v[kChainTokens / 16][4];
    pack_rows<Dtype>(u, sums, none);
    load_values<Dtype>(v, k + Shape::at_v, by.suffix);
    sm90::fence();
    sm90::product_columns<Dtype>(sum, u, sm90::descriptor(k + Shape::at_update, TileQ::panel_bytes),
                                 false);
    sm90::product_columns<Dtype>(sum, v, sm90::descriptor(k + Shape::at_values, TileQ::panel_bytes),
                                 true);
    sm90::commit();
    if (owned) {
      uint32_t raw[kChainTokens / 16][4];
      load_v(raw, k);
      updates_.acquire(slot);
      publish<Dtype, TileU>(u_tile(slot), times(slot, 1), u, none);
      publish<Dtype, TileU>(v_tile(slot), times(slot, 1), raw, none);
      sm90::barrier_arrive_warp(updates_.full(slot));
    }
    advance(state, by, sum, key);
  }

  // After the last product of a chunk under key gates.
  __device__ __forceinline__ void advance(ChainState<D>& state, const DeltaVectors& by,
                                          float (&sum)[D / 8][4], const KeyState& key) const {
    float2 all[D / 8];
    load_channels(all, by);
    const bool zeros = by.zero[1];
    sm90::wait<0>();
    sm90::pin(sum);
    keys_.release(key);
    if (zeros) {
#pragma unroll
      for (int j = 0; j < D / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if ((i % 2 ? all[j].y : all[j].x) == 0) state.x[j][i] = 0;
    }
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        state.x[j][i] = fmaf(i % 2 ? all[j].y : all[j].x, state.x[j][i], sum[j][i]);
  }

  __device__ void keep(ChainState<D>& state, int c) const {
    const int64_t tokens = chain_.first(c + 1);
    if (tokens > chain_.run.count || tokens % a_.run.every) return;
    const int64_t i = tokens / a_.run.every - 1;
    if (i >= a_.run.kept) return;
    const int64_t row = a_.run.kept_row(chain_.run, i);
    if (row >= 0) state.store(a_.snapshot, row, chain_.head, chain_.column);
  }

  __device__ __forceinline__ void output(int c, uint32_t j, QueryState& query,
                                         const SlotState& slot) const {
    const int pair = threadIdx.x % 4 * 2;
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float o[kSums][4], own[kSums][4];
    queries_.wait(query);
    sm90::fence();
    sm90::product_rows<Dtype, D, TileQ, TileH>(o, sm90::descriptor(q_tile(query) + Shape::at_query),
                                               sm90::descriptor(h_tile(slot)));
    sm90::commit();
    updates_.wait(slot);
    sm90::product_rows<Dtype, kChainTokens, TileT, TileU>(
        own, sm90::descriptor(q_tile(query) + Shape::at_scores), sm90::descriptor(u_tile(slot)));
    if constexpr (Low)
      add_rows<Dtype, kChainTokens>(own, sm90::descriptor(q_tile(query) + Shape::at_value_scores),
                                    sm90::descriptor(v_tile(slot)));
    sm90::commit();
    const auto* factors = reinterpret_cast<const float*>(
        base_ + (q_tile(query) + Shape::at_scores + kDeltaTile - at_));
    const float factor[2] = {factors[row], factors[row + 8]};
    sm90::wait<0>();
    sm90::pin(o), sm90::pin(own);
    queries_.release(query), query.next();
#pragma unroll
    for (int n = 0; n < kSums; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (Dtype == FOVEA_F16) {
          o[n][i] *= times(slot, 0)[8 * n + pair + i % 2];
          own[n][i] *= times(slot, 1)[8 * n + pair + i % 2];
        }
        o[n][i] = decayed(factor[i / 2], o[n][i]) + own[n][i];
      }
    store(o, c, j, row);
  }

  __device__ void store(const float (&o)[kSums][4], int c, uint32_t j, int row) const {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t t = chain_.first(c) + row + 8 * h;
      const bool wanted = t < chain_.run.count && t >= chain_.run.from;
      const int64_t to =
          a_.o.offset(chain_.run.batch, chain_.run.begin + t, output_head(j), chain_.column);
      if (a_.o.dtype == FOVEA_F32) {
        if (!wanted) continue;
#pragma unroll
        for (int n = 0; n < kSums; ++n)
          *reinterpret_cast<float2*>(a_.o.view.template as<float>() + to + 8 * n + 2 * lane) =
              make_float2(o[n][2 * h], o[n][2 * h + 1]);
        continue;
      }
#pragma unroll
      for (int m = 0; m < kSums; m += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = pack<Dtype>(o[m + i][2 * h], o[m + i][2 * h + 1]);
        quad_transpose(words);
        if (wanted)
          __stcs(reinterpret_cast<uint4*>(a_.o.view.template as<uint16_t>() + to + 8 * (m + lane)),
                 make_uint4(words[0], words[1], words[2], words[3]));
      }
    }
  }

  const DeltaWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  typename Shape::Keys keys_;
  typename Shape::Queries queries_;
  typename Shape::States states_, updates_;
  DeltaChain90 chain_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    delta_forward_sm90_kernel(const __grid_constant__ DeltaWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  // Each role works out its own chain: values that all of them hold would be spilled.
  using Block = DeltaBlock90<Shape>;
  Block(work, shared).init();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (work.cluster > 1) sm90::cluster_arrive();
    if (warp == 0) Block(work, shared).produce();
  } else if (warp < 8) {
    sm90::setmaxnreg_inc<Shape::state_regs>();
    Block(work, shared).move_state();
  } else {
    sm90::setmaxnreg_inc<Shape::output_regs>();
    if (work.cluster > 1) sm90::cluster_arrive();
    Block(work, shared).make_outputs();
  }
}

template <DeltaConfig90 C>
DeltaInstance90 delta_sm90_instance() {
  constexpr auto launcher = [](Context& ctx, const DeltaWork90& work) {
    using Shape = DeltaShape90<C>;
    constexpr char op[] = "x_delta_forward";
    constexpr int kShared = DeltaBlock90<Shape>::shared_bytes;
    static_assert(kShared <= 227 * 1024);
    const int64_t chunks = work.slots * work.a.heads;
    if constexpr (C.form == DeltaForm::head) {
      launch<delta_intra_sm90_kernel<C.dtype, C.d>>(ctx, op, chunks, 128,
                                                    DeltaIntra<C.dtype, C.d>::shared_bytes, work);
    } else {
      using Chunk = std::conditional_t<C.form == DeltaForm::low, DeltaLow<C.d>, DeltaKeys<C.d>>;
      launch<delta_chunks_sm90_kernel<Chunk>>(ctx, op, chunks, 128, Chunk::shared_bytes, work);
    }
    const auto walk = [&](const DeltaWork90& w) {
      launch_clusters<delta_forward_sm90_kernel<Shape>>(ctx, op, w.blocks, w.cluster,
                                                        Shape::threads, kShared, w);
    };
    if (work.parts.count > 1) walk(work.first_walk()), join_parts(ctx, op, work.a, work.parts);
    walk(work);
  };
  using Shape = DeltaShape90<C>;
  return {C.dtype, C.d, C.form, Shape::key_stride, Shape::query_stride, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                  \
  namespace fovea::cuda {                                                    \
  template DeltaInstance90 delta_sm90_instance<DeltaConfig90 __VA_ARGS__>(); \
  }
