// SPDX-License-Identifier: Apache-2.0
// Between the launcher of x_gla_forward and its tuned instances (forward.inc), which are compiled
// apart.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked

#include "core/recur.h"
#include "cuda/device.h"
#include "cuda/loop/chain.h"
#include "cuda/loop/parts.h"

namespace fovea::cuda {

// What the gates of a chain are of.
enum GlaGate90 { kGlaNone, kGlaHead, kGlaKey };

// With key gates another kernel hands over, for each chunk and state head: K 2^S as a swizzled
// tile, then of each channel 2^(the sum of the chunk's gates), then for each 64 channels whether
// some of these are 0.
constexpr int gla_key_factors(int d) {
  return d * 4 + 16;
}
constexpr int gla_key_stride(int d) {
  return kChainTokens * d * 2 + 1024;
}
// And for each chunk and output head: scale Q 2^P and the scores, scale A [t][s], as swizzled
// tiles, then scale q (bonus . k) of each token.
constexpr int kGlaScores = kChainTokens * kChainTokens * 2;
constexpr int gla_query_bytes(int d) {
  return kChainTokens * d * 2 + kGlaScores + kChainTokens * 4;
}
constexpr int gla_query_stride(int d) {
  return kChainTokens * d * 2 + kGlaScores + 1024;
}

// The slot of a sequence's chunk.  Chunks of packed sequences may end anywhere; others are in the
// order in which chains take them.
FOVEA_HD int64_t chunk_slot(const Recur& a, int64_t sequence, int64_t begin, int64_t chunk) {
  return a.run.start ? begin / kChainTokens + sequence + chunk : chunk * a.run.count + sequence;
}
inline int64_t chunk_slots(const Recur& a) {
  return a.run.start ? a.s / kChainTokens + a.run.count
                     : a.run.count * ((a.run.token_max + kChainTokens - 1) / kChainTokens);
}

struct GlaWork90 {
  Recur a;
  CUtensorMap q, k, v;
  int32_t tiles;    // of 64 value columns
  int32_t copies;   // blocks that share the outputs of a chain
  int32_t cluster;  // of copies: none writes a state before all have read theirs
  int64_t blocks;
  ChainParts parts;
  // With key gates.
  unsigned char *keys, *queries;  // [slot][head], [slot][output head]
  int64_t slots;
  int32_t key_share, query_share;  // heads of a key head, output heads of a query head
  int32_t outputs;                 // of a head
  bool gate_pairs;                 // gate_key can be read two channels at a time

  // The first walk over parts: for the state alone.
  GlaWork90 first_walk() const {
    GlaWork90 w = *this;
    w.parts.first = true, w.a.o = w.a.state_out = w.a.snapshot = {};
    w.copies = w.cluster = 1;
    w.blocks = a.run.count * a.heads * (parts.count - 1) * tiles;
    return w;
  }
  FOVEA_HD int64_t slot(int64_t sequence, int64_t begin, int64_t chunk) const {
    return chunk_slot(a, sequence, begin, chunk);
  }
};

struct GlaInstance90 {
  int32_t dtype, d, gate;
  void (*launch)(Context&, const GlaWork90&);
};

// A row of forward.inc, or of forward_keys.inc.
struct GlaConfig90 {
  int dtype, d;
  int gate;     // GlaGate90: 1 with select too
  int stages;   // of K and V
  int queries;  // stages of Q
};

// Explicitly instantiated, one file for each width.
template <GlaConfig90 C>
GlaInstance90 gla_sm90_instance();
template <GlaConfig90 C>
GlaInstance90 gla_keys_sm90_instance();

}  // namespace fovea::cuda
