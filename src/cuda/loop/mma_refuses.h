// SPDX-License-Identifier: Apache-2.0
// The checks of every launcher of forward kernels on mma.sync.
#pragma once
#include "core/attend.h"
#include "core/text.h"

namespace fovea::cuda {

// "" where 16-byte copies take the operands, 16-bit or codes of one kind, and an int every row and
// key of a sequence; or why not.
Text mma_refuses(const Attend& a);

}  // namespace fovea::cuda
