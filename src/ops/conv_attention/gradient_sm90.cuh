// SPDX-License-Identifier: Apache-2.0
// conv_attention_backward on Hopper: one sweep, whose lines are rows (dq, dweight) or keys (dk,
// dv).
//   S = scale q k' (0 where unseen), A = S convolved, p = exp(A - lse), dA = p (dout v' - delta)
//   dS = dA convolved, taps turned (0 where unseen);  dq = dS k,  dk = dS' q,  dv = p' dout
//   dweight[u,v] = sum dA[i,j] S[i - above + u, j - left + v]
//   A block takes works (head, tile of lines) as they come.  Of warpgroup 0 one warp copies; the
//   two others have 64 lines each of 128, of which `halo` on either side only serve the
//   convolutions, and walk the other side (columns) in tiles of 64 from last to first.  Where S has
//   line n, A, dA, p and dout v' have n - below and dS has n - halo: so convolutions read lines of
//   their own warpgroup and the one before, and only the second waits for the first, a little
//   behind it. Tile t has S of the columns 64 t - low and on, dA of 64 t and on, dS of 64 t + high
//   and on: each convolution reads its tile and the first columns of the tile before, so a block
//   computes everything once.  Of the tile behind the last, S alone is made where outputs read it;
//   rows end with one more tile for the first `high` columns of dS.
//   Of a step: S to shared memory as f16 while dout v' runs (wgmma); A is made of it
//   (tile/convolve_sm80.cuh); dA to shared memory as f16 while dv runs; dS and, by the same
//   fragments turned, dweight's taps (two shifts by rows x 8 keys against 8 keys); then dq or dk.
//   Where registers allow it (`roomy`), the next tile's S runs under these convolutions and dq or
//   dk under the next tile's.  Keys of wide heads (`late`) have dout v' under the weights, the next
//   S while dS is packed and dk under the next A; others have both at a step's end.  dA, dS and
//   their sums are in units of the work's `grain`.
//   dS and p are the register operands of the sums.  Products of wgmma are asked for before a
//   barrier and convolutions after it: mixed by the compiler they would stall each other.
//   Shared memory: the lines of both operands, a ring of Stages tiles (K or Q twice, at two
//   offsets, V or dout between), two tiles of S and two of dA, the head's bands, of keys two tiles'
//   lse and delta for each warpgroup, the work and the one after it, barriers.  Full (bytes) and
//   empty (one arrival a consuming warp) for each stage, and for the lines with their work, which
//   come while the work before ends.  Of a step: S is written, dA is written, for the warpgroup
//   itself and for the second; before that, the tile that is overwritten has been read, by the
//   warpgroup itself and, for the first, by the second.  The first hands its S over once its own
//   convolution is done: two at a time would wait for shared memory.
//   The blocks of one pass start where those of the other, which read nothing of it, have ended:
//   both end in a round of works that is partly empty.
// Multi-Token Attention (2504.00927), FlashAttention-3 (2407.08608).
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/tile/order.cuh"
#include "ops/conv_attention/gradient_feed_sm90.cuh"
#include "ops/conv_attention/gradient_store_sm90.cuh"

namespace fovea::cuda {

// NaN stays NaN.
__device__ __forceinline__ float at_most(float x, float y) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
}

