// SPDX-License-Identifier: Apache-2.0
// The workspace of a trace on CUDA: the slots that a later stage reads.
#pragma once
#include "ops/trace/stages.cuh"

namespace fovea::cuda {

class TraceWorkspace {
 public:
  // listed: the rows stage reads each item's blocks in ascending order.
  TraceWorkspace(const Trace& a, Layout& layout, bool listed) {
    items_ = a.items();
    const int64_t slots = product(items_, a.keep);
    const bool weights = a.wants_edges() && a.edge_weight;
    const bool masses = weights && a.edge_kind == FOVEA_EDGE_KIND_MASS;
    scan_bytes_ = a.wants_edges() ? edges_scan_bytes(items_) : 0;
    selected_ = layout.add<int32_t>(a.wants_rows() || a.wants_edges() ? slots : 0);
    list_ = layout.add<int32_t>(listed ? slots : 0);
    count_ = layout.add<int32_t>(listed ? items_ : 0);
    score_ = layout.add<float>(weights && !masses ? slots : 0);
    mass_ = layout.add<float>(masses ? slots : 0);
    row_ = layout.add<TraceRow>(
        a.wants_mass() ? product(product(a.attend.b, a.attend.h), a.attend.s) : 0);
    first_ = layout.add<int64_t>(a.wants_edges() ? items_ + 1 : 0);
    scan_ = layout.add<unsigned char>(static_cast<int64_t>(scan_bytes_));
  }
  TraceCall at(const Trace& a, void* base) const {
    return {a,
            {selected_.at(base), list_.at(base), count_.at(base), score_.at(base), mass_.at(base),
             row_.at(base), first_.at(base), scan_.at(base), scan_bytes_},
            items_};
  }

 private:
  int64_t items_;
  size_t scan_bytes_;
  Slot<int32_t> selected_, list_, count_;
  Slot<float> score_, mass_;
  Slot<TraceRow> row_;
  Slot<int64_t> first_;
  Slot<unsigned char> scan_;
};

}  // namespace fovea::cuda
