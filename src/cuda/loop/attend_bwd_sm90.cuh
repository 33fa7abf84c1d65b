// SPDX-License-Identifier: Apache-2.0
// The gradient of attention on Hopper, five products, one owner for dk and dv:
//   p' = exp(k q' - lse),  ds' = p' (v dout' - delta),  dv += p' dout,  dk += ds' q,  dq += ds k
// A block owns 128 keys of a sequence and key head and walks the row tiles of the group's heads,
// last to first.  Warpgroup 0 copies (warp 0) and drains dq (warp 1); the two others own 64 keys
// each: scores stand keys by rows, so p' and ds' leave the registers as operands of dv and dk, and
// ds alone goes through shared memory, where both groups take their half of dq = ds k from it.
// Shared memory: K, V (128 x D, E), Stages x (Q, dO) (BM x D, E), Stages x ds (128 x BM), dq in f32,
// Stages x (lse, delta) of BM rows, barriers.
// Barriers: k and v full; q, dout full (bytes) and empty (one arrival a computing warp) of each
// stage; dq full and empty of each half; named barrier 1: ds is written.
// dq is summed in the workspace, key blocks ascending: block n waits until n - 1 has added to the
// tile, and blocks start in that order, so a block only waits for blocks that started before it.
// Rows past the last are zeroed where the tensor goes on, by the copying warp: a NaN there times a
// p of 0 would count.  FlashAttention-3 (2407.08608).
#pragma once
#include <new>

#include "cuda/loop/backward_tiles.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/loop/sink.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, int BM_, int Stages_>
struct BackwardShape90 {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, BM = BM_, BN = 128, Stages = Stages_;
  static constexpr int groups = BN / 64, threads = 128 * (groups + 1);
  static constexpr int copying = 32, computing = 240;  // registers a thread
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  using TileQ = Swizzled<BM, D>;
  using TileO = Swizzled<BM, E>;
  using TileS = Swizzled<BN, BM>;
  static constexpr int chunk_bytes = kChunkFloats * 4;
  static_assert(Stages == 2, "the stage is the phase of dq");
  static_assert(BM / kChunkRows * TileK::panels == groups, "a chunk of dq for each warpgroup");
  static constexpr int side_bytes = 2 * BM * 4;
  static constexpr int v = TileK::bytes, q = v + TileV::bytes, dout = q + Stages * TileQ::bytes,
                       ds = dout + Stages * TileO::bytes, dq = ds + Stages * TileS::bytes,
                       side = dq + groups * chunk_bytes, barriers = side + Stages * side_bytes;
  static constexpr int shared_bytes = barriers + (2 + 4 * Stages + 2 * groups) * 8;
};

// The row tiles a block walks, the same for each head of the group.
struct RowWalk {
  int first, last, heads, head;
  __device__ int count() const { return (last - first) * heads; }
  // Calls f(query head, row tile).
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
    for (int h = head; h < head + heads; ++h)
#pragma unroll 1
      for (int m = last - 1; m >= first; --m) f(h, m);
  }
};

