// SPDX-License-Identifier: Apache-2.0
// The choices that the sweeps of both directions of attention go over, and a row of them as a case.
#pragma once
#include "cases/attention_case.h"
#include "harness/pairwise.h"

namespace cases {

struct Widths {
  int64_t d, e;
};

// The sweep's axes, and the case that a row of them is.
std::vector<int> attention_axes(bool backward);
AttentionCase attention_case(const harness::Row& x, bool backward);
bool attention_valid(const harness::Row& x, bool backward);

harness::Case forward_case(AttentionCase c, std::string cuda_kernel = "");
harness::Case backward_case(AttentionCase c, std::string cuda_kernel = "");

std::vector<harness::Case> attention_forward_sweep();
std::vector<harness::Case> attention_codes_sweep();  // codes, and positions by numbers
std::vector<harness::Case> attention_backward_sweep();

}  // namespace cases
