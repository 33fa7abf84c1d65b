// SPDX-License-Identifier: Apache-2.0
// What adds up the terms of a recurrence's gradients, core/recur_gradients.h.  A thread owns an
// element of an output; where strides of 0 sum, blocks own parts of an element's terms, which are
// added in order.
#include "cuda/loop/recur.cuh"

#include "core/dtype.h"
#include "core/fields.h"
#include "core/locate.h"
#include "cuda/launch.h"
#include "cuda/loop/recur.h"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;         // of the kernels that add up
constexpr int64_t kPartTerms = 4096;  // of one element, for a block

// dden = -<dout, y> / den for each row of an output.
__global__ void __launch_bounds__(kThreads)
    recur_dden_kernel(const __grid_constant__ Recur a, const float* y, float* dden, int64_t work) {
  const int lane = threadIdx.x % 32;
  for (int64_t w = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32; w < work;
       w += gridDim.x * int64_t{kThreads / 32}) {
    const int64_t output = w % a.heads_out, row = quotient(w, a.heads_out);
    const int64_t batch = quotient(row, a.s), at = row - batch * a.s;
    if (!a.in_use(batch, at)) continue;
    const RunTokens q = a.run[a.sequence_of(batch, at)];
    if (at - q.begin < q.from) continue;
    float sum = 0;
    for (int64_t c = lane; c < a.e; c += 32)
      sum = fmaf(a.o(batch, at, output, c), y[w * a.e + c], sum);
    sum = lanes_sum<32>(sum);
    if (lane == 0) dden[w] = -sum / *a.den.at(batch, at, output);
  }
}

__global__ void __launch_bounds__(kThreads)
    recur_norm_kernel(const __grid_constant__ RecurBackward b, bool of_q, int64_t work) {
  const Recur& a = b.forward;
  const int64_t heads = of_q ? a.h : a.g;
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kThreads}) {
    const int64_t row = quotient(w, heads), batch = quotient(row, a.s);
    b.find_norm(of_q, batch, row - batch * a.s, w - row * heads);
  }
}

// An output's elements, and the terms that strides of 0 sum into each.
struct Elements {
  RecurGradient what;
  int64_t own[4], sums[4];
  int64_t count, terms, parts;

  Elements(const RecurBackward& b, RecurGradient what) : what(what), count(1), terms(1) {
    const RecurBackward::Extents n = b.extents(what);
    for (int i = 0; i < 4; ++i) {
      const bool summed = b.output(what).view.stride[i] == 0;
      own[i] = summed ? 1 : n.n[i], sums[i] = summed && !b.idle() ? n.n[i] : 1;
      count = far_product(count, own[i]), terms = far_product(terms, sums[i]);
    }
    parts = clamp_i64(terms / kPartTerms, 1, 256);
  }
  // Index i of an axis-wise product.
  static __device__ __forceinline__ void split(const int64_t (&n)[4], int64_t i, int64_t (&to)[4]) {
#pragma unroll
    for (int axis = 3; axis > 0; --axis) {
      const int64_t rest = quotient(i, n[axis]);
      to[axis] = i - rest * n[axis], i = rest;
    }
    to[0] = i;
  }
  __device__ __forceinline__ float term(const RecurBackward& b, int64_t element, int64_t i) const {
    int64_t at[4], more[4];
    split(own, element, at), split(sums, i, more);
    return b.term(what, at[0] + more[0], at[1] + more[1], at[2] + more[2], at[3] + more[3]);
  }
  __device__ __forceinline__ void store(const RecurBackward& b, int64_t element, float x) const {
    int64_t at[4];
    split(own, element, at);
    b.output(what).store(x, at[0], at[1], at[2], at[3]);
  }
};

__global__ void __launch_bounds__(kThreads)
    recur_each_kernel(const __grid_constant__ RecurBackward b, const __grid_constant__ Elements of,
                      int64_t work) {
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kThreads})
    of.store(b, w, of.term(b, w, 0));
}

