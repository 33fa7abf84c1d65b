// SPDX-License-Identifier: Apache-2.0
// quant_forward on the CPU: the recipe of the header over f32 copies of the codes.
//   An item of work is (sequence, head, tile of 64 rows).  It walks tiles of 128 keys from the last
//   to the first: x = k q' (rows in lanes, scales folded into both), softmax, p to e4m3 of 256 p,
//   o = shrink o + p' v.  What an item does depends on shapes and lengths alone.
//   FlashAttention-3 (2407.08608).
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/convert.h"
#include "core/dtype.h"
#include "host/device.h"
#include "host/simd.h"
#include "ops/quant/kernels.h"

namespace fovea {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kRows = 64;
constexpr int64_t kKeys = 128;
constexpr float kLift = 256;  // p is rounded at 2^8 p: most of e4m3's range lies below 1

struct Room {
  Slot<float> q, x, o, k, v;
};

struct HostPlan {
  QuantAttend a;
  int64_t e_pad;
  size_t worker_bytes;
  Room room;
  Slot<unsigned char> scratch;
};

constexpr float kSmallest = 0x1p-6f, kShift = 1.5f * 0x1p14f;

// x in [0, 448] to the nearest e4m3 number.  Adding 1.5 * 2^14 leaves steps of 2^-9, those of
// subnormals.
float rounded_code(float x) {
  const uint32_t bits = bits_of(x);
  const float normal = float_of((bits + 0x7ffffu + (bits >> 20 & 1)) & ~0xfffffu);
  const float small = x + kShift - kShift;
  return x < kSmallest ? small : normal;  // a NaN stays
}

class RowTile {
 public:
  RowTile(const HostPlan& plan, void* room, int64_t r, int64_t head, int64_t first)
      : plan_(plan),
        simd_(host::simd()),
        a_(plan.a.attend),
        seq_(a_.sequences[r]),
        r_(r),
        head_(head),
        first_(first),
        count_(std::min(kRows, seq_.rows - first)),
        lanes_((count_ + simd_.width - 1) / simd_.width * simd_.width),
        q_(plan.room.q.at(room)),
        x_(plan.room.x.at(room)),
        o_(plan.room.o.at(room)),
        k_(plan.room.k.at(room)),
        v_(plan.room.v.at(room)) {}

  void run() {
    if (count_ <= 0) return;
    load_queries();
    find_windows();
    std::fill_n(top_, kRows, -kInf);
    std::fill_n(sum_, kRows, 0.0f);
    std::fill_n(o_, count_ * plan_.e_pad, 0.0f);
    for (int64_t n = (end_ + kKeys - 1) / kKeys - 1; n >= begin_ / kKeys; --n) visit(n * kKeys);
    for (int64_t i = 0; i < count_; ++i) finish(i);
  }

 private:
  int64_t key_head() const { return head_ / (a_.h / a_.g); }

  void load_queries() {
    std::fill_n(q_, a_.d * lanes_, 0.0f);
    for (int64_t i = 0; i < count_; ++i) {
      const E4m3* from = a_.q.as<E4m3>() + seq_.batch * a_.q.stride[0] +
                         (seq_.row_begin + first_ + i) * a_.q.stride[1] + head_ * a_.q.stride[2];
      const float scale = a_.score.scale * plan_.a.q_scale_of(seq_, r_, head_, first_ + i);
      for (int64_t c = 0; c < a_.d; ++c)
        q_[c * lanes_ + i] = to_float(from[c * a_.q.stride[3]]) * scale;
    }
  }

  void find_windows() {
    const Window& w = a_.mask.window;
    begin_ = seq_.keys, end_ = 0;
    for (int64_t i = 0; i < lanes_; ++i) {
      low_[i] = 0, high_[i] = i < count_ ? seq_.keys : 0;
      if (i >= count_) continue;
      const int64_t p = first_ + i + seq_.keys - seq_.rows;
      if (w.right > 0 && w.right < seq_.keys - p) high_[i] = std::max<int64_t>(p + w.right, 0);
      if (w.left > 0 && w.left <= p) low_[i] = p - w.left + 1;
      if (low_[i] >= high_[i]) continue;
      begin_ = std::min(begin_, low_[i]), end_ = std::max(end_, high_[i]);
    }
  }

  void load_keys(int64_t begin, int64_t count) {
    const int64_t g = key_head(), e_pad = plan_.e_pad;
    for (int64_t j = 0; j < count; ++j) {
      const E4m3* from = a_.k.as<E4m3>() + seq_.key_batch * a_.k.stride[0] +
                         (seq_.key_begin + begin + j) * a_.k.stride[1] + g * a_.k.stride[2];
      const float scale = plan_.a.k_scale_of(seq_, r_, g, begin + j);
      for (int64_t c = 0; c < a_.d; ++c)
        k_[j * a_.d + c] = to_float(from[c * a_.k.stride[3]]) * scale;
    }
    const View<4>& v_t = plan_.a.v_t;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t column = plan_.a.permuted ? permuted(begin + j) : begin + j;
      const E4m3* from = v_t ? v_t.as<E4m3>() + seq_.key_batch * v_t.stride[0] + g * v_t.stride[1] +
                                   (plan_.a.v_column(r_) + column) * v_t.stride[3]
                             : a_.v.as<E4m3>() + seq_.key_batch * a_.v.stride[0] +
                                   (seq_.key_begin + begin + j) * a_.v.stride[1] +
                                   g * a_.v.stride[2];
      const int64_t stride = v_t ? v_t.stride[2] : a_.v.stride[3];
      for (int64_t c = 0; c < a_.e; ++c) v_[j * e_pad + c] = to_float(from[c * stride]);
      std::fill_n(v_ + j * e_pad + a_.e, e_pad - a_.e, 0.0f);
    }
  }

