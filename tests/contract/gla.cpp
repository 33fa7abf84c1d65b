// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr const char* kOps[] = {"x_gla_forward", "x_gla_backward"};

std::string text_of(const char* op, const char* rest) {
  return std::string(op) + ": " + rest;
}
Params with_heads(const char* op, int64_t h, int64_t g, int64_t x) {
  const std::string heads = " heads=" + std::to_string(std::max(g, x)) +
                            " heads_out=" + std::to_string(std::max({h, g, x}));
  return Call({op, "", op == kOps[0] ? "o state_out" : "dq dk dv dstate_in",
               "t=3 h=" + std::to_string(h) + " g=" + std::to_string(g) +
                   " x=" + std::to_string(x) + heads})
      .params;
}

// Of memory that a Call owns: the call is refused or taken before anything is read.
template <class Test>
void each_call(const char* given, const char* settings, Test test) {
  for (const char* op : kOps) {
    SCOPED_TRACE(op);
    const bool forward = op == kOps[0];
    Call call({op, "", std::string(given) + (forward ? " o state_out" : " dq dk dv dstate_in"),
               std::string("t=3 ") + settings});
    test(op, call.params);
  }
}

TEST(ContractGla, Splits) {
  Call call({"x_gla_forward", "", "o state_out", "t=3"});
  for (const int64_t splits : {0, 1, 3, 1 << 30}) accepts(with(call.params, "splits", splits));
  refuses(with(call.params, "splits", -1), "splits");
}

TEST(ContractGla, Heads) {
  for (const char* op : kOps) {
    SCOPED_TRACE(op);
    refuses(with_heads(op, 4, 2, 3), "k");
    refuses(with_heads(op, 4, 3, 2), "v");
    refuses(with_heads(op, 3, 2, 2), "q");
    refuses(with_heads(op, 2, 3, 3), "q");
    refuses(with_heads(op, 4, 3, 3), "q");
  }
  for (const auto& [h, g, x] : {std::array<int64_t, 3>{4, 1, 2}, {2, 1, 4}, {1, 3, 3}, {6, 3, 1}}) {
    Call forward({"x_gla_forward", "", "o state_out",
                  "t=3 h=" + std::to_string(h) + " g=" + std::to_string(g) +
                      " x=" + std::to_string(x) + " heads=" + std::to_string(std::max(g, x)) +
                      " heads_out=" + std::to_string(std::max({h, g, x}))});
    accepts(forward.params);
  }
  each_call("select gate_head", "", [](const char* op, Params p) {
    Params other = p;
    resize(other["select"], 2, 3), resize(other["gate_head"], 2, 3);
    refuses(other, "gate_head");
    const char* o = op == kOps[0] ? "o" : "dout";
    other = p, resize(other[o], 2, 2);
    refuses(other, std::string(o) + ".shape");
  });
  Call last({"x_gla_backward", "", "dz_in", "t=3 normalise=1"});
  Params p = last.params;
  resize(p["dz_in"], 1, 3);
  refuses(p, "dz_in.shape");
}

TEST(ContractGla, Extents) {
  each_call("", "", [](const char* op, Params p) {
    Params other = p;
    resize(other["k"], 1, 4), resize(other["v"], 1, 4);
    if (op == kOps[1]) resize(other["dk"], 1, 4), resize(other["dv"], 1, 4);
    says(other, text_of(op, "k.shape[1] (t) is 4, wanted 3 as q: full = 1 alone has other keys"));
  });
  for (const char* op : kOps) {
    const char* given = op == kOps[0] ? "o state_out" : "dq dk dv";
    Call none({op, "", given, "t=3 d=0"});
    says(none.params, text_of(op, "q.shape[3] (d) is 0, wanted >= 1"));
    Call wide({op, "", given, "t=3 d=513"});
    refuses(wide.params, "q.shape", FOVEA_UNSUPPORTED);
    Call most({op, "", given, "t=3 d=512"});
    accepts(most.params);
  }
}

TEST(ContractGla, Rows) {
  const Params own = valid("x_gla_forward", "own_rows").params;
  const Params all = valid("x_gla_forward", "all").params;
  Params p = own;
  resize(p["state_in"], 0, 5);
  says(p,
       "x_gla_forward: state_in.shape[0] (slots) is 5, wanted 2: without state_row each sequence "
       "of q has a row");
  p = own, resize(p["state_out"], 0, 1);
  says(p,
       "x_gla_forward: state_out.shape[0] (slots_out) is 1, wanted 2: without state_row and "
       "state_out_row each sequence of q has a row");
  p = own, p["o"].data = p["state_out"].data = nullptr;
  says(p, "x_gla_forward: o, state_out and snapshot are not given, wanted one of them at least");
  p = all, p["snapshot_row"].data = nullptr;
  says(p, "x_gla_forward: snapshot is given without snapshot_row, wanted both");
  says(with(all, "snapshot_every", 0), "x_gla_forward: snapshot_every is 0, wanted >= 1");
  says(with(own, "snapshot_every", -1), "x_gla_forward: snapshot_every is -1, wanted >= 0");
  says(with(own, "token_max", -1), "x_gla_forward: token_max is -1, wanted >= 0");
}

