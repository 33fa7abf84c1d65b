// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

// Blocks and a window that are small enough for the extents of small calls.
const Calls kCalls = {
    {"x_infllm_forward", "plain", "lse local_score index index_count",
     "block_keys=2 init_keys=2 window=2 count=1"},
    {"x_infllm_forward", "all", "lse local_score query_len index index_count",
     "block_keys=2 init_keys=2 window=2 count=1"},
    {"x_infllm_forward", "paged", "lse local_score page_table",
     "block_keys=2 init_keys=2 window=2 count=1"},
    {"x_infllm_forward", "large", "lse", "s=512 t=1024 u=8 window=64 init_keys=128"},
};

}  // namespace
}  // namespace contract
