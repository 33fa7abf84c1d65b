// SPDX-License-Identifier: Apache-2.0
// The sweep over caches of 8-bit codes (sm_80 and up): o = softmax(scores(q (ks k)') + mask) (vs v).
//   A block owns up to 64 packed rows of one sequence and key head, and one split of its keys.
//   Mainloop: tiles of 64 keys, from last to first, through a ring of Stages tiles (cp.async).
//   A warp has 16 rows.  Where rows are fewer than 64, several warps have the same rows, and each
//   takes other slices of 16 keys; they merge at the end, in order.
//   Codes become 16 bits on their way from shared memory to mma.sync (tile/codes_sm80.cuh).
//   Scales of keys multiply scores, those of values weights.  In f16 weights would lose small
//   ones, so o is kept in units of the largest scale that the row's warp has met.
//
//   | barrier          | what it says                                               |
//   | before each tile | it has landed, and the stage to be filled next is free     |
//   | before the merge | the ring is free for the warps' sums; then: they are there |
//
// Policies: Score and Mask (tile_policy.cuh), Epilogue (epilogue.cuh), Codes (codes_sm80.cuh).
#pragma once
#include <new>

#include "cuda/block/softmax.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/load.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/tile/codes_sm80.cuh"
#include "cuda/tile/copy.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, int Stages_, int Blocks_>
struct CodesShape {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, Stages = Stages_, Blocks = Blocks_;
  static constexpr int Warps = 4, threads = 32 * Warps, rows = 16 * Warps;
  using TileK = Swizzled<kTileKeys, D / 2>;
  using TileV = Swizzled<kTileKeys, E / 2>;
  static constexpr int stage_bytes = TileK::bytes + TileV::bytes;
  static constexpr int sums_bytes = Warps * 16 * E * 4;
  static constexpr int ring_bytes =
      Stages * stage_bytes > sums_bytes ? Stages * stage_bytes : sums_bytes;
  static constexpr int offset_bytes = 2 * 2 * kTileKeys * 8;
  static constexpr int scale_bytes = Stages * 2 * kTileKeys * 4;
  static constexpr int absent_bytes = Stages * 8;
  static constexpr int shared_bytes = ring_bytes + offset_bytes + scale_bytes + absent_bytes;
};

// A block's ring of tiles.  Threads 0 .. 63 look up the keys of a tile, 64 .. 127 its values, one
// tile before it is copied: the page table's latency passes under a tile's products.
template <class Shape>
class CodeRing {
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;

 public:
  __device__ CodeRing(const Attend& a, const RowTile& tile, unsigned char* shared)
      : a(a),
        q(tile.rows.seq),
        keys(tile.keys),
        ring(shared_address(shared)),
        row(threadIdx.x % kTileKeys),
        value(threadIdx.x / kTileKeys),
        scale(value ? a.v_scale : a.k_scale),
        stride(value ? a.v.stride : a.k.stride) {
    unsigned char* at = shared + Shape::ring_bytes;
    offset = reinterpret_cast<int64_t(*)[2][kTileKeys]>(at);
    scales = reinterpret_cast<float(*)[2][kTileKeys]>(at + Shape::offset_bytes);
    missing = reinterpret_cast<uint32_t(*)[2]>(at + Shape::offset_bytes + Shape::scale_bytes);
    const int64_t g = tile.key_head(a);
    k = static_cast<const uint8_t*>(a.k.data) + g * a.k.stride[2];
    v = static_cast<const uint8_t*>(a.v.data) + g * a.v.stride[2];
    if (scale)
      factors = scale.as() + g * scale.stride[2];
    else
      for (int stage = 0; stage < Shape::Stages; ++stage) scales[stage][value][row] = 1.f;
  }

  // Finds where the keys of a tile lie; store_places() keeps it for load().
  __device__ __forceinline__ void find(int tile) {
    const int j = tile * kTileKeys + row;
    place = scale_place = -1;
    if (j >= keys) return;
    place = a.sequences.key_offset(q, j, stride);
    if (scale && place >= 0) scale_place = a.sequences.key_offset(q, j, scale.stride);
  }
  __device__ __forceinline__ void store_places(int slot) { offset[slot][value][row] = place; }

