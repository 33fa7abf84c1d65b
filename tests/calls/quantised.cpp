// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_quantised_forward", "plain", "lse", "q:bf16"},
    {"x_quantised_forward", "all", "sink_logit lse",
     "q:f16 code=1 q_group=1 q_block=16 k_group=2 k_block=64 k_smooth=1 v_group=4 p_format=1"},
    {"x_quantised_forward", "plain_v", "lse",
     "q:f16 code=1 v_code=4 q_block=128 k_block=64 k_smooth=1 p_format=2 accumulate=2"},
    {"x_quantised_forward", "packed", "lse query_start key_start", "b=1 r=2 q:bf16"},
    {"x_quantised_forward", "lists", "lse index index_count skipped",
     "q:bf16 n=2 block_rows=2 block_keys=64"},
    {"x_quantised_forward", "large", "lse", "s=64 t=128 q:bf16"},
    {"x_quant_backward", "plain", "dq dk dv", "q:bf16"},
    {"x_quant_backward", "all", "dq dk dv", "q:f16 o:f32 k_smooth=1 causal=1 window_left=9"},
    {"x_quant_backward", "packed", "dq dk dv query_start key_start", "b=1 r=2 q:bf16 k_smooth=1"},
    {"x_quant_backward", "large", "dq dk dv", "s=64 t=128 q:bf16"},
};

}  // namespace
}  // namespace contract
