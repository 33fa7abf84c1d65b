// SPDX-License-Identifier: Apache-2.0
// Positions of rows among keys of blocks on the CPU: an item is a batch.
#include "core/block_positions.h"

#include "host/sweep.h"

namespace fovea {
namespace {

class Run {
 public:
  Run(const BlockPositions& a, void*) : a_(a) {}
  void run(Context& ctx) const {
    const double cost = static_cast<double>(a_.b) * static_cast<double>(a_.s);
    host::pool(ctx).run(a_.s ? a_.b : 0, cost, [&](int64_t batch, int32_t) {
      const Sequence q = a_.sequences[batch];
      for (int64_t i = 0; i < a_.s; ++i) *a_.position.at<int32_t>(batch, i) = a_.at(q, i);
    });
  }

 private:
  const BlockPositions& a_;
};

}  // namespace

extern const Kernel<BlockPositions> block_positions_host = {
    "", [](const Context&, const BlockPositions& a, Plan& plan) {
      host::host_plan<Run>(plan, a, Text());
      return Text();
    }};

}  // namespace fovea
