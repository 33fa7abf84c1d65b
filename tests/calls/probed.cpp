// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_probed_forward", "plain", "lse index index_count",
     "s=4 t=8 h=4 g=2 x=4 n=2 block_rows=2 block_keys=2 count=2"},
    {"x_probed_forward", "all", "lse cover_head sink_logit query_len key_len index index_count",
     "s=4 t=8 h=4 g=2 x=2 n=2 rule=1 block_rows=2 block_keys=2 group_stride=2 reversed=1 causal=1"},
    {"x_probed_forward", "columns", "lse sample query_position column column_count",
     "s=4 t=8 h=4 g=2 x=4 samples=2 columns=3 kind=1 rule=1 cover=0.5 block_rows=2 last_keys=1"},
    {"x_probed_forward", "lines", "lse index column",
     "s=4 t=8 h=4 g=2 x=4 n=2 keep=3 columns=3 kind=2 probe_rows=2 count=2 slash_count=2 "
     "block_rows=2 causal=1"},
    {"x_probed_forward", "means", "lse index index_count",
     "s=4 t=8 h=4 g=2 x=4 n=2 kind=3 threshold=1 block_rows=2 block_keys=2 force_own=1 "
     "full_last=1 causal=1"},
    {"x_probed_forward", "packed", "lse query_start key_start",
     "b=1 r=2 block_rows=2 block_keys=2 count=2"},
    {"x_probed_forward", "paged", "lse page_table cache_row", "rows=3 block_keys=2 count=2"},
    {"x_probed_forward", "large", "lse", "s=512 t=1024 count=3"},
};

}  // namespace
}  // namespace contract
