// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"attention_forward", "half", "lse", "q:bf16"},
    {"attention_forward", "all",
     "lse q_value query_len key_len key_first query_position key_position head_window mask bias "
     "alibi sink_logit cos sin k_scale v_scale",
     "k:e4m3 v:i8"},
    {"attention_forward", "options",
     "lse q_value query_len key_len key_first query_position key_position mask bias alibi "
     "sink_logit",
     "t=17"},
    {"attention_forward", "head_window", "head_window", ""},
    {"attention_forward", "codes", "lse k_scale v_scale context_len", "k:e4m3 v:i8"},
    {"attention_forward", "codes_paged", "page_table key_len cache_row k_scale v_scale context_len",
     "k:e5m2 v:e5m2 rows=3"},
    {"attention_forward", "rope", "cos sin", ""},
    {"attention_forward", "rows", "cache_row", "rows=4"},
    {"attention_forward", "packed", "lse query_start key_start key_position mask bias alibi",
     "b=1 r=2"},
    {"attention_forward", "packed_keys", "lse key_start bias", "keys=4 key_max=4"},
    {"attention_forward", "paged", "lse page_table key_len key_position mask bias", ""},
    {"attention_forward", "paged_packed", "query_start page_table cache_row bias",
     "b=1 r=2 rows=3 keys=4 key_max=4"},
    {"attention_backward", "half", "dq dk dv", "q:bf16"},
    {"attention_backward", "options",
     "query_len key_len key_first query_position key_position mask bias alibi sink_logit dlse dq "
     "dk dv dsink_logit dbias dalibi",
     ""},
    {"attention_backward", "packed", "query_start key_start head_window bias dbias dq dk dv",
     "b=1 r=2"},
};

}  // namespace
}  // namespace contract
