// SPDX-License-Identifier: Apache-2.0
// Selections on the host: the radix select of core/pick.h over a sequence in memory.
#pragma once
#include <algorithm>
#include <array>

#include "core/pick.h"

namespace fovea::host {

// The walk's digits over n entries.  key(i) is 0 for an entry that is not of the sequence.  Returns
// how many entries of the last key, walk.prefix, there are.
template <class Key>
int64_t walk_digits(int64_t n, Key key, const PickMass& mass, PickWalk& walk) {
  struct Bin {
    int64_t count, mass;
  };
  int64_t ties = 0;
  for (int digit = 0; digit < PickWalk::kDigits; ++digit) {
    std::array<Bin, PickWalk::kBins> bins{};
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t k = key(i);
      if (!k || !walk.has(k, digit)) continue;
      Bin& bin = bins[static_cast<size_t>(PickWalk::bin(k, digit))];
      ++bin.count;
      if (walk.by_mass) bin.mass += mass(pick_value(k));
    }
    int at = PickWalk::kBins - 1;
    for (; at > 0; --at) {
      const Bin& bin = bins[static_cast<size_t>(at)];
      if (walk.crosses(walk.count + bin.count, walk.mass + bin.mass)) break;
      walk.count += bin.count, walk.mass += bin.mass;
    }
    walk.prefix = walk.prefix << 8 | static_cast<uint32_t>(at);
    ties = bins[static_cast<size_t>(at)].count;
  }
  return ties;
}

// The cut behind the first `count` entries of a sequence of `total`.
template <class Key>
PickCut cut_after(int64_t n, Key key, int64_t count, int64_t total) {
  if (count <= 0) return {};
  if (count >= total) return PickCut::all();
  PickWalk walk{false, PickRule::count, count, 0, 0, 0};
  const int64_t ties = walk_digits(n, key, {}, walk);
  int64_t left = count - walk.count, end = n;
  for (int64_t i = 0; left < ties && i < n; ++i)
    if (key(i) == walk.prefix && --left == 0) {
      end = i + 1;
      break;
    }
  return {walk.prefix, end};
}

// How many entries a cumulative rule takes of a sequence of `total` entries and total_mass, where
// `before` is taken already.
template <class Key>
int64_t count_by_mass(int64_t n, Key key, const PickMass& mass, PickRule rule, int64_t target,
                      int64_t before, int64_t total, int64_t total_mass) {
  PickWalk walk{true, rule, target, 0, before, 0};
  if (walk.crosses(0, before)) return 0;
  if (!walk.crosses(total, before + total_mass)) return total;
  const int64_t ties = walk_digits(n, key, mass, walk);
  return walk.count + walk.ties(ties, mass(pick_value(walk.prefix)));
}

// visit(c, slot) for the entries that a list of n keeps, ascending: key(c) is 0 for one that is
// forced or not there, and `cut` is of a sequence in which entry 0 has the number `begin`.
template <class Key, class IsForced, class Visit>
PickKeep each_kept(int64_t n, const PickLimits& limits, Key key, IsForced forced, PickCut cut,
                   int64_t begin, Visit visit) {
  int64_t all_forced = 0, taken = 0, others = 0;
  for (int64_t c = 0; c < n; ++c) {
    const uint32_t k = key(c);
    all_forced += forced(c), others += k != 0, taken += k && cut.takes(k, begin + c);
  }
  const PickKeep keep(limits, all_forced, taken, others);
  if (keep.free != taken) cut = cut_after(n, key, keep.free, others), begin = 0;
  int64_t slot = 0, rank = 0;
  for (int64_t c = 0; c < n; ++c) {
    const uint32_t k = key(c);
    if (forced(c) ? rank++ < keep.forced : k && cut.takes(k, begin + c)) visit(c, slot++);
  }
  return keep;
}

}  // namespace fovea::host
