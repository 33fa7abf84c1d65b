// SPDX-License-Identifier: Apache-2.0
// A call of x_select_token, resolved: what a row sees and may select, scores, and the kernels.
// A unit is a key, or a block of pool_keys keys.  A list's keys of units are those of core/pick.h,
// and 0 where nothing of the unit can be selected.
#pragma once
#include "core/locate.h"
#include "core/pick.h"
#include "core/plan.h"
#include "fovea/experimental/select.h"

namespace fovea {

// What a row sees of its sequence.  Keys [0, high) hold all of it.
struct TokenRow {
  KeyRange seen;
  int64_t at;  // its position
  int64_t high, units;
  int64_t forced;  // units from here on are forced, where they can be selected
};

struct SelectToken {
  Attend attend;  // q, k, where keys lie, what rows see
  View<4> code_q, code, block_mask, index, kept_score;
  View<3> weight, index_count, kept_mass;
  int64_t x, keep, words, subset;
  int64_t count, pool, first_keys, last_keys, force_last, block_keys;
  float scale, ratio;
  int32_t measure, reduce;

  FOVEA_HD int64_t group() const { return attend.h / x; }             // query heads of a list head
  FOVEA_HD int64_t key_group() const { return attend.h / attend.g; }  // of a key head
  // Query heads that are scored together: whole list heads and whole key heads.
  FOVEA_HD int64_t parts() const { return x < attend.g ? x : attend.g; }
  FOVEA_HD int64_t units() const { return (attend.sequences.key_max + pool - 1) / pool; }
  FOVEA_HD bool hamming() const { return measure == FOVEA_X_SELECT_SCORE_HAMMING; }
  FOVEA_HD bool masses() const { return static_cast<bool>(kept_mass); }
  // Where keys lie in memory: k, or the codes.
  FOVEA_HD const View<4>& keys() const { return hamming() ? code : attend.k; }
  FOVEA_HD PickLimits limits() const { return {0, 0, index ? keep : -1}; }

  FOVEA_HD TokenRow row(const Sequence& q, int64_t i) const {
    TokenRow row;
    row.at = attend.mask.query_at(q, 0, i);
    row.seen = attend.mask.window.range(row.at, q.keys, attend.mask.axis);
    row.high = row.seen.high > row.seen.first_high ? row.seen.high : row.seen.first_high;
    row.high = clamp_i64(row.high, 0, q.keys);
    row.units = (row.high + pool - 1) / pool;
    row.forced = row.units - force_last;
    return row;
  }
  FOVEA_HD bool sees(const TokenRow& row, int64_t j) const {
    return (j >= row.seen.low && j < row.seen.high) ||
           (j >= row.seen.first_low && j < row.seen.first_high);
  }
  // Whether key j can be selected, but for absent pages and the mask.
  FOVEA_HD bool selects(const TokenRow& row, int64_t j) const {
    if (j < first_keys || !sees(row, j)) return false;
    if (!last_keys) return true;
    const int64_t away = row.at - attend.mask.axis.at(j);
    return away < 0 || away >= last_keys;
  }
  // The mask's bits of a list row; nullptr: there is no mask.
  FOVEA_HD const uint8_t* mask_row(const Sequence& q, int64_t list_head, int64_t i) const {
    return block_mask ? block_mask.at<uint8_t>(q.batch, list_head, q.row_begin + i) : nullptr;
  }
  FOVEA_HD bool allows(const uint8_t* mask, int64_t j) const {
    if (!mask) return true;
    const int64_t block = quotient(j, block_keys);
    return mask[block / 8 * block_mask.stride[3]] >> (block % 8) & 1;
  }
  // The score of a query head from its product, as it counts; w: its weight.
  FOVEA_HD float score(float product, float scaled, float w) const {
    const float s = rounded_product(scaled, product);
    if (measure != FOVEA_X_SELECT_SCORE_RELU_WEIGHTED) return pick_score(s);
    return pick_score(rounded_product(w, s <= 0 ? 0.0f : s));
  }
  FOVEA_HD float weight_of(const Sequence& q, int64_t i, int64_t head) const {
    return weight ? *weight.at(q.batch, q.row_begin + i, head) : 1.0f;
  }
  // The sum of two heads, or the larger; of one that is no number -inf.
  FOVEA_HD float reduced(float sum, float other) const {
    if (reduce == FOVEA_X_SELECT_REDUCE_MAX) return sum > other ? sum : other;
    return pick_score(sum + other);
  }
  FOVEA_HD int64_t wanted(const TokenRow& row) const {
    if (!(ratio > 0)) return count;
    int64_t seen = row.seen.high > row.seen.low ? row.seen.high - row.seen.low : 0;
    const int64_t sinks = row.seen.first_high < row.seen.low ? row.seen.first_high : row.seen.low;
    if (sinks > row.seen.first_low) seen += sinks - row.seen.first_low;
    const auto part = static_cast<int64_t>(static_cast<double>(ratio) * static_cast<double>(seen));
    return part > count ? part : count;
  }
};

extern const Kernel<SelectToken> x_select_token_host;

// CUDA builds only.
extern const Kernel<SelectToken> x_select_token_sm90, x_select_token_blocks_sm90,
    x_select_token_simt;

}  // namespace fovea
