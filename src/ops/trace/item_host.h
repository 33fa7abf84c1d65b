// SPDX-License-Identifier: Apache-2.0
// One row block of one head on the CPU: its branches, its attention, the weights of its edges.
//   A tile of scores is x[key][row]: rows in vector lanes, one gemm a key block, so that every pair
//   has a chain over d of its own and maxima need no shuffles.
#pragma once
#include "host/sweep.h"
#include "ops/trace/kernels.h"

namespace fovea::trace_host {

constexpr int64_t kBlockMost = host::kLanesMost;

// Of one worker.
struct Room {
  Slot<float> rows, q, x, still, o, k, v, value, mass;
  Slot<Branch> branches, halves;
};

struct HostPlan {
  Trace a;
  int64_t e_pad, items;
  Room room;
  host::WorkerScratch scratch;
  // With edges: `keep` slots of each item, in the order of the edges.
  Slot<int32_t> selected;
  Slot<float> weight;
  Slot<int64_t> first;  // records before the item
};

class Item {
 public:
  // `number` counts (batch, head, row block).
  Item(const HostPlan& plan, void* base, int64_t number, int32_t worker);
  void run();

 private:
  // How a pass treats pairs that are not valid: none in the tile, or -inf there.
  struct KeyTile {
    host::KeyRows k, v;
    int64_t begin, count;
    bool masked;
  };

  void load_queries();
  void select();
  void halve(const Branch& branch, Branch* halves);
  host::KeySpan keys_of(int64_t key_block) const;
  // visit(keys) for the branches' representatives; entry is the branch.
  template <class Visit>
  void each_branch(Visit visit) const;
  float score(int64_t key_block);
  KeyTile load(const host::KeySpan& keys, bool values);
  // x of the tile by `product`, -inf where a pair is not valid.
  void products(const KeyTile& tile, void (*product)(const host::Gemm&));

  void attend();
  void attend_dense();
  void start_rows();
  void visit(const KeyTile& tile);
  void weigh();
  void weigh(int64_t slot, const KeyTile& tile, const float* share);
  void store_rows();
  void store_lse(const View<3>& lse) const;
  void store_slots();

  const HostPlan& plan_;
  const Trace& a_;
  const host::Simd& simd_;
  void* base_;
  const int64_t number_, block_, head_;
  const Sequence seq_;
  const int64_t key_head_, first_, count_, lanes_, keep_;
  host::RowTile seen_;
  float *rows_, *q_, *x_, *still_, *o_, *k_, *v_, *value_, *mass_;
  Branch *branches_, *halves_;
  float top_[kBlockMost], sum_[kBlockMost], shrink_[kBlockMost];
};

}  // namespace fovea::trace_host
