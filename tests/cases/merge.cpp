// SPDX-License-Identifier: Apache-2.0
// merge_forward and merge_backward.
#include "oracle/merge.h"
#include "cases/all.h"
#include "cases/attention_case.h"
#include "cases/merge_case.h"

namespace cases {
namespace {

std::string name_of(const MergeCase& c) {
  auto number = [](const char* letter, int64_t n) {
    return std::string(letter) + std::to_string(n);
  };
  std::string name = std::string(dtype_name(c.part_dtype)) +
                     (c.part_dtype == c.o_dtype ? "" : std::string("_") + dtype_name(c.o_dtype)) +
                     number("/n", c.n) + number("_b", c.b) + number("_u", c.u) + number("_s", c.s) +
                     number("_h", c.h) + number("_e", c.e) + "/" +
                     harness::kLayNames[static_cast<int>(c.lay)];
  const std::pair<bool, const char*> flags[] = {{c.row, "_row"},     {c.empty, "_empty"},
                                                {c.nan, "_nan"},     {c.in_place, "_in_place"},
                                                {!c.lse, "_no_lse"}, {!c.dlse, "_no_dlse"}};
  for (const auto& flag : flags) name += flag.first ? flag.second : "";
  if (c.outputs != 3) name += number("_out", c.outputs);
  return name + (c.note.empty() ? "" : "_" + c.note);
}

// o_part, lse_part and row, which both directions read.
template <class P>
void merge_inputs(Call& call, P& p, const MergeCase& c, uint64_t seed) {
  const harness::Random random(seed);
  uint64_t i = 0;
  const size_t o_part =
      call.add("o_part", p.o_part, Role::in, c.part_dtype, {c.n, c.b, c.u, c.h, c.e}, c.lay);
  call.fill(o_part, [&](const int64_t*) { return random.normal(i++); });
  const size_t lse_part =
      call.add("lse_part", p.lse_part, Role::in, FOVEA_F32, {c.n, c.b, c.h, c.u}, c.lay);
  call.fill(lse_part, [&](const int64_t* at) {
    const double x = 3 * random.normal(i++);
    if (c.nan && at[0] == 1 && at[2] == 0 && at[3] == 1) return static_cast<double>(NAN);
    if (c.empty && (at[3] == 0 || (at[0] + at[3] + at[2]) % 3 == 0)) return -HUGE_VAL;
    return x;
  });
  // Where lse is -inf o may hold anything.
  const oracle::Dense lse = oracle::load(p.lse_part);
  call.account(o_part,
               [&](const int64_t* at) { return lse(at[0], at[1], at[3], at[2]) != -HUGE_VAL; });
  if (!c.row) return;
  const size_t row = call.add("row", p.row, Role::in, FOVEA_I32, {c.n, c.u});
  call.fill(row, [&](const int64_t* at) -> double {
    if ((at[0] + at[1]) % 4 == 3) return -1;
    return static_cast<double>((at[1] * 3 + at[0] * 5) %
                               c.s);  // 3 and s coprime: at most once a part while u <= s
  });
}

}  // namespace

Call build_merge_forward(const MergeCase& c, uint64_t seed) {
  fovea_merge_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(merge_forward), p);
  merge_inputs(call, *p, c, seed);
  size_t o, lse = 0;
  auto part = [&](const char* name, fovea_tensor& slot, const fovea_tensor& from) {
    fovea_tensor x = from;
    x.ndim -= 1;
    for (int i = 0; i < x.ndim; ++i)
      x.shape[i] = from.shape[i + 1], x.stride[i] = from.stride[i + 1];
    return call.add_view(name, slot, Role::inout, x, call.field(std::string(name) + "_part"), 0);
  };
  if (c.in_place) {
    o = part("o", p->o, p->o_part);
    lse = part("lse", p->lse, p->lse_part);
  } else {
    o = call.add("o", p->o, Role::out, c.o_dtype, {c.b, c.s, c.h, c.e}, c.lay);
    if (c.lse) lse = call.add("lse", p->lse, Role::out, FOVEA_F32, {c.b, c.h, c.s}, c.lay);
  }
  auto exact = oracle::merge_forward<double>(*p, oracle::Mode::exact);
  auto rounded = oracle::merge_forward<float>(*p, oracle::Mode::rounded);
  call.expect(o, std::move(exact.o), std::move(rounded.o));
  if (c.lse) call.expect(lse, std::move(exact.lse), std::move(rounded.lse));
  return call;
}

namespace {}  // namespace

