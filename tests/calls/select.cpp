// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_select_block", "plain",
     "row column count_head index index_count kept_score kept_mass score_out", "x=4 g=1"},
    {"x_select_block", "all",
     "row column column_low column_weight block_mask forced row_forced column_forced query_len "
     "key_len count_head index index_count kept_score kept_mass score_out",
     "x=4 row:bf16 column:f16 column_low:f16 measure=1 normalise=2"},
    {"x_select_block", "normalised", "row column row_lse index", "x=4 g=1 normalise=1"},
    {"x_select_block", "given", "score cover_head index", "x=4 rule=1"},
    {"x_select_block", "packed",
     "row column count_head query_start key_start index index_count score_out", "b=1 r=2 x=4 g=1"},
    {"x_select_block", "large", "row column index index_count", "x=4 n=64 u=64 keep=8"},
    {"x_select_token", "plain", "q k weight index index_count kept_score", "x=4 g=1 measure=1"},
    {"x_select_token", "all",
     "q k k_scale query_len key_len context_len block_mask index index_count kept_score kept_mass",
     "x=4 g=4 groups=1 q:bf16 k:e4m3"},
    {"x_select_token", "codes", "code_q code index index_count", "x=4 g=1 measure=2"},
    {"x_select_token", "packed", "q k query_start key_start index index_count kept_mass",
     "b=1 r=2 x=4 g=1"},
    {"x_select_token", "paged", "q k page_table cache_row index index_count", "rows=3 x=4 g=1"},
    {"x_select_token", "large", "q k index index_count", "x=4 s=64 t=128 keep=8"},
    {"x_select_line", "plain",
     "vertical slash vertical_count slash_count query_len key_len index index_count column "
     "column_count bits_out",
     "key_max=192 aligned=1"},
    {"x_select_line", "all", "bits query_len key_len index index_count", "key_max=192"},
    {"x_select_line", "packed", "bits query_start key_start index index_count",
     "b=1 r=2 key_max=192"},
    {"x_select_line", "large", "bits index index_count",
     "n=64 x=8 mask_bytes=64 key_max=32768 keep=8"},
    {"x_select_heads", "plain", "label count", "g=1 clusters=2"},
    {"x_select_heads", "all", "query_len clusters_of label count", "g=1 q:bf16"},
    {"x_select_heads", "large", "", "s=16 h=64 b=8 clusters=4"},
};

}  // namespace
}  // namespace contract
