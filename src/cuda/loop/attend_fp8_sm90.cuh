// SPDX-License-Identifier: Apache-2.0
// The sweep over keys on Hopper's 8-bit tensor cores: o = softmax(factor q k') v.  q and k are e4m3
// or i8, whose products are int32; v is e4m3.
//   p is rounded at 256 p, or 448 p with i8, and meets v as a register operand, so v is stored
//   transposed and permuted (v_perm16).  These products keep 13 bits of their sums: o is summed
//   there over `Run` key tiles, then joins the f32 sums of its rows in shared memory.  That, and
//   scales for blocks of keys, is why its consumer is not attend_sm90.cuh's. Blocks, work items and
//   copies are those of attend_sm90.cuh (feed_sm90.cuh): a work item is 64 x Groups rows of one
//   sequence and head, a warpgroup 64 of them, a warp 16.  K and V take turns in one ring.  A work
//   item without keys has one tile of each, of which nobody reads. Shared memory and barriers:
//   Shared90, and the sums behind it.  Named barriers:
//
//   | named barrier | who arrives                  | who waits   | what it guards                 |
//   | 1 + n         | warpgroup n                  | the same    | the values that were zeroed    |
//   | kTurn + n     | the warpgroup before n       | warpgroup n | its turn to take exponentials  |
//
// v of i8, whose products are summed in int32, and of 16 bits, which are rows, have consumers of
// their own: ops/quant/forward_integer_sm90.cuh, forward_half_sm90.cuh.
// Source: FlashAttention-3 (2407.08608), SageAttention2 (2411.10958).
#pragma once
#include <concepts>

#include "cuda/block/softmax.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/feed_sm90.cuh"
#include "cuda/loop/score_terms_sm90.cuh"

namespace fovea::cuda {

template <int D_, int E_, int Groups_, int BN_, int Stages_, int Run_>
struct ByteShape90 {
  static constexpr int D = D_, E = E_, Groups = Groups_, BN = BN_, Stages = Stages_, Run = Run_;
  static constexpr int BM = 64 * Groups;
  static constexpr int threads = 128 * (Groups + 1);
  // Key tiles left to copy when the next work item is requested (Producer90).
  static constexpr int prefetch = 2;
  // Registers a thread, of those the block starts with: the producer warpgroup gives what the
  // others take.
  static constexpr int producer_regs = Groups == 3 ? 56 : 40,
                       consumer_regs = Groups == 3 ? 152 : 232;
  using TileQ = sm90::Bytes<BM, D, D % 128 ? 64 : 128>;
  using TileK = sm90::Bytes<BN, D, D % 128 ? 64 : 128>;
  using TileV = sm90::Bytes<E, BN, BN % 128 ? 64 : 128>;
  static constexpr int Slots = 1, q_bytes = TileQ::bytes;
  static constexpr int stage_bytes = TileK::bytes > TileV::bytes ? TileK::bytes : TileV::bytes;
  static constexpr int shared_bytes = 227 * 1024;  // at most
};

// What a work item's codes stand for, kept in its slot by the KeySource:
//   dtype               of q and k
//   row_factor(group, row)  a score's factor in units of log2: the part of fragment row `row`
//   key_scales()        its at(key): the part of keys from `key` on; if `blocks` of 64, else of all
//   value_factor(column) that of a column of v, and of the next
//   raise(call, tile, m)    what scores of packed row m lack, in units of log2
//   column              of v transposed, where row 0 of k stands
//   beyond              v transposed goes on past the last key
// Of scores with terms of rows and keys (score_terms_sm90.cuh):
//   terms(group)        those of a warpgroup's rows
//   unit                of a score, in units of log2; row_factor() goes without it
// Of lists, steps of 64-key blocks each somewhere (PartBoxes):
//   key_at(step, column)  the key in a column; past every key where there is none
// Of pages (PagePartBoxes) key_scales() has at(PagePart).
template <class S, class Key>
concept CodeSteps = requires(const S steps, int at, const Key& key) {
  { S::blocks } -> std::convertible_to<bool>;
  { S::dtype } -> std::convertible_to<int>;
  { steps.row_factor(at, at) } -> std::same_as<float>;
  { steps.key_scales().at(key) } -> std::same_as<float>;
  { steps.value_factor(at) } -> std::same_as<float2>;
  { steps.column } -> std::convertible_to<int>;
  { steps.beyond } -> std::convertible_to<bool>;
};

// Products of a tile and the weights they become.  int32 sums and floats share registers.
template <int Dtype, int N>
struct ScoreTile {
  float x[1][N][4];
  __device__ auto& products() { return x; }
  static constexpr float hidden = kNegativeInfinity;
};
// An int32 below 2^22 plus kMagic are the bits of the float 1.5 * 2^23 + x, and `hidden` plus
// kMagic those of -inf, which a conversion does not make.
template <int N>
struct ScoreTile<FOVEA_I8, N> {
  float x[1][N][4];
  int32_t sums[1][N][4];
  __device__ auto& products() { return sums; }
  static constexpr int32_t kMagic = 0x4b400000,
                           hidden = static_cast<int32_t>(0xff800000u - 0x4b400000u);
  static constexpr float kOffset = 12582912;
  __device__ static float to_float(int32_t sum) { return __int_as_float(sum + kMagic) - kOffset; }
  // Of sums that were converted.
  __device__ static void hide(float (&x)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (x[j][c] == static_cast<float>(hidden)) x[j][c] = kNegativeInfinity;
  }
};

// Where every 64 keys of a step begin: neighbours, or blocks of a list.
template <int BN, class Steps>
struct StepKeys {
  static constexpr bool listed = requires(const Steps& steps) { steps.key_at(0, 0); };
  const Steps& steps;
  const int step;

