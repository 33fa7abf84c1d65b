// SPDX-License-Identifier: Apache-2.0
// The CUDA device behind a context.  The runtime is linked statically and finds the driver by
// itself, so a machine without one simply has no devices.
#include "cuda/device.h"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <vector>

#include "core/context.h"

namespace fovea::cuda {
namespace {

constexpr int kDevicesMax = 64;
constexpr int kArchMin = 80;

// Never launched: its attributes say whether this build has code for the device.
__global__ void probe() {}

int attribute(cudaDeviceAttr key, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, key, index), "context_create");
  return value;
}

DeviceInfo read_device_info(int index) {
  DeviceInfo info{};
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "context_create");
  std::snprintf(info.name, sizeof info.name, "%s", properties.name);
  info.index = index;
  info.arch = 10 * properties.major + properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.shared_block_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  info.shared_sm_bytes = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, index);
  info.l2_bytes = attribute(cudaDevAttrL2CacheSize, index);
  info.pools = attribute(cudaDevAttrMemoryPoolsSupported, index) != 0;
  return info;
}

// Errors of the call alone: the device and the context are as well as before.
bool is_callers(cudaError_t error) {
  return error == cudaErrorInvalidValue || error == cudaErrorInvalidResourceHandle ||
         (error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread);
}

// Capture state of a stream; `id` is the capture's, 0 when there is none.
unsigned long long capture_id(cudaStream_t stream, const char* op) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  check(cudaStreamGetCaptureInfo(stream, &status, &id), op);
  return status == cudaStreamCaptureStatusNone ? 0 : id;
}

// While a capture runs anywhere, this thread may still call what does not belong to it.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : info_(device_info(index)) {
    const int before = enter("context_create");
    try {
      cudaFuncAttributes unused;
      const cudaError_t error = cudaFuncGetAttributes(&unused, probe);
      if (info_.arch < kArchMin || error == cudaErrorNoKernelImageForDevice ||
          error == cudaErrorInvalidDeviceFunction || error == cudaErrorUnsupportedPtxVersion) {
        cudaGetLastError();
        fail(FOVEA_UNSUPPORTED,
             "context_create: device %d is %s (sm_%d), this build holds code for %s", index,
             info_.name, info_.arch, fovea_build_get(FOVEA_BUILD_ARCHITECTURES));
      }
      check(error, "context_create");
      check(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking), "context_create");
      check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "context_create");
      check(cudaMalloc(&counters_, kCounters * sizeof(int32_t)), "context_create");
      check(cudaMemset(counters_, 0, kCounters * sizeof(int32_t)), "context_create");
    } catch (...) {
      cudaFree(counters_);
      if (event_) cudaEventDestroy(event_);
      if (own_) cudaStreamDestroy(own_);
      leave(before);
      throw;
    }
    stream_ = own_;
    leave(before);
  }

  ~CudaDevice() override {
    int before = -1;
    if (cudaGetDevice(&before) == cudaSuccess) cudaSetDevice(info_.index);
    for (const Retired& block : retired_)
      block.host ? cudaFreeHost(block.data) : cudaFree(block.data);
    cudaFree(counters_);
    cudaEventDestroy(event_);
    cudaStreamDestroy(own_);
    if (before >= 0) cudaSetDevice(before);
    cudaGetLastError();  // after a device fault every call above fails; destroy reports nothing
  }

  int enter(const char* op) override {
    int before = 0;
    check(cudaGetDevice(&before), op);
    if (before != info_.index) check(cudaSetDevice(info_.index), op);
    return before;
  }

  void leave(int before) noexcept override {
    if (before != info_.index) cudaSetDevice(before);
  }

  // Work of the new stream comes after work of the old one, for they share a workspace.
  void set_stream(void* stream) override {
    const cudaStream_t next = stream ? static_cast<cudaStream_t>(stream) : own_;
    if (next == stream_) return;
    const char* op = "context_set_stream";
    const auto from = capture_id(stream_, op), to = capture_id(next, op);
    if (from == to) {
      check(cudaEventRecord(event_, stream_), op);
      check(cudaStreamWaitEvent(next, event_, 0), op);
    } else if (!from) {
      // A graph cannot wait for work outside it, and this is no operation: the host waits.
      RelaxedCapture relaxed;
      check(cudaStreamSynchronize(stream_), op);
    }
    stream_ = next;
  }

  void* alloc(fovea_memory memory, size_t bytes) override {
    void* data = nullptr;
    if (memory == FOVEA_MEMORY_HOST) {
      RelaxedCapture relaxed;
      check_alloc(cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "alloc",
                  "", bytes);
    } else {
      if (capture_id(stream_, "alloc"))
        fail(FOVEA_INVALID_ARGUMENT,
             "alloc: the context's stream is being captured, wanted device memory taken before");
      data = take(bytes, "alloc", "");
    }
    return data;
  }

  void free(void* data) override {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, data), "free");
    const bool host = attributes.type == cudaMemoryTypeHost;
    if (capture_id(stream_, "free")) {
      reserve_retired(2);                // for it, and for the workspace when that goes
      retired_.push_back({data, host});  // the graph may name it
      return;
    }
    if (host) {
      check(cudaStreamSynchronize(stream_), "free");
      check(cudaFreeHost(data), "free");
    } else {
      check(give(data), "free");
    }
  }

  void copy(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copy");
  }

  void synchronize() override { check(cudaStreamSynchronize(stream_), "context_synchronize"); }

  bool capturing() override { return capture_id(stream_, "FOVEA_CHECK") != 0; }

  void wait(Device& other_device) override {
    auto& other = static_cast<CudaDevice&>(other_device);
    const int before = other.enter("context_wait");
    const cudaError_t error = cudaEventRecord(other.event_, other.stream_);
    other.leave(before);
    check(error, "context_wait");
    check(cudaStreamWaitEvent(stream_, other.event_, 0), "context_wait");
  }

  int64_t get(fovea_property key) override {
    if (key == FOVEA_PROPERTY_MULTIPROCESSORS) return info_.multiprocessors;
    if (key == FOVEA_PROPERTY_ARCHITECTURE) return info_.arch;
    size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "context_get");
    return static_cast<int64_t>(key == FOVEA_PROPERTY_FREE_BYTES ? free_bytes : total_bytes);
  }

  // The new block is taken before the old one goes: on failure the context keeps what it had.
  void* grow_workspace(void* old, size_t bytes, const char* op) override {
    if (capture_id(stream_, op))
      fail(FOVEA_OUT_OF_MEMORY,
           "%s: workspace: %zu bytes are needed and the stream is being captured: call _workspace "
           "first and give that much to fovea_context_set_workspace, or run the operation once "
           "before the capture",
           op, bytes);
    reserve_retired(2);  // for the old block, and for the new one when it goes
    void* data = take(bytes, op, "workspace: ");
    free_workspace(old);
    return data;
  }

  // retired_ has capacity for it since its allocation.
  void free_workspace(void* old) noexcept override {
    if (!old) return;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const bool capturing = cudaStreamIsCapturing(stream_, &status) == cudaSuccess &&
                           status != cudaStreamCaptureStatusNone;
    if (captured_ || capturing) {
      retired_.push_back({old, false});
    } else {
      give(old);
      cudaGetLastError();
    }
    captured_ = false;
  }

  int32_t* counters() const { return static_cast<int32_t*>(counters_); }

  cudaStream_t stream_for_launch() {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (!captured_ && cudaStreamIsCapturing(stream_, &status) == cudaSuccess)
      captured_ = status != cudaStreamCaptureStatusNone;
    return stream_;
  }

 private:
  // What graphs may hold.
  struct Retired {
    void* data;
    bool host;
  };

  // Room for `more` blocks; grows by half, as push_back would.
  void reserve_retired(size_t more) {
    const size_t wanted = retired_.size() + more;
    if (wanted > retired_.capacity()) retired_.reserve(wanted + retired_.capacity() / 2);
  }

  // `what`: "" or "workspace: ".
  void check_alloc(cudaError_t error, const char* op, const char* what, size_t bytes) {
    // A size beyond all address space is an invalid value to the runtime.
    if (error == cudaErrorMemoryAllocation || error == cudaErrorInvalidValue) {
      cudaGetLastError();
      fail(FOVEA_OUT_OF_MEMORY, "%s: %s%zu bytes could not be had on device %d (%s)", op, what,
           bytes, info_.index, info_.name);
    }
    check(error, op);
  }

  void* take(size_t bytes, const char* op, const char* what) {
    void* data = nullptr;
    check_alloc(info_.pools ? cudaMallocAsync(&data, bytes, stream_) : cudaMalloc(&data, bytes), op,
                what, bytes);
    return data;
  }

  cudaError_t give(void* data) {
    return info_.pools ? cudaFreeAsync(data, stream_) : cudaFree(data);
  }

  const DeviceInfo& info_;
  cudaStream_t own_ = nullptr, stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* counters_ = nullptr;
  bool captured_ = false;         // a graph may hold the workspace
  std::vector<Retired> retired_;  // freed with the context
};

}  // namespace

