// SPDX-License-Identifier: Apache-2.0
// The gradient of attention on mma.sync (sm_80 and up), one owner for every sum and no atomics:
//   p = exp(score - lse),  ds = p (dout v' - delta),  dx = ds d score / d x
//
//   | own: outer loop, by blocks | inner loop      | sums of a block of 16 M Warps |
//   | keys: Own1 = K, Own2 = V   | q, dout by rows | dv += p' dout,  dk += dx' q   |
//   | rows: Own1 = Q, Own2 = dO  | k, v by keys    | dq += dx k                    |
//
// Both are one loop.  Own rows are the M side of every product and never leave their warp.
// A tile of the inner loop has 8 N rows: S = Own1 Inner1', dP = Own2 Inner2'.  p and dx stay in
// registers as operands of Sum1 += dx Inner1, Sum2 += p Inner2.
// The inner loop takes heads of the group in order, rows ascending: bits depend on shapes alone.
// Shared memory: Own1, Own2, two stages of (Inner1, Inner2) as swizzled panels.  Where keys own,
// also lse and delta of two tiles of rows.
// One barrier a tile: the next is copied under this one.
// FlashAttention-2 (2307.08691), with 7 products in place of 5 to have no sum across blocks.
#pragma once
#include <new>

#include "cuda/block/softmax.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

// keys_own: dk (sum1) and dv (sum2), or one where registers hold no more.  Else dq (sum1).
struct GradientConfig80 {
  int dtype, d, e;
  bool keys_own, sum1, sum2;
  int m, n, warps;
  int blocks;  // a multiprocessor should hold
};

template <GradientConfig80 C>
struct BackwardShape {
  static constexpr int Dtype = C.dtype, D = C.d, E = C.e, M = C.m, N = C.n;
  static constexpr int Warps = C.warps, Blocks = C.blocks;
  static constexpr bool keys_own = C.keys_own, sum1 = C.sum1, sum2 = C.sum2;
  static constexpr int threads = Warps * 32, own = M * 16 * Warps, inner = N * 8;
  using Own1 = Swizzled<own, D>;
  using Own2 = Swizzled<own, E>;
  using Inner1 = Swizzled<inner, D>;
  using Inner2 = Swizzled<inner, E>;
  static constexpr int stage_bytes = Inner1::bytes + Inner2::bytes;
  static constexpr int shared_bytes =
      Own1::bytes + Own2::bytes + 2 * stage_bytes + (keys_own ? 2 * inner * 8 : 0);
};

// The flat grid: (sequence, head, tile), the last fastest.
struct BackwardGrid {
  int64_t tiles, heads;  // key heads where keys own, query heads where rows own
  bool reversed;         // later tiles first: of rows under a causal mask they are the longest
};

struct BackwardCall {
  AttendBackward call;
  const float* delta;  // (b, h, s): <dout, o> - dlse
  BackwardGrid grid;
};

// Rows of one sequence and head of a (first, token, head, column) tensor.
struct Lines {
  const uint16_t* base;
  int64_t stride;
  int count;

  __device__ static Lines of_rows(const View<4>& x, const Sequence& q, int64_t h) {
    return {static_cast<const uint16_t*>(x.data) + q.batch * x.stride[0] +
                q.row_begin * x.stride[1] + h * x.stride[2],
            x.stride[1], static_cast<int>(q.rows)};
  }
  __device__ static Lines of_keys(const View<4>& x, const Sequence& q, int64_t g) {
    return {static_cast<const uint16_t*>(x.data) + q.key_batch * x.stride[0] +
                q.key_begin * x.stride[1] + g * x.stride[2],
            x.stride[1], static_cast<int>(q.keys)};
  }
  template <int Rows, int Columns, int Threads>
  __device__ void copy(uint32_t to, int begin, int width) const {
    copy_rows<Rows, Columns, Threads>(to, width, base, [&](int row) {
      return begin + row < count ? base + (begin + row) * stride : nullptr;
    });
  }
};

