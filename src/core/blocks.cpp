// SPDX-License-Identifier: Apache-2.0
#include "core/blocks.h"

#include <pthread.h>

#include <mutex>
#include <new>
#include <unordered_map>

#include "core/status.h"

namespace fovea {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, BlockOwner> blocks;
};

// Never destroyed, because the host program's own destructors may free; an empty one holds no
// memory, so that unloading the library leaks none.
Registry& registry() {
  alignas(Registry) static unsigned char room[sizeof(Registry)];
  static Registry& one = [&]() -> Registry& {
    Registry& made = *new (room) Registry;
    // A child would find the mutex as some other thread held it.
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] { registry().mutex.unlock(); });
    return made;
  }();
  return one;
}

// Made when the library is loaded: the child of a fork() during the first call would wait for ever
// for the thread that makes it.
[[maybe_unused]] const Registry& made_at_load = registry();

const char* name_of(fovea_backend backend) {
  return backend == FOVEA_HOST ? "FOVEA_HOST" : "FOVEA_CUDA";
}

}  // namespace

void add_block(void* data, BlockOwner owner) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.blocks.insert_or_assign(data, owner);
}

TakenBlock::TakenBlock(void* data, BlockOwner owner) : data_(data), owner_(owner) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(data);
  if (found == all.blocks.end())
    refuse("free: data is %p, which fovea_alloc did not give or which was freed", data);
  const BlockOwner& own = found->second;
  if (own.backend != owner.backend || own.device != owner.device)
    refuse("free: data is %p of %s device %d, wanted a context of that device", data,
           name_of(own.backend), own.device);
  all.blocks.erase(found);
  if (all.blocks.empty()) std::unordered_map<const void*, BlockOwner>().swap(all.blocks);
}

TakenBlock::~TakenBlock() {
  if (!data_) return;
  try {
    add_block(data_, owner_);
  } catch (const std::bad_alloc&) {
    // The block is lost, as is the memory that would be needed to remember it.
  }
}

}  // namespace fovea
