// SPDX-License-Identifier: Apache-2.0
// Rows and keys of quant_forward on the portable flash loop (loop/attend_simt.cuh): every format,
// group, width and stride.
//   x = scale (q_scale k_scale q k' + delta) + row constant
//   o = rounded(p) v v_scale / (lift l)
// Keys of pages have the scales of their page, and its means are added to their numbers:
//   k' = k_scale k + k_mean,  v' = v_scale v + v_mean
#pragma once
#include "core/convert.h"
#include "cuda/loop/attend_simt.cuh"
#include "ops/quant/kernels.h"

namespace fovea::cuda {

constexpr int64_t kAbsent = -1;  // in place of an offset

// What goes with a key that there is: its rows of scales and its number there, its means on a page.
struct CodeKey {
  const void *k_scales, *v_scales;
  const float *k_mean, *v_mean;
  int64_t number;
};

template <int R>
struct QuantShared : PackedTile<R> {
  CodeKey codes[kStageTile];
  float q_scale[16 * R], k_scale[kStageTile];  // 1 with micro scales
  float shift[16 * R];                         // <q_i, k_mean>
  const float* delta[16 * R];                  // of key 0
};

// Four codes of a row from `column` on, 0 past `width` and for an absent row.
__device__ inline float4 load_codes(const CodeRow& row, int column, int width) {
  float out[4];
  if (row.kind == ValueKind::e4m3) {
    const E4m3* codes = static_cast<const E4m3*>(row.base);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out[i] = row.at == kAbsent || column + i >= width
                   ? 0.f
                   : fovea::to_float(codes[row.at + (column + i) * row.stride]);
  } else {
#pragma unroll 1
    for (int i = 0; i < 4; ++i)
      out[i] = row.at == kAbsent || column + i >= width ? 0.f : row[column + i];
  }
  return {out[0], out[1], out[2], out[3]};
}

// The same with the scales of token i's runs.
__device__ inline float4 load_scaled(const CodeRow& row, const ScaleRow& scales, int64_t i,
                                     int column, int width) {
  float4 x = load_codes(row, column, width);
  if (row.at == kAbsent || column >= width) return x;
  const float scale = scales(i, column);  // of all four: runs of 16
  x.x *= scale, x.y *= scale, x.z *= scale, x.w *= scale;
  return x;
}

// x and a mean in columns from `column` on, as far as there are any.
__device__ inline float4 add_mean(float4 x, const float* mean, int64_t stride, int column,
                                  int width) {
  const auto at = [&](int c) { return c < width ? mean[c * stride] : 0.f; };
  x.x += at(column), x.y += at(column + 1), x.z += at(column + 2), x.w += at(column + 3);
  return x;
}

// Keys are multiplied with their scales before they meet the rows.
__device__ inline bool scales_keys(const QuantAttend& call) {
  return call.k_axis.micro() || call.k_mean_of_keys();
}

// What an operation of codes adds to row m.  Out of line, as the next: each is long and done once.
template <int R>
__device__ __noinline__ void stage_code_row(const QuantAttend& call, QuantShared<R>& s, int m) {
  const PackGqaRows& rows = s.piece;
  const RowInfo& row = s.rows[m];
  const bool there = row.i >= 0;
  s.q_scale[m] = !there                ? 0.f
                 : call.q_axis.micro() ? 1.f
                                       : call.q_scales(rows.seq, rows.r, row.h)(row.i, 0);
  s.shift[m] =
      there && rows.seq.keys && call.shifts() ? call.mean_dot(rows.seq, rows.r, row.h, row.i) : 0.f;
  s.delta[m] = there && call.delta ? call.delta_of(rows.seq, rows.r, row.h, row.i) : nullptr;
}
// What it adds to the key in column n, of key head g.
template <int R>
__device__ __noinline__ void stage_code_key(const QuantAttend& call, QuantShared<R>& s, int64_t g,
                                            int n) {
  const PackGqaRows& rows = s.piece;
  KeyInfo& key = s.keys[n];
  s.k_scale[n] = 0;
  if (key.k < 0) return;
  const CodePlace at = call.place(rows.seq, key.j);
  key.v = call.value_at(rows.seq, at, rows.r, g);
  const ScaleRow k_scales = call.k_scales(at, rows.r, g);
  s.codes[n] = {k_scales.first, call.v_scales(at, rows.r, g).first,
                call.k_mean_of_keys() ? call.k_mean.at(at.row, g) : nullptr,
                call.v_mean_of_keys() ? call.v_mean.at(at.row, g) : nullptr, at.number};
  s.k_scale[n] = scales_keys(call) ? 1.f : k_scales(at.number, 0);
}

// Columns of o that an item makes.
struct CodeColumns {
  int first, count;
};

// Score: products of codes of key head g by the scales of row and key.
template <int R>
struct CodeProducts : TileScores<R> {
  const QuantAttend& call;
  const QuantShared<R>& s;
  int64_t g;
  CodeColumns own;
  const View<4>& v = call.values();
  int64_t v_stride = call.value_stride();
  int width = own.count;
  const PackGqaRows& piece = s.piece;

