// SPDX-License-Identifier: Apache-2.0
// Wide accesses of rows whose layout allows them.
#pragma once
#include <cstdint>

#include "core/attend.h"

namespace fovea {

// V elements moved as one.
template <class T, int V>
struct alignas(sizeof(T) * V) Chunk {
  T x[V];
};

// Elements that make 16 bytes of the wider of two types.
template <class A, class B>
constexpr int kWide = 16 / static_cast<int>(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

// Threads that share a row of `work` units: the smallest power of two that holds it, at most
// `most`.
inline int lanes_of(int64_t work, int most) {
  int lanes = 1;
  while (lanes < most && lanes < work) lanes *= 2;
  return lanes;
}

// Whether every row of the view starts on a multiple of v elements of `bytes` and has unit column
// stride; the width is the caller's to check.
template <int N>
bool chunked(const View<N>& view, size_t bytes, int v) {
  bool fits = view.stride[N - 1] == 1 &&
              reinterpret_cast<uintptr_t>(view.data) % (bytes * static_cast<size_t>(v)) == 0;
  for (int i = 0; i + 1 < N; ++i) fits = fits && view.stride[i] % v == 0;
  return fits;
}

}  // namespace fovea
