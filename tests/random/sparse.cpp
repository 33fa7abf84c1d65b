// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "random/lists.h"

namespace random_calls {
namespace {

// Which lists go together.
void lists(Draw& d) {
  if (!d.one_in(8)) d.give("index");
  if (!d.has("index"))
    for (const char* name : {"index_count", "index_bias", "key_begin", "tile", "tile_bits"})
      d.drop(name);
  if (!d.has("column")) d.drop("column_count");
  if (!d.has("index") && !d.has("column")) d.drop("row_begin");
  if (d.has("query_start") || d.one_in(2)) d.drop("row_begin"), d.drop("key_begin");
  const bool clusters = d.has("row_begin") || d.has("key_begin");
  if (!d.has("tile") || clusters) d.drop("tile"), d.drop("tile_bits");
  if (d.has("tile")) d.give("tile_bits");
  if (d.has("key_begin") || d.one_in(2)) d.drop("index_bias");
  if (d.has("head_map")) d.drop("q_value");
}

void letters(Draw& d) {
  d.x("x") = d.one_of({1, 1, 2, 4});
  d.x("columns") = d.one_of({0, 1, 3, 70});
  d.x("keep") = d.one_of({0, 1, 2, 5, 17, 70});
  d.x("u") = d.one_of({0, 1, 3, 9});
}

void blocks(Draw& d) {
  const int64_t all = std::gcd(d.x("d"), d.x("e"));
  d.x("groups") = d.one_in(2) ? 1 : std::max<int64_t>(all, 1);
  const int64_t sizes[] = {1, 1, 2, 4, 16, 17, 64, 64, 100, 128};
  const auto size = [&] { return sizes[d.one_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9})]; };
  const bool listed = d.has("index") || d.has("column");
  const int64_t rows = size();
  const int64_t keys = d.has("index_bias") ? 1 : d.one_in(8) ? 300 : size();
  if (listed && !d.has("row_begin")) {
    d.set("block_rows", static_cast<int32_t>(rows));
    const int64_t blocks =
        d.has("query_start") ? d.x("s") / rows + d.x("r") : ceil_div(d.x("s"), rows);
    d.x("n") = (rows == 1 ? d.x("s") : blocks) + d.one_of({0, 0, 2});
  } else {
    d.x("n") = d.one_of({0, 1, 4, 7});
  }
  if (d.has("index") && !d.has("key_begin")) {
    d.set("block_keys", static_cast<int32_t>(keys));
    if (d.one_in(3)) d.set("entry_keys", static_cast<int32_t>((keys + 1) / 2));
  }
  d.x("tile_rows") = rows, d.x("tile_bytes") = ceil_div(keys, 8);
  d.x("tiles") = d.one_of({0, 1, 3});
}

void numbers(Draw& d) {
  const bool listed = d.has("index") || d.has("column");
  for (const char* field : {"first_keys", "last_keys"})
    d.set(field, listed && d.one_in(3) ? d.one_of({1, 3, 70}) : int64_t{0});
  if (!d.knows("skip_margin")) return;
  d.set("skip_margin", d.one_in(4) ? 2.0f : 0.0f);
  d.maybe<int64_t>("key_step", d.one_of({1, 4}));
  d.maybe<int64_t>("key_shift", d.one_of({-9, 3}));
  d.set("splits", static_cast<int32_t>(d.one_of({0, 0, 1})));
}

bool places(Filler& f, const Tensor& x) {
  if (f.is(x, {"index"})) return f.places(x, -1, 20), true;
  if (f.is(x, {"index_count", "column_count"})) return f.places(x, 0, 20), true;
  if (f.is(x, {"column"})) return f.places(x, -1, f.keys()), true;
  if (f.is(x, {"tile"})) return f.places(x, -1, 3), true;
  if (f.is(x, {"head_map"})) return f.places(x, -1, 4), true;
  if (f.is(x, {"skip_head"})) return f.places(x, 0, 1), true;
  if (!f.is(x, {"row_begin", "key_begin"})) return false;
  // Ascending in each list head.
  const int64_t last = x.view.shape[2] - 1, most = f.is(x, {"row_begin"}) ? f.rows() : f.keys();
  int64_t at = 0, n = 0;
  f.put<int32_t>(x, [&] {
    if (n++ % (last + 1) == 0)
      at = f.random(0, 2);
    else
      at = std::min(most, at + f.random(0, std::max<int64_t>(1, 2 * most / (last + 1))));
    return static_cast<int32_t>(at);
  });
  return true;
}

const Rules kSparse({"x_sparse_"}, {.tensors = lists,
                                    .letters = letters,
                                    .extents = blocks,
                                    .scalars = numbers,
                                    .integers = places,
                                    .rough = skips});

}  // namespace
}  // namespace random_calls
