// SPDX-License-Identifier: Apache-2.0
// Products of one item's rows with lists of key blocks on Hopper, for stages whose lists the block
// makes itself.
//   A block takes an item: four consumer warps and a producer warp.
//   Q is held in registers, or in shared memory if it has two row tiles.  Registers save half the
//   reads of shared memory, and leave space for another block on the multiprocessor.
//   The list's key blocks pass through a pipeline of 64-key stages.  Small blocks share a stage,
//   one of 128 keys takes two.
//   A stage's products with 64 rows are one chain of m64n64k16; a warp owns 16 rows.  All else
//   hides under the products of the multiprocessor's other blocks.
//   Shared memory: Q (row_tiles x 64 x D) unless held, Stages x K (64 x D), then the stage's own.
//
//   | barrier   | who arrives         | who waits | what it guards         |
//   | q full    | TMA                 | consumers | Q, unless it is held   |
//   | key full  | TMA                 | consumers | a stage of keys        |
//   | key empty | a lane of each warp | producer  | the same, to overwrite |
//   | named 1   | consumers           | consumers | the stage's own memory |
#pragma once
#include <new>

#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/pipeline_sm90.cuh"
#include "ops/trace/item.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int Stages_, int Blocks_, bool Held_>
struct ItemShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Stages = Stages_;
  static constexpr int Blocks = Blocks_;  // a multiprocessor should hold
  static constexpr bool Held = Held_;     // Q in registers: one row tile
  static constexpr int consumer_threads = 128, threads = consumer_threads + 32;
  using Tile = Swizzled<64, D>;

  // Of 64 rows, in shared memory.
  static __host__ __device__ int tiles(int row_tiles) { return Stages + (Held ? 0 : row_tiles); }
};

template <class Shape>
struct ItemShared90 {
  uint64_t q_full, key_pipe[2 * Shape::Stages];
  alignas(8) unsigned char item[sizeof(TraceItem)];
};

template <class Shape>
class ItemKeys90 {
 public:
  using Tile = typename Shape::Tile;
  using KeyPipe = sm90::Pipeline<Shape::Stages>;
  using KeyState = typename KeyPipe::State;

  __device__ ItemKeys90(const ItemWork90& work, unsigned char* memory, ItemShared90<Shape>& shared)
      : work(work),
        a(work.call.a),
        shared_(shared),
        item(*reinterpret_cast<const TraceItem*>(shared.item)),
        block_keys(static_cast<int>(work.call.a.block_keys)),
        q_(shared_address(memory)),
        keys_(q_ + (Shape::Held ? 0 : work.row_tiles * Tile::bytes)) {}

  // By one thread, before the block's first __syncthreads.
  __device__ void init(int64_t number) const {
    sm90::barrier_init(q_full(), 1);
    key_pipe().init(1, Shape::consumer_threads / 32);
    sm90::barrier_init_done();
    new (shared_.item) TraceItem(a, number);
  }

  // The producer warp.  Held rows pass through the pipeline's first stage.
  __device__ __forceinline__ void produce_rows(KeyState& at) const {
    const uint32_t barrier = Shape::Held ? key_pipe().full(at) : q_full();
    if constexpr (Shape::Held) at.next();
    if (threadIdx.x % 32) return;
    const int tiles = Shape::Held ? 1 : work.row_tiles;
    sm90::barrier_expect(barrier, tiles * Tile::bytes);
    for (int i = 0; i < tiles; ++i)
      sm90::tma_load_panels<Tile>(q_ + i * Tile::bytes, work.maps.q, barrier,
                                  static_cast<int>(item.first) + i * 64,
                                  static_cast<int>(item.head), static_cast<int>(item.seq.batch));
  }
  // A lane loads a key block, or 64 keys of it; block -1 is zeros.
  template <class BlockAt>
  __device__ __forceinline__ void produce_list(int count, KeyState& at, BlockAt block_at) const {
    const int lane = threadIdx.x % 32, rows = min(block_keys, 64), per = 64 / rows;
    const int stages = stages_of(count), halves = max(block_keys / 64, 1);
    for (int stage = 0; stage < stages; ++stage, at.next()) {
      const int first = stage * per, here = min(per, count * halves - first);
      key_pipe().acquire(at);
      if (lane == 0) key_pipe().expect(at, here * rows * Tile::panels * kPanelRowBytes);
      __syncwarp();
      if (lane >= here) continue;
      const int block = block_at((first + lane) / halves), part = (first + lane) % halves * 64;
      int row = static_cast<int>(item.seq.key_begin) + block * block_keys + part,
          batch = static_cast<int>(item.seq.key_batch);
      if (block < 0) {
        row = 0, batch = -1;
      } else if (a.attend.sequences.page) {
        row = part;
        batch = static_cast<int>(a.attend.sequences.page_of(item.seq, int64_t{block} * block_keys));
      }
#pragma unroll
      for (int panel = 0; panel < Tile::panels; ++panel)
        sm90::tma_load_box(keys(at) + panel * Tile::panel_bytes + lane * rows * kPanelRowBytes,
                           work.maps.k, key_pipe().full(at), panel * 64, row,
                           static_cast<int>(item.key_head), batch);
    }
  }

