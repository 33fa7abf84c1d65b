// SPDX-License-Identifier: Apache-2.0
// The choices that the sweeps of the convolutional families share.
#pragma once
#include "cases/conv_case.h"
#include "harness/pairwise.h"

namespace cases {

// The sweep's axes, and the case that a row of them is.
std::vector<int> conv_axes(bool backward);
ConvCase conv_case_of(const harness::Row& x, bool backward);

// An edge by its rows, keys and kernel.
ConvCase conv_row(int64_t s, int64_t t, int64_t kernel_rows, int64_t kernel_columns);

}  // namespace cases
