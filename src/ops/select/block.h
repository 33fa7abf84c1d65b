// SPDX-License-Identifier: Apache-2.0
// A call of x_select_block, resolved: its list rows and columns, who is eligible and who is forced,
// and the kernels.  Raw scores are of (query head, column), final ones of (list head, key block).
#pragma once
#include <cmath>

#include "core/list_rows.h"
#include "core/pick.h"
#include "core/plan.h"
#include "fovea/experimental/select.h"

namespace fovea {

// An extent that nothing reaches.
constexpr int64_t kFar = INT64_MAX / 4;

// One list row of a sequence.  Key blocks [own_begin, own_end) hold its positions.
struct ListRow {
  Sequence seq;
  int64_t sequence, row;      // row: on the n axis
  int64_t first_column;       // on the u axis of columns
  int64_t columns, blocks;    // that the sequence has
  int64_t rows_before;        // list rows of the sequence before it
  int64_t first_at, last_at;  // positions of the first and the last row
  int64_t own_begin, own_end;
};

// Bits of a list row: bit c % 8 of byte c / 8.
struct BlockBits {
  const uint8_t* data = nullptr;
  int64_t stride = 0;
  FOVEA_HD bool operator[](int64_t c) const {
    return data && (data[c / 8 * stride] >> (c % 8) & 1);
  }
};

struct SelectBlock {
  View<4> row, column, column_low, score, block_mask, forced, index, kept_score, score_out;
  View<3> column_weight, row_lse, row_forced, column_forced, index_count, kept_mass;
  View<2> count_head;
  View<1> cover_head;
  Sequences sequences;
  int32_t row_dtype, column_dtype;
  int64_t b, n, h, g, x, d, u, y, keep;
  int64_t block_rows, block_keys, step, span;  // a column's keys: [step c, step c + span)
  int64_t remap_step, remap_span;              // 0: none
  int64_t count, min_keep, max_keep, min_extra, force_first, force_previous, force_last;
  float scale, ratio, cover, threshold;
  int32_t normalise, reduce, scope;
  PickRule rule;
  bool box, reduce_raw, rule_none, ratio_up, forced_count, force_own, complete, causal, packed;

  FOVEA_HD int64_t group() const { return h / x; }  // query heads of a list head
  FOVEA_HD int64_t column_head(int64_t head) const { return head / (h / g); }
  FOVEA_HD bool wide() const { return scope != FOVEA_X_SELECT_SCOPE_ROW; }
  FOVEA_HD bool scored() const { return row || score; }

  // The first list row of a sequence, on the n axis; its number of list rows.
  FOVEA_HD int64_t first_row(int64_t sequence) const {
    if (!sequences.query_start) return 0;
    const int64_t start = clamp_i64(sequences.query_start[sequence], 0, sequences.s);
    return first_list_row<int64_t>(start, sequence, block_rows);
  }
  FOVEA_HD int64_t rows_of(const Sequence& seq, int64_t first) const {
    return clamp_i64((seq.rows + block_rows - 1) / block_rows, 0, n - first);
  }
  FOVEA_HD int64_t columns_of(const Sequence& seq, int64_t first) const {
    int64_t columns;
    if (remap_step)
      columns = seq.keys >= span ? (seq.keys - span) / step + 1 : 0;
    else
      columns = (seq.keys + block_keys - 1) / block_keys;
    return clamp_i64(columns, 0, u - first);
  }
  FOVEA_HD int64_t first_column(int64_t sequence) const {
    if (!sequences.key_start) return 0;
    return clamp_i64(sequences.key_start[sequence], 0, sequences.capacity) / step + sequence;
  }
  // Fills `at` for the list row at (batch, row); false: there is none.
  FOVEA_HD bool list_row(int64_t batch, int64_t row, ListRow& at) const {
    at.sequence = batch;
    if (sequences.query_start) {
      int64_t low = 0, high = sequences.count;  // the last sequence that begins at or before it
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (first_row(middle) <= row)
          low = middle + 1;
        else
          high = middle;
      }
      at.sequence = low - 1;
      if (low < 1) return false;
    }
    at.seq = sequences[at.sequence], at.row = row;
    const int64_t first = first_row(at.sequence);
    at.rows_before = row - first;
    if (at.rows_before >= rows_of(at.seq, first)) return false;
    at.first_column = first_column(at.sequence);
    at.columns = columns_of(at.seq, at.first_column);
    at.blocks =
        remap_step ? clamp_i64((at.seq.keys + block_keys - 1) / block_keys, 0, y) : at.columns;
    const int64_t begin = at.rows_before * block_rows, shift = at.seq.keys - at.seq.rows;
    const int64_t last = begin + block_rows < at.seq.rows ? begin + block_rows : at.seq.rows;
    at.first_at = begin + shift, at.last_at = last - 1 + shift;
    at.own_begin = at.own_end = 0;
    if (at.last_at >= 0) {
      at.own_begin = clamp_i64(at.first_at, 0, INT64_MAX) / block_keys;
      at.own_end = clamp_i64(at.last_at / block_keys + 1, 0, at.blocks);
    }
    return true;
  }

