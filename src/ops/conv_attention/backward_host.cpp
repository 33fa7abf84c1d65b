// SPDX-License-Identifier: Apache-2.0
// conv_attention_backward on the CPU.  An item of work is (sequence, key head, part of the keys):
// it alone owns dk and dv of its keys, kept in f32 while it goes through the strips of rows of
// every query head of the group (strip_gradient_host.h).  Keys around a part's bounds are computed
// in both parts.  With one part dq is complete when the strip is; else the parts' sums are added in
// order, as those of dweight are in any case.  Parts depend on shapes alone: the bits do not change
// with the number of threads.
#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "host/device.h"
#include "ops/conv_attention/strip_gradient_host.h"

namespace fovea {
namespace {

using namespace conv_host;

constexpr double kFlopsPerNanosecond = 25;  // low enough for the slowest instruction set

struct BackwardPlan {
  ConvAttendBackward b;
  int64_t parts;
  size_t worker_bytes;
  GradientRoom room;  // this, dk and dv: within a worker's bytes
  Slot<float> dk, dv;
  Slot<float> part_dq;
  Slot<double> part_dweight;
  Slot<unsigned char> scratch;
  bool sweeps() const { return b.dq || b.dk || b.dv || b.dweight; }
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
      host::zero(pool, b_.dq, a_.dtype, a_.b, a_.s, a_.h, a_.d);
    if (q.key_start || q.key_len || q.key_max < q.capacity) {
      host::zero(pool, b_.dk, a_.dtype, key_batches, a_.t, a_.g, a_.d);
      host::zero(pool, b_.dv, a_.dtype, key_batches, a_.t, a_.g, a_.e);
    }
  }

  void sweep(int64_t item, int32_t worker) {
    const int64_t part = item % plan_.parts, key_head = item / plan_.parts % a_.g;
    const int64_t sequence = item / plan_.parts / a_.g;
    const Sequence q = a_.sequences[sequence];
    const int64_t size = host::part_keys(q.keys, plan_.parts, kKeys);
    const int64_t begin = std::min(q.keys, part * size), end = std::min(q.keys, begin + size);
    void* room = plan_.scratch.at(base_) + static_cast<size_t>(worker) * plan_.worker_bytes;
    StripGradient::Sums sums{plan_.dk.at(room), plan_.dv.at(room), nullptr};
    if (b_.dk) std::fill_n(sums.dk, (end - begin) * call_.d_pad, 0.0f);
    if (b_.dv) std::fill_n(sums.dv, (end - begin) * call_.e_pad, 0.0f);
    for (int64_t head = key_head * call_.group; head < (key_head + 1) * call_.group; ++head) {
      if (b_.dweight) {
        sums.dweight = dweight_of(sequence, head, part);
        std::fill_n(sums.dweight, c_.taps(), 0.0);
      }
      for (int64_t row = 0; row < q.rows;) {
        StripGradient strip(call_, b_, plan_.room, room, q, sequence, head, row);
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
  p.parts = host::gradient_parts(a);
  Layout worker;
  const int64_t keys = p.sweeps() ? host::part_keys(a.sequences.key_max, p.parts, kKeys) : 0;
  p.room = GradientRoom(call, b, worker);
  p.dk = worker.add<float>(b.dk ? keys * call.d_pad : 0);
  p.dv = worker.add<float>(b.dv ? keys * call.e_pad : 0);
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
