// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"quant_forward", "all",
     "v q_scale k_scale v_scale lse query_len key_len sink_logit k_mean q_plain delta v_mean index "
     "index_count skipped",
     "block_rows=2 block_keys=64"},
    {"quant_quantize", "all", "code code_t", "n=1"},
    {"quant_quantize", "plain", "code code_t", "n=1"},
    {"quant_quantize", "block", "code_t", "block=64 n=1 x:bf16"},
    {"quant_quantize", "packed", "code code_t start", "b=1 r=2 n=2 padded=256"},
    {"quant_quantize", "smooth", "code mean k k_mean delta", "smooth=2 n=1 g=2"},
    {"quant_quantize", "packed_keys", "code mean k k_mean delta key_start",
     "smooth=2 n=1 g=2 k_means=2"},
    {"quant_quantize", "micro", "code code_t",
     "code_format=2 group=5 code:u8 code_t:u8 scale:e4m3 "
     "n=3 code_d=4 padded=64"},
    {"quant_dequantize", "all", "code", "n=1"},
    {"quant_dequantize", "plain", "code", "n=1"},
    {"quant_dequantize", "packed", "code start", "b=1 r=2 n=2"},
    {"quant_dequantize", "smooth", "code_t mean", "smooth=1 n=1"},
    {"quant_dequantize", "large", "code", "s=256 n=1"},
    {"quant_forward", "plain", "v lse sink_logit query_len key_len", ""},
    {"quant_forward", "scales", "v_t q_scale k_scale v_scale lse", "o:bf16"},
    {"quant_forward", "packed", "v_t q_scale k_scale v_scale lse query_start key_start",
     "b=1 r=2 padded=256 q_blocks=2 k_blocks=2 v_blocks=2"},
    {"quant_forward", "integers", "v_t q_scale k_scale v_scale lse k_mean q_plain",
     "q:i8 o:bf16 q_group=1 q_block=16 q_blocks=8 k_group=2 k_block=64 k_blocks=4 v_group=4 "
     "v_blocks=6 p_format=1 accumulate=2"},
    {"quant_forward", "pairs", "v_t q_scale k_scale v_scale lse",
     "q:u8 v_t:u8 v_scale:e4m3 code_format=2 v_format=2 p_format=4 v_group=7 v_blocks=48 "
     "padded=64"},
    {"quant_quantize", "large", "code code_t", "s=256 padded=256 n=1"},
    {"quant_forward", "lists", "v_t lse index index_count query_start key_start",
     "b=1 r=2 n=3 padded=256 block_rows=2 block_keys=64"},
    {"quant_forward", "paged", "v_t k_scale v_scale k_mean v_mean lse key_len page_table cache_row",
     "rows=3"},
    {"quant_forward", "large", "v lse", "s=64 t=128"},
};

}  // namespace
}  // namespace contract
