// SPDX-License-Identifier: Apache-2.0
// `operator new` of the program and of the library it links, which can be made to fail.
#pragma once
#include <cstdint>

namespace random_calls {

// Allocations of this thread until one fails; -1: none does.
extern thread_local int64_t news_left;

}  // namespace random_calls
