// SPDX-License-Identifier: Apache-2.0
#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/dtype.h"
#include "core/reasons.h"

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
  if (x.stride[3] != 1 || reinterpret_cast<uintptr_t>(x.data) % 16) return kPieceRows;
  for (int i = 0; i < 4; ++i) {
    if (extent[i] > kExtentMost) return "an extent of 2^31 or more";
    if (i == 3 || extent[i] <= 1) continue;
    if (x.stride[i] == 0) return "a stride of 0, wanted one that is not";
    if (x.stride[i] * size % 16) return kPieceRows;
    if (x.stride[i] > kStrideMost / size) return "a stride past 2^39 bytes";
  }
  return "";
}

bool make_map(const MapOf& of, CUtensorMap& map) {
  if (!encode()) return false;
  struct Axis {
    int64_t extent, stride;  // elements
    int box;
  };
  const int64_t *stride = of.tensor.stride, size = dtype_bytes(of.dtype);
  Axis axes[5] = {{of.column, 1, of.columns},
                  {of.row, stride[1], of.rows},
                  {of.head, stride[2], of.heads},
                  {of.batch, stride[0], 1}};
  int rank = 4;
  if (of.heads > 1) std::swap(axes[1], axes[2]);
  if (of.interleave == Interleave::runs) {
    axes[4] = axes[3], axes[3] = axes[2];
    axes[2] = {of.column / 16, 16, of.columns / 16}, axes[0] = {16, 1, 16};
    rank = 5;
  } else if (of.interleave != Interleave::none) {
    const int64_t panels = of.column / of.columns, octets = of.row / 8;
    const bool as_panels = of.interleave == Interleave::heads_as_panels;
    axes[0] = {of.columns, 1, of.columns};
    axes[1] = {8, stride[1], 8};
    axes[2] = {as_panels ? of.head * panels : panels, of.columns, static_cast<int>(panels)};
    axes[3] = {as_panels ? octets : of.head * octets, 8 * stride[1], of.rows / 8};
    axes[4] = {of.batch, stride[0], 1};
    rank = 5;
  }
  cuuint64_t extents[5], strides[4];
  cuuint32_t box[5], step[5];
  for (int i = 0; i < rank; ++i) {
    const Axis& axis = axes[i];
    extents[i] = static_cast<cuuint64_t>(axis.extent > 0 ? axis.extent : 1);
    // The stride of an axis with one element is any legal one.
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(axis.extent > 1 ? axis.stride * size : 16);
    box[i] = static_cast<cuuint32_t>(axis.box), step[i] = 1;
  }
  const CUtensorMapSwizzle swizzle = of.interleave == Interleave::runs ? CU_TENSOR_MAP_SWIZZLE_NONE
                                     : of.columns * size == 64         ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                       : CU_TENSOR_MAP_SWIZZLE_128B;
  return encode()(&map, type_of(of.dtype), static_cast<cuuint32_t>(rank), of.tensor.data, extents,
                  strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace fovea::cuda
