// SPDX-License-Identifier: Apache-2.0
// A multi-token attention call, resolved: conv_attention with the heads of a group mixed, and the
// kernels plan() chooses from.
#pragma once
#include "ops/conv_attention/kernels.h"

namespace fovea {

constexpr int64_t kGroupHeadsMost = 16;

struct MixedAttend {
  ConvAttend conv;
  View<2> before, after;  // (h, group) f32; not given: the identity
  int64_t group;
};

struct MixedAttendBackward {
  ConvAttendBackward conv;  // o is not given
  View<2> before, after, dbefore, dafter;
  int64_t group;
};

// Of output head `head` and the n-th head of its group.
FOVEA_HD float mix_of(const View<2>& mix, int64_t head, int64_t n) {
  return mix.as()[head * mix.stride[0] + n * mix.stride[1]];
}

extern const Kernel<MixedAttend> multi_token_forward_host;
extern const Kernel<MixedAttendBackward> multi_token_backward_host;

// CUDA builds only.
extern const Kernel<MixedAttend> multi_token_forward_simt;
extern const Kernel<MixedAttendBackward> multi_token_backward_simt;

}  // namespace fovea
