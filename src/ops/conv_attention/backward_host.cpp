// SPDX-License-Identifier: Apache-2.0
// conv_attention_backward on the CPU.  An item of work is (sequence, key head, part of the keys):
// it alone owns dk and dv of its keys, kept in f32 while it goes through the strips of rows of
// every query head of the group.  A strip slides over its keys with two tiles, rows in lanes:
//   s    scores of the strip and kernel_rows - 1 rows on either side, as in the forward
//   da   p (dp - delta) of the strip and the kernel_rows - 1 rows below it, dp = v dout'
// and for each step adds dv += p dout and dweight += <da, s> of its own rows and keys, then ds, da
// convolved with the turned weights, dk += ds q, dq += ds' k.  Keys around a part's bounds are
// computed in both parts.  With one part dq is complete when the strip is; else the parts' sums are
// added in order, as those of dweight are in any case.  Parts depend on shapes alone: the bits do
// not change with the number of threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "host/device.h"
#include "ops/conv_attention/tile_host.h"

namespace fovea {
namespace {

using namespace conv_host;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896341f;
constexpr int64_t kItemsWanted = 32;  // (sequence, key head) pairs that need no parts
constexpr int64_t kPartKeys = 256;    // the least keys worth a part
constexpr int64_t kPartsMost = 16;
constexpr double kFlopsPerNanosecond = 25;  // low enough for the slowest instruction set

struct Room {
  LogitRoom logits;
  Slot<float> turned, o, dout, dout_columns, p, da, ds, k, v, dq, dk, dv;
};

struct BackwardPlan {
  ConvAttendBackward b;
  int64_t parts;
  size_t worker_bytes;
  Room room;  // within a worker's bytes
  Slot<float> part_dq;
  Slot<double> part_dweight;
  Slot<unsigned char> scratch;
  bool sweeps() const { return b.dq || b.dk || b.dv || b.dweight; }
  bool through_logits() const { return b.dq || b.dk; }
};

int64_t parts_of(const Attend& a) {
  const int64_t items = a.sequences.count * a.g;
  if (items == 0 || items >= kItemsWanted) return 1;
  const int64_t wanted = std::min(kPartsMost, ceil_div(kItemsWanted, items));
  return std::max<int64_t>(1, std::min(wanted, a.sequences.key_max / kPartKeys));
}

int64_t part_keys(int64_t keys, int64_t parts) {
  return ceil_div(ceil_div(keys, parts), kKeys) * kKeys;
}

// One strip of one head against the keys [begin, end) of a part.
class StripGradient {
 public:
  StripGradient(const BackwardPlan& plan, const Call& call, void* room, const Sequence& q,
                int64_t sequence, int64_t head, int64_t first)
      : plan_(plan),
        b_(plan.b),
        call_(call),
        c_(call.c),
        a_(call.a),
        q_(q),
        head_(head),
        out_(c_.rows_of(q, sequence)),
        logits_(call, plan.room.logits, room),
        turned_(plan.room.turned.at(room)),
        o_(plan.room.o.at(room)),
        dout_(plan.room.dout.at(room)),
        dout_columns_(plan.room.dout_columns.at(room)),
        p_(plan.room.p.at(room)),
        da_(plan.room.da.at(room)),
        ds_(plan.room.ds.at(room)),
        k_(plan.room.k.at(room)),
        v_(plan.room.v.at(room)),
        dq_(plan.room.dq.at(room)) {
    const int64_t above = c_.above();
    const int64_t own = std::min(call.own_rows(2 * above), q.rows - first);
    const int64_t below = std::min(own + above, q.rows - first);
    own_ = {first, 0, own, call.padded(own)};
    below_ = {first, clamp_i64(c_.history - first, 0, below), below, call.padded(own + above)};
    const int64_t all = std::min(own + 2 * above, q.rows - first + above);
    halo_ = {first - above, clamp_i64(above - first, 0, above), all, call.padded(own + 2 * above)};
  }

  struct Sums {
    float *dk, *dv;  // of the part's first key
    double* dweight;
  };

