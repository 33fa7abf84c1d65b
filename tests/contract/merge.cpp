// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

TEST(ContractAlias, MergeMayWriteItsFirstPart) {
  Call plain = valid("merge_forward", "plain");
  Params p = plain.params;
  p["o"].data = p["o_part"].data, p["lse"].data = p["lse_part"].data;
  accepts(p);
  for (int64_t& stride : p["o"].stride) stride *= 2;
  refuses(p, "o_part");
  for (int64_t& stride : p["o"].stride) stride /= 2;
  p["o"].dtype = FOVEA_BF16;
  refuses(p, "o.dtype");
  Call rows = valid("merge_forward", "rows");
  p = rows.params, p["o"].data = p["o_part"].data;
  says(p, "merge_forward: o.data is that of o_part, wanted memory of its own");
}

fovea_tensor tensor_of(void* data, int32_t dtype, std::initializer_list<int64_t> shape) {
  fovea_tensor x{};
  x.data = data, x.dtype = dtype, x.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), x.shape);
  int64_t pitch = 1;
  for (int i = x.ndim - 1; i >= 0; --i) x.stride[i] = pitch, pitch *= x.shape[i];
  return x;
}

// Without columns dlse_part is exp(lse_n - lse) dlse, also where the empty tensors are NULL.
TEST(ContractMerge, RowsWithoutColumns) {
  float lse_part[] = {-1, 0}, lse[] = {1}, dlse[] = {3}, dlse_part[] = {-7, -7};
  fovea_merge_backward_params p{};
  p.struct_size = sizeof p;
  p.o_part = tensor_of(nullptr, FOVEA_F32, {2, 1, 1, 1, 0});
  p.lse_part = tensor_of(lse_part, FOVEA_F32, {2, 1, 1, 1});
  p.o = p.dout = tensor_of(nullptr, FOVEA_F32, {1, 1, 1, 0});
  p.lse = tensor_of(lse, FOVEA_F32, {1, 1, 1}), p.dlse = tensor_of(dlse, FOVEA_F32, {1, 1, 1});
  p.dlse_part = tensor_of(dlse_part, FOVEA_F32, {2, 1, 1, 1});
  Context context;
  ASSERT_EQ(fovea_merge_backward(context.ctx, &p), FOVEA_OK) << fovea_last_error();
  for (int n = 0; n < 2; ++n)
    EXPECT_FLOAT_EQ(dlse_part[n], 3 * std::exp(lse_part[n] - lse[0])) << n;
}

// However many parts there are: without rows they are none.
TEST(ContractMerge, PartsWithoutRows) {
  constexpr int64_t kParts = int64_t{1} << 33;
  float o[] = {7, 7}, lse[] = {7, 7};
  fovea_merge_forward_params p{};
  p.struct_size = sizeof p;
  p.o_part = tensor_of(nullptr, FOVEA_F32, {kParts, 1, 0, 1, 1});
  p.lse_part = tensor_of(nullptr, FOVEA_F32, {kParts, 1, 1, 0});
  p.row = tensor_of(nullptr, FOVEA_I32, {kParts, 0});
  int32_t none = 0;
  p.row.data = &none;
  p.o = tensor_of(o, FOVEA_F32, {1, 2, 1, 1}), p.lse = tensor_of(lse, FOVEA_F32, {1, 1, 2});
  Context context;
  ASSERT_EQ(fovea_merge_forward(context.ctx, &p), FOVEA_OK) << fovea_last_error();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(o[i], 0);
    EXPECT_EQ(lse[i], -INFINITY);
  }
}

}  // namespace
}  // namespace contract
