// SPDX-License-Identifier: Apache-2.0
// Which calls of x_gla_forward the Hopper chain takes, its workspace with key gates, and how many
// blocks walk each chain.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/chain.h"
#include "cuda/loop/hopper.h"
#include "ops/gla/forward.cuh"
#include "ops/gla/gla.h"

namespace fovea {
namespace {

using namespace cuda;

// Every row of forward.inc in this build, narrow widths first.
const std::vector<GlaInstance90>& instances() {
  static const std::vector<GlaInstance90> rows = {
#define FOVEA_INSTANCE(...) gla_sm90_instance<GlaConfig90 __VA_ARGS__>(),
#include "instances/gla_forward_sm90.inc"
#undef FOVEA_INSTANCE
#define FOVEA_INSTANCE(...) gla_keys_sm90_instance<GlaConfig90 __VA_ARGS__>(),
#include "instances/gla_forward_keys_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// A chunk costs as much for few tokens as for 64.
constexpr int64_t kLeastTokens = 64;
constexpr int64_t kTokensMost = int64_t{1} << 30;  // tiles have 32-bit rows
// More copies would all wait for the state.
constexpr int64_t kCopiesMost = 16;

const char* given(const Recur& a) {
  if (a.gate_key && a.gate_head) return "gate_head with gate_key";
  if (a.gate_key && a.select) return "select with gate_key";
  if (a.gate_value) return "gate_value";
  if (a.bonus && !a.gate_key) return "bonus without gate_key";
  if (a.full) return "full";
  if (a.read_before && !a.gate_key) return "read_before without gate_key";
  if (a.normalise || a.den) return "normalise";
  if (a.map_q) return "map_q";
  if (a.map_k) return "map_k";
  return nullptr;
}

Text refuses(const Context& ctx, const Recur& a) {
  if (const int arch = device_info(ctx).arch; arch != 90) return reason_capability(arch, "9.0");
  if (a.q.dtype != FOVEA_F16 && a.q.dtype != FOVEA_BF16) return reason_dtype(a.q.dtype);
  if (const char* field = given(a)) return reason_given(field);
  if (!a.v) return "v is not given";
  if (Text why = refuse_width("e", a.e, kChainColumns); !why.empty()) return why;
  if (a.snapshot && a.run.every % kChainTokens)
    return reason("snapshot_every", a.run.every, "a multiple of 64");
  if (a.run.token_max < kLeastTokens)
    return Text("sequences of at most ") + Text::number(a.run.token_max) + " tokens, wanted " +
           Text::number(kLeastTokens);
  if (a.run.token_max > kTokensMost || a.s > kTokensMost) return "more than 2^30 tokens";
  // TMA has no empty tensor: it would read one row.
  if (!a.b || !a.heads || !a.heads_out || !a.e || !a.run.count)
    return "there are no sequences, heads or columns";
  if (a.outputs() > INT_MAX) return "more than 2^31 heads of o";
  const int64_t extent[3] = {a.b, a.s, a.heads_out};
  if (a.o && !in_pieces(a.o.view, extent, a.o.dtype == FOVEA_F32 ? 4 : 8)) return reason_rows("o");
  if (a.o && a.o.dtype != FOVEA_F32 && a.o.dtype != a.q.dtype)
    return reason_dtype("o.dtype", a.o.dtype, a.q.dtype, "q");
  if (!a.gate_key) return "";
  const int64_t q[3] = {a.b, a.s, a.h}, k[3] = {a.b, a.s, a.g};
  if (!in_pieces(a.q.view, q, 2)) return reason_rows("q");
  if (!in_pieces(a.k.view, k, 2)) return reason_rows("k");
  return "";
}

// Key gates: what the kernel of chunks needs, and its workspace.
struct GlaKeys {
  Slot<unsigned char> keys, queries;

  Text read(const Recur& a, GlaWork90& work, Plan& plan) {
    const int64_t extent[3] = {a.b, a.s, a.heads};
    const View<4>& gates = a.gate_key.view;
    work.gate_pairs = in_pieces(gates, extent, 2);
    work.slots = chunk_slots(a);
    if (work.slots > kTokensMost / std::max(a.heads, a.heads_out)) return "more than 2^30 chunks";
    work.outputs = static_cast<int32_t>(a.outputs());
    work.key_share = static_cast<int32_t>(a.heads / a.g);
    work.query_share = static_cast<int32_t>(a.heads_out / a.h);
    const auto d = static_cast<int>(a.d);
    keys = plan.workspace.add<unsigned char>(work.slots, a.heads, gla_key_stride(d));
    if (a.o)
      queries = plan.workspace.add<unsigned char>(work.slots, a.heads_out, gla_query_stride(d));
    return "";
  }
};

Text offer(const Context& ctx, const Recur& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  const int gate = a.gate_key ? kGlaKey : a.gate_head || a.select ? kGlaHead : kGlaNone;
  const GlaInstance90* found = nullptr;
  for (const GlaInstance90& row : instances())
    if (row.dtype == a.q.dtype && row.d == a.d && row.gate == gate) found = &row;
  if (!found) return no_instance(a.q.dtype, "d", a.d, "e", a.e);
  GlaWork90 work{};
  work.a = a, work.tiles = static_cast<int32_t>(a.e / kChainColumns);
  if (__builtin_mul_overflow(a.run.count * a.heads, int64_t{work.tiles}, &work.blocks) ||
      work.blocks > kTokensMost / kCopiesMost)
    return "more than 2^26 chains";
  const int64_t parts = parts_of(a, device_info(ctx).multiprocessors, work.blocks, 0);
  if (work.blocks * parts > kTokensMost / kCopiesMost) return "more than 2^26 parts of chains";
  work.parts.count = static_cast<int32_t>(parts);
  work.parts.chunks =
      static_cast<int32_t>(ceil_div(ceil_div(a.run.token_max, kChainTokens), parts));
  work.blocks *= parts;
  const bool together = parts == 1 && states_in_place(a);
  const int64_t copies = chain_copies(ctx, a, work.blocks, together, kCopiesMost);
  work.copies = static_cast<int32_t>(copies), work.cluster = together ? work.copies : 1;
  work.blocks *= copies;
  if (Text why = map_each({{"q", {a.q.view, a.q.dtype, a.b, a.s, a.h, a.d, kChainTokens}, work.q},
                           {"k", {a.k.view, a.k.dtype, a.b, a.t, a.g, a.d, kChainTokens}, work.k},
                           {"v", {a.v.view, a.v.dtype, a.b, a.t, a.x, a.e, kChainTokens}, work.v}});
      !why.empty())
    return why;
  GlaKeys made{};
  if (gate == kGlaKey)
    if (Text why = made.read(a, work, plan); !why.empty()) return why;
  constexpr const char* kGates[] = {".plain", ".head", ".key"};
  plan.kernel += Text(".") + dtype_name(a.q.dtype) + ".d" + Text::number(a.d) + kGates[gate];
  if (parts > 1) plan.kernel += Text(".parts") + Text::number(parts);
  plan.kernel += Text(".x") + Text::number(copies);
  Slot<float> states, decays;
  if (parts > 1) {
    states = plan.workspace.add<float>(a.run.count * parts, a.heads, a.d, a.e);
    decays = plan.workspace.add<float>(a.run.count * parts, a.heads, a.d);
  }
  plan.launch = [work, found, made, states, decays](Context& ctx, void* base) {
    GlaWork90 at = work;
    if (at.parts.count > 1) at.parts.set(at.a, states.at(base), nullptr, decays.at(base));
    at.keys = made.keys.at(base), at.queries = made.queries.at(base);
    found->launch(ctx, at);
  };
  return "";
}

}  // namespace

extern const Kernel<Recur> gla_forward_sm90 = {"sm90", offer};

}  // namespace fovea