  // Whether positions let the row block see keys [begin, end) of its sequence.
  FOVEA_HD bool visible(const ListRow& at, int64_t begin, int64_t end) const {
    if (!causal) return true;
    if (begin > at.last_at) return false;
    return !complete || (end < at.seq.keys ? end : at.seq.keys) - 1 <= at.first_at;
  }
  FOVEA_HD bool block_visible(const ListRow& at, int64_t block) const {
    if (!remap_step) return visible(at, block * block_keys, (block + 1) * block_keys);
    return !causal || block * block_keys <= at.last_at;
  }
  FOVEA_HD BlockBits bits(const View<4>& x, const ListRow& at, int64_t list_head) const {
    if (!x) return {};
    return {x.at<uint8_t>(at.seq.batch, list_head, at.row), x.stride[3]};
  }
  FOVEA_HD int column_flags(const ListRow& at, int64_t head, int64_t c) const {
    if (!column_forced) return 0;
    return *column_forced.at<uint8_t>(at.seq.key_b, column_head(head), at.first_column + c);
  }
  FOVEA_HD bool eligible(const ListRow& at, const BlockBits& mask, int64_t head, int64_t c) const {
    return visible(at, c * step, c * step + span) && (!mask.data || mask[c]) &&
           !(column_flags(at, head, c) & 2);
  }
  // A raw score as it counts; `product`: of row and column, or the given score.
  FOVEA_HD float scored_as(float product) const {
    return pick_score(rounded_product(scale, product));
  }
  FOVEA_HD float weight(const ListRow& at, int64_t head, int64_t c) const {
    if (normalise != FOVEA_X_SELECT_NORMALISE_WEIGHTED) return 1;
    const float w = *column_weight.at(at.seq.key_b, column_head(head), at.first_column + c);
    return w > 0 ? w : 0;
  }
  // A score of a row whose lse is given.
  FOVEA_HD static float given_softmax(float s, float lse) {
    if (!(lse > -INFINITY && lse < INFINITY)) return 0;
    return s < lse ? expf(s - lse) : 1;
  }

  // k of top_k in a scope of `entries` key blocks.
  FOVEA_HD int64_t wanted(const ListRow& at, int64_t list_head, int64_t entries) const {
    if (count_head) {
      const int32_t k = *count_head.at<int32_t>(at.seq.batch, list_head);
      return k > 0 ? k : 0;
    }
    if (count || !(ratio > 0)) return count;
    const double k = static_cast<double>(ratio) * static_cast<double>(entries);
    if (k >= 9e18) return INT64_MAX;
    const auto whole = static_cast<int64_t>(k);
    return ratio_up && static_cast<double>(whole) < k ? whole + 1 : whole;
  }
  FOVEA_HD PickLimits limits() const { return {min_keep, max_keep, index ? keep : -1}; }
  FOVEA_HD float cover_of(int64_t list_head) const {
    return cover_head ? *cover_head.at(list_head) : cover;
  }
};

// What is forced of a list row and a list head.
struct Forced {
  const SelectBlock& a;
  const ListRow& at;
  int64_t head;  // the first query head
  BlockBits bits;
  bool whole;

  FOVEA_HD Forced(const SelectBlock& a, const ListRow& at, int64_t list_head)
      : a(a),
        at(at),
        head(list_head * a.group()),
        bits(a.bits(a.forced, at, list_head)),
        whole(a.row_forced && *a.row_forced.at<uint8_t>(at.seq.batch, list_head, at.row)) {}
  FOVEA_HD bool operator()(int64_t c) const {
    const bool own = c >= at.own_begin && c < at.own_end;
    if (own && a.force_own) return true;
    const bool named = whole || c < a.force_first || c >= at.blocks - a.force_last ||
                       (c < at.own_begin && c >= at.own_begin - a.force_previous) || bits[c] ||
                       (!a.remap_step && (a.column_flags(at, head, c) & 1));
    return named && a.block_visible(at, c);
  }
};

extern const Kernel<SelectBlock> x_select_block_host;

// CUDA builds only.
extern const Kernel<SelectBlock> x_select_block_rows, x_select_block_given_sm80,
    x_select_block_sm90;
extern const Kernel<SelectBlock> x_select_block_sm80, x_select_block_simt;

}  // namespace fovea
