// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

void tensors(Draw& d) {
  if (!d.knows("index")) return;
  const bool selects = !d.knows("o");
  if (selects && !d.has("index") && !d.has("index_count")) d.give("index");
  if (!d.has("index")) d.drop("index_bias");
  if (!selects && !d.has("index")) d.drop("index_count");
  if (!selects) return;
  for (const char* field : {"q", "k"}) d.has("index_bias") ? d.give(field) : d.drop(field);
}

void letters(Draw& d) {
  d.x("tables") = d.one_of({1, 2, 3, 8, 17, 40});
  d.x("log") = d.below(7);
  d.x("buckets") = d.knows("code") ? d.one_of({0, 1, 2, 5, 16, 100}) : int64_t{1} << d.x("log");
  d.x("keep") = d.one_of({0, 1, 2, 5, 17, 40, 300});
}

void scalars(Draw& d) {
  const int64_t tables = d.x("tables");
  const bool chosen = tables < 2 || d.one_in(2);
  d.set<int64_t>("min_match", chosen ? 1 + d.below(tables) : 0);
  d.set("bits", static_cast<int32_t>(d.one_in(2) ? d.x("log") : 0));
  d.set<int64_t>("max_keys", d.has("index") || d.one_in(2) ? 0 : d.one_of({1, 3, 40, INT64_MAX}));
}

// Tables are the caller's: what is no chain must end one.
bool integers(Filler& f, const Tensor& x) {
  if (f.is(x, {"code", "code_q"})) return f.places(x, 0, f.extent("bucket", 3, 1) - 1), true;
  if (f.is(x, {"query_len"}) && f.given("code"))
    return f.places(x, 0, f.extent("code", 1, 0) + 1), true;
  const int64_t t = f.extent("link", 3, 0);
  if (!f.is(x, {"bucket", "link", "old_len"})) return false;
  f.places(x, f.is(x, {"old_len"}) ? 0 : -1, f.is(x, {"old_len"}) ? t : t - 1);
  return true;
}

const Rules kLsh({"x_lsh_", "x_select_lsh"}, {.tensors = tensors,
                                              .letters = letters,
                                              .scalars = scalars,
                                              .integers = integers});

}  // namespace
}  // namespace random_calls
