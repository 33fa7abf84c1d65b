// SPDX-License-Identifier: Apache-2.0
// x_select_block: covering arrays of rules, scopes, scores and places; the edges and the methods by
// name.  data=0: small integers, whose scores are exact; 1: normal numbers, drawn again until no
// decision is close; 2: given scores k / 32, with many ties; 3: the same with NaN and infinities.
#include "oracle/select_block.h"
#include "cases/table.h"
#include "harness/pairwise.h"

namespace cases {
namespace {

using Params = fovea_x_select_block_params;
constexpr char kOp[] = "x_select_block";
constexpr char kLists[] = " index index_count kept_score kept_mass score_out ";

class SelectBuild {
 public:
  SelectBuild(const std::string& words, uint64_t seed)
      : made_(kOp, words + low_dtype(words), seed), random_(seed) {
    Letters& x = made_.letters;
    const Params& p = made_.params<Params>();
    data_ = x.count("data") ? x.at("data") : 0;
    block_rows_ = p.block_rows ? p.block_rows : 1, block_keys_ = p.block_keys ? p.block_keys : 64;
    step_ = p.remap_step ? block_keys_ / p.remap_step : block_keys_;
    const int64_t span = p.remap_step ? step_ * p.remap_span : block_keys_;
    keys_ = x.at("u") * step_ + span - step_ + (p.remap_step ? step_ - 1 : 0);
    if (!made_.has("column") && !made_.has("score") && !made_.has("column_forced"))
      keys_ = p.key_max;
    x["y"] = (keys_ + block_keys_ - 1) / block_keys_, x["mask_bytes"] = (x["y"] + 7) / 8;
    x["r"] = x["b"];
    if (made_.has("query_start") || made_.has("key_start")) x["r"] = 3;
    if (made_.has("query_start")) x["b"] = 1;
    if (!made_.has("query_start") && made_.has("key_start")) x["b"] = 3;
    x["r+1"] = x["r"] + 1, x["key_b"] = made_.has("key_start") ? 1 : x["r"];
  }

  // The call, or the same with other numbers where a decision was close.
  static harness::Call build(const std::string& words, uint64_t seed) {
    for (uint64_t attempt = 0;; ++attempt) {
      SelectBuild one(words, seed + attempt * 0x9e37);
      one.fill();
      one.made_.outputs();
      one.account();
      const Params& p = one.made_.params<Params>();
      oracle::SelectOracle exact(p), rounded(p);
      oracle::SelectResult a = exact.run(oracle::Mode::exact);
      oracle::SelectResult b = rounded.run(oracle::Mode::rounded);
      const bool close = a.margin < 1e-5;
      if (close && attempt < 60 && one.data_ == 1) continue;
      if (close && one.data_ == 1) throw std::runtime_error(words + ": every draw is close");
      one.made_.expect({{"index", a.index, b.index, true},
                        {"index_count", a.index_count, b.index_count, true},
                        {"kept_score", a.kept_score, b.kept_score},
                        {"kept_mass", a.kept_mass, b.kept_mass},
                        {"score_out", a.score_out, b.score_out}});
      return std::move(one.made_.call);
    }
  }

