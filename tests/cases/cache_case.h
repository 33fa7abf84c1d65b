// SPDX-License-Identifier: Apache-2.0
// What a call of a cache is.
#pragma once
#include "cases/rope_tables.h"
#include "oracle/cache.h"

namespace cases {

struct CacheCase {
  std::string note;
  int new_dtype = FOVEA_F32, cache_dtype = FOVEA_F32;
  int64_t b = 3, s = 4, g = 2, f = 3, d = 16, e = 24, t = 24, page = 0;  // page 0: contiguous
  bool packed = false, packed_keys = false, cache_row = false, lens = true, holes = false,
       norm = false, scale = false;
  int64_t groups = 0;                          // scales that are found, of a row; 0: none
  bool power_of_two = false, strange = false;  // zeros, infinities and NaN among the new values
  bool in_place_len = false, key_max = false, values_only = false;
  Rope rope = Rope::none;
  bool position = false;
  Lay lay = Lay::contiguous;
};

Call build_cache_append(const CacheCase& c, uint64_t seed);
Call build_cache_get(const CacheCase& c, uint64_t seed);

}  // namespace cases
