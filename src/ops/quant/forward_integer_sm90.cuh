// SPDX-License-Identifier: Apache-2.0
// quant_forward of SageBwd on Hopper's wgmma: q, k, v and p are i8.
//   x = scale q_scale k_scale q^ k^' log2(e),  a = 2^(most - base)
//   p = 2^(x - most),  l += a sum p,  O += a / 127 v_scale p^ v^,  p^ = round(127 p)
//   most is a row's largest x of a run of 64 keys, whose scales k_scale and v_scale are too.
//   base is kSlack above an earlier most.  Codes do not depend on it, so O and l are rescaled only
//   where a run's most passes it.
// Blocks, work items, copies and barriers are those of attend_fp8_sm90.cuh.  A step is a run of
// keys, from the last to the first, and takes two products, each beside work of other registers:
//
//   | tensor cores         | beside them                                                      |
//   | S of run n - 1, i32  | exponentials of run n, by turns O += the sums of run n + 1       |
//   | p^ v^ of run n, i32  | maxima of run n - 1                                              |
//
// An exponential takes its unit for 8 cycles, in which a warp issues what stands between two.
// p^ are register operands, so v is stored transposed and permuted (v_perm16).  Values past the
// last key are codes, never NaN, and their p^ is 0.
// Source: SageBwd (2505.11594), algorithm 2.
#pragma once
#include <algorithm>
#include <cfloat>

#include "cuda/launch.h"
#include "cuda/tile/mma_codes_sm80.cuh"
#include "ops/quant/forward.cuh"
#include "ops/quant/integer_codes_sm90.cuh"

namespace fovea::cuda {

// The tiles that the mask leaves, and what their codes stand for.
struct RunTiles : SeenTiles, IntegerCodes {
  using Call = QuantAttend;
  static constexpr bool reads_device = true, blocks = true;
  ShiftedScales runs;  // of v

  __device__ void start(const QuantAttend& call, const RowTile& tile, int, WindowMask&) {
    find(call, tile, tile.rows.seq);
    const Attend& a = call.attend;
    runs = ShiftedScales::of(call.v_axis, tile.rows.seq.key_batch, tile.key_head(a),
                             a.sequences.key_start, a.t, tile.rows.r);
  }
  __device__ KeyScales run_scales() const { return scales_of(runs, 0); }
};

// The online softmax of the rows that a lane shares with its quad, in units of log2.
struct RunSoftmax {
  static constexpr float kSlack = 8, kLog2Codes = 6.98868469f;  // 127
  // A number at first, so that what is below it by -inf is -inf.
  float base[2] = {-FLT_MAX, -FLT_MAX}, l[2] = {};

  // What a run is to a row.
  struct Run {
    float largest[2];  // x; -inf: the row sees no key of it
    float grain[2];    // p^ as a part of what stands in the tile

    __device__ bool none(int half) const { return largest[half] == kNegativeInfinity; }
  };
  Run run;

  // The run's largest products, and how its exponents are made:
  //   x: the bits of kOffset + product.  An exponent is one multiply-add of these, by `within`,
  //   whose constant `shift` is rounded.  The largest product's exponent is then a little off
  //   log2(127).  `unit` is 2 to the negative of it, which mends all of them.
  // beside() follows the lane's maxima.
  template <int N>
  __device__ __forceinline__ void open(const float (&x)[N][4], float factor, auto beside) {
    using Tile = ScoreTile<FOVEA_I8, N>;
    int32_t most[2];
    find_most(x, most);
    beside();
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        most[half] = max(most[half], __shfl_xor_sync(~0u, most[half], step));
    // Beyond 32 smaller weights than the largest are 0 in f32.  Times 0 -inf would be NaN.
    within_ = fmaxf(fminf(factor, 32), 0x1p-126f);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool none = most[half] == Tile::hidden + Tile::kMagic;
      const float top = none ? Tile::kOffset : __int_as_float(most[half]);
      run.largest[half] = none ? kNegativeInfinity : (top - Tile::kOffset) * factor;
      shift_[half] = fmaf(-top, within_, kLog2Codes);
      unit_[half] = exp2_fast(-fmaf(top, within_, shift_[half]));
      run.grain[half] = 127 * unit_[half];
    }
  }
  // Whether O is to be rescaled: some row of the warp has an x above its base.
  __device__ __forceinline__ bool raises() const {
    return __any_sync(~0u, above(0) || above(1));
  }
  // alpha: what O so far is to be multiplied with.
  __device__ __forceinline__ void raise(float (&alpha)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float now = above(half) ? run.largest[half] + kSlack : base[half];
      alpha[half] = above(half) ? exp2_fast(base[half] - now) : 1.f;
      l[half] *= alpha[half], base[half] = now;
    }
  }
  // x becomes 127 p / grain, eight keys at a time, and beside(j) follows those of eight keys j.
  // a: 0 where a row sees no key.
  template <int N>
  __device__ __forceinline__ void weigh(float (&x)[N][4], float (&a)[2], auto beside) {
    float sum[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) a[half] = exp2_fast(run.largest[half] - base[half]);
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float pair[2];
#pragma unroll
        for (int c = 0; c < 2; ++c)
          pair[c] = exp2_fast(fmaf(x[j][2 * half + c], within_, shift_[half]));
        x[j][2 * half] = pair[0], x[j][2 * half + 1] = pair[1];
        sum[half] = j ? sum[half] + (pair[0] + pair[1]) : pair[0] + pair[1];
      }
      beside(j);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) l[half] = fmaf(a[half] * unit_[half], sum[half], l[half]);
  }

 private:
  __device__ bool above(int half) const {
    return run.largest[half] > base[half];
  }
  // The lane's largest products of its rows, three at a time in two chains a row.
  template <int N>
  __device__ __forceinline__ static void find_most(const float (&x)[N][4], int32_t (&most)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int32_t two[2];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int32_t first = __float_as_int(x[j][2 * half]);
        const int32_t second = __float_as_int(x[j][2 * half + 1]);
        two[j % 2] = j < 2 ? max(first, second) : __vimax3_s32(two[j % 2], first, second);
      }
      most[half] = max(two[0], two[1]);
    }
  }

  float within_, shift_[2], unit_[2];
};

