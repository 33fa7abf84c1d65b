// SPDX-License-Identifier: Apache-2.0
// x_multi_token_backward in f32 FMA, panel by panel (mixed_panel.cuh), rows below a panel's own
// among them, whose dA the convolution of dS reads; no atomics:
//   dR = dout v' (64 x 64 tiles);  X, delta, R, dB, dA (a block owns a row of a group)
//   dweight (a block owns a tap of a head), dS = dA convolved, taps turned (a thread owns a pair)
//   dq, dk, dv
// Sums over rows stay in the workspace from panel to panel, each with one owner, rows ascending.
// Multi-Token Attention (2504.00927).
#include "core/dtype.h"
#include "ops/conv_attention/backward.cuh"
#include "ops/conv_attention/mixed_panel.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_multi_token_backward";
constexpr int kWarps = kStageThreads / 32;

struct PanelGradients {
  Panel panel;
  float* dr;                 // dR, then dA
  float *x, *y;              // of own rows: X and its like for dmix_before, (r, h, own, group)
  float *dk, *dv;            // (r, g, pitch, width)
  double* dweight;           // (r, h, taps)
  double *dbefore, *dafter;  // (r, h, group)

  // Laid out twice: at plan time to count bytes, at run time, from `base`, to get pointers.
  PanelGradients(const Panel& call, Layout& layout, void* base) : panel(call) {
    const auto place = [&]<class T>(T*& to, int64_t count) {
      const Slot<T> slot = layout.add<T>(count);
      to = base ? slot.at(base) : nullptr;
    };
    const Attend& a = call.attend();
    const MixedAttendBackward& m = call.m;
    const int64_t lines = call.heads() * call.rows() * call.pitch;
    const int64_t keys = a.sequences.count * a.g * call.pitch, pairs = call.heads() * m.group;
    place(panel.s, call.heads() * call.score_rows() * call.pitch);
    place(panel.a, lines), place(panel.p, lines), place(dr, lines);
    place(x, m.dafter ? pairs * call.own : 0), place(y, m.dbefore ? pairs * call.own : 0);
    place(dk, m.conv.dk ? keys * a.d : 0), place(dv, m.conv.dv ? keys * a.e : 0);
    place(dweight, m.conv.dweight ? call.heads() * call.conv().taps() : 0);
    place(dbefore, m.dbefore ? pairs : 0), place(dafter, m.dafter ? pairs : 0);
  }
};

// pair[a * group + n] = sum_j x_a[j] y_n[j] for the lines of a group; a warp owns a pair.
__device__ __forceinline__ void line_products(const Panel& call, const float* x, const float* y,
                                              int group, float* pair) {
  const int64_t apart = call.rows() * call.pitch;
  for (int n = threadIdx.x / 32; n < group * group; n += kWarps) {
    const float *left = x + n / group * apart, *right = y + n % group * apart;
    float sum = 0.f;
    for (int64_t j = threadIdx.x % 32; j < call.pitch; j += 32) sum = fmaf(left[j], right[j], sum);
    sum = lanes_sum<32>(sum);
    if (threadIdx.x % 32 == 0) pair[n] = sum;
  }
  __syncthreads();
}

template <int G>
__global__ void __launch_bounds__(kStageThreads)
    panel_da_kernel(const __grid_constant__ PanelGradients call, int64_t work) {
  __shared__ float s_pair[G * G], s_delta[G];
  const Panel& panel = call.panel;
  const MixedAttendBackward& m = panel.m;
  const int group = static_cast<int>(m.group);
  const int64_t groups = panel.attend().h / group, apart = panel.rows() * panel.pitch;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t row = w % panel.rows(), all = w / panel.rows() * group;
    const int64_t base = all / group % groups * group;
    float *p = panel.line(panel.p, all, row), *dr = panel.line(call.dr, all, row);
    const float* a = panel.line(panel.a, all, row);
    const auto keep = [&](float* to) {
      if (!to || row >= panel.own) return;
      for (int n = threadIdx.x; n < group * group; n += kStageThreads)
        to[((all + n / group) * panel.own + row) * group + n % group] = s_pair[n];
    };
    __syncthreads();
    line_products(panel, dr, p, group, s_pair);
    keep(call.x);
    if (static_cast<int>(threadIdx.x) < group) {
      const int n = threadIdx.x;
      float delta = m.after ? 0.f : s_pair[n * group + n];
      if (m.after)
        for (int k = 0; k < group; ++k)
          delta = fmaf(mix_of(m.after, base + k, n), s_pair[k * group + n], delta);
      s_delta[n] = delta;
    }
    __syncthreads();
    for (int64_t j = threadIdx.x; j < panel.pitch; j += kStageThreads) {
      float weight[G], dlogit[G];
      read_group(weight, p + j, apart, group), read_group(dlogit, dr + j, apart, group);
      mix(m.after, true, base, group, dlogit);
#pragma unroll
      for (int n = 0; n < G; ++n)
        if (n < group) dlogit[n] = weight[n] == 0.f ? 0.f : weight[n] * (dlogit[n] - s_delta[n]);
      write_group(dr + j, dlogit, apart, group);
      mix(m.after, false, base, group, weight);
      write_group(p + j, weight, apart, group);
    }
    __syncthreads();
    if (call.y) {
      line_products(panel, dr, a, group, s_pair);
      keep(call.y);
    }
    if (!m.before) continue;
    for (int64_t j = threadIdx.x; j < panel.pitch; j += kStageThreads) {
      float dlogit[G];
      read_group(dlogit, dr + j, apart, group);
      mix(m.before, true, base, group, dlogit);
      write_group(dr + j, dlogit, apart, group);
    }
  }
}

