// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

const std::string kOp = "x_pooled_forward: ";

// What the comments of experimental/pooled.h say of summaries: who makes them, and from what.
TEST(ContractPooled, Summaries) {
  const Params plain = valid("x_pooled_forward", "plain").params;
  const Params all = valid("x_pooled_forward", "all").params;
  Params kept = valid("x_pooled_forward", "kept").params;
  says(without(all, {"column", "row"}), kOp + "column_low is given without column, wanted both");
  says(without(kept, {"old_len"}), kOp + "summary is given without old_len, wanted both");
  says(without(kept, {"summary"}), kOp + "old_len is given without summary, wanted both");
  says(without(all, {"row"}),
       kOp + "column.shape[3] (row_width) is 5 without row, wanted 8 as in q");
  Params p = without(all, {"column", "column_low"});
  says(p, kOp + "row.shape[3] (row_width) is 5 without column, wanted 8 as in k");
  p["row"].data = nullptr;
  says(p, kOp + "k.dtype is e4m3 without column, wanted bf16 as in q");
  p = kept, resize(p["summary"], 3, 4);
  says(p, kOp + "summary.shape[3] (summary_width) is 4, wanted 8: 2 parts of k's columns");
  p = kept, resize(p["summary"], 1, 3);
  says(p, kOp + "summary.shape[1] (u) is 3, wanted at least 4: blocks of 2 keys");
  p = all, resize(p["column"], 1, 3), resize(p["column_low"], 1, 3);
  says(p, kOp + "column.shape[1] (u) is 3, wanted at least 4: blocks of 2 keys");
  p = all, p["summary"] = kept["summary"], p["old_len"] = kept["old_len"];
  refuses(p, "summary");
  p = valid("x_pooled_forward", "paged").params, p["cache_row"] = p["key_len"];
  says(p, kOp + "cache_row is given without column and summary, wanted one of them");
}

// How alike queries and keys of a block are.
TEST(ContractPooled, Similar) {
  Params similar = valid("x_pooled_forward", "similar").params;
  says(with(similar, "block_rows", 1),
       kOp + "row_similar_least is given with block_rows = 1, wanted blocks of rows");
  says(with(similar, "reduce", 1), kOp + "row_similar_least is given with reduce = 1, wanted 0");
  Params p = valid("x_pooled_forward", "all").params;
  p["row_similar_least"] = similar["row_similar_least"];
  refuses(p, "row_similar_least");
  p = valid("x_pooled_forward", "all").params;
  p["column_similar_least"] = similar["column_similar_least"];
  says(p, kOp + "column_similar_least is given with column, wanted one of them");
  p = valid("x_pooled_forward", "kept").params;
  p["column_similar_least"] = similar["column_similar_least"];
  says(p, kOp + "column_similar_least is given with summary, wanted one of them");
}

// Bounds by the signs of a group.
TEST(ContractPooled, Subset) {
  const Call call = valid("x_pooled_forward", "kept");
  const Params& kept = call.params;
  accepts(with(kept, "subset", 4));
  says(with(kept, "subset", 5), kOp + "subset is 5, wanted 1 .. 4, or 0 for all columns");
  says(with(valid("x_pooled_forward", "cached").params, "subset", 2),
       kOp + "subset is 2 with measure = 0, wanted 0, or measure box");
  const Params all = valid("x_pooled_forward", "all").params;
  says(with(all, "subset", 2), kOp + "row is given with subset = 2, wanted one of them");
  says(with(with(kept, "subset", 2), "block_rows", 4),
       kOp + "block_rows is 4 with subset = 2, wanted 1");
}

// Blocks and rules.
TEST(ContractPooled, Rules) {
  const Params plain = valid("x_pooled_forward", "plain").params;
  for (const int64_t bad : {-1, 129})
    says(with(plain, "block_rows", bad),
         kOp + "block_rows is " + std::to_string(bad) + ", wanted 1 .. 128, or 0 for 1");
  for (const int64_t bad : {-1, 65537})
    says(with(plain, "block_keys", bad),
         kOp + "block_keys is " + std::to_string(bad) + ", wanted 1 .. 65536, or 0 for 64");
  for (const char* field : {"lists", "query_max", "key_max", "count", "min_keep", "min_extra",
                            "force_first", "force_previous", "force_last", "subset"})
    says(with(plain, field, -1), kOp + field + " is -1, wanted >= 0");
  says(with(plain, "rule", FOVEA_X_SELECT_RULE_NONE),
       kOp + "rule is 6 (none), wanted one that takes by score");
  says(with(plain, "normalise", FOVEA_X_SELECT_NORMALISE_WEIGHTED),
       kOp + "normalise is 2 (weighted), wanted another: there are no weights");
  says(with(plain, "lists", 2), kOp + "lists is 2 with index of 4 heads (x), wanted 0 or as many");
  says(without(plain, {"index"}), kOp + "index_count is given without index, wanted both");
  says(with(plain, "rule", FOVEA_X_SELECT_RULE_ABOVE),
       kOp + "x_select_block: count is given with rule = 4, wanted one of top_k");
  for (const char* field :
       {"measure", "normalise", "reduce", "rule", "scope", "forced_count", "force_own", "causal"})
    refuses(with(plain, field, 9), field);
}

// Attention of codes over the lists.
TEST(ContractPooled, Codes) {
  const Call plain_call = valid("x_pooled_forward", "plain"),
             coded_call = valid("x_pooled_forward", "codes");
  const Params &plain = plain_call.params, &coded = coded_call.params;
  says(with(plain, "quantise", 2), kOp + "quantise is 2, wanted 0 or 1");
  for (const char* field : {"code", "v_code", "q_group", "k_group", "v_group", "q_block", "k_block",
                            "v_block", "k_smooth", "p_format", "accumulate"})
    says(with(plain, field, 1), kOp + field + " is 1 without quantise, wanted 0");
  accepts(coded);
  Params p = coded;
  p["key_len"] = valid("x_pooled_forward", "paged").params["key_len"];
  says(p, kOp + "key_len is given with quantise, wanted one of them");
  says(with(coded, "block_keys", 32),
       kOp + "quant_forward: block_keys is 32, wanted a multiple of 64");
}

}  // namespace
}  // namespace contract
