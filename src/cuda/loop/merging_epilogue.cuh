// SPDX-License-Identifier: Apache-2.0
// The epilogue of split-K in one kernel (formula: combine.cuh).  A split stores o / l and lse in
// f32.  The last split of a row tile to arrive merges all, a warp a row.  A single split is the
// result.
//   The rest of the device idles during the merge.  So all its loads are issued before the first
//   is used, and rows are found without division where they can.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/loop/combine_row.cuh"
#include "cuda/loop/epilogue.cuh"

namespace fovea::cuda {

// AtOnce: splits whose loads are in flight together, as registers allow.
// Ahead: a row is loaded before the sums of the one before, each of which waits a microsecond.
template <int AtOnce, bool Ahead = false>
struct MergingEpilogue {
  Partials parts;
  int32_t splits;
  int32_t* arrived;  // splits done of each row tile, 0 before and after; nullptr: merged elsewhere

  template <int Dtype, int N>
  __device__ void store(const Attend& a, const RowTile& tile, int m, bool valid, int split,
                        float top, float sum, const float (&o)[N][4], int half) const {
    if (splits == 1) {
      DirectEpilogue().store<Dtype>(a, tile, m, valid, split, top, sum, o, half);
      return;
    }
    if (!valid) return;
    const Row row(a, tile, m);
    const int64_t at = split * parts.rows + row.partial;
    store_wide(parts.o + at * parts.e, static_cast<int>(a.e), o, half,
               sum == 0.f ? 0.f : __frcp_rn(sum));
    if (threadIdx.x % 4 == 0)
      parts.lse[at] = sum == 0.f ? kNegativeInfinity : (top + log2f(sum)) * kLn2;
  }

  // The same of a row whose columns are stored later, by a quad: where, and the factor of its sums.
  struct RowPlace {
    int64_t offset;  // elements
    float factor;
  };
  __device__ RowPlace store_lse(const Attend& a, const RowTile& tile, int m, int split, float top,
                                float sum) const {
    if (splits == 1)
      return {tile.offset(m, a.o.stride), DirectEpilogue().finish(a, tile, m, true, top, sum)};
    const int64_t at = split * parts.rows + Row(a, tile, m).partial;
    if (threadIdx.x % 4 == 0)
      parts.lse[at] = sum == 0.f ? kNegativeInfinity : (top + log2f(sum)) * kLn2;
    return {at * parts.e, sum == 0.f ? 0.f : __frcp_rn(sum)};
  }
  // Four columns at `offset`.
  __device__ void store_columns(const Attend& a, int64_t offset, const float (&o)[4]) const {
    if (splits == 1)
      store_four(a.o.data, a.o_dtype, offset, o);
    else
      *reinterpret_cast<float4*>(parts.o + offset) = {o[0], o[1], o[2], o[3]};
  }

  // After all rows of a tile are stored.  sync: its warps' barrier; word: in their shared memory.
  template <class Sync>
  __device__ void done(const Attend& a, const RowTile& tile, int number, int* word,
                       Sync sync) const {
    if (splits == 1 || !arrived) return;
    sync();
    if (threadIdx.x % 128 == 0) *word = count_arrival(arrived + number);
    sync();
    if (*word != splits - 1) return;
    for (int column = 0; column < static_cast<int>(a.e); column += kMergeColumns)
      merge_rows(a, tile, column + static_cast<int>(threadIdx.x) % 32 * 4);
    if (threadIdx.x % 128 == 0) arrived[number] = 0;
  }

 private:
  // Packed row m of a tile: its row of the tensors, its head, its row of a split's partials.
  struct Row {
    int64_t i, h, partial;
    __device__ Row(const Attend& a, const RowTile& tile, int m) {
      const int group = tile.group(), query = m < group ? 0 : m / group;
      i = tile.rows.seq.row_begin + query;
      h = static_cast<int>(tile.rows.g) * group + m - query * group;
      partial = (tile.rows.seq.batch * a.s + i) * a.h + h;
    }
  };

  // What a lane merges of a row: the lse of one split of 32, four columns of AtOnce of them.
  struct Loaded {
    float lse;
    float4 o[AtOnce];
  };

