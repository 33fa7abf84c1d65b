// SPDX-License-Identifier: Apache-2.0
// What the sweep over wide keys asks of calls with 8-bit codes or q_value.
#pragma once
#include "core/attend.h"
#include "core/text.h"

namespace fovea::cuda {

// The call as one without codes and q_value.
Attend uncoded(Attend a);

// Columns of a scale of v are 1 << this; -1: another number.
int code_shift(const Attend& a);

// "" where K can be (v, k), for q_value; or why not.
Text joined_refuses(const Attend& a);

// "" where a tile's codes are converted as v, or as k whose first columns v is; or why not.
Text codes_refuse(const Attend& a);

}  // namespace fovea::cuda
