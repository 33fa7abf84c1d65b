// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/program.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_lsh_forward";
using Params = fovea_x_lsh_forward_params;

// What selection writes and attention reads.
struct Lists {
  fovea_tensor index, index_count, index_bias;
};

[[gnu::noinline]] Lists select(Program& program, const Params& p) {
  const int64_t b = p.q.shape[0], s = p.q.shape[1], h = p.q.shape[2];
  const int64_t keep = p.index.data ? p.index.shape[3] : bounded(p.max_keys, p.k.shape[1]);
  fovea_x_select_lsh_params part{};
  part.code_q = p.code_q, part.bucket = p.bucket, part.link = p.link;
  part.q = Program::given(p.q), part.k = Program::given(p.k);
  part.query_len = p.query_len, part.key_len = p.key_len;
  part.index = program.output(p.index, FOVEA_I32, {b, h, s, keep});
  part.index_count = program.output(p.index_count, FOVEA_I32, {b, h, s});
  part.index_bias = program.output(p.index_bias, FOVEA_F32, {b, h, s, keep});
  part.min_match = p.min_match, part.bits = p.bits;
  program.run(part);
  return {part.index, part.index_count, part.index_bias};
}

[[gnu::noinline]] void attend(Program& program, const Params& p, const Lists& lists) {
  fovea_x_sparse_forward_params part{};
  part.q = p.q, part.k = p.k, part.v = p.v, part.o = p.o, part.lse = p.lse;
  part.query_len = p.query_len, part.key_len = p.key_len;
  part.index = lists.index, part.index_count = lists.index_count;
  part.index_bias = lists.index_bias;
  part.block_rows = part.block_keys = 1;
  part.scale = p.scale;
  program.run(part);
}

void body(Program& program, const Params& p) {
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  check_needs(kOp, p.index_bias, "index_bias", p.index, "index");
  check_not_negative(kOp, "max_keys", p.max_keys);
  if (p.max_keys && p.index.data)
    refuse("%s: max_keys is %lld with index, wanted 0: keep is its places", kOp, lld(p.max_keys));
  attend(program, p, select(program, p));
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
