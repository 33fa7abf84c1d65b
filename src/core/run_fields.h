// SPDX-License-Identifier: Apache-2.0
// The group {run} of experimental/linear.h, read and checked.  `op` is named in every refusal.
#pragma once
#include "core/fields.h"
#include "core/run.h"

namespace fovea {

// A state without rows that place it has one for each sequence.
inline int64_t read_slots(const char* op, const char* field, const char* letter,
                          const fovea_tensor& x, const fovea_tensor& rows, const Run& run,
                          const char* without, const char* tokens) {
  if (!x.data) return 0;
  if (!rows.data && x.shape[0] != run.count)
    refuse(
        "%s: %s.shape[0] (%s) is %lld, wanted %lld: without %s each sequence of %s has a "
        "row",
        op, field, letter, lld(x.shape[0]), lld(run.count), without, run.start ? "start" : tokens);
  return x.shape[0];
}

// Of a call with `b` sequences of up to s tokens, or packed ones.
template <class P>
Run read_run(const char* op, const P& p, int64_t b, int64_t s) {
  Run run{};
  run.start = int_vector(p.start), run.len = int_vector(p.len);
  run.state_row = int_vector(p.state_row), run.output_from = int_vector(p.output_from);
  run.count = p.start.data ? p.start.shape[0] - 1 : b, run.s = s;
  check_not_negative(op, "token_max", p.token_max);
  run.token_max = bounded(p.token_max, s);
  const char* tokens = "x";
  if constexpr (requires { p.q; }) tokens = "q";
  run.slots =
      read_slots(op, "state_in", "slots", p.state_in, p.state_row, run, "state_row", tokens);
  if constexpr (requires { p.state_out; }) {
    run.state_out_row = int_vector(p.state_out_row), run.snapshot_row = view_of<2>(p.snapshot_row);
    run.slots_out = read_slots(op, "state_out", "slots_out", p.state_out,
                               p.state_out_row.data ? p.state_out_row : p.state_row, run,
                               "state_row and state_out_row", tokens);
    check_needs(op, p.snapshot, "snapshot", p.snapshot_row, "snapshot_row");
    if (p.snapshot_every < (p.snapshot.data ? 1 : 0))
      refuse("%s: snapshot_every is %lld, wanted >= %d", op, lld(p.snapshot_every),
             p.snapshot.data ? 1 : 0);
    run.every = p.snapshot_every;
    if (!p.snapshot.data) return run;
    run.snapshots = p.snapshot.shape[0];
    const int64_t most = run.token_max / run.every, columns = p.snapshot_row.shape[1];
    run.kept = columns < most ? columns : most;
  }
  return run;
}

// The last state of a convolution or recurrence, tokens of outputs or states between: one at least.
inline void check_some_output(const char* op, const fovea_tensor& y, const char* name,
                              const fovea_tensor& state_out, const fovea_tensor& snapshot) {
  if (!y.data && !state_out.data && !snapshot.data)
    refuse("%s: %s, state_out and snapshot are not given, wanted one of them at least", op, name);
}

}  // namespace fovea