// sums += the own rows of x.
__global__ void __launch_bounds__(kStageThreads)
    panel_mixing_kernel(const __grid_constant__ Panel call, const float* x, double* sums,
                        int64_t work) {
  const int64_t group = call.m.group;
  for (int64_t w = blockIdx.x * int64_t{kStageThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kStageThreads}) {
    double sum = call.first == 0 ? 0 : sums[w];
    for (int row = 0; row < call.own; ++row)
      sum += x[(w / group * call.own + row) * group + w % group];
    sums[w] = sum;
  }
}

__global__ void __launch_bounds__(kStageThreads)
    panel_taps_kernel(const __grid_constant__ PanelGradients call, int64_t work) {
  __shared__ double s_sum[kWarps];
  const Panel& panel = call.panel;
  const ConvAttend& c = panel.conv();
  const int taps = static_cast<int>(c.taps());
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t all = w / taps, u = w % taps / c.kernel_columns, v = w % c.kernel_columns;
    const int64_t shift = v - c.left();
    double sum = 0;
    for (int row = 0; row < panel.own; ++row) {
      const float* da = panel.line(call.dr, all, row);
      const float* s = panel.score_line(all, row + u);
      float line = 0.f;
      for (int64_t j = threadIdx.x; j < panel.pitch; j += kStageThreads) {
        const bool inside = j + shift >= 0 && j + shift < panel.pitch;
        if (inside && da[j] != 0.f) line = fmaf(da[j], s[j + shift], line);
      }
      sum += line;
    }
    sum = block_sum<kStageThreads>(sum, s_sum);
    const int64_t to = all * taps + u * c.kernel_columns + v;
    if (threadIdx.x == 0) call.dweight[to] = panel.first == 0 ? sum : call.dweight[to] + sum;
  }
}

// dS of the own rows, in the place of their S.
__global__ void __launch_bounds__(kStageThreads)
    panel_ds_kernel(const __grid_constant__ PanelGradients call, int64_t work) {
  __shared__ PanelPlaces s;
  __shared__ float s_taps[kKernelRowsMost * kKernelColumnsMost];
  const Panel& panel = call.panel;
  const ConvAttend& c = panel.conv();
  const Attend& a = c.attend;
  const int columns = static_cast<int>(c.kernel_columns), left = static_cast<int>(c.left());
  const int rows = static_cast<int>(c.kernel_rows);
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t row = w % panel.own, all = w / panel.own, head = all % a.h;
    open_sequence(panel.conv(), s, all / a.h);
    load_taps(c, head, 1, s_taps);
    __syncthreads();
    const int64_t end = c.seen(s.seq, panel.first + row);
    float* to = panel.score_line(all, row + panel.above);
    for (int64_t j = threadIdx.x; j < panel.pitch; j += kStageThreads) {
      float sum = 0.f;
      if (j < end)
        for (int u = 0; u < rows; ++u) {
          const float* da = panel.line(call.dr, all, row + rows - 1 - u);
          for (int v = 0; v < columns; ++v) {
            const int64_t at = j + left - v;
            if (at >= 0 && at < panel.pitch) sum = fmaf(s_taps[u * columns + v], da[at], sum);
          }
        }
      to[j] = sum;
    }
  }
}

