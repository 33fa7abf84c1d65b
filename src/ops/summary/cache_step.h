// SPDX-License-Identifier: Apache-2.0
// A call of x_cache_step, resolved: where new tokens go, and which live ones stay.
#pragma once
#include <cmath>

#include "core/convert.h"
#include "core/plan.h"
#include "fovea/experimental/summary.h"

namespace fovea {

struct CacheStep {
  View<4> k, v, k_new, v_new;
  View<3> position, score, mass;
  View<2> count;
  IntVector query_len, old_len, capacity;
  int32_t dtype;
  int64_t b, t, g, d, e, s;
  int64_t sink, recent, heavy;
  bool ring;

  FOVEA_HD int64_t live(int64_t batch, int64_t head) const {
    return clamp_i64(*count.at<int32_t>(batch, head), 0, t);
  }
  // New tokens, as far as slots are free behind `used` of heavy: a cache may be in disorder.
  FOVEA_HD int64_t added(int64_t batch, int64_t used) const {
    if (!k_new) return 0;
    const int64_t all = query_len ? clamp_i64(query_len[batch], 0, s) : s;
    return ring || all < t - used ? all : t - used;
  }
  FOVEA_HD int32_t& at(int64_t batch, int64_t head, int64_t slot) const {
    return *position.at<int32_t>(batch, head, slot);
  }
  FOVEA_HD float worth(int64_t batch, int64_t head, int64_t slot) const {
    const float x = *score.at(batch, head, slot);
    return x == x ? x : -INFINITY;
  }
  // Recent slots of a ring.
  FOVEA_HD int64_t turn(int64_t head) const {
    return capacity ? clamp_i64(capacity[head], sink + 1, t) - sink : recent;
  }
  FOVEA_HD int64_t slot(int64_t head, int64_t p) const {
    const int64_t turns = turn(head);
    return p < sink + turns ? p : sink + (p - sink) % turns;
  }
  // Whether the live token of a slot stays, where the largest live position is `last`.
  FOVEA_HD bool stays(int64_t batch, int64_t head, int64_t slots, int64_t slot,
                      int64_t last) const {
    const int64_t own = at(batch, head, slot);
    if (own > last - recent) return true;
    const float mine = worth(batch, head, slot);
    int64_t before = 0;
    for (int64_t n = 0; n < slots && before < heavy; ++n) {
      const int64_t other = at(batch, head, n);
      if (n == slot || other > last - recent) continue;
      const float theirs = worth(batch, head, n);
      // Of equal scores and positions, which a cache does not hold, the lower slot.
      before += theirs > mine || (theirs == mine && (other < own || (other == own && n < slot)));
    }
    return before < heavy;
  }
  FOVEA_HD void copy(const View<4>& to, int64_t batch, int64_t slot, const View<4>& from,
                     int64_t row, int64_t head, int64_t c) const {
    store_fp(to.data, dtype,
             batch * to.stride[0] + slot * to.stride[1] + head * to.stride[2] + c * to.stride[3],
             load_fp(from.data, dtype,
                     batch * from.stride[0] + row * from.stride[1] + head * from.stride[2] +
                         c * from.stride[3]));
  }
};

// The room of a head: what stays, and moves from slot to slot.
struct CacheMove {
  int32_t from, to;
};
struct CacheRoom {
  Slot<int32_t> stays;   // (b, g, t)
  Slot<CacheMove> move;  // (b, g, t)
};
inline CacheRoom cache_room(const CacheStep& a, Layout& workspace) {
  const int64_t there = a.ring ? 0 : 1;
  return {workspace.add<int32_t>(there, a.b, a.g, a.t),
          workspace.add<CacheMove>(there, a.b, a.g, a.t)};
}

// The moves that close the gaps of a head whose slots are marked; counts of what stays and moves.
struct CacheCounts {
  int64_t stay, moves;
};
FOVEA_HD CacheCounts cache_moves(const int32_t* stays, int64_t slots, CacheMove* move) {
  CacheCounts n{0, 0};
  for (int64_t slot = 0; slot < slots; ++slot) n.stay += stays[slot];
  int64_t free = 0;
  for (int64_t slot = n.stay; slot < slots; ++slot) {
    if (!stays[slot]) continue;
    while (stays[free]) ++free;
    move[n.moves++] = {static_cast<int32_t>(slot), static_cast<int32_t>(free++)};
  }
  return n;
}

extern const Kernel<CacheStep> cache_step_host;

// CUDA builds only.
extern const Kernel<CacheStep> cache_step_simt;

}  // namespace fovea
