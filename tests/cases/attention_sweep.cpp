// SPDX-License-Identifier: Apache-2.0
#include "cases/attention_sweep.h"

namespace cases {
namespace {

constexpr Widths kWidths[] = {{1, 1},     {8, 8},     {40, 40},   {64, 64},   {80, 80},
                              {96, 96},   {128, 128}, {192, 128}, {256, 256}, {512, 512},
                              {576, 512}, {24, 56},   {72, 16}};
constexpr int64_t kHeads[][2] = {{6, 6}, {6, 2}, {6, 1}, {64, 8}};
constexpr int64_t kLengths[][2] = {
    {1, 1},   {1, 3},     {2, 1},   {3, 513},  {64, 128}, {113, 203}, {128, 217}, {239, 1},
    {799, 3}, {108, 256}, {65, 65}, {33, 130}, {1, 700},  {5, 64},    {130, 17},  {16, 40}};
constexpr int64_t kPages[] = {1, 16, 64, 128, 256};

}  // namespace

std::vector<int> attention_axes(bool backward) {
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

AttentionCase attention_case(const harness::Row& x, bool backward) {
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

bool attention_valid(const harness::Row& x, bool backward) {
  const AttentionCase c = attention_case(x, backward);
  if (c.rope != Rope::none && c.d < 2) return false;
  if (backward && (c.d == 576 || c.d == 512)) return c.cost() < 2000000;
  return c.cost() * (backward ? 3 : 1) < 20000000 && c.s * c.t * c.h < 800000;
}

}  // namespace cases
