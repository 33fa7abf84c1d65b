// SPDX-License-Identifier: Apache-2.0
// What fovea_alloc has given and fovea_free not yet taken, for the whole process: any context of a
// device frees what another one gave.
#pragma once
#include <cstdint>

#include "fovea/core.h"

namespace fovea {

struct BlockOwner {
  fovea_backend backend;
  int32_t device;
};

// Throws std::bad_alloc.
void add_block(void* data, BlockOwner owner);

// A block on its way to be freed: forgotten first, because its address may be given anew as soon as
// it is free, and remembered again unless freed() is called.
class TakenBlock {
 public:
  // Fails where data is no block of the owner.
  TakenBlock(void* data, BlockOwner owner);
  ~TakenBlock();
  TakenBlock(const TakenBlock&) = delete;
  TakenBlock& operator=(const TakenBlock&) = delete;
  void freed() { data_ = nullptr; }

 private:
  void* data_;
  BlockOwner owner_;
};

}  // namespace fovea
