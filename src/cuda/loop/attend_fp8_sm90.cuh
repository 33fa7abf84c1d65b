// SPDX-License-Identifier: Apache-2.0
// The sweep over keys on Hopper's 8-bit tensor cores: o = softmax(factor q k') v, all codes e4m3.
//   p is rounded at 2^8 p and meets v as a register operand, so v is stored transposed and permuted
//   (v_perm16).  These products keep 13 bits of their sums: o is summed there over `Run` key tiles,
//   then joins the f32 sums of its rows in shared memory.  That, and scales for blocks of keys, is
//   why this is no shape of attend_sm90.cuh.
//   A block stays on its multiprocessor and takes work items as they come: 64 x Groups rows of one
//   sequence and head, a warpgroup 64 of them, a warp 16.  Of warpgroup 0 a thread copies, running
//   ahead into the next item, and one of another warp finds out what that item is.
//   Shared memory: ByteLayout90.
//
//   | barrier       | who arrives                  | who waits  | what it guards          |
//   | item full     | scheduler                    | all others | an item                 |
//   | item empty    | a lane of each warp of those | scheduler  | the same, to overwrite  |
//   | q full        | TMA                          | consumers  | Q                       |
//   | q empty       | a lane of each warp          | producer   | the same, to overwrite  |
//   | k, v full     | TMA                          | consumers  | a tile of K, of V'      |
//   | k, v empty    | a lane of each warp          | producer   | the same, to overwrite  |
//   | prefetch next | producer                     | scheduler  | nothing: few tiles left |
//   | named 1 + n   | warpgroup n                  | itself     | its zeroed values       |
// FlashAttention-3 (2407.08608).
#pragma once
#include <concepts>
#include <new>

#include "cuda/block/schedule.cuh"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/pipeline_sm90.cuh"

namespace fovea::cuda {

template <int D_, int E_, int Groups_, int BN_, int Stages_, int Run_>
struct ByteShape90 {
  static constexpr int D = D_, E = E_, Groups = Groups_, BN = BN_, Stages = Stages_, Run = Run_;
  static constexpr int BM = 64 * Groups;
  static constexpr int threads = 128 * (Groups + 1);
  // Registers a thread, of those the block starts with: the producer warpgroup gives what the
  // others take.
  static constexpr int producer_regs = Groups == 3 ? 56 : 40,
                       consumer_regs = Groups == 3 ? 152 : 232;
  using TileQ = sm90::Bytes<BM, D, D % 128 ? 64 : 128>;
  using TileK = sm90::Bytes<BN, D, D % 128 ? 64 : 128>;
  using TileV = sm90::Bytes<E, BN, BN % 128 ? 64 : 128>;
  static constexpr int prefetch = 2;  // key tiles left to copy when the next item is requested
};

// What codes stand for, and where values lie.  `blocks`: scales of keys change within a sequence.
template <class C>
concept CodeScales = requires(const C codes, const Sequence& q, int64_t at) {
  { C::blocks } -> std::convertible_to<bool>;
  { codes.attend() } -> std::same_as<const Attend&>;
  { codes.row(q, at, at, at) } -> std::same_as<float>;
  { codes.key(q, at, at, at) } -> std::same_as<float>;
  { codes.value(q, at, at) } -> std::same_as<float>;
  { codes.column(at) } -> std::same_as<int64_t>;
  { codes.columns() } -> std::same_as<int64_t>;
};

// What a block works on: the tile, the key tiles [first, last) it walks, where copies are from, and
// what codes stand for.
template <class Shape>
struct WorkItem {
  RowTile tile;
  WindowMask mask;
  int first, last;
  int batch, row, head;                      // of q
  int key_batch, key_row, key_head, column;  // of k; column of v'
  int clear;                       // keys of the last tile before values to be zeroed; or BN
  float row_scale[Shape::Groups];  // times the score's scale, in units of log2
  float key_scale, value_scale;
};

template <class Shape, CodeScales Codes>
__device__ inline void make_item(WorkItem<Shape>& item, const Codes& codes, const AttendGrid& grid,
                                 const TileCoord& place) {
  constexpr int BM = Shape::BM, BN = Shape::BN;
  const Attend& a = codes.attend();
  const int heads = static_cast<int>(grid.heads);
  const RowTile& tile = *new (&item.tile) RowTile(a, grid, place.head / heads, place.head % heads,
                                                  place.row_tile * BM, BM);
  item.first = item.last = 0;
  if (tile.size <= 0) return;
  new (&item.mask) WindowMask(a, tile, BN);
  const Sequence& seq = tile.rows.seq;
  const KeyTiles tiles = WindowMask::tiles(a, tile, BN);
  item.first = static_cast<int>(tiles.first), item.last = static_cast<int>(tiles.last);
  if (item.first == item.last) return;
  item.batch = static_cast<int>(seq.batch), item.head = static_cast<int>(tile.rows.g);
  item.row = static_cast<int>(seq.row_begin) + tile.first_query();
  item.key_batch = static_cast<int>(seq.key_batch), item.key_row = static_cast<int>(seq.key_begin);
  item.key_head = item.head / (heads / static_cast<int>(a.g));
  item.column = static_cast<int>(codes.column(tile.rows.r));
  const int tail = tile.keys - (item.last - 1) * BN;
  // What lies past the tensor reads as zero.
  item.clear = tail < BN && item.column + tile.keys < codes.columns() ? tail : BN;
  const float scale = a.score.scale * kLog2E;
#pragma unroll 1
  for (int group = 0; group < Shape::Groups; ++group)
    item.row_scale[group] = scale * codes.row(seq, tile.rows.r, item.head,
                                              min(tile.begin + group * 64, tile.count - 1));
  item.key_scale = codes.key(seq, tile.rows.r, item.key_head, 0);
  item.value_scale = codes.value(seq, tile.rows.r, item.key_head);
}

// The online softmax of block/softmax.cuh with weights of 2^8 p and a factor for each part of a
// tile's keys; m in units of log2.
struct LiftedSoftmax {
  static constexpr float kLift = 8;
  float m[2] = {kNegativeInfinity, kNegativeInfinity}, l[2] = {};

