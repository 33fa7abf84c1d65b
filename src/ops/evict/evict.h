// SPDX-License-Identifier: Apache-2.0
// What x_evict_forward has of its own, one text for host and device: the scores of keys, and the
// rows that stay.
#pragma once
#include <algorithm>
#include <cmath>

#include "core/attend.h"
#include "core/plan.h"

namespace fovea {

// score[j] = the largest of sum[j - half] .. sum[j + half] before the last `window` keys of the
// sequence; 0 of these.
struct EvictScore {
  View<3> sum, score;  // (b, g, t)
  IntVector key_len;
  int64_t b, g, t, window, half;

  FOVEA_HD void run(int64_t batch, int64_t head, int64_t j) const {
    const int64_t keys = key_len ? clamp_i64(key_len[batch], 0, t) : t;
    const int64_t end = keys > window ? keys - window : 0;
    float most = j < end ? -INFINITY : 0.0f;
    if (j < end) {
      const int64_t last = j + half < end ? j + half + 1 : end;
      for (int64_t i = j > half ? j - half : 0; i < last; ++i) {
        const float x = *sum.at(batch, head, i);
        if (x > most) most = x;
      }
    }
    *score.at(batch, head, j) = most;
  }
};

// kept[n] = row index[n] of k and of v.
struct EvictRows {
  View<4> k, v, k_kept, v_kept;
  View<4> index;  // (b, g, 1, keep)
  int64_t b, t, g, d, e, keep;
  bool wide;  // elements of 4 bytes

  // Columns lane, lane + lanes, ...
  FOVEA_HD void run(int64_t batch, int64_t n, int64_t head, int64_t lane, int64_t lanes) const {
    const int64_t j = *index.at<int32_t>(batch, head, 0, n);
    if (j < 0 || j >= t) return;
    const auto copy = [&](const View<4>& from, const View<4>& to, int64_t width) {
      for (int64_t c = lane; c < width; c += lanes) {
        if (wide)
          *to.at<uint32_t>(batch, n, head, c) = *from.at<uint32_t>(batch, j, head, c);
        else
          *to.at<uint16_t>(batch, n, head, c) = *from.at<uint16_t>(batch, j, head, c);
      }
    };
    copy(k, k_kept, d), copy(v, v_kept, e);
  }
};

extern const Kernel<EvictScore> evict_score_host;
extern const Kernel<EvictRows> evict_rows_host;

// CUDA builds only.
extern const Kernel<EvictScore> evict_score_simt;
extern const Kernel<EvictRows> evict_rows_simt;

}  // namespace fovea
