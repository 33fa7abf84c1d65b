// SPDX-License-Identifier: Apache-2.0
// x_gla_forward on Hopper, in chunks of 64 tokens, with a head gate or none:
//   O = scale e^P . (Q H) + (scale select tril(Q K') . e^D) V,   H = e^G H + (V e^S select)' K
// and with key gates, where Q~, A and K~ are tiles that another kernel made (intra_sm90.cuh):
//   O = Q~ H + A V + act(bonus dot V),   H = e^G H + V' K~,   e^G of each key channel
// A chain is a sequence, a state head and 64 value columns.  `copies` blocks walk each chain: all
// of them move the state, and chunks' outputs go round among them.  So few chains fill the device,
// and no number of copies changes a bit.  Copy 0 writes states.  A chain may be one of several
// parts of a sequence (cuda/loop/parts.h).
//   Warpgroup 0: warp 0 is the producer.  Warps 1 to 3 make the decays of every third chunk.
//   Warpgroup 1: the state, transposed in registers in f32.  Each chunk's sum is formed from zero
//   and added by FFMA: the tensor core's sums are truncated, which would drift over many chunks.
//   Warpgroups 2 and 3: outputs in turn, 64 tokens as rows.  Scores stay in registers as
//   attention's do.
// Rows of K and V past a sequence's last token are zeroed by the producer: 0 times NaN is NaN.
// Shared memory: stages of K, V and decays; of Q; two of H [value][key] in 16 bits.
//
//   | barrier    | who arrives                      | who waits       | what it guards           |
//   | keys full  | producer, TMA, a warp of decays  | state, outputs  | K, V, decays of a chunk  |
//   | keys empty | warps of state and outputs       | producer, gates | the same, to be written  |
//   | q full     | producer, TMA                    | outputs         | Q of a chunk and head    |
//   | q empty    | warps of outputs                 | producer        | the same, to be written  |
//   | h full     | warps of the state               | outputs         | H before a chunk         |
//   | h empty    | warps of outputs                 | state           | the same, to be written  |
//   | tail       | producer, TMA                    | producer        | K, V of the last chunk   |
//   | cluster    | every thread                     | state           | state_in, to be written  |
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/chain_sm90.cuh"
#include "cuda/tile/convert.cuh"
#include "ops/gla/forward.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int Gate_, int Stages_, int Queries_>
struct GlaShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Stages = Stages_, QStages = Queries_;
  static constexpr bool gated = Gate_ == kGlaHead, keyed = Gate_ == kGlaKey;
  static_assert(!keyed || Dtype == FOVEA_BF16);
  using TileQ = Swizzled<kChainTokens, D>;
  using TileV = Swizzled<kChainTokens, kChainColumns>;
  using TileH = Swizzled<kChainColumns, D>;
  using Keys = sm90::Pipeline<Stages>;
  using Queries = sm90::Pipeline<QStages>;
  using States = sm90::Pipeline<2>;
  // With key gates the factors of channels follow, and Q~ has A after it.
  static constexpr int key_bytes = TileQ::bytes + TileV::bytes + (keyed ? gla_key_factors(D) : 0);
  static constexpr int key_stage = TileQ::bytes + TileV::bytes + (keyed ? 1024 : 0);
  static constexpr int query_stage = keyed ? gla_query_stride(D) : TileQ::bytes;
  static constexpr int groups = 2;  // of outputs
  static constexpr int threads = 128 * (2 + groups);
  static constexpr int producer_regs = 56, state_regs = 184, output_regs = 136;
};

template <class Shape>
struct GlaShared90 : sm90::SharedLayout {
  int keys = tiles(Shape::key_stage, Shape::Stages);
  int q = tiles(Shape::query_stage, Shape::QStages);
  int h = tiles(Shape::TileH::bytes, 2);
  int times = of<float>(2 * kChainColumns);
  int decays = Shape::gated ? of<float4>(Shape::Stages * kDecayPieces) : 0;
  int key_pipe = this->pipeline(Shape::Stages);
  int q_pipe = this->pipeline(Shape::QStages);
  int h_pipe = this->pipeline(2);
  int tail = barriers();

