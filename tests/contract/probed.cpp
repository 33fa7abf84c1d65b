// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

const std::string kOp = "x_probed_forward: ";

// What the comments of experimental/probed.h say of kinds, and of the fields of each.
TEST(ContractProbed, Kinds) {
  // Their memory is to be apart.
  const Call plain_call = valid("x_probed_forward", "plain"),
             columns_call = valid("x_probed_forward", "columns"),
             lines_call = valid("x_probed_forward", "lines");
  const Params &plain = plain_call.params, &lines = lines_call.params;
  Params columns = columns_call.params;
  says(with(plain, "kind", 4), kOp + "kind is 4, wanted a fovea_x_probed_kind");
  for (const char* field : {"probe_rows", "first_keys", "last_keys"})
    says(with(plain, field, 1),
         kOp + field + " is given, wanted it with kind columns and lines alone");
  for (const char* field : {"slash_count", "slash_force_first"})
    for (const Params& p : {plain, columns})
      says(with(p, field, 1), kOp + field + " is given, wanted it with kind lines alone");
  for (const char* field : {"query_max", "force_own", "block_keys"})
    for (const Params& p : {columns, lines})
      says(with(p, field, 1),
           kOp + field + " is given, wanted it with kind blocks and means alone");
  for (const char* field : {"group_stride", "reversed"})
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

// What they say of MEANS.
TEST(ContractProbed, Means) {
  const Call plain_call = valid("x_probed_forward", "plain"),
             means_call = valid("x_probed_forward", "means"),
             all_call = valid("x_probed_forward", "all"),
             packed_call = valid("x_probed_forward", "packed"),
             paged_call = valid("x_probed_forward", "paged");
  const Params &plain = plain_call.params, &means = means_call.params;
  accepts(means);
  says(with_number(plain, "threshold", 0.5f),
       kOp + "threshold is given, wanted it with kind means alone");
  for (const char* field : {"force_previous", "full_last"})
    says(with(plain, field, 1), kOp + field + " is given, wanted it with kind means alone");
  for (const char* field : {"count", "rule"})
    says(with(means, field, 1),
         kOp + field + " is given, wanted it with kind blocks, columns and lines alone");
  says(with_number(means, "cover", 0.5f),
       kOp + "cover is given, wanted it with kind blocks, columns and lines alone");
  for (const char* field : {"group_stride", "reversed"})
    says(with(means, field, 1), kOp + field + " is given, wanted it with kind blocks alone");
  says(with_number(means, "threshold", 0),
       kOp + "threshold is 0 with kind means, wanted > 0, <= 1");
  says(with_number(means, "threshold", 1.5f),
       kOp + "threshold is 1.5 with kind means, wanted > 0, <= 1");
  refuses(with_number(means, "threshold", NAN), "threshold");
  for (const char* field : {"force_previous", "full_last"})
    says(with(means, field, -1), kOp + field + " is -1, wanted >= 0");
  says(with(means, "causal", 0), kOp + "causal is 0 with kind means, wanted 1");
  says(with(without(means, {"index", "index_count"}), "lists", 2),
       kOp + "lists is 2 with kind means, wanted 0 or the 4 heads of q");
  const std::tuple<const char*, const Call*, const char*> others[] = {
      {"cover_head", &all_call, "blocks, columns and lines"},
      {"cache_row", &paged_call, "blocks, columns and lines"},
      {"query_start", &packed_call, "blocks"},
      {"key_start", &packed_call, "blocks"}};
  for (const auto& [field, call, kinds] : others) {
    Params p = without(means, {"index", "index_count"}), from = call->params;
    p[field] = from[field];
    refuses(p, field);
  }
  Params lengths = means, from = all_call.params;
  lengths["query_len"] = from["query_len"];
  says(lengths, kOp + "full_last is 1 with query_len, wanted 0");
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
