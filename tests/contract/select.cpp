// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr char kBlock[] = "x_select_block";

TEST(ContractSelectBlock, Numbers) {
  const Call plain_call = valid(kBlock, "plain"), given_call = valid(kBlock, "given");
  const Params plain = without(plain_call.params, {"count_head"});
  for (const char* field : {"measure", "normalise", "reduce", "rule", "scope", "reduce_raw",
                            "ratio_up", "forced_count", "force_own", "complete", "causal"})
    refuses(with(plain, field, 9), field);
  for (const char* field :
       {"query_max", "key_max", "count", "min_keep", "max_keep", "min_extra", "force_first",
        "force_previous", "force_last", "remap_step", "remap_span", "block_rows", "block_keys"})
    refuses(with(plain, field, -1), field);
  for (const char* field : {"scale", "ratio", "cover"}) {
    refuses(with_number(plain, field, -1), field);
    refuses(with_number(plain, field, NAN), field);
  }
  refuses(with_number(with(plain, "rule", 4), "threshold", NAN), "threshold");
  accepts(with_number(with(plain, "rule", 4), "threshold", -HUGE_VALF));
  says(with(plain, "complete", 1), "x_select_block: complete is 1 without causal, wanted both");
  accepts(with(with(plain, "complete", 1), "causal", 1));
  says(with(plain, "reduce_raw", 1), "x_select_block: reduce_raw is 1 without reduce, wanted 0");
  says(with(plain, "ratio_up", 1), "x_select_block: ratio_up is 1 without ratio, wanted 0");
  // A number that the rule does not read is refused, not ignored.
  const Params none = with(plain, "rule", 6);
  accepts(none);
  says(with(none, "count", 1), "x_select_block: count is given with rule = 6, wanted one of top_k");
  says(with_number(none, "ratio", 0.5f),
       "x_select_block: ratio is given with rule = 6, wanted one of top_k");
  says(with_number(plain, "cover", 0.5f),
       "x_select_block: cover is given with rule = 0, wanted one of top_p_ge, top_p_gt and "
       "top_p_under");
  says(with_number(plain, "threshold", 0.5f),
       "x_select_block: threshold is given with rule = 0, wanted one of above and at_least");
  says(with_number(with(plain, "count", 1), "ratio", 0.5f),
       "x_select_block: count, ratio and count_head are given together, wanted one of them");
  const Params& heads = plain_call.params;
  refuses(with(heads, "count", 1), "count_head");
  says(with(heads, "scope", 2),
       "x_select_block: count_head is given with scope all, wanted one number for all heads");
  const Params& given = given_call.params;
  says(with_number(given, "cover", 0.5f),
       "x_select_block: cover and cover_head are given together, wanted one of them");
  says(with(with(plain, "remap_step", 3), "remap_span", 1),
       "x_select_block: remap_step is 3, wanted a divisor of block_keys = 64");
  says(with(plain, "remap_step", 4), "x_select_block: remap_span is 0, wanted 1 .. 65536");
  says(with(plain, "remap_span", 4),
       "x_select_block: remap_span is 4 without remap_step, wanted 0");
}

