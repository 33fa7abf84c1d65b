// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_multi_token_forward", "mixed", "mix_before mix_after lse cache_row",
     "rows=4 history=1 rows_out=2 q:bf16 group_heads=2"},
    {"x_multi_token_forward", "packed", "mix_before mix_after lse query_start key_start",
     "b=1 r=2 history=1 rows_out=1 group_heads=4"},
    {"x_multi_token_forward", "paged", "mix_before mix_after page_table key_len cache_row",
     "rows=3 group_heads=2"},
    {"x_multi_token_backward", "mixed",
     "mix_before mix_after dq dk dv dweight dmix_before dmix_after", "group_heads=2"},
    {"x_multi_token_backward", "packed", "mix_before mix_after dq dmix_after query_start key_start",
     "b=1 r=2 history=1 rows_out=1 group_heads=2"},
    {"x_multi_token_forward", "large", "mix_before mix_after lse",
     "s=48 rows_out=48 t=128 group_heads=4"},
    {"x_multi_token_backward", "large",
     "mix_before mix_after dq dk dv dweight dmix_before dmix_after",
     "s=48 rows_out=48 t=128 group_heads=4"},
};

}  // namespace
}  // namespace contract
