// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr char kOp[] = "x_indexed_forward";

TEST(ContractIndexed, Numbers) {
  const Call plain_call = valid(kOp, "plain");
  const Params& plain = plain_call.params;
  for (const char* field : {"lists", "count", "force_last", "pool_keys", "first_keys", "last_keys",
                            "query_max", "key_max", "window_left", "window_right"})
    refuses(with(plain, field, -1), field);
  for (const char* field : {"measure", "reduce", "causal"}) refuses(with(plain, field, 9), field);
  says(with(plain, "pool_keys", 129),
       "x_indexed_forward: pool_keys is 129, wanted 1 .. 128, or 0 for keys");
  says(with_number(plain, "ratio", 1.5f), "x_indexed_forward: ratio is 1.5, wanted 0 .. 1");
  says(with_number(with(plain, "pool_keys", 2), "ratio", 0.5f),
       "x_indexed_forward: x_select_token: ratio is 0.5 with pool_keys, wanted count alone");
  accepts(with(plain, "lists", 2));
  says(with(plain, "lists", 4),
       "x_indexed_forward: lists is 4 with index of 2 heads (x), wanted 0 or as many");
  says(with(with(plain, "sink_keys", 1), "window_right", 1),
       "x_indexed_forward: x_select_token: sink_keys is 1 without window_left: there is no left "
       "window to see through");
}

TEST(ContractIndexed, WhatGoesTogether) {
  const Call plain_call = valid(kOp, "plain"), codes_call = valid(kOp, "codes"),
             mean_call = valid(kOp, "mean"), packed_call = valid(kOp, "packed");
  const Params &plain = plain_call.params, &codes = codes_call.params, &mean = mean_call.params;
  says(without(plain, {"index_k"}),
       "x_indexed_forward: index_q is given without index_k, wanted both");
  says(without(plain, {"index_q", "index_k"}),
       "x_indexed_forward: weight is given without index_q, wanted both");
  says(without(plain, {"index"}),
       "x_indexed_forward: index_count is given without index, wanted both");
  says(without(codes, {"code"}), "x_indexed_forward: code_q is given without code, wanted both");
  says(without(codes, {"code_q"}), "x_indexed_forward: code is given without code_q, wanted both");
  says(with(codes, "measure", 0),
       "x_indexed_forward: x_select_token: code is given with measure = 0, wanted it for hamming "
       "alone");
  says(with(with(mean, "measure", 1), "subset", 0),
       "x_indexed_forward: x_select_token: kept_mass is given with measure = 1 and pool_keys = 0, "
       "wanted dot or subset without pool_keys");
  Params both = codes, from = plain;
  for (const char* field : {"index_q", "index_k"}) both[field] = from[field];
  says(both, "x_indexed_forward: code is given with index_k, wanted one of them");
  Params packed = packed_call.params;
  from = mean, packed["v_mean"] = from["v_mean"];
  resize(packed["v_mean"], 0, 1);
  says(packed, "x_indexed_forward: v_mean is given with query_start, wanted one of them");
}

// What the comments of experimental/indexed.h say of block_k.
TEST(ContractIndexed, Blocks) {
  const std::string op = "x_indexed_forward: ";
  const Call blocks_call = valid(kOp, "blocks"), plain_call = valid(kOp, "plain"),
             codes_call = valid(kOp, "codes"), all_call = valid(kOp, "all"),
             mean_call = valid(kOp, "mean"), packed_call = valid(kOp, "packed");
  const Params &blocks = blocks_call.params, &plain = plain_call.params;
  accepts(blocks);
  for (const int64_t bad : {-1, 129})
    says(with(blocks, "index_step", bad),
         op + "index_step is " + std::to_string(bad) + ", wanted 1 .. 128, or 0 without block_k");
  says(with(blocks, "index_step", 0), op + "index_step is 0 with block_k, wanted 1 .. 128");
  says(with(plain, "index_step", 2), op + "index_step is 2 without block_k, wanted 0");
  says(with(blocks, "index_step", 1),
       op + "block_k.shape[1] (blocks) is 4, wanted at least 8: blocks of 1 keys and the tail of 7 "
            "keys");
  for (const char* field :
       {"window_left", "window_right", "sink_keys", "first_keys", "last_keys", "pool_keys"})
    says(with(blocks, field, 1), op + field + " is 1 with block_k, wanted 0");
  says(with_number(blocks, "ratio", 0.5f), op + "ratio is 0.5 with block_k, wanted count alone");
  says(with(blocks, "causal", 0), op + "causal is 0 with block_k, wanted 1");
  says(without(blocks, {"index_q"}), op + "block_k is given without index_q, wanted both");
  const std::pair<const char*, const Call*> others[] = {{"index_k", &plain_call},
                                                        {"code", &codes_call},
                                                        {"v_mean", &mean_call},
                                                        {"key_start", &packed_call},
                                                        {"context_len", &all_call}};
  for (const auto& [field, call] : others) {
    Params p = blocks, from = call->params;
    p[field] = from[field];
    refuses(p, field);
  }
}

}  // namespace
}  // namespace contract
