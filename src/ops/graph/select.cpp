// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/fields.h"
#include "ops/graph/graph.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_select_graph";
using Params = fovea_x_select_graph_params;

void read_graph(SelectGraph& a, const Params& p) {
  const std::pair<const char*, const fovea_tensor*> parts[] = {
      {"neighbour", &p.neighbour}, {"neighbour_count", &p.neighbour_count}, {"entry", &p.entry}};
  // Where there is no element, NULL is a tensor too.
  const bool any = a.keys.b && a.keys.t && a.keys.g;
  for (const auto& [field, x] : parts) {
    if (p.ef ? any && !x->data : x->data != nullptr)
      refuse("%s: %s is %s with ef = %lld, wanted it %s", kOp, field, p.ef ? "absent" : "given",
             lld(p.ef), p.ef ? "given" : "absent: all keys are scored");
  }
  if (!any) return;
  a.graphs = {view_of<4>(p.neighbour), view_of<3>(p.neighbour_count), view_of<2>(p.entry),
              p.neighbour.data ? p.neighbour.shape[3] : 0};
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  SelectGraph a{};
  a.keys = read_graph_keys(kOp, p.k, p.key_len);
  a.rows = {view_of<4>(p.q), int_vector(p.query_len), p.q.dtype, p.q.shape[1], p.q.shape[2]};
  if (a.rows.h && (!a.keys.g || a.rows.h % a.keys.g))
    refuse("%s: k.shape[2] (g) is %lld, wanted a divisor of q's %lld heads", kOp, lld(a.keys.g),
           lld(a.rows.h));
  check_not_negative(kOp, "count", p.count), check_not_negative(kOp, "ef", p.ef);
  if (p.ef && p.ef < p.count)
    refuse("%s: ef is %lld with count = %lld, wanted at least count, or 0 for all keys", kOp,
           lld(p.ef), lld(p.count));
  a.index = view_of<4>(p.index), a.keep = p.index.shape[3];
  a.index_count = view_of<3>(p.index_count), a.scanned = view_of<3>(p.scanned);
  a.count = std::min(p.count, a.keys.t), a.ef = p.ef;
  read_graph(a, p);
  return choose(kOp, ctx, a, x_select_graph_host, {kGraphOnHost<SelectGraph>});
}

}  // namespace fovea
