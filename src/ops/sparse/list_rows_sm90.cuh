// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward of few rows on Hopper: o = softmax(scores(q k')) v over the keys of a list.
//   A block owns the packed rows of one list row, at most 64, and a split of its list: every
//   `splits`-th step of 128 keys, of 64 where heads are wide.  It reads the list itself, so no
//   kernel comes before it.
//   A step is 1 to 8 boxes of keys: the list's blocks, their parts or pages.  Each comes by TMA.
//   Every warp finds the boxes, a lane each, and copies some panels of all through a ring of steps.
//   Four warps make scores and sums of a step (RowsWarp).  Up to 16 rows: each has a quarter of its
//   keys.  In the end a thread adds up four columns of the warps' sums.
//   A block runs for a few steps, and its code for the first time.  So what is not a loop is short.
// Shared memory: BoxRing.  In the end the warps' sums are there.
//
//   | barrier             | who arrives | who waits | what it guards                       |
//   | full of a stage     | TMA         | all       | a step's keys, and where boxes begin |
//   | before a copy       | all         | all       | the stage before, to be filled again |
//   | before the sums     | all         | all       | the ring, to hold them               |
//   | behind them         | all         | all       | the sums; then the weights of warps  |
#pragma once
#include "core/sparse.h"
#include "cuda/loop/attend_rows_sm80.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/order.cuh"
#include "cuda/tile/pipeline_sm90.cuh"

namespace fovea::cuda {

template <int Dtype, int D, int E>
using ListOperands = HalfOperands<Dtype, D, E, D + E <= 256 ? 128 : 64>;
template <class Operands>
struct ListRowsShape
    : RowsShape<Operands, 215 * 1024 / (Operands::TileK::bytes + Operands::TileV::bytes), 1> {
  static constexpr int boxes = 8;  // of a step at most
  // Floats of a row of sums: eight rows lie in different banks.
  static constexpr int sums_row = Operands::E + 8;
  static_assert(ListRowsShape::Warps * 16 * sums_row * 4 <= ListRowsShape::ring_bytes);
  static constexpr int shared_bytes =
      ListRowsShape::ring_bytes + ListRowsShape::Stages * (boxes * 4 + 8);
};

// A key past every other: there is none.
constexpr int kNoKey = static_cast<int>(kIndexMax);

// The boxes of a list row, one after the other: of keys that are always seen, then of its entries.
class ListBoxes {
 public:
  const int row_bits, each_bits;  // a box has 1 << row_bits keys, a step 1 << each_bits boxes
  int steps = 0;                  // of the split

  // `width` keys a step, `rows` a box; `count`: count_of() where sequences are not packed.
  __device__ ListBoxes(const SparseAttend& call, int width, int rows, const RowTile& tile,
                       int splits, int split, int count)
      : row_bits(bits_of(rows)),
        each_bits(bits_of(width) - row_bits),
        splits(splits),
        split(split),
        keys(tile.keys) {
    const SparseList& list = call.list;
    const Sequence& q = tile.rows.seq;
    const int block_rows = static_cast<int>(list.block_rows);
    const int head = static_cast<int>(tile.rows.head_begin()) / static_cast<int>(list.group);
    int64_t row = tile.query(tile.begin) / block_rows;
    if (call.packed())
      row +=
          first_list_row(static_cast<int>(q.row_begin), static_cast<int>(tile.rows.r), block_rows);
    if (row >= list.n) return;  // starts that do not ascend
    block_bits = bits_of(static_cast<int>(list.block_keys));
    index = list.index.at<int32_t>(q.batch, head, row);
    stride = list.index.stride[3];
    if (call.packed()) count = count_of(list, q.batch, head, row);
    entries = min(max(count, 0), static_cast<int>(list.keep));
    const int first = static_cast<int>(list.first_keys < keys ? list.first_keys : keys);
    always = (first + (1 << row_bits) - 1) >> row_bits;
    const int boxes = always + (entries << (block_bits - row_bits));
    const int all = (boxes + (1 << each_bits) - 1) >> each_bits;
    steps = all > split ? (all - split + splits - 1) / splits : 0;
    const PlainWindow window(call.attend.mask.window, static_cast<int>(q.rows), keys);
    seen = window.keys_of(tile.first_query(), tile.end_query());
  }

