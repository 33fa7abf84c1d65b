// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_gsa_forward", "plain", "o state_k_out state_v_out", ""},
    {"x_gsa_forward", "all",
     "state_k_in state_v_in o state_k_out state_v_out len state_row state_out_row output_from",
     "q:bf16 gate_map=3 gate_tau=8 gate_bound=5 map_q=3 map_k=3"},
    {"x_gsa_forward", "own_rows", "state_k_in state_v_in o state_k_out state_v_out", "q:f16"},
    {"x_gsa_forward", "packed", "o state_k_out state_v_out start", "b=1 r=2"},
    {"x_gsa_forward", "large", "o state_k_out state_v_out", "s=512 d=32 e=32 m=32"},
    {"x_gsa_backward", "plain", "dq dk dv dgate", ""},
    {"x_gsa_backward", "all",
     "state_k_in state_v_in dstate_k_out dstate_v_out dq dk dv dgate dstate_k_in dstate_v_in len "
     "state_row output_from",
     "q:bf16 gate_map=2 gate_bound=5"},
    {"x_gsa_backward", "packed", "dq dk dv dgate dstate_k_in start", "b=1 r=2"},
    {"x_gsa_backward", "large", "dq dk dv dgate", "s=128 d=32 e=32 m=32"},
};

}  // namespace
}  // namespace contract