// A consumer warpgroup.
template <class Shape, KeySource Source, class Epilogue>
struct IntegerConsumer90 : CodeConsumer90<Shape, Source, Epilogue> {
  using Base = CodeConsumer90<Shape, Source, Epilogue>;
  using Base::D, Base::E, Base::BN, Base::shared, Base::group, Base::q_at, Base::at;
  using typename Base::Slot, typename Base::KeyState;
  using typename Base::TileQ, typename Base::TileK, typename Base::TileV;
  static_assert(BN == kTileKeys);         // a run
  static_assert(Shape::Stages % 2 == 0);  // an item takes an even number of stages from an even one

  __device__ __forceinline__ void run() {
    this->each_item([&](const Slot& work) { consume(work); });
  }

 private:
  // Both products.  A descriptor is its lower word, of the item's Q or of a stage, and the tile's.
  struct Products {
    const uint32_t q, stage;  // of Q; of stage 0

    __device__ explicit Products(const IntegerConsumer90& of)
        : q(sm90::uniform(static_cast<uint32_t>(of.q_rows))),
          stage(sm90::uniform(static_cast<uint32_t>(TileK::descriptor(of.shared.keys({}))))) {}
    // Step k of 32.
    template <class Tile>
    __device__ static uint64_t step(uint32_t low, int k) {
      return Tile::descriptor(0) >> 32 << 32 | (low + Tile::step(k));
    }
    __device__ uint32_t of_stage(KeyState i) const {
      return stage + i.stage * (Shape::stage_bytes / 16);
    }
    // Begins x = Q K' of a stage that was waited for.
    __device__ __forceinline__ void scores(int32_t (&x)[BN / 8][4], KeyState i) const {
      const uint32_t keys = of_stage(i);
      sm90::fence();
#pragma unroll
      for (int k = 0; k < D / 32; ++k)
        sm90::Wgmma<FOVEA_I8, BN>::ss(x, step<TileQ>(q, k), step<TileK>(keys, k), k != 0);
      sm90::commit();
    }
    // Begins sums = p^ v^ of such a stage.
    __device__ __forceinline__ void values(int32_t (&sums)[E / 8][4],
                                           const uint32_t (&p)[BN / 32][4], KeyState i) const {
      const uint32_t keys = of_stage(i);
      sm90::fence();
#pragma unroll
      for (int k = 0; k < BN / 32; ++k)
        sm90::Wgmma<FOVEA_I8, E>::rs(sums, p[k], step<TileV>(keys, k), k != 0);
      sm90::commit();
    }
  };

