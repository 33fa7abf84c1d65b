// SPDX-License-Identifier: Apache-2.0
// x_pooled_forward: covering arrays of summaries, rules and places; the edges; methods, whose
// outputs are also made here by dense attention under the papers' own masks.  Quest and MoBA
// stand in cases/recipes_pooled.cpp.
// Inputs are normal numbers, drawn again until no decision is close.
#include "oracle/pooled.h"

#include <set>

#include "cases/placed_case.h"

namespace cases {
namespace {

using Params = fovea_x_pooled_forward_params;
constexpr char kOp[] = "x_pooled_forward";

// ---- the papers, a head at a time.  Calls are contiguous and of full length.

using Scores = std::vector<std::pair<double, int64_t>>;  // (score, block)

Scores sorted(Scores scores) {
  std::sort(scores.begin(), scores.end(), [](const auto& x, const auto& y) {
    return x.first > y.first || (x.first == y.first && x.second < y.second);
  });
  return scores;
}
// The n with the highest scores, of equals the first.
std::set<int64_t> top(const Scores& scores, int64_t n) {
  std::set<int64_t> out;
  for (const auto& [score, block] : sorted(scores))
    if (static_cast<int64_t>(out.size()) < n) out.insert(block);
  return out;
}
void softmax(Scores& scores) {
  double sum = 0;
  for (auto& [score, block] : scores) sum += score = std::exp(score);
  for (auto& [score, block] : scores) score /= sum;
}

struct Paper {
  const Params& p;
  oracle::Dense q = oracle::load(p.q), k = oracle::load(p.k), v = oracle::load(p.v);
  oracle::Dense row = oracle::load(p.row), column = oracle::load(p.column);
  oracle::Dense row_least = oracle::load(p.row_similar_least),
                column_least = oracle::load(p.column_similar_least);
  int64_t s = q.shape[1], t = k.shape[1], d = q.shape[3];
  int64_t rows = std::max(p.block_rows, 1), keys = p.block_keys;
  int64_t row_blocks = (s + rows - 1) / rows, key_blocks = (t + keys - 1) / keys;

  int64_t position(int64_t i) const { return i + t - s; }
  int64_t last_row(int64_t r) const { return std::min((r + 1) * rows, s) - 1; }
  int64_t group(int64_t h) const { return h / (q.shape[2] / k.shape[2]); }
  // Key blocks that begin at or before the last row of row block r.
  int64_t begun(int64_t r) const {
    return p.causal ? position(last_row(r)) / keys + 1 : key_blocks;
  }

  using Vector = std::vector<double>;
  // The mean of tokens [begin, end) of a head; unit: of their directions.
  static Vector mean(const oracle::Dense& x, int64_t b, int64_t h, int64_t begin, int64_t end,
                     bool unit) {
    Vector sum(x.shape[3]);
    for (int64_t i = begin; i < end; ++i) {
      double square = 0;
      for (size_t c = 0; c < sum.size(); ++c) square += std::pow(x(b, i, h, c), 2);
      for (size_t c = 0; c < sum.size(); ++c)
        sum[c] += x(b, i, h, c) / (unit ? std::sqrt(square) : 1) / static_cast<double>(end - begin);
    }
    return sum;
  }
  static double dot(const Vector& x, const Vector& y) {
    double sum = 0;
    for (size_t c = 0; c < x.size(); ++c) sum += x[c] * y[c];
    return sum;
  }
  Vector query(int64_t b, int64_t h, int64_t r, bool unit = false) const {
    return mean(q, b, h, r * rows, last_row(r) + 1, unit);
  }
  Vector key(int64_t b, int64_t h, int64_t c, bool unit = false) const {
    return mean(k, b, group(h), c * keys, std::min((c + 1) * keys, t), unit);
  }

