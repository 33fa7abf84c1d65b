// SPDX-License-Identifier: Apache-2.0
// x_combine and x_compare on the CPU.  An item is a row of all heads; of a gradient that sums, an
// element; of x_compare, a candidate of a head.  Terms are added in their order.
#include <algorithm>

#include "host/sweep.h"
#include "ops/summary/combine.h"

namespace fovea {
namespace {

constexpr double kElementCost = 3;  // nanoseconds

struct CombineForward {
  const Combine& a;
  CombineForward(const Combine& call, void*) : a(call) {}
  void run(Context& ctx) const {
    const int64_t rows = a.h && a.e ? a.b * a.s : 0;
    host::pool(ctx).run(rows, static_cast<double>(rows * a.h * a.e) * kElementCost,
                        [&](int64_t item, int32_t) {
                          const int64_t batch = item / a.s, i = item % a.s;
                          if (i >= a.rows(batch)) return;
                          const int64_t block = a.u ? a.block_of(batch, i) : -1;
                          for (int64_t head = 0; head < a.h; ++head)
                            for (int64_t c = 0; c < a.e; ++c)
                              combine_store(a, batch, i, head, c, block);
                        });
  }
};

struct CombineBackward {
  const Combine& a;
  CombineBackward(const Combine& call, void*) : a(call) {}
  void run(Context& ctx) const {
    host::Pool& pool = host::pool(ctx);
    each_combine_sum(a, [&](const CombineSum& sum) {
      const int64_t elements = sum.elements(), terms = sum.terms();
      // Parts of one element's terms are no items: elements are apart.
      const int64_t piece = 1024, items = host::ceil_div(elements, piece);
      pool.run(items, static_cast<double>(elements) * static_cast<double>(terms) * kElementCost,
               [&](int64_t item, int32_t) {
                 for (int64_t n = item * piece; n < std::min(elements, (item + 1) * piece); ++n) {
                   double all = 0;
                   for (int64_t term = 0; term < terms; ++term)
                     all += static_cast<double>(sum.value(a, n, term));
                   sum.store(n, static_cast<float>(all));
                 }
               });
    });
    const View<4>& coarse = a.term[kCombineTerms - 1].dx;
    if (!coarse) return;
    pool.run(a.b * a.u, static_cast<double>(a.b * a.s * a.h * a.e) * kElementCost,
             [&](int64_t item, int32_t) {
               for (int64_t head = 0; head < a.h; ++head)
                 for (int64_t c = 0; c < a.e; ++c)
                   store_fp(coarse.data, a.dtype,
                            combine_at(coarse, item / a.u, item % a.u, head, c),
                            combine_dcoarse(a, item / a.u, item % a.u, head, c));
             });
  }
};

struct ComparePlan {
  Compare a;
  Slot<float> distance;  // (n, b, h)
};

struct CompareForward {
  const ComparePlan& plan;
  const Compare& a;
  float* distance;
  CompareForward(const ComparePlan& p, void* base)
      : plan(p), a(p.a), distance(p.distance.at(base)) {}

  void run(Context& ctx) const {
    if (!a.distance && !a.best) return;
    const int64_t heads = a.b * a.h, items = a.n * heads;
    host::pool(ctx).run(items, static_cast<double>(items * a.s * a.e) * kElementCost,
                        [&](int64_t item, int32_t) {
                          const int64_t n = item / heads, b = item / a.h % a.b, h = item % a.h;
                          distance[item] = measure(n, b, h);
                          if (a.distance) *a.distance.at(n, b, h) = distance[item];
                        });
    for (int64_t head = 0; a.best && head < heads; ++head) {
      int32_t best = -1;
      for (int64_t n = 0; n < a.n; ++n)
        if (compare_better(distance[n * heads + head], distance[std::max(best, 0) * heads + head],
                           best >= 0))
          best = static_cast<int32_t>(n);
      *a.best.at<int32_t>(head / a.h, head % a.h) = best;
    }
  }
  float measure(int64_t n, int64_t b, int64_t h) const {
    const int64_t rows = a.rows(b);
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) {
      float own = 0, other = 0, part = 0;
      for (int64_t c = 0; a.jsd && c < a.e; ++c)
        own += a.own(b, i, h, c), other += a.other(n, b, i, h, c);
      for (int64_t c = 0; c < a.e; ++c) {
        const float x = a.own(b, i, h, c), y = a.other(n, b, i, h, c);
        part +=
            a.jsd ? compare_jsd(compare_share(x, own), compare_share(y, other)) : (y - x) * (y - x);
      }
      sum += static_cast<double>(a.jsd ? std::sqrt(part < 0 ? 0.f : part) : part);
    }
    const double count = static_cast<double>(a.jsd ? rows : rows * a.e);
    return count > 0 ? static_cast<float>(sum / count) : 0;
  }
};

}  // namespace

extern const Kernel<Combine> combine_forward_host = {
    "", [](const Context&, const Combine& a, Plan& plan) {
      host::host_plan<CombineForward>(plan, a, host::shape_name(a.dtype, a.e));
      return Text();
    }};

extern const Kernel<Combine> combine_backward_host = {
    "", [](const Context&, const Combine& a, Plan& plan) {
      host::host_plan<CombineBackward>(plan, a, host::shape_name(a.dtype, a.e));
      return Text();
    }};

extern const Kernel<Compare> compare_forward_host = {
    "", [](const Context&, const Compare& a, Plan& plan) {
      ComparePlan p{a, plan.workspace.add<float>(a.n, a.b, a.h)};
      host::host_plan<CompareForward>(plan, p, host::shape_name(a.dtype, a.e));
      return Text();
    }};

}  // namespace fovea