  __device__ __forceinline__ void consume(const Slot& work) {
    const int last = sm90::uniform(work.last), first = last + 1 - sm90::uniform(work.count);
    const int row = work.tile.begin + group * 64 + sm90::uniform(threadIdx.x / 32) % 4 * 16;
    const WindowMask& mask = work.mask;
    const int full_begin = mask.begin, full_end = mask.end;
    const Products products(*this);
    RunSoftmax state;
    ScoreTile<FOVEA_I8, BN / 8> x;
    int32_t sums[E / 8][4];
    float o[E / 8][4];
    uint32_t p[BN / 32][4];
    float factor[2] = {};  // of the sums
    const float row_factor = work.row_factor(group, row + threadIdx.x % 32 / 4);
    const auto keys = work.key_scales(), runs = work.run_scales();
    // Lane i holds the scales of run from + i: of k, and of v by codes of p.
    float k_scales, v_scales, k_scale, v_scale;
    const auto load = [&](int from) {
      const int n = from + static_cast<int>(threadIdx.x % 32);
      k_scales = keys.at(n * BN), v_scales = runs.at(n * BN) * (1 / 127.f);
    };
    // O += the sums of columns [8 j, 8 j + 8).
    const auto fold = [&](int j) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        o[j][c] = fmaf(factor[c / 2], static_cast<float>(sums[j][c]), o[j][c]);
    };
    // The products of run n have ended, and another product may have their registers.  The wait for
    // the next stage, where the next product begins, takes its time beside the maxima.
    const auto open = [&](int n) {
      if (n < full_begin || n >= full_end) mask.apply(x.products(), n * BN, row, x.hidden);
#pragma unroll
      for (int j = 0; j < BN / 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) x.x[0][j][c] = __int_as_float(x.sums[0][j][c] + x.kMagic);
      state.open(x.x[0], row_factor * k_scale, [&] { shared.key_pipe().wait(at); });
      if (state.raises()) {
        float alpha[2];
        state.raise(alpha);
#pragma unroll
        for (int j = 0; j < E / 8; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) o[j][c] *= alpha[c / 2];
        factor[0] *= alpha[0], factor[1] *= alpha[1];
      }
    };
    // p of the run that is open, and O += the sums of the one before it.
    const auto weigh = [&] {
      float a[2];
      state.weigh(x.x[0], a, [&](int j) {
        constexpr int each = E / BN;
#pragma unroll
        for (int i = 0; i < each; ++i) fold(j * each + i);
        if (j % 2) code_words(p, x.x[0], j / 2, state.run.grain);
      });
      // A row without a key here has no share in what the scale is.
#pragma unroll
      for (int half = 0; half < 2; ++half)
        factor[half] = state.run.none(half) ? 0.f : a[half] * v_scale;
    };
    // Exponentials and values of run n, products and maxima of run n - 1.  These have odd stages.
    const auto step = [&](int n) {
      KeyState v = at;
      v.next();
      this->take_turn();
      products.scores(x.sums[0], at);
      k_scale = __shfl_sync(~0u, k_scales, n - 1);
      weigh();
      v_scale = __shfl_sync(~0u, v_scales, n - 1);
      shared.key_pipe().wait(v);
      this->pass_turn();
      products.values(sums, p, v);
      sm90::wait<1>();
      sm90::pin(x.sums[0]);
      shared.key_pipe().release(at);
      at = v, ++at.stage;
      open(n - 1);
      // A wait is moved above arithmetic, but not above a branch: here open's last.
      sm90::wait<0>();
      sm90::pin(sums);
      shared.key_pipe().release(v);
    };

#pragma unroll
    for (int j = 0; j < E / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[j][c] = 0.f, sums[j][c] = 0;
    if (first <= last) {
      shared.key_pipe().wait(at);
      products.scores(x.sums[0], at);
      load(last & ~31);
      k_scale = __shfl_sync(~0u, k_scales, last), v_scale = __shfl_sync(~0u, v_scales, last);
      sm90::wait<0>();
      sm90::pin(x.sums[0]);
      shared.key_pipe().release(at);
      at.next();
      open(last);
      for (int n = last; n > first;) {
        const int from = (n - 1) & ~31, stop = sm90::uniform(max(first, from));
        load(from);
#pragma unroll 1
        for (; n > stop; --n) step(n);
      }
      shared.q_pipe().release(q_at);
      weigh();
      shared.key_pipe().wait(at);
      products.values(sums, p, at);
      sm90::wait<0>();
      sm90::pin(sums);
#pragma unroll
      for (int j = 0; j < E / 8; ++j) fold(j);
      this->pass();
    } else {
      shared.q_pipe().release(q_at);
      this->pass(), this->pass();
    }
    this->store(work, row, state.base, {quad_sum(state.l[0]), quad_sum(state.l[1])}, o);
  }
};

template <IntegerConfig90 C>
QuantInstance90 quant_integer_sm90_instance() {
  static_assert(C.dtype == FOVEA_I8);
  using Shape = ByteShape90<C.d, C.d, C.groups, kTileKeys, C.stages, 1>;
  constexpr auto launcher = [](Context& ctx, const QuantAttend& a, const QuantWork& work,
                               const CodeMaps& maps) {
    using Source = KeySourceOf<RunTiles, RowBoxes>;
    using Consumer = IntegerConsumer90<Shape, Source, DirectEpilogue>;
    launch<attend_fp8_sm90<Shape, Source, DirectEpilogue, Consumer>>(
        ctx, "quant_forward", std::min(work.schedule.items, device_info(ctx).multiprocessors),
        Shape::threads, Consumer::Shared::layout.bytes, a, work.grid, maps, work.order,
        work.schedule, DirectEpilogue());
  };
  return {{C.d, Shape::BM, kTileKeys, Shape::TileK::Panel, Shape::TileV::Panel}, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                            \
  namespace fovea::cuda {                                                              \
  template QuantInstance90 quant_integer_sm90_instance<IntegerConfig90 __VA_ARGS__>(); \
  }
