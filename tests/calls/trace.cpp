// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"trace_forward", "all",
     "v keep_row block_mask key_len selected score o lse lse_dense edge_score edge_max edge_mass "
     "edge_value edge edge_weight edge_count edge_offset",
     "keep=2 n=1"},
    {"trace_forward", "plain", "v o lse lse_dense selected score keep_row block_mask key_len",
     "keep=2 n=1"},
    {"trace_forward", "edges",
     "v selected edge_score edge_max edge_mass edge_value edge edge_weight edge_count edge_offset",
     "keep=2 n=1 q:bf16"},
    {"trace_forward", "rows", "v cache_row selected score edge_count", "keep=2 n=1 rows=4"},
    {"trace_forward", "paged", "v o selected score page_table cache_row key_len block_mask",
     "keep=2 n=1 page=64 rows=3"},
    {"trace_forward", "large", "v o lse selected score", "s=64 t=128 keep=2 n=1"},
};

}  // namespace
}  // namespace contract
