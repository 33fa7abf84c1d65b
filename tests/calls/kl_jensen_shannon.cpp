// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_kl_jensen_shannon_forward", "lengths", "js query_len key_len head_window",
     "g=1 x=1 q_student:f16"},
    {"x_kl_jensen_shannon_forward", "packed", "js query_start key_start", "b=1 r=2 g=1 x=1"},
    {"x_kl_jensen_shannon_backward", "lengths", "query_len key_len head_window dq_student",
     "g=1 x=1 q_teacher:bf16"},
    {"x_kl_jensen_shannon_backward", "packed", "query_start key_start dk_teacher", "b=1 r=2 x=1"},
};

}  // namespace
}  // namespace contract
