// SPDX-License-Identifier: Apache-2.0
// x_kv_append and x_kv_decode: covering arrays of bits, groups, places and lengths; every length
// around the tails' edges; the shapes that each CUDA kernel has.  Words of their own:
//   at=n     tokens that the first sequence has before the call; others follow from it
//   cut=1    decode: lengths as after truncation, tails part full
//   holes    pages that are absent
//   wild=1   append: NaN and infinities
//   k_outlier, v_outlier, k_first v_first   of the formats that have them, where they are given
#include "cases/table.h"
#include "oracle/kv_levels.h"
#include "oracle/kv_tiles.h"

namespace cases {
namespace {

class KvBuild {
 public:
  KvBuild(const char* op, const std::string& words, uint64_t seed)
      : made(op, words + fields_of(words), seed) {
    std::map<std::string, int64_t> said;
    for (const std::string& word : contract::split(words))
      if (const size_t at = word.find('='); at != std::string::npos && word.find('.') > word.size())
        said[word.substr(0, at)] = std::stoll(word.substr(at + 1));
    const auto of = [&](const char* name, int64_t otherwise) {
      return said.count(name) ? said.at(name) : otherwise;
    };
    bits_ = of("bits", 2), group_ = of("group", 32), at_ = of("at", -1);
    holes_ = said.count("holes") != 0, cut_ = said.count("cut") != 0;
    v_bits_ = of("v_bits", bits_);
    format_ = of("format", 0), wild_ = said.count("wild") != 0;
    Letters& x = made.letters;
    x["residual"] = of("residual", 2 * group_), x["page"] = of("page", 2 * group_);
    x["pages"] = of("pages", 4), x["e"] = of("e", group_);
    x["r"] = made.has("query_start") ? 3 : x["b"];
    if (made.has("query_start")) x["b"] = 1;
    x["r+1"] = x["r"] + 1;
    x["rows"] = made.has("cache_row") ? x["r"] + 2 : x["r"];
    x["pool"] = of("pool", x["pages"] * x["rows"] + 2);
    x["page_groups"] = x["page"] / group_, x["k_words"] = group_ * bits_ / 32;
    x["v_words"] = x["e"] * v_bits_ / 32, x["v_groups"] = format_ == 3 ? 1 : x["e"] / group_;
    x["ring"] = x["residual"] + (format_ == 3 ? 0 : 1);
    capacity_ = x["pages"] * x["page"];
    x["levels"] = int64_t{1} << bits_, x["firsts"] = of("firsts", format_ == 3 ? group_ : 1);
    firsts_ = made.has("k_first") ? x["firsts"] : 0;
    x["k_outliers"] = of("k_outliers", 2), x["v_outliers"] = of("v_outliers", 2);
    x["positions"] = capacity_, x["half"] = of("half", x["d"] / 2);
    made.inputs();
  }

  static harness::Call append(const std::string& words, uint64_t seed) {
    KvBuild one("x_kv_append", words, seed);
    one.fill(seed);
    one.made.outputs();
    if (one.format_ == 3) return one.append_tiles();
    if (one.format_) return one.append_levels();
    const oracle::KvAppendOracle o(one.made.params<fovea_x_kv_append_params>());
    one.count({{"k_new", o.k_new}, {"v_new", o.v_new}, {"page_table", o.table}});
    const oracle::KvAppended& to = o.out;
    one.made.expect({{"k_code", to.k_code, to.k_code, true},
                     {"k_scale", to.k_scale, to.k_scale, true},
                     {"k_zero", to.k_zero, to.k_zero, true},
                     {"v_code", to.v_code, to.v_code, true},
                     {"v_scale", to.v_scale, to.v_scale, true},
                     {"v_zero", to.v_zero, to.v_zero, true},
                     {"k_tail", to.k_tail, to.k_tail, true},
                     {"v_tail", to.v_tail, to.v_tail, true},
                     {"counter", to.counter, to.counter, true}});
    return std::move(one.made.call);
  }