// Over sequences, and over heads or a group's heads where the stride is 0.
__global__ void __launch_bounds__(kStageThreads)
    add_mixing_kernel(View<2> to, const double* sums, int64_t r, int64_t h, int64_t group,
                      int64_t work) {
  const int64_t columns = to.stride[1] ? group : 1;
  for (int64_t w = blockIdx.x * int64_t{kStageThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kStageThreads}) {
    const int64_t n = w % columns, head = w / columns;
    double sum = 0;
    for (int64_t a = head; a < (to.stride[0] ? head + 1 : h); ++a)
      for (int64_t k = n; k < (to.stride[1] ? n + 1 : group); ++k)
        for (int64_t i = 0; i < r; ++i) sum += sums[(i * h + a) * group + k];
    to.as()[head * to.stride[0] + n * to.stride[1]] = static_cast<float>(sum);
  }
}

void add_mixing(Context& ctx, const Panel& call, const View<2>& to, const double* sums) {
  if (!to) return;
  const Attend& a = call.attend();
  const int64_t work = a.h ? (to.stride[0] ? a.h : 1) * (to.stride[1] ? call.m.group : 1) : 0;
  launch<add_mixing_kernel>(ctx, kOp, ceil_div(work, kStageThreads), kStageThreads, 0, to, sums,
                            a.sequences.count, a.h, call.m.group, work);
}

void enqueue(Context& ctx, const PanelGradients& call, bool last) {
  const Panel& panel = call.panel;
  const ConvAttendBackward& b = panel.m.conv;
  const Attend& a = panel.attend();
  const Operand dout = operand_of(b.dout, a.o_dtype, a.e);
  const int64_t heads = panel.heads(), products = product_work(panel, panel.rows());
  panel_logits<true>(ctx, kOp, panel);
  launch<panel_product_kernel<false>>(ctx, kOp, products, kStageThreads, FmaTiles<4>::bytes(),
                                      panel, dout, operand_of(a.v, a.dtype, a.e), call.dr,
                                      products);
  const int64_t rows = heads / panel.m.group * panel.rows();
  with_group(panel.m.group, [&]<int G> {
    launch<panel_da_kernel<G>>(ctx, kOp, rows, kStageThreads, 0, call, rows);
  });
  const int64_t pairs = heads * panel.m.group, blocks = ceil_div(pairs, kStageThreads);
  const auto add = [&](const float* x, double* sums) {
    if (x) launch<panel_mixing_kernel>(ctx, kOp, blocks, kStageThreads, 0, panel, x, sums, pairs);
  };
  add(call.x, call.dafter), add(call.y, call.dbefore);
  if (b.dweight) {
    const int64_t taps = heads * panel.conv().taps();
    launch<panel_taps_kernel>(ctx, kOp, taps, kStageThreads, 0, call, taps);
  }
  if (b.dv) panel_sum<PanelSum::dv>(ctx, kOp, panel, dout, call.dv, last);
  if (!b.dq && !b.dk) return;
  const int64_t own = heads * panel.own;
  launch<panel_ds_kernel>(ctx, kOp, own, kStageThreads, 0, call, own);
  if (b.dq) panel_sum<PanelSum::dq>(ctx, kOp, panel, operand_of(a.k, a.dtype, a.d));
  if (b.dk) panel_sum<PanelSum::dk>(ctx, kOp, panel, operand_of(a.q, a.dtype, a.d), call.dk, last);
}

Text offer(const Context&, const MixedAttendBackward& m, Plan& plan) {
  const ConvAttend& c = m.conv.forward;
  const Attend& a = c.attend;
  plan.kernel += Text(".") + dtype_name(a.dtype);
  // One row and one key at least, so that every sum has a panel that begins it.
  const int64_t longest = a.sequences.query_max > 0 ? a.sequences.query_max : 1;
  const Panel call(m, longest, true);
  PanelGradients(call, plan.workspace, nullptr);
  plan.launch = [=](Context& ctx, void* base) {
    Layout layout;
    PanelGradients now(call, layout, base);
    conv_clear(ctx, m.conv);
    if (a.h && call.heads())
      for (int64_t row = 0; row < longest; row += call.own) {
        now.panel.first = row;
        enqueue(ctx, now, row + call.own >= longest);
      }
    conv_add_dweight(ctx, m.conv, {now.dweight, 1});
    add_mixing(ctx, call, m.dbefore, now.dbefore);
    add_mixing(ctx, call, m.dafter, now.dafter);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<MixedAttendBackward> multi_token_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
