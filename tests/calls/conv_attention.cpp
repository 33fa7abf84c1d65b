// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"conv_attention_forward", "history", "lse cache_row", "rows=4 history=1 rows_out=2 q:bf16"},
    {"conv_attention_forward", "packed", "lse query_start key_start",
     "b=1 r=2 history=1 rows_out=1"},
    {"conv_attention_forward", "paged", "lse page_table key_len cache_row", "rows=3"},
    {"conv_attention_backward", "packed", "dq dk dv dweight query_start key_start",
     "b=1 r=2 history=1 rows_out=1"},
};

}  // namespace
}  // namespace contract
