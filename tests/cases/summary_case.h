// SPDX-License-Identifier: Apache-2.0
// What the cases of experimental/summary.h share.
#pragma once
#include "cases/table.h"
#include "oracle/tracked.h"

namespace cases {

// Letters of rows or keys that a padded, packed or paged call has.
inline void place_letters(TableCall& made) {
  Letters& x = made.letters;
  x["r"] = x.at("b");
  if (made.has("key_start") || made.has("query_start")) x["r"] = 3, x["b"] = 1;
  x["r+1"] = x["r"] + 1, x["key_b"] = made.has("key_start") ? 1 : x["r"];
  if (made.has("page_table")) {
    x["rows"] = made.has("cache_row") ? x["r"] + 1 : x["r"];
    x["pages"] = (x["t"] + x["page"] - 1) / x["page"], x["pool"] = x["pages"] * x["rows"] + 1;
    x["keys"] = x["pages"] * x["page"];
  }
  x["u+1"] = x["u"] + 1, x["n+1"] = x["n"] + 1;
}

// Ascending from 0 to `total`: the second sequence of three is empty.
inline double start_of(int64_t r, int64_t total) {
  return static_cast<double>(r == 0 ? 0 : r < 3 ? total / 3 : total);
}

// Integers that say where tokens are.
inline double place_value(const TableCall& made, const std::string& field, const int64_t* i) {
  const Letters& x = made.letters;
  const int64_t keys = made.has("page_table") ? x.at("keys") : x.at("t");
  if (field == "key_start") return start_of(i[0], x.at("t"));
  if (field == "query_start") return start_of(i[0], x.at("s"));
  if (field == "key_len")
    return static_cast<double>(i[0] == 0   ? std::max<int64_t>(keys - 2, 0)
                               : i[0] == 1 ? 0
                                           : keys / 2);
  if (field == "query_len")
    return static_cast<double>(i[0] == 0 ? x.at("s") : i[0] == 1 ? 0 : x.at("s") / 2);
  if (field == "old_len") return static_cast<double>(keys / 2 + i[0]);
  if (field == "cache_row") return static_cast<double>(i[0] == 2 ? -1 : x.at("rows") - 1 - i[0]);
  // A page in nine is absent.
  const int64_t n = i[0] * x.at("pages") + i[1];
  return static_cast<double>(n % 9 == 4 ? -1 : (n * 7 + 3) % x.at("pool"));
}

// Only what an oracle has read counts.
inline void count_read(TableCall& made, const char* field, const oracle::Tracked& x) {
  if (!made.has(field)) return;
  const size_t at = made.call.field(field);
  const int64_t rank = made.call.fields[at].tensor.ndim;
  made.call.account(at, [&](const int64_t* i) { return x.was_read(i, rank); });
}

}  // namespace cases
