// SPDX-License-Identifier: Apache-2.0
// The gradient of attention for wide heads on mma.sync (sm_80 and up): the sums and the order of
// attend_bwd_sm80.cuh, with one sum a block.  d and e are run-time numbers of 64-column panels.
//   A block owns 64 rows or keys.  Their f32 sums, up to 576 columns, are half of the registers.
//   A tile of the inner loop has 32 rows.  Eight warps compute, one after the other:
//     Y = Own2 Inner2' (not for dv), X = Own1 Inner1': a warp has 32 x 16 pairs over half of the
//     depth.  Warps w and w + 4 have the same pairs.  They add up each other's halves through
//     shared memory, and each keeps eight of the 16 columns.
//     Operand = p for dv, dx for dq and dk: 64 x 32 of 16 bits in shared memory.
//     Sum += Operand Inner: a warp has all 64 rows and 8 columns of each panel.
//   Inner1 and Inner2 have one stage each: either is copied under the products of the other.
//   Shared memory: Own1, Own2, Inner1, Inner2 in swizzled panels, halves of X, halves of Y (the
//   Operand later), statistics of rows.
//
//   | barrier of all | what has landed        | what is free              |
//   | 1              | the tile's first Inner | the second; the Operand   |
//   | 2              | the second; halves     | the first                 |
//   | 3, not for dv  | halves of X            | halves of Y               |
//   | 4              | Operand; for dv Inner2 |                           |
//   First is Inner2 where there is a Y, else Inner1.
#pragma once
#include "cuda/loop/attend_bwd_sm80.cuh"

namespace fovea::cuda {

// dk or dv where keys own, dq else; dv has no Y.
template <int Dtype_, bool KeysOwn, bool Y, int Columns>
struct WideGradientShape {
  static constexpr int Dtype = Dtype_;
  static constexpr bool keys_own = KeysOwn, has_y = Y;
  static_assert(keys_own || has_y);
  static constexpr int threads = 256, own = 64, inner = 32;
  static constexpr int most = Columns / 64;  // panels of the sum
  using Own = Swizzled<own, 64>;
  using Inner = Swizzled<inner, 64>;
  static constexpr int halves_bytes = own * inner * 4;
  static_assert(halves_bytes >= Own::bytes);  // the Operand is one panel
  static int32_t shared_bytes(const Attend& a) {
    const int panels1 = static_cast<int>(a.d + 63) / 64, panels2 = static_cast<int>(a.e + 63) / 64;
    return (panels1 + (has_y ? panels2 : 0)) * Own::bytes + (panels1 + panels2) * Inner::bytes +
           2 * halves_bytes + own * 8;
  }
};

// Where keys own, `shares` blocks may share them: each takes its part of the group's query heads
// and stores f32 terms (loop/key_terms.cuh).  grid.heads counts shares.
struct WideGradientCall {
  BackwardCall whole;
  int32_t shares;
  float* terms;  // (caches, t, g shares, columns of the sum), or nullptr: the block stores the sum
};

// A block: the own rows or keys of one sequence and head, and the sum that they keep.  `part` is a
// query head, or a share of a key head.
template <class Shape, PairPolicy Pairs>
class WideGradientOwner80 {
  static constexpr int Dtype = Shape::Dtype, kMost = Shape::most, T = Shape::threads;
  static constexpr bool Keys = Shape::keys_own, kY = Shape::has_y;
  using Own = typename Shape::Own;
  using Inner = typename Shape::Inner;
  using Loop = InnerLoop<Shape>;

 public:
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float sum[kMost][4][4] = {};
  };

