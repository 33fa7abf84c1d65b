// SPDX-License-Identifier: Apache-2.0
// x_evict_forward's parts on the CPU.  An item is a key head of a batch, or a slot of all heads.
#include "host/sweep.h"
#include "ops/evict/evict.h"

namespace fovea {
namespace {

class ScoreRun {
 public:
  ScoreRun(const EvictScore& a, void*) : a_(a) {}
  void run(Context& ctx) const {
    const auto cost = static_cast<double>(a_.b * a_.g) * static_cast<double>(a_.t) *
                      static_cast<double>(std::min(a_.half, a_.t));
    host::pool(ctx).run(a_.b * a_.g, cost, [&](int64_t item, int32_t) {
      for (int64_t j = 0; j < a_.t; ++j) a_.run(item / a_.g, item % a_.g, j);
    });
  }

 private:
  const EvictScore& a_;
};

class RowsRun {
 public:
  RowsRun(const EvictRows& a, void*) : a_(a) {}
  void run(Context& ctx) const {
    const auto cost = static_cast<double>(a_.b * a_.keep) * static_cast<double>(a_.g) *
                      static_cast<double>(a_.d + a_.e);
    host::pool(ctx).run(a_.b * a_.keep, cost, [&](int64_t item, int32_t) {
      for (int64_t head = 0; head < a_.g; ++head)
        a_.run(item / a_.keep, item % a_.keep, head, 0, 1);
    });
  }

 private:
  const EvictRows& a_;
};

}  // namespace

extern const Kernel<EvictScore> evict_score_host = {
    "", [](const Context&, const EvictScore& a, Plan& plan) {
      host::host_plan<ScoreRun>(plan, a, Text());
      return Text();
    }};
extern const Kernel<EvictRows> evict_rows_host = {
    "", [](const Context&, const EvictRows& a, Plan& plan) {
      host::host_plan<RowsRun>(plan, a, Text());
      return Text();
    }};

}  // namespace fovea
