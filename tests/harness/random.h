// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: value number i of a stream depends on (seed, i) alone, so tensors
// can be filled in any order and any language.
#pragma once
#include <cmath>
#include <cstdint>

namespace harness {

inline uint64_t hash(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

struct Random {
  uint64_t seed;
  uint64_t next = 0;
  explicit Random(uint64_t seed_) : seed(hash(seed_)) {}

  uint64_t bits(uint64_t i) const { return hash(seed ^ hash(i)); }
  double uniform(uint64_t i) const { return (static_cast<double>(bits(i) >> 11) + 0.5) * 0x1p-53; }
  double normal(uint64_t i) const {
    return std::sqrt(-2 * std::log(uniform(2 * i))) *
           std::cos(6.283185307179586 * uniform(2 * i + 1));
  }
  // The next integer of low .. high, both included.
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits(next++) % static_cast<uint64_t>(high - low + 1));
  }
};

}  // namespace harness
