// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_attention/backward_sweep_host.h"

#include <algorithm>
#include <array>

#include "ops/conv_attention/mixed.h"

namespace fovea::conv_host {

SweepPlan::SweepPlan(const Context& ctx, const Call& call, const ConvAttendBackward& request,
                     int64_t heads, double items, Layout worker, Layout& layout)
    : b(request), bundle(heads), parts(host::gradient_parts(call.a)) {
  sweeps = b.dq || b.dk || b.dv || b.dweight;
  const Attend& a = call.a;
  const int64_t keys = sweeps ? host::part_keys(a.sequences.key_max, parts, kKeys) : 0;
  const int64_t key_heads = bundle / std::max<int64_t>(call.group, 1);
  dk = worker.add<float>(b.dk ? key_heads : 0, keys, call.d_pad);
  dv = worker.add<float>(b.dv ? key_heads : 0, keys, call.e_pad);
  const int64_t bundles = bundle ? a.h / bundle : 0;
  items = std::max(items,
                   static_cast<double>(a.sequences.count) * static_cast<double>(bundles * parts));
  part_dq = host::PartRows(a, {b.dq, a.dtype}, parts, layout);
  part_dweight =
      layout.add<double>(b.dweight ? parts : 0, a.sequences.count, a.h, b.forward.taps());
  scratch = host::WorkerScratch(ctx, items, worker, layout);
}

Sweep::Sweep(const SweepPlan& plan, const Call& call, void* base)
    : plan_(plan), b_(plan.b), call_(call), c_(call.c), a_(call.a), base_(base) {}

double Sweep::pairs() const {
  return host::pairs_of(a_.sequences) * static_cast<double>(a_.h);
}

void Sweep::run(Context& ctx, int64_t heads, const Strip& strip) const {
  host::Pool& pool = host::pool(ctx);
  const double cost = pairs() * static_cast<double>(a_.d + a_.e + c_.taps()) / kFlopsPerNanosecond;
  clear(pool);
  if (plan_.sweeps && plan_.bundle)
    pool.run(a_.sequences.count * (a_.h / plan_.bundle) * plan_.parts, 3 * cost,
             [&](int64_t n, int32_t worker) { item(n, worker, heads, strip); });
  plan_.part_dq.combine(pool, base_, a_);
  if (b_.dweight) add_dweight();
}

// Zeros for what no sequence reaches, nor, of keys, any query head.
void Sweep::clear(host::Pool& pool) const {
  const Sequences& q = a_.sequences;
  host::zero_rows(pool, b_.dq, a_.dtype, q, a_.b, a_.h, a_.d);
  const auto clear_keys = [&](const View<4>& x, int64_t width) {
    if (a_.h) return host::zero_keys(pool, x, a_.dtype, q, a_.t, a_.g, width);
    host::zero(pool, x, a_.dtype, q.key_start ? 1 : q.count, a_.t, a_.g, width);
  };
  clear_keys(b_.dk, a_.d), clear_keys(b_.dv, a_.e);
}

void Sweep::item(int64_t item, int32_t worker, int64_t heads, const Strip& strip) const {
  const int64_t part = item % plan_.parts, bundles = a_.h / plan_.bundle;
  const int64_t first = item / plan_.parts % bundles * plan_.bundle;
  const int64_t sequence = item / plan_.parts / bundles;
  Visit at{};
  at.room = plan_.scratch.at(base_, worker);
  at.q = a_.sequences[sequence], at.sequence = sequence, at.head = first, at.part = part;
  const int64_t size = host::part_keys(at.q.keys, plan_.parts, kKeys);
  at.begin = std::min(at.q.keys, part * size), at.end = std::min(at.q.keys, at.begin + size);
  const int64_t keys = at.end - at.begin, key_heads = plan_.bundle / call_.group;
  float *dk = plan_.dk.at(at.room), *dv = plan_.dv.at(at.room);
  if (b_.dk) std::fill_n(dk, key_heads * keys * call_.d_pad, 0.0f);
  if (b_.dv) std::fill_n(dv, key_heads * keys * call_.e_pad, 0.0f);
  std::array<StripGradient::Sums, kGroupHeadsMost> sums{};
  at.sums = sums.data();
  const bool visits = at.q.rows > 0 || b_.dweight;
  for (; visits && at.head < first + plan_.bundle; at.head += heads) {
    for (int64_t n = 0; n < heads; ++n) {
      const int64_t own = (at.head + n - first) / call_.group;
      sums[n] = {b_.dk ? dk + own * keys * call_.d_pad : nullptr,
                 b_.dv ? dv + own * keys * call_.e_pad : nullptr, nullptr};
      if (!b_.dweight) continue;
      sums[n].dweight = dweight_of(sequence, at.head + n, part);
      std::fill_n(sums[n].dweight, c_.taps(), 0.0);
    }
    for (at.row = 0; at.row < at.q.rows;) at.row += strip(at);
  }
  for (int64_t n = 0; n < key_heads; ++n) {
    const int64_t key_head = first / call_.group + n;
    const auto store = [&](const View<4>& to, const float* from, int64_t width, int64_t pad) {
      host::store_keys(to, a_.dtype, a_.sequences, at.q, at.begin, at.end, key_head, width,
                       from + n * keys * pad, pad);
    };
    store(b_.dk, dk, a_.d, call_.d_pad), store(b_.dv, dv, a_.e, call_.e_pad);
  }
}

double* Sweep::dweight_of(int64_t sequence, int64_t head, int64_t part) const {
  return plan_.part_dweight.at(base_) + ((sequence * a_.h + head) * plan_.parts + part) * c_.taps();
}

void Sweep::save_dq(const Visit& at, int64_t n, const conv_host::Strip& own,
                    const float* dq) const {
  for (int64_t i = 0; i < own.count; ++i, dq += call_.d_pad)
    plan_.part_dq.save(base_, a_, at.q, own.first + i, at.head + n, at.part, dq);
}

// dweight may be summed over heads, or over taps.
void Sweep::add_dweight() const {
  const View<3>& to = b_.dweight;
  const int64_t taps = c_.taps();
  host::store_sums(
      a_.h * taps,
      [&](int64_t n) -> float& {
        return *to.at(n / taps, n % taps / c_.kernel_columns, n % taps % c_.kernel_columns);
      },
      [&](int64_t n) {
        double sum = 0;
        for (int64_t r = 0; r < a_.sequences.count; ++r)
          for (int64_t part = 0; part < plan_.parts; ++part)
            sum += dweight_of(r, n / taps, part)[n % taps];
        return sum;
      });
}

}  // namespace fovea::conv_host