const DeviceInfo& device_info(int index) {
  static std::once_flag once[kDevicesMax];
  static DeviceInfo infos[kDevicesMax];
  if (index < 0 || index >= kDevicesMax)
    fail(FOVEA_UNSUPPORTED, "context_create: device is %d, wanted 0 .. %d", index, kDevicesMax - 1);
  std::call_once(once[index], [index] { infos[index] = read_device_info(index); });
  return infos[index];
}

const DeviceInfo& device_info(const Context& ctx) {
  return device_info(ctx.device_index);
}

void allow_shared(const void* kernel, uint64_t& done, const Context& ctx, const char* op) {
  const int device = ctx.device_index;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  const std::atomic_ref<uint64_t> bits(done);
  if (bits.load(std::memory_order_acquire) & bit) return;
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), op);
  const int bytes =
      device_info(device).shared_block_bytes - static_cast<int>(attributes.sharedSizeBytes);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), op);
  bits.fetch_or(bit, std::memory_order_release);
}

cudaStream_t stream(Context& ctx) {
  return static_cast<CudaDevice&>(*ctx.device).stream_for_launch();
}

int32_t* counters(Context& ctx) {
  return static_cast<CudaDevice&>(*ctx.device).counters();
}

void check(cudaError_t error, const char* op) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // a launch error left behind would be blamed on the next call
  const fovea_status status = error == cudaErrorMemoryAllocation ? FOVEA_OUT_OF_MEMORY
                              : is_callers(error)                ? FOVEA_INVALID_ARGUMENT
                                                                 : FOVEA_DEVICE_ERROR;
  fail(status, "%s: %s: %s", op, cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace fovea::cuda

namespace fovea {

int32_t cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

Device* make_cuda_device(int32_t device) {
  const int32_t count = cuda_device_count();
  if (device < 0 || (count > 0 && device >= count))
    fail(FOVEA_INVALID_ARGUMENT, "context_create: device is %d, wanted 0 .. %d", device,
         count > 0 ? count - 1 : 0);
  if (!count)
    fail(
        FOVEA_UNSUPPORTED,
        "context_create: FOVEA_CUDA is asked for and no CUDA device is here (no GPU or no driver)");
  return new cuda::CudaDevice(device);
}

}  // namespace fovea