TEST(ContractGla, Gates) {
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
  each_call("gate_key gate_rate", "gate_map=1", [](const char*, const Params& p) {
    accepts(p);
    for (const int64_t map : {0, 3, 4}) refuses(with(p, "gate_map", map), "gate_rate");
    refuses(without(p, {"gate_key"}), "gate_rate");
  });
  each_call("gate_value gate_bias", "",
            [](const char*, const Params& p) { refuses(p, "gate_bias"); });
  each_call("", "", [](const char*, const Params& p) {
    refuses(with(p, "gate_map", 3), "gate_map");
    refuses(with_number(p, "gate_bound", 3), "gate_bound");
  });
}

TEST(ContractGla, Flags) {
  each_call("bonus", "", [](const char*, const Params& p) {
    for (const char* field : {"full", "read_before", "normalise", "bonus_sigmoid"})
      for (const int64_t bad : {-1, 2}) refuses(with(p, field, bad), field);
    for (const char* field : {"map_q", "map_k"})
      for (const int64_t bad : {-1, 4}) refuses(with(p, field, bad), field);
    refuses(with(without(p, {"bonus"}), "bonus_sigmoid", 1), "bonus_sigmoid");
    refuses(with_number(p, "eps", 1e-3f), "eps");
  });
}

TEST(ContractGla, Normaliser) {
  each_call("gate_value", "normalise=1",
            [](const char*, const Params& p) { refuses(p, "gate_value"); });
  each_call("bonus", "normalise=1", [](const char*, const Params& p) { refuses(p, "bonus"); });
  each_call("", "normalise=1 read_before=1",
            [](const char*, const Params& p) { refuses(p, "read_before"); });
  each_call("state_in", "normalise=1", [](const char*, const Params& p) { refuses(p, "z_in"); });
  each_call("z_in", "normalise=1", [](const char*, const Params& p) { refuses(p, "z_in"); });
  each_call("state_in z_in", "", [](const char*, const Params& p) { refuses(p, "z_in"); });
  Call forward = valid("x_gla_forward", "normalised"),
       backward = valid("x_gla_backward", "normalised");
  const Params p = forward.params, q = backward.params;
  accepts(p), accepts(q);
  for (const char* field : {"z_in", "z_out", "z_snapshot"}) refuses(without(p, {field}), field);
  for (const float bad : {-1.f, NAN, HUGE_VALF}) refuses(with_number(p, "eps", bad), "eps");
  refuses(without(p, {"state_out"}), "z_out"), refuses(without(p, {"snapshot"}), "z_snapshot");
  refuses(with(p, "normalise", 0), "normalise");
  refuses(without(q, {"z_in"}), "z_in"), refuses(without(q, {"dstate_out"}), "dz_out");
  refuses(with(without(q, {"z_in", "state_in", "dz_in"}), "normalise", 0), "dz_out");
  refuses(with(without(q, {"z_in", "state_in", "dz_out"}), "normalise", 0), "dz_in");
}

TEST(ContractGla, Full) {
  for (const char* field : {"gate_head", "gate_key", "gate_value", "bonus", "skip"})
    each_call(field, "full=1", [&](const char*, const Params& p) { refuses(p, field); });
  each_call("", "full=1 read_before=1",
            [](const char*, const Params& p) { refuses(p, "read_before"); });
  each_call("key_len", "", [](const char*, const Params& p) { refuses(p, "key_len"); });
  each_call("start key_start", "b=1 r=2",
            [](const char*, const Params& p) { refuses(p, "key_start"); });
  each_call("start", "b=1 r=2 full=1",
            [](const char*, const Params& p) { refuses(p, "key_start"); });
  each_call("key_start", "b=1 r=1 slots_out=1 full=1",
            [](const char*, const Params& p) { refuses(p, "key_start"); });
  Call snapshot({"x_gla_forward", "", "o snapshot snapshot_row", "full=1 snapshot_every=1"});
  refuses(snapshot.params, "snapshot");
}

TEST(ContractGla, Gradients) {
  const std::pair<const char*, const char*> pairs[] = {{"gate_head", "gate_head"},
                                                       {"gate_key", "gate_key"},
                                                       {"gate_value", "gate_value"},
                                                       {"select", "select"},
                                                       {"bonus", "bonus"},
                                                       {"skip", "skip"},
                                                       {"gate_bias", "gate_head gate_bias"},
                                                       {"gate_rate", "gate_head gate_rate"}};
  for (const auto& [field, given] : pairs) {
    const std::string gradient = std::string("d") + field;
    Call call({"x_gla_backward", "", std::string(given) + " " + gradient,
               std::string("t=3") +
                   (std::string(field) == "gate_rate" ? " gate_map=2 gate_bound=1" : "")});
    accepts(call.params);
    refuses(without(call.params, {field}), gradient);
  }
  // Nothing is asked for.
  Call nothing({"x_gla_backward", "", "", "t=3"});
  accepts(nothing.params);
}

}  // namespace
}  // namespace contract