  // Copies the tile that was found last.
  __device__ __forceinline__ void load(int slot, int stage) {
    const uint32_t to = ring + stage * Shape::stage_bytes;
    copy<TileK, Shape::D>(to, static_cast<int>(a.d), k, offset[slot][0]);
    copy<TileV, Shape::E>(to + TileK::bytes, static_cast<int>(a.e), v, offset[slot][1]);
    if (scale) {
      const float* from = factors + max(scale_place, int64_t{0});
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                       shared_address(&scales[stage][value][row])),
                   "l"(from), "r"(scale_place < 0 ? 0 : 4)
                   : "memory");
    }
    const uint32_t none = __ballot_sync(~0u, place < 0);
    if (threadIdx.x < kTileKeys && threadIdx.x % 32 == 0) missing[stage][threadIdx.x / 32] = none;
  }

  __device__ uint32_t key_tile(int stage) const { return ring + stage * Shape::stage_bytes; }
  __device__ uint32_t value_tile(int stage) const { return key_tile(stage) + TileK::bytes; }
  // Scales of the keys or the values of a stage.
  __device__ const float* scales_of(int stage, int of_values) const {
    return scales[stage][of_values];
  }
  // Bit i: key i of the slice has no page, or is past the last.
  __device__ uint32_t absent(int stage, int slice) const {
    return missing[stage][slice / 2] >> (slice % 2 * 16) & 0xffff;
  }

 private:
  // Eight neighbouring threads copy 128 codes of a row.
  template <class Tile, int Width>
  __device__ __forceinline__ static void copy(uint32_t to, int width, const uint8_t* from,
                                              const int64_t* places) {
    constexpr int kStep = Shape::threads / kPanelChunks;
    const int lane = threadIdx.x % kPanelChunks;
#pragma unroll
    for (int i = 0; i < kTileKeys / kStep; ++i) {
      const int row = threadIdx.x / kPanelChunks + i * kStep;
      const int64_t place = places[row];
#pragma unroll
      for (int panel = 0; panel < Tile::panels; ++panel) {
        const int chunk = panel * kPanelChunks + lane;
        const bool valid = place >= 0 && chunk * 16 < width;
        if (Width % 128 == 0 || chunk * 16 < Width)
          copy_async(to + Tile::at(row, chunk), valid ? from + place + chunk * 16 : from, valid);
      }
    }
  }

  const Attend& a;
  const Sequence& q;
  const int keys;
  const uint32_t ring;
  const int row, value;
  const View<4>& scale;
  const int64_t* stride;
  const uint8_t *k, *v;
  const float* factors = nullptr;
  int64_t (*offset)[2][kTileKeys];
  float (*scales)[2][kTileKeys];
  uint32_t (*missing)[2];
  int64_t place = -1, scale_place = -1;
};

// 16 rows of a warp: their q, and their sums over the slices of 16 keys that the warp takes.
template <class Shape, class Codes, class Score, class Mask>
class CodesWarp {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;

 public:
  float o[1][E / 8][4] = {};
  OnlineSoftmax<1> state;

