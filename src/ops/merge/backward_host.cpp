// SPDX-License-Identifier: Apache-2.0
// w_n = exp(lse_n - lse), do_n = w_n dout, dlse_n = w_n (<dout, o_n - o> + dlse): one item is one
// row of one part, all heads.
#include <cmath>

#include "core/convert.h"
#include "core/dtype.h"
#include "host/device.h"
#include "ops/merge/resolve.h"
#include "ops/merge/source_host.h"

namespace fovea {
namespace {

template <class Part, class Out>
void merge_row(const MergeBackward& b, int64_t n, int64_t batch, int64_t j, int64_t head) {
  const Merge& a = b.forward;
  int64_t i = a.row ? a.row_of(n, j) : j;
  if (i < 0 || i >= a.s || a.source_of(n, i) != j) i = -1;
  const float lse_part = a.lse_of(n, batch, head, j);
  float weight = 0, inner = 0;
  const Out* dout = nullptr;  // so it is where there are no columns, too
  const bool counts = i >= 0 && lse_part != -INFINITY;
  if (counts) {
    weight = std::exp(lse_part - *a.lse.at(batch, head, i));
    dout = b.dout.at<Out>(batch, i, head);
  }
  if (b.do_part) {
    Part* out = b.do_part.at<Part>(n, batch, j, head);
    for (int64_t c = 0; c < a.e; ++c)
      out[c * b.do_part.stride[4]] =
          from_float<Part>(counts ? weight * to_float(dout[c * b.dout.stride[3]]) : 0);
  }
  if (!b.dlse_part) return;
  if (counts) {
    const Part* part = a.o_part.at<Part>(n, batch, j, head);
    const Out* o = a.o.at<Out>(batch, i, head);
    for (int64_t c = 0; c < a.e; ++c)
      inner += to_float(dout[c * b.dout.stride[3]]) *
               (to_float(part[c * a.o_part.stride[4]]) - to_float(o[c * a.o.stride[3]]));
    if (b.dlse) inner += *b.dlse.at(batch, head, i);
  }
  *b.dlse_part.at(n, batch, head, j) = counts ? weight * inner : 0;
}

Text offer(const Context&, const MergeBackward& request, Plan& plan) {
  const Slot<int32_t> source = add_source(request.forward, plan);
  plan.kernel += Text(".") + dtype_name(request.forward.part_dtype) + "." +
                 dtype_name(request.forward.o_dtype);
  plan.launch = [request, source](Context& ctx, void* base) {
    MergeBackward b = request;
    Merge& a = b.forward;
    a.source = source.at(base);
    host::Pool& pool = host::pool(ctx);
    invert_rows(pool, a);
    const int64_t rows = a.n * a.b * a.u;
    with_fp(a.part_dtype, [&](auto part) {
      with_fp(a.o_dtype, [&](auto out) {
        pool.run(rows, 2.0 * static_cast<double>(rows * a.h * (a.e + 10)),
                 [&](int64_t item, int32_t) {
                   for (int64_t head = 0; head < a.h; ++head)
                     merge_row<decltype(part), decltype(out)>(b, item / a.u / a.b, item / a.u % a.b,
                                                              item % a.u, head);
                 });
      });
    });
  };
  return "";
}

}  // namespace

extern const Kernel<MergeBackward> merge_backward_host = {"", offer};

}  // namespace fovea