  // dq of the strip, [row][d_pad], and the sums of the part go on.
  const float* run(int64_t begin, int64_t end, const Sums& sums) {
    begin_ = begin, end_ = std::min(end, own_.end(c_, q_));
    if (b_.dq) std::fill_n(dq_, own_.count * call_.d_pad, 0.0f);
    if (begin_ >= end_) return dq_;
    load();
    const int64_t kept = c_.kernel_columns - 1, lanes = below_.lanes;
    std::fill_n(da_, kept * lanes, 0.0f);
    const int64_t last = plan_.through_logits() ? end_ + c_.left() : end_;
    const int64_t first =
        plan_.through_logits() ? std::max<int64_t>(0, begin_ - c_.right()) : begin_;
    for (int64_t j = first; j < last; j += kKeys) {
      const int64_t count = std::min(kKeys, last - j);
      make(j, count, sums);
      if (plan_.through_logits()) spread(j, count, sums);
      std::copy(da_ + count * lanes, da_ + (count + kept) * lanes, da_);
    }
    return dq_;
  }

  const Strip& own() const { return own_; }

 private:
  void load() {
    logits_.load(q_, head_, halo_);
    for (int64_t n = 0; n < c_.taps(); ++n) turned_[n] = logits_.weight[c_.taps() - 1 - n];
    const int64_t e_pad = call_.e_pad;
    std::fill_n(lse2_, below_.lanes, kInf);
    std::fill_n(delta_, below_.lanes, 0.0f);
    for (int64_t i = 0; i < below_.count; ++i) {
      float* to = dout_ + i * e_pad;
      std::fill_n(to, e_pad, 0.0f);
      const int64_t out = below_.first + i - c_.history;
      if (out < 0 || out >= out_.count) continue;
      const int64_t row = out_.begin + out;
      const auto read = [&](const View<4>& x, float* values) {
        load_row(call_.simd, x.data, a_.o_dtype,
                 q_.batch * x.stride[0] + row * x.stride[1] + head_ * x.stride[2], x.stride[3],
                 a_.e, values);
      };
      read(b_.dout, to);
      read(a_.o, o_);
      delta_[i] = call_.simd.dot(a_.e, to, o_);
      const float lse = a_.lse.as()[q_.batch * a_.lse.stride[0] + head_ * a_.lse.stride[1] +
                                    row * a_.lse.stride[2]];
      // An empty row: 2^(a - inf) is 0 for every logit.
      lse2_[i] = lse == -kInf ? kInf : lse * kLog2E;
    }
    transpose(dout_, e_pad, below_.count, a_.e, below_.lanes, dout_columns_);
    finite_ = call_.simd.finite(own_.count, a_.d, q_rows(), call_.d_pad) &&
              call_.simd.finite(own_.count, a_.e, dout_, e_pad);
  }

  const float* q_rows() const { return logits_.rows + c_.above() * call_.d_pad; }

  // da of keys [begin, begin + count), and what needs their scores.
  void make(int64_t begin, int64_t count, const Sums& sums) {
    const int64_t lanes = below_.lanes;
    float* da = da_ + (c_.kernel_columns - 1) * lanes;
    const int64_t live = clamp_i64(below_.end(c_, q_) - begin, 0, count);
    std::fill(da + live * lanes, da + count * lanes, 0.0f);
    if (live == 0) return;
    logits_.slide(begin, live);
    logits_.convolve(live, below_, p_);
    KeyTile keys;
    load_keys(call_, q_, head_ / call_.group, a_.v, a_.e, begin, live, false, false, v_, keys);
    call_.simd.gemm({live, lanes, a_.e, keys.x, keys.row, dout_columns_, lanes, da, lanes, nullptr,
                     false, false});
    call_.simd.softmax_backward(live, lanes, p_, da, lse2_, delta_);
    const unsigned char* absent = keys.any_absent ? keys.absent : nullptr;
    hide(c_, q_, below_, begin, live, absent, 0, p_, lanes);
    hide(c_, q_, below_, begin, live, absent, 0, da, lanes);

    const int64_t from = std::max(begin, begin_), mine = std::min(begin + live, end_) - from;
    if (mine <= 0) return;
    const int64_t skip = from - begin;
    if (b_.dweight)
      call_.simd.correlate({mine, own_.count, logits_.s + skip * halo_.lanes, halo_.lanes,
                            da + skip * lanes, lanes, c_.kernel_rows, c_.kernel_columns,
                            sums.dweight});
    if (!b_.dv) return;
    float* dv = sums.dv + (from - begin_) * call_.e_pad;
    const float* p = p_ + skip * lanes;
    if (finite_) {
      call_.simd.gemm({mine, call_.e_pad, own_.count, p, lanes, dout_, call_.e_pad, dv, call_.e_pad,
                       nullptr, false, true});
    } else {
      each_seen(from, mine, absent ? absent + skip : nullptr, below_.low,
                [&](int64_t j, int64_t i) {
                  add(a_.e, p[j * lanes + i], dout_ + i * call_.e_pad, dv + j * call_.e_pad);
                });
    }
  }

