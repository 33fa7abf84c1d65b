// SPDX-License-Identifier: Apache-2.0
// Chains of x_gla_backward on Hopper, with a head gate or none, in chunks of 64 tokens.  Each is
// the chain of the forward (forward_sm90.cuh) with operands in other roles, here called Q, K, V and
// O:
//   O = scale e^P . (Q H) + (scale select tril(Q K') . e^D) V,   H = e^G H + (V e^S select)' K
//   way 0, 1   dQ of dO, V, K, with the state H'
//   way 2      dV of K, Q, dO, with the state W, the gradient of H, from the last chunk to the
//   first:
//              O = select (e^S . (Q W) + (scale tril(K Q') . e^D)' V) + skip V,
//              W = e^G W + (V scale e^P)' K
//              dK of V, dO, Q, with W' and without skip
// Way 1 and gated way 2 keep dots of their rows with q or k, and states: dgate is made of these.
// A chain is a sequence, a state head and 64 value columns.  `copies` blocks walk each chain: all
// of them move the state, and chunks' outputs go round among them.  So few chains fill the device,
// and no number of copies changes a bit.  Copy 0 writes states.
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
#include "cuda/loop/chain_reversed_sm90.cuh"
#include "cuda/loop/chain_sm90.cuh"
#include "ops/gla/backward.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, bool Gated_, int Stages_, int Queries_, int Way_>
struct GlaGradientShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Stages = Stages_, QStages = Queries_;
  static constexpr bool gated = Gated_;
  static constexpr bool reversed = Way_ == 2;        // in time
  static constexpr bool dots = Way_ != 0 && Gated_;  // dots and states may be kept
  using TileQ = Swizzled<kChainTokens, D>;
  using TileV = Swizzled<kChainTokens, kChainColumns>;
  using TileH = Swizzled<kChainColumns, D>;
  using Keys = sm90::Pipeline<Stages>;
  using Queries = sm90::Pipeline<QStages>;
  using States = sm90::Pipeline<2>;
  static constexpr int key_bytes = TileQ::bytes + TileV::bytes;
  static constexpr int groups = 2;  // of outputs
  static constexpr int threads = 128 * (2 + groups);
  static constexpr int producer_regs = 56, state_regs = 184, output_regs = 136;
};

template <class Shape>
struct GlaGradientShared90 : sm90::SharedLayout {
  int keys = tiles(Shape::key_bytes, Shape::Stages);
  int q = tiles(Shape::TileQ::bytes, Shape::QStages);
  int h = tiles(Shape::TileH::bytes, 2);
  int times = of<float>(2 * kChainColumns);
  int decays = Shape::gated ? of<float4>(Shape::Stages * kDecayPieces) : 0;
  int key_pipe = this->pipeline(Shape::Stages);
  int q_pipe = this->pipeline(Shape::QStages);
  int h_pipe = this->pipeline(2);
  int tail = barriers();

  static constexpr int kDecayPieces = (sizeof(ChainDecay) + 15) / 16;
};

// The block's part of its chain.  A chunk is told by its place in the walk.
template <bool Reversed>
struct GlaGradientChain90 {
  RunTokens run;
  int64_t head, column, out_row;
  uint32_t copy, copies, outputs;
  int chunks;      // of the sequence
  int begin, end;  // chunks that have outputs, from the first on; that the block walks
  bool writes, has_output;

  __device__ GlaGradientChain90(const GlaGradientWork90& w, uint32_t block) {
    const Recur& a = w.a;
    const auto tiles = static_cast<uint32_t>(w.tiles), heads = static_cast<uint32_t>(a.heads);
    copies = static_cast<uint32_t>(w.copies), copy = block % copies, block /= copies;
    column = int64_t{block % tiles} * kChainColumns, block /= tiles;
    head = block % heads;
    run = a.run[block / heads];
    outputs = static_cast<uint32_t>(a.outputs());
    out_row = a.run.out_row(run.sequence);
    writes = copy == 0 && (a.state_out || w.kept);
    has_output = a.o || w.dots;
    begin = Reversed ? 0 : static_cast<int>(run.from / kChainTokens);
    chunks = static_cast<int>((run.count + kChainTokens - 1) / kChainTokens), end = chunks;
    if (!writes)
      while (end > 0 && !owns(end - 1)) --end;
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
  __device__ int chunk(int place) const { return Reversed ? chunks - 1 - place : place; }
  __device__ int64_t first(int place) const { return int64_t{chunk(place)} * kChainTokens; }
  // Rows of a chunk before `from`, which no output has.
  __device__ int64_t before(int chunk) const {
    return Reversed ? clamp_i64(run.from - first(chunk), 0, kChainTokens) : 0;
  }
};

// The first output of a chunk whose rows the block writes; each `copies`-th one follows.  Past the
// outputs: none.
struct GlaGradientTurn90 {
  uint32_t first, step, copies;

