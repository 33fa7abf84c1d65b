// SPDX-License-Identifier: Apache-2.0
// Scores, searches and pruning over the graph of one key head, on the host.
//   rank     a score and its key in 64 bits that ascend in the order of selections
//   beam     the best ranks of those met, ascending
//   Search   what a worker needs for all of it
#pragma once
#include <algorithm>

#include "core/pick.h"
#include "host/sweep.h"
#include "ops/graph/graph.h"

namespace fovea {

// The lowest bit is left to the beam.
inline uint64_t rank_of(float score, int64_t key) {
  return static_cast<uint64_t>(~pick_key(score)) << 32 | static_cast<uint64_t>(key) << 1;
}
inline int64_t key_of(uint64_t rank) {
  return static_cast<int64_t>((rank & UINT32_MAX) >> 1);
}
inline uint32_t pick_key_of(uint64_t rank) {
  return ~static_cast<uint32_t>(rank >> 32);
}

class Beam {
 public:
  // `size` of them are there already.
  Beam(uint64_t* at, int64_t most, int64_t size = 0) : at_(at), most_(most), size_(size) {}
  int64_t size() const { return size_; }
  uint64_t operator[](int64_t i) const { return at_[i]; }
  uint64_t* data() const { return at_; }
  // Ranks of which none has been met.
  void insert(uint64_t rank) {
    if (size_ == most_ && (size_ == 0 || rank > at_[size_ - 1])) return;
    uint64_t* place = std::lower_bound(at_, at_ + size_, rank);
    if (size_ < most_) ++size_;
    std::copy_backward(place, at_ + size_ - 1, at_ + size_);
    *place = rank, next_ = std::min<int64_t>(next_, place - at_);
  }
  // The best key not returned before; -1: there is none.
  int64_t expand() {
    while (next_ < size_ && at_[next_] & 1) ++next_;
    if (next_ == size_) return -1;
    at_[next_] |= 1;
    return key_of(at_[next_]);
  }

 private:
  uint64_t* at_;
  int64_t most_, size_, next_ = 0;
};

// The keys of one key head.
struct HeadKeys {
  const GraphKeys* of;
  int64_t batch, head;
  void load(int64_t key, float* to) const {
    const View<4>& k = of->k;
    host::load_row(host::simd(), k.data, of->dtype,
                   batch * k.stride[0] + key * k.stride[1] + head * k.stride[2], k.stride[3], of->d,
                   to);
  }
};

// Its graph.
struct HeadGraph {
  const Graphs* of;
  int64_t batch, head;
  int64_t count(int64_t key) const {
    return clamp_i64(*of->count.at<int32_t>(batch, head, key), 0, of->degree);
  }
  void set_count(int64_t key, int64_t count) const {
    *of->count.at<int32_t>(batch, head, key) = static_cast<int32_t>(count);
  }
  int32_t& slot(int64_t key, int64_t n) const {
    return *of->neighbour.at<int32_t>(batch, head, key, n);
  }
  int32_t& entry() const { return *of->entry.at<int32_t>(batch, head); }
};

struct SearchRoom {
  Slot<float> k, q, x, column, product, norm, row;
  Slot<uint64_t> seen, rank;
  Slot<int32_t> key, passed;

  SearchRoom() = default;
  // ranks: of a beam or of candidates at most; kept: of pruning at most.
  SearchRoom(const GraphKeys& keys, int64_t ranks, int64_t kept, Layout& worker);
};

class Search {
 public:
  Search(const SearchRoom& room, void* base, const HeadKeys& keys);

  // The row that keys are scored for from now on: d columns.
  void query(const float* row);
  void query_key(int64_t key) { keys_.load(key, row_), query(row_); }
  float* row() const { return row_; }
  uint64_t* ranks() const { return ranks_; }

  // visit(rank) for each of `count` keys.
  template <class Visit>
  void score(const int32_t* key, int64_t count, Visit visit) {
    for (int64_t begin = 0; begin < count; begin += host::kKeys) {
      const int64_t n = std::min<int64_t>(host::kKeys, count - begin);
      products(key + begin, n);
      for (int64_t i = 0; i < n; ++i) visit(rank_of(x_[i * width_], key[begin + i]));
    }
  }

  // Keys below `keys` are marked as not met; mark() tells whether one was.
  void forget(int64_t keys) { std::fill_n(seen_, (keys + 63) / 64, uint64_t{0}); }
  bool mark(int64_t key) {
    uint64_t& word = seen_[key / 64];
    const uint64_t bit = uint64_t{1} << (key % 64);
    const bool met = word & bit;
    word |= bit;
    return met;
  }

  // Fills the beam for the query, over keys below `keys`; returns how many were scanned.
  int64_t run(const HeadGraph& graph, int64_t keys, Beam& beam);

  // take(key) for those of ascending ranks that pruning for key x to `most` leaves.
  template <class Take>
  void prune(const uint64_t* rank, int64_t count, int64_t x, int64_t most, Take take) {
    keys_.load(x, k_);
    const float own = norm(0);
    int64_t kept = 0, passed = 0, last = -1;
    for (int64_t i = 0; i < count && kept < most; ++i) {
      const int64_t y = key_of(rank[i]);
      if (pick_key_of(rank[i]) <= kPickNone) break;
      if (y == x || y == last) continue;
      last = y;
      if (!occluded(y, own - 2 * pick_value(pick_key_of(rank[i])), kept))
        ++kept, take(y);
      else if (passed < most)
        passed_[passed++] = static_cast<int32_t>(y);
    }
    for (int64_t n = 0; n < passed && kept < most; ++n, ++kept) take(passed_[n]);
  }

  // y gets x; where it has no slot left, as far as pruning to `most` leaves it.
  void link(const HeadGraph& graph, int64_t keys, int64_t y, int64_t x, int64_t most);

 private:
  void products(const int32_t* key, int64_t count);
  // The square norm of the loaded key, which becomes column `kept`; products with the columns
  // before are there too.
  float norm(int64_t kept);
  // Whether y lies nearer to one of those kept than to x, `far` less y's square norm from it.  If
  // not, y is the next of them.
  bool occluded(int64_t y, float far, int64_t kept);

  HeadKeys keys_;
  const int64_t d_, width_, lanes_;
  float *k_, *q_, *x_, *column_, *product_, *norm_, *row_;
  uint64_t *seen_, *ranks_;
  int32_t *key_, *passed_;
};

}  // namespace fovea
