// SPDX-License-Identifier: Apache-2.0
// The kernels plan() chooses from, best first: forward_host.cpp, forward.cu and their backward
// twins.
#pragma once
#include "core/attend.h"
#include "core/plan.h"

namespace fovea {

extern const Kernel<Attend> attention_forward_host;
extern const Kernel<AttendBackward> attention_backward_host;

// CUDA builds only.  sm90: Hopper's tensor cores (wgmma); sm80: mma.sync; sm90_wide and
// sm80_wide: the same for heads wider than 256; simt: anything valid.
extern const Kernel<Attend> attention_forward_sm90, attention_forward_wide_sm90,
    attention_forward_sm80, attention_forward_simt;
extern const Kernel<AttendBackward> attention_backward_sm90, attention_backward_sm80,
    attention_backward_wide_sm80, attention_backward_simt;

}  // namespace fovea
