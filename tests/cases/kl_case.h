// SPDX-License-Identifier: Apache-2.0
// A call of the kl family as one row of choices, and its name.
#pragma once
#include "cases/attention_case.h"

namespace cases {

// near: the student is the teacher with a little noise (widths and key heads alike).
// inf_q: all logits of a row of the student are -inf.
enum class KlData { normal, same, near, large, far, nan_q, nan_k, inf_k, inf_q };
constexpr const char* kKlDataNames[] = {"",      "same",  "near",  "large", "far",
                                        "nan_q", "nan_k", "inf_k", "inf_q"};
enum class KlWeights { none, some, zeros };
constexpr const char* kKlWeightNames[] = {"", "weights", "zero_weights"};

struct KlCase {
  std::string note;
  int teacher = FOVEA_F32, student = FOVEA_F32;
  int64_t b = 2, s = 5, t = 7, h = 4, g = 2, x = 4, d = 8, f = 8;
  Span span = Span::full;
  Where where = Where::batched;
  bool reverse = false, mean = false;
  KlWeights weights = KlWeights::none;
  KlData data = KlData::normal;
  Lay lay = Lay::contiguous;
  float scale = 0;
  int outputs =
      15;  // kl lse_teacher lse_student total; dq_student dk_student dq_teacher dk_teacher
  int incoming = 1;  // backward: dkl, dtotal
  bool nondeterministic = false;
  float share = 0;           // Jensen-Shannon
  int64_t list = -1;         // entries of a row's list
  bool shared_list = false;  // by all heads
  int64_t block = -1;        // keys of a block
  bool pool_max = false;

  bool totals(bool backward) const { return backward ? incoming & 2 : outputs & 8; }
};

inline std::string name_of(const KlCase& c, bool backward) {
  auto number = [](const char* letter, int64_t n) {
    return std::string(letter) + std::to_string(n);
  };
  std::string name = std::string(dtype_name(c.teacher)) +
                     (c.student == c.teacher ? "" : std::string("_") + dtype_name(c.student)) +
                     number("/b", c.b) + number("_s", c.s) + number("_t", c.t) + number("_h", c.h) +
                     number("_g", c.g) + number("_x", c.x) + number("_d", c.d) + number("_f", c.f) +
                     "/" + kSpanNames[static_cast<int>(c.span)];
  auto add = [&](const std::string& word) {
    if (!word.empty()) name += "_" + word;
  };
  add(kWhereNames[static_cast<int>(c.where)]);
  if (c.reverse) add("reverse");
  if (c.mean) add("mean");
  add(kKlWeightNames[static_cast<int>(c.weights)]);
  add(kKlDataNames[static_cast<int>(c.data)]);
  if (c.lay != Lay::contiguous) add(harness::kLayNames[static_cast<int>(c.lay)]);
  if (c.scale > 0) add("scale");
  if (c.list >= 0) add(number("n", c.list));
  if (c.block >= 0) add(number("block", c.block));
  if (c.pool_max) add("max");
  if (c.shared_list) add("shared");
  if (c.share > 0) add(number("share", std::lround(1000 * c.share)));
  if (c.outputs != 15) add(number("out", c.outputs));
  if (backward) add(c.incoming == 1 ? "" : c.incoming == 2 ? "dtotal" : "both");
  if (c.nondeterministic) add("nondeterministic");
  add(c.note);
  return name;
}

Call build_kl_forward(const KlCase& c, uint64_t seed);
Call build_kl_backward(const KlCase& c, uint64_t seed);

}  // namespace cases
