// SPDX-License-Identifier: Apache-2.0
// A call of x_select_heads, resolved, and the kernels.
//   feature    p_ij of a head, softmax rows over the first tokens
//   distance   1 - cos of two features; of two clusters the sum over their pairs of heads, divided
//   by
//              the number of pairs where it is compared
#pragma once
#include <cmath>

#include "core/attend.h"
#include "core/plan.h"
#include "fovea/experimental/select.h"

namespace fovea {

constexpr int64_t kClusterHeadsMost = 256;

struct SelectHeads {
  View<4> q, k;
  IntVector query_len, clusters_of;
  View<2> head_map, label;
  View<1> count;
  int32_t q_dtype, k_dtype;
  int64_t b, s, h, g, d, clusters;
  float scale;
  bool causal;

  FOVEA_HD int64_t tokens(int64_t batch) const {
    return query_len ? clamp_i64(query_len[batch], 0, s) : s;
  }
  FOVEA_HD int64_t wanted(int64_t batch) const {
    return clamp_i64(clusters_of ? clusters_of[batch] : clusters, 1, h);
  }
  // The feature of a head from its products with d columns: row i of `tokens` is x[i s, ...).
  FOVEA_HD void soften(float* x, int64_t i, int64_t tokens) const {
    const int64_t seen = causal ? i + 1 : tokens;
    float* row = x + i * s;
    float top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < seen; ++j) top = row[j] > top ? row[j] : top;
    for (int64_t j = 0; j < tokens; ++j) row[j] = j < seen ? expf(row[j] - top) : 0.0f;
    for (int64_t j = 0; j < seen; ++j) sum += row[j];
    for (int64_t j = 0; j < seen; ++j) row[j] /= sum;
  }
  // <x, y> of two features.
  FOVEA_HD float product(const float* x, const float* y, int64_t tokens) const {
    float sum = 0;
    for (int64_t i = 0; i < tokens; ++i)
      for (int64_t j = 0; j < tokens; ++j) sum = fmaf(x[i * s + j], y[i * s + j], sum);
    return sum;
  }
  // One that is no number is infinite.
  FOVEA_HD float distance(float product, float square, float other_square) const {
    const float x = 1.0f - product / (sqrtf(square) * sqrtf(other_square));
    return x == x ? x : INFINITY;
  }
};

// Two clusters by their first heads, i < j.
struct ClusterPair {
  float distance;
  int32_t i, j;
  FOVEA_HD bool before(const ClusterPair& other) const {
    if (distance != other.distance) return distance < other.distance;
    return i != other.i ? i < other.i : j < other.j;
  }
};

extern const Kernel<SelectHeads> x_select_heads_host;

// CUDA builds only.
extern const Kernel<SelectHeads> x_select_heads_simt;

}  // namespace fovea