  __device__ CodesWarp(const Attend& a, const RowTile& tile, const Score& score, const Mask& mask,
                       int row)
      : k_codes(a.k_dtype), v_codes(a.v_dtype), score(score), mask(mask), row(tile.begin + row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = row + half * 8 + lane / 4;
      const uint16_t* from =
          m < tile.size ? elements(a.q, tile.offset(tile.begin + m, a.q.stride)) : nullptr;
#pragma unroll
      for (int c = 0; c < D / 16; ++c) {
        const int column = c * 16 + lane % 4 * 4;
        uint2 x{};
        if (from && column < static_cast<int>(a.d))
          x = *reinterpret_cast<const uint2*>(from + column);
        x = order_as_codes(x);
        q[c][half] = x.x, q[c][half + 2] = x.y;
      }
    }
    k_lane = TileK::at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    v_lane = TileV::at(lane % 16, lane / 16);
  }

  // Slice `slice` of tile n, which is in `stage`.
  __device__ __forceinline__ void step(const CodeRing<Shape>& ring, int stage, int n, int slice) {
    const int first = slice * 16, t = threadIdx.x % 4;
    float x[1][2][4] = {};
    scores(x[0], ring.key_tile(stage) + k_lane + first * kPanelRowBytes);
    const float* scale = ring.scales_of(stage, 0) + first + 2 * t;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[0][j][c] *= scale[j * 8 + c % 2];
    score.apply(x, n * kTileKeys + first, row);
    if (!mask.full(n)) mask.apply(x, n * kTileKeys + first, row);
    if (const uint32_t absent = ring.absent(stage, slice) >> 2 * t)
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (absent >> (j * 8 + c) & 1) x[0][j][c] = x[0][j][2 + c] = kNegativeInfinity;
    state.step(x, o, score.factor);
    weigh(x[0], ring.scales_of(stage, 1) + first + 2 * t);
    uint32_t p[1][1][4];
    pack_operand<Dtype>(p, x);
    values(p[0][0], ring.value_tile(stage) + v_lane + first * kPanelRowBytes);
  }

  // What o is to be multiplied with.
  __device__ float unit() const { return most; }

 private:
  __device__ __forceinline__ void scores(float (&x)[2][4], uint32_t at) const {
#pragma unroll
    for (int c = 0; c < D / 32; ++c) {
      uint32_t w[4];  // keys 0 .. 7 and 8 .. 15, 16 columns each and the next 16
      load_matrices(w, TileK::pair(at, c));
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t word = w[2 * j + half];
          mma<Dtype>(x[j], q[2 * c + half], k_codes.even(word), k_codes.odd(word));
        }
    }
  }
  __device__ __forceinline__ void values(const uint32_t (&p)[4], uint32_t at) {
#pragma unroll
    for (int c = 0; c < E / 32; ++c) {
      uint32_t w[4];  // keys 0 .. 7 and 8 .. 15 of 16 columns, the same of the next 16
      load_matrices_transposed(w, TileV::pair(at, c));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t low = w[2 * half], high = w[2 * half + 1];
        mma<Dtype>(o[0][4 * c + 2 * half], p, v_codes.even(low), v_codes.even(high));
        mma<Dtype>(o[0][4 * c + 2 * half + 1], p, v_codes.odd(low), v_codes.odd(high));
      }
    }
  }
  // Weights times the scales of their values.
  __device__ __forceinline__ void weigh(float (&x)[2][4], const float* scale) {
    float by[2][2];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) by[j][c] = scale[j * 8 + c];
    if constexpr (Dtype == FOVEA_F16) {
      const float here = quad_max(
          fmaxf(fmaxf(fabsf(by[0][0]), fabsf(by[0][1])), fmaxf(fabsf(by[1][0]), fabsf(by[1][1]))));
      if (here > most) {
        const float less = most / here;
#pragma unroll
        for (int j = 0; j < E / 8; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) o[0][j][c] *= less;
        most = here;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) by[j][c] = most > 0.f ? by[j][c] / most : by[j][c];
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[j][c] *= by[j][c % 2];
  }

  const Codes k_codes, v_codes;
  const Score& score;
  const Mask& mask;
  const int row;
  uint32_t q[D / 16][4], k_lane, v_lane;
  float most = Dtype == FOVEA_F16 ? 0.f : 1.f;
};

// Sums of warps that have the same rows, into those of the first of them: ascending.
//   `each` warps have the rows of warp w % (Warps / each); the first is w < Warps / each.
template <class Shape, class Warp>
__device__ __forceinline__ void merge_warps(Warp& mine, int each, float unit, unsigned char* shared,
                                            float factor) {
  constexpr int kWords = Shape::E / 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, groups = Shape::Warps / each;
  float* sums = reinterpret_cast<float*>(shared);
  __shared__ float s_top[Shape::Warps][16], s_sum[Shape::Warps][16];
  float (&m)[2] = mine.state.m[0];
  const float sum[2] = {mine.state.total(0, 0), mine.state.total(0, 1)};
  if (lane % 4 == 0)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      s_top[warp][half * 8 + lane / 4] = m[half],
      s_sum[warp][half * 8 + lane / 4] = sum[half];
  __syncthreads();
  float by[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    float top = kNegativeInfinity, all = 0.f;
    for (int w = warp % groups; w < Shape::Warps; w += groups) top = fmaxf(top, s_top[w][row]);
    const float base = top == kNegativeInfinity ? 0.f : top;
    for (int w = warp % groups; w < Shape::Warps; w += groups)
      all += s_sum[w][row] * exp2f((s_top[w][row] - base) * factor);
    by[half] = exp2f((m[half] - base) * factor) * unit;
    // A quad's lanes add up to the sum.
    m[half] = top, mine.state.l[0][half] = lane % 4 == 0 ? all : 0.f;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) mine.o[0][i / 4][i % 4] *= by[i % 4 / 2];
  if (warp >= groups)
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      sums[(warp * kWords + i) * 32 + lane] = mine.o[0][i / 4][i % 4];
  __syncthreads();
  if (warp >= groups) return;
  for (int w = warp + groups; w < Shape::Warps; w += groups)
#pragma unroll
    for (int i = 0; i < kWords; ++i) mine.o[0][i / 4][i % 4] += sums[(w * kWords + i) * 32 + lane];
}

