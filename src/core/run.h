// SPDX-License-Identifier: Apache-2.0
// The group {run} of experimental/linear.h, resolved: which tokens a sequence has, the row of its
// state, and where states go.  Plain data that host loops and device kernels read alike.
#pragma once
#include "core/attend.h"

namespace fovea {

// The tokens of one sequence.
struct RunTokens {
  int64_t sequence;
  int64_t batch;  // index on the b axis
  int64_t begin;  // its first token on the s axis
  int64_t count;  // tokens in use
  int64_t from;   // the first whose output is written; may lie past them
  int64_t state;  // row of state_in; -1: zeros
};

struct Run {
  IntVector start, len, state_row, state_out_row, output_from;
  View<2> snapshot_row;
  int64_t count;                        // r
  int64_t s;                            // extent of the token axis
  int64_t token_max;                    // tokens bound
  int64_t slots, slots_out, snapshots;  // rows of the state tensors, 0: not given
  int64_t kept;                         // columns of snapshot_row that tokens can reach
  int64_t every;                        // tokens between snapshots, >= 1 where snapshots are kept

  FOVEA_HD RunTokens operator[](int64_t r) const {
    RunTokens q{r, r, 0, s, 0, -1};
    if (start) {
      q.batch = 0, q.begin = clamp_i64(start[r], 0, s);
      q.count = clamp_i64(start[r + 1], q.begin, s) - q.begin;
    }
    if (len) q.count = clamp_i64(len[r], 0, q.count);
    if (token_max < q.count) q.count = token_max;
    if (output_from) q.from = clamp_i64(output_from[r], 0, q.count);
    q.state = row(state_row ? state_row[r] : r, slots);
    return q;
  }
  // The row of state_out that takes the last state; -1: none.
  FOVEA_HD int64_t out_row(int64_t r) const {
    return row(state_out_row ? state_out_row[r] : state_row ? state_row[r] : r, slots_out);
  }
  // The row of snapshot that takes the state after (i + 1) * every tokens; -1: none.
  FOVEA_HD int64_t kept_row(const RunTokens& q, int64_t i) const {
    if (!snapshots || i >= q.count / every) return -1;
    return row(*snapshot_row.at<int32_t>(q.sequence, i), snapshots);
  }
  // Some token of the tensors belongs to no sequence.
  FOVEA_HD bool ragged() const { return start || len || token_max < s; }

  // Packed: the number of sequences that begin before `token`.
  FOVEA_HD int64_t begun_before(int64_t token) const { return begun_before(start, count, token); }
  static FOVEA_HD int64_t begun_before(const IntVector& starts, int64_t count, int64_t token) {
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (starts[middle] < token)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

 private:
  static FOVEA_HD int64_t row(int64_t i, int64_t rows) { return i < rows ? i : -1; }
};

// The token axis in pieces of `tokens`, by shapes alone: of each sequence, or of all packed ones
// together, which a piece may then have several of.
struct RunPieces {
  int64_t tokens;
  int64_t of_each;  // pieces of a sequence, or of the packed axis
  int64_t count;

  // About `wanted` pieces of least .. most tokens.
  static RunPieces of(const Run& run, int64_t wanted, int64_t least, int64_t most) {
    const int64_t axis = run.start ? run.s : run.token_max, all = run.start ? 1 : run.count;
    const int64_t tokens =
        clamp_i64(axis / clamp_i64(wanted / (all ? all : 1), 1, INT64_MAX), least, most);
    const int64_t of_each = axis / tokens + (axis % tokens != 0);
    int64_t count;
    if (__builtin_mul_overflow(of_each, all, &count)) count = INT64_MAX / 4;
    return {tokens, of_each, count};
  }
  // visit(sequence, first, end) for the tokens of every sequence in a piece, in order.
  template <class Visit>
  FOVEA_HD void each(const Run& run, int64_t piece, Visit visit) const {
    const int64_t low = piece % of_each * tokens, high = low + tokens;
    const bool packed = static_cast<bool>(run.start);
    int64_t r = packed ? run.begun_before(low) : piece / of_each;
    if (packed && r) --r;
    // `visit` is inlined: a second call of it would double a kernel.
    const int64_t last = packed ? run.count : r + 1;
    for (; r < last && (!packed || run.start[r] < high); ++r) {
      const RunTokens q = run[r];
      const int64_t origin = packed ? q.begin : 0;
      const int64_t first = low > origin ? low - origin : 0;
      const int64_t end = high - origin < q.count ? high - origin : q.count;
      if (first < end) visit(q, first, end);
    }
  }
};

}  // namespace fovea
