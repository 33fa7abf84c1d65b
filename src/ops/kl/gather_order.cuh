// SPDX-License-Identifier: Apache-2.0
// The lists of a call by key: for each (sequence, head with a list of its own, key) the rows that
// name it, ascending.  An entry is a number, (sequence, head, key) in its high bits and the row in
// `row_bits` low ones; entries that name no key stand last.
#pragma once
#include "core/workspace.h"
#include "ops/kl/gather_simt.cuh"

namespace fovea::cuda {

struct GatherOrder {
  int64_t heads, keys;  // heads with lists of their own; keys a sequence may have
  int row_bits, key_bits;
  int64_t entries;
  explicit GatherOrder(const KlGather& a);

  FOVEA_HD uint64_t key(int64_t sequence, int64_t h, int64_t j) const {
    return static_cast<uint64_t>((sequence * heads + (heads == 1 ? 0 : h)) * keys + j);
  }
};

// Two buffers of entries and the sort's own room.
struct GatherOrderSlots {
  GatherOrder order;
  Slot<uint64_t> entries[2];
  Slot<unsigned char> room;
  GatherOrderSlots(Layout& layout, const KlGather& a, bool needed);
  // The sorted entries.
  const uint64_t* sort(Context& ctx, const char* op, const GatherSimt& call, void* base) const;
};

}  // namespace fovea::cuda
