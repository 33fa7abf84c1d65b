// SPDX-License-Identifier: Apache-2.0
// cache_append, cache_copy and cache_get.
#include <numeric>

#include "cases/all.h"
#include "cases/cache_case.h"
#include "cases/rope_tables.h"
#include "oracle/cache.h"

namespace cases {
namespace {

std::string name_of(const CacheCase& c) {
  auto number = [](const char* letter, int64_t n) {
    return std::string(letter) + std::to_string(n);
  };
  std::string name = std::string(dtype_name(c.new_dtype)) + "_" + dtype_name(c.cache_dtype) +
                     number("/b", c.b) + number("_s", c.s) + number("_g", c.g) + number("_f", c.f) +
                     number("_d", c.d) + number("_e", c.e) + number("_t", c.t) + "/" +
                     (c.page ? number("paged", c.page) : "contiguous");
  const std::pair<bool, const char*> flags[] = {
      {c.packed, "_packed"},       {c.packed_keys, "_packed_keys"},
      {c.cache_row, "_cache_row"}, {!c.lens, "_no_len"},
      {c.holes, "_holes"},         {c.norm, "_norm"},
      {c.scale, "_scale"},         {c.in_place_len, "_in_place_len"},
      {c.key_max, "_key_max"},     {c.values_only, "_values_only"},
      {c.position, "_position"}};
  for (const auto& flag : flags) name += flag.first ? flag.second : "";
  if (c.groups) name += number("_found", c.groups);
  if (c.power_of_two) name += "_power_of_two";
  if (c.strange) name += "_strange";
  if (c.rope != Rope::none) name += std::string("_") + kRopeNames[static_cast<int>(c.rope)];
  if (c.lay != Lay::contiguous)
    name += std::string("_") + harness::kLayNames[static_cast<int>(c.lay)];
  return name + (c.note.empty() ? "" : "_" + c.note);
}

// Where a cache's tokens are: key_start, page_table and cache_row as the case asks, and the shape
// of the first two axes of a cache tensor.
template <class P>
std::pair<int64_t, int64_t> cache_places(Call& call, P& p, const CacheCase& c, int64_t r,
                                         harness::Random& random) {
  int64_t rows = r + (c.cache_row ? 2 : 0), slots = c.t;
  if (c.cache_row) {
    const size_t field = call.add("cache_row", p.cache_row, Role::in, FOVEA_I32, {r});
    call.fill(field, [&](const int64_t* i) {
      if (i[0] == 1) return c.packed ? static_cast<double>(rows) : -1;  // neither is a row
      return static_cast<double>(rows - 1 - i[0]);
    });
  }
  if (c.page) {
    const int64_t width = (c.t + c.page - 1) / c.page, pool = rows * width + 3;
    std::vector<int64_t> order(pool);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[random.integer(0, static_cast<int64_t>(i))]);
    const size_t field = call.add("page_table", p.page_table, Role::in, FOVEA_I32, {rows, width},
                                  c.lay == Lay::odd ? Lay::odd : Lay::contiguous);
    call.fill(field, [&](const int64_t* i) {
      const bool absent = c.holes && (i[0] + i[1]) % 3 == 1;
      return absent ? -1.0 : static_cast<double>(order[i[0] * width + i[1]]);
    });
    rows = pool, slots = c.page;
  }
  return {rows, slots};
}

double cache_value(const harness::Random& random, uint64_t i, int dtype) {
  if (dtype == FOVEA_I8 || dtype == FOVEA_U8)
    return std::floor(random.uniform(i) * 250) - (dtype == FOVEA_I8 ? 125 : 0);
  if (dtype == FOVEA_I32) return std::floor(random.uniform(i) * 1e9);
  return random.normal(i);
}

}  // namespace

