// SPDX-License-Identifier: Apache-2.0
// How many blocks walk a chain, and whether states lie where they are read.
#include "cuda/loop/chain.h"

#include <algorithm>

#include "core/dtype.h"
#include "cuda/launch.h"

namespace fovea::cuda {
namespace {

// The bytes of a state tensor, from first to last.
struct Span {
  uintptr_t first, end;
  Span(const Floats<4>& x, int64_t rows, const Recur& a) {
    const int64_t extent[4] = {rows, a.heads, a.d, a.e}, size = dtype_bytes(x.dtype);
    int64_t low = 0, high = 1;
    for (int i = 0; i < 4; ++i) {
      const int64_t reach = (extent[i] - 1) * x.view.stride[i];
      (reach < 0 ? low : high) += reach;
    }
    const auto base = reinterpret_cast<uintptr_t>(x.view.data);
    first = base + static_cast<uintptr_t>(low * size);
    end = base + static_cast<uintptr_t>(high * size);
  }
  bool meets(const Span& other) const { return first < other.end && other.first < end; }
};

}  // namespace

bool states_in_place(const Recur& a) {
  if (!a.state_in || a.run.slots < 1) return false;
  const Span in(a.state_in, a.run.slots, a);
  return (a.state_out && a.run.slots_out > 0 && in.meets(Span(a.state_out, a.run.slots_out, a))) ||
         (a.snapshot && a.run.snapshots > 0 && in.meets(Span(a.snapshot, a.run.snapshots, a)));
}

int64_t chain_copies(const Context& ctx, const Recur& a, int64_t chains, bool together,
                     int64_t most) {
  if (!a.o) return 1;
  const int64_t chunks = ceil_div(a.run.token_max, kChainTokens);
  const int64_t copies =
      clamp_i64(device_info(ctx).multiprocessors / chains, 1, std::min(most, chunks * a.outputs()));
  return together ? std::min<int64_t>(copies, 2) : copies;
}

}  // namespace fovea::cuda