  static harness::Call decode(const std::string& words, uint64_t seed) {
    KvBuild one("x_kv_decode", words, seed);
    one.fill(seed);
    one.made.outputs();
    const auto& p = one.made.params<fovea_x_kv_decode_params>();
    const oracle::KvDecodeOracle exact(p, oracle::Mode::exact);
    one.count({{"k_code", exact.k_code},
               {"k_scale", exact.k_scale},
               {"k_zero", exact.k_zero},
               {"v_code", exact.v_code},
               {"v_scale", exact.v_scale},
               {"v_zero", exact.v_zero},
               {"k_tail", exact.k_tail},
               {"v_tail", exact.v_tail},
               {"k_factor", exact.k_factor},
               {"v_factor", exact.v_factor},
               {"counter", exact.counter},
               {"page_table", exact.table},
               {"k_level", exact.levels.k_level},
               {"v_level", exact.levels.v_level},
               {"k_offset", exact.levels.k_offset},
               {"k_range", exact.levels.k_range},
               {"v_bound", exact.levels.v_bound},
               {"k_norm", exact.levels.k_norm},
               {"v_norm", exact.levels.v_norm},
               {"k_outlier", exact.levels.k_outlier},
               {"v_outlier", exact.levels.v_outlier},
               {"k_first", exact.levels.k_first},
               {"v_first", exact.levels.v_first}});
    const oracle::KvDecodeOracle rounded(p, oracle::Mode::rounded);
    const auto a = oracle::forward(exact.a, p.o, p.lse, oracle::Mode::exact);
    const auto b = oracle::forward(rounded.a, p.o, p.lse, oracle::Mode::rounded);
    one.made.expect({{"o", a.o, b.o}, {"lse", a.lse, b.lse}});
    return std::move(one.made.call);
  }

  // The tensors that a format needs.
  static std::string fields_of(const std::string& words) {
    if (words.find("format=1") != std::string::npos)
      return " k_level v_level k_offset k_range v_bound";
    if (words.find("format=2") != std::string::npos) return " k_level v_level k_norm v_norm";
    const bool tiles = words.find("format=3") != std::string::npos;
    return std::string(" k_scale k_zero v_scale v_zero k_tail v_tail") +
           (tiles ? " k_factor v_factor" : "");
  }

