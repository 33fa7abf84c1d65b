// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_graph_append", "plain", "q", "kept=3 added=1 g=1"},
    {"x_graph_append", "all", "q query_len key_len old_len", "k:bf16 q:f16 kept=3 added=1 g=1"},
    {"x_graph_append", "joining", "old_len", "kept=1 added=3 width=2"},
    {"x_graph_append", "large", "q", "s=64 t=256 kept=3 added=1 nearest=8"},
    {"x_select_graph", "plain", "", "count=2 g=1"},
    {"x_select_graph", "all", "query_len key_len neighbour neighbour_count entry scanned",
     "q:bf16 k:f16 count=2 ef=3"},
    {"x_select_graph", "large", "neighbour neighbour_count entry", "s=64 t=256 count=8 ef=16"},
    {"x_graph_forward", "plain", "lse", "count=2"},
    {"x_graph_forward", "all",
     "lse query_len key_len neighbour neighbour_count entry index index_count scanned",
     "q:bf16 count=2 ef=3"},
    {"x_graph_forward", "large", "neighbour neighbour_count entry", "s=64 t=256 count=8 ef=16"},
};

}  // namespace
}  // namespace contract
