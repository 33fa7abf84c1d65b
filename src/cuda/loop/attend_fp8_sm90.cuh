// SPDX-License-Identifier: Apache-2.0
// The sweep over keys on Hopper's 8-bit tensor cores: o = softmax(factor q k') v, all codes e4m3.
//   p is rounded at 2^8 p and meets v as a register operand, so v is stored transposed and permuted
//   (v_perm16).  These products keep 13 bits of their sums: o is summed there over `Run` key tiles,
//   then joins the f32 sums of its rows in shared memory.  That, and scales for blocks of keys, is
//   why this is no shape of attend_sm90.cuh.
//   A block stays on its multiprocessor and takes work items as they come: 64 x Groups rows of one
//   sequence and head, a warpgroup 64 of them, a warp 16.  Of warpgroup 0 a thread copies, running
//   ahead into the next item, and one of another warp plans that item (feed_fp8_sm90.cuh).
//   Shared memory: Q (BM x D), Stages x (K (BN x D), V' (E x BN)), sums (BM x E, f32), barriers,
//   two items: the one at work and the next.
//
//   | barrier          | who arrives           | who waits         | what it guards            |
//   | ---------------- | --------------------- | ----------------- | ------------------------- |
//   | item full        | planner               | copier, consumers | a work item               |
//   | item empty       | copier, a lane a warp | planner           | the same, to overwrite    |
//   | near             | copier                | planner           | the plan of the next item |
//   | q full           | TMA                   | consumers         | Q                         |
//   | q empty          | a lane of each warp   | copier            | the same, to overwrite    |
//   | k full, v full   | TMA                   | consumers         | a stage                   |
//   | k empty, v empty | a lane of each warp   | copier            | the same, to overwrite    |
//   | named 1 + g      | warpgroup g           | itself            | zeros past the last key   |
//
//   The copier arrives at near when few tiles of an item are left to copy.
// FlashAttention-3 (2407.08608).
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/feed_fp8_sm90.cuh"
#include "cuda/loop/sink.cuh"

namespace fovea::cuda {

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

// A consumer warpgroup.
template <class Shape, CodeScales Codes>
class ByteConsumer90 {
  static constexpr int D = Shape::D, E = Shape::E, BN = Shape::BN;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using Shared = ByteShared90<Shape>;
  using Item = WorkItem<Shape>;
  static constexpr int Parts = Codes::blocks ? BN / 64 : 1;

 public:
  // A lane's fragments of tiles and sums.  They are an object apart: until loops over an array are
  // unrolled, the compiler keeps all that lies beside it in memory.
  struct Fragments {
    float x[1][BN / 8][4];  // scores, then weights
    uint32_t p[BN / 32][4];
    float o[E / 8][4];
    float alpha[2];
    float factor[Parts];  // of each part of a tile's keys
    float behind[2];      // what the sums in shared memory are to be multiplied with
    LiftedSoftmax state;
  };

  __device__ __forceinline__ ByteConsumer90(const Codes& codes, const Shared& shared, int group,
                                            Fragments& fragments)
      : codes(codes),
        shared(shared),
        group(group),
        lane(threadIdx.x % 32),
        warp(sm90::uniform(threadIdx.x / 32)),
        sums(shared.sums() + group * (64 * E / 4) + threadIdx.x % 128),
        q_rows(TileQ::descriptor(shared.q() + group * 64 * TileQ::Panel)),
        x(fragments.x),
        p(fragments.p),
        o(fragments.o),
        alpha(fragments.alpha),
        factor(fragments.factor),
        behind(fragments.behind),
        state(fragments.state) {}

  template <class Sink>
  __device__ __forceinline__ void compute(const Sink& sink) {
    for (;; item_at.next()) {
      sm90::barrier_wait(shared.item_full(item_at), item_at.phase);
      if (sm90::uniform(item().tile.size) <= 0) return;
      begin_item();
      if (first < last) {
        begin_tiles();
        walk_tiles();
      }
      store(sink);
      __syncwarp();
      release(shared.item_empty(item_at));
    }
  }

 private:
  __device__ __forceinline__ void release(uint32_t barrier) const {
    if (lane == 0) sm90::barrier_arrive(barrier);
  }
  __device__ __forceinline__ const Item& item() const { return shared.item(item_at); }

