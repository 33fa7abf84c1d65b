// SPDX-License-Identifier: Apache-2.0
#include "core/context.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "core/blocks.h"
#include "core/dtype.h"
#include "core/workspace.h"

namespace fovea {

void* workspace(Context& ctx, const char* op, size_t bytes) {
  if (bytes <= ctx.workspace_bytes) return ctx.workspace;
  if (ctx.workspace_fixed)
    fail(FOVEA_OUT_OF_MEMORY,
         "%s: needs %zu bytes of workspace, fovea_context_set_workspace gave %zu", op, bytes,
         ctx.workspace_bytes);
  // Half as much again, so that growing sequences do not reallocate at each step.
  const size_t grown = std::max(bytes, ctx.workspace_bytes + ctx.workspace_bytes / 2);
  void* data = ctx.device->grow_workspace(ctx.workspace, grown, op);
  ctx.workspace = data;
  ctx.workspace_bytes = grown;
  return data;
}

namespace {
BlockOwner owner_of(const Context& ctx) {
  return {ctx.backend, ctx.device_index};
}

void check_backend(const char* op, fovea_backend backend) {
  if (backend != FOVEA_HOST && backend != FOVEA_CUDA)
    refuse("%s: backend is %d, wanted FOVEA_HOST or FOVEA_CUDA", op, backend);
}

int32_t hardware_threads() {
  return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}
}  // namespace

}  // namespace fovea

using namespace fovea;

