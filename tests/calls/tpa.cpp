// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const std::string kGradients = "da_k db_k da_v db_v ";

const Calls kCalls = {
    {"x_tpa_forward", "plain", "a_q b_q lse", ""},
    {"x_tpa_forward", "dense", "q lse", "rank_k=1"},
    {"x_tpa_forward", "all", "a_q b_q lse query_len key_len context_len", "a_k:bf16"},
    {"x_tpa_forward", "packed", "a_q b_q lse query_start key_start", "b=1 r=2"},
    {"x_tpa_forward", "paged", "a_q b_q lse page_table cache_row", "rows=3"},
    {"x_tpa_forward", "large", "q lse", "s=64 t=128"},
    {"x_tpa_backward", "plain", kGradients + "a_q b_q da_q db_q", ""},
    {"x_tpa_backward", "dense", kGradients + "q dq", "rank_k=1"},
    {"x_tpa_backward", "all", kGradients + "a_q b_q da_q db_q dlse query_len key_len", "a_k:bf16"},
    {"x_tpa_backward", "packed", kGradients + "a_q b_q da_q db_q query_start key_start", "b=1 r=2"},
    {"x_tpa_backward", "large", kGradients + "q dq", "s=64 t=128"},
};

}  // namespace
}  // namespace contract