__global__ void __launch_bounds__(kThreads)
    recur_parts_kernel(const __grid_constant__ RecurBackward b, const __grid_constant__ Elements of,
                       double* sums, int64_t work) {
  __shared__ double s_sum[kThreads / 32];
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t part = w % of.parts, element = w / of.parts;
    const int64_t each = (of.terms + of.parts - 1) / of.parts;
    double sum = 0;
    for (int64_t i = part * each + threadIdx.x; i < min(of.terms, (part + 1) * each); i += kThreads)
      sum += static_cast<double>(of.term(b, element, i));
    sum = block_sum<kThreads>(sum, s_sum);
    if (threadIdx.x == 0) sums[w] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    recur_sums_kernel(const __grid_constant__ RecurBackward b, const __grid_constant__ Elements of,
                      const double* sums, int64_t work) {
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kThreads}) {
    double sum = 0;
    for (int64_t part = 0; part < of.parts; ++part) sum += sums[w * of.parts + part];
    of.store(b, w, static_cast<float>(sum));
  }
}

struct BackwardPlan {
  RecurBackward b;
  RecurKernels kernels;
  int64_t step, pieces, blocks;
  Slot<float> dq, dk, dg, dp, db, dbeta, de, dv, dgv, q_norm, k_norm, den, dden, y, states;
  Slot<double> sums;

  void place(RecurTerms& t, void* base) const {
    t.dq = dq.at(base), t.dk = dk.at(base), t.dg = dg.at(base), t.dp = dp.at(base);
    t.db = db.at(base), t.dbeta = dbeta.at(base), t.de = de.at(base);
    t.dv = dv.at(base), t.dgv = dgv.at(base);
    t.q_norm = q_norm.at(base), t.k_norm = k_norm.at(base);
  }
};

void walk(Context& ctx, const char* op, const BackwardPlan& plan, const RecurBackward& b,
          int64_t plane, void* base) {
  const RecurBackwardCall call{recur_call(b.forward), b, plane, plan.step, plan.pieces,
                               plan.states.at(base)};
  const int64_t work =
      b.forward.run.count * b.forward.heads * ceil_div(b.forward.e, columns_of(call.call));
  if (work > 0) plan.kernels.backward(ctx, op, call, work < plan.blocks ? work : plan.blocks, work);
}

void find_dden(Context& ctx, const char* op, const BackwardPlan& plan, const Recur& a, void* base) {
  Recur y = a;
  y.skip = {}, y.state_out = {}, y.snapshot = {};
  y.o = {{plan.y.at(base), {a.s * a.heads_out * a.e, a.heads_out * a.e, a.e, 1}}, FOVEA_F32};
  run_recur(ctx, op, y, plan.kernels.forward);
  const int64_t rows = a.b * a.s * a.heads_out;
  launch<recur_dden_kernel>(ctx, op, ceil_div(rows, kThreads / 32), kThreads, 0, a,
                            static_cast<const float*>(plan.y.at(base)), plan.dden.at(base), rows);
}

void enqueue(Context& ctx, const char* op, const BackwardPlan& plan, void* base) {
  RecurBackward b = plan.b;
  Recur& a = b.forward;
  plan.place(b.terms, base);
  if (b.idle()) return add_recur_terms(ctx, op, b, plan.sums.at(base));
  RecurBackward z = b;
  if (a.normalise) {
    a.den = {plan.den.at(base), {a.s * a.heads_out, a.heads_out, 1}};
    z.forward = a.normaliser(plan.den.at(base));
    run_recur(ctx, op, z.forward, plan.kernels.forward);
    find_dden(ctx, op, plan, a, base);
    z.forward.o.view.data = plan.dden.at(base);
    const auto column = [](const View<3>& x) {
      return View<4>{x.data, {x.stride[0], x.stride[1], x.stride[2], 0}};
    };
    z.dstate_out = column(b.dz_out), z.dstate_in = column(b.dz_in);
  }
  walk(ctx, op, plan, b, 0, base);
  if (a.normalise) walk(ctx, op, plan, z, b.terms.slices - 1, base);
  add_recur_terms(ctx, op, b, plan.sums.at(base));
}

}  // namespace

int64_t recur_sums(const RecurBackward& b) {
  int64_t sums = 0;
  each_gradient(b, [&](RecurGradient what) {
    const Elements of(b, what);
    if (of.terms != 1) sums = std::max(sums, of.count * of.parts);
  });
  return sums;
}

