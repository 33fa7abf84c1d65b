// SPDX-License-Identifier: Apache-2.0
// Between the launchers of the indexer's divergence and its Hopper kernels (indexer_sm90.cuh),
// which are compiled apart.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/heads.cuh"
#include "ops/kl/sides.cuh"

namespace fovea::cuda {

constexpr int kSlopesRows = 64;  // that pass a block of keys at a time

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

struct IndexerInstance90 {
  int32_t dtype, width;
  void (*forward)(Context&, const HeadsWork&, const HeadsMaps&, const IndexerForward90&);
  // The gradient: db of the launch's row tiles, then what the student's rows and keys make of it.
  void (*slopes)(Context&, const HeadsWork&, const HeadsMaps&, const IndexerSlopes90&);
  void (*rows)(Context&, const HeadsWork&, const SlopesMaps&, const SlopesRows90&);
  void (*keys)(Context&, const HeadsWork&, const SlopesMaps&, const SlopesKeys90&);
};

inline constexpr char kIndexerForward[] = "x_kl_indexer_forward";
inline constexpr char kIndexerBackward[] = "x_kl_indexer_backward";

// Explicitly instantiated, one file for each dtype and width.
template <int Dtype, int D>
IndexerInstance90 kl_indexer_sm90_instance();

}  // namespace fovea::cuda
