// SPDX-License-Identifier: Apache-2.0
// The backward of a recurrence in chunks of 64 tokens, under the rules of host/recur_chunk.h.
#pragma once
#include "core/recur_gradients.h"
#include "host/recur_chunk.h"

namespace fovea::host {

// A call that is not `full` and that goes_in_chunks.
bool backward_in_chunks(const RecurBackward& b);

constexpr int64_t kChunkStep = 8;  // states between tokens of a chunk that goes token by token

// A worker's room beside ChunkRoom's.
struct ChunkBackwardRoom {
  int64_t every;                   // chunks from one state kept to the next
  Slot<float> kept, inner;         // states: of every `every` chunks, and of the chunks between
  Slot<float> w, turned;           // (d, pitch), (pitch, depth)
  Slot<float> dout, du, turned_u;  // (64, pitch), and (pitch, 64)
  Slot<float> dx, dkey, part;      // (64, depth)
  Slot<float> scaled, late, rest, now, gates,
      sums;             // (64, depth), gates of a key; gates has a row more
  Slot<float> outer;    // (2, 4, depth)
  Slot<float> dscores;  // (64, 64)
  Slot<float> vectors;  // (3, 64)

  ChunkBackwardRoom() = default;
  ChunkBackwardRoom(const Recur& a, Layout& to);
};

// One item of a walk.
void run_chunks_backward(const RecurBackward& b, const Room& room, const ChunkRoom& chunk,
                         const ChunkBackwardRoom& own, void* base, int64_t item, int64_t plane);

}  // namespace fovea::host
