// SPDX-License-Identifier: Apache-2.0
// The shape of the sweep over wide keys that are 8-bit codes, and where codes lie before they are
// converted.
#pragma once
#include "cuda/loop/shared_wide_sm90.cuh"

namespace fovea::cuda {

// K is (v, k), or has v as its first columns.
template <int Dtype>
struct WideCodesShape90 : WideShape90<Dtype, 576, true> {
  static constexpr bool codes = true;
  static constexpr int threads = 512, producer_regs = 56, consumer_regs = 192, converter_regs = 72;
  // Warps that read a slot beside the consumers: loaders, and those that convert.
  static constexpr int readers = 3 + 4, q_arrivals = 1;
  static constexpr int copy_arrivals = 2 * 33, full_arrivals = 4;
};

// Columns of a scale of v are 1 << shift.
struct CodeColumns {
  int32_t shift;
};

// A panel's codes: 16 of them are a chunk.  Rows of even and odd numbers have theirs in other
// halves, so that eight lanes read all banks; so have eight scales.
struct CodePanel {
  __device__ static uint32_t at(int row, int chunk) {
    return row * kPanelRowBytes + (row % 2 * 64 ^ chunk * 16);
  }
  __device__ static uint32_t scale_at(int row) {
    return row * kPanelRowBytes + (row % 2 * 64 ^ 64) + row / 2 % 4 * 16;
  }
};

}  // namespace fovea::cuda