  // Every fourth row from the warp's first on.
  __device__ void merge_rows(const Attend& a, const RowTile& tile, int column) const {
    const auto row = [&](int m) { return Row(a, tile, tile.begin + m); };
    Loaded next;
    for (int m = threadIdx.x / 32 % 4; m < tile.size; m += 4) {
      if (!Ahead || m < 4) load(a, row(m), 0, column, next);
      Loaded now = next;
      if (Ahead && m + 4 < tile.size) load(a, row(m + 4), 0, column, next);
      merge(a, tile, row(m), column, now);
    }
  }
  __device__ float lse_of(const Row& row, int split) const {
    return split < splits ? __ldcg(parts.lse + row.partial + split * parts.rows)
                          : kNegativeInfinity;
  }
  // Of the splits from `first` on.  Loads bypass L1: other blocks wrote the partials.
  __device__ void load(const Attend& a, const Row& row, int first, int column, Loaded& x) const {
    if (first % 32 == 0) x.lse = lse_of(row, first + static_cast<int>(threadIdx.x) % 32);
    const float* from = parts.o + (row.partial + first * parts.rows) * parts.e + column;
    const int64_t step = parts.rows * parts.e;
#pragma unroll
    for (int c = 0; c < AtOnce; ++c) {
      x.o[c] = float4{};
      if (column < static_cast<int>(a.e) && first + c < splits)
        x.o[c] = __ldcg(reinterpret_cast<const float4*>(from + c * step));
    }
  }

  __device__ void merge(const Attend& a, const RowTile& tile, const Row& row, int column,
                        Loaded& x) const {
    const int lane = threadIdx.x % 32;
    float top = x.lse;
    for (int split = 32 + lane; split - lane < splits; split += 32)
      top = fmaxf(top, lse_of(row, split));
    const float sink = a.score.sink_logit ? sink_logit(a.score, row.h) : kNegativeInfinity;
    top = fmaxf(lanes_max<32>(top), sink);
    const float base = top == kNegativeInfinity ? 0.f : top;
    float sum = 0.f, acc[4] = {};
    for (int first = 0;;) {
      // A split without keys for this row has left its o unwritten.
      const float weight = x.lse == kNegativeInfinity ? 0.f : expf(x.lse - base);
      const uint32_t any = __ballot_sync(~0u, x.lse != kNegativeInfinity);
#pragma unroll
      for (int c = 0; c < AtOnce; ++c) {
        const float w = __shfl_sync(~0u, weight, (first + c) % 32);
        const bool seen = any >> (first + c) % 32 & 1;
        sum += w;
        acc[0] += seen ? w * x.o[c].x : 0.f, acc[1] += seen ? w * x.o[c].y : 0.f;
        acc[2] += seen ? w * x.o[c].z : 0.f, acc[3] += seen ? w * x.o[c].w : 0.f;
      }
      first += AtOnce;
      if (first >= splits) break;
      load(a, row, first, column, x);
    }
    if (a.score.sink_logit) sum += expf(sink - base);
    const float inverse = sum == 0.f ? 0.f : __frcp_rn(sum);
#pragma unroll
    for (float& value : acc) value *= inverse;
    const int64_t to = tile.rows.seq.batch * a.o.stride[0] + row.i * a.o.stride[1] +
                       row.h * a.o.stride[2] + column;
    if (column < static_cast<int>(a.e)) {
      if (a.o_dtype == FOVEA_F32)
        *reinterpret_cast<float4*>(a.o.as<float>() + to) = {acc[0], acc[1], acc[2], acc[3]};
      else
        *reinterpret_cast<uint2*>(a.o.as<uint16_t>() + to) =
            a.o_dtype == FOVEA_BF16
                ? uint2{pack<FOVEA_BF16>(acc[0], acc[1]), pack<FOVEA_BF16>(acc[2], acc[3])}
                : uint2{pack<FOVEA_F16>(acc[0], acc[1]), pack<FOVEA_F16>(acc[2], acc[3])};
    }
    if (a.lse && column == 0)
      a.lse.as()[tile.rows.seq.batch * a.lse.stride[0] + row.h * a.lse.stride[1] +
                 row.i * a.lse.stride[2]] = sum == 0.f ? kNegativeInfinity : top + logf(sum);
  }
};

}  // namespace fovea::cuda
