// SPDX-License-Identifier: Apache-2.0
// Between the launchers of the indexer's divergence and its Hopper kernels (indexer_sm90.cuh),
// which are compiled apart.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/heads.cuh"
#include "ops/kl_experimental/indexer.h"
#include "ops/kl_experimental/parts.cuh"

namespace fovea::cuda {

inline constexpr char kIndexerForward[] = "x_kl_indexer_forward";
inline constexpr char kIndexerBackward[] = "x_kl_indexer_backward";
constexpr int kDscoreRows = 64;  // that pass a block of keys at a time

// What a row has of the keys of one part: Y = max b, l = sum e^(b - Y), W = sum P,
// c = sum P (ln P - (b - Y)).
struct IndexerSums {
  float top, sum, weight, cross;
};

struct IndexerMaps90 : HeadsMaps {
  CUtensorMap q_part;  // the student's in boxes of kDscoreRows rows
};

struct IndexerArgs90 {
  View<3> lse, weight;  // of the teacher's heads; of the student's
  // Forward.
  IndexerSums* row_sums;  // (row tile of all sequences, row, part)
  bool teacher;           // its heads are wanted
  // Backward: db of 128 rows and all columns of each row tile of a launch.
  View<2> gain, lse_student;
  float* db;
  int64_t columns;
  View<3> dweight;
  View<4> dq;
  int32_t width;
  DkParts parts;  // of row_parts x head_parts
  int32_t row_parts, head_parts;
};

struct IndexerInstance90 {
  using Launch = void (*)(Context&, const HeadsWork&, const IndexerMaps90&, const IndexerArgs90&);
  int32_t dtype, width;
  // The gradient: db of the launch's row tiles, then what the student's rows and keys make of it.
  Launch forward, dscores, rows, keys;
};

// Explicitly instantiated, one file for each dtype and width.
template <int Dtype, int D>
IndexerInstance90 kl_indexer_sm90_instance();

// Zeros for gradients that no sequence reaches.
void clear_unreached(Context& ctx, const KlIndexer& a);

}  // namespace fovea::cuda
