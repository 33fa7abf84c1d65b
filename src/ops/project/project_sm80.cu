// SPDX-License-Identifier: Apache-2.0
// x_project on tensor cores: one layer of f16 or bf16 rows, sums in f32.
//   C = A B, z times; steps.h has the formulas that it serves
// A block owns a part of the sums of a tile of Rows x 128 elements of C.  Its eight warps own 64 x
// 32 elements each, or 32 x 16 where Rows is 32.  A step has 64 terms. Each operand lies in shared
// memory as it lies in memory, so that copies are whole pieces:
//   A  [row][term], or [term][row] of a gradient of weights
//   B  [term][column], or [column][term] of a gradient of x
//
// Shared memory: three stages of A and B, swizzled; then a tile of sums that a bias, a slope or an
// addition changes.
// Barriers: one __syncthreads() a step.  All threads arrive with their copies of the step landed.
// Behind it the step may be read, and the stage before it may be written.
#include <algorithm>

#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "ops/project/product.cuh"
#include "ops/project/project.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256, kColumns = 128, kTerms = 64, kStages = 3;
constexpr int kPitch = kColumns + 8;  // of a row of sums
constexpr int kFewRows = 32, kManyRows = 128;
constexpr int kCopied = kThreads / kPanelChunks;  // rows that the threads copy at once

template <int Rows, Turned T>
struct Shape {
  static constexpr bool kTermsA = T == Turned::a, kTermsB = T != Turned::b;
  using A = Swizzled<kTermsA ? kTerms : Rows, kTermsA ? Rows : kTerms>;
  using B = Swizzled<kTermsB ? kTerms : kColumns, kTermsB ? kColumns : kTerms>;
  static constexpr int kStage = A::bytes + B::bytes, kBytes = kStages * kStage;
  // Rows and columns of a warp, in fragments of 16 and of 8.
  static constexpr int kAcross = Rows == kFewRows ? 8 : 4;
  static constexpr int M = Rows / (8 / kAcross) / 16, N = kColumns / kAcross / 8;
};

// An axis whose first `limit` indices lie `stride` apart: most calls need no division.
struct Line {
  ProjectAxis axis;
  int64_t origin, stride, limit;

  Line(const ProjectAxis& axis, int64_t count) : axis(axis) {
    const int64_t s = std::max<int64_t>(axis.s, 1), first = axis.first_row % s;
    origin = axis.first_row / s * axis.stride[0] + first * axis.stride[1];
    if (axis.width == 1 && axis.heads == 1 && count > 1) {
      const bool even = s < INT64_MAX && axis.stride[0] == s * axis.stride[1];
      stride = axis.stride[1], limit = even ? count : std::min(count, s - first);
    } else {
      stride = axis.stride[3], limit = std::min(count, axis.width);
    }
  }
};

// Its divisions are code that is wanted once.
__device__ __noinline__ int64_t divided(const ProjectAxis& axis, int64_t z, int64_t i) {
  return axis.at(z, i);
}
__device__ inline int64_t divided(int64_t a, int64_t b) {
  if ((a | b) >> 32) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

// A line in product z.
struct Run {
  const ProjectAxis& axis;
  int64_t z, base, stride, limit;
  __device__ Run(const Line& line, int64_t z)
      : axis(line.axis),
        z(z),
        base(line.origin + divided(z * line.axis.step, line.axis.share) * line.axis.stride[2]),
        stride(line.stride),
        limit(line.limit) {}
  __device__ int64_t at(int64_t i) const {
    return i < limit ? base + i * stride : divided(axis, z, i);
  }
};

// Copies of an operand whose rows are rows or columns of C: each thread has the same rows each
// step.
template <class Tile, int Rows>
class OwnRows {
 public:
  __device__ OwnRows(const void* data, const Line& own, const Line& terms, int64_t z, int64_t first,
                     int count)
      : data_(static_cast<const uint16_t*>(data)), run_(terms, z), count_(count) {
    const Run rows(own, z);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = threadIdx.x / kPanelChunks + i * kCopied;
      row_[i] = row < count ? rows.at(first + row) : 0;
    }
  }
  __device__ void copy(uint32_t to, int64_t term, int64_t end) const {
    const int lane = threadIdx.x % kPanelChunks;
    const bool there = term + lane * kChunk < end;
    const int64_t at = there ? run_.at(term + lane * kChunk) : 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = threadIdx.x / kPanelChunks + i * kCopied;
      const bool valid = there && row < count_;
      copy_async(to + Tile::at(row, lane), valid ? data_ + row_[i] + at : data_, valid);
    }
  }

 private:
  static constexpr int kEach = Rows / kCopied;
  const uint16_t* data_;
  Run run_;
  int64_t row_[kEach];
  int count_;
};

