// SPDX-License-Identifier: Apache-2.0
// quant_forward on the CPU: the recipe of the header over f32 copies of the codes.
//   An item of work is (sequence, head, tile of 64 rows).  It walks tiles of 128 keys from the last
//   to the first: x = k q' (rows in lanes, scales folded into both) + delta + row constant,
//   softmax, p rounded as p_format says, o = shrink o + p' v.  What an item does depends on shapes
//   and lengths alone. FlashAttention-3 (2407.08608), SageAttention (2410.02367, 2411.10958,
//   2505.11594).
#include <cmath>

#include "core/convert.h"
#include "host/sweep.h"
#include "ops/quant/kernels.h"

namespace fovea {
namespace {

using host::kInf;
using host::kRows;

constexpr int64_t kKeys = 128;
constexpr float kSmallest = 0x1p-6f, kShift = 1.5f * 0x1p14f;

struct ForwardPlan {
  QuantAttend a;
  int64_t e_pad;
  host::RowTiles tiles;
  Slot<float> q, x, o, k, v, part;  // within a worker's bytes
  host::WorkerScratch scratch;
};

// x in [0, 448] to the nearest e4m3 number.  Adding 1.5 * 2^14 leaves steps of 2^-9, those of
// subnormals.
float rounded_code(float x) {
  const uint32_t bits = bits_of(x);
  const float normal = float_of((bits + 0x7ffffu + (bits >> 20 & 1)) & ~0xfffffu);
  const float small = x + kShift - kShift;
  return x < kSmallest ? small : normal;  // a NaN stays
}

// Codes of a row as floats that lie `step` apart, times their scales and `factor`.
void load_codes(const CodeRow& from, int64_t count, const ScaleRow& scales, int64_t i, float factor,
                float* to, int64_t step = 1) {
  if (scales.axis.micro()) {
    for (int64_t c = 0; c < count; ++c) to[c * step] = from[c] * scales(i, c) * factor;
    return;
  }
  factor *= scales(i, 0);
  if (from.kind == ValueKind::e4m3) {
    const E4m3* codes = static_cast<const E4m3*>(from.base) + from.at;
    for (int64_t c = 0; c < count; ++c) to[c * step] = to_float(codes[c * from.stride]) * factor;
  } else {
    for (int64_t c = 0; c < count; ++c) to[c * step] = from[c] * factor;
  }
}

class Tile : host::RowTile {
 public:
  Tile(const ForwardPlan& plan, void* room, const Sequence& q, int64_t r, int64_t head,
       int64_t first)
      : host::RowTile(std::min<int64_t>(kRows, q.rows - first)),
        plan_(plan),
        room_(room),
        seq_(q),
        r_(r),
        head_(head),
        first_(first) {
    for (int i = 0; i < count; ++i)
      seen[i] = a_.mask.window.range(a_.mask.query_at(seq_, head_, first_ + i), seq_.keys);
    bound();
  }

  void run() {
    load_queries();
    std::fill_n(top_, kRows, -kInf);
    std::fill_n(sum_, kRows, 0.0f);
    std::fill_n(o_, count * plan_.e_pad, 0.0f);
    for (int64_t n = (end + kKeys - 1) / kKeys - 1; n >= begin / kKeys; --n) visit(n * kKeys);
    for (int64_t i = 0; i < count; ++i) finish(i);
  }

 private:
  int64_t key_head() const { return head_ / (a_.h / a_.g); }

  void load_queries() {
    const ScaleRow scales = plan_.a.q_scales(seq_, r_, head_);
    std::fill_n(q_, a_.d * lanes, 0.0f);
    for (int64_t i = 0; i < count; ++i)
      load_codes(plan_.a.q_codes(seq_, seq_.row_begin + first_ + i, head_), a_.d, scales,
                 first_ + i, a_.score.scale, q_ + i, lanes);
    shifts_ = plan_.a.shifts();
    for (int64_t i = 0; shifts_ && i < count; ++i)
      shift_[i] = a_.score.scale * plan_.a.mean_dot(seq_, r_, head_, first_ + i);
  }

