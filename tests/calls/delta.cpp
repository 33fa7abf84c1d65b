// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_delta_forward", "plain", "o state_out", ""},
    {"x_delta_forward", "all",
     "beta erase gate_head gate_key gate_rate gate_bias state_in o state_out snapshot len "
     "state_row state_out_row output_from snapshot_row",
     "q:bf16 gate_map=1 gate_bound=5 beta_map=1 l2_norm=1 snapshot_every=2"},
    {"x_delta_forward", "low_rank", "low_a low_b gate_key state_in o state_out", "q:f16"},
    {"x_delta_forward", "own_rows", "beta gate_head state_in o state_out", "l2_norm=1 beta_map=2"},
    {"x_delta_forward", "packed", "beta o state_out start", "b=1 r=2"},
    {"x_delta_forward", "large", "o state_out", "s=512 d=32 e=32"},
    {"x_delta_backward", "plain", "dq dk dv", ""},
    {"x_delta_backward", "all",
     "beta erase gate_head gate_key gate_rate gate_bias state_in dstate_out dq dk dv dbeta derase "
     "dgate_head dgate_key dgate_bias dstate_in len state_row output_from",
     "q:bf16 gate_map=2 gate_bound=5 beta_map=1 l2_norm=1"},
    // A rate for one head: a stride of 0 alone is taken for one forgotten.
    {"x_delta_backward", "rate", "gate_head gate_rate dgate_rate", "g=1 x=1 heads=1 gate_map=1"},
    {"x_delta_backward", "low_rank",
     "low_a low_b gate_key state_in dstate_out dq dk dv dlow_a dlow_b dgate_key dstate_in",
     "q:f16 l2_norm=1"},
    {"x_delta_backward", "packed", "beta gate_head dq dk dv dbeta dgate_head dstate_in start",
     "b=1 r=2"},
    {"x_delta_backward", "large", "dq dk dv", "s=128 d=32 e=32"},
};

}  // namespace
}  // namespace contract