  // ds of the keys whose da is complete with [begin, begin + count), and its products.
  void spread(int64_t begin, int64_t count, const Sums& sums) {
    const int64_t from = std::max(begin_, begin - c_.left());
    const int64_t mine = std::min(end_, begin + count - c_.left()) - from;
    if (mine <= 0) return;
    const int64_t lanes = own_.lanes, d_pad = call_.d_pad;
    call_.simd.convolve({mine, lanes, da_ + (from - begin + c_.left()) * below_.lanes, below_.lanes,
                         turned_, c_.kernel_rows, c_.kernel_columns, ds_, lanes});
    KeyTile keys;
    load_keys(call_, q_, head_ / call_.group, a_.k, a_.d, from, mine, true, false, k_, keys);
    const unsigned char* absent = keys.any_absent ? keys.absent : nullptr;
    hide(c_, q_, own_, from, mine, absent, 0, ds_, lanes);
    float* dk = b_.dk ? sums.dk + (from - begin_) * d_pad : nullptr;
    if (finite_ && call_.simd.finite(mine, a_.d, keys.x, keys.row)) {
      if (dk)
        call_.simd.gemm({mine, d_pad, own_.count, ds_, lanes, q_rows(), d_pad, dk, d_pad, nullptr,
                         false, true});
      if (b_.dq)
        call_.simd.gemm({own_.count, d_pad, mine, ds_, lanes, keys.x, keys.row, dq_, d_pad, nullptr,
                         true, true});
      return;
    }
    each_seen(from, mine, absent, 0, [&](int64_t j, int64_t i) {
      const float ds = ds_[j * lanes + i];
      if (dk) add(a_.d, ds, q_rows() + i * d_pad, dk + j * d_pad);
      if (b_.dq) add(a_.d, ds, keys.x + j * keys.row, dq_ + i * d_pad);
    });
  }

  static void add(int64_t width, float factor, const float* from, float* sum) {
    for (int64_t n = 0; n < width; ++n) sum[n] += factor * from[n];
  }

  // 0 * NaN is NaN: f(key, row) for the pairs that see each other, where a factor may be NaN.
  template <class F>
  void each_seen(int64_t begin, int64_t count, const unsigned char* absent, int64_t low,
                 F&& f) const {
    for (int64_t j = 0; j < count; ++j) {
      if (absent && absent[j]) continue;
      for (int64_t i = std::max(low, own_.blind(c_, q_, begin + j)); i < own_.count; ++i) f(j, i);
    }
  }

  const BackwardPlan& plan_;
  const ConvAttendBackward& b_;
  const Call& call_;
  const ConvAttend& c_;
  const Attend& a_;
  const Sequence q_;
  const int64_t head_;
  const ConvAttend::Rows out_;
  Logits logits_;
  float *turned_, *o_, *dout_, *dout_columns_, *p_, *da_, *ds_, *k_, *v_, *dq_;
  Strip own_, below_, halo_;  // the strip; and the rows below it; and those above
  int64_t begin_ = 0, end_ = 0;
  float lse2_[kLanes], delta_[kLanes];
  bool finite_ = true;
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), b_(plan.b), call_(plan.b.forward), c_(call_.c), a_(call_.a), base_(base) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    double pairs = 0;
    for (int64_t r = 0; r < a_.sequences.count; ++r) {
      const Sequence q = a_.sequences[r];
      pairs += static_cast<double>(q.rows) * a_.h * (q.keys + 16.0);
    }
    const double cost = pairs * static_cast<double>(a_.d + a_.e + c_.taps()) / kFlopsPerNanosecond;
    clear(pool);
    if (plan_.sweeps())
      pool.run(a_.sequences.count * a_.g * plan_.parts, 3 * cost,
               [&](int64_t item, int32_t worker) { sweep(item, worker); });
    if (plan_.parts > 1 && b_.dq) {
      const int64_t rows = a_.sequences.query_max;
      pool.run(a_.sequences.count * rows, static_cast<double>(rows) * a_.h * a_.d,
               [&](int64_t item, int32_t) { add_dq(item / rows, item % rows); });
    }
    if (b_.dweight) add_dweight();
  }