// Copies of an operand whose rows are terms: each thread has the same chunks each step.
template <class Tile, int Columns>
class TermRows {
 public:
  __device__ TermRows(const void* data, const Line& own, const Line& terms, int64_t z,
                      int64_t first, int count)
      : data_(static_cast<const uint16_t*>(data)),
        run_(terms, z),
        columns_(Run(own, z).at(first)),
        count_(count) {}
  __device__ void copy(uint32_t to, int64_t term, int64_t end) const {
    const int lane = threadIdx.x % kPanelChunks;
#pragma unroll
    for (int i = 0; i < kTerms / kCopied; ++i) {
      const int row = threadIdx.x / kPanelChunks + i * kCopied;
      const bool there = term + row < end;
      const uint16_t* from = there ? data_ + columns_ + run_.at(term + row) : data_;
#pragma unroll
      for (int panel = 0; panel < (Columns + 63) / 64; ++panel) {
        const int chunk = panel * kPanelChunks + lane;
        if (Columns % 64 && chunk * kChunk >= Columns) continue;
        const bool valid = there && chunk * kChunk < count_;
        copy_async(to + Tile::at(row, chunk), valid ? from + chunk * kChunk : data_, valid);
      }
    }
  }

 private:
  const uint16_t* data_;
  Run run_;
  int64_t columns_;
  int count_;
};

// A warp's part of a step's products.
template <int Dtype, class S>
struct Fragments {
  static constexpr int M = S::M, N = S::N;
  float sums[M][N][4] = {};
  uint32_t a, b;  // the lane's addresses in stage 0

  __device__ explicit Fragments(uint32_t stage) {
    const int lane = threadIdx.x % 32;
    const int rows = row(), columns = column(), outer = outer_row(lane);
    a = stage + (S::kTermsA ? S::A::at(inner_row(lane), rows / kChunk + inner_chunk(lane))
                            : S::A::at(rows + outer, outer_chunk(lane)));
    b = stage + S::A::bytes +
        (S::kTermsB ? S::B::at(outer, columns / kChunk + outer_chunk(lane))
                    : S::B::at(columns + inner_row(lane), inner_chunk(lane)));
  }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int row() { return warp() / S::kAcross * M * 16; }
  __device__ static int column() { return warp() % S::kAcross * N * 8; }

  __device__ void step(uint32_t stage) {
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k) {
      uint32_t ra[M][4];
#pragma unroll
      for (int i = 0; i < M; ++i)
        if constexpr (S::kTermsA)
          load_matrices_transposed(ra[i], S::A::pair(a + stage, i) + k * 16 * kPanelRowBytes);
        else
          load_matrices(ra[i], S::A::pair(a + stage, k) + i * 16 * kPanelRowBytes);
#pragma unroll
      for (int j = 0; j < N / 2; ++j) {
        uint32_t rb[4];
        if constexpr (S::kTermsB)
          load_matrices_transposed(rb, S::B::pair(b + stage, j) + k * 16 * kPanelRowBytes);
        else
          load_matrices(rb, S::B::pair(b + stage, k) + j * 16 * kPanelRowBytes);
#pragma unroll
        for (int i = 0; i < M; ++i) {
          mma<Dtype>(sums[i][2 * j], ra[i], rb[0], rb[1]);
          mma<Dtype>(sums[i][2 * j + 1], ra[i], rb[2], rb[3]);
        }
      }
    }
  }
};

// Two neighbouring elements of C.
template <int Dtype>
__device__ __forceinline__ void store_two(const ProjectMatrix& c, int64_t at, float x, float y) {
  if (c.dtype == FOVEA_F32)
    *reinterpret_cast<float2*>(static_cast<float*>(c.data) + at) = make_float2(x, y);
  else
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(c.data) + at) = pack<Dtype>(x, y);
}

// Where sums go: to C as they are, eight columns at once or two; to their part; or through shared
// memory to what changes them.
enum class Sums { eight, two, part, changed };

struct Tiles {
  int64_t work, down, across;
  Sums to;
  Line a_row, a_term, b_term, b_column, c_row, c_column;
};

