// SPDX-License-Identifier: Apache-2.0
// A call of words whose keys lie contiguous, packed, in pages or in a cache: what extents follow
// from these words, the integers that say where tokens are, and which inputs then count.
#pragma once
#include "cases/table.h"
#include "oracle/sequence.h"

namespace cases {

// Where rows and keys of a call lie, as another operation's oracle reads it.
template <class P>
fovea_x_sparse_forward_params placed(const P& p) {
  fovea_x_sparse_forward_params to{};
  to.q = p.q, to.k = p.k, to.v = p.v, to.query_start = p.query_start;
  to.key_start = p.key_start, to.query_len = p.query_len, to.key_len = p.key_len;
  to.page_table = p.page_table, to.cache_row = p.cache_row;
  to.query_max = p.query_max, to.key_max = p.key_max;
  return to;
}

class Placed {
 public:
  Placed(const char* op, const std::string& words, uint64_t seed)
      : made(op, words, seed), random_(seed) {
    Letters& x = made.letters;
    data = x.count("data") ? x.at("data") : 0;
    x["r"] = x["b"];
    if (made.has("query_start") || made.has("key_start")) x["r"] = 3;
    if (made.has("query_start")) x["b"] = 1;
    if (made.has("key_start") && !made.has("query_start")) x["b"] = 3;
    x["r+1"] = x["r"] + 1;
    x["rows"] = made.has("key_start") ? 1 : made.has("cache_row") ? x["r"] + 2 : x["r"];
    if (made.has("page_table")) {
      x["pages"] = (x["t"] + x["page"] - 1) / x["page"];
      x["pool"] = x["pages"] * x["rows"] + 2;
    }
    capacity = made.has("page_table") ? x["pages"] * x["page"] : x["t"];
  }

  // As TableCall::inputs, with pages for what lies in pages.
  void inputs() {
    if (!made.has("page_table")) return made.inputs();
    const int64_t rows = made.letters["rows"], t = made.letters["t"];
    made.letters["rows"] = made.letters["pool"], made.letters["t"] = made.letters["page"];
    made.inputs({"page_table", "block_k"});
    made.letters["rows"] = rows, made.letters["t"] = t;
    for (const char* field : {"page_table", "block_k"})
      if (made.has(field)) made.input(field);
  }

  // value(field, index, normal number, uniform number) of what says no place.
  template <class Value>
  void fill(Value value) {
    harness::Call& call = made.call;
    for (size_t f = 0; f < call.fields.size(); ++f) {
      const std::string& field = call.fields[f].name;
      uint64_t n = harness::hash(f) % (1 << 30);
      call.fill(f, [&](const int64_t* i) {
        double x = 0;
        ++n;
        return place(field, i, x) ? x : value(field, i, random_.normal(n), random_.uniform(n));
      });
    }
  }

  // Rows and keys of a sequence count, whatever a window hides.
  void account(const oracle::Layout& at, int64_t sequences,
               std::initializer_list<const char*> of_rows,
               std::initializer_list<const char*> of_keys) {
    std::map<std::array<int64_t, 2>, bool> rows, keys, entries;
    for (int64_t r = 0; r < sequences; ++r) {
      const oracle::Sequence q = oracle::sequence(at, r);
      for (int64_t i = 0; i < q.rows; ++i) rows[{q.batch, q.row + i}] = true;
      for (int64_t j = 0; j < q.keys; ++j) {
        if (at.page) entries[{q.cache, (q.store + j) / at.page}] = true;
        const oracle::Place p = oracle::place(at, q, q.store + j);
        if (p.present) keys[{p.row, p.slot}] = true;
      }
    }
    only(of_rows, rows, 1), only({"block_mask"}, rows, 2);
    only(of_keys, keys, 1), only({"page_table"}, entries, 1);
  }

  TableCall made;
  int64_t data;      // the word's number
  int64_t capacity;  // keys that a sequence can have

 private:
  static double start(int64_t r, int64_t total) {
    return static_cast<double>(r == 0 ? 0 : r == 1 ? total / 2 : r == 2 ? total / 2 + 1 : total);
  }
  bool place(const std::string& field, const int64_t* i, double& value) {
    Letters& x = made.letters;
    const int64_t first = i[0];
    if (field == "query_start") {
      value = start(first, x["s"]);
    } else if (field == "key_start") {
      value = start(first, x["t"]);
    } else if (field == "query_len") {
      value = static_cast<double>(first == 0 ? x["s"] : first == 1 ? x["s"] / 2 : 0);
    } else if (field == "key_len" || field == "context_len") {
      const int64_t more = field == "key_len" ? 0 : 2;
      value = static_cast<double>(first == 0   ? std::max<int64_t>(capacity - 3, 0)
                                  : first == 1 ? capacity / 2 + more
                                               : 9);
    } else if (field == "cache_row") {
      value = first == 2 ? -1 : static_cast<double>(x["rows"] - 1 - first);
    } else if (field == "page_table") {
      const int64_t page = i[0] * x["pages"] + i[1];
      value = static_cast<double>(page % 7 == 5 ? -1 : page * 5 % x["pool"]);
    } else {
      return false;
    }
    return true;
  }
  template <class Used>
  void only(std::initializer_list<const char*> fields, const Used& used, int second) {
    harness::Call& call = made.call;
    for (const char* field : fields)
      if (made.has(field) || call.field(field) < call.fields.size())
        call.account(call.field(field), [&](const int64_t* i) {
          return used.count({i[0], i[second]}) != 0;
        });
  }

  harness::Random random_;
};

}  // namespace cases