  // SeerAttention: the gate's softmax over the blocks that have begun, above a threshold or the
  // best, and the diagonal.
  std::set<int64_t> seer(int64_t b, int64_t h, int64_t r) const {
    const int64_t width = row.shape[3], own = position(last_row(r)) / keys;
    Scores scores;
    for (int64_t c = 0; c < begun(r); ++c) {
      double gate = 0;
      for (int64_t n = 0; n < width; ++n) gate += row(b, r, h, n) * column(b, c, group(h), n);
      scores.push_back({gate / std::sqrt(static_cast<double>(width)), c});
    }
    softmax(scores);
    std::set<int64_t> out = p.rule ? std::set<int64_t>() : top(scores, p.count);
    for (const auto& [probability, c] : scores)
      if (p.rule && probability > static_cast<double>(p.threshold)) out.insert(c);
    out.insert(own);
    return out;
  }
  // SpargeAttention, algorithm 1: blocks whose tokens point apart are never predicted: all of their
  // row or column is computed.
  std::set<int64_t> sparge(int64_t b, int64_t h, int64_t r) const {
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    const auto alike = [](const Vector& x, double least) { return dot(x, x) > least; };
    const bool whole = !alike(query(b, h, r, true), row_least(h));
    Scores scores;
    std::set<int64_t> out;
    for (int64_t c = 0; c < begun(r); ++c) {
      const bool fixed = !alike(key(b, h, c, true), column_least(group(h)));
      if (!fixed) scores.push_back({dot(query(b, h, r), key(b, h, c)) * scale, c});
      if (fixed || whole) out.insert(c);
    }
    softmax(scores);
    double mass = 0;
    int64_t taken = 0;
    const auto most =
        static_cast<int64_t>(static_cast<double>(p.ratio) * static_cast<double>(key_blocks));
    for (const auto& [probability, c] : sorted(scores)) {
      mass += probability;
      const bool take = p.rule ? mass <= static_cast<double>(p.cover) : taken < most;
      if (!take && taken) break;
      out.insert(c), ++taken;
    }
    return out;
  }
  // A threshold: blocks that score at least a share of the row's best, the first and the own.
  std::set<int64_t> share_of_best(int64_t b, int64_t h, int64_t r) const {
    double most = -HUGE_VAL;
    for (int64_t c = 0; c < begun(r); ++c) most = std::max(most, dot(query(b, h, r), key(b, h, c)));
    std::set<int64_t> out = {0};
    for (int64_t c = 0; c < begun(r); ++c) {
      const double score = dot(query(b, h, r), key(b, h, c));
      const double share = most > 0 ? score / most : score * std::sqrt(1 / static_cast<double>(d));
      if (share >= static_cast<double>(p.threshold)) out.insert(c);
      const bool own = (c + 1) * keys > position(r * rows) && c * keys <= position(last_row(r));
      if (own) out.insert(c);
    }
    return out;
  }
  // VMoBA: of every row's blocks but its own, a head's best; a row has its own beside them.
  std::set<int64_t> vmoba(int64_t b, int64_t h, int64_t i) const {
    Scores scores;
    for (int64_t row_of = 0; row_of < s; ++row_of)
      for (int64_t c = 0; c < key_blocks; ++c)
        if (c != position(row_of) / keys)
          scores.push_back({dot(query(b, h, row_of), key(b, h, c)), row_of * key_blocks + c});
    std::set<int64_t> out = {position(i) / keys};
    for (int64_t at : top(scores, p.count - s))
      if (at / key_blocks == i) out.insert(at % key_blocks);
    return out;
  }
  // DraftAttention: the best share of a head's low-resolution map, at least one of a row.
  std::set<int64_t> draft(int64_t b, int64_t h, int64_t r) const {
    Scores map;
    std::set<int64_t> out;
    for (int64_t m = 0; m < row_blocks; ++m) {
      Scores line;
      for (int64_t c = 0; c < key_blocks; ++c)
        line.push_back({dot(query(b, h, m), key(b, h, c)) / std::sqrt(static_cast<double>(d)),
                        m * key_blocks + c});
      softmax(line);
      map.insert(map.end(), line.begin(), line.end());
      if (m == r) out.insert(sorted(line)[0].second % key_blocks);
    }
    const double share = static_cast<double>(p.ratio) * static_cast<double>(map.size());
    for (int64_t at : top(map, static_cast<int64_t>(share)))
      if (at / key_blocks == r) out.insert(at % key_blocks);
    return out;
  }

  using Definition = std::set<int64_t> (Paper::*)(int64_t, int64_t, int64_t) const;

