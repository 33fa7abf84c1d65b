// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_gla_forward", "plain", "o state_out", "t=3"},
    {"x_gla_forward", "all",
     "gate_head gate_key gate_value gate_rate gate_bias select bonus skip state_in o state_out "
     "snapshot len state_row state_out_row output_from snapshot_row",
     "q:bf16 t=3 gate_map=1 gate_bound=5 bonus_sigmoid=1 read_before=1 snapshot_every=2"},
    {"x_gla_forward", "normalised",
     "gate_head select skip state_in z_in o state_out z_out snapshot z_snapshot state_row "
     "snapshot_row",
     "t=3 normalise=1 map_q=2 map_k=1 snapshot_every=1"},
    {"x_gla_forward", "own_rows", "gate_key state_in o state_out", "q:f16 t=3"},
    {"x_gla_forward", "packed", "gate_head o state_out start", "b=1 r=2 t=3"},
    {"x_gla_forward", "full", "select state_in z_in o state_out z_out key_len len",
     "full=1 normalise=1 map_q=1 map_k=1"},
    {"x_gla_forward", "full_packed", "o state_out start key_start key_len", "b=1 r=2 full=1"},
    {"x_gla_forward", "large", "o state_out", "s=512 t=512 d=32 e=32"},
    {"x_gla_backward", "plain", "dq dk dv", "t=3"},
    {"x_gla_backward", "all",
     "gate_head gate_key gate_value gate_bias select bonus skip state_in dstate_out dq dk dv "
     "dgate_head dgate_key dgate_value dgate_bias dselect dbonus dskip dstate_in len state_row "
     "output_from",
     "q:bf16 t=3 gate_map=2 gate_bound=5"},
    {"x_gla_backward", "rate", "gate_value gate_rate dgate_rate",
     "t=3 g=1 x=1 heads=1 gate_map=1 read_before=1"},
    {"x_gla_backward", "normalised",
     "gate_head select skip state_in z_in dstate_out dz_out dq dk dv dgate_head dselect dskip "
     "dstate_in dz_in",
     "t=3 normalise=1 map_q=2 map_k=1"},
    {"x_gla_backward", "last", "dz_in", "q:f16 t=3 normalise=1 map_q=2 map_k=2"},
    {"x_gla_backward", "packed", "gate_head dq dk dv dgate_head dstate_in start", "b=1 r=2 t=3"},
    {"x_gla_backward", "full", "select state_in dstate_out dq dk dv dselect dstate_in key_len",
     "full=1"},
    {"x_gla_backward", "full_packed", "dq dk dv start key_start key_len", "b=1 r=2 full=1"},
    {"x_gla_backward", "large", "dq dk dv", "s=128 t=128 d=32 e=32"},
};

}  // namespace
}  // namespace contract