  // Entries in use, as given.  Loaded early: what a sequence is takes a load of its own.
  __device__ static int count_of(const SparseList& list, int64_t batch, int64_t head, int64_t row) {
    if (!list.index_count || row >= list.n) return static_cast<int>(list.keep);
    return *list.index_count.at<int32_t>(batch, head, row);
  }

  // The first key of box `box` of a step; kNoKey: no row sees a key of it.
  __device__ int key(int step, int box) const {
    int n = ((split + step * splits) << each_bits) + box, key = n << row_bits;
    if (n >= always) {
      n -= always;
      const int part_bits = block_bits - row_bits, m = n >> part_bits;
      const int e = m < entries ? index[m * stride] : -1;
      if (e < 0 || e > keys >> block_bits) return kNoKey;
      key = (e << block_bits) + ((n & ((1 << part_bits) - 1)) << row_bits);
      if (key < always << row_bits) return kNoKey;
    }
    return key < seen.high && key + (1 << row_bits) > seen.low ? key : kNoKey;
  }

 private:
  // Of a power of two.
  __device__ static int bits_of(int x) { return __ffs(x) - 1; }

  int block_bits = 0;  // of an entry's keys
  int splits, split, keys;
  int entries = 0, always = 0;
  const int32_t* index = nullptr;
  int64_t stride = 0;
  PlainWindow::Span seen{};
};

// The block's steps in shared memory, and how TMA brings them.
template <class Shape>
class BoxRing {
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using State = sm90::PipelineState<Shape::Stages>;

 public:
  __device__ explicit BoxRing(unsigned char* memory)
      : at(shared_address(memory)),
        begins(reinterpret_cast<int (*)[Shape::boxes]>(memory + Shape::ring_bytes)) {}
  __device__ void init() const {
    for (int stage = 0; stage < Shape::Stages; ++stage) sm90::barrier_init(full(stage), 1);
    sm90::barrier_init_done();
  }
  __device__ uint32_t full(int stage) const {
    return at + Shape::ring_bytes + Shape::Stages * Shape::boxes * 4 + stage * 8;
  }
  __device__ uint32_t key_tile(int stage) const { return at + stage * Shape::stage_bytes; }
  __device__ uint32_t value_tile(int stage) const { return key_tile(stage) + TileK::bytes; }
  // First keys of the boxes of a stage.
  __device__ const int* keys_of(int stage) const { return begins[stage]; }
  // The scores hide what is not there.
  __device__ static uint32_t absent(int, int) { return 0; }
  __device__ static const NoNote* notes_of(int) { return nullptr; }

  // The next step.  The boxes of 32 lanes are found together.  Each warp copies other panels.
  __device__ __forceinline__ void copy(const Attend& a, const AttendMaps& maps, const RowTile& tile,
                                       const ListBoxes& list) {
    const int warp = sm90::uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    const int boxes = 1 << list.each_bits, first = (step << list.each_bits) % 32;
    if (first == 0) find(a, tile, list.key(step + (lane >> list.each_bits), lane & (boxes - 1)));
    const int from = first + lane, key_at = __shfl_sync(~0u, key, from),
              row_at = __shfl_sync(~0u, row, from), page_at = __shfl_sync(~0u, page, from);
    const uint32_t barrier = full(stage.stage), to = key_tile(stage.stage);
    if (warp == 0) {
      if (lane < boxes) begins[stage.stage][lane] = key_at;
      __syncwarp();
      if (lane == 0) sm90::barrier_expect(barrier, Shape::stage_bytes);
    }
    const uint32_t box = to + (lane << list.row_bits) * kPanelRowBytes;
    const int head = static_cast<int>(tile.key_head(a));
    static_assert(TileK::panel_bytes == TileV::panel_bytes);  // V lies behind K
    if (lane < boxes)
#pragma unroll
      for (int n = 0; n < TileK::panels + TileV::panels; ++n) {
        if (n % Shape::Warps != warp) continue;
        const bool v = n >= TileK::panels;
        sm90::tma_load_box(box + n * TileK::panel_bytes, v ? maps.v : maps.k, barrier,
                           (v ? n - TileK::panels : n) * 64, row_at, head, page_at);
      }
    ++step, stage.next();
  }

