// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_kl_indexer_forward", "packed", "kl query_start key_start", "b=1 r=2 g=1 q_student:f16"},
    {"x_kl_indexer_backward", "packed", "query_start key_start dk_student",
     "b=1 r=2 g=1 q_teacher:bf16"},
};

}  // namespace
}  // namespace contract