Call build_cache_append(const CacheCase& c, uint64_t seed) {
  fovea_cache_append_params* p;
  Call call = Call::make(FOVEA_TEST_OP(cache_append), p);
  harness::Random random(seed);
  uint64_t n = 0;
  const bool small =
      c.cache_dtype == FOVEA_E4M3 || c.cache_dtype == FOVEA_E5M2 || c.cache_dtype == FOVEA_I8;
  const bool plain = !c.norm && c.rope == Rope::none;
  // Without arithmetic, values reach past the range of the 8-bit types and sit on ties.
  auto fresh = [&](const int64_t* i) {
    const double x = random.normal(n++);
    if (!small) return x;
    if (c.strange && i[1] % 3 == 0) return i[3] % 2 ? 0.0 : -0.0;
    if (c.strange && i[3] % 7 == 2) return i[3] % 3 ? NAN : HUGE_VAL;
    if (c.strange && i[1] % 3 == 1) return x * 1e-38;  // at most 2^-126 a code
    if (!plain) return x * (c.cache_dtype == FOVEA_I8 && !c.scale ? 30 : 1);
    return i[3] % 5 == 0 ? std::round(x * 200) / 2
                         : x * std::exp2(static_cast<double>(i[3] % 22) - 8);
  };
  int64_t b = c.b, s = c.s;
  const int64_t r = c.b;
  std::vector<double> starts{0};
  if (c.packed) {
    for (int64_t i = 0; i < r; ++i)
      starts.push_back(starts.back() + static_cast<double>(i == 1 ? 0 : i % 2 ? 1 : c.s));
    b = 1, s = static_cast<int64_t>(starts.back());
    call.fill_list(call.add("query_start", p->query_start, Role::in, FOVEA_I32, {r + 1}), starts);
    p->query_max = c.s;
  }
  if (!c.values_only)
    call.fill(call.add("k_new", p->k_new, Role::in, c.new_dtype, {b, s, c.g, c.d}, c.lay), fresh);
  call.fill(call.add("v_new", p->v_new, Role::in, c.new_dtype, {b, s, c.f, c.e}, c.lay), fresh);
  auto [rows, slots] = cache_places(call, *p, c, r, random);
  if (c.packed_keys) {
    std::vector<double> key_starts{0};
    for (int64_t i = 0; i < r; ++i)
      key_starts.push_back(key_starts.back() + static_cast<double>(i == 1 ? 2 : c.t));
    rows = 1, slots = static_cast<int64_t>(key_starts.back()) + 2;
    call.fill_list(call.add("key_start", p->key_start, Role::in, FOVEA_I32, {r + 1}), key_starts);
  }
  size_t k = 0;
  auto old = [&](const int64_t*) { return cache_value(random, n++, c.cache_dtype); };
  if (!c.values_only)
    call.fill(k = call.add("k", p->k, Role::inout, c.cache_dtype, {rows, slots, c.g, c.d}, c.lay),
              old);
  const size_t v = call.add("v", p->v, Role::inout, c.cache_dtype, {rows, slots, c.f, c.e}, c.lay);
  call.fill(v, old);
  size_t key_len = 0;
  if (c.lens) {
    // One sequence is nearly full: its last tokens are dropped.
    key_len = call.add("key_len", p->key_len, Role::in, FOVEA_I32, {r});
    call.fill(key_len, [&](const int64_t* i) {
      return static_cast<double>(i[0] == 0 ? c.t - 2 : random.integer(0, c.t - c.s));
    });
    if (!c.packed) {
      const size_t field = call.add("query_len", p->query_len, Role::in, FOVEA_I32, {r});
      call.fill(field, [&](const int64_t* i) {
        return static_cast<double>(i[0] == 0 ? c.s : random.integer(0, c.s));
      });
    }
  }
  if (c.key_max) p->key_max = c.t - 1;
  if (c.rope != Rope::none) {
    const int64_t half = c.d / 2 - (c.d > 16 ? 4 : 0);
    add_table(call, p->cos, p->sin, c.t + c.s, half);
    p->rope_begin = static_cast<int32_t>(c.d - 2 * half),
    p->rope_interleaved = c.rope == Rope::interleaved;
    if (c.position) {
      const size_t field = call.add("position", p->position, Role::in, FOVEA_I32, {b, s});
      call.fill(field, [&](const int64_t*) {
        return static_cast<double>(random.integer(0, c.t + c.s - 1));
      });
    }
  }
  if (c.norm) {
    const int64_t width = c.d > 16 ? c.d - 8 : c.d;
    const size_t field = call.add("norm_weight", p->norm_weight, Role::in, c.new_dtype, {width});
    call.fill(field, [&](const int64_t*) { return 1 + 0.1 * random.normal(n++); });
    if (c.scale) p->norm_eps = 1e-3f;
  }
  if (c.scale) {
    auto scale = [&](const int64_t* i) {
      return (c.cache_dtype == FOVEA_I8 ? 0.03 : 0.7) * (1 + 0.3 * static_cast<double>(i[0]));
    };
    if (!c.values_only)
      call.fill(call.add("k_scale", p->k_scale, Role::in, FOVEA_F32, {c.g}), scale);
    call.fill(call.add("v_scale", p->v_scale, Role::in, FOVEA_F32, {c.f}), scale);
  }
  size_t k_scale = 0, v_scale = 0;
  if (c.groups) {
    p->scale_power_of_two = c.power_of_two;
    auto scales = [&](const char* name, fovea_tensor& slot, int64_t heads) {
      const size_t field =
          call.add(name, slot, Role::inout, FOVEA_F32, {rows, slots, heads, c.groups}, c.lay);
      call.fill(field, [&](const int64_t*) { return random.uniform(n++); });
      return field;
    };
    if (!c.values_only) k_scale = scales("k_scale_out", p->k_scale_out, c.g);
    v_scale = scales("v_scale_out", p->v_scale_out, c.f);
  }
  size_t len_out;
  if (c.in_place_len && c.lens)
    len_out = call.add_view("key_len_out", p->key_len_out, Role::inout, call.fields[key_len].tensor,
                            key_len, 0);
  else
    len_out = call.add("key_len_out", p->key_len_out, Role::out, FOVEA_I32, {r},
                       c.lay == Lay::wide ? Lay::wide : Lay::contiguous);
  auto exact = oracle::cache_append<double>(*p, oracle::Mode::exact);
  auto rounded = oracle::cache_append<float>(*p, oracle::Mode::rounded);
  if (!c.values_only) call.expect(k, std::move(exact.k), std::move(rounded.k), plain);
  call.expect(v, std::move(exact.v), std::move(rounded.v), true);
  if (c.groups && !c.values_only)
    call.expect(k_scale, std::move(exact.k_scale), std::move(rounded.k_scale), plain);
  if (c.groups) call.expect(v_scale, std::move(exact.v_scale), std::move(rounded.v_scale), true);
  call.expect(len_out, std::move(exact.key_len_out), {}, true);
  return call;
}

