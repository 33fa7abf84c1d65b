// SPDX-License-Identifier: Apache-2.0
#include "random/draw.h"

namespace random_calls {
namespace {

void kernel(Draw& d) {
  d.x("kernel_rows") = d.one_of({1, 1, 2, 3, 4, 6, 6, 7, 16});
  d.x("kernel_columns") = d.one_of({1, 2, 3, 5, 7, 11, 11, 31});
  d.taps = 1 + 0.1 * static_cast<double>(d.x("kernel_rows") * d.x("kernel_columns"));
  int64_t& group = d.x("group_heads") = d.x("h");
  while (group > 16 || (group > 1 && d.one_in(2))) group = group % 2 || group > 64 ? 1 : group / 2;
}

void history(Draw& d) {
  auto& rows = d.scalar<int64_t>("history");
  const int64_t each = d.packed_rows() ? d.x("s") / std::max<int64_t>(1, d.x("r")) : d.x("s");
  if (d.one_in(2)) rows = std::min(each, d.below(d.x("kernel_rows") + 2));
  d.x("rows_out") = d.x("s") - (d.packed_rows() ? d.x("r") : 1) * rows;
}

// Many taps make scores large.
bool many_taps(const Call& call) {
  int64_t taps = 1;
  for (const Tensor& x : call.tensors) {
    if (x.field->name == "mix_before") taps *= x.view.shape[1];
    if (x.field->name == "weight") taps *= x.view.shape[1] * x.view.shape[2];
  }
  return taps > 24;
}

const Rules kConvolved({"conv_attention_", "x_multi_token_"},
                       {.letters = kernel, .extents = history, .rough = many_taps});

}  // namespace
}  // namespace random_calls
