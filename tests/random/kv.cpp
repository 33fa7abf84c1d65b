// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

// Groups are whole words; pages, tails and values are whole groups.
void extents(Draw& d) {
  const int64_t bits = d.one_of({2, 2, 4}), codes = 32 / bits;
  const int64_t group = d.one_in(2) ? 32 : codes * d.one_of({1, 2, 3, 4});
  d.x("kv_bits") = bits == 2 && d.one_in(2) ? 0 : bits;
  d.x("kv_group") = group == 32 && d.one_in(2) ? 0 : group;
  d.x("page") = group * d.one_of({1, 2, 2, 3}), d.x("residual") = group * d.one_of({1, 2, 4});
  d.x("e") = d.one_in(40) ? 0 : std::max<int64_t>(1, d.x("e") / group) * group;
  if (group == 32 && d.one_in(2)) d.x("d") = d.x("e") = d.one_of({64, 128});
  d.x("page_groups") = d.x("page") / group, d.x("k_words") = group / codes;
  d.x("v_words") = d.x("e") / codes, d.x("v_groups") = d.x("e") / group;
  d.x("ring") = d.x("residual") + 1;
}

void scalars(Draw& d) {
  d.set("bits", static_cast<int32_t>(d.x("kv_bits")));
  d.set("group", static_cast<int32_t>(d.x("kv_group")));
}

bool integers(Filler& f, const Tensor& x) {
  const int64_t pool = f.extent("v_code", 0, 0), page = f.extent("v_code", 1, 1);
  const int64_t residual = f.extent("k_tail", 1, 1);
  const int64_t capacity = f.extent("page_table", 1, 0) * page;
  const bool writes = f.given("k_new");
  if (f.is(x, {"k_code", "v_code"})) {
    f.put<uint32_t>(x, [&] { return static_cast<uint32_t>(f.random(0, UINT32_MAX)); });
    return true;
  }
  if (f.is(x, {"page_table"})) {
    if (writes) return f.distinct(x, pool), true;
    f.places(x, -1, pool - 1);
    return true;
  }
  if (f.is(x, {"cache_row"})) {
    const int64_t rows = f.extent("page_table", 0, 0);
    if (writes) return f.distinct(x, rows), true;
    f.places(x, 0, rows - 1);
    return true;
  }
  if (!f.is(x, {"counter"})) return false;
  // Some state that calls and truncations lead to.
  const int64_t group = page / std::max<int64_t>(1, f.extent("k_code", 1, 1));
  int64_t n = 0, length = 0, keys = 0;
  f.put<int32_t>(x, [&]() -> int32_t {
    const int64_t which = n++ % 4;
    if (which == 0) length = f.random(0, capacity);
    if (which == 1) {
      keys = f.random(std::max<int64_t>(0, length - residual), length) / group * group;
      if (keys < length - residual) keys += group;
    }
    const int64_t values =
        f.random(std::max<int64_t>(0, std::min(keys, length - residual - 1)), keys);
    return static_cast<int32_t>(which == 0 ? length : which == 1 ? keys : which == 2 ? values : 5);
  });
  return true;
}

const Rules kKv({"x_kv_"}, {.extents = extents, .scalars = scalars, .integers = integers});

}  // namespace
}  // namespace random_calls
