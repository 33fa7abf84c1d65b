// SPDX-License-Identifier: Apache-2.0
// What a forward sweep of Hopper does before the kernel before it has ended (PDL): its first tile
// is planned, and where the Shape says so (copies_early) its producers wait only to copy.
//
//   | the first tile depends on | it is planned          | it is used                           |
//   | parameters alone          | at once                | at once                              |
//   | device data               | at once, speculatively | once it is confirmed                 |
//   | the same, copies_early    | at once, speculatively | by producers at once, consumers then |
//   | the length of a list of   | at once, speculatively | once it is confirmed                 |
//   | single keys               |                        |                                      |
//   | other lists, scales       | once that kernel ended | at once                              |
//
// Confirmed: the kernel before has ended, and the device data is still the same.  A tile of which
// producers know, but which the data contradicts, is given up: it is confirmed without rows and of
// one key tile at most.  The work item is then planned again, in the next slot.
// This saves 0.6 to 1.5 us of a decode step.
#pragma once
#include "cuda/loop/shared_sm90.cuh"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {

// Whether a tile's first keys and Q are copied by a plan that may yet be given up.  Consumers then
// wait for tile_confirmed, and leave out a tile without rows.
template <class Shape>
constexpr bool copies_early() {
  if constexpr (requires { Shape::skip_empty_groups; })
    return Shape::skip_empty_groups && Shape::prefetch > 0;
  else
    return false;
}

// What became of a speculative plan.  Again: nobody knows of it.  Given up: producers do.
enum class Guess { kept, again, given_up };

// The scheduler's side.
template <class Shared, bool Copies>
class EarlyPlan {
 public:
  // `late`: nothing is planned before the kernel before has ended.
  __device__ EarlyPlan(const Shared& shared, bool late, bool depends_on_device)
      : shared_(shared), confirmed_(late || !depends_on_device) {
    if (late) pdl_wait();
  }

  // The slot's tile is planned: hands it on.  unchanged(): what the lane read is still the same.
  template <class Unchanged>
  __device__ __forceinline__ Guess publish(typename Shared::TileState slot, Unchanged unchanged) {
    auto& work = shared_.work(slot);
    const bool leads = threadIdx.x % 32 == 0, empty = work.tile.size <= 0;
    const bool early = Copies && !empty;
    if (early && leads) shared_.tile_pipe().arrive(slot);
    bool right = true;
    if (!confirmed_) {
      pdl_wait();
      right = __all_sync(~0u, unchanged());
      confirmed_ = true;
      if (!right && !early) return Guess::again;
      if (!right && leads) work.tile.size = -1, work.count = min(work.count, 1);
      __syncwarp();
    }
    if (!empty && leads)
      sm90::barrier_arrive(Copies ? shared_.tile_confirmed(slot) : shared_.tile_pipe().full(slot));
    return right ? Guess::kept : Guess::given_up;
  }

 private:
  const Shared& shared_;
  bool confirmed_;
};

// A producer's side.  Warms the instruction cache while the first tile is planned: the copy loop
// runs once with every lane predicated off, as lanes past the last.  A code's first run takes two
// to four times as long.
template <bool Copies>
class Rehearsal {
 public:
  __device__ explicit Rehearsal(int& lane) : lane_(lane) {
    if (Copies) lane += 32;
  }
  __device__ bool live() const { return live_; }
  // True if this was the rehearsal.
  __device__ bool end() {
    if (live_) return false;
    live_ = true, lane_ -= 32;
    return true;
  }

 private:
  int& lane_;
  bool live_ = !Copies;
};

}  // namespace fovea::cuda
