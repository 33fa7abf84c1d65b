// SPDX-License-Identifier: Apache-2.0
#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/dtype.h"

namespace fovea::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

Encode encode() {
  static const Encode found = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address,
                                                               12000, cudaEnableDefault, &result);
    const bool ok = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return ok ? reinterpret_cast<Encode>(address) : nullptr;
  }();
  return found;
}

constexpr int64_t kStrideMost = int64_t{1} << 39;  // bytes, half of what a map can hold
constexpr int64_t kExtentMost = INT32_MAX;

CUtensorMapDataType type_of(int32_t dtype) {
  switch (dtype) {
    case FOVEA_BF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case FOVEA_F16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

}  // namespace

const char* map_refuses(const MapOf& of) {
  const View<4>& x = of.tensor;
  const int64_t extent[4] = {of.batch, of.row, of.head, of.column}, size = dtype_bytes(of.dtype);
  if (x.stride[3] != 1 || reinterpret_cast<uintptr_t>(x.data) % 16)
    return "rows that are not contiguous and 16-byte aligned";
  for (int i = 0; i < 4; ++i) {
    if (extent[i] > kExtentMost) return "an extent past 2^31";
    if (i == 3 || extent[i] <= 1) continue;
    if (x.stride[i] == 0) return "a stride of 0";
    if (x.stride[i] * size % 16) return "rows that are not contiguous and 16-byte aligned";
    if (x.stride[i] > kStrideMost / size) return "a stride past 2^39 bytes";
  }
  return "";
}

bool make_map(const MapOf& of, CUtensorMap& map) {
  if (!encode()) return false;
  const int64_t *stride = of.tensor.stride, size = dtype_bytes(of.dtype);
  // The stride of an axis with one element is any legal one.
  const auto bytes = [&](int64_t extent, int64_t elements) {
    return static_cast<cuuint64_t>(extent > 1 ? elements * size : 16);
  };
  const auto count = [](int64_t extent) {
    return static_cast<cuuint64_t>(extent > 0 ? extent : 1);
  };
  cuuint64_t extents[4] = {count(of.column), count(of.row), count(of.head), count(of.batch)};
  cuuint64_t strides[3] = {bytes(of.row, stride[1]), bytes(of.head, stride[2]),
                           bytes(of.batch, stride[0])};
  cuuint32_t box[4] = {static_cast<cuuint32_t>(of.columns), static_cast<cuuint32_t>(of.rows), 1, 1},
             step[4] = {1, 1, 1, 1};
  if (of.heads > 1) {
    std::swap(extents[1], extents[2]), std::swap(strides[0], strides[1]);
    box[1] = static_cast<cuuint32_t>(of.heads), box[2] = static_cast<cuuint32_t>(of.rows);
  }
  return encode()(&map, type_of(of.dtype), 4, of.tensor.data, extents, strides, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  of.columns * size == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace fovea::cuda