// Rows [row, row + Rows) to shared memory by one warp; those from `count` on, if any, as zeros.
// The last of what `full` waits for, but for `more` bytes that the caller sends for next.
template <class Tile, int Rows>
__device__ __forceinline__ void copy_rows_90(uint32_t to, const CUtensorMap& map, uint32_t full,
                                             uint32_t raw, uint32_t& raw_phase, int row, int head,
                                             int batch, int count, uint32_t more) {
  const bool leads = threadIdx.x % 32 == 0;
  if (count >= Rows) {
    if (leads) {
      sm90::barrier_expect(full, Tile::bytes + more);
      sm90::copy_panels<Tile>(to, map, full, row, head, batch);
    }
    return;
  }
  if (leads) sm90::copy_tile<Tile>(to, map, raw, row, head, batch);
  __syncwarp();
  sm90::barrier_wait(raw, raw_phase);
  raw_phase ^= 1;
#pragma unroll 1
  for (int i = count * kPanelChunks + threadIdx.x % 32; i < Rows * kPanelChunks; i += 32)
#pragma unroll
    for (int panel = 0; panel < Tile::panels; ++panel)
      sm90::store_zeros(to + panel * Tile::panel_bytes + i * 16);
  sm90::fence_shared();
  __syncwarp();
  if (leads) sm90::barrier_expect(full, more);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_bwd_sm90(const __grid_constant__ AttendBackward b,
                    const __grid_constant__ BackwardMaps maps,
                    const __grid_constant__ BackwardWork work,
                    const __grid_constant__ BackwardGrid90 grid) {
  constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BM = Shape::BM, BN = Shape::BN;
  constexpr int Stages = Shape::Stages, Groups = Shape::groups;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  using TileS = typename Shape::TileS;
  using Ring = sm90::Ring<Stages>;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_sequence[sizeof(Sequence)];
  const Attend& a = b.forward;
  const uint32_t base = shared_address(shared), kv_full = base + Shape::barriers;
  const uint32_t raw = kv_full + 8;
  const auto q_full = [&](const Ring& at) { return raw + 8 + at.stage * 32; };
  const auto q_empty = [&](const Ring& at) { return raw + 16 + at.stage * 32; };
  const auto dout_full = [&](const Ring& at) { return raw + 24 + at.stage * 32; };
  const auto dout_empty = [&](const Ring& at) { return raw + 32 + at.stage * 32; };
  const auto dq_full = [&](int w) { return raw + 8 + Stages * 32 + w * 16; };
  const auto dq_empty = [&](int w) { return raw + 16 + Stages * 32 + w * 16; };
  const int lane = threadIdx.x % 32, warp = sm90::uniform(threadIdx.x / 32),
            group = sm90::uniform(threadIdx.x / 128) - 1;  // -1 copies

  const int64_t heads = a.g * a.sequences.count, per = grid.blocks * grid.section;
  const int64_t part = blockIdx.x / per, at = blockIdx.x % per;
  const int64_t width = min(grid.section, heads - part * grid.section);
  const int64_t owner = part * grid.section + at % width, r = owner / a.g;
  const int g = static_cast<int>(owner % a.g), n = static_cast<int>(at / width);
  if (threadIdx.x == 0) {
    new (s_sequence) Sequence{a.sequences[r]};
    sm90::barrier_init(kv_full, 2), sm90::barrier_init(raw, 1);
    for (Ring s; s.phase == 0; s.next()) {
      sm90::barrier_init(q_full(s), 1), sm90::barrier_init(dout_full(s), 1);
      sm90::barrier_init(q_empty(s), 4 * Groups), sm90::barrier_init(dout_empty(s), 4 * Groups);
    }
    for (int w = 0; w < Groups; ++w)
      sm90::barrier_init(dq_full(w), 4), sm90::barrier_init(dq_empty(w), 1);
    sm90::barrier_init_done();
  }
  __syncthreads();
  const Sequence& seq = *reinterpret_cast<const Sequence*>(s_sequence);
  const int keys = static_cast<int>(seq.keys), rows = static_cast<int>(seq.rows);
  const int key_begin = n * BN, key_end = min(key_begin + BN, keys);
  if (key_begin >= keys) return;
  const int heads_of = static_cast<int>(a.h / a.g);
  const Range range = row_range(a.mask, seq, g * heads_of, (g + 1) * heads_of, key_begin, key_end);
  RowWalk walk{sm90::uniform(static_cast<int>(range.begin) / BM),
               sm90::uniform((static_cast<int>(range.end) + BM - 1) / BM), sm90::uniform(heads_of),
               sm90::uniform(g * heads_of)};
  if (range.begin >= range.end) walk.last = walk.first;
  const int first_tile = static_cast<int>(work.tiles.first(seq, r));

  if (group < 0) {
    sm90::give_registers<Shape::copying>();
    if (walk.count() == 0) return;
    if (warp == 0) {
      uint32_t raw_phase = 0;
      const int key_row = static_cast<int>(seq.key_begin) + key_begin,
                key_batch = static_cast<int>(seq.key_batch);
      const int present = seq.key_begin + keys < a.t ? key_end - key_begin : BN;
      copy_rows_90<TileK, BN>(base, maps.k, kv_full, raw, raw_phase, key_row, g, key_batch,
                              present, 0);
      copy_rows_90<TileV, BN>(base + Shape::v, maps.v, kv_full, raw, raw_phase, key_row, g,
                              key_batch, present, 0);
      const int row_begin = static_cast<int>(seq.row_begin), batch = static_cast<int>(seq.batch);
      // Past this the tensor has rows that are not the sequence's.
      const int row_end = seq.row_begin + rows < a.s ? row_begin + rows : INT32_MAX;
      Ring to;
      walk.each([&](int h, int m) {
        const int row = row_begin + m * BM, count = row_end - row;
        sm90::barrier_wait(q_empty(to), to.phase ^ 1);
        copy_rows_90<TileQ, BM>(base + Shape::q + to.stage * TileQ::bytes, maps.q, q_full(to), raw,
                                raw_phase, row, h, batch, count, Shape::side_bytes);
        if (lane == 0)
          sm90::copy_in(base + Shape::side + to.stage * Shape::side_bytes,
                        work.lse(h * work.tiles.total + first_tile + m), Shape::side_bytes,
                        q_full(to));
        sm90::barrier_wait(dout_empty(to), to.phase ^ 1);
        copy_rows_90<TileO, BM>(base + Shape::dout + to.stage * TileO::bytes, maps.dout,
                                dout_full(to), raw, raw_phase, row, h, batch, count, 0);
        to.next();
      });
    } else if (warp == 1 && lane == 0) {
      const int left = static_cast<int>(clamp_i64(a.mask.window.left, 0, kIndexMax));
      uint32_t phase = 0;
      walk.each([&](int h, int m) {
        const int tile = h * work.tiles.total + first_tile + m;
        // The first block that sees the tile stores, the others wait for their turn to add.
        const int lowest = left ? max(m * BM + keys - rows - left + 1, 0) / BN : 0;
        if (work.turn) wait_turn(work.turn + tile, n - lowest);
        float* to = work.dq + static_cast<int64_t>(tile) * (Groups * kChunkFloats);
#pragma unroll
        for (int w = 0; w < Groups; ++w) {
          const uint32_t from = base + Shape::dq + w * Shape::chunk_bytes;
          sm90::barrier_wait(dq_full(w), phase);
          if (!work.dq) continue;
          if (work.turn && n == lowest)
            sm90::copy_out(to + w * kChunkFloats, from, Shape::chunk_bytes);
          else
            sm90::add_out(to + w * kChunkFloats, from, Shape::chunk_bytes);
          sm90::out_commit();
        }
        sm90::out_wait_read<1>();
        sm90::barrier_arrive(dq_empty(0));
        sm90::out_wait_read<0>();
        sm90::barrier_arrive(dq_empty(1));
        if (work.turn) {
          sm90::out_wait<0>();
          pass_turn(work.turn + tile);
        }
        phase ^= 1;
      });
      sm90::out_wait<0>();
    }
    return;
  }

  sm90::take_registers<Shape::computing>();
  const int own = key_begin + group * 64 + warp % 4 * 16 + lane / 4;  // first key of the lane
  const PlainPairs pairs(a, seq, r, 0);
  float dk[D / 8][4], dv[E / 8][4], x[1][BM / 8][4], dp[1][BM / 8][4], dq[8][4];
  uint32_t p[1][BM / 16][4], ds[1][BM / 16][4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) dk[j][c] = 0.f;
#pragma unroll
    for (int j = 0; j < E / 8; ++j) dv[j][c] = 0.f;
  }
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };
  const uint64_t k_rows = sm90::descriptor(base + group * 64 * kPanelRowBytes);
  const uint64_t v_rows = sm90::descriptor(base + Shape::v + group * 64 * kPanelRowBytes);
  // This warpgroup's chunk of dq: 64 rows of ds by 64 columns of k.
  constexpr int Panels = TileK::panels;
  const uint64_t k_columns = sm90::descriptor(base + group % Panels * TileK::panel_bytes);
  const uint32_t ds_lane =
      TileS::at(group * 64 + warp % 4 * 16 + outer_row(lane), outer_chunk(lane));
  Ring stage;
  int left = walk.count();
  const auto scores = [&](const Ring& at) {
    sm90::fence();
    sm90::product_rows<Dtype, D, TileK, TileQ>(
        x[0], k_rows, sm90::descriptor(base + Shape::q + at.stage * TileQ::bytes));
    sm90::commit();
  };
  if (left > 0) {
    sm90::barrier_wait(kv_full, 0);
    sm90::barrier_wait(q_full(stage), 0);
    scores(stage);
    sm90::wait<0>();
    sm90::pin(x[0]);
    int m = walk.last - 1;
#pragma unroll 1
    do {
    const uint32_t s_q = base + Shape::q + stage.stage * TileQ::bytes,
                   s_dout = base + Shape::dout + stage.stage * TileO::bytes,
                   s_ds = base + Shape::ds + stage.stage * TileS::bytes;
    const float2* lse = reinterpret_cast<const float2*>(shared + Shape::side +
                                                        stage.stage * Shape::side_bytes) +
                        lane % 4;
    const int row = m * BM;
    const bool full = pairs.full(row, row + BM, key_begin, key_begin + BN);
    sm90::barrier_wait(dout_full(stage), stage.phase);
    sm90::product_rows<Dtype, E, TileV, TileO>(dp[0], v_rows, sm90::descriptor(s_dout));
    sm90::commit();
    const auto weigh = [&](bool all) {
#pragma unroll
      for (int j = 0; j < BM / 8; ++j) {
        const float2 at = lse[4 * j];
#pragma unroll
        for (int c = 0; c < 4; ++c)
          pairs.weigh(x[0][j][c], c & 1 ? at.y : at.x, row + j * 8 + lane % 4 * 2 + c % 2,
                      own + c / 2 * 8, all);
      }
    };
    if (full)
      weigh(true);
    else
      weigh(false);
    sm90::wait<0>();
    sm90::pin(dp[0]);
    const auto slope = [&](bool all) {
#pragma unroll
      for (int j = 0; j < BM / 8; ++j) {
        const float2 at = lse[BM / 2 + 4 * j];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float away = x[0][j][c] * (dp[0][j][c] - (c & 1 ? at.y : at.x));
          // An unseen pair is 0 whatever its product is, NaN included.
          dp[0][j][c] = !all && x[0][j][c] == 0.f ? 0.f : away;
        }
      }
    };
    if (full)
      slope(true);
    else
      slope(false);
    pack_operand<Dtype>(ds, dp);
    pack_operand<Dtype>(p, x);
#pragma unroll
    for (int k = 0; k < BM / 16; ++k)
      sm90::store_matrices(TileS::pair(s_ds + ds_lane, k), ds[0][k]);
    sm90::fence();
    sm90::product_columns<Dtype>(dv, p[0], sm90::descriptor(s_dout, TileO::panel_bytes), true);
    sm90::commit();
    sm90::fence_shared();
    sm90::meet(1, 128 * Groups);
    sm90::fence();
    sm90::product_turned<Dtype, BN>(
        dq, sm90::descriptor(s_ds + group / Panels * TileS::panel_bytes), k_columns);
    sm90::commit();
    sm90::product_columns<Dtype>(dk, ds[0], sm90::descriptor(s_q, TileQ::panel_bytes), true);
    sm90::commit();
    sm90::wait<2>();
    sm90::pin(dv);
    release(dout_empty(stage));
    // The scores of the next tile, or, after the last, of any that is at hand.
    Ring next = stage;
    next.next();
    if (left > 1) sm90::barrier_wait(q_full(next), next.phase);
    scores(next);
    sm90::wait<2>();
    sm90::pin(dq);
    sm90::barrier_wait(dq_empty(group), stage.stage ^ 1);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<float4*>(shared + Shape::dq + group * Shape::chunk_bytes +
                                 (j * 128 + threadIdx.x % 128) * 16) =
          make_float4(dq[j][0], dq[j][1], dq[j][2], dq[j][3]);
    sm90::fence_shared();
    __syncwarp();
    release(dq_full(group));
    sm90::wait<1>();
    sm90::pin(dk);
    release(q_empty(stage));
    sm90::wait<0>();
    sm90::pin(x[0]);
    stage = next;
    if (--m < walk.first) m = walk.last - 1;
    } while (--left > 0);
  }

  const auto store = [&](const View<4>& out, int width, const auto& sum, float factor) {
    if (!out) return;
    uint16_t* line = static_cast<uint16_t*>(out.data) + seq.key_batch * out.stride[0] +
                     (seq.key_begin + own) * out.stride[1] + g * out.stride[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store_row<Dtype>(own + 8 * half < keys ? line + 8 * half * out.stride[1] : nullptr, width,
                       sum, half, factor);
  };
  store(b.dv, static_cast<int>(a.e), dv, 1.f);
  store(b.dk, static_cast<int>(a.d), dk, a.score.scale);
}

}  // namespace fovea::cuda
