// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

TEST(ContractAlias, MergeMayWriteItsFirstPart) {
  Call plain = valid("merge_forward", "plain");
  Params p = plain.params;
  p["o"].data = p["o_part"].data, p["lse"].data = p["lse_part"].data;
  accepts(p);
  for (int64_t& stride : p["o"].stride) stride *= 2;
  refuses(p, "o_part");
  for (int64_t& stride : p["o"].stride) stride /= 2;
  p["o"].dtype = FOVEA_BF16;
  refuses(p, "o.dtype");
  Call rows = valid("merge_forward", "rows");
  p = rows.params, p["o"].data = p["o_part"].data;
  says(p, "merge_forward: o.data is that of o_part, wanted memory of its own");
}

}  // namespace
}  // namespace contract
