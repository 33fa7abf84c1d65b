// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

void tensors(Draw& d) {
  for (const auto& [one, other] :
       {std::pair{"k_compressed", "v_compressed"}, {"k_window", "v_window"}})
    d.has(one) ? d.give(other) : d.drop(other);
  if (d.has("key_len")) d.give("compressed_len"), d.give("k_compressed"), d.give("v_compressed");
  if (!d.has("key_len")) d.drop("compressed_len");
  if (!d.has("index")) d.drop("index_count");
  // Gradients of what is absent.
  if (d.knows("dq") && !d.has("k_compressed")) d.drop("dk_compressed"), d.drop("dv_compressed");
  if (d.knows("dq") && !d.has("k_window")) d.drop("dk_window"), d.drop("dv_window");
  for (const char* gate : {"gate_compressed", "gate_selected", "gate_window"})
    if (!d.has(gate)) d.drop(std::string("d") + gate);
}

void letters(Draw& d) {
  d.x("keep") = d.one_of({0, 1, 2, 5, 17});
}

// Key heads of no head have no list.
void extents(Draw& d) {
  if (!d.x("h")) d.x("g") = 0;
}

// The keys that key_max leaves decide how many compressed ones there are.
void scalars(Draw& d) {
  const int64_t step = d.one_of({1, 2, 4, 16, 16, 32});
  const int64_t each = step * d.one_of({1, 1, 2, 2, 3}), block = step * (1 + d.below(128 / step));
  const bool usual = d.one_in(3);
  d.set<int64_t>("compress_step", usual ? 0 : step);
  d.set<int64_t>("compress_keys", usual ? 0 : each);
  d.set("block_keys", usual ? 0 : static_cast<int32_t>(block));
  for (const char* field : {"count", "window"})
    d.set<int64_t>(field, d.one_in(2) ? d.one_of({1, 2, 3, 8, 40, INT64_MAX}) : 0);
  const int64_t all = d.has("page_table") ? d.x("pages") * d.x("page") : d.x("t");
  const int64_t most = d.knows("key_max") ? d.scalar<int64_t>("key_max") : 0,
                keys = most ? std::min(all, most) : all;
  const int64_t own = usual ? 32 : each, from = usual ? 16 : step;
  d.x("u") = (keys < own ? 0 : (keys - own) / from + 1);
  if (!d.knows("dq")) d.x("u") += d.one_of({0, 0, 0, 2});
}

bool lengths(Filler& f, const Tensor& x) {
  if (!f.is(x, {"compressed_len"})) return false;
  f.places(x, 0, f.extent("k_compressed", 1, 0) + 1);
  return true;
}

const Rules kNsa({"x_nsa_"}, {.tensors = tensors,
                              .letters = letters,
                              .extents = extents,
                              .scalars = scalars,
                              .integers = lengths,
                              .rough = always});

}  // namespace
}  // namespace random_calls
