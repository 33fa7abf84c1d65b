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
    {"x_select_block", "given", "score cover_head index", "x=4 rule=1"},
    {"x_select_block", "packed",
     "row column count_head query_start key_start index index_count score_out", "b=1 r=2 x=4 g=1"},
    {"x_select_block", "large", "row column index index_count", "x=4 n=64 u=64 keep=8"},
};

}  // namespace
}  // namespace contract