TEST(ContractSelectBlock, WhatGoesTogether) {
  const Call plain_call = valid(kBlock, "plain"), all_call = valid(kBlock, "all"),
             given_call = valid(kBlock, "given");
  const Params &plain = plain_call.params, &all = all_call.params, &given = given_call.params;
  says(without(plain, {"row"}), "x_select_block: column is given without row, wanted both");
  says(without(plain, {"column"}), "x_select_block: row is given without column, wanted both");
  says(without(plain, {"row", "column"}),
       "x_select_block: row and score are absent with rule = 0, wanted one of them");
  says(without(plain, {"index"}), "x_select_block: kept_score is given without index, wanted both");
  says(without(plain, {"index", "index_count", "kept_score"}),
       "x_select_block: index and index_count are both absent, wanted one of them or both");
  says(with(plain, "measure", 1),
       "x_select_block: column_low is absent with measure = 1, wanted it for box alone");
  says(with(plain, "normalise", 2),
       "x_select_block: column_weight is absent with normalise = 2, wanted it for weighted alone");
  const Call normalised = valid(kBlock, "normalised");
  says(with(normalised.params, "normalise", 0),
       "x_select_block: row_lse is given with normalise = 0, wanted it for softmax alone");
  says(with(with(normalised.params, "reduce", 1), "reduce_raw", 1),
       "x_select_block: row_lse is given with reduce_raw = 1, wanted one of them");
  says(with(all, "measure", 0),
       "x_select_block: column_low is given with measure = 0, wanted it for box alone");
  says(with(all, "normalise", 1),
       "x_select_block: column_weight is given with normalise = 1, wanted it for weighted alone");
  Params p = with(with(all, "remap_step", 4), "remap_span", 1);
  says(p, "x_select_block: block_mask is given with remap_step, wanted none: it names columns");
  p["block_mask"].data = nullptr;
  says(p, "x_select_block: column_forced is given with remap_step, wanted none: it names columns");
  p = without(given, {"score", "cover_head"});
  p = with(p, "rule", 6);
  says(p, "x_select_block: key_max is 0 without columns, wanted the longest sequence of keys");
  accepts(with(p, "key_max", 100));
  says(with(with(p, "key_max", 100), "normalise", 1),
       "x_select_block: normalise is 1 without scores, wanted 0");
  p = plain, p["column"].shape[2] = 3;
  says(p, "x_select_block: column.shape[2] (g) is 3, wanted a divisor of the 4 heads of row");
  p = plain;
  for (const char* field : {"index", "index_count", "kept_score", "kept_mass", "score_out"})
    resize(p[field], 1, 2);
  p["count_head"].data = nullptr;
  says(p, "x_select_block: index.shape[1] (x) is 2, wanted without reduce the 4 heads of row");
  accepts(with(p, "reduce", 1));
  p = plain, p["row"].shape[3] = p["column"].shape[3] = 577;
  refuses(p, "row.shape", FOVEA_UNSUPPORTED);
  p = given, p["score"].shape[3] = int64_t{1} << 31;
  p["score"].stride[3] = 0;
  refuses(p, "index", FOVEA_UNSUPPORTED);
}

TEST(ContractSelectToken, NumbersAndWhatGoesTogether) {
  constexpr char op[] = "x_select_token";
  const Call plain_call = valid(op, "plain"), all_call = valid(op, "all"),
             codes_call = valid(op, "codes"), packed_call = valid(op, "packed"),
             paged_call = valid(op, "paged");
  const Params &weighted = plain_call.params, &all = all_call.params, &codes = codes_call.params;
  const Params plain = without(with(weighted, "measure", 0), {"weight"});
  accepts(plain);
  for (const char* field : {"measure", "reduce", "causal"}) refuses(with(plain, field, 9), field);
  for (const char* field :
       {"query_max", "key_max", "window_left", "window_right", "sink_keys", "key_step", "count",
        "first_keys", "last_keys", "force_last", "pool_keys", "subset", "block_keys"})
    refuses(with(plain, field, -1), field);
  for (const char* field : {"scale", "ratio"}) refuses(with_number(plain, field, NAN), field);
  says(with_number(plain, "ratio", 1.5f), "x_select_token: ratio is 1.5, wanted 0 .. 1");
  says(with_number(with(plain, "pool_keys", 2), "ratio", 0.5f),
       "x_select_token: ratio is 0.5 with pool_keys, wanted count alone");
  refuses(with(plain, "key_step", int64_t{1} << 31), "key_step");
  refuses(with(plain, "key_shift", int64_t{1} << 31), "key_shift");
  refuses(with(plain, "key_shift", -(int64_t{1} << 31)), "key_shift");
  refuses(with(plain, "sink_keys", 2), "sink_keys");
  says(with(plain, "block_keys", 8),
       "x_select_token: block_keys is 8 without block_mask, wanted 0");
  says(with(plain, "subset", 2), "x_select_token: subset is 2 with measure = 0, wanted 0");
  says(with(plain, "measure", 3), "x_select_token: subset is 0 with measure = 3, wanted 1 .. d");
  says(with(with(plain, "measure", 3), "subset", 9),
       "x_select_token: subset is 9 with measure = 3, wanted 1 .. d");
  accepts(with(with(plain, "measure", 3), "subset", 8));
  says(with(weighted, "measure", 0),
       "x_select_token: weight is given with measure = 0, wanted it for relu_weighted alone");
  says(with(plain, "measure", 2),
       "x_select_token: code is absent with measure = 2, wanted it for hamming alone");
  says(with(codes, "measure", 0),
       "x_select_token: code is given with measure = 0, wanted it for hamming alone");
  says(without(plain, {"q"}), "x_select_token: k is given without q, wanted both");
  says(without(plain, {"q", "k"}),
       "x_select_token: k is absent with measure = 0, wanted it for all but hamming");
  says(without(plain, {"index", "index_count", "kept_score"}),
       "x_select_token: index and index_count are both absent, wanted one of them or both");
  refuses(without(plain, {"index"}), "kept_score");
  says(
      with(all, "pool_keys", 2),
      "x_select_token: kept_mass is given with measure = 0 and pool_keys = 2, wanted dot or subset "
      "without pool_keys");
  Params p = all;
  p["k_scale"].shape[3] = 3;
  refuses(p, "k_scale");
  p = plain, p["k"].shape[2] = 3;
  refuses(p, "k.shape");
  says(with(plain, "reduce", 4), "x_select_token: reduce is 4, wanted a fovea_x_select_reduce");
  p = without(plain, {"index_count", "kept_score"});
  resize(p["index"], 1, 2);
  says(p, "x_select_token: index.shape[1] (x) is 2, wanted without reduce the 4 heads of q");
  accepts(with(p, "reduce", 1));
  Params paged = paged_call.params;
  p = packed_call.params, p["cache_row"] = paged["cache_row"];
  says(p, "x_select_token: key_start is given with cache_row, wanted one of them");
}

