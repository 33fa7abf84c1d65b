// SPDX-License-Identifier: Apache-2.0
// A call on a backend: its tensors in memory of the context, uploaded, run, read back.
#pragma once
#include <memory>
#include <stdexcept>

#include "harness/call.h"
#include "harness/sanitized.h"

namespace harness {

// A failure of the harness's own calls (context, memory, copies) ends the test.
inline void must(fovea_status status, const char* what) {
  if (status != FOVEA_OK)
    throw std::runtime_error(std::string(what) + ": " + fovea_status_name(status) + ": " +
                             fovea_last_error());
}

class Context {
 public:
  explicit Context(fovea_backend backend_) : backend(backend_) {
    must(fovea_context_create(backend, 0, &ctx_), "context_create");
  }
  ~Context() { fovea_context_destroy(ctx_); }
  Context(const Context&) = delete;
  operator fovea_context*() const { return ctx_; }
  const fovea_backend backend;

 private:
  fovea_context* ctx_ = nullptr;
};

inline const char* name_of(fovea_backend backend) {
  return backend == FOVEA_HOST ? "host" : "cuda";
}

inline std::vector<fovea_backend> backends() {
  std::vector<fovea_backend> found;
  for (fovea_backend backend : {FOVEA_HOST, FOVEA_CUDA}) {
    int32_t count = 0;
    must(fovea_device_count(backend, &count), "device_count");
    if (count > 0) found.push_back(backend);
  }
  return found;
}

class Memory {
 public:
  Memory(fovea_context* ctx, size_t bytes_) : bytes(bytes_), ctx_(ctx) {
    must(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, bytes, &data), "alloc");
  }
  ~Memory() { fovea_free(ctx_, data); }
  Memory(const Memory&) = delete;
  void write(const std::vector<uint8_t>& from) {
    must(fovea_copy(ctx_, data, from.data(), bytes), "copy");
  }
  std::vector<uint8_t> read() const {
    std::vector<uint8_t> to(bytes);
    must(fovea_copy(ctx_, to.data(), data, bytes), "copy");
    must(fovea_context_synchronize(ctx_), "synchronize");
    return to;
  }
  void* data = nullptr;
  const size_t bytes;

 private:
  fovea_context* ctx_;
};

// Under ASan on the host, bytes that no tensor names may not be touched at all.
inline void fence(const Storage& s, void* data, bool closed) {
  if (!watches_addresses()) return;
  for (size_t i = 0; i + 8 <= s.cover.size(); i += 8) {
    bool gap = true;
    for (size_t k = 0; k < 8; ++k) gap = gap && s.cover[i + k] == kGap;
    if (!gap) continue;
    if (closed)
      __asan_poison_memory_region(static_cast<uint8_t*>(data) + i, 8);
    else
      __asan_unpoison_memory_region(static_cast<uint8_t*>(data) + i, 8);
  }
}

using Bytes = std::vector<std::vector<uint8_t>>;  // of every storage of a call

class Bound {
 public:
  Bound(Context& ctx, const Call& call) : ctx_(ctx), params_(call.params) {
    for (size_t i = 0; i < call.storages.size(); ++i)
      memory_.push_back(std::make_unique<Memory>(ctx, call.storages[i].image.size()));
    for (const Field& f : call.fields)
      reinterpret_cast<fovea_tensor*>(params_.data() + f.slot)->data = place_of(f);
  }

  const void* params() const { return params_.data(); }

  Bytes upload(const Call& call, bool poisoned) {
    Bytes images;
    for (size_t i = 0; i < memory_.size(); ++i) {
      images.push_back(call.image(i, poisoned));
      memory_[i]->write(images[i]);
    }
    return images;
  }
  Bytes download() const {
    Bytes bytes;
    for (const auto& m : memory_) bytes.push_back(m->read());
    return bytes;
  }
  fovea_status run(const Call& call) {
    const bool host = ctx_.backend == FOVEA_HOST;
    for (size_t i = 0; host && i < memory_.size(); ++i)
      fence(call.storages[i], memory_[i]->data, true);
    const fovea_status status = call.op.run(ctx_, params());
    for (size_t i = 0; host && i < memory_.size(); ++i)
      fence(call.storages[i], memory_[i]->data, false);
    return status;
  }

 private:
  // A tensor without elements lies where any access faults, on the host as on a device.
  void* place_of(const Field& f) const {
    if (!oracle::count_of(f.tensor)) return reinterpret_cast<void*>(4096 + f.start % kGuard);
    return static_cast<uint8_t*>(memory_[f.storage]->data) + f.start;
  }

  Context& ctx_;
  std::vector<uint8_t> params_;
  std::vector<std::unique_ptr<Memory>> memory_;
};

// Whether the backend has a kernel for the call: how many it lacks is for the conformance program.
inline bool served(Context& ctx, const Call& call) {
  Bound bound(ctx, call);
  size_t bytes = 0;
  return call.op.query(ctx, bound.params(), &bytes) != FOVEA_UNSUPPORTED;
}

}  // namespace harness
