// SPDX-License-Identifier: Apache-2.0
// conv_attention_backward on Hopper: a persistent kernel with a producer warp and two consumer
// warpgroups, once for each of two passes.
//   S = scale q k' (0 where unseen), A = S convolved, p = exp(A - lse), dP = dout v'
//   dA = p (dP - delta), dS = dA convolved with taps turned (0 where unseen)
//   dq = dS k,  dweight[u,v] = sum dA[i,j] S[i - above + u, j - left + v]
//   dk = dS' q,  dv = p' dout
//
//   | pass | file                   | makes       | lines (of a block) | columns (walked) |
//   | rows | gradient_rows_sm90.cuh | dq, dweight | rows: Q, dout      | keys: K, V       |
//   | keys | gradient_keys_sm90.cuh | dk, dv      | keys: K, V         | rows: Q, dout    |
//
//   Both share the parts of a step (gradient_tile_sm90.cuh), which speak of lines and columns.  The
//   order of a step, of tiles and of heads is here.
//
// Tiles.  A block takes work items (head, tile of lines) as they come.  A warpgroup has 64 of a
// work item's 128 lines and walks the columns in tiles of 64, from last to first.  The `halo` lines
// at either end of the 128 only serve the convolutions.
//
//   | of tile t       | line at place n | first column |
//   | S               | n               | 64 t - low   |
//   | A, p, dP and dA | n - below       | 64 t         |
//   | dS              | n - halo        | 64 t + high  |
//
//   The lag of lines makes convolutions read lines of their own warpgroup and of the one before.
//   So the follower (warpgroup 1) waits for the leader (0), a little behind it, and never the other
//   way but to overwrite.  The lag of columns makes them read their tile and the first columns of
//   the tile before, so a block computes everything once.  Of the tile behind the last, S alone is
//   made, where outputs read it.  Rows end with one more tile, for the first `high` columns of dS.
//
// A step.  S goes to shared memory as f16 and A is made of it (mma.sync, tile/convolve_sm80.cuh).
// Then p and dA are made; dA goes to shared memory as f16, and keys issue dv.  Then dS is made and,
// by the same fragments turned, dweight's taps.  Then dq or dk is issued.  dS and p are register
// operands.  dA, dS and their sums are in units of the work item's `grain`.
//   The registers that are left decide what the products of wgmma run under:
//
//   | Shape                     | dP              | S of the next tile | dq or dk          |
//   | roomy                     | S's store and A | dweight and dS     | the next tile's A |
//   | late: keys of wide heads  | the weights     | the packing of dS  | the next tile's A |
//   | crowded: the widest rows  | A               | dq, waited for     | nothing           |
//   | the rest                  | S's store and A | dq, waited for     | nothing           |
//
//   A product of wgmma is issued before a barrier and a convolution runs after it: mixed by the
//   compiler they would stall each other.
//
// Shared memory (ConvGradientLayout90), barriers last:
//
//   | part            | holds                                                                |
//   | line_d, line_e  | the lines of both operands                                           |
//   | ring            | a pipeline of Stages tiles: K or Q at two offsets, V or dout between |
//   | scores          | two tiles of S and two of dA                                         |
//   | bands           | the head's bands of taps                                             |
//   | row_stats       | of keys: two tiles' lse and delta for each warpgroup                 |
//   | slot, next_slot | the work item and the one after it                                   |
//
//   | barrier          | who arrives         | who waits | what it guards               |
//   | line full        | TMA                 | both      | lines and the work item      |
//   | line empty       | a lane of each warp | producer  | the same, to overwrite       |
//   | stage full       | TMA                 | both      | a tile of the pipeline       |
//   | stage empty      | a lane of each warp | producer  | the same, to overwrite       |
//   | named 1, 2       | one warpgroup       | itself    | its own tile, zeroed rows    |
//   | 3 kScoresWritten | leader, after its A | follower  | the leader's S               |
//   | 4 kDaWritten     | leader              | follower  | the leader's dA              |
//   | 5 kScoresRead    | follower            | leader    | the leader's S, to overwrite |
//   | 6 kDaRead        | follower            | leader    | its dA, to overwrite         |
//   | 7 kBoth          | both                | both      | work item, bands, taps' room |
//
//   The leader hands S over only once its own convolution is done: two at a time would wait for
//   shared memory.  Named barriers 1 and 2 have 128 threads, the others 256.
//   The blocks of one pass start where those of the other end, of which they read nothing: both
//   passes end in a round of work items that is partly empty.
// Multi-Token Attention (2504.00927), FlashAttention-3 (2407.08608).
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/conv_attention/gradient_keys_sm90.cuh"
#include "ops/conv_attention/gradient_rows_sm90.cuh"

namespace fovea::cuda {

// A consumer warpgroup.  Pass: ConvRowGradient90 or ConvKeyGradient90.
template <class Pass, class Shape>
class ConvGradientSweep90 : Pass {
 public:
  using Pass::Pass;

  __device__ __forceinline__ void compute() {
    while (this->take_work()) {
      this->begin_work();
      for (int n = 0; n < this->work().heads; ++n) walk_head(n);
      this->store();
    }
  }

 private:
  using Pass::at, Pass::y, Pass::s;
  using typename Pass::Tiles;
  // dq or dk of a tile runs under the next tile's A.
  static constexpr bool kDeferred = Shape::roomy || Shape::late;