  // ---- an item

  __device__ __forceinline__ void begin_item() {
    first = sm90::uniform(item().first), last = sm90::uniform(item().last);
    row = item().tile.begin + group * 64 + warp % 4 * 16;
    full_begin = item().mask.begin, full_end = item().mask.end;
    state = LiftedSoftmax();
    behind[0] = behind[1] = 1.f, kept = false;
#pragma unroll
    for (int j = 0; j < E / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[j][c] = 0.f;
  }

  // The weights of the last tile, and zeros for its values past the sequence.
  __device__ __forceinline__ void begin_tiles() {
    if (item().clear < BN) {
      sm90::barrier_wait(shared.v_full(v_at), v_at.phase);
      // All warpgroups write the same bytes.
      clear_tail<TileV, E, BN>(shared.base + shared.v_offset(v_at), item().clear);
      sm90::fence_shared();
      sm90::named_barrier_sync(1 + group, 128);
    }
    find_factor(last - 1);
    sm90::barrier_wait(shared.q_full(), q_phase);
    q_phase ^= 1;
    issue_scores();
    sm90::wait<0>();
    retire_scores();
    weigh(last - 1);
    sm90::pack_codes(p, x[0]);
  }

  __device__ __forceinline__ void walk_tiles() {
    bool accumulate = false;
    for (int n = last - 2;;) {
      accumulate = false;
      const int stop = max(first, n - Shape::Run + 1);
#pragma unroll 1
      for (; n >= stop; --n, accumulate = true) step(n, accumulate);
      if (n < first) break;
      keep_sums();
    }
    release(shared.q_empty());
    sm90::fence();
    issue_values(accumulate);
    sm90::wait<0>();
    retire_values();
  }

  // o of `Run` tiles joins the sums in shared memory.
  __device__ __forceinline__ void keep_sums() {
#pragma unroll
    for (int j = 0; j < E / 8; ++j) {
      float4 at = kept ? sums[j * 128] : make_float4(0.f, 0.f, 0.f, 0.f);
      at.x = fmaf(at.x, behind[0], o[j][0]), at.y = fmaf(at.y, behind[0], o[j][1]);
      at.z = fmaf(at.z, behind[1], o[j][2]), at.w = fmaf(at.w, behind[1], o[j][3]);
      sums[j * 128] = at;
    }
    behind[0] = behind[1] = 1.f, kept = true;
  }

  template <class Sink>
  __device__ __forceinline__ void store(const Sink& sink) {
    const Attend& a = codes.attend();
    // Rows that saw nothing stay 0 whatever the scale is.
    const float v_scale = first < last ? item().value_scale : 0.f;
    const float sum[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
    const float scale[2] = {sum[0] == 0.f ? 0.f : v_scale, sum[1] == 0.f ? 0.f : v_scale};
#pragma unroll
    for (int j = 0; j < E / 8; ++j) {
      const float4 at = kept ? sums[j * 128] : make_float4(0.f, 0.f, 0.f, 0.f);
      const float below[4] = {at.x, at.y, at.z, at.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) o[j][c] = fmaf(below[c], behind[c / 2], o[j][c]) * scale[c / 2];
    }
    const RowTile& tile = item().tile;
    each_row<1>(row, [&](int, int half, int m) {
      const float top = state.m[half] - LiftedSoftmax::kLift;
      const bool valid = m < tile.count;
      if (a.o_dtype == FOVEA_BF16)
        sink.template store<FOVEA_BF16>(a, tile, m, valid, 0, top, sum[half], o, half);
      else
        sink.template store<FOVEA_F16>(a, tile, m, valid, 0, top, sum[half], o, half);
    });
  }

  // ---- a tile of keys

  // The scores of tile n, and O += P V of the tile before under them.
  __device__ __forceinline__ void step(int n, bool accumulate) {
    issue_scores();
    issue_values(accumulate);
    sm90::wait<1>();
    retire_scores();
    weigh(n);
    // ptxas moves a wait above arithmetic, here the whole softmax that is to run beside the
    // second product, but not above a branch: this barrier was passed before.
    sm90::pin(x[0]);
    sm90::barrier_wait(shared.v_full(v_at), v_at.phase);
    sm90::wait<0>();
    retire_values();
    sm90::pack_codes(p, x[0]);
#pragma unroll
    for (int j = 0; j < E / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[j][c] *= alpha[c / 2];
    behind[0] *= alpha[0], behind[1] *= alpha[1];
  }

  __device__ __forceinline__ void issue_scores() {
    sm90::barrier_wait(shared.k_full(k_at), k_at.phase);
    sm90::fence();
    sm90::byte_product<FOVEA_E4M3, D, TileQ, TileK>(x[0], q_rows,
                                                    TileK::descriptor(shared.k(k_at)));
    sm90::commit();
  }
  __device__ __forceinline__ void retire_scores() {
    sm90::pin(x[0]);
    release(shared.k_empty(k_at));
    k_at.next();
  }
  __device__ __forceinline__ void issue_values(bool accumulate) {
    sm90::barrier_wait(shared.v_full(v_at), v_at.phase);
    sm90::byte_product<FOVEA_E4M3, TileV>(o, p, TileV::descriptor(shared.v(v_at)), accumulate);
    sm90::commit();
  }
  __device__ __forceinline__ void retire_values() {
    sm90::pin(o);
    release(shared.v_empty(v_at));
    v_at.next();
  }

  __device__ __forceinline__ void weigh(int n) {
    if (Codes::blocks) find_factor(n);
    if (n < full_begin || n >= full_end) item().mask.apply(x, n * BN, row);
    state.weigh(x[0], alpha, factor);
  }
  __device__ __forceinline__ void find_factor(int n) {
    const RowTile& tile = item().tile;
#pragma unroll
    for (int part = 0; part < Parts; ++part) {
      const int key = min(n * BN + part * 64, tile.keys - 1);
      factor[part] =
          positive(item().row_scale[group] *
                   (Codes::blocks ? codes.key(tile.rows.seq, tile.rows.r, item().key_head, key)
                                  : item().key_scale));
    }
  }
  // A factor of 0 would turn masked scores into NaN.
  __device__ __forceinline__ static float positive(float factor) {
    return factor == 0.f ? 0x1p-126f : factor;
  }

  // ---- state

  const Codes& codes;
  const Shared& shared;
  const int group, lane, warp;
  float4* const sums;  // the lane's, in shared memory
  const uint64_t q_rows;
  typename Shared::Pair item_at;
  typename Shared::Ring k_at, v_at;
  uint32_t q_phase = 0;

  // Of the item.
  int first, last;  // tiles of keys
  int row;          // the warp's first
  int full_begin, full_end;
  bool kept;  // there are sums in shared memory

  float (&x)[1][BN / 8][4];
  uint32_t (&p)[BN / 32][4];
  float (&o)[E / 8][4], (&alpha)[2], (&factor)[Parts], (&behind)[2];
  LiftedSoftmax& state;
};

template <class Shape, CodeScales Codes, class Sink>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_fp8_sm90(const __grid_constant__ Codes codes, const __grid_constant__ AttendGrid grid,
                    const __grid_constant__ AttendMaps maps,
                    const __grid_constant__ WorkOrder order,
                    const __grid_constant__ Schedule schedule, const __grid_constant__ Sink sink) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const ByteShared90<Shape> shared(memory);
  const int warp = sm90::uniform(threadIdx.x / 32);
  const int group = sm90::uniform(threadIdx.x / 128) - 1;  // -1 copies
  if (threadIdx.x == 0) {
    sm90::prefetch_map(maps.q), sm90::prefetch_map(maps.k), sm90::prefetch_map(maps.v);
    shared.init();
  }
  __syncthreads();
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::copying>();
    if (warp > 1 || !sm90::elect_one()) return;
    if (warp == 1)
      plan_items(shared, codes, grid, order, schedule);
    else
      copy_items(shared, maps);
    return;
  }
  sm90::setmaxnreg_inc<Shape::computing>();
  typename ByteConsumer90<Shape, Codes>::Fragments fragments;
  ByteConsumer90<Shape, Codes>(codes, shared, group, fragments).compute(sink);
}

}  // namespace fovea::cuda
