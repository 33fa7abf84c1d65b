// SPDX-License-Identifier: Apache-2.0
// x_lsh_append on the CPU.  An item is a few tables of a key head of a sequence: it puts the keys
// in one by one, so that chains descend.  Neighbouring tables share the cache lines of codes.
#include <algorithm>

#include "host/sweep.h"
#include "ops/lsh/lsh.h"

namespace fovea {
namespace {

constexpr int64_t kTables = 16;  // codes of a cache line

class Append {
 public:
  Append(const LshAppend& a, void*) : a_(a), parts_(ceil_of(a.to.tables, kTables)) {}

  void run(Context& ctx) const {
    if (!a_.to.buckets) return;
    const double keys = static_cast<double>(a_.s) * 4 + static_cast<double>(a_.to.buckets);
    const double cost = static_cast<double>(a_.b) * static_cast<double>(a_.g) *
                        static_cast<double>(a_.to.tables) * keys;
    host::pool(ctx).run(a_.b * a_.g * parts_, cost, [&](int64_t item, int32_t) {
      const int64_t head = item / parts_;
      tables(head / a_.g, head % a_.g, item % parts_ * kTables);
    });
  }

 private:
  void tables(int64_t b, int64_t g, int64_t begin) const {
    const int64_t end = std::min(begin + kTables, a_.to.tables);
    const int64_t held = a_.held(b), added = a_.added(b);
    for (int64_t l = begin; held == 0 && l < end; ++l)
      for (int64_t c = 0; c < a_.to.buckets; ++c) a_.to.first(b, g, l, c) = -1;
    for (int64_t n = 0; n < added; ++n)
      for (int64_t l = begin; l < end; ++l) {
        const int64_t code = *a_.code.at<int32_t>(b, n, g, l);
        if (!a_.to.has(code)) continue;
        int32_t& first = a_.to.first(b, g, l, code);
        a_.to.below(b, g, l, held + n) = first;
        first = static_cast<int32_t>(held + n);
      }
  }

  const LshAppend& a_;
  const int64_t parts_;
};

}  // namespace

extern const Kernel<LshAppend> x_lsh_append_host = {
    "", [](const Context&, const LshAppend& a, Plan& plan) {
      host::host_plan<Append>(plan, a, Text());
      return Text();
    }};

}  // namespace fovea