  // The consumer warps.
  struct Rows;
  __device__ __forceinline__ void load_rows(Rows& rows, KeyState& at) const {
    if constexpr (Shape::Held) {
      const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + outer_row(lane);
      const uint32_t from = q_ + Tile::at(row, outer_chunk(lane));
      key_pipe().wait(at);
#pragma unroll
      for (int k = 0; k < Shape::D / 16; ++k) load_matrices(rows.q[k], Tile::pair(from, k));
      __syncwarp();
      key_pipe().release(at);
      at.next();
    } else {
      sm90::barrier_wait(q_full(), 0);
    }
  }
  __device__ static void sync() {
    sm90::named_barrier_sync(1, Shape::consumer_threads);
  }
  __device__ int stages_of(int count) const {
    return (count * block_keys + 63) / 64;
  }

  // Calls take(x, tile) with the products of row tile `tile` and the stage's 64 keys.  meanwhile()
  // runs under the first.
  template <class Meanwhile, class Take>
  __device__ __forceinline__ void multiply(KeyState at, const Rows& rows, Meanwhile meanwhile,
                                           Take take) const {
    float x[8][4];
    key_pipe().wait(at);
#pragma unroll
    for (int tile = 0; tile < (Shape::Held ? 1 : 2); ++tile) {
      if (!Shape::Held && tile == work.row_tiles) break;
      const uint64_t b = sm90::descriptor(sm90::uniform(keys(at)));
      sm90::fence();
      if constexpr (Shape::Held)
        sm90::product_rows<Shape::Dtype, Tile>(x, rows.q, b);
      else
        sm90::product_rows<Shape::Dtype, Shape::D, Tile, Tile>(
            x, sm90::descriptor(sm90::uniform(q_ + tile * Tile::bytes)), b);
      sm90::commit();
      if (tile == 0) meanwhile();
      sm90::wait<0>();
      sm90::pin(x);
      if (Shape::Held || tile + 1 == work.row_tiles) key_pipe().release(at);
      take(x, tile);
    }
  }

  // The rows of a lane in each row tile: lane / 4 of its warp's 16, and that + 8.
  struct Rows {
    int high[2][2];  // keys [0, high) a row sees; 0: no such row
    int low;         // keys [0, low) that every row sees; 0: not all rows are there
    uint32_t q[Shape::Held ? Shape::D / 16 : 1][4];

    __device__ explicit Rows(const ItemKeys90& of) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int m = row(tile, half);
          high[tile][half] =
              m < of.item.rows ? static_cast<int>(of.a.seen(of.item.seq, of.item.first + m)) : 0;
        }
      low = of.item.rows == of.work.row_tiles * 64
                ? static_cast<int>(of.a.seen(of.item.seq, of.item.first))
                : 0;
    }
    __device__ static int row(int tile, int half) {
      return tile * 64 + static_cast<int>(threadIdx.x) / 32 * 16 + half * 8 +
             static_cast<int>(threadIdx.x) % 32 / 4;
    }
  };

  const ItemWork90& work;
  const Trace& a;

 private:
  ItemShared90<Shape>& shared_;

 public:
  const TraceItem& item;
  const int block_keys;  // 1 << work.shift

 private:
  __device__ uint32_t q_full() const {
    return shared_address(&shared_.q_full);
  }
  __device__ KeyPipe key_pipe() const {
    return {shared_address(shared_.key_pipe)};
  }
  __device__ uint32_t keys(KeyState i) const {
    return keys_ + i.stage * Tile::bytes;
  }

  const uint32_t q_, keys_;
};

// A block's item.  Stage: ItemKeys90 with its own Shared, init(), copy() and compute().
template <class Shape, class Stage>
__device__ __forceinline__ void run_item(const ItemWork90& work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Stage::Shared*>(memory + Shape::tiles(work.row_tiles) *
                                                                         Shape::Tile::bytes);
  Stage stage(work, memory, shared);
  if (threadIdx.x == 0) stage.init();
  if (threadIdx.x == Shape::consumer_threads)
    sm90::prefetch_map(work.maps.q), sm90::prefetch_map(work.maps.k);
  __syncthreads();
  if (sm90::uniform(threadIdx.x / 32) == Shape::consumer_threads / 32) {
    stage.copy();
  } else {
    stage.compute();
  }
}

template <auto kernel, class Shape, class Stage>
void launch_item(Context& ctx, const ItemWork90& work) {
  const int bytes = Shape::tiles(work.row_tiles) * Shape::Tile::bytes +
                    static_cast<int>(sizeof(typename Stage::Shared));
  launch<kernel>(ctx, kTraceOp, work.call.items, Shape::threads, bytes, work);
}

}  // namespace fovea::cuda
