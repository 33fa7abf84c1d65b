// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_sparse_forward", "all",
     "lse index index_count column column_count tile tile_bits sink_logit head_map skip_head mass "
     "skipped k_scale v_scale context_len query_len key_len",
     "block_rows=2 block_keys=8 k:e4m3 v:e4m3"},
    {"x_sparse_forward", "bias", "lse q_value index index_count index_bias query_len",
     "block_rows=2 block_keys=1 q:bf16"},
    {"x_sparse_forward", "clusters", "lse index index_count row_begin key_begin column key_len",
     ""},
    {"x_sparse_forward", "packed", "lse index index_count query_start key_start",
     "b=1 r=2 n=3 block_rows=2 block_keys=2"},
    {"x_sparse_forward", "paged", "lse index index_count page_table cache_row key_len mass",
     "rows=3 n=3 block_rows=1 block_keys=2"},
    {"x_sparse_forward", "large", "lse index index_count",
     "s=64 t=128 n=4 keep=4 block_rows=16 block_keys=16"},
    {"x_sparse_backward", "all",
     "index index_count tile tile_bits sink_logit query_len key_len dlse dq dk dv dsink_logit",
     "block_rows=2 block_keys=8"},
    {"x_sparse_backward", "clusters", "index index_count row_begin key_begin dq dk dv", "q:f16"},
    {"x_sparse_backward", "packed", "index index_count query_start key_start dq dk dv",
     "b=1 r=2 n=3 block_rows=1 block_keys=1"},
    {"x_sparse_backward", "large", "index index_count dq dk dv",
     "s=64 t=128 n=4 keep=4 block_rows=16 block_keys=16"},
};

}  // namespace
}  // namespace contract
