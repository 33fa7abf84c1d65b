// SPDX-License-Identifier: Apache-2.0
// Split-K: how many splits, where each split's partial result lies, and the merge.
//   L = max_c lse_c (and the sink logit),  w_c = exp(lse_c - L)
//   o = sum_c w_c o_c / (sum_c w_c + exp(sink - L)),  lse = L + ln(sum_c w_c + exp(sink - L))
// A split writes a normalised f32 o and a natural-log lse.  At lse = -inf (no key) o is not read.
// The sink logit enters in the merge alone.  c ascends, so bits depend on the split count alone.
#pragma once
#include <algorithm>

#include "core/out_rows.h"
#include "core/workspace.h"
#include "cuda/launch.h"

namespace fovea::cuda {

struct Partials {
  float* o;      // (splits, b * rows of o, h, e)
  float* lse;    // (splits, b * rows of o, h)
  int64_t rows;  // b * rows of o * h
  int64_t h, e;
  int32_t splits;
  OutRows out;
  IntVector skip_head;  // (h): not 0 where a head has no partials

  // `token` is batch * rows of o + row of o.
  FOVEA_HD int64_t row(int64_t split, int64_t token, int64_t head) const {
    return split * rows + token * h + head;
  }
  FOVEA_HD float* o_row(int64_t split, int64_t token, int64_t head) const {
    return o + row(split, token, head) * e;
  }
  FOVEA_HD float* lse_row(int64_t split, int64_t token, int64_t head) const {
    return lse + row(split, token, head);
  }
};

struct PartialSlots {
  Slot<float> o, lse;
  PartialSlots() = default;
  PartialSlots(Layout& layout, const Attend& a, int64_t splits)
      : PartialSlots(layout, a, splits, {0, a.s}) {}
  PartialSlots(Layout& layout, const Attend& a, int64_t splits, const OutRows& out)
      : o(layout.add<float>(splits * a.b * out.extent * a.h * a.e)),
        lse(layout.add<float>(splits * a.b * out.extent * a.h)) {}
  Partials at(void* base, const Attend& a, int64_t splits) const {
    return at(base, a, splits, {0, a.s});
  }
  Partials at(void* base, const Attend& a, int64_t splits, const OutRows& out) const {
    return {o.at(base),
            lse.at(base),
            a.b * out.extent * a.h,
            a.h,
            a.e,
            static_cast<int32_t>(splits),
            out,
            {}};
  }
};

// Splits of `row_tiles` row tiles over at most `key_tiles` key tiles: the fewest that nearly fill
// the last wave.  Shapes alone decide, so graph replays are stable.
// head_bytes: k and v of a key head.  masked: a window already limits the keys of a row.
inline int64_t auto_splits(int64_t row_tiles, int64_t key_tiles, int64_t head_bytes, bool masked,
                           const DeviceInfo& device) {
  const int64_t multiprocessors = device.multiprocessors;
  if (row_tiles <= 0 || key_tiles <= 1) return 1;
  if (row_tiles * 10 >= multiprocessors * 8) {
    // Row tiles that share a head would each stream it from memory: a split of it stays in L2.
    if (head_bytes > device.l2_bytes && row_tiles >= 2 * multiprocessors && !masked)
      return clamp_i64(ceil_div(head_bytes, device.l2_bytes), 1, key_tiles);
    return 1;
  }
  if (key_tiles <= 4) return 1;
  const int64_t most = clamp_i64(key_tiles, 1, multiprocessors < 128 ? multiprocessors : 128);
  const auto efficiency = [&](int64_t splits) {
    const double waves =
        static_cast<double>(row_tiles * splits) / static_cast<double>(multiprocessors);
    const double whole = static_cast<double>(ceil_div(row_tiles * splits, multiprocessors));
    return waves / whole;
  };
  double best = 0;
  for (int64_t s = 1; s <= most; ++s) best = efficiency(s) > best ? efficiency(s) : best;
  int64_t splits = 1;
  while (efficiency(splits) < 0.85 * best) ++splits;
  return splits;
}

// The splits of a persistent kernel that end soonest, counted in key tiles.  A work item costs its
// own and kWorkTiles more, the merge kMergeTiles.
inline int64_t splits_of(int64_t items, int64_t key_tiles, int64_t multiprocessors) {
  constexpr int64_t kWorkTiles = 4, kMergeTiles = 2, kMost = 128;
  const auto cost = [&](int64_t splits) {
    return ceil_div(items * splits, multiprocessors) * (ceil_div(key_tiles, splits) + kWorkTiles) +
           (splits > 1 ? kMergeTiles : 0);
  };
  int64_t best = 1;
  for (int64_t s = 2; s <= std::min(key_tiles, kMost); ++s)
    if (cost(s) < cost(best)) best = s;
  return best;
}

// Tiles [begin, end) of split `c` among a row tile's `tiles` key tiles.
struct SplitRange {
  int64_t begin, end;
};
FOVEA_HD SplitRange split_range(int64_t tiles, int64_t splits, int64_t c) {
  return {tiles * c / splits, tiles * (c + 1) / splits};
}

// Enqueues the merge into a.o and a.lse, for rows that belong to a sequence.
void combine(Context& ctx, const char* op, const Attend& a, const Partials& parts);

}  // namespace fovea::cuda