Call build_merge_backward(const MergeCase& c, uint64_t seed) {
  fovea_merge_backward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(merge_backward), p);
  merge_inputs(call, *p, c, seed);
  // o and lse of the forward, from its oracle.
  fovea_merge_forward_params forward = {};
  forward.o_part = p->o_part, forward.lse_part = p->lse_part, forward.row = p->row;
  const size_t o = call.add("o", p->o, Role::in, c.o_dtype, {c.b, c.s, c.h, c.e}, c.lay);
  const size_t lse = call.add("lse", p->lse, Role::in, FOVEA_F32, {c.b, c.h, c.s}, c.lay);
  forward.o = p->o, forward.lse = p->lse;
  const auto result = oracle::merge_forward<double>(forward, oracle::Mode::exact);
  call.fill_list(o, result.o.value);
  call.fill_list(lse, result.lse.value);
  const harness::Random random(seed + 1);
  uint64_t i = 0;
  const size_t dout = call.add("dout", p->dout, Role::in, c.o_dtype, {c.b, c.s, c.h, c.e}, c.lay);
  call.fill(dout, [&](const int64_t*) { return random.normal(i++); });
  if (c.dlse) {
    const size_t dlse = call.add("dlse", p->dlse, Role::in, FOVEA_F32, {c.b, c.h, c.s}, c.lay);
    call.fill(dlse, [&](const int64_t*) { return random.normal(i++); });
  }
  size_t do_part = 0, dlse_part = 0;
  if (c.outputs & 1)
    do_part =
        call.add("do_part", p->do_part, Role::out, c.part_dtype, {c.n, c.b, c.u, c.h, c.e}, c.lay);
  if (c.outputs & 2)
    dlse_part =
        call.add("dlse_part", p->dlse_part, Role::out, FOVEA_F32, {c.n, c.b, c.h, c.u}, c.lay);
  auto exact = oracle::merge_backward<double>(*p, oracle::Mode::exact);
  auto rounded = oracle::merge_backward<float>(*p, oracle::Mode::rounded);
  if (c.outputs & 1) call.expect(do_part, std::move(exact.do_part), std::move(rounded.do_part));
  if (c.outputs & 2)
    call.expect(dlse_part, std::move(exact.dlse_part), std::move(rounded.dlse_part));
  return call;
}

namespace {

std::vector<MergeCase> merge_rows() {
  std::vector<MergeCase> rows;
  for (int dtype : {FOVEA_F32, FOVEA_F16, FOVEA_BF16})
    for (Lay lay : {Lay::contiguous, Lay::head_first, Lay::gaps, Lay::odd, Lay::wide}) {
      MergeCase c;
      c.part_dtype = dtype, c.lay = lay;
      c.o_dtype = lay == Lay::odd ? FOVEA_F32 : lay == Lay::gaps ? FOVEA_BF16 : dtype;
      c.n = 3, c.b = 2, c.u = c.s = 17, c.h = 3, c.e = lay == Lay::gaps ? 128 : 40;
      c.empty = lay != Lay::contiguous;
      rows.push_back(c);
      c.row = true, c.u = 7, c.s = 11, c.e = 64;
      rows.push_back(c);
    }
  const int64_t edges[][6] = {{0, 1, 3, 3, 2, 8},    {1, 1, 1, 1, 1, 1},      {2, 1, 0, 0, 2, 8},
                              {2, 0, 3, 3, 2, 8},    {2, 1, 3, 3, 2, 0},      {2, 1, 3, 3, 0, 8},
                              {40, 1, 5, 5, 2, 512}, {2, 2, 300, 300, 8, 128}};
  for (const auto& x : edges) {
    MergeCase c;
    c.note = "edge";
    c.n = x[0], c.b = x[1], c.u = x[2], c.s = x[3], c.h = x[4], c.e = x[5];
    rows.push_back(c);
  }
  // More columns than a thread asks for at once, of few parts and of many.
  for (int64_t n : {2, 4, 5}) {
    MergeCase c;
    c.part_dtype = c.o_dtype = FOVEA_BF16, c.empty = true;
    c.n = n, c.b = 2, c.u = c.s = 9, c.h = 3, c.e = 520;
    rows.push_back(c);
  }
  // Parts without rows: however many, they are none.
  MergeCase c;
  c.note = "edge", c.n = 3, c.u = 0, c.s = 5, c.row = true;
  rows.push_back(c);
  c.note = "small", c.u = c.s = 5, c.row = false;
  rows.push_back(c);
  c.nan = true, c.note = "";
  rows.push_back(c);
  c.nan = false, c.u = 3, c.row = true, c.note = "small";
  rows.push_back(c);
  return rows;
}

std::vector<harness::Case> merge_cases() {
  std::vector<harness::Case> cases;
  for (MergeCase c : merge_rows()) {
    const bool tiny = c.note == "small";
    MergeCase f = c, g = c;
    f.lse = c.lay != Lay::odd;
    cases.push_back({"merge_forward", name_of(f),
                     [f](uint64_t seed) { return build_merge_forward(f, seed); }, "", "", tiny});
    if (!c.row && c.part_dtype == c.o_dtype && c.note.empty()) {
      f.in_place = f.lse = true;
      cases.push_back({"merge_forward", name_of(f),
                       [f](uint64_t seed) { return build_merge_forward(f, seed); }, "", "", false});
    }
    if (c.nan) continue;
    g.dlse = c.lay != Lay::wide;
    g.outputs = c.lay == Lay::head_first ? 1 : c.lay == Lay::wide && c.row ? 2 : 3;
    cases.push_back({"merge_backward", name_of(g),
                     [g](uint64_t seed) { return build_merge_backward(g, seed); }, "", "", tiny});
  }
  return cases;
}

const Family kFamily("merge", merge_cases);

}  // namespace

}  // namespace cases
