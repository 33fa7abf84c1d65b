// SPDX-License-Identifier: Apache-2.0
// target[pair[i][1]] = source[pair[i][0]].  A thread moves one Unit, the widest of 16, 4, 2 and 1
// bytes that divides the rows of a page, their strides and both addresses.
#include "cuda/launch.h"
#include "ops/cache/kernels.h"

namespace fovea {
namespace {

constexpr int kThreads = 256;

// Strides and widths in units.
template <class Unit>
__global__ void __launch_bounds__(kThreads) cache_copy_kernel(CacheCopy a) {
  const int64_t page = a.shape[0] * a.shape[1] * a.shape[2];
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < a.pairs * page;
       w += int64_t{gridDim.x} * kThreads) {
    const int32_t* pair = a.pair.as<int32_t>() + w / page * a.pair.stride[0];
    const int64_t from = pair[0], to = pair[a.pair.stride[1]];
    if (from < 0 || to < 0 || from >= a.source_pages || to >= a.target_pages) continue;
    const int64_t c = w % a.shape[2], row = w % page / a.shape[2];
    const int64_t head = row % a.shape[1], slot = row / a.shape[1];
    a.target.as<Unit>()[to * a.target.stride[0] + slot * a.target.stride[1] +
                        head * a.target.stride[2] + c * a.target.stride[3]] =
        a.source.as<Unit>()[from * a.source.stride[0] + slot * a.source.stride[1] +
                            head * a.source.stride[2] + c * a.source.stride[3]];
  }
}

bool divides(const View<4>& view, int64_t elements, int64_t bytes) {
  bool fits = view.stride[3] == 1 && reinterpret_cast<uintptr_t>(view.data) % bytes == 0;
  for (int i = 0; i < 3; ++i) fits = fits && view.stride[i] % elements == 0;
  return fits;
}

// The same call in units of 16 bytes, if it can be.
bool widen(CacheCopy& a) {
  const int64_t elements = 16 / a.bytes;
  if (a.shape[2] % elements || !divides(a.source, elements, 16) || !divides(a.target, elements, 16))
    return false;
  a.shape[2] /= elements;
  for (int i = 0; i < 3; ++i) a.source.stride[i] /= elements, a.target.stride[i] /= elements;
  a.bytes = 16;
  return true;
}

Text offer(const Context&, const CacheCopy& request, Plan& plan) {
  CacheCopy a = request;
  if (widen(a)) plan.kernel += ".wide";
  plan.launch = [a](Context& ctx, void*) {
    constexpr char op[] = "cache_copy";
    const int64_t work = a.pairs * a.shape[0] * a.shape[1] * a.shape[2];
    const int64_t blocks = cuda::ceil_div(work, int64_t{kThreads});
    switch (a.bytes) {
      case 16:
        cuda::launch<cache_copy_kernel<uint4>>(ctx, op, blocks, kThreads, 0, a);
        return;
      case 4:
        cuda::launch<cache_copy_kernel<uint32_t>>(ctx, op, blocks, kThreads, 0, a);
        return;
      case 2:
        cuda::launch<cache_copy_kernel<uint16_t>>(ctx, op, blocks, kThreads, 0, a);
        return;
      default:
        cuda::launch<cache_copy_kernel<uint8_t>>(ctx, op, blocks, kThreads, 0, a);
        return;
    }
  };
  return "";
}

}  // namespace

extern const Kernel<CacheCopy> cache_copy_cuda = {"", offer};

}  // namespace fovea