  __device__ int operator[](int part) const {
    if constexpr (listed)
      return steps.key_at(step, part * kTileKeys);
    else
      return step * BN + part * kTileKeys;
  }
};

// Where every 64 keys of a step lie in pages, as the producer has written it.
template <int Parts>
struct PageParts {
  const int* words;
  int key;  // the first

  __device__ PagePart operator[](int part) const {
    return {words[part], words[Parts + part], key + part * kTileKeys};
  }
  // Bit n: part n has no page.
  __device__ uint32_t absent() const {
    uint32_t bits = 0;
#pragma unroll
    for (int part = 0; part < Parts; ++part)
      bits |= static_cast<uint32_t>(words[part]) >> 31 << part;
    return bits;
  }
};

// Hides what is of absent parts of `Keys` keys.
template <int Keys, int N, class T>
__device__ inline void hide_parts(T (&x)[1][N][4], uint32_t absent, T hidden) {
  constexpr int each = Keys / 8;
#pragma unroll
  for (int part = 0; part < N / each; ++part)
#pragma unroll
    for (int j = 0; j < each; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (absent >> part & 1) x[0][part * each + j][c] = hidden;
}

// The factors of a tile's scores, one for all keys or one for every 64.  Those of keys are loaded
// under products, a tile ahead but for lists, and found once the tile's own were waited for.
template <int Parts>
struct ScoreFactors {
  float of[Parts], ahead[Parts], row;

  // The scales of keys become those ahead.
  __device__ void load(const auto& scales, const auto& keys) {
#pragma unroll
    for (int part = 0; part < Parts; ++part) ahead[part] = scales.at(keys[part]);
  }
  // The scales ahead are the tile's.
  __device__ void take() {
#pragma unroll
    for (int part = 0; part < Parts; ++part) of[part] = ahead[part];
  }
  // A factor of 0 would turn masked scores into NaN.
  __device__ void find() {
#pragma unroll
    for (int part = 0; part < Parts; ++part) {
      asm volatile("" : "+f"(of[part]));
      of[part] *= row;
      if (of[part] == 0.f) of[part] = 0x1p-126f;
    }
  }
};

// The online softmax of block/softmax.cuh with weights of Lift p, and a factor for each part of a
// tile's keys; m in units of log2.
template <int Dtype, int Lift = Dtype == FOVEA_I8 ? 448 : 256>
struct LiftedSoftmax {
  static_assert(Lift == 448 || Lift == 256 || Lift == 1);
  static constexpr float kLift = Lift == 448 ? 8.807354922f : Lift == 256 ? 8 : 0;
  float m[2] = {kNegativeInfinity, kNegativeInfinity}, l[2] = {};

  template <int N, int Parts>
  __device__ void weigh(ScoreTile<FOVEA_E4M3, N>& tile, float (&alpha)[2],
                        const float (&factor)[Parts], bool, auto) {
    float(&x)[N][4] = tile.x[0];
    constexpr int each = N / Parts;
    // Both rows together at every stage: their chains hide one another's latency.
    float top[2] = {m[0], m[1]}, base[2], sum[2] = {};
#pragma unroll
    for (int part = 0; part < Parts; ++part) {
      // Four chains a row: ptxas keeps a fold's order, and one would wait for itself at every step.
      float most[4][2];
#pragma unroll
      for (int j = 0; j < each; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float(&pair)[4] = x[part * each + j];
          const float larger = fmaxf(pair[2 * half], pair[2 * half + 1]);
          most[j % 4][half] = j < 4 ? larger : fmaxf(most[j % 4][half], larger);
        }
#pragma unroll
      for (int half = 0; half < 2; ++half)
        top[half] = fmaxf(top[half], fmaxf(fmaxf(most[0][half], most[1][half]),
                                           fmaxf(most[2][half], most[3][half])) *
                                         factor[part]);
    }
    move(top, alpha, base);
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float(&pair)[4] = x[j];
        const float first = exp2_fast(fmaf(pair[2 * half], factor[j / each], -base[half]));
        const float second = exp2_fast(fmaf(pair[2 * half + 1], factor[j / each], -base[half]));
        pair[2 * half] = first, pair[2 * half + 1] = second;
        sum[half] += first + second;
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) l[half] = fmaf(l[half], alpha[half], sum[half]);
  }

  // The same of int32 sums, their maxima taken three at a time.
  // turn() follows the maxima.  Where it gives a 0 that ptxas does not know, exponents follow it.
  // partly: some are hidden.
  template <int N, int Parts>
  __device__ void weigh(ScoreTile<FOVEA_I8, N>& tile, float (&alpha)[2],
                        const float (&factor)[Parts], bool partly, auto turn) {
    using Tile = ScoreTile<FOVEA_I8, N>;
    const int32_t(&sums)[N][4] = tile.sums[0];
    float(&x)[N][4] = tile.x[0];
    constexpr int each = N / Parts;
    float top[2] = {m[0], m[1]}, base[2];
#pragma unroll
    for (int part = 0; part < Parts; ++part) {
      int32_t most[4][2];
#pragma unroll
      for (int j = 0; j < each; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int32_t(&pair)[4] = sums[part * each + j];
          most[j % 4][half] =
              j < 4 ? max(pair[2 * half], pair[2 * half + 1])
                    : __vimax3_s32(most[j % 4][half], pair[2 * half], pair[2 * half + 1]);
        }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t largest =
            max(max(most[0][half], most[1][half]), max(most[2][half], most[3][half]));
        top[half] = fmaxf(top[half], Tile::to_float(largest) * factor[part]);
      }
    }
    move(top, alpha, base);
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[j][c] = static_cast<float>(sums[j][c]);
    if (partly) Tile::hide(x);
    constexpr bool begins = std::same_as<decltype(turn()), float>;
    if constexpr (begins) {
      const float zero = turn();
      base[0] += zero, base[1] += zero;
    }
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[j][c] = fmaf(x[j][c], factor[j / each], -base[c / 2]);
    if constexpr (begins)
      weights(x, alpha);
    else
      weights(x, alpha, turn);
  }

