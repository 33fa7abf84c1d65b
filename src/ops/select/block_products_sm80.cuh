// SPDX-License-Identifier: Apache-2.0
// x_select_block from summaries, scope row, on tensor cores:
//   score = scale sum_c row_c column_c, or of box two such sums; softmax, max or minmax over the
//   eligible columns of a row; sum, mean or max over the query heads of a list head
// A chunk of list rows at a time:
//   products, statistics   with a normalisation and no lse: of each row and split of the columns,
//                          the largest score and the sum of the exponentials, or the range
//   products, scores       the products again, normalised, and reduced where a warp has all heads
//                          of a list head; to the workspace
//   lists                  block_list_sm80.cuh
// A block of 4 warps owns 16 or 64 rows (list row, query head of a column head, row slowest) and a
// split of the columns, in tiles of 64.  Warps share a tile of 16 rows by its columns, one of 64
// rows as 2 x 2.
// Operands are 16-bit.  An f32 is the sum of three bf16, an f16 with f32 beside it of two; of the
// products of parts those below 2^-24 are left out.  Sums are f32.
// Shared memory: rows [side][part][row][depth + 8], then a ring of kStages tiles of columns
// [column][depth + 8], or the parts of one tile; the sums of a warp where heads are reduced.
// Barriers, all of the whole block:
//   rows        after the rows are written; waits: every product
//   tile        a tile of the ring has landed, and the one before it has been read
//   converted   without the ring: before the parts of a tile are overwritten, and after
//   segment     at the end of a sequence's rows, before the ring is filled anew
#pragma once
#include <cfloat>

#include "cuda/block/softmax.cuh"
#include "cuda/launch.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/order.cuh"
#include "ops/select/block_sm80.cuh"

namespace fovea::cuda {
namespace {

constexpr char kOp[] = "x_select_block";
constexpr int kThreads = 128, kTileColumns = 64, kStages = 3;
constexpr float kLargest = 3e38f;

// How warps share a tile: M fragments of 16 rows and N of 8 columns each.
template <int Fragments>
struct TileShape {
  static constexpr int M = Fragments, N = Fragments == 1 ? 2 : 4;
  static constexpr int kWarpRows = 16 * M, kWarpColumns = 8 * N;
  static constexpr int kAcross = kTileColumns / kWarpColumns, kDown = 4 / kAcross;
  static constexpr int kRows = kWarpRows * kDown;
  static constexpr int kPitch = kWarpColumns + 4;  // floats of a row of a warp's sums
  static_assert(kAcross * kDown == 4);
};

template <int Rows>
struct TileRows {
  int64_t from[Rows];  // element offset of the summary; -1: no such row
  int64_t to[Rows];    // of column 0 of the score
  int sequence[Rows], seen[Rows];
  float2 stat[Rows];
  float2 part[4][Rows];  // of the warps across
};

// A pair of a largest score and a sum of exponentials to it, in powers of two.
__device__ __forceinline__ float2 merge_sums(float2 x, float2 y) {
  const float top = fmaxf(x.x, y.x), base = top == -INFINITY ? 0.f : top;
  return {top, fmaf(x.y, exp2_fast(x.x - base), y.y * exp2_fast(y.x - base))};
}

template <int Dtype, int Fragments, int Depth, bool Ring>
class Products {
  using Shape = TileShape<Fragments>;
  static constexpr int M = Shape::M, N = Shape::N, kRows = Shape::kRows;
  static constexpr bool kHeld = Depth && Fragments == 2;  // the rows, in registers
  static constexpr int kSteps = kHeld ? Depth / 16 : 1;