  __device__ __forceinline__ WideGradientOwner80(const WideGradientCall& given, const Sequence& q,
                                                 int64_t part, int own_begin, int own_count,
                                                 unsigned char* shared, Fragments& fragments)
      : b(given.whole),
        a(b.call.forward),
        q(q),
        terms(given.terms),
        heads(Keys ? a.h / (a.g * given.shares) : 1),
        part(part),
        g(Keys ? part / given.shares : part / (a.h / a.g)),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        d(static_cast<int>(a.d)),
        e(static_cast<int>(a.e)),
        own_begin(own_begin),
        own_count(own_count),
        own_end(min(own_begin + Shape::own, own_count)),
        own_row(warp % 4 / 2 * 32),
        column(warp % 2 * 16),
        s_own1(shared_address(shared)),
        s_own2(s_own1 + panels(d) * Own::bytes),
        s_inner1(s_own2 + (kY ? panels(e) * Own::bytes : 0)),
        s_inner2(s_inner1 + panels(d) * Inner::bytes),
        s_x(s_inner2 + panels(e) * Inner::bytes),
        s_operand(s_x + Shape::halves_bytes),
        s_stats(reinterpret_cast<float2*>(shared + (s_operand - s_own1) + Shape::halves_bytes)),
        inner(a, q, part * heads, (part + 1) * heads, own_begin, own_end),
        sum(fragments.sum) {}

  __device__ __forceinline__ void compute(int64_t r) {
    begin();
    Pairs pairs(a, q, r, inner.head);
    while (inner.left > 0) {
      Loop next = inner;
      next.next();
      step(pairs, next);
      inner = next;
    }
    store();
  }

 private:
  __device__ static int panels(int width) { return (width + 63) / 64; }

  // Copies the own rows or keys and the first Inner of the first tile.
  __device__ __forceinline__ void begin() {
    if (inner.left > 0) {
      copy<Shape::own>(s_own1, Keys ? Lines::of_keys(a.k, q, g) : Lines::of_rows(a.q, q, part),
                       own_begin, d);
      if constexpr (kY)
        copy<Shape::own>(s_own2,
                         Keys ? Lines::of_keys(a.v, q, g) : Lines::of_rows(b.call.dout, q, part),
                         own_begin, e);
      load_first(inner);
      if (!Keys && threadIdx.x < Shape::own)
        s_stats[threadIdx.x] = row_stats(b, q, part, own_begin + static_cast<int>(threadIdx.x));
    }
    copy_commit();
  }

  // Panels of `Rows` lines from `begin` on; zeros past the last line and column.
  template <int Rows>
  __device__ __forceinline__ static void copy(uint32_t to, const Lines& lines, int begin,
                                              int width) {
    using Tile = Swizzled<Rows, 64>;
    const int chunk = threadIdx.x % kPanelChunks;
#pragma unroll
    for (int i = 0; i < Rows / (T / kPanelChunks); ++i) {
      const int row = threadIdx.x / kPanelChunks + i * (T / kPanelChunks);
      const bool there = begin + row < lines.count;
      const uint16_t* from = lines.base + (there ? (begin + row) * lines.stride : 0);
      const uint32_t at = to + Tile::at(row, chunk);
#pragma unroll 4
      for (int panel = 0; panel < panels(width); ++panel) {
        const int first = panel * 64 + chunk * kChunk;
        const bool valid = there && first < width;
        copy_async(at + panel * Tile::bytes, valid ? from + first : lines.base, valid);
      }
    }
  }
  __device__ __forceinline__ void load1(const Loop& at) const {
    copy<Shape::inner>(s_inner1, Keys ? Lines::of_rows(a.q, q, at.head) : Lines::of_keys(a.k, q, g),
                       at.begin(), d);
  }
  __device__ __forceinline__ void load2(const Loop& at) const {
    copy<Shape::inner>(s_inner2,
                       Keys ? Lines::of_rows(b.call.dout, q, at.head) : Lines::of_keys(a.v, q, g),
                       at.begin(), e);
  }
  __device__ __forceinline__ void load_first(const Loop& at) const {
    kY ? load2(at) : load1(at);
  }
  __device__ __forceinline__ void load_second(const Loop& at) const {
    kY ? load1(at) : load2(at);
  }

  // A tile of the inner loop.
  __device__ __forceinline__ void step(Pairs& pairs, const Loop& next) {
    copy_wait<0>();
    __syncthreads();
    load_second(inner);
    copy_commit();
    float2 stats{};
    if (Keys && threadIdx.x < Shape::inner)
      stats = row_stats(b, q, inner.head, inner.begin() + static_cast<int>(threadIdx.x));
    float x[2][4], y[2][4] = {};
    if constexpr (kY)
      half_product(y, s_own2, s_inner2, e, s_operand);
    else
      half_product(x, s_own1, s_inner1, d, s_x);
    if (Keys && threadIdx.x < Shape::inner) s_stats[threadIdx.x] = stats;
    if constexpr (kY) copy_wait<0>();
    __syncthreads();
    if (next.left > 0) load_first(next);
    copy_commit();
    if constexpr (kY) {
      add_half(y, s_operand);
      half_product(x, s_own1, s_inner1, d, s_x);
      __syncthreads();
    }
    add_half(x, s_x);
    put_operand(x, y, pairs);
    if constexpr (!kY) copy_wait<1>();
    __syncthreads();
    add_product(kY ? s_inner1 : s_inner2, panels(kY ? d : e));
  }

