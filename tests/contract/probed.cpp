// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

const std::string kOp = "x_probed_forward: ";

// What the comments of experimental/probed.h say of kinds, and of the fields of each.
TEST(ContractProbed, Kinds) {
  const Params plain = valid("x_probed_forward", "plain").params;
  Params columns = valid("x_probed_forward", "columns").params;
  const Params lines = valid("x_probed_forward", "lines").params;
  says(with(plain, "kind", 3), kOp + "kind is 3, wanted a fovea_x_probed_kind");
  for (const char* field : {"probe_rows", "first_keys", "last_keys"})
    says(with(plain, field, 1),
         kOp + field + " is given, wanted it with kind columns and lines alone");
  for (const char* field : {"slash_count", "slash_force_first"})
    for (const Params& p : {plain, columns})
      says(with(p, field, 1), kOp + field + " is given, wanted it with kind lines alone");
  for (const char* field : {"query_max", "group_stride", "force_own", "reversed", "block_keys"})
    for (const Params& p : {columns, lines})
      says(with(p, field, 1), kOp + field + " is given, wanted it with kind blocks alone");
  says(with(lines, "causal", 0), kOp + "causal is 0 with kind lines, wanted 1");
  says(with(columns, "probe_rows", 1),
       kOp + "sample and probe_rows are given together, wanted one of them");
  says(with(lines, "probe_rows", 0),
       kOp + "sample and probe_rows are both absent, wanted one of them");
  says(without(columns, {"query_position"}),
       kOp + "sample is given without query_position, wanted both");
  Params p = plain;
  p["column"] = columns["column"];
  says(p, kOp + "column is given, wanted it with kind columns and lines alone");
}

TEST(ContractProbed, Numbers) {
  const Params plain = valid("x_probed_forward", "plain").params;
  const Params columns = valid("x_probed_forward", "columns").params;
  for (const int64_t bad : {-1, 129})
    says(with(plain, "block_rows", bad),
         kOp + "block_rows is " + std::to_string(bad) + ", wanted 1 .. 128, or 0 for 64");
  for (const int64_t bad : {-1, 65537})
    says(with(plain, "block_keys", bad),
         kOp + "block_keys is " + std::to_string(bad) + ", wanted 1 .. 65536, or 0 for 64");
  for (const char* field :
       {"query_max", "key_max", "lists", "count", "force_first", "group_stride"})
    says(with(plain, field, -1), kOp + field + " is -1, wanted >= 0");
  says(with(plain, "rule", 4),
       kOp + "rule is 4, wanted top_k or a top_p rule of fovea_x_select_rule");
  says(with(plain, "lists", 2), kOp + "lists is 2 with index of 4 heads (x), wanted 0 or as many");
  says(with(columns, "lists", 2),
       kOp + "lists is 2 with column of 4 heads (x), wanted 0 or as many");
  says(without(plain, {"index"}), kOp + "index_count is given without index, wanted both");
  says(without(columns, {"column"}), kOp + "column_count is given without column, wanted both");
  for (const char* field : {"reduce", "forced_count", "force_own", "causal"})
    refuses(with(plain, field, 9), field);
}

}  // namespace
}  // namespace contract
