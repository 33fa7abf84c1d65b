// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

constexpr int32_t kRanked = FOVEA_X_SUMMARY_RANKED, kRunning = FOVEA_X_SUMMARY_RUNNING;
constexpr int32_t kGated = FOVEA_X_SUMMARY_GATED;

// One of the kinds of summary, and the tensors that it has.
void pool_tensors(Draw& d) {
  const bool forward = d.knows("y");
  const int64_t kind = d.below(8);  // 5 ranked, 6 running, 7 gated
  if (!forward || kind != 5) d.drop("rank_score");
  if (forward && kind == 5) d.give("rank_score");
  if (kind == 7) {
    d.give("gate"), d.drop("similar"), d.drop("dissimilar"), d.drop("page_table");
  } else {
    for (const char* field : {"gate", "bias", "dgate", "dbias"}) d.drop(field);
  }
  if (!d.has("bias")) d.drop("dbias");
  if (forward && kind == 6) {
    for (const char* field : {"similar", "dissimilar", "key_begin"}) d.drop(field);
    if (d.one_in(2))
      d.give("previous"), d.give("old_len");
    else
      d.drop("previous"), d.drop("old_len");
  } else {
    d.drop("previous");
  }
  d.x("kind") = kind;
  if (!d.one_in(4) || d.has("bias")) d.drop("key_begin");
  if (d.has("key_begin") || d.has("page_table")) d.drop("key_start");
  if (!d.has("page_table")) d.drop("cache_row");
  if (d.has("dissimilar"))
    d.give("similar_least");
  else
    d.drop("similar_least");
}

void pool_extents(Draw& d) {
  const bool gated = d.has("gate"), ranked = d.has("rank_score");
  const bool running = d.knows("y") && !gated && !ranked && d.x("kind") == 6;
  int32_t want = static_cast<int32_t>(d.below(16));
  if (ranked) want = kRanked;
  if (running) want = kRunning;
  if (gated) want = kGated;
  d.set("want", want);
  const bool free = !d.has("key_begin") && !running;
  int64_t block = free ? d.one_of({0, 1, 2, 5, 16, 64, 128}) : 0;
  const bool overlap = gated && free && d.one_in(2);
  d.set("block", block), d.x("overlap") = overlap;
  block = block ? block : 64;
  int64_t step = free && !overlap && d.one_in(2) ? d.one_of({1, 2, block}) : 0;
  if (step > block) step = 0;
  d.set("step", step), d.x("places") = block;
  d.x("complete") = free && d.one_in(3);
  if (ranked) d.set<int64_t>("ranked", d.one_of({1, 2, 5, 100, INT64_MAX}));
  int64_t parts = 0;
  for (int32_t bit = 1; bit <= kGated; bit *= 2) parts += ((want ? want : 4) & bit) != 0;
  if (overlap && d.x("d") % 2) ++d.x("d");
  d.x("f") = overlap ? d.x("d") / 2 : d.x("d") * parts;
  step = step ? step : block;
  d.x("u") = d.has("key_begin") ? d.one_of({0, 1, 3, 9})
                                : ceil_div(d.x("t"), step) + (d.packed_rows() ? d.x("r") : 0);
}

void pool_scalars(Draw& d) {
  for (const char* field : {"overlap", "complete"}) d.set(field, static_cast<int32_t>(d.x(field)));
}

bool pool_integers(Filler& f, const Tensor& x) {
  if (x.field->name == "old_len") {
    f.places(x, 0, f.keys() + 1);
    return true;
  }
  if (x.field->name != "key_begin") return false;
  int64_t at = 0, left = 0;
  const int64_t step = f.keys() / std::max<int64_t>(1, x.view.shape[2] - 1) + 1;
  f.put<int32_t>(x, [&] {
    if (left == 0) left = x.view.shape[2], at = 0;
    at += f.random(0, step), --left;
    return static_cast<int32_t>(at);
  });
  return true;
}

// A token may be the largest, or not, by a rounding of its score.
const Rules kPool({"x_pool_"}, {.tensors = pool_tensors,
                                .extents = pool_extents,
                                .scalars = pool_scalars,
                                .integers = pool_integers});

constexpr const char* kUngrouped[] = {"lse", "lse_in", "column_sum", "diagonal_sum",
                                      "query_position"};

void probe_tensors(Draw& d) {
  d.x("grouped") = d.one_in(3);
  if (d.x("grouped"))
    for (const char* field : kUngrouped) d.drop(field);
  if (d.has("lse_in")) d.drop("lse");
  if (d.has("query_position")) d.drop("context_len");
}

void probe_extents(Draw& d) {
  const int64_t stride = d.x("grouped") ? d.one_of({2, 4, 8}) : d.one_of({0, 1});
  const int64_t rows =
      d.x("grouped") ? stride * d.one_of({1, 2, 8, 16}) : d.one_of({0, 1, 16, 100});
  const int64_t keys =
      d.x("grouped") ? stride * d.one_of({1, 2, 8, 16}) : d.one_of({0, 1, 16, 100});
  d.set("group_stride", stride);
  d.set("block_rows", static_cast<int32_t>(rows)), d.set("block_keys", static_cast<int32_t>(keys));
  d.x("n") = ceil_div(d.x("s"), rows ? rows : 64) + (d.packed_rows() ? d.x("r") : 0);
  d.x("u") = ceil_div(d.x("t"), keys ? keys : 64) + d.one_of({0, 0, 1});
}

