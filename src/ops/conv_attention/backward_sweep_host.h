// SPDX-License-Identifier: Apache-2.0
// What the host's backwards share: who owns which sum.
//   A work item is (sequence, bundle of key heads, part of the keys).  It alone owns dk and dv of
//   its keys, kept in f32 while it loops over the strips of rows of every query head of the bundle
//   (strip_gradient_host.h).  Keys around a part's bounds are computed in both parts.
//   dq and dweight of several parts are added in the order of the parts.
//   Parts depend on shapes alone: the bits do not change with the number of threads.
#pragma once
#include "ops/conv_attention/strip_gradient_host.h"

namespace fovea::conv_host {

struct SweepPlan {
  ConvAttendBackward b;
  int64_t bundle;  // query heads of an item: whole key heads
  int64_t parts;
  Slot<float> dk, dv;  // within a worker's bytes
  host::PartRows part_dq;
  Slot<double> part_dweight;
  host::WorkerScratch scratch;
  bool sweeps;
  // `worker` holds what the caller needs in a worker's bytes; items: of other runs in the same
  // scratch.
  SweepPlan() = default;
  SweepPlan(const Context& ctx, const Call& call, const ConvAttendBackward& b, int64_t bundle,
            double items, Layout worker, Layout& layout);
};

class Sweep {
 public:
  Sweep(const SweepPlan& plan, const Call& call, void* base);

  // One strip of `heads` heads, from row `row` on.
  struct Visit {
    void* room;  // the worker's
    Sequence q;
    int64_t sequence, head, part, row;
    int64_t begin, end;               // keys
    const StripGradient::Sums* sums;  // of each head
  };
  // Visits every strip of every `heads` heads; `strip` gives the rows it took.  It is a reference
  // to the caller's closure, since a copy of one may allocate.
  class Strip {
   public:
    template <class F>
    Strip(const F& f)
        : body_(&f), call_([](const void* body, const Visit& at) {
            return (*static_cast<const F*>(body))(at);
          }) {}
    int64_t operator()(const Visit& at) const { return call_(body_, at); }

   private:
    const void* body_;
    int64_t (*call_)(const void* body, const Visit& at);
  };
  void run(Context& ctx, int64_t heads, const Strip& strip) const;

  // dq of a visit's n-th head.
  void save_dq(const Visit& at, int64_t n, const conv_host::Strip& own, const float* dq) const;
  double pairs() const;  // rows times keys and heads, for an estimate of cost

 private:
  void clear(host::Pool& pool) const;
  void item(int64_t item, int32_t worker, int64_t heads, const Strip& strip) const;
  double* dweight_of(int64_t sequence, int64_t head, int64_t part) const;
  void add_dweight() const;

  const SweepPlan& plan_;
  const ConvAttendBackward& b_;
  const Call& call_;
  const ConvAttend& c_;
  const Attend& a_;
  void* base_;
};

}  // namespace fovea::conv_host
