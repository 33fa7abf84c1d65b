#pragma once
#include <climits>
#include "cuda/device.h"
namespace fovea::cuda {
inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
template <auto kernel, class... Args>
void launch(Context&, const char*, int64_t work, int threads, int64_t shared_bytes, const Args&... args) {
  if (work <= 0) return;
  auto body = [&] { kernel(args...); };
  emu::run((unsigned)work, (unsigned)threads, (size_t)shared_bytes, [](void* p) { (*static_cast<decltype(body)*>(p))(); }, &body);
}
template <auto kernel, class... Args>
void launch_clusters(Context&, const char*, int64_t, int, int, int64_t, const Args&...) { std::abort(); }
}
