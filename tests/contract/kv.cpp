// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr const char* kGroups = "k_scale k_zero v_scale v_zero k_tail v_tail";
constexpr const char* kOps[] = {"x_kv_append", "x_kv_decode"};

TEST(ContractKv, Formats) {
  for (const char* op : kOps) {
    SCOPED_TRACE(op);
    const std::string at = std::string(op) + ": ";
    const Call call = valid(op, "plain");
    const Params& plain = call.params;
    accepts(plain);
    for (const int bad : {-1, 1, 3, 8})
      says(with(plain, "bits", bad),
           at + "bits is " + std::to_string(bad) + " in format 0, wanted 2 or 4, or 0 for 2");
    for (const int bad : {-8, 4, 12})
      says(with(plain, "group", bad),
           at + "group is " + std::to_string(bad) + ", wanted a multiple of 8, or 0 for 32");
    says(with(plain, "group", 16),
         at + "the width of values (e) is 8, wanted a multiple of group = 16");
    says(with(plain, "bits", 2), at + "group is 8, wanted a multiple of 16, or 0 for 32");
  }
}

TEST(ContractKv, Extents) {
  const std::pair<const char*, const char*> rows[] = {
      {"page=12", "v_code.shape[1] (page) is 12, wanted a multiple of group = 8"},
      {"residual=12 ring=13", "k_tail.shape[1] (residual) is 12, wanted a multiple of group = 8"},
      {"page=0", "v_code.shape[1] (page) is 0, wanted >= 1"},
      {"residual=0 ring=1", "k_tail.shape[1] (residual) is 0, wanted >= 1"},
      {"ring=8", "v_tail.shape[1] (ring) is 8, wanted 9 (residual + 1)"},
      {"e=12", "the width of values (e) is 12, wanted a multiple of group = 8"},
      {"page_groups=3", "k_code.shape[1] (page_groups) is 3, wanted 2 (page / group)"},
      {"k_words=2", "k_code.shape[4] (k_words) is 2, wanted 1 (group * bits / 32)"},
      {"v_words=2", "v_code.shape[3] (v_words) is 2, wanted 1 (e * bits / 32)"},
      {"v_groups=2", "v_scale.shape[3] (v_groups) is 2, wanted 1 (e / group)"},
  };
  for (const char* op : kOps)
    for (const auto& [extents, sentence] : rows) {
      const Call call({op, "", kGroups, std::string("bits=4 group=8 e=8 page=16 ") + extents});
      says(call.params, std::string(op) + ": " + sentence);
    }
}

TEST(ContractKv, Levels) {
  for (const char* op : kOps) {
    SCOPED_TRACE(op);
    const std::string at = std::string(op) + ": ";
    const Call levels_call = valid(op, "levels"), norms_call = valid(op, "norms");
    const Call plain_call = valid(op, "plain");
    const Params &levels = levels_call.params, &norms = norms_call.params;
    accepts(levels), accepts(norms);
    for (const int bad : {-1, 4})
      says(with(levels, "format", bad),
           at + "format is " + std::to_string(bad) + ", wanted 0 .. 3 of fovea_x_kv_format");
    says(with(levels, "v_bits", 2), at + "v_bits is 2 in format 1, wanted bits = 4, or 0 for that");
    accepts(with(levels, "v_bits", 4));
    says(with(levels, "bits", 8), at + "bits is 8 in format 1, wanted 2, 3 or 4, or 0 for 2");
    says(with(levels, "bits", 3), at + "group is 8, wanted a multiple of 32, or 0 for 32");
    for (const char* field : {"k_level", "v_level", "k_offset", "k_range", "v_bound"})
      says(without(levels, {field}), at + field + " is absent, wanted in format 1");
    for (const char* field : {"k_level", "v_level", "k_norm", "v_norm"})
      says(without(norms, {field}), at + field + " is absent, wanted in format 2");
    for (const char* field : {"k_scale", "k_zero", "v_scale", "v_zero", "k_tail", "v_tail"})
      says(without(plain_call.params, {field}), at + field + " is absent, wanted in format 0");
    says(with(levels, "format", 2), at + "k_offset is given, wanted none in format 2");
    says(without(levels, {"v_first"}), at + "k_first is given without v_first, wanted both");
  }
}