template <int Dtype, int Rows, Turned T>
__global__ void __launch_bounds__(kThreads, 2)
    product_kernel(const __grid_constant__ ProjectProduct p, float* parts,
                   const __grid_constant__ Tiles tiles) {
  using S = Shape<Rows, T>;
  extern __shared__ __align__(1024) unsigned char s_stages[];
  const uint32_t stages = shared_address(s_stages);
  auto* const tile = reinterpret_cast<float*>(s_stages);  // of sums that are to be changed
  for (int64_t w = blockIdx.x; w < tiles.work; w += gridDim.x) {
    const int64_t block = divided(w, tiles.across), product = divided(block, tiles.down);
    const int64_t part = divided(product, p.z), z = product - part * p.z;
    const int64_t n0 = (w - block * tiles.across) * kColumns;
    const int64_t m0 = (block - product * tiles.down) * Rows;
    const int rows = static_cast<int>(min(int64_t{Rows}, p.m - m0));
    const int columns = static_cast<int>(min(int64_t{kColumns}, p.n - n0));
    const int64_t begin = part * p.each(), end = min(p.k, begin + p.each());
    using CopyA =
        std::conditional_t<S::kTermsA, TermRows<typename S::A, Rows>, OwnRows<typename S::A, Rows>>;
    using CopyB = std::conditional_t<S::kTermsB, TermRows<typename S::B, kColumns>,
                                     OwnRows<typename S::B, kColumns>>;
    const CopyA copy_a(p.a.data, tiles.a_row, tiles.a_term, z, m0, rows);
    const CopyB copy_b(p.b.data, tiles.b_column, tiles.b_term, z, n0, columns);
    const auto copy = [&](int64_t term, int stage) {
      const uint32_t to = stages + stage * S::kStage;
      if (term < end) copy_a.copy(to, term, end), copy_b.copy(to + S::A::bytes, term, end);
      copy_commit();
    };
    copy(begin, 0), copy(begin + kTerms, 1);
    Fragments<Dtype, S> own(stages);
    int stage = 0;
    for (int64_t k = begin; k < end; k += kTerms) {
      copy_wait<1>();
      __syncthreads();
      copy(k + 2 * kTerms, stage == 0 ? 2 : stage - 1);
      own.step(stage * S::kStage);
      stage = stage == 2 ? 0 : stage + 1;
    }
    copy_wait<0>();
    __syncthreads();  // the next tile's copies may begin

    const Run c_row(tiles.c_row, z), c_column(tiles.c_column, z);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2 * S::M; ++i) {
      const int in_tile = own.row() + i / 2 * 16 + i % 2 * 8 + lane / 4;
      const int64_t m = m0 + in_tile;
      const float(&sums)[S::N][4] = own.sums[i / 2];
      if (tiles.to == Sums::eight) {
        if constexpr (S::N == 4) {
          uint32_t words[4];
          for (int j = 0; j < 4; ++j)
            words[j] = pack<Dtype>(sums[j][i % 2 * 2], sums[j][i % 2 * 2 + 1]);
          quad_transpose(words);
          const int64_t n = n0 + own.column() + lane % 4 * 8;
          if (m < p.m && n < p.n)
            *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.c.data) + c_row.at(m) +
                                      c_column.at(n)) =
                make_uint4(words[0], words[1], words[2], words[3]);
        }
        continue;
      }
      if (m >= p.m) continue;
      const int64_t row = tiles.to == Sums::two ? c_row.at(m) : ((part * p.z + z) * p.m + m) * p.n;
#pragma unroll
      for (int j = 0; j < S::N; ++j) {
        const int across = own.column() + j * 8 + lane % 4 * 2;
        const float x = sums[j][i % 2 * 2], y = sums[j][i % 2 * 2 + 1];
        if (n0 + across >= p.n) continue;
        if (tiles.to == Sums::two)
          store_two<Dtype>(p.c, row + c_column.at(n0 + across), x, y);
        else
          *reinterpret_cast<float2*>(tiles.to == Sums::part ? parts + row + n0 + across
                                                            : tile + in_tile * kPitch + across) =
              make_float2(x, y);
      }
    }
    if (tiles.to != Sums::changed) continue;
    __syncthreads();
#pragma unroll 1
    for (int e = threadIdx.x; e < rows * columns; e += kThreads) {
      const int row = e / columns, across = e - row * columns;
      project_store(p, z, n0 + across, c_row.at(m0 + row) + c_column.at(n0 + across),
                    tile[row * kPitch + across]);
    }
    __syncthreads();
  }
}