 private:
  // Zeros for what no sequence reaches.
  void clear(host::Pool& pool) const {
    const Sequences& q = a_.sequences;
    const int64_t key_batches = q.key_start ? 1 : q.count;
    if (q.query_start || q.query_len || q.query_max < a_.s)
      zero(pool, b_.dq, a_.b, a_.s, a_.h, a_.d);
    if (q.key_start || q.key_len || q.key_max < q.capacity) {
      zero(pool, b_.dk, key_batches, a_.t, a_.g, a_.d);
      zero(pool, b_.dv, key_batches, a_.t, a_.g, a_.e);
    }
  }

  void zero(host::Pool& pool, const View<4>& x, int64_t n0, int64_t n1, int64_t n2,
            int64_t n3) const {
    if (!x) return;
    pool.run(n0 * n1, static_cast<double>(n0) * n1 * n2 * n3 / 4, [&](int64_t item, int32_t) {
      const float nothing = 0;
      for (int64_t i = 0; i < n2; ++i)
        for (int64_t j = 0; j < n3; ++j)
          store_row(
              x.data, a_.dtype,
              item / n1 * x.stride[0] + item % n1 * x.stride[1] + i * x.stride[2] + j * x.stride[3],
              1, 1, &nothing, 1);
    });
  }

  void sweep(int64_t item, int32_t worker) {
    const int64_t part = item % plan_.parts, key_head = item / plan_.parts % a_.g;
    const int64_t sequence = item / plan_.parts / a_.g;
    const Sequence q = a_.sequences[sequence];
    const int64_t size = part_keys(q.keys, plan_.parts);
    const int64_t begin = std::min(q.keys, part * size), end = std::min(q.keys, begin + size);
    void* room = plan_.scratch.at(base_) + static_cast<size_t>(worker) * plan_.worker_bytes;
    StripGradient::Sums sums{plan_.room.dk.at(room), plan_.room.dv.at(room), nullptr};
    if (b_.dk) std::fill_n(sums.dk, (end - begin) * call_.d_pad, 0.0f);
    if (b_.dv) std::fill_n(sums.dv, (end - begin) * call_.e_pad, 0.0f);
    for (int64_t head = key_head * call_.group; head < (key_head + 1) * call_.group; ++head) {
      if (b_.dweight) {
        sums.dweight = dweight_of(sequence, head, part);
        std::fill_n(sums.dweight, c_.taps(), 0.0);
      }
      for (int64_t row = 0; row < q.rows;) {
        StripGradient strip(plan_, call_, room, q, sequence, head, row);
        const float* dq = strip.run(begin, end, sums);
        if (b_.dq) save_dq(q, head, strip.own(), part, dq);
        row += strip.own().count;
      }
    }
    save_keys(b_.dk, q, key_head, begin, end, sums.dk, a_.d, call_.d_pad);
    save_keys(b_.dv, q, key_head, begin, end, sums.dv, a_.e, call_.e_pad);
  }

  double* dweight_of(int64_t sequence, int64_t head, int64_t part) const {
    return plan_.part_dweight.at(base_) +
           ((sequence * a_.h + head) * plan_.parts + part) * c_.taps();
  }

  void store_dq(const Sequence& q, int64_t row, int64_t head, const float* from) const {
    const View<4>& to = b_.dq;
    store_row(to.data, a_.dtype,
              q.batch * to.stride[0] + (q.row_begin + row) * to.stride[1] + head * to.stride[2],
              to.stride[3], a_.d, from, a_.score.scale);
  }

  float* part_row(const Sequence& q, int64_t row, int64_t head, int64_t part) const {
    const int64_t rows = a_.b * a_.s * a_.h;
    return plan_.part_dq.at(base_) +
           (part * rows + (q.batch * a_.s + q.row_begin + row) * a_.h + head) * a_.d;
  }

  void save_dq(const Sequence& q, int64_t head, const Strip& own, int64_t part,
               const float* dq) const {
    for (int64_t i = 0; i < own.count; ++i, dq += call_.d_pad) {
      if (plan_.parts == 1)
        store_dq(q, own.first + i, head, dq);
      else
        std::copy_n(dq, a_.d, part_row(q, own.first + i, head, part));
    }
  }

