// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr char kOp[] = "x_compressed_forward";

TEST(ContractCompressed, Numbers) {
  const Call all_call = valid(kOp, "all");
  const Params& all = all_call.params;
  for (const char* field : {"key_max", "compress_step", "count", "window"})
    refuses(with(all, field, -1), field);
  for (const char* field : {"scale", "index_scale"}) refuses(with_number(all, field, -1), "scale");
  says(with(all, "compress_step", 65537),
       "x_compressed_forward: compress_step is 65537, wanted 1 .. 65536, or 0 for 4");
  says(with(all, "count", -1), "x_compressed_forward: count is -1, wanted >= 0");
  accepts(with(all, "count", INT64_MAX));
  accepts(with(all, "window", INT64_MAX));
}

TEST(ContractCompressed, WhatGoesTogether) {
  const Call all_call = valid(kOp, "all"), plain_call = valid(kOp, "plain");
  const Params &all = all_call.params, &plain = plain_call.params;
  says(without(all, {"index_k"}),
       "x_compressed_forward: index_q is given without index_k, wanted both");
  says(without(all, {"index_q"}),
       "x_compressed_forward: index_k is given without index_q, wanted both");
  says(without(all, {"index_q", "index_k"}),
       "x_compressed_forward: weight is given without index_q, wanted both");
  says(without(all, {"index_q", "index_k", "weight"}),
       "x_compressed_forward: index is given without index_q, wanted both");
  says(without(all, {"index"}),
       "x_compressed_forward: index_count is given without index, wanted both");
  says(without(all, {"compressed_len"}),
       "x_compressed_forward: key_len is given without compressed_len, wanted both");
  says(without(all, {"key_len"}),
       "x_compressed_forward: compressed_len is given without key_len, wanted both");
  accepts(without(all, {"weight", "index", "index_count", "sink_logit", "lse"}));
  // 5 keys are 2 compressed ones of 2, and 5 of 1.
  says(with(plain, "compress_step", 1),
       "x_compressed_forward: k_compressed.shape[1] (u) is 3, wanted at least 5: blocks of 1 keys");
  accepts(with(with(plain, "compress_step", 1), "key_max", 3));
  accepts(with(all, "compress_step", 1));
}

TEST(ContractCompressed, Backward) {
  constexpr char op[] = "x_compressed_backward";
  const Call all_call = valid(op, "all"), plain_call = valid(op, "plain");
  const Params &all = all_call.params, &plain = plain_call.params;
  for (const char* field : {"compress_step", "window"}) refuses(with(all, field, -1), field);
  refuses(with_number(all, "scale", -1), "scale");
  says(with(all, "compress_step", 65537),
       "x_compressed_backward: compress_step is 65537, wanted 1 .. 65536, or 0 for 4");
  says(without(all, {"compressed_len"}),
       "x_compressed_backward: key_len is given without compressed_len, wanted both");
  says(without(all, {"index"}),
       "x_compressed_backward: index_count is given without index, wanted both");
  says(without(all, {"sink_logit"}),
       "x_compressed_backward: dsink_logit is given without sink_logit, wanted both");
  says(with(plain, "compress_step", 1),
       "x_compressed_backward: k_compressed.shape[1] (u) is 2, wanted 5: blocks of 1 keys");
  accepts(with(all, "compress_step", 1));
  accepts(without(all, {"dq", "dk", "dv_compressed", "dsink_logit", "index_count"}));
}

}  // namespace
}  // namespace contract
