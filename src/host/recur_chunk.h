// SPDX-License-Identifier: Apache-2.0
// A recurrence in chunks of 64 tokens, as products of matrices.  Chunks start at a sequence's first
// token; the tokens of a last one that is not full go token by token.  So bits change with a cut of
// a sequence only where it is no multiple of 64 tokens.
#pragma once
#include "host/recur_item.h"

namespace fovea::host {

constexpr int64_t kChunk = 64;
constexpr int64_t kChunkSlice = 128;  // value columns of an item that goes in chunks

// By shapes alone.
bool goes_in_chunks(const Recur& a);

// A worker's room: tiles of a chunk's tokens, and the state.  depth and pitch are d and the value
// columns of a slice in whole vectors.
struct ChunkRoom {
  Slot<float> query, key, p;                         // (64, depth)
  Slot<float> gate, decay, within, total;            // (64, depth), total (4, depth)
  Slot<float> keys_late, keys_now, kept;             // (d, 64), gamma (depth)
  Slot<float> value, y, u;                           // (64, pitch)
  Slot<float> between, scores, correction, inverse;  // (64, 64)
  Slot<float> vectors;                               // (kVectors, 64)
  Slot<float> h;                                     // (d, pitch)
  static constexpr int64_t kVectors = 5;

  ChunkRoom() = default;
  ChunkRoom(const Recur& a, Layout& to);
};

// Item `item` of Item::count(a, kChunkSlice).
void run_chunks(const Recur& a, const Room& room, const ChunkRoom& chunk, void* base, int64_t item);

}  // namespace fovea::host