  void add_dq(int64_t sequence, int64_t row) const {
    const Sequence q = a_.sequences[sequence];
    if (row >= q.rows) return;
    for (int64_t head = 0; head < a_.h; ++head) {
      float* sum = part_row(q, row, head, 0);
      for (int64_t part = 1; part < plan_.parts; ++part) {
        const float* more = part_row(q, row, head, part);
        for (int64_t n = 0; n < a_.d; ++n) sum[n] += more[n];
      }
      store_dq(q, row, head, sum);
    }
  }

  void save_keys(const View<4>& to, const Sequence& q, int64_t key_head, int64_t begin, int64_t end,
                 const float* from, int64_t width, int64_t width_pad) const {
    if (!to) return;
    for (int64_t j = begin; j < end; ++j)
      store_row(to.data, a_.dtype,
                a_.sequences.key_offset(q, j, to.stride) + key_head * to.stride[2], to.stride[3],
                width, from + (j - begin) * width_pad, 1);
  }

  // dweight may be summed over heads, or over taps: stride 0.
  void add_dweight() const {
    const View<3>& to = b_.dweight;
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t head = 0; head < a_.h; ++head)
        for (int64_t n = 0; n < c_.taps(); ++n) {
          float& out = to.as()[head * to.stride[0] + n / c_.kernel_columns * to.stride[1] +
                               n % c_.kernel_columns * to.stride[2]];
          if (pass == 0) {
            out = 0;
            continue;
          }
          double sum = 0;
          for (int64_t r = 0; r < a_.sequences.count; ++r)
            for (int64_t part = 0; part < plan_.parts; ++part) sum += dweight_of(r, head, part)[n];
          out += static_cast<float>(sum);
        }
  }

  const BackwardPlan& plan_;
  const ConvAttendBackward& b_;
  const Call call_;
  const ConvAttend& c_;
  const Attend& a_;
  void* base_;
};

std::string refuses(const Context&, const ConvAttendBackward&) {
  return "";
}

void prepare(const Context& ctx, const ConvAttendBackward& b, Plan& plan) {
  const Call call(b.forward);
  const Attend& a = call.a;
  BackwardPlan p{};
  p.b = b;
  p.parts = parts_of(a);
  Layout worker;
  const int64_t slide = kSlideKeys * kLanes + kSlack;
  const int64_t keys = p.sweeps() ? part_keys(a.sequences.key_max, p.parts) : 0;
  Room& room = p.room;
  room.logits = LogitRoom(call, worker);
  room.turned = worker.add<float>(kTapsMost);
  room.o = worker.add<float>(call.e_pad);
  room.dout = worker.add<float>(kLanes * call.e_pad);
  room.dout_columns = worker.add<float>(kLanes * a.e);
  room.p = worker.add<float>(kKeys * kLanes);
  room.da = worker.add<float>(slide);
  room.ds = worker.add<float>(kKeys * kLanes);
  room.k = worker.add<float>(kKeys * call.d_pad);
  room.v = worker.add<float>(kKeys * call.e_pad);
  room.dq = worker.add<float>(b.dq ? kLanes * call.d_pad : 0);
  room.dk = worker.add<float>(b.dk ? keys * call.d_pad : 0);
  room.dv = worker.add<float>(b.dv ? keys * call.e_pad : 0);
  p.worker_bytes = worker.bytes();
  const int64_t items = std::max<int64_t>(a.sequences.count * a.g * p.parts, 1);
  const int64_t workers = std::min<int64_t>(ctx.threads, items);

  p.part_dq = plan.workspace.add<float>(p.parts > 1 && b.dq ? p.parts * a.b * a.s * a.h * a.d : 0);
  p.part_dweight = plan.workspace.add<double>(
      b.dweight ? a.sequences.count * a.h * p.parts * b.forward.taps() : 0);
  p.scratch = plan.workspace.add<unsigned char>(workers * static_cast<int64_t>(p.worker_bytes));

  plan.kernel +=
      std::string(".") + call.simd.name + "." + dtype_name(a.dtype) + ".d" + std::to_string(a.d);
  plan.launch = [p](Context& context, void* base) { Backward(p, base).run(context); };
}

}  // namespace

extern const Kernel<ConvAttendBackward> conv_attention_backward_host;
const Kernel<ConvAttendBackward> conv_attention_backward_host = {"conv_attention_backward.host",
                                                                 refuses, prepare};

}  // namespace fovea
