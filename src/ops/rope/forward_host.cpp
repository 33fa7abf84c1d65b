// SPDX-License-Identifier: Apache-2.0
// y = x rotated: one item is one token, its heads one after another.
#include "core/dtype.h"
#include "core/locate.h"
#include "core/rotate.h"
#include "host/device.h"
#include "ops/rope/kernels.h"

namespace fovea {
namespace {

template <class T>
void rotate_token(const RopeForward& a, int64_t slot) {
  const Token token = token_at(a.sequences, slot);
  if (token.number < 0) return;
  const Sequence& q = token.sequence;
  const int64_t row = q.row_begin + token.index;
  const int64_t position = a.position ? *a.position.at<int32_t>(q.batch, row) : token.index;
  const Turn turn = turn_at(a.rope, position, a.sign);
  const int64_t units = row_units(a.rope, a.d, 1);
  for (int64_t head = 0; head < a.h; ++head) {
    const T* x = a.x.at<T>(q.batch, row, head);
    T* y = a.y.at<T>(q.batch, row, head);
    const int64_t step_x = a.x.stride[3], step_y = a.y.stride[3];
    for (int64_t unit = 0; unit < units; ++unit)
      rotate_unit<1>(
          a.rope, turn, unit,
          [&](int64_t c, float(&value)[1]) { value[0] = to_float(x[c * step_x]); },
          [&](int64_t c, const float(&value)[1]) { y[c * step_y] = from_float<T>(value[0]); },
          [&](int64_t c) { y[c * step_y] = x[c * step_x]; });
  }
}

Text offer(const Context&, const RopeForward& a, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(a.dtype);
  plan.launch = [a](Context& ctx, void*) {
    if (!a.h || !a.d) return;
    const int64_t slots = token_slots(a.sequences);
    with_fp(a.dtype, [&](auto element) {
      using T = decltype(element);
      host::pool(ctx).run(slots, 2.0 * static_cast<double>(slots * a.h * a.d),
                          [&](int64_t slot, int32_t) { rotate_token<T>(a, slot); });
    });
  };
  return "";
}

}  // namespace

extern const Kernel<RopeForward> rope_forward_host = {"", offer};

}  // namespace fovea
