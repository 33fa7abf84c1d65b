// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

TEST(ContractGraph, Append) {
  constexpr char op[] = "x_graph_append";
  const Call plain_call = valid(op, "plain"), joining_call = valid(op, "joining");
  const Params &plain = plain_call.params, &joining = joining_call.params;
  for (const char* field : {"nearest", "kept", "added", "width"})
    refuses(with(plain, field, -1), field);
  says(with(plain, "kept", 1025), "x_graph_append: kept is 1025, wanted 1 .. 1024, or 0 for 16");
  refuses(with(plain, "added", 1025), "added");
  says(with(plain, "kept", 0),
       "x_graph_append: neighbour.shape[3] (degree) is 4, wanted at least 17: kept + added");
  says(with(joining, "nearest", 3), "x_graph_append: nearest is 3 without q, wanted 0");
  const Call all_call = valid(op, "all");
  Params all = all_call.params;
  says(without(all, {"q"}), "x_graph_append: query_len is given without q, wanted both");
  accepts(with(plain, "nearest", INT64_MAX)), accepts(with(plain, "width", INT64_MAX));
}

TEST(ContractGraph, Select) {
  constexpr char op[] = "x_select_graph";
  const Call plain_call = valid(op, "plain"), all_call = valid(op, "all");
  const Params &plain = plain_call.params, &all = all_call.params;
  for (const char* field : {"count", "ef"}) refuses(with(plain, field, -1), field);
  says(with(all, "count", 4),
       "x_select_graph: ef is 3 with count = 4, wanted at least count, or 0 for all keys");
  for (const char* field : {"neighbour", "neighbour_count", "entry"}) {
    says(without(all, {field}),
         std::string("x_select_graph: ") + field + " is absent with ef = 3, wanted it given");
  }
  says(with(all, "ef", 0),
       "x_select_graph: neighbour is given with ef = 0, wanted it absent: all keys are scored");
  Params wide = plain;
  for (const char* field : {"q", "k"}) resize(wide[field], 3, 0);
  says(wide, "x_select_graph: k.shape[3] (d) is 0, wanted >= 1");
}

TEST(ContractGraph, Forward) {
  constexpr char op[] = "x_graph_forward";
  const Call all_call = valid(op, "all");
  const Params& all = all_call.params;
  says(without(all, {"index"}), "x_graph_forward: index_count is given without index, wanted both");
  says(with(all, "count", 4),
       "x_graph_forward: x_select_graph: ef is 3 with count = 4, wanted at least count, or 0 for "
       "all keys");
  says(with(all, "count", -4), "x_graph_forward: x_select_graph: count is -4, wanted >= 0");
  says(with_number(all, "softcap", -1.0f),
       "x_graph_forward: x_sparse_forward: softcap is -1, wanted > 0, or 0 for none");
}

}  // namespace
}  // namespace contract
