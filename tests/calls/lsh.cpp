// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_lsh_append", "plain", "", "t=8"},
    {"x_lsh_append", "all", "query_len old_len", "t=8"},
    {"x_lsh_append", "large", "", "s=4096 t=4096"},
    {"x_select_lsh", "plain", "index index_count", ""},
    {"x_select_lsh", "all", "q k query_len key_len index index_count index_bias", "q:bf16 k:f16"},
    {"x_select_lsh", "count", "index_count", "min_match=1 bits=2"},
    {"x_select_lsh", "large", "q k index index_bias", "s=64 t=128 tables=64"},
    {"x_lsh_forward", "plain", "lse", "max_keys=3"},
    {"x_lsh_forward", "all", "lse query_len key_len index index_count index_bias", "q:bf16"},
    {"x_lsh_forward", "large", "lse", "s=64 t=128 tables=64"},
};

}  // namespace
}  // namespace contract
