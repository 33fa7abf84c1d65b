// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_conv1d_forward", "plain", "y state_out", ""},
    {"x_conv1d_forward", "all",
     "bias state_in y state_out snapshot len state_row state_out_row output_from snapshot_row",
     "x:bf16 snapshot_every=2"},
    {"x_conv1d_forward", "own_rows", "state_in y state_out", "activation=1"},
    {"x_conv1d_forward", "packed", "y state_out start", "b=1 r=2"},
    {"x_conv1d_forward", "large", "y state_out", "s=2048 f=16"},
    {"x_conv1d_backward", "own_rows", "state_in dstate_out dx dweight dbias dstate_in", "x:f16"},
    {"x_conv1d_backward", "large", "dx dweight", "s=512 f=128 activation=1"},
};

}  // namespace
}  // namespace contract