 private:
  // Where the lane's box lies, which begins at key j.
  __device__ __forceinline__ void find(const Attend& a, const RowTile& tile, int j) {
    const Sequences& s = a.sequences;
    const Sequence& q = tile.rows.seq;
    const int nowhere = static_cast<int>(s.page ? s.pool : s.caches);
    key = j, row = 0, page = nowhere;
    if (j == kNoKey) return;
    if (!s.page) {
      row = static_cast<int>(q.key_begin) + j, page = static_cast<int>(q.key_batch);
      return;
    }
    const int tokens = static_cast<int>(s.page), number = j / tokens;
    row = j - number * tokens;
    page =
        s.page_table
            .as<int32_t>()[q.key_batch * s.page_table.stride[0] + number * s.page_table.stride[1]];
    if (page < 0 || page >= nowhere) key = kNoKey, page = nowhere;
  }

  const uint32_t at;
  int (*const begins)[Shape::boxes];
  State stage;
  int step = 0;
  int key, row, page;  // of the lane's box
};

// What attend_rows_sm80.cuh asks of keys: those of a step's boxes, under a window.
class BoxKeys {
 public:
  using Note = NoNote;
  const int* begins = nullptr;  // of the step's boxes

  __device__ BoxKeys(const Attend& a, const RowTile& tile, int box_bits, int first)
      : bits(box_bits), weight(a.score.scale * kLog2E), keys(tile.keys) {
    const int left = WindowMask::most(a.mask.window.left),
              right = WindowMask::most(a.mask.window.right);
    each_row<1>(tile.begin + first, [&](int, int half, int m) {
      const int p = tile.query(m) + tile.shift;
      low[half] = left > 0 ? p - left + 1 : 0;
      high[half] = right > 0 ? min(p + right, keys) : keys;
    });
  }
  template <int N>
  __device__ __forceinline__ void score(float (&x)[1][N][4], int, int first, const NoNote*) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int key = key_of(first + j * 8) + threadIdx.x % 4 * 2;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (key + c % 2 >= high[c / 2] || key + c % 2 < low[c / 2]) x[0][j][c] = kNegativeInfinity;
    }
  }
  __device__ float factor() const {
    return weight;
  }

  // Zeroes the values of the columns [first, end) that lie past the last key: 0 times NaN is NaN.
  // By each warp that reads them.  Sixteen columns are of one box.
  template <class Tile>
  __device__ __forceinline__ void zero_tail(uint32_t values, int first, int end) const {
    for (; first < end; first += 16) {
      const int key = key_of(first), there = keys - key;
      if (key >= kNoKey || there >= 16) continue;
      for (int i = max(there, 0) * kPanelChunks + threadIdx.x % 32; i < 16 * kPanelChunks; i += 32)
#pragma unroll
        for (int panel = 0; panel < Tile::panels; ++panel)
          sm90::store_zeros(
              values + Tile::at(first + i / kPanelChunks, i % kPanelChunks + panel * kPanelChunks));
      sm90::fence_shared();
      __syncwarp();
    }
  }

 private:
  __device__ int key_of(int column) const {
    return begins[column >> bits] + (column & ((1 << bits) - 1));
  }

  int bits;
  float weight;
  int keys, low[2], high[2];
};

// The warps' sums leave the block.  `groups` warps have different rows; warp w those of w % groups.
template <class Shape, class Warp, class Epilogue>
__device__ __forceinline__ void store_sums(const Attend& a, const RowTile& tile, Warp& mine,
                                           int groups, float factor, const Epilogue& epilogue,
                                           int split, unsigned char* memory) {
  constexpr int kWarps = Shape::Warps, kColumns = Shape::E / 4;
  __shared__ float s_top[kWarps][16], s_sum[kWarps][16], s_weight[kWarps][16];
  __shared__ int64_t s_offset[Shape::rows];
  float(*sums)[16][Shape::sums_row] = reinterpret_cast<float(*)[16][Shape::sums_row]>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    const float sum = mine.state.total(0, half);
    if (lane % 4 == 0) s_top[warp][row] = mine.state.m[0][half], s_sum[warp][row] = sum;
    float* to = sums[warp][row] + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < Shape::E / 8; ++j)
      *reinterpret_cast<float2*>(to + j * 8) = {mine.o[0][j][2 * half], mine.o[0][j][2 * half + 1]};
  }
  __syncthreads();
  // A quad weighs the warps that have a row.
  for (int m = threadIdx.x / 4; m < tile.size; m += Shape::threads / 4) {
    const int first = m / 16, row = m % 16;
    float weight[kWarps], top = kNegativeInfinity, sum = 0.f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i)
      if (i * groups + first < kWarps) top = fmaxf(top, s_top[i * groups + first][row]);
    const float base = top == kNegativeInfinity ? 0.f : top;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const int w = i * groups + first;
      weight[i] = w < kWarps ? exp2f((s_top[w % kWarps][row] - base) * factor) : 0.f;
      if (w < kWarps) sum += s_sum[w][row] * weight[i];
    }
    const auto place = epilogue.store_lse(a, tile, tile.begin + m, split,
                                          top == kNegativeInfinity ? top : top * factor, sum);
    if (threadIdx.x % 4) continue;
    s_offset[m] = place.offset;
