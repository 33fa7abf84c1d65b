// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

TEST(ContractEvict, Forward) {
  constexpr char op[] = "x_evict_forward";
  const Call plain_call = valid(op, "plain"), all_call = valid(op, "all");
  const Params &plain = plain_call.params, &all = all_call.params;
  for (const int64_t bad : {-1, 4})
    says(with(plain, "window", bad), "x_evict_forward: window is " + std::to_string(bad) +
                                         ", wanted 1 .. 3 (keep), or 0 for s");
  for (const int64_t bad : {-1, 2})
    says(with(plain, "width", bad), "x_evict_forward: width is " + std::to_string(bad) +
                                        ", wanted an odd number, or 0 for 63");
  accepts(with(plain, "width", INT64_MAX)), accepts(with(plain, "window", 3));
  says(without(all, {"index"}), "x_evict_forward: index_count is given without index, wanted both");
  says(with_number(plain, "scale", -1.0f),
       "x_evict_forward: x_probe_forward: scale is -1, wanted > 0, or 0 for 1 / sqrt(d)");
}

}  // namespace
}  // namespace contract
