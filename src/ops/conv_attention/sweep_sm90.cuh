// SPDX-License-Identifier: Apache-2.0
// conv_attention_forward on Hopper.
//   S = scale q k' (0 where unseen),  A = S convolved (-inf where unseen),  o = softmax(A) v
//   A block takes works (head or pack of heads, row tile, split) as they come.  Of warpgroup 0 one
//   warp plans and copies, running ahead into the next work; each of the others has 64 rows of S,
//   the first `above` of the block's only for the convolution (packed: 16 such rows a warp, each of
//   a head of its own).  The rows that a warpgroup's convolution reads beside its own are the last
//   of the one above, which never waits for it but to write S where it read.  In a low row tile the
//   last warpgroup has no rows and only lets stages go.  Keys are walked in
//   64-key tiles from last to first.  Tile n has the scores of keys 64 n - left and on: the outputs
//   64 n .. 64 n + 63 read them and the first columns of the tile before, so every score of a block
//   is computed once; what is read of the tile behind a split's last one is copied and computed
//   alone.
//   Of a step: A is made (tile/convolve_sm80.cuh, mma.sync, whose band of taps costs half of what
//   wgmma's least operand does), masked and exponentiated, O += P V runs, and the next tile's S
//   goes to shared memory as f16.  S of the next tile (wgmma) is asked for before A is made, or
//   `late`, before P V, where three warpgroups leave no registers for both: then the other
//   warpgroups fill the wait.  Either way a barrier parts the two kinds of product: mixed by the
//   compiler they would stall each other.  f16 has 4 bits more than the logits of a bf16 softmax
//   need; S / 64 keeps scores up to 4 10^6.
//   What a few rows take is what comes before the first key and after the last: the taps are loaded
//   while keys come, and a warp whose rows are stored merges their splits if it is the last to.
//   Shared memory: Slots x Q, a ring of Stages tiles (K, K, V, K, V, ...), three tiles of S, two
//   works, barriers.  Barriers: full (bytes) and empty (one arrival a consuming warp) for each Q
//   slot and each stage; planned and free for each work.  Of a step and warpgroup: its S is
//   written, and that of the one above; nobody reads the tile that is written next.
// Multi-Token Attention (2504.00927), FlashAttention-3 (2407.08608).
#pragma once
#include "cuda/loop/combine_row.cuh"
#include "ops/conv_attention/sweep_feed_sm90.cuh"

namespace fovea::cuda {

// One row of a finished work.
template <class Shape, int N>
__device__ __forceinline__ void store_conv(const ConvAttend& c, const ConvWork90& more,
                                           const ConvSlot& work, int head, int i, bool valid,
                                           float top, float sum, const float (&o)[N][4], int half) {
  const Attend& a = c.attend;
  const int64_t row = work.out.begin + i - c.history;
  const int width = static_cast<int>(a.e);
  const auto inverse = [&] { return sum == 0.f ? 0.f : __frcp_rn(sum); };
  const auto lse = [&] { return sum == 0.f ? kNegativeInfinity : (top + log2f(sum)) * kLn2; };
  if (more.order.splits > 1) {
    if (!valid) return;
    const int64_t partial = more.parts.row(work.split, work.seq.batch * c.rows_out + row, head);
    store_wide(more.parts.o + partial * more.parts.e, width, o, half, inverse());
    if (threadIdx.x % 4 == 0) more.parts.lse[partial] = lse();
    return;
  }
  const int64_t at =
      valid ? work.seq.batch * a.o.stride[0] + row * a.o.stride[1] + head * a.o.stride[2] : 0;
  if (a.o_dtype != FOVEA_F32)
    store_row<Shape::Dtype>(valid ? static_cast<uint16_t*>(a.o.data) + at : nullptr, width, o, half,
                            inverse());
  else if (valid)
    store_wide(a.o.as<float>() + at, width, o, half, inverse());
  if (a.lse && valid && threadIdx.x % 4 == 0)
    a.lse.as()[work.seq.batch * a.lse.stride[0] + head * a.lse.stride[1] + row * a.lse.stride[2]] =
        lse();
}

// A warp's rows of a split are stored: the last split to get here merges them all.
template <class Shape>
__device__ __forceinline__ void merge_splits(const ConvAttend& c, const ConvWork90& more,
                                             const ConvSlot& work, int head, int number) {
  const Attend& a = c.attend;
  int32_t* const arrived = more.arrived + work.number * (Shape::BM / 16) + number;
  int before = 0;
  if (threadIdx.x % 32 == 0) before = count_arrival(arrived);
  if (__shfl_sync(~0u, before, 0) != more.order.splits - 1) return;
  if (threadIdx.x % 32 == 0) *arrived = 0;
  const int chunks = (static_cast<int>(a.e) + kMergeColumns - 1) / kMergeColumns;
  for (int i = work.first; i < work.end; ++i)
    for (int chunk = 0; chunk < chunks; ++chunk)
      combine_row<16, true>(a, more.parts, work.seq.batch, work.out.begin + i - c.history, head,
                            chunk);
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
  // The warp's first row of the block's, and in its slot.
  const int place = group * 64 + warp * 16, local = Shape::packed ? 0 : place;
  const float factor = kScoreUnit * kLog2E, unit = c.attend.score.scale / kScoreUnit;
  typename Shared::WorkRing slot;
  typename Shared::QRing q_at;
  Ring at;
  TapBands<Shape::Pairs, Shape::Ahead> bands;
  bands.place(place, place - local, Shape::BM - 1, taps_rows);
  float s[N][4], x[1][N][4], o[1][E / 8][4], alpha[1][2];
  uint32_t p[1][N / 2][4];
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };
  // Named barriers, one of each kind for a warpgroup.
  constexpr int kOwn = 1, kWritten = kOwn + Shape::Groups, kRead = kWritten + Shape::Groups;
  const bool shares = !Shape::packed;
  bool last = true;  // of the work's warpgroups
  // S is written; here, and by the warpgroup above.
  const auto written = [&] {
    if (!last) sm90::named_barrier_arrive(kWritten + group, 256);
  };
  const auto meet_above = [&] {
    if (shares && group > 0)
      sm90::named_barrier_sync(kWritten + group - 1, 256);
    else
      sm90::named_barrier_sync(kOwn + group, 128);
  };
  // What it needs of the one above is read, and may be written again there.
  const auto read = [&] {
    if (shares && group > 0) sm90::named_barrier_arrive(kRead + group - 1, 256);
  };
  const auto wait_read = [&] {
    if (!last) sm90::named_barrier_sync(kRead + group, 256);
  };