  static constexpr int kDecayPieces = (sizeof(ChainDecay) + 15) / 16;
};

// The block's part of its chain.
struct GlaChain90 {
  RunTokens run;
  int64_t head, column, out_row, part;
  uint32_t copy, copies, outputs;
  int begin;       // chunks that have outputs, from the first on
  int start, end;  // chunks that the block walks
  bool writes, has_output, last;

  __device__ GlaChain90(const GlaWork90& w, uint32_t block) {
    const Recur& a = w.a;
    const auto tiles = static_cast<uint32_t>(w.tiles), heads = static_cast<uint32_t>(a.heads);
    copies = static_cast<uint32_t>(w.copies), copy = block % copies, block /= copies;
    column = int64_t{block % tiles} * kChainColumns, block /= tiles;
    const bool once = w.parts.count == 1;
    const uint32_t parts = static_cast<uint32_t>(w.parts.count) - (w.parts.first ? 1 : 0);
    part = once ? 0 : block % parts, block = once ? block : block / parts;
    head = block % heads;
    run = a.run[block / heads];
    outputs = static_cast<uint32_t>(a.outputs());
    out_row = a.run.out_row(run.sequence);
    writes = copy == 0 && (a.state_out || a.snapshot);
    has_output = static_cast<bool>(a.o);
    begin = static_cast<int>(run.from / kChainTokens);
    end = static_cast<int>((run.count + kChainTokens - 1) / kChainTokens);
    start = 0, last = true;
    if (!once) {
      const int64_t from = part * w.parts.chunks, to = from + w.parts.chunks;
      last = to >= end && (from < end || part == 0);
      start = static_cast<int>(min(from, int64_t{end}));
      end = static_cast<int>(min(to, int64_t{end}));
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
  __device__ bool has(int chunk, uint32_t turn) const {
    return has_output && chunk >= begin && turn < outputs;
  }
  __device__ int64_t first(int chunk) const { return int64_t{chunk} * kChainTokens; }
};

// The first output of a chunk whose rows the block writes; each `copies`-th one follows.  Past the
// outputs: none.
struct GlaTurn90 {
  uint32_t first, step, copies;

  __device__ explicit GlaTurn90(const GlaChain90& chain)
      : step(chain.outputs % chain.copies), copies(chain.copies) {
    const uint32_t before = static_cast<uint32_t>(chain.start) % copies * step % copies;
    first = chain.copy < before ? chain.copy + copies - before : chain.copy - before;
  }
  __device__ void next() { first = first < step ? first + copies - step : first - step; }
};

template <class Shape>
class GlaBlock90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D;
  using TileQ = typename Shape::TileQ;
  using TileV = typename Shape::TileV;
  using TileH = typename Shape::TileH;
  static constexpr GlaShared90<Shape> kShared = GlaShared90<Shape>();

 public:
  static constexpr int shared_bytes = kShared.bytes + 1024;  // the base is aligned

  __device__ GlaBlock90(const GlaWork90& work, unsigned char* raw)
      : w_(work),
        a_(work.a),
        base_(raw + (-shared_address(raw) & 1023)),
        at_(shared_address(base_)),
        keys_{at_ + kShared.key_pipe},
        queries_{at_ + kShared.q_pipe},
        states_{at_ + kShared.h_pipe},
        // Roles share no registers: what all hold would be spilled where one is full.
        chain_(work, sm90::unhoisted(blockIdx.x)) {}

  __device__ static void init(unsigned char* raw) {
    if (threadIdx.x == 0) {
      const uint32_t at = shared_address(raw + (-shared_address(raw) & 1023));
      const typename Shape::Keys keys{at + kShared.key_pipe};
      const typename Shape::Queries queries{at + kShared.q_pipe};
      const typename Shape::States states{at + kShared.h_pipe};
      keys.init(Shape::gated ? 2 : 1, 4 + 4 * Shape::groups), queries.init(1, 4);
      states.init(4, 4 * Shape::groups);
      sm90::barrier_init(at + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }

  // Warp 0.
  __device__ void produce() const {
    const int lane = threadIdx.x % 32, batch = static_cast<int>(chain_.run.batch);
    const int key_head = static_cast<int>(a_.key_head(chain_.head));
    const int value_head = static_cast<int>(a_.value_head(chain_.head));
    typename Shape::Keys::State key;
    typename Shape::Queries::State query;
    GlaTurn90 turn(chain_);
    const int query_head = static_cast<int>(a_.query_head(output_head(0)));
    for (int c = chain_.start; c < chain_.end; ++c, key.next(), turn.next()) {
      const int row = static_cast<int>(chain_.run.begin + chain_.first(c));
      const int64_t left = chain_.run.count - chain_.first(c);
      const uint32_t tile = key_tile(key);
      keys_.acquire(key);
      const auto load = [&](uint32_t barrier) {
        if (lane != 0) return;
        sm90::barrier_expect(barrier, Shape::key_bytes);
        if constexpr (Shape::keyed)
          load_keys(tile, c, barrier);
        else
          sm90::tma_load_panels<TileQ>(tile, w_.k, barrier, row, key_head, batch);
        sm90::tma_load_box(tile + TileQ::bytes, w_.v, barrier, static_cast<int>(chain_.column), row,
                           value_head, batch);
      };
      if (left >= kChainTokens) {
        load(keys_.full(key));
      } else {
        load(at_ + kShared.tail);
        sm90::barrier_wait(at_ + kShared.tail, 0);
        constexpr int kChunks = (TileQ::panels + 1) * kPanelChunks;
        for (int i = static_cast<int>(left) * kChunks + lane; i < kChainTokens * kChunks; i += 32) {
          const int chunk = i % kChunks;
          sm90::store_zeros(chunk < TileQ::panels * kPanelChunks
                                ? tile + TileQ::at(i / kChunks, chunk)
                                : tile + TileQ::bytes +
                                      TileV::at(i / kChunks, chunk % kPanelChunks));
        }
        sm90::fence_shared();
        __syncwarp();
        if (lane == 0) keys_.arrive(key);
      }
      if (!chain_.has(c, turn.first)) continue;
      for (uint32_t j = turn.first; j < chain_.outputs; j += chain_.copies) {
        queries_.acquire(query);
        if constexpr (Shape::keyed) {
          if (lane == 0) load_query(q_tile(query), c, j, queries_.full(query));
        } else if (lane == 0)
          sm90::tma_load_tile<TileQ>(
              q_tile(query), w_.q, queries_.full(query), row,
              j ? static_cast<int>(a_.query_head(output_head(j))) : query_head, batch);
        query.next();
      }
    }
  }

  // Warps 1 to 3.
  __device__ void make_decays(int warp) const {
    typename Shape::Keys::State key;
    const float shift = a_.bias ? *a_.bias.at(chain_.head, 0) : 0.f;
    const float rate = a_.rate_of(chain_.head);
    ChainGates next;
    const auto left = [&](int c) { return chain_.run.count - chain_.first(c); };
    const auto load = [&](int c) {
      if (c < chain_.end) next.load(a_, chain_.run, chain_.first(c), chain_.head, left(c));
    };
    const auto skip = [&](int chunks) {
      for (int i = 0; i < chunks; ++i) key.next();
    };
    load(chain_.start + warp - 1);
    skip(warp - 1);
    for (int c = chain_.start + warp - 1; c < chain_.end; c += kGateWarps, skip(kGateWarps)) {
      ChainGates gates = next;
      gates.map(a_, shift, rate, left(c));
      load(c + kGateWarps);
      keys_.acquire(key);
      gates.decays(decay(key), a_.scale);
      __syncwarp();
      if (threadIdx.x % 32 == 0) keys_.arrive(key);
    }
  }

  // Warpgroup 1.
  __device__ void move_state() const {
    ChainState<D> state;
    float sum[D / 8][4];
    uint32_t values[kChainTokens / 16][4];  // with gates
    begin_state(state);
    if (w_.cluster > 1) sm90::cluster_arrive(), sm90::cluster_wait();
    typename Shape::Keys::State key;
    typename Shape::States::State slot;
    GlaTurn90 turn(chain_);
    float factor = 1;
    const auto take = [&](const KeyState& at) {
      keys_.wait(at);
      if constexpr (Shape::gated)
        load_values<Dtype>(values, key_tile(at) + TileQ::bytes, decay(at).suffix);
    };
    if (chain_.end > chain_.start) take(key);
    for (int c = chain_.start; c < chain_.end; ++c, turn.next()) {
      const uint32_t k = key_tile(key), v = k + TileQ::bytes;
      const uint64_t b = sm90::descriptor(k, TileQ::panel_bytes);
      if constexpr (Shape::gated) {
        factor = decay(key).all;
        sm90::fence();
        sm90::product_columns<Dtype>(sum, values, b, false);
      } else {
        sm90::fence();
        sm90::product_transposed<Dtype, kChainTokens>(sum, sm90::descriptor(v), b);
      }
      sm90::commit();
      if constexpr (Shape::keyed)
        if (const float* all = key_factors(key); zeros(all)) state.clear(all);
      if (chain_.has(c, turn.first)) {
        states_.acquire(slot);
        state.template publish<Dtype>(h_tile(slot), times(slot));
        sm90::fence_shared();
        __syncwarp();
        sm90::barrier_arrive_warp(states_.full(slot));
        slot.next();
      }
      const KeyState at = key;
      key.next();
      sm90::wait<0>();
      sm90::pin(sum);
      if constexpr (Shape::keyed) {
        const float* all = key_factors(at);
        state.advance(all, zeros(all), sum);
        __syncwarp();
        keys_.release(at);
        if (c + 1 < chain_.end) take(key);
      } else {
        keys_.release(at);
        // The product reads registers until it ends: V of the next chunk may not take them before.
        if (c + 1 < chain_.end) take(key);
        state.advance(factor, sum);
      }
      if (chain_.writes && a_.snapshot) keep(state, c);
    }
    if (w_.parts.first) {
      state.store(w_.parts.state, part_row() + 1, chain_.head, chain_.column);
      return;
    }
    if (chain_.writes && chain_.last && a_.state_out && chain_.out_row >= 0)
      state.store(a_.state_out, chain_.out_row, chain_.head, chain_.column);
  }

  // Warpgroups 2 and 3, of index 0 and 1.
  __device__ void make_outputs(int group) const {
    typename Shape::Keys::State key;
    typename Shape::Queries::State query;
    typename Shape::States::State slot;
    GlaTurn90 turn(chain_);
    int whose = 0;  // of the next output
    const int row = 16 * (threadIdx.x % 128 / 32) + threadIdx.x % 32 / 4;
    const int64_t at =
        a_.o ? a_.o.offset(chain_.run.batch, chain_.run.begin + row, output_head(0), chain_.column)
             : 0;
    for (int c = chain_.start; c < chain_.end; ++c, key.next(), turn.next()) {
      keys_.wait(key);
      if (chain_.has(c, turn.first)) {
        states_.wait(slot);
        bool held = true;
        for (uint32_t j = turn.first; j < chain_.outputs; j += chain_.copies) {
          if (whose == group) {
            // The last one of the group gives the state back.
            held = Shape::groups * uint64_t{chain_.copies} + j < chain_.outputs;
            if constexpr (Shape::keyed)
              scored_output(c, j, key, query, slot, !held, at);
            else
              output(c, j, key, query, slot, !held, at);
          }
          query.next(), whose = whose + 1 == Shape::groups ? 0 : whose + 1;
        }
        if (held) states_.release(slot);
        slot.next();
      }
      keys_.release(key);
    }
  }

 private:
  using KeyState = typename Shape::Keys::State;
  using QueryState = typename Shape::Queries::State;
  using SlotState = typename Shape::States::State;
  static constexpr int kSums = kChainColumns / 8;
  static constexpr int kGateWarps = 3;

  // The row of a part in the states between parts.
  __device__ int64_t part_row() const { return chain_.run.sequence * w_.parts.count + chain_.part; }
  // The state before the part; in the first walk zeros.
  __device__ void begin_state(ChainState<D>& state) const {
    if (w_.parts.count > 1 && !w_.parts.first && (chain_.start < chain_.end || chain_.part == 0))
      return state.load(w_.parts.state, part_row(), chain_.head, chain_.column);
    const bool given = a_.state_in && chain_.part == 0;
    state.load(a_.state_in, given ? chain_.run.state : -1, chain_.head, chain_.column);
    // The second walk may write the state where it lies.
    if (w_.parts.first && chain_.part == 0)
      state.store(w_.parts.state, part_row(), chain_.head, chain_.column);
  }
  __device__ uint32_t key_tile(const KeyState& at) const {
    return at_ + kShared.keys + at.stage * Shape::key_stage;
  }
  __device__ uint32_t q_tile(const QueryState& at) const {
    return at_ + kShared.q + at.stage * Shape::query_stage;
  }
  __device__ uint32_t h_tile(const SlotState& at) const {
    return at_ + kShared.h + at.stage * TileH::bytes;
  }
  __device__ float* times(const SlotState& at) const {
    return reinterpret_cast<float*>(base_ + kShared.times) + at.stage * kChainColumns;
  }
  __device__ ChainDecay& decay(const KeyState& at) const {
    return *reinterpret_cast<ChainDecay*>(base_ + kShared.decays +
                                          at.stage * (GlaShared90<Shape>::kDecayPieces * 16));
  }
  // With key gates: what another kernel made of a chunk.
  __device__ const float* key_factors(const KeyState& at) const {
    return reinterpret_cast<const float*>(base_ + kShared.keys + at.stage * Shape::key_stage +
                                          TileQ::bytes + TileV::bytes);
  }
  __device__ static bool zeros(const float* factors) {
    const int2 two = *reinterpret_cast<const int2*>(factors + D);
    return two.x | two.y;
  }
  __device__ int64_t chunk_slot(int c) const {
    return w_.slot(chain_.run.sequence, chain_.run.begin, c);
  }
  __device__ void load_keys(uint32_t tile, int c, uint32_t barrier) const {
    const unsigned char* from =
        w_.keys + (chunk_slot(c) * a_.heads + chain_.head) * gla_key_stride(D);
    sm90::tma_load(tile, from, TileQ::bytes, barrier);
    sm90::tma_load(tile + TileQ::bytes + TileV::bytes, from + TileQ::bytes, gla_key_factors(D),
                   barrier);
  }
  __device__ void load_query(uint32_t tile, int c, uint32_t j, uint32_t barrier) const {
    sm90::barrier_expect(barrier, gla_query_bytes(D));
    sm90::tma_load(
        tile, w_.queries + (chunk_slot(c) * a_.heads_out + output_head(j)) * gla_query_stride(D),
        gla_query_bytes(D), barrier);
  }
  __device__ int64_t output_head(uint32_t j) const { return chain_.head * chain_.outputs + j; }

  __device__ void keep(ChainState<D>& state, int c) const {
    const int64_t tokens = chain_.first(c + 1);
    if (tokens > chain_.run.count || tokens % a_.run.every) return;
    const int64_t i = tokens / a_.run.every - 1;
    if (i >= a_.run.kept) return;
    const int64_t row = a_.run.kept_row(chain_.run, i);
    if (row >= 0) state.store(a_.snapshot, row, chain_.head, chain_.column);
  }

  __device__ __forceinline__ void output(int c, uint32_t j, const KeyState& key,
                                         const QueryState& query, const SlotState& slot, bool last,
                                         int64_t at) const {
    const uint32_t k = key_tile(key), v = k + TileQ::bytes;
    const int warp = threadIdx.x % 128 / 32, pair = threadIdx.x % 4 * 2;
    const int row = 16 * warp + threadIdx.x % 32 / 4;
    float s[kSums][4], o[kSums][4];
    uint32_t p[kChainTokens / 16][4];
    queries_.wait(query);
    const uint64_t q = sm90::descriptor(q_tile(query));
    sm90::fence();
    sm90::product_rows<Dtype, D, TileQ, TileQ>(s, q, sm90::descriptor(k));
    sm90::commit();
    sm90::product_rows<Dtype, D, TileQ, TileH>(o, q, sm90::descriptor(h_tile(slot)));
    sm90::commit();
    sm90::wait<1>();
    sm90::pin(s);
    float factor[2] = {a_.scale, a_.scale};
    if constexpr (Shape::gated) {
      const ChainDecay& d = decay(key);
      weigh_scores<Dtype>(p, s, d);
      factor[0] = d.row[row], factor[1] = d.row[row + 8];
    } else {
      weigh_scores<Dtype>(p, s, a_.scale);
    }
    sm90::wait<0>();
    sm90::pin(o);
    queries_.release(query);
#pragma unroll
    for (int n = 0; n < kSums; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (Dtype == FOVEA_F16) o[n][i] *= times(slot)[8 * n + pair + i % 2];
        o[n][i] = decayed(factor[i / 2], o[n][i]);
      }
    if constexpr (Dtype == FOVEA_F16) __syncwarp();  // all lanes have read `times`
    if (last) states_.release(slot);
    sm90::fence();
    sm90::product_columns<Dtype>(o, p, sm90::descriptor(v), true);
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(o);
    if (a_.skip) add_skip(o, base_ + (v - at_), row);
    store(o, c, j, row, at);
  }

  // The same of tiles that another kernel made.
  __device__ __forceinline__ void scored_output(int c, uint32_t j, const KeyState& key,
                                                const QueryState& query, const SlotState& slot,
                                                bool last, int64_t at) const {
    const uint32_t q = q_tile(query), v = key_tile(key) + TileQ::bytes;
    const int row = 16 * (threadIdx.x % 128 / 32) + threadIdx.x % 32 / 4;
    float o[kSums][4];
    queries_.wait(query);
    sm90::fence();
    sm90::product_rows<Dtype, D, TileQ, TileH>(o, sm90::descriptor(q),
                                               sm90::descriptor(h_tile(slot)));
    add_scored<Dtype>(o, sm90::descriptor(q + TileQ::bytes), sm90::descriptor(v));
    sm90::commit();
    const auto* dots =
        reinterpret_cast<const float*>(base_ + (q + TileQ::bytes + kGlaScores - at_));
    const float dot[2] = {dots[row], dots[row + 8]};
    sm90::wait<0>();
    sm90::pin(o);
    queries_.release(query);
    if (last) states_.release(slot);
    if (a_.bonus) add_bonus(o, base_ + (v - at_), row, dot);
    if (a_.skip) add_skip(o, base_ + (v - at_), row);
    store(o, c, j, row, at);
  }

  __device__ void add_skip(float (&o)[kSums][4], const unsigned char* v, int row) const {
    const int pair = threadIdx.x % 4 * 2;
    const int64_t step = sm90::unhoisted(a_.skip.stride[1]);
    const float* skip = sm90::unhoisted(a_.skip.at(chain_.head, chain_.column + pair));
#pragma unroll
    for (int n = 0; n < kSums; ++n, skip += 8 * step) {
      const float by[2] = {skip[0], skip[step]};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t two =
            *reinterpret_cast<const uint32_t*>(v + TileV::at(row + 8 * h, n) + 2 * pair);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const auto bits = static_cast<uint16_t>(two >> 16 * i);
          const float value = Dtype == FOVEA_F16 ? to_float(F16{bits}) : to_float(Bf16{bits});
          o[n][2 * h + i] += by[i] * value;
        }
      }
    }
    __syncwarp();  // all lanes have read V
  }
  // Row and row + 8 read their own token by `dot`.
  __device__ void add_bonus(float (&o)[kSums][4], const unsigned char* v, int row,
                            const float (&dot)[2]) const {
    const int pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < kSums; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 value = pair_of<Dtype>(
            *reinterpret_cast<const uint32_t*>(v + TileV::at(row + 8 * h, n) + 2 * pair));
        o[n][2 * h] += a_.bonus_of(dot[h] * value.x);
        o[n][2 * h + 1] += a_.bonus_of(dot[h] * value.y);
      }
    __syncwarp();  // all lanes have read V
  }
  // `first`: the lane's first row of o, in output head 0.
  __device__ void store(const float (&o)[kSums][4], int c, uint32_t j, int row,
                        int64_t first) const {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t t = sm90::unhoisted(chain_.first(c) + row + 8 * h);
      const bool wanted = t < chain_.run.count && t >= chain_.run.from;
      const int64_t to =
          first + (chain_.first(c) + 8 * h) * a_.o.view.stride[1] + j * a_.o.view.stride[2];
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

  const GlaWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  typename Shape::Keys keys_;
  typename Shape::Queries queries_;
  typename Shape::States states_;
  GlaChain90 chain_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    gla_forward_sm90_kernel(const __grid_constant__ GlaWork90 work) {
  extern __shared__ unsigned char shared[];
  using Block = GlaBlock90<Shape>;
  Block::init(shared);
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (work.cluster > 1) sm90::cluster_arrive();
    if (warp == 0) Block(work, shared).produce();
    if (Shape::gated && warp > 0) Block(work, shared).make_decays(warp);
  } else if (warp < 8) {
    sm90::setmaxnreg_inc<Shape::state_regs>();
    Block(work, shared).move_state();
  } else {
    sm90::setmaxnreg_inc<Shape::output_regs>();
    if (work.cluster > 1) sm90::cluster_arrive();
    Block(work, shared).make_outputs(warp / 4 - 2);
  }
}

// With key gates: the decays of a part, products over its chunks.  A block owns a part and a head,
// a thread a channel.
template <int D>
__global__ void __launch_bounds__(D)
    gla_part_decays_kernel(const __grid_constant__ GlaWork90 work) {
  const Recur& a = work.a;
  const int64_t head = blockIdx.x % a.heads, row = blockIdx.x / a.heads;
  const int64_t part = row % work.parts.count;
  const RunTokens run = a.run[row / work.parts.count];
  const int64_t chunks = (run.count + kChainTokens - 1) / kChainTokens;
  float all = 1;
#pragma unroll 8
  for (int64_t c = part * work.parts.chunks; c < min((part + 1) * work.parts.chunks, chunks); ++c)
    all *= reinterpret_cast<const float*>(
        work.keys + (work.slot(run.sequence, run.begin, c) * a.heads + head) * gla_key_stride(D) +
        kChainTokens * D * 2)[threadIdx.x];
  *work.parts.decay.at(row, head, static_cast<int64_t>(threadIdx.x)) = all;
}

template <GlaConfig90 C>
GlaInstance90 gla_sm90_instance() {
  using Shape = GlaShape90<C.dtype, C.d, C.gate, C.stages, C.queries>;
  constexpr int D = C.d;
  constexpr auto launcher = [](Context& ctx, const GlaWork90& work) {
    constexpr int kShared = GlaBlock90<Shape>::shared_bytes;
    static_assert(kShared <= 227 * 1024);
    constexpr char op[] = "x_gla_forward";
    const auto walk = [&](const GlaWork90& w) {
      launch_clusters<gla_forward_sm90_kernel<Shape>>(ctx, op, w.blocks, w.cluster, Shape::threads,
                                                      kShared, w);
    };
    if (work.parts.count > 1) {
      walk(work.first_walk());
      if constexpr (Shape::keyed)
        launch<gla_part_decays_kernel<D>>(
            ctx, op, work.a.run.count * work.parts.count * work.a.heads, D, 0, work);
      else
        decays_of_parts(ctx, op, work.a, work.parts);
      join_decayed_parts(ctx, op, work.a, work.parts);
    }
    walk(work);
  };
  return {C.dtype, C.d, C.gate, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                            \
  namespace fovea::cuda {                                              \
  template GlaInstance90 gla_sm90_instance<GlaConfig90 __VA_ARGS__>(); \
  }