  // Fragments of 16 columns of depth: 32 own rows, 16 inner ones.
  struct Depth {
    uint32_t own[2][4], inner[4];
    __device__ __forceinline__ void load(uint32_t at_own, uint32_t at_inner, int k) {
      const uint32_t from = Own::pair(at_own, k);
      load_matrices(own[0], from);
      load_matrices(own[1], from + 16 * kPanelRowBytes);
      load_matrices(inner, Inner::pair(at_inner, k));
    }
  };
  __device__ __forceinline__ static void multiply(float (&sums)[2][2][4], const Depth& f) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      mma<Dtype>(sums[i][0], f.own[i], f.inner[0], f.inner[1]);
      mma<Dtype>(sums[i][1], f.own[i], f.inner[2], f.inner[3]);
    }
  }
  // Own Inner' over the warp's half of the depth.  `kept` gets the eight columns that the warp
  // keeps, `halves` the others.
  __device__ __forceinline__ void half_product(float (&kept)[2][4], uint32_t own, uint32_t from,
                                               int width, uint32_t halves) const {
    const int last = panels(width) * 4, half = panels(width) * 2;
    const uint32_t at_own = own + Own::at(own_row + outer_row(lane), outer_chunk(lane));
    const uint32_t at_inner = from + Inner::at(column + inner_row(lane), inner_chunk(lane));
    float sums[2][2][4] = {};
    const int begin = warp < 4 ? 0 : half, end = warp < 4 ? half : last;
    Depth even, odd;
    even.load(at_own, at_inner, begin);
#pragma unroll 1
    for (int k = begin; k < end; k += 2) {
      odd.load(at_own, at_inner, k + 1);
      multiply(sums, even);
      even.load(at_own, at_inner, min(k + 2, last - 1));  // the last one is not used
      multiply(sums, odd);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float given[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        kept[i][c] = warp < 4 ? sums[i][0][c] : sums[i][1][c];
        given[c] = warp < 4 ? sums[i][1][c] : sums[i][0][c];
      }
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(half_at(halves, warp, i)),
                   "f"(given[0]), "f"(given[1]), "f"(given[2]), "f"(given[3])
                   : "memory");
    }
  }
  __device__ __forceinline__ uint32_t half_at(uint32_t halves, int of, int i) const {
    return halves + ((of * 2 + i) * 32 + lane) * 16;
  }
  __device__ __forceinline__ void add_half(float (&kept)[2][4], uint32_t halves) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float other[4];
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(other[0]), "=f"(other[1]), "=f"(other[2]), "=f"(other[3])
                   : "r"(half_at(halves, warp ^ 4, i))
                   : "memory");