 public:
  __device__ Products(const SelectProduct& x, const SelectChunk& chunk, TileRows<kRows>& rows,
                      uint16_t* shared, int64_t work)
      : x_(x),
        a_(x.a),
        chunk_(chunk),
        s_(rows),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        down_(warp_ / Shape::kAcross),
        across_(warp_ % Shape::kAcross),
        depth_(Depth ? Depth : x.depth),
        pitch_(depth_ + 8),
        heads_(static_cast<int>(a_.h / a_.g)) {
    split_ = static_cast<int>(work % x.splits);
    const int64_t row_tiles = (chunk.rows * heads_ + kRows - 1) / kRows;
    tile_ = work / x.splits % row_tiles;
    g_ = work / x.splits / row_tiles % a_.g;
    batch_ = work / x.splits / row_tiles / a_.g;
    row_shared_ = shared;
    column_shared_ = shared + x.sides * x.row_parts * kRows * pitch_;
    const int slots = Ring ? kStages : x.parts;
    sums_ = reinterpret_cast<float*>(column_shared_ + slots * kTileColumns * pitch_) +
            warp_ * Shape::kWarpRows * Shape::kPitch;
  }

  __device__ void run() {
    find_rows();
    __syncthreads();
    load_rows();
    if (!x_.statistics && a_.normalise) load_statistics();
    __syncthreads();
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int i = 0; i < M; ++i) load_matrices(held_[k][i], row_address(0, i, k));
    }
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) top_[r] = -INFINITY, sum_[r] = start_of_sum();
    for (int from = 0; from < kRows;) {
      const int sequence = s_.sequence[from];
      int end = from + 1;
      while (end < kRows && s_.sequence[end] == sequence) ++end;
      if (sequence >= 0) segment(from, end);
      from = end;
    }
    if (x_.statistics) store_statistics();
  }

 private:
  __device__ float start_of_sum() const {
    return a_.normalise == FOVEA_X_SELECT_NORMALISE_MINMAX ? INFINITY : 0.f;
  }
  __device__ int64_t list_row(int m) const {
    return (tile_ * kRows + m) / heads_;
  }
  __device__ int64_t head_of(int m) const {
    return g_ * heads_ + (tile_ * kRows + m) % heads_;
  }
  // The rows of the thread: fragment i, half 0 or 1.
  __device__ int own_row(int i, int half) const {
    return down_ * Shape::kWarpRows + i * 16 + half * 8 + lane_ / 4;
  }
  __device__ int own_column(int j) const {
    return across_ * Shape::kWarpColumns + j * 8 + lane_ % 4 * 2;
  }

  __device__ void find_rows() {
    const int m = threadIdx.x;
    if (m >= kRows) return;
    const int64_t i = list_row(m);
    RowSpan at;
    s_.sequence[m] = -1, s_.seen[m] = 0, s_.from[m] = -1;
    if (i >= chunk_.rows || !find_row(a_, chunk_.b0 + batch_, chunk_.n0 + i, at)) return;
    const int64_t head = head_of(m), batch = chunk_.b0 + batch_;
    s_.sequence[m] = at.sequence, s_.seen[m] = at.seen;
    s_.from[m] =
        batch * a_.row.stride[0] + (chunk_.n0 + i) * a_.row.stride[1] + head * a_.row.stride[2];
    const int64_t line = x_.reduced ? head / a_.group() : head;
    s_.to[m] = ((batch_ * chunk_.rows + i) * x_.lines + line) * x_.pitch;
  }

  // Four values as `parts` 16-bit words each, `apart` elements from part to part.
  __device__ void store_parts(uint16_t* to, float4 v, int parts, int apart) const {
    for (int p = 0; p < parts; ++p, to += apart) {
      const uint2 bits = {pack<Dtype>(v.x, v.y), pack<Dtype>(v.z, v.w)};
      *reinterpret_cast<uint2*>(to) = bits;
      const float2 low = pair_of<Dtype>(bits.x), high = pair_of<Dtype>(bits.y);
      const auto rest = [](float all, float part) {
        return fabsf(part) <= FLT_MAX ? all - part : 0.f;
      };
      v = {rest(v.x, low.x), rest(v.y, low.y), rest(v.z, high.x), rest(v.w, high.y)};
    }
  }
  __device__ void load_rows() const {
    const int fours = depth_ / 4;
    for (int e = threadIdx.x; e < kRows * fours; e += kThreads) {
      const int m = e / fours, column = e % fours * 4;
      const float4 q = load_four(x_.row, s_.from[m], column);
      uint16_t* to = row_shared_ + m * pitch_ + column;
      if (x_.sides == 1) {
        store_parts(to, q, x_.row_parts, kRows * pitch_);
        continue;
      }
      const auto high = [](float v) { return v < 0 ? 0.f : v; };
      const auto low = [](float v) { return v < 0 ? v : 0.f; };
      store_parts(to, {high(q.x), high(q.y), high(q.z), high(q.w)}, x_.row_parts, kRows * pitch_);
      store_parts(to + x_.row_parts * kRows * pitch_, {low(q.x), low(q.y), low(q.z), low(q.w)},
                  x_.row_parts, kRows * pitch_);
    }
  }

  __device__ float2* statistic(int split, int m) const {
    return x_.stat + ((split * chunk_.batches + batch_) * chunk_.rows + list_row(m)) * a_.h +
           head_of(m);
  }
  // Of softmax: the largest exponent and one over the sum.  Of max: the largest score.  Of minmax:
  // the least score and the range.
  __device__ void load_statistics() {
    const int m = threadIdx.x;
    if (m >= kRows || s_.sequence[m] < 0) return;
    if (a_.row_lse) {
      const float lse = *a_.row_lse.at(chunk_.b0 + batch_, head_of(m), chunk_.n0 + list_row(m));
      const bool finite = lse > -INFINITY && lse < INFINITY;
      s_.stat[m] = finite ? float2{lse * kLog2E, 1.f} : float2{0.f, 0.f};
      return;
    }
    float2 all = {-INFINITY, start_of_sum()};
    for (int split = 0; split < x_.splits; ++split) {
      const float2 part = *statistic(split, m);
      if (a_.normalise == FOVEA_X_SELECT_NORMALISE_SOFTMAX)
        all = merge_sums(all, part);
      else
        all = {fmaxf(all.x, part.x), fminf(all.y, part.y)};
    }
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_SOFTMAX)
      all.y = __fdiv_rn(1.f, all.y);
    else if (a_.normalise == FOVEA_X_SELECT_NORMALISE_MINMAX)
      all = {all.y, all.x - all.y <= 1e-6f ? 1.f : all.x - all.y};
    s_.stat[m] = all;
  }
  __device__ void store_statistics() {
    const bool exponents = a_.normalise == FOVEA_X_SELECT_NORMALISE_SOFTMAX;
    const auto merge = [&](float2 x, float2 y) {
      return exponents ? merge_sums(x, y) : float2{fmaxf(x.x, y.x), fminf(x.y, y.y)};
    };
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) {
      float2 own = {top_[r], sum_[r]};
#pragma unroll
      for (int step = 1; step < 4; step *= 2)
        own = merge(own,
                    float2{__shfl_xor_sync(~0u, own.x, step), __shfl_xor_sync(~0u, own.y, step)});
      if (lane_ % 4 == 0) s_.part[across_][own_row(r / 2, r % 2)] = own;
    }
    __syncthreads();
    const int m = threadIdx.x;
    if (m >= kRows || s_.sequence[m] < 0) return;
    float2 all = s_.part[0][m];
    for (int w = 1; w < Shape::kAcross; ++w) all = merge(all, s_.part[w][m]);
    *statistic(split_, m) = all;
  }

  __device__ uint32_t row_address(int part, int i, int k) const {
    const int row = part * kRows + down_ * Shape::kWarpRows + i * 16 + outer_row(lane_);
    return shared_address(row_shared_ + row * pitch_ + k * 16 + outer_chunk(lane_) * 8);
  }
  __device__ uint32_t column_address(int slot, int j, int k) const {
    const int column =
        slot * kTileColumns + across_ * Shape::kWarpColumns + j * 16 + inner_row(lane_);
    return shared_address(column_shared_ + column * pitch_ + k * 16 + inner_chunk(lane_) * 8);
  }

  // A tile of columns as it lies in memory.
  __device__ void copy_tile(const RowSpan& at, int tile, int side, int slot) const {
    const int chunks = depth_ / 8;
    const View<4>& view = side ? a_.column_low : a_.column;
    const uint16_t* base = static_cast<const uint16_t*>(view.data) + at.key_b * view.stride[0] +
                           at.first_column * view.stride[1] + g_ * view.stride[2];
    const uint32_t to = shared_address(column_shared_ + slot * kTileColumns * pitch_);
#pragma unroll 4
    for (int e = threadIdx.x; e < kTileColumns * chunks; e += kThreads) {
      const int n = e / chunks, chunk = e % chunks, c = tile * kTileColumns + n;
      const bool valid = c < at.columns && chunk * 8 < x_.column[0].width;
      copy_async(to + (n * pitch_ + chunk * 8) * 2,
                 valid ? base + c * view.stride[1] + chunk * 8 : base, valid);
    }
  }
  __device__ void convert_tile(const RowSpan& at, int tile, int side) const {
    const int fours = depth_ / 4;
    const View<4>& view = side ? a_.column_low : a_.column;
    for (int e = threadIdx.x; e < kTileColumns * fours; e += kThreads) {
      const int n = e / fours, column = e % fours * 4, c = tile * kTileColumns + n;
      const int64_t from =
          at.key_b * view.stride[0] + (at.first_column + c) * view.stride[1] + g_ * view.stride[2];
      store_parts(column_shared_ + n * pitch_ + column,
                  load_four(x_.column[side], c < at.columns ? from : -1, column), x_.parts,
                  kTileColumns * pitch_);
    }
  }

  // acc += the rows' parts of a side times a tile's.
  __device__ void multiply(float (&acc)[M][N][4], int side, int slot) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int j = 0; j < N / 2; ++j) {
          uint32_t b[4];
          load_matrices(b, column_address(slot, j, k));
#pragma unroll
          for (int i = 0; i < M; ++i) {
            mma<Dtype>(acc[i][2 * j], held_[k][i], b[0], b[1]);
            mma<Dtype>(acc[i][2 * j + 1], held_[k][i], b[2], b[3]);
          }
        }
    } else {
      const int most = x_.row_parts > x_.parts ? x_.row_parts : x_.parts;
      for (int p = 0; p < x_.parts; ++p)
        for (int r = 0; r < x_.row_parts && r + p < most; ++r)
#pragma unroll 4
          for (int k = 0; k < depth_ / 16; ++k) {
            uint32_t rows[M][4];
#pragma unroll
            for (int i = 0; i < M; ++i)
              load_matrices(rows[i], row_address(side * x_.row_parts + r, i, k));
#pragma unroll
            for (int j = 0; j < N / 2; ++j) {
              uint32_t b[4];
              load_matrices(b, column_address(slot + p, j, k));
#pragma unroll
              for (int i = 0; i < M; ++i) {
                mma<Dtype>(acc[i][2 * j], rows[i], b[0], b[1]);
                mma<Dtype>(acc[i][2 * j + 1], rows[i], b[2], b[3]);
              }
            }
          }
    }
  }

  // Rows [from, end) of the tile, of one sequence, by the split's columns.
  __device__ void segment(int from, int end) {
    RowSpan at;
    find_row(a_, chunk_.b0 + batch_, chunk_.n0 + list_row(from), at);
    const int seen = s_.seen[end - 1];  // no row of the sequence before it sees more
    const int tiles = (seen + kTileColumns - 1) / kTileColumns, first = split_ * x_.tiles;
    const int last = tiles < first + x_.tiles ? tiles : first + x_.tiles;
    const int items = (last - first) * x_.sides;
    if (items <= 0) return;
    const auto tile_of = [&](int item) { return first + (x_.sides == 2 ? item / 2 : item); };
    const auto side_of = [&](int item) { return x_.sides == 2 ? item % 2 : 0; };
    if constexpr (Ring) {
#pragma unroll
      for (int item = 0; item < kStages - 1; ++item) {
        if (item < items) copy_tile(at, tile_of(item), side_of(item), item);
        copy_commit();
      }
    }
    float acc[M][N][4];
    int slot = 0, next = kStages - 1;
    for (int item = 0; item < items; ++item) {
      const int side = side_of(item);
      if (side == 0) {
#pragma unroll
        for (int i = 0; i < M; ++i)
#pragma unroll
          for (int j = 0; j < N; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[i][j][e] = 0;
      }
      if constexpr (Ring) {
        copy_wait<kStages - 2>();
        __syncthreads();
        const int ahead = item + kStages - 1;
        if (ahead < items) copy_tile(at, tile_of(ahead), side_of(ahead), next);
        copy_commit();
        multiply(acc, side, slot);
        slot = slot + 1 == kStages ? 0 : slot + 1, next = next + 1 == kStages ? 0 : next + 1;
      } else {
        __syncthreads();
        convert_tile(at, tile_of(item), side);
        __syncthreads();
        multiply(acc, side, 0);
      }
      if (side + 1 < x_.sides) continue;
      const int column = tile_of(item) * kTileColumns;
      const bool whole = column + kTileColumns <= s_.seen[from] && from == 0 && end == kRows &&
                         !a_.block_mask && !a_.column_forced;
      if (!whole) hide(acc, at, from, end, column);
      if (x_.statistics)
        gather(acc);
      else
        store(acc, from, end, column);
    }
    copy_wait<0>();
    __syncthreads();
  }

  // -inf where a column is not eligible.
  __device__ void hide(float (&acc)[M][N][4], const RowSpan& at, int from, int end,
                       int column) const {
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = own_row(i, half);
        const int seen = m >= from && m < end ? s_.seen[m] : 0;
        const uint8_t* mask = nullptr;
        if (a_.block_mask && seen)
          mask = a_.block_mask.template at<uint8_t>(chunk_.b0 + batch_, head_of(m) / a_.group(),
                                                    chunk_.n0 + list_row(m));
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int c = column + own_column(j) + e;
            bool eligible = c < seen;
            if (eligible && mask) eligible = mask[c / 8 * a_.block_mask.stride[3]] >> (c % 8) & 1;
            if (eligible && a_.column_forced)
              eligible =
                  !(*a_.column_forced.template at<uint8_t>(at.key_b, g_, at.first_column + c) & 2);
            if (!eligible) acc[i][j][2 * half + e] = -INFINITY;
          }
      }
  }

  __device__ void gather(const float (&acc)[M][N][4]) {
    const float unit = a_.scale * kLog2E;
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) {
      const int i = r / 2, half = r % 2;
      if (a_.normalise != FOVEA_X_SELECT_NORMALISE_SOFTMAX) {
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float s = a_.scored_as(acc[i][j][2 * half + e]);
            top_[r] = fmaxf(top_[r], s);
            if (s > -INFINITY) sum_[r] = fminf(sum_[r], s);
          }
        continue;
      }
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < N; ++j)
        most = fmaxf(most, fmaxf(acc[i][j][2 * half], acc[i][j][2 * half + 1]));
      const float top = fminf(fmaxf(top_[r], most * unit), kLargest);
      const float base = top == -INFINITY ? 0.f : top;
      float part = 0;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) part += exp2_fast(fmaf(acc[i][j][2 * half + e], unit, -base));
      if (!(part < kLargest)) {  // NaN, which counts as -inf, or an infinity
        part = 0;
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float s = fminf(fmaxf(acc[i][j][2 * half + e] * unit, -INFINITY), kLargest);
            part += exp2_fast(s - base);
          }
      }
      sum_[r] = fmaf(sum_[r], exp2_fast(top_[r] - base), part);
      top_[r] = top;
    }
  }

  // What a product becomes in the row of `stat`.
  template <bool Softmax>
  __device__ __forceinline__ float normalised(float product, float unit, float2 stat) const {
    if constexpr (Softmax) {
      const float p = exp2_fast(fminf(fmaf(product, unit, -stat.x), 0.f)) * stat.y;
      return product > -INFINITY ? p : -INFINITY;
    }
    const float s = a_.scored_as(product);
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_NONE || s == -INFINITY) return s;
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_MAX)
      return stat.x > 0 ? pick_score(__fdiv_rn(s, stat.x)) : s;
    return pick_score(__fdiv_rn(s - stat.x, stat.y));
  }

  template <bool Softmax>
  __device__ __forceinline__ void put(const float (&acc)[M][N][4], int from, int end,
                                      int column) const {
    const float unit = a_.scale * kLog2E;
    const bool reduced = x_.reduced;
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = own_row(i, half);
        const bool there = m >= from && m < end;
        const float2 stat = s_.stat[m];
        float* const to =
            reduced ? sums_ + (i * 16 + half * 8 + lane_ / 4) * Shape::kPitch + lane_ % 4 * 2
                    : x_.score + s_.to[m] + column + own_column(0);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float2 out = {normalised<Softmax>(acc[i][j][2 * half], unit, stat),
                              normalised<Softmax>(acc[i][j][2 * half + 1], unit, stat)};
          if (reduced || (there && column + own_column(j) < x_.pitch))
            *reinterpret_cast<float2*>(to + j * 8) = out;
        }
      }
  }
  __device__ void store(const float (&acc)[M][N][4], int from, int end, int column) const {
    if (x_.reduced) __syncwarp();
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_SOFTMAX)
      put<true>(acc, from, end, column);
    else
      put<false>(acc, from, end, column);
    if (!x_.reduced) return;
    __syncwarp();
    const int group = static_cast<int>(a_.group());
    for (int e = lane_; e < Shape::kWarpRows / group * Shape::kWarpColumns; e += 32) {
      const int first = e / Shape::kWarpColumns * group, n = e % Shape::kWarpColumns;
      const int m = down_ * Shape::kWarpRows + first;
      const int c = column + across_ * Shape::kWarpColumns + n;
      if (m < from || m >= end || c >= x_.pitch) continue;
      float sum = sums_[first * Shape::kPitch + n];
      for (int k = 1; k < group; ++k) {
        const float v = sums_[(first + k) * Shape::kPitch + n];
        sum = a_.reduce == FOVEA_X_SELECT_REDUCE_MAX ? fmaxf(sum, v) : __fadd_rn(sum, v);
      }
      sum = pick_score(sum);
      if (a_.reduce == FOVEA_X_SELECT_REDUCE_MEAN) sum = __fdiv_rn(sum, static_cast<float>(group));
      x_.score[s_.to[m] + c] = sum;
    }
  }

  const SelectProduct& x_;
  const SelectBlock& a_;
  const SelectChunk& chunk_;
  TileRows<kRows>& s_;
  uint16_t *row_shared_, *column_shared_;
  float* sums_;
  const int warp_, lane_, down_, across_, depth_, pitch_, heads_;
  int split_;
  int64_t tile_, g_, batch_;
  uint32_t held_[kSteps][M][4];
  float top_[2 * M], sum_[2 * M];
};

