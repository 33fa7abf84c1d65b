// SPDX-License-Identifier: Apache-2.0
// One strip of rows of the backward against the keys of a part.  It slides over them with two
// tiles, rows in lanes:
//   s    scores of the strip and kernel_rows - 1 rows on either side, as in the forward
//   da   p (dp - delta) of the strip and the kernel_rows - 1 rows below it, dp = v dout'
// A step, of its own rows and keys:
//   dv += p dout,  dweight += <da, s>
//   ds = da convolved with the turned weights,  dk += ds q,  dq += ds' k
#pragma once
#include "ops/conv_attention/tile_host.h"

namespace fovea::conv_host {

// Carved out of a worker's workspace.
struct GradientRoom {
  GradientRoom() = default;
  GradientRoom(const Call& call, const ConvAttendBackward& request, Layout& layout);
  LogitRoom logits;
  Slot<float> turned, taps, o, dout, dout_columns, p, da, ds, k, v, dq;
};

class StripGradient {
 public:
  // The strip of `head` that begins at row `first`.  delta: (b, h, rows_out), where o does not say
  // it.
  StripGradient(const Call& call, const ConvAttendBackward& request, const GradientRoom& room,
                void* base, const Sequence& q, int64_t sequence, int64_t head, int64_t first,
                const float* delta = nullptr);

  struct Sums {
    float *dk, *dv;  // of the part's first key
    double* dweight;
  };
  // Adds what the keys [begin, end) give; the result is dq of the strip, [row][d_pad].
  const float* run(int64_t begin, int64_t end, const Sums& sums);

  // What run() consists of, for heads that meet between the steps.
  struct Step {
    int64_t begin, count;
    int64_t live;  // of its keys, those that some row sees
  };
  void open(int64_t begin, int64_t end);
  // p is A and da dout v' of the step's keys, [key][rows_below().lanes].  false: no more keys.
  bool next(Step& step);
  // p and da in their place.
  void weigh(const Step& step);
  // Of p and da, to the sums.
  void close(const Step& step, const Sums& sums);

  const Strip& own() const { return own_; }
  const Strip& rows_below() const { return below_; }
  float* p() const { return p_; }
  float* da() const { return da_ + (c_.kernel_columns - 1) * below_.lanes; }
  const float* lse2() const { return lse2_; }
  const float* delta() const { return delta_; }
  const float* dq() const { return dq_; }
  // The step's keys of the part itself: their first, and how many.
  int64_t mine(const Step& step, int64_t& from) const;

 private:
  void load();
  // dv and dweight.
  void add_values(const Step& step, const Sums& sums);
  // ds of the keys whose da is complete with the step, and its products.
  void spread(const Step& step, const Sums& sums);
  const float* q_rows() const { return logits_.rows + c_.above() * call_.d_pad; }
  template <class F>
  void each_seen(int64_t begin, int64_t count, int64_t low, F&& f) const;

  const Call& call_;
  const ConvAttendBackward& b_;
  const ConvAttend& c_;
  const Attend& a_;
  const Sequence q_;
  const int64_t head_;
  const ConvAttend::Rows out_;
  const bool through_logits_;  // dq or dk is wanted
  const float* given_delta_;
  Logits logits_;
  float *turned_, *taps_, *o_, *dout_, *dout_columns_, *p_, *da_, *ds_, *k_, *v_, *dq_;
  Strip own_, below_, halo_;  // the strip; and the rows below it; and those above
  int64_t begin_ = 0, end_ = 0, at_ = 0, last_ = 0;
  float lse2_[kLanes], delta_[kLanes];
  bool finite_ = true;
};

}  // namespace fovea::conv_host
