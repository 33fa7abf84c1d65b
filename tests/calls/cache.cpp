// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"cache_append", "plain", "k_new k", ""},
    {"cache_append", "all",
     "k_new v_new k v query_len key_len position cos sin norm_weight k_scale v_scale key_len_out",
     "k:e4m3 v:i8"},
    {"cache_append", "found", "k_new v_new k v k_scale_out v_scale_out key_len_out", "k:e4m3 v:i8"},
    {"cache_append", "found_paged",
     "k_new v_new k v page_table cache_row key_len k_scale_out v_scale_out",
     "k:e5m2 v:e5m2 rows=3"},
    {"cache_append", "keys", "k_new k query_len key_len position cos sin norm_weight key_len_out",
     ""},
    {"cache_append", "values", "v_new v", "f=3"},
    {"cache_append", "packed", "k_new v_new k v query_start key_start", "b=1 r=2"},
    {"cache_append", "paged", "k_new v_new k v page_table cache_row key_len k_scale v_scale",
     "k:e4m3 v:i8 rows=3"},
    {"cache_copy", "bytes", "", "source:u8"},
    {"cache_get", "plain", "key_len", ""},
    {"cache_get", "packed", "key_start key_len k_scale", "b=1 r=2 k:i8"},
    {"cache_get", "paged", "page_table cache_row", "rows=3"},
    {"cache_append", "large", "k_new v_new k v", "s=1024 t=1024"},
    {"cache_get", "large", "", "u=2048 t=2048"},
};

}  // namespace
}  // namespace contract
