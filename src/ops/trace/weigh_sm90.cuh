// SPDX-License-Identifier: Apache-2.0
// Mass and value of each slot on Hopper's tensor cores, from the rows' sums:
//   w_t = sum_m e^(x_mt - top_m) share_m,  mass = sum_t w_t,  value = sum_t w_t v_t
//   A block takes an item (item_sm90.cuh).  The list has all its slots; no row sees keys of an
//   empty one. Mass: a lane exponentiates its products.  A warp sums them into its own mass of each
//   slot, and the four are added at the end. Value: the warps' 64 column sums go to shared memory.
//   A thread sums columns of v, 128 apart, over the stage's keys.  Every sum has one order. Shared
//   memory after the keys: masses (keep x 4), column sums (4 x 64), barriers. Barriers: the item's.
//   Named barrier 1 also guards the column sums, written and read.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/block/softmax.cuh"
#include "cuda/tile/convert.cuh"
#include "ops/trace/item_sm90.cuh"

namespace fovea::cuda {

constexpr int kValueColumns = 5;  // of the value a thread has: 576 of 128

template <class Shape>
struct WeighShared90 {
  ItemShared90<Shape> item;
  float mass[kKeepMost][4];
  float column[4][64];
};

template <class Shape>
class Weigh90 : public ItemKeys90<Shape> {
  using Base = ItemKeys90<Shape>;
  using Base::a, Base::item, Base::block_keys;

 public:
  using KeyState = typename Base::KeyState;
  using Shared = WeighShared90<Shape>;

  __device__ Weigh90(const ItemWork90& work, unsigned char* memory, Shared& shared)
      : Base(work, memory, shared.item),
        s_(shared),
        factor_(work.call.a.attend.score.scale * kLog2E) {}

  __device__ void init() const { Base::init(blockIdx.x); }

  __device__ __forceinline__ void copy() const {
    const int32_t* list = slots();
    KeyState at;
    this->produce_rows(at);
    this->produce_list(static_cast<int>(a.keep), at, [&](int slot) { return list[slot]; });
  }

  __device__ __forceinline__ void compute() {
    load_row_stats();
    for (int i = threadIdx.x; i < 4 * a.keep; i += Shape::consumer_threads) (&s_.mass[0][0])[i] = 0;
    Base::sync();
    if (block_keys == 16)
      sweep<4>();
    else if (block_keys == 32)
      sweep<2>();
    else
      sweep<1>();
    Base::sync();
    for (int slot = threadIdx.x; slot < a.keep; slot += Shape::consumer_threads) {
      const float* part = s_.mass[slot];
      const float mass = part[0] + part[1] + part[2] + part[3];
      if (a.edge_mass) a.edge_mass.template as<float>()[item.slot(a.edge_mass, slot)] = mass;
      if (float* to = this->work.call.slots.mass) to[item.number * a.keep + slot] = mass;
    }
  }

 private:
  __device__ const int32_t* slots() const {
    return this->work.call.slots.selected + item.number * a.keep;
  }

  __device__ __forceinline__ void load_row_stats() {
    const TraceRow* rows = this->work.call.slots.row + item.number / a.n * a.attend.s + item.first;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = Base::Rows::row(tile, half);
        const TraceRow row = m < item.rows ? rows[m] : TraceRow{0, 0};
        top_[tile][half] = row.top * kLog2E, share_[tile][half] = row.share;
      }
  }

  // Pieces: slots that share a stage.
  template <int Pieces>
  __device__ __forceinline__ void sweep() {
    constexpr int kWidth = 64 / Pieces, N = kWidth / 8;
    typename Base::Rows rows(*this);
    const int32_t* list = slots();
    const int keep = static_cast<int>(a.keep), stages = this->stages_of(keep);
    const int shift = this->work.shift, warp = threadIdx.x / 32;
    KeyState at;
    this->load_rows(rows, at);
    float value[kValueColumns] = {};
    const auto nothing = [] {};
    for (int stage = 0; stage < stages; ++stage, at.next()) {
      float mass[Pieces] = {}, column[8][2] = {};
      int key[Pieces];
#pragma unroll
      for (int i = 0; i < Pieces; ++i) {
        const int first = stage * 64 + i * kWidth, block = list[min(first >> shift, keep - 1)];
        key[i] = block < 0 ? INT_MAX - 128 : (block << shift) + (first & (block_keys - 1));
      }
      this->multiply(at, rows, nothing, [&](float(&x)[8][4], int tile) {
#pragma unroll
        for (int i = 0; i < Pieces; ++i) {
          weigh<N>(x, i, key[i], rows, tile);
#pragma unroll
          for (int j = i * N; j < i * N + N; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) mass[i] += x[j][c], column[j][c % 2] += x[j][c];
        }
      });
#pragma unroll
      for (int i = 0; i < Pieces; ++i) {
        const int slot = (stage * 64 + i * kWidth) >> shift;
        mass[i] = lanes_sum<32>(mass[i]);
        if (threadIdx.x % 32 == 0 && slot < keep) s_.mass[slot][warp] += mass[i];
      }
      if (a.edge_value) add_values<kWidth>(list, stage, keep, column, value);
    }
  }