void probe_scalars(Draw& d) {
  for (const char* field : {"key_step", "key_shift"}) d.set<int64_t>(field, 0);
  d.set<int32_t>("reversed", static_cast<int32_t>(d.x("grouped") && d.one_in(2)));
  if (d.x("grouped"))
    for (const char* field : {"window_left", "window_right", "sink_keys"}) d.set<int64_t>(field, 0);
  else if (!d.has("diagonal_sum") && d.one_in(3))
    d.set<int64_t>("key_step", 4), d.set<int64_t>("key_shift", 3);
}

const Rules kProbe({"x_probe_"},
                   {.tensors = probe_tensors, .extents = probe_extents, .scalars = probe_scalars});

constexpr const char* kBranches[] = {"x", "x2", "x3", "x4", "coarse"};
constexpr const char* kTails[] = {"", "2", "3", "4", "_coarse"};

void combine_tensors(Draw& d) {
  for (int n = 0; n < 5; ++n) {
    const std::string gate = std::string("gate") + kTails[n];
    if (!d.has(kBranches[n])) d.drop(gate), d.drop(std::string("d") + kBranches[n]);
    if (!d.has(gate.c_str())) d.drop("d" + gate);
  }
  if (!d.has("coarse")) d.drop("row_begin");
}

void combine_extents(Draw& d) {
  const int64_t rows = d.has("row_begin") || !d.has("coarse") ? 0 : d.one_of({0, 1, 3, 64});
  d.set("block_rows", rows);
  d.x("u") = d.has("row_begin")
                 ? d.one_of({0, 1, 4, 9})
                 : std::max<int64_t>(0, ceil_div(d.x("s"), rows ? rows : 64) - d.one_of({0, 0, 1}));
}

void combine_scalars(Draw& d) {
  for (const char* tail : kTails) {
    const std::string gate = std::string("gate") + tail;
    d.set((gate + "_act").c_str(), static_cast<int32_t>(d.has(gate.c_str()) ? d.below(4) : 0));
    d.set((std::string("coefficient") + tail).c_str(), d.one_in(2) ? -0.5f : 0.0f);
  }
}

bool combine_integers(Filler& f, const Tensor& x) {
  if (x.field->name != "row_begin") return false;
  int64_t at = 0, left = 0;
  f.put<int32_t>(x, [&] {
    if (left == 0) left = x.view.shape[1], at = 0;
    at += f.random(0, f.rows() / std::max<int64_t>(1, x.view.shape[1] - 1) + 1), --left;
    return static_cast<int32_t>(at);
  });
  return true;
}

const Rules kCombine({"x_combine_"}, {.tensors = combine_tensors,
                                      .extents = combine_extents,
                                      .scalars = combine_scalars,
                                      .integers = combine_integers});

void compare_letters(Draw& d) {
  d.x("n") = d.one_of({0, 1, 2, 3, 5});
  d.x("s") = std::min<int64_t>(d.x("s"), 20), d.x("h") = std::min<int64_t>(d.x("h"), 4);
}

// The nearest of equals is told by roundings.
bool compare_close(const Call&) {
  return true;
}

const Rules kCompare({"x_compare_"}, {.letters = compare_letters, .rough = compare_close});

void cache_tensors(Draw& d) {
  d.x("heavy") = d.one_in(2);
  if (d.has("k_new") != d.has("v_new")) d.give("k_new"), d.give("v_new");
  if (d.x("heavy")) {
    d.give("score"), d.drop("capacity");
  } else {
    d.drop("score"), d.drop("mass");
  }
}

void cache_extents(Draw& d) {
  const int64_t t = d.x("t"), s = d.has("k_new") ? d.x("s") : 0;
  for (const char* field : {"sink_keys", "recent", "heavy"}) d.set<int64_t>(field, 0);
  d.set("rule", static_cast<int32_t>(d.x("heavy")));
  if (d.x("heavy")) {
    if (d.has("k_new") && s > t) d.x("s") = t;
    const int64_t room = std::max<int64_t>(0, t - std::min(s, t));
    d.set("recent", d.below(room + 1));
    d.set("heavy", d.below(room - d.scalar<int64_t>("recent") + 1));
  } else if (t > 0) {
    const int64_t sink = d.below(std::min<int64_t>(t, 5));
    d.set("sink_keys", sink);
    if (!d.has("capacity")) d.set("recent", 1 + d.below(t - sink));
  }
}

void cache_scalars(Draw& d) {
  d.set("rule", static_cast<int32_t>(d.x("heavy")));
  if (d.has("capacity") || d.x("heavy")) return;
  if (d.scalar<int64_t>("sink_keys") + d.scalar<int64_t>("recent") > d.x("t"))
    d.set<int64_t>("sink_keys", 0);
}

bool cache_integers(Filler& f, const Tensor& x) {
  const int64_t t = f.extent("k", 1, 0);
  if (!f.is(x, {"position", "count", "old_len", "capacity"})) return false;
  f.places(x, 0, f.is(x, {"position"}) ? 2 * t : t);
  return true;
}

const Rules kCache({"x_cache_step"}, {.tensors = cache_tensors,
                                      .extents = cache_extents,
                                      .scalars = cache_scalars,
                                      .integers = cache_integers});

}  // namespace
}  // namespace random_calls
