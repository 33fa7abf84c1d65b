// SPDX-License-Identifier: Apache-2.0
// Between the backward launcher and its tuned instances (backward.inc), which are compiled apart:
// what a work item of the Hopper sweep is.
#pragma once
#include "cuda/block/schedule.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/convert.cuh"
#include "ops/conv_attention/kernels.h"

namespace fovea::cuda {

enum class ConvLines { rows, keys };

// A power of two above a head's largest |dout|: dA is kept in units of it.
__device__ inline float grain_of(float largest) {
  const int power = static_cast<int>(__float_as_uint(largest) >> 23) + 1;
  return __uint_as_float(static_cast<uint32_t>(min(max(power, 27), 227)) << 23);
}
__device__ inline float inverse_of(float grain) {
  return __uint_as_float((254u << 23) - __float_as_uint(grain));
}
__device__ inline float log2_of(float grain) {
  return static_cast<float>(static_cast<int>(__float_as_uint(grain) >> 23) - 127);
}

// The convolution seen from lines: A[m][n] = sum_dv tap(d, v) S[m + below - d][n - low + v].
struct ConvReach {
  int lines, columns;  // extents of d and v
  int above, below;    // lines before and behind that A reads
  int low, high;       // columns before and behind
  int halo;            // lines on either side of those that a block has sums of
  bool keys;

  FOVEA_HD ConvReach(const ConvAttend& c, bool keys) : keys(keys) {
    const int rows = static_cast<int>(c.kernel_rows), width = static_cast<int>(c.kernel_columns);
    lines = keys ? width : rows, columns = keys ? rows : width;
    above = static_cast<int>(keys ? c.left() : c.above());
    below = static_cast<int>(keys ? c.right() : 0);
    low = static_cast<int>(keys ? c.above() : c.left());
    high = static_cast<int>(keys ? 0 : c.right());
    halo = above + below;
  }
  FOVEA_HD int own(int lines) const { return lines - 2 * halo; }
  __device__ float tap(const ConvAttend& c, int head, int d, int v) const {
    const int u = keys ? v : lines - 1 - d, column = keys ? lines - 1 - d : v;
    return load_float(
        c.weight.data, c.weight_dtype,
        head * c.weight.stride[0] + u * c.weight.stride[1] + column * c.weight.stride[2]);
  }
};

// What a Hopper kernel needs beside the call.
struct ConvGradientWork {
  TileOrder order;
  DynamicSchedule schedule;
  BackwardMaps maps;
  // (b, h, s): lse log2(e), +inf for a row that is empty or has no output, then delta.
  const float2* row_stats;
  const float* largest;  // (r, h): the largest |dout| of a head
  double* dweight;       // (r, h, row tiles, warps, taps); nullptr: not wanted
  bool beside;           // nothing of the kernel before is read
};

// What the producer warp tells the others of a work item.
struct ConvGradientSlot {
  Sequence seq;
  ConvAttend::Rows out;
  int64_t r;
  int line, tile;      // first line, halo included
  int head, heads, g;  // query heads from `head` on
  int rows, keys;
  int ahead;         // row i sees the keys before i + ahead
  int last, lowest;  // tiles of columns
  float grain;       // of all heads, whose dS have one sum
  ConvReach reach;
  bool warm;  // the tile behind `last` has scores that its outputs read
  bool extra, any;

  __device__ ConvGradientSlot(const ConvAttend& c, const ConvGradientWork& work,
                              const TileCoord& place, const ConvReach& reach, bool of_keys,
                              int lines, int width)
      : reach(reach) {
    const Attend& a = c.attend;
    const int each = static_cast<int>(of_keys ? a.g : a.h), group = static_cast<int>(a.h / a.g);
    const int owner = place.head % each;
    r = place.head / each, tile = place.row_tile;
    seq = a.sequences[r], out = c.rows_of(seq, r);
    rows = static_cast<int>(seq.rows), keys = static_cast<int>(seq.keys);
    ahead = c.reach<int>().high(keys - rows, static_cast<int>(kIndexMax));
    head = of_keys ? owner * group : owner, heads = of_keys ? group : 1;
    g = of_keys ? owner : owner / group;
    float largest = 0.f;
    for (int n = 0; n < heads; ++n) largest = fmaxf(largest, work.largest[r * a.h + head + n]);
    grain = grain_of(largest);
    const int step = reach.own(lines), first = tile * step;
    line = first - reach.halo;
    any = first < (of_keys ? keys : rows);
    const int end = first + step + reach.halo;
    int columns = of_keys ? rows : keys, begin = 0;
    const PlainWindow window(a.mask.window, rows, keys);
    if (of_keys)
      begin = window.rows_of(max(line, 0), keys).low;
    else
      columns = max(window.keys_of(0, end).high, 0);
    last = (columns + width - 1) / width - 1, lowest = begin / width;
    warm = last >= lowest && (last + 1) * width - reach.low < columns;
    extra = columns > 0 && reach.high > 0 && lowest == 0;
  }
};

// A row of backward.inc.
struct ConvGradientConfig90 {
  int dtype, d, e;
  ConvLines lines;  // rows: dq, dweight; keys: dk, dv
  int pairs;        // of taps along the lines
  int ahead;        // blocks of 8 columns that a window touches
  int stages;
};

struct ConvGradientInstance90 : ConvGradientConfig90 {
  static constexpr int block_lines = 128;  // halo included
  void (*launch)(Context&, const ConvAttendBackward&, const ConvGradientWork&);
  // Taps at most, along the lines and across.
  int along() const { return 2 * pairs; }
  int across() const { return 8 * ahead - 7; }
};

// Explicitly instantiated, one file for each dtype and width.
template <ConvGradientConfig90 C>
ConvGradientInstance90 conv_gradient_sm90_instance();

}  // namespace fovea::cuda
