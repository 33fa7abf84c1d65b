// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_group_norm_forward", "dtypes", "gain", "x:bf16"},
    {"x_group_norm_backward", "dtypes", "gain dx dgain", "x:f16"},
};

}  // namespace
}  // namespace contract