  __device__ bool products(float (&x)[R][4], int64_t) const {
    const View<4>&q = call.attend.q, &k = call.attend.k;
    const int d = static_cast<int>(call.attend.d);
    multiply_nt(
        x, this->tiles, d,
        [&](int row, int column) {
          const CodeRow codes{q.data, s.q[row], q.stride[3], call.kind};
          if (!call.q_axis.micro()) return load_codes(codes, column, d);
          const RowInfo& info = s.rows[row];
          return load_scaled(codes, call.q_scales(piece.seq, piece.r, info.h), info.i, column, d);
        },
        [&](int row, int column) {
          const CodeRow codes{k.data, s.keys[row].k, k.stride[3], call.kind};
          if (!scales_keys(call)) return load_codes(codes, column, d);
          const CodeKey& key = s.codes[row];
          const float4 x = load_scaled(codes, {call.k_axis, key.k_scales}, key.number, column, d);
          if (codes.at == kAbsent || !call.k_mean_of_keys()) return x;
          return add_mean(x, key.k_mean, call.k_mean.stride[3], column, d);
        });
    return true;
  }
  // Of a pair of the tile, before the score's scale.
  __device__ float scaled(int r, int c, float product) const {
    const int m = threadIdx.x / 16 + 16 * r, n = threadIdx.x % 16 + 16 * c;
    float x = product * (s.q_scale[m] * s.k_scale[n]) + s.shift[m];
    if (s.delta[m] && s.keys[n].k >= 0) x += s.delta[m][s.keys[n].j * call.delta.stride[3]];
    return x;
  }
  __device__ float4 values(int row, int column) const {
    const KeyInfo& key = s.keys[row];
    // A packed offset counts halves of bytes and so does its stride.
    if (call.v_kind == ValueKind::e4m3 && call.v_scale_last())
      return load_codes({v.data, key.v, v_stride, ValueKind::e4m3}, own.first + column,
                        own.first + width);
    return any_values(key.v, s.codes[row], column);
  }
  __device__ float4 any_values(int64_t from, const CodeKey& key, int column) const {
    float out[4];
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      out[i] = 0;
      if (from == kAbsent || column + i >= width) continue;
      const int64_t at = own.first + column + i;
      out[i] = code_value(call.v_kind, v.data, from + at * v_stride) *
               call.value_scale({call.v_axis, key.v_scales}, key.number, at);
      if (call.v_mean_of_keys()) out[i] += key.v_mean[at * call.v_mean.stride[3]];
    }
    return {out[0], out[1], out[2], out[3]};
  }
  // Weights are rounded by runs of 16, 32 or 64 keys: lanes hold 16 neighbours.
  __device__ void put(float (&p)[R][4]) const {
    const int32_t format = call.p_format;
    const int run = weight_run(format);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float most[4] = {};
      if (run > 1) {
#pragma unroll
        for (int c = 0; c < 4; ++c) most[c] = lanes_max<16>(p[r][c]);
        if (run > 16) {
          most[0] = most[1] = fmaxf(most[0], most[1]);
          most[2] = most[3] = fmaxf(most[2], most[3]);
        }
        if (run > 32) most[0] = most[1] = most[2] = most[3] = fmaxf(most[0], most[2]);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c)
        p[r][c] = run == 1 && format <= FOVEA_P_FORMAT_E4M3_448
                      ? fovea::to_float(fovea::from_float<E4m3>(weight_lift(format) * p[r][c]))
                      : rounded_weight(format, p[r][c], most[c]);
    }
    put_p(this->tiles, p);
  }
};

template <int R>
struct CodeEpilogue : PackedEpilogue<R> {
  const QuantAttend& call;
  int64_t g;  // key head
  CodeColumns own;

  __device__ RowPlace place(int m) const {
    RowPlace to = PackedEpilogue<R>::place(m);
    to.at += own.first * to.step;
    if (own.first > 0) to.lse = nullptr;  // the first columns' item writes it
    return to;
  }
  __device__ float factor(int, const StageRow& end) const {
    return end.sum == 0 ? 0 : end.factor / (weight_lift(call.p_format) * end.sum);
  }
  // Scales of channels, or one of all; and the means, which keys have a share of.
  template <int Chunks>
  __device__ void columns(float (&o)[Chunks][R][4], int r, int m, const StageRow& end) const {
    const PackGqaRows& rows = this->s.piece;
    const float to = factor(m, end);
    const bool none = to == 0;
    if (!none && !call.v_scale_last() && !call.v_mean_last()) return;
    const ScaleRow scales = call.v_scales(rows.seq, rows.r, g);
    const float sink = this->sink(m);
    const float share = sink == -INFINITY ? 1.f : (end.sum - expf(sink - end.top)) / end.sum;
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = chunk * kStageTile + 4 * static_cast<int>(threadIdx.x % 16) + c;
        if (column >= own.count) continue;
        const int64_t at = own.first + column;
        float& x = o[chunk][r][c];
        if (none) {
          x = 0;
          continue;
        }
        if (call.v_scale_last()) x *= scales(0, at);
        if (call.v_mean_last())
          x += share / to * call.v_mean_of(rows.seq, rows.r, g)[at * call.v_mean.stride[3]];
      }
  }
};

}  // namespace fovea::cuda