  // Refuses an output that is not dense attention over the keys of the paper's blocks.
  void compare(Definition definition, const oracle::Out& o, const std::string& words) const {
    const int64_t e = v.shape[3], heads = q.shape[2];
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    for (int64_t b = 0; b < q.shape[0]; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < s; ++i) {
          const std::set<int64_t> blocks = (this->*definition)(b, h, i / rows);
          Vector sum(e);
          double all = 0;
          for (int64_t j = 0; j < t; ++j) {
            if (!blocks.count(j / keys) || (p.causal && j > position(i))) continue;
            double score = 0;
            for (int64_t c = 0; c < d; ++c) score += q(b, i, h, c) * k(b, j, group(h), c);
            const double weight = std::exp(score * scale);
            all += weight;
            for (int64_t c = 0; c < e; ++c) sum[c] += weight * v(b, j, group(h), c);
          }
          for (int64_t c = 0; c < e; ++c) {
            const double wanted = all > 0 ? sum[c] / all : 0;
            if (!(std::abs(o.value[((b * s + i) * heads + h) * e + c] - wanted) < 1e-5))
              throw std::runtime_error(words + ": the oracle's o is not the paper's");
          }
        }
  }
};

constexpr Paper::Definition kPapers[] = {&Paper::seer, &Paper::sparge, &Paper::share_of_best,
                                         &Paper::vmoba, &Paper::draft};

class PooledBuild : Placed {
 public:
  PooledBuild(const std::string& words, uint64_t seed) : Placed(kOp, words, seed) {
    Letters& x = made.letters;
    const Params& p = made.params<Params>();
    rows_ = p.block_rows ? p.block_rows : 1, keys_ = p.block_keys ? p.block_keys : 64;
    const bool packed_rows = made.has("query_start"), packed_keys = made.has("key_start");
    const int64_t more = x.count("more") ? x["more"] : 0;
    x["n"] = rows_ == 1 ? x["s"] : x["s"] / rows_ + (packed_rows ? x["r"] : x["s"] % rows_ != 0);
    if (rows_ > 1) x["n"] += more;
    x["u"] = capacity / keys_ + (packed_keys ? x["r"] : capacity % keys_ != 0) + more;
    x["key_b"] = packed_keys ? 1 : x["r"];
    x["summary_width"] = p.measure ? 2 * x["d"] : x["d"];
    if (!made.has("row") || !made.has("column")) x["row_width"] = x["d"];
  }

  static harness::Call build(const std::string& words, uint64_t seed) {
    PooledBuild one(words, seed);
    one.inputs();
    one.fill([&](const std::string& field, const int64_t* i, double x, double u) {
      return one.value(field, i, x, u);
    });
    one.made.outputs();
    const Params& p = one.made.params<Params>();
    const oracle::Attention at = oracle::load_sparse(placed(p)).a;
    one.account(at.at, at.at.sequences, {"q"}, {"k", "v", "k_scale", "v_scale"});
    one.account_blocks(at.at, at.at.sequences);
    oracle::PooledResult a = oracle::PooledOracle(p).run(oracle::Mode::exact);
    oracle::PooledResult b = oracle::PooledOracle(p).run(oracle::Mode::rounded);
    if (a.margin < 1e-5) throw Close();
    const auto paper = one.made.letters.find("paper");
    if (paper != one.made.letters.end()) Paper{p}.compare(kPapers[paper->second], a.o, words);
    one.made.expect({{"o", a.o, b.o},
                     {"lse", a.lse, b.lse},
                     {"summary", a.summary, b.summary},
                     {"index", a.index, b.index, true},
                     {"index_count", a.index_count, b.index_count, true}});
    return std::move(one.made.call);
  }

