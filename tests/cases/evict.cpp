// SPDX-License-Identifier: Apache-2.0
// x_evict_forward: covering arrays of lengths, windows and widths, and the edges.  Inputs are drawn
// again until no choice is close.
#include "oracle/evict.h"

#include "cases/summary_case.h"

namespace cases {
namespace {

double contents(const TableCall& made, const std::string& field, const int64_t* i, double normal) {
  const auto share = [&](int64_t of) { return i[0] == 0 ? of : i[0] == 1 ? 0 : of / 2; };
  if (field == "query_len") return static_cast<double>(share(made.letters.at("s")));
  if (field == "key_len") return static_cast<double>(share(made.letters.at("t") - 1));
  return normal;
}

std::vector<Expected> expected(TableCall& made) {
  const oracle::EvictOracle o(made.params<fovea_x_evict_forward_params>());
  if (o.margin < 1e-5) throw Close();
  count_read(made, "q", o.q), count_read(made, "k", o.k), count_read(made, "v", o.v);
  return {{"k_kept", o.k_kept, o.k_kept, true},
          {"v_kept", o.v_kept, o.v_kept, true},
          {"index", o.index, o.index, true},
          {"index_count", o.index_count, o.index_count, true}};
}

std::vector<harness::Case> evict_cases() {
  return Table("x_evict_forward", expected)
      .contents(contents)
      .sweep({{"q:f32", "q:f16", "q:bf16"},
              {"s=1 t=70", "s=8 t=33", "s=32 t=300", "s=20 t=9"},
              {"b=1", "b=3 query_len key_len", "b=3 key_len"},
              {"h=2 g=2", "h=6 g=2", "h=4 g=1"},
              {"keep=1", "keep=12", "keep=50", "keep=400"},
              {"", "window=1", "width=1", "width=7", "width=9223372036854775807"},
              {"d=16 e=24", "d=64 e=64", "d=5 e=1"},
              {"contiguous", "head_first", "odd"},
              {"", "index", "index index_count"},
              {"", "scale=0.3"}},
             1)
      .each("edge", {"b=0 keep=3", "t=0 keep=3 index index_count", "s=0 t=30 keep=3 index",
                     "t=20 keep=0", "h=0 g=0 keep=3", "t=20 keep=20 window=20 index index_count",
                     "t=30 d=576 e=0 keep=5", "h=0 g=2 t=9 keep=3 index"})
      .each("paper", {"q:bf16 b=1 s=32 t=2600 h=4 g=2 d=32 e=32 keep=2048 index"})
      .each("small", {"b=1 s=2 t=14 h=2 g=1 d=3 e=2 keep=6 width=3 index index_count"}, true)
      .cases();
}

const Family kEvict("x_evict_forward", evict_cases);

}  // namespace
}  // namespace cases
