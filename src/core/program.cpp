// SPDX-License-Identifier: Apache-2.0
#include "core/program.h"

#include "core/dtype.h"

namespace fovea {

fovea_tensor Program::unread(fovea_dtype dtype, std::initializer_list<int64_t> shape) {
  fovea_tensor x{};
  x.dtype = dtype, x.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), x.shape);
  // Strides of extents that no workspace serves are never used; they may wrap.
  uint64_t stride = 1;
  for (int i = x.ndim - 1; i >= 0; --i) {
    x.stride[i] = static_cast<int64_t>(stride & INT64_MAX);
    stride *= static_cast<uint64_t>(x.shape[i]);
  }
  return given(x);
}

fovea_tensor Program::array(fovea_dtype dtype, std::initializer_list<int64_t> shape) {
  fovea_tensor x = unread(dtype, shape);
  const auto at = [&](int axis) { return axis < x.ndim ? x.shape[axis] : int64_t{1}; };
  const auto slot =
      arrays_.add<unsigned char>(dtype_bytes(dtype), at(0), at(1), at(2), at(3), at(4));
  x.data = static_cast<unsigned char*>(base_) + slot.offset;
  return given(x);  // a workspace of no bytes is at NULL
}

void Program::part(const Contract& contract, const void* params,
                   Plan (*plan)(const Context&, const void*)) {
  try {
    check_contract(contract, params);
    Plan part = plan(ctx_, params);
    if (!writes(contract, params)) return;
    run(std::move(part));
  } catch (const Error& e) {
    fail(e.status, "%s: %s", op_, e.text);
  }
}

void Program::launch(Context& ctx) const {
  for (const Launch& part : launches_) part(ctx, static_cast<unsigned char*>(base_) + scratch_);
}

void Program::run(Plan&& part) {
  if (running_) {
    launches_.push_back(std::move(part.launch));
    return;
  }
  if (!part.workspace.fits() || part.workspace.bytes() > largest_.bytes())
    largest_ = part.workspace;
  if (!kernels_.empty()) kernels_ += "+";
  kernels_ += part.kernel.c_str();
}

Text Program::name() const {
  Text name(op_);
  name += ctx_.backend == FOVEA_HOST ? ".host." : ".cuda.";
  return name += kernels_;
}

Layout Program::workspace() const {
  Layout all = arrays_;
  all.add_all(largest_, 1);
  return all;
}

}  // namespace fovea
