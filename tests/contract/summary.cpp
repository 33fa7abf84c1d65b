// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// What the comments of experimental/summary.h say of x_pool's numbers, and what goes together.
TEST(ContractSummary, Pool) {
  const Params plain = valid("x_pool_forward", "plain").params;
  says(with(plain, "want", 64 + 4),
       "x_pool_forward: want is 68, wanted a sum of max, min, mean and sum of fovea_x_summary, or "
       "ranked, running or gated alone");
  says(with(plain, "want", 3),
       "x_pool_forward: y.shape[3] (f) is 8, wanted 16: 2 parts of x's 8 columns");
  says(with(plain, "want", 16),
       "x_pool_forward: rank_score.data is NULL, wanted it: want is ranked");
  says(with(plain, "want", 64), "x_pool_forward: gate.data is NULL, wanted it: want is gated");
  says(with(plain, "want", 32),
       "x_pool_forward: block is given with want = running, wanted it absent");
  says(with(plain, "block", -1), "x_pool_forward: block is -1, wanted 1 .. 2^30, or 0 for 64");
  says(with(plain, "step", 3), "x_pool_forward: step is 3, wanted 1 .. 2, or 0 for block");
  says(with(plain, "ranked", 2),
       "x_pool_forward: ranked is given, wanted it with want = ranked alone");
  says(with(plain, "overlap", 1),
       "x_pool_forward: overlap is given, wanted it with want = gated alone");
  for (const char* field : {"complete", "overlap"}) refuses(with(plain, field, 2), field);
  refuses(with(plain, "key_max", -1), "key_max");
  Params p = plain;
  p["similar_least"].data = nullptr;
  says(p, "x_pool_forward: dissimilar is given without similar_least, wanted both");
  p = plain;
  for (const char* field : {"x"}) resize(p[field], 2, 3);
  says(p, "x_pool_forward: x.shape[2] (g) is 3, wanted a divisor of y's 2 heads");

  const Params all = valid("x_pool_forward", "all").params;
  says(with(all, "block", 4), "x_pool_forward: block is given with key_begin, wanted one of them");
  says(with(all, "complete", 1),
       "x_pool_forward: complete is given with key_begin, wanted one of them");
  const Params gated = valid("x_pool_forward", "gated").params;
  says(with(gated, "step", 2), "x_pool_forward: step is 2 with overlap, wanted block = 4");
  says(with(gated, "block", 5), "x_pool_forward: bias.shape[0] (places) is 4, wanted 5: block");
  says(with(gated, "want", 0), "x_pool_forward: gate is given, wanted it with want = gated alone");
  const Params running = valid("x_pool_forward", "running").params;
  p = running, p["old_len"].data = nullptr;
  says(p, "x_pool_forward: previous is given without old_len, wanted both");
  says(with(running, "want", 4),
       "x_pool_forward: previous is given, wanted it with want = running alone");
  says(with(valid("x_pool_forward", "ranked").params, "ranked", 0),
       "x_pool_forward: ranked is 0, wanted >= 1");
  p = valid("x_pool_forward", "paged").params, p["page_table"].data = nullptr;
  refuses(p, "x");

  const Params back = valid("x_pool_backward", "plain").params;
  for (int64_t want : {16, 32})
    says(with(back, "want", want),
         "x_pool_backward: want is " + std::to_string(want) +
             ", wanted a sum of max, min, mean and sum of fovea_x_summary, or gated alone");
  p = valid("x_pool_backward", "all").params, p["bias"].data = nullptr;
  says(p, "x_pool_backward: dbias is given without bias, wanted both");
  p["dbias"].data = p["gate"].data = nullptr;
  refuses(with(p, "want", 0), "dgate");
}

