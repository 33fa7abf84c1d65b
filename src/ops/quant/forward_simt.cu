// SPDX-License-Identifier: Apache-2.0
// quant_forward in f32 FMA: every width, stride and feature, on any device.
//   for key tiles, last to first:  s = scale q_scale k_scale q k';  m' = max(m, s);  p = exp(s -
//   m')
//     l = exp(m - m') l + sum p;  o = exp(m - m') o + e4m3(256 p) v
//   o v_scale / (256 l),  lse = m + ln l
// A block owns 16 R packed rows (R = 1 for decode) of one sequence and key head, and walks its key
// tiles of 64.  Thread (ty, tx) owns rows ty + 16 r: m and l of a row live in its 16 tx lanes, l as
// partial sums until the end.  Products, shared memory and barriers: block/stage.cuh.
// FlashAttention-3 (2407.08608).
#include "core/convert.h"
#include "cuda/block/stage.cuh"
#include "cuda/block/stage_softmax.cuh"
#include "cuda/launch.h"
#include "cuda/loop/pairs.cuh"
#include "ops/quant/kernels.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "quant_forward";
constexpr int kDecodeRows = 16;  // packed rows that fit the R = 1 tile
constexpr float kLift = 256;     // p is rounded at 2^8 p
constexpr int64_t kAbsent = -1;  // in place of an offset

struct QuantSimt {
  QuantAttend a;
  int64_t row_tiles, work;
};

template <int R>
struct QuantShared {
  PackedRows piece;
  RowInfo rows[16 * R];
  int64_t q[16 * R];
  float q_scale[16 * R];
  KeyInfo keys[kStageTile];
  float k_scale[kStageTile];
};

// Four codes of a row from `column` on, 0 past `width` and for an absent row.
__device__ inline float4 load_codes(const View<4>& x, int64_t row, int column, int64_t width,
                                    int64_t stride) {
  float out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    out[i] = row == kAbsent || column + i >= width
                 ? 0.f
                 : fovea::to_float(x.as<E4m3>()[row + (column + i) * stride]);
  return {out[0], out[1], out[2], out[3]};
}

// Where key j's values start, in v or in v_t.
__device__ inline int64_t value_offset(const QuantAttend& a, const PackedRows& rows, int64_t j) {
  const Sequence& q = rows.seq;
  if (!a.v_t)
    return q.key_batch * a.attend.v.stride[0] + (q.key_begin + j) * a.attend.v.stride[1] +
           rows.g * a.attend.v.stride[2];
  return q.key_batch * a.v_t.stride[0] + rows.g * a.v_t.stride[1] +
         (a.v_column(rows.r) + (a.permuted ? permuted(j) : j)) * a.v_t.stride[3];
}

template <int R, int Chunks>
__device__ __forceinline__ void finish(const QuantAttend& call, const PackedRows& rows, int64_t m0,
                                       const RowInfo* s_rows, const StageSoftmax<R>& state,
                                       const float (&o)[Chunks][R][4]) {
  const Attend& a = call.attend;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const RowInfo& row = s_rows[ty + 16 * r];
    const bool sinks = a.score.sink_logit && row.i >= 0;
    const StageRow end = state.end(r, sinks ? sink_logit(a.score, row.h) : -INFINITY);
    if (row.i < 0) continue;
    const bool nothing = end.sum == 0 || end.factor == 0;
    const float v_scale = nothing ? 0 : call.v_scale_of(rows.seq, rows.r, rows.g);
    const float inverse = nothing ? 0 : end.factor * v_scale / (kLift * end.sum);
    if (tx == 0 && a.lse) a.lse.as()[rows.lse_offset(m0 + ty + 16 * r, a.lse.stride)] = end.lse();
    const int64_t out = rows.offset(m0 + ty + 16 * r, a.o.stride);
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = chunk * kStageTile + 4 * tx + c;
        if (column < a.e)
          store_float(a.o.data, a.o_dtype, out + column * a.o.stride[3], o[chunk][r][c] * inverse);
      }
  }
}

