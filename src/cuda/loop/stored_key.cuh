// SPDX-License-Identifier: Apache-2.0
// Where a key is stored, in 32 bits: Sequences::key_offset() for loops that copy rows.
#pragma once
#include "core/attend.h"

namespace fovea::cuda {

// The index on the first axis of k and v, and the token within; block < 0: there is none.
struct StoredKey {
  int block, token;
};

// Of paged sequences.
__device__ __forceinline__ StoredKey paged_key(const Sequences& given, const Sequence& seq,
                                               int key) {
  const uint32_t token = static_cast<uint32_t>(static_cast<int>(seq.key_begin) + key),
                 page = static_cast<uint32_t>(given.page), place = token / page;
  const int id = given.page_table.as<int32_t>()[seq.key_batch * given.page_table.stride[0] +
                                                place * given.page_table.stride[1]];
  const bool is = static_cast<uint32_t>(id) < static_cast<uint32_t>(given.pool);
  return {is ? id : -1, static_cast<int>(token - place * page)};
}
__device__ __forceinline__ StoredKey stored_key(const Sequences& given, const Sequence& seq,
                                                int key) {
  if (given.page) return paged_key(given, seq, key);
  return {static_cast<int>(seq.key_batch), static_cast<int>(seq.key_begin) + key};
}

}  // namespace fovea::cuda