template <class Shape, template <int> class Codes, TileScore Score, TileMask Mask, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    attend_codes_sm80(const __grid_constant__ Attend a, const __grid_constant__ AttendGrid grid,
                      const __grid_constant__ Epilogue epilogue) {
  constexpr int kStages = Shape::Stages;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_tile[sizeof(RowTile)];
  __shared__ int s_word;
  const int64_t work = blockIdx.x / grid.splits;
  const int split = static_cast<int>(blockIdx.x - work * grid.splits);
  const int64_t owner = work / grid.row_tiles;
  int64_t row_tile = work - owner * grid.row_tiles;
  if (grid.reversed) row_tile = grid.row_tiles - 1 - row_tile;
  if (threadIdx.x == 0)
    new (s_tile) RowTile(a, grid, owner / grid.heads, owner % grid.heads,
                         static_cast<int>(row_tile * Shape::rows), Shape::rows);
  __syncthreads();
  const RowTile& tile = *reinterpret_cast<const RowTile*>(s_tile);
  if (tile.size <= 0) return;

  const KeyTiles tiles = Mask::tiles(a, tile, kTileKeys);
  const TilePart part(static_cast<int>(tiles.count()), grid.splits, split);
  const int count = part.end - part.begin;
  const auto number = [&](int it) { return static_cast<int>(tiles[part.end - 1 - it]); };

  CodeRing<Shape> ring(a, tile, shared);
  for (int it = 0; it < kStages - 1; ++it) {
    if (it < count) ring.find(number(it)), ring.store_places(it % 2);
    __syncthreads();
    if (it < count) ring.load(it % 2, it);
    copy_commit();
  }
  if (kStages - 1 < count) ring.find(number(kStages - 1)), ring.store_places((kStages - 1) % 2);

  const int groups = tile.size > 32 ? 4 : tile.size > 16 ? 2 : 1;  // of 16 rows
  const int warp = threadIdx.x / 32, each = Shape::Warps / groups;
  const Score score(a, tile);
  const Mask mask(a, tile, kTileKeys);
  const int row = warp % groups * 16;
  CodesWarp<Shape, Codes<Shape::Dtype>, Score, Mask> mine(a, tile, score, mask, row);
  const bool active = row < tile.size;
  int stage = 0;
  for (int it = 0; it < count; ++it) {
    copy_wait<kStages - 2>();
    __syncthreads();
    const int next = it + kStages - 1;
    if (next < count) ring.load(next % 2, stage ? stage - 1 : kStages - 1);
    copy_commit();
    if (next + 1 < count) ring.find(number(next + 1));
    if (active)
#pragma unroll 1
      for (int slice = warp / groups; slice < kTileKeys / 16; slice += each)
        mine.step(ring, stage, number(it), slice);
    if (next + 1 < count) ring.store_places((next + 1) % 2);
    if (++stage == kStages) stage = 0;
  }

  copy_wait<0>();
  __syncthreads();
  merge_warps<Shape>(mine, each, mine.unit(), shared, score.factor);
  if (warp < groups) {
#pragma unroll
    for (int c = 0; c < Shape::E / 16; ++c) order_columns(mine.o[0][2 * c], mine.o[0][2 * c + 1]);
    each_row<1>(tile.begin + row, [&](int i, int half, int m) {
      const float sum = mine.state.total(i, half), top = mine.state.top(i, half, score.factor);
      epilogue.template store<Shape::Dtype>(a, tile, m, m < tile.begin + tile.size, split, top, sum,
                                            mine.o[i], half);
    });
  }
  epilogue.done(a, tile, static_cast<int>(work), &s_word, [] { __syncthreads(); });
}

}  // namespace fovea::cuda
