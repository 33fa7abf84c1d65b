// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

// Extents that go together: a group of 8 codes is a word of four bits.
const std::string kSizes = " bits=4 group=8 e=8 page=16 pool=9";
// The tensors of each format.
const std::string kGroups = "k_scale k_zero v_scale v_zero k_tail v_tail ";
const std::string kLevels =
    "k_level v_level k_offset k_range v_bound k_outlier v_outlier k_first v_first ";
const std::string kTiles = kGroups + "k_factor v_factor k_first v_first ";
const std::string kNorms = "k_level v_level k_norm v_norm k_first v_first ";

const Calls kCalls = {
    {"x_kv_append", "plain", kGroups, "" + kSizes},
    {"x_kv_append", "all", kGroups + "query_len", "k_new:bf16 flush=1" + kSizes},
    {"x_kv_append", "packed", kGroups + "query_start", "b=1 r=2" + kSizes},
    {"x_kv_append", "paged", kGroups + "cache_row", "rows=3" + kSizes},
    {"x_kv_append", "large", kGroups, "s=2048 pages=200 pool=400 bits=4 group=8 e=8 page=16"},
    {"x_kv_append", "levels", kLevels, "format=1 levels=16" + kSizes},
    {"x_kv_append", "norms", kNorms, "format=2 levels=16" + kSizes},
    {"x_kv_append", "tiles", kTiles, "format=3 v_groups=1 ring=8 firsts=8" + kSizes},
    {"x_kv_decode", "plain", kGroups + "lse", "" + kSizes},
    {"x_kv_decode", "all", kGroups + "lse query_len sink_logit cos sin", "q:bf16" + kSizes},
    {"x_kv_decode", "packed", kGroups + "lse query_start", "b=1 r=2" + kSizes},
    {"x_kv_decode", "paged", kGroups + "lse cache_row", "rows=3" + kSizes},
    {"x_kv_decode", "large", kGroups + "lse", "s=64 pages=20 pool=40 bits=4 group=8 e=8 page=16"},
    {"x_kv_decode", "levels", kLevels + "lse cos sin", "format=1 levels=16" + kSizes},
    {"x_kv_decode", "norms", kNorms + "lse", "format=2 levels=16" + kSizes},
    {"x_kv_decode", "tiles", kTiles + "lse", "format=3 v_groups=1 ring=8 firsts=8" + kSizes},
};

}  // namespace
}  // namespace contract