 private:
  // Summaries of the blocks that sequences have.
  void account_blocks(oracle::Layout at, int64_t sequences) {
    at.cache_row = {}, at.caches = sequences;  // what keys have, not where they lie
    std::set<std::pair<int64_t, int64_t>> rows, columns;
    for (int64_t r = 0; r < sequences; ++r) {
      const oracle::Sequence q = oracle::sequence(at, r);
      const int64_t row = at.query_start ? at.query_start.integer(r) / rows_ + r : 0;
      const int64_t column = at.key_start ? at.key_start.integer(r) / keys_ + r : 0;
      const int64_t first = rows_ == 1 ? q.row : row;
      for (int64_t i = 0; i * rows_ < q.rows; ++i) rows.insert({at.query_start ? 0 : r, first + i});
      for (int64_t c = 0; c * keys_ < q.keys; ++c)
        columns.insert({at.key_start ? 0 : r, column + c});
    }
    const auto only = [&](const char* field, const std::set<std::pair<int64_t, int64_t>>& used) {
      if (made.has(field))
        made.call.account(made.call.field(field), [&](const int64_t* i) {
          return used.count({i[0], i[1]}) != 0;
        });
    };
    only("row", rows), only("column", columns), only("column_low", columns);
    only("summary", columns);
  }
  double value(const std::string& field, const int64_t* i, double x, double u) const {
    if (field == "k_scale" || field == "v_scale") return std::exp2(std::floor(u * 3) - 1);
    if (field == "row_similar_least") return (0.5 + u) / static_cast<double>(rows_);
    if (field == "column_similar_least") return (0.5 + u) / static_cast<double>(keys_);
    if (field == "cover_head") return 0.2 + 0.6 * u;
    if (field == "old_len")
      return static_cast<double>(i[0] == 0 ? capacity / 2 : i[0] == 1 ? 0 : capacity);
    return x;
  }

