// SPDX-License-Identifier: Apache-2.0
// A covering array: few rows in which every pair of values of every two axes appears, as far as
// `valid` lets it.  Greedy and deterministic.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "harness/random.h"

namespace harness {

using Row = std::vector<int>;

class Pairwise {
 public:
  // sizes[a]: how many values axis a has.
  Pairwise(std::vector<int> sizes, std::function<bool(const Row&)> valid, uint64_t seed)
      : sizes_(std::move(sizes)), valid_(std::move(valid)), random_(seed) {
    for (int size : sizes_) first_.push_back(total_), total_ += size;
    open_.assign(static_cast<size_t>(total_) * total_, false);
    for (size_t a = 0; a < sizes_.size(); ++a)
      for (size_t b = a + 1; b < sizes_.size(); ++b)
        for (int x = 0; x < sizes_[a]; ++x)
          for (int y = 0; y < sizes_[b]; ++y) open(a, x, b, y) = true;
  }

  std::vector<Row> rows() {
    std::vector<Row> out;
    for (size_t a = 0; a < sizes_.size(); ++a)
      for (size_t b = a + 1; b < sizes_.size(); ++b)
        for (int x = 0; x < sizes_[a]; ++x)
          for (int y = 0; y < sizes_[b]; ++y)
            if (open(a, x, b, y)) {
              Row best;
              if (search(a, x, b, y, best))
                out.push_back(best), close(best);
              else
                open(a, x, b, y) = false;  // no valid row has this pair
            }
    return out;
  }

 private:
  std::vector<char>::reference open(size_t a, int x, size_t b, int y) {
    return open_[static_cast<size_t>(first_[a] + x) * total_ + first_[b] + y];
  }
  void close(const Row& row) {
    for (size_t a = 0; a < row.size(); ++a)
      for (size_t b = a + 1; b < row.size(); ++b) open(a, row[a], b, row[b]) = false;
  }
  int gain(const Row& row) {
    int n = 0;
    for (size_t a = 0; a < row.size(); ++a)
      for (size_t b = a + 1; b < row.size(); ++b) n += open(a, row[a], b, row[b]);
    return n;
  }
  // The best of some random valid rows with axis a = x and axis b = y.
  bool search(size_t a, int x, size_t b, int y, Row& best) {
    int found = 0, most = -1;
    for (int attempt = 0; attempt < 4000 && found < 60; ++attempt) {
      Row row(sizes_.size());
      for (size_t i = 0; i < row.size(); ++i)
        row[i] = static_cast<int>(random_.integer(0, sizes_[i] - 1));
      row[a] = x, row[b] = y;
      if (!valid_(row)) continue;
      ++found;
      const int n = gain(row);
      if (n > most) most = n, best = row;
    }
    return found > 0;
  }

  std::vector<int> sizes_;
  std::function<bool(const Row&)> valid_;
  Random random_;
  std::vector<int> first_;
  int total_ = 0;
  std::vector<char> open_;
};

}  // namespace harness
