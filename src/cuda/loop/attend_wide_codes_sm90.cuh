// SPDX-License-Identifier: Apache-2.0
// The sweep over wide keys (attend_wide_sm90.cuh) that are 8-bit codes.
//   Warpgroup 0: the scheduler and loaders (feed_wide_codes_sm90.cuh); 1 and 2: the consumers;
//   3 converts (convert_wide_sm90.cuh).
// DeepSeek-V3.2 (2512.02556); FlashMLA.
#pragma once
#include "cuda/loop/attend_wide_sm90.cuh"
#include "cuda/loop/convert_wide_sm90.cuh"
#include "cuda/loop/feed_wide_codes_sm90.cuh"

namespace fovea::cuda {

template <class Shape, KeySource Source, class Mask, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_wide_codes_sm90(const __grid_constant__ typename Source::Call call,
                           const __grid_constant__ AttendGrid grid,
                           const __grid_constant__ CodeColumns columns,
                           const __grid_constant__ TileOrder order,
                           const __grid_constant__ DynamicSchedule schedule,
                           const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const WideShared90<Shape, Source, Mask> shared(memory);
  const Attend& a = attend_in(call);
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    WideCodesProducer90<Shape, Source, Mask>{{call, grid, columns, shared}}.run(warp, order,
                                                                                schedule);
  } else if (warp >= 12) {
    sm90::setmaxnreg_dec<Shape::converter_regs>();
    WideConverter90<Shape, Source, Mask>{a, shared, warp % 4, static_cast<int>(threadIdx.x % 32)}
        .run();
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    using Consumer = WideConsumer90<Shape, Source, PlainScore, Mask, Epilogue>;
    typename Consumer::Fragments fragments;
    Consumer(a, epilogue, warp / 4 - 1, shared, fragments).run();
  }
}

}  // namespace fovea::cuda
