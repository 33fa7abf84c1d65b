// SPDX-License-Identifier: Apache-2.0
// The CPU as a Device: one device, no streams, everything done when a call returns.
#include "host/device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/workspace.h"

namespace fovea {
namespace {

void* aligned(size_t bytes, const char* op, const char* what) {
  if (bytes <= SIZE_MAX - kWorkspaceAlign) {
    const size_t whole = (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
    if (void* data = std::aligned_alloc(kWorkspaceAlign, whole)) return data;
  }
  fail(FOVEA_OUT_OF_MEMORY, "%s: %s%zu bytes could not be had", op, what, bytes);
}

int64_t total_bytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

// What programs can still have without swapping, which Linux alone tells.
int64_t available_bytes() {
  if (std::FILE* file = std::fopen("/proc/meminfo", "re")) {
    char line[256];
    long long kilobytes = -1;
    while (kilobytes < 0 && std::fgets(line, sizeof line, file))
      if (std::sscanf(line, "MemAvailable: %lld kB", &kilobytes) != 1) kilobytes = -1;
    std::fclose(file);
    if (kilobytes >= 0) return kilobytes * 1024;
  }
#ifdef _SC_AVPHYS_PAGES
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
#else
  return total_bytes();
#endif
}

class HostDevice final : public Device {
 public:
  void set_stream(void* stream) override {
    if (stream) refuse("context_set_stream: stream is %p on the host, wanted NULL", stream);
  }
  void* alloc(fovea_memory, size_t bytes) override { return aligned(bytes, "alloc", ""); }
  void free(void* data) override { std::free(data); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void synchronize() override {}
  void wait(Device&) override {}
  int64_t get(fovea_property key) override {
    switch (key) {
      case FOVEA_PROPERTY_MULTIPROCESSORS:
        return std::max<int64_t>(1, std::thread::hardware_concurrency());
      case FOVEA_PROPERTY_FREE_BYTES:
        return available_bytes();
      case FOVEA_PROPERTY_TOTAL_BYTES:
        return total_bytes();
      default:
        return 0;
    }
  }
  void set_threads(int32_t threads) override { pool.set_threads(threads); }
  // The new block first: where memory is short the context keeps the one it has.
  void* grow_workspace(void* old, size_t bytes, const char* op) override {
    void* data = aligned(bytes, op, "workspace: ");
    std::free(old);
    return data;
  }
  void free_workspace(void* old) noexcept override { std::free(old); }

  host::Pool pool;
};

}  // namespace

Device* make_host_device(int32_t device) {
  if (device != 0) refuse("context_create: device is %d, wanted 0 on the host", device);
  return new HostDevice();
}

host::Pool& host::pool(Context& ctx) {
  return static_cast<HostDevice&>(*ctx.device).pool;
}

#if !FOVEA_WITH_CUDA
int32_t cuda_device_count() {
  return 0;
}

Device* make_cuda_device(int32_t) {
  fail(FOVEA_UNSUPPORTED, "context_create: this fovea was built without CUDA, FOVEA_HOST works");
}
#endif

}  // namespace fovea
