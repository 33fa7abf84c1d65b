// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"rope_forward", "packed", "position start", "b=1 r=2 x:bf16"},
    {"rope_table_get", "large", "", "positions=4096"},
};

}  // namespace
}  // namespace contract
