// SPDX-License-Identifier: Apache-2.0
// SageBwd's gradient on mma.sync (sm_80 and up), one owner for every sum and no atomics.  Of 64
// rows and 64 keys:
//   x = scale q_scale k_scale q^ k^',  p = 2^(x log2(e) - lse2),  ds = p (dout v' - delta)
//   dq += ds^ k_scale k^,  dk += scale ds^' q_scale q^,  dv += p^' dout^
//
//   | own: outer loop, by blocks | inner loop, by tiles of 64      | sums of a block of 64 |
//   | keys: Own1 = k^, Own2 = v  | q^, dout by rows; q^', dout^'   | dk, dv                |
//   | rows: Own1 = q^, Own2 = dO | k^, v by keys; k^'              | dq                    |
//
// Products of codes are i8; dout v' is of 16 bits.  A warp has 16 own rows or keys: the first
// operand of each product.  p^ and ds^ stay in registers as operands of the sums, whose other
// operand is a tile of codes with tokens contiguous (mma_codes_sm80.cuh).
// The inner loop takes heads of the group in order, tiles ascending: bits depend on shapes alone.
// Shared memory: Own1, Own2, two stages of the inner tiles; of each stage also lse2 and delta of
// its rows and its scales; maxima of the warps.
//
//   | barrier | guards                                                                      |
//   | first   | the tile's copies have come; the other stage and the maxima are done with   |
//   | second  | the warps' largest p and ds are in shared memory                            |
//
// Source: SageBwd (2505.11594), algorithm 3.
#pragma once
#include "cuda/loop/attend_bwd_sm80.cuh"
#include "cuda/tile/mma_codes_sm80.cuh"
#include "ops/quantised/backward.cuh"

namespace fovea::cuda {

template <QuantGradient80 C>
struct QuantShape80 {
  static constexpr int Dtype = C.dtype, D = C.d, E = C.e, Blocks = C.blocks;
  static constexpr int Warps = 4, N = 8, threads = Warps * 32;
  static constexpr int own = kTileTokens, inner = kTileTokens;
  static constexpr bool keys_own = C.owner != Owner::dq;
  using Codes = Swizzled<own, D / 2>;  // q^, k^
  using Halves = Swizzled<own, E>;     // dout, v
  using Columns1 = TokenColumns<D>;    // q^', k^'
  using Columns2 = TokenColumns<E>;    // dout^'
  static constexpr int own_bytes = Codes::bytes + Halves::bytes;
  static constexpr int stage_bytes = own_bytes + Columns1::bytes + (keys_own ? Columns2::bytes : 0);
  static constexpr int stats = inner + 1;  // the last: the scales
  static constexpr int shared_bytes = own_bytes + 2 * stage_bytes + 2 * stats * 8;
};

// The flat grid: (sequence, head, tile), the last fastest.
struct QuantCall80 {
  QuantGradient x;
  BackwardGrid grid;
};

// A block: the own rows or keys of one sequence and head, and the sums that they keep.
template <class Shape>
class QuantOwner80 {
  static constexpr int Dtype = Shape::Dtype, N = Shape::N, D = Shape::D, E = Shape::E;
  static constexpr int T = Shape::threads, Warps = Shape::Warps;
  static constexpr bool Keys = Shape::keys_own;
  using Codes = typename Shape::Codes;
  using Halves = typename Shape::Halves;
  using Columns1 = typename Shape::Columns1;
  using Columns2 = typename Shape::Columns2;

 public:
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float sum1[1][D / 8][4] = {}, sum2[1][Keys ? E / 8 : 1][4] = {};
    float2 own_stats[2];  // rows own
  };

  __device__ __forceinline__ QuantOwner80(const QuantGradient& x, const Sequence& q, int64_t r,
                                          int64_t head, int own_begin, unsigned char* shared,
                                          float2 (&most)[Warps], Fragments& fragments)
      : x(x),
        a(x.forward()),
        q(q),
        r(r),
        head(head),
        g(Keys ? head : head / (a.h / a.g)),
        lane(threadIdx.x % 32),
        own_begin(own_begin),
        own_count(static_cast<int>(Keys ? q.keys : q.rows)),
        own_row(static_cast<int>(threadIdx.x) / 32 * 16),
        own_lane(own_begin + own_row + lane / 4),
        s_own(shared_address(shared)),
        s_inner(s_own + Shape::own_bytes),
        s_stats(reinterpret_cast<float2*>(shared + Shape::own_bytes + 2 * Shape::stage_bytes)),
        s_most(most),
        inner(a, q, Keys ? g * (a.h / a.g) : head, Keys ? (g + 1) * (a.h / a.g) : head + 1,
              own_begin, min(own_begin + Shape::own, own_count)),
        sum1(fragments.sum1),
        sum2(fragments.sum2),
        own_stats(fragments.own_stats) {}