  // All tiles of columns of the work item's head n.  A step has two halves.  Where sums are
  // deferred the loop turns between them: no other product is under way there, so the compiler
  // moves no register of one.
  __device__ __forceinline__ void walk_head(int n) {
    this->begin_head(n);
    int buffer = 0, t = sm90::uniform(this->work().last);
    const int lowest = sm90::uniform(this->work().lowest);
    if (t >= lowest) {
      begin_tiles(t, buffer);
      if constexpr (kDeferred) {
        forward(t, Tiles(*this, buffer));
#pragma unroll 1
        for (; t > lowest; --t) {
          backward<false>(t, Tiles(*this, buffer));
          buffer ^= 1;
          forward(t - 1, Tiles(*this, buffer));
          this->retire_sums(Shape::late ? 2 : 3);
        }
      } else {
#pragma unroll 1
        for (; t > lowest; --t) {
          const Tiles tiles(*this, buffer);
          forward(t, tiles);
          backward<false>(t, tiles);
          buffer ^= 1;
        }
        forward(t, Tiles(*this, buffer));
      }
      if constexpr (!Shape::crowded) this->release_lines();
      backward<true>(t, Tiles(*this, buffer));
      buffer ^= 1;
    } else {
      this->release_lines();
    }
    if (__any_sync(~0u, this->work().extra)) end_rows(buffer);
  }

  // S of the first tile and, where its outputs read them, of the one behind.
  __device__ __forceinline__ void begin_tiles(int t, int buffer) {
    this->give_back(Pass::kScoresRead), this->give_back(Pass::kDaRead);
    Pass::begin_tiles(t, buffer);
    if (__any_sync(~0u, this->work().warm)) {
      first_scores();
      this->scale_scores(t + 1);
      this->put(this->scores_at(1), s);
    }
    first_scores();
  }
  __device__ __forceinline__ void first_scores() {
    this->issue_scores(at);
    sm90::wait<0>();
    this->retire_scores();
  }

  // From S of tile t to A, in x, and unless `late` dP, in y, which runs meanwhile.
  __device__ __forceinline__ void forward(int t, const Tiles& tiles) {
    if constexpr (!Shape::crowded && !Shape::late) this->issue_dp(t);
    this->scale_scores(t);
    this->wait_read(Pass::kScoresRead);
    this->put(tiles.s, s);
    this->columns_there();
    this->wait_written(Pass::kScoresWritten);
    if constexpr (Shape::crowded) this->issue_dp(t);
    this->convolve(this->x[0], 0, tiles.s, tiles.s_behind);
    this->hand_over(Pass::kScoresWritten);
    sm90::wait<0>();
    if constexpr (!Shape::late) sm90::pin(y[0]);
  }

  // From A to the products of dS, and the next tile's S.
  template <bool Final>
  __device__ __forceinline__ void backward(int t, const Tiles& tiles) {
    Pass::template backward<Final>(t, tiles);
    if constexpr (Final || !kDeferred) {
      if constexpr (!Final) this->issue_scores(at);
      sm90::wait<0>();
      this->retire_sums(1);
    } else {
      sm90::wait<1>();
    }
    if constexpr (!Final) this->retire_scores();
  }

  // The first `high` columns' dS, of rows: dA of the columns before them is 0.
  __device__ __forceinline__ void end_rows(int buffer) {
    const uint32_t da = this->da_at(buffer), da_behind = this->da_at(buffer ^ 1);
    this->give_back(Pass::kDaRead), this->wait_read(Pass::kDaRead);
    for (int i = threadIdx.x % 128; i < Pass::N * 64; i += 128)
      sm90::store_zeros(da + i / 64 * Shape::block_bytes + (this->group * 64 + i % 64) * 16);
    this->hand_over(Pass::kDaWritten);
    this->wait_written(Pass::kDaWritten);
    const int column = this->make_ds(-1, da, da_behind);
    this->issue_sums(-1, column);
    sm90::wait<0>();
    this->retire_sums(1);
  }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    conv_gradient_sm90(const __grid_constant__ ConvAttendBackward b,
                       const __grid_constant__ ConvGradientWork more) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if (!more.beside) pdl_wait();
  if (threadIdx.x == 0) {
    ConvGradientShared90<Shape>{shared_address(shared)}.init();
  }
  __syncthreads();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (warp == 0) {
      copy_gradient<Shape>(b, more, shared);
    } else if (warp == 1) {
      pdl_trigger();
      pdl_wait();  // what comes after this kernel relies on the one before it, too
    }
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    using Pass =
        std::conditional_t<Shape::keys, ConvKeyGradient90<Shape>, ConvRowGradient90<Shape>>;
    typename Pass::Fragments fragments;
    ConvGradientSweep90<Pass, Shape>(b, more, shared, warp / 4 - 1, fragments).compute();
  }
}

template <ConvGradientConfig90 C>
ConvGradientInstance90 conv_gradient_sm90_instance() {
  using Shape = ConvGradient90<C>;
  constexpr auto launcher = [](Context& ctx, const ConvAttendBackward& b,
                               const ConvGradientWork& work) {
    const int blocks = std::min(work.schedule.items, device_info(ctx).multiprocessors);
    launch_pdl<conv_gradient_sm90<Shape>>(ctx, "conv_attention_backward", blocks, Shape::threads,
                                          Shape::shared_bytes, b, work);
  };
  return {C, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                                        \
  namespace fovea::cuda {                                                                          \
  template ConvGradientInstance90 conv_gradient_sm90_instance<ConvGradientConfig90 __VA_ARGS__>(); \
  }