 private:
  // column_low has the dtype of column.
  static std::string low_dtype(const std::string& words) {
    const size_t at = words.find("column:");
    if (at == std::string::npos || words.find("column_low") == std::string::npos) return "";
    return " column_low:" + words.substr(at + 7, words.find(' ', at) - at - 7);
  }
  double number(const std::string& field, double x, double u) const {
    if (field == "score" && data_ >= 2) {
      if (data_ == 3 && u < 0.2) {
        static constexpr double strange[] = {NAN, HUGE_VAL, -HUGE_VAL, -0.0, 0};
        return strange[static_cast<int>(u * 25) % 5];
      }
      return std::floor(u * 1000) / 32 - std::floor(std::floor(u * 1000) / 32);
    }
    return data_ == 1 ? x : std::clamp(std::round(1.2 * x), -2.0, 2.0);
  }
  // Ascending from 0 to `total`, where the second sequence of three may be the shortest.
  static double start(int64_t r, int64_t total) {
    return static_cast<double>(r == 0 ? 0 : r == 1 ? total / 2 : r == 2 ? total / 2 + 1 : total);
  }
  double integer(const std::string& field, const int64_t* i, double u) const {
    const Letters& x = made_.letters;
    const int64_t r = x.at("r");
    if (field == "query_start")
      return start(i[0], std::max<int64_t>(0, x.at("n") - r) * block_rows_);
    if (field == "key_start") return start(i[0], std::max<int64_t>(0, x.at("u") - r) * step_);
    const int64_t rows = x.at("n") * block_rows_;
    if (field == "query_len")
      return static_cast<double>(i[0] == 0 ? rows - rows / 7 : i[0] == 1 ? rows / 2 + 1 : 0);
    if (field == "key_len")
      return static_cast<double>(i[0] == 0   ? std::max<int64_t>(keys_ - 3, 0)
                                 : i[0] == 1 ? keys_ / 3
                                             : keys_);
    if (field == "count_head") return static_cast<double>(static_cast<int64_t>(u * 5) - 1);
    if (field == "row_forced") return u < 0.2;
    if (field == "column_forced") return u < 0.1 ? 1 : u < 0.2 ? 2 : u < 0.3 ? 3 : 0;
    if (field == "block_mask") return std::floor(u * 65536) - std::floor(u * 256) * 256;
    if (field == "forced") return 1 << static_cast<int>(u * 12) & 255;
    return std::floor(u * 4);  // column_weight
  }

  void fill() {
    made_.inputs();
    harness::Call& call = made_.call;
    for (size_t f = 0; f < call.fields.size(); ++f) {
      const std::string& field = call.fields[f].name;
      const bool floats =
          field == "row" || field == "column" || field == "column_low" || field == "score";
      const bool lse = field == "row_lse";
      uint64_t n = harness::hash(f) % (1 << 30);
      call.fill(f, [&](const int64_t* i) {
        const double u = random_.uniform(++n);
        if (field == "cover_head") return static_cast<double>(i[0] % 4) / 4;
        // Some are absent, or below a row's largest score.
        if (lse) return u < 0.1 ? -HUGE_VAL : u < 0.15 ? NAN : 6 * u - 1;
        return floats ? number(field, random_.normal(n), u) : integer(field, i, u);
      });
    }
  }
  // Only list rows and columns of a sequence count.
  void account() {
    harness::Call& call = made_.call;
    const oracle::SelectOracle oracle(made_.params<Params>());
    const Letters& x = made_.letters;
    const int64_t n = x.at("n"), u = x.at("u");
    std::vector<int64_t> row_columns(x.at("b") * n, -1), row_blocks(x.at("b") * n, -1);
    std::vector<char> columns(x.at("key_b") * u);
    for (int64_t r = 0; r < x.at("r"); ++r)
      for (const oracle::SelectRow& at : oracle.rows_of(r)) {
        row_columns[at.batch * n + at.row] = at.columns;
        row_blocks[at.batch * n + at.row] = at.blocks;
        // Bits alone know of more columns than a summary would have.
        for (int64_t c = 0; c < std::min(at.columns, u - at.column); ++c)
          columns[(x.at("key_b") == 1 ? 0 : r) * u + at.column + c] = 1;
      }
    const auto only = [&](const char* field, auto test) {
      if (made_.has(field)) call.account(call.field(field), test);
    };
    const auto bytes = [&](const std::vector<int64_t>& of) {
      return [&](const int64_t* i) { return i[3] * 8 < of[i[0] * n + i[2]]; };
    };
    only("row", [&](const int64_t* i) { return row_columns[i[0] * n + i[1]] >= 0; });
    only("row_lse", [&](const int64_t* i) { return row_columns[i[0] * n + i[2]] >= 0; });
    only("score", [&](const int64_t* i) { return i[3] < row_columns[i[0] * n + i[2]]; });
    only("row_forced", [&](const int64_t* i) { return row_columns[i[0] * n + i[2]] >= 0; });
    only("block_mask", bytes(row_columns)), only("forced", bytes(row_blocks));
    for (const char* field : {"column", "column_low"})
      only(field, [&](const int64_t* i) { return columns[i[0] * u + i[1]] != 0; });
    for (const char* field : {"column_weight", "column_forced"})
      only(field, [&](const int64_t* i) { return columns[i[0] * u + i[2]] != 0; });
  }