  void load_keys(int64_t first, int64_t keys) {
    const int64_t g = key_head(), e_pad = plan_.e_pad;
    const ScaleRow scales = plan_.a.k_scales(seq_, r_, g), of_v = plan_.a.v_scales(seq_, r_, g);
    const void* values = plan_.a.values().data;
    const int64_t step = plan_.a.value_stride();
    for (int64_t j = 0; j < keys; ++j) {
      load_codes(plan_.a.k_codes(seq_, g, first + j), a_.d, scales, first + j, 1, k_ + j * a_.d);
      const int64_t at = plan_.a.value_at(seq_, r_, g, first + j);
      float* to = v_ + j * e_pad;
      for (int64_t c = 0; c < a_.e; ++c) to[c] = code_value(plan_.a.v_kind, values, at + c * step);
      for (int64_t c = 0; !plan_.a.v_scale_last() && c < a_.e; ++c)
        to[c] *= plan_.a.value_scale(of_v, first + j, c);
      std::fill_n(to + a_.e, e_pad - a_.e, 0.0f);
    }
  }

  // delta and the row constant.
  void add_terms(int64_t first, int64_t keys) {
    if (plan_.a.delta)
      for (int64_t i = 0; i < count; ++i) {
        const float* delta = plan_.a.delta_of(seq_, r_, head_, first_ + i);
        for (int64_t j = 0; j < keys; ++j)
          x_[j * lanes + i] += a_.score.scale * delta[(first + j) * plan_.a.delta.stride[3]];
      }
    if (shifts_)
      for (int64_t j = 0; j < keys; ++j)
        for (int64_t i = 0; i < count; ++i) x_[j * lanes + i] += shift_[i];
  }

  void round_weights(int64_t keys) {
    const int32_t format = plan_.a.p_format;
    const int64_t run = weight_run(format);
    if (format == FOVEA_P_FORMAT_E4M3_256 || format == FOVEA_P_FORMAT_E4M3_448) {
      const float lift = weight_lift(format);
      for (int64_t i = 0; i < keys * lanes; ++i) x_[i] = rounded_code(x_[i] * lift);
      return;
    }
    for (int64_t j = 0; j < keys; j += run)
      for (int64_t i = 0; i < lanes; ++i) {
        const int64_t last = std::min(j + run, keys);
        float most = 0;
        for (int64_t n = j; n < last; ++n) most = std::max(most, x_[n * lanes + i]);
        for (int64_t n = j; n < last; ++n)
          x_[n * lanes + i] = rounded_weight(format, x_[n * lanes + i], most);
      }
  }

  // o = shrink o + p v; the sums of each 64 keys rounded to f16 first, if those are asked for.
  void add_values(int64_t keys, const float* shrink) {
    const int64_t e_pad = plan_.e_pad;
    if (plan_.a.accumulate != FOVEA_ACCUMULATE_HALF_64) {
      simd_.gemm({count, e_pad, keys, x_, lanes, v_, e_pad, o_, e_pad, shrink, true, true});
      return;
    }
    for (int64_t n = (keys - 1) / 64 * 64; n >= 0; n -= 64) {
      simd_.gemm({count, e_pad, std::min<int64_t>(keys - n, 64), x_ + n * lanes, lanes,
                  v_ + n * e_pad, e_pad, part_, e_pad, nullptr, true, false});
      for (int64_t i = 0; i < count; ++i)
        for (int64_t c = 0; c < e_pad; ++c) {
          const float sum = to_float(from_float<F16>(part_[i * e_pad + c]));
          float& o = o_[i * e_pad + c];
          o = n + 64 >= keys ? o * shrink[i] + sum : o + sum;
        }
    }
  }

  void visit(int64_t first) {
    const int64_t keys = std::min(kKeys, seq_.keys - first);
    load_keys(first, keys);
    simd_.gemm({keys, lanes, a_.d, k_, a_.d, q_, lanes, x_, lanes, nullptr, false, false});
    add_terms(first, keys);
    if (a_.score.softcap > 0) simd_.softcap(keys * lanes, x_, a_.score.softcap, nullptr);
    const host::LocalSeen local(*this, first, keys);
    simd_.mask(keys, lanes, x_, local.low, local.high, local.first_low, local.first_high);
    float shrink[kRows];
    simd_.softmax(keys, lanes, x_, top_, sum_, shrink);
    round_weights(keys);
    add_values(keys, shrink);
  }