  __device__ __forceinline__ void compute() {
    begin();
    const PlainPairs pairs(a, q, r, inner.head);
    for (int stage = 0; inner.left > 0; stage ^= 1) {
      InnerLoop<Shape> next = inner;
      next.next();
      float2 next_values{};
      copy_wait<0>();
      __syncthreads();
      if (next.left > 0) {
        if (next.head == inner.head)
          advance();
        else
          place(next);
        load(stage ^ 1);
        next_values = inner_values(next.tile);
      }
      copy_commit();
      step(pairs, stage);
      if (next.left > 0 && threadIdx.x < Shape::stats)
        s_stats[(stage ^ 1) * Shape::stats + threadIdx.x] = next_values;
      inner = next;
    }
    store();
  }

 private:
  // Rows of codes as pairs.
  __device__ Lines code_lines(const View<4>& codes, bool of_keys, int64_t h) const {
    const int64_t first = of_keys ? q.key_batch * codes.stride[0] + q.key_begin * codes.stride[1]
                                  : q.batch * codes.stride[0] + q.row_begin * codes.stride[1];
    const int8_t* base = static_cast<const int8_t*>(codes.data) + first + h * codes.stride[2];
    return {reinterpret_cast<const uint16_t*>(base), codes.stride[1] / 2,
            static_cast<int>(of_keys ? q.keys : q.rows)};
  }

  // Copies the own rows or keys and the first tile.
  __device__ __forceinline__ void begin() {
    if (inner.left > 0) {
      const Lines two = Keys ? Lines::of_keys(a.v, q, g) : Lines::of_rows(x.b.call.dout, q, head);
      code_lines(Keys ? a.k : a.q, Keys, Keys ? g : head)
          .template copy<Shape::own, D / 2, T>(s_own, own_begin, static_cast<int>(a.d) / 2);
      two.template copy<Shape::own, E, T>(s_own + Codes::bytes, own_begin, static_cast<int>(a.e));
      place(inner);
      load(0);
      if (threadIdx.x < Shape::stats) s_stats[threadIdx.x] = inner_values(inner.tile);
      own_scale = Keys ? x.b.k_scales(q, r, g)[own_begin / kTileTokens * x.b.k_scale.stride[2]]
                       : own_tile().q_scale;
    }
    copy_commit();
    if constexpr (!Keys)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        own_stats[half] = own_tile().row(own_row + lane / 4 + half * 8);
  }
  // Rows own: their tile.
  __device__ const QuantRows& own_tile() const {
    return x.rows[x.tile(q, r, head, own_begin / kTileTokens)];
  }

  // The cursors at a tile of a head.
  __device__ __forceinline__ void place(const InnerLoop<Shape>& at) {
    const int d = static_cast<int>(a.d), e = static_cast<int>(a.e);
    const Lines one = code_lines(Keys ? a.q : a.k, !Keys, Keys ? at.head : g);
    const Lines two = Keys ? Lines::of_rows(x.b.call.dout, q, at.head) : Lines::of_keys(a.v, q, g);
    const int first = at.begin();
    codes.start(one.base + first * one.stride, one.stride, one.count - first, d / 2);
    halves.start(two.base + first * two.stride, two.stride, two.count - first, e);
    const int8_t* columns = Keys ? x.b.q_column(q, r, at.head) : x.b.k_column(q, r, g);
    columns1.start(columns + first, Keys ? x.b.q_columns.stride[2] : x.b.k_columns.stride[2], d);
    if constexpr (Keys) {
      const int64_t tile = x.tile(q, r, at.head, 0);
      columns2.start(x.dout_codes + (tile + at.tile) * e * kTileTokens, kTileTokens, e);
      row_tiles = x.rows + tile;
    } else {
      scales = x.b.k_scales(q, r, g);
    }
  }
  __device__ __forceinline__ void advance() {
    codes.advance(), halves.advance(), columns1.advance(kTileTokens);
    if constexpr (Keys) columns2.advance(a.e * kTileTokens);
  }
  // The cursors' tile.
  __device__ __forceinline__ void load(int stage) const {
    const uint32_t to = s_inner + stage * Shape::stage_bytes;
    codes.copy(to), halves.copy(to + Codes::bytes), columns1.copy(to + Shape::own_bytes);
    if constexpr (Keys) columns2.copy(to + Shape::own_bytes + Columns1::bytes);
  }

