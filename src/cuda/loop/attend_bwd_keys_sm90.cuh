// SPDX-License-Identifier: Apache-2.0
// dk and dv of wide heads on Hopper, whose sums for more keys would not fit in registers:
//   p' = exp(k q' - lse),  dv += p' dout,  ds' = p' (v dout' - delta),  dk += ds' q
// A block owns 64 keys of a sequence and key head and walks the row tiles of the group's heads.
// Warpgroup 0 copies; warpgroup 1 makes p' and sums dv, 2 makes v dout' and sums
// dk.  All that passes between them is p', in f32 and in the order of the fragments, through a
// ring: each has a product under way while the other is between two.
// Shared memory: K, V (64 x D, E), Stages x (Q, dO) (BM x D, E), two p' (64 x BM, f32), Stages x
// (lse, delta), barriers.
// Barriers: k, v full; q, dout full (bytes) and empty (one arrival a computing warp) of each stage;
// p full and empty (one a warp of the writer and the reader) of each of two.
// Rows past the last are zeroed where the tensor goes on: a NaN there times a p of 0 would count.
#pragma once
#include <new>

#include "cuda/loop/backward_walk_sm90.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/loop/sink.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_>
struct BackwardKeysShape {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, BM = 64, BN = 64, Stages = 2;
  static constexpr int threads = 384, copying = 24, computing = 240;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  using TileQ = Swizzled<BM, D>;
  using TileO = Swizzled<BM, E>;
  static constexpr int p_bytes = BN * BM * 4, side_bytes = 2 * BM * 4;
  static constexpr int v = TileK::bytes, q = v + TileV::bytes, dout = q + Stages * TileQ::bytes,
                       p = dout + Stages * TileO::bytes, side = p + 2 * p_bytes,
                       barriers = side + Stages * side_bytes;
  static constexpr int shared_bytes = barriers + (3 + 4 * Stages + 4) * 8;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_bwd_keys_sm90(const __grid_constant__ AttendBackward b,
                         const __grid_constant__ BackwardMaps maps,
                         const __grid_constant__ BackwardWork work,
                         const __grid_constant__ BackwardGrid90 grid) {
  constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BM = Shape::BM, BN = Shape::BN;
  constexpr int Stages = Shape::Stages;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  using Ring = sm90::Ring<Stages>;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_sequence[sizeof(Sequence)];
  __shared__ __align__(16) unsigned char s_block[sizeof(BackwardBlock)];
  const Attend& a = b.forward;
  const uint32_t base = shared_address(shared), k_full = base + Shape::barriers;
  const uint32_t v_full = k_full + 8, raw = k_full + 16;
  const auto q_full = [&](const Ring& at) { return raw + 8 + at.stage * 32; };
  const auto q_empty = [&](const Ring& at) { return raw + 16 + at.stage * 32; };
  const auto dout_full = [&](const Ring& at) { return raw + 24 + at.stage * 32; };
  const auto dout_empty = [&](const Ring& at) { return raw + 32 + at.stage * 32; };
  const auto p_full = [&](const Ring& at) { return raw + 8 + Stages * 32 + at.stage * 16; };
  const auto p_empty = [&](const Ring& at) { return raw + 16 + Stages * 32 + at.stage * 16; };
  const int lane = threadIdx.x % 32, warp = sm90::uniform(threadIdx.x / 32),
            group = sm90::uniform(threadIdx.x / 128);  // 0 copies

  if (threadIdx.x == 0) {
    const auto* block = new (s_block) BackwardBlock(grid);
    new (s_sequence) Sequence{a.sequences[block->r]};
    sm90::barrier_init(k_full, 1), sm90::barrier_init(v_full, 1), sm90::barrier_init(raw, 1);
    for (Ring s; s.phase == 0; s.next()) {
      sm90::barrier_init(q_full(s), 1), sm90::barrier_init(dout_full(s), 1);
      sm90::barrier_init(q_empty(s), 8), sm90::barrier_init(dout_empty(s), 8);
      sm90::barrier_init(p_full(s), 4), sm90::barrier_init(p_empty(s), 4);
    }
    sm90::barrier_init_done();
  }
  __syncthreads();
  const Sequence& seq = *reinterpret_cast<const Sequence*>(s_sequence);
  const auto& block = *reinterpret_cast<const BackwardBlock*>(s_block);
  if (block.idle) return;
  const int keys = static_cast<int>(seq.keys), rows = static_cast<int>(seq.rows);
  const int key_begin = block.n * BN, key_end = min(key_begin + BN, keys);
  if (key_begin >= keys) return;
  const RowWalk walk(a, seq, block.g, key_begin, key_end, BM, block.down);

  if (group == 0) {
    sm90::setmaxnreg_dec<Shape::copying>();
    if (warp != 0 || walk.count() == 0) return;
    const int key_row = static_cast<int>(seq.key_begin) + key_begin,
              key_batch = static_cast<int>(seq.key_batch);
    const int first_tile = static_cast<int>(work.tiles.first(seq, block.r));
    const int row_begin = static_cast<int>(seq.row_begin), batch = static_cast<int>(seq.batch);
    // Past this the tensor has rows that are not the sequence's.
    const int row_end = seq.row_begin + rows < a.s ? row_begin + rows : INT32_MAX;
    if (lane == 0) {
      sm90::copy_tile<TileK>(base, maps.k, k_full, key_row, block.g, key_batch);
      sm90::copy_tile<TileV>(base + Shape::v, maps.v, v_full, key_row, block.g, key_batch);
    }
    uint32_t raw_phase = 0;
    Ring to;
    walk.each([&](int h, int m) {
      const int row = row_begin + m * BM;
      const FirstRows count{row_end - row};
      sm90::barrier_wait(q_empty(to), to.phase ^ 1);
      copy_present<TileQ, BM>(base + Shape::q + to.stage * TileQ::bytes, maps.q, q_full(to), raw,
                              raw_phase, row, h, batch, count, Shape::side_bytes);
      if (lane == 0)
        sm90::copy_in(base + Shape::side + to.stage * Shape::side_bytes,
                      work.lse(h * work.tiles.total + first_tile + m), Shape::side_bytes,
                      q_full(to));
      sm90::barrier_wait(dout_empty(to), to.phase ^ 1);
      copy_present<TileO, BM>(base + Shape::dout + to.stage * TileO::bytes, maps.dout,
                              dout_full(to), raw, raw_phase, row, h, batch, count, 0);
      to.next();
    });
    return;
  }

  sm90::setmaxnreg_inc<Shape::computing>();
  const AttentionSlopes slopes(a, seq, {});
  const int own = key_begin + warp % 4 * 16 + lane / 4;  // first key of the lane
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };
  const auto full = [&](int m) {
    return slopes.pairs.full(m * BM, m * BM + BM, key_begin, key_begin + BN);
  };
  const auto tile_q = [&](const Ring& at) { return base + Shape::q + at.stage * TileQ::bytes; };
  const auto tile_dout = [&](const Ring& at) {
    return base + Shape::dout + at.stage * TileO::bytes;
  };
  // lse, or delta from BM / 2 on, of the lane's rows 2 t, 2 t + 1 of each 8.
  const auto side = [&](const Ring& at) {
    return reinterpret_cast<const float2*>(shared + Shape::side + at.stage * Shape::side_bytes) +
           lane % 4;
  };
  const auto ring_p = [&](const Ring& at) {
    return reinterpret_cast<float4*>(shared + Shape::p + at.stage * Shape::p_bytes) +
           threadIdx.x % 128;
  };
  const auto store = [&](const View<4>& out, int width, const auto& sum, float factor) {
    if (!out) return;
    uint16_t* line = static_cast<uint16_t*>(out.data) + seq.key_batch * out.stride[0] +
                     (seq.key_begin + own) * out.stride[1] + block.g * out.stride[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store_row<Dtype>(own + 8 * half < keys ? line + 8 * half * out.stride[1] : nullptr, width,
                       sum, half, factor);
  };
  Ring at;
  int left = walk.count(), m = walk.first;
  const auto advance = [&] {
    at.next();
    if ((m += walk.step) == walk.end) m = walk.first;
  };

  if (group == 1) {
    float dv[E / 8][4], x[1][BM / 8][4];
    uint32_t p[1][BM / 16][4];
    const uint64_t k_rows = sm90::descriptor(base);
    const auto scores = [&](const Ring& at) {
      sm90::barrier_wait(q_full(at), at.phase);
      sm90::fence();
      sm90::product_rows<Dtype, D, TileK, TileQ>(x[0], sm90::unhoisted(k_rows),
                                                 sm90::descriptor(tile_q(at)));
      sm90::commit();
    };
    // x becomes p': to the ring, and packed.
    const auto weigh = [&] {
      weigh_tile(x[0], slopes, side(at), m * BM + lane % 4 * 2, own, full(m));
      sm90::barrier_wait(p_empty(at), at.phase ^ 1);
      float4* to = ring_p(at);
#pragma unroll
      for (int j = 0; j < BM / 8; ++j)
        to[j * 128] = make_float4(x[0][j][0], x[0][j][1], x[0][j][2], x[0][j][3]);
      __syncwarp();
      release(p_full(at));
      release(q_empty(at));
      pack_operand<Dtype>(p, x);
    };
    const auto values = [&] {
      sm90::barrier_wait(dout_full(at), at.phase);
      sm90::fence();
      sm90::product_columns<Dtype>(dv, p[0], sm90::descriptor(tile_dout(at), TileO::panel_bytes),
                                   true);
      sm90::commit();
    };
#pragma unroll
    for (int j = 0; j < E / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) dv[j][c] = 0.f;
    if (left > 0) {
      sm90::barrier_wait(k_full, 0);
      scores(at);
      sm90::wait<0>();
      sm90::pin(x[0]);
#pragma unroll 1
      for (; left > 1; --left) {
        weigh();
        values();
        const Ring now = at;
        advance();
        scores(at);
        sm90::wait<1>();
        sm90::pin(dv);
        release(dout_empty(now));
        sm90::wait<0>();
        sm90::pin(x[0]);
      }
      weigh();
      values();
      sm90::wait<0>();
      sm90::pin(dv);
    }
    store(b.dv, static_cast<int>(a.e), dv, 1.f);
  } else {
    float dk[D / 8][4], dp[1][BM / 8][4];
    uint32_t ds[1][BM / 16][4];
    const uint64_t v_rows = sm90::descriptor(base + Shape::v);
    const auto values = [&](const Ring& at) {
      sm90::barrier_wait(dout_full(at), at.phase);
      sm90::fence();
      sm90::product_rows<Dtype, E, TileV, TileO>(dp[0], sm90::unhoisted(v_rows),
                                                 sm90::descriptor(tile_dout(at)));
      sm90::commit();
    };
    // dp becomes ds', packed.
    const auto slope = [&] {
      sm90::barrier_wait(q_full(at), at.phase);
      sm90::barrier_wait(p_full(at), at.phase);
      const float4* from = ring_p(at);
      slope_tile(
          dp[0], slopes, [&](int j) { return from[j * 128]; }, side(at), full(m));
      __syncwarp();
      release(p_empty(at));
      pack_operand<Dtype>(ds, dp);
    };
    const auto products = [&] {
      sm90::fence();
      sm90::product_columns<Dtype>(dk, ds[0], sm90::descriptor(tile_q(at), TileQ::panel_bytes),
                                   true);
      sm90::commit();
    };
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) dk[j][c] = 0.f;
    if (left > 0) {
      sm90::barrier_wait(v_full, 0);
      values(at);
      sm90::wait<0>();
      sm90::pin(dp[0]);
      release(dout_empty(at));
#pragma unroll 1
      for (; left > 1; --left) {
        slope();
        products();
        const Ring now = at;
        advance();
        values(at);
        sm90::wait<1>();
        sm90::pin(dk);
        release(q_empty(now));
        sm90::wait<0>();
        sm90::pin(dp[0]);
        release(dout_empty(at));
      }
      slope();
      products();
      sm90::wait<0>();
      sm90::pin(dk);
    }
    store(b.dk, static_cast<int>(a.d), dk, a.score.scale);
  }
}

}  // namespace fovea::cuda
