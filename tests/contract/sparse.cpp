// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

std::string op_of(const Params& p) {
  return std::string(p.op().name) + ": ";
}

// Sizes of blocks, and which fields ask for them.
TEST(ContractSparse, Blocks) {
  for (const char* name : {"x_sparse_forward", "x_sparse_backward"}) {
    const Call made = valid(name, "packed");
    const Params& lists = made.params;
    const std::string op = op_of(lists);
    for (const int64_t bad : {0, -1, 129}) {
      says(with(lists, "block_rows", bad),
           op + "block_rows is " + std::to_string(bad) + ", wanted 1 .. 128");
    }
    for (const int64_t bad : {0, -1, 65537})
      says(with(lists, "block_keys", bad),
           op + "block_keys is " + std::to_string(bad) + ", wanted 1 .. 65536");
    const int64_t keys = std::string(name) == "x_sparse_forward" ? 2 : 1;
    says(with(lists, "entry_keys", keys + 1), op + "entry_keys is " + std::to_string(keys + 1) +
                                                  ", wanted 1 .. " + std::to_string(keys));
    accepts(with(lists, "entry_keys", 1));
    for (const char* field : {"first_keys", "last_keys"}) {
      refuses(with(lists, field, -1), field);
      accepts(with(lists, field, INT64_MAX));
    }
    const Call none = valid(name, "plain");
    says(with(none.params, "block_rows", 1), op + "block_rows is 1, wanted 0 without a list");
    says(with(none.params, "block_keys", 4), op + "block_keys is 4, wanted 0 without index");
    says(with(none.params, "first_keys", 4),
         op + "first_keys is 4 without a list, wanted 0: every key is seen");
    const Call clusters = valid(name, "clusters");
    says(with(clusters.params, "block_rows", 2), op + "block_rows is 2, wanted 0 with row_begin");
    says(with(clusters.params, "entry_keys", 2), op + "entry_keys is 2, wanted 0 with key_begin");
  }
}

TEST(ContractSparse, RowsOfLists) {
  const Call made = valid("x_sparse_forward", "bias");
  const auto rows = [&](int64_t n) {
    Params p = made.params;
    for (const char* name : {"index", "index_count", "index_bias"}) resize(p[name], 2, n);
    return p;
  };
  says(rows(1),
       "x_sparse_forward: the lists have 1 rows (n), wanted at least 2: 3 rows of q in blocks of "
       "2");
  accepts(rows(3));
  Params p = valid("x_sparse_forward", "packed").params;
  for (const char* name : {"index", "index_count"}) resize(p[name], 2, 2);
  says(p,
       "x_sparse_forward: the lists have 2 rows (n), wanted at least 3: 3 rows of q in blocks of "
       "2, and one more for each sequence");
}

// Fields that need one another, or exclude each other.
TEST(ContractSparse, Together) {
  Call all = valid("x_sparse_forward", "all"), bias = valid("x_sparse_forward", "bias");
  Params p = all.params;
  p["tile_bits"].data = nullptr;
  says(p, "x_sparse_forward: tile is given without tile_bits, wanted both");
  p = all.params;
  p["column"].data = nullptr;
  says(p, "x_sparse_forward: column_count is given without column, wanted both");
  p = all.params;
  resize(p["tile_bits"], 2, 2);
  says(p,
       "x_sparse_forward: tile_bits.shape[2] (tile_bytes) is 2, wanted 1: a bit for each of 8 "
       "keys");
  resize(p["tile_bits"], 2, 1), resize(p["tile_bits"], 1, 3);
  says(p, "x_sparse_forward: tile_bits.shape[1] (tile_rows) is 3, wanted block_rows = 2");
  p = bias.params;
  p["head_map"] = all.params["head_map"];
  says(p, "x_sparse_forward: q_value is given with head_map, wanted one of them");
  says(with(bias.params, "block_keys", 2),
       "x_sparse_forward: index_bias is given with block_keys = 2, wanted 1: a bias for each key");
  p = all.params;
  p.at<float>(p.op().find("skip_margin")->offset) = 3;
  accepts(p);
  says(with(p, "splits", 2), "x_sparse_forward: splits is 2 with skip_margin, wanted 0 or 1");
  for (const float bad : {-1.0f, HUGE_VALF, NAN}) {
    p.at<float>(p.op().find("skip_margin")->offset) = bad;
    refuses(p, "skip_margin");
  }
  p = valid("x_sparse_forward", "packed").params;
  Call clusters = valid("x_sparse_forward", "clusters");
  p["row_begin"] = clusters.params["row_begin"];
  p["row_begin"].shape[0] = 1, resize(p["row_begin"], 2, 4);
  refuses(p, "row_begin");
}

}  // namespace
}  // namespace contract