  // The thread's of a stage's stats: of a row, or the tile's scales.
  __device__ __forceinline__ float2 inner_values(int tile) const {
    const int i = threadIdx.x;
    if constexpr (Keys) {
      const QuantRows& rows = row_tiles[tile];
      if (i < Shape::inner) return rows.row(i);
      if (i == Shape::inner) return {rows.q_scale, rows.dout.scale};
    } else if (i == Shape::inner) {
      return {scales[tile * x.b.k_scale.stride[2]], 0.f};
    }
    return {};
  }

  // The products of a tile, which is in `stage`.
  __device__ __forceinline__ void step(const PlainPairs& pairs, int stage) {
    const uint32_t at = s_inner + stage * Shape::stage_bytes;
    const float2* now = s_stats + stage * Shape::stats;
    const float inner_scale = now[Shape::inner].x, dout_scale = now[Shape::inner].y;
    float p[N][4], ds[1][N][4] = {};
    {
      int32_t sums[1][N][4] = {};
      code_product<1, N, D, Codes, Codes>(
          sums, s_own + Codes::at(own_row + outer_row(lane), outer_chunk(lane)),
          at + Codes::at(inner_row(lane), inner_chunk(lane)));
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) p[j][c] = static_cast<float>(sums[0][j][c]);
    }
    product_rows<Dtype, 1, N, E, Halves, Halves>(
        ds, s_own + Codes::bytes + Halves::at(own_row + outer_row(lane), outer_chunk(lane)),
        at + Codes::bytes + Halves::at(inner_row(lane), inner_chunk(lane)));
    const int begin = inner.begin(), own_end = own_begin + Shape::own;
    // Keys that are not there would count: their tile is not full.
    const bool full = Keys ? pairs.full(begin, begin + Shape::inner, own_begin, own_end)
                           : pairs.full(own_begin, own_end, begin, begin + Shape::inner);
    const float to_log2 = pairs.factor * (own_scale * inner_scale);
    put_most(full ? weigh<true>(p, ds[0], pairs, now, to_log2)
                  : weigh<false>(p, ds[0], pairs, now, to_log2));
    __syncthreads();
    float2 most = s_most[0];
#pragma unroll
    for (int i = 1; i < Warps; ++i)
      most = {max_or_nan(most.x, s_most[i].x), max_or_nan(most.y, s_most[i].y)};

