// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

// The tensors of a format, and no others.
void tensors(Draw& d) {
  const int64_t format = d.one_of({0, 0, 1, 1, 2, 3, 3});
  const auto keep = [&](bool wanted, std::initializer_list<const char*> fields) {
    for (const char* field : fields) wanted ? d.give(field) : d.drop(field);
  };
  const bool scaled = format == 0 || format == 3;
  keep(scaled, {"k_scale", "k_zero", "v_scale", "v_zero", "k_tail", "v_tail"});
  keep(format == 3, {"k_factor", "v_factor"});
  keep(!scaled, {"k_level", "v_level"});
  keep(format == 1, {"k_offset", "k_range", "v_bound"});
  keep(format == 2, {"k_norm", "v_norm"});
  if (format == 0 || !d.has("k_first")) keep(false, {"k_first", "v_first"});
  if (d.has("k_first")) d.give("v_first");
  if (format != 1) keep(false, {"k_outlier", "v_outlier"});
}
int32_t format_of(const Draw& d) {
  return d.has("k_factor") ? 3 : d.has("k_scale") ? 0 : d.has("k_offset") ? 1 : 2;
}

// Groups are whole words; pages, tails and values are whole groups.
void extents(Draw& d) {
  const int32_t format = format_of(d);
  const int64_t bits = format % 3 && d.one_in(3) ? 3 : d.one_of({2, 2, 4});
  const int64_t codes = bits == 3 ? 32 : 32 / bits;
  const int64_t group = d.one_in(2) ? 32 : codes * d.one_of({1, 2, 3, 4});
  d.x("kv_bits") = bits == 2 && d.one_in(2) ? 0 : bits;
  d.x("kv_group") = group == 32 && d.one_in(2) ? 0 : group;
  d.x("page") = group * d.one_of({1, 2, 2, 3}), d.x("residual") = group * d.one_of({1, 2, 4});
  d.x("e") = d.one_in(40) ? 0 : std::max<int64_t>(1, d.x("e") / group) * group;
  if (group == 32 && d.one_in(2)) d.x("d") = d.x("e") = d.one_of({64, 128});
  d.x("page_groups") = d.x("page") / group, d.x("k_words") = group * bits / 32;
  const int64_t v_bits = format == 3 ? d.one_of({2, 4}) : bits;
  d.x("kv_v_bits") = v_bits == bits && d.one_in(2) ? 0 : v_bits;
  if (format == 3) d.x("e") = d.x("e") / (32 / v_bits) * (32 / v_bits);
  d.x("v_words") = d.x("e") * v_bits / 32, d.x("v_groups") = format == 3 ? 1 : d.x("e") / group;
  d.x("ring") = d.x("residual") + (format == 3 ? 0 : 1);
  d.x("levels") = int64_t{1} << bits;
  d.x("firsts") = format == 3 ? group * d.one_of({0, 1, 2}) : d.one_of({0, 1, 1, 4, 40});
  for (const auto& [letter, width] : {std::pair{"k_outliers", "d"}, {"v_outliers", "e"}})
    d.x(letter) = std::min(d.one_of({0, 2, 2, 8, 20}),
                           std::max<int64_t>(0, d.x("g") * d.x(width) - 1) / 2 * 2);
}

void scalars(Draw& d) {
  d.set("bits", static_cast<int32_t>(d.x("kv_bits")));
  d.set("group", static_cast<int32_t>(d.x("kv_group")));
  d.set("format", format_of(d));
  d.set("v_bits", static_cast<int32_t>(d.x("kv_v_bits")));
}

bool integers(Filler& f, const Tensor& x) {
  const int64_t pool = f.extent("v_code", 0, 0), page = f.extent("v_code", 1, 1);
  const int64_t residual = f.given("k_tail") ? f.extent("k_tail", 1, 1) : INT32_MAX;
  const int64_t capacity = f.extent("page_table", 1, 0) * page;
  const bool writes = f.given("k_new");
  if (f.is(x, {"k_code", "v_code"})) {
    f.put<uint32_t>(x, [&] { return static_cast<uint32_t>(f.random(0, UINT32_MAX)); });
    return true;
  }
  // Sorted columns, none twice, then unused entries.
  if (f.is(x, {"k_outlier", "v_outlier"})) {
    const int64_t outliers = std::max<int64_t>(1, x.view.shape[2]);
    int64_t n = 0, used = 0;
    f.put<uint32_t>(x, [&] {
      const int64_t at = n++ % outliers;
      if (at == 0) used = f.random(0, outliers);
      return static_cast<uint32_t>(at < used ? at * 7 + f.random(0, 6) : 65535) |
             static_cast<uint32_t>(f.random(0, 0x7bff)) << 16;
    });
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

const Rules kKv({"x_kv_"},
                {.tensors = tensors, .extents = extents, .scalars = scalars, .integers = integers});

}  // namespace
}  // namespace random_calls