  // The sink logit enters here, once.
  void finish(int64_t i) {
    double sum = sum_[i], top = static_cast<double>(top_[i]) * M_LN2, factor = 1;
    if (a_.score.sink_logit) {
      const double sink = a_.score.sink_logit.as()[head_ * a_.score.sink_logit.stride[0]];
      const double high = sum == 0 || sink > top ? sink : top;
      factor = sum == 0 ? 0 : std::exp(top - high);
      if (high != -kInf) sum = sum * factor + std::exp(sink - high);
      top = high;
    }
    const double lift = weight_lift(plan_.a.p_format);
    const bool none = sum == 0 || factor == 0;
    const ScaleRow scales = plan_.a.v_scales(seq_, r_, key_head());
    const double share = none ? 0 : factor * sum_[i] / sum;  // of l that keys have
    const float* mean =
        plan_.a.v_mean && share > 0 ? plan_.a.v_mean_of(seq_, r_, key_head()) : nullptr;
    factor = none ? 0 : factor / (lift * sum);
    const int64_t to = host::row_offset(a_.o, seq_, first_ + i, head_);
    const float* from = o_ + i * plan_.e_pad;
    const bool last = plan_.a.v_scale_last();
    with_fp(a_.o_dtype, [&](auto o) {
      using O = decltype(o);
      for (int64_t c = 0; c < a_.e; ++c) {
        double y = none ? 0 : from[c] * factor * (last ? scales(0, c) : 1);
        if (mean) y += share * mean[c * plan_.a.v_mean.stride[3]];
        a_.o.as<O>()[to + c * a_.o.stride[3]] = from_float<O>(static_cast<float>(y));
      }
    });
    if (a_.lse)
      host::row_slot(a_.lse, seq_, head_, first_ + i) =
          sum == 0 ? -kInf : static_cast<float>(top + std::log(sum));
  }

  const ForwardPlan& plan_;
  void* const room_;
  const Sequence seq_;
  const int64_t r_, head_, first_;
  const host::Simd& simd_ = host::simd();
  const Attend& a_ = plan_.a.attend;
  float *const q_ = plan_.q.at(room_), *const x_ = plan_.x.at(room_), *const o_ = plan_.o.at(room_);
  float *const k_ = plan_.k.at(room_), *const v_ = plan_.v.at(room_);
  float* const part_ = plan_.part.at(room_);
  float top_[kRows], sum_[kRows], shift_[kRows];
  bool shifts_ = false;
};

struct Forward {
  const ForwardPlan& plan;
  void* base;

  void run(Context& ctx) const {
    const Attend& a = plan.a.attend;
    const host::RowPlaces tiles = plan.tiles.find(
        base, [&](int64_t r) { return host::ceil_div(a.sequences[r].rows, kRows); });
    const double cost = static_cast<double>(tiles.count() * kRows) *
                        static_cast<double>(a.sequences.key_max * (a.d + a.e)) / 10;
    host::pool(ctx).run(tiles.count(), cost, [&](int64_t item, int32_t worker) {
      const host::RowPlaces::Place at = tiles[item];
      Tile(plan, plan.scratch.at(base, worker), a.sequences[at.sequence], at.sequence, at.head,
           at.tile * kRows)
          .run();
    });
  }
};

Text offer(const Context& ctx, const QuantAttend& a, Plan& plan) {
  const Attend& call = a.attend;
  ForwardPlan p{};
  p.a = a, p.e_pad = host::padded(call.e);
  Layout worker;
  p.q = worker.add<float>(kRows * call.d), p.k = worker.add<float>(kKeys * call.d);
  p.x = worker.add<float>(kRows * kKeys);
  p.o = worker.add<float>(kRows * p.e_pad), p.v = worker.add<float>(kKeys * p.e_pad);
  if (a.accumulate == FOVEA_ACCUMULATE_HALF_64) p.part = worker.add<float>(kRows * p.e_pad);
  p.tiles = host::RowTiles(call.sequences.count, call.h, plan.workspace);
  const int64_t items = host::RowTiles::most(call.sequences, call.h);
  p.scratch = host::WorkerScratch(ctx, static_cast<double>(items), worker, plan.workspace);
  host::host_plan<Forward>(plan, p, ".d" + Text::number(call.d));
  return "";
}

}  // namespace

extern const Kernel<QuantAttend> quant_forward_host = {"", offer};

}  // namespace fovea
