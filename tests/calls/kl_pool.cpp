// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_kl_pool_forward", "packed", "kl query_start key_start",
     "b=1 r=2 g=1 x=1 q_student:f16 block_keys=2 u=5"},
    {"x_kl_pool_backward", "packed", "query_start key_start dk_student",
     "b=1 r=2 g=1 x=1 q_teacher:bf16 u=5"},
};

}  // namespace
}  // namespace contract
