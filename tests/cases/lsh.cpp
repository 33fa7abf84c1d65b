// SPDX-License-Identifier: Apache-2.0
// x_lsh_append, x_select_lsh and x_lsh_forward: tables that begin and that go on, of one bucket and
// of more buckets than keys, chains of any length, lists that are cut, heads that share keys.
#include "cases/lsh_case.h"

namespace cases {
namespace {

using Append = fovea_x_lsh_append_params;
using Select = fovea_x_select_lsh_params;
using Forward = fovea_x_lsh_forward_params;

oracle::CodeOf key_codes(int64_t buckets) {
  return
      [=](int64_t b, int64_t g, int64_t l, int64_t j) { return drawn_code(b, g, l, j, buckets); };
}

// ---- x_lsh_append.  `held`: keys before the call; the second sequence begins anew.

int64_t held_before(const TableCall& made, int64_t b) {
  if (!made.has("old_len") || b % 2) return 0;
  return std::min(made.letters.at("held"), made.letters.at("t"));
}
int64_t coming(const TableCall& made, int64_t b) {
  const int64_t s = made.letters.at("s");
  return made.has("query_len") && b ? b * 5 % (s + 1) : s;
}

double append_contents(const TableCall& made, const std::string& field, const int64_t* i, double) {
  const int64_t buckets = made.letters.at("buckets");
  const oracle::CodeOf code = key_codes(buckets);
  if (field == "query_len") return static_cast<double>(coming(made, i[0]));
  if (field == "old_len") return static_cast<double>(i[0] % 2 ? 0 : made.letters.at("held"));
  const int64_t held = held_before(made, i[0]);
  if (field == "code") return static_cast<double>(code(i[0], i[2], i[3], held + i[1]));
  constexpr double kGarbage = 1 << 20;
  if (field == "bucket")
    return held ? static_cast<double>(oracle::highest(code, i[0], i[1], i[2], i[3], held))
                : kGarbage;
  const int64_t own = code(i[0], i[1], i[2], i[3]);
  if (i[3] >= held || own < 0 || own >= buckets) return kGarbage;
  return static_cast<double>(oracle::highest(code, i[0], i[1], i[2], own, i[3]));
}

std::vector<Expected> appended(TableCall& made) {
  const auto& p = made.params<Append>();
  const int64_t t = p.link.shape[3], buckets = p.bucket.shape[3];
  const oracle::CodeOf code = key_codes(buckets);
  oracle::Out bucket(p.bucket, 0), link(p.link, 0);
  const auto inside = [=](int64_t c) { return c >= 0 && c < buckets; };
  for (const char* field : {"bucket", "link"})
    made.call.account(made.call.field(field), [](const int64_t*) { return false; });
  made.call.account(made.call.field("code"), [&](const int64_t* i) {
    return i[1] < std::min(coming(made, i[0]), t - held_before(made, i[0]));
  });
  const auto at = [](const fovea_tensor& x, int64_t b, int64_t g, int64_t l, int64_t n) {
    return ((b * x.shape[1] + g) * x.shape[2] + l) * x.shape[3] + n;
  };
  for (int64_t b = 0; b < p.bucket.shape[0]; ++b) {
    const int64_t held = held_before(made, b), end = std::min(t, held + coming(made, b));
    for (int64_t g = 0; g < p.bucket.shape[1]; ++g)
      for (int64_t l = 0; l < p.bucket.shape[2]; ++l) {
        std::set<int64_t> touched;
        for (int64_t j = held; j < end; ++j) {
          const int64_t own = code(b, g, l, j);
          if (!inside(own)) continue;
          touched.insert(own);
          link.set(at(p.link, b, g, l, j),
                   static_cast<double>(oracle::highest(code, b, g, l, own, j)));
        }
        for (int64_t c = 0; c < buckets; ++c)
          if (held == 0 || touched.count(c))
            bucket.set(at(p.bucket, b, g, l, c),
                       static_cast<double>(oracle::highest(code, b, g, l, c, end)));
      }
  }
  return {{"bucket", bucket, bucket, true}, {"link", link, link, true}};
}

// ---- x_select_lsh and x_lsh_forward

int64_t held_now(const TableCall& made, int64_t b) {
  return std::max<int64_t>(0, made.letters.at("t") - b % 3);
}
template <class P>
double read_contents(const TableCall& made, const std::string& field, const int64_t* i,
                     double normal) {
  const Letters& x = made.letters;
  if (field == "query_len")
    return static_cast<double>(i[0] ? i[0] * 5 % (x.at("s") + 1) : x.at("s"));
  if (field == "key_len")
    return static_cast<double>(i[0] == 1 ? 0 : x.at("t") - x.at("t") * i[0] / 3);
  if (field == "code_q")
    return static_cast<double>(drawn_code(i[0], i[2] / (x.at("h") / x.at("g")), i[3],
                                          7000000 + 7 * i[2] + i[1], x.at("buckets")));
  if (field == "bucket" || field == "link") return 0;
  // Some keys and queries are 0, and some look where another does.
  if (field == "k" && i[1] % 11 == 4) return 0;
  if (field == "q" && made.has("query_len") && i[2] == 1) return 0;
  return normal;
}

template <class P>
oracle::LshSelect<P> selection(TableCall& made) {
  const oracle::CodeOf code = key_codes(made.letters.at("buckets"));
  const auto held = [&made](int64_t b) { return held_now(made, b); };
  oracle::LshSelect<P> select(made.params<P>(), code, held);
  if (made.letters.at("h"))
    fill_tables(
        made, code, held, oracle::load(made.params<P>().code_q),
        [&](int64_t b) { return select.rows(b); }, select.group());
  return select;
}

std::vector<Expected> selected(TableCall& made) {
  const auto& p = made.params<Select>();
  const oracle::LshSelect<Select> select = selection<Select>(made);
  const int64_t keep = p.index.data ? p.index.shape[3] : 0;
  oracle::LshResult exact = select.run(keep, oracle::Mode::exact);
  oracle::LshResult rounded = select.run(keep, oracle::Mode::rounded);
  count_kept(made, "k", exact);
  if (made.has("q"))
    made.call.account(made.call.field("q"),
                      [&](const int64_t* i) { return i[1] < select.rows(i[0]); });
  return {{"index", exact.index, exact.index, true},
          {"index_count", exact.index_count, exact.index_count, true},
          {"index_bias", exact.index_bias, rounded.index_bias}};
}

std::vector<Expected> attended(TableCall& made) {
  const auto& p = made.params<Forward>();
  const oracle::LshSelect<Forward> select = selection<Forward>(made);
  const int64_t t = p.k.shape[1];
  const int64_t keep = p.index.data ? p.index.shape[3] : p.max_keys ? std::min(p.max_keys, t) : t;
  const oracle::LshResult exact = select.run(keep, oracle::Mode::exact);
  oracle::LshResult rounded = select.run(keep, oracle::Mode::rounded);
  count_kept(made, "k", exact), count_kept(made, "v", exact);
  rounded.index = exact.index;
  const oracle::SparseResult a = oracle::lsh_forward(p, exact, keep, oracle::Mode::exact);
  const oracle::SparseResult b = oracle::lsh_forward(p, rounded, keep, oracle::Mode::rounded);
  return {{"o", a.o, b.o},
          {"lse", a.lse, b.lse},
          {"index", exact.index, exact.index, true},
          {"index_count", exact.index_count, exact.index_count, true},
          {"index_bias", exact.index_bias, rounded.index_bias}};
}

const std::vector<std::string> kLays = {"contiguous", "head_first", "gaps", "odd", "wide"};
const std::vector<std::string> kTables = {"tables=2 buckets=1", "tables=3 buckets=4",
                                          "tables=17 buckets=16", "tables=40 buckets=64",
                                          "tables=5 buckets=2"};

std::vector<harness::Case> append_cases() {
  return Table("x_lsh_append", appended)
      .contents(append_contents)
      .sweep({kTables,
              {"t=9 s=1", "t=130 s=7", "t=70 s=70", "t=33 s=90", "t=200 s=128"},
              {"held=0", "held=3", "held=8", "held=32", "held=300"},
              {"b=1", "b=3", "b=3 query_len"},
              {"", "old_len"},
              {"g=1", "g=3"}},
             61)
      .each("edge",
            {"b=0 held=0", "g=0 held=0", "tables=0 held=0", "s=0 held=2 old_len", "s=0 held=0",
             "t=0 held=0", "buckets=0 held=0", "tables=150 buckets=1024 t=40 s=40 held=0",
             "tables=33 buckets=8 t=90 s=1 held=89 old_len b=1"})
      .each("small",
            {"b=1 g=1 tables=2 buckets=4 t=6 s=5 held=0",
             "b=2 g=1 tables=2 buckets=4 t=8 s=3 held=4 old_len query_len"},
            true)
      .cases();
}

std::vector<harness::Case> select_cases() {
  return Table("x_select_lsh", selected)
      .contents(read_contents<Select>)
      .sweep({{"q:f32 k:f32", "q:f16 k:f16", "q:bf16 k:bf16", "q:bf16 k:f32"},
              kTables,
              {"", "min_match=1", "min_match=2"},
              {"s=1 t=70", "s=5 t=130", "s=3 t=7", "s=2 t=300"},
              {"b=1", "b=3", "b=3 query_len key_len", "b=2 key_len"},
              {"h=4 g=2", "h=3 g=3", "h=6 g=1"},
              {"index q k index_bias index_count keep=300", "index q k index_bias keep=5",
               "index index_count keep=40", "index_count"},
              {"d=16", "d=1", "d=67", "d=128"},
              kLays},
             62)
      .each("matches", {"tables=9 buckets=2 min_match=9 index q k index_bias keep=40 t=40 d=8",
                        "tables=9 buckets=4 min_match=4 index q k index_bias keep=40 t=40 d=8",
                        "tables=300 buckets=2 min_match=160 index q k index_bias keep=99 t=99 d=8",
                        "tables=1 buckets=4 min_match=1 index q k index_bias keep=40 t=40 d=8"})
      .each("edge", {"b=0 index keep=4", "s=0 index keep=4", "h=0 g=0 index keep=4",
                     "t=0 index index_count keep=4", "index keep=0 index_count",
                     "tables=150 buckets=1024 bits=10 t=60 s=2 h=2 g=1 index index_count keep=60"})
      .each("small",
            {"b=1 s=1 h=2 g=2 tables=3 buckets=2 t=7 index index_count keep=2 min_match=1",
             "b=1 s=2 h=2 g=1 tables=5 buckets=4 t=9 d=4 index q k index_bias index_count keep=6"},
            true)
      .cases();
}

std::vector<harness::Case> forward_cases() {
  return Table("x_lsh_forward", attended)
      .contents(read_contents<Forward>)
      .sweep({{"q:f32", "q:f16", "q:bf16", "q:bf16 o:f32"},
              kTables,
              {"", "min_match=1 scale=0.3"},
              {"s=1 t=70", "s=5 t=130", "s=3 t=7", "s=2 t=300"},
              {"b=1", "b=3", "b=3 query_len key_len", "b=2 key_len"},
              {"h=4 g=2", "h=3 g=3", "h=6 g=1"},
              {"", "max_keys=9", "index keep=7", "index index_count index_bias keep=300"},
              {"lse", ""},
              {"d=16 e=16", "d=1 e=8", "d=67 e=24", "d=128 e=128"},
              kLays},
             63)
      .each("edge", {"b=0", "s=0", "h=0 g=0", "t=0 lse", "index keep=0 lse",
                     "max_keys=9223372036854775807 t=40 lse",
                     "tables=150 buckets=1024 bits=10 t=60 s=2 h=2 g=1 d=16 e=16 lse"})
      .each("small",
            {"b=1 s=2 h=2 g=1 tables=5 buckets=4 t=9 d=4 e=4 lse",
             "b=1 s=1 h=2 g=2 tables=4 buckets=2 t=7 d=4 e=4 lse index index_count keep=5"},
            true)
      .cases();
}

const Family kAppend("x_lsh_append", append_cases);
const Family kSelect("x_select_lsh", select_cases);
const Family kForward("x_lsh_forward", forward_cases);

}  // namespace
}  // namespace cases