  // x = factor sum + term.
  template <int N, int Parts>
  __device__ static void add(ScoreTile<FOVEA_I8, N>& tile, const float (&factor)[Parts],
                             const ScoreTerms<8 * N>& terms) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float4 four = terms[j / 2];
      const float term[2] = {j % 2 ? four.z : four.x, j % 2 ? four.w : four.y};
#pragma unroll
      for (int c = 0; c < 4; ++c)
        tile.x[0][j][c] =
            fmaf(static_cast<float>(tile.sums[0][j][c]), factor[j / (N / Parts)], term[c % 2]);
    }
  }
  // The same of scores `unit` x, which add() made, hidden ones -inf.
  template <int N>
  __device__ void weigh_terms(ScoreTile<FOVEA_I8, N>& tile, float (&alpha)[2], float unit,
                              auto turn) {
    float(&x)[N][4] = tile.x[0];
    float most[4][2], top[2], base[2];
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float larger = fmaxf(x[j][2 * half], x[j][2 * half + 1]);
        most[j % 4][half] = j < 4 ? larger : fmaxf(most[j % 4][half], larger);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      top[half] = fmaxf(
          m[half],
          fmaxf(fmaxf(most[0][half], most[1][half]), fmaxf(most[2][half], most[3][half])) * unit);
    move(top, alpha, base);
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[j][c] = fmaf(x[j][c], unit, -base[c / 2]);
    weights(x, alpha, turn);
  }

 private:
  // x becomes the weights 2^x, of which l takes the sum.
  template <int N>
  __device__ void weights(float (&x)[N][4], const float (&alpha)[2], auto turn) {
    sm90::pin(x);
    turn();
    weights(x, alpha);
  }
  template <int N>
  __device__ void weights(float (&x)[N][4], const float (&alpha)[2]) {
    float sum[2] = {};
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float pair[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) pair[c] = exp2_fast(x[j][2 * half + c]);
        x[j][2 * half] = pair[0], x[j][2 * half + 1] = pair[1];
        sum[half] += pair[0] + pair[1];
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) l[half] = fmaf(l[half], alpha[half], sum[half]);
  }
  // m becomes the quad's `top`.
  __device__ void move(float (&top)[2], float (&alpha)[2], float (&base)[2]) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        top[half] = fmaxf(top[half], __shfl_xor_sync(~0u, top[half], step));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      base[half] = top[half] == kNegativeInfinity ? 0.f : top[half] - kLift;
      alpha[half] = exp2_fast(m[half] - kLift - base[half]);
      m[half] = top[half];
    }
  }
};

