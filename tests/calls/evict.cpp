// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_evict_forward", "plain", "", "g=1 t=8 keep=3"},
    {"x_evict_forward", "all", "query_len key_len index index_count",
     "g=1 t=8 keep=5 window=2 width=3 q:bf16"},
    {"x_evict_forward", "large", "", "g=1 s=32 t=1024 keep=256"},
};

}  // namespace
}  // namespace contract