// A computing warpgroup.
template <class Shape>
__device__ __forceinline__ void compute_gradient(const ConvAttendBackward& b,
                                                 const ConvGradientWork& more,
                                                 unsigned char* shared, int group) {
  constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BN = Shape::BN, N = BN / 8;
  constexpr int Pairs = Shape::Pairs, Ahead = Shape::Ahead;
  constexpr bool Keys = Shape::keys;
  using Bands = typename Shape::Bands;
  const ConvAttend& c = b.forward;
  const Attend& a = c.attend;
  const uint32_t base = shared_address(shared), line_full = base + Shape::barriers;
  const uint32_t line_empty = line_full + 8, full = line_full + 16;
  const ConvGradientSlot& work = *reinterpret_cast<ConvGradientSlot*>(shared + Shape::works);
  const int lane = threadIdx.x % 32, warp = sm90::uniform(threadIdx.x / 32 % 4);
  const ConvReach& reach = work.reach;  // read again each time: registers are few
  const float unit = a.score.scale * (1.f / kScoreUnit);
  const int history = static_cast<int>(c.history);
  const uint32_t scores = base + Shape::scores;
  const uint32_t table = base + Shape::bands;
  sm90::Ring<Shape::Stages> at;
  uint32_t phase = 0;
  // Named barriers, 256 threads each.
  enum { kScoresWritten = 3, kSlopesWritten, kScoresRead, kSlopesRead, kAll };
  static_assert(Shape::Groups == 2);
  float x[1][N][4], y[1][N][4], sum[D / 8][4], dv[Keys ? E / 8 : 1][4];
  float taps[Keys ? 1 : Pairs][Keys ? 1 : Ahead][4];
  uint32_t operand[1][N / 2][4], weights[1][Keys ? N / 2 : 1][4];
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };
  const auto ring_stage = [&](int stage) {
    return base + Shape::ring + stage * Shape::stage_bytes;
  };
  const auto stage_of = [&](const sm90::Ring<Shape::Stages>& of) { return ring_stage(of.stage); };
  // The warp's first of the block's lines.
  const int place = sm90::uniform(group * 64 + warp * 16);
  // Where the lane writes its part of a tile of f16.
  const auto part_at = [&] {
    const uint32_t lane = sm90::unhoisted(threadIdx.x % 32);
    return lane / 16 * Shape::block_bytes + (place + lane % 16) * 16;
  };
  // The second warpgroup reads what the first wrote, once that hands it over; the first need not
  // wait for it.
  const bool leads = group == 0;
  const auto hand_over = [&](int barrier) {
    if (leads) sm90::arrive(barrier, 256);
  };
  const auto written = [&](int barrier) {
    if (leads)
      sm90::meet(1, 128);
    else
      sm90::meet(barrier, 256);
  };
  // Nobody reads any more what is about to be overwritten.
  const auto read = [&](int barrier) {
    if (!leads) sm90::arrive(barrier, 256);
  };
  const auto wait_read = [&](int barrier) {
    if (leads)
      sm90::meet(barrier, 256);
    else
      sm90::meet(2, 128);
  };

  for (;;) {
    sm90::barrier_wait(line_full, phase);
    phase ^= 1;
    sm90::meet(kAll, 256);  // the last work is done with
    if (const int i = threadIdx.x - 128; i < static_cast<int>(sizeof work / 4))
      reinterpret_cast<int32_t*>(shared + Shape::works)[i] =
          reinterpret_cast<const int32_t*>(shared + Shape::planned)[i];
    sm90::meet(kAll, 256);
    if (__all_sync(~0u, !work.any)) return;
    const int &rows = work.rows, &keys = work.keys, &shift = work.shift;
    const float& grain = work.grain;
    const int first = sm90::uniform(work.line + place);  // the line that S has at `place`
    const int mine = first + lane / 4;                   // and at the lane's
    const uint32_t d_lines = sm90::uniform(base + group * 64 * kPanelRowBytes);
    const uint32_t e_lines = d_lines + Shape::line_e;
    bool more_sums = false;
    // All dS of the warp belong to the halo.
    const bool idle = Keys && place + 16 <= 2 * reach.halo;
    if constexpr (!Keys) {
#pragma unroll
      for (int p = 0; p < Pairs; ++p)
#pragma unroll
        for (int i = 0; i < Ahead; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) taps[p][i][e] = 0.f;
    }

    // The columns that line `mine - lag + 8 half` sees, of rows from `least` on: [from, to).
    const auto span = [&](int lag, int half, int least, int& from, int& to) {
      const int n = sm90::unhoisted(mine) - lag + 8 * half;
      if constexpr (Keys) {
        from = n < 0 || n >= keys ? rows : c.causal ? max(n - shift, least) : least, to = rows;
      } else {
        from = 0, to = n < least || n >= rows ? 0 : c.causal ? min(n + shift + 1, keys) : keys;
      }
    };
    // In tiles [plain, plain_end) all of S, A and dS is there and seen, and A's rows have outputs:
    // found once, for what it is made of would be loaded again for each of them.
    int plain, plain_end;
    {
      const int lines = Keys ? keys : rows, columns = Keys ? rows : keys;
      int least = Keys ? max(reach.low, history) : reach.low, most = columns;
      if (c.causal && Keys) least = max(least, first + 15 + reach.low - shift);
      if (c.causal && !Keys) most = min(most, first - reach.halo + shift + 1);
      const bool there =
          first >= reach.halo && first + 16 <= lines && (Keys || first - reach.below >= history);
      plain = sm90::uniform(there ? (least + BN - 1) / BN : columns);
      plain_end = sm90::uniform((most - reach.high) / BN);
    }
    // f(j, e, seen) of columns from `at` on, of tile t.
    const auto each = [&](int t, int lag, int at, int least, auto f) {
      if (t >= plain && t < plain_end) {
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) f(j, e, true);
        return;
      }
      int from[2], to[2];
      span(lag, 0, least, from[0], to[0]), span(lag, 1, least, from[1], to[1]);
      const int first = at + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = first + j * 8 + e % 2;
          f(j, e, column >= from[e / 2] && column < to[e / 2]);
        }
    };
    // A tile of f16: x times `factor`.
    const auto put = [&](uint32_t to, const float(&x)[N][4]) {
      const uint32_t part = part_at();
#pragma unroll
      for (int k = 0; k < N / 2; ++k) {
        const uint32_t packed[4] = {pack<FOVEA_F16>(x[2 * k][0], x[2 * k][1]),
                                    pack<FOVEA_F16>(x[2 * k][2], x[2 * k][3]),
                                    pack<FOVEA_F16>(x[2 * k + 1][0], x[2 * k + 1][1]),
                                    pack<FOVEA_F16>(x[2 * k + 1][2], x[2 * k + 1][3])};
        sm90::store_matrices(to + part + 2 * k * Shape::block_bytes, packed);
      }
    };
    const auto convolve = [&](float(&y)[N][4], int turned, uint32_t here, uint32_t behind) {
      Bands::convolve(y, table + turned * Bands::table_bytes, place, 0, reach.lines,
                      [&](int block) {
                        return block < N ? here + block * Shape::block_bytes
                                         : behind + (block - N) * Shape::block_bytes;
                      });
    };

    for (int n = 0; n < work.heads; ++n) {
      const int head = sm90::uniform(work.head + n);
      const float2* side = more.side + (work.seq.batch * a.h + head) * a.s + work.seq.row_begin;
      sm90::meet(kAll, 256);  // the last head's bands and tiles are done with
      // Its taps by way of the tile of S that is written first, all loads in flight at once.
      float* const staged = reinterpret_cast<float*>(shared + Shape::scores);
      static_assert(2 * Pairs * (8 * Ahead - 7) * 4 <= 64 * 16);  // rows of the first warpgroup
      const int thread = threadIdx.x - 128;
      for (int i = thread; i < reach.lines * reach.columns; i += 256)
        staged[i] = reach.tap(c, head, i / reach.columns, i % reach.columns);
      if (threadIdx.x % 128 < 64)
#pragma unroll
        for (int i = 0; i < Ahead - 1; ++i) {
          const uint32_t to =
              scores + i * Shape::block_bytes + (group * 64 + threadIdx.x % 64) * 16;
          sm90::store_zeros(to + Shape::score_bytes);
          sm90::store_zeros(to + 3 * Shape::score_bytes);
        }
      sm90::meet(kAll, 256);
      const int lines = reach.lines, columns = reach.columns;
      for (int i = thread; i < 2 * Pairs * Ahead * 32; i += 256) {
        const int turned = i / (Pairs * Ahead * 32), p = i / (Ahead * 32) % Pairs;
        *reinterpret_cast<uint2*>(shared + Shape::bands + i * 8) =
            Bands::band(i / Ahead % 32, p, i % Ahead, lines, columns, [&](int d, int v) {
              return staged[turned ? (lines - 1 - d) * columns + columns - 1 - v : d * columns + v];
            });
      }
      sm90::meet(kAll, 256);
      float2 own_side[2];
      const auto read_side = [&] {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = mine + 8 * half;
          own_side[half] = make_float2(-kNegativeInfinity, 0.f);
          if (i >= 0 && i < rows) own_side[half] = __ldg(side + i);
          own_side[half].x += log2_of(grain);
        }
      };
      if constexpr (!Keys && !Shape::crowded) read_side();
      int now = 0;
      // Of the rows of a tile, for the warpgroup, by way of the next barrier after its wait.
      const auto side_of = [&](int buffer) {
        return Shape::sides + (group * 2 + buffer) * (BN * 8);
      };
      const auto fetch_side = [&](int t, int buffer) {
        const int n = threadIdx.x % 128;
        if (n < BN) copy_pair(base + side_of(buffer) + n * 8, side + min(t * BN + n, rows - 1));
        copy_commit();
      };

      // Products of the last columns' dS, dA being in `da`.
      const auto spread = [&](int t, uint32_t da, uint32_t behind, auto before) {
        const int column = t * BN + reach.high;
        if (idle) {
#pragma unroll
          for (int j = 0; j < N * 4; ++j) x[0][j / 4][j % 4] = 0.f;
        } else {
          convolve(x[0], 1, da, behind);
        }
        before();
        each(t, reach.halo, column, 0, [&](int j, int e, bool seen) {
          if (!seen) x[0][j][e] = 0.f;
        });
        pack_operand<Dtype>(operand, x);
        sm90::barrier_wait(full + at.stage * 16, at.phase);
        const int last = Keys ? rows : keys;
        if (column < 0 || column + BN > last)
          keep_rows<typename Shape::TileD, Shape>(shared + (stage_of(at) - base), -column,
                                                  last - column, group);
        sm90::fence();
        sm90::product_columns<Dtype>(
            sum, operand[0], sm90::descriptor(stage_of(at), Shape::TileD::panel_bytes), more_sums);
        sm90::commit();
        more_sums = true;
        at.next();
      };
      // The stage that was `at` some tiles ago: kept nowhere, registers are few.
      const auto stage_before = [&](int tiles) {
        return at.stage < tiles ? at.stage + Shape::Stages - tiles : at.stage - tiles;
      };
      // Once the products are done, whose tile was `tiles` ago.
      const auto spread_done = [&](int tiles) {
        sm90::pin(sum);
        release(full + stage_before(tiles) * 16 + 8);
      };
      // dweight's sums, by the warp's lines.
      const auto weigh_taps = [&](uint32_t s, uint32_t behind, uint32_t da) {
        const uint32_t part = part_at();
        uint32_t right[N][2], keep[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          keep[half] = 0;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int local = place + half * 8 + lane % 4 * 2 + i - reach.halo;
            if (local >= 0 && local < reach.own(Shape::BM)) keep[half] |= 0xffffu << (16 * i);
          }
        }
        uint32_t left[Pairs];