// Zeroes the values of keys past `keys` of columns [from, from + BN) of a tile of V', in v_perm16
// order; done by a warpgroup.
template <class TileV, int E, int BN>
__device__ inline void clear_tail(unsigned char* tile, int keys, int from = 0) {
  for (int i = threadIdx.x % 128; i < E * (BN / 16); i += 128) {
    const int row = i % E, chunk = i / E, rest = keys - chunk * 16;
    if (rest >= 16) continue;
    uint4& codes = *reinterpret_cast<uint4*>(tile + TileV::at(row, from + chunk * 16));
    uint32_t* word = &codes.x;
    // Bytes 0 .. 3 of word n are tokens 2 n, 2 n + 1, 2 n + 8, 2 n + 9 of the run.
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t keep = 0;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (2 * n + c % 2 + c / 2 * 8 < rest) keep |= 0xffu << 8 * c;
      word[n] = rest <= 0 ? 0 : word[n] & keep;
    }
  }
}

// The sums of rows lie behind what the feed needs, terms of a tile's scores behind these.
template <class Shape, class Source>
struct ByteLayout90 : SharedLayout90<Shape, Source, WindowMask> {
  static constexpr bool has_terms = requires(const typename Source::Steps& steps) {
    steps.terms(0);
  };
  int sums = this->template of<float4>(Shape::BM * Shape::E / 4),
      terms = this->template of<float4>(has_terms ? Shape::BM / 16 * Shape::BN / 4 : 0);
};

template <class Shape, class Source>
constexpr int byte_shared_bytes = ByteLayout90<Shape, Source>().bytes;

// What consumer warpgroups of codes have in common, each of 64 rows of a work item.
template <class Shape, KeySource Source, class Epilogue>
struct CodeConsumer90 {
  // The keys of a step lie in pages, every 64 of them in one, or (runs) every 16.
  static constexpr bool kPaged = requires { Source::template Boxes<Shape>::of_pages; };
  static constexpr bool kRuns = requires { Source::template Boxes<Shape>::of_runs; };
  static_assert(CodeSteps<typename Source::Steps, std::conditional_t<kPaged, PagePart, int>>);
  static constexpr int D = Shape::D, E = Shape::E, BN = Shape::BN;
  static constexpr int Dtype = Source::Steps::dtype;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using Shared = Shared90<Shape, Source, WindowMask>;
  using Slot = typename Shared::Slot;
  using KeyState = typename Shared::KeyState;
  const typename Source::Call& call;
  const Attend& a;
  const Epilogue& epilogue;
  const Shared& shared;
  const int group;
  const uint64_t q_rows =
      TileQ::descriptor(shared.at + Shared::layout.q + group * 64 * TileQ::Panel);
  typename Shared::TileState slot = {};
  typename Shared::QState q_at = {};
  KeyState at = {};

