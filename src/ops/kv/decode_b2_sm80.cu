// SPDX-License-Identifier: Apache-2.0
#include "ops/kv/decode_sm80.cuh"

namespace fovea::cuda::kv_groups {

template void launch_split<FOVEA_F16, 2, 64, 1>(Context&, const KvSplit&, int64_t);
template void launch_split<FOVEA_F16, 2, 64, 2>(Context&, const KvSplit&, int64_t);
template void launch_split<FOVEA_F16, 2, 128, 1>(Context&, const KvSplit&, int64_t);
template void launch_split<FOVEA_F16, 2, 128, 2>(Context&, const KvSplit&, int64_t);
template void launch_split<FOVEA_BF16, 2, 64, 1>(Context&, const KvSplit&, int64_t);
template void launch_split<FOVEA_BF16, 2, 64, 2>(Context&, const KvSplit&, int64_t);
template void launch_split<FOVEA_BF16, 2, 128, 1>(Context&, const KvSplit&, int64_t);
template void launch_split<FOVEA_BF16, 2, 128, 2>(Context&, const KvSplit&, int64_t);

}  // namespace fovea::cuda::kv_groups
