// SPDX-License-Identifier: Apache-2.0
// The end of a program whose parts are attention over several key sets.
#pragma once
#include "core/program.h"

namespace fovea {

// Rows in use of x, to the caller's y.
template <class P>
[[gnu::noinline]] void keep_rows(Program& program, const P& p, const fovea_tensor& x,
                                 const fovea_tensor& y) {
  fovea_x_combine_forward_params part{};
  part.x = x, part.y = y, part.query_len = p.query_len;
  program.run(part);
}

// The parts (n, b, s, h, e) and (n, b, h, s) as one, in the caller's o and lse.  A part has all
// rows, so that rows past query_len go to an array first.
// Returns lse of all, if the caller or `wants_lse` asks.
template <class P>
[[gnu::noinline]] fovea_tensor merge_parts(Program& program, const P& p, const fovea_tensor& o,
                                           const fovea_tensor& lse, bool wants_lse = false) {
  fovea_merge_forward_params part{};
  part.o_part = o, part.lse_part = lse;
  const fovea_tensor none{};
  const bool cut = p.query_len.data != nullptr;
  const auto dtype = static_cast<fovea_dtype>(p.o.dtype);
  const int64_t b = p.q.shape[0], s = p.q.shape[1], h = p.q.shape[2];
  part.o = program.output(cut ? none : Program::given(p.o), dtype, {b, s, h, p.v.shape[3]});
  if (p.lse.data || wants_lse) part.lse = program.output(cut ? none : p.lse, FOVEA_F32, {b, h, s});
  program.run(part);
  if (!cut) return part.lse;
  keep_rows(program, p, part.o, p.o);
  if (p.lse.data) keep_rows(program, p, by_row(part.lse), by_row(p.lse));
  return part.lse;
}

}  // namespace fovea
