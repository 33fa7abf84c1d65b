// SPDX-License-Identifier: Apache-2.0
// x_probe_forward: covering arrays of outputs, windows, places and blocks; the edges and the
// methods by name.
#include "oracle/summary_probe.h"
#include "cases/summary_case.h"

namespace cases {
namespace {

void shape(TableCall& made) {
  Letters& x = made.letters;
  const auto& p = made.params<fovea_x_probe_forward_params>();
  for (const char* letter : {"group", "pool_heads"})
    if (!x.count(letter)) x[letter] = 1;
  x["h"] = x.at("g") * x.at("group");
  x["x"] = x.at("h") / x.at("pool_heads");
  const int64_t rows = p.block_rows ? p.block_rows : 64, keys = p.block_keys ? p.block_keys : 64;
  place_letters(made);
  if (!made.has("cache_row") && !made.has("page_table")) x["rows"] = x.at("key_b");
  if (made.has("cache_row") && !made.has("page_table")) x["rows"] = x["r"] + 1;
  if (!made.has("page_table")) x["keys"] = x.at("t");
  if (made.has("query_start") && !made.has("key_start")) x["b"] = 1;
  if (made.has("key_start") && !made.has("query_start")) x["b"] = x["r"];
  x["n"] = (x.at("s") + rows - 1) / rows + (made.has("query_start") ? x["r"] : 0);
  x["u"] = (x.at("keys") + keys - 1) / keys;
  if (p.key_max) x["keys"] = made.has("page_table") || made.has("key_start") ? p.key_max : x["t"];
}

double contents(const TableCall& made, const std::string& field, const int64_t* i, double normal) {
  static const std::vector<std::string> places = {"key_start", "query_start", "key_len",
                                                  "query_len", "page_table",  "cache_row"};
  if (std::find(places.begin(), places.end(), field) != places.end())
    return place_value(made, field, i);
  const double t = static_cast<double>(made.letters.at("keys"));
  if (field == "query_position") return std::floor(std::abs(normal) * t / 2);
  if (field == "context_len") return static_cast<double>(i[0]) * 7 + t / 2;
  if (field == "lse_in") return 3 + normal / 2;
  return normal;
}

std::vector<Expected> expected(TableCall& made) {
  const auto& p = made.params<fovea_x_probe_forward_params>();
  const oracle::Probe<double> exact(p);
  const oracle::Probe<float> rounded(p);
  count_read(made, "q", exact.q), count_read(made, "k", exact.k);
  count_read(made, "lse_in", exact.lse_in);
  count_read(made, "query_position", exact.query_position);
  return {{"lse", exact.lse, rounded.lse},
          {"column_sum", exact.column_sum, rounded.column_sum},
          {"diagonal_sum", exact.diagonal_sum, rounded.diagonal_sum},
          {"block_sum", exact.block_sum, rounded.block_sum},
          {"block_max", exact.block_max, rounded.block_max}};
}

const std::vector<std::string> kTypes = {"q:f32", "q:f16", "q:bf16"};
const std::vector<std::string> kLays = {"contiguous", "head_first", "gaps", "odd", "wide"};

std::vector<harness::Case> probe_cases() {
  return Table("x_probe_forward", expected)
      .shape(shape)
      .contents(contents)
      .sweep(
          {kTypes,
           {"lse", "lse column_sum", "column_sum lse_in", "column_sum diagonal_sum",
            "block_sum block_max", "lse column_sum diagonal_sum block_sum block_max"},
           {"", "causal=1", "causal=1 window_left=9", "window_left=20 window_right=3 sink_keys=2",
            "query_position causal=1", "context_len causal=1"},
           {"s=1 t=70", "s=7 t=33", "s=65 t=130", "s=70 t=65"},
           {"b=1", "b=3 query_len key_len", "query_start key_start", "b=2 page_table page=8",
            "b=3 page_table cache_row page=5 key_len", "b=2 cache_row", "key_start"},
           {"g=1", "g=2 group=3 pool_heads=3", "g=2 group=2 pool_heads=4 reduce=1",
            "g=1 group=4 pool_heads=2 reduce=2"},
           {"d=1", "d=24", "d=64", "d=130"},
           {"", "block_rows=16 block_keys=8", "block_rows=1 block_keys=1",
            "block_rows=100 block_keys=5"},
           {"", "scale=0.3"},
           kLays},
          1)
      .sweep({kTypes,
              {"block_sum block_max", "block_sum", "block_max"},
              {"group_stride=4 block_rows=16 block_keys=8",
               "group_stride=8 block_rows=128 block_keys=128",
               "group_stride=2 block_rows=2 block_keys=2"},
              {"", "reversed=1"},
              {"", "causal=1", "context_len causal=1"},
              {"s=1 t=70", "s=65 t=130", "s=130 t=130", "s=70 t=33"},
              {"b=1", "b=3 query_len key_len", "query_start key_start", "b=2 page_table page=8"},
              {"g=1", "g=2 group=3 pool_heads=3", "g=1 group=4 pool_heads=2 reduce=2"},
              {"d=3", "d=64", "d=130"},
              kLays},
             2)
      .each("edge",
            {"b=0 lse column_sum", "s=0 column_sum diagonal_sum block_sum", "t=0 lse column_sum",
             "g=0 lse", "lse column_sum key_step=4 key_shift=3 causal=1 t=30",
             "column_sum diagonal_sum t=90 key_max=40 query_max=2", "d=576 column_sum s=3 t=70",
             "column_sum diagonal_sum key_max=40 page_table page=8 t=64 b=2"})
      .each("minference",
            {"column_sum diagonal_sum s=64 t=300 causal=1 q:bf16 d=128 g=1 group=2 b=1"})
      .each("xattention",
            {"block_sum s=300 t=300 causal=1 group_stride=16 reversed=1 block_rows=128 "
             "block_keys=128 q:bf16 d=64 g=1 group=2 b=1"})
      .kernel("hopper",
              {"column_sum diagonal_sum lse s=64 t=300 causal=1 q:bf16 d=128 g=2 group=2 b=2",
               "block_sum block_max s=300 t=700 d=72 g=2 group=2 q:bf16 causal=1 window_left=90 "
               "sink_keys=3 b=1 block_rows=256 block_keys=128",
               "block_sum s=333 t=90 d=128 g=1 group=2 q:bf16 lse_in causal=1 block_rows=128 "
               "block_keys=1 context_len b=2",
               "block_sum block_max s=2100 t=2500 causal=1 group_stride=16 reversed=1 "
               "block_rows=128 block_keys=128 q:bf16 d=64 g=1 b=1",
               "column_sum s=150 t=300 query_position causal=1 q:bf16 d=256 g=1 group=2 b=1",
               "column_sum diagonal_sum s=40 t=300 query_position q:bf16 d=64 g=1 group=2 b=2"},
              "sm90.bf16")
      .kernel(
          "hopper",
          {"lse column_sum diagonal_sum block_sum block_max s=200 t=390 d=64 g=1 group=4 "
           "pool_heads=2 reduce=2 q:f16 causal=1 query_len key_len b=3 block_rows=32 block_keys=64",
           "block_sum block_max s=300 t=290 d=64 g=1 group=2 pool_heads=2 reduce=1 q:f16 lse_in "
           "block_rows=256 block_keys=32 b=1",
           "block_sum block_max s=700 t=1100 group_stride=4 block_rows=100 block_keys=1024 q:f16 "
           "d=128 g=1 group=2 query_start key_start"},
          "sm90.f16")
      .each("small",
            {"lse column_sum diagonal_sum s=2 t=3 d=2 g=1 causal=1",
             "block_sum block_max s=4 t=4 d=2 g=1 group=2 pool_heads=2 group_stride=2 reversed=1 "
             "block_rows=2 block_keys=2 b=1"},
            true)
      .cases();
}

const Family kFamily("x_probe_forward", probe_cases);

}  // namespace
}  // namespace cases