TEST(ContractKv, Tiles) {
  for (const char* op : kOps) {
    SCOPED_TRACE(op);
    const std::string at = std::string(op) + ": ";
    const Call call = valid(op, "tiles");
    const Params& tiles = call.params;
    accepts(tiles);
    for (const int bad : {-2, 1, 3, 8})
      says(with(tiles, "v_bits", bad),
           at + "v_bits is " + std::to_string(bad) + ", wanted 2 or 4, or 0 for bits = 4");
    says(with(tiles, "v_bits", 2),
         at + "the width of values (e) is 8, wanted a multiple of 16 in format 3");
    says(with(tiles, "bits", 3), at + "bits is 3 in format 3, wanted 2 or 4, or 0 for 2");
    says(with(tiles, "reserved", 1), at + "reserved is 1, wanted 0");
    for (const char* field : {"k_scale", "v_zero", "k_tail", "v_tail", "k_factor", "v_factor"})
      says(without(tiles, {field}), at + field + " is absent, wanted in format 3");
    says(with(tiles, "format", 0), at + "k_factor is given, wanted none in format 0");
    says(without(tiles, {"v_first"}), at + "k_first is given without v_first, wanted both");
    const std::pair<const char*, const char*> rows[] = {
        {"ring=9", "v_tail.shape[1] (ring) is 9, wanted 8 (residual in format 3)"},
        {"v_groups=2", "v_scale.shape[3] (v_groups) is 2, wanted 1 (one in format 3)"},
        {"v_words=2", "v_code.shape[3] (v_words) is 2, wanted 1 (e * v_bits / 32)"},
        {"firsts=12", "k_first.shape[1] (firsts) is 12, wanted a multiple of group = 8"},
        {"residual=12 ring=12", "k_tail.shape[1] (residual) is 12, wanted a multiple of group = 8"},
    };
    for (const auto& [extents, sentence] : rows)
      says(Call({op, "", std::string(kGroups) + " k_factor v_factor k_first v_first",
                 std::string("format=3 bits=4 group=8 e=8 page=16 v_groups=1 ring=8 firsts=8 ") +
                     extents})
               .params,
           at + sentence);
  }
}

TEST(ContractKv, Outliers) {
  const std::string given = "k_level v_level k_offset k_range v_bound k_outlier v_outlier";
  const std::pair<const char*, const char*> rows[] = {
      {"k_outliers=26 d=13",
       "k_outlier.shape[2] is 26, wanted fewer than the 26 columns of all heads"},
      {"v_outliers=16", "v_outlier.shape[2] is 16, wanted fewer than the 16 columns of all heads"},
      {"levels=4", "k_level.shape[0] (levels) is 4, wanted 16 (2^bits)"},
  };
  for (const char* op : kOps)
    for (const auto& [extents, sentence] : rows) {
      const Call call(
          {op, "", given, std::string("format=1 levels=16 bits=4 group=8 e=8 page=16 ") + extents});
      says(call.params, std::string(op) + ": " + sentence);
    }
}

TEST(ContractKv, Decode) {
  const Call call = valid("x_kv_decode", "plain");
  const Params& plain = call.params;
  for (const char* field :
       {"query_max", "key_max", "window_left", "window_right", "sink_keys", "splits"})
    refuses(with(plain, field, -1), field);
  refuses(with(plain, "causal", 2), "causal");
  for (const float bad : {-1.f, NAN, HUGE_VALF}) refuses(with_number(plain, "scale", bad), "scale");
  says(with(plain, "sink_keys", 1),
       "x_kv_decode: sink_keys is 1 without window_left: there is no left window to see through");
  const std::string sizes = "bits=4 group=8 e=8 page=16 ";
  says(Call({"x_kv_decode", "", kGroups, sizes + "h=3"}).params,
       "x_kv_decode: k_code.shape[2] (g) is 2, wanted a divisor of q's 3 heads");
  says(Call({"x_kv_decode", "", kGroups, sizes + "d=0"}).params,
       "x_kv_decode: q.shape[3] (d) is 0 and o.shape[3] (e) 8, wanted >= 1");
  refuses(Call({"x_kv_decode", "", kGroups, sizes + "d=577"}).params, "d", FOVEA_UNSUPPORTED);
}

TEST(ContractKv, Append) {
  const Call call = valid("x_kv_append", "plain");
  refuses(with(call.params, "flush", 2), "flush");
  refuses(with(call.params, "query_max", -1), "query_max");
}

}  // namespace
}  // namespace contract