void add_recur_terms(Context& ctx, const char* op, const RecurBackward& b, double* sums) {
  const Recur& a = b.forward;
  for (const bool of_q : {true, false}) {
    if (!a.l2_norm || b.idle() || !b.reads_norm(of_q)) continue;
    const int64_t rows = a.b * a.s * (of_q ? a.h : a.g);
    launch<recur_norm_kernel>(ctx, op, ceil_div(rows, kThreads), kThreads, 0, b, of_q, rows);
  }
  each_gradient(b, [&](RecurGradient what) {
    const Elements of(b, what);
    if (of.terms == 1) {
      launch<recur_each_kernel>(ctx, op, ceil_div(of.count, kThreads), kThreads, 0, b, of,
                                of.count);
      return;
    }
    const int64_t work = of.count * of.parts;
    launch<recur_parts_kernel>(ctx, op, work, kThreads, 0, b, of, sums, work);
    launch<recur_sums_kernel>(ctx, op, ceil_div(of.count, kThreads), kThreads, 0, b, of,
                              static_cast<const double*>(sums), of.count);
  });
}

void plan_recur_backward(const Context& ctx, const char* op, const RecurBackward& b,
                         const RecurKernels& kernels, Plan& plan) {
  BackwardPlan p{};
  p.b = b, p.kernels = kernels;
  const Recur& a = b.forward;
  RecurTerms& t = p.b.terms;
  const RecurCall call = recur_call(a);
  const int64_t columns = columns_of(call), state = int64_t{R} * CW * 32 * call.warps;
  t.slices = ceil_div(a.e, columns) + (a.normalise ? 1 : 0);
  const int64_t tokens = a.full ? 0 : a.run.token_max;
  for (p.step = 8; p.step * p.step < tokens;) p.step *= 2;
  p.pieces = ceil_div(tokens, p.step);
  const int64_t items = far_product(far_product(a.run.count, a.heads), ceil_div(a.e, columns));
  p.blocks = clamp_i64(items, a.normalise && a.run.count && a.heads ? 1 : 0,
                       2 * device_info(ctx).multiprocessors);
  if (a.normalise)
    p.blocks = clamp_i64(far_product(a.run.count, a.heads), p.blocks,
                         2 * device_info(ctx).multiprocessors);
  Layout& to = plan.workspace;
  const bool corrected = a.form == Recurrence::corrected, low = a.form == Recurrence::low_rank;
  const int64_t batches = a.run.count ? a.b : 0;  // without sequences no term is read
  p.dq = to.add<float>(t.slices, batches, a.s, a.heads_out, a.d);
  p.dk = to.add<float>(t.slices, batches, a.t, a.heads, a.d);
  p.dv = to.add<float>(batches, a.t, a.heads, a.e);
  if (a.row_gates()) p.dg = to.add<float>(t.slices, batches, a.s, a.heads, a.d);
  if (a.gate_value) p.dgv = to.add<float>(batches, a.s, a.heads, a.e);
  if (corrected || low) p.dp = to.add<float>(t.slices, batches, a.s, a.heads, a.d);
  if (low) p.db = to.add<float>(t.slices, batches, a.s, a.heads, a.d);
  if (corrected) p.dbeta = to.add<float>(t.slices, batches, a.s, a.heads);
  if (a.bonus) p.de = to.add<float>(t.slices, batches, a.s, a.heads_out);
  if (a.l2_norm) {
    p.q_norm = to.add<float>(batches, a.s, a.h, 2);
    p.k_norm = to.add<float>(batches, a.s, a.g, 2);
  }
  if (a.normalise) {
    p.den = to.add<float>(batches, a.s, a.heads_out),
    p.dden = to.add<float>(batches, a.s, a.heads_out);
    p.y = to.add<float>(batches, a.s, a.heads_out, a.e);
  }
  p.states = to.add<float>(p.blocks, p.pieces + p.step, state);
  p.sums = to.add<double>(recur_sums(b));
  plan.kernel += Text(".") + dtype_name(a.q.dtype) + ".d" + Text::number(a.d);
  plan.launch = [p, op](Context& ctx, void* base) { enqueue(ctx, op, p, base); };
}

}  // namespace fovea::cuda
