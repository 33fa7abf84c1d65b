// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_attention/group_gradient_host.h"

#include <algorithm>
#include <memory>
#include <type_traits>

namespace fovea::conv_host {

GroupGradientRoom::GroupGradientRoom(const Call& call, const MixedAttendBackward& request,
                                     Layout& layout) {
  Layout one;
  head = GradientRoom(call, request.conv, one);
  head_bytes = one.bytes();
  heads = layout.add_all(one, request.group);
  strips = layout.add<StripGradient>(request.group);
  b = layout.add<float>(request.group * kKeys * kLanes);
  slope = layout.add<float>(request.group * kKeys * kLanes);
  sums = layout.add<double>(request.group * request.group * kLanes);
}

GroupGradient::GroupGradient(const Call& call, const MixedAttendBackward& request,
                             const GroupGradientRoom& room, void* base, const Sequence& q,
                             int64_t sequence, int64_t head, int64_t first, const float* delta)
    : call_(call),
      q_(q),
      group_(request.group),
      pitch_(static_cast<int64_t>(room.head_bytes / sizeof(float))),
      before_(call, request.before, group_, head),
      after_(call, request.after, group_, head),
      b_{room.b.at(base), kKeys * kLanes},
      slope_{room.slope.at(base), kKeys * kLanes},
      sums_(room.sums.at(base)),
      strips_(room.strips.at(base)) {
  static_assert(std::is_trivially_destructible_v<StripGradient>);
  for (int64_t n = 0; n < group_; ++n)
    std::construct_at(strips_ + n, call, request.conv, room.head,
                      room.heads.at(base) + static_cast<size_t>(n) * room.head_bytes, q, sequence,
                      head + n, first, delta);
}

bool GroupGradient::next(StripGradient::Step& step) {
  bool more = false;
  for (int64_t n = 0; n < group_; ++n) more = strips_[n].next(step);
  if (!more || step.live == 0) return more;
  const Strip& rows = strips_[0].rows_below();
  const int64_t lanes = rows.lanes, count = step.live * lanes;
  const float zeros[kLanes] = {};
  for (int64_t n = 0; n < group_; ++n)
    for (float* x : {p()[n], da()[n]})
      hide(call_.c, q_, rows, step.begin, step.live, nullptr, 0, x, lanes);
  before_(false, count, p(), b_);
  for (int64_t n = 0; n < group_; ++n) {
    // The slope that comes with it is not wanted: its room is free until mixed.
    std::fill_n(slope_[n], count, 0.0f);
    call_.simd.softmax_backward(step.live, lanes, b_[n], slope_[n], strips_[n].lse2(), zeros);
    hide(call_.c, q_, rows, step.begin, step.live, nullptr, 0, b_[n], lanes);
  }
  after_(true, count, da(), slope_);
  return true;
}

const double* GroupGradient::measure() {
  std::fill_n(sums_, group_ * group_ * kLanes, 0.0);
  for (int64_t n = 0; n < group_; ++n) strips_[n].open(0, q_.keys);
  const int64_t lanes = strips_[0].rows_below().lanes;
  for (StripGradient::Step step; next(step);)
    for (int64_t a = 0; a < group_; ++a)
      for (int64_t n = 0; n < group_; ++n) {
        float line[kLanes] = {};
        const float *dr = da()[a], *p = b_[n];
        for (int64_t j = 0; j < step.live; ++j, dr += lanes, p += lanes)
          for (int64_t i = 0; i < lanes; ++i) line[i] += dr[i] * p[i];
        double* sum = sums_ + (a * group_ + n) * kLanes;
        for (int64_t i = 0; i < own().count; ++i) sum[i] += line[i];
      }
  return sums_;
}

void GroupGradient::dscores(const StripGradient::Step& step) {
  const Strip& rows = strips_[0].rows_below();
  const int64_t lanes = rows.lanes;
  for (int64_t n = 0; n < group_; ++n) {
    const float *p = b_[n], *delta = strips_[n].delta();
    float* dp = slope_[n];
    for (int64_t j = 0; j < step.live; ++j, p += lanes, dp += lanes)
      for (int64_t i = 0; i < lanes; ++i) dp[i] = p[i] * (dp[i] - delta[i]);
    hide(call_.c, q_, rows, step.begin, step.live, nullptr, 0, slope_[n], lanes);
  }
}

void GroupGradient::add_before(const StripGradient::Step& step, double* dbefore) const {
  int64_t from;
  const int64_t mine = strips_[0].mine(step, from), lanes = strips_[0].rows_below().lanes;
  if (mine <= 0) return;
  const int64_t skip = (from - step.begin) * lanes;
  float line[kLanes];  // a vector at least
  for (int64_t a = 0; a < group_; ++a)
    for (int64_t n = 0; n < group_; ++n)
      call_.simd.correlate({mine, own().count, p()[n] + skip, lanes, slope_[a] + skip, lanes, 1, 1,
                            dbefore + a * group_ + n, line});
}

void GroupGradient::run(int64_t begin, int64_t end, const StripGradient::Sums* sums,
                        double* dbefore) {
  for (int64_t n = 0; n < group_; ++n) strips_[n].open(begin, end);
  for (StripGradient::Step step; next(step);) {
    if (step.live > 0) {
      const int64_t count = step.live * strips_[0].rows_below().lanes;
      dscores(step);
      if (dbefore) add_before(step, dbefore);
      after_(false, count, b_, p());
      before_(true, count, slope_, da());
    }
    for (int64_t n = 0; n < group_; ++n) strips_[n].close(step, sums[n]);
  }
}

}  // namespace fovea::conv_host
