// SPDX-License-Identifier: Apache-2.0
// A block's tile of pairs, 16 R own rows against 64 others, in f32 FMA: every dtype, width and
// stride.  256 threads as 16 x 16 (ty, tx): element (r, c) of a thread is own ty + 16 r, other
// tx + 16 c (block/stage.cuh).  pairs_mma.cuh is the same on tensor cores.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/block/stage.cuh"

namespace fovea::cuda {

template <int R_>
class PairsFma {
 public:
  static constexpr int threads = kStageThreads, R = R_, C = 4, own = 16 * R, others = kStageTile;
  static constexpr int chunk = kStageTile;  // columns of sums together
  static int64_t shared_bytes(int64_t) { return FmaTiles<R>::bytes(); }

  __device__ explicit PairsFma(void* shared, int64_t) : tiles_(static_cast<float*>(shared)) {}

  __device__ static int own_of(int r) { return threadIdx.x / 16 + 16 * r; }
  __device__ static int other_of(int c) { return threadIdx.x % 16 + 16 * c; }
  // Reductions over the threads of an own row; each of them gets the result.
  __device__ static float sum(float x) { return lanes_sum<16>(x); }
  __device__ static float max(float x) { return lanes_max<16>(x); }
  __device__ static bool leads() { return threadIdx.x % 16 == 0; }  // one of them

  // acc += A B'; place(row) is the element at which a row begins, < 0: a row of zeros.
  template <class PlaceA, class PlaceB>
  __device__ __forceinline__ void multiply(float (&acc)[R][C], const Operand& a,
                                           const PlaceA& place_a, const Operand& b,
                                           const PlaceB& place_b) {
    multiply_nt(
        acc, tiles_, a.width,
        [&](int row, int column) { return load_four(a, place_a(row), column); },
        [&](int row, int column) { return load_four(b, place_b(row), column); });
  }
  // P of the next add().
  __device__ __forceinline__ void put(const float (&p)[R][C]) { put_p(tiles_, p); }
  // acc += P X of `terms` rows of X, columns from `first` on.  A P of +0 is skipped.
  template <int Chunks, class Place>
  __device__ __forceinline__ void add(float (&acc)[Chunks][R][C], const Operand& x,
                                      const Place& place, int64_t terms, int first = 0) {
    const int width = x.width - first < Chunks * chunk ? x.width - first : Chunks * chunk;
    multiply_nn(acc, tiles_, width, static_cast<int>(terms < others ? terms : others),
                [&](int row, int column) { return load_four(x, place(row), first + column); });
  }
  // P of an own row, after put().
  __device__ const float* taken(int own) const { return tiles_.p + own * kStagePitch; }
  // Column of element c of a chunk of sums.
  __device__ static int column_of(int c) { return 4 * static_cast<int>(threadIdx.x % 16) + c; }

 private:
  FmaTiles<R> tiles_;
};

}  // namespace fovea::cuda
