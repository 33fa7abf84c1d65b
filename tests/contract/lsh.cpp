// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

TEST(ContractLsh, Tables) {
  const Call append_call = valid("x_lsh_append", "plain");
  const Params& append = append_call.params;
  Params p = append;
  p["link"].shape[3] = int64_t{1} << 31, repeat(p["link"]);
  refuses(p, "link");
  p = append, resize(p["bucket"], 3, 5);
  accepts(p);
  p = append, resize(p["bucket"], 2, 2);
  refuses(p, "bucket");
  p = append, resize(p["link"], 1, 3);
  refuses(p, "link");
}

TEST(ContractLsh, Numbers) {
  const Call plain_call = valid("x_select_lsh", "plain");
  const Params& plain = plain_call.params;
  for (const int64_t least : {-1, 4})
    says(with(plain, "min_match", least), "x_select_lsh: min_match is " + std::to_string(least) +
                                              ", wanted 1 .. code_q.shape[3] (tables) = 3");
  for (const int64_t least : {1, 3}) accepts(with(plain, "min_match", least));
  for (const int64_t bits : {-1, 32})
    says(with(plain, "bits", bits), "x_select_lsh: bits is " + std::to_string(bits) +
                                        ", wanted 1 .. 31, or 0 for what buckets has");
  accepts(with(plain, "bits", 2));
  says(with(plain, "bits", 3),
       "x_select_lsh: bucket.shape[3] (buckets) is 4, wanted 2^3: bits is 3");
  Params p = plain;
  resize(p["bucket"], 3, 3);
  says(p, "x_select_lsh: bucket.shape[3] (buckets) is 3, wanted a power of two: 2^bits");
  resize(p["bucket"], 3, 0);
  says(p, "x_select_lsh: bucket.shape[3] (buckets) is 0, wanted a power of two: 2^bits");
  p = plain;
  for (const char* field : {"code_q", "bucket", "link"}) {
    const int axis = field[0] == 'c' ? 3 : 2;
    resize(p[field], axis, 1);
  }
  says(p, "x_select_lsh: min_match is 0, which is 2, wanted 1 .. code_q.shape[3] (tables) = 1");
  accepts(with(p, "min_match", 1));
  p = plain;
  for (const char* field : {"bucket", "link"}) resize(p[field], 1, 3);
  says(p, "x_select_lsh: bucket.shape[1] (g) is 3, wanted a divisor of the 4 heads of code_q");
}

TEST(ContractLsh, WhatGoesTogether) {
  const Call all_call = valid("x_select_lsh", "all"), forward_call = valid("x_lsh_forward", "all"),
             short_call = valid("x_lsh_forward", "plain");
  const Params &all = all_call.params, &forward = forward_call.params, &few = short_call.params;
  says(without(all, {"index", "index_count"}),
       "x_select_lsh: index and index_count are both absent, wanted one of them or both");
  says(without(all, {"index"}), "x_select_lsh: index_bias is given without index, wanted both");
  for (const char* field : {"q", "k"})
    says(without(all, {field}),
         std::string("x_select_lsh: index_bias is given without ") + field + ", wanted both");
  says(without(all, {"index_bias", "k"}),
       "x_select_lsh: q is given without index_bias, wanted both");
  says(without(all, {"index_bias", "q"}),
       "x_select_lsh: k is given without index_bias, wanted both");
  says(without(forward, {"index"}),
       "x_lsh_forward: index_count is given without index, wanted both");
  says(without(forward, {"index", "index_count"}),
       "x_lsh_forward: index_bias is given without index, wanted both");
  says(with(forward, "max_keys", 2),
       "x_lsh_forward: max_keys is 2 with index, wanted 0: keep is its places");
  refuses(with(few, "max_keys", -1), "max_keys");
  says(with(few, "min_match", 4),
       "x_lsh_forward: x_select_lsh: min_match is 4, wanted 1 .. code_q.shape[3] (tables) = 3");
  refuses(with_number(few, "scale", -1), "scale");
}

}  // namespace
}  // namespace contract
