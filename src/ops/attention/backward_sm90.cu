// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of attention_backward, and their preprocess: each row's lse
// and delta.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/block/softmax.cuh"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "cuda/loop/key_terms.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/loop/row_tile.cuh"
#include "ops/attention/backward.cuh"
#include "ops/attention/backward_simt.cuh"
#include "ops/attention/kernels.h"

namespace fovea {
namespace {

using namespace cuda;

constexpr char kOp[] = "attention_backward";
constexpr int kThreads = 256;

// A block owns a row tile of a head, Lanes lanes own a row.  Row statistics: lse log2(e), and
// delta = <dout, o> - dlse (also to `delta`, if given).  The dq semaphore is reset; unordered dq
// starts from 0.
template <int Dtype, int Lanes>
__global__ void __launch_bounds__(kThreads)
    backward_preprocess_kernel(const __grid_constant__ AttendBackward b, float* delta,
                               const __grid_constant__ BackwardWork work, int64_t row_tiles) {
  const Attend& a = b.forward;
  const int64_t h = blockIdx.x % a.h, m = blockIdx.x / a.h % row_tiles,
                r = blockIdx.x / a.h / row_tiles;
  const Sequence seq = a.sequences[r];
  if (m * work.tiles.rows >= seq.rows) return;
  const int64_t tile = h * work.tiles.total + work.tiles.first(seq, r) + m;
  const int column = threadIdx.x % Lanes * 8;
  const auto line = [&](const View<4>& x, int64_t i) {
    return static_cast<const uint16_t*>(x.data) + seq.batch * x.stride[0] +
           (seq.row_begin + i) * x.stride[1] + h * x.stride[2];
  };
#pragma unroll 4
  for (int i = threadIdx.x / Lanes; i < work.tiles.rows; i += kThreads / Lanes) {
    const int64_t row = m * work.tiles.rows + i;
    uint4 o = {}, dout = {};
    float lse = kNegativeInfinity, dlse = 0.f;
    if (row < seq.rows) {
      if (column < a.e) {
        o = *reinterpret_cast<const uint4*>(line(a.o, row) + column);
        dout = *reinterpret_cast<const uint4*>(line(b.dout, row) + column);
      }
      const auto stat = [&](const View<3>& x) {
        return x
            .as()[seq.batch * x.stride[0] + h * x.stride[1] + (seq.row_begin + row) * x.stride[2]];
      };
      lse = stat(a.lse);
      if (b.dlse) dlse = stat(b.dlse);
    }
    float sum = 0.f;
    const uint32_t* x = &o.x;
    const uint32_t* y = &dout.x;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float2 u = pair_of<Dtype>(x[c]), v = pair_of<Dtype>(y[c]);
      sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
    }
    sum = lanes_sum<Lanes>(sum) - dlse;
    if (threadIdx.x % Lanes) continue;
    const bool empty = lse == kNegativeInfinity;
    work.lse(tile)[i] = empty ? -kNegativeInfinity : lse * kLog2E;
    work.delta(tile)[i] = empty ? 0.f : sum;
    if (delta && row < seq.rows) delta[row_stats_offset(a, seq, h, row)] = sum;
  }
  if (!work.dq) return;
  if (threadIdx.x == 0) work.dq_order[tile].added = 0;
  if (!work.ordered) {
    float4* dq = reinterpret_cast<float4*>(work.dq + tile * work.tiles.floats());
    for (int i = threadIdx.x; i < work.tiles.floats() / 4; i += kThreads)
      dq[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

// Every row of backward.inc in this build, narrow widths first.
const std::vector<BackwardInstance90>& instances() {
  static const std::vector<BackwardInstance90> rows = {
#define FOVEA_INSTANCE(...) backward_sm90_instance<BackwardConfig90 __VA_ARGS__>(),
#include "instances/attention_backward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const BackwardInstance90* find(const Attend& a) {
  for (const BackwardInstance90& row : instances())
    if (row.dtype == a.dtype && a.d <= row.d && a.e <= row.e) return &row;
  return nullptr;
}

struct Operands {
  MapOf q, k, v, dout;
  Operands(const AttendBackward& call, const BackwardInstance90& instance)
      : q{call.forward.q, call.forward.dtype, call.forward.b, call.forward.s,
          call.forward.h, call.forward.d,     instance.rows},
        k{call.forward.k, call.forward.dtype, call.forward.sequences.caches,
          call.forward.t, call.forward.g,     call.forward.d,
          instance.keys},
        v{call.forward.v, call.forward.dtype, call.forward.sequences.caches,
          call.forward.t, call.forward.g,     call.forward.e,
          instance.keys},
        dout{call.dout,      call.forward.dtype, call.forward.b, call.forward.s,
             call.forward.h, call.forward.e,     instance.rows} {}
};

Text refuses(const Context& ctx, const AttendBackward& call) {
  const Attend& a = call.forward;
  if (Text why = hopper_refuses(ctx, a); !why.empty()) return why;
  if (a.o_dtype != a.dtype) return reason_dtype("o.dtype", a.o_dtype, a.dtype, "q");
  if (const char* field = a.not_plain()) return reason_given(field);
  const int64_t rows[3] = {a.b, a.s, a.h};
  for (const View<4>* x : {&a.o, &call.dout})
    if (*x && !in_pieces(*x, rows, 8)) return reason_rows(x == &a.o ? "o" : "dout");
  return gradients_refuse(call);
}

template <int Dtype>
void launch_preprocess(Context& ctx, const AttendBackward& call, float* delta,
                       const BackwardWork& work, int64_t row_tiles) {
  const Attend& a = call.forward;
  const int64_t blocks = a.sequences.count * row_tiles * a.h;
  if (a.e <= 64)
    launch<backward_preprocess_kernel<Dtype, 8>>(ctx, kOp, blocks, kThreads, 0, call, delta, work,
                                                 row_tiles);
  else if (a.e <= 128)
    launch<backward_preprocess_kernel<Dtype, 16>>(ctx, kOp, blocks, kThreads, 0, call, delta, work,
                                                  row_tiles);
  else
    launch<backward_preprocess_kernel<Dtype, 32>>(ctx, kOp, blocks, kThreads, 0, call, delta, work,
                                                  row_tiles);
}

template <int Dtype>
void enqueue(Context& ctx, const BackwardInstance90& instance, const BackwardSimt& simt,
             const AttendBackward& cut, const BackwardMaps& maps, const BackwardWork& work,
             const BackwardGrid90& grid) {
  const AttendBackward& call = simt.call;
  const Attend& a = call.forward;
  const int64_t row_tiles = ceil_div(a.sequences.query_max, instance.rows);
  backward_clear(ctx, simt);
  launch_preprocess<Dtype>(ctx, call, call.dsink_logit ? simt.delta : nullptr, work, row_tiles);
  instance.launch(ctx, cut, maps, work, grid);
  if (work.dk) sum_key_terms(ctx, kOp, cut.forward, call.dk, work.dk, a.g, a.d);
  if (work.dv) sum_key_terms(ctx, kOp, cut.forward, call.dv, work.dv, a.g, a.e);
  backward_postprocess(ctx, simt);
}

Text offer(const Context& ctx, const AttendBackward& call, Plan& plan) {
  if (Text why = refuses(ctx, call); !why.empty()) return why;
  const Attend& a = call.forward;
  const BackwardInstance90* found = find(a);
  if (!found) return no_instance(a.dtype, "d", a.d, "e", a.e);
  const BackwardInstance90& instance = *found;
  const Sequences& q = a.sequences;
  const int64_t row_tiles = ceil_div(q.query_start ? a.s : q.query_max, instance.rows);
  if (q.count * std::max(a.h * ceil_div(q.key_max, instance.keys), a.h * (row_tiles + 1)) >
      kIndexMax)
    return "more than 2^30 blocks of work";
  const Operands of(call, instance);
  BackwardMaps maps;
  if (Text why = map_each({{"q", of.q, maps.q},
                           {"k", of.k, maps.k},
                           {"v", of.v, maps.v},
                           {"dout", of.dout, maps.dout}});
      !why.empty())
    return why;
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(instance.d);
  const BackwardSlots slots(plan.workspace, call);
  const RowTiles tiles(a, instance.rows, instance.panels);
  const int64_t all = a.h * tiles.total;
  const auto row_stats = plan.workspace.add<float>(all * AttentionDscores::stats * instance.rows);
  const bool sums = call.dq && instance.sums == Sums90::fused;
  const auto dq = plan.workspace.add<float>(sums ? all * tiles.floats() : 0);
  const auto dq_order = plan.workspace.add<DqOrder>(sums ? all : 0);
  // The call as the kernels see it: a key head for each share.
  AttendBackward cut = call;
  const int64_t shares =
      key_shares(a, instance.rows, instance.keys, instance.sums == Sums90::fused, device_info(ctx));
  cut.forward.g *= shares;
  const int64_t terms = shares > 1 ? q.caches * a.t * cut.forward.g : 0;
  const auto dk = plan.workspace.add<float>(call.dk ? terms * a.d : 0),
             dv = plan.workspace.add<float>(call.dv ? terms * a.e : 0);
  const BackwardGrid90 grid(cut.forward, instance.rows, instance.keys, instance.panels, sums,
                            device_info(ctx), kInterleaved);
  plan.launch = [=](Context& ctx, void* base) {
    const BackwardSimt simt = slots.at(base, call);
    const BackwardWork work{.tiles = tiles,
                            .stats = AttentionDscores::stats,
                            .row_stats = row_stats.at(base),
                            .dq = dq.at(base),
                            .dq_order = dq_order.at(base),
                            .ordered = sums && !call.nondeterministic,
                            .dk = dk.at(base),
                            .dv = dv.at(base),
                            .shares = static_cast<int32_t>(shares)};
    if (call.forward.dtype == FOVEA_BF16)
      enqueue<FOVEA_BF16>(ctx, instance, simt, cut, maps, work, grid);
    else
      enqueue<FOVEA_F16>(ctx, instance, simt, cut, maps, work, grid);
  };
  return "";
}

}  // namespace

extern const Kernel<AttendBackward> attention_backward_sm90 = {"sm90", offer};

}  // namespace fovea
