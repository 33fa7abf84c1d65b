// SPDX-License-Identifier: Apache-2.0
// x_probe_forward on Hopper: what its kernels share (probe_sm90.cuh, probe_sm90.cu).
//   parts   log2 of the sum of 2^x over `part_keys` keys, x a row's logits in log2 units; -inf: no
//           key is seen.  A tile of rows and keys that is not visited writes none.
//   heads   are counted over all sequences; a launch has those of [first, first + heads)
#pragma once
#include "core/context.h"
#include "cuda/block/schedule.cuh"
#include "cuda/block/softmax.cuh"
#include "ops/summary/probe.h"

namespace fovea::cuda {

constexpr int kProbeRows = 128;   // of a tile
constexpr int kProbeParts = 256;  // keys of a tile of parts
constexpr int kProbeSums = 128;   // keys of a tile of sums
constexpr int kProbeStep = 64;    // columns of a stage

// Divisions are of 32 bits: others are calls.
__device__ __forceinline__ int probe_quotient(int x, int y) {
  return static_cast<int>(static_cast<uint32_t>(x) / static_cast<uint32_t>(y));
}

// A sequence, and how many units of rows and keys it has.
struct ProbeUnits90 {
  Sequence q;
  int rows, keys;
};

struct ProbeWork90 {
  ProbeCall p;
  DynamicSchedule schedule;
  float* lse;                    // (r, h, rows) in log2 units, where it is not given
  float *part, *most;            // (heads, rows, parts); most: the largest x
  unsigned long long* diagonal;  // (r, h, columns)
  int32_t first, heads;
  int32_t bands, band_tiles;  // of rows: those of an item of sums, and its row tiles
  int32_t key_tiles;
  int32_t part_keys, parts, rows_most;
  int32_t stride, step, group, share;  // share: heads of q that a head of k has
  int32_t unit_rows, unit_keys;
  bool lines;  // of an item of sums: columns and diagonals, else blocks

  __device__ __forceinline__ ProbeUnits90 sequence(int r) const {
    const Sequence q = p.a.sequences[r];
    return {q, units(q.rows), units(q.keys)};
  }
  __device__ __forceinline__ bool visits(const ProbeUnits90& s, int i0, int j0, int width) const {
    if (i0 >= s.rows || j0 >= s.keys) return false;
    const int i1 = min(i0 + kProbeRows, s.rows), j1 = min(j0 + width, s.keys);
    if (stride > 1) return !p.causal || j0 <= i1 - 1 + shift(s.q);
    return p.may_see(s.q, i0, i1, j0, j1);
  }
  // Parts before this one are of tiles that row i's tile visits, with groups; else they may be.
  __device__ __forceinline__ int parts_before(const ProbeUnits90& s, int i) const {
    int keys = s.keys;
    if (stride > 1 && p.causal) {
      const int rows = min(i / kProbeRows * kProbeRows + kProbeRows, s.rows);
      keys = min(keys, (max(rows + shift(s.q), 0) + kProbeParts - 1) / kProbeParts * kProbeParts);
    }
    return probe_quotient(keys + part_keys - 1, part_keys);
  }
  // The same for each of them: whether the tile of part J is visited.
  __device__ __forceinline__ bool part_there(const ProbeUnits90& s, int i, int J) const {
    return stride > 1 || visits(s, i / kProbeRows * kProbeRows,
                                J * part_keys / kProbeParts * kProbeParts, kProbeParts);
  }
  // The unit key that the first row is at.  Far below 0 no row sees a key.
  __device__ __forceinline__ int shift(const Sequence& q) const {
    constexpr int kFar = 3 << 29;
    const int x = static_cast<int>(clamp_i64(q.context - q.rows, -kFar, INT32_MAX));
    return x >= 0 ? probe_quotient(x, stride) : -probe_quotient(stride - 1 - x, stride);
  }
  // The first key at position p or after it, 0 for those before the first.
  __device__ __forceinline__ int key_from(int64_t p_j) const {
    const int x = static_cast<int>(clamp_i64(p_j - p.a.mask.axis.shift, 0, 1 << 30));
    return step == 1 ? x : probe_quotient(x + (step - 1), step);
  }
  // Its first row block.
  __device__ __forceinline__ int first_block(const Sequence& q, int r) const {
    if (!p.a.sequences.query_start) return 0;
    const int begin = static_cast<int>(q.row_begin), rows = unit_rows * stride;
    return rows == 1 ? begin : probe_quotient(begin, rows) + r;
  }
  // Of row i, the first of head `head`.
  __device__ __forceinline__ int64_t part_at(int64_t head, int64_t i) const {
    return ((head - first) * rows_most + i) * parts;
  }
  // In log2 units.
  __device__ __forceinline__ float lse_of(const Sequence& q, int64_t r, int64_t h,
                                          int64_t i) const {
    if (p.lse_in) return *p.lse_in.at(q.batch, h, q.row_begin + i) * kLog2E;
    return lse[(r * p.a.h + h) * rows_most + i];
  }

 private:
  __device__ __forceinline__ int units(int64_t tokens) const {
    const int x = static_cast<int>(tokens);
    return stride == 1 ? x : probe_quotient(x + stride - 1, stride);
  }
};

struct ProbeInstance90 {
  int32_t dtype;
  void (*parts)(Context&, const ProbeWork90&, int grid);
  void (*sums)(Context&, const ProbeWork90&, int grid);
};

template <int Dtype, int Step>
ProbeInstance90 probe_sm90_instance();

// Of probe_outputs.cu.
void probe_clear_columns(Context& ctx, const ProbeCall& p);
void probe_clear_diagonals(Context& ctx, const ProbeCall& p, unsigned long long* sums);
void probe_store_diagonals(Context& ctx, const ProbeCall& p, unsigned long long* sums);

}  // namespace fovea::cuda
