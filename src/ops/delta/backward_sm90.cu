// SPDX-License-Identifier: Apache-2.0
// Which calls of x_delta_backward the Hopper kernels take, their workspace, and which outputs they
// write themselves.
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "cuda/loop/recur.h"
#include "ops/delta/backward.cuh"
#include "ops/delta/delta.h"

namespace fovea {
namespace {

using namespace cuda;

constexpr char kOp[] = "x_delta_backward";
constexpr int kThreads = 256;

// Every row of backward.inc in this build, narrow widths first.
const std::vector<DeltaBackwardInstance90>& instances() {
  static const std::vector<DeltaBackwardInstance90> rows = {
#define FOVEA_INSTANCE(...) delta_backward_sm90_instance<DeltaBackwardConfig90 __VA_ARGS__>(),
#include "instances/delta_backward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// The same of backward_keys.inc, under key gates.
const std::vector<DeltaBackwardInstance90>& key_instances() {
  static const std::vector<DeltaBackwardInstance90> rows = {
#define FOVEA_INSTANCE(...) delta_backward_keys_sm90_instance<DeltaBackwardConfig90 __VA_ARGS__>(),
#include "instances/delta_backward_keys_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// The same of backward_low.inc.
const std::vector<DeltaBackwardInstance90>& low_instances() {
  static const std::vector<DeltaBackwardInstance90> rows = {
#define FOVEA_INSTANCE(...) delta_backward_low_sm90_instance<DeltaBackwardConfig90 __VA_ARGS__>(),
#include "instances/delta_backward_low_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// A chunk costs as much for few tokens as for 64.
constexpr int64_t kLeastTokens = 64;
constexpr int64_t kTokensMost = int64_t{1} << 30;  // tiles have 32-bit rows

const char* given(const Recur& a) {
  if (a.erase) return "erase";
  if (a.low_a && !a.gate_key) return "low_a";  // without gate_key
  return nullptr;
}

// The kernels of key gates copy rows of q, k and gates themselves.
Text refuses_rows(const Recur& a) {
  if (a.outputs() != 1) return reason("heads of q for each state", a.outputs(), "1");
  const int64_t all[3] = {a.b, a.s, a.heads}, q[3] = {a.b, a.s, a.h}, k[3] = {a.b, a.t, a.g};
  if (!in_pieces(a.q.view, q, 4)) return reason_rows("q");
  if (!in_pieces(a.k.view, k, 4)) return reason_rows("k");
  if (!in_pieces(a.gate_key.view, all, 4)) return reason_rows("gate_key");
  return "";
}

Text refuses(const Context& ctx, const Recur& a) {
  if (const int arch = device_info(ctx).arch; arch != 90) return reason_capability(arch, "9.0");
  if (a.q.dtype != FOVEA_F16 && a.q.dtype != FOVEA_BF16) return reason_dtype(a.q.dtype);
  if (const char* field = given(a)) return reason_given(field);
  if (Text why = refuse_width("e", a.e, kChainColumns); !why.empty()) return why;
  if (a.run.token_max < kLeastTokens)
    return Text("sequences of at most ") + Text::number(a.run.token_max) + " tokens, wanted " +
           Text::number(kLeastTokens);
  if (a.run.token_max > kTokensMost || a.s > kTokensMost) return "more than 2^30 tokens";
  // TMA has no empty tensor: it would read one row.
  if (!a.b || !a.heads || !a.heads_out || !a.e || !a.run.count)
    return "there are no sequences, heads or columns";
  if (a.outputs() > INT_MAX) return "more than 2^31 heads of o";
  if (a.o.dtype != a.q.dtype) return reason_dtype("dout.dtype", a.o.dtype, a.q.dtype, "q");
  return a.gate_key ? refuses_rows(a) : Text("");
}

// Tokens of no sequence have gradients of 0, in the outputs that kernels write themselves.
__global__ void __launch_bounds__(kThreads)
    delta_unused_kernel(const __grid_constant__ DeltaBackwardWork90 work, bool dv, int64_t rows) {
  const Recur& a = work.b.forward;
  const int64_t row = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32;
  if (row >= rows) return;
  const int64_t batch = row / a.s, at = row - batch * a.s;
  if (a.in_use(batch, at)) return;
  const auto clear = [&](const Floats<4>& x, int64_t heads, int64_t width) {
    for (int64_t i = threadIdx.x % 32; x && i < heads * width; i += 32)
      x.store(0, batch, at, i / width, i % width);
  };
  clear(work.dq, a.h, a.d), clear(work.dk, a.g, a.d), clear(work.dgate_key, a.heads, a.d);
  clear(work.dlow_a, a.heads, a.d), clear(work.dlow_b, a.heads, a.d);
  if (dv) clear(work.dv, a.x, a.e);
  for (int64_t i = threadIdx.x % 32; i < a.heads; i += 32) {
    if (work.dgate) work.dgate.store(0, batch, at, i);
    if (work.dbeta) work.dbeta.store(0, batch, at, i);
  }
}

struct DeltaBackwardPlan {
  DeltaBackwardWork90 work;
  Slot<unsigned char> inverses, scores, states, updates, slopes, answers;
  Slot<uint16_t> rows;  // of dV
  Slot<float> dq, dk, dv, dgate, dgate_key, dlow_a, dlow_b, dbeta, betas, q_norm, k_norm;
  Slot<double> sums;
  bool values;  // dv is the output itself
  const DeltaBackwardInstance90* found;
};

// An output that no kernel but the own ones writes leaves b.to.
Floats<4> take(RecurBackward& b, RecurGradient what, bool own, const int64_t (&extent)[3]) {
  Floats<4>& x = b.to[static_cast<int>(what)];
  if (!x || !own || !in_pieces(x.view, extent, 8)) return {};
  const Floats<4> taken = x;
  x.view.data = nullptr;
  return taken;
}
Floats<3> take_rows(RecurBackward& b, RecurGradient what, const Recur& a) {
  Floats<4>& x = b.to[static_cast<int>(what)];
  const auto& stride = x.view.stride;
  if (!x || a.outputs() > 1 || (a.b > 1 && !stride[0]) || (a.s > 1 && !stride[1]) ||
      (a.heads > 1 && !stride[2]))
    return {};
  const Floats<3> taken = {{x.view.data, {stride[0], stride[1], stride[2]}}, x.dtype};
  x.view.data = nullptr;
  return taken;
}

// Outputs, and room for the terms of the others.
void place_outputs(const Recur& a, DeltaBackwardPlan& p, Layout& to) {
  DeltaBackwardWork90& work = p.work;
  RecurBackward& b = work.b;
  const auto wanted = [&](RecurGradient what) { return static_cast<bool>(b.output(what)); };
  // A block of a low rank has 64 channels: it knows no norm of more.
  const bool whole = !a.low_a || !a.l2_norm || a.d == 64;
  work.dq = take(b, RecurGradient::q, a.heads_out == a.h && whole, {a.b, a.s, a.h});
  work.dk = take(b, RecurGradient::k, a.outputs() == 1 && a.heads == a.g && whole, {a.b, a.t, a.g});
  work.dlow_a = take(b, RecurGradient::low_a, true, {a.b, a.s, a.heads});
  work.dlow_b = take(b, RecurGradient::low_b, true, {a.b, a.s, a.heads});
  if (a.gate_key) {
    const auto& stride = b.output(RecurGradient::gate_key).view.stride;
    const bool summed =
        (a.b > 1 && !stride[0]) || (a.s > 1 && !stride[1]) || (a.heads > 1 && !stride[2]);
    work.dgate_key = take(b, RecurGradient::gate_key, !summed, {a.b, a.s, a.heads});
  } else {
    work.dgate = take_rows(b, RecurGradient::gate_head, a);
  }
  work.dbeta = take_rows(b, RecurGradient::beta, a);
  const RecurBackward kept = b;
  work.dv = take(b, RecurGradient::v, a.heads == a.x, {a.b, a.t, a.x});
  const int64_t rows = a.heads * a.e;
  p.values =
      work.dv && !*map_refuses({work.dv.view, a.q.dtype, a.b, a.t, a.heads, a.e, kChainTokens});
  if (!p.values) {
    b = kept;
    work.dv = {{nullptr, {a.t * rows, rows, a.e, 1}}, a.q.dtype};
    p.rows = to.add<uint16_t>(a.b, a.t, a.heads, a.e);
    if (wanted(RecurGradient::v)) p.dv = to.add<float>(a.b, a.t, a.heads, a.e);
  }
  if (wanted(RecurGradient::q)) p.dq = to.add<float>(a.b, a.s, a.heads_out, a.d);
  if (wanted(RecurGradient::k)) p.dk = to.add<float>(a.outputs(), a.b, a.t, a.heads, a.d);
  const bool gates = wanted(RecurGradient::gate_head) || wanted(RecurGradient::gate_key) ||
                     wanted(RecurGradient::rate) || wanted(RecurGradient::bias);
  if (gates && a.gate_key)
    p.dgate_key = to.add<float>(a.b, a.s, a.heads, a.d);
  else if (gates)
    p.dgate = to.add<float>(a.outputs(), a.b, a.s, a.heads);
  if (wanted(RecurGradient::low_a)) p.dlow_a = to.add<float>(a.b, a.s, a.heads, a.d);
  if (wanted(RecurGradient::low_b)) p.dlow_b = to.add<float>(a.b, a.s, a.heads, a.d);
  if (wanted(RecurGradient::beta)) p.dbeta = to.add<float>(a.outputs(), a.b, a.s, a.heads);
  if (a.l2_norm) {
    if (wanted(RecurGradient::q)) p.q_norm = to.add<float>(a.b, a.s, a.h, 2);
    if (b.reads_norm(false)) p.k_norm = to.add<float>(a.b, a.s, a.g, 2);
  }
  p.sums = to.add<double>(recur_sums(b));
}

void enqueue(Context& ctx, const DeltaBackwardPlan& p, void* base) {
  DeltaBackwardWork90 work = p.work;
  RecurTerms& t = work.b.terms;
  const Recur& a = work.b.forward;
  work.forward.inverses = p.inverses.at(base), work.forward.scores = p.scores.at(base);
  work.states = p.states.at(base), work.updates = p.updates.at(base);
  work.slopes = p.slopes.at(base), work.answers = p.answers.at(base), work.betas = p.betas.at(base);
  t = {}, t.slices = 1, t.key_slices = a.outputs();
  t.dq = p.dq.at(base), t.dk = p.dk.at(base), t.dv = p.dv.at(base);
  t.row_dg = p.dgate.at(base), t.dg = p.dgate_key.at(base);
  t.dp = p.dlow_a.at(base), t.db = p.dlow_b.at(base), t.dbeta = p.dbeta.at(base);
  t.q_norm = p.q_norm.at(base), t.k_norm = p.k_norm.at(base);
  if (!p.values) work.dv.view.data = p.rows.at(base);
  if (!make_map({work.dv.view, a.q.dtype, a.b, a.t, a.heads, a.e, kChainTokens}, work.dv_map))
    fail(FOVEA_UNSUPPORTED, "%s: the driver makes no tensor map", kOp);
  const int64_t rows = a.b * a.s;
  if (a.run.ragged())
    launch<delta_unused_kernel>(ctx, kOp, ceil_div(rows, kThreads / 32), kThreads, 0, work,
                                p.values, rows);
  p.found->launch(ctx, work);
  add_recur_terms(ctx, kOp, work.b, p.sums.at(base));
}

Text offer(const Context& ctx, const RecurBackward& call, Plan& plan) {
  const Recur& a = call.forward;
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  // A sum over tokens keeps what products in 16 bits have in common; f32 does not have it.
  const Floats<4>& dbeta = call.to[static_cast<int>(RecurGradient::beta)];
  if (dbeta && a.s > 1 && !dbeta.view.stride[1]) return "dbeta is summed over tokens";
  DeltaBackwardPlan p{};
  for (const DeltaBackwardInstance90& row : a.low_a      ? low_instances()
                                            : a.gate_key ? key_instances()
                                                         : instances())
    if (row.dtype == a.q.dtype && row.d == a.d) p.found = &row;
  if (!p.found) return no_instance(a.q.dtype, "d", a.d, "e", a.e);
  p.work.b = call;
  DeltaWork90& work = p.work.forward;
  work.a = a, work.a.scale = 1, work.a.run.output_from = {}, work.a.state_out = {},
  work.a.snapshot = {};
  work.tiles = static_cast<int32_t>(a.e / kChainColumns);
  if (__builtin_mul_overflow(a.run.count * a.heads, int64_t{work.tiles}, &work.blocks) ||
      work.blocks > kTokensMost / 2)
    return "more than 2^29 chains";
  work.chunks = static_cast<int32_t>(ceil_div(a.run.token_max, kChainTokens));
  work.slots = a.run.start ? a.s / kChainTokens + a.run.count : a.run.count * work.chunks;
  if (work.slots > kTokensMost / a.heads_out) return "more than 2^30 chunks";
  work.outputs = static_cast<int32_t>(a.outputs());
  work.key_share = static_cast<int32_t>(a.heads / a.g);
  work.query_share = static_cast<int32_t>(a.heads_out / a.h);
  work.copies = work.cluster = 1, work.parts.count = 1;
  work.norm_bytes = kDeltaNormBytes, work.beta_least = kDeltaLeastBeta;
  const int64_t span = (a.gate_key ? 1 : delta_span(a.d)) * kChainTokens;
  p.work.spans =
      a.run.start ? a.s / span + a.run.count : a.run.count * ceil_div(a.run.token_max, span);
  if (Text why = map_each(
          {{"q", {a.q.view, a.q.dtype, a.b, a.s, a.h, a.d, kChainTokens}, work.q},
           {"k", {a.k.view, a.k.dtype, a.b, a.t, a.g, a.d, kChainTokens}, work.k},
           {"v", {a.v.view, a.v.dtype, a.b, a.t, a.x, a.e, kChainTokens}, work.v},
           {"dout", {a.o.view, a.o.dtype, a.b, a.s, a.heads_out, a.e, kChainTokens}, p.work.dout}});
      !why.empty())
    return why;
  if (a.low_a) {
    const auto map_of = [&](const Floats<4>& x) {
      return MapOf{x.view, x.dtype, a.b, a.s, a.heads, a.d, kChainTokens};
    };
    if (Text why = map_each(
            {{"low_a", map_of(a.low_a), work.low_a}, {"low_b", map_of(a.low_b), work.low_b}});
        !why.empty())
      return why;
  }
  Layout& to = plan.workspace;
  const int d = static_cast<int>(a.d);
  p.inverses = to.add<unsigned char>(work.slots, a.heads,
                                     a.low_a      ? delta_low_bytes(d)
                                     : a.gate_key ? delta_keys_bytes(d)
                                                  : kDeltaInverseStride);
  p.scores = to.add<unsigned char>(work.slots, a.heads_out,
                                   a.low_a      ? delta_low_query_bytes(d)
                                   : a.gate_key ? delta_query_bytes(d)
                                                : kDeltaScoreStride);
  p.states = to.add<unsigned char>(p.work.spans, a.heads, a.d, a.e, 2);
  p.slopes = to.add<unsigned char>(p.work.spans, a.heads, a.d, a.e, 2);
  if (call.output(RecurGradient::beta)) p.betas = to.add<float>(work.tiles, a.b, a.s, a.heads);
  p.updates = to.add<unsigned char>(work.slots, a.heads, kChainTokens, a.e, 2);
  if (a.low_a) p.answers = to.add<unsigned char>(work.slots, a.heads, kChainTokens, a.e, 2);
  place_outputs(a, p, to);
  plan.kernel += Text(a.low_a      ? ".low."
                      : a.gate_key ? ".key."
                                   : ".") +
                 dtype_name(a.q.dtype) + ".d" + Text::number(a.d);
  plan.launch = [p](Context& ctx, void* base) { enqueue(ctx, p, base); };
  return "";
}

}  // namespace

extern const Kernel<RecurBackward> delta_backward_sm90 = {"sm90", offer};

}  // namespace fovea
