// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/fields.h"
#include "ops/graph/graph.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_graph_append";

// value, or what 0 stands for.
int64_t number(const char* field, int64_t value, int64_t zero, int64_t most) {
  if (value < 0 || value > most)
    refuse("%s: %s is %lld, wanted 1 .. %lld, or 0 for %lld", kOp, field, lld(value), lld(most),
           lld(zero));
  return value ? value : zero;
}

void read_training(GraphAppend& a, const fovea_x_graph_append_params& p) {
  check_needs(kOp, p.query_len, "query_len", p.q, "q");
  if (p.nearest && !p.q.data)
    refuse("%s: nearest is %lld without q, wanted 0", kOp, lld(p.nearest));
  a.nearest = number("nearest", p.nearest, 100, INT64_MAX);
  if (!p.q.data) return;
  a.rows = {view_of<4>(p.q), int_vector(p.query_len), p.q.dtype, p.q.shape[1], p.q.shape[2]};
  const GraphKeys& keys = a.keys;
  if (a.rows.h && keys.g ? a.rows.h % keys.g != 0 : a.rows.h != 0)
    refuse("%s: k.shape[2] (g) is %lld, wanted a divisor of q's %lld heads", kOp, lld(keys.g),
           lld(a.rows.h));
  a.nearest = std::min(a.nearest, keys.t);
  const int64_t entries =
      far_product(far_product(a.rows.s, keys.g ? a.rows.h / keys.g : 0), a.nearest);
  if (entries > INT32_MAX)
    fail(FOVEA_UNSUPPORTED,
         "%s: q.shape[1] (s) is %lld: lists of its queries have %lld entries a key head, wanted "
         "below 2^31",
         kOp, lld(a.rows.s), lld(entries));
}

}  // namespace

GraphKeys read_graph_keys(const char* op, const fovea_tensor& k, const fovea_tensor& key_len) {
  const GraphKeys keys{view_of<4>(k), int_vector(key_len), k.dtype,   k.shape[0],
                       k.shape[1],    k.shape[2],          k.shape[3]};
  if (keys.t > INT32_MAX)
    fail(FOVEA_UNSUPPORTED, "%s: k.shape[1] (t) is %lld, wanted below 2^31", op, lld(keys.t));
  if (keys.d < 1) refuse("%s: k.shape[3] (d) is 0, wanted >= 1", op);
  if (keys.d > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: k.shape[3] (d) is %lld, wanted at most %lld", op, lld(keys.d),
         lld(kWidthMax));
  return keys;
}

Plan plan(const Context& ctx, const fovea_x_graph_append_params& p) {
  GraphAppend a{};
  a.keys = read_graph_keys(kOp, p.k, p.key_len);
  a.old_len = int_vector(p.old_len);
  a.kept = number("kept", p.kept, 16, kNeighboursMost);
  a.added = number("added", p.added, 4, kNeighboursMost);
  a.graphs = {view_of<4>(p.neighbour), view_of<3>(p.neighbour_count), view_of<2>(p.entry),
              p.neighbour.shape[3]};
  if (a.graphs.degree < a.kept + a.added)
    refuse("%s: neighbour.shape[3] (degree) is %lld, wanted at least %lld: kept + added", kOp,
           lld(a.graphs.degree), lld(a.kept + a.added));
  a.width = std::min(number("width", p.width, 2 * (a.kept + a.added), INT64_MAX), a.keys.t);
  read_training(a, p);
  return choose(kOp, ctx, a, x_graph_append_host, {kGraphOnHost<GraphAppend>});
}

}  // namespace fovea
