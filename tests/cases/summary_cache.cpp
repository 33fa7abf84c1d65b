// SPDX-License-Identifier: Apache-2.0
// x_cache_step: rings that fill, turn and take many tokens at once; heavy hitters with many equal
// scores.  `total`: tokens before the step.
#include "oracle/summary_cache.h"
#include "cases/summary_case.h"

namespace cases {
namespace {

using Params = fovea_x_cache_step_params;

int64_t letter(const TableCall& made, const char* name) {
  return made.letters.count(name) ? made.letters.at(name) : 0;
}
// Slots of a head's ring.
int64_t slots_of(const TableCall& made, int64_t head) {
  const auto& p = made.params<Params>();
  const int64_t most = made.letters.at("t");
  return made.has("capacity") ? std::max(p.sink_keys + 1, most - head % 3) : p.sink_keys + p.recent;
}
int64_t total_of(const TableCall& made, int64_t batch) {
  return std::max<int64_t>(0, letter(made, "total") - 3 * batch);
}
int64_t live_of(const TableCall& made, int64_t batch, int64_t head) {
  if (made.params<Params>().rule == FOVEA_X_CACHE_RULE_HEAVY)
    return std::min(total_of(made, batch), made.letters.at("t"));
  return std::min(total_of(made, batch), slots_of(made, head));
}

double contents(const TableCall& made, const std::string& field, const int64_t* i, double normal) {
  const auto& p = made.params<Params>();
  if (field == "count") return static_cast<double>(live_of(made, i[0], i[1]));
  if (field == "capacity") return static_cast<double>(slots_of(made, i[0]));
  if (field == "old_len") return static_cast<double>(total_of(made, i[0]));
  if (field == "query_len") return static_cast<double>(i[0] % 2 ? 0 : made.letters.at("s"));
  if (field == "score" || field == "mass") return std::round(2 * std::abs(normal));
  if (field != "position") return normal;
  const int64_t total = total_of(made, i[0]), slot = i[2];
  if (p.rule == FOVEA_X_CACHE_RULE_HEAVY) {  // in no order
    const int64_t live = std::max<int64_t>(1, live_of(made, i[0], i[1]));
    return static_cast<double>(live % 7 ? (slot * 7 + 3) % live : slot);
  }
  const int64_t turn = slots_of(made, i[1]) - p.sink_keys;
  if (slot < p.sink_keys || total <= p.sink_keys + turn) return static_cast<double>(slot);
  return static_cast<double>(slot + (total - 1 - slot) / turn * turn);
}

std::vector<Expected> expected(TableCall& made) {
  const oracle::CacheStep o(made.params<Params>());
  count_read(made, "k", o.k), count_read(made, "v", o.v);
  count_read(made, "k_new", o.k_new), count_read(made, "v_new", o.v_new);
  count_read(made, "position", o.position), count_read(made, "score", o.score);
  count_read(made, "mass", o.mass);
  return {{"k", o.out_k, o.out_k, true},
          {"v", o.out_v, o.out_v, true},
          {"position", o.out_position, o.out_position, true},
          {"count", o.out_count, o.out_count, true},
          {"score", o.out_score, o.out_score}};
}

const std::vector<std::string> kTypes = {"k:f32", "k:f16", "k:bf16"};
const std::vector<std::string> kLays = {"contiguous", "head_first", "gaps", "odd", "wide"};

std::vector<harness::Case> cache_cases() {
  return Table("x_cache_step", expected)
      .contents(contents)
      .sweep({kTypes,
              {"t=9 sink_keys=2 recent=7", "t=12 sink_keys=4 recent=5", "t=9 sink_keys=2 capacity",
               "t=6 recent=6", "t=70 sink_keys=3 recent=64"},
              {"total=0", "total=3", "total=8", "total=9", "total=40"},
              {"k_new v_new s=1", "k_new v_new s=3", "k_new v_new s=90", ""},
              {"b=1", "b=3", "b=3 query_len"},
              {"", "old_len"},
              {"g=1", "g=3"},
              {"d=1 e=8", "d=24 e=24", "d=130 e=7"},
              kLays},
             1)
      .sweep({kTypes,
              {"rule=1 score heavy=3 recent=4", "rule=1 score mass heavy=3 recent=4",
               "rule=1 score mass heavy=0 recent=5", "rule=1 score mass heavy=6 recent=0"},
              {"total=0", "total=3", "total=8", "total=9", "total=40"},
              {"k_new v_new s=1", "k_new v_new s=3", ""},
              {"b=1", "b=3", "b=3 query_len"},
              {"", "old_len"},
              {"g=1 t=40", "g=3 t=300"},
              {"d=1 e=8", "d=24 e=24", "d=130 e=7"},
              kLays},
             2)
      .each("edge",
            {"b=0 recent=3 t=4", "g=0 recent=3 t=4", "d=0 e=0 recent=3 t=4 total=9 k_new v_new",
             "rule=1 score t=2000 total=1999 heavy=300 recent=200 mass g=1 b=1"})
      .each("small",
            {"t=4 sink_keys=1 recent=3 total=6 k_new v_new s=2 d=2 e=2 g=1",
             "rule=1 score mass heavy=2 recent=2 t=6 total=6 k_new v_new s=1 d=2 e=2 g=1"},
            true)
      .cases();
}

const Family kFamily("x_cache_step", cache_cases);

}  // namespace
}  // namespace cases
