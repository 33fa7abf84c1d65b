// SPDX-License-Identifier: Apache-2.0
#include "ops/lsh/lsh.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_x_lsh_append_params& p) {
  constexpr char op[] = "x_lsh_append";
  LshAppend a{};
  a.to = LshTables(op, p.bucket, p.link);
  a.code = view_of<4>(p.code);
  a.query_len = int_vector(p.query_len), a.old_len = int_vector(p.old_len);
  a.b = p.code.shape[0], a.s = p.code.shape[1], a.g = p.code.shape[2];
  check_host(op, ctx);
  return choose(op, ctx, a, x_lsh_append_host, {});
}

}  // namespace fovea