#pragma unroll
      for (int c = 0; c < 4; ++c) kept[i][c] += other[c];
    }
  }

  // Weights and dscores of the warp's pairs, rounded, for all warps.
  __device__ __forceinline__ void put_operand(float (&x)[2][4], const float (&y)[2][4],
                                              Pairs& pairs) {
    if constexpr (Keys) pairs.set_head(inner.head);
    const int begin = inner.begin();
    const bool full = Keys ? pairs.full(begin, begin + Shape::inner, own_begin, own_end)
                           : pairs.full(own_begin, own_end, begin, begin + Shape::inner);
    const int first = column + warp / 4 * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = own_row + i * 16 + half * 8 + lane / 4, own = own_begin + row;
        float to[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int other = begin + first + c;
          const float2 at = s_stats[Keys ? first + c : row];
          float weight = x[i][2 * half + c];
          const float bend =
              pairs.weigh(weight, at.x, Keys ? other : own, Keys ? own : other, full);
          // An unseen pair is 0 whatever its product is, NaN included.
          to[c] = !kY                      ? weight
                  : !full && weight == 0.f ? 0.f
                                           : weight * (y[i][2 * half + c] - at.y) * bend;
        }
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(s_operand + Own::at(row, first / kChunk) +
                                                     first % kChunk * 2),
                     "r"(pack<Dtype>(to[0], to[1]))
                     : "memory");
      }
  }

  // Sum += Operand Inner.
  __device__ __forceinline__ void add_product(uint32_t from, int count) {
    uint32_t operand[2][4][4], columns[2][4];
    const uint32_t at = s_operand + Own::at(outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_matrices(operand[k][i], Own::pair(at, k) + i * 16 * kPanelRowBytes);
    const uint32_t at_inner = from + Inner::at(lane, warp);
    load_matrices_transposed(columns[0], at_inner);
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j >= count) break;
      // Past the last panel are other panels or halves: they are not used.
      load_matrices_transposed(columns[(j + 1) % 2], at_inner + (j + 1) * Inner::bytes);
#pragma unroll
      for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          mma<Dtype>(sum[j][i], operand[k][i], columns[j % 2][2 * k], columns[j % 2][2 * k + 1]);
    }
  }

  __device__ __forceinline__ void store() const {
    const GradientView& out = !Keys ? b.call.dq : kY ? b.call.dk : b.call.dv;
    const int width = kY ? d : e, first = warp * kChunk + lane % 4 * 2;
    const float factor = kY ? a.score.scale : 1.f;
    const int64_t parts = Keys ? a.h / heads : 0;  // of a token of the terms
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int own = own_begin + i * 16 + half * 8 + lane / 4;
        if (own >= own_count) continue;
        const int64_t at = Keys ? a.sequences.key_offset(q, own, out.stride) + g * out.stride[2]
                                : row_offset(q, own, part, out.stride);
        uint16_t* row = static_cast<uint16_t*>(out.data) + at + first;
        float* single = nullptr;  // a term, or a row of an f32 gradient
        if (Keys && terms)
          single = terms + ((q.key_batch * a.t + q.key_begin + own) * parts + part) * width + first;
        else if (out.dtype == FOVEA_F32)
          single = out.as() + at + first;
#pragma unroll
        for (int j = 0; j < kMost; ++j) {
          if (j * 64 + first >= width) break;
          const float low = sum[j][i][2 * half] * factor, high = sum[j][i][2 * half + 1] * factor;
          if (single)
            *reinterpret_cast<float2*>(single + j * 64) = make_float2(low, high);
          else
            *reinterpret_cast<uint32_t*>(row + j * 64) = pack<Dtype>(low, high);
        }
      }
  }

  const BackwardCall& b;
  const Attend& a;
  const Sequence& q;
  float* const terms;
  const int64_t heads, part, g;  // query heads of the block
  const int lane, warp, d, e;
  const int own_begin, own_count, own_end;  // of the sequence
  const int own_row, column;                // the warp's first of a tile's pairs
  const uint32_t s_own1, s_own2, s_inner1, s_inner2, s_x, s_operand;
  float2* const s_stats;
  Loop inner;

  float (&sum)[kMost][4][4];
};

template <class Shape, PairPolicy Pairs>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_bwd_wide_sm80(const __grid_constant__ WideGradientCall given) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_sequence[sizeof(Sequence)];
  const BackwardCall& b = given.whole;
  int64_t work = blockIdx.x;
  int64_t tile = work % b.grid.tiles;
  if (b.grid.reversed) tile = b.grid.tiles - 1 - tile;
  work /= b.grid.tiles;
  const int64_t r = work / b.grid.heads, part = work % b.grid.heads;
  if (threadIdx.x == 0) new (s_sequence) Sequence{b.call.forward.sequences[r]};
  __syncthreads();
  const Sequence& q = *reinterpret_cast<const Sequence*>(s_sequence);
  const int own_count = static_cast<int>(Shape::keys_own ? q.keys : q.rows);
  const int own_begin = static_cast<int>(tile) * Shape::own;
  if (own_begin >= own_count) return;
  typename WideGradientOwner80<Shape, Pairs>::Fragments fragments;
  WideGradientOwner80<Shape, Pairs>(given, q, part, own_begin, own_count, shared, fragments)
      .compute(r);
}

}  // namespace fovea::cuda
