// SPDX-License-Identifier: Apache-2.0
#include "harness/golden.h"

#include <cstddef>

namespace harness {

// Keeps in step with the headers because a field that is missing here would be lost from a golden
// vector, and its expected outputs would then fail in every binding's test.
#define INT(field) \
  { #field, offsetof(P, field), 'i' }
#define LONG(field) \
  { #field, offsetof(P, field), 'l' }
#define FLOAT(field) \
  { #field, offsetof(P, field), 'f' }

static std::vector<Scalar> attention_forward() {
  using P = fovea_attention_forward_params;
  return {LONG(query_max), LONG(key_max),     LONG(window_left),     LONG(window_right),
          LONG(sink_keys), LONG(local_chunk), FLOAT(scale),          FLOAT(softcap),
          INT(causal),     INT(rope_begin),   INT(rope_interleaved), INT(splits)};
}
static std::vector<Scalar> attention_backward() {
  using P = fovea_attention_backward_params;
  return {LONG(query_max), LONG(key_max),        LONG(window_left), LONG(window_right),
          LONG(sink_keys), LONG(local_chunk),    FLOAT(scale),      FLOAT(softcap),
          INT(causal),     INT(nondeterministic)};
}
static std::vector<Scalar> cache_append() {
  using P = fovea_cache_append_params;
  return {LONG(query_max), LONG(key_max), FLOAT(norm_eps), INT(rope_begin), INT(rope_interleaved)};
}
static std::vector<Scalar> cache_get() {
  using P = fovea_cache_get_params;
  return {LONG(key_max)};
}
static std::vector<Scalar> rope_forward() {
  using P = fovea_rope_forward_params;
  return {INT(rope_begin), INT(rope_interleaved), INT(inverse)};
}
static std::vector<Scalar> rope_table_get() {
  using P = fovea_rope_table_get_params;
  return {LONG(position_begin), LONG(original_len), FLOAT(base), FLOAT(factor),
          FLOAT(low_factor),    FLOAT(high_factor), INT(scaling)};
}

static std::vector<Scalar> quant_quantize() {
  using P = fovea_quant_quantize_params;
  return {LONG(block), LONG(seed), INT(hadamard), INT(code_order)};
}
static std::vector<Scalar> quant_forward() {
  using P = fovea_quant_forward_params;
  return {LONG(query_max), LONG(key_max), LONG(window_left), LONG(window_right), FLOAT(scale),
          FLOAT(softcap),  INT(causal),   INT(q_block),      INT(k_block),       INT(code_order)};
}

static std::vector<Scalar> kl_forward() {
  using P = fovea_kl_forward_params;
  return {LONG(query_max),      LONG(key_max),
          LONG(window_left),    LONG(window_right),
          LONG(sink_keys),      FLOAT(scale_teacher),
          FLOAT(scale_student), INT(causal),
          INT(direction),       INT(mean)};
}
static std::vector<Scalar> kl_backward() {
  using P = fovea_kl_backward_params;
  return {LONG(query_max),      LONG(key_max),
          LONG(window_left),    LONG(window_right),
          LONG(sink_keys),      FLOAT(scale_teacher),
          FLOAT(scale_student), INT(causal),
          INT(direction),       INT(mean),
          INT(nondeterministic)};
}

template <class P>
static std::vector<Scalar> jensen_shannon() {
  return {LONG(query_max),      LONG(key_max),   LONG(window_left),
          LONG(window_right),   LONG(sink_keys), FLOAT(scale_teacher),
          FLOAT(scale_student), FLOAT(weight),   INT(causal)};
}

template <class P>
static std::vector<Scalar> indexer() {
  return {LONG(query_max), LONG(key_max),        LONG(window_left), LONG(window_right),
          LONG(sink_keys), FLOAT(scale_teacher), INT(causal)};
}

template <class P>
static std::vector<Scalar> gather() {
  return {LONG(query_max), LONG(key_max), FLOAT(scale_teacher), FLOAT(scale_student)};
}

template <class P>
static std::vector<Scalar> pool() {
  return {LONG(query_max), LONG(key_max),    LONG(window_left),    LONG(window_right),
          LONG(sink_keys), LONG(block_keys), FLOAT(scale_teacher), FLOAT(scale_student),
          INT(causal),     INT(pool)};
}

static std::vector<Scalar> conv_attention_forward() {
  using P = fovea_conv_attention_forward_params;
  return {LONG(query_max), LONG(key_max), LONG(history), FLOAT(scale), INT(causal), INT(splits)};
}
static std::vector<Scalar> conv_attention_backward() {
  using P = fovea_conv_attention_backward_params;
  return {LONG(query_max), LONG(key_max), LONG(history),
          FLOAT(scale),    INT(causal),   INT(nondeterministic)};
}

template <class P>
static std::vector<Scalar> multi_token() {
  return {LONG(query_max), LONG(key_max), LONG(history), FLOAT(scale), INT(causal)};
}
template <class P>
static std::vector<Scalar> group_norm() {
  return {FLOAT(factor), FLOAT(eps)};
}

static std::vector<Scalar> trace_forward() {
  using P = fovea_trace_forward_params;
  return {LONG(keep), FLOAT(scale),   INT(block_rows), INT(block_keys),
          INT(layer), INT(edge_kind), INT(exact),      INT(causal)};
}

const std::vector<Scalar>& scalars_of(const std::string& op) {
  static const std::map<std::string, std::vector<Scalar>> table = {
      {"attention_forward", attention_forward()},
      {"attention_backward", attention_backward()},
      {"cache_append", cache_append()},
      {"cache_get", cache_get()},
      {"rope_forward", rope_forward()},
      {"rope_table_get", rope_table_get()},
      {"quant_quantize", quant_quantize()},
      {"quant_forward", quant_forward()},
      {"kl_forward", kl_forward()},
      {"kl_backward", kl_backward()},
      {"x_kl_jensen_shannon_forward", jensen_shannon<fovea_x_kl_jensen_shannon_forward_params>()},
      {"x_kl_jensen_shannon_backward", jensen_shannon<fovea_x_kl_jensen_shannon_backward_params>()},
      {"x_kl_indexer_forward", indexer<fovea_x_kl_indexer_forward_params>()},
      {"x_kl_indexer_backward", indexer<fovea_x_kl_indexer_backward_params>()},
      {"x_kl_gather_forward", gather<fovea_x_kl_gather_forward_params>()},
      {"x_kl_gather_backward", gather<fovea_x_kl_gather_backward_params>()},
      {"x_kl_pool_forward", pool<fovea_x_kl_pool_forward_params>()},
      {"x_kl_pool_backward", pool<fovea_x_kl_pool_backward_params>()},
      {"conv_attention_forward", conv_attention_forward()},
      {"conv_attention_backward", conv_attention_backward()},
      {"x_multi_token_forward", multi_token<fovea_x_multi_token_forward_params>()},
      {"x_multi_token_backward", multi_token<fovea_x_multi_token_backward_params>()},
      {"x_group_norm_forward", group_norm<fovea_x_group_norm_forward_params>()},
      {"x_group_norm_backward", group_norm<fovea_x_group_norm_backward_params>()},
      {"trace_forward", trace_forward()},
      {"merge_forward", {}},
      {"merge_backward", {}},
      {"cache_copy", {}}};
  return table.at(op);
}

}  // namespace harness
