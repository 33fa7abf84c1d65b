// SPDX-License-Identifier: Apache-2.0
// quant_forward of SageAttention on Hopper's wgmma: q and k are i8, v and p have 16 bits.
//   x = scale q_scale k_scale q^ k^' log2(e),  p = f16(2^(x - m)),  o = p v,  l = sum 2^(x - m)
// Blocks, work items, copies, barriers and turns are those of attend_fp8_sm90.cuh.  K and V take
// turns in one ring, whose stages hold a V: rows of 16 bits, twice the bytes of K.
// S of a tile and O += P V of the one before are in flight together.  P is a register operand, V is
// read as [key][column].  O is summed in f32.
// v of bf16: p is the sum of two bf16, the second less than half a last place of the first.  p has
// 11 bits, so both are exact, and so are their products.  Values past the last key may be NaN,
// which 0 does not hide: they are zeroed.  Source: SageAttention (2410.02367).
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_sm90.cuh"
#include "ops/quant/forward.cuh"
#include "ops/quant/integer_codes_sm90.cuh"

namespace fovea::cuda {

template <int D_, int Groups_, int BN_, int Stages_>
struct HalfShape90 : ByteShape90<D_, D_, Groups_, BN_, Stages_, 1> {
  using TileV = Swizzled<BN_, D_>;
  static constexpr int stage_bytes = TileV::bytes;
};

// Q and K are codes, V is rows of 16 bits.
template <int D, int Groups, int BN, int Stages>
struct Operands<HalfShape90<D, Groups, BN, Stages>, CodeMaps> {
  using Shape = HalfShape90<D, Groups, BN, Stages>;
  static constexpr bool paired = false;

  template <class Work>
  __device__ static void query(const CodeMaps& maps, const Work& work, const QueryBox& box,
                               uint32_t to, uint32_t full) {
    sm90::tma_load_bytes<typename Shape::TileQ>(to, maps.q, full, 0, box.row,
                                                static_cast<int>(work.tile.rows.g), box.batch);
  }
  template <bool V, class Work>
  __device__ static void copy(const CodeMaps& maps, const Work&, int row, int head, int batch,
                              uint32_t to, uint32_t full) {
    if constexpr (V)
      sm90::tma_load_tile<typename Shape::TileV>(to, maps.v, full, row, head, batch);
    else
      sm90::tma_load_bytes<typename Shape::TileK>(to, maps.k, full, 0, row, head, batch);
  }
};

// Weights as operands of P V, whose sum they are: one of f16, two of bf16.
template <int Dtype, int N>
struct HalfWeights {
  static constexpr int Parts = Dtype == FOVEA_F16 ? 1 : 2;
  uint32_t parts[Parts][N / 2][4];

  __device__ __forceinline__ void pack(const float (&x)[1][N][4]) {
    if constexpr (Dtype == FOVEA_F16) {
      pack_operand<FOVEA_F16>(parts, x);
    } else {
#pragma unroll
      for (int k = 0; k < N / 2; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&from)[4] = x[0][2 * k + i / 2];
          const float2 p = __half22float2(__floats2half2_rn(from[i % 2 * 2], from[i % 2 * 2 + 1]));
          const uint32_t high = cuda::pack<FOVEA_BF16>(p.x, p.y);
          parts[0][k][i] = high;
          parts[1][k][i] = cuda::pack<FOVEA_BF16>(p.x - __uint_as_float(high << 16),
                                                  p.y - __uint_as_float(high & 0xffff0000u));
        }
    }
  }
};

// A consumer warpgroup.
template <int V, class Shape, KeySource Source, class Epilogue>
struct HalfConsumer90 : CodeConsumer90<Shape, Source, Epilogue> {
  using Base = CodeConsumer90<Shape, Source, Epilogue>;
  using Base::D, Base::E, Base::BN, Base::shared, Base::group, Base::q_at, Base::at;
  using typename Base::TileV, typename Base::Slot, typename Base::KeyState;
  using Keys = StepKeys<BN, Slot>;
  using Softmax = LiftedSoftmax<FOVEA_I8, 1>;

  __device__ __forceinline__ void run() {
    this->each_item([&](const Slot& work) { consume(work); });
  }