  template <class Chain>
  __device__ explicit GlaGradientTurn90(const Chain& chain)
      : first(chain.copy), step(chain.outputs % chain.copies), copies(chain.copies) {}
  __device__ void next() { first = first < step ? first + copies - step : first - step; }
};

template <class Shape>
class GlaGradientBlock90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D;
  using TileQ = typename Shape::TileQ;
  using TileV = typename Shape::TileV;
  using TileH = typename Shape::TileH;
  static constexpr GlaGradientShared90<Shape> kShared = GlaGradientShared90<Shape>();

 public:
  static constexpr int shared_bytes = kShared.bytes + 1024;  // the base is aligned

  __device__ GlaGradientBlock90(const GlaGradientWork90& work, unsigned char* raw)
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
    GlaGradientTurn90 turn(chain_);
    uint32_t tails = 0;
    const int query_head = static_cast<int>(a_.query_head(output_head(0)));
    for (int c = 0; c < chain_.end; ++c, key.next(), turn.next()) {
      const int row = static_cast<int>(chain_.run.begin + chain_.first(c));
      const int64_t left = chain_.run.count - chain_.first(c), before = chain_.before(c);
      const uint32_t tile = key_tile(key);
      keys_.acquire(key);
      const auto load = [&](uint32_t barrier) {
        if (lane != 0) return;
        sm90::barrier_expect(barrier, Shape::key_bytes);
        sm90::tma_load_panels<TileQ>(tile, w_.k, barrier, row, key_head, batch);
        sm90::tma_load_box(tile + TileQ::bytes, w_.v, barrier, static_cast<int>(chain_.column), row,
                           value_head, batch);
      };
      if (left >= kChainTokens && before == 0) {
        load(keys_.full(key));
      } else {
        load(at_ + kShared.tail);
        sm90::barrier_wait(at_ + kShared.tail, tails++ & 1);
        zero_rows(tile, 0, static_cast<int>(before));
        zero_rows(tile, static_cast<int>(left), kChainTokens);
        sm90::fence_shared();
        __syncwarp();
        if (lane == 0) keys_.arrive(key);
      }
      if (!chain_.has(c, turn.first)) continue;
      for (uint32_t j = turn.first; j < chain_.outputs; j += chain_.copies) {
        queries_.acquire(query);
        if (Shape::dots && lane == 0 && w_.dots)
          prefetch_box(w_.partner_map, static_cast<int>(chain_.column), row,
                       static_cast<int>(chain_.head) / w_.partner_share, batch);
        if (lane == 0)
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
    load(warp - 1);
    skip(warp - 1);
    for (int c = warp - 1; c < chain_.end; c += kGateWarps, skip(kGateWarps)) {
      ChainGates gates = next;
      gates.map(a_, shift, rate, left(c));
      if constexpr (Shape::reversed)
        gates.select[0] = mantissa_of(gates.select[0]),
        gates.select[1] = mantissa_of(gates.select[1]);
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
    uint32_t values[kChainTokens / 16][4], next[kChainTokens / 16][4];  // with gates
    state.load(a_.state_in, a_.state_in ? chain_.run.state : -1, chain_.head, chain_.column);
    if (w_.cluster > 1) sm90::cluster_arrive(), sm90::cluster_wait();
    typename Shape::Keys::State key;
    typename Shape::States::State slot;
    GlaGradientTurn90 turn(chain_);
    float factor = 1;
    const auto take = [&](const KeyState& at) {
      keys_.wait(at);
      if constexpr (Shape::gated)
        load_values<Dtype>(next, key_tile(at) + TileQ::bytes,
                           Shape::reversed ? decay(at).row : decay(at).suffix);
    };
    const auto turn_values = [&] {
      if constexpr (Shape::gated) {
#pragma unroll
        for (int k = 0; k < kChainTokens / 16; ++k)
#pragma unroll
          for (int i = 0; i < 4; ++i) values[k][i] = next[k][i];
      }
    };
    const int kept = kept_base();
    if (chain_.end > 0) take(key), turn_values();
    for (int c = 0; c < chain_.end; ++c, turn.next()) {
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
      if (chain_.has(c, turn.first)) {
        states_.acquire(slot);
        state.template publish<Dtype>(h_tile(slot), times(slot));
        sm90::fence_shared();
        __syncwarp();
        sm90::barrier_arrive_warp(states_.full(slot));
        slot.next();
      }
      // After the fence above, which would wait for these stores.
      if constexpr (Shape::dots) keep_before(state, kept, c);
      const KeyState at = key;
      key.next();
      if (c + 1 < chain_.end) take(key);
      sm90::wait<0>();
      sm90::pin(sum);
      keys_.release(at);
      // The product reads registers until it ends: V of the next chunk may not take them before.
      if constexpr (Shape::gated) hold(values);
      if (c + 1 < chain_.end) turn_values();
      if constexpr (Shape::reversed && !Shape::gated)
        add_scaled(state, sum, a_.scale);
      else
        state.advance(factor, sum);
    }
    if constexpr (Shape::dots) keep_last(state, kept);
    if (chain_.writes && a_.state_out && chain_.out_row >= 0)
      state.store(a_.state_out, chain_.out_row, chain_.head, chain_.column);
  }

  // Warpgroups 2 and 3, of index 0 and 1.
  __device__ void make_outputs(int group) const {
    typename Shape::Keys::State key;
    typename Shape::Queries::State query;
    typename Shape::States::State slot;
    GlaGradientTurn90 turn(chain_);
    int whose = 0;  // of the next output
    const int row = 16 * (threadIdx.x % 128 / 32) + threadIdx.x % 32 / 4;
    const int64_t at =
        a_.o ? a_.o.offset(chain_.run.batch, chain_.run.begin + row, output_head(0), chain_.column)
             : 0;
    for (int c = 0; c < chain_.end; ++c, key.next(), turn.next()) {
      keys_.wait(key);
      if (chain_.has(c, turn.first)) {
        states_.wait(slot);
        bool held = true;
        for (uint32_t j = turn.first; j < chain_.outputs; j += chain_.copies) {
          if (whose == group) {
            // The last one of the group gives the state back.
            held = Shape::groups * uint64_t{chain_.copies} + j < chain_.outputs;
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

  __device__ uint32_t key_tile(const KeyState& at) const {
    return at_ + kShared.keys + at.stage * Shape::key_bytes;
  }
  __device__ uint32_t q_tile(const QueryState& at) const {
    return at_ + kShared.q + at.stage * TileQ::bytes;
  }
  __device__ uint32_t h_tile(const SlotState& at) const {
    return at_ + kShared.h + at.stage * TileH::bytes;
  }
  __device__ float* times(const SlotState& at) const {
    return reinterpret_cast<float*>(base_ + kShared.times) + at.stage * kChainColumns;
  }
  __device__ ChainDecay& decay(const KeyState& at) const {
    return *reinterpret_cast<ChainDecay*>(
        base_ + kShared.decays + at.stage * (GlaGradientShared90<Shape>::kDecayPieces * 16));
  }
  __device__ int64_t output_head(uint32_t j) const {
    return chain_.head * chain_.outputs + j;
  }

  // Registers of an operand stay its own until here.
  static __device__ __forceinline__ void hold(uint32_t (&x)[kChainTokens / 16][4]) {
#pragma unroll
    for (int k = 0; k < kChainTokens / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(x[k][i])::"memory");
  }
  // Rows [first, end) of a stage of K and V.
  __device__ void zero_rows(uint32_t tile, int first, int end) const {
    constexpr int kChunks = (TileQ::panels + 1) * kPanelChunks;
    for (int i = first * kChunks + static_cast<int>(threadIdx.x % 32); i < end * kChunks; i += 32) {
      const int chunk = i % kChunks;
      sm90::store_zeros(chunk < TileQ::panels * kPanelChunks
                            ? tile + TileQ::at(i / kChunks, chunk)
                            : tile + TileQ::bytes + TileV::at(i / kChunks, chunk % kPanelChunks));
    }
  }
  // To L2, as tma_load_box loads it.
  static __device__ __forceinline__ void prefetch_box(const CUtensorMap& map, int column, int row,
                                                      int head, int batch) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map),
                 "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
  }
  // What the gates' gradients take of the states: those around segments.  Copies take turns, as far
  // as all of them walk; copy 0 walks everything.  `base` is where the first lies, -1: nowhere.
  __device__ int kept_base() const {
    if (!Shape::dots || !w_.kept) return -1;
    return static_cast<int>((GlaGradientWork90::place(a_, chain_.run, 0) * a_.heads + chain_.head) *
                                w_.tiles +
                            chain_.column / kChainColumns);
  }
  // The state before the c-th chunk of the walk.
  __device__ void keep_before(const ChainState<D>& state, int base, int c) const {
    constexpr int kChunks = GlaGradientWork90::segment / kChainTokens;
    const int at = chain_.chunk(c) + (Shape::reversed ? 1 : 0);  // chunks before the state
    if (base < 0 || (at % kChunks && (!Shape::reversed || at != chain_.chunks))) return;
    const int i = (at + kChunks - 1) / kChunks, copies = static_cast<int>(chain_.copies);
    const int whose = chain_.begin == 0 && c + copies < chain_.chunks ? i % copies : 0;
    if (whose == static_cast<int>(chain_.copy)) keep_at(state, base, i);
  }
  __device__ void keep_last(const ChainState<D>& state, int base) const {
    constexpr int kChunks = GlaGradientWork90::segment / kChainTokens;
    if (base >= 0 && chain_.copy == 0)
      keep_at(state, base, Shape::reversed ? 0 : (chain_.chunks + kChunks - 1) / kChunks);
  }
  __device__ void keep_at(const ChainState<D>& state, int base, int i) const {
    const int64_t place = base + int64_t{i} * static_cast<int>(a_.heads) * w_.tiles;
    float4* to = w_.kept + place * (D / 8 * 128) + threadIdx.x % 128;
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
      __stcs(to + 128 * j, make_float4(state.x[j][0], state.x[j][1], state.x[j][2], state.x[j][3]));
  }

  __device__ __forceinline__ void output(int c, uint32_t j, const KeyState& key,
                                         const QueryState& query, const SlotState& slot, bool last,
                                         int64_t at) const {
    const uint32_t k = key_tile(key), v = k + TileQ::bytes;
    const int warp = threadIdx.x % 128 / 32, pair = threadIdx.x % 4 * 2;
    const int row = sm90::unhoisted(16 * warp + threadIdx.x % 32 / 4);
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
      const float* factors = Shape::reversed ? d.suffix : d.row;
      if constexpr (Shape::reversed)
        weigh_later<Dtype>(p, s, d);
      else
        weigh_scores<Dtype>(p, s, d);
      factor[0] = factors[row], factor[1] = factors[row + 8];
    } else if constexpr (Shape::reversed) {
      weigh_later<Dtype>(p, s, a_.scale);
      factor[0] = factor[1] = 1;
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
    if constexpr (Shape::dots)
      if (w_.dots) add_dots(o, c, row);
    if constexpr (Shape::reversed)
      if (w_.select) times_select(o, c, row);
    if constexpr (Shape::reversed)
      if (w_.skip) add_skip(o, v, row);
    if (Shape::dots && !a_.o) return;
    store(o, c, j, row, at);
  }

  // Of the lane's rows with those of `partner`, over the chain's columns.
  __device__ void add_dots(const float (&o)[kSums][4], int c, int row) const {
    const int lane = threadIdx.x % 4;
    // Addresses that left the loop would hold registers across it.
    const int head = sm90::unhoisted(static_cast<int>(chain_.head));
    const int column = sm90::unhoisted(static_cast<int>(chain_.column));
    const int batch = sm90::unhoisted(static_cast<int>(chain_.run.batch));
#pragma unroll(Dtype == FOVEA_F16 || !Shape::reversed ? 1 : 2)  // two at once would spill
    for (int h = 0; h < 2; ++h) {
      const int t = static_cast<int>(chain_.first(c)) + row + 8 * h;
      const bool wanted = t < static_cast<int>(chain_.run.count) &&
                          (Shape::reversed || t >= static_cast<int>(chain_.run.from));
      const int64_t s = sm90::unhoisted(chain_.run.begin) + t;
      const auto* from = w_.partner.view.template as<uint16_t>() +
                         w_.partner.offset(batch, s, head / w_.partner_share, column + 8 * lane);
      float sum = 0;
#pragma unroll
      for (int m = 0; m < kSums; m += 4) {
        const uint4 got = wanted ? *reinterpret_cast<const uint4*>(from + 8 * m) : uint4{};
        uint32_t words[4] = {got.x, got.y, got.z, got.w};
        quad_transpose(words);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 x = unpack<Dtype>(words[i]);
          sum = fmaf(h ? o[m + i][2] : o[m + i][0], x.x, sum);
          sum = fmaf(h ? o[m + i][3] : o[m + i][1], x.y, sum);
        }
      }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (wanted && lane == 0 && Shape::reversed && w_.select)
        sum /= mantissa_of(w_.select(batch, s, head));
      if (wanted && lane == 0)
        w_.dots[((column / kChainColumns * a_.heads + head) * a_.b + batch) * a_.s + s] = sum;
    }
  }
  // Rows have m of select = m 2^i where decays have it, else nothing of select.
  __device__ void times_select(float (&o)[kSums][4], int c, int row) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = static_cast<int>(chain_.first(c)) + row + 8 * h;
      float by = 0;
      if (t < chain_.run.count) {
        by = w_.select(chain_.run.batch, chain_.run.begin + t, chain_.head);
        if (Shape::gated && a_.select) by /= mantissa_of(by);
      }
#pragma unroll
      for (int n = 0; n < kSums; ++n)
        o[n][2 * h] = decayed(by, o[n][2 * h]), o[n][2 * h + 1] = decayed(by, o[n][2 * h + 1]);
    }
  }

  // Rows of V past the sequence's end are zeros here, as those without an output are.
  __device__ void add_skip(float (&o)[kSums][4], uint32_t v, int row) const {
    const int head = sm90::unhoisted(static_cast<int>(chain_.head));
    const int column = sm90::unhoisted(static_cast<int>(chain_.column)) + threadIdx.x % 4 * 2;
    const unsigned char* tile = base_ + (v - at_) + threadIdx.x % 4 * 4;
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
      const float by[2] = {*w_.skip.at(head, column + 8 * n),
                           *w_.skip.at(head, column + 8 * n + 1)};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 x =
            unpack<Dtype>(*reinterpret_cast<const uint32_t*>(tile + TileV::at(row + 8 * h, n)));
        o[n][2 * h] = fmaf(by[0], x.x, o[n][2 * h]);
        o[n][2 * h + 1] = fmaf(by[1], x.y, o[n][2 * h + 1]);
      }
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
      const bool wanted = t < chain_.run.count && (Shape::reversed || t >= chain_.run.from);
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

  const GlaGradientWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  typename Shape::Keys keys_;
  typename Shape::Queries queries_;
  typename Shape::States states_;
  GlaGradientChain90<Shape::reversed> chain_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    gla_gradient_sm90_kernel(const __grid_constant__ GlaGradientWork90 work) {
  extern __shared__ unsigned char shared[];
  using Block = GlaGradientBlock90<Shape>;
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

template <GlaGradientConfig90 C>
GlaGradientInstance90 gla_gradient_sm90_instance() {
  using Shape = GlaGradientShape90<C.dtype, C.d, C.gated != 0, C.stages, C.queries, C.way>;
  constexpr auto launcher = [](Context& ctx, const GlaGradientWork90& work) {
    constexpr int kShared = GlaGradientBlock90<Shape>::shared_bytes;
    static_assert(kShared <= 227 * 1024);
    launch_clusters<gla_gradient_sm90_kernel<Shape>>(ctx, "x_gla_backward", work.blocks,
                                                     work.cluster, Shape::threads, kShared, work);
  };
  return {C.dtype, C.d, C.gated != 0, C.way, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                                     \
  namespace fovea::cuda {                                                                       \
  template GlaGradientInstance90 gla_gradient_sm90_instance<GlaGradientConfig90 __VA_ARGS__>(); \
  }
