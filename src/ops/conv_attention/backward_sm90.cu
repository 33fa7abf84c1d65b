// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of conv_attention_backward, and the pass before them: each
// row's lse and delta, each head's largest |dout|.
#include <algorithm>
#include <vector>

#include "core/reasons.h"
#include "cuda/block/reduce.cuh"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/zero.cuh"
#include "cuda/tile/order.cuh"
#include "ops/conv_attention/backward.cuh"
#include "ops/conv_attention/backward_work.cuh"
#include "ops/conv_attention/plan_sm90.cuh"

namespace fovea {
namespace {

using namespace cuda;

constexpr char kOp[] = "conv_attention_backward";
constexpr int kThreads = 256;
constexpr int kLanes = 16;      // of a row, 8 columns each
constexpr int kStatsRows = 64;  // of a block

// A block owns 64 rows of a head.  The largest of non-negative floats is that of their bits, in any
// order.
template <int Dtype>
__global__ void __launch_bounds__(kThreads)
    row_stats_kernel(const __grid_constant__ ConvAttendBackward b, float2* row_stats,
                     float* largest, int64_t row_tiles) {
  pdl_trigger();
  __shared__ float s_most[kThreads / 32];
  const ConvAttend& c = b.forward;
  const Attend& a = c.attend;
  const int64_t h = blockIdx.x % a.h, tile = blockIdx.x / a.h % row_tiles,
                r = blockIdx.x / a.h / row_tiles;
  const Sequence seq = a.sequences[r];
  const ConvAttend::Rows out = c.rows_of(seq, r);
  const int column = threadIdx.x % kLanes * 8;
  float most = 0.f;
#pragma unroll
  for (int n = threadIdx.x / kLanes; n < kStatsRows; n += kThreads / kLanes) {
    const int64_t i = tile * kStatsRows + n, row = out.begin + i - c.history;
    const bool there = i >= c.history && i < c.history + out.count;
    uint4 o = {}, dout = {};
    if (there && column < a.e) {
      const auto line = [&](const View<4>& x) {
        return *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(x.data) +
                                               seq.batch * x.stride[0] + row * x.stride[1] +
                                               h * x.stride[2] + column);
      };
      o = line(a.o), dout = line(b.dout);
    }
    float sum = 0.f;
    const uint32_t* x = &o.x;
    const uint32_t* y = &dout.x;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 u = pair_of<Dtype>(x[k]), v = pair_of<Dtype>(y[k]);
      sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
      most = fmaxf(most, fmaxf(fabsf(v.x), fabsf(v.y)));
    }
    sum = lanes_sum<kLanes>(sum);
    if (threadIdx.x % kLanes || i >= seq.rows) continue;
    float lse = kNegativeInfinity;
    if (there)
      lse = a.lse.as()[seq.batch * a.lse.stride[0] + h * a.lse.stride[1] + row * a.lse.stride[2]];
    const bool empty = lse == kNegativeInfinity;
    row_stats[(seq.batch * a.h + h) * a.s + seq.row_begin + i] =
        make_float2(empty ? -kNegativeInfinity : lse * kLog2E, empty ? 0.f : sum);
  }
  most = lanes_max<32>(most);
  if (threadIdx.x % 32 == 0) s_most[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x) return;
  for (int n = 1; n < kThreads / 32; ++n) most = fmaxf(most, s_most[n]);
  atomicMax(reinterpret_cast<int*>(largest + r * a.h + h), __float_as_int(most));
}

