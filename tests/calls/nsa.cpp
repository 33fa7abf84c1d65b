// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

// Blocks that are small enough for the extents of small calls: 5 keys are 2 compressed ones.
const Calls kCalls = {
    {"x_nsa_forward", "all",
     "k_compressed v_compressed k_window v_window gate_compressed gate_selected gate_window "
     "query_len key_len compressed_len index index_count o_compressed o_selected o_window "
     "lse_compressed lse_selected lse_window",
     "compress_keys=2 compress_step=2 window=3 count=1"},
    {"x_nsa_forward", "given", "k_compressed v_compressed index index_count lse_selected",
     "compress_keys=2 compress_step=2 count=1"},
    {"x_nsa_forward", "paged", "o_window index index_count page_table",
     "compress_keys=2 compress_step=2"},
    {"x_nsa_forward", "large", "index index_count",
     "s=64 t=128 keep=3 compress_step=4 compress_keys=8"},
    {"x_nsa_backward", "all",
     "k_compressed v_compressed k_window v_window gate_compressed gate_selected gate_window "
     "query_len key_len compressed_len index_count dq dk dv dk_compressed dv_compressed dk_window "
     "dv_window dgate_compressed dgate_selected dgate_window",
     "compress_keys=2 compress_step=2 window=3 u=2"},
    {"x_nsa_backward", "given",
     "k_compressed v_compressed gate_window dq dk dv dk_compressed dgate_window",
     "compress_keys=2 compress_step=2 u=2"},
    {"x_nsa_backward", "large", "dq dk dv", "s=64 t=128 keep=3 compress_step=4 compress_keys=8"},
};

}  // namespace
}  // namespace contract
