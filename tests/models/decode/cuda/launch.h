#pragma once
#include <climits>
#include <cstdint>
#include "cuda/device.h"
#include "fake.h"
namespace fovea::cuda {
inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
template <auto kernel, class... Args>
void launch(Context&, const char*, int64_t work, int threads, int64_t bytes, const Args&... args) {
  fake::launch(work, threads, bytes, [&] { kernel(args...); });
}
}  // namespace fovea::cuda
