// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr const char* kOps[] = {"x_tpa_forward", "x_tpa_backward"};

TEST(ContractTpa, Queries) {
  for (const char* op : kOps) {
    SCOPED_TRACE(op);
    const std::string at = std::string(op) + ": ";
    const Call factored_call = valid(op, "plain"), dense_call = valid(op, "dense");
    const Params &factored = factored_call.params, &dense = dense_call.params;
    accepts(factored), accepts(dense);
    Params both = factored, from = dense;
    both["q"] = from["q"];
    says(both, at + "q is given with a_q, wanted one of them");
    Params none = without(dense, {"q"});
    if (none.op().find("dq")) none["dq"].data = nullptr;
    says(none, at + "q and a_q are not given, wanted one of them");
    says(without(factored, {"b_q"}), at + "a_q is given without b_q, wanted both");
    Params half = without(dense, {"q"});
    from = factored, half["b_q"] = from["b_q"];
    says(half, at + "q and a_q are not given, wanted one of them");
    says(with_number(dense, "scale_q", 0.5f), at + "scale_q is 0.5 with q, wanted 0");
    accepts(with_number(factored, "scale_q", 0.5f));
  }
}

TEST(ContractTpa, Extents) {
  for (const char* op : kOps)
    for (const auto& [rank, field] :
         {std::pair{"rank_q", "a_q"}, {"rank_k", "a_k"}, {"rank_v", "a_v"}}) {
      const Call none({op, "", "a_q b_q", std::string(rank) + "=0"});
      says(none.params,
           std::string(op) + ": " + field + ".shape[2] (" + rank + ") is 0, wanted >= 1");
      const Call many({op, "", "a_q b_q", std::string(rank) + "=70"});
      accepts(many.params);
    }
  for (const char* op : kOps) {
    const std::string at = std::string(op) + ": ";
    says(Call({op, "", "q", "d=0"}).params,
         at + "b_k.shape[3] (d) is 0 and b_v.shape[3] (e) 6, wanted >= 1");
    refuses(Call({op, "", "q", "e=577"}).params, "e", FOVEA_UNSUPPORTED);
    accepts(Call({op, "", "q", "d=576 e=576 h=1"}).params);
  }
}

TEST(ContractTpa, Numbers) {
  for (const char* op : kOps) {
    SCOPED_TRACE(op);
    const Call call = valid(op, "plain");
    const Params& plain = call.params;
    for (const char* field : {"scale", "scale_q", "scale_k", "scale_v"})
      for (const float bad : {-1.f, NAN, HUGE_VALF}) refuses(with_number(plain, field, bad), field);
    for (const char* field : {"query_max", "key_max", "window_left", "window_right", "sink_keys"})
      refuses(with(plain, field, -1), field);
    refuses(with(plain, "causal", 2), "causal");
    says(with(plain, "sink_keys", 1),
         std::string(op) +
             ": sink_keys is 1 without window_left: there is no left window to see through");
  }
  const Call forward_call = valid(kOps[0], "plain"), backward_call = valid(kOps[1], "plain");
  for (const char* field : {"splits", "key_step"})
    refuses(with(forward_call.params, field, -1), field);
  refuses(with(backward_call.params, "nondeterministic", 3), "nondeterministic");
}

TEST(ContractTpa, Places) {
  const Call packed_call = valid(kOps[0], "packed"), paged_call = valid(kOps[0], "paged");
  Params paged = paged_call.params, packed = packed_call.params;
  Params both = packed;
  both["cache_row"] = paged["cache_row"], resize(both["cache_row"], 0, 2);
  says(both, "x_tpa_forward: key_start is given with cache_row, wanted one of them");
}

TEST(ContractTpa, Gradients) {
  const Call factored_call = valid(kOps[1], "plain"), dense_call = valid(kOps[1], "dense");
  Params dense = dense_call.params, factored = factored_call.params;
  Params p = factored;
  p["dq"] = dense["dq"];
  says(p, "x_tpa_backward: dq is given without q, wanted both");
  for (const char* field : {"da_q", "db_q"}) {
    p = dense, p[field] = factored[field];
    says(p, std::string("x_tpa_backward: ") + field + " is given without " + (field + 1) +
                ", wanted both");
  }
  for (const char* one : {"da_k", "db_k", "da_v", "db_v", "da_q", "db_q", ""})
    accepts(Call({kOps[1], "", std::string("a_q b_q ") + one, ""}).params);
}

}  // namespace
}  // namespace contract
