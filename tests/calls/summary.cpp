// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_pool_forward", "plain", "similar dissimilar similar_least", "h=2 f=8 block=2"},
    {"x_pool_forward", "all", "key_begin key_len old_len similar", "h=2 f=32 want=15 x:bf16"},
    {"x_pool_forward", "gated", "gate bias key_len", "h=2 f=4 want=64 overlap=1 block=4 x:f16"},
    {"x_pool_forward", "ranked", "rank_score", "h=2 f=8 want=16 ranked=2"},
    {"x_pool_forward", "running", "previous old_len", "h=2 f=8 want=32"},
    {"x_pool_forward", "packed", "key_start rank_score", "b=1 r=2 h=2 f=8 want=16 ranked=2"},
    {"x_pool_forward", "paged", "page_table cache_row similar", "h=2 f=8 rows=3"},
    {"x_pool_forward", "large", "similar", "h=2 f=8 t=4096 u=64"},
    {"x_pool_backward", "plain", "dx", "h=2 f=16 want=3 block=2"},
    {"x_pool_backward", "all", "key_len gate bias dx dgate dbias",
     "h=2 f=8 want=64 block=4 x:bf16"},
    {"x_pool_backward", "variable", "key_begin dx", "h=2 f=8"},
    {"x_pool_backward", "packed", "key_start dx", "b=1 r=2 h=2 f=8"},
    {"x_pool_backward", "large", "dx", "h=2 f=8 t=4096 u=64"},
    {"x_probe_forward", "plain", "lse column_sum diagonal_sum block_sum block_max", "g=1"},
    {"x_probe_forward", "all",
     "query_position query_len key_len lse_in column_sum diagonal_sum block_sum block_max",
     "q:bf16 reduce=1 g=1"},
    {"x_probe_forward", "context", "context_len lse", "g=1"},
    {"x_probe_forward", "groups", "block_sum block_max", "group_stride=2 g=1"},
    {"x_probe_forward", "paged", "lse block_sum page_table cache_row", "g=1 rows=3"},
    {"x_probe_forward", "large", "lse column_sum", "g=1 s=64 t=128"},
    {"x_combine_forward", "all",
     "x2 x3 x4 coarse gate gate2 gate3 gate4 gate_coarse row_begin query_len", "x:bf16"},
    {"x_combine_backward", "plain", "dx", ""},
    {"x_combine_backward", "all",
     "x2 x3 x4 coarse gate gate2 gate3 gate4 gate_coarse query_len dx dx2 dx3 dx4 dcoarse dgate "
     "dgate2 dgate3 dgate4 dgate_coarse",
     "x:f16"},
    {"x_combine_backward", "blocks", "coarse row_begin dcoarse", ""},
    {"x_cache_step", "plain", "k_new v_new", "recent=4"},
    {"x_cache_step", "all", "score k_new v_new mass query_len old_len",
     "k:bf16 rule=1 heavy=1 recent=1"},
    {"x_cache_step", "capacity", "capacity k_new v_new query_len", "sink_keys=1"},
    {"x_cache_step", "large", "k_new v_new", "recent=1000 t=1024 s=1024"},
};

}  // namespace
}  // namespace contract