// Every row of backward.inc in this build, narrow widths and few taps first.
const std::vector<ConvGradientInstance90>& instances() {
  static const std::vector<ConvGradientInstance90> rows = {
#define FOVEA_INSTANCE(...) conv_gradient_sm90_instance<ConvGradientConfig90 __VA_ARGS__>(),
#include "instances/conv_attention_backward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const ConvGradientInstance90* find(const ConvAttend& c, ConvLines kind) {
  const Attend& a = c.attend;
  const bool keys = kind == ConvLines::keys;
  const int64_t lines = keys ? c.kernel_columns : c.kernel_rows,
                columns = keys ? c.kernel_rows : c.kernel_columns;
  for (const ConvGradientInstance90& row : instances())
    if (row.dtype == a.dtype && row.lines == kind && a.d <= row.d && a.e <= row.e &&
        lines <= row.along() && columns <= row.across())
      return &row;
  return nullptr;
}

// "" or why TMA cannot read an operand.  Boxes have 64 lines or columns alike.
Text map_operands(const ConvAttendBackward& b, BackwardMaps& maps) {
  const Attend& a = b.forward.attend;
  const int64_t caches = a.sequences.caches;
  return map_each({{"q", {a.q, a.dtype, a.b, a.s, a.h, a.d, 64}, maps.q},
                   {"k", {a.k, a.dtype, caches, a.t, a.g, a.d, 64}, maps.k},
                   {"v", {a.v, a.dtype, caches, a.t, a.g, a.e, 64}, maps.v},
                   {"dout", {b.dout, a.dtype, a.b, b.forward.rows_out, a.h, a.e, 64}, maps.dout}});
}

Text refuses(const Context& ctx, const ConvAttendBackward& b) {
  const ConvAttend& c = b.forward;
  const Attend& a = c.attend;
  if (Text why = hopper_refuses(ctx, a); !why.empty()) return why;
  if (a.o_dtype != a.dtype) return reason_dtype("o.dtype", a.o_dtype, a.dtype, "q");
  // dout has no element then, and TMA knows no empty tensor: it would read one row.
  if (!c.rows_out) return "rows_out is 0";
  const Sequences& q = a.sequences;
  if (q.count * a.h * (q.query_max / 32 + 1) > kIndexMax ||
      q.count * a.g * (q.key_max / 32 + 1) > kIndexMax)
    return "more than 2^30 work items";
  const int64_t row_extent[3] = {a.b, a.s, a.h}, out_extent[3] = {a.b, c.rows_out, a.h},
                key_extent[3] = {q.key_start ? 1 : q.count, a.t, a.g};
  if (!in_pieces(a.o, out_extent, 8)) return reason_rows("o");
  if (!in_pieces(b.dout, out_extent, 8)) return reason_rows("dout");
  if (b.dq && !in_pieces(b.dq, row_extent, 8)) return reason_rows("dq");
  for (const View<4>* x : {&b.dk, &b.dv})
    if (*x && !in_pieces(*x, key_extent, 8)) return reason_rows(x == &b.dk ? "dk" : "dv");
  return "";
}

TileOrder order_of(const DeviceInfo& device, const ConvAttend& c,
                   const ConvGradientInstance90& row) {
  const Attend& a = c.attend;
  const bool keys = row.lines == ConvLines::keys;
  const ConvReach reach(c, keys);
  const int64_t lines = keys ? a.sequences.key_max : a.sequences.query_max,
                heads = a.sequences.count * (keys ? a.g : a.h);
  const int64_t bytes = keys ? a.sequences.query_max * a.h / a.g * (a.d + a.e) * 2
                             : a.sequences.key_max * (a.d + a.e) * 2;
  return conv_order(device, ceil_div(lines, int64_t{reach.own(row.block_lines)}), heads, 1, 1,
                    bytes, c.causal, c.causal && !keys);
}

// What offer() decided: instances and orders of the pass over rows and of that over keys.
struct GradientPlan90 {
  ConvGradientInstance90 instance[2];
  TileOrder order[2];
  BackwardMaps maps;
  Slot<float2> row_stats;
  Slot<float> largest;
  Slot<double> dweight;

  // Of a head's dweight: a warp has one.
  int64_t parts() const { return int64_t{order[0].row_tiles} * 8; }
};

void enqueue(Context& ctx, const ConvAttendBackward& b, const GradientPlan90& plan, void* base) {
  const ConvAttend& c = b.forward;
  const Attend& a = c.attend;
  const auto clear = [&](auto* data, size_t count) {
    if (data) check(cudaMemsetAsync(data, 0, count * sizeof *data, stream(ctx)), kOp);
  };
  conv_clear(ctx, b);
  clear(plan.largest.at(base), plan.largest.count);
  if (ragged(a)) clear(plan.dweight.at(base), plan.dweight.count);  // else written whole
  const int64_t tiles = ceil_div(a.sequences.query_max, kStatsRows);
  const int64_t blocks = a.sequences.count * a.h * tiles;
  (a.dtype == FOVEA_BF16)
      ? launch<row_stats_kernel<FOVEA_BF16>>(ctx, kOp, blocks, kThreads, 0, b,
                                             plan.row_stats.at(base), plan.largest.at(base), tiles)
      : launch<row_stats_kernel<FOVEA_F16>>(ctx, kOp, blocks, kThreads, 0, b,
                                            plan.row_stats.at(base), plan.largest.at(base), tiles);
  ConvGradientWork work{};
  work.maps = plan.maps;
  work.row_stats = plan.row_stats.at(base), work.largest = plan.largest.at(base);
  work.dweight = plan.dweight.at(base);
  // The longer work items come first: those of the pass whose blocks own fewer lines, or several
  // heads.
  const bool keys_first = a.h > a.g || ConvReach(c, true).halo > ConvReach(c, false).halo;
  for (bool keys : {keys_first, !keys_first}) {
    if (keys ? !b.dk && !b.dv : !b.dq && !b.dweight) continue;
    work.order = plan.order[keys];
    work.schedule = {static_cast<int32_t>(work.order.items()), counters(ctx) + 2 * keys};
    if (!work.schedule.items) continue;
    plan.instance[keys].launch(ctx, b, work);
    work.beside = true;
  }
  conv_add_dweight(ctx, b, {plan.dweight.at(base), plan.parts()});
}

Text offer(const Context& ctx, const ConvAttendBackward& b, Plan& plan) {
  if (Text why = refuses(ctx, b); !why.empty()) return why;
  const ConvAttend& c = b.forward;
  const Attend& a = c.attend;
  const ConvGradientInstance90 *rows = find(c, ConvLines::rows), *keys = find(c, ConvLines::keys);
  if (!rows || !keys) return no_taps(c);
  const DeviceInfo& device = device_info(ctx);
  GradientPlan90 own{{*rows, *keys}, {order_of(device, c, *rows), order_of(device, c, *keys)}};
  if (Text why = map_operands(b, own.maps); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(rows->d) + "." +
                 Text::number(rows->along()) + "x" + Text::number(rows->across());
  const int64_t heads = a.sequences.count * a.h;
  own.row_stats = plan.workspace.add<float2>(a.b * a.h * a.s);
  own.largest = plan.workspace.add<float>(heads);
  own.dweight = plan.workspace.add<double>(b.dweight ? heads * own.parts() * c.taps() : 0);
  plan.launch = [=](Context& ctx, void* base) { enqueue(ctx, b, own, base); };
  return "";
}

}  // namespace

extern const Kernel<ConvAttendBackward> conv_attention_backward_sm90 = {"sm90", offer};

}  // namespace fovea
