// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_attention/strip_gradient_host.h"

#include <algorithm>

namespace fovea::conv_host {
namespace {

constexpr float kLog2E = 1.44269504088896341f;

}  // namespace

GradientRoom::GradientRoom(const Call& call, const ConvAttendBackward& request, Layout& layout)
    : logits(call, layout) {
  turned = layout.add<float>(kTapsMost);
  taps = layout.add<float>(request.dweight ? kTapsMost * call.simd.width : 0);
  o = layout.add<float>(call.e_pad);
  dout = layout.add<float>(kLanes * call.e_pad);
  dout_columns = layout.add<float>(kLanes * call.a.e);
  p = layout.add<float>(kKeys * kLanes);
  da = layout.add<float>(kSlideKeys * kLanes + kSlack);
  ds = layout.add<float>(kKeys * kLanes);
  k = layout.add<float>(kKeys * call.d_pad);
  v = layout.add<float>(kKeys * call.e_pad);
  dq = layout.add<float>(request.dq ? kLanes * call.d_pad : 0);
}

StripGradient::StripGradient(const Call& call, const ConvAttendBackward& request,
                             const GradientRoom& room, void* base, const Sequence& q,
                             int64_t sequence, int64_t head, int64_t first, const float* delta)
    : call_(call),
      b_(request),
      c_(call.c),
      a_(call.a),
      q_(q),
      head_(head),
      out_(c_.rows_of(q, sequence)),
      through_logits_(request.dq || request.dk),
      given_delta_(delta),
      logits_(call, room.logits, base),
      turned_(room.turned.at(base)),
      taps_(room.taps.at(base)),
      o_(room.o.at(base)),
      dout_(room.dout.at(base)),
      dout_columns_(room.dout_columns.at(base)),
      p_(room.p.at(base)),
      da_(room.da.at(base)),
      ds_(room.ds.at(base)),
      k_(room.k.at(base)),
      v_(room.v.at(base)),
      dq_(room.dq.at(base)) {
  const int64_t above = c_.above(), left = q.rows - first;
  const int64_t own = std::min(call.own_rows(2 * above), left);
  const int64_t below = std::min(own + above, left);
  own_ = {first, 0, own, call.padded(own)};
  below_ = {first, clamp_i64(c_.history - first, 0, below), below, call.padded(own + above)};
  halo_ = {first - above, clamp_i64(above - first, 0, above), above + below,
           call.padded(own + 2 * above)};
}

const float* StripGradient::run(int64_t begin, int64_t end, const Sums& sums) {
  open(begin, end);
  for (Step step; next(step);) {
    weigh(step);
    close(step, sums);
  }
  return dq_;
}

void StripGradient::open(int64_t begin, int64_t end) {
  begin_ = begin, end_ = std::min(end, own_.end(c_, q_));
  if (b_.dq) std::fill_n(dq_, own_.count * call_.d_pad, 0.0f);
  at_ = last_ = 0;
  if (begin_ >= end_) return;
  load();
  std::fill_n(da_, (c_.kernel_columns - 1) * below_.lanes, 0.0f);
  at_ = through_logits_ ? std::max<int64_t>(0, begin_ - c_.right()) : begin_;
  last_ = through_logits_ ? end_ + c_.left() : end_;
}

bool StripGradient::next(Step& step) {
  if (at_ >= last_) return false;
  const int64_t lanes = below_.lanes;
  step = {at_, std::min(kKeys, last_ - at_), 0};
  at_ += step.count;
  step.live = clamp_i64(below_.end(c_, q_) - step.begin, 0, step.count);
  std::fill(da() + step.live * lanes, da() + step.count * lanes, 0.0f);
  if (step.live == 0) return true;
  logits_.slide(step.begin, step.live);
  logits_.convolve(step.live, below_, p_);
  const host::KeyRows values = load_keys(call_, q_, head_ / call_.group, a_.v, a_.e, step.begin,
                                         step.live, {false}, nullptr, v_);
  call_.simd.gemm({step.live, lanes, a_.e, values.x, values.row, dout_columns_, lanes, da(), lanes,
                   nullptr, false, false});
  return true;
}

void StripGradient::weigh(const Step& step) {
  if (step.live == 0) return;
  const int64_t lanes = below_.lanes;
  call_.simd.softmax_backward(step.live, lanes, p_, da(), lse2_, delta_);
  hide(c_, q_, below_, step.begin, step.live, nullptr, 0, p_, lanes);
  hide(c_, q_, below_, step.begin, step.live, nullptr, 0, da(), lanes);
}

void StripGradient::close(const Step& step, const Sums& sums) {
  add_values(step, sums);
  if (through_logits_) spread(step, sums);
  const int64_t kept = c_.kernel_columns - 1, lanes = below_.lanes;
  std::copy(da_ + step.count * lanes, da_ + (step.count + kept) * lanes, da_);
}

int64_t StripGradient::mine(const Step& step, int64_t& from) const {
  from = std::max(step.begin, begin_);
  return std::min(step.begin + step.live, end_) - from;
}

void StripGradient::load() {
  logits_.load(q_, head_, halo_);
  for (int64_t n = 0; n < c_.taps(); ++n) turned_[n] = logits_.weight[c_.taps() - 1 - n];
  const int64_t e_pad = call_.e_pad;
  Sequence rows = q_;
  rows.row_begin = out_.begin;
  std::fill_n(lse2_, below_.lanes, kInf);
  std::fill_n(delta_, below_.lanes, 0.0f);
  for (int64_t i = 0; i < below_.count; ++i) {
    float* to = dout_ + i * e_pad;
    std::fill_n(to, e_pad, 0.0f);
    const int64_t out = below_.first + i - c_.history;
    if (out < 0 || out >= out_.count) continue;
    const auto read = [&](const View<4>& x, float* values) {
      load_row(call_.simd, x.data, a_.o_dtype, row_offset(x, rows, out, head_), x.stride[3], a_.e,
               values);
    };
    read(b_.dout, to);
    if (given_delta_) {
      delta_[i] = given_delta_[(q_.batch * a_.h + head_) * c_.rows_out + out_.begin + out];
    } else if (a_.o) {
      read(a_.o, o_);
      delta_[i] = call_.simd.dot(a_.e, to, o_);
    }
    const float lse = row_value(a_.lse, rows, head_, out);
    // An empty row: 2^(a - inf) is 0 for every logit.
    lse2_[i] = lse == -kInf ? kInf : lse * kLog2E;
  }
  transpose(dout_, e_pad, below_.count, a_.e, below_.lanes, dout_columns_);
  finite_ = call_.simd.finite(own_.count, a_.d, q_rows(), call_.d_pad) &&
            call_.simd.finite(own_.count, a_.e, dout_, e_pad);
}

// 0 * NaN is NaN: f(key, row) for the pairs that see each other, where a factor may be NaN.
template <class F>
void StripGradient::each_seen(int64_t begin, int64_t count, int64_t low, F&& f) const {
  for (int64_t j = 0; j < count; ++j)
    for (int64_t i = std::max(low, own_.blind(c_, q_, begin + j)); i < own_.count; ++i) f(j, i);
}

void StripGradient::add_values(const Step& step, const Sums& sums) {
  int64_t from;
  const int64_t mine = this->mine(step, from), lanes = below_.lanes;
  if (mine <= 0) return;
  const int64_t skip = from - step.begin;
  if (b_.dweight)
    call_.simd.correlate({mine, own_.count, logits_.s + skip * halo_.lanes, halo_.lanes,
                          da() + skip * lanes, lanes, c_.kernel_rows, c_.kernel_columns,
                          sums.dweight, taps_});
  if (!b_.dv) return;
  float* dv = sums.dv + (from - begin_) * call_.e_pad;
  const float* p = p_ + skip * lanes;
  if (finite_) {
    call_.simd.gemm({mine, call_.e_pad, own_.count, p, lanes, dout_, call_.e_pad, dv, call_.e_pad,
                     nullptr, false, true});
  } else {
    each_seen(from, mine, below_.low, [&](int64_t j, int64_t i) {
      host::add_row(a_.e, p[j * lanes + i], dout_ + i * call_.e_pad, dv + j * call_.e_pad);
    });
  }
}

void StripGradient::spread(const Step& step, const Sums& sums) {
  const int64_t begin = step.begin, count = step.count;
  const int64_t from = std::max(begin_, begin - c_.left());
  const int64_t mine = std::min(end_, begin + count - c_.left()) - from;
  if (mine <= 0) return;
  const int64_t lanes = own_.lanes, d_pad = call_.d_pad;
  call_.simd.convolve({mine, lanes, da_ + (from - begin + c_.left()) * below_.lanes, below_.lanes,
                       turned_, c_.kernel_rows, c_.kernel_columns, ds_, lanes});
  const host::KeyRows keys =
      load_keys(call_, q_, head_ / call_.group, a_.k, a_.d, from, mine, {true}, nullptr, k_);
  hide(c_, q_, own_, from, mine, nullptr, 0, ds_, lanes);
  float* dk = b_.dk ? sums.dk + (from - begin_) * d_pad : nullptr;
  if (finite_ && call_.simd.finite(mine, a_.d, keys.x, keys.row)) {
    if (dk)
      call_.simd.gemm(
          {mine, d_pad, own_.count, ds_, lanes, q_rows(), d_pad, dk, d_pad, nullptr, false, true});
    if (b_.dq)
      call_.simd.gemm(
          {own_.count, d_pad, mine, ds_, lanes, keys.x, keys.row, dq_, d_pad, nullptr, true, true});
    return;
  }
  each_seen(from, mine, 0, [&](int64_t j, int64_t i) {
    const float ds = ds_[j * lanes + i];
    if (dk) host::add_row(a_.d, ds, q_rows() + i * d_pad, dk + j * d_pad);
    if (b_.dq) host::add_row(a_.d, ds, keys.x + j * keys.row, dq_ + i * d_pad);
  });
}

}  // namespace fovea::conv_host