template <int R, int Chunks>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    quant_simt_kernel(const __grid_constant__ QuantSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ QuantShared<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.a.attend;
  const View<4>& v = call.a.v_t ? call.a.v_t : a.v;
  const int64_t v_stride = call.a.v_t ? call.a.v_t.stride[2] : a.v.stride[3];
  const int d = static_cast<int>(a.d), e = static_cast<int>(a.e);
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    // Late rows first: under a causal mask they are the longest.
    const int64_t tile = call.row_tiles - 1 - w % call.row_tiles, gr = w / call.row_tiles;
    const int64_t m0 = tile * 16 * R;
    __syncthreads();
    if (threadIdx.x == 0) s.piece = packed_rows(a, gr / a.g, gr % a.g);
    __syncthreads();
    const PackedRows& rows = s.piece;
    if (m0 >= rows.count()) continue;
    for (int m = threadIdx.x; m < 16 * R; m += kStageThreads) {
      const RowInfo row = row_info(a, rows, m0 + m);
      s.rows[m] = row;
      s.q[m] = row.i < 0 ? kAbsent : rows.offset(m0 + m, a.q.stride);
      s.q_scale[m] = row.i < 0 ? 0 : call.a.q_scale_of(rows.seq, rows.r, row.h, row.i);
    }
    __syncthreads();  // a piece without keys reads the rows at once
    const int64_t m1 = m0 + 16 * R < rows.count() ? m0 + 16 * R : rows.count();
    const KeyTiles range = key_tiles(a.mask, rows.seq, rows.head_begin(), rows.head_end(),
                                     rows.row(m0), rows.row(m1 - 1) + 1, kStageTile);

    StageSoftmax<R> state;
    float o[Chunks][R][4] = {};
    for (int64_t n = range.last - 1; n >= range.first; --n) {
      const int64_t j0 = n * kStageTile;
      const int keys = static_cast<int>(clamp_i64(rows.seq.keys - j0, 0, kStageTile));
      __syncthreads();  // the last tile's keys are done with
      if (threadIdx.x < kStageTile) {
        KeyInfo key = key_info(a, rows.seq, rows.g, j0 + threadIdx.x);
        if (key.k >= 0) key.v = value_offset(call.a, rows, key.j);
        s.keys[threadIdx.x] = key;
        s.k_scale[threadIdx.x] = key.k < 0 ? 0 : call.a.k_scale_of(rows.seq, rows.r, rows.g, key.j);
      }
      __syncthreads();

      float x[R][4] = {};
      multiply_nt(
          x, tiles, d,
          [&](int row, int column) { return load_codes(a.q, s.q[row], column, d, a.q.stride[3]); },
          [&](int row, int column) {
            return load_codes(a.k, s.keys[row].k, column, d, a.k.stride[3]);
          });
      state.weigh(x, o, [&](int r, int c, float product) {
        const float score =
            capped(a.score, product * (s.q_scale[ty + 16 * r] * s.k_scale[tx + 16 * c]));
        return pair_score(a, rows.seq, s.rows[ty + 16 * r], s.keys[tx + 16 * c], score);
      });
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          x[r][c] = fovea::to_float(fovea::from_float<E4m3>(kLift * x[r][c]));
      put_p(tiles, x);
      multiply_nn(o, tiles, e, keys, [&](int row, int column) {
        return load_codes(v, s.keys[row].v, column, e, v_stride);
      });
    }
    finish(call.a, rows, m0, s.rows, state, o);
  }
}

template <int R>
void launch_width(Context& ctx, const QuantSimt& call) {
  const auto run = [&]<int Chunks> {
    launch<quant_simt_kernel<R, Chunks>>(ctx, kOp, call.work, kStageThreads, FmaTiles<R>::bytes(),
                                         call);
  };
  const int64_t chunks = ceil_div(call.a.attend.e, kStageTile);
  if (chunks <= 2)
    run.template operator()<2>();
  else if (chunks <= 4)
    run.template operator()<4>();
  else
    run.template operator()<9>();
}

std::string offer(const Context&, const QuantAttend& a, Plan& plan) {
  const Attend& call = a.attend;
  const int64_t packed = call.g ? call.sequences.query_max * (call.h / call.g) : 0;
  const bool decode = packed <= kDecodeRows;
  const int64_t row_tiles = ceil_div(packed, decode ? kDecodeRows : 4 * 16);
  plan.launch = [=](Context& ctx, void*) {
    const QuantSimt work{a, row_tiles, call.sequences.count * call.g * row_tiles};
    decode ? launch_width<1>(ctx, work) : launch_width<4>(ctx, work);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<QuantAttend> quant_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
