// SPDX-License-Identifier: Apache-2.0
// Between the launcher of x_delta_forward and its tuned instances (forward.inc), which are compiled
// apart, and what the two kernels of an instance hand over through the workspace.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked

#include "core/recur.h"
#include "cuda/device.h"
#include "cuda/loop/chain.h"
#include "cuda/loop/parts.h"

namespace fovea::cuda {

constexpr int kDeltaTile = kChainTokens * kChainTokens * 2;  // bytes of T or A

// What a chunk's vectors are, in f32 after T.
struct DeltaVectors {
  float answer[kChainTokens];  // |k|^-1 2^P_t: of what the state answers to key t
  float suffix[kChainTokens];  // |k|^-1 2^S_s: of what token s adds to the state after the chunk
  float all;                   // 2^(the sum of the chunk's gates)
  int32_t zero[2];             // whether some factor of its first, its last 32 tokens is 0
  int32_t unused;
};

// Under a key gate decays are in tiles, and answer and suffix have only |k|^-1.  Of each channel:
// 2^(the sum of the chunk's gates), -0 where the first token resets it.
constexpr int kDeltaChannels = static_cast<int>(sizeof(DeltaVectors));  // they follow the vectors

// Of a chunk and state head: T [t][s] beta_s as a swizzled tile, then DeltaVectors, then for
// gradients |k|^-1.
constexpr int kDeltaInverseBytes = kDeltaTile + static_cast<int>(sizeof(DeltaVectors));
constexpr int kDeltaInverseStride = kDeltaTile + 1024;
// Of a chunk and output head: A [t][s] as a swizzled tile, then scale |q|^-1 2^P_t, then for
// gradients |q|^-1.
constexpr int kDeltaScoreBytes = kDeltaTile + kChainTokens * 4;
constexpr int kDeltaScoreStride = kDeltaTile + 1024;
// Of vectors that are for gradients alone.
constexpr int kDeltaNormBytes = kChainTokens * 4;
static_assert(kDeltaInverseBytes + kDeltaNormBytes <= kDeltaInverseStride);
// Under a key gate: T and its vectors, then the tiles K~ = k 2^P_t and K- = k 2^S_s; A and its
// vectors, then the tile Q~ = q 2^P_t.
constexpr int kDeltaKeysAt = kDeltaTile + 2048;
constexpr int delta_keys_bytes(int d) {
  return kDeltaKeysAt + 2 * kChainTokens * d * 2;
}
constexpr int delta_query_bytes(int d) {
  return kDeltaScoreStride + kChainTokens * d * 2;
}

// With a low rank: T and its vectors, G, then the tiles A~, B-, K-; B and its vectors, A, then Q~
// (low_sm90.cuh).
constexpr int kDeltaLowKeysAt = kDeltaKeysAt + kDeltaTile;
constexpr int kDeltaLowQueryAt = kDeltaScoreStride + kDeltaTile;
constexpr int delta_low_bytes(int d) {
  return kDeltaLowKeysAt + 3 * kChainTokens * d * 2;
}
constexpr int delta_low_query_bytes(int d) {
  return kDeltaLowQueryAt + kChainTokens * d * 2;
}

// What gates and corrects: forms of the chain.
enum class DeltaForm : int { head, key, low };

struct DeltaWork90 {
  Recur a;
  CUtensorMap q, k, v, low_a, low_b;
  unsigned char *inverses, *scores;  // [slot][head], [slot][output head]
  int32_t chunks;                    // slots of a sequence that is not packed
  int32_t tiles;                     // of 64 value columns
  int32_t copies;                    // blocks that share the outputs of a chain
  int32_t cluster;                   // of copies: none writes a state before all have read theirs
  int32_t key_share, query_share;    // heads of a key head, output heads of a query head
  int32_t outputs;                   // of a head
  int32_t norm_bytes;                // of norms that are kept: kDeltaNormBytes for gradients, or 0
  float beta_least;                  // beta is at least that far from 0
  int64_t slots, blocks;
  ChainParts parts;

  // The slot of a sequence's first chunk.  Chunks of packed sequences may end anywhere.
  //   Span: chunks that share a slot.
  template <int Span = 1>
  FOVEA_HD int64_t slot(int64_t sequence, int64_t begin) const {
    return a.run.start ? begin / (Span * kChainTokens) + sequence
                       : sequence * ((chunks + Span - 1) / Span);
  }
  // The sequence of a slot; packed: that with the last first slot that is at most `slot`.
  template <int Span = 1>
  FOVEA_HD int64_t sequence_of(int64_t slot) const {
    if (!a.run.start) return slot / ((chunks + Span - 1) / Span);
    int64_t low = 0, high = a.run.count - 1;
    while (low < high) {
      const int64_t middle = high - (high - low) / 2;
      if (this->template slot<Span>(middle, clamp_i64(a.run.start[middle], 0, a.s)) <= slot)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  // The first walk over parts: for the state alone, and tiles of their carries after its own.
  DeltaWork90 first_walk() const {
    DeltaWork90 w = *this;
    w.parts.first = true, w.a.o = w.a.state_out = w.a.snapshot = {};
    w.copies = w.cluster = 1;
    w.blocks = a.run.count * a.heads * (parts.count - 1) * (tiles + a.d / kChainColumns);
    return w;
  }
};

struct DeltaInstance90 {
  int32_t dtype, d;
  DeltaForm form;
  int32_t key_stride, query_stride;  // bytes of a chunk and head in the workspace
  void (*launch)(Context&, const DeltaWork90&);
};

// A row of forward.inc.
struct DeltaConfig90 {
  int dtype, d;
  DeltaForm form;
  int stages;   // of K, V and T
  int queries;  // stages of Q and A
  int slots;    // of H and U
};

// Explicitly instantiated, one file for each width.
template <DeltaConfig90 C>
DeltaInstance90 delta_sm90_instance();

}  // namespace fovea::cuda
