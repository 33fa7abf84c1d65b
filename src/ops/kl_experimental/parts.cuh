// SPDX-License-Identifier: Apache-2.0
// dk from parts: blocks of keys are few, so several thread blocks share one, each with sums of its
// own in the workspace.  They are added up in order.
#pragma once
#include "cuda/tile/convert.cuh"
#include "ops/kl/sides.cuh"

namespace fovea::cuda {

// f32, (sequence, key head, tile of `keys` keys, part) of keys x columns.
struct DkParts {
  float* sums;
  int64_t count, tiles, columns;  // parts; tiles of a sequence
  int keys;

  int64_t floats(const Sequences& q, int64_t key_heads) const {
    return q.count * key_heads * tiles * count * keys * columns;
  }
};

// The keys of sequence r are its own.
struct OwnKeys {
  FOVEA_HD Sequence units(const Sequence& q, int64_t) const { return q; }
};

constexpr int kJoinThreads = 256;

// A thread adds up an element of dk.  of.units(sequence, r): the sequence with what k counts in
// place of keys.
template <class Units>
__global__ void __launch_bounds__(kJoinThreads)
    join_parts_kernel(const __grid_constant__ KlSide side, const __grid_constant__ Sequences q,
                      const __grid_constant__ DkParts parts, const __grid_constant__ Units of,
                      int64_t work) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kJoinThreads;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kJoinThreads + threadIdx.x; w < work;
       w += step) {
    const int64_t column = w % parts.columns, row = w / parts.columns % parts.keys;
    const int64_t tile = w / parts.columns / parts.keys, g = tile / parts.tiles % side.key_heads;
    const int64_t r = tile / parts.tiles / side.key_heads;
    const Sequence seq = of.units(q[r], r);
    const int64_t j = tile % parts.tiles * parts.keys + row;
    if (j >= seq.keys || column >= side.width) continue;
    float sum = 0;
    for (int64_t part = 0; part < parts.count; ++part)
      sum += parts.sums[((tile * parts.count + part) * parts.keys + row) * parts.columns + column];
    const int64_t* to = side.dk.stride;
    store_float(side.dk.data, side.dtype,
                seq.key_batch * to[0] + (seq.key_begin + j) * to[1] + g * to[2] + column * to[3],
                side.scale * sum);
  }
}

template <class Units>
void join_parts(Context& ctx, const char* op, const KlSide& side, const Sequences& q,
                const DkParts& parts, const Units& of) {
  const int64_t work = q.count * side.key_heads * parts.tiles * parts.keys * parts.columns;
  launch<join_parts_kernel<Units>>(ctx, op, ceil_div(work, kJoinThreads), kJoinThreads, 0, side, q,
                                   parts, of, work);
}

}  // namespace fovea::cuda
