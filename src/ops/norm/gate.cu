// SPDX-License-Identifier: Apache-2.0
// x_norm_gate_forward and _backward: every dtype, width and stride; the formulas are in
// experimental/norm.h.
// A warp owns a group of columns of a row and head.  It reads the group once where a lane holds at
// most kHeld of its columns.  dweight and dbias have two passes.  A block owns 32 columns of a head
// and a part of all batches' rows, whose norms it reads.  Then a thread owns an element and adds
// the parts in order.
#include "core/dtype.h"
#include "core/locate.h"
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "ops/norm/gate_wide.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kHeld = 8;

struct NormCall {
  NormGateBackward b;
  NormScale* scale;         // (b, s, h, groups), of the backward with sums
  double *dweight, *dbias;  // (parts, h, e)
};

__device__ __forceinline__ float load(const NormRows& x, int64_t at, int64_t c) {
  return load_float(x.view.data, x.dtype, at + c * x.view.stride[3]);
}
__device__ __forceinline__ void store(const NormRows& x, int64_t at, int64_t c, float value) {
  store_float(x.view.data, x.dtype, at + c * x.view.stride[3], value);
}
__device__ __forceinline__ float load(const NormColumns& x, int64_t head, int64_t c, float absent) {
  return x ? load_float(x.view.data, x.dtype, head * x.view.stride[0] + c * x.view.stride[1])
           : absent;
}

// One row of a head.
struct NormRow {
  const NormGate& n;
  int64_t x, gate, before, after, y, head;

  __device__ NormRow(const NormGate& n, int64_t batch, int64_t i, int64_t head)
      : n(n),
        x(n.x.at(batch, i, head)),
        gate(n.gate.at(batch, i, head)),
        before(n.before.at(batch, i, head)),
        after(n.after.at(batch, i, head)),
        y(n.y.at(batch, i, head)),
        head(head) {}

  __device__ __forceinline__ GateValue act(int64_t c) const {
    return n.gate ? gate_value(n.act, load(n.gate, gate, c)) : GateValue{1.f, 0.f};
  }
  __device__ __forceinline__ float u(int64_t c) const {
    return load(n.x, x, c) + (n.before ? load(n.before, before, c) : 0.f);
  }
  __device__ __forceinline__ float v(int64_t c) const {
    return n.gate && n.gate_first ? u(c) * act(c).value : u(c);
  }
  __device__ __forceinline__ float weight(int64_t c) const { return load(n.weight, head, c, 1.f); }
  __device__ __forceinline__ float w(int64_t c, float normed) const {
    return n.factor * (weight(c) * normed) + load(n.bias, head, c, 0.f);
  }
  // dy, times the gate behind the norm.
  __device__ __forceinline__ float t(int64_t c) const {
    const float dy = load(n.y, y, c);
    return n.gate && !n.gate_first ? dy * act(c).value : dy;
  }
};

// v of a warp's group, held or read again.
template <bool Held>
class NormGroup {
 public:
  __device__ __forceinline__ NormGroup(const NormRow& row, int64_t first)
      : row_(row), first_(first), lane_(threadIdx.x % 32) {
    if constexpr (Held) {
#pragma unroll
      for (int j = 0; j < kHeld; ++j)
        v_[j] = lane_ + 32 * j < row.n.group ? row.v(first + lane_ + 32 * j) : 0.f;
    }
  }
  // f(column, v) for the lane's columns.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
    if constexpr (Held) {
#pragma unroll
      for (int j = 0; j < kHeld; ++j)
        if (lane_ + 32 * j < row_.n.group) f(first_ + lane_ + 32 * j, v_[j]);
    } else {
      for (int64_t c = lane_; c < row_.n.group; c += 32) f(first_ + c, row_.v(first_ + c));
    }
  }
  template <class F>
  __device__ __forceinline__ float sum(F f) const {
    float all = 0.f;
    each([&](int64_t c, float v) { all += f(c, v); });
    return lanes_sum<32>(all);
  }
  __device__ __forceinline__ NormScale scale() const {
    const NormGate& n = row_.n;
    if (n.plain()) return {0.f, 1.f};
    float mean = 0.f;
    if (n.centred()) mean = sum([](int64_t, float v) { return v; }) / static_cast<float>(n.group);
    const float squares = sum([&](int64_t, float v) { return (v - mean) * (v - mean); });
    return {mean, 1.f / sqrtf(squares / n.divisor() + n.eps)};
  }

 private:
  const NormRow& row_;
  const int64_t first_;
  const int lane_;
  float v_[Held ? kHeld : 1];
};

