// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr char kOp[] = "x_nsa_forward";

TEST(ContractNsa, Numbers) {
  const Call all_call = valid(kOp, "all");
  const Params& all = all_call.params;
  for (const char* field :
       {"query_max", "key_max", "compress_keys", "compress_step", "count", "window", "block_keys"})
    refuses(with(all, field, -1), field);
  refuses(with_number(all, "scale", -1), "scale");
  says(with(all, "gate_plain", 2), "x_nsa_forward: gate_plain is 2, wanted 0 or 1");
  says(with(all, "compress_keys", 65537),
       "x_nsa_forward: compress_keys is 65537, wanted 1 .. 65536, or 0 for 32");
  says(with(all, "block_keys", 129),
       "x_nsa_forward: block_keys is 129, wanted 1 .. 128, or 0 for 64");
  const char* divisor =
      "x_nsa_forward: compress_step is 3, wanted a divisor of compress_keys = 2 and block_keys = "
      "64";
  says(with(all, "compress_step", 3), divisor);
  says(with(all, "block_keys", 3),
       "x_nsa_forward: compress_step is 2, wanted a divisor of compress_keys = 2 and block_keys = "
       "3");
}

TEST(ContractNsa, WhatGoesTogether) {
  const Call all_call = valid(kOp, "all"), given_call = valid(kOp, "given");
  const Params &all = all_call.params, &given = given_call.params;
  says(without(all, {"v_compressed"}),
       "x_nsa_forward: k_compressed is given without v_compressed, wanted both");
  says(without(all, {"k_window"}),
       "x_nsa_forward: v_window is given without k_window, wanted both");
  says(without(all, {"compressed_len"}),
       "x_nsa_forward: key_len is given without compressed_len, wanted both");
  says(without(all, {"key_len"}),
       "x_nsa_forward: compressed_len is given without key_len, wanted both");
  says(without(all, {"k_compressed", "v_compressed"}),
       "x_nsa_forward: key_len is given without k_compressed, wanted both");
  says(without(all, {"index"}), "x_nsa_forward: index_count is given without index, wanted both");
  accepts(without(given, {"index", "index_count"}));
  // 5 keys are 4 compressed ones of 2, one key apart.
  says(with(given, "compress_step", 1),
       "x_nsa_forward: k_compressed.shape[1] (u) is 3, wanted at least 4: compressed keys of 5 "
       "keys");
  accepts(with(with(given, "compress_step", 1), "key_max", 4));
}

TEST(ContractNsa, Backward) {
  constexpr char op[] = "x_nsa_backward";
  const Call all_call = valid(op, "all"), given_call = valid(op, "given");
  const Params &all = all_call.params, &given = given_call.params;
  for (const char* field : {"compress_keys", "compress_step", "window", "block_keys"})
    refuses(with(all, field, -1), field);
  says(with(all, "gate_plain", 2), "x_nsa_backward: gate_plain is 2, wanted 0 or 1");
  says(without(all, {"compressed_len"}),
       "x_nsa_backward: key_len is given without compressed_len, wanted both");
  says(without(all, {"gate_selected"}),
       "x_nsa_backward: dgate_selected is given without gate_selected, wanted both");
  says(without(all, {"k_window", "v_window"}),
       "x_nsa_backward: dk_window is given without k_window, wanted both");
  says(without(given, {"k_compressed", "v_compressed"}),
       "x_nsa_backward: dk_compressed is given without k_compressed, wanted both");
  accepts(without(given, {"dq", "dk", "dv", "dk_compressed"}));
  says(with(given, "compress_step", 1),
       "x_nsa_backward: k_compressed.shape[1] (u) is 2, wanted 4: compressed keys of 5 keys");
}

}  // namespace
}  // namespace contract