namespace {}  // namespace

Call build_cache_get(const CacheCase& c, uint64_t seed) {
  fovea_cache_get_params* p;
  Call call = Call::make(FOVEA_TEST_OP(cache_get), p);
  harness::Random random(seed);
  uint64_t n = 0;
  const int64_t r = c.b;
  const auto [rows, slots] = cache_places(call, *p, c, r, random);
  const size_t k = call.add("k", p->k, Role::in, c.cache_dtype, {rows, slots, c.g, c.d}, c.lay);
  call.fill(k, [&](const int64_t*) { return cache_value(random, n++, c.cache_dtype); });
  int64_t b = r, u = c.t + 1;  // one row more than the cache can have
  if (c.packed) {
    std::vector<double> starts{0};
    for (int64_t i = 0; i < r; ++i)
      starts.push_back(starts.back() + static_cast<double>(i == 1 ? 0 : c.t - i));
    b = 1, u = static_cast<int64_t>(starts.back());
    call.fill_list(call.add("key_start", p->key_start, Role::in, FOVEA_I32, {r + 1}), starts);
  }
  if (c.lens) {
    const size_t field = call.add("key_len", p->key_len, Role::in, FOVEA_I32, {r});
    call.fill(field, [&](const int64_t* i) {
      return static_cast<double>(i[0] == 0 ? c.t : random.integer(0, c.t));
    });
  }
  if (c.scale) {
    const size_t field = call.add("k_scale", p->k_scale, Role::in, FOVEA_F32, {c.g});
    call.fill(field, [&](const int64_t* i) { return 0.3 + 0.1 * static_cast<double>(i[0]); });
  }
  if (c.key_max) p->key_max = c.t - 3;
  const size_t out = call.add("k_out", p->k_out, Role::out, c.new_dtype, {b, u, c.g, c.d}, c.lay);
  auto exact = oracle::cache_get(*p);
  call.expect(out, std::move(exact), {}, true);
  return call;
}

