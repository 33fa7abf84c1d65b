// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_indexed_forward", "plain", "index_q index_k weight lse index index_count",
     "x=2 index_heads=4 index_keys=1 measure=1 reduce=1 count=2"},
    {"x_indexed_forward", "all",
     "index_q index_k index_k_scale weight sink_logit k_scale v_scale lse query_len key_len "
     "context_len index index_count",
     "x=1 q:bf16 k:e4m3 v:e4m3 groups=1 index_q:e4m3 index_k:e4m3 index_heads=4 index_keys=1 "
     "index_groups=1 measure=1 reduce=1 count=2"},
    {"x_indexed_forward", "joined", "q_value index_q index_k weight lse",
     "index_heads=4 index_keys=1 measure=1 reduce=1 count=2 d=2 e=4"},
    {"x_indexed_forward", "codes", "code_q code lse",
     "index_heads=4 index_keys=1 measure=2 reduce=1 count=2 first_keys=1 last_keys=1"},
    {"x_indexed_forward", "blocks", "index_q block_k weight lse index index_count",
     "x=2 t=7 blocks=4 index_step=2 index_heads=4 index_keys=1 measure=1 reduce=1 count=2 "
     "causal=1"},
    {"x_indexed_forward", "mean", "v_mean lse", "measure=3 subset=3 lists=2 reduce=1 count=2"},
    {"x_indexed_forward", "packed", "lse query_start key_start", "b=1 r=2 count=2"},
    {"x_indexed_forward", "paged", "lse page_table cache_row", "rows=3 count=2 pool_keys=2"},
    {"x_indexed_forward", "large", "lse", "s=64 t=128 count=8"},
};

}  // namespace
}  // namespace contract
