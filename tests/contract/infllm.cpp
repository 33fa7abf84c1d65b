// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr char kOp[] = "x_infllm_forward";

TEST(ContractInfllm, Numbers) {
  const Call all_call = valid(kOp, "all");
  const Params& all = all_call.params;
  for (const char* field : {"window", "init_keys", "count", "block_keys"})
    refuses(with(all, field, -1), field);
  refuses(with_number(all, "scale", -1), "scale");
  says(with(all, "window", int64_t{1} << 31),
       "x_infllm_forward: window is 2147483648, wanted 1 .. 2^31 - 1, or 0 for 4096");
  says(with(all, "block_keys", 65537),
       "x_infllm_forward: block_keys is 65537, wanted 1 .. 65536, or 0 for 128");
  says(with(all, "init_keys", 3),
       "x_infllm_forward: init_keys is 3, wanted a multiple of block_keys = 2");
  says(with(all, "count", -1), "x_infllm_forward: count is -1, wanted >= 0");
  accepts(with(all, "count", INT64_MAX));
  accepts(with(all, "window", INT32_MAX));
}

TEST(ContractInfllm, WhatGoesTogether) {
  const Call all_call = valid(kOp, "all");
  const Params& all = all_call.params;
  says(without(all, {"index"}),
       "x_infllm_forward: index_count is given without index, wanted both");
  for (const char* field : {"key_len", "block_len", "representative", "q_far", "k_window"})
    refuses(without(all, {field}), field);
  accepts(without(all, {"lse", "local_score", "query_len", "index", "index_count"}));
  Params odd = all;
  resize(odd["representative"], 2, 3);
  says(odd, "x_infllm_forward: representative.shape[2] is 3, wanted a divisor of q's 4 heads");
}

}  // namespace
}  // namespace contract