// Whether C takes pieces of `piece` elements at once, as they are.
template <int Dtype>
bool takes(const ProjectProduct& p, int64_t piece, int64_t bytes) {
  if (p.bias || p.slope || p.add || p.c.column.stride[3] != 1) return false;
  if (p.c.dtype != FOVEA_F32 && p.c.dtype != Dtype) return false;
  if (reinterpret_cast<uintptr_t>(p.c.data) % bytes || p.c.column.stride[2] % piece) return false;
  for (const int64_t stride : p.c.row.stride)
    if (stride % piece) return false;
  return true;
}

template <int Dtype, int Rows, Turned T>
void launch_tiles(Context& ctx, const char* op, const ProjectProduct& p, float* parts) {
  const int64_t down = ceil_div(p.m, Rows), across = ceil_div(p.n, kColumns);
  const int64_t work = p.parts * p.z * down * across;
  if (!work) return;
  const bool half = p.c.dtype == Dtype;
  const Sums to = p.parts > 1                                                ? Sums::part
                  : Shape<Rows, T>::N == 4 && half && takes<Dtype>(p, 8, 16) ? Sums::eight
                  : takes<Dtype>(p, 2, 8)                                    ? Sums::two
                                                                             : Sums::changed;
  const Tiles tiles{work,           down,
                    across,         to,
                    {p.a.row, p.m}, {p.a.column, p.k},
                    {p.b.row, p.k}, {p.b.column, p.n},
                    {p.c.row, p.m}, {p.c.column, p.n}};
  launch<product_kernel<Dtype, Rows, T>>(ctx, op, tiles.work, kThreads, Shape<Rows, T>::kBytes, p,
                                         parts, tiles);
  project_add_parts(ctx, op, p, parts);
}

template <int Dtype>
void launch_product(Context& ctx, const char* op, const ProjectProduct& p, float* parts) {
  const bool few = p.m <= kFewRows;
  if (p.a.row.stride[3] == 1)
    launch_tiles<Dtype, kManyRows, Turned::a>(ctx, op, p, parts);
  else if (p.b.row.stride[3] == 1)
    few ? launch_tiles<Dtype, kFewRows, Turned::b>(ctx, op, p, parts)
        : launch_tiles<Dtype, kManyRows, Turned::b>(ctx, op, p, parts);
  else
    few ? launch_tiles<Dtype, kFewRows, Turned::neither>(ctx, op, p, parts)
        : launch_tiles<Dtype, kManyRows, Turned::neither>(ctx, op, p, parts);
}

// A bias's gradient is a sum, without an operand.
void product(Context& ctx, const char* op, const ProjectProduct& p, float* parts) {
  if (!p.a.data)
    project_product(ctx, op, p, parts);
  else if (p.a.dtype == FOVEA_F16)
    launch_product<FOVEA_F16>(ctx, op, p, parts);
  else
    launch_product<FOVEA_BF16>(ctx, op, p, parts);
}

Text refuses(const Context& ctx, const Project& a, bool backward) {
  if (device_info(ctx).arch < 80) return reason_capability(device_info(ctx).arch, "8.0 or more");
  if (a.dtype != FOVEA_F16 && a.dtype != FOVEA_BF16) return reason_dtype(a.dtype);
  if (a.layers > 1) return reason_given("weight2");
  if (!a.width[0]) return reason("d", 0, "at least 8");
  if (Text why = refuse_width("d", a.width[0], 8); !why.empty()) return why;
  if (Text why = refuse_width("f", a.f(), 8); !why.empty()) return why;
  const int64_t many = 2;
  const View<3>& w = a.layer[0].weight;
  if (!in_pieces(a.x, {a.b, a.s, a.g}, 8)) return reason_rows("x");
  if (!in_pieces({w.data, {0, w.stride[0], w.stride[1], w.stride[2]}}, {1, a.maps, many}, 8))
    return reason_rows("weight");
  if (!backward) return "";
  if (a.norm_weight) return reason_given("norm_weight");
  if (a.rope.half) return reason_given("cos");
  if (a.y_dtype != a.dtype) return reason_dtype("dy.dtype", a.y_dtype, a.dtype, "x");
  return in_pieces(a.y, {a.b, a.s, a.h}, 8) ? Text() : reason_rows("dy");
}

}  // namespace
}  // namespace cuda

namespace {

template <bool Backward>
Text offer(const Context& ctx, const Project& a, Plan& plan) {
  if (Text why = cuda::refuses(ctx, a, Backward); !why.empty()) return why;
  cuda::project_offer<cuda::product>(a, Backward, plan);
  return "";
}

}  // namespace

extern const Kernel<Project> project_forward_sm80 = {"sm80", offer<false>};
extern const Kernel<Project> project_backward_sm80 = {"sm80", offer<true>};

}  // namespace fovea
