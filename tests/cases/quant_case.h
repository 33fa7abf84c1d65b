// SPDX-License-Identifier: Apache-2.0
// What a call of quant is.
#pragma once
#include "cases/attention_case.h"
#include "oracle/quantize.h"

namespace cases {

// What the tokens of a quantised tensor hold beside normal numbers.
enum class Content { normal, zeros, outliers, huge, tiny, subnormal, nan, infinite };

// How a call's scales are given.
enum class Scales { none, head, block };

// Whose row of quant.h's table of methods a call is.
enum class Method {
  fa3,
  sage1,
  sage2,
  sage2_i4,
  sage2pp,
  sage3_nv,
  sage3_mx,
  sagebwd,
  tokens,
  blocks
};

// A call of quant_quantize, or of quant_dequantize on what that makes.
struct QuantizeCase {
  std::string note;
  int dtype = FOVEA_F32, code_dtype = FOVEA_E4M3, format = FOVEA_CODE_FORMAT_DTYPE;
  int group = FOVEA_SCALE_GROUP_BLOCK, smooth = FOVEA_SMOOTH_NONE;
  int64_t b = 2, s = 5, h = 2, d = 8, block = 0;
  bool packed = false, hadamard = false, code = true, code_t = false, permuted = false;
  Content content = Content::normal;
  Lay lay = Lay::contiguous;
  float scale_max = 0;
  int64_t spare = 0;        // packed tokens of no sequence
  int64_t keys = 0, g = 1;  // of delta
  bool k_mean = false, packed_keys = false;
};

struct QuantForwardCase {
  std::string note;
  int64_t b = 2, s = 5, t = 7, h = 2, g = 2, d = 16, e = 16;
  int o_dtype = FOVEA_F32;
  bool causal = false, transposed = true, permuted = true, lse = true, softcap = false,
       sink_logit = false;
  int64_t left = 0, right = 0, q_block = 128, k_block = 128, v_block = 64;  // v_block: of sagebwd
  Scales scales = Scales::head;
  Method method = Method::fa3;
  // q_plain: with k_mean.  zeros: a block of k and its scale hold nothing; constant: all of k.
  bool k_mean = false, q_plain = false, delta = false, v_mean = false, zeros = false,
       constant = false;
  bool bf16_v = false;  // sage1: v of bf16 with scales of channels, q and k with those of threads
  Where where = Where::batched;
  int64_t page = 0;     // of Where::paged
  bool packed = false;  // with Where::paged: rows are packed
  // Pages share the scale of k; that of v, and the mean of k.
  bool one_k = false, one_v = false;
  Lay lay = Lay::contiguous;
  float scale = 0;
  // Lists: keep places of blocks of list_keys keys, for list_rows rows of x heads; 0: none.
  int64_t list_rows = 0, list_keys = 64, entry_keys = 0, keep = 3, x = 1;
  bool counts = false;   // with index_count
  bool ascends = false;  // each entry once, ascending; else any
  float margin = 0;
};

// Starts of sequences of about `s` tokens each, one of them empty.
inline std::vector<double> starts_of(int64_t sequences, int64_t s) {
  std::vector<double> starts{0};
  for (int64_t r = 0; r < sequences; ++r)
    starts.push_back(starts.back() + static_cast<double>(r == 1 ? 0 : std::max<int64_t>(s - r, 0)));
  return starts;
}

// Entries of a row of scales, or units of codes.
inline int64_t entries_of(bool packed, int64_t s, int64_t sequences, int64_t block) {
  if (packed) return (block ? s / block : 0) + sequences;
  return block ? (s + block - 1) / block : 1;
}

Call build_quantize(const QuantizeCase& c, uint64_t seed);
Call build_dequantize(const QuantizeCase& c, int y_dtype, uint64_t seed);
Call build_quant_forward(const QuantForwardCase& c, uint64_t seed);

}  // namespace cases