extern "C" {

int32_t fovea_version(void) {
  return FOVEA_VERSION;
}

const char* fovea_last_error(void) {
  return last_error();
}

const char* fovea_status_name(fovea_status status) {
  switch (status) {
    case FOVEA_OK:
      return "FOVEA_OK";
    case FOVEA_INVALID_ARGUMENT:
      return "FOVEA_INVALID_ARGUMENT";
    case FOVEA_UNSUPPORTED:
      return "FOVEA_UNSUPPORTED";
    case FOVEA_OUT_OF_MEMORY:
      return "FOVEA_OUT_OF_MEMORY";
    case FOVEA_DEVICE_ERROR:
      return "FOVEA_DEVICE_ERROR";
    case FOVEA_INTERNAL_ERROR:
      return "FOVEA_INTERNAL_ERROR";
  }
  return "unknown fovea_status";
}

fovea_tensor fovea_contiguous(void* data, fovea_dtype dtype, int32_t ndim, const int64_t* shape) {
  fovea_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.ndim = ndim;
  if (ndim < 0 || ndim > FOVEA_MAX_DIMS || (ndim > 0 && !shape)) {
    tensor.ndim = -1;
    return tensor;
  }
  int64_t stride = 1;
  for (int32_t i = ndim - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = stride;
    if (shape[i] > 1 && __builtin_mul_overflow(stride, shape[i], &stride)) stride = INT64_MAX;
  }
  return tensor;
}

fovea_status fovea_device_count(fovea_backend backend, int32_t* count) {
  return guarded("device_count", [&] {
    if (!count) refuse("device_count: count is NULL");
    check_backend("device_count", backend);
    *count = backend == FOVEA_HOST ? 1 : cuda_device_count();
  });
}

fovea_status fovea_context_create(fovea_backend backend, int32_t device, fovea_context** out) {
  return guarded("context_create", [&] {
    if (!out) refuse("context_create: out is NULL");
    *out = nullptr;
    check_backend("context_create", backend);
    auto ctx = std::make_unique<fovea_context>();
    ctx->backend = backend;
    ctx->device_index = device;
    ctx->device = backend == FOVEA_HOST ? make_host_device(device) : make_cuda_device(device);
    ctx->threads = hardware_threads();
    ctx->device->set_threads(ctx->threads);
    *out = ctx.release();
  });
}

void fovea_context_destroy(fovea_context* ctx) {
  if (!ctx) return;
  guarded("context_destroy", [&] {
    DeviceScope scope(*ctx, "context_destroy");
    try {
      ctx->device->synchronize();
    } catch (const Error&) {
      // A failed device has nothing left to wait for; its memory is still given back.
    }
    if (!ctx->workspace_fixed) ctx->device->free_workspace(ctx->workspace);
  });
  delete ctx;
}

fovea_status fovea_context_set_stream(fovea_context* ctx, void* stream) {
  return guarded_on(ctx, "context_set_stream", [&] { ctx->device->set_stream(stream); });
}

fovea_status fovea_context_set_workspace(fovea_context* ctx, void* data, size_t bytes) {
  return guarded_on(ctx, "context_set_workspace", [&] {
    if (!data && bytes) refuse("context_set_workspace: data is NULL with %zu bytes", bytes);
    if (reinterpret_cast<uintptr_t>(data) % kWorkspaceAlign)
      refuse("context_set_workspace: data is %p, wanted a multiple of %zu", data, kWorkspaceAlign);
    if (!ctx->workspace_fixed) ctx->device->free_workspace(ctx->workspace);
    ctx->workspace = data;
    ctx->workspace_bytes = bytes;
    ctx->workspace_fixed = data != nullptr;
  });
}

fovea_status fovea_context_set_threads(fovea_context* ctx, int32_t threads) {
  return guarded_on(ctx, "context_set_threads", [&] {
    if (threads < 0 || threads > 4096)
      refuse("context_set_threads: threads is %d, wanted 0 .. 4096", threads);
    const int32_t resolved = threads ? threads : hardware_threads();
    ctx->device->set_threads(resolved);
    ctx->threads = resolved;
  });
}

fovea_status fovea_context_get(fovea_context* ctx, fovea_property key, int64_t* value) {
  return guarded_on(ctx, "context_get", [&] {
    if (!value) refuse("context_get: value is NULL");
    switch (key) {
      case FOVEA_PROPERTY_BACKEND:
        *value = ctx->backend;
        return;
      case FOVEA_PROPERTY_DEVICE:
        *value = ctx->device_index;
        return;
      case FOVEA_PROPERTY_THREADS:
        *value = ctx->threads;
        return;
      case FOVEA_PROPERTY_WORKSPACE_BYTES:
        *value = static_cast<int64_t>(ctx->workspace_bytes);
        return;
      case FOVEA_PROPERTY_MULTIPROCESSORS:
      case FOVEA_PROPERTY_ARCHITECTURE:
      case FOVEA_PROPERTY_FREE_BYTES:
      case FOVEA_PROPERTY_TOTAL_BYTES:
        *value = ctx->device->get(key);
        return;
    }
    refuse("context_get: key is %d, wanted a fovea_property", key);
  });
}

fovea_status fovea_context_synchronize(fovea_context* ctx) {
  return guarded_on(ctx, "context_synchronize", [&] { ctx->device->synchronize(); });
}

fovea_status fovea_context_wait(fovea_context* ctx, fovea_context* other) {
  return guarded_on(ctx, "context_wait", [&] {
    if (!other) refuse("context_wait: other is NULL");
    // Between backends there is no shared stream: waiting for the work itself is all that is left.
    if (ctx->backend != other->backend) {
      DeviceScope scope(*other, "context_wait");
      other->device->synchronize();
    } else if (ctx != other) {
      ctx->device->wait(*other->device);
    }
  });
}

const char* fovea_context_last_kernel(fovea_context* ctx) {
  return ctx ? ctx->last_kernel.c_str() : "";
}

const char* fovea_context_last_plan(fovea_context* ctx) {
  if (!ctx) return "";
  return (ctx->asked_kernel.empty() ? ctx->last_kernel : ctx->asked_kernel).c_str();
}

const char* fovea_context_last_reasons(fovea_context* ctx) {
  return ctx ? ctx->last_reasons.c_str() : "";
}

fovea_status fovea_alloc(fovea_context* ctx, fovea_memory memory, size_t bytes, void** out) {
  return guarded_on(ctx, "alloc", [&] {
    if (!out) refuse("alloc: out is NULL");
    *out = nullptr;
    if (memory != FOVEA_MEMORY_DEVICE && memory != FOVEA_MEMORY_HOST)
      refuse("alloc: memory is %d, wanted FOVEA_MEMORY_DEVICE or FOVEA_MEMORY_HOST", memory);
    if (!bytes) return;
    void* data = ctx->device->alloc(memory, bytes);
    try {
      add_block(data, owner_of(*ctx));
    } catch (...) {
      ctx->device->free(data);
      throw;
    }
    *out = data;
  });
}

fovea_status fovea_free(fovea_context* ctx, void* data) {
  return guarded_on(ctx, "free", [&] {
    if (!data) return;
    TakenBlock block(data, owner_of(*ctx));
    ctx->device->free(data);
    block.freed();
  });
}

fovea_status fovea_copy(fovea_context* ctx, void* to, const void* from, size_t bytes) {
  return guarded_on(ctx, "copy", [&] {
    if (!bytes) return;
    if (!to) refuse("copy: to is NULL");
    if (!from) refuse("copy: from is NULL");
    ctx->device->copy(to, from, bytes);
  });
}

}  // extern "C"
