// SPDX-License-Identifier: Apache-2.0
// The branches of an item in shared memory, held by `Threads` threads of a block:
//   start()  the initial ranges, and a list of the representatives to score
//   split()  halves of every branch, of which one keeps the representative; a list of the others'
//   rank()   the best halves become the branches, each at its rank
//   store()  slots, and the outputs made of scores
// Scores are raised in place by the caller, between lists and what follows them: raise().  A list
// has one parity, so that the next can be cleared while this one is scored.  The order within a
// list is that of the threads' arrival: no result depends on it, for a score is that of one
// representative and the order of branches is total.
#pragma once
#include "ops/trace/stages.cuh"

namespace fovea::cuda {

// A branch, its score as an int of the same order.
struct LiveBranch {
  int32_t begin, end, representative, score;
};

template <int Most>
struct Branches {
  LiveBranch branch[Most], half[2 * Most];
  int fresh[Most], owner[Most];  // key block to score, whose score it is
  struct List {
    int halves, count;
    bool wide;  // some branch can still be halved
  } list[2];
};

template <int Most, int Threads>
class BranchTree {
 public:
  __device__ BranchTree(const Trace& a, const TraceItem& item, Branches<Most>& s)
      : a_(a), item_(item), s_(s) {}

  // By one thread.
  __device__ void clear(int parity) const { s_.list[parity] = {0, 0, false}; }

  __device__ void start(int parity) const {
    const int keep = static_cast<int>(item_.keep);
    for (int b = threadIdx.x; b < keep; b += Threads) {
      const auto begin = static_cast<int32_t>(b * item_.reach / keep),
                 end = static_cast<int32_t>((b + 1) * item_.reach / keep);
      const int at = first(begin, end);
      s_.branch[b] = {begin, end, at, kNothing};
      if (at >= 0) ask(parity, at, b);
      if (end - begin > 1) s_.list[parity].wide = true;
    }
  }
  __device__ void split(int parity) const {
    for (int b = threadIdx.x; b < item_.keep; b += Threads) {
      const LiveBranch whole = s_.branch[b];
      if (whole.representative < 0) continue;
      const int32_t middle = whole.begin + (whole.end - whole.begin + 1) / 2;
      LiveBranch half = whole;
      if (whole.representative >= middle) {
        half.begin = middle;
      } else {
        half.end = middle;
        const int at = first(middle, whole.end);
        if (at >= 0) ask(parity, at, put(parity, {middle, whole.end, at, kNothing}));
      }
      put(parity, half);
    }
  }
  __device__ void rank(int parity) const {
    const int halves = s_.list[parity].halves, keep = static_cast<int>(item_.keep);
    for (int i = threadIdx.x; i < halves; i += Threads) {
      const LiveBranch own = s_.half[i];
      int place = 0;
#pragma unroll 8
      for (int j = 0; j < halves; ++j) {
        const LiveBranch& other = s_.half[j];
        place += other.score > own.score ||
                 (other.score == own.score && other.representative < own.representative);
      }
      if (place < keep) s_.branch[place] = own;
    }
    for (int b = halves + static_cast<int>(threadIdx.x); b < keep; b += Threads)
      s_.branch[b] = {0, 0, -1, kNothing};
  }

  // Entry i of the list has a product of `score`; `start`: the list is start()'s.
  __device__ void raise(bool start, int i, int score) const {
    atomicMax(&(start ? s_.branch : s_.half)[s_.owner[i]].score, score);
  }

  __device__ void store(const TraceSlots& slots) const {
    for (int b = threadIdx.x; b < a_.keep; b += Threads) {
      LiveBranch own{0, 0, -1, kNothing};
      if (b < item_.keep) own = s_.branch[b];
      const bool empty = own.representative < 0;
      const float product = unordered(own.score);
      const float score = empty ? -INFINITY : product * a_.score_scale;
      const auto put = [&](const View<4>& x, float value) {
        if (x) x.as()[item_.slot(x, b)] = value;
      };
      if (a_.selected) a_.selected.as<int32_t>()[item_.slot(a_.selected, b)] = own.representative;
      put(a_.score, score), put(a_.edge_score, score);
      put(a_.edge_max, empty ? -INFINITY : product * a_.attend.score.scale);
      const int64_t at = item_.number * a_.keep;
      if (slots.selected) slots.selected[at + b] = own.representative;
      if (slots.score) slots.score[at + b] = product;
      if (slots.list) list(slots, b, own.representative);
    }
  }

 private:
  static constexpr int kNothing = static_cast<int>(0x807fffff);  // ordered(-inf)

  // The blocks again, ascending, for sweeps over keys.
  __device__ void list(const TraceSlots& slots, int b, int representative) const {
    int place = 0, count = 0;
    for (int j = 0; j < item_.keep; ++j) {
      const int other = s_.branch[j].representative;
      count += other >= 0, place += other >= 0 && other < representative;
    }
    if (representative >= 0) slots.list[item_.number * a_.keep + place] = representative;
    if (b == 0) slots.count[item_.number] = count;
  }
  __device__ int first(int64_t begin, int64_t end) const {
    return begin < end
               ? static_cast<int>(a_.first_valid(item_.seq, item_.head, item_.block, begin, end))
               : -1;
  }
  __device__ int put(int parity, const LiveBranch& half) const {
    const int place = atomicAdd(&s_.list[parity].halves, 1);
    s_.half[place] = half;
    if (half.end - half.begin > 1) s_.list[parity].wide = true;
    return place;
  }
  __device__ void ask(int parity, int key_block, int owner) const {
    const int place = atomicAdd(&s_.list[parity].count, 1);
    s_.fresh[place] = key_block, s_.owner[place] = owner;
  }

  const Trace& a_;
  const TraceItem& item_;
  Branches<Most>& s_;
};

}  // namespace fovea::cuda