 private:
  __device__ __forceinline__ void consume(const Slot& work) {
    const int last = sm90::uniform(work.last), first = last + 1 - sm90::uniform(work.count);
    const int row = work.tile.begin + group * 64 + sm90::uniform(threadIdx.x / 32) % 4 * 16;
    const int full_begin = work.mask.begin, full_end = work.mask.end;
    Softmax state;
    ScoreTile<FOVEA_I8, BN / 8> x;
    HalfWeights<V, BN / 8> p;
    float o[E / 8][4], alpha[2];
    ScoreFactors<BN / kTileKeys> factor;
    factor.row = work.row_factor(group, row + threadIdx.x % 32 / 4);
    const auto scales = work.key_scales();
    // Begins O = accumulate O + P V of a stage that was waited for.
    const auto values = [&](KeyState v, bool accumulate) {
      const uint64_t rows =
          sm90::descriptor(shared.keys(v), TileV::panel_bytes, TileV::octet_bytes);
#pragma unroll
      for (int part = 0; part < p.Parts; ++part)
        sm90::product_columns<V>(o, p.parts[part], rows, accumulate || part, TileV::octet_bytes);
      sm90::commit();
    };
    const auto weigh = [&](int n) {
      factor.find();
      const bool partly = n < full_begin || n >= full_end;
      if (partly) work.mask.apply(x.products(), n * BN, row, x.hidden);
      // The barrier of Q has been passed, which ptxas cannot know.
      state.weigh(x, alpha, factor.of, partly, [&] {
        this->take_turn();
        return sm90::barrier_test(shared.q_pipe().full(q_at), q_at.phase) ? 0.f : 1.f;
      });
      sm90::pin(x.x[0]);
    };
    const auto step = [&](int n, bool accumulate) {
      KeyState v = at;
      v.next();
      this->template scores<false>(x, at);
      shared.key_pipe().wait(v);
      values(v, accumulate);
      factor.take(), factor.load(scales, Keys{work, max(n - 1, first)});
      sm90::wait<1>();
      sm90::pin(x.products()[0]);
      shared.key_pipe().release(at);
      at = v, at.next();
      weigh(n);
      // ptxas moves waits above arithmetic, and exponentials below waits, but none past an
      // instruction that needs the sums of these.  They are never negative.
      asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p nanosleep.u32 0;}" ::"f"(
                       state.l[0] + state.l[1])
                   : "memory");
      this->pass_turn();
      sm90::wait<0>();
      sm90::pin(o);
      shared.key_pipe().release(v);
      p.pack(x.x);
#pragma unroll
      for (int j = 0; j < E / 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[j][c] *= alpha[c / 2];
      shared.key_pipe().wait(at);
    };

#pragma unroll
    for (int j = 0; j < E / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[j][c] = 0.f;
    if (first <= last) {
      this->scores(x, at);
      factor.load(scales, Keys{work, last}), factor.take();
      factor.load(scales, Keys{work, max(last - 1, first)});
      sm90::wait<0>();
      sm90::pin(x.products()[0]);
      shared.key_pipe().release(at);
      at.next();
      weigh(last);
      this->pass_turn();
      p.pack(x.x);
      if (sm90::uniform(work.zero_tail)) {
        KeyState v = at;
        if (first < last) v.next();
        zero_values<Shape>(work.tile.keys - last * BN, shared, v, group);
      }
      shared.key_pipe().wait(at);
      bool accumulate = false;
#pragma unroll 1
      for (int n = last - 1; n >= first; --n, accumulate = true) step(n, accumulate);
      shared.q_pipe().release(q_at);
      sm90::fence();
      values(at, accumulate);
      sm90::wait<0>();
      sm90::pin(o);
      this->pass();
    } else {
      shared.q_pipe().release(q_at);
      this->pass(), this->pass();
    }
    finish(work, row, state, o, first <= last);
  }

  // Without keys there may be no scales of v.
  __device__ __forceinline__ void finish(const Slot& work, int row, const Softmax& state,
                                         float (&o)[E / 8][4], bool any) const {
    const float sum[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
#pragma unroll
    for (int j = 0; j < E / 8; ++j) {
      const float2 factor = any ? work.value_factor(j * 8 + threadIdx.x % 4 * 2) : float2{};
      // Rows that saw nothing stay 0 whatever the scale is.
#pragma unroll
      for (int c = 0; c < 4; ++c) o[j][c] *= sum[c / 2] == 0.f ? 0.f : c % 2 ? factor.y : factor.x;
    }
    this->store(work, row, state.m, sum, o);
  }
};

template <HalfConfig90 C>
QuantInstance90 quant_half_sm90_instance() {
  static_assert(C.dtype == FOVEA_F16 || C.dtype == FOVEA_BF16);
  using Shape = HalfShape90<C.d, C.groups, C.keys, C.stages>;
  constexpr auto launcher = [](Context& ctx, const QuantAttend& a, const QuantWork& work,
                               const CodeMaps& maps) {
    using Source = KeySourceOf<IntegerTiles, RowBoxes>;
    using Consumer = HalfConsumer90<C.dtype, Shape, Source, DirectEpilogue>;
    launch<attend_fp8_sm90<Shape, Source, DirectEpilogue, Consumer>>(
        ctx, "quant_forward", std::min(work.schedule.items, device_info(ctx).multiprocessors),
        Shape::threads, Consumer::Shared::layout.bytes, a, work.grid, maps, work.order,
        work.schedule, DirectEpilogue());
  };
  return {{C.d, Shape::BM, C.keys, Shape::TileK::Panel, kChunk * kPanelChunks}, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                      \
  namespace fovea::cuda {                                                        \
  template QuantInstance90 quant_half_sm90_instance<HalfConfig90 __VA_ARGS__>(); \
  }