  template <int N, int Parts>
  __device__ void weigh(float (&x)[N][4], float (&alpha)[2], const float (&factor)[Parts]) {
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
};

// Zeroes the values of keys past `keys` of a tile of V', in v_perm16 order; done by a warpgroup.
template <class TileV, int E, int BN>
__device__ inline void clear_tail(unsigned char* tile, int keys) {
  for (int i = threadIdx.x % 128; i < E * (BN / 16); i += 128) {
    const int row = i % E, chunk = i / E, rest = keys - chunk * 16;
    if (rest >= 16) continue;
    uint4& codes = *reinterpret_cast<uint4*>(tile + TileV::at(row, chunk * 16));
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

template <class Shape>
struct ByteLayout90 : sm90::SharedLayout {
  int q = tiles(Shape::TileQ::bytes), k = tiles(Shape::TileK::bytes, Shape::Stages),
      v = tiles(Shape::TileV::bytes, Shape::Stages), sums = of<float>(Shape::BM * Shape::E),
      q_pipe = pipeline<1>(), item_pipe = pipeline<2>(), k_pipe = pipeline<Shape::Stages>(),
      v_pipe = pipeline<Shape::Stages>(), prefetch = barriers(), items = of<WorkItem<Shape>>(2);
};
template <class Shape>
constexpr int byte_shared_bytes = ByteLayout90<Shape>().bytes;

template <class Shape>
struct ByteShared90 {
  static constexpr ByteLayout90<Shape> layout = ByteLayout90<Shape>();
  using QPipe = sm90::Pipeline<1>;
  using ItemPipe = sm90::Pipeline<2>;
  using KeyPipe = sm90::Pipeline<Shape::Stages>;
  using KeyState = typename KeyPipe::State;
  using Item = WorkItem<Shape>;
  unsigned char* base;
  uint32_t at;

  __device__ explicit ByteShared90(unsigned char* base) : base(base), at(shared_address(base)) {}
  __device__ uint32_t k(const KeyState& i) const {
    return at + layout.k + i.stage * Shape::TileK::bytes;
  }
  __device__ uint32_t v(const KeyState& i) const {
    return at + layout.v + i.stage * Shape::TileV::bytes;
  }
  __device__ Item& item(const ItemPipe::State& i) const {
    return reinterpret_cast<Item*>(base + layout.items)[i.stage];
  }
  __device__ QPipe q_pipe() const { return {at + layout.q_pipe}; }
  __device__ ItemPipe item_pipe() const { return {at + layout.item_pipe}; }
  __device__ KeyPipe k_pipe() const { return {at + layout.k_pipe}; }
  __device__ KeyPipe v_pipe() const { return {at + layout.v_pipe}; }
  __device__ uint32_t prefetch_next() const { return at + layout.prefetch; }

  __device__ void init() const {
    constexpr int kWarps = 4 * Shape::Groups;
    q_pipe().init(1, kWarps), item_pipe().init(1, kWarps + 1);
    k_pipe().init(1, kWarps), v_pipe().init(1, kWarps);
    sm90::barrier_init(prefetch_next(), 1);
    sm90::barrier_init_done();
  }
};

// One thread: finds out what the next item is while this one is under way.
template <class Shape, CodeScales Codes>
__device__ __forceinline__ void schedule_items(const Codes& codes, const AttendGrid& grid,
                                               const TileOrder& order,
                                               const DynamicSchedule& schedule,
                                               const ByteShared90<Shape>& shared) {
  sm90::Pipeline<2>::State at;
  for (int w = blockIdx.x; w < schedule.items; w = schedule.take()) {
    shared.item_pipe().acquire(at);
    auto& item = shared.item(at);
    make_item(item, codes, grid, TileCoord(order, w));
    if (item.tile.size <= 0) continue;
    shared.item_pipe().arrive(at);
    sm90::barrier_wait(shared.prefetch_next(), at.stage);
    at.next();
  }
  schedule.leave();
  shared.item_pipe().acquire(at);
  shared.item(at).tile.size = 0;
  shared.item_pipe().arrive(at);
}

// One thread: copies Q, K and V of each item.
template <class Shape>
__device__ __forceinline__ void produce_items(const AttendMaps& maps,
                                              const ByteShared90<Shape>& shared) {
  constexpr int BN = Shape::BN;
  sm90::Pipeline<2>::State at;
  sm90::Pipeline<1>::State q_at;
  typename ByteShared90<Shape>::KeyState k_at, v_at;
  for (;; at.next()) {
    const auto& item = shared.item(at);
    shared.item_pipe().wait(at);
    if (item.tile.size <= 0) return;
    if (item.first < item.last) {
      shared.q_pipe().acquire(q_at);
      sm90::tma_load_bytes<typename Shape::TileQ>(shared.at, maps.q, shared.q_pipe().full(q_at), 0,
                                                  item.row, item.head, item.batch);
      q_at.next();
    }
    // V follows K by a tile, as the products do: its stage is free only after the exponentials.
    const auto values = [&](int n) {
      shared.v_pipe().acquire(v_at);
      sm90::tma_load_bytes<typename Shape::TileV>(shared.v(v_at), maps.v,
                                                  shared.v_pipe().full(v_at), item.column + n * BN,
                                                  0, item.key_head, item.key_batch);
      v_at.next();
    };
    const int asks = min(item.first + Shape::prefetch, item.last) - 1;
    if (item.first == item.last) sm90::barrier_arrive(shared.prefetch_next());
    for (int n = item.last - 1; n >= item.first; --n) {
      if (n == asks) sm90::barrier_arrive(shared.prefetch_next());
      shared.k_pipe().acquire(k_at);
      sm90::tma_load_bytes<typename Shape::TileK>(
          shared.k(k_at), maps.k, shared.k_pipe().full(k_at), 0, item.key_row + n * BN,
          item.key_head, item.key_batch);
      k_at.next();
      if (n < item.last - 1) values(n + 1);
    }
    if (item.first < item.last) values(item.first);
    sm90::barrier_arrive(shared.item_pipe().empty(at));
  }
}

// A consumer warpgroup.
template <class Shape, CodeScales Codes, class Epilogue>
struct ByteConsumer90 {
  static constexpr int D = Shape::D, E = Shape::E, BN = Shape::BN, Run = Shape::Run;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using Shared = ByteShared90<Shape>;
  using Item = WorkItem<Shape>;
  const Codes& codes;
  const Epilogue& epilogue;
  const Shared& shared;
  const int group;
  float4* const sums = reinterpret_cast<float4*>(shared.base + Shared::layout.sums) +
                       group * (64 * E / 4) + threadIdx.x % 128;
  const uint64_t q_rows = TileQ::descriptor(shared.at + group * 64 * TileQ::Panel);
  typename Shared::KeyState k_at = {}, v_at = {};
  sm90::Pipeline<1>::State q_at = {};

  __device__ __forceinline__ void run() {
    for (sm90::Pipeline<2>::State at;; at.next()) {
      shared.item_pipe().wait(at);
      const Item& item = shared.item(at);
      if (sm90::uniform(item.tile.size) <= 0) return;
      consume(item);
      __syncwarp();
      shared.item_pipe().release(at);
    }
  }

 private:
  __device__ __forceinline__ void consume(const Item& item) {
    const RowTile& tile = item.tile;
    const int first = sm90::uniform(item.first), last = sm90::uniform(item.last);
    const int row = tile.begin + group * 64 + sm90::uniform(threadIdx.x / 32) % 4 * 16;
    const WindowMask& mask = item.mask;
    const int full_begin = mask.begin, full_end = mask.end;
    LiftedSoftmax state;
    float x[1][BN / 8][4], o[E / 8][4], alpha[2];
    uint32_t p[BN / 32][4];
    float behind[2] = {1.f, 1.f};  // what the sums in shared memory are to be multiplied with
    bool kept = false;             // there are any

    // A factor of 0 would turn masked scores into NaN.
    const auto positive = [](float factor) { return factor == 0.f ? 0x1p-126f : factor; };
    constexpr int Parts = Codes::blocks ? BN / 64 : 1;
    float factor[Parts];
    const auto find_factor = [&](int n) {
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        const int key = min(n * BN + part * 64, tile.keys - 1);
        factor[part] =
            positive(item.row_scale[group] *
                     (Codes::blocks ? codes.key(tile.rows.seq, tile.rows.r, item.key_head, key)
                                    : item.key_scale));
      }
    };
    const auto scores = [&] {
      shared.k_pipe().wait(k_at);
      sm90::fence();
      sm90::byte_product<FOVEA_E4M3, D, TileQ, TileK>(x[0], q_rows,
                                                      TileK::descriptor(shared.k(k_at)));
      sm90::commit();
    };
    const auto values = [&](bool accumulate) {
      shared.v_pipe().wait(v_at);
      sm90::byte_product<FOVEA_E4M3, TileV>(o, p, TileV::descriptor(shared.v(v_at)), accumulate);
      sm90::commit();
    };
    const auto weigh = [&](int n) {
      if (Codes::blocks) find_factor(n);
      if (n < full_begin || n >= full_end) mask.apply(x, n * BN, row);
      state.weigh(x[0], alpha, factor);
    };
    const auto step = [&](int n, bool accumulate) {
      scores();
      values(accumulate);
      sm90::wait<1>();
      sm90::pin(x[0]);
      shared.k_pipe().release(k_at);
      k_at.next();
      weigh(n);
      // ptxas moves a wait above arithmetic, here the whole softmax that is to run beside the
      // second product, but not above a branch: this barrier was passed before.
      sm90::pin(x[0]);
      shared.v_pipe().wait(v_at);
      sm90::wait<0>();
      sm90::pin(o);
      shared.v_pipe().release(v_at);
      v_at.next();
      sm90::pack_codes(p, x[0]);
#pragma unroll
      for (int j = 0; j < E / 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[j][c] *= alpha[c / 2];
      behind[0] *= alpha[0], behind[1] *= alpha[1];
    };

#pragma unroll
    for (int j = 0; j < E / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[j][c] = 0.f;
    if (first < last) {
      if (item.clear < BN) {
        shared.v_pipe().wait(v_at);
        // Both warpgroups write the same bytes.
        clear_tail<TileV, E, BN>(shared.base + (shared.v(v_at) - shared.at), item.clear);
        sm90::fence_shared();
        sm90::named_barrier_sync(1 + group, 128);
      }
      find_factor(last - 1);
      shared.q_pipe().wait(q_at);
      scores();
      sm90::wait<0>();
      sm90::pin(x[0]);
      shared.k_pipe().release(k_at);
      k_at.next();
      weigh(last - 1);
      sm90::pack_codes(p, x[0]);
      bool accumulate = false;
      for (int n = last - 2;;) {
        accumulate = false;
        const int stop = max(first, n - Run + 1);
#pragma unroll 1
        for (; n >= stop; --n, accumulate = true) step(n, accumulate);
        if (n < first) break;
#pragma unroll
        for (int j = 0; j < E / 8; ++j) {
          float4 at = kept ? sums[j * 128] : make_float4(0.f, 0.f, 0.f, 0.f);
          at.x = fmaf(at.x, behind[0], o[j][0]), at.y = fmaf(at.y, behind[0], o[j][1]);
          at.z = fmaf(at.z, behind[1], o[j][2]), at.w = fmaf(at.w, behind[1], o[j][3]);
          sums[j * 128] = at;
        }
        behind[0] = behind[1] = 1.f, kept = true;
      }
      shared.q_pipe().release(q_at);
      q_at.next();
      sm90::fence();
      values(accumulate);
      sm90::wait<0>();
      sm90::pin(o);
      shared.v_pipe().release(v_at);
      v_at.next();
    }

    store(item, row, state, o, first < last ? item.value_scale : 0.f, kept, behind);
  }

  // `behind`: what the sums in shared memory are to be multiplied with, if any are `kept` there.
  __device__ __forceinline__ void store(const Item& item, int row, const LiftedSoftmax& state,
                                        float (&o)[E / 8][4], float v_scale, bool kept,
                                        const float (&behind)[2]) const {
    const Attend& a = codes.attend();
    const RowTile& tile = item.tile;
    // Rows that saw nothing stay 0 whatever the scale is.
    const float sum[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
    const float scale[2] = {sum[0] == 0.f ? 0.f : v_scale, sum[1] == 0.f ? 0.f : v_scale};
#pragma unroll
    for (int j = 0; j < E / 8; ++j) {
      const float4 at = kept ? sums[j * 128] : make_float4(0.f, 0.f, 0.f, 0.f);
      const float below[4] = {at.x, at.y, at.z, at.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) o[j][c] = fmaf(below[c], behind[c / 2], o[j][c]) * scale[c / 2];
    }
    each_row<1>(row, [&](int, int half, int m) {
      const float top = state.m[half] - LiftedSoftmax::kLift;
      const bool valid = m < tile.count;
      if (a.o_dtype == FOVEA_BF16)
        epilogue.template store<FOVEA_BF16>(a, tile, m, valid, 0, top, sum[half], o, half);
      else
        epilogue.template store<FOVEA_F16>(a, tile, m, valid, 0, top, sum[half], o, half);
    });
  }
};

template <class Shape, CodeScales Codes, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_fp8_sm90(const __grid_constant__ Codes codes, const __grid_constant__ AttendGrid grid,
                    const __grid_constant__ AttendMaps maps,
                    const __grid_constant__ TileOrder order,
                    const __grid_constant__ DynamicSchedule schedule,
                    const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const ByteShared90<Shape> shared(memory);
  if (threadIdx.x == 0) {
    sm90::prefetch_map(maps.q), sm90::prefetch_map(maps.k), sm90::prefetch_map(maps.v);
    shared.init();
  }
  __syncthreads();
  const int warp = sm90::uniform(threadIdx.x / 32), group = sm90::uniform(threadIdx.x / 128) - 1;
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (warp > 1 || !sm90::elect_one()) return;
    if (warp == 1)
      schedule_items<Shape>(codes, grid, order, schedule, shared);
    else
      produce_items<Shape>(maps, shared);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    ByteConsumer90<Shape, Codes, Epilogue>{codes, epilogue, shared, group}.run();
  }
}

}  // namespace fovea::cuda
