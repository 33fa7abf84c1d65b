// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// What the comments of experimental/multi_token.h say of its numbers.
TEST(ContractMultiToken, NumbersAndExtents) {
  for (const std::string op : {"x_multi_token_forward", "x_multi_token_backward"}) {
    const bool backward = op == "x_multi_token_backward";
    const Call made = valid(op.c_str(), "mixed");
    const Params call = made.params;
    const auto group = [&](int64_t heads) {
      Params p = call;
      for (const char* name : {"mix_before", "mix_after"}) resize(p[name], 1, heads);
      if (backward)
        for (const char* name : {"dmix_before", "dmix_after"}) resize(p[name], 1, heads);
      return p;
    };
    accepts(group(1));
    for (int64_t bad : {0, 3, 8, 17})
      says(group(bad), op + ": mix_before.shape[1] (group_heads) is " + std::to_string(bad) +
                           ", wanted 1 .. 16, a divisor of q's 4 heads");
    const Params plain = valid(op.c_str(), "plain").params;
    says(with(plain, "causal", 2), op + ": causal is 2, wanted 0 or 1");
    for (const char* field : {"query_max", "key_max", "history"})
      refuses(with(plain, field, -1), field);
    says(with(plain, "history", 1),
         op + ": " + (backward ? "dout" : "o") +
             ".shape[1] (rows_out) is 3, wanted 2: the 3 rows of q.shape[1] less 1 of history");
    for (const float bad : {-1.0f, HUGE_VALF, NAN}) {
      Params p = plain;
      p.at<float>(p.op().find("scale")->offset) = bad;
      refuses(p, "scale");
    }
  }
  Params p = valid("x_multi_token_backward", "mixed").params;
  p["mix_after"].data = nullptr;
  says(p, "x_multi_token_backward: dmix_after is given without mix_after, wanted both");
}

TEST(ContractMultiToken, GroupNorm) {
  for (const char* op : {"x_group_norm_forward", "x_group_norm_backward"})
    for (const char* field : {"factor", "eps"})
      for (const float bad : {-1.0f, HUGE_VALF, NAN}) {
        Params p = valid(op, "plain").params;
        p.at<float>(p.op().find(field)->offset) = bad;
        refuses(p, field);
      }
}

}  // namespace
}  // namespace contract
