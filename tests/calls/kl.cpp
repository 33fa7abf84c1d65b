// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"kl_forward", "plain", "kl lse_teacher lse_student", "g=1 x=1"},
    {"kl_forward", "total", "row_weight total query_len key_len head_window",
     "g=1 x=1 q_teacher:bf16"},
    {"kl_forward", "packed", "kl query_start key_start", "b=1 r=2 g=1 x=1 q_student:f16"},
    {"kl_backward", "plain", "dkl dq_student dk_student", "g=1"},
    {"kl_backward", "total",
     "row_weight dkl dtotal query_len key_len head_window dq_student dk_student dq_teacher "
     "dk_teacher",
     "q_teacher:f16"},
    {"kl_backward", "packed", "dtotal query_start key_start dq_teacher dk_teacher", "b=1 r=2 x=1"},
    {"kl_backward", "large", "dkl dq_student dk_student dq_teacher dk_teacher",
     "s=64 t=128 g=1 x=1"},
};

}  // namespace
}  // namespace contract
