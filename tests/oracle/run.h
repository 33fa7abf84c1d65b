// SPDX-License-Identifier: Apache-2.0
// The fields of a run (experimental/linear.h): which tokens a sequence has, where its state comes
// from and where states go.
#pragma once
#include <algorithm>

#include "oracle/dense.h"

namespace oracle {

// The tokens of each sequence, and the rows of its states.
struct RunOracle {
  Dense start, len, state_row, state_out_row, output_from, snapshot_row;
  int64_t r = 0, s = 0, token_max = 0, every = 0;

  struct Tokens {
    int64_t batch, begin, count, from;
  };
  Tokens operator[](int64_t i) const {
    Tokens q{i, 0, s, 0};
    if (start) q.batch = 0, q.begin = start.integer(i), q.count = start.integer(i + 1) - q.begin;
    if (len) q.count = std::clamp<int64_t>(len.integer(i), 0, q.count);
    if (token_max > 0) q.count = std::min(q.count, token_max);
    if (output_from) q.from = std::clamp<int64_t>(output_from.integer(i), 0, q.count);
    return q;
  }
  // -1: none
  int64_t in_row(int64_t i, int64_t rows) const {
    const int64_t row = state_row ? state_row.integer(i) : i;
    return row >= 0 && row < rows ? row : -1;
  }
  int64_t out_row(int64_t i, int64_t rows) const {
    const int64_t row = state_out_row ? state_out_row.integer(i)
                        : state_row   ? state_row.integer(i)
                                      : i;
    return row >= 0 && row < rows ? row : -1;
  }
};

// The tensor whose first axes are sequences and tokens.
template <class P>
const fovea_tensor& run_tokens(const P& p) {
  if constexpr (requires { p.q; })
    return p.q;
  else
    return p.x;
}

template <class P>
RunOracle load_run(const P& p) {
  RunOracle run{load(p.start), load(p.len), load(p.state_row), {}, load(p.output_from), {}};
  const fovea_tensor& tokens = run_tokens(p);
  run.s = tokens.shape[1], run.token_max = p.token_max;
  run.r = run.start ? run.start.shape[0] - 1 : tokens.shape[0];
  if constexpr (requires { p.state_out; }) {
    run.state_out_row = load(p.state_out_row), run.snapshot_row = load(p.snapshot_row);
    run.every = p.snapshot_every;
  }
  return run;
}

}  // namespace oracle
