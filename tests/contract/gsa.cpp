// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr const char* kOps[] = {"x_gsa_forward", "x_gsa_backward"};

std::string text_of(const char* op, const char* rest) {
  return std::string(op) + ": " + rest;
}
const char* outputs_of(const char* op) {
  return op == kOps[0] ? "o state_k_out state_v_out" : "dq dk dv dgate dstate_k_in dstate_v_in";
}

// Of memory that a Call owns: the call is refused or taken before anything is read.
template <class Test>
void each_call(const std::string& given, const std::string& settings, Test test) {
  for (const char* op : kOps) {
    SCOPED_TRACE(op);
    Call call({op, "", given + " " + outputs_of(op), settings});
    test(op, call.params);
  }
}

TEST(ContractGsa, Heads) {
  const auto with_heads = [](int64_t h, int64_t g, int64_t x) {
    const auto word = [](const char* name, int64_t n) {
      return " " + (name + ("=" + std::to_string(n)));
    };
    return word("h", h) + word("g", g) + word("x", x) + word("heads", std::max(g, x)) +
           word("heads_out", std::max({h, g, x}));
  };
  const std::tuple<int64_t, int64_t, int64_t, const char*> refused[] = {
      {4, 2, 3, "k"}, {4, 3, 2, "v"}, {3, 2, 2, "q"}, {2, 3, 3, "q"}, {4, 3, 3, "q"}};
  for (const auto& [h, g, x, field] : refused)
    each_call("", with_heads(h, g, x),
              [field = field](const char*, const Params& p) { refuses(p, field); });
  for (const auto& [h, g, x] : {std::array<int64_t, 3>{4, 1, 2}, {2, 1, 4}, {1, 3, 3}, {6, 3, 1}})
    each_call("", with_heads(h, g, x), [](const char*, const Params& p) { accepts(p); });
  each_call("", "", [](const char* op, Params p) {
    const char* o = op == kOps[0] ? "o" : "dout";
    resize(p[o], 2, 2);
    refuses(p, std::string(o) + ".shape");
  });
  // All heads agree, and are not those of k and v.
  each_call("", "heads=3", [](const char* op, const Params& p) {
    says(p, text_of(op, "gate.shape[2] (heads) is 3, wanted 2: the more heads of k and v"));
  });
}

TEST(ContractGsa, Extents) {
  for (const auto& [letter, field] : {std::pair{"d", "q"}, {"m", "gate"}}) {
    const std::string shape = std::string(field) + ".shape", name = letter;
    each_call("", name + "=0", [&](const char* op, const Params& p) {
      says(p, text_of(op, (shape + "[3] (" + name + ") is 0, wanted >= 1").c_str()));
    });
    each_call("", name + "=513",
              [&](const char*, const Params& p) { refuses(p, shape, FOVEA_UNSUPPORTED); });
    each_call("", name + "=512", [](const char*, const Params& p) { accepts(p); });
  }
}

TEST(ContractGsa, Rows) {
  const Call own_call = valid(kOps[0], "own_rows");
  const Params& own = own_call.params;
  for (const char* state : {"state_k_in", "state_v_in"}) {
    // Alone: both have the same rows.
    Params p = without(own, {state == std::string("state_k_in") ? "state_v_in" : "state_k_in"});
    resize(p[state], 0, 5);
    says(p, std::string("x_gsa_forward: ") + state +
                ".shape[0] (slots) is 5, wanted 2: without state_row each sequence of q has a row");
  }
  for (const char* state : {"state_k_out", "state_v_out"}) {
    Params p = without(own, {state == std::string("state_k_out") ? "state_v_out" : "state_k_out"});
    resize(p[state], 0, 1);
    says(p, std::string("x_gsa_forward: ") + state +
                ".shape[0] (slots_out) is 1, wanted 2: without state_row and state_out_row each "
                "sequence of q has a row");
  }
  says(without(own, {"o", "state_k_out", "state_v_out"}),
       "x_gsa_forward: o, state_k_out and state_v_out are not given, wanted one of them at least");
  for (const char* one : {"o", "state_k_out", "state_v_out"}) {
    Params p = own;
    for (const char* other : {"o", "state_k_out", "state_v_out"})
      if (other != one) p[other].data = nullptr;
    accepts(p);
  }
  each_call("", "", [](const char* op, const Params& p) {
    says(with(p, "token_max", -1), text_of(op, "token_max is -1, wanted >= 0"));
  });
}

TEST(ContractGsa, Numbers) {
  each_call("", "", [](const char* op, const Params& p) {
    for (const int64_t map : {-1, 5})
      says(with(p, "gate_map", map),
           text_of(op, map < 0 ? "gate_map is -1, wanted a fovea_x_gate_map"
                               : "gate_map is 5, wanted a fovea_x_gate_map"));
    for (const char* field : {"map_q", "map_k"})
      for (const int64_t bad : {-1, 4}) refuses(with(p, field, bad), field);
    for (const char* field : {"gate_bound", "gate_tau", "scale"})
      for (const float bad : {-1.f, NAN, HUGE_VALF}) refuses(with_number(p, field, bad), field);
    refuses(with(p, "gate_map", FOVEA_X_GATE_MAP_BOUNDED), "gate_bound");
    accepts(with_number(with(p, "gate_map", FOVEA_X_GATE_MAP_BOUNDED), "gate_bound", 5));
    refuses(with_number(p, "gate_tau", 2), "gate_tau");
    accepts(with_number(with(p, "gate_map", FOVEA_X_GATE_MAP_LOG_SIGMOID), "gate_tau", 2));
  });
}

TEST(ContractGsa, Gradients) {
  for (const char* one : {"dq", "dk", "dv", "dgate", "dstate_k_in", "dstate_v_in", ""}) {
    Call call({kOps[1], "", one, ""});
    accepts(call.params);
  }
}

}  // namespace
}  // namespace contract
