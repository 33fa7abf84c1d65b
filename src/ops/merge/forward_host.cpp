// SPDX-License-Identifier: Apache-2.0
// lse = ln sum_n exp(lse_n), o = sum_n exp(lse_n - lse) o_n: one item is one row of o, all heads.
#include <cmath>
#include <vector>

#include "core/convert.h"
#include "core/dtype.h"
#include "host/device.h"
#include "ops/merge/resolve.h"
#include "ops/merge/source_host.h"

namespace fovea {
namespace {

// Columns held at once while the parts pass by.
constexpr int64_t kColumns = 128;

template <class Part, class Out>
void merge_row(const Merge& a, int64_t batch, int64_t i, int64_t head) {
  const auto lse_of = [&](int64_t n) {
    const int64_t j = a.source_of(n, i);
    return j < 0 ? -INFINITY : a.lse_of(n, batch, head, j);
  };
  float m = -INFINITY, l = 0;
  for (int64_t n = 0; n < a.n; ++n) m = greater(m, lse_of(n));
  for (int64_t n = 0; n < a.n; ++n)
    if (lse_of(n) != -INFINITY) l += std::exp(lse_of(n) - m);

  Out* out = a.o.at<Out>(batch, i, head);
  for (int64_t begin = 0; begin < a.e; begin += kColumns) {
    const int64_t width = std::min(kColumns, a.e - begin);
    float sum[kColumns] = {};
    for (int64_t n = 0; n < a.n; ++n) {
      const float lse = lse_of(n);
      if (lse == -INFINITY) continue;
      const float weight = std::exp(lse - m);
      const Part* part = a.o_part.at<Part>(n, batch, a.source_of(n, i), head, begin);
      for (int64_t c = 0; c < width; ++c) sum[c] += weight * to_float(part[c * a.o_part.stride[4]]);
    }
    for (int64_t c = 0; c < width; ++c)
      out[(begin + c) * a.o.stride[3]] = from_float<Out>(m == -INFINITY ? 0 : sum[c] / l);
  }
  // After the last read of lse_part, which it may be.
  if (a.lse) *a.lse.at(batch, head, i) = m == -INFINITY ? m : m + std::log(l);
}

Text offer(const Context&, const Merge& request, Plan& plan) {
  const Slot<int32_t> source = add_source(request, plan);
  plan.kernel += Text(".") + dtype_name(request.part_dtype) + "." + dtype_name(request.o_dtype);
  plan.launch = [request, source](Context& ctx, void* base) {
    Merge a = request;
    a.source = source.at(base);
    host::Pool& pool = host::pool(ctx);
    invert_rows(pool, a);
    const double cost =
        static_cast<double>(a.b * a.s * a.h) * static_cast<double>(a.n * (a.e + 20));
    with_fp(a.part_dtype, [&](auto part) {
      with_fp(a.o_dtype, [&](auto out) {
        pool.run(a.b * a.s, cost, [&](int64_t item, int32_t) {
          for (int64_t head = 0; head < a.h; ++head)
            merge_row<decltype(part), decltype(out)>(a, item / a.s, item % a.s, head);
        });
      });
    });
  };
  return "";
}

}  // namespace

extern const Kernel<Merge> merge_forward_host = {"", offer};

}  // namespace fovea
