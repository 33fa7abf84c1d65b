// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// Scales that are found and written.
TEST(ContractCache, FoundScales) {
  Call found = valid("cache_append", "found");
  accepts(found.params);
  accepts(with(found.params, "scale_power_of_two", 1));
  says(with(found.params, "scale_power_of_two", 2),
       "cache_append: scale_power_of_two is 2, wanted 0 or 1");
  Params p = found.params;
  for (const char* name : {"k_scale_out", "v_scale_out"}) resize(p[name], 3, 3);
  says(p, "cache_append: k_scale_out.shape[3] (groups) is 3, wanted a divisor of the 8 columns");
  p = found.params;
  for (const char* name : {"k_scale_out", "v_scale_out"}) resize(p[name], 3, 4);
  says(p, "cache_append: v_scale_out.shape[3] (groups) is 4, wanted a divisor of the 6 columns");
  p = found.params;
  p["k"].dtype = FOVEA_BF16;
  says(p,
       "cache_append: k_scale_out is given for a cache of f32, f16 or bf16, wanted e4m3, e5m2 or "
       "i8");
  p = found.params;
  p["v"].data = p["v_new"].data = nullptr;
  says(p, "cache_append: v_scale_out is given without v, wanted both");
  const Call scaled = valid("cache_append", "all");
  p = scaled.params;
  p["k_scale_out"] = found.params["k_scale_out"];
  says(p, "cache_append: k_scale_out is given with k_scale, wanted one of them");
  p["k_scale_out"] = {};
  says(with(p, "scale_power_of_two", 1),
       "cache_append: scale_power_of_two is 1 without k_scale_out or v_scale_out, wanted one of "
       "them");
}

}  // namespace
}  // namespace contract