// A row's lse in log2 units and its delta.  A row without keys has p = 0 for every key.
__device__ inline float2 row_stats(const BackwardCall& b, const Sequence& q, int64_t h, int i) {
  const Attend& a = b.call.forward;
  if (i >= q.rows) return {__builtin_huge_valf(), 0.f};
  const float lse = a.lse.as()[q.batch * a.lse.stride[0] + h * a.lse.stride[1] +
                               (q.row_begin + i) * a.lse.stride[2]];
  if (lse == kNegativeInfinity) return {__builtin_huge_valf(), 0.f};
  return {lse * kLog2E, b.delta[(q.batch * a.h + h) * a.s + q.row_begin + i]};
}

// The place in the inner loop: head and tile.
template <class Shape>
struct InnerLoop {
  KeyTiles keys;    // rows own: key tiles, ascending
  int first, last;  // keys own: row tiles of every head
  int64_t head;     // query head now
  int tile, left;

  __device__ InnerLoop(const Attend& a, const Sequence& q, int64_t h0, int64_t h1, int own_begin,
                       int own_end)
      : head(h0) {
    if constexpr (Shape::keys_own) {
      const Range range = row_range(a.mask, q, h0, h1, own_begin, own_end);
      first = static_cast<int>(range.begin / Shape::inner);
      last = static_cast<int>((range.end + Shape::inner - 1) / Shape::inner);
      if (range.begin >= range.end) last = first;
      tile = first, left = (last - first) * static_cast<int>(h1 - h0);
    } else {
      keys = key_tiles(a.mask, q, h0, h1, own_begin, own_end, Shape::inner);
      left = static_cast<int>(keys.count());
      first = 0, last = left;
      tile = left ? static_cast<int>(keys[0]) : 0;
    }
  }
  __device__ int begin() const { return tile * Shape::inner; }
  __device__ void next() {
    --left, ++tile;
    if constexpr (Shape::keys_own) {
      if (tile == last) tile = first, ++head;
    } else {
      if (tile == keys.sinks && tile < keys.first) tile = static_cast<int>(keys.first);
    }
  }
};

// A block: the own rows or keys of one sequence and head, and the sums that they keep.
template <class Shape, PairPolicy Pairs>
class GradientOwner80 {
  static constexpr int Dtype = Shape::Dtype, M = Shape::M, N = Shape::N, D = Shape::D, E = Shape::E;
  static constexpr int T = Shape::threads;
  static constexpr bool Keys = Shape::keys_own;
  using Own1 = typename Shape::Own1;
  using Own2 = typename Shape::Own2;
  using Inner1 = typename Shape::Inner1;
  using Inner2 = typename Shape::Inner2;

