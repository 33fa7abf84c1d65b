// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of x_quant_backward, and the order of its passes.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/backward_rows.cuh"
#include "cuda/loop/hopper.h"
#include "cuda/loop/key_terms.cuh"
#include "cuda/loop/row_tile.cuh"
#include "ops/quantised/backward.cuh"

namespace fovea {
namespace {

using namespace cuda;

// Every row of backward.inc in this build.
const std::vector<QuantGradientInstance90>& instances() {
  static const std::vector<QuantGradientInstance90> rows = {
#define FOVEA_INSTANCE(...) quant_backward_sm90_instance<QuantGradient90 __VA_ARGS__>(),
#include "instances/quantised_backward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const QuantGradientInstance90* find(const Attend& a) {
  for (const QuantGradientInstance90& row : instances())
    if (row.dtype == a.dtype && a.d <= row.d && a.e <= row.e) return &row;
  return nullptr;
}

MapOf map_of_v(const Attend& a, const QuantGradientInstance90& row) {
  return {a.v, a.dtype, a.sequences.caches, a.t, a.g, a.e, row.keys};
}
MapOf map_of_dout(const QuantBackward& b) {
  const Attend& a = b.call.forward;
  return {b.call.dout, a.dtype, a.b, a.s, a.h, a.e, static_cast<int>(kTileTokens)};
}

// Of the call's own tensors: codes are contiguous.
Text refuses(const Context& ctx, const QuantBackward& b) {
  const Attend& a = b.call.forward;
  const Sequences& q = a.sequences;
  if (Text why = hopper_refuses(ctx, a); !why.empty()) return why;
  if (a.o_dtype != a.dtype) return reason_dtype("o.dtype", a.o_dtype, a.dtype, "q");
  if (Text why = refuse_width("d", a.d, 16, 128); !why.empty()) return why;
  if (Text why = refuse_width("e", a.e, 16, 128); !why.empty()) return why;
  if (!a.s || !a.t || !q.count) return "there are no rows, keys or heads";
  if (Text why = gradients_refuse(b.call); !why.empty()) return why;
  const QuantGradientInstance90* row = find(a);
  if (!row) return no_instance(a.dtype, "d", a.d, "e", a.e);
  if (const char* why = map_refuses(map_of_v(a, *row)); *why) return Text("v has ") + why;
  if (const char* why = map_refuses(map_of_dout(b)); *why) return Text("dout has ") + why;
  const int64_t row_tiles = ceil_div(q.query_start ? a.s : q.query_max, kTileTokens);
  if (q.count * std::max(a.h * ceil_div(q.key_max, row->keys), a.h * (row_tiles + 1)) > kIndexMax)
    return "more than 2^30 blocks of work";
  return "";
}

// Transposed codes (b, h, d, padded) as rows of one head: (b, d, h, padded).
MapOf map_of_columns(const View<4>& x, int64_t batch, int64_t heads, const CodeRows& rows,
                     const QuantGradientInstance90& row, int tokens) {
  const View<4> by_column{x.data, {x.stride[0], x.stride[2], x.stride[1], x.stride[3]}};
  return {by_column, FOVEA_I8, batch, rows.d, heads, rows.padded(), row.d, 1, tokens};
}

Text map_operands(const QuantBackward& b, const QuantGradientInstance90& row, QuantMaps90& maps) {
  const Attend& a = b.call.forward;
  const Sequences& q = a.sequences;
  const int rows = static_cast<int>(kTileTokens);
  const CodeRows of_q{q.query_start, a.s, q.count, a.d}, of_k{q.key_start, a.t, q.count, a.d};
  return map_each(
      {{"q's codes", {a.q, FOVEA_I8, a.b, a.s, a.h, a.d, rows, 1, row.d}, maps.q},
       {"q's codes", map_of_columns(b.q_columns, a.b, a.h, of_q, row, rows), maps.q_columns},
       {"k's codes", {a.k, FOVEA_I8, q.caches, a.t, a.g, a.d, row.keys, 1, row.d}, maps.k},
       {"k's codes", map_of_columns(b.k_columns, q.caches, a.g, of_k, row, row.keys),
        maps.k_columns},
       {"v", map_of_v(a, row), maps.v},
       {"dout", map_of_dout(b), maps.dout}});
}

// Of codes in the kernel's own workspace, whose address planning does not have.
void map_dout_columns(const QuantGradient& x, const QuantGradientInstance90& row,
                      QuantMaps90& maps) {
  const Attend& a = x.forward();
  const View<4> columns{x.dout_codes, {0, kTileTokens, a.e * kTileTokens, 1}};
  if (!make_map({columns, FOVEA_I8, 1, a.e, a.h * x.tiles.total, kTileTokens, row.e, 1,
                 static_cast<int>(kTileTokens)},
                maps.dout_columns))
    fail(FOVEA_UNSUPPORTED, "%s: the driver makes no tensor map", kQuantBackward);
}

Text offer(const Context& ctx, const QuantBackward& b, Plan& plan) {
  if (Text why = refuses(ctx, b); !why.empty()) return why;
  const Attend& a = b.call.forward;
  const Sequences& q = a.sequences;
  const QuantGradientInstance90& instance = *find(a);
  QuantMaps90 maps{};
  if (Text why = map_operands(b, instance, maps); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(instance.d);
  Layout& to = plan.workspace;
  const QuantGradientSlots slots(to, b, true, instance.panels);
  const int64_t all = b.call.dq ? a.h * slots.tiles.total : 0;
  const auto dq = to.add<float>(all * slots.tiles.floats());
  const auto dq_order = to.add<DqOrder>(all);
  // The call as the fused pass sees it: a key head for each share.
  const int64_t shares = key_shares(a, kTileTokens, instance.keys, true, device_info(ctx));
  QuantBackward cut = b;
  cut.call.forward.g *= shares;
  const int64_t terms = shares > 1 ? q.caches * a.t * cut.call.forward.g : 0;
  const auto dk = to.add<float>(b.call.dk ? terms * a.d : 0),
             dv = to.add<float>(b.call.dv ? terms * a.e : 0);
  const BackwardGrid90 grid(cut.call.forward, kTileTokens, instance.keys, instance.panels, all > 0,
                            device_info(ctx), kInterleaved);
  plan.launch = [=, &instance](Context& ctx, void* base) {
    const QuantGradient x = slots.at(base, cut);
    QuantMaps90 all_maps = maps;
    map_dout_columns(x, instance, all_maps);
    quant_backward_rows(ctx, slots.at(base, b, dq_order.at(base)));
    const BackwardWork work{.tiles = slots.tiles,
                            .stats = 0,
                            .row_stats = nullptr,
                            .dq = dq.at(base),
                            .dq_order = dq_order.at(base),
                            .ordered = static_cast<bool>(b.call.dq),
                            .dk = dk.at(base),
                            .dv = dv.at(base),
                            .shares = static_cast<int32_t>(shares)};
    instance.launch(ctx, x, all_maps, work, grid);
    const Attend& parts = cut.call.forward;
    if (work.dk)
      sum_key_terms(ctx, kQuantBackward, parts, b.call.dk, work.dk, b.call.forward.g, parts.d);
    if (work.dv)
      sum_key_terms(ctx, kQuantBackward, parts, b.call.dv, work.dv, b.call.forward.g, parts.e);
  };
  return "";
}

}  // namespace

bool x_quant_backward_sm90_serves(const Context& ctx, const QuantBackward& b) {
  return refuses(ctx, b).empty();
}

extern const Kernel<QuantBackward> x_quant_backward_sm90 = {"sm90", offer};

}  // namespace fovea
