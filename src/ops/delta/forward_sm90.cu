// SPDX-License-Identifier: Apache-2.0
// Which calls of x_delta_forward the Hopper chain takes, its workspace, and how many blocks walk
// each chain.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "ops/delta/delta.h"
#include "ops/delta/forward.cuh"

namespace fovea {
namespace {

using namespace cuda;

// Every row of forward.inc in this build, narrow widths first.
const std::vector<DeltaInstance90>& instances() {
  static const std::vector<DeltaInstance90> rows = {
#define FOVEA_INSTANCE(...) delta_sm90_instance<DeltaConfig90 __VA_ARGS__>(),
#include "instances/delta_forward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// A chunk costs as much for few tokens as for 64.
constexpr int64_t kLeastTokens = 64;
constexpr int64_t kTokensMost = int64_t{1} << 30;  // tiles have 32-bit rows
// More copies would all wait for the state.
constexpr int64_t kCopiesMost = 8;

const char* given(const Recur& a) {
  if (a.erase) return "erase";
  if (a.low_a && !a.gate_key) return "low_a";  // without gate_key
  return nullptr;
}

Text refuses_rows(const Recur& a);

Text refuses(const Context& ctx, const Recur& a) {
  if (const int arch = device_info(ctx).arch; arch != 90) return reason_capability(arch, "9.0");
  if (a.q.dtype != FOVEA_F16 && a.q.dtype != FOVEA_BF16) return reason_dtype(a.q.dtype);
  if (const char* field = given(a)) return reason_given(field);
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
  return a.gate_key ? refuses_rows(a) : Text("");
}

DeltaForm form_of(const Recur& a) {
  return a.low_a ? DeltaForm::low : a.gate_key ? DeltaForm::key : DeltaForm::head;
}

// The kernel of key gates copies rows of q, k and gates itself.
Text refuses_rows(const Recur& a) {
  if (a.outputs() != 1) return reason("heads of q for each state", a.outputs(), "1");
  const int64_t all[3] = {a.b, a.s, a.heads}, q[3] = {a.b, a.s, a.h}, k[3] = {a.b, a.t, a.g};
  if (!in_pieces(a.q.view, q, 4)) return reason_rows("q");
  if (!in_pieces(a.k.view, k, 4)) return reason_rows("k");
  if (!in_pieces(a.gate_key.view, all, 4)) return reason_rows("gate_key");
  return "";
}

struct DeltaPlan {
  DeltaWork90 work;
  Slot<unsigned char> inverses, scores;
  Slot<float> state, carry;
  const DeltaInstance90* found;
};

Text offer(const Context& ctx, const Recur& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  DeltaPlan p{};
  for (const DeltaInstance90& row : instances())
    if (row.dtype == a.q.dtype && row.d == a.d && row.form == form_of(a)) p.found = &row;
  if (!p.found) return no_instance(a.q.dtype, "d", a.d, "e", a.e);
  DeltaWork90& work = p.work;
  work.a = a, work.tiles = static_cast<int32_t>(a.e / kChainColumns);
  if (__builtin_mul_overflow(a.run.count * a.heads, int64_t{work.tiles}, &work.blocks) ||
      work.blocks > kTokensMost / kCopiesMost)
    return "more than 2^27 chains";
  work.chunks = static_cast<int32_t>(ceil_div(a.run.token_max, kChainTokens));
  work.slots = a.run.start ? a.s / kChainTokens + a.run.count : a.run.count * work.chunks;
  if (work.slots > kTokensMost / a.heads) return "more than 2^30 chunks";
  work.outputs = static_cast<int32_t>(a.outputs());
  work.key_share = static_cast<int32_t>(a.heads / a.g);
  work.query_share = static_cast<int32_t>(a.heads_out / a.h);
  work.norm_bytes = 0, work.beta_least = 0;
  const int64_t parts = parts_of(a, device_info(ctx).multiprocessors, work.blocks,
                                 a.run.count * a.heads * (a.d / kChainColumns));
  if (work.blocks * parts > kTokensMost / kCopiesMost) return "more than 2^27 parts of chains";
  work.parts.count = static_cast<int32_t>(parts);
  work.parts.chunks = static_cast<int32_t>(ceil_div(work.chunks, parts));
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
  if (a.low_a) {
    const auto map_of = [&](const Floats<4>& x) {
      return MapOf{x.view, x.dtype, a.b, a.s, a.heads, a.d, kChainTokens};
    };
    if (Text why = map_each(
            {{"low_a", map_of(a.low_a), work.low_a}, {"low_b", map_of(a.low_b), work.low_b}});
        !why.empty())
      return why;
  }
  p.inverses = plan.workspace.add<unsigned char>(work.slots, a.heads, p.found->key_stride);
  if (a.o)
    p.scores = plan.workspace.add<unsigned char>(work.slots, a.heads_out, p.found->query_stride);
  if (parts > 1) {
    p.state = plan.workspace.add<float>(a.run.count * parts, a.heads, a.d, a.e);
    p.carry = plan.workspace.add<float>(a.run.count * parts, a.heads, a.d, a.d);
  }
  plan.kernel += Text(a.low_a      ? ".low."
                      : a.gate_key ? ".key."
                                   : ".") +
                 dtype_name(a.q.dtype) + ".d" + Text::number(a.d);
  if (parts > 1) plan.kernel += Text(".parts") + Text::number(parts);
  plan.kernel += Text(".x") + Text::number(copies);
  plan.launch = [p](Context& ctx, void* base) {
    DeltaWork90 work = p.work;
    work.inverses = p.inverses.at(base), work.scores = p.scores.at(base);
    if (work.parts.count > 1) work.parts.set(work.a, p.state.at(base), p.carry.at(base));
    p.found->launch(ctx, work);
  };
  return "";
}

}  // namespace

extern const Kernel<Recur> delta_forward_sm90 = {"sm90", offer};

}  // namespace fovea