 public:
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float sum1[M][Shape::sum1 ? D / 8 : 1][4] = {}, sum2[M][Shape::sum2 ? E / 8 : 1][4] = {};
    float2 own_stats[M][2];  // rows own
  };

  __device__ __forceinline__ GradientOwner80(const BackwardCall& b, const Sequence& q, int64_t head,
                                             int own_begin, int own_count, unsigned char* shared,
                                             Fragments& fragments)
      : b(b),
        a(b.call.forward),
        q(q),
        head(head),
        g(Keys ? head : head / (a.h / a.g)),
        lane(threadIdx.x % 32),
        d(static_cast<int>(a.d)),
        e(static_cast<int>(a.e)),
        own_begin(own_begin),
        own_count(own_count),
        own_end(min(own_begin + Shape::own, own_count)),
        own_row(static_cast<int>(threadIdx.x) / 32 * M * 16),
        own_lane(own_begin + own_row + lane / 4),
        s_own1(shared_address(shared)),
        s_own2(s_own1 + Own1::bytes),
        s_inner(s_own2 + Own2::bytes),
        s_stats(
            reinterpret_cast<float2*>(shared + Own1::bytes + Own2::bytes + 2 * Shape::stage_bytes)),
        inner(a, q, Keys ? g * (a.h / a.g) : head, Keys ? (g + 1) * (a.h / a.g) : head + 1,
              own_begin, own_end),
        sum1(fragments.sum1),
        sum2(fragments.sum2),
        own_stats(fragments.own_stats) {}

  __device__ __forceinline__ void compute(int64_t r) {
    begin();
    Pairs pairs(a, q, r, inner.head);
    for (int stage = 0; inner.left > 0; stage ^= 1) {
      InnerLoop<Shape> next = inner;
      next.next();
      float2 next_stats{};
      copy_wait<0>();
      __syncthreads();
      if (next.left > 0) {
        load(next, stage ^ 1);
        if constexpr (Keys) next_stats = inner_stats(next);
      }
      copy_commit();
      step(pairs, stage);
      if constexpr (Keys)
        if (next.left > 0 && threadIdx.x < Shape::inner)
          s_stats[(stage ^ 1) * Shape::inner + threadIdx.x] = next_stats;
      inner = next;
    }
    store();
  }

 private:
  // Copies the own rows or keys and the first tile.
  __device__ __forceinline__ void begin() {
    if (inner.left > 0) {
      const Lines one = Keys ? Lines::of_keys(a.k, q, g) : Lines::of_rows(a.q, q, head);
      const Lines two = Keys ? Lines::of_keys(a.v, q, g) : Lines::of_rows(b.call.dout, q, head);
      one.copy<Shape::own, D, T>(s_own1, own_begin, d);
      two.copy<Shape::own, E, T>(s_own2, own_begin, e);
      load(inner, 0);
      if (Keys && threadIdx.x < Shape::inner) s_stats[threadIdx.x] = inner_stats(inner);
    }
    copy_commit();
    if constexpr (!Keys)
      each_own<M>([&](int i, int half, int row) {
        own_stats[i][half] = row_stats(b, q, head, own_lane + row);
      });
  }

  __device__ __forceinline__ void load(const InnerLoop<Shape>& at, int stage) const {
    const uint32_t to = s_inner + stage * Shape::stage_bytes;
    const Lines one = Keys ? Lines::of_rows(a.q, q, at.head) : Lines::of_keys(a.k, q, g);
    const Lines two = Keys ? Lines::of_rows(b.call.dout, q, at.head) : Lines::of_keys(a.v, q, g);
    one.copy<Shape::inner, D, T>(to, at.begin(), d);
    two.copy<Shape::inner, E, T>(to + Inner1::bytes, at.begin(), e);
  }
  __device__ __forceinline__ float2 inner_stats(const InnerLoop<Shape>& at) const {
    return row_stats(b, q, at.head, at.begin() + static_cast<int>(threadIdx.x) % Shape::inner);
  }

  // The products of a tile, which is in `stage`.
  __device__ __forceinline__ void step(Pairs& pairs, int stage) {
    const uint32_t offset = s_inner + stage * Shape::stage_bytes;
    float x[M][N][4] = {}, dp[M][N][4] = {};
    const int row = outer_row(lane), chunk = outer_chunk(lane);
    product_rows<Dtype, M, N, D, Own1, Inner1>(
        x, s_own1 + Own1::at(own_row + row, chunk),
        offset + Inner1::at(inner_row(lane), inner_chunk(lane)));
    if constexpr (Shape::sum1)
      product_rows<Dtype, M, N, E, Own2, Inner2>(
          dp, s_own2 + Own2::at(own_row + row, chunk),
          offset + Inner1::bytes + Inner2::at(inner_row(lane), inner_chunk(lane)));
    make_dscores(x, dp, pairs, stage);
    uint32_t p[M][N / 2][4];
    if constexpr (Shape::sum2) {
      pack_operand<Dtype>(p, x);
      product_columns<Dtype, M, E / 8, Shape::inner, Inner2>(
          sum2, p, offset + Inner1::bytes + Inner2::at(row, chunk));
    }
    if constexpr (Shape::sum1) {
      pack_operand<Dtype>(p, dp);
      product_columns<Dtype, M, D / 8, Shape::inner, Inner1>(sum1, p,
                                                             offset + Inner1::at(row, chunk));
    }
  }

  // Scores become weights p, dp becomes dx.
  __device__ __forceinline__ void make_dscores(float (&x)[M][N][4], float (&dp)[M][N][4],
                                               Pairs& pairs, int stage) {
    if constexpr (Keys) pairs.set_head(inner.head);
    const int begin = inner.begin();
    const bool full = Keys ? pairs.full(begin, begin + Shape::inner, own_begin, own_end)
                           : pairs.full(own_begin, own_end, begin, begin + Shape::inner);
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = j * 8 + lane % 4 * 2 + c;
        float2 inner_stats{};
        if constexpr (Keys) inner_stats = s_stats[stage * Shape::inner + column];
        each_own<M>([&](int i, int half, int row) {
          const float2 at = Keys ? inner_stats : own_stats[i][half];
          const int own = own_lane + row, other = begin + column;
          float& weight = x[i][j][2 * half + c];
          float& dx = dp[i][j][2 * half + c];
          const float bend =
              pairs.weigh(weight, at.x, Keys ? other : own, Keys ? own : other, full);
          // An unseen pair is 0 whatever its product is, NaN included.
          dx = !full && weight == 0.f ? 0.f : weight * (dx - at.y) * bend;
        });
      }
  }

  __device__ __forceinline__ void store() const {
    each_own<M>([&](int i, int half, int row) {
      const int own = own_lane + row;
      const bool valid = own < own_count;
      const auto store = [&](const GradientView& out, int width, const auto& sum, float factor) {
        if (!out) return;
        const int64_t at = Keys ? a.sequences.key_offset(q, own, out.stride) + g * out.stride[2]
                                : row_offset(q, own, head, out.stride);
        store_as<Dtype>(out.data, out.dtype, at, valid, width, sum, half, factor);
      };
      if constexpr (Shape::sum1) store(Keys ? b.call.dk : b.call.dq, d, sum1[i], a.score.scale);
      if constexpr (Shape::sum2) store(b.call.dv, e, sum2[i], 1.f);
    });
  }

  const BackwardCall& b;
  const Attend& a;
  const Sequence& q;
  const int64_t head, g;
  const int lane, d, e;
  const int own_begin, own_count, own_end;  // of the sequence
  const int own_row, own_lane;              // the warp's first of the block, the lane's first
  const uint32_t s_own1, s_own2, s_inner;
  float2* const s_stats;
  InnerLoop<Shape> inner;

  float (&sum1)[M][Shape::sum1 ? D / 8 : 1][4], (&sum2)[M][Shape::sum2 ? E / 8 : 1][4];
  float2 (&own_stats)[M][2];
};

template <class Shape, PairPolicy Pairs>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    attend_bwd_sm80(const __grid_constant__ BackwardCall b) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_sequence[sizeof(Sequence)];
  int64_t work = blockIdx.x;
  int64_t tile = work % b.grid.tiles;
  if (b.grid.reversed) tile = b.grid.tiles - 1 - tile;
  work /= b.grid.tiles;
  const int64_t r = work / b.grid.heads, head = work % b.grid.heads;
  if (threadIdx.x == 0) new (s_sequence) Sequence{b.call.forward.sequences[r]};
  __syncthreads();
  const Sequence& q = *reinterpret_cast<const Sequence*>(s_sequence);
  const int own_count = static_cast<int>(Shape::keys_own ? q.keys : q.rows);
  const int own_begin = static_cast<int>(tile) * Shape::own;
  if (own_begin >= own_count) return;
  typename GradientOwner80<Shape, Pairs>::Fragments fragments;
  GradientOwner80<Shape, Pairs>(b, q, head, own_begin, own_count, shared, fragments).compute(r);
}

}  // namespace fovea::cuda