 private:
  struct State {
    int64_t length, keys, values;
  };
  harness::Call append_levels() {
    const oracle::KvAppendLevels o(made.params<fovea_x_kv_append_params>());
    count({{"k_new", o.k_new}, {"v_new", o.v_new}, {"page_table", o.table}});
    const oracle::KvLevelsOut& to = o.out;
    made.expect({{"k_code", to.k_code, to.k_code, true},
                 {"v_code", to.v_code, to.v_code, true},
                 {"v_bound", to.v_bound, to.v_bound, true},
                 {"k_norm", to.k_norm, to.k_norm, true},
                 {"v_norm", to.v_norm, to.v_norm, true},
                 {"k_outlier", to.k_outlier, to.k_outlier, true},
                 {"v_outlier", to.v_outlier, to.v_outlier, true},
                 {"k_first", to.k_first, to.k_first, true},
                 {"v_first", to.v_first, to.v_first, true},
                 {"counter", to.counter, to.counter, true}});
    return std::move(made.call);
  }
  harness::Call append_tiles() {
    const oracle::KvAppendTiles o(made.params<fovea_x_kv_append_params>());
    count({{"k_new", o.k_new}, {"v_new", o.v_new}, {"page_table", o.table}});
    const oracle::KvTilesOut& to = o.out;
    made.expect({{"k_code", to.k_code, to.k_code, true},
                 {"k_scale", to.k_scale, to.k_scale, true},
                 {"k_zero", to.k_zero, to.k_zero, true},
                 {"v_code", to.v_code, to.v_code, true},
                 {"v_scale", to.v_scale, to.v_scale, true},
                 {"v_zero", to.v_zero, to.v_zero, true},
                 {"k_tail", to.k_tail, to.k_tail, true},
                 {"v_tail", to.v_tail, to.v_tail, true},
                 {"k_factor", to.k_factor, to.k_factor, true},
                 {"v_factor", to.v_factor, to.v_factor, true},
                 {"k_first", to.k_first, to.k_first, true},
                 {"v_first", to.v_first, to.v_first, true},
                 {"counter", to.counter, to.counter, true}});
    return std::move(made.call);
  }
  // Rows differ: as asked, empty, one token, nearly full, and around the edge of a tail.
  State state(int64_t row) {
    const int64_t at = at_ >= 0 ? at_ : capacity_ / 2, residual = made.letters["residual"];
    const int64_t lengths[] = {at, 0, 1, capacity_ - 1, at + 1, residual};
    State s{std::min(lengths[row % 6], capacity_), 0, 0};
    if (format_ == 1 || format_ == 2) return {s.length, s.length, s.length};
    if (format_ == 3) {
      const int64_t late = std::max<int64_t>(0, s.length - firsts_);
      s.keys = std::min(s.length, firsts_) + (late ? (late - 1) / residual * residual : 0);
      if (cut_) s.keys = std::max(s.keys, s.length / group_ * group_);
      s.values = s.keys;
      return s;
    }
    if (s.length > 0) {
      s.keys = (s.length - 1) / residual * residual;
      s.values = std::max<int64_t>(0, s.length - 1 - residual);
    }
    if (!cut_) return s;
    s.keys = std::max(s.keys, s.length / group_ * group_);
    s.values = std::min(std::max(s.values, s.length - residual / 2), s.keys);
    return s;
  }
  double start(int64_t r, int64_t total) const {
    return static_cast<double>(r == 0 ? 0 : r == 1 ? total / 2 : r == 2 ? total / 2 + 1 : total);
  }
  // Levels are not evenly spaced.  Those of norms are for rows of length 1.
  double level(int64_t i, int64_t width) const {
    const double of = (2.0 * static_cast<double>(i) + 1) / std::exp2(bits_) - 1;
    const double y = of * (0.7 + 0.3 * std::abs(of));
    return format_ == 2 ? 2 * y / std::sqrt(static_cast<double>(width)) : y;
  }
  // The last ones of some tokens are unused.
  double entry(const int64_t* i, int64_t outliers, int64_t columns, double normal) const {
    if (i[2] >= outliers - (i[0] + i[1]) % 3) return 65535;
    uint8_t bytes[2];
    oracle::encode(FOVEA_F16, normal, bytes);
    const auto column = static_cast<uint32_t>(i[2] * columns / outliers + i[1] % 2);
    return static_cast<int32_t>(column | static_cast<uint32_t>(bytes[0]) << 16 |
                                static_cast<uint32_t>(bytes[1]) << 24);
  }
  double value(const std::string& field, const int64_t* i, double normal, double uniform) {
    Letters& x = made.letters;
    const bool reads = !made.has("k_new");
    if (field == "k_level") return level(i[0], x["d"]);
    if (field == "v_level") return level(i[0], x["e"]);
    if (field == "k_offset") return 0.3 * normal;
    if (field == "k_range") return 1 + uniform;
    if (field == "v_bound") return i[2] ? 1 + uniform : 0.3 * normal;
    if (field == "k_norm") return (0.7 + uniform) * std::sqrt(static_cast<double>(x["d"]));
    if (field == "v_norm") return (0.7 + uniform) * std::sqrt(static_cast<double>(x["e"]));
    if (field == "k_outlier" && reads) return entry(i, x["k_outliers"], x["g"] * x["d"], normal);
    if (field == "v_outlier" && reads) return entry(i, x["v_outliers"], x["g"] * x["e"], normal);
    if (field == "k_outlier" || field == "v_outlier") return std::floor(uniform * 1e6);
    if (field == "cos" || field == "sin") {
      const double angle =
          static_cast<double>(i[0]) * std::pow(1e4, -static_cast<double>(i[1]) / 8);
      return field == "cos" ? std::cos(angle) : std::sin(angle);
    }
    if (wild_ && (field == "k_new" || field == "v_new") && uniform < 0.08)
      return uniform < 0.02 ? -HUGE_VAL : uniform < 0.05 ? HUGE_VAL : NAN;
    if (field == "query_start") return start(i[0], x["s"]);
    if (field == "query_len")
      return static_cast<double>(i[0] == 0 ? x["s"] : i[0] == 1 ? x["s"] / 2 : 0);
    if (field == "cache_row")
      return static_cast<double>(i[0] == 2 ? -1 : i[0] == 3 ? x["rows"] : x["rows"] - 1 - i[0]);
    if (field == "page_table") {
      const int64_t page = i[0] * x["pages"] + i[1];
      return static_cast<double>(holes_ && page % 3 == 1 ? -1 : x["pool"] - 1 - page);
    }
    if (field == "counter") {
      const State s = state(i[0]);
      const int64_t numbers[] = {s.length, s.keys, s.values, 7};
      return static_cast<double>(numbers[i[1]]);
    }
    if (field == "k_code" || field == "v_code") return std::floor((uniform - 0.5) * 4294967296.0);
    if (field == "k_scale" || field == "v_scale") return 0.1 + 0.4 * uniform;
    if (field == "k_zero" || field == "v_zero") return -1.2 + 0.5 * normal;
    if (field == "k_factor" || field == "v_factor") return 0.75 + uniform;
    // Channels and tokens of their own size, so that factors are far from 1.
    if (format_ == 3 && (field == "k_new" || field == "v_new"))
      return normal * static_cast<double>(1 + i[1] % 3) * static_cast<double>(1 + i[3] % 5 * 2);
    return normal;
  }
  void fill(uint64_t seed) {
    harness::Random random(seed);
    harness::Call& call = made.call;
    for (size_t f = 0; f < call.fields.size(); ++f) {
      const std::string field = call.fields[f].name;
      uint64_t n = harness::hash(f) % (1 << 30);
      call.fill(f, [&](const int64_t* i) {
        ++n;
        return value(field, i, random.normal(n), random.uniform(n));
      });
    }
  }
  void count(std::initializer_list<std::pair<const char*, const oracle::Tracked&>> fields) {
    for (const auto& [name, x] : fields) {
      if (!made.has(name)) continue;
      const size_t at = made.call.field(name);
      const int64_t rank = made.call.fields[at].tensor.ndim;
      made.call.account(at, [&x = x, rank](const int64_t* i) { return x.was_read(i, rank); });
    }
  }

