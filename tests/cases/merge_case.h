// SPDX-License-Identifier: Apache-2.0
// What a call of merge is.
#pragma once
#include "cases/attention_case.h"
#include "oracle/merge.h"

namespace cases {

struct MergeCase {
  std::string note;
  int part_dtype = FOVEA_F32, o_dtype = FOVEA_F32;
  int64_t n = 2, b = 1, u = 4, s = 4, h = 2, e = 8;
  bool row = false;       // u rows a part, scattered over s
  bool empty = false;     // some lse_part are -inf, one row of o gets none at all
  bool nan = false;       // one lse_part is NaN
  bool in_place = false;  // o and lse are part 0
  bool lse = true, dlse = true;
  int outputs = 3;  // backward: do_part, dlse_part
  Lay lay = Lay::contiguous;
};

Call build_merge_forward(const MergeCase& c, uint64_t seed);
Call build_merge_backward(const MergeCase& c, uint64_t seed);

}  // namespace cases
