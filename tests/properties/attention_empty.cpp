// SPDX-License-Identifier: Apache-2.0
// A cache of no rows, whose cache_row names none: rows see no keys, and k is not read.
#include <gtest/gtest.h>

#include "harness/bound.h"

namespace {

TEST(attention_forward, a_cache_without_rows) {
  constexpr int64_t kRows = 3, kHeads = 4, kD = 128;
  for (fovea_backend backend : harness::backends()) {
    SCOPED_TRACE(harness::name_of(backend));
    harness::Context ctx(backend);
    const size_t count = kRows * kHeads * kD;
    harness::Memory q(ctx, count * 2), o(ctx, count * 4), start(ctx, 16), row(ctx, 12);
    q.write(std::vector<uint8_t>(count * 2, 0x3c));
    o.write(std::vector<uint8_t>(count * 4, 0xff));
    row.write(std::vector<uint8_t>(12, 0));
    std::vector<uint8_t> starts(16);
    for (int32_t i = 0; i < 4; ++i) std::memcpy(starts.data() + 4 * i, &i, 4);
    start.write(starts);
    const int64_t rows[] = {1, kRows, kHeads, kD}, none[] = {0, 3, 1, kD}, ends[] = {4},
                  three[] = {3};
    fovea_attention_forward_params p = {};
    p.struct_size = sizeof p;
    p.q = fovea_contiguous(q.data, FOVEA_F16, 4, rows);
    p.o = fovea_contiguous(o.data, FOVEA_F32, 4, rows);
    // An address that no process has.
    p.k = p.v = fovea_contiguous(reinterpret_cast<void*>(0x1000), FOVEA_F16, 4, none);
    p.query_start = fovea_contiguous(start.data, FOVEA_I32, 1, ends);
    p.cache_row = fovea_contiguous(row.data, FOVEA_I32, 1, three);
    for (const int32_t splits : {0, 2}) {
      p.splits = splits;
      ASSERT_EQ(fovea_attention_forward(ctx, &p), FOVEA_OK) << fovea_last_error();
      ASSERT_EQ(fovea_context_synchronize(ctx), FOVEA_OK) << fovea_last_error();
      EXPECT_EQ(o.read(), std::vector<uint8_t>(count * 4, 0));
    }
  }
}

}  // namespace
