// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_norm_gate_forward", "dtypes", "gate weight bias", "x:bf16"},
    {"x_norm_gate_backward", "dtypes", "gate weight dx dgate dweight dbias", "x:f16"},
};

}  // namespace
}  // namespace contract
