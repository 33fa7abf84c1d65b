// SPDX-License-Identifier: Apache-2.0
// Lists of blocks of keys whose sizes are multiples of 64 (quant.h), drawn.
#pragma once
#include "random/fill.h"

namespace random_calls {

inline void draw_lists(Draw& d) {
  if (d.one_in(2)) d.give("index");
  if (!d.has("index")) d.drop("index_count"), d.drop("skipped");
}
inline void draw_list_letters(Draw& d) {
  d.x("x") = d.one_of({1, 1, 2, 4}), d.x("keep") = d.one_of({0, 1, 2, 5, 17});
}
inline void draw_list_sizes(Draw& d) {
  if (!d.has("index")) return;
  const int64_t rows = d.one_of({1, 16, 64, 100, 128}), keys = d.one_of({64, 64, 128, 320});
  d.set("block_rows", static_cast<int32_t>(rows));
  d.set("block_keys", static_cast<int32_t>(keys));
  if (d.one_in(3)) d.set("entry_keys", int32_t{64});
  const int64_t blocks = d.packed_rows() ? d.x("s") / rows + d.x("r") : ceil_div(d.x("s"), rows);
  d.x("n") = (rows == 1 ? d.x("s") : blocks) + d.one_of({0, 0, 2});
}
inline void draw_margin(Draw& d) {
  d.set("skip_margin", d.has("index") && d.one_in(4) ? 2.0f : 0.0f);
}
inline bool draw_list_places(Filler& f, const Tensor& x) {
  if (f.is(x, {"index"})) return f.places(x, -1, 8), true;
  return f.is(x, {"index_count"}) && (f.places(x, 0, 20), true);
}
// What is skipped follows from roundings.
inline bool skips(const Call& call) {
  const Field* margin = call.op->find("skip_margin");
  return margin && *reinterpret_cast<const float*>(call.params() + margin->offset) > 0;
}

}  // namespace random_calls