template <bool Held>
__device__ __forceinline__ void forward(const NormRow& row, const NormGroup<Held>& group) {
  const NormGate& n = row.n;
  const NormScale at = group.scale();
  group.each([&](int64_t c, float v) {
    float y = row.w(c, (v - at.mean) * at.size);
    if (n.gate && !n.gate_first) y *= row.act(c).value;
    if (n.after) y += load(n.after, row.after, c);
    store(n.y, row.y, c, y);
  });
}

// A group of NormGateBackward::dx and dgate.
template <bool Held>
__device__ __forceinline__ void backward(const NormCall& call, const NormRow& row,
                                         const NormGroup<Held>& group, const NormScale& at,
                                         int64_t dx, int64_t dgate) {
  const NormGate& n = row.n;
  const NormGateBackward& b = call.b;
  const bool behind = n.gate && !n.gate_first;
  const auto normed = [&](float v) { return (v - at.mean) * at.size; };
  if (b.dgate && behind)
    group.each([&](int64_t c, float v) {
      store(b.dgate, dgate, c, load(n.y, row.y, c) * row.w(c, normed(v)) * row.act(c).slope);
    });
  if (!b.dx && (behind || !b.dgate)) return;
  const auto dn = [&](int64_t c) { return n.factor * row.weight(c) * row.t(c); };
  float along = 0.f, middle = 0.f;
  if (!n.plain()) along = group.sum([&](int64_t c, float v) { return dn(c) * normed(v); });
  if (n.centred()) middle = group.sum([&](int64_t c, float) { return dn(c); });
  along /= n.divisor(), middle /= static_cast<float>(n.group);
  group.each([&](int64_t c, float v) {
    const float dv = n.plain() ? dn(c) : at.size * (dn(c) - middle - normed(v) * along);
    if (behind || !n.gate) return store(b.dx, dx, c, dv);
    const GateValue a = row.act(c);
    if (b.dx) store(b.dx, dx, c, dv * a.value);
    if (b.dgate) store(b.dgate, dgate, c, dv * row.u(c) * a.slope);
  });
}

template <bool Backward, bool Held>
__global__ void __launch_bounds__(kThreads)
    norm_gate_kernel(const __grid_constant__ NormCall call, int64_t work) {
  const NormGate& n = call.b.forward;
  const NormGateBackward& b = call.b;
  const int64_t groups = n.e / n.group;
  for (int64_t w = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; w < work;
       w += gridDim.x * int64_t{kWarps}) {
    const int64_t above = quotient(w, groups), first = (w - above * groups) * n.group;
    const int64_t row_at = quotient(above, n.h), head = above - row_at * n.h;
    const int64_t batch = quotient(row_at, n.s), i = row_at - batch * n.s;
    const bool there = i < n.rows(batch);
    if constexpr (!Backward) {
      if (!there) continue;
      const NormRow row(n, batch, i, head);
      forward(row, NormGroup<Held>(row, first));
    } else {
      const int64_t dx = b.dx.at(batch, i, head), dgate = b.dgate.at(batch, i, head);
      if (!there) {
        for (int64_t c = first + threadIdx.x % 32; c < first + n.group; c += 32) {
          if (b.dx) store(b.dx, dx, c, 0.f);
          if (b.dgate) store(b.dgate, dgate, c, 0.f);
        }
        continue;
      }
      const NormRow row(n, batch, i, head);
      const NormGroup<Held> group(row, first);
      const NormScale at = group.scale();
      if (call.scale && threadIdx.x % 32 == 0) call.scale[w] = at;
      backward(call, row, group, at, dx, dgate);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    norm_sums_kernel(const __grid_constant__ NormCall call, int64_t work) {
  __shared__ double s_sum[2][kWarps][32];
  const NormGate& n = call.b.forward;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t chunks = (n.e + 31) / 32, parts = call.b.parts(), rows = n.b * n.s;
  const int64_t each = (rows + parts - 1) / parts, groups = n.e / n.group;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t c = w % chunks * 32 + lane, head = w / chunks % n.h, part = w / chunks / n.h;
    double dweight = 0, dbias = 0;
    if (c < n.e)
      for (int64_t at = part * each + warp; at < min(rows, (part + 1) * each); at += kWarps) {
        const int64_t batch = quotient(at, n.s), i = at - batch * n.s;
        if (i >= n.rows(batch)) continue;
        const NormRow row(n, batch, i, head);
        const NormScale scale = call.scale[(at * n.h + head) * groups + c / n.group];
        const float t = row.t(c);
        dbias += static_cast<double>(t);
        dweight += static_cast<double>(n.factor * t) * ((row.v(c) - scale.mean) * scale.size);
      }
    __syncthreads();
    s_sum[0][warp][lane] = dweight, s_sum[1][warp][lane] = dbias;
    __syncthreads();
    double* const to = warp == 0 ? call.dweight : warp == 1 ? call.dbias : nullptr;
    if (!to || c >= n.e) continue;
    double sum = 0;
    for (int k = 0; k < kWarps; ++k) sum += s_sum[warp][k][lane];
    to[(part * n.h + head) * n.e + c] = sum;
  }
}

// A stride of 0 makes one element of its dimension.
__global__ void __launch_bounds__(kThreads)
    norm_add_kernel(const __grid_constant__ NormCall call, View<2> to, const double* sums,
                    int64_t work) {
  const NormGate& n = call.b.forward;
  const int64_t columns = to.stride[1] ? n.e : 1, parts = call.b.parts();
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kThreads}) {
    const int64_t c = w % columns, head = w / columns;
    float all = 0.f;
    for (int64_t h = head; h < (to.stride[0] ? head + 1 : n.h); ++h)
      for (int64_t k = c; k < (to.stride[1] ? c + 1 : n.e); ++k) {
        double sum = 0;
        for (int64_t part = 0; part < parts; ++part) sum += sums[(part * n.h + h) * n.e + k];
        all += static_cast<float>(sum);
      }
    to.as()[head * to.stride[0] + c * to.stride[1]] = all;
  }
}