 protected:
  // Ping-pong: warpgroups take the exponentials of a step by turns, so that one's run beside the
  // products and maxima of the other.  All of them take as many steps of a work item.
  static constexpr bool kPingPong = Shape::Groups == 2 && Dtype == FOVEA_I8;
  static constexpr int kTurn = 1 + Shape::Groups;  // the first of its named barriers
  __device__ __forceinline__ void take_turn() const {
    if constexpr (kPingPong) sm90::named_barrier_sync(kTurn + group, 256);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (kPingPong) sm90::named_barrier_arrive(kTurn + (group + 1) % Shape::Groups, 256);
  }
  // consume(work) of each work item of the block.
  __device__ __forceinline__ void each_item(auto consume) {
    if (group == Shape::Groups - 1) pass_turn();
    for (;; slot.next(), q_at.next()) {
      shared.q_pipe().wait(q_at);
      const Slot& work = shared.work(slot);
      if (sm90::uniform(work.tile.size) == 0) return;
      consume(work);
      __syncwarp();
      shared.tile_pipe().release(slot);
    }
  }
  // Begins x = Q K' of the K in stage `k`, which may have been waited for.
  template <bool Waits = true>
  __device__ __forceinline__ void scores(ScoreTile<Dtype, BN / 8>& x, KeyState k) const {
    if constexpr (Waits) shared.key_pipe().wait(k);
    sm90::fence();
    sm90::byte_product<Dtype, D, TileQ, TileK>(x.products()[0], q_rows,
                                               TileK::descriptor(shared.keys(k)));
    sm90::commit();
  }
  // The next stage is not needed, or not any more.
  __device__ __forceinline__ void pass() {
    shared.key_pipe().wait(at);
    shared.key_pipe().release(at);
    at.next();
  }
  // Stores rows `row` and row + 8 of the lane: o / sum, and lse.  top: in units of log2, without
  // what all scores of a row lack.
  __device__ __forceinline__ void store(const Slot& work, int row, const float (&top)[2],
                                        const float (&sum)[2], const float (&o)[E / 8][4]) const {
    const RowTile& tile = work.tile;
    each_row<1>(row, [&](int, int half, int m) {
      const bool valid = m < tile.count;
      float raised = top[half];
      if constexpr (requires { work.raise(call, tile, m); }) raised += work.raise(call, tile, m);
      if (a.o_dtype == FOVEA_BF16)
        epilogue.template store<FOVEA_BF16>(a, tile, m, valid, 0, raised, sum[half], o, half);
      else
        epilogue.template store<FOVEA_F16>(a, tile, m, valid, 0, raised, sum[half], o, half);
    });
  }
};

// A consumer warpgroup of values of e4m3.
template <class Shape, KeySource Source, class Epilogue>
struct ByteConsumer90 : CodeConsumer90<Shape, Source, Epilogue> {
  using Base = CodeConsumer90<Shape, Source, Epilogue>;
  using Base::D, Base::E, Base::BN, Base::Dtype, Base::shared, Base::group, Base::q_at, Base::at;
  using Base::kPaged, Base::kRuns;
  using typename Base::TileV, typename Base::Slot, typename Base::KeyState;
  static_assert(!kPaged || Shape::Stages >= 4);  // load_ahead: the next K waits for nothing here
  // The next stage is waited for beside the packing of codes, not before the next product.
  static constexpr bool kWaitsAhead = Dtype == FOVEA_I8;
  static constexpr int Run = Shape::Run;
  static constexpr ByteLayout90<Shape, Source> layout = ByteLayout90<Shape, Source>();
  static_assert(layout.bytes <= Shape::shared_bytes);
  using Keys = StepKeys<BN, Slot>;
  using Pages = PageParts<BN / kTileKeys>;
  using Softmax = LiftedSoftmax<Dtype>;
  float4* const sums = reinterpret_cast<float4*>(shared.base + layout.sums) + group * (64 * E / 4) +
                       threadIdx.x % 128;
  static constexpr bool kTerms = layout.has_terms;
  static_assert(!kTerms || (Source::Steps::blocks && !kPaged && !Keys::listed));

