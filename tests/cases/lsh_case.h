// SPDX-License-Identifier: Apache-2.0
// Tables as experimental/lsh.h lays them out, made from codes that a case knows, and what of them
// counts in a call.
#pragma once
#include "cases/table.h"
#include "oracle/lsh.h"

namespace cases {

// The code of a key or a query: those of one of a few kinds have many codes in common.  One in
// thirteen is in no bucket.
inline int64_t drawn_code(int64_t b, int64_t g, int64_t l, int64_t row, int64_t buckets) {
  const auto mixed = [](std::initializer_list<int64_t> parts) {
    uint64_t x = 77;
    for (const int64_t part : parts) x = harness::hash(x ^ static_cast<uint64_t>(part));
    return x;
  };
  const uint64_t own = mixed({b, g, l, row});
  if (own % 13 == 0) return own & 64 ? -1 - static_cast<int64_t>(own % 5) : buckets;
  const uint64_t kind = mixed({b, g, l, -1 - row % 7});
  return static_cast<int64_t>((own & 128 ? kind : own) / 1024 %
                              static_cast<uint64_t>(std::max<int64_t>(1, buckets)));
}

// Fills bucket and link of a call; `used` says which buckets the call reads.
inline void fill_tables(TableCall& made, const oracle::CodeOf& code,
                        const std::function<int64_t(int64_t b)>& held, const oracle::Dense& code_q,
                        const std::function<int64_t(int64_t b)>& rows, int64_t group) {
  const int64_t buckets = made.letters.at("buckets");
  const auto reads = [&](int64_t b, int64_t g, int64_t l, int64_t c) {
    for (int64_t i = 0; i < rows(b); ++i)
      for (int64_t n = 0; n < group; ++n)
        if (static_cast<int64_t>(code_q(b, i, g * group + n, l)) == c) return true;
    return false;
  };
  const auto inside = [=](int64_t c) { return c >= 0 && c < buckets; };
  const size_t bucket = made.call.field("bucket"), link = made.call.field("link");
  made.call.fill(bucket, [&](const int64_t* i) {
    return static_cast<double>(oracle::highest(code, i[0], i[1], i[2], i[3], held(i[0])));
  });
  made.call.fill(link, [&](const int64_t* i) {
    const int64_t own = code(i[0], i[1], i[2], i[3]);
    if (i[3] >= held(i[0]) || !inside(own)) return 0.0;
    return static_cast<double>(oracle::highest(code, i[0], i[1], i[2], own, i[3]));
  });
  made.call.account(bucket, [&](const int64_t* i) { return reads(i[0], i[1], i[2], i[3]); });
  made.call.account(link, [&](const int64_t* i) {
    const int64_t own = code(i[0], i[1], i[2], i[3]);
    return i[3] < held(i[0]) && inside(own) && reads(i[0], i[1], i[2], own);
  });
}

// Keys of k or v that stand in no list do not count.
inline void count_kept(TableCall& made, const char* field, const oracle::LshResult& lists) {
  if (!made.has(field)) return;
  const int64_t g = made.letters.at("g");
  made.call.account(made.call.field(field), [&](const int64_t* i) {
    return lists.kept[static_cast<size_t>(i[0] * g + i[2])].count(i[1]) != 0;
  });
}

}  // namespace cases
