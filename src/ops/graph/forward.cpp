// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/program.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_graph_forward";
using Params = fovea_x_graph_forward_params;

// What the search writes and attention reads.
struct Lists {
  fovea_tensor index, index_count;
};

[[gnu::noinline]] Lists select(Program& program, const Params& p) {
  const int64_t b = p.q.shape[0], s = p.q.shape[1], h = p.q.shape[2];
  const int64_t keep = std::min(std::max<int64_t>(p.count, 0), p.k.shape[1]);
  fovea_x_select_graph_params part{};
  part.q = p.q, part.k = p.k, part.query_len = p.query_len, part.key_len = p.key_len;
  part.neighbour = p.neighbour, part.neighbour_count = p.neighbour_count, part.entry = p.entry;
  part.index = program.output(p.index, FOVEA_I32, {b, h, s, keep});
  part.index_count = program.output(p.index_count, FOVEA_I32, {b, h, s});
  part.scanned = p.scanned, part.count = p.count, part.ef = p.ef;
  program.run(part);
  return {part.index, part.index_count};
}

[[gnu::noinline]] void attend(Program& program, const Params& p, const Lists& lists) {
  fovea_x_sparse_forward_params part{};
  part.q = p.q, part.k = p.k, part.v = p.v, part.o = p.o, part.lse = p.lse;
  part.query_len = p.query_len, part.key_len = p.key_len;
  part.index = lists.index, part.index_count = lists.index_count;
  part.block_rows = part.block_keys = 1;
  part.scale = p.scale, part.softcap = p.softcap;
  program.run(part);
}

void body(Program& program, const Params& p) {
  attend(program, p, select(program, p));
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