  __device__ __forceinline__ void run() {
    this->each_item([&](const Slot& work) { consume(work); });
  }

 private:
  __device__ __forceinline__ void consume(const Slot& work) {
    const RowTile& tile = work.tile;
    const int last = sm90::uniform(work.last), first = last + 1 - sm90::uniform(work.count);
    const int row = tile.begin + group * 64 + sm90::uniform(threadIdx.x / 32) % 4 * 16;
    const int full_begin = work.mask.begin, full_end = work.mask.end;
    Softmax state;
    ScoreTile<Dtype, BN / 8> x;
    float o[E / 8][4], alpha[2];
    uint32_t p[BN / 32][4];
    float behind[2] = {1.f, 1.f};  // what the sums in shared memory are to be multiplied with
    bool kept = false;             // there are any
    constexpr bool blocks = Source::Steps::blocks;
    ScoreFactors<blocks ? BN / 64 : 1> factor;
    factor.row = work.row_factor(group, row + threadIdx.x % 32 / 4);
    const auto scales = work.key_scales();  // in registers: an address is between two products
    const auto values = [&](KeyState v, bool accumulate) {
      shared.key_pipe().wait(v);
      sm90::byte_product<FOVEA_E4M3, TileV>(o, p, TileV::descriptor(shared.keys(v)), accumulate);
      sm90::commit();
    };
    uint32_t absent = 0;  // the tile's parts without a page
    const auto weigh = [&](int n) {
      if (blocks) factor.find();
      const bool partly = n < full_begin || n >= full_end;
      if constexpr (kTerms) {
        add_terms(work, n, first, row, partly, factor.of, x);
        state.weigh_terms(x, alpha, work.unit, [&] { this->take_turn(); });
      } else {
        hide(work, n, row, partly, absent, x);
        state.weigh(x, alpha, factor.of, partly || absent, [&] { this->take_turn(); });
      }
    };
    // Of pages: the scales of step n, whose K is next.  It waits for no stage that is still held.
    const auto load_ahead = [&](int n) {
      if constexpr (blocks && kPaged)
        if (n >= first) shared.key_pipe().wait(at), factor.load(scales, begins(work, at, n));
    };
    const auto step = [&](int n, bool accumulate) {
      KeyState v = at;
      v.next();
      clear_ends(work, n + 1, v);
      this->template scores<!kWaitsAhead>(x, at);
      values(v, accumulate);
      if constexpr (kPaged) absent = absent_of(at);
      if constexpr (blocks && kPaged)
        factor.take();
      else if constexpr (blocks && Keys::listed)
        factor.load(work.key_scales(), begins(work, at, n)), factor.take();
      else if constexpr (blocks)
        factor.take(), factor.load(scales, Keys{work, max(n - 1, first)});
      sm90::wait<1>();
      sm90::pin(x.products()[0]);
      shared.key_pipe().release(at);
      at = v, at.next();
      load_ahead(n - 1);
      weigh(n);
      // ptxas moves a wait above arithmetic, here the whole softmax that is to run beside the
      // second product, but not above a branch: this barrier was passed before.
      sm90::pin(x.x[0]);
      shared.key_pipe().wait(v);
      this->pass_turn();  // nor is an exponential moved below one
      sm90::wait<0>();
      sm90::pin(o);
      shared.key_pipe().release(v);
      sm90::pack_codes(p, x.x[0]);
#pragma unroll
      for (int j = 0; j < E / 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[j][c] *= alpha[c / 2];
      behind[0] *= alpha[0], behind[1] *= alpha[1];
      if constexpr (kWaitsAhead) shared.key_pipe().wait(at);
    };

#pragma unroll
    for (int j = 0; j < E / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[j][c] = 0.f;
    if (first <= last) {
      this->scores(x, at);
      if constexpr (kPaged) absent = absent_of(at);
      factor.load(work.key_scales(), begins(work, at, last)), factor.take();
      if constexpr (kTerms) load_terms(work, last);
      if constexpr (blocks && !Keys::listed && !kPaged)
        factor.load(scales, Keys{work, max(last - 1, first)});
      sm90::wait<0>();
      sm90::pin(x.products()[0]);
      shared.key_pipe().release(at);
      at.next();
      if (!blocks) factor.find();
      load_ahead(last - 1);
      weigh(last);
      this->pass_turn();
      sm90::pack_codes(p, x.x[0]);
      if constexpr (!Keys::listed) clear_last(work, last, first < last);
      if constexpr (kWaitsAhead) shared.key_pipe().wait(at);
      bool accumulate = false;
      for (int n = last - 1;; accumulate = false) {
        const int stop = max(first, n - Run + 1);
#pragma unroll 1
        for (; n >= stop; --n, accumulate = true) step(n, accumulate);
        if (n < first) break;
        keep(o, kept, behind);
        behind[0] = behind[1] = 1.f, kept = true;
      }
      shared.q_pipe().release(q_at);
      clear_ends(work, first, at);
      sm90::fence();
      values(at, accumulate);
      sm90::wait<0>();
      sm90::pin(o);
      this->pass();
    } else {
      shared.q_pipe().release(q_at);
      this->pass(), this->pass();
    }

    finish(work, row, state, o, first <= last, kept, behind);
  }

  // Where the parts of step n begin, whose K is in a stage that is still held.  Of pages: where
  // they lie.
  __device__ __forceinline__ auto begins(const Slot& work, KeyState k, int n) const {
    if constexpr (kPaged)
      return Pages{reinterpret_cast<const int*>(shared.absent(k)), n * BN};
    else if constexpr (Keys::listed)
      return reinterpret_cast<const int*>(shared.absent(k));
    else
      return Keys{work, n};
  }
  // Which parts have no page.
  __device__ __forceinline__ uint32_t absent_of(KeyState k) const {
    if constexpr (kRuns)
      return *shared.absent(k);
    else
      return Pages{reinterpret_cast<const int*>(shared.absent(k)), 0}.absent();
  }
  // What o has summed joins the sums in shared memory, if any are `kept` there.
  __device__ __forceinline__ void keep(const float (&o)[E / 8][4], bool kept,
                                       const float (&behind)[2]) const {
#pragma unroll
    for (int j = 0; j < E / 8; ++j) {
      float4 at = kept ? sums[j * 128] : make_float4(0.f, 0.f, 0.f, 0.f);
      at.x = fmaf(at.x, behind[0], o[j][0]), at.y = fmaf(at.y, behind[0], o[j][1]);
      at.z = fmaf(at.z, behind[1], o[j][2]), at.w = fmaf(at.w, behind[1], o[j][3]);
      sums[j * 128] = at;
    }
  }

  // Asks for the terms of step n.
  __device__ __forceinline__ void load_terms(const Slot& work, int n) const {
    ScoreTerms<BN>(shared.base + layout.terms).load(work.terms(group), n * BN, work.tile.keys - 1);
  }
  // x becomes scores of step n with their terms, which were asked for.  The walk ends with `first`.
  template <int Parts>
  __device__ __forceinline__ void add_terms(const Slot& work, int n, int first, int row,
                                            bool partly, const float (&factor)[Parts],
                                            ScoreTile<Dtype, BN / 8>& x) const {
    const ScoreTerms<BN> terms(shared.base + layout.terms);
    terms.wait();
    Softmax::add(x, factor, terms);
    terms.release();
    if (n > first) load_terms(work, n - 1);
    // Not before: a term may be NaN where nobody sees it.
    if (partly) work.mask.apply(x.x, n * BN, row, kNegativeInfinity);
  }
  // Hides what the mask does, where step n is not whole, and `absent` parts.
  __device__ __forceinline__ void hide(const Slot& work, int n, int row, bool partly,
                                       uint32_t absent, ScoreTile<Dtype, BN / 8>& x) const {
    if (partly) {
      if constexpr (Keys::listed)
        work.mask.apply_each(x.products(), row, Keys{work, n}, x.hidden);
      else
        work.mask.apply(x.products(), n * BN, row, x.hidden);
    }
    if constexpr (kPaged)
      if (absent) hide_parts<kRuns ? 16 : kTileKeys>(x.products(), absent, x.hidden);
  }

  // The values past the last key, in the first V; what lies past the tensor reads as zero.  The
  // warpgroups write the same bytes.
  __device__ __forceinline__ void clear_last(const Slot& work, int last, bool more) const {
    if (!sm90::uniform(work.zero_tail && work.beyond)) return;
    KeyState v = at;
    if (more) v.next();
    shared.key_pipe().wait(v);
    clear_tail<TileV, E, BN>(shared.base + (shared.keys(v) - shared.at),
                             work.tile.keys - last * BN);
    sm90::fence_shared();
    sm90::named_barrier_sync(1 + group, 128);
  }
  // Of lists: the same in the V of step n.  A list may name the last block often, so any step may
  // have it.
  __device__ __forceinline__ void clear_ends(const Slot& work, int n, KeyState v) const {
    if constexpr (Keys::listed) {
      if (!sm90::uniform(work.beyond)) return;
      const Keys begin{work, n};
      const int keys = work.tile.keys;
      bool ends = false;
#pragma unroll
      for (int part = 0; part < BN / kTileKeys; ++part)
        ends |= begin[part] < keys && begin[part] + kTileKeys > keys;
      if (!sm90::uniform(ends)) return;
      shared.key_pipe().wait(v);
#pragma unroll
      for (int part = 0; part < BN / kTileKeys; ++part)
        if (begin[part] < keys)
          clear_tail<TileV, E, kTileKeys>(shared.base + (shared.keys(v) - shared.at),
                                          keys - begin[part], part * kTileKeys);
      sm90::fence_shared();
      sm90::named_barrier_sync(1 + group, 128);
    }
  }

  // `behind`: what the sums in shared memory are to be multiplied with, if any are `kept` there.
  __device__ __forceinline__ void finish(const Slot& work, int row, const Softmax& state,
                                         float (&o)[E / 8][4], bool any, bool kept,
                                         const float (&behind)[2]) const {
    const float sum[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
    const float top[2] = {state.m[0] - Softmax::kLift, state.m[1] - Softmax::kLift};
#pragma unroll
    for (int j = 0; j < E / 8; ++j) {
      const float4 at = kept ? sums[j * 128] : make_float4(0.f, 0.f, 0.f, 0.f);
      const float below[4] = {at.x, at.y, at.z, at.w};
      const float2 factor = any ? work.value_factor(j * 8 + threadIdx.x % 4 * 2) : float2{};
      // Rows that saw nothing stay 0 whatever the scale is.
#pragma unroll
      for (int c = 0; c < 4; ++c)
        o[j][c] = fmaf(below[c], behind[c / 2], o[j][c]) * (sum[c / 2] == 0.f ? 0.f
                                                            : c % 2           ? factor.y
                                                                              : factor.x);
    }
    this->store(work, row, top, sum, o);
  }
};

template <class Shape, KeySource Source, class Epilogue,
          class Consumer = ByteConsumer90<Shape, Source, Epilogue>>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_fp8_sm90(const __grid_constant__ typename Source::Call call,
                    const __grid_constant__ AttendGrid grid, const __grid_constant__ CodeMaps maps,
                    const __grid_constant__ TileOrder order,
                    const __grid_constant__ DynamicSchedule schedule,
                    const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared90<Shape, Source, WindowMask> shared(memory);
  if (threadIdx.x == 0) {
    sm90::prefetch_map(maps.q), sm90::prefetch_map(maps.k), sm90::prefetch_map(maps.v);
    shared.init();
  }
  __syncthreads();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    Producer90<Shape, Source, WindowMask, CodeMaps>{call, grid, maps, shared}.run(warp, order,
                                                                                  schedule);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    Consumer{{call, attend_in(call), epilogue, shared, warp / 4 - 1}}.run();
  }
}

}  // namespace fovea::cuda