template <bool Backward>
void enqueue_rows(Context& ctx, const char* op, const NormCall& call) {
  const NormGate& n = call.b.forward;
  const int64_t work = n.b * n.s * n.h * (n.e / n.group), blocks = ceil_div(work, kWarps);
  n.group <= 32 * kHeld
      ? launch<norm_gate_kernel<Backward, true>>(ctx, op, blocks, kThreads, 0, call, work)
      : launch<norm_gate_kernel<Backward, false>>(ctx, op, blocks, kThreads, 0, call, work);
}

void enqueue_backward(Context& ctx, const NormCall& call) {
  constexpr char op[] = "x_norm_gate_backward";
  const NormGate& n = call.b.forward;
  if (const int lanes = wide_lanes(call.b, true))
    enqueue_wide<true>(ctx, op, {call.b, call.scale, lanes});
  else
    enqueue_rows<true>(ctx, op, call);
  if (!call.b.sums()) return;
  const int64_t work = ceil_div(n.e, 32) * n.h * call.b.parts();
  launch<norm_sums_kernel>(ctx, op, work, kThreads, 0, call, work);
  const auto add = [&](const View<2>& to, const double* sums) {
    if (!to) return;
    const int64_t elements = n.h ? (to.stride[0] ? n.h : 1) * (to.stride[1] ? n.e : 1) : 0;
    launch<norm_add_kernel>(ctx, op, ceil_div(elements, kThreads), kThreads, 0, call, to, sums,
                            elements);
  };
  add(call.b.dweight, call.dweight), add(call.b.dbias, call.dbias);
}

}  // namespace
}  // namespace cuda

extern const Kernel<NormGate> norm_gate_forward_simt = {
    "simt", [](const Context&, const NormGate& n, Plan& plan) {
      plan.kernel += Text(".") + dtype_name(n.x.dtype);
      plan.launch = [n](Context& ctx, void*) {
        cuda::NormCall call{};
        call.b.forward = n;
        if (const int lanes = cuda::wide_lanes(call.b, false))
          return cuda::enqueue_wide<false>(ctx, "x_norm_gate_forward", {call.b, nullptr, lanes});
        cuda::enqueue_rows<false>(ctx, "x_norm_gate_forward", call);
      };
      return Text();
    }};

extern const Kernel<NormGateBackward> norm_gate_backward_simt = {
    "simt", [](const Context&, const NormGateBackward& b, Plan& plan) {
      const NormGate& n = b.forward;
      plan.kernel += Text(".") + dtype_name(n.x.dtype);
      const auto scale =
          plan.workspace.add<NormScale>(b.sums() ? n.b * n.s : 0, n.h, n.e / n.group);
      const auto dweight = plan.workspace.add<double>(b.dweight ? b.parts() : 0, n.h, n.e);
      const auto dbias = plan.workspace.add<double>(b.dbias ? b.parts() : 0, n.h, n.e);
      plan.launch = [=](Context& ctx, void* base) {
        cuda::enqueue_backward(ctx, {b, scale.at(base), dweight.at(base), dbias.at(base)});
      };
      return Text();
    }};

}  // namespace fovea
