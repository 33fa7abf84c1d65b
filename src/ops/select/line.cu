// SPDX-License-Identifier: Apache-2.0
// x_select_line: a warp owns a list row of a list head (line.h).  Its lanes look at 32 lines at a
// time, and write together.  The lines of a head are shared by its rows and come from the caches.
#include "cuda/launch.h"
#include "ops/select/line.h"

namespace fovea {
namespace cuda {
namespace {

constexpr int kWarps = 4;

struct Warp {
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int lanes() { return 32; }
  __device__ static void sync() { __syncwarp(); }
  template <class Lines>
  __device__ static int64_t last_below(const Lines& lines, int64_t i, int64_t bound) {
    for (; i >= 0; i -= 32) {
      const int64_t at = i - lane();
      const uint32_t below = __ballot_sync(~0u, at >= 0 && lines[max(at, int64_t{0})] < bound);
      if (below) return i - (__ffs(below) - 1);
    }
    return -1;
  }
  template <class Lines>
  __device__ static int64_t first_from(const Lines& lines, int64_t i, int64_t bound) {
    for (; i < lines.count; i += 32) {
      const int64_t at = i + lane();
      const uint32_t from =
          __ballot_sync(~0u, at < lines.count && lines[min(at, lines.count - 1)] >= bound);
      if (from) return i + (__ffs(from) - 1);
    }
    return lines.count;
  }
};

__global__ void __launch_bounds__(kWarps * 32)
    lines_kernel(const __grid_constant__ SelectLine a, int64_t work) {
  const int64_t step = int64_t{gridDim.x} * kWarps;
  for (int64_t w = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; w < work; w += step)
    a.run<Warp>(w / a.rows.n / a.rows.x, w % a.rows.n, w / a.rows.n % a.rows.x);
}

}  // namespace
}  // namespace cuda

extern const Kernel<SelectLine> x_select_line_simt = {
    "simt", [](const Context&, const SelectLine& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) {
        const int64_t work = a.rows.b * a.rows.x * a.rows.n;
        cuda::launch<cuda::lines_kernel>(ctx, "x_select_line", cuda::ceil_div(work, cuda::kWarps),
                                         cuda::kWarps * 32, 0, a, work);
      };
      return Text();
    }};

}  // namespace fovea