  for (;;) {
    sm90::barrier_wait(shared.planned(slot), slot.phase);
    const ConvSlot& work = shared.work(slot);
    if (__all_sync(~0u, !work.any)) return;
    const int groups = sm90::uniform(work.groups);
    if constexpr (Shape::Groups == 3)
      if (group >= groups) {
        sm90::barrier_wait(shared.q_full(q_at), q_at.phase);
        release(shared.q_empty(q_at));
        for (int tiles = 2 * work.count + work.warm; tiles > 0; --tiles) {
          sm90::barrier_wait(shared.full(at), at.phase);
          release(shared.empty(at));
          at.next();
        }
        release(shared.free(slot));
        slot.next(), q_at.next();
        continue;
      }
    last = !shares || group == groups - 1;
    const int number = Shape::packed ? group * 4 + warp : 0;  // of the slot's head
    const bool mine = number < work.heads;
    const int head = work.head + (mine ? number : 0);
    // Row of the sequence that the warp's first and the lane's first row are.
    const int row = sm90::uniform(work.first - above + local);
    const int i = row + lane / 4;
    const int keys = sm90::uniform(work.keys), shift = sm90::uniform(work.shift);
    const uint32_t q_rows = sm90::uniform(shared.q(q_at) + group * 64 * kPanelRowBytes);
    // The head's taps, while Q and the first keys are on their way.
    const auto load_taps = [&](const auto* taps) {
      const View<3>& weight = c.weight;
      taps += head * weight.stride[0];
      bands.load(taps_rows, taps_columns, [&](int d, int v) {
        return to_float(taps[(above - d) * weight.stride[1] + v * weight.stride[2]]);
      });
    };
    if (c.weight_dtype == FOVEA_F32)
      load_taps(static_cast<const float*>(c.weight.data));
    else
      load_taps(
          static_cast<const std::conditional_t<Dtype == FOVEA_F16, f16, bf16>*>(c.weight.data));
    sm90::barrier_wait(shared.q_full(q_at), q_at.phase);
    OnlineSoftmax<1> state;
    int n = sm90::uniform(work.last), count = sm90::uniform(work.count), now = 0;
    bool more_values = false;

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
    // S of tile n, of its first `blocks` of 8 keys, to buffer `to`: 0 where unseen.
    const auto put = [&](int n, Ring k, int to, auto blocks) {
      constexpr int kBlocks = decltype(blocks)::value;
      sm90::pin(s);
      release(shared.empty(k));
      const int key = n * BN - left;
#pragma unroll
      for (int j = 0; j < kBlocks; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[j][e] *= unit;
      if (!whole(key)) {
        const int first = key + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int end = i + 8 * half < 0 ? 0 : limit(half);
#pragma unroll
          for (int j = 0; j < kBlocks; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (first + j * 8 + e < 0 || first + j * 8 + e >= end) s[j][2 * half + e] = 0.f;
        }
      }
      const uint32_t line =
          shared.scores(to) + lane / 16 * Shape::block_bytes + (place + lane % 16) * 16;
#pragma unroll
      for (int k2 = 0; k2 < kBlocks / 2; ++k2) {
        const uint32_t packed[4] = {pack<FOVEA_F16>(s[2 * k2][0], s[2 * k2][1]),
                                    pack<FOVEA_F16>(s[2 * k2][2], s[2 * k2][3]),
                                    pack<FOVEA_F16>(s[2 * k2 + 1][0], s[2 * k2 + 1][1]),
                                    pack<FOVEA_F16>(s[2 * k2 + 1][2], s[2 * k2 + 1][3])};
        sm90::store_matrices(line + 2 * k2 * Shape::block_bytes, packed);
      }
    };
    constexpr std::integral_constant<int, N> kWhole;
    const auto next_of = [](int buffer) { return buffer == 2 ? 0 : buffer + 1; };
    const auto step = [&](auto last) {
      constexpr bool kLast = decltype(last)::value;
      const Ring k = at;
      if constexpr (!kLast) at.next();
      const Ring v = at;
      at.next();
      if constexpr (!kLast && !Shape::late) scores(k);
      meet_above();
      if constexpr (!kLast) read();
      const uint32_t here = shared.scores(now), behind = shared.scores(next_of(next_of(now)));
      bands.convolve(x[0], taps_rows, [&](int block) {
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
      state.weigh(x, alpha, factor);
      pack_operand<Dtype>(p, x);
      state.shrink(o, alpha);
      if (n * BN + BN > keys) clean_values<Shape>(max(keys - n * BN, 0), shared, v, group);
      if constexpr (!kLast && Shape::late) scores(k);
      sm90::barrier_wait(shared.full(v), v.phase);
      sm90::fence();
      sm90::product_columns<Dtype>(o[0], p[0], sm90::descriptor(shared.keys(v), TileV::panel_bytes),
                                   more_values);
      sm90::commit();
      more_values = true;
      now = next_of(now);
      if constexpr (!kLast) {
        sm90::wait<1>();
        wait_read();
        put(n - 1, k, now, kWhole);
        written();
      }
      sm90::wait<0>();
      sm90::pin(o[0]);
      release(shared.empty(v));
      --n;
    };

    if (count > 0) {
      if (__any_sync(~0u, work.warm)) {
        scores(at);
        sm90::wait<0>();
        put(n + 1, at, 2, std::integral_constant<int, kHaloKeys / 8>());
        at.next();
      } else if (threadIdx.x % 128 < 64) {
#pragma unroll
        for (int block = 0; block < Shape::Ahead - 1; ++block)
          sm90::store_zeros(shared.scores(2) + block * Shape::block_bytes +
                            (group * 64 + threadIdx.x % 64) * 16);
      }
      scores(at);
      sm90::wait<0>();
      put(n, at, 0, kWhole);
      written();
      at.next();
#pragma unroll 1
      for (; count > 1; --count) step(std::false_type());
      step(std::true_type());
    } else {
      written();
      meet_above();
    }
    read();
    release(shared.q_empty(q_at));
    if (!more_values)  // rows without keys
#pragma unroll
      for (int j = 0; j < E / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[0][j][e] = 0.f;
    each_row<1>(0, [&](int, int half, int) {
      const int at_row = i + 8 * half, in_slot = local + lane / 4 + 8 * half;
      const bool valid = mine && in_slot >= above && at_row < work.end;
      const float top = state.m[0][half];
      store_conv<Shape>(c, more, work, head, at_row, valid,
                        top == kNegativeInfinity ? top : top * factor, state.total(0, half), o[0],
                        half);
    });
    __syncwarp();
    if constexpr (Shape::packed)
      if (more.arrived && mine) merge_splits<Shape>(c, more, work, head, number);
    // The next work's first scores go where these were read.
    if (last) sm90::named_barrier_sync(kOwn + group, 128);
    wait_read();
    release(shared.free(slot));
    slot.next(), q_at.next();
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    conv_sm90(const __grid_constant__ ConvAttend c, const __grid_constant__ ConvWork90 more) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const ConvShared90<Shape> shared(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 32)
    sm90::prefetch_map(more.maps.q), sm90::prefetch_map(more.maps.k),
        sm90::prefetch_map(more.maps.v);
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::copying>();
    if (warp == 0) copy_conv<Shape>(c, more, shared);
  } else {
    sm90::setmaxnreg_inc<Shape::computing>();
    compute_conv<Shape>(c, more, warp / 4 - 1, shared);
  }
}

}  // namespace fovea::cuda
