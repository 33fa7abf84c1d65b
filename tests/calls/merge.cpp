// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"merge_forward", "rows", "row lse", "u=4"},
    {"merge_backward", "plain", "dlse do_part dlse_part", ""},
    {"merge_backward", "rows", "row do_part", "u=4"},
    {"merge_backward", "large", "dlse do_part dlse_part", "s=64 u=64 n=4"},
};

}  // namespace
}  // namespace contract
