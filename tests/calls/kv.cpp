// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

// Extents that go together: a group of 8 codes is a word of four bits.
const std::string kSizes = " bits=4 group=8 e=8 page=16 pool=9";

const Calls kCalls = {
    {"x_kv_append", "plain", "", "" + kSizes},
    {"x_kv_append", "all", "query_len", "k_new:bf16 flush=1" + kSizes},
    {"x_kv_append", "packed", "query_start", "b=1 r=2" + kSizes},
    {"x_kv_append", "paged", "cache_row", "rows=3" + kSizes},
    {"x_kv_append", "large", "", "s=2048 pages=200 pool=400 bits=4 group=8 e=8 page=16"},
    {"x_kv_decode", "plain", "lse", "" + kSizes},
    {"x_kv_decode", "all", "lse query_len sink_logit", "q:bf16" + kSizes},
    {"x_kv_decode", "packed", "lse query_start", "b=1 r=2" + kSizes},
    {"x_kv_decode", "paged", "lse cache_row", "rows=3" + kSizes},
    {"x_kv_decode", "large", "lse", "s=64 pages=20 pool=40 bits=4 group=8 e=8 page=16"},
};

}  // namespace
}  // namespace contract
