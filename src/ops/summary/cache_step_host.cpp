// SPDX-License-Identifier: Apache-2.0
// x_cache_step on the CPU.  An item is a head of a sequence.
#include <algorithm>

#include "host/sweep.h"
#include "ops/summary/cache_step.h"

namespace fovea {
namespace {

struct StepPlan {
  CacheStep a;
  CacheRoom room;
};

class Step {
 public:
  Step(const StepPlan& plan, void* base)
      : a_(plan.a), stays_(plan.room.stays.at(base)), move_(plan.room.move.at(base)) {}

  void run(Context& ctx) const {
    const double cost = static_cast<double>(a_.b * a_.g) * static_cast<double>(a_.t + a_.s) *
                        static_cast<double>(a_.d + a_.e + 8);
    host::pool(ctx).run(a_.b * a_.g, cost,
                        [&](int64_t item, int32_t) { head(item / a_.g, item % a_.g); });
  }

 private:
  void head(int64_t b, int64_t g) const {
    int64_t live = a_.live(b, g), last = -1;
    for (int64_t n = 0; n < live; ++n) last = std::max<int64_t>(last, a_.at(b, g, n));
    if (!a_.ring) live = evict(b, g, live, last);
    const int64_t begin = a_.old_len ? a_.old_len[b] : last + 1, added = a_.added(b, live);
    for (int64_t n = 0; n < added; ++n) {
      const int64_t p = begin + n;
      if (a_.ring && (p < 0 || (p >= a_.sink && n < added - a_.turn(g)))) continue;
      const int64_t slot = a_.ring ? a_.slot(g, p) : live + n;
      rows(a_.k_new, a_.v_new, b, slot, n, g);
      a_.at(b, g, slot) = static_cast<int32_t>(p);
      if (!a_.ring) *a_.score.at(b, g, slot) = 0;
    }
    if (a_.ring && added)
      live = clamp_i64(begin + added, live, a_.sink + a_.turn(g));
    else if (!a_.ring)
      live += added;
    *a_.count.at<int32_t>(b, g) = static_cast<int32_t>(live);
  }
  int64_t evict(int64_t b, int64_t g, int64_t live, int64_t last) const {
    int32_t* stays = stays_ + (b * a_.g + g) * a_.t;
    CacheMove* move = move_ + (b * a_.g + g) * a_.t;
    for (int64_t n = 0; a_.mass && n < live; ++n) *a_.score.at(b, g, n) += *a_.mass.at(b, g, n);
    for (int64_t n = 0; n < live; ++n) stays[n] = a_.stays(b, g, live, n, last);
    const CacheCounts counts = cache_moves(stays, live, move);
    for (int64_t n = 0; n < counts.moves; ++n) {
      const auto [from, to] = move[n];
      rows(a_.k, a_.v, b, to, from, g);
      a_.at(b, g, to) = a_.at(b, g, from);
      *a_.score.at(b, g, to) = *a_.score.at(b, g, from);
    }
    return counts.stay;
  }
  void rows(const View<4>& k, const View<4>& v, int64_t b, int64_t slot, int64_t row,
            int64_t g) const {
    for (int64_t c = 0; c < a_.d; ++c) a_.copy(a_.k, b, slot, k, row, g, c);
    for (int64_t c = 0; c < a_.e; ++c) a_.copy(a_.v, b, slot, v, row, g, c);
  }

  const CacheStep& a_;
  int32_t* stays_;
  CacheMove* move_;
};

}  // namespace

extern const Kernel<CacheStep> cache_step_host = {
    "", [](const Context&, const CacheStep& a, Plan& plan) {
      const StepPlan p{a, cache_room(a, plan.workspace)};
      host::host_plan<Step>(plan, p, host::shape_name(a.dtype, a.d));
      return Text();
    }};

}  // namespace fovea
