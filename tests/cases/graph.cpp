// SPDX-License-Identifier: Apache-2.0
// x_graph_append, x_select_graph and x_graph_forward: covering arrays of shapes, lengths and
// widths, and the edges.  `old`: keys that the first sequence's graph has.
#include "cases/graph_case.h"

namespace cases {
namespace {

const std::vector<std::string> kHeads = {"h=2 g=2", "h=6 g=2", "h=3 g=1"};
const std::vector<std::string> kLays = {"contiguous", "head_first", "odd"};
const std::vector<std::string> kLengths = {"b=1", "b=3 key_len", "b=2"};

std::vector<Expected> appended(TableCall& made) {
  const oracle::GraphAppendOracle o(made.params<fovea_x_graph_append_params>());
  count_graph_read(made, o);
  return {{"neighbour", o.out_neighbour, o.out_neighbour, true},
          {"neighbour_count", o.out_count, o.out_count, true},
          {"entry", o.out_entry, o.out_entry, true}};
}

std::vector<harness::Case> append_cases() {
  const std::vector<std::string> types = {"k:f32", "k:f16", "k:bf16"};
  const std::vector<std::string> sizes = {"t=1 old=0", "t=9 old=1", "t=70 old=31", "t=140 old=139",
                                          "t=97 old=0"};
  const std::vector<std::string> widths = {"d=1", "d=8", "d=24", "d=65"};
  const std::vector<std::string> degrees = {"kept=4 added=2 degree=6", "kept=1 added=1 degree=2",
                                            "degree=23", "kept=3 added=9 degree=12 width=3",
                                            "kept=20 added=1 degree=21 width=400"};
  return Table("x_graph_append", appended)
      .contents(graph_contents)
      .sweep({types,
              sizes,
              {"", "old_len"},
              {"g=1", "g=3"},
              widths,
              degrees,
              kLengths,
              kLays,
              {"", "nan=1"}},
             1)
      .sweep({types,
              sizes,
              {"q:f32 s=1", "q:bf16 s=7", "q:f16 s=70"},
              {"q", "q query_len", "q old_len", "q nearest=1", "q nearest=5 query_len",
               "q nearest=9223372036854775807"},
              kHeads,
              widths,
              degrees,
              kLengths,
              kLays,
              {"", "nan=1"}},
             2)
      .each("edge", {"b=0 degree=20", "t=0 degree=20", "g=0 degree=20", "t=0 q degree=20",
                     "s=0 q degree=20 t=12", "g=0 h=0 q degree=20", "g=2 h=0 q degree=20 t=12",
                     "t=20 old=20 old_len degree=20", "t=20 old=90 old_len q h=2 g=2 degree=20"})
      .each("large", {"t=700 d=16 g=1 h=2 s=120 q degree=20 b=1"})
      .each("small",
            {"b=1 t=9 g=1 d=3 kept=2 added=1 degree=3 old=5 old_len",
             "b=1 t=9 g=1 h=2 s=4 q d=3 kept=2 added=1 degree=3 nearest=3"},
            true)
      .cases();
}

std::vector<Expected> selected(TableCall& made) {
  const oracle::SelectGraphOracle o(made.params<fovea_x_select_graph_params>());
  count_graph_read(made, o);
  return {{"index", o.index, o.index, true},
          {"index_count", o.index_count, o.index_count, true},
          {"scanned", o.scanned, o.scanned, true}};
}

const std::vector<std::string> kSearches = {
    "count=5 ef=5 neighbour neighbour_count entry keep=5",
    "count=3 ef=20 neighbour neighbour_count entry keep=7",
    "count=40 ef=9223372036854775807 neighbour neighbour_count entry keep=9",
    "count=0 ef=1 neighbour neighbour_count entry keep=1",
    "count=7 keep=7",
    "count=9223372036854775807 keep=11"};

std::vector<harness::Case> select_cases() {
  return Table("x_select_graph", selected)
      .contents(graph_contents)
      .sweep({{"k:f32 q:f32", "k:f16 q:f32", "k:bf16 q:bf16", "k:f32 q:f16"},
              {"t=1", "t=9", "t=96", "t=331"},
              {"s=1", "s=6", "s=4 query_len"},
              kSearches,
              {"degree=0", "degree=3", "degree=17", "degree=100"},
              kHeads,
              {"d=1", "d=24", "d=64"},
              kLengths,
              kLays,
              {"", "scanned"},
              {"", "nan=1"}},
             3)
      .each("edge", {"b=0 count=2 keep=2", "t=0 count=2 keep=2 scanned", "h=0 g=0 count=2 keep=2",
                     "t=0 count=2 ef=2 keep=2 neighbour neighbour_count entry degree=3 scanned",
                     "h=0 g=2 count=2 keep=2", "s=0 count=2 keep=2", "t=20 count=2 keep=0"})
      .each("small",
            {"b=1 s=2 t=9 h=2 g=1 d=3 count=3 ef=4 keep=3 neighbour neighbour_count entry scanned"
             " degree=3",
             "b=1 s=2 t=9 h=2 g=1 d=3 count=3 keep=4 scanned"},
            true)
      .cases();
}

std::vector<harness::Case> forward_cases() {
  return Table("x_graph_forward", attend_found<fovea_x_graph_forward_params>)
      .contents(graph_contents)
      .sweep({{"q:f32", "q:f16", "q:bf16 o:f32", "q:bf16"},
              {"t=1", "t=9", "t=96", "t=331"},
              {"s=1", "s=6", "s=4 query_len"},
              kSearches,
              {"degree=3", "degree=17"},
              kHeads,
              {"d=8 e=24", "d=64 e=64"},
              kLengths,
              kLays,
              {"", "lse", "lse scanned index", "index index_count"},
              {"", "scale=0.5 softcap=4"}},
             4)
      .each("edge", {"b=0 count=2", "t=0 count=2 lse", "h=0 g=0 count=2", "s=0 count=2"})
      .each("small",
            {"b=1 s=2 t=9 h=2 g=1 d=3 e=2 count=3 ef=4 neighbour neighbour_count entry degree=3"
             " lse scanned",
             "b=1 s=2 t=9 h=2 g=1 d=3 e=2 count=3 keep=3 index index_count lse"},
            true)
      .cases();
}

const Family kAppend("x_graph_append", append_cases);
const Family kSelect("x_select_graph", select_cases);
const Family kForward("x_graph_forward", forward_cases);

}  // namespace
}  // namespace cases
