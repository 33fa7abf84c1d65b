// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

// Steps and windows that are small enough for the extents of small calls.
const Calls kCalls = {
    {"x_compressed_forward", "all",
     "index_q index_k weight sink_logit lse query_len key_len compressed_len index index_count",
     "index_heads=4 index_keys=1 compress_step=2 window=3 count=1"},
    {"x_compressed_forward", "plain", "sink_logit lse", "compress_step=2 window=3"},
    {"x_compressed_forward", "paged", "lse page_table", "compress_step=4 window=3"},
    {"x_compressed_forward", "large", "index_q index_k weight sink_logit lse",
     "s=64 t=128 u=32 index_heads=4 index_keys=1 window=16 count=8"},
    {"x_compressed_backward", "all",
     "sink_logit query_len key_len compressed_len index index_count dq dk dv dk_compressed "
     "dv_compressed dsink_logit",
     "compress_step=2 window=3"},
    {"x_compressed_backward", "plain",
     "sink_logit dq dk dv dk_compressed dv_compressed dsink_logit", "compress_step=2 window=3 u=2"},
    {"x_compressed_backward", "large", "index dq dk dv dk_compressed dv_compressed",
     "s=64 t=128 u=32 keep=4 window=16"},
};

}  // namespace
}  // namespace contract