  TableCall made_;
  harness::Random random_;
  int64_t data_, block_rows_, block_keys_, step_, keys_;
};

class SelectCases {
 public:
  SelectCases& add(const std::string& words, const std::string& note, bool small = false,
                   const char* cuda_kernel = "") {
    const std::string all = words + (words.find("index") == std::string::npos ? kLists : "");
    cases_.push_back({kOp, name_of_words(words, note),
                      [all](uint64_t seed) { return SelectBuild::build(all, seed); }, cuda_kernel,
                      "", small});
    return *this;
  }
  SelectCases& kernel(const std::string& words, const char* cuda_kernel) {
    return add(words, "kernel", false, cuda_kernel);
  }
  SelectCases& sweep(const std::string& common, const std::vector<std::vector<std::string>>& axes,
                     const std::string& note, uint64_t seed) {
    std::vector<int> sizes;
    for (const auto& axis : axes) sizes.push_back(static_cast<int>(axis.size()));
    // All heads of a scope have one number; an lse is of one head.
    const auto together = [&](const harness::Row& row) {
      std::string words;
      for (size_t a = 0; a < row.size(); ++a)
        if (row[a] >= 0) words += axes[a][static_cast<size_t>(row[a])] + " ";
      const auto both = [&](const char* a, const char* b) {
        return words.find(a) != std::string::npos && words.find(b) != std::string::npos;
      };
      return !both("scope=2", "count_head") && !both("row_lse", "reduce_raw");
    };
    harness::Pairwise rows(sizes, together, seed);
    for (const harness::Row& row : rows.rows()) {
      std::string words = common;
      for (size_t a = 0; a < axes.size(); ++a) words += " " + axes[a][static_cast<size_t>(row[a])];
      add(words, note);
    }
    return *this;
  }
  std::vector<harness::Case> cases() const { return cases_; }
  // The last case is for a CUDA kernel.
  void of(const char* cuda_kernel) { cases_.back().cuda_kernel = cuda_kernel; }

