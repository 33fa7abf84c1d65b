// SPDX-License-Identifier: Apache-2.0
// fovea_context: one backend, one device, one stream, one workspace.  What a backend does
// differently sits behind Device (host/device.cpp, cuda/device.cu).
#pragma once
#include "core/status.h"
#include "core/text.h"

namespace fovea {

class Device {
 public:
  virtual ~Device() = default;
  // Makes this the calling thread's current device; returns what leave() restores.  `op` is named
  // in a refusal, here and below.
  virtual int enter(const char* op) {
    static_cast<void>(op);
    return 0;
  }
  virtual void leave(int) noexcept {}
  virtual void set_stream(void* stream) = 0;
  virtual void* alloc(fovea_memory memory, size_t bytes) = 0;
  virtual void free(void* data) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void synchronize() = 0;
  virtual void wait(Device& other) = 0;
  virtual bool capturing() { return false; }  // the stream, into a graph
  virtual int64_t get(fovea_property key) = 0;
  virtual void set_threads(int32_t) {}
  // Replaces the workspace in stream order; fails under graph capture, naming `bytes`.
  virtual void* grow_workspace(void* old, size_t bytes, const char* op) = 0;
  virtual void free_workspace(void* old) noexcept = 0;
};

// The caller deletes what these make.  Raw pointers, because <memory> would cost every file that
// includes this half a second to compile.
Device* make_host_device(int32_t device);
Device* make_cuda_device(int32_t device);  // fails where CUDA is not built
int32_t cuda_device_count();               // 0 where CUDA is not built

}  // namespace fovea

struct fovea_context {
  fovea_backend backend;
  int32_t device_index;
  fovea::Device* device = nullptr;  // its own
  int32_t threads = 0;              // resolved: >= 1
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  bool workspace_fixed = false;
  bool failed = false;  // a device error was seen: only destroy works
  fovea::Text last_kernel;
  fovea::Text asked_kernel;  // of a workspace query; "" where an operation came later
  fovea::TextOf<fovea::kErrorBytes> last_reasons;

  fovea_context() = default;
  fovea_context(const fovea_context&) = delete;
  fovea_context& operator=(const fovea_context&) = delete;
  ~fovea_context() { delete device; }
};

namespace fovea {

using Context = fovea_context;

class DeviceScope {
 public:
  DeviceScope(Context& ctx, const char* op) : device_(*ctx.device), before_(device_.enter(op)) {}
  ~DeviceScope() { device_.leave(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  Device& device_;
  int before_;
};

// The context's workspace with at least `bytes`; grows its own, refuses a fixed one that is short.
void* workspace(Context& ctx, const char* op, size_t bytes);

// Runs f on the context's device; a NULL or failed context is refused, a device error remembered.
template <class F>
fovea_status guarded_on(Context* ctx, const char* op, F&& f) noexcept {
  const fovea_status status = guarded(op, [&] {
    if (!ctx) refuse("%s: ctx is NULL", op);
    if (ctx->failed)
      fail(FOVEA_DEVICE_ERROR, "%s: the device failed earlier in this context: destroy it", op);
    DeviceScope scope(*ctx, op);
    f();
  });
  if (status == FOVEA_DEVICE_ERROR && ctx) ctx->failed = true;
  return status;
}

}  // namespace fovea
