// SPDX-License-Identifier: Apache-2.0
// rope_forward and rope_table_get.
#include "oracle/rope.h"
#include "cases/all.h"
#include "cases/rope_case.h"
#include "cases/rope_tables.h"

namespace cases {
namespace {

std::string name_of(const RopeCase& c) {
  static constexpr const char* places[] = {"index", "position", "outside", "packed",
                                           "packed_position"};
  auto number = [](const char* letter, int64_t n) {
    return std::string(letter) + std::to_string(n);
  };
  return std::string(dtype_name(c.dtype)) + number("/b", c.b) + number("_s", c.s) +
         number("_h", c.h) + number("_d", c.d) + number("_half", c.half) +
         number("_begin", c.begin) + "/" + places[c.place] + (c.interleaved ? "_interleaved" : "") +
         (c.inverse ? "_inverse" : "") + (c.in_place ? "_in_place" : "") + "_" +
         harness::kLayNames[static_cast<int>(c.lay)] + (c.note.empty() ? "" : "_" + c.note);
}

}  // namespace

Call build_rope_forward(const RopeCase& c, uint64_t seed) {
  fovea_rope_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(rope_forward), p);
  const harness::Random random(seed);
  uint64_t i = 0;
  const size_t x = call.add("x", p->x, Role::in, c.dtype, {c.b, c.s, c.h, c.d}, c.lay);
  call.fill(x, [&](const int64_t*) { return random.normal(i++); });
  if (c.place == RopeCase::position || c.place == RopeCase::outside ||
      c.place == RopeCase::packed_position) {
    const size_t at = call.add("position", p->position, Role::in, FOVEA_I32, {c.b, c.s}, c.lay);
    call.fill(at, [&](const int64_t* n) -> double {
      if (c.place == RopeCase::outside && n[1] % 3)
        return n[1] % 3 == 1 ? -1 : static_cast<double>(c.positions);
      return std::floor(random.uniform(i++) * static_cast<double>(c.positions));
    });
  }
  if (c.place == RopeCase::packed || c.place == RopeCase::packed_position) {
    const size_t start = call.add("start", p->start, Role::in, FOVEA_I32, {5});
    // One row before the first sequence, one after the last, where there is room.
    const auto s = static_cast<double>(c.s);
    const double begin = c.s > 3, end = s - begin, cut = std::max(begin, std::floor(s / 3));
    call.fill_list(start, {begin, cut, cut, end, end});
  }
  add_table(call, p->cos, p->sin, c.positions, c.half,
            c.lay == Lay::head_first ? Lay::contiguous : c.lay);
  p->rope_begin = c.begin, p->rope_interleaved = c.interleaved, p->inverse = c.inverse;
  const size_t y = c.in_place
                       ? call.add_view("y", p->y, Role::inout, call.fields[x].tensor, x, 0)
                       : call.add("y", p->y, Role::out, c.dtype, {c.b, c.s, c.h, c.d}, c.lay);
  auto exact = oracle::rope_forward<double>(*p, oracle::Mode::exact);
  auto rounded = oracle::rope_forward<float>(*p, oracle::Mode::rounded);
  call.expect(y, std::move(exact), std::move(rounded));
  return call;
}

