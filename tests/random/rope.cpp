// SPDX-License-Identifier: Apache-2.0
#include "random/draw.h"

namespace random_calls {
namespace {

void table(Draw& d) {
  for (const char* name : {"base", "low_factor", "high_factor"}) d.set(name, 0.0f);
  d.maybe<int64_t>("position_begin", d.one_of({-3, 5, int64_t{1} << 21}));
  const int32_t scaling = d.scalar<int32_t>("scaling");
  if (scaling) d.maybe("factor", 1.5f);
  if (scaling >= 2) d.maybe<int64_t>("original_len", 2048);
}

const Rules kTable({"rope_table_get"}, {.scalars = table});

}  // namespace
}  // namespace random_calls
