// SPDX-License-Identifier: Apache-2.0
// The lists of a call by key: for each (sequence, head with a list of its own, tile of keys) the
// entries that name one of its keys, rows ascending.  An entry is a number: its tile in the high
// bits, then row, key within the tile and place in the row's list; entries that name no key stand
// last.
//   A run is some of what a row has in a tile, keys ascending, so that one that stands twice is in
//   two runs.  Where tiles have more than one key, lists are sorted 2048 entries at a time first.
#pragma once
#include "core/workspace.h"
#include "cuda/loop/zero.cuh"
#include "ops/kl_experimental/gather_simt.cuh"

namespace fovea::cuda {

struct GatherOrder {
  int64_t heads;  // with lists of their own
  int64_t tiles;  // of 2^key_bits keys, that a sequence may have
  int64_t entries;
  uint64_t none;  // tile of entries that name no key
  int list_bits, key_bits, row_bits, bits;
  GatherOrder(const KlGather& a, int key_bits);

  FOVEA_HD uint64_t tile(int64_t sequence, int64_t h, int64_t j) const {
    return static_cast<uint64_t>((sequence * heads + (heads == 1 ? 0 : h)) * tiles +
                                 (j >> key_bits));
  }
  // Below the entries of a tile from row i on, above those before.
  FOVEA_HD uint64_t from(uint64_t tile, int64_t i) const {
    return ((tile << row_bits) + static_cast<uint64_t>(i)) << (key_bits + list_bits);
  }
  // An entry that names key j, but for its place; `first` is from() of its row in tile 0.
  FOVEA_HD uint64_t named(uint64_t first, int64_t j) const {
    const uint64_t key = static_cast<uint64_t>(low(static_cast<uint64_t>(j), key_bits));
    return first + (static_cast<uint64_t>(j >> key_bits) << (row_bits + key_bits + list_bits)) +
           (key << list_bits);
  }
  FOVEA_HD uint64_t tile_of(uint64_t entry) const {
    return entry >> (row_bits + key_bits + list_bits);
  }
  FOVEA_HD int64_t row_of(uint64_t entry) const {
    return low(entry >> key_bits >> list_bits, row_bits);
  }
  FOVEA_HD int key_of(uint64_t entry) const {
    return static_cast<int>(entry >> list_bits) & ((1 << key_bits) - 1);
  }
  FOVEA_HD int64_t place_of(uint64_t entry) const { return low(entry, list_bits); }

 private:
  FOVEA_HD static int64_t low(uint64_t x, int bits) {
    return static_cast<int64_t>(x & ((uint64_t{1} << bits) - 1));
  }
};

// Sorted entries, and the first of each run; the entries that name no key are one run at the end.
struct GatherRuns {
  const uint64_t* entries;
  const int64_t* first;
  const int64_t* count;
};

// Two buffers of entries and CUB's own room.
struct GatherOrderSlots {
  GatherOrder order;
  Slot<uint64_t> entries[2];
  Slot<int64_t> count;
  Slot<unsigned char> room;
  GatherOrderSlots(Layout& layout, const KlGather& a, int key_bits, bool needed);
  // Runs are found where a tile has more than one key.
  GatherRuns sort(Context& ctx, const char* op, const GatherSimt& call, void* base) const;
};

// Zeros for gradients of rows and keys that belong to no sequence.
inline void clear_gradients(Context& ctx, const char* op, const KlGather& a) {
  const Kl& kl = a.kl;
  if (!ragged(attend_of(kl, kl.first, kl.second))) return;
  for (const KlSide* side : {&kl.first, &kl.second}) {
    if (side->dq) zero(ctx, op, side->dq, side->dtype, {kl.b, kl.s, kl.h, side->width});
    if (side->dk)
      zero(ctx, op, side->dk, side->dtype,
           {kl.sequences.key_start ? 1 : kl.sequences.count, kl.t, side->key_heads, side->width});
  }
}

}  // namespace fovea::cuda
