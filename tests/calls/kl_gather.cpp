// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_kl_gather_forward", "packed", "kl query_start key_start", "b=1 r=2 g=1 x=1 q_student:f16"},
    {"x_kl_gather_backward", "packed", "query_start key_start dk_student",
     "b=1 r=2 g=1 x=1 q_teacher:bf16"},
    {"x_kl_gather_forward", "large", "kl lse_teacher lse_student", "s=64 t=128 n=64 g=1 x=1"},
    {"x_kl_gather_backward", "large", "dq_student dk_student", "s=64 t=128 n=64 g=1 x=1"},
};

}  // namespace
}  // namespace contract
