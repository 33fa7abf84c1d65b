// SPDX-License-Identifier: Apache-2.0
// Codes of SageAttention 1, 2 and SageBwd on the 8-bit Hopper sweep: i8 q and k with scales of
// threads or blocks, v of e4m3 with scales of channels, of i8 with scales of blocks, or of 16 bits.
#pragma once
#include "cuda/loop/attend_fp8_sm90.cuh"
#include "cuda/tile/convert.cuh"
#include "ops/quant/kernels.h"

namespace fovea::cuda {

// Scales of a sequence and head whose block is a power of two: token i's entry is
// (i >> shift) parts + part, `part` of the lane's.
struct ShiftedScales {
  const float* first;
  int stride, shift, parts;

  __device__ static ShiftedScales of(const ScaleAxis& axis, int64_t batch, int64_t head,
                                     const IntVector& start, int64_t s, int64_t r) {
    ShiftedScales at;
    at.parts = static_cast<int>(axis.each());
    at.shift = axis.block ? 31 - __clz(static_cast<int>(axis.block)) : 31;
    int64_t entry = start ? r : 0;
    if (start && axis.block) entry += clamp_i64(start[r], 0, s) >> at.shift;
    const int64_t* stride = axis.scale.stride;
    at.stride = static_cast<int>(stride[2]);
    at.first =
        axis.scale.as() + batch * stride[0] + head * stride[1] + entry * at.parts * stride[2];
    return at;
  }
  __device__ float at(int block, int part) const {
    return __ldg(first + static_cast<int64_t>(block * parts + part) * stride);
  }
};

// What codes of a work item stand for.
struct IntegerCodes {
  static constexpr int dtype = FOVEA_I8;
  ShiftedScales rows, keys;
  const float *values, *mean;
  int value_stride, columns, count, key_count, column;
  float scale;
  bool beyond;

  // Scales of k and v, and k_mean, are those of the cache row that `seq` names.
  __device__ void find(const QuantAttend& call, const RowTile& tile, const Sequence& seq) {
    const Attend& a = call.attend;
    const int64_t r = tile.rows.r, g = tile.key_head(a);
    const IntVector& start = a.sequences.key_start;
    column = static_cast<int>(call.v_column(r) - seq.key_begin);
    beyond = call.v_column(r) + tile.keys < call.padded;
    count = tile.count, key_count = tile.keys;
    scale = a.score.scale * kLog2E;
    rows = ShiftedScales::of(call.q_axis, seq.batch, tile.rows.g, a.sequences.query_start, a.s, r);
    keys = ShiftedScales::of(call.k_axis, seq.key_batch, g, start, a.t, r);
    const ScaleAxis& v = call.v_axis;
    const bool channels = v.group == FOVEA_SCALE_GROUP_CHANNEL;
    const int64_t* stride = v.scale.stride;
    values = v.scale ? v.scale.as() + seq.key_batch * stride[0] + g * stride[1] +
                           (start ? r * (channels ? a.e : 1) : 0) * stride[2]
                     : nullptr;
    value_stride = channels ? static_cast<int>(stride[2]) : 0;
    columns = static_cast<int>(a.e);
    // Without keys a cache row need not be one.
    mean = call.shifts() && key_count > 0 ? call.k_mean_of(seq, r, g) : nullptr;
  }
  // Rows 8 apart share a thread's scale.
  __device__ float row_scale(int row) const {
    return rows.at(row >> rows.shift, rows.parts > 1 ? row % 8 : 0);
  }
  __device__ float row_factor(int, int row) const {
    if (row >= count) return 1;
    return scale * row_scale(row);
  }
  // Without a branch.  A scale whose keys are all past the last is not read: an earlier one of the
  // thread stands in, or that of key 0.
  struct KeyScales {
    const char* first;
    int step, shift, last;  // bytes from block to block
    __device__ float at(int key) const {
      // One instruction, as ptxas does not make of a step that it keeps in 64 bits.
      const char* from;
      asm volatile("mad.wide.s32 %0, %1, %2, %3;"
                   : "=l"(from)
                   : "r"(min(key, last) >> shift), "r"(step), "l"(first));
      return __ldg(reinterpret_cast<const float*>(from));
    }
  };
  __device__ KeyScales key_scales() const {
    const int lane = static_cast<int>(threadIdx.x % 4);
    return scales_of(keys, keys.parts > 1 && 2 * lane < key_count ? lane : 0);
  }
  __device__ float2 value_factor(int at) const {
    if (!values) return {1, 1};
    if (at >= columns) return {};
    return {__ldg(values + static_cast<int64_t>(at) * value_stride),
            __ldg(values + static_cast<int64_t>(at + 1) * value_stride)};
  }
  // <q_m, k_mean>, by the quad of a row; every lane of it calls.
  __device__ float raise(const QuantAttend& call, const RowTile& tile, int m) const {
    if (!mean) return 0;
    float sum = 0;
    if (m < count) {
      const int d = static_cast<int>(call.attend.d);
      const View<4>& q = call.q_plain ? call.q_plain : call.attend.q;
      const int64_t from = tile.offset(m, q.stride);
#pragma unroll 1
      for (int c = threadIdx.x % 4 * 8; c < d; c += 32) {
        float x[8];
        load_eight(call, q, from + c, x);
        const float4 low = __ldg(reinterpret_cast<const float4*>(mean + c));
        const float4 high = __ldg(reinterpret_cast<const float4*>(mean + c) + 1);
        sum += x[0] * low.x + x[1] * low.y + x[2] * low.z + x[3] * low.w;
        sum += x[4] * high.x + x[5] * high.y + x[6] * high.z + x[7] * high.w;
      }
      sum *= call.q_plain ? scale : row_factor(0, m);
    }
    return quad_sum(sum);
  }

 protected:
  __device__ KeyScales scales_of(const ShiftedScales& scales, int part) const {
    const float* first = scales.first + static_cast<int64_t>(part) * scales.stride;
    return {reinterpret_cast<const char*>(first), scales.parts * scales.stride * 4, scales.shift,
            key_count - 1 - 2 * part};
  }

 private:
  __device__ static void load_eight(const QuantAttend& call, const View<4>& q, int64_t at,
                                    float (&x)[8]) {
    if (!call.q_plain) {
      const uint2 codes = *reinterpret_cast<const uint2*>(q.as<int8_t>() + at);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        x[i] = static_cast<float>(static_cast<int8_t>((i < 4 ? codes.x : codes.y) >> i % 4 * 8));
      return;
    }
    if (call.q_plain_dtype == FOVEA_F32) {
      const float4* from = reinterpret_cast<const float4*>(q.as() + at);
      const float4 low = from[0], high = from[1];
      x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
      x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
      return;
    }
    const uint4 words = *reinterpret_cast<const uint4*>(q.as<uint16_t>() + at);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two =
          call.q_plain_dtype == FOVEA_F16
              ? __half22float2(reinterpret_cast<const __half2&>(pairs[i]))
              : __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pairs[i]));
      x[2 * i] = two.x, x[2 * i + 1] = two.y;
    }
  }
};

// The tiles that the mask leaves.
struct IntegerTiles : SeenTiles, IntegerCodes {
  using Call = QuantAttend;
  static constexpr bool reads_device = true, blocks = true;

  __device__ void start(const QuantAttend& call, const RowTile& tile, int, WindowMask&) {
    find(call, tile, tile.rows.seq);
  }
};

}  // namespace fovea::cuda