 private:
  std::vector<harness::Case> cases_;
};

const std::vector<std::string> kForces = {"",
                                          "force_own=1",
                                          "force_first=2 force_last=1",
                                          "force_own=1 force_previous=2 force_first=1",
                                          "forced row_forced",
                                          "forced force_first=1000000000000"};
const std::vector<std::string> kPlaces = {
    "b=2",       "b=3 query_len key_len",      "query_start key_start", "query_start b=1",
    "key_start", "b=2 query_max=10 key_max=50"};

void sweeps(SelectCases& add) {
  const std::vector<std::string> scopes = {"", "scope=1", "scope=2"};
  const std::vector<std::string> tails = {"", "min_keep=3", "max_keep=4", "min_extra=2",
                                          "min_keep=2 max_keep=5 min_extra=1"};
  const std::vector<std::string> causes = {"", "causal=1", "causal=1 complete=1"};
  const std::vector<std::string> lays = {"contiguous", "head_first", "gaps", "odd", "wide"};
  const std::vector<std::string> blocks = {
      "block_rows=4 block_keys=8", "block_rows=1 block_keys=16", "block_rows=8 block_keys=4",
      "block_rows=3 block_keys=5"};
  // Exact scores of whole numbers.
  add.sweep("row column scale=0.5 keep=5",
            {{"row:f32", "row:bf16", "row:f16"},
             {"column:f32", "column:bf16", "column:f16"},
             {"h=4 g=2 x=4", "h=4 g=2 x=2 reduce=1", "h=6 g=3 x=1 reduce=3", "h=4 g=1 x=2 reduce=2",
              "h=3 g=3 x=3"},
             {"d=8", "d=40", "d=131"},
             {"n=9 u=14", "n=17 u=33", "n=6 u=130"},
             {"count=3", "count=0", "count=40", "ratio=0.3", "ratio=0.3 ratio_up=1", "count_head",
              "rule=4 threshold=1.5", "rule=5 threshold=2", "rule=6"},
             scopes,
             {"", "forced_count=1"},
             {"", "block_mask", "column_forced", "measure=1 column_low"},
             kForces,
             kPlaces,
             tails,
             causes,
             blocks,
             lays},
            "exact", 1);
  // Given scores with ties, and cumulative rules on them.
  add.sweep(
      "score keep=6",
      {{"data=2", "data=3"},
       {"h=3 x=3 g=1", "h=4 x=2 reduce=1", "h=4 x=1 reduce=3", "h=4 x=2 reduce=1 reduce_raw=1"},
       {"n=9 u=14", "n=5 u=300"},
       {"rule=1 cover=0.5", "rule=2 cover=0.5", "rule=3 cover=0.5", "rule=1 cover_head",
        "rule=2 cover=0", "rule=1 cover=1", "rule=2 cover=2", "count=4"},
       {"", "scope=1"},
       {"", "forced_count=1"},
       {"", "column_forced", "block_mask"},
       kForces,
       kPlaces,
       tails,
       causes,
       blocks,
       lays},
      "given", 2);
  // Normalised scores and their sums, which round.
  add.sweep(
      "row column data=1 keep=7",
      {{"row:f32", "row:bf16"},
       {"normalise=1", "normalise=2 column_weight", "normalise=3", "normalise=4",
        "normalise=1 row_lse"},
       {"h=4 g=2 x=4", "h=4 g=2 x=2 reduce=1", "h=4 g=4 x=1 reduce=2",
        "h=4 g=2 x=2 reduce=1 reduce_raw=1", "h=4 g=1 x=2 reduce=3"},
       {"n=5 u=14", "n=3 u=33"},
       {"count=3", "rule=1 cover=0.7", "rule=2 cover=0.4", "rule=3 cover=0.8", "ratio=0.2",
        "rule=4 threshold=0.05"},
       scopes,
       {"", "forced_count=1"},
       {"", "force_own=1", "force_first=1 force_previous=1"},
       {"b=2", "b=3 query_len key_len", "query_start key_start"},
       {"", "min_extra=1", "min_keep=2", "max_keep=6"},
       causes,
       {"", "remap_step=4 remap_span=2", "remap_step=2 remap_span=3", "remap_step=1 remap_span=1"},
       {"block_rows=4 block_keys=8", "block_rows=1 block_keys=16"}},
      "rounded", 3);
}

void edges(SelectCases& add) {
  for (const char* words :
       {"row column x=4 b=0 count=2", "row column x=4 n=0 count=2", "row column x=4 u=0 count=2",
        "row column x=4 u=0 count=2 force_own=1 causal=1", "row column h=0 g=0 x=0 count=2",
        "score h=0 x=0 g=0 count=2 reduce=3", "row column x=4 keep=0 count=2",
        "score x=4 count=2 block_keys=4 block_rows=30",
        "score x=4 count=2 u=5 block_keys=4 query_max=1 n=3",
        "score x=4 count=3 u=9 n=1 block_rows=200 block_keys=16 causal=1",
        "score x=4 data=3 count=100 u=70 n=3", "score x=4 data=3 rule=1 cover=1 u=70 n=3",
        "score x=4 data=3 rule=5 threshold=-1000 u=70 n=3",
        "score x=4 count=9223372036854775807 min_keep=9223372036854775807 u=9 n=2",
        "score x=4 force_last=9223372036854775807 force_previous=9223372036854775807 u=9 n=2"})
    add.add(words, "edge");
  // Lists of one output alone, unions and bits without scores.
  add.add("score x=4 u=12 n=5 count=3 index keep=3", "edge")
      .add("score x=4 u=12 n=5 rule=1 cover=0.5 data=2 index_count", "edge")
      .add("rule=6 forced key_max=900 n=5 block_rows=64 h=2 x=2 keep=9 index index_count", "edge")
      .add(
          "rule=6 forced block_mask min_keep=4 key_max=300 n=5 h=2 x=2 keep=9 causal=1"
          " block_keys=16 index index_count kept_score",
          "edge")
      .add("rule=6 column_forced u=40 n=5 block_rows=8 block_keys=8 h=2 x=2 g=1 keep=9 index",
           "edge");
  // Equal scores throughout: order alone decides.
  add.add("score x=4 data=0 scale=0.0000001 normalise=1 rule=1 cover=0.5 u=64 n=2 keep=40", "edge")
      .add("row column d=1 u=300 n=40 count=100 scope=1 b=1 h=2 x=2 g=1 keep=20", "ties")
      .add(
          "row column d=1 u=300 n=40 count=3000 scope=2 b=1 h=2 x=2 g=1 keep=20 force_own=1"
          " forced_count=1 block_rows=16 block_keys=16",
          "ties");
  // Rows longer than a block's shared memory, wide scopes of many rows.
  add.add("score x=1 h=1 b=1 n=2 u=20000 count=500 keep=500 data=2", "long")
      .add(
          "row column x=1 h=1 g=1 b=1 n=3 u=14000 d=4 normalise=1 rule=1 cover=0.3 data=1"
          " remap_step=4 remap_span=2 keep=100 scale=0.05",
          "long")
      .add("row column x=2 h=2 g=1 b=2 n=200 u=150 d=16 ratio=0.2 scope=1 min_keep=1 keep=60",
           "long")
      .add(
          "row column x=2 h=2 g=2 b=1 n=70 u=90 d=16 rule=1 cover=0.25 normalise=3 scope=1 data=1"
          " keep=60 force_own=1 forced_count=1 min_extra=1",
          "long");
}

// The selections of published methods, by their numbers.
void methods(SelectCases& add) {
  add.add(
         "row column column_low measure=1 b=2 n=1 h=8 g=2 x=8 u=40 d=64 block_keys=16 count=8"
         " forced_count=1 force_last=1 key_len causal=1 keep=8",
         "quest")
      .add(
          "row column normalise=1 reduce=1 h=8 g=2 x=2 d=32 n=40 u=30 data=1 block_keys=16"
          " remap_step=4 remap_span=2 causal=1 complete=1 force_first=1 force_own=1"
          " force_previous=1 forced_count=1 count=5 keep=5 query_max=40 key_max=120",
          "nsa")
      .add(
          "row column h=4 g=2 x=4 n=60 u=8 block_keys=8 causal=1 complete=1 force_own=1"
          " forced_count=1 count=3 keep=3 scale=1",
          "moba")
      .add(
          "score h=2 x=2 n=9 u=9 block_rows=128 block_keys=128 causal=1 data=2 rule=1 cover=0.9"
          " force_first=1 force_own=1 forced_count=1 keep=9",
          "xattention")
      .add(
          "row column normalise=1 data=1 h=2 g=1 x=2 n=6 u=12 block_rows=128 block_keys=64"
          " column_forced row_forced ratio=0.5 min_extra=1 causal=1 keep=12",
          "sparge")
      .add(
          "row column normalise=1 data=1 h=2 g=1 x=2 n=6 u=12 rule=3 cover=0.9 min_extra=1"
          " block_rows=128 causal=1 keep=12",
          "sparge")
      .add(
          "row column normalise=1 data=1 h=2 g=1 x=2 n=12 u=12 rule=4 threshold=0.02 causal=1"
          " block_rows=64 force_own=1 keep=12",
          "seer")
      .add("row column h=4 g=2 x=1 reduce=1 n=1 u=50 count=16 scale=1 keep=16", "infllm")
      .add(
          "row column normalise=1 data=1 scope=1 ratio=0.25 ratio_up=1 min_keep=1 h=2 g=2 x=2"
          " n=12 u=12 block_rows=128 block_keys=128 keep=12",
          "draft")
      .add(
          "row column column_weight normalise=2 data=1 rule=2 cover=0.8 min_keep=1 h=2 g=2 x=2"
          " n=12 u=20 keep=20",
          "svg2");
}

// Tensor cores: each instance; rows and columns past a tile, several splits of the columns, heads
// that a warp reduces and heads that lists reduce; lists by a warp and by a block.
void kernels(SelectCases& add) {
  const std::string f16 = " row:f16 column:f16 ", bf16 = " row:bf16 column:bf16 ";
  const std::string nsa =
      "row column normalise=1 reduce=1 data=1 b=1 n=90 u=260 block_keys=64 remap_step=4 "
      "remap_span=2 causal=1 complete=1 force_first=1 force_own=1 force_previous=1 forced_count=1 "
      "count=9 keep=9 query_max=90 key_max=4190";
  add.kernel(nsa + bf16 + "h=32 g=2 x=2 d=128", "sm80.bf16.d128.ring.m64")
      .kernel(nsa + bf16 + "h=32 g=2 x=2 d=128 row_lse", "sm90.bf16.d128.h16")
      .kernel(nsa + bf16 + "h=64 g=2 x=2 d=128 row_lse", "sm90.bf16.d128.h32")
      .kernel(
          "row column normalise=1 row_lse reduce=1 data=1 b=2 n=53 u=200 h=64 g=1 x=4 d=72"
          " block_keys=64 remap_step=4 remap_span=2 causal=1 complete=1 force_own=1 count=5 keep=5"
          " query_len key_len" +
              f16,
          "sm90.f16.d128.h16")
      .kernel(
          "row column normalise=1 row_lse reduce=1 data=1 b=2 n=20 u=100 h=32 g=2 x=2 d=64"
          " count=5 keep=5 block_mask" +
              f16,
          "sm80.f16.d64.ring.m64")
      .kernel(
          "row column normalise=1 row_lse reduce=2 data=1 b=3 n=37 u=300 h=16 g=1 x=1 d=40"
          " count=9 keep=9 block_rows=4 block_keys=8 causal=1 query_len key_len" +
              bf16,
          "sm90.bf16.d64.h16")
      .kernel(nsa + f16 + "h=8 g=2 x=4 d=64", "sm80.f16.d64.ring.m64")
      .kernel(nsa + bf16 + "h=4 g=2 x=1 d=96", "sm80.bf16.ring.m64")
      .kernel(
          "row column b=2 n=70 u=330 h=4 g=2 x=4 d=128 count=50 keep=60 causal=1 force_own=1"
          " block_rows=16 block_keys=16 scale=0.5" +
              f16,
          "sm80.f16.d128.ring.m64")
      .kernel(
          "row column b=2 n=70 u=330 h=4 g=2 x=4 d=64 count=50 keep=60 block_mask scale=0.5"
          " query_start key_start block_rows=4 block_keys=8" +
              bf16,
          "sm80.bf16.d64.ring.m64")
      .kernel(
          "row column column_low measure=1 b=2 n=1 h=8 g=2 x=8 u=700 d=128 block_keys=16"
          " count=40 forced_count=1 force_last=1 key_len causal=1 keep=40" +
              bf16,
          "sm80.bf16.ring.m16")
      .kernel(
          "row column column_low measure=1 b=2 n=2 h=8 g=2 x=2 reduce=3 u=300 d=128"
          " block_keys=16 count=40 keep=40" +
              f16,
          "sm80.f16.ring.m16")
      .kernel(
          "row column column_low measure=1 b=1 n=9 h=8 g=2 x=8 u=70 d=72 block_keys=16"
          " count=4 keep=4 row:f32 column:bf16",
          "sm80.bf16.ring.m64")
      .kernel(
          "row column b=2 n=65 u=129 h=3 g=3 x=3 d=100 count=9 keep=9 row:bf16 column:f32"
          " causal=1 block_rows=128 block_keys=128",
          "sm80.bf16.parts.m64")
      .kernel(
          "row column column_low measure=1 b=2 n=1 u=129 h=4 g=2 x=4 d=100 count=9 keep=9"
          " row:f16 column:f32",
          "sm80.bf16.parts.m16")
      .kernel("row column b=1 n=2 u=9000 h=2 g=1 x=2 d=16 count=700 keep=700" + bf16,
              "sm80.bf16.ring.m16")
      .kernel(
          "row column b=1 n=2 u=3000 h=2 g=1 x=1 reduce=2 d=16 rule=1 cover=0.3 data=1"
          " normalise=1 keep=700 scale=0.05" +
              bf16,
          "sm80.bf16.ring.m16");
}

// Raw scores of one head, a warp a list: each number of entries that a warp has, and one more;
// SpargeAttention's lists; masks, ties, infinities and rows that see little.
void raw_rows(SelectCases& add) {
  const std::string sparge =
      "row column normalise=1 data=0 h=2 g=2 x=2 d=16 ratio=0.5 min_extra=1 block_rows=128"
      " block_keys=64 scale=0.2 index index_count keep=130 ";
  add.kernel(sparge + "b=1 n=9 u=256", "simt.f32.warps")
      .kernel(sparge + "b=2 n=130 u=256 causal=1", "simt.f32.warps")
      .kernel(sparge + "b=2 n=130 u=200 query_len key_len causal=1", "simt.f32.warps")
      .kernel(
          "row column h=4 g=2 x=4 n=5 u=257 count=100 keep=100 force_first=2 force_own=1"
          " forced_count=1 block_mask causal=1 block_rows=128 block_keys=4",
          "simt.f32.warps")
      .kernel("score h=2 x=2 g=1 n=3 u=513 data=3 rule=1 cover=0.5 column_forced keep=200",
              "simt.given.warps")
      .kernel(
          "score h=2 x=2 n=3 u=1024 data=2 normalise=4 count=500 keep=400 scale=0.5 query_start"
          " key_start block_rows=4 block_keys=4",
          "simt.given.warps")
      .kernel("score h=2 x=2 n=3 u=700 data=2 normalise=3 rule=5 threshold=0.5 keep=600",
              "simt.given.warps")
      .kernel("score h=2 x=2 n=2 u=1025 data=2 normalise=3 count=500 keep=600 index index_count",
              "simt.given");
}

// The largest given scores of a row and no more: rows of one block, of several, and of more equal
// scores than a block keeps.
void given_rows(SelectCases& add) {
  for (const char* words :
       {"b=3 query_len key_len h=2 x=2 n=30 u=40 count=7 keep=7 data=3 block_keys=4 causal=1",
        "query_start key_start h=3 x=3 n=20 u=50 ratio=0.3 keep=12 data=2 block_rows=4"
        " block_keys=8",
        "b=2 count_head h=2 x=2 n=3 u=900 keep=50 data=3",
        "b=1 h=1 x=1 n=2 u=20000 count=500"
        " keep=500 data=3",
        "b=1 h=1 x=1 n=1 u=70000 count=3000 keep=2900 data=0 scale=0.5",
        "b=2 h=1 x=1 n=1 u=9000 count=8900 keep=8900 data=2",
        "b=1 h=2 x=2 n=300 u=700 count=100 keep=100 data=2 odd"}) {
    add.add(std::string("score index index_count kept_score ") + words, "rows");
    add.of("rows");
  }
}

std::vector<harness::Case> select_cases() {
  SelectCases add;
  sweeps(add), edges(add), methods(add), kernels(add), raw_rows(add), given_rows(add);
  add.add(
         "row column b=1 n=3 u=5 h=2 g=1 x=2 d=4 count=2 keep=2 causal=1 force_own=1"
         " block_rows=2 block_keys=2 scale=1",
         "small", true)
      .add("score b=1 n=2 u=6 h=2 x=1 reduce=1 data=2 rule=1 cover=0.5 keep=4", "small", true)
      .add(
          "row column normalise=1 data=1 b=1 n=2 u=9 h=2 g=1 x=2 d=4 remap_step=2 remap_span=2"
          " block_keys=4 scope=1 count=4 keep=4",
          "small", true);
  return add.cases();
}

const Family kFamily("select_block", select_cases);

}  // namespace
}  // namespace cases
