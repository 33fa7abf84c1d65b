// SPDX-License-Identifier: Apache-2.0
// attention_forward: a pairwise sweep over every choice, and the edges by name.
#pragma once
#include "cases/attention_build.h"
#include "harness/pairwise.h"

namespace cases {

inline Call build_attention_forward(const AttentionCase& c, uint64_t shape_seed,
                                    uint64_t data_seed) {
  fovea_attention_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(attention_forward), p);
  AttentionBuild<fovea_attention_forward_params> build(call, *p, c, shape_seed, data_seed);
  build.build();
  p->splits = c.splits;
  if (c.q_value) {
    const size_t field = build.numbers("q_value", p->q_value, c.dtype, {build.b, build.s, c.h, c.e},
                                       6, c.data, 1, c.lay);
    call.account(field, [&](const int64_t* i) { return build.row_counts(i[0], i[1]); });
  }
  if (c.rope != Rope::none) {
    // Every position a key can have; with an offset into the columns where there is room.
    const int64_t half = c.d >= 16 ? c.d / 2 - 4 : c.d / 2;
    const int64_t positions = std::max(c.t, build.columns) + 1;
    for (int turn = 0; turn < 2; ++turn) {
      fovea_tensor& slot = turn ? p->sin : p->cos;
      const size_t field =
          call.add(turn ? "sin" : "cos", slot, Role::in, FOVEA_F32, {positions, half});
      call.fill(field, [&](const int64_t* i) {
        const double angle =
            static_cast<double>(i[0]) *
            std::pow(10000.0, -static_cast<double>(i[1]) / static_cast<double>(half));
        return turn ? std::sin(angle) : std::cos(angle);
      });
    }
    p->rope_begin = static_cast<int32_t>(c.d - 2 * half);
    p->rope_interleaved = c.rope == Rope::interleaved;
  }
  const size_t o = call.add("o", p->o, Role::out, c.o_f32 ? FOVEA_F32 : c.dtype,
                            {build.b, build.s, c.h, c.e}, c.lay);
  size_t lse = 0;
  if (c.lse) lse = call.add("lse", p->lse, Role::out, FOVEA_F32, {build.b, c.h, build.s}, c.lay);
  const oracle::Attention a = oracle::load_attention(*p);
  auto exact = oracle::forward(a, p->o, p->lse, oracle::Mode::exact);
  auto rounded = oracle::forward(a, p->o, p->lse, oracle::Mode::rounded);
  call.expect(o, std::move(exact.o), std::move(rounded.o));
  if (c.lse) call.expect(lse, std::move(exact.lse), std::move(rounded.lse));
  return call;
}

struct Widths {
  int64_t d, e;
};
constexpr Widths kWidths[] = {{1, 1},     {8, 8},     {40, 40},   {64, 64},   {80, 80},
                              {96, 96},   {128, 128}, {192, 128}, {256, 256}, {512, 512},
                              {576, 512}, {24, 56},   {72, 16}};
constexpr int64_t kHeads[][2] = {{6, 6}, {6, 2}, {6, 1}, {64, 8}};
constexpr int64_t kLengths[][2] = {
    {1, 1},   {1, 3},     {2, 1},   {3, 513},  {64, 128}, {113, 203}, {128, 217}, {239, 1},
    {799, 3}, {108, 256}, {65, 65}, {33, 130}, {1, 700},  {5, 64},    {130, 17},  {16, 40}};
constexpr int64_t kPages[] = {1, 16, 64, 128, 256};
constexpr int kDtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16};

// The sweep's axes, and the case that a row of them is.
inline std::vector<int> attention_axes(bool backward) {
  return {3,
          static_cast<int>(std::size(kWidths)),
          4,
          static_cast<int>(std::size(kLengths)),
          7,
          2,
          2,
          2,
          5,
          2,
          3,
          backward ? 4 : 11,
          5,
          3,
          backward ? 6 : 4,  // outputs; splits
          2,
          backward ? 2 : 3,
          2,
          2};
}

inline AttentionCase attention_case(const harness::Row& x, bool backward) {
  AttentionCase c;
  c.dtype = kDtypes[x[0]];
  c.d = kWidths[x[1]].d, c.e = kWidths[x[1]].e;
  c.h = kHeads[x[2]][0], c.g = kHeads[x[2]][1];
  c.s = kLengths[x[3]][0], c.t = kLengths[x[3]][1];
  c.span = static_cast<Span>(x[4]);
  c.softcap = x[5], c.sink_logit = x[6], c.alibi = x[7];
  c.bias = static_cast<Bias>(x[8]);
  c.mask = x[9];
  c.positions = static_cast<Positions>(x[10]);
  static constexpr Where backward_where[] = {Where::batched, Where::lengths, Where::varlen,
                                             Where::key_first};
  c.where = backward ? backward_where[x[11]] : static_cast<Where>(std::min(x[11], 6));
  if (c.where == Where::paged) c.page = kPages[x[11] - 6];
  c.lay = static_cast<Lay>(x[12]);
  c.data = static_cast<Data>(x[13]);
  c.o_f32 = x[17];
  if (backward) {
    static constexpr int outputs[] = {63, 63, 1, 6, 56, 27};
    c.outputs = outputs[x[14]];
    c.dlse = x[15], c.sums = x[16], c.nondeterministic = x[18];
  } else {
    static constexpr int splits[] = {0, 0, 1, 3};
    c.splits = splits[x[14]];
    c.q_value = x[15];
    c.rope = static_cast<Rope>(x[16]);
    c.lse = !x[18];
    if (c.d == 576 && x[15] == 0) c.shared = Shared::v_in_k;
  }
  const int64_t one = c.s * c.t * c.h * (c.d + c.e);
  c.b = one < 1500000 ? 3 : one < 5000000 ? 2 : 1;
  return c;
}

inline bool attention_valid(const harness::Row& x, bool backward) {
  const AttentionCase c = attention_case(x, backward);
  if (c.rope != Rope::none && c.d < 2) return false;
  if (backward && (c.d == 576 || c.d == 512)) return c.cost() < 2000000;
  return c.cost() * (backward ? 3 : 1) < 20000000 && c.s * c.t * c.h < 800000;
}

inline harness::Case forward_case(AttentionCase c, std::string cuda_kernel = "") {
  const std::string name = name_of(c, false);
  harness::Case out{"attention_forward", name, nullptr, std::move(cuda_kernel), "", false};
  out.build = [c, name](uint64_t seed) {
    return build_attention_forward(c, harness::seed_of(name), seed);
  };
  return out;
}

inline std::vector<harness::Case> attention_forward_sweep() {
  std::vector<harness::Case> cases;
  harness::Pairwise sweep(
      attention_axes(false), [](const harness::Row& x) { return attention_valid(x, false); }, 1);
  for (const harness::Row& row : sweep.rows())
    cases.push_back(forward_case(attention_case(row, false)));
  return cases;
}

}  // namespace cases
