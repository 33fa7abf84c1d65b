// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

const std::string kOp = "x_flex_forward: ";

// What the comments of experimental/flex.h say of numbers and of lists.
TEST(ContractFlex, Numbers) {
  const Params plain = valid("x_flex_forward", "plain").params;
  for (const int64_t bad : {-1, 129})
    says(with(plain, "block", bad),
         kOp + "block is " + std::to_string(bad) + ", wanted 1 .. 128, or 0 for 128");
  for (const char* field : {"key_max", "min_budget", "max_budget"})
    says(with(plain, field, -1), kOp + field + " is -1, wanted >= 0");
  says(with(with(plain, "min_budget", 6), "max_budget", 5),
       kOp + "max_budget is 5 with min_budget = 6, wanted at least as much, or 0");
  for (const char* field : {"cover", "threshold", "scale"}) refuses(with(plain, field, -1), field);
}

TEST(ContractFlex, Lists) {
  const Params plain = valid("x_flex_forward", "plain").params;
  says(without(plain, {"index"}), kOp + "index_count is given without index, wanted both");
  says(with(plain, "block", 1),
       kOp + "index.shape[2] (n) is 4, wanted at least 8: blocks of 1 rows");
}

}  // namespace
}  // namespace contract
