// SPDX-License-Identifier: Apache-2.0
// Pipelines of a block's shared memory on Hopper, and where its members lie.
//
//   | barrier of a stage | who arrives                  | who waits | what it guards           |
//   | full               | the producer, then TMA       | consumers | the stage, to be read    |
//   | empty              | lane 0 of each consumer warp | producer  | the stage, to be written |
//
//   A PipelineState is the state of one side: its stage and phase.  The producer starts with all
//   stages empty, so it waits for the other phase.
#pragma once
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda::sm90 {

// For the warp: its lane 0 arrives.
__device__ inline void barrier_arrive_warp(uint32_t barrier) {
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// The barriers of a ring of Stages stages, full and empty of each side by side.
template <int Stages>
struct Pipeline {
  using State = PipelineState<Stages>;
  static constexpr int bytes = Stages * 16;
  uint32_t address;

  __device__ uint32_t full(const State& at) const { return address + at.stage * 16; }
  __device__ uint32_t empty(const State& at) const { return full(at) + 8; }

  // By one thread, before barrier_init_done().
  __device__ void init(int producers, int consumers) const {
    for (State at; at.phase == 0; at.next())
      barrier_init(full(at), producers), barrier_init(empty(at), consumers);
  }

  // The producer: until the stage is empty; then it is full once `bytes` have come, or at once.
  __device__ void acquire(const State& at) const { barrier_wait(empty(at), at.phase ^ 1); }
  __device__ void expect(const State& at, uint32_t bytes) const { barrier_expect(full(at), bytes); }
  __device__ void arrive(const State& at) const { barrier_arrive(full(at)); }

  // A consumer: until the stage is full; then each of its warps gives it back.
  __device__ void wait(const State& at) const { barrier_wait(full(at), at.phase); }
  __device__ void release(const State& at) const { barrier_arrive_warp(empty(at)); }
};

// Offsets of the members of a block's shared memory.  A kernel's layout derives from it, and each
// of its members is initialised with what add() or another function here returns, in order.
struct SharedLayout {
  int bytes = 0;  // of all members so far

  constexpr int add(int size, int align) {
    const int at = (bytes + align - 1) / align * align;
    bytes = at + size;
    return at;
  }
  template <class T>
  constexpr int of(int count = 1) {
    return add(count * static_cast<int>(sizeof(T)), static_cast<int>(alignof(T)));
  }
  // Their bases are multiples of 1024 bytes: the swizzle repeats as often.
  constexpr int tiles(int size, int count = 1) { return add(count * size, 1024); }
  constexpr int barriers(int count = 1) { return add(count * 8, 8); }
  constexpr int pipeline(int stages) { return add(stages * Pipeline<1>::bytes, 8); }
};

}  // namespace fovea::cuda::sm90