template <int Dtype, int Fragments, int Depth, bool Ring>
__global__ void __launch_bounds__(kThreads, 3)
    products_kernel(const __grid_constant__ SelectProduct x,
                    const __grid_constant__ SelectChunk chunk) {
  extern __shared__ __align__(16) uint16_t s_dynamic[];
  __shared__ TileRows<TileShape<Fragments>::kRows> s_rows;
  pdl_wait();
  pdl_trigger();
  Products<Dtype, Fragments, Depth, Ring>(x, chunk, s_rows, s_dynamic, blockIdx.x).run();
}

template <int Dtype, int Fragments, int Depth, bool Ring>
void run_products(Context& ctx, const ProductPlan& plan, const SelectProduct& x,
                  const SelectChunk& chunk) {
  const int64_t work = chunk.batches * x.a.g * plan.row_tiles(chunk.rows) * x.splits;
  launch_pdl<products_kernel<Dtype, Fragments, Depth, Ring>>(ctx, kOp, work, kThreads,
                                                             plan.shared_bytes, x, chunk);
}

template <int Dtype>
void run_ring(Context& ctx, const ProductPlan& plan, const SelectProduct& x,
              const SelectChunk& chunk) {
  if (plan.held && x.depth == 128) return run_products<Dtype, 2, 128, true>(ctx, plan, x, chunk);
  if (plan.held) return run_products<Dtype, 2, 64, true>(ctx, plan, x, chunk);
  if (plan.fragments == 1 && x.depth == 128)
    return run_products<Dtype, 1, 128, true>(ctx, plan, x, chunk);
  if (plan.fragments == 1) return run_products<Dtype, 1, 0, true>(ctx, plan, x, chunk);
  run_products<Dtype, 2, 0, true>(ctx, plan, x, chunk);
}

}  // namespace
}  // namespace fovea::cuda