#pragma unroll
        for (int p = 0; p < Pairs; ++p) {
          const int d = min(2 * p + lane / 8 % 2, reach.lines - 1);
          left[p] = static_cast<uint32_t>(max(place + lane / 16 * 8 + lane % 8 - d, 0)) * 16;
        }
        const auto sums = [&](auto alone) {
          uint32_t a[2][4];
#pragma unroll
          for (int i = 0; i < N + Ahead - 1; ++i) {
            if (i < N && i % 2 == 0) {
              uint32_t r[4];
              load_matrices_transposed(r, da + part + i * Shape::block_bytes);
              right[i][0] = r[0] & keep[0], right[i][1] = r[1] & keep[1];
              right[i + 1][0] = r[2] & keep[0], right[i + 1][1] = r[3] & keep[1];
            }
            const uint32_t block =
                i < N ? s + i * Shape::block_bytes : behind + (i - N) * Shape::block_bytes;
#pragma unroll
            for (int p = 0; p < Pairs - alone; ++p) {
              uint32_t r[4];
              load_matrices_transposed(r, block + left[p]);
#pragma unroll
              for (int k = 0; k < Ahead; ++k)
                if (i - k >= 0 && i - k < N)
                  mma<FOVEA_F16>(taps[p][k], r, right[i - k][0], right[i - k][1]);
            }
            if (!alone || i % 2) continue;
            const uint32_t(&old)[4] = a[i / 2 % 2 ^ 1];
            uint32_t(&r)[4] = a[i / 2 % 2];
            load_matrices_transposed(r,
                                     block + left[Pairs - 1] + lane / 8 % 2 * Shape::block_bytes);
            if (i > 0)
              mma<FOVEA_F16>(taps[Pairs - 1][0], {old[1], r[0], old[3], r[2]}, right[i - 1][0],
                             right[i - 1][1]);
            if (i < N) mma<FOVEA_F16>(taps[Pairs - 1][0], r, right[i][0], right[i][1]);
          }
        };
        if (Bands::alone(Pairs - 1, reach.lines))
          sums(std::true_type());
        else
          sums(std::false_type());
      };

      float fresh[N][4];
      const auto scores_of = [&](const sm90::Ring<Shape::Stages>& of) {
        sm90::barrier_wait(full + of.stage * 16, of.phase);
        sm90::fence();
        sm90::product_rows<Dtype, D, typename Shape::LineD, typename Shape::TileD>(
            fresh, sm90::descriptor(sm90::unhoisted(d_lines)), sm90::descriptor(stage_of(of)));
        sm90::commit();
      };
      const auto scores_done = [&](const sm90::Ring<Shape::Stages>& of) {
        sm90::pin(fresh);
        release(full + of.stage * 16 + 8);
      };
      const auto scale_scores = [&](int t) {
        each(t, 0, t * BN - reach.low, 0,
             [&](int j, int e, bool seen) { fresh[j][e] = seen ? fresh[j][e] * unit : 0.f; });
      };
      // The next work and its lines may come.  Called once they are read for the last time or,
      // `crowded`, where there is a register for it.
      const auto lines_read = [&] {
        if (n == work.heads - 1) release(line_empty);
      };
      // dout v' of the tile's columns.
      const auto slopes = [&](int t) {
        sm90::barrier_wait(full + at.stage * 16, at.phase);
        if constexpr (Keys) {
          // Rows without an output belong to others: a weight of 0 would not undo a NaN there.
          const int low = history - t * BN, high = rows - t * BN;
          if (low > 0 || high < BN)
            keep_rows<typename Shape::TileE, Shape>(shared + (stage_of(at) - base), low, high,
                                                    group);
        }
        sm90::fence();
        sm90::product_rows<Dtype, E, typename Shape::LineE, typename Shape::TileE>(
            y[0], sm90::descriptor(sm90::unhoisted(e_lines)), sm90::descriptor(stage_of(at)));
        sm90::commit();
        at.next();
      };
      // The step of a tile, in two halves between which the loop turns: no product is under way
      // there, so the compiler moves no register of one.
      // From S to A, in x, and unless `late` dout v', in y, which runs meanwhile.
      const auto logits = [&](int t) {
        const uint32_t s = scores + now * Shape::score_bytes,
                       s_behind = scores + (now ^ 1) * Shape::score_bytes;
        if constexpr (!Shape::crowded && !Shape::late) slopes(t);
        scale_scores(t);
        wait_read(kScoresRead);
        put(s, fresh);
        if constexpr (Keys) copy_wait<0>();
        written(kScoresWritten);
        if constexpr (Shape::crowded) slopes(t);
        convolve(x[0], 0, s, s_behind);
        hand_over(kScoresWritten);
        sm90::wait<0>();
        if constexpr (!Shape::late) sm90::pin(y[0]);
      };
      // From there to the products of dS, and the next tile's S.
      const auto gradients = [&](int t, auto final) {
        constexpr bool kFinal = decltype(final)::value;
        const uint32_t s = scores + now * Shape::score_bytes,
                       s_behind = scores + (now ^ 1) * Shape::score_bytes,
                       da = s + 2 * Shape::score_bytes,
                       da_behind = s_behind + 2 * Shape::score_bytes;
        if constexpr (Shape::late) slopes(t);
        const int second = stage_before(1);
        if constexpr (Keys && !kFinal) {
          read(kScoresRead);
          fetch_side(t - 1, now ^ 1);
        }
        // p to x, dA to y.  A weight is at most 1, whatever the rounding of large scores makes of
        // it.
        const float inverse = inverse_of(grain);
        if constexpr (Keys) {
          const auto* sides = reinterpret_cast<const float4*>(shared + side_of(now)) + lane % 4;
          float4 of;
          const auto weight = [&](int j, int e, bool seen) {
            if (e == 0) of = sides[j * 4];
            const float p = exp2_fast(
                at_most(fmaf(x[0][j][e], kScoreUnit * kLog2E, -(e % 2 ? of.z : of.x)), 0.f));
            x[0][j][e] = seen ? p : 0.f;
          };
          const auto slope = [&](int j, int e, bool seen) {
            if (Shape::late && e == 0) of = sides[j * 4];
            y[0][j][e] = seen ? x[0][j][e] * (y[0][j][e] - (e % 2 ? of.w : of.y)) * inverse : 0.f;
          };
          if constexpr (Shape::late) {
            each(t, reach.below, t * BN, history, weight);
            sm90::wait<0>();
            sm90::pin(y[0]);
            each(t, reach.below, t * BN, history, slope);
          } else {
            each(t, reach.below, t * BN, history,
                 [&](int j, int e, bool seen) { weight(j, e, seen), slope(j, e, seen); });
          }
          pack_operand<Dtype>(weights, x);
          sm90::fence();
          sm90::product_columns<Dtype>(
              dv, weights[0], sm90::descriptor(ring_stage(second), Shape::TileE::panel_bytes),
              more_sums);
          sm90::commit();
        } else {
          if constexpr (Shape::crowded) read_side();
          const float top = -log2_of(grain);  // read_side() put the unit into the exponent
          each(t, 0, t * BN, history, [&](int j, int e, bool seen) {
            const float2 of = own_side[e / 2];
            const float p = exp2_fast(at_most(fmaf(x[0][j][e], kScoreUnit * kLog2E, -of.x), top));
            y[0][j][e] = seen ? p * (y[0][j][e] - of.y) : 0.f;
          });
          release(full + second * 16 + 8);
        }
        wait_read(kSlopesRead);
        put(da, y[0]);
        const auto ask_next = [&] {
          auto next = at;  // one behind the tile of the sums
          next.next();
          scores_of(next);
        };
        if constexpr (Shape::roomy && !kFinal) ask_next();
        hand_over(kSlopesWritten);
        written(kSlopesWritten);
        if constexpr (!Keys) {
          weigh_taps(s, s_behind, da);
          if constexpr (!kFinal) read(kScoresRead);
        }
        if constexpr (kFinal && Shape::crowded) lines_read();
        spread(t, da, da_behind, [&] {
          if constexpr (!kFinal) read(kSlopesRead);
          if constexpr (Keys) {
            sm90::wait<Shape::roomy && !kFinal ? 1 : 0>();
            sm90::pin(dv);
            release(full + stage_before(1) * 16 + 8);
          }
          if constexpr (Shape::late && !kFinal) ask_next();
        });
        now ^= 1;
        if constexpr (kFinal || !(Shape::roomy || Shape::late)) {
          if constexpr (!kFinal) scores_of(at);
          sm90::wait<0>();
          spread_done(1);
        } else {
          sm90::wait<1>();
        }
        if constexpr (!kFinal) {
          scores_done(at);
          at.next();
        }
      };
      int t = sm90::uniform(work.last);
      const int lowest = sm90::uniform(work.lowest);
      if (t >= lowest) {
        read(kScoresRead), read(kSlopesRead);
        if constexpr (Keys) fetch_side(t, now);
        const auto first_scores = [&] {
          scores_of(at);
          sm90::wait<0>();
          scores_done(at);
          at.next();
        };
        if (__any_sync(~0u, work.warm)) {
          first_scores();
          scale_scores(t + 1);
          put(scores + Shape::score_bytes, fresh);
        }
        first_scores();
        if constexpr (Shape::roomy || Shape::late) {
          logits(t);
#pragma unroll 1
          for (; t > lowest; --t) {
            gradients(t, std::false_type());
            logits(t - 1);
            spread_done(Shape::late ? 2 : 3);
          }
        } else {
#pragma unroll 1
          for (; t > lowest; --t) {
            logits(t);
            gradients(t, std::false_type());
          }
          logits(t);
        }
        if constexpr (!Shape::crowded) lines_read();
        gradients(t, std::true_type());
      } else {
        lines_read();
      }
      if (__any_sync(~0u, work.extra)) {
        // dA of the columns before the first is 0.
        const uint32_t da = scores + (2 + now) * Shape::score_bytes,
                       da_behind = scores + (2 + (now ^ 1)) * Shape::score_bytes;
        read(kSlopesRead), wait_read(kSlopesRead);
        for (int i = threadIdx.x % 128; i < N * 64; i += 128)
          sm90::store_zeros(da + i / 64 * Shape::block_bytes + (group * 64 + i % 64) * 16);
        hand_over(kSlopesWritten);
        written(kSlopesWritten);
        spread(-1, da, da_behind, [] {});
        sm90::wait<0>();
        spread_done(1);
      }
    }
    store_gradient<Shape>(b, more, work, reach, grain, mine, more_sums, sum, dv);
    if constexpr (!Keys) {
      sm90::meet(kAll, 256);
      const int number = group * 4 + warp, warps = 4 * Shape::Groups;
      store_taps(c, more, work, taps,
                 reinterpret_cast<float*>(shared + Shape::scores +
                                          number * (4 * Shape::score_bytes / warps)),
                 number, warps);
    }
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    conv_gradient_sm90(const __grid_constant__ ConvAttendBackward b,
                       const __grid_constant__ ConvGradientWork more) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if (!more.beside) wait_for_previous();
  if (threadIdx.x == 0) {
    const uint32_t at = shared_address(shared) + Shape::barriers;
    constexpr int kWarps = 4 * Shape::Groups;
    for (int i = 0; i < 1 + Shape::Stages; ++i)
      sm90::barrier_init(at + i * 16, 1), sm90::barrier_init(at + 8 + i * 16, kWarps);
    sm90::barrier_init_done();
  }
  __syncthreads();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (warp < 4) {
    sm90::give_registers<Shape::copying>();
    if (warp == 0) {
      copy_gradient<Shape>(b, more, shared);
    } else if (warp == 1) {
      start_next();
      wait_for_previous();  // what comes after this kernel relies on the one before it, too
    }
  } else {
    sm90::take_registers<Shape::computing>();
    compute_gradient<Shape>(b, more, shared, warp / 4 - 1);
  }
}

}  // namespace fovea::cuda
