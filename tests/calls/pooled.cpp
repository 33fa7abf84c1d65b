// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

// n, u, x, keep: what the blocks make of s and t.
const Calls kCalls = {
    {"x_pooled_forward", "plain", "lse index index_count",
     "s=4 t=8 h=4 g=2 x=4 n=2 block_rows=2 block_keys=2 count=2"},
    {"x_pooled_forward", "all",
     "lse row column column_low cover_head sink_logit k_scale v_scale query_len key_len index "
     "index_count",
     "s=4 t=8 h=4 g=2 x=4 n=2 u=4 row_heads=4 column_heads=2 row_width=5 q:bf16 k:e4m3 v:e4m3 "
     "groups=1 "
     "measure=1 normalise=1 rule=1 block_rows=2 block_keys=2"},
    {"x_pooled_forward", "kept", "summary old_len lse",
     "s=1 t=8 h=4 g=2 d=4 u=4 summary_width=8 measure=1 block_keys=2 count=2 force_last=1"},
    {"x_pooled_forward", "subset", "lse query_len key_len",
     "s=1 t=8 h=4 g=2 measure=1 subset=3 normalise=1 reduce=1 lists=2 block_keys=2 count=2"},
    {"x_pooled_forward", "similar", "row_similar_least column_similar_least lse",
     "s=4 t=8 h=4 g=2 block_rows=2 block_keys=2 normalise=1 ratio=0.5 min_extra=1"},
    {"x_pooled_forward", "packed", "lse query_start key_start",
     "b=1 r=2 block_rows=2 block_keys=2 count=2"},
    {"x_pooled_forward", "paged", "lse page_table key_len", "block_keys=2 count=2"},
    {"x_pooled_forward", "cached", "summary old_len lse page_table cache_row",
     "rows=3 s=1 h=4 g=2 d=4 u=16 summary_width=4 block_keys=2 count=2"},
    {"x_pooled_forward", "codes", "lse", "s=4 t=8 h=4 g=2 quantise=1 count=2 q:bf16"},
    {"x_pooled_forward", "large", "lse", "s=512 t=1024 block_rows=64 block_keys=64 count=3"},
};

}  // namespace
}  // namespace contract
