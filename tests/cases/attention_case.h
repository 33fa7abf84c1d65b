// SPDX-License-Identifier: Apache-2.0
// An attention call as one row of choices, and its name.  Forward and backward share it.
#pragma once
#include <tuple>

#include "harness/cases.h"

namespace cases {

using harness::Call;
using harness::Lay;
using harness::Role;
using harness::Shape;

constexpr int kDtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16};

enum class Span { full, causal, left, left_sink, band, chunk, head_window, chunk_sink };
constexpr const char* kSpanNames[] = {"full", "causal", "window",      "window_sink",
                                      "band", "chunk",  "head_window", "chunk_sink"};

// by_key: the same for all rows of a head.
enum class Bias { none, full, broadcast, minus_inf, bf16, by_key };
constexpr const char* kBiasNames[] = {"",          "bias",       "bias_broadcast", "bias_minus_inf",
                                      "bias_bf16", "bias_by_key"};

// Where the tokens are.  `paged` goes with a page size.
enum class Where { batched, lengths, varlen, varlen_queries, key_first, cache_row, paged };
constexpr const char* kWhereNames[] = {"",          "lengths",   "varlen", "varlen_queries",
                                       "key_first", "cache_row", "paged"};

// masks that blank whole blocks of 64 keys for every other row of 16, or everything.
enum class Masked { some, tiles, all };
constexpr const char* kMaskedNames[] = {"mask", "masked_tiles", "masked_all"};

// How k and v share memory with their neighbours.  record: rows are 656 bytes apart, as FP8-MLA's,
// which have 512 codes, four scales and 64 rotated columns.
enum class Shared { none, kv, broadcast, v_in_k, record };
constexpr const char* kSharedNames[] = {"", "kv_interleaved", "broadcast", "v_in_k", "record"};

enum class Positions { none, query, both };
constexpr const char* kPositionNames[] = {"", "query_position", "positions"};

enum class Rope { none, half, interleaved };
constexpr const char* kRopeNames[] = {"", "rope", "rope_interleaved"};

// Scales of codes: one a head; a token; a token and head; these for equal parts of the columns.
enum class CodeScales { none, head, token, token_head, grouped };
constexpr const char* kScaleNames[] = {"", "head", "token", "token_head", "grouped"};

// Positions by numbers.  step: keys stand for blocks of 4 tokens; outside: seen once they have left
// a window; behind: keys begin before position 0.
enum class Axis { none, context, step, outside, behind };
constexpr const char* kAxisNames[] = {"", "context", "step", "outside", "behind"};

// dense 10.1: D1 normal, D2 channels with a bias, D3 rare outliers; sharp: scores of about 30.
// nan_*: NaN in one row of q, one key, one value.
enum class Data { normal, biased, outliers, sharp, huge, nan_q, nan_k, nan_v };
constexpr const char* kDataNames[] = {"",     "biased", "outliers", "sharp",
                                      "huge", "nan_q",  "nan_k",    "nan_v"};

struct AttentionCase {
  std::string note;
  int dtype = FOVEA_F32;
  int64_t b = 1, s = 1, t = 1, h = 1, g = 1, d = 8, e = 8;
  Span span = Span::full;
  bool softcap = false, sink_logit = false, alibi = false, mask = false;
  Masked masked = Masked::some;  // with mask
  Bias bias = Bias::none;
  Positions positions = Positions::none;
  Where where = Where::batched;
  int64_t page = 0;
  Lay lay = Lay::contiguous;
  Data data = Data::normal;
  Shared shared = Shared::none;
  float scale = 0;
  // forward
  int splits = 0;
  bool q_value = false, o_f32 = false, lse = true;
  Rope rope = Rope::none;
  int k_dtype = 0, v_dtype = 0;  // of codes; 0: as q
  CodeScales k_scales = CodeScales::none, v_scales = CodeScales::none;
  Axis axis = Axis::none;
  // backward: which of dq dk dv dsink_logit dbias dalibi (bits), which of the first three are f32,
  // whether dlse arrives, whether dbias and dalibi sum over b and h
  int outputs = 63, f32 = 0;
  bool dlse = false, sums = false, nondeterministic = false;
  uint64_t page_seed = 0;  // another order of the same pages

  int64_t cost() const { return b * s * t * h * (d + e); }
};

inline const char* dtype_name(int dtype) {
  switch (dtype) {
    case FOVEA_F32:
      return "f32";
    case FOVEA_F16:
      return "f16";
    case FOVEA_BF16:
      return "bf16";
    case FOVEA_E4M3:
      return "e4m3";
    case FOVEA_E5M2:
      return "e5m2";
    case FOVEA_I8:
      return "i8";
    case FOVEA_I32:
      return "i32";
    default:
      return "u8";
  }
}

inline std::string name_of(const AttentionCase& c, bool backward) {
  auto number = [](const char* letter, int64_t n) {
    return std::string(letter) + std::to_string(n);
  };
  std::string name = std::string(dtype_name(c.dtype)) + "/" + number("b", c.b) + number("_s", c.s) +
                     number("_t", c.t) + number("_h", c.h) + number("_g", c.g) + number("_d", c.d) +
                     number("_e", c.e) + "/" + kSpanNames[static_cast<int>(c.span)];
  auto add = [&](const std::string& word) {
    if (!word.empty()) name += "_" + word;
  };
  add(kWhereNames[static_cast<int>(c.where)] +
      (c.where == Where::paged ? std::to_string(c.page) : ""));
  if (c.softcap) add("softcap");
  if (c.sink_logit) add("sink");
  if (c.alibi) add("alibi");
  add(kBiasNames[static_cast<int>(c.bias)]);
  if (c.mask) add(kMaskedNames[static_cast<int>(c.masked)]);
  add(kSharedNames[static_cast<int>(c.shared)]);
  add(kPositionNames[static_cast<int>(c.positions)]);
  add(kDataNames[static_cast<int>(c.data)]);
  if (c.lay != Lay::contiguous) add(harness::kLayNames[static_cast<int>(c.lay)]);
  if (c.scale > 0) add("scale");
  if (backward) {
    if (c.outputs != 63) add("out" + std::to_string(c.outputs));
    if (c.f32) add(number("f32out", c.f32));
    if (c.dlse) add("dlse");
    if (c.sums) add("sums");
    if (c.nondeterministic) add("nondeterministic");
  } else {
    add(kRopeNames[static_cast<int>(c.rope)]);
    if (c.splits) add(number("splits", c.splits));
    if (c.q_value) add("q_value");
    for (const auto& [letter, type, scales] :
         {std::tuple{"k", c.k_dtype, c.k_scales}, std::tuple{"v", c.v_dtype, c.v_scales}}) {
      if (!type) continue;
      add(letter), add(dtype_name(type)), add(kScaleNames[static_cast<int>(scales)]);
    }
    add(kAxisNames[static_cast<int>(c.axis)]);
    if (!c.lse) add("no_lse");
  }
  if (c.o_f32 && c.dtype != FOVEA_F32) add("o_f32");
  add(c.note);
  return name;
}

// `shape_seed` decides what shapes and options depend on, `data_seed` values and lengths.
Call build_attention_forward(const AttentionCase& c, uint64_t shape_seed, uint64_t data_seed);
Call build_attention_backward(const AttentionCase& c, uint64_t shape_seed, uint64_t data_seed);

}  // namespace cases