  // Products become weights: of piece i, whose columns are keys from `key` on.
  template <int N>
  __device__ __forceinline__ void weigh(float (&x)[8][4], int i, int key,
                                        const typename Base::Rows& rows, int tile) const {
    const bool whole = key + 8 * N <= rows.low;
    const int lane_key = key + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float& p = x[i * N + j][c];
        p = exp2_fast(fmaf(p, factor_, -top_[tile][c / 2])) * share_[tile][c / 2];
        if (!whole && lane_key + j * 8 + c % 2 >= rows.high[tile][c / 2]) p = 0;
      }
  }

  template <int Width>
  __device__ __forceinline__ void add_values(const int32_t* list, int stage, int keep,
                                             float (&column)[8][2],
                                             float (&value)[kValueColumns]) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float sum = column[j][c];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (lane < 4) s_.column[warp][j * 8 + lane * 2 + c] = sum;
      }
    Base::sync();
    for (int begin = 0; begin < 64; begin += Width) {
      const int first = stage * 64 + begin, slot = first >> this->work.shift;
      if (slot >= keep) break;
      const bool done = ((first + Width) & (block_keys - 1)) == 0;
      const int64_t key = (int64_t{list[slot]} << this->work.shift) + (first & (block_keys - 1));
      if (list[slot] >= 0) add_keys<Width>(begin, key, value);
      if (!done) continue;
      const int64_t to = item.slot(a.edge_value, slot);
#pragma unroll
      for (int i = 0; i < kValueColumns; ++i) {
        const int64_t c = threadIdx.x + i * Shape::consumer_threads;
        if (c < a.attend.e)
          a.edge_value.template as<float>()[to + c * a.edge_value.stride[4]] = value[i];
        value[i] = 0;
      }
    }
    Base::sync();
  }

  // The stage's keys [begin, begin + Width), of which the first is `key`.
  template <int Width>
  __device__ __forceinline__ void add_keys(int begin, int64_t key,
                                           float (&value)[kValueColumns]) const {
    const View<4>& v = a.attend.v;
    const int64_t from =
        a.attend.sequences.key_offset(item.seq, key, v.stride) + item.key_head * v.stride[2];
#pragma unroll 4
    for (int j = 0; j < Width; ++j) {
      const float weight = s_.column[0][begin + j] + s_.column[1][begin + j] +
                           s_.column[2][begin + j] + s_.column[3][begin + j];
      if (weight == 0) continue;  // perhaps a key that is not there
#pragma unroll
      for (int i = 0; i < kValueColumns; ++i) {
        const int64_t c = threadIdx.x + i * Shape::consumer_threads;
        if (c < a.attend.e)
          value[i] = fmaf(
              weight, load_float(v.data, Shape::Dtype, from + j * v.stride[1] + c * v.stride[3]),
              value[i]);
      }
    }
  }

  WeighShared90<Shape>& s_;
  const float factor_;
  float top_[2][2], share_[2][2];  // top in units of log 2
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    weigh_sm90(const __grid_constant__ ItemWork90 work) {
  run_item<Shape, Weigh90<Shape>>(work);
}

template <WeighConfig90 C>
ItemInstance90 weigh_sm90_instance() {
  using Shape = ItemShape90<C.dtype, C.d, C.stages, C.blocks, C.held>;
  return {C.dtype, C.d, static_cast<int>(kKeepMost), C.held ? 64 : 128,
          launch_item<weigh_sm90<Shape>, Shape, Weigh90<Shape>>};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                 \
  namespace fovea::cuda {                                                   \
  template ItemInstance90 weigh_sm90_instance<WeighConfig90 __VA_ARGS__>(); \
  }