  void visit(int64_t begin) {
    const int64_t count = std::min(kKeys, seq_.keys - begin), e_pad = plan_.e_pad;
    load_keys(begin, count);
    simd_.gemm({count, lanes_, a_.d, k_, a_.d, q_, lanes_, x_, lanes_, nullptr, false, false});
    if (a_.score.softcap > 0) simd_.softcap(count * lanes_, x_, a_.score.softcap, nullptr);
    int32_t low[kRows], high[kRows];
    constexpr int32_t none[kRows] = {};
    for (int64_t i = 0; i < lanes_; ++i) {
      low[i] = static_cast<int32_t>(clamp_i64(low_[i] - begin, 0, kKeys));
      high[i] = static_cast<int32_t>(clamp_i64(high_[i] - begin, 0, kKeys));
    }
    simd_.mask(count, lanes_, x_, low, high, none, none);
    float shrink[kRows];
    simd_.softmax(count, lanes_, x_, top_, sum_, shrink);
    for (int64_t i = 0; i < count * lanes_; ++i) x_[i] = rounded_code(x_[i] * kLift);
    simd_.gemm({count_, e_pad, count, x_, lanes_, v_, e_pad, o_, e_pad, shrink, true, true});
  }

  // The sink logit enters here, once.
  void finish(int64_t i) {
    const int64_t row = seq_.row_begin + first_ + i;
    double sum = sum_[i], top = static_cast<double>(top_[i]) * M_LN2, factor = 1;
    if (a_.score.sink_logit) {
      const double sink = a_.score.sink_logit.as()[head_ * a_.score.sink_logit.stride[0]];
      const double high = sum == 0 || sink > top ? sink : top;
      factor = sum == 0 ? 0 : std::exp(top - high);
      if (high != -kInf) sum = sum * factor + std::exp(sink - high);
      top = high;
    }
    const double v_scale = sum == 0 ? 0 : plan_.a.v_scale_of(seq_, r_, key_head());
    factor = sum == 0 || factor == 0 ? 0 : factor * v_scale / (kLift * sum);
    const int64_t to = seq_.batch * a_.o.stride[0] + row * a_.o.stride[1] + head_ * a_.o.stride[2];
    const float* from = o_ + i * plan_.e_pad;
    with_fp(a_.o_dtype, [&](auto o) {
      using O = decltype(o);
      for (int64_t c = 0; c < a_.e; ++c)
        a_.o.as<O>()[to + c * a_.o.stride[3]] =
            from_float<O>(factor == 0 ? 0 : static_cast<float>(from[c] * factor));
    });
    if (a_.lse)
      a_.lse
          .as()[seq_.batch * a_.lse.stride[0] + head_ * a_.lse.stride[1] + row * a_.lse.stride[2]] =
          sum == 0 ? -kInf : static_cast<float>(top + std::log(sum));
  }

  const HostPlan& plan_;
  const host::Simd& simd_;
  const Attend& a_;
  const Sequence seq_;
  const int64_t r_, head_, first_, count_, lanes_;
  float *q_, *x_, *o_, *k_, *v_;
  float top_[kRows], sum_[kRows];
  int64_t low_[kRows], high_[kRows], begin_, end_;
};

std::string offer(const Context& ctx, const QuantAttend& a, Plan& plan) {
  const Attend& call = a.attend;
  const int64_t width = host::simd().width;
  HostPlan p{};
  p.a = a;
  p.e_pad = (call.e + width - 1) / width * width;
  Layout worker;
  p.room.q = worker.add<float>(kRows * call.d);
  p.room.x = worker.add<float>(kRows * kKeys);
  p.room.o = worker.add<float>(kRows * p.e_pad);
  p.room.k = worker.add<float>(kKeys * call.d);
  p.room.v = worker.add<float>(kKeys * p.e_pad);
  p.worker_bytes = worker.bytes();
  const int64_t tiles = (call.sequences.query_max + kRows - 1) / kRows;
  const int64_t items = call.sequences.count * call.h * tiles;
  const int64_t workers = host::workers_for(ctx, static_cast<double>(items));
  p.scratch = plan.workspace.add_all(worker, workers);
  plan.kernel += std::string(".") + host::simd().name + ".d" + std::to_string(call.d);
  plan.launch = [p, tiles, items](Context& context, void* base) {
    const Attend& a = p.a.attend;
    const double cost = static_cast<double>(items * kRows) *
                        static_cast<double>(a.sequences.key_max * (a.d + a.e)) / 10;
    host::pool(context).run(items, cost, [&](int64_t item, int32_t worker) {
      unsigned char* room = p.scratch.at(base) + static_cast<size_t>(worker) * p.worker_bytes;
      // The last tile first: under a causal mask it has most keys.
      RowTile(p, room, item / tiles / a.h, item / tiles % a.h, (tiles - 1 - item % tiles) * kRows)
          .run();
    });
  };
  return "";
}

}  // namespace

extern const Kernel<QuantAttend> quant_forward_host = {"", offer};

}  // namespace fovea