namespace {

struct TableCase {
  std::string note;
  int64_t positions = 9, half = 16, begin = 0, original_len = 0;
  float base = 0, factor = 0, low = 0, high = 0;
  int32_t scaling = FOVEA_SCALING_NONE;
  bool frequency = false;
  Lay lay = Lay::contiguous;
};

Call build_rope_table_get(const TableCase& c, uint64_t seed) {
  fovea_rope_table_get_params* p;
  Call call = Call::make(FOVEA_TEST_OP(rope_table_get), p);
  p->position_begin = c.begin, p->original_len = c.original_len;
  p->base = c.base, p->factor = c.factor, p->low_factor = c.low, p->high_factor = c.high,
  p->scaling = c.scaling;
  if (c.frequency) {
    const harness::Random random(seed);
    const size_t f = call.add("frequency", p->frequency, Role::in, FOVEA_F32, {c.half});
    call.fill(f, [&](const int64_t* i) { return random.uniform(static_cast<uint64_t>(i[0])); });
  }
  const size_t cos = call.add("cos", p->cos, Role::out, FOVEA_F32, {c.positions, c.half}, c.lay);
  const size_t sin = call.add("sin", p->sin, Role::out, FOVEA_F32, {c.positions, c.half}, c.lay);
  oracle::Table exact = oracle::rope_table(*p), rounded = exact;
  // The promise is an absolute bound: 2^-22, the size of terms() being scaled by 2^-20.
  for (oracle::Out* x : {&exact.cos, &exact.sin})
    for (int n = 0; n < 64; ++n) x->terms(0.25);
  call.expect(cos, std::move(exact.cos), std::move(rounded.cos));
  call.expect(sin, std::move(exact.sin), std::move(rounded.sin));
  return call;
}

std::vector<harness::Case> rope_cases() {
  std::vector<harness::Case> cases;
  auto add = [&](const RopeCase& c) {
    cases.push_back({"rope_forward", name_of(c),
                     [c](uint64_t seed) { return build_rope_forward(c, seed); }, "", "",
                     c.note == "small"});
  };
  int n = 0;
  for (int dtype : {FOVEA_F32, FOVEA_F16, FOVEA_BF16})
    for (Lay lay : {Lay::contiguous, Lay::head_first, Lay::gaps, Lay::odd, Lay::wide})
      for (int place = 0; place < 5; ++place, ++n) {
        RopeCase c;
        c.dtype = dtype, c.lay = lay, c.place = static_cast<RopeCase::Place>(place);
        static constexpr int64_t widths[][3] = {{64, 32, 0}, {128, 64, 0}, {192, 32, 128},
                                                {80, 20, 0}, {7, 3, 1},    {96, 8, 5},
                                                {1, 0, 0}};
        const auto& w = widths[n % 7];
        c.d = w[0], c.half = w[1], c.begin = static_cast<int32_t>(w[2]);
        c.interleaved = n % 2, c.inverse = n % 3 == 1, c.in_place = n % 4 == 3;
        c.b = place >= RopeCase::packed ? 1 : 2, c.s = 19;
        add(c);
      }
  for (bool interleaved : {false, true}) {
    RopeCase c;
    c.note = "small", c.b = 1, c.s = 4, c.h = 2, c.d = 8, c.half = 4, c.interleaved = interleaved;
    c.place = interleaved ? RopeCase::position : RopeCase::index;
    add(c);
  }
  for (int64_t zero = 0; zero < 4; ++zero) {
    RopeCase c;
    c.note = "edge";
    (zero == 0 ? c.b : zero == 1 ? c.s : zero == 2 ? c.h : c.positions) = 0;
    if (zero == 3) c.half = 0, c.positions = 5;
    add(c);
  }
  auto table = [&](TableCase c) {
    const std::string name = std::string("f32/p") + std::to_string(c.positions) + "_half" +
                             std::to_string(c.half) + "/" + c.note;
    cases.push_back({"rope_table_get", name,
                     [c](uint64_t seed) { return build_rope_table_get(c, seed); }, "", "",
                     c.note.substr(0, 5) == "small"});
  };
  table({"small_plain"});
  table({"small_llama3", 5, 64, 100, 8192, 500000, 8, 1, 4, FOVEA_SCALING_LLAMA3});
  table({"far", 40, 64, (1 << 22) - 41});
  table({"negative", 20, 32, -10});
  table({"base", 20, 32, 1000, 0, 500000});
  table({"linear", 20, 32, 77, 0, 0, 4, 0, 0, FOVEA_SCALING_LINEAR});
  table({"llama3_defaults", 20, 64, 100000, 0, 0, 8, 0, 0, FOVEA_SCALING_LLAMA3});
  table({"yarn_defaults", 20, 64, 60000, 0, 0, 16, 0, 0, FOVEA_SCALING_YARN});
  table({"yarn", 20, 32, 100000, 4096, 10000, 40, 1, 32, FOVEA_SCALING_YARN});
  table({"frequency", 20, 32, 5, 0, 0, 0, 0, 0, FOVEA_SCALING_NONE, true});
  table({"frequency_linear", 20, 32, 5, 0, 0, 2, 0, 0, FOVEA_SCALING_LINEAR, true, Lay::odd});
  table({"wide", 300, 48, 0, 0, 0, 0, 0, 0, FOVEA_SCALING_NONE, false, Lay::wide});
  table({"one", 1, 1, 3});
  table({"no_positions", 0, 4});
  return cases;
}

const Family kFamily("rope", rope_cases);

}  // namespace

}  // namespace cases
