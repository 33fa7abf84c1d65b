// SPDX-License-Identifier: Apache-2.0
// conv_attention_forward on Hopper.
//   S = scale q k' (0 where unseen),  A = S convolved (-inf where unseen),  o = softmax(A) v
//   A block takes works (head or pack of heads, row tile, split) as they come.  Of warpgroup 0 one
//   warp copies, running ahead into the next work; each of the others owns 64 rows of S by itself:
//   `above` rows that only its convolution reads, then its own (packed: 16 such rows a warp, each
//   of a head of its own).  So warpgroups never wait for each other, at above / 64 of their
//   products. Keys are walked in 64-key tiles from last to first.  Tile n has the scores of keys 64
//   n - left and on: the outputs 64 n .. 64 n + 63 read them and the first columns of the tile
//   before, so every score of a warpgroup is computed once.  Of a step: S of the next tile (wgmma)
//   is in flight while A is made of this one (tile/convolve_sm80.cuh, mma.sync, whose band of taps
//   costs half of what wgmma's least operand does), masked and exponentiated; then O += P V runs
//   while the next S goes to shared memory as f16. f16 has 4 bits more than the logits of a bf16
//   softmax need; S / 64 keeps scores up to 4 10^6. Shared memory: Slots x Q, a ring of Stages
//   tiles (K, K, V, K, V, ...), three tiles of S for each warpgroup, two works, barriers. Barriers:
//   full (bytes) and empty (one arrival a consuming warp) for each Q slot and each stage; free for
//   each work, full with its Q.  One barrier of a warpgroup a step: its S is written, and nobody
//   reads the tile that is written next.
// Multi-Token Attention (2504.00927), FlashAttention-3 (2407.08608).
#pragma once
#include "cuda/loop/attend_sm90.cuh"
#include "ops/conv_attention/forward_feed_sm90.cuh"

namespace fovea::cuda {

// One row of a finished work.
template <class Shape, int N>
__device__ __forceinline__ void store_conv(const ConvAttend& c, const ConvWork90& more,
                                           const ConvSlot& work, int head, int i, bool valid,
                                           float top, float sum, const float (&o)[N][4], int half) {
  const Attend& a = c.attend;
  const int64_t row = work.out.begin + i - c.history;
  const float inverse = sum == 0.f ? 0.f : 1.f / sum;
  const float lse = sum == 0.f ? kNegativeInfinity : (top + log2f(sum)) * kLn2;
  const int width = static_cast<int>(a.e);
  if (more.order.splits > 1) {
    if (!valid) return;
    const int64_t token = work.seq.batch * c.rows_out + row;
    store_wide(more.parts.o_row(work.split, token, head), width, o, half, inverse);
    if (threadIdx.x % 4 == 0) *more.parts.lse_row(work.split, token, head) = lse;
    return;
  }
  const int64_t at =
      valid ? work.seq.batch * a.o.stride[0] + row * a.o.stride[1] + head * a.o.stride[2] : 0;
  if (a.o_dtype != FOVEA_F32)
    store_row<Shape::Dtype>(valid ? static_cast<uint16_t*>(a.o.data) + at : nullptr, width, o, half,
                            inverse);
  else if (valid)
    store_wide(a.o.as<float>() + at, width, o, half, inverse);
  if (a.lse && valid && threadIdx.x % 4 == 0)
    a.lse.as()[work.seq.batch * a.lse.stride[0] + head * a.lse.stride[1] + row * a.lse.stride[2]] =
        lse;
}

// A computing warpgroup.
template <class Shape>
__device__ __forceinline__ void compute_conv(const ConvAttend& c, const ConvWork90& more, int group,
                                             const ConvShared90<Shape>& shared) {
  constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BN = Shape::BN, N = BN / 8;
  using Shared = ConvShared90<Shape>;
  using Ring = typename Shared::Ring;
  using TileV = typename Shape::TileV;
  const int lane = threadIdx.x % 32, warp = sm90::uniform(threadIdx.x / 32 % 4);
  const int above = static_cast<int>(c.above()), left = static_cast<int>(c.left());
  const int taps_rows = static_cast<int>(c.kernel_rows),
            taps_columns = static_cast<int>(c.kernel_columns);
  // The warp's first row in its slot.
  const int local = Shape::packed ? 0 : warp * 16;
  const int before = Shape::paged ? 0 : left;  // of a tile of S, its first column before V's
  const float factor = kScoreUnit * kLog2E, unit = c.attend.score.scale / kScoreUnit;
  typename Shared::WorkRing slot;
  typename Shared::QRing q_at;
  Ring at;
  TapBands<Shape::Pairs, Shape::Ahead> bands;
  bands.place(warp * 16, Shape::packed ? warp * 16 : 0, 63, taps_rows);
  float s[N][4], x[1][N][4], o[1][E / 8][4], alpha[1][2];
  uint32_t p[1][N / 2][4];
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };

  for (;;) {
    sm90::barrier_wait(shared.q_full(q_at), q_at.phase);
    const ConvSlot& work = shared.work(slot);
    if (__all_sync(~0u, !work.any)) return;
    const int number = Shape::packed ? group * 4 + warp : 0;  // of the slot's head
    const bool mine = number < work.heads;
    const int head = work.head + (mine ? number : 0);
    // Row of the sequence that the warp's first and the lane's first row are.
    const int row =
        sm90::uniform(work.first - above + local + (Shape::packed ? 0 : group * (64 - above)));
    const int i = row + lane / 4;
    const int keys = sm90::uniform(work.keys), shift = sm90::uniform(work.shift);
    const uint32_t q_rows = sm90::uniform(shared.q(q_at) + group * 64 * kPanelRowBytes);
    const View<3>& weight = c.weight;
    bands.load(
        taps_rows, taps_columns,
        [&](int d, int v) {
          return load_float(
              weight.data, c.weight_dtype,
              head * weight.stride[0] + (above - d) * weight.stride[1] + v * weight.stride[2]);
        },
        Shape::paged ? 8 - left : 0);
    OnlineSoftmax<1> state;
    int n = sm90::uniform(work.last), count = sm90::uniform(work.count), now = 0;
    bool more_values = false;
    uint32_t absent[2] = {},
             absent_next[2] = {};  // keys of tile n, and of the next, without a page

    // Keys from `key` on that the lane's rows see, before `limit(half)`.
    const auto limit = [&](int half) {
      return c.causal ? min(i + 8 * half + shift + 1, keys) : keys;
    };
    const auto whole = [&](int key) {
      return key >= 0 && key + BN <= keys && row >= 0 && (!c.causal || key + BN <= row + shift + 1);
    };
    const auto scores = [&](Ring k) {
      sm90::barrier_wait(shared.full(k), k.phase);
      sm90::fence();
      sm90::product_rows<Dtype, D, typename Shape::TileQ, typename Shape::TileK>(
          s, sm90::descriptor(sm90::unhoisted(q_rows)), sm90::descriptor(shared.keys(k)));
      sm90::commit();
    };
    // S of tile n to buffer `to`, 0 where unseen.
    const auto put = [&](int n, Ring k, int to) {
      sm90::pin(s);
      if constexpr (Shape::paged) {
#pragma unroll
        for (int word = 0; word < 2; ++word) {
          absent[word] = absent_next[word];
          absent_next[word] = shared.absent(k)[word];
        }
      }
      release(shared.empty(k));
      const int key = n * BN - before;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[j][e] *= unit;
      if (!whole(key)) {
        const int first = key + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int end = i + 8 * half < 0 ? 0 : limit(half);
#pragma unroll
          for (int j = 0; j < N; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (first + j * 8 + e < 0 || first + j * 8 + e >= end) s[j][2 * half + e] = 0.f;
        }
      }
      const uint32_t line =
          shared.scores(group, to) + lane / 16 * Shape::block_bytes + (warp * 16 + lane % 16) * 16;
#pragma unroll
      for (int k2 = 0; k2 < N / 2; ++k2) {
        const uint32_t packed[4] = {pack<FOVEA_F16>(s[2 * k2][0], s[2 * k2][1]),
                                    pack<FOVEA_F16>(s[2 * k2][2], s[2 * k2][3]),
                                    pack<FOVEA_F16>(s[2 * k2 + 1][0], s[2 * k2 + 1][1]),
                                    pack<FOVEA_F16>(s[2 * k2 + 1][2], s[2 * k2 + 1][3])};
        sm90::store_matrices(line + 2 * k2 * Shape::block_bytes, packed);
      }
    };
    const auto next_of = [](int buffer) { return buffer == 2 ? 0 : buffer + 1; };
    const auto clear = [&](int buffer, int block) {
      if (threadIdx.x % 128 < 64)
        sm90::store_zeros(shared.scores(group, buffer) + block * Shape::block_bytes +
                          threadIdx.x % 64 * 16);
    };
    // A of tile n from S of it and its neighbours; weights; O += P V is on its way.
    const auto attend = [&](Ring v) {
      const uint32_t here = shared.scores(group, now), next = shared.scores(group, next_of(now)),
                     behind = shared.scores(group, next_of(next_of(now)));
      bands.convolve(x[0], [&](int block) {
        if (Shape::paged && --block < 0) return next + (N - 1) * Shape::block_bytes;
        return block < N ? here + block * Shape::block_bytes
                         : behind + (block - N) * Shape::block_bytes;
      });
      if (!whole(n * BN)) {
        const int first = n * BN + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int end = limit(half);
#pragma unroll
          for (int j = 0; j < N; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (first + j * 8 + e >= end) x[0][j][2 * half + e] = kNegativeInfinity;
        }
      }
      if (Shape::paged && (absent[0] | absent[1])) hide_absent(x, absent);
      state.weigh(x, alpha, factor);
      pack_operand<Dtype>(p, x);
      state.shrink(o, alpha);
      if (n * BN + BN > keys) clean_values<Shape>(max(keys - n * BN, 0), shared, v, group);
      sm90::barrier_wait(shared.full(v), v.phase);
      sm90::fence();
      sm90::product_columns<Dtype>(o[0], p[0], sm90::descriptor(shared.keys(v), TileV::panel_bytes),
                                   more_values);
      sm90::commit();
      more_values = true;
      now = next_of(now);
    };
    const auto attend_done = [&](Ring v) {
      sm90::wait<0>();
      sm90::pin(o[0]);
      release(shared.empty(v));
      --n;
    };
    const auto step = [&](auto last) {
      constexpr bool kLast = decltype(last)::value;
      const Ring k = at;
      if constexpr (!kLast) at.next();
      const Ring v = at;
      at.next();
      sm90::meet(1 + group, 128);
      if constexpr (!kLast) scores(k);
      attend(v);
      if constexpr (!kLast) {
        sm90::wait<1>();
        put(n - 1, k, now);
      }
      attend_done(v);
    };
    // Tiles as pages lie: the scores before tile n are those of the next tile, made first.
    const auto paged_step = [&] {
      if (count > 1 || __any_sync(~0u, work.cool)) {
        scores(at);
        sm90::wait<0>();
        put(n - 1, at, next_of(now));
        at.next();
      } else {
        clear(next_of(now), N - 1);
        absent[0] = absent_next[0], absent[1] = absent_next[1];
      }
      const Ring v = at;
      at.next();
      sm90::meet(1 + group, 128);
      attend(v);
      attend_done(v);
    };
    const auto first_scores = [&](int n, int to) {
      scores(at);
      sm90::wait<0>();
      put(n, at, to);
      at.next();
    };

    if (count > 0) {
      if (__any_sync(~0u, work.warm)) {
        first_scores(n + 1, 2);
      } else {
#pragma unroll
        for (int block = 0; block < Shape::Ahead - 1; ++block) clear(2, block);
      }
      first_scores(n, 0);
      if constexpr (Shape::paged) {
#pragma unroll 1
        for (; count > 0; --count) paged_step();
      } else {
#pragma unroll 1
        for (; count > 1; --count) step(std::false_type());
        step(std::true_type());
      }
    }
    release(shared.q_empty(q_at));
    each_row<1>(0, [&](int, int half, int) {
      const int at_row = i + 8 * half, in_slot = local + lane / 4 + 8 * half;
      const bool valid = mine && in_slot >= above && at_row < work.end;
      const float top = state.m[0][half];
      store_conv<Shape>(c, more, work, head, at_row, valid,
                        top == kNegativeInfinity ? top : top * factor, state.total(0, half), o[0],
                        half);
    });
    __syncwarp();
    sm90::meet(1 + group, 128);  // the next work's first scores go where these were read
    release(shared.free(slot));
    slot.next(), q_at.next();
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    conv_sm90(const __grid_constant__ ConvAttend c, const __grid_constant__ ConvWork90 more) {
  extern __shared__ __align__(1024) unsigned char memory[];
  start_next();  // the merge of splits, if any
  const ConvShared90<Shape> shared(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 32)
    sm90::prefetch_map(more.maps.q), sm90::prefetch_map(more.maps.k),
        sm90::prefetch_map(more.maps.v);
  if (warp < 4) {
    sm90::give_registers<Shape::copying>();
    if (warp == 0) copy_conv<Shape>(c, more, shared);
  } else {
    sm90::take_registers<Shape::computing>();
    compute_conv<Shape>(c, more, warp / 4 - 1, shared);
  }
}

}  // namespace fovea::cuda
