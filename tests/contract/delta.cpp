// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr const char* kOps[] = {"x_delta_forward", "x_delta_backward"};

std::string text_of(const char* op, const char* rest) {
  return std::string(op) + ": " + rest;
}

// Of memory that a Call owns: the call is refused or taken before anything is read.
template <class Test>
void each_call(const char* given, const std::string& settings, Test test) {
  for (const char* op : kOps) {
    SCOPED_TRACE(op);
    Call call({op, "",
               std::string(given) + (op == kOps[0] ? " o state_out" : " dq dk dv dstate_in"),
               settings});
    test(op, call.params);
  }
}
std::string heads(int64_t h, int64_t g, int64_t x) {
  return "h=" + std::to_string(h) + " g=" + std::to_string(g) + " x=" + std::to_string(x) +
         " heads=" + std::to_string(std::max(g, x)) +
         " heads_out=" + std::to_string(std::max({h, g, x}));
}

TEST(ContractDelta, Splits) {
  Call call({"x_delta_forward", "", "o state_out", ""});
  for (const int64_t splits : {0, 1, 3, 1 << 30}) accepts(with(call.params, "splits", splits));
  refuses(with(call.params, "splits", -1), "splits");
}

TEST(ContractDelta, Heads) {
  const auto refused = [](int64_t h, int64_t g, int64_t x, const char* field) {
    each_call("", heads(h, g, x), [&](const char*, const Params& p) { refuses(p, field); });
  };
  refused(4, 2, 3, "k"), refused(4, 3, 2, "v"), refused(3, 2, 2, "q"), refused(2, 3, 3, "q");
  refused(4, 3, 3, "q"), refused(2, 0, 2, "k"), refused(2, 2, 0, "v"), refused(0, 2, 2, "q");
  for (const auto& [h, g, x] : {std::array<int64_t, 3>{4, 1, 2}, {2, 1, 4}, {1, 3, 3}, {6, 3, 1}})
    each_call("", heads(h, g, x), [](const char*, const Params& p) { accepts(p); });
  // Those that follow, where they agree with each other but not with k and v.
  for (const char* field : {"beta", "erase", "gate_head", "gate_key"})
    each_call(field, "", [&](const char* op, Params p) {
      resize(p[field], 2, 3);
      if (op == kOps[0]) resize(p["state_out"], 1, 3);
      if (op == kOps[1]) resize(p["dstate_in"], 1, 3);
      refuses(p, std::string(field) + ".shape");
    });
  each_call("low_a low_b", "", [](const char* op, Params p) {
    resize(p["low_a"], 2, 3), resize(p["low_b"], 2, 3);
    resize(p[op == kOps[0] ? "state_out" : "dstate_in"], 1, 3);
    refuses(p, "low_a.shape");
  });
  each_call("", "", [](const char* op, Params p) {
    const char* o = op == kOps[0] ? "o" : "dout";
    resize(p[o], 2, 2);
    refuses(p, std::string(o) + ".shape");
  });
  each_call("state_in", "", [](const char* op, Params p) {
    resize(p["state_in"], 1, 3), resize(p[op == kOps[0] ? "state_out" : "dstate_in"], 1, 3);
    refuses(p, "state_in.shape");
  });
}

TEST(ContractDelta, Extents) {
  each_call("", "d=0", [](const char* op, const Params& p) {
    says(p, text_of(op, "q.shape[3] (d) is 0, wanted >= 1"));
  });
  each_call("", "d=513",
            [](const char*, const Params& p) { refuses(p, "q.shape", FOVEA_UNSUPPORTED); });
  each_call("", "d=512", [](const char*, const Params& p) { accepts(p); });
}

TEST(ContractDelta, Rows) {
  const Params own = valid("x_delta_forward", "own_rows").params;
  const Params all = valid("x_delta_forward", "all").params;
  Params p = own;
  resize(p["state_in"], 0, 5);
  says(p,
       "x_delta_forward: state_in.shape[0] (slots) is 5, wanted 2: without state_row each sequence "
       "of q has a row");
  p = own, resize(p["state_out"], 0, 1);
  says(p,
       "x_delta_forward: state_out.shape[0] (slots_out) is 1, wanted 2: without state_row and "
       "state_out_row each sequence of q has a row");
  p = own, p["o"].data = p["state_out"].data = nullptr;
  says(p, "x_delta_forward: o, state_out and snapshot are not given, wanted one of them at least");
  p = all, p["snapshot_row"].data = nullptr;
  says(p, "x_delta_forward: snapshot is given without snapshot_row, wanted both");
  says(with(all, "snapshot_every", 0), "x_delta_forward: snapshot_every is 0, wanted >= 1");
  says(with(own, "snapshot_every", -1), "x_delta_forward: snapshot_every is -1, wanted >= 0");
  each_call("", "", [](const char* op, const Params& q) {
    says(with(q, "token_max", -1), text_of(op, "token_max is -1, wanted >= 0"));
  });
}

