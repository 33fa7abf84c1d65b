// SPDX-License-Identifier: Apache-2.0
// Words of the group {run} (experimental/linear.h), for cases of every operation that has it.
//   start seqs=5  packed sequences, some without tokens; the last tokens belong to none
//   len           the first sequence is whole, others are cut
//   state_row     rows of a pool of 2 r + 2, out of order; sequence 1 starts from zeros
//   shared=1        state_out is the memory of state_in.  Every second sequence writes another row
//                 than it reads, where state_out_row is given
//   shared=2        snapshot is that memory too, and some of it goes to rows that are read
#pragma once
#include "cases/table.h"

namespace cases {

// The number of a word of a family's own; 0 without the word, even where an extent is called so.
inline int64_t letter(const TableCall& made, const char* name) {
  const auto found = made.named.find(name);
  return found == made.named.end() ? 0 : found->second;
}

// Extents that follow from the words; `every` is snapshot_every.
inline void run_shape(TableCall& made, int64_t every) {
  Letters& x = made.letters;
  if (made.has("start")) x["b"] = 1, x["r"] = x.count("seqs") ? x["seqs"] : 4;
  const int64_t r = x["r"];
  x["r+1"] = r + 1;
  x["n"] = every > 0 ? std::min<int64_t>(x["s"] / every + 1, 40) : 1;
  x["slots"] = made.has("state_row") ? 2 * r + 2 : r;
  x["slots_out"] = letter(made, "shared") || !(made.has("state_row") || made.has("state_out_row"))
                       ? x["slots"]
                       : 2 * r + 2;
  x["snapshots"] = r * x["n"] + 1;
  if (letter(made, "shared") == 2)
    x["slots"] = x["slots_out"] = x["snapshots"] = 2 * r + 2 + r * x["n"];
}

// The number at `i` of an integer of the group.
inline double run_integer(const TableCall& made, const std::string& field, const int64_t* i) {
  const int64_t s = made.letters.at("s"), r = made.letters.at("r"), n = made.letters.at("n");
  const int64_t slots = made.letters.at("slots"), shared = letter(made, "shared"), q = i[0];
  const bool given = made.has("state_row");
  const int64_t read = given ? 2 * ((q + 2) % r) + 1 : q;
  int64_t value = 0;
  if (field == "start")
    value = q == r   ? s - s / 8
            : q < 2  ? std::min<int64_t>(2 * q, s / 2)
            : q == 2 ? std::min<int64_t>(2, s / 2)
                     : std::max(std::min<int64_t>(2, s / 2), q * (s - s / 8) / r);
  else if (field == "len")
    value = q == 0 ? s + 1 : q * 5 % (s + 1);
  else if (field == "output_from")
    value = q * 3 % 7;
  else if (field == "state_row")
    value = q == 1 ? (r > 2 ? -1 : slots) : read;
  else if (field == "state_out_row")
    value = shared == 0            ? (q == 2 ? -1 : made.letters.at("slots_out") - 1 - q)
            : q % 2 || shared == 2 ? 2 * ((q + 2) % r)
                                   : read;
  else if (field == "snapshot_row" && shared == 2)
    value = i[1] == 0 && q != 1 ? read : 2 * r + 2 + q * n + i[1];
  else if (field == "snapshot_row")
    value = i[1] % 5 == 3 ? -1 : q * n + i[1];
  return static_cast<double>(value);
}

inline bool is_run_integer(const std::string& field) {
  return field == "start" || field == "len" || field == "output_from" ||
         field.find("_row") != std::string::npos;
}

}  // namespace cases