    uint32_t operand[1][2][4];
    if constexpr (Keys) {
      const TileScale scale(most.x);
      const float factor = scale.scale * dout_scale;
      code_operand(operand[0], p, scale.factor);
      add_code_product(sum2, operand,
                       at + Shape::own_bytes + Columns1::bytes + Columns2::lane_at(lane),
                       {{factor, factor}});
    }
    const TileScale scale(most.y);
    const float factor = scale.scale * inner_scale * (Keys ? a.score.scale : 1.f);
    code_operand(operand[0], ds[0], scale.factor);
    add_code_product(sum1, operand, at + Shape::own_bytes + Columns1::lane_at(lane),
                     {{factor, factor}});
  }

  // Products become p and ds, 0 where the row does not see the key; returns their largest
  // magnitudes.  Full: every row sees every key.
  template <bool Full>
  __device__ __forceinline__ float2 weigh(float (&p)[N][4], float (&ds)[N][4],
                                          const PlainPairs& pairs, const float2* of_inner,
                                          float factor) const {
    float2 most = {0.f, 0.f};
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = j * 8 + lane % 4 * 2 + c;
        float2 inner_stats{};
        if constexpr (Keys) inner_stats = of_inner[column];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 at = Keys ? inner_stats : own_stats[half];
          const int own = own_lane + half * 8, other = inner.begin() + column;
          float& weight = p[j][2 * half + c];
          float& dscore = ds[j][2 * half + c];
          weight = exp2_fast(fmaf(weight, factor, -at.x));
          if (!Full && !pairs.sees(Keys ? other : own, Keys ? own : other)) weight = 0.f;
          // An unseen pair is 0 whatever its product is, NaN included.
          dscore = !Full && weight == 0.f ? 0.f : weight * (dscore - at.y);
          if constexpr (Keys) most.x = max_or_nan(most.x, weight);
          most.y = max_or_nan(most.y, fabsf(dscore));
        }
      }
    return most;
  }
  __device__ __forceinline__ void put_most(float2 most) {
    const auto of_warp = [](float x) {  // NaN is above infinity
      return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
    };
    most = {Keys ? of_warp(most.x) : 0.f, of_warp(most.y)};
    if (lane == 0) s_most[threadIdx.x / 32] = most;
  }

  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = own_lane + half * 8;
      const auto put = [&](const View<4>& to, int64_t width, const auto& sum, float factor) {
        if (!to) return;
        const Lines lines = Keys ? Lines::of_keys(to, q, g) : Lines::of_rows(to, q, head);
        store_row<Dtype>(
            own < own_count ? const_cast<uint16_t*>(lines.base + own * lines.stride) : nullptr,
            static_cast<int>(width), sum, half, factor);
      };
      put(Keys ? x.b.call.dk : x.b.call.dq, a.d, sum1[0], Keys ? 1.f : a.score.scale);
      if constexpr (Keys) put(x.b.call.dv, a.e, sum2[0], 1.f);
    }
  }

  const QuantGradient& x;
  const Attend& a;
  const Sequence& q;
  const int64_t r, head, g;
  const int lane;
  const int own_begin, own_count;  // of the sequence
  const int own_row, own_lane;     // the warp's first of the block, the lane's first
  const uint32_t s_own, s_inner;
  float2* const s_stats;
  float2 (&s_most)[Warps];  // of each warp: the largest p and ds
  InnerLoop<Shape> inner;
  float own_scale = 0.f;

  // Of the tile that is copied next: operands of the inner loop.
  RowCursor<Shape::inner, D / 2, T> codes;
  RowCursor<Shape::inner, E, T> halves;
  ColumnCursor<D, T> columns1;
  ColumnCursor<E, T> columns2;
  const QuantRows* row_tiles = nullptr;  // keys own: those of its head
  const float* scales = nullptr;         // rows own: of keys

  float (&sum1)[1][D / 8][4], (&sum2)[1][Keys ? E / 8 : 1][4];
  float2 (&own_stats)[2];
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    quant_backward_sm80(const __grid_constant__ QuantCall80 call) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_sequence[sizeof(Sequence)];
  __shared__ float2 s_most[Shape::Warps];
  int64_t work = blockIdx.x;
  int64_t tile = work % call.grid.tiles;
  if (call.grid.reversed) tile = call.grid.tiles - 1 - tile;
  work /= call.grid.tiles;
  const int64_t r = work / call.grid.heads, head = work % call.grid.heads;
  if (threadIdx.x == 0) new (s_sequence) Sequence{call.x.forward().sequences[r]};
  __syncthreads();
  const Sequence& q = *reinterpret_cast<const Sequence*>(s_sequence);
  const int own_begin = static_cast<int>(tile) * Shape::own;
  if (own_begin >= (Shape::keys_own ? q.keys : q.rows)) return;
  typename QuantOwner80<Shape>::Fragments fragments;
  QuantOwner80<Shape>(call.x, q, r, head, own_begin, shared, s_most, fragments).compute();
}

template <QuantGradient80 C>
QuantGradientInstance quant_backward_sm80_instance() {
  using Shape = QuantShape80<C>;
  constexpr auto launcher = [](Context& ctx, const QuantGradient& x) {
    const Attend& a = x.forward();
    constexpr bool keys = Shape::keys_own;
    const int64_t tiles = ceil_div(keys ? a.sequences.key_max : a.sequences.query_max, Shape::own);
    const BackwardGrid grid{tiles, keys ? a.g : a.h, !keys && a.mask.window.right > 0};
    launch<quant_backward_sm80<Shape>>(ctx, kQuantBackward, a.sequences.count * grid.heads * tiles,
                                       Shape::threads, Shape::shared_bytes, QuantCall80{x, grid});
  };
  return {C.dtype, C.d, C.e, C.owner, Shape::shared_bytes, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                                   \
  namespace fovea::cuda {                                                                     \
  template QuantGradientInstance quant_backward_sm80_instance<QuantGradient80 __VA_ARGS__>(); \
  }
