// SPDX-License-Identifier: Apache-2.0
// What a call of quant is.
#pragma once
#include "cases/attention_case.h"
#include "oracle/quant.h"

namespace cases {

// What the tokens of a quantised tensor hold beside normal numbers.
enum class Content { normal, zeros, outliers, huge, tiny, nan, infinite };

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

struct QuantizeCase {
  std::string note;
  int dtype = FOVEA_F32;
  int64_t b = 2, s = 5, h = 2, d = 8, block = 0;
  bool packed = false, hadamard = false, code = true, code_t = false, permuted = false;
  Content content = Content::normal;
  Lay lay = Lay::contiguous;
};

struct QuantForwardCase {
  std::string note;
  int64_t b = 2, s = 5, t = 7, h = 2, g = 2, d = 16, e = 16;
  int o_dtype = FOVEA_F32;
  bool causal = false, transposed = true, permuted = true, lse = true, softcap = false,
       sink_logit = false;
  int64_t left = 0, right = 0, q_block = 128, k_block = 128;
  Scales scales = Scales::head;
  Method method = Method::fa3;
  // q_plain: with k_mean.  zeros: a block of k and its scale hold nothing; constant: all of k.
  bool k_mean = false, q_plain = false, delta = false, v_mean = false, zeros = false,
       constant = false;
  Where where = Where::batched;
  Lay lay = Lay::contiguous;
  float scale = 0;
};

Call build_quantize(const QuantizeCase& c, uint64_t seed);
Call build_quant_forward(const QuantForwardCase& c, uint64_t seed);

}  // namespace cases