TEST(ContractSelectLine, NumbersAndWhatGoesTogether) {
  constexpr char op[] = "x_select_line";
  const Call lines_call = valid(op, "plain"), bits_call = valid(op, "all");
  const Params &lines = lines_call.params, &bits = bits_call.params;
  for (const char* field : {"aligned", "in_blocks", "causal"})
    refuses(with(lines, field, 2), field);
  for (const char* field : {"query_max", "key_max", "block_rows", "block_keys"})
    refuses(with(lines, field, -1), field);
  says(with(lines, "key_max", 0),
       "x_select_line: key_max is 0, wanted the longest sequence of keys, >= 1");
  says(with(lines, "block_rows", 16),
       "x_select_line: block_keys is 64 with block_rows = 16, wanted one number for lines");
  accepts(with(bits, "block_rows", 16));
  says(with(lines, "causal", 1), "x_select_line: causal is given, wanted it for bits alone");
  accepts(with(bits, "causal", 1));
  says(with(bits, "in_blocks", 1), "x_select_line: in_blocks is given, wanted it for lines alone");
  says(with(bits, "aligned", 1),
       "x_select_line: aligned is given, wanted it for lines that are not in_blocks alone");
  says(with(lines, "aligned", 0),
       "x_select_line: bits_out is given, wanted it for lines that are aligned or in_blocks alone");
  const Params blocks = with(with(lines, "aligned", 0), "in_blocks", 1);
  says(blocks, "x_select_line: column is given, wanted it for lines that are not in_blocks alone");
  says(without(blocks, {"column"}),
       "x_select_line: column_count is given, wanted it for lines that are not in_blocks alone");
  accepts(without(blocks, {"column", "column_count"}));
  says(without(lines, {"vertical"}),
       "x_select_line: vertical_count is given without vertical, wanted both");
  says(without(lines, {"slash"}), "x_select_line: slash_count is given without slash, wanted both");
  accepts(without(lines, {"slash", "slash_count"}));
  says(without(bits, {"bits"}),
       "x_select_line: bits is absent without vertical or slash, wanted bits or lines");
  Params p = lines, other = bits;
  p["bits"] = other["bits"];
  says(p, "x_select_line: bits is given with vertical or slash, wanted bits or lines");
  says(
      without(lines, {"index", "index_count", "column", "column_count", "bits_out"}),
      "x_select_line: index, index_count, column, column_count and bits_out are all absent, wanted "
      "one of them at least");
  p = with(lines, "key_max", 64 * 9);
  says(p,
       "x_select_line: bits_out.shape[3] (mask_bytes) is 1, wanted 2: a bit for each of 9 key "
       "blocks of key_max");
  refuses(with(without(lines, {"bits_out"}), "key_max", int64_t{1} << 31), "index",
          FOVEA_UNSUPPORTED);
}

TEST(ContractSelectHeads, Numbers) {
  constexpr char op[] = "x_select_heads";
  const Call plain_call = valid(op, "plain"), all_call = valid(op, "all");
  const Params &plain = plain_call.params, &all = all_call.params;
  says(with(plain, "clusters", 0),
       "x_select_heads: clusters is 0 without clusters_of, wanted >= 1");
  says(with(all, "clusters", 1), "x_select_heads: clusters is 1 with clusters_of, wanted 0");
  refuses(with(plain, "clusters", -1), "clusters");
  refuses(with(plain, "causal", 2), "causal");
  refuses(with_number(plain, "scale", -1), "scale");
  Params p = plain;
  p["k"].shape[2] = 3;
  says(p, "x_select_heads: k.shape[2] (g) is 3, wanted a divisor of q's 4 heads");
  p = plain, p["q"].shape[2] = 257, p["q"].stride[2] = 0;
  resize(p["head_map"], 1, 257), resize(p["label"], 1, 257);
  refuses(p, "q.shape", FOVEA_UNSUPPORTED);
}

}  // namespace
}  // namespace contract
