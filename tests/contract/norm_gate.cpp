// SPDX-License-Identifier: Apache-2.0
// What x_norm_gate refuses in words that the dialect has no form for.
#include "contract/check.h"

namespace contract {
namespace {

template <class T>
void set(Params& p, const char* field, T value) {
  p.at<T>(p.op().find(field)->offset) = value;
}

constexpr const char* kOps[] = {"x_norm_gate_forward", "x_norm_gate_backward"};

TEST(ContractNormGate, Numbers) {
  for (const char* op : kOps)
    for (const char* field : {"factor", "eps"})
      for (const float bad : {-1.0f, HUGE_VALF, NAN}) {
        Params p = valid(op, "plain").params;
        set(p, field, bad);
        refuses(p, field);
      }
}

TEST(ContractNormGate, GroupIsADivisor) {
  for (const char* op : kOps)
    for (const int64_t bad : {int64_t{-1}, int64_t{4}, int64_t{7}, INT64_MAX}) {
      Params p = valid(op, "plain").params;  // e is 6
      set(p, "group", bad);
      refuses(p, "group");
    }
}

TEST(ContractNormGate, EnumsAndTheGate) {
  for (const char* op : kOps) {
    for (const char* field : {"norm", "act", "gate_first"})
      for (const int32_t bad : {-1, 4}) {
        Params p = valid(op, "all").params;
        set(p, field, bad);
        refuses(p, field);
      }
    for (const char* field : {"act", "gate_first"}) {
      Params p = valid(op, "plain").params;
      set(p, field, 1);
      refuses(p, "without gate");
    }
  }
}

}  // namespace
}  // namespace contract
