// SPDX-License-Identifier: Apache-2.0
// Which calls of x_gla_backward with key gates the Hopper kernels take (backward_keys_sm90.cuh),
// their workspace, and which outputs they write themselves.  value_sm90.cu plans calls with value
// gates here, with roles swapped.
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/chain.h"
#include "cuda/loop/hopper.h"
#include "cuda/loop/recur.h"
#include "ops/gla/backward.cuh"
#include "ops/gla/gla.h"
#include "ops/gla/rows_sm90.cuh"

namespace fovea {
namespace {

using namespace cuda;

// Every row of backward_keys.inc in this build, narrow widths first.
const std::vector<GlaKeyGradientInstance90>& instances() {
  static const std::vector<GlaKeyGradientInstance90> rows = {
#define FOVEA_INSTANCE(...) gla_key_gradient_sm90_instance<GlaKeyGradientConfig90 __VA_ARGS__>(),
#include "instances/gla_backward_keys_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const GlaKeyGradientInstance90* find(int32_t dtype, int64_t d) {
  for (const GlaKeyGradientInstance90& row : instances())
    if (row.dtype == dtype && row.d == d) return &row;
  return nullptr;
}

// dbonus of a head, of what chunks add: a block has 32 channels, a warp every kWarps-th chunk.
constexpr int kWarps = 8;
__global__ void __launch_bounds__(32 * kWarps)
    gla_bonus_sm90(const float* terms, Floats<4> to, int64_t slots, int64_t heads, int64_t d,
                   int64_t work) {
  __shared__ double s_sum[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t head = w / (d / 32), c = w % (d / 32) * 32 + lane;
    double sum = 0;
    for (int64_t slot = warp; slot < slots; slot += kWarps)
      sum += static_cast<double>(terms[(slot * heads + head) * d + c]);
    s_sum[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
      for (int i = 1; i < kWarps; ++i) sum += s_sum[i][lane];
      to.store(static_cast<float>(sum), int64_t{0}, int64_t{0}, head, c);
    }
    __syncthreads();
  }
}

// ---- the plan

// A chunk costs as much for few tokens as for 64.
constexpr int64_t kLeastTokens = 64;
constexpr int64_t kTokensMost = int64_t{1} << 30;  // tiles have 32-bit rows
constexpr int64_t kColumnsMost = 128;              // a block has all value columns of a chunk

const char* given(const Recur& a) {
  if (a.gate_head) return "gate_head with gate_key";
  if (a.select) return "select with gate_key";
  if (a.gate_value) return "gate_value";
  if (a.full) return "full";
  if (a.normalise || a.den) return "normalise";
  if (a.map_q) return "map_q";
  if (a.map_k) return "map_k";
  return nullptr;
}

Text refuses(const Context& ctx, const Recur& a) {
  if (!a.gate_key) return "gate_key is not given";
  if (const int arch = device_info(ctx).arch; arch != 90) return reason_capability(arch, "9.0");
  if (const char* field = given(a)) return reason_given(field);
  if (!a.v) return "v is not given";
  if (Text why = refuse_width("e", a.e, kChainColumns, kColumnsMost); !why.empty()) return why;
  if (a.run.token_max < kLeastTokens)
    return Text("sequences of at most ") + Text::number(a.run.token_max) + " tokens, wanted " +
           Text::number(kLeastTokens);
  if (a.run.token_max > kTokensMost || a.s > kTokensMost) return "more than 2^30 tokens";
  // TMA has no empty tensor: it would read one row.
  if (!a.b || !a.heads || !a.heads_out || !a.e || !a.run.count)
    return "there are no sequences, heads or columns";
  if (!a.o) return "dout is not given";
  if (a.o.dtype != a.q.dtype) return reason_dtype("dout.dtype", a.o.dtype, a.q.dtype, "q");
  if (a.heads_out != a.heads) return reason("q.shape[2]", a.h, "at most the heads of k and v");
  if (!find(a.q.dtype, a.d)) return no_instance(a.q.dtype, "d", a.d, "e", a.e);
  return "";
}

struct KeysPlan {
  RecurBackward b;  // without the outputs that the kernels write
  GlaKeyGradientWork90 work;
  const GlaKeyGradientInstance90* run;
  GlaRows rows[4];  // of dq, dk, dv and dgate_key, where the kernels store them
  const char* op;
  Floats<4> dbonus;
  Slot<unsigned char> keys, queries, states, slopes;
  Slot<float> dq, dk, dv, dg, de, bonuses;
  Slot<double> sums;
};

// Where the kernels store rows: in the output itself, or as terms of it in f32.
Floats<4> rows_of(KeysPlan& p, RecurGradient what, Plan& plan, int64_t heads, int64_t width,
                  GlaRows& rows, Slot<float>& terms) {
  Floats<4>& out = p.b.to[static_cast<int>(what)];
  const Recur& a = p.b.forward;
  Floats<4> to{};
  if (!out) return to;
  if (!(what == RecurGradient::v && a.skip) && direct(a, out, heads, a.s)) {
    to = out, rows = {out, heads, width, false};
    out = {};
    return to;
  }
  terms = plan.workspace.add<float>(a.b, a.s, a.heads, width);
  // The address is known at the launch.
  return {{nullptr, {a.s * a.heads * width, a.heads * width, width, 1}}, FOVEA_F32};
}

void enqueue(Context& ctx, const KeysPlan& p, void* base) {
  const Recur& a = p.b.forward;
  GlaKeyGradientWork90 w = p.work;
  w.forward.keys = p.keys.at(base), w.forward.queries = p.queries.at(base);
  w.states = p.states.at(base), w.slopes = p.slopes.at(base);
  if (p.dq.count) w.dq.view.data = p.dq.at(base);
  if (p.dk.count) w.dk.view.data = p.dk.at(base);
  if (p.dv.count) w.dv.view.data = p.dv.at(base);
  w.dg = p.dg.at(base), w.de = p.de.at(base), w.dbonus = p.bonuses.at(base);
  for (const GlaRows& rows : p.rows)
    if (rows.out && a.run.ragged() && !w.outputs) zero_unused_rows(ctx, p.op, a, rows);
  p.run->launch(ctx, p.op, w);
  if (p.dbonus) {
    const int64_t work = a.heads * (a.d / 32);
    launch<gla_bonus_sm90>(ctx, p.op, work, 32 * kWarps, 0, static_cast<const float*>(w.dbonus),
                           p.dbonus, w.forward.slots, a.heads, a.d, work);
  }
  RecurBackward b = p.b;
  b.terms.slices = 1;
  b.terms.dq = p.dq.at(base), b.terms.dk = p.dk.at(base), b.terms.dv = p.dv.at(base);
  b.terms.dg = w.dg, b.terms.de = w.de;
  add_recur_terms(ctx, p.op, b, p.sums.at(base));
}

// Whether nothing is asked for that the walk backwards finds.
bool asks_only_q(const RecurBackward& b) {
  bool only = !b.forward.bonus && !b.forward.read_before && !b.dstate_in;
  each_gradient(b, [&](RecurGradient what) { only &= what == RecurGradient::q; });
  return only;
}

Text offer(const Context& ctx, const RecurBackward& b, Plan& plan) {
  if (Text why = refuses(ctx, b.forward); !why.empty()) return why;
  const GlaKeyRoles roles{"x_gla_backward", "q", "k", "v", "dout", false};
  if (Text why = plan_gla_keys(b, roles, plan); !why.empty()) return why;
  plan.kernel +=
      Text(".") + dtype_name(b.forward.q.dtype) + ".d" + Text::number(b.forward.d) + ".key";
  return "";
}

}  // namespace

Text plan_gla_keys(const RecurBackward& b, const GlaKeyRoles& roles, Plan& plan) {
  const Recur& a = b.forward;
  KeysPlan p{};
  p.b = b, p.run = find(a.q.dtype, a.d), p.op = roles.op;
  if (!p.run) return "no instance in this build for this width";
  GlaKeyGradientWork90& w = p.work;
  GlaWork90& f = w.forward;
  w.only_q = asks_only_q(b), w.outputs = roles.outputs;
  w.a = a, w.dstate_out = b.dstate_out, w.dstate_in = b.dstate_in;
  f.a = a, f.a.run.output_from = {};  // else some rows of Q~ would not be made
  if (w.only_q) f.a.o = {};
  f.a.scale = 1;  // else Q~ and A would be rounded once more where decays are 1
  f.tiles = static_cast<int32_t>(a.e / kChainColumns);
  f.outputs = 1;
  f.key_share = static_cast<int32_t>(a.heads / a.g);
  f.query_share = static_cast<int32_t>(a.heads / a.h);
  const int64_t extent[3] = {a.b, a.s, a.heads};
  f.gate_pairs = in_pieces(a.gate_key.view, extent, 2);
  f.slots = chunk_slots(a);
  if (f.slots > kTokensMost / a.heads) return "more than 2^30 chunks";
  w.chains = a.run.count * a.heads * f.tiles;
  const MapOf q{a.q.view, a.q.dtype, a.b, a.s, a.h, a.d, kChainTokens};
  const MapOf k{a.k.view, a.k.dtype, a.b, a.s, a.g, a.d, kChainTokens};
  const MapOf v{a.v.view, a.v.dtype, a.b, a.s, a.x, a.e, kChainTokens};
  const MapOf dout{a.o.view, a.o.dtype, a.b, a.s, a.heads, a.e, kChainTokens};
  if (Text why = map_each({{roles.k, k, f.k}, {roles.v, v, f.v}, {roles.dout, dout, w.dout}});
      !why.empty())
    return why;
  if (!w.only_q)
    if (Text why = map_each({{roles.q, q, f.q}}); !why.empty()) return why;
  Layout& space = plan.workspace;
  const auto d = static_cast<int>(a.d);
  const int64_t tile = kChainColumns * a.d * 2;
  p.keys = space.add<unsigned char>(f.slots, a.heads, gla_key_stride(d));
  if (!w.only_q) p.queries = space.add<unsigned char>(f.slots, a.heads, gla_query_stride(d));
  p.states = space.add<unsigned char>(f.slots, a.heads, f.tiles, tile);
  if (!w.only_q) p.slopes = space.add<unsigned char>(f.slots, a.heads, f.tiles, tile);
  w.dq = rows_of(p, RecurGradient::q, plan, a.h, a.d, p.rows[0], p.dq);
  w.dk = rows_of(p, RecurGradient::k, plan, a.g, a.d, p.rows[1], p.dk);
  w.dv = rows_of(p, RecurGradient::v, plan, a.x, a.e, p.rows[2], p.dv);
  w.dq_whole = !p.dq.count, w.dk_whole = !p.dk.count;
  const auto& gate = b.output(RecurGradient::gate_key);
  if (direct(a, gate, a.heads, a.s)) {
    w.dgate = gate, p.rows[3] = {gate, a.heads, a.d, false};
    p.b.to[static_cast<int>(RecurGradient::gate_key)] = {};
  }
  if (p.b.output(RecurGradient::gate_key) || b.output(RecurGradient::rate) ||
      b.output(RecurGradient::bias))
    p.dg = space.add<float>(a.b, a.s, a.heads, a.d);
  if (a.bonus) p.de = space.add<float>(a.b, a.s, a.heads);
  const auto& bonus = b.output(RecurGradient::bonus);
  if (bonus && bonus.view.stride[2] && bonus.view.stride[3]) {
    p.dbonus = bonus, p.bonuses = space.add<float>(f.slots, a.heads, a.d);
    p.b.to[static_cast<int>(RecurGradient::bonus)] = {};
  }
  p.sums = space.add<double>(recur_sums(p.b));
  plan.launch = [p](Context& ctx, void* base) { enqueue(ctx, p, base); };
  return "";
}

extern const Kernel<RecurBackward> gla_backward_keys_sm90 = {"sm90", offer};

}  // namespace fovea
