// SPDX-License-Identifier: Apache-2.0
// x_select_line and x_select_heads.
#include "oracle/select_line.h"
#include "cases/table.h"
#include "harness/pairwise.h"
#include "oracle/select_heads.h"

namespace cases {
namespace {

harness::Call build_line(const std::string& words, uint64_t seed) {
  using Params = fovea_x_select_line_params;
  TableCall made("x_select_line", words, seed);
  Letters& x = made.letters;
  const Params& p = made.params<Params>();
  const int64_t rows = p.block_rows ? p.block_rows : 64, keys = p.block_keys ? p.block_keys : 64;
  x["mask_bytes"] = ((p.key_max + keys - 1) / keys + 7) / 8;
  const int64_t reach = p.key_max;
  x["r"] = made.has("query_start") || made.has("key_start") ? 3 : x["b"];
  if (made.has("query_start")) x["b"] = 1;
  if (made.has("key_start") && !made.has("query_start")) x["b"] = 3;
  x["r+1"] = x["r"] + 1;
  made.inputs();
  const harness::Random random(seed);
  uint64_t n = 0;
  int64_t last = -1;
  const auto start = [](int64_t r, int64_t total) {
    return static_cast<double>(r == 0 ? 0 : r == 1 ? total / 2 : r == 2 ? total / 2 + 1 : total);
  };
  for (size_t f = 0; f < made.call.fields.size(); ++f) {
    const std::string& field = made.call.fields[f].name;
    const int64_t most = p.in_blocks ? reach / keys + 2 : reach + 3;
    const int64_t extent = made.call.fields[f].tensor.shape[2];
    made.call.fill(f, [&](const int64_t* i) -> double {
      const double u = random.uniform(++n);
      if (field == "bits") return std::floor(u * 256);
      if (field == "query_start") return start(i[0], std::max<int64_t>(0, x["n"] - 3) * rows);
      if (field == "key_start") return start(i[0], reach);
      if (field == "query_len")
        return static_cast<double>(i[0] ? x["n"] * rows / 2 : x["n"] * rows - 1);
      if (field == "key_len") return static_cast<double>(i[0] ? reach / 3 : reach - 2);
      if (field == "vertical_count" || field == "slash_count")
        return std::floor(u * 1.4 *
                          static_cast<double>(x[field == "slash_count" ? "slashes" : "u"]));
      // Ascending lines, now and then one less that is none.
      if (i[2] == 0) last = u < 0.2 ? -2 : -1;
      last +=
          1 + static_cast<int64_t>(u * 2 * static_cast<double>(most) / static_cast<double>(extent));
      return static_cast<double>(last);
    });
  }
  made.outputs();
  const oracle::LineOracle oracle(p);
  if (made.has("bits")) {
    std::map<std::array<int64_t, 2>, int64_t> bytes;
    oracle.each_row([&](const oracle::Sequence& q, int64_t, int64_t row) {
      bytes[{q.batch, row}] = ((q.keys + keys - 1) / keys + 7) / 8;
    });
    made.call.account(made.call.field("bits"), [&](const int64_t* i) {
      const auto at = bytes.find({i[0], i[2]});
      return at != bytes.end() && i[3] < at->second;
    });
  }
  const oracle::LineResult a = oracle.run();
  made.expect({{"index", a.index, a.index, true},
               {"index_count", a.index_count, a.index_count, true},
               {"column", a.column, a.column, true},
               {"column_count", a.column_count, a.column_count, true},
               {"bits_out", a.bits_out, a.bits_out, true}});
  return std::move(made.call);
}

harness::Call build_heads(const std::string& words, uint64_t seed) {
  for (uint64_t attempt = 0;; ++attempt) {
    TableCall made("x_select_heads", words, seed);
    made.inputs();
    const harness::Random random(seed + attempt * 0x9e37);
    const int64_t alike = made.letters.count("alike") ? made.letters["alike"] : 1;
    for (size_t f = 0; f < made.call.fields.size(); ++f) {
      const std::string& field = made.call.fields[f].name;
      const auto& shape = made.call.fields[f].tensor.shape;
      made.call.fill(f, [&](const int64_t* i) -> double {
        if (field == "query_len")
          return static_cast<double>(i[0] ? i[0] * 2 % (made.letters["s"] + 1) : made.letters["s"]);
        if (field == "clusters_of") return static_cast<double>(i[0] * 3 + 1);
        // Heads that are the same number modulo `alike` are equal.
        const int64_t head = alike > 1 ? i[2] % alike : i[2];
        return random.normal(f << 40 |
                             uint64_t(((i[0] * shape[1] + i[1]) * 300 + head) * shape[3] + i[3]));
      });
    }
    if (made.has("query_len")) {
      const auto used = [&](const int64_t* i) {
        return i[1] < (i[0] ? i[0] * 2 % (made.letters["s"] + 1) : made.letters["s"]);
      };
      made.call.account(made.call.field("q"), used), made.call.account(made.call.field("k"), used);
    }
    made.outputs();
    const oracle::HeadsResult a = oracle::select_heads(made.params<fovea_x_select_heads_params>());
    if (a.margin < 1e-5 && attempt < 60) continue;
    if (a.margin < 1e-5) throw std::runtime_error(words + ": every draw is close");
    made.expect({{"head_map", a.head_map, a.head_map, true},
                 {"label", a.label, a.label, true},
                 {"count", a.count, a.count, true}});
    return std::move(made.call);
  }
}

using Build = harness::Call (*)(const std::string&, uint64_t);

struct Cases {
  std::vector<harness::Case> all;
  void add(const char* op, Build build, const std::string& words, const std::string& note,
           bool small = false) {
    all.push_back({op, name_of_words(words, note),
                   [=](uint64_t seed) { return build(words, seed); }, "", "", small});
  }
  void sweep(const char* op, Build build, const std::string& common,
             const std::vector<std::vector<std::string>>& axes, const std::string& note,
             uint64_t seed) {
    std::vector<int> sizes;
    for (const auto& axis : axes) sizes.push_back(static_cast<int>(axis.size()));
    harness::Pairwise rows(
        sizes, [](const harness::Row&) { return true; }, seed);
    for (const harness::Row& row : rows.rows()) {
      std::string words = common;
      for (size_t a = 0; a < axes.size(); ++a) words += " " + axes[a][static_cast<size_t>(row[a])];
      add(op, build, words, note);
    }
  }
};

void line_cases(Cases& cases) {
  constexpr char op[] = "x_select_line";
  const std::vector<std::string> places = {
      "b=2",       "b=2 query_len key_len", "query_start key_start", "query_start",
      "key_start", "b=2 query_max=21"};
  const std::vector<std::string> lays = {"contiguous", "gaps", "odd", "wide"};
  cases.sweep(
      op, build_line, "bits index index_count",
      {{"key_max=40", "key_max=300", "key_max=1"},
       {"", "causal=1"},
       {"", "key_max=90"},
       {"block_rows=4 block_keys=8", "block_rows=1 block_keys=16", "block_rows=8 block_keys=3"},
       {"x=1 n=5", "x=3 n=17"},
       {"keep=2", "keep=40"},
       places,
       lays},
      "bits", 21);
  cases.sweep(
      op, build_line, "key_max=300",
      {{"vertical slash", "vertical", "slash", "vertical vertical_count slash slash_count"},
       {"index index_count column column_count", "index column",
        "aligned=1 index index_count column column_count bits_out",
        "in_blocks=1 index index_count bits_out", "in_blocks=1 bits_out"},
       {"u=1 slashes=1", "u=12 slashes=7", "u=40 slashes=40"},
       {"block_rows=8 block_keys=8", "block_rows=5 block_keys=5", "block_rows=64 block_keys=64"},
       {"x=1 n=9", "x=3 n=40"},
       {"keep=3 columns=4", "keep=60 columns=50"},
       places,
       lays},
      "lines", 22);
  for (const char* words :
       {"bits index index_count b=0 key_max=9", "bits index index_count n=0 key_max=9",
        "bits index index_count keep=0 key_max=99",

        "vertical slash u=0 slashes=0 index column key_max=70",
        "vertical slash index_count column_count key_max=1 n=3",
        "slash index index_count key_max=100 block_rows=16 block_keys=16 n=9 slashes=9 keep=9"})
    cases.add(op, build_line, words, "edge");
  cases.add(op, build_line, "bits index index_count b=1 x=1 n=2 key_max=500 keep=8", "small", true);
  cases.add(op, build_line,
            "vertical slash index index_count column column_count b=1 x=1 n=4 u=5 slashes=3 keep=6"
            " columns=5 block_rows=4 block_keys=4 key_max=16",
            "small", true);
}

void heads_cases(Cases& cases) {
  constexpr char op[] = "x_select_heads";
  cases.sweep(op, build_heads, "q k head_map label count",
              {{"q:f32", "q:bf16", "q:f16"},
               {"k:f32", "k:bf16"},
               {"h=1 g=1", "h=4 g=2", "h=7 g=7", "h=12 g=3"},
               {"s=1", "s=5", "s=9"},
               {"d=1", "d=24", "d=65"},
               {"clusters=1", "clusters=3", "clusters=100", "clusters_of"},
               {"", "causal=1"},
               {"b=1", "b=3 query_len"},
               {"contiguous", "head_first", "gaps", "odd", "wide"}},
              "sweep", 23);
  for (const char* words : {"q k head_map clusters=2 b=0", "q k head_map clusters=2 s=0",
                            "q k head_map label count clusters=2 h=0 g=0",
                            "q k head_map label count h=12 g=12 clusters=4 alike=4 s=5",
                            "q k head_map label count h=12 g=12 clusters=3 alike=5 s=5",
                            "q k head_map label count h=64 g=64 clusters=9 b=1 s=5 d=16"})
    cases.add(op, build_heads, words, "edge");
  cases.add(op, build_heads, "q k head_map label count b=1 s=3 h=4 g=4 d=4 clusters=2", "small",
            true);
}

std::vector<harness::Case> all_cases() {
  Cases cases;
  line_cases(cases), heads_cases(cases);
  return cases.all;
}

const Family kFamily("select_line", all_cases);

}  // namespace
}  // namespace cases