#pragma unroll
    for (int i = 0; i < kWarps; ++i)
      if (i * groups + first < kWarps) s_weight[i * groups + first][row] = weight[i] * place.factor;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tile.size * kColumns; i += Shape::threads) {
    const int m = i / kColumns, column = i % kColumns * 4, row = m % 16;
    if (column >= static_cast<int>(a.e)) continue;
    float o[4] = {};
    for (int w = m / 16; w < kWarps; w += groups) {
      const float weight = s_weight[w][row];
      const float4 x = *reinterpret_cast<const float4*>(sums[w][row] + column);
      o[0] += weight * x.x, o[1] += weight * x.y, o[2] += weight * x.z, o[3] += weight * x.w;
    }
    epilogue.store_columns(a, s_offset[m] + column, o);
  }
}

template <class Shape, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    attend_list_sm90(const __grid_constant__ SparseAttend call,
                     const __grid_constant__ AttendGrid grid,
                     const __grid_constant__ AttendMaps maps,
                     const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Attend& a = call.attend;
  BoxRing<Shape> ring(memory);
  if (threadIdx.x == 0) sm90::prefetch_map(maps.k), sm90::prefetch_map(maps.v), ring.init();
  const uint32_t splits = grid.splits, units = static_cast<uint32_t>(grid.heads),
                 row_tiles = static_cast<uint32_t>(grid.row_tiles);
  const uint32_t number = blockIdx.x / splits, split = blockIdx.x - number * splits;
  const uint32_t sequence = number / row_tiles, row_tile = number - sequence * row_tiles;
  const uint32_t r = sequence / units, unit = sequence - r * units;
  const int most = grid.group * static_cast<int>(call.list.block_rows);
  __syncthreads();
  pdl_wait();
  pdl_trigger();
  const uint32_t list_head = unit * grid.group / static_cast<uint32_t>(call.list.group);
  const int count = call.packed() ? 0 : ListBoxes::count_of(call.list, r, list_head, row_tile);
  const RowTile tile(a.sequences[r], grid, r, unit, static_cast<int>(row_tile) * most, most);
  if (tile.size <= 0) return;
  const ListBoxes list(call, Shape::StepKeys, maps.pages.rows, tile, static_cast<int>(splits),
                       static_cast<int>(split), count);
  const int warp = sm90::uniform(threadIdx.x / 32);
#pragma unroll 1
  for (int it = 0; it < min(list.steps, Shape::Stages); ++it) ring.copy(a, maps, tile, list);
  const int groups = tile.size > 32 ? 4 : tile.size > 16 ? 2 : 1;  // of 16 rows
  const int row = warp % groups * 16, each = Shape::Warps / groups;
  BoxKeys keys(a, tile, list.row_bits, row);
  RowsWarp<Shape, BoxKeys> mine(a, tile, keys, row);
  const bool active = row < tile.size, few = tile.size <= 8;
  sm90::PipelineState<Shape::Stages> at;
  for (int it = 0; it < list.steps; ++it, at.next()) {
    sm90::barrier_wait(ring.full(at.stage), at.phase);
    if (it > 0 && it - 1 + Shape::Stages < list.steps) {
      __syncthreads();
      ring.copy(a, maps, tile, list);
    }
    keys.begins = ring.keys_of(at.stage);
    if (active)
#pragma unroll 1
      for (int slice = warp / groups; slice < 4; slice += each) {
        keys.template zero_tail<typename Shape::TileV>(
            ring.value_tile(at.stage), slice * Shape::Slice, (slice + 1) * Shape::Slice);
        if (few)
          mine.template step<true>(ring, at.stage, it, slice);
        else
          mine.template step<false>(ring, at.stage, it, slice);
      }
  }
  store_sums<Shape>(a, tile, mine, groups, keys.factor(), epilogue, static_cast<int>(split),
                    memory);
  __shared__ int s_word;
  epilogue.done(a, tile, static_cast<int>(number), &s_word, [] { __syncthreads(); });
}

}  // namespace fovea::cuda
