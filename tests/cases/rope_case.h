// SPDX-License-Identifier: Apache-2.0
// What a call of rope_forward is.
#pragma once
#include "cases/rope_tables.h"
#include "oracle/rope.h"

namespace cases {

struct RopeCase {
  std::string note;
  int dtype = FOVEA_F32;
  int64_t b = 2, s = 5, h = 3, d = 16, half = 8, positions = 32;
  int32_t begin = 0;
  bool interleaved = false, inverse = false, in_place = false;
  enum Place { index, position, outside, packed, packed_position } place = index;
  Lay lay = Lay::contiguous;
};

Call build_rope_forward(const RopeCase& c, uint64_t seed);

}  // namespace cases