// Of x_probe's.
TEST(ContractSummary, Probe) {
  const Params plain = valid("x_probe_forward", "plain").params;
  says(with(plain, "group_stride", 2),
       "x_probe_forward: lse is given with group_stride, wanted it absent");
  says(with(plain, "group_stride", 5),
       "x_probe_forward: group_stride is 5, wanted a divisor of block_rows = 64 and block_keys = "
       "64");
  refuses(with(plain, "group_stride", -1), "group_stride");
  says(with(plain, "reversed", 1), "x_probe_forward: reversed is 1 without group_stride, wanted 0");
  says(with(plain, "block_rows", -1),
       "x_probe_forward: block_rows is -1, wanted >= 1, or 0 for 64");
  says(with(plain, "key_step", 2),
       "x_probe_forward: diagonal_sum is given with key_step = 2 and key_shift = 0, wanted 1 and "
       "0");
  says(with(plain, "reduce", 3), "x_probe_forward: reduce is 3, wanted a fovea_x_probe_reduce");
  for (const char* field : {"causal", "reversed"}) refuses(with(plain, field, 2), field);
  for (const char* field : {"query_max", "key_max", "window_left", "window_right", "sink_keys"})
    refuses(with(plain, field, -1), field);
  Params p = plain;
  for (const char* field : {"column_sum", "diagonal_sum", "block_sum", "block_max"})
    resize(p[field], 1, 3);
  says(p, "x_probe_forward: block_max.shape[1] (x) is 3, wanted a divisor of q's 4 heads");
  p = valid("x_probe_forward", "all").params, p["lse"] = p["lse_in"];
  float own[64];
  p["lse"].data = own;
  says(p, "x_probe_forward: lse is given with lse_in, wanted one of them");
  p = valid("x_probe_forward", "context").params;
  p["query_position"] = valid("x_probe_forward", "all").params["query_position"];
  says(p, "x_probe_forward: context_len is given with query_position, wanted one of them");
  p = plain, p.at<float>(p.op().find("scale")->offset) = -1;
  refuses(p, "scale");
}

// Of x_combine's and x_compare's.
TEST(ContractSummary, CombineAndCompare) {
  const Params plain = valid("x_combine_forward", "plain").params;
  const Params all = valid("x_combine_forward", "all").params;
  says(with(plain, "gate_act", 1), "x_combine_forward: gate_act is 1, wanted 0: there is no gate");
  says(with(all, "gate2_act", 4), "x_combine_forward: gate2_act is 4, wanted a fovea_x_gate");
  says(with(plain, "block_rows", 2), "x_combine_forward: block_rows is 2 without coarse, wanted 0");
  says(with(all, "block_rows", 2), "x_combine_forward: block_rows is 2 with row_begin, wanted 0");
  refuses(with(plain, "block_rows", -1), "block_rows");
  Params p = all;
  p["x3"].data = nullptr;
  says(p, "x_combine_forward: gate3 is given without x3, wanted both");
  p = all, p["coarse"].data = p["gate_coarse"].data = nullptr;
  says(p, "x_combine_forward: row_begin is given without coarse, wanted both");
  p = plain, p.at<float>(p.op().find("coefficient4")->offset) = NAN;
  says(p, "x_combine_forward: coefficient4 is nan, wanted a number");
  p = valid("x_combine_backward", "all").params, p["gate4"].data = nullptr;
  says(p, "x_combine_backward: dgate4 is given without gate4, wanted both");
  p["dgate4"].data = p["x4"].data = nullptr;
  says(p, "x_combine_backward: dx4 is given without x4, wanted both");
  says(with(valid("x_compare_forward", "plain").params, "measure", 2),
       "x_compare_forward: measure is 2, wanted a fovea_x_compare_measure");
}

// Of x_cache_step's.
TEST(ContractSummary, CacheStep) {
  const Params ring = valid("x_cache_step", "plain").params;
  const Params heavy = valid("x_cache_step", "all").params;
  const Params capacity = valid("x_cache_step", "capacity").params;
  says(with(ring, "recent", 0), "x_cache_step: recent is 0, wanted >= 1");
  says(with(ring, "sink_keys", 2),
       "x_cache_step: sink_keys is 2 and recent 4, wanted at most k.shape[1] (t) = 5 together");
  says(with(ring, "heavy", 1), "x_cache_step: heavy is 1 with rule = ring, wanted 0");
  says(with(ring, "rule", 2), "x_cache_step: rule is 2, wanted a fovea_x_cache_rule");
  says(with(ring, "rule", 1), "x_cache_step: score.data is NULL, wanted it: rule is heavy");
  says(with(heavy, "rule", 0), "x_cache_step: score is given with rule = ring, wanted it absent");
  says(with(heavy, "heavy", 2),
       "x_cache_step: heavy is 2, recent 1 and k_new.shape[1] (s) 3, wanted at most k.shape[1] (t) "
       "= 5 together");
  says(with(heavy, "sink_keys", 1), "x_cache_step: sink_keys is 1 with rule = heavy, wanted 0");
  says(with(capacity, "recent", 1), "x_cache_step: recent is 1 with capacity, wanted 0");
  says(with(capacity, "sink_keys", 5),
       "x_cache_step: sink_keys is 5, wanted less than k.shape[1] (t) = 5");
  for (const char* field : {"sink_keys", "recent", "heavy"}) refuses(with(ring, field, -1), field);
  Params p = ring;
  p["v_new"].data = nullptr;
  says(p, "x_cache_step: k_new is given without v_new, wanted both");
}

}  // namespace
}  // namespace contract
