// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_flex_forward", "plain", "lse index index_count",
     "s=8 t=12 h=4 g=2 n=4 keep=5 block=2 cover=0.5 threshold=0.2"},
    {"x_flex_forward", "all", "lse key_len index index_count",
     "s=8 t=12 h=4 g=2 n=4 keep=5 block=2 cover=0.5 threshold=0.2 min_budget=2 max_budget=6"},
    {"x_flex_forward", "paged", "lse page_table", "block=2 cover=0.5"},
    {"x_flex_forward", "large", "lse", "s=512 t=1024 cover=0.5"},
};

}  // namespace
}  // namespace contract