  int64_t rows_, keys_;
};

const std::vector<std::string> kTypes = {"q:f32", "q:bf16 k:bf16 v:bf16",
                                         "q:f16 k:f16 v:f16 o:f32"};
const std::vector<std::string> kForces = {"", "force_own=1", "force_first=1 force_last=1",
                                          "force_own=1 force_previous=1 forced_count=1"};
const std::vector<std::string> kTails = {"",
                                         "lse",
                                         "lse sink_logit softcap=5",
                                         "skip_margin=2",
                                         "index index_count keep=3",
                                         "min_keep=2 min_extra=1"};

void sweeps(WordCases& add) {
  // Summaries that the call makes of both sides.
  add.sweep(
      "d=16 e=24",
      {kTypes,
       {"h=4 g=2 x=4", "h=4 g=2 x=2 lists=2 reduce=1", "h=3 g=3 x=3", "h=6 g=1 x=1 reduce=3"},
       {"block_rows=16 block_keys=16", "block_rows=32 block_keys=8", "block_rows=5 block_keys=7",
        "block_rows=1 block_keys=16", "block_rows=1 block_keys=200"},
       {"s=33 t=130", "s=70 t=70", "s=1 t=90"},
       {"b=2", "b=3 query_len key_len", "query_start key_start", "b=3 page_table page=16 key_len",
        "b=3 page_table page=5 key_len", "query_start b=1 key_len", "key_start",
        "b=2 query_max=20 key_max=50"},
       {"count=2", "ratio=0.3", "normalise=1 rule=1 cover=0.6", "normalise=1 rule=4 threshold=0.1",
        "normalise=4 rule=5 threshold=0.5", "normalise=1 ratio=0.4 scope=1",
        "normalise=3 rule=1 cover=0.3 scope=1", "count=9 scope=2"},
       {"", "measure=1"},
       {"", "causal=1"},
       kForces},
      "made", 41);
  add.sweep(
      "d=16 e=16 h=4 g=2 x=4",
      {kTypes,
       {"block_rows=16 block_keys=16", "block_rows=64 block_keys=32"},
       {"s=70 t=130", "s=40 t=300"},
       {"b=2", "b=3 query_len key_len", "query_start key_start"},
       {"row_similar_least column_similar_least", "column_similar_least", "row_similar_least"},
       {"normalise=1 rule=3 cover=0.7", "normalise=1 ratio=0.3 min_extra=1",
        "normalise=1 rule=2 cover_head"},
       {"", "causal=1"},
       kTails},
      "similar", 42);
  // Summaries of the caller's.
  add.sweep(
      "column h=4 g=2 x=4 d=16 e=16",
      {{"q:f32", "q:bf16 k:bf16 v:bf16", "q:bf16 k:e4m3 v:e4m3 k_scale v_scale groups=1"},
       {"row:f32 column:f32", "row:bf16 column:bf16", "row:f32 column:f16"},
       {"row row_heads=4", "row row_heads=2 lists=2 x=2", "row row_heads=8 lists=4 reduce=2"},
       {"column_heads=2 row_width=12", "column_heads=1 row_width=40"},
       {"block_rows=16 block_keys=16", "block_rows=1 block_keys=32", "block_rows=7 block_keys=5"},
       {"s=33 t=130", "s=1 t=90"},
       {"b=2", "b=3 query_len key_len", "query_start key_start", "b=3 cache_row",
        "b=3 page_table page=16 cache_row key_len", "b=2 query_max=20 key_max=50"},
       {"count=2", "normalise=1 rule=4 threshold=0.1", "normalise=1 ratio=0.4"},
       {"", "more=2"},
       {"", "causal=1"},
       kForces},
      "given", 43);
  // A subset of columns under the signs of a group.
  add.sweep(
      "measure=1 e=24",
      {kTypes,
       {"h=4 g=2 x=2 lists=2 reduce=1", "h=4 g=2 x=4", "h=3 g=3 x=1 reduce=2",
        "h=8 g=1 x=2 lists=2 reduce=3"},
       {"d=16 subset=4", "d=16 subset=16", "d=40 subset=1", "d=7 subset=3"},
       {"block_keys=4", "block_keys=16", "block_keys=200"},
       {"s=1 t=90", "s=5 t=70", "s=33 t=130"},
       {"b=2", "b=3 query_len key_len", "query_start key_start", "b=3 page_table page=16 key_len",
        "query_start b=1 key_len", "key_start", "b=2 query_max=20 key_max=50",
        "b=3 summary old_len key_len", "b=3 summary old_len page_table page=16 cache_row key_len"},
       {"count=3 normalise=1", "count=2", "normalise=1 rule=1 cover=0.5",
        "ratio=0.3 select_scale=2"},
       {"", "causal=1"},
       kForces},
      "subset", 45);
  // Kept summaries.
  add.sweep("summary old_len d=16 e=16 h=4 g=2",
            {{"q:f32 k:f32 v:f32", "q:bf16 k:bf16 v:bf16 summary:f32"},
             {"x=4", "x=2 lists=2 reduce=3", "x=1 reduce=1"},
             {"s=1 block_rows=1", "s=3 block_rows=1", "s=9 block_rows=4"},
             {"t=90 block_keys=16", "t=130 block_keys=7"},
             {"b=3 key_len", "b=3 page_table page=16 key_len",
              "b=3 page_table page=16 cache_row key_len", "query_start key_start"},
             {"measure=1", "measure=0"},
             {"count=3 force_last=1 forced_count=1", "normalise=1 rule=1 cover=0.5"},
             {"", "causal=1"},
             {"", "more=1"},
             kTails},
            "kept", 44);
}

void edges(WordCases& add) {
  for (const char* words :
       {"b=0 count=2 x=4",
        "s=0 count=2 x=4",
        "t=0 count=2 x=4",
        "t=0 count=2 x=4 force_own=1",
        "h=0 g=0 x=0 count=2",
        "h=4 g=2 count=0",
        "index keep=0 x=4 count=2",
        "s=0 t=9 count=2 x=4 block_rows=4 more=2 index index_count keep=3",
        "t=0 s=5 x=4 count=2 column row row_heads=4 column_heads=2 more=2 index index_count keep=3",
        "t=5 s=9 causal=1 count=2 block_keys=2",
        "s=0 count=2 x=4 measure=1 subset=2",
        "t=0 count=2 x=4 measure=1 subset=2",
        "h=0 g=0 x=0 count=2 measure=1 subset=2",
        "b=0 count=2 x=4 measure=1 subset=2",
        "t=40 s=1 h=2 g=1 x=2 count=2 measure=1 subset=200 d=288",
        "t=5 s=9 causal=1 count=2 block_keys=2 block_rows=4",
        "t=90 s=2 count=9223372036854775807 force_last=9223372036854775807 lse",
        "t=90 s=2 ratio=9 min_keep=9223372036854775807 min_extra=9223372036854775807 block_keys=8",
        "t=90 s=5 block_rows=128 block_keys=65536 count=1",
        "t=90 s=20 normalise=1 rule=4 threshold=2 block_rows=4 block_keys=8 lse"})
    add.add(words, "edge");
}

void methods(WordCases& add) {
  const std::string paged = " b=3 page_table page=16 key_len", of = " q:bf16 k:bf16 v:bf16";
  const std::string quest =
      "measure=1 count=4 force_last=1 forced_count=1 block_keys=16 h=8 g=2 x=8 d=32 e=32 s=1";
  add.add("b=2 t=150 " + quest, "quest").add(quest + " t=200" + paged + of, "quest");
  add.add(quest + " t=200 summary old_len summary:bf16 index index_count keep=5" + paged + of,
          "quest");
  const std::string moba =
      "count=3 force_own=1 forced_count=1 causal=1 h=4 g=2 x=4 d=32 e=32 lse index index_count";
  add.add("b=2 s=70 t=70 block_keys=16 keep=3 " + moba, "moba")
      .add("b=1 s=20 t=200 block_keys=48 keep=3 " + moba + of, "moba")
      .add("b=1 s=40 t=1500 block_keys=512 keep=3 " + moba + of, "moba")
      .add("query_start key_start s=80 t=120 block_keys=16 keep=3 " + moba + of, "moba");
  const std::string seer =
      "row column row_heads=4 column_heads=2 row_width=16 h=4 g=2 x=4 d=32 e=32 force_own=1"
      " causal=1 normalise=1 block_rows=16 block_keys=16";
  add.add("paper=0 b=2 s=70 t=134 rule=4 threshold=0.15 " + seer + of, "seer")
      .add("paper=0 b=1 s=64 t=64 count=2 " + seer, "seer")
      .add(
          "row column row_heads=2 column_heads=2 row_width=16 h=8 g=2 x=2 lists=2 d=32 e=32 s=1"
          " t=150 force_own=1 normalise=1 rule=4 threshold=0.1" +
              paged + of,
          "seer");
  const std::string sparge =
      "normalise=1 min_extra=1 row_similar_least column_similar_least block_rows=32 block_keys=16"
      " h=4 g=2 x=4 d=32 e=32";
  add.add("paper=1 b=2 s=130 t=130 rule=3 cover=0.7 causal=1 " + sparge, "sparge")
      .add("paper=1 b=1 s=70 t=200 ratio=0.4 " + sparge + of, "sparge")
      .add("b=2 s=130 t=130 rule=3 cover=0.8 causal=1 skip_margin=3 " + sparge + of, "sparge");
  add.add(
         "paper=2 b=2 s=100 t=130 normalise=4 rule=5 threshold=0.6 force_first=1 force_own=1"
         " causal=1 block_rows=32 block_keys=32 h=4 g=2 x=4 d=32 e=32" +
             of,
         "share_of_best")
      .add(
          "paper=3 b=2 s=40 t=40 count=90 scope=1 force_own=1 forced_count=1 block_keys=8 h=4 g=4"
          " x=4 d=16 e=16",
          "vmoba")
      .add(
          "paper=4 b=2 s=100 t=100 normalise=1 scope=1 ratio=0.3 min_keep=1 block_rows=16"
          " block_keys=16 h=3 g=3 x=3 d=32 e=32",
          "draft");
  // Blocks of Hopper's sweep, of whole tiles.
  for (const char* blocks : {"block_rows=128 block_keys=128", "block_rows=64 block_keys=64",
                             "block_rows=128 block_keys=64", "block_rows=1 block_keys=64"})
    add.add(std::string(blocks) +
                " b=2 s=300 t=700 h=4 g=2 x=4 d=128 e=128 normalise=1 rule=1"
                " cover=0.5 force_own=1 causal=1" +
                of,
            "hopper");
}

std::vector<harness::Case> cases() {
  WordCases add(kOp, PooledBuild::build);
  sweeps(add), edges(add), methods(add);
  add.add(
         "b=1 s=4 t=9 h=2 g=1 x=2 d=4 e=4 count=2 causal=1 block_rows=2 block_keys=2 index"
         " index_count keep=2",
         "small", true)
      .add(
          "summary old_len measure=1 b=1 s=1 t=9 h=2 g=1 x=2 d=4 e=4 count=2 force_last=1"
          " forced_count=1 block_keys=2",
          "small", true);
  return add.cases();
}

const Family kFamily("pooled", cases);

}  // namespace
}  // namespace cases