  TableCall made;
  int64_t bits_, v_bits_, group_, at_, capacity_, format_, firsts_;
  bool holes_, cut_, wild_;
};

using contract::Words;

const Words kFormats = {"bits=2 group=32",
                        "bits=4 group=32",
                        "bits=4 group=8 residual=24",
                        "bits=2 group=16 page=48",
                        "bits=2 group=64",
                        "group=32 residual=32",
                        "bits=4 group=128 pages=2",
                        ""};
const Words kLevels = {"bits=2",
                       "bits=3",
                       "bits=4",
                       "bits=4 group=8",
                       "bits=2 group=16 page=48",
                       "bits=3 group=64",
                       "bits=4 group=128 pages=2"};
// Outliers and first tokens, of 80 columns and more.
const Words kRest = {"format=1",
                     "format=1 k_outlier v_outlier",
                     "format=1 k_outlier v_outlier k_outliers=10 v_outliers=6 k_first v_first",
                     "format=1 k_outlier k_first v_first firsts=3",
                     "format=1 v_outlier v_outliers=0 k_first v_first firsts=0",
                     "format=2",
                     "format=2 k_first v_first firsts=70"};
const Words kTiles = {"format=3 bits=4 v_bits=2 group=32",
                      "format=3 bits=2 v_bits=4 group=16 page=48 e=24",
                      "format=3 bits=4 group=8 residual=24 e=40",
                      "format=3 bits=4 v_bits=2 group=128 page=128 residual=128 pages=3 e=64",
                      "format=3 group=64 residual=64 e=16"};
const Words kTypes = {":f16", ":bf16"};
const Words kLays = {"contiguous", "head_first", "gaps", "odd"};

// The formats of levels.
void append_levels(WordCases& cases) {
  cases.add(
      "format=1 b=1 s=3 g=2 d=4 bits=4 group=8 page=8 pages=3 at=6 k_outlier v_outlier k_first "
      "v_first",
      "small", true);
  cases.add("format=2 b=1 s=3 g=1 d=3 bits=3 page=32 pages=1 at=4", "small", true);
  for (int64_t at = 0; at <= 17; ++at)
    for (const char* more : {"s=1", "s=20", "s=0 flush=1"})
      for (const char* format : {"format=1 k_outlier v_outlier k_first v_first firsts=9",
                                 "format=2 k_first v_first firsts=2"})
        cases.add(format + std::string(" b=1 g=2 d=5 bits=4 group=8 page=16 pages=3 at=") +
                      std::to_string(at) + " " + more,
                  "edge");
  Words types;
  for (const std::string& type : kTypes) types.push_back("k_new" + type);
  cases.sweep("",
              {kRest,
               types,
               kLevels,
               {"s=1", "s=5", "s=70", "s=150"},
               {"b=1", "b=3", "b=4 query_len", "query_start", "b=4 cache_row", "b=2 query_max=9"},
               {"", "wild=1"},
               {"g=1 d=64", "g=2 d=40", "g=3 d=5"},
               {"", "holes=1", "at=0", "at=33", "at=64"},
               kLays},
              "", 303);
  for (const char* words : {"b=0 s=1", "s=0", "g=0 s=3", "d=0 s=3", "e=0 s=70", "pages=0 s=3"})
    for (const char* format : {"format=1 ", "format=2 "})
      cases.add(format + std::string(words), "edge");
}

// The format of tiles: around the edges of first tokens and tails, and all that goes together.
void append_tiles(WordCases& cases) {
  cases.add(
      "format=3 b=1 s=3 g=1 d=4 bits=4 v_bits=2 group=8 residual=8 page=16 pages=2 at=15 e=16 "
      "k_first v_first",
      "small", true);
  for (int64_t at = 0; at <= 8 * 3 + 2; ++at)
    for (const char* more : {"s=1", "s=0 flush=1", "s=20", "s=7 flush=1"})
      cases.add(std::string("format=3 b=1 g=2 d=5 bits=4 v_bits=2 group=8 residual=8 page=8 ") +
                    "pages=6 e=16 at=" + std::to_string(at) +
                    (at % 2 ? " k_first v_first firsts=16 " : " ") + more,
                "edge");
  Words types;
  for (const std::string& type : kTypes) types.push_back("k_new" + type);
  cases.sweep("",
              {kTiles,
               types,
               {"s=1", "s=5", "s=70", "s=150"},
               {"b=1", "b=3", "b=4 query_len", "query_start", "b=4 cache_row", "b=2 query_max=9"},
               {"", "flush=1", "wild=1"},
               {"", "k_first v_first"},
               {"g=1 d=64", "g=2 d=40", "g=3 d=5", "g=2 d=1"},
               {"", "holes=1", "at=0", "at=33", "at=64"},
               kLays},
              "", 305);
  for (const char* words : {"b=0 s=1", "s=0", "s=0 flush=1", "g=0 s=3", "d=0 s=70", "e=0 s=70",
                            "pages=0 s=3", "s=70 cut=1 at=100"})
    cases.add("format=3 " + std::string(words), "edge");
}

std::vector<harness::Case> appends() {
  WordCases cases("x_kv_append", KvBuild::append);
  cases.add("b=1 s=3 g=1 d=4 bits=4 group=8 residual=8 page=8 pages=3 at=15", "small", true);
  cases.add("b=2 s=1 g=1 d=3 bits=2 group=16 residual=16 page=16 pages=2 at=17 flush=1", "small",
            true);
  // Around the edges of tails: from every length, by one token and by many.
  for (int64_t at = 0; at <= 8 * 3 + 5; ++at)
    for (const char* more : {"s=1", "s=0 flush=1", "s=20", "s=7 flush=1"})
      cases.add("b=1 g=2 d=5 bits=4 group=8 residual=8 page=8 pages=6 at=" + std::to_string(at) +
                    " " + more,
                "edge");
  Words types;
  for (const std::string& type : kTypes) types.push_back("k_new" + type);
  cases.sweep("",
              {types,
               kFormats,
               {"s=1", "s=5", "s=70", "s=300"},
               {"b=1", "b=3", "b=4 query_len", "query_start", "b=4 cache_row", "b=2 query_max=9"},
               {"", "flush=1"},
               {"g=1 d=64", "g=2 d=40", "g=3 d=5"},
               {"", "holes=1", "at=0", "at=33", "at=64"},
               kLays},
              "", 301);
  for (const char* words : {"b=0 s=1", "s=0", "s=0 flush=1", "g=0 s=3", "d=0 s=3", "e=0 s=70",
                            "pages=0 s=3", "s=9 cut=1 at=100"})
    cases.add(words, "edge");
  append_levels(cases);
  append_tiles(cases);
  return cases.cases();
}

// The tensor-core kernel's instances, each with its edges: places, windows, holes, tails.
std::vector<harness::Case> split_decodes() {
  const Words shapes = {
      "b=3 s=1 pages=12 residual=128 at=600 causal=1",
      "b=4 s=1 pages=8 cache_row holes=1 at=300 splits=3",
      "b=3 s=1 pages=9 at=500 cut=1 window_left=200 causal=1 sink_logit splits=2",
      "b=2 s=2 pages=6 page=32 residual=32 at=190 causal=1 query_len o:f32",
      "b=2 s=1 pages=70 at=4400 scale=0.2",
  };
  const Words many = {"b=2 s=16 pages=6 at=333 causal=1",
                      "query_start s=11 pages=6 at=250 causal=1",
                      "b=2 s=5 pages=7 at=300 causal=1 window_left=60 residual=96",
                      "b=2 s=7 pages=5 at=240 window_left=20 window_right=3 key_max=200"};
  std::vector<harness::Case> all;
  const auto add = [&](const std::string& kernel, const std::string& words) {
    WordCases cases("x_kv_decode", KvBuild::decode);
    cases.add(words + " lse", "split");
    all.push_back(cases.cases()[0]);
    all.back().cuda_kernel = kernel;
  };
  for (const std::string type : {"f16", "bf16"})
    for (const std::string bits : {"2", "4"})
      for (const std::string width : {"64", "128"}) {
        const std::string name = "sm80." + type + ".b" + bits + ".d" + width + ".rows";
        const std::string of = "q:" + type + " bits=" + bits + " d=" + width + " e=" + width + " ";
        for (const std::string& shape : shapes) {
          const bool two = shape.find("s=2") != std::string::npos;
          add(name + "8", of + (two ? "h=4 g=2 " : "h=8 g=1 ") + shape);
        }
        add(name + "8", of + "h=10 g=2 " + shapes[0]);
        add(name + "16", of + "h=32 g=2 " + shapes[0]);
        add(name + "16", of + "h=12 g=1 " + shapes[2]);
        for (const std::string& shape : many) add(name + "16", of + "h=8 g=2 " + shape);
        add("", of + "h=8 g=2 pairs " + shapes[0]);
      }
  return all;
}

// The kernel of levels: bits and widths, each with places, windows, holes, outliers, first tokens
// and rotation.
std::vector<harness::Case> split_levels() {
  const std::string all_of = "format=1 k_outlier v_outlier k_first v_first ";
  const Words shapes = {
      all_of + "h=16 g=2 b=3 s=1 pages=12 at=600 causal=1 cos sin k_outliers=6 v_outliers=10",
      all_of + "h=8 g=1 b=4 s=1 pages=8 cache_row holes=1 at=300 splits=3 cos sin firsts=5",
      all_of + "h=4 g=2 b=2 s=2 pages=6 page=32 at=190 causal=1 query_len o:f32 firsts=40",
      "format=1 h=10 g=2 b=2 s=5 pages=9 at=500 window_left=200 causal=1 sink_logit splits=2 cos "
      "sin",
      "format=2 h=8 g=1 b=2 s=1 pages=40 at=2200 scale=0.2",
      "format=2 k_first v_first h=6 g=3 query_start s=11 pages=6 page=96 at=250 window_right=3 "
      "window_left=20 key_max=290 cos sin",
  };
  std::vector<harness::Case> all;
  int64_t n = 0;
  for (const std::string bits : {"2", "3", "4"})
    for (const std::string width : {"64", "128"})
      for (const std::string& shape : shapes) {
        const std::string type = n++ % 2 ? "f16" : "bf16";
        WordCases cases("x_kv_decode", KvBuild::decode);
        cases.add(shape + " q:" + type + " bits=" + bits + " d=" + width + " e=" + width + " lse",
                  "split");
        all.push_back(cases.cases()[0]);
        all.back().cuda_kernel = "levels_sm80." + type + ".b" + bits + ".d" + width;
      }
  for (const std::string format : {"1", "2"}) {
    WordCases cases("x_kv_decode", KvBuild::decode);
    cases.add(
        "format=" + format + " h=8 g=2 b=2 s=1 pages=4 at=200 q:bf16 bits=3 d=64 e=64 lse pairs",
        "split");
    all.push_back(cases.cases()[0]);
  }
  return all;
}

// The formats of levels, and keys that decode rotates in any format.
void decode_levels(WordCases& cases) {
  cases.add(
      "format=1 b=1 s=1 h=2 g=1 d=4 bits=4 group=8 page=8 pages=2 at=11 lse k_outlier v_outlier "
      "k_first v_first cos sin",
      "small", true);
  cases.add("format=2 b=1 s=1 h=2 g=1 d=4 bits=3 page=32 pages=1 at=20 lse", "small", true);
  Words types;
  for (const std::string& type : kTypes)
    types.push_back("q" + type), types.push_back("q" + type + " o:f32");
  cases.sweep("",
              {kRest,
               types,
               kLevels,
               {"s=1", "s=3", "s=40"},
               {"h=2 g=2", "h=8 g=1", "h=6 g=2"},
               {"b=1", "b=3", "b=4 query_len", "query_start", "b=4 cache_row", "b=2 key_max=50"},
               {"d=64", "d=40", "d=80"},
               {"", "cos sin", "cos sin half=8 rope_begin=12 rope_interleaved=1"},
               {"", "holes=1", "at=0", "at=1", "at=33"},
               {"causal=1", "causal=1 window_left=30", "window_left=20 window_right=3",
                "causal=1 window_left=9 sink_keys=4"},
               {"", "lse", "lse sink_logit splits=3"},
               kLays},
              "", 304);
  for (const char* words : {"cos sin b=2 s=1 h=4 g=2 d=64 at=150 causal=1 lse",
                            "cos sin b=2 s=20 h=4 g=2 d=64 bits=4 lse"})
    cases.add(words, "rope");
  for (const char* words : {"b=0 h=2 g=1", "s=0 h=2 g=1", "h=0 g=1", "h=0 g=0",
                            "pages=0 h=2 g=1 lse", "h=2 g=1 at=0 lse sink_logit"})
    for (const char* format : {"format=1 ", "format=2 "})
      cases.add(format + std::string(words), "edge");
}

void decode_tiles(WordCases& cases) {
  cases.add(
      "format=3 b=1 s=1 h=2 g=1 d=4 bits=4 v_bits=2 group=8 residual=8 page=8 pages=3 at=20 e=16 "
      "lse",
      "small", true);
  Words types;
  for (const std::string& type : kTypes)
    types.push_back("q" + type), types.push_back("q" + type + " o:f32");
  cases.sweep("",
              {kTiles,
               types,
               {"s=1", "s=3", "s=40"},
               {"h=2 g=2", "h=8 g=1", "h=6 g=2"},
               {"b=1", "b=3", "b=4 query_len", "query_start", "b=4 cache_row", "b=2 key_max=50"},
               {"d=64", "d=40", "d=5"},
               {"", "k_first v_first", "cos sin half=2", "cos sin half=2 k_first v_first"},
               {"", "holes=1", "at=0", "at=1", "at=33", "cut=1 at=75"},
               {"causal=1", "causal=1 window_left=30", "window_left=20 window_right=3",
                "causal=1 window_left=9 sink_keys=4"},
               {"", "lse", "lse sink_logit splits=3"},
               kLays},
              "", 306);
  for (const char* words :
       {"b=0 h=2 g=1", "s=0 h=2 g=1", "h=0 g=1", "h=0 g=0", "pages=0 h=2 g=1 lse",
        "h=2 g=1 at=0 lse sink_logit", "h=2 g=1 d=8 e=576 at=70 bits=4"})
    cases.add("format=3 " + std::string(words), "edge");
}

std::vector<harness::Case> decodes() {
  WordCases cases("x_kv_decode", KvBuild::decode);
  cases.add("b=1 s=1 h=2 g=1 d=4 bits=4 group=8 residual=8 page=8 pages=3 at=20 lse", "small",
            true);
  cases.add(
      "b=2 s=2 h=2 g=2 d=3 bits=2 group=16 residual=16 page=16 pages=2 at=25 causal=1 "
      "q:bf16",
      "small", true);
  Words types;
  for (const std::string& type : kTypes)
    types.push_back("q" + type), types.push_back("q" + type + " o:f32");
  cases.sweep("",
              {types,
               kFormats,
               {"s=1", "s=3", "s=17", "s=40"},
               {"h=2 g=2", "h=8 g=1", "h=6 g=2"},
               {"b=1", "b=3", "b=4 query_len", "query_start", "b=4 cache_row", "b=2 key_max=50",
                "b=2 query_max=2"},
               {"d=64", "d=40", "d=5"},
               {"", "holes=1", "at=0", "at=1", "at=33", "cut=1 at=75"},
               {"causal=1", "causal=1 window_left=30", "window_left=20 window_right=3",
                "causal=1 window_left=9 sink_keys=4"},
               {"", "lse", "lse sink_logit"},
               {"", "scale=0.3", "splits=3"},
               kLays},
              "", 302);
  for (const char* words :
       {"b=0 h=2 g=1", "s=0 h=2 g=1", "h=0 g=1", "h=0 g=0", "pages=0 h=2 g=1 lse",
        "h=2 g=1 at=0 lse sink_logit", "h=4 g=2 d=576 e=32 at=9", "h=4 g=2 d=8 e=576 at=70"})
    cases.add(words, "edge");
  decode_levels(cases);
  decode_tiles(cases);
  std::vector<harness::Case> all = cases.cases();
  for (harness::Case& one : split_decodes()) all.push_back(std::move(one));
  for (harness::Case& one : split_levels()) all.push_back(std::move(one));
  return all;
}

const Family kAppend("x_kv_append", appends);
const Family kDecode("x_kv_decode", decodes);

}  // namespace
}  // namespace cases
