// SPDX-License-Identifier: Apache-2.0
// A convolutional attention call as one row of choices, and its name.
#pragma once
#include "cases/attention_case.h"

namespace cases {

// One tap of 1 and zeros: plain attention.
enum class Taps { random, delta };

struct ConvCase {
  std::string note;
  int dtype = FOVEA_F32;
  int64_t b = 2, s = 5, t = 7, h = 2, g = 2, d = 8, e = 8, kernel_rows = 3, kernel_columns = 3;
  bool causal = false, weight_f32 = true, lse = true, o_f32 = false;
  int64_t history = 0, page = 0, query_max = 0;
  Taps taps = Taps::random;
  Where where = Where::batched;
  Lay lay = Lay::contiguous;
  Data data = Data::normal;
  float scale = 0;
  int splits = 0;
  int outputs = 15;  // of the backward: dq dk dv dweight (bits)
  bool sums = false, nondeterministic = false;

  int64_t cost() const { return b * s * t * h * (d + e + kernel_rows * kernel_columns); }
};

inline std::string name_of(const ConvCase& c, bool backward) {
  auto number = [](const char* letter, int64_t n) {
    return std::string(letter) + std::to_string(n);
  };
  std::string name = std::string(dtype_name(c.dtype)) + number("/b", c.b) + number("_s", c.s) +
                     number("_t", c.t) + number("_h", c.h) + number("_g", c.g) + number("_d", c.d) +
                     number("_e", c.e) + number("/", c.kernel_rows) +
                     number("x", c.kernel_columns) + (c.causal ? "_causal" : "_full");
  auto add = [&](bool here, const std::string& word) {
    if (here && !word.empty()) name += "_" + word;
  };
  add(true, kWhereNames[static_cast<int>(c.where)] +
                (c.where == Where::paged ? std::to_string(c.page) : ""));
  add(c.history > 0, number("history", c.history));
  add(c.query_max > 0, number("query_max", c.query_max));
  add(!c.weight_f32 && c.dtype != FOVEA_F32, "weight16");
  add(c.o_f32 && c.dtype != FOVEA_F32, "o_f32");
  add(c.taps == Taps::delta, "delta");
  add(true, kDataNames[static_cast<int>(c.data)]);
  add(c.lay != Lay::contiguous, harness::kLayNames[static_cast<int>(c.lay)]);
  add(c.scale > 0, "scale");
  if (backward) {
    add(c.outputs != 15, number("out", c.outputs));
    add(c.sums, "sums"), add(c.nondeterministic, "nondeterministic");
  } else {
    add(c.splits > 0, number("splits", c.splits)), add(!c.lse, "no_lse");
  }
  add(true, c.note);
  return name;
}

// `shape_seed` decides packed extents, `data_seed` values and lengths.
Call build_conv_forward(const ConvCase& c, uint64_t shape_seed, uint64_t data_seed);
Call build_conv_backward(const ConvCase& c, uint64_t shape_seed, uint64_t data_seed);

}  // namespace cases