TEST(ContractDelta, Forms) {
  for (const char* field : {"beta", "erase"})
    each_call((std::string("low_a low_b ") + field).c_str(), "", [&](const char*, const Params& p) {
      refuses(p, field);
      accepts(without(p, {field}));
    });
  each_call("low_a low_b", "", [](const char*, const Params& p) {
    accepts(p);
    for (const char* field : {"low_a", "low_b"}) refuses(without(p, {field}), field);
    refuses(with(p, "beta_map", 1), "beta_map");
  });
  each_call("beta erase", "", [](const char* op, const Params& p) {
    accepts(p), accepts(without(p, {"beta"})), accepts(without(p, {"erase"}));
    says(with(p, "beta_map", 3), text_of(op, "beta_map is 3, wanted a fovea_x_beta_map"));
    says(with(p, "beta_map", -1), text_of(op, "beta_map is -1, wanted a fovea_x_beta_map"));
    for (const int64_t map : {1, 2}) accepts(with(p, "beta_map", map));
    refuses(with(without(p, {"beta"}), "beta_map", 1), "beta_map");
  });
}

TEST(ContractDelta, Gates) {
  each_call("gate_head gate_key", "", [](const char* op, const Params& p) {
    for (const int64_t map : {-1, 5})
      says(with(p, "gate_map", map),
           text_of(op, map < 0 ? "gate_map is -1, wanted a fovea_x_gate_map"
                               : "gate_map is 5, wanted a fovea_x_gate_map"));
    refuses(with(p, "gate_map", FOVEA_X_GATE_MAP_BOUNDED), "gate_bound");
    accepts(with_number(with(p, "gate_map", FOVEA_X_GATE_MAP_BOUNDED), "gate_bound", 5));
    for (const char* field : {"gate_bound", "gate_tau", "scale"})
      for (const float bad : {-1.f, NAN, HUGE_VALF}) refuses(with_number(p, field, bad), field);
    refuses(with_number(p, "gate_tau", 2), "gate_tau");
    accepts(with_number(with(p, "gate_map", FOVEA_X_GATE_MAP_LOG_SIGMOID), "gate_tau", 2));
  });
  for (const char* given : {"gate_key gate_rate", "gate_head gate_rate"})
    each_call(given, "gate_map=1", [](const char*, const Params& p) {
      accepts(p);
      for (const int64_t map : {0, 3, 4}) refuses(with(p, "gate_map", map), "gate_rate");
      refuses(without(p, {"gate_key", "gate_head"}), "gate_rate");
    });
  each_call("gate_head gate_bias", "", [](const char*, const Params& p) {
    accepts(p);
    refuses(without(p, {"gate_head"}), "gate_bias");
  });
  each_call("", "", [](const char*, const Params& p) {
    refuses(with(p, "gate_map", 3), "gate_map");
    refuses(with_number(p, "gate_bound", 3), "gate_bound");
  });
}

TEST(ContractDelta, Norm) {
  each_call("", "", [](const char*, const Params& p) {
    for (const int64_t bad : {-1, 2}) refuses(with(p, "l2_norm", bad), "l2_norm");
    refuses(with_number(p, "eps", 1e-3f), "eps");
    const Params unit = with(p, "l2_norm", 1);
    accepts(unit), accepts(with_number(unit, "eps", 1e-3f));
    for (const float bad : {-1.f, NAN, HUGE_VALF}) refuses(with_number(unit, "eps", bad), "eps");
  });
}

TEST(ContractDelta, Gradients) {
  const std::pair<const char*, const char*> pairs[] = {{"beta", "beta"},
                                                       {"erase", "erase"},
                                                       {"gate_head", "gate_head"},
                                                       {"gate_key", "gate_key"},
                                                       {"low_a", "low_a low_b"},
                                                       {"low_b", "low_a low_b"},
                                                       {"gate_bias", "gate_head gate_bias"},
                                                       {"gate_rate", "gate_head gate_rate"}};
  for (const auto& [field, given] : pairs) {
    SCOPED_TRACE(field);
    const std::string gradient = std::string("d") + field;
    Call call({"x_delta_backward", "", std::string(given) + " " + gradient,
               std::string(field) == "gate_rate" ? "gate_map=2 gate_bound=1" : ""});
    accepts(call.params);
    const bool low = std::string(field).rfind("low", 0) == 0;
    refuses(without(call.params, {field}), low ? field : gradient);
    if (low) refuses(without(call.params, {"low_a", "low_b"}), gradient);
  }
  // Nothing is asked for.
  Call nothing({"x_delta_backward", "", "", ""});
  accepts(nothing.params);
}

}  // namespace
}  // namespace contract
