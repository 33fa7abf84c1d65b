// SPDX-License-Identifier: Apache-2.0
// One step of a bounded cache, from the comments of experimental/summary.h: live tokens as a list.
#pragma once
#include <algorithm>
#include <functional>

#include "tracked.h"

namespace oracle {

class CacheStep {
 public:
  explicit CacheStep(const fovea_x_cache_step_params& p)
      : k(p.k),
        v(p.v),
        k_new(p.k_new),
        v_new(p.v_new),
        position(p.position),
        score(p.score),
        mass(p.mass),
        p_(p),
        count_(load(p.count)),
        query_len_(load(p.query_len)),
        old_len_(load(p.old_len)),
        capacity_(load(p.capacity)) {
    out_k = Out(p.k, 0), out_v = Out(p.v, 0), out_position = Out(p.position, 0);
    out_count = Out(p.count, 0);
    if (p.score.data) out_score = Out(p.score, 0);
    b_ = p.k.shape[0], t_ = p.k.shape[1], g_ = p.k.shape[2];
    for (int64_t batch = 0; batch < b_ && t_; ++batch)
      for (int64_t head = 0; head < g_; ++head) step(batch, head);
  }
  Tracked k, v, k_new, v_new, position, score, mass;
  Out out_k, out_v, out_position, out_count, out_score;

 private:
  struct Slot {
    int64_t place, position;
    float score;
  };
  void row(Out& out, const Tracked& to, const Tracked& from, int64_t batch, int64_t slot,
           int64_t row, int64_t head) {
    for (int64_t c = 0; c < to.x.shape[3]; ++c)
      out.set(to.x.at_index(batch, slot, head, c), from(batch, row, head, c));
  }
  void tell(int64_t batch, int64_t head, int64_t slot, int64_t at, float score_at) {
    out_position.set((batch * g_ + head) * t_ + slot, static_cast<double>(at));
    if (!score) return;
    out_score.set((batch * g_ + head) * t_ + slot, static_cast<double>(score_at));
    out_score.terms(std::abs(static_cast<double>(score_at)));
  }

  void step(int64_t batch, int64_t head) {
    const int64_t live = std::clamp<int64_t>(count_.integer(batch, head), 0, t_);
    std::vector<Slot> all;
    int64_t last = -1;
    for (int64_t n = 0; n < live; ++n) {
      Slot one{n, static_cast<int64_t>(position(batch, head, n)), 0};
      if (score) one.score = static_cast<float>(score(batch, head, n));
      if (mass) one.score += static_cast<float>(mass(batch, head, n));
      if (mass)
        out_score.set((batch * g_ + head) * t_ + n, static_cast<double>(one.score)),
            out_score.terms(std::abs(static_cast<double>(one.score)));
      last = std::max(last, one.position);
      all.push_back(one);
    }
    const int64_t s = p_.k_new.data ? p_.k_new.shape[1] : 0;
    const int64_t added =
        query_len_ && s ? std::clamp<int64_t>(query_len_.integer(batch), 0, s) : s;
    const int64_t begin = old_len_ ? old_len_.integer(batch) : last + 1;
    int64_t now = p_.rule == FOVEA_X_CACHE_RULE_RING ? ring(batch, head, live, begin, added)
                                                     : heavy(batch, head, all, last, begin, added);
    out_count.set(batch * g_ + head, static_cast<double>(now));
  }
  int64_t ring(int64_t batch, int64_t head, int64_t live, int64_t begin, int64_t added) {
    const int64_t recent = capacity_ ? capacity_.integer(head) - p_.sink_keys : p_.recent,
                  sink = p_.sink_keys;
    std::vector<int64_t> token(t_, -1);  // the newest in each slot
    for (int64_t n = 0; n < added; ++n) {
      const int64_t p = begin + n;
      token[p < sink + recent ? p : sink + (p - sink) % recent] = n;
    }
    for (int64_t slot = 0; slot < t_; ++slot) {
      if (token[slot] < 0) continue;
      row(out_k, k, k_new, batch, slot, token[slot], head);
      row(out_v, v, v_new, batch, slot, token[slot], head);
      tell(batch, head, slot, begin + token[slot], 0);
    }
    return added ? std::min(begin + added, sink + recent) : live;
  }
  int64_t heavy(int64_t batch, int64_t head, const std::vector<Slot>& all, int64_t last,
                int64_t begin, int64_t added) {
    std::vector<Slot> kept, others;
    for (const Slot& one : all) (one.position > last - p_.recent ? kept : others).push_back(one);
    std::stable_sort(others.begin(), others.end(), [](const Slot& x, const Slot& y) {
      return x.score > y.score || (x.score == y.score && x.position < y.position);
    });
    if (static_cast<int64_t>(others.size()) > p_.heavy) others.resize(p_.heavy);
    kept.insert(kept.end(), others.begin(), others.end());
    std::sort(kept.begin(), kept.end(),
              [](const Slot& x, const Slot& y) { return x.place < y.place; });
    const int64_t stay = static_cast<int64_t>(kept.size());
    int64_t free = 0;
    for (const Slot& one : kept) {
      if (one.place < stay) continue;
      const auto taken = [&](int64_t slot) {
        return std::any_of(kept.begin(), kept.end(),
                           [&](const Slot& x) { return x.place == slot; });
      };
      while (taken(free)) ++free;
      row(out_k, k, k, batch, free, one.place, head);
      row(out_v, v, v, batch, free, one.place, head);
      tell(batch, head, free++, one.position, one.score);
    }
    for (int64_t n = 0; n < added; ++n) {
      row(out_k, k, k_new, batch, stay + n, n, head);
      row(out_v, v, v_new, batch, stay + n, n, head);
      tell(batch, head, stay + n, begin + n, 0);
    }
    return stay + added;
  }

  const fovea_x_cache_step_params& p_;
  Dense count_, query_len_, old_len_, capacity_;
  int64_t b_, t_, g_;
};

}  // namespace oracle
