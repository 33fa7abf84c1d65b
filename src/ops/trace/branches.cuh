// SPDX-License-Identifier: Apache-2.0
// The branches of an item in shared memory, by `Threads` threads of a block.  A list names the key
// blocks (representatives) that are to be scored.
//
//   | step    | branches become                         | list                              |
//   | start() | the initial ranges, halved unless final | all representatives               |
//   | raise() | scored, by the caller, entry by entry   |                                   |
//   | split() | halves; one keeps the representative    | the other halves' representatives |
//   | rank()  | the best halves, each at its rank       |                                   |
//   | store() | slots, and the outputs made of scores   |                                   |
//
// Lists alternate by parity, so the next one is cleared while this one is scored.  Threads append
// to a list in any order.  No result depends on it: a score is one representative's, and the order
// of branches is total.
#pragma once
#include "ops/trace/stages.cuh"

namespace fovea::cuda {

// A branch, its score as an int of the same order.
struct LiveBranch {
  int32_t begin, end, representative, score;
};

// The rank of a half: a larger order() is better.
struct alignas(8) HalfKey {
  uint32_t low;  // ~representative
  int32_t score;

  __device__ int64_t order() const { return static_cast<int64_t>(score) << 32 | low; }
};
struct alignas(16) BothKeys {
  HalfKey half[2];
};

template <int Most>
struct Branches {
  LiveBranch branch[Most];
  BothKeys key[Most];  // of branch b's halves
  int2 range[Most][2];
  int fresh[2 * Most], owner[2 * Most];  // key block to score, whose score it is
  struct List {
    int count;
    bool wide;  // some branch can still be halved
  } list[2];
};

template <int Most, int Threads>
class BranchTree {
 public:
  __device__ BranchTree(const Trace& a, const TraceItem& item, Branches<Most>& s)
      : a_(a), item_(item), s_(s) {}

  // By one thread.
  __device__ void clear(int parity) const { s_.list[parity] = {0, false}; }

  __device__ void start(int parity, bool final) const {
    for (int b = threadIdx.x; b < keep(); b += Threads) {
      const auto begin = static_cast<int32_t>(b * item_.reach / keep()),
                 end = static_cast<int32_t>((b + 1) * item_.reach / keep());
      const int at = first(begin, end);
      s_.branch[b] = {begin, end, at, kNothing};
      if (final && at >= 0) append(parity, at, b);
    }
    if (!final) split(parity, true);
  }
  // fresh: no branch has a score yet.
  __device__ void split(int parity, bool fresh) const {
    for (int b = threadIdx.x; b < groups() * kGroup; b += Threads) {
      LiveBranch whole = empty();
      if (b < keep()) whole = s_.branch[b], s_.branch[b] = empty();
      const int at = whole.representative;
      BothKeys key{kNone, kNone};
      if (at >= 0) {
        const int32_t middle = whole.begin + (whole.end - whole.begin + 1) / 2;
        s_.range[b][0] = {whole.begin, middle}, s_.range[b][1] = {middle, whole.end};
        const bool right = at >= middle;
        const int other = right ? -1 : first(middle, whole.end);
        const HalfKey own = {~static_cast<uint32_t>(at), whole.score};
        if (right)
          key.half[1] = own;
        else
          key.half[0] = own;
        if (other >= 0) key.half[1] = {~static_cast<uint32_t>(other), kNothing};
        if (fresh) append(parity, at, 2 * b + right);
        if (other >= 0) append(parity, other, 2 * b + 1);
        // The left half is never the narrower one.
        if ((right ? whole.end - middle : middle - whole.begin) > 1) s_.list[parity].wide = true;
      }
      s_.key[b] = key;
    }
  }
  // Two threads of a half count the better ones, each in every other branch.
  __device__ void rank() const {
    const int halves = 2 * kGroup * groups(), part = threadIdx.x % 2;
    for (int from = 0; from < halves; from += Threads / 2) {
      const int i = from + static_cast<int>(threadIdx.x) / 2;
      const HalfKey own = i < halves ? s_.key[i / 2].half[i % 2] : kNone;
      const int64_t order = own.order();
      int place = 0;
      for (int group = 0; group < groups(); ++group)
#pragma unroll
        for (int j = 0; j < kGroup; j += 2) {
          const BothKeys other = s_.key[group * kGroup + j + part];
          place += (other.half[0].order() > order) + (other.half[1].order() > order);
        }
      place += __shfl_xor_sync(~0u, place, 1);
      if (part || place >= keep() || own.score == kNone.score) continue;
      const int2 range = s_.range[i / 2][i % 2];
      s_.branch[place] = {range.x, range.y, static_cast<int32_t>(~own.low), own.score};
    }
  }

  // A product of entry i of the list is `score`.  final: as in start().
  __device__ void raise(bool final, int i, int score) const {
    const int owner = s_.owner[i];
    atomicMax(final ? &s_.branch[owner].score : &s_.key[owner / 2].half[owner % 2].score, score);
  }

  __device__ void store(const TraceSlots& slots) const {
    for (int b = threadIdx.x; b < a_.keep; b += Threads) {
      LiveBranch own = empty();
      if (b < keep()) own = s_.branch[b];
      const bool none = own.representative < 0;
      const float product = unordered(own.score);
      const float score = none ? -INFINITY : product * a_.score_scale;
      const auto put = [&](const View<4>& x, float value) {
        if (x) x.as()[item_.slot(x, b)] = value;
      };
      if (a_.selected) a_.selected.as<int32_t>()[item_.slot(a_.selected, b)] = own.representative;
      put(a_.score, score), put(a_.edge_score, score);
      put(a_.edge_max, none ? -INFINITY : product * a_.attend.score.scale);
      const int64_t at = item_.number * a_.keep;
      if (slots.selected) slots.selected[at + b] = own.representative;
      if (slots.score) slots.score[at + b] = product;
      if (slots.list) list(slots, b, own.representative);
    }
  }

 private:
  static constexpr int kNothing = static_cast<int>(0x807fffff);  // ordered(-inf)
  static constexpr HalfKey kNone{0, INT32_MIN};                  // after every half that is there
  static constexpr int kGroup = 8;                               // branches ranked at a time

  __device__ int keep() const {
    return static_cast<int>(item_.keep);
  }
  __device__ int groups() const {
    return (keep() + kGroup - 1) / kGroup;
  }
  __device__ static LiveBranch empty() {
    return {0, 0, -1, kNothing};
  }

  // Stores the blocks in ascending order, for sweeps over keys.
  __device__ void list(const TraceSlots& slots, int b, int representative) const {
    int place = 0, count = 0;
    for (int j = 0; j < keep(); ++j) {
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
  __device__ void append(int parity, int key_block, int owner) const {
    const int place = atomicAdd(&s_.list[parity].count, 1);
    s_.fresh[place] = key_block, s_.owner[place] = owner;
  }

  const Trace& a_;
  const TraceItem& item_;
  Branches<Most>& s_;
};

}  // namespace fovea::cuda
