// SPDX-License-Identifier: Apache-2.0
// x_multi_token_forward on the CPU.  A work item is (sequence, group of heads, strip of rows).  It
// loops over its keys twice, so that mixing after the softmax has one sum of o for each head:
//   first  B of the group's tile, -inf where a row does not see a key; maxima and sums
//   then   B again, P = exp(B - lse), R = P mixed, o += R' v
// Multi-Token Attention (2504.00927).
#include <cmath>

#include "ops/conv_attention/mixed_tile_host.h"

namespace fovea {
namespace {

using namespace conv_host;

struct ForwardPlan {
  MixedAttend m;
  GroupRoom logits;  // this and p, o, v, state: within a worker's bytes
  Slot<float> p, o, v, top, sum, lse2;
  host::WorkerScratch scratch;
};

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base)
      : plan_(plan),
        m_(plan.m),
        call_(plan.m.conv),
        c_(call_.c),
        a_(call_.a),
        group_(m_.group),
        own_(call_.own_rows(c_.above())),
        base_(base) {}

  void run(Context& ctx) const {
    const int64_t longest = std::max<int64_t>(a_.sequences.query_max - c_.history, 0);
    const int64_t strips = ceil_div(longest, own_), groups = a_.h / group_;
    const double cost = 2 * static_cast<double>(a_.sequences.count * longest * a_.h) *
                        static_cast<double>(a_.sequences.key_max) *
                        static_cast<double>(a_.d + a_.e + c_.taps()) / kFlopsPerNanosecond;
    host::pool(ctx).run(a_.sequences.count * strips * groups, cost,
                        [&](int64_t item, int32_t worker) {
                          // Late strips first: under a causal mask they have most keys.
                          attend(item / (groups * strips), item % groups * group_,
                                 (strips - 1 - item / groups % strips) * own_, worker);
                        });
  }

 private:
  struct Place {
    Sequence q;
    int64_t head, row;  // row: of o
    Strip rows;
  };

  void attend(int64_t sequence, int64_t head, int64_t first, int32_t worker) const {
    Place at{a_.sequences[sequence], head, 0, {}};
    const ConvAttend::Rows out = c_.rows_of(at.q, sequence);
    if (first >= out.count) return;
    const int64_t count = std::min(own_, out.count - first), above = c_.above();
    at.row = out.begin + first;
    at.rows = {c_.history + first, 0, count, call_.padded(count)};
    const int64_t top = at.rows.first - above;
    const Strip halo{top, clamp_i64(-top, 0, above), count + above, call_.padded(count + above)};

    void* room = plan_.scratch.at(base_, worker);
    GroupLogits logits(call_, m_.before, group_, plan_.logits, room);
    logits.load(at.q, head, halo);
    weigh(at, logits, room);
    logits.load(at.q, head, halo);
    add(at, logits, room);
    store(at, room);
  }

  template <class F>
  void each_tile(const Place& at, F&& f) const {
    const int64_t end = at.rows.end(c_, at.q);
    for (int64_t j = 0; j < end; j += kKeys) f(j, std::min(kKeys, end - j));
  }

  // lse2, in units of log2, +inf for an empty row.
  void weigh(const Place& at, GroupLogits& logits, void* room) const {
    float *top = plan_.top.at(room), *sum = plan_.sum.at(room), *lse2 = plan_.lse2.at(room);
    std::fill_n(top, group_ * kLanes, -kInf);
    std::fill_n(sum, group_ * kLanes, 0.0f);
    each_tile(at, [&](int64_t j, int64_t count) {
      bool flags[kKeys];
      const bool* absent = absent_keys(call_, at.q, j, count, flags);
      const Tiles b = logits.tile(j, count, at.rows);
      for (int64_t n = 0; n < group_; ++n) {
        float shrink[kLanes];
        hide(c_, at.q, at.rows, j, count, absent, -kInf, b[n], at.rows.lanes);
        call_.simd.softmax(count, at.rows.lanes, b[n], top + n * kLanes, sum + n * kLanes, shrink);
      }
    });
    for (int64_t i = 0; i < group_ * kLanes; ++i)
      lse2[i] = sum[i] == 0 ? kInf : top[i] + std::log2(sum[i]);
  }

  void add(const Place& at, GroupLogits& logits, void* room) const {
    const int64_t lanes = at.rows.lanes;
    const Tiles p{plan_.p.at(room), kKeys * kLanes};
    const Mixer mixer(call_, m_.after, group_, at.head);
    const float zeros[kLanes] = {};
    std::fill_n(plan_.o.at(room), group_ * kLanes * call_.e_pad, 0.0f);
    each_tile(at, [&](int64_t j, int64_t count) {
      bool flags[kKeys];
      const bool* absent = absent_keys(call_, at.q, j, count, flags);
      const Tiles b = logits.tile(j, count, at.rows);
      for (int64_t n = 0; n < group_; ++n) {
        // The slope that comes with it is not wanted: its room is free until mixed.
        std::fill_n(p[n], count * lanes, 0.0f);
        call_.simd.softmax_backward(count, lanes, b[n], p[n], plan_.lse2.at(room) + n * kLanes,
                                    zeros);
        hide(c_, at.q, at.rows, j, count, absent, 0, b[n], lanes);
      }
      mixer(false, count * lanes, b, p);
      host::KeyRows values{};
      int64_t loaded = -1;
      for (int64_t n = 0; n < group_; ++n) {
        const int64_t g = (at.head + n) / call_.group;
        if (g != loaded)
          values =
              load_keys(call_, at.q, g, a_.v, a_.e, j, count, {true}, absent, plan_.v.at(room));
        loaded = g;
        add_values(call_, at.q, at.rows, j, count, absent, p[n], values, nullptr,
                   plan_.o.at(room) + n * kLanes * call_.e_pad);
      }
    });
  }

  void store(const Place& at, void* room) const {
    const float *top = plan_.top.at(room), *sum = plan_.sum.at(room);
    Sequence out = at.q;
    out.row_begin = at.row;
    for (int64_t n = 0; n < group_; ++n) {
      host::store_rows(a_.o, a_.o_dtype, out, 0, at.rows.count, at.head + n, a_.e,
                       plan_.o.at(room) + n * kLanes * call_.e_pad, call_.e_pad, 1);
      for (int64_t i = 0; a_.lse && i < at.rows.count; ++i)
        row_slot(a_.lse, out, at.head + n, i) =
            host::lse_of(top[n * kLanes + i], sum[n * kLanes + i]);
    }
  }

  const ForwardPlan& plan_;
  const MixedAttend& m_;
  const Call call_;
  const ConvAttend& c_;
  const Attend& a_;
  const int64_t group_, own_;
  void* base_;
};

Text offer(const Context& ctx, const MixedAttend& m, Plan& plan) {
  const Call call(m.conv);
  const Attend& a = call.a;
  ForwardPlan p{};
  p.m = m;
  Layout worker;
  p.logits = GroupRoom(call, m.group, worker);
  p.p = worker.add<float>(m.group * kKeys * kLanes);
  p.o = worker.add<float>(m.group * kLanes * call.e_pad);
  p.v = worker.add<float>(kKeys * call.e_pad);
  for (Slot<float>* state : {&p.top, &p.sum, &p.lse2}) *state = worker.add<float>(m.group * kLanes);
  p.scratch = host::WorkerScratch(ctx, ctx.threads, worker, plan.workspace);
  host::host_plan<Forward>(plan, p, host::shape_name(a.dtype, a.d));
  return "";
}

}  // namespace

extern const Kernel<MixedAttend> multi_token_forward_host = {"", offer};

}  // namespace fovea