namespace {

Call build_cache_copy(const CacheCase& c, uint64_t seed) {
  fovea_cache_copy_params* p;
  Call call = Call::make(FOVEA_TEST_OP(cache_copy), p);
  const harness::Random random(seed);
  uint64_t n = 0;
  const int64_t pages = 9;
  auto value = [&](const int64_t*) { return cache_value(random, n++, c.cache_dtype); };
  const size_t source = call.add("source", p->source, c.values_only ? Role::inout : Role::in,
                                 c.cache_dtype, {pages, c.page, c.g, c.d}, c.lay);
  call.fill(source, value);
  size_t target = source;
  if (c.values_only) {  // within one pool
    target = call.add_view("target", p->target, Role::inout, call.fields[source].tensor, source, 0);
  } else {
    target = call.add("target", p->target, Role::inout, c.cache_dtype,
                      {pages - 2, c.page, c.g, c.d}, c.holes ? Lay::contiguous : c.lay);
    call.fill(target, value);
  }
  const std::vector<double> pairs = {0, 5, -1, 3, 2, -1, 1, 6, 0, 4, 99, 2, 3, 99};
  call.fill_list(call.add("pair", p->pair, Role::in, FOVEA_I32, {7, 2}), pairs);
  call.expect(target, oracle::cache_copy(*p), {}, true);
  return call;
}

std::vector<harness::Case> cache_cases() {
  std::vector<harness::Case> cases;
  auto append = [&](const CacheCase& c) {
    cases.push_back({"cache_append", name_of(c),
                     [c](uint64_t seed) { return build_cache_append(c, seed); }, "", "",
                     c.note == "small"});
  };
  auto get = [&](const CacheCase& c) {
    cases.push_back({"cache_get", name_of(c),
                     [c](uint64_t seed) { return build_cache_get(c, seed); }, "", "",
                     c.note == "small"});
  };
  auto copy = [&](const CacheCase& c) {
    cases.push_back({"cache_copy", name_of(c),
                     [c](uint64_t seed) { return build_cache_copy(c, seed); }, "", "",
                     c.note == "small"});
  };
  static constexpr int cached[] = {FOVEA_F32,  FOVEA_F16,  FOVEA_BF16,
                                   FOVEA_E4M3, FOVEA_E5M2, FOVEA_I8};
  static constexpr int64_t pages[] = {0, 1, 7, 16, 0, 64};
  int n = 0;
  for (int fresh : {FOVEA_F32, FOVEA_F16, FOVEA_BF16})
    for (int to : cached)
      for (int variant = 0; variant < 4; ++variant, ++n) {
        CacheCase c;
        c.new_dtype = fresh, c.cache_dtype = to, c.page = pages[n % 6];
        c.t = c.page == 64 ? 128 : 24;
        c.lay = static_cast<Lay>(n % 5);
        c.scale = to >= FOVEA_E4M3 && variant % 2;
        c.packed = n % 3 == 1, c.cache_row = n % 4 == 2, c.holes = c.page && n % 2,
        c.lens = n % 7 != 3;
        c.packed_keys = c.page == 0 && !c.cache_row && n % 2;
        c.in_place_len = n % 5 == 1, c.key_max = n % 6 == 4;
        if (variant == 2) c.d = 64, c.e = 128, c.g = 8, c.f = 8;
        if (variant == 3) c.d = 7, c.e = 1, c.values_only = n % 8 == 3;
        CacheCase reader = c;
        reader.packed_keys = false, reader.packed = n % 2;
        if (!c.values_only) get(reader);
        c.rope = variant == 0 || c.values_only ? Rope::none : static_cast<Rope>(n % 3);
        c.norm = variant >= 2 && n % 2 && !c.values_only;
        c.position = c.rope != Rope::none && n % 2 == 0;
        append(c);
      }
  // Scales that are found.
  n = 0;
  for (int fresh : {FOVEA_F32, FOVEA_F16, FOVEA_BF16})
    for (int to : {FOVEA_E4M3, FOVEA_E5M2, FOVEA_I8})
      for (int64_t groups : {1, 2, 8})
        for (bool power_of_two : {false, true}) {
          CacheCase c;
          c.new_dtype = fresh, c.cache_dtype = to, c.groups = groups;
          c.power_of_two = power_of_two;
          c.page = pages[n % 6], c.t = c.page == 64 ? 128 : 24;
          c.lay = static_cast<Lay>(n % 5);
          c.packed = n % 3 == 1, c.cache_row = n % 4 == 2, c.holes = c.page && n % 2;
          c.packed_keys = c.page == 0 && !c.cache_row && n % 2;
          c.strange = n % 3 == 0, c.values_only = n % 11 == 5;
          if (n % 4 == 1) c.d = 64, c.e = 128, c.g = 8, c.f = 8;
          // Of rows that are turned a code may fall to either side.
          if (n % 3 == 2 && !c.values_only)
            c.rope = static_cast<Rope>(1 + n % 2), c.norm = n % 4 == 1;
          append(c);
          ++n;
        }
  n = 0;
  for (int type :
       {FOVEA_F32, FOVEA_F16, FOVEA_BF16, FOVEA_E4M3, FOVEA_E5M2, FOVEA_I8, FOVEA_I32, FOVEA_U8})
    for (int64_t page : {1, 16, 5}) {
      CacheCase c;
      c.cache_dtype = type, c.page = page, c.lay = static_cast<Lay>(n % 5), c.holes = n % 2,
      c.values_only = n++ % 4 == 3;
      c.d = page == 5 ? 3 : 64;
      copy(c);
    }
  CacheCase c;
  c.note = "small", c.d = 8, c.e = 4, c.b = 2, c.t = 8, c.s = 2, c.page = 4;
  copy(c);
  c.rope = Rope::half;
  append(c);
  c.cache_dtype = FOVEA_E4M3, c.scale = true, c.rope = Rope::none;
  append(c);
  c.scale = false, c.groups = 2, c.power_of_two = true;
  append(c);
  c.groups = 0, c.power_of_two = false, c.scale = true;
  c.lens = false, c.packed = true, c.b = 3;
  get(c);
  c.note = "edge", c.s = 0, c.packed = false, c.lens = true;
  append(c);
  return cases;
}

const Family kFamily("cache", cache_cases);

}  // namespace

}  // namespace cases
