// SPDX-License-Identifier: Apache-2.0
// Between the launchers of the divergences that look at all heads of a tile and their Hopper
// kernels (heads_sm90.cuh), which are compiled apart.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked

#include "cuda/launch.h"
#include "ops/kl/sides.cuh"

namespace fovea::cuda {

constexpr int kHeadsTile = 128;  // rows, and keys
constexpr int kSlopesRows = 64;  // that pass a block of keys at a time

// Floats of rows by keys, or by their blocks, that a call's workspace holds at a time: 64 MiB.
constexpr int64_t kPairsMost = int64_t{1} << 24;

// Side 0 is the teacher, 1 the student.
struct HeadsMaps {
  CUtensorMap q[2], k[2];
};

// Works are (sequence, row tile, head or all, part of its key tiles), late rows first: under a
// causal mask they have most keys.
struct HeadsWork {
  Attend a;                    // rows, keys, what is seen, scale: the teacher's
  int32_t heads[2], group[2];  // group: query heads of a key head
  int32_t row_tiles, parts;
  int32_t lead;          // heads that are works of their own; 1: all together
  int32_t first, count;  // row tiles of all sequences that a launch takes

  int64_t works() const { return int64_t{count} * lead * parts; }
};

// What a row has of the keys of one part: Y = max b, l = sum e^(b - Y), W = sum P,
// c = sum P (ln P - (b - Y)).
struct IndexerSums {
  float top, sum, weight, cross;
};

struct IndexerForward90 {
  View<3> lse, weight;  // of the teacher's heads; of the student's
  IndexerSums* sums;    // (row tile of all sequences, row, part)
  bool teacher;         // its heads are wanted
};

// Of a launch's row tiles: db of 128 rows and all columns each.
struct IndexerSlopes90 {
  View<3> lse, weight;
  View<2> gain, lse_student;
  float* db;
  int64_t columns;
};

struct PoolWeights90 {
  View<3> lse;
  float* weights;  // (row tile of the launch, head, row, block of keys)
  int64_t pitch;
  int32_t block_keys;  // 64 or 128
  bool max;
};

struct SlopesMaps {
  CUtensorMap q, k, q_part;  // the student's; q_part: boxes of kSlopesRows rows
};
struct SlopesRows90 {
  View<3> weight, dweight;
  View<4> dq;
  const float* db;
  int64_t columns;
  const uint8_t* odd_keys;  // by (cache, token): an infinity or NaN in k
  int64_t t;                // tokens of a cache
  int32_t width;
};
struct SlopesKeys90 {
  View<3> weight;
  const float* db;
  int64_t columns;
  const uint8_t* odd_rows;  // by (batch, token): one in some head of q
  int64_t s;
  float* sums;  // (sequence, key tile, row part, head part) of 128 x width of the instance
  bool more;    // to what lies there
  int32_t key_tiles, row_parts, head_parts;

  int64_t works(const HeadsWork& work) const {
    return work.a.sequences.count * key_tiles * row_parts * head_parts;
  }
};

struct HeadsInstance90 {
  int32_t dtype, width;
  void (*forward)(Context&, const HeadsWork&, const HeadsMaps&, const IndexerForward90&);
  // The gradient: db of the launch's row tiles, then what the student's rows and keys make of it.
  void (*slopes)(Context&, const HeadsWork&, const HeadsMaps&, const IndexerSlopes90&);
  void (*rows)(Context&, const HeadsWork&, const SlopesMaps&, const SlopesRows90&);
  void (*keys)(Context&, const HeadsWork&, const SlopesMaps&, const SlopesKeys90&);
  void (*pool)(Context&, const HeadsWork&, const HeadsMaps&, const PoolWeights90&);
};

// That of heads.inc in this build which holds the width; nullptr: none.
const HeadsInstance90* heads_instance(int32_t dtype, int64_t width);

inline constexpr char kIndexerForward[] = "x_kl_indexer_forward";
inline constexpr char kIndexerBackward[] = "x_kl_indexer_backward";

// Explicitly instantiated, one file for each dtype and width.
template <int Dtype, int D>
HeadsInstance90 kl_heads_sm90_instance();

}  // namespace fovea::cuda
