// SPDX-License-Identifier: Apache-2.0
// The sweep over wide keys (attend_wide_sm90.cuh) over lists of single keys.
//   Warpgroups 0 and 3: the scheduler, six loaders and the relay (feed_wide_list_sm90.cuh); 1 and
//   2: the consumers.
// DeepSeek-V3.2 (2512.02556); FlashMLA.
#pragma once
#include "cuda/loop/attend_wide_sm90.cuh"
#include "cuda/loop/feed_wide_list_sm90.cuh"

namespace fovea::cuda {

template <class Shape, TileScore Score, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_wide_list_sm90(const __grid_constant__ KeyListAttend call,
                          const __grid_constant__ AttendGrid grid,
                          const __grid_constant__ TileOrder order,
                          const __grid_constant__ DynamicSchedule schedule,
                          const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const WideShared90<Shape, WideLists, SeenMask> shared(memory);
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (warp < 4 || warp >= 12) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    const NoMaps maps{};
    // Warp 1 is the scheduler, as elsewhere.
    const int loader = warp == 1 ? -1 : warp == 0 ? 0 : warp < 4 ? warp - 1 : warp - 9;
    static_assert(Shape::loaders == 6);  // warp 15 is the relay
    WideListProducer90<Shape, SeenMask>{{call, grid, maps, shared}}.run(loader, order, schedule);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    using Consumer = WideConsumer90<Shape, WideLists, Score, SeenMask, Epilogue>;
    typename Consumer::Fragments fragments;
    Consumer(call.attend, epilogue, warp / 4 - 1, shared, fragments).run();
  }
}

}  // namespace fovea::cuda
