// SPDX-License-Identifier: Apache-2.0
// x_multi_token_backward on the CPU, two sweeps:
//   first  an item of work is (sequence, group, strip of rows) and has all its keys: X, delta and
//          the strip's part of dmix_after
//   then   backward_sweep_host.h, a bundle being the heads that share groups and key heads, with
//          the strips of group_gradient_host.h
// Multi-Token Attention (2504.00927).
#include <numeric>

#include "ops/conv_attention/backward_sweep_host.h"
#include "ops/conv_attention/group_gradient_host.h"

namespace fovea {
namespace {

using namespace conv_host;

struct BackwardPlan {
  MixedAttendBackward m;
  GroupGradientRoom room;
  SweepPlan sweep;
  int64_t strips;  // of a sequence, at most
  Slot<float> delta;
  Slot<double> before, after;  // (r, h, parts, group), (r, h, strips, group)
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), m_(plan.m), call_(plan.m.conv.forward), a_(call_.a), base_(base) {}

  void run(Context& ctx) const {
    const Sweep sweep(plan_.sweep, call_, base_);
    const int64_t groups = a_.h / m_.group, items = a_.sequences.count * groups * plan_.strips;
    const double cost =
        sweep.pairs() * static_cast<double>(a_.d + a_.e + call_.c.taps()) / kFlopsPerNanosecond;
    host::pool(ctx).run(items, cost, [&](int64_t item, int32_t worker) {
      measure(item / (groups * plan_.strips), item % groups * m_.group,
              plan_.strips - 1 - item / groups % plan_.strips, worker);
    });
    double* before = plan_.before.at(base_);
    const int64_t parts = plan_.sweep.parts;
    if (before) std::fill_n(before, a_.sequences.count * a_.h * parts * m_.group, 0.0);
    sweep.run(ctx, m_.group, [&](const Sweep::Visit& at) {
      GroupGradient strip(call_, m_, plan_.room, at.room, at.q, at.sequence, at.head, at.row,
                          plan_.delta.at(base_));
      double* sum =
          before ? before +
                       ((at.sequence * (a_.h / m_.group) + at.head / m_.group) * parts + at.part) *
                           m_.group * m_.group
                 : nullptr;
      strip.run(at.begin, at.end, at.sums, sum);
      if (m_.conv.dq)
        for (int64_t n = 0; n < m_.group; ++n) sweep.save_dq(at, n, strip.own(), strip.dq(n));
      return strip.own().count;
    });
    add_up(m_.dbefore, before, parts);
    add_up(m_.dafter, plan_.after.at(base_), plan_.strips);
  }

 private:
  void measure(int64_t sequence, int64_t head, int64_t strip, int32_t worker) const {
    const int64_t group = m_.group, first = strip * call_.own_rows(2 * call_.c.above());
    double* after = plan_.after.at(base_);
    if (after) {
      after += ((sequence * (a_.h / group) + head / group) * plan_.strips + strip) * group * group;
      std::fill_n(after, group * group, 0.0);
    }
    const Sequence q = a_.sequences[sequence];
    if (first >= q.rows) return;
    void* room = plan_.sweep.scratch.at(base_, worker);
    GroupGradient rows(call_, m_, plan_.room, room, q, sequence, head, first, nullptr);
    const double* x = rows.measure();
    const ConvAttend::Rows out = call_.c.rows_of(q, sequence);
    for (int64_t i = 0; i < rows.own().count; ++i) {
      const int64_t at = first + i - call_.c.history;
      if (at < 0 || at >= out.count) continue;
      for (int64_t n = 0; n < group; ++n) {
        double delta = 0;
        for (int64_t a = 0; a < group; ++a) {
          const double sum = x[(a * group + n) * kLanes + i];
          if (after) after[a * group + n] += sum;
          if (m_.after)
            delta += static_cast<double>(mix_of(m_.after, head + a, n)) * sum;
          else if (a == n)
            delta = sum;
        }
        plan_.delta.at(base_)[(q.batch * a_.h + head + n) * call_.c.rows_out + out.begin + at] =
            static_cast<float>(delta);
      }
    }
  }

  // The parts' (r, h / group, parts, group, group) in order; may be summed over heads.
  void add_up(const View<2>& to, const double* sums, int64_t parts) const {
    if (!to) return;
    const int64_t group = m_.group, each = parts * group * group;  // of a group of heads
    host::store_sums(
        a_.h * group, [&](int64_t n) -> float& { return *to.at(n / group, n % group); },
        [&](int64_t n) {
          double sum = 0;
          for (int64_t r = 0; r < a_.sequences.count; ++r)
            for (int64_t part = 0; part < parts; ++part)
              sum += sums[(r * (a_.h / group) + n / (group * group)) * each + part * group * group +
                          n % (group * group)];
          return sum;
        });
  }

  const BackwardPlan& plan_;
  const MixedAttendBackward& m_;
  const Call call_;
  const Attend& a_;
  void* base_;
};

Text offer(const Context& ctx, const MixedAttendBackward& m, Plan& plan) {
  const Call call(m.conv.forward);
  const Attend& a = call.a;
  BackwardPlan p;
  p.m = m;
  Layout worker;
  p.room = GroupGradientRoom(call, m, worker);
  p.strips = ceil_div(a.sequences.query_max, call.own_rows(2 * call.c.above()));
  const int64_t group_strips = a.h / m.group * p.strips;
  p.sweep = SweepPlan(ctx, call, m.conv, a.h ? std::lcm(call.group, m.group) : 0,
                      static_cast<double>(a.sequences.count) * static_cast<double>(group_strips),
                      worker, plan.workspace);
  p.sweep.sweeps |= m.dbefore.data != nullptr;
  p.delta = plan.workspace.add<float>(a.b, a.h, call.c.rows_out);
  const auto sums_of = [&](const View<2>& wanted, int64_t each) {
    return plan.workspace.add<double>(wanted ? each : 0, a.sequences.count, a.h, m.group);
  };
  p.before = sums_of(m.dbefore, p.sweep.parts), p.after = sums_of(m.dafter, p.strips);
  host::host_plan<Backward>(plan, p, host::shape_name(a.dtype, a.d));
  return "";
}

}  // namespace

extern const Kernel<MixedAttendBackward> multi_token_backward_host = {"", offer};

}  // namespace fovea
