// SPDX-License-Identifier: Apache-2.0
// The choices that the sweeps of the kl family share.
#pragma once
#include "cases/kl_case.h"
#include "harness/pairwise.h"

namespace cases {

struct KlSweep {
  static constexpr int kTypes[][2] = {{FOVEA_F32, FOVEA_F32},   {FOVEA_F16, FOVEA_F16},
                                      {FOVEA_BF16, FOVEA_BF16}, {FOVEA_BF16, FOVEA_F32},
                                      {FOVEA_F32, FOVEA_F16},   {FOVEA_F16, FOVEA_BF16}};
  static constexpr int64_t kLengths[][2] = {{5, 7},   {65, 64}, {70, 130}, {33, 300},
                                            {90, 40}, {1, 97},  {130, 97}, {64, 192}};
  static constexpr int64_t kHeads[][3] = {{4, 4, 4}, {4, 2, 4}, {4, 1, 2},
                                          {4, 4, 1}, {6, 2, 3}, {3, 1, 1}};
  static constexpr int64_t kWidths[][2] = {{64, 64}, {8, 8},    {40, 72},  {128, 64},
                                           {1, 3},   {16, 257}, {128, 128}};
  static constexpr Span kSpans[] = {Span::full,      Span::causal, Span::left,
                                    Span::left_sink, Span::band,   Span::head_window};
  static constexpr Where kWheres[] = {Where::batched, Where::lengths, Where::varlen,
                                      Where::varlen_queries};

  // Dtypes, lengths, heads, widths, what is seen and where from the first six numbers of a row.
  static KlCase shaped(const harness::Row& x) {
    KlCase c;
    c.teacher = kTypes[x[0]][0], c.student = kTypes[x[0]][1];
    c.s = kLengths[x[1]][0], c.t = kLengths[x[1]][1];
    c.h = kHeads[x[2]][0], c.g = kHeads[x[2]][1], c.x = kHeads[x[2]][2];
    c.d = kWidths[x[3]][0], c.f = kWidths[x[3]][1];
    c.span = kSpans[x[4]], c.where = kWheres[x[5]];
    if (c.where == Where::lengths) c.b = 3;
    return c;
  }
};

}  // namespace cases
