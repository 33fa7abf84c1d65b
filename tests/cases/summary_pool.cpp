// SPDX-License-Identifier: Apache-2.0
// x_pool_forward and _backward: covering arrays of summaries, blocks and places; the edges and the
// methods by name.  data=1: small integers, with many equals.
#include "oracle/summary_pool.h"
#include "cases/summary_case.h"

namespace cases {
namespace {

template <class P>
void shape(TableCall& made) {
  Letters& x = made.letters;
  const auto& p = made.params<P>();
  const bool gated = p.want == FOVEA_X_SUMMARY_GATED;
  const int64_t block = p.block ? p.block : 64, step = p.step ? p.step : block;
  if (!x.count("group")) x["group"] = 1;
  x["h"] = x.at("g") * x.at("group");
  x["places"] = block;
  int64_t parts = 0;
  for (int32_t bit = 1; bit <= 64; bit *= 2) parts += ((p.want ? p.want : 4) & bit) != 0;
  x["f"] = x.at("d") * parts;
  if (gated && p.overlap) x["d"] *= 2;
  place_letters(made);
  const int64_t keys = made.has("page_table") ? x.at("keys") : x.at("t");
  if (!made.has("key_begin")) {
    x["u"] = p.want == FOVEA_X_SUMMARY_RUNNING ? 1 : (keys + step - 1) / step;
    if (made.has("key_start"))
      x["u"] = p.want == FOVEA_X_SUMMARY_RUNNING ? x["r"] : keys / step + x["r"];
  }
  x["u+1"] = x["u"] + 1;
}

double contents(const TableCall& made, const std::string& field, const int64_t* i, double normal) {
  const Letters& x = made.letters;
  if (field == "key_begin") {  // from one token in; some are empty
    const int64_t keys = made.has("page_table") ? x.at("keys") : x.at("t");
    const int64_t at = i[2] == 0 ? 1 : i[2] * keys / x.at("u") + (i[1] + i[2]) % 3;
    return static_cast<double>(i[2] == 3 ? 2 * keys / x.at("u") + (i[1] + 2) % 3 : at);
  }
  if (field == "similar_least") return 0.05 + 0.4 * static_cast<double>(i[0] % 2);
  if (field == "rank_score") return std::round(2 * normal);
  static const std::vector<std::string> places = {"key_start", "key_len", "old_len", "page_table",
                                                  "cache_row"};
  if (std::find(places.begin(), places.end(), field) != places.end())
    return place_value(made, field, i);
  const bool small = x.count("data") && x.at("data") == 1 && field == "x";
  return small ? std::clamp(std::round(normal), -2.0, 2.0) : normal;
}

std::vector<Expected> forward(TableCall& made) {
  const auto& p = made.params<fovea_x_pool_forward_params>();
  const oracle::PoolForward<double> exact(p, oracle::Mode::exact);
  const oracle::PoolForward<float> rounded(p, oracle::Mode::rounded);
  count_read(made, "x", exact.x), count_read(made, "gate", exact.gate);
  count_read(made, "bias", exact.bias), count_read(made, "previous", exact.previous);
  count_read(made, "rank_score", exact.rank_score);
  return {{"y", exact.result.y, rounded.result.y},
          {"similar", exact.result.similar, rounded.result.similar},
          {"dissimilar", exact.result.dissimilar, rounded.result.dissimilar, true}};
}

std::vector<Expected> backward(TableCall& made) {
  const auto& p = made.params<fovea_x_pool_backward_params>();
  const oracle::PoolBackward<double> exact(p, oracle::Mode::exact);
  const oracle::PoolBackward<float> rounded(p, oracle::Mode::rounded);
  if (p.want & (FOVEA_X_SUMMARY_MAX | FOVEA_X_SUMMARY_MIN | FOVEA_X_SUMMARY_GATED))
    count_read(made, "x", exact.x);
  else
    made.call.account(made.call.field("x"), [](const int64_t*) { return false; });
  count_read(made, "dy", exact.dy), count_read(made, "gate", exact.gate);
  count_read(made, "bias", exact.bias);
  return {{"dx", exact.dx, rounded.dx},
          {"dgate", exact.dgate, rounded.dgate},
          {"dbias", exact.dbias, rounded.dbias}};
}

const std::vector<std::string> kTypes = {"x:f32", "x:f16", "x:bf16", "x:bf16 y:f32"};
const std::vector<std::string> kGradientTypes = {"x:f32", "x:f16", "x:bf16", "x:bf16 dy:f32"};
const std::vector<std::string> kLays = {"contiguous", "head_first", "gaps", "odd", "wide"};
const std::vector<std::string> kWidths = {"d=1", "d=24", "d=64", "d=130", "d=300"};
const std::vector<std::string> kBlocks = {"block=16",
                                          "block=5 step=3",
                                          "",
                                          "block=32 step=16",
                                          "block=4 step=4 complete=1",
                                          "block=7 step=2 complete=1"};

std::vector<harness::Case> forwards() {
  return Table("x_pool_forward", forward)
      .shape(shape<fovea_x_pool_forward_params>)
      .contents(contents)
      .sweep({kTypes,
              {"", "want=1", "want=2", "want=8", "want=3", "want=7", "want=15 similar",
               "similar dissimilar similar_least"},
              kBlocks,
              {"t=1", "t=16", "t=65", "t=130"},
              {"b=1", "b=3 key_len", "key_start", "key_start key_len", "b=2 page_table page=8",
               "b=3 page_table cache_row page=5 key_len", "b=2 old_len"},
              {"g=1", "g=2 group=3", "g=3"},
              kWidths,
              kLays},
             1)
      .sweep({kTypes,
              {"want=3", "want=15", "similar", ""},
              {"u=1 key_begin", "u=5 key_begin", "u=9 key_begin"},
              {"t=40", "t=300"},
              {"", "key_len", "page_table page=8", "old_len"},
              {"g=1", "g=2 group=2"},
              kLays},
             2)
      .sweep({kTypes,
              {"ranked=1", "ranked=4", "ranked=200"},
              kBlocks,
              {"t=1", "t=65", "t=300"},
              {"", "key_start", "page_table page=8", "b=3 key_len", "old_len"},
              {"g=1 want=16 rank_score", "g=2 group=2 want=16 rank_score"},
              {"d=24", "d=300"},
              kLays},
             3)
      .sweep({{"x:f32 previous:f32", "x:f16 previous:f16", "x:bf16 previous:bf16",
               "x:bf16 y:f32 previous:f32"},
              {"t=1", "t=40", "t=300"},
              {"want=32", "want=32 old_len previous", "want=32 old_len previous key_len"},
              {"", "key_start", "b=3"},
              {"g=1", "g=2 group=2"},
              {"d=8", "d=300"},
              kLays},
             4)
      .sweep({kTypes,
              {"block=4 overlap=1", "block=4", "block=6 step=2", "block=128", "block=16 complete=1",
               "block=16 overlap=1 complete=1"},
              {"want=64 gate", "want=64 gate bias", "want=64 gate:f32 gate bias"},
              {"t=1", "t=33", "t=130"},
              {"", "key_start", "b=3 key_len", "old_len"},
              {"g=1", "g=2 group=2"},
              {"d=8", "d=65", "d=300"},
              kLays},
             5)
      .each("edge",
            {"b=0", "t=0 block=4", "g=0 d=8", "d=0", "u=0 key_begin", "t=9 key_max=5 block=2",
             "t=1000 block=1000 similar g=1", "t=30 block=4 data=1 want=3 similar",
             "want=16 rank_score ranked=9000000000000 t=20", "t=0 want=32"})
      .each("quest", {"want=3 t=100 block=16 page_table page=16 x:bf16",
                      "want=3 t=100 block=16 page_table page=16 old_len x:bf16"})
      .each("small",
            {"want=7 t=5 block=2 d=3", "want=64 gate bias overlap=1 block=2 t=5 d=2 x:bf16",
             "similar dissimilar similar_least t=6 block=4 d=4 b=1"},
            true)
      .cases();
}

std::vector<harness::Case> backwards() {
  return Table("x_pool_backward", backward)
      .shape(shape<fovea_x_pool_backward_params>)
      .contents(contents)
      .sweep({kGradientTypes,
              {"", "want=1", "want=2", "want=8", "want=3 data=1", "want=15", "want=7 data=1"},
              kBlocks,
              {"t=1 dx", "t=16 dx", "t=65 dx", "t=130 dx"},
              {"b=1", "b=3 key_len", "key_start", "key_start key_len", "t=90 key_max=40"},
              {"g=1", "g=2 group=3", "g=3"},
              kWidths,
              kLays},
             6)
      .sweep({kGradientTypes,
              {"want=3", "want=15", ""},
              {"u=1 key_begin dx", "u=5 key_begin dx", "u=9 key_begin dx"},
              {"t=40", "t=300"},
              {"", "key_len"},
              {"g=1", "g=2 group=2"},
              kLays},
             7)
      .sweep({kGradientTypes,
              {"block=4 overlap=1", "block=4", "block=6 step=2", "block=128", "block=16 complete=1",
               "block=16 overlap=1 complete=1"},
              {"gate", "gate bias dbias", "gate:f32 gate bias dbias dgate:f32"},
              {"want=64 dx", "want=64 dgate", "want=64 dx dgate"},
              {"t=1", "t=33", "t=130"},
              {"", "key_start", "b=3 key_len"},
              {"g=1", "g=2 group=2"},
              {"d=8", "d=65", "d=300"},
              kLays},
             8)
      .each("edge", {"b=0 dx", "t=0 block=4 dx", "g=0 d=8 dx", "d=0 dx", "u=0 key_begin dx", "",
                     "want=64 gate bias dbias t=2000 block=4 g=1"})
      .each("small",
            {"want=7 t=5 block=2 d=3 dx",
             "want=64 gate bias overlap=1 block=2 t=5 d=2 dx dgate dbias"},
            true)
      .cases();
}

const Family kForward("x_pool_forward", forwards);
const Family kBackward("x_pool_backward", backwards);

}  // namespace
}  // namespace cases
