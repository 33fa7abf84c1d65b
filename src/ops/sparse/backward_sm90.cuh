// SPDX-License-Identifier: Apache-2.0
// x_sparse_backward on the Hopper passes over lists.
#pragma once
#include <algorithm>

#include "ops/sparse/backward_lists.cuh"

namespace fovea::cuda {

template <auto kernel, class Shape, class Work>
void launch_lists(Context& ctx, const AttendBackward& call, const BackwardMaps& maps,
                  const Work& work) {
  const int64_t blocks =
      std::min<int64_t>(ceil_div(work.items.count, Shape::Rings), device_info(ctx).multiprocessors);
  launch<kernel>(ctx, "x_sparse_backward", blocks, Shape::threads, ListLayout90<Shape>().bytes,
                 call, maps, work);
}

template <SparseBackwardConfig90 C>
SparseBackward90 sparse_backward_sm90_instance() {
  static_assert(C.d == C.e, "a tile of each operand is as wide");
  using Shared = ListBwdShape90<C.dtype, C.d, 1, ListLines::rows, C.shared_stages>;
  using Own = ListBwdShape90<C.dtype, C.d, 2, ListLines::rows, C.own_stages>;
  using Packed = ListBwdShape90<C.dtype, C.d, 2, ListLines::packed, C.own_stages>;
  using SharedRows = ListBwdShape90<C.dtype, C.d, 1, ListLines::gathered, C.shared_stages>;
  using OwnRows = ListBwdShape90<C.dtype, C.d, 2, ListLines::gathered, C.own_stages>;
  constexpr auto keys = [](Context& ctx, const ListCut90& cut, const AttendBackward& call,
                           const BackwardMaps& maps, const ListKeys90& work) {
    const bool one = cut.key_rings == 1;
    if (cut.keys == ListLines::rows)
      one ? launch_lists<list_bwd_dkdv_sm90<Shared>, Shared>(ctx, call, maps, work)
          : launch_lists<list_bwd_dkdv_sm90<Own>, Own>(ctx, call, maps, work);
    else
      one ? launch_lists<list_bwd_dkdv_sm90<SharedRows>, SharedRows>(ctx, call, maps, work)
          : launch_lists<list_bwd_dkdv_sm90<OwnRows>, OwnRows>(ctx, call, maps, work);
  };
  constexpr auto rows = [](Context& ctx, const ListCut90& cut, const AttendBackward& call,
                           const BackwardMaps& maps, const ListRows90& work) {
    if (cut.rows == ListLines::packed)
      launch_lists<list_bwd_dq_sm90<Packed>, Packed>(ctx, call, maps, work);
    else if (cut.rows == ListLines::gathered)
      launch_lists<list_bwd_dq_sm90<SharedRows>, SharedRows>(ctx, call, maps, work);
    else if (cut.row_rings > 1)
      launch_lists<list_bwd_dq_sm90<Own>, Own>(ctx, call, maps, work);
    else
      launch_lists<list_bwd_dq_sm90<Shared>, Shared>(ctx, call, maps, work);
  };
  return {C.dtype, C.d, keys, rows};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                                      \
  namespace fovea::cuda {                                                                        \
  template SparseBackward90 sparse_backward_sm90_instance<SparseBackwardConfig90 __VA_ARGS__>(); \
  }
