// SPDX-License-Identifier: Apache-2.0
// Lists of single rows by block of keys, for the forward pass on Hopper:
//   o_c = softmax(scores(q k_c')) v_c for each place c of a row's list,  o = their merge by lse.
// A chunk is up to 128 rows whose lists name one block of keys, ascending.  A place that names no
// block has no part.  A row that names a block twice has two places, so both count.
//   A unit is a list head of a sequence.  The parts of all heads may not fit the workspace: a phase
// takes some units, or some query heads of one unit, and merges them.
//   Parts are f32.  Where o is bf16 they are f16 times a power of two that a row has of its own:
// an eighth of the error of o's own rounding.
#pragma once
#include "cuda/block/schedule.cuh"
#include "cuda/launch.h"
#include "cuda/loop/list_transpose.cuh"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

constexpr int kGatheredRows = 128, kGatheredKeys = 128;  // of a row tile, of a key tile

// Keys count within the sequence.  Every row of the chunk sees keys [whole_low, whole_high).
struct alignas(16) RowChunk {
  int32_t list, first, count;  // first: an entry
  int32_t low, high;           // keys that some row sees, low a multiple of a tile; never empty
  int32_t whole_low, whole_high;
  int32_t unused;
};

// Units [unit, unit + units), and of each the query heads [head, head + heads).
struct GatherPhase {
  int32_t unit, units, head, heads;
};

struct GatheredRows {
  ListTranspose order;
  const uint64_t* entries;  // sorted by list, then row
  const RowChunk* chunk;    // count = 0: between two lists
  const int32_t* base;      // (lists + 1): a list's first chunk
  void* o;                  // parts of a phase: (units, heads, row, place, e)
  float2* stats;            // the same places: log2 of a part's sum of weights, and its unit of o
  int32_t blocks, lists;    // blocks: of a unit
  int32_t x, group;         // list heads, query heads of one
  int32_t rows, keep;
  bool half;  // parts are f16

  // Of query head number `head` of a phase's unit.
  FOVEA_HD int64_t first_part(const GatherPhase& phase, int unit, int head) const {
    return (int64_t{unit - phase.unit} * phase.heads + (head - phase.head)) * rows * keep;
  }
};

// A Hopper kernel's arguments beside the call.
struct GatheredWork90 {
  GatheredRows rows;
  GatherPhase phase;
  DynamicSchedule schedule;
  AttendMaps maps;
};

// A call's lists, chunks and parts, in its workspace.
struct GatheredSlots {
  BlockLists lists{};
  GatheredRows shape;
  ListTransposeSlots<BlockLists> entries;
  int32_t most = 0;  // query heads of a phase
  Slot<RowChunk> chunk;
  Slot<int32_t> base;
  Slot<unsigned char> o;
  Slot<float2> stats;

  // fits() before the workspace is laid out: false where a head's parts alone are too many.
  static bool fits(const SparseAttend& call);
  GatheredSlots(Layout& layout, const char* op, const SparseAttend& call);
  // Enqueues all but the products.
  GatheredRows make(Context& ctx, const char* op, const SparseAttend& call, void* base) const;
  // run(phase, most chunks) for each phase, then its merge.
  template <class Run>
  void each_phase(Run run) const {
    const int32_t units = shape.lists / (shape.blocks > 0 ? shape.blocks : 1), group = shape.group;
    const auto even = [](int32_t all, int32_t parts) { return (all + parts - 1) / parts; };
    const int32_t heads = most < group ? even(group, even(group, most)) : group;
    const int32_t held = most < group ? 1 : most / group;
    const int32_t each = units ? even(units, even(units, held)) : 1;
    for (int32_t unit = 0; unit < units; unit += each)
      for (int32_t head = 0; head < group; head += heads)
        run(GatherPhase{unit, each < units - unit ? each : units - unit, head,
                        heads < group - head ? heads : group - head});
  }
  // Chunks that `units` units may have.
  int64_t chunks(int64_t units) const {
    return units * shape.rows * shape.keep / kGatheredRows + units * shape.blocks + 1;
  }
};

// Enqueues the merge of a phase's parts into o and lse.
void merge_places(Context& ctx, const char* op, const SparseAttend& call, const GatheredRows& rows,
                  const GatherPhase& phase);

}  // namespace fovea::cuda
