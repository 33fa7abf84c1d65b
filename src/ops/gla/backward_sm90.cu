// SPDX-License-Identifier: Apache-2.0
// x_gla_backward on Hopper: three chains (backward_sm90.cuh), then the gradients of gates.
//   dq  first to last    what dO reads of H', which v and k move
//   dk  last to first    what v reads of W', which dO and q move
//   dv  last to first    what k reads of W, which q and dO move
// W is the gradient of the state H that tokens after it make.  Gates of a head:
//   dg_t = dg_(t+1) + q_t . dq_t - k_t . dk_t,   which begins with <H, W> at a segment's end
// A segment has 512 tokens.  <H, W> at its beginning is known too.  What the sum is off by there is
// taken back evenly, so rounding does not add up over a sequence.  q . dq and k . dk are of f32
// rows, and a pair of tokens of one chunk adds the same bits to both.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/locate.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/block/reduce.cuh"
#include "cuda/block/softmax.cuh"
#include "cuda/launch.h"
#include "cuda/loop/chain.h"
#include "cuda/loop/hopper.h"
#include "cuda/loop/recur.h"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "ops/gla/backward.cuh"
#include "ops/gla/gla.h"
#include "ops/gla/rows_sm90.cuh"

namespace fovea {
namespace {

using namespace cuda;

constexpr char kOp[] = "x_gla_backward";
constexpr int kThreads = 256;
constexpr int64_t kSegment = GlaGradientWork90::segment;

// Every row of backward.inc in this build, narrow widths first.
const std::vector<GlaGradientInstance90>& instances() {
  static const std::vector<GlaGradientInstance90> rows = {
#define FOVEA_INSTANCE(...) gla_gradient_sm90_instance<GlaGradientConfig90 __VA_ARGS__>(),
#include "instances/gla_backward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const GlaGradientInstance90* find(int32_t dtype, int64_t d, bool gated, int way) {
  for (const GlaGradientInstance90& row : instances())
    if (row.dtype == dtype && row.d == d && row.gated == gated && row.way == way) return &row;
  return nullptr;
}

// Every row of backward_shared.inc in this build.
const GlaSharedInstance90* find_shared(int32_t dtype, int64_t d) {
  static const std::vector<GlaSharedInstance90> rows = {
#define FOVEA_INSTANCE(...) gla_shared_sm90_instance<GlaSharedConfig90 __VA_ARGS__>(),
#include "instances/gla_backward_shared_sm90.inc"
#undef FOVEA_INSTANCE
  };
  for (const GlaSharedInstance90& row : rows)
    if (row.dtype == dtype && row.d == d) return &row;
  return nullptr;
}

// ---- kernels beside the chains

struct Gates {
  Recur a;
  const float4 *states, *grads;  // H and W around segments
  float* ends;                   // (place, heads): <H, W>
  const float *q_dots, *k_dots;  // (tiles, heads, b, s): q . dq, k . dk without select
  int64_t tiles;
  float* to;         // (b, s, heads)
  int64_t segments;  // of a sequence, at most
  Floats<3> gate;    // dgate_head, where no strides of 0 sum

  // q . dq - k . dk of a token.
  __device__ float step(const RunTokens& run, int64_t t, int64_t head) const {
    float of_q = 0, of_k = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t at = ((tile * a.heads + head) * a.b + run.batch) * a.s + run.begin + t;
      if (t >= run.from) of_q += q_dots[at];
      of_k += k_dots[at];
    }
    return of_q - decayed(a.select_of(run.batch, run.begin + t, head), of_k);
  }
};

// <H, W>: a block takes that of a place and head.
__global__ void __launch_bounds__(kThreads)
    gla_ends_sm90(const __grid_constant__ Gates g, int64_t work) {
  __shared__ float s_sum[kThreads / 32];
  const Recur& a = g.a;
  const int64_t pieces = a.d * a.e / 4;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t i = w % (g.segments + 1), rest = w / (g.segments + 1), head = rest % a.heads;
    const RunTokens run = a.run[rest / a.heads];
    if (i > (run.count + kSegment - 1) / kSegment) continue;
    const int64_t place = GlaGradientWork90::place(a, run, i) * a.heads + head;
    const float4 *states = g.states + place * pieces, *grads = g.grads + place * pieces;
    float sum = 0;
    const auto add = [&](float h, float w) {
      if (w != 0) sum = fmaf(h, w, sum);  // a state that a gate resets may be NaN
    };
    constexpr int kAhead = 4;  // d and e are multiples of 64
    for (int n = static_cast<int>(threadIdx.x); n < pieces; n += kAhead * kThreads) {
      float4 h[kAhead], w[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        h[k] = __ldcs(states + n + k * kThreads), w[k] = __ldcs(grads + n + k * kThreads);
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        add(h[k].x, w[k].x), add(h[k].y, w[k].y), add(h[k].z, w[k].z), add(h[k].w, w[k].w);
    }
    sum = block_sum<kThreads>(sum, s_sum);
    if (threadIdx.x == 0) g.ends[place] = sum;
  }
}

// A block takes a segment of a sequence's head, a thread neighbouring tokens.
__global__ void __launch_bounds__(kThreads)
    gla_gates_sm90(const __grid_constant__ Gates g, int64_t work) {
  constexpr int kEach = kSegment / kThreads;
  __shared__ float s_step[kSegment + kThreads / 32];
  const Recur& a = g.a;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t i = w % g.segments, rest = w / g.segments, head = rest % a.heads;
    const RunTokens run = a.run[rest / a.heads];
    const int64_t first = i * kSegment, count = min(run.count - first, kSegment);
    if (count <= 0) continue;
    const float begun = g.ends[GlaGradientWork90::place(a, run, i) * a.heads + head];
    const float ended = g.ends[GlaGradientWork90::place(a, run, i + 1) * a.heads + head];
    for (int n = 0; n < kEach; ++n) {
      const int t = n * kThreads + static_cast<int>(threadIdx.x);
      s_step[t] = t < count ? g.step(run, first + t, head) : 0.f;
    }
    __syncthreads();
    // Sums from each token to the segment's end: a thread has kEach in a row.
    float own[kEach], later = 0;
    for (int n = kEach - 1; n >= 0; --n)
      own[n] = later += s_step[kEach * static_cast<int>(threadIdx.x) + n];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float below = later;
    for (int step = 1; step < 32; step *= 2) {
      const float got = __shfl_down_sync(~0u, below, step);
      if (lane + step < 32) below += got;
    }
    if (lane == 0) s_step[kSegment + warp] = below;
    float before = __shfl_down_sync(~0u, below, 1);
    if (lane == 31) before = 0;
    __syncthreads();
    float all = 0, after = before;
    for (int other = kThreads / 32 - 1; other >= 0; --other) {
      if (other > warp) after += s_step[kSegment + other];
      all += s_step[kSegment + other];
    }
    const float off = ended + all - begun;
    const float each = isfinite(off) ? off / static_cast<float>(count) : 0.f;
    for (int n = 0; n < kEach; ++n) {
      const int t = kEach * static_cast<int>(threadIdx.x) + n;
      if (t >= count) continue;
      const int64_t at = run.begin + first + t;
      const LogGate gate = a.head_gate(run.batch, at, head);
      const float value = exp2_fast(gate.value * kLog2E) == 0
                              ? 0.f
                              : ended + own[n] + after - each * static_cast<float>(count - t);
      g.to[(run.batch * a.s + at) * a.heads + head] = value;
      if (g.gate)
        g.gate.store(value == 0 || gate.slope == 0 ? 0.f : value * gate.slope, run.batch, at, head);
    }
    __syncthreads();
  }
}

// Four neighbouring elements.
__device__ __forceinline__ void store_four(const Floats<4>& x, bool pieces, float4 value,
                                           int64_t batch, int64_t at, int64_t head, int64_t c) {
  const int64_t to = x.offset(batch, at, head, c);
  if (!pieces) {
    const float each[4] = {value.x, value.y, value.z, value.w};
    for (int i = 0; i < 4; ++i) x.store(each[i], batch, at, head, c + i);
  } else if (x.dtype == FOVEA_F32) {
    *reinterpret_cast<float4*>(static_cast<float*>(x.view.data) + to) = value;
  } else {
    const bool half = x.dtype == FOVEA_F16;
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(x.view.data) + to) =
        make_uint2(half ? pack<FOVEA_F16>(value.x, value.y) : pack<FOVEA_BF16>(value.x, value.y),
                   half ? pack<FOVEA_F16>(value.z, value.w) : pack<FOVEA_BF16>(value.z, value.w));
  }
}

// Sums of the terms that share a head of an output, `lanes` threads a head's row.
//   terms (b, s, heads, width)
__global__ void __launch_bounds__(kThreads)
    gla_shared_rows_sm90(const __grid_constant__ Recur a, const __grid_constant__ GlaRows rows,
                         const float* terms, int64_t heads, bool pieces, int lanes, int64_t work) {
  const int64_t share = heads / rows.heads;
  const int each = kThreads / lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  for (int64_t w = blockIdx.x * int64_t{each} + threadIdx.x / lanes; w < work;
       w += gridDim.x * int64_t{each}) {
    const int64_t row = quotient(w, rows.heads), head = w - row * rows.heads;
    const int64_t batch = quotient(row, a.s), at = row - batch * a.s;
    const bool there = has_row(a, batch, at, rows.of_q);
    for (int64_t c = lane * 4; c < rows.width; c += lanes * 4) {
      const float* from = terms + (row * heads + head * share) * rows.width + c;
      float4 sum{};
#pragma unroll 8
      for (int64_t j = 0; there && j < share; ++j, from += rows.width) {
        const float4 x = __ldcs(reinterpret_cast<const float4*>(from));
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
      }
      store_four(rows.out, pieces, sum, batch, at, head, c);
    }
  }
}

// ---- the plan

struct Chain {
  GlaGradientWork90 work;
  const GlaGradientInstance90* run;  // nullptr: nobody asks for what it makes
  GlaRows rows;                      // its output
  Slot<float> terms;  // of its output, where the caller's tensor does not take it as it is
  Slot<float> dots, kept;
};

// dq and dk of heads that share q and k.
struct Shared {
  GlaSharedWork90 work;
  const GlaSharedInstance90* run;  // nullptr: chains make them
  GlaRows q_rows, k_rows;
  Slot<unsigned char> states, slopes;
  Slot<float> dq, dk;
};

struct BackwardPlan {
  RecurBackward b;  // without the outputs that chains write
  Chain q, k, v;
  Shared shared;
  bool gates;
  Slot<float> head_gate, ends;
  Slot<double> sums;
};

// A chunk costs as much for few tokens as for 64.
constexpr int64_t kLeastTokens = 64;
constexpr int64_t kTokensMost = int64_t{1} << 30;  // tiles have 32-bit rows
// More copies would all wait for the state.
constexpr int64_t kCopiesMost = 16;

const char* given(const Recur& a) {
  if (a.gate_key) return "gate_key";
  if (a.gate_value) return "gate_value";
  if (a.bonus) return "bonus";
  if (a.full) return "full";
  if (a.read_before) return "read_before";
  if (a.normalise || a.den) return "normalise";
  if (a.map_q) return "map_q";
  if (a.map_k) return "map_k";
  return nullptr;
}

Text refuse_chain(const Context& ctx, const Recur& a) {
  if (const int arch = device_info(ctx).arch; arch != 90) return reason_capability(arch, "9.0");
  if (a.q.dtype != FOVEA_F16 && a.q.dtype != FOVEA_BF16) return reason_dtype(a.q.dtype);
  if (const char* field = given(a)) return reason_given(field);
  if (!a.v) return "v is not given";
  if (Text why = refuse_width("e", a.e, kChainColumns); !why.empty()) return why;
  if (a.run.token_max < kLeastTokens)
    return Text("sequences of at most ") + Text::number(a.run.token_max) + " tokens, wanted " +
           Text::number(kLeastTokens);
  if (a.run.token_max > kTokensMost || a.s > kTokensMost) return "more than 2^30 tokens";
  // TMA has no empty tensor: it would read one row.
  if (!a.b || !a.heads || !a.heads_out || !a.e || !a.run.count)
    return "there are no sequences, heads or columns";
  return "";
}

Text spread_chains(const Context& ctx, GlaGradientWork90& work) {
  const Recur& a = work.a;
  work.tiles = static_cast<int32_t>(a.e / kChainColumns);
  if (__builtin_mul_overflow(a.run.count * a.heads, int64_t{work.tiles}, &work.blocks) ||
      work.blocks > kTokensMost / kCopiesMost)
    return "more than 2^26 chains";
  const bool together = states_in_place(a);
  const int64_t copies = chain_copies(ctx, a, work.blocks, together, kCopiesMost);
  work.copies = static_cast<int32_t>(copies), work.cluster = together ? work.copies : 1;
  work.blocks *= copies;
  return "";
}

Text refuses(const Context& ctx, const RecurBackward& b) {
  const Recur& a = b.forward;
  if (Text why = refuse_chain(ctx, a); !why.empty()) return why;
  if (Text why = refuse_width("d", a.d, kChainColumns); !why.empty()) return why;
  if (!a.o) return "dout is not given";
  if (a.o.dtype != a.q.dtype) return reason_dtype("dout.dtype", a.o.dtype, a.q.dtype, "q");
  if (a.heads_out != a.heads) return reason("q.shape[2]", a.h, "at most the heads of k and v");
  return "";
}

// Whether dgate_head is stored token by token: no row is left out, and nothing sums.
bool stores_gate(const RecurBackward& b) {
  const Recur& a = b.forward;
  const Floats<4>& out = b.output(RecurGradient::gate_head);
  const int64_t extent[3] = {a.b, a.s, a.heads};
  for (int i = 0; i < 3; ++i)
    if (extent[i] > 1 && out.view.stride[i] == 0) return false;
  return out && !a.run.ragged();
}

// Where states lie as (e, d).
Floats<4> turned(Floats<4> x) {
  std::swap(x.view.stride[2], x.view.stride[3]);
  return x;
}

// The call as the chain has it: o reads what k and v move.
Recur roles(const Recur& a, const Floats<4>& q, int64_t h, const Floats<4>& k, int64_t g,
            const Floats<4>& v, int64_t x, int64_t d, int64_t e) {
  Recur to = a;
  to.q = q, to.h = h, to.k = k, to.g = g, to.v = v, to.x = x, to.d = d, to.e = e;
  to.o = {}, to.state_in = {}, to.state_out = {}, to.snapshot = {}, to.skip = {};
  to.run.slots = to.run.slots_out = to.run.snapshots = 0;
  return to;
}

// As roles(), last to first: states are of sequences, and select is a factor of rows.
Recur reversed(Recur a, const RecurBackward& b, bool turn) {
  a.select = {};
  a.run.state_row = {}, a.run.state_out_row = {};
  a.state_in = {b.dstate_out, FOVEA_F32};
  if (turn) a.state_in = turned(a.state_in);
  a.run.slots = b.dstate_out ? a.run.count : 0;
  return a;
}

// Where a chain stores: the output itself, or terms of it.
void add_output(BackwardPlan& p, Chain& chain, RecurGradient what, Plan& plan, int64_t heads,
                int64_t width) {
  Floats<4>& out = p.b.to[static_cast<int>(what)];
  const Recur& a = p.b.forward;
  if (!out) return;
  chain.rows = {out, heads, width, what == RecurGradient::q};
  if (direct(a, out, heads, a.s)) {
    chain.work.a.o = out;
  } else {
    chain.terms = plan.workspace.add<float>(a.b, a.s, a.heads, width);
    // The address is known at the launch.
    chain.work.a.o = {{nullptr, {a.s * a.heads * width, a.heads * width, width, 1}}, FOVEA_F32};
  }
  out = {};
}

Text map_chain(Chain& chain, const char* q, const char* k, const char* v) {
  GlaGradientWork90& w = chain.work;
  const Recur& a = w.a;
  return map_each({{q, {a.q.view, a.q.dtype, a.b, a.s, a.h, a.d, kChainTokens}, w.q},
                   {k, {a.k.view, a.k.dtype, a.b, a.s, a.g, a.d, kChainTokens}, w.k},
                   {v, {a.v.view, a.v.dtype, a.b, a.s, a.x, a.e, kChainTokens}, w.v}});
}

Text finish_chain(const Context& ctx, const Recur& all, Chain& chain, bool gated, int way,
                  const char* q, const char* k, const char* v) {
  GlaGradientWork90& w = chain.work;
  chain.run = find(w.a.q.dtype, w.a.d, gated, way);
  if (!chain.run) return no_instance(all.q.dtype, "d", all.d, "e", all.e);
  if (Text why = spread_chains(ctx, w); !why.empty()) return why;
  if (w.partner) {
    const Floats<4>& x = w.partner;
    const int64_t heads = w.a.heads / w.partner_share;
    const MapOf rows{x.view, x.dtype, w.a.b, w.a.s, heads, w.a.e, kChainTokens};
    if (Text why = map_each({{way == 2 ? "k" : "q", rows, w.partner_map}}); !why.empty())
      return why;
  }
  return map_chain(chain, q, k, v);
}

// Sums of terms, of which there are `heads` a token.
void sum_rows(Context& ctx, const Recur& a, const GlaRows& rows, const float* terms,
              int64_t heads) {
  const int64_t work = a.b * a.s * rows.heads;
  const int lanes = rows.width == 64 ? 16 : 32;
  const bool pieces = in_pieces(rows.out.view, {a.b, a.s, rows.heads}, 4) &&
                      (rows.out.dtype == FOVEA_F32 || rows.out.dtype == a.q.dtype);
  launch<gla_shared_rows_sm90>(ctx, kOp, ceil_div(work, kThreads / lanes), kThreads, 0, a, rows,
                               terms, heads, pieces, lanes, work);
}

void launch_chain(Context& ctx, const Recur& a, const Chain& chain, void* base) {
  if (!chain.run) return;
  const GlaRows& rows = chain.rows;
  GlaGradientWork90 w = chain.work;
  if (chain.terms.count)
    w.a.o.view.data = chain.terms.at(base);
  else if (rows.out && (a.run.ragged() || (rows.of_q && a.run.output_from)))
    zero_unused_rows(ctx, kOp, a, rows);
  w.dots = chain.dots.at(base);
  w.kept = reinterpret_cast<float4*>(chain.kept.at(base));
  chain.run->launch(ctx, w);
  if (!chain.terms.count) return;
  sum_rows(ctx, a, rows, chain.terms.at(base), a.heads);
}

void launch_shared(Context& ctx, const BackwardPlan& p, void* base) {
  if (!p.shared.run) return;
  const Recur& a = p.b.forward;
  const Shared& from = p.shared;
  GlaSharedWork90 w = from.work;
  w.states = from.states.at(base), w.slopes = from.slopes.at(base);
  w.kept_states = reinterpret_cast<float4*>(p.q.kept.at(base));
  w.kept_slopes = reinterpret_cast<float4*>(p.k.kept.at(base));
  w.q_dots = p.q.dots.at(base), w.k_dots = p.k.dots.at(base);
  w.dq = from.dq.at(base), w.dk = from.dk.at(base);
  from.run->launch(ctx, w);
  if (from.q_rows.out) sum_rows(ctx, a, from.q_rows, w.dq, a.h * w.parts);
  if (from.k_rows.out) sum_rows(ctx, a, from.k_rows, w.dk, a.g * w.parts);
}

void enqueue(Context& ctx, const BackwardPlan& p, void* base) {
  const Recur& a = p.b.forward;
  for (const Chain* chain : {&p.q, &p.k, &p.v}) launch_chain(ctx, a, *chain, base);
  launch_shared(ctx, p, base);
  RecurBackward b = p.b;
  b.terms.slices = 1;
  const int64_t tiles = p.shared.run ? 1 : a.d / kChainColumns;
  b.terms.select = p.k.dots.at(base), b.terms.select_slices = tiles;
  if (p.gates) {
    Gates g{a,
            reinterpret_cast<const float4*>(p.q.kept.at(base)),
            reinterpret_cast<const float4*>(p.k.kept.at(base)),
            p.ends.at(base),
            p.q.dots.at(base),
            p.k.dots.at(base),
            tiles,
            p.head_gate.at(base),
            ceil_div(a.run.token_max, kSegment),
            {}};
    const Floats<4>& out = b.output(RecurGradient::gate_head);
    if (stores_gate(b)) {
      g.gate = {{out.view.data, {out.view.stride[0], out.view.stride[1], out.view.stride[2]}},
                out.dtype};
      b.to[static_cast<int>(RecurGradient::gate_head)] = {};
    }
    b.terms.row_dg = g.to;
    const int64_t work = a.run.count * a.heads;
    launch<gla_ends_sm90>(ctx, kOp, work * (g.segments + 1), kThreads, 0, g,
                          work * (g.segments + 1));
    launch<gla_gates_sm90>(ctx, kOp, work * g.segments, kThreads, 0, g, work * g.segments);
  }
  add_recur_terms(ctx, kOp, b, p.sums.at(base));
}

// Whether dq and dk are sums of so many heads that their kernels pay, and the call fits them: a
// grid has two blocks for each head, 64 value columns and sequence.
bool shares_heads(const Recur& a) {
  constexpr int64_t kLeast = 4, kColumnsMost = 128, kChunksMost = int64_t{1} << 28;
  return a.h == a.g && a.heads >= kLeast * a.h && a.e <= kColumnsMost &&
         chunk_slots(a) <= kChunksMost / a.heads;
}

Text share_heads(BackwardPlan& p, const RecurBackward& b, Plan& plan, bool of_v) {
  constexpr int64_t kHeadsMost = 16;  // of a block: no number of sequences changes a bit
  const Recur& a = b.forward;
  GlaSharedWork90& w = p.shared.work;
  w.a = a, w.dstate_out = b.dstate_out;
  if (!of_v) w.dstate_in = b.dstate_in;
  const int64_t share = a.heads / a.h, parts = ceil_div(share, kHeadsMost);
  w.parts = static_cast<int32_t>(parts), w.each = static_cast<int32_t>(ceil_div(share, parts));
  w.tiles = static_cast<int32_t>(a.e / kChainColumns);
  w.slots = chunk_slots(a), w.chains = a.run.count * a.heads * w.tiles;
  const auto take = [&](RecurGradient what, GlaRows& rows, int64_t heads) {
    Floats<4>& out = p.b.to[static_cast<int>(what)];
    rows = {out, heads, a.d, what == RecurGradient::q}, out = {};
  };
  take(RecurGradient::q, p.shared.q_rows, a.h), take(RecurGradient::k, p.shared.k_rows, a.g);
  Layout& space = plan.workspace;
  p.shared.states = space.add<unsigned char>(w.slots, a.heads, a.e, a.d * 2);
  p.shared.slopes = space.add<unsigned char>(w.slots, a.heads, a.e, a.d * 2);
  p.shared.dq = space.add<float>(a.b, a.s, a.h * parts, a.d);
  p.shared.dk = space.add<float>(a.b, a.s, a.h * parts, a.d);
  return map_each({{"q", {a.q.view, a.q.dtype, a.b, a.s, a.h, a.d, kChainTokens}, w.q},
                   {"k", {a.k.view, a.k.dtype, a.b, a.s, a.g, a.d, kChainTokens}, w.k},
                   {"v", {a.v.view, a.v.dtype, a.b, a.s, a.x, a.e, kChainTokens}, w.v},
                   {"dout", {a.o.view, a.o.dtype, a.b, a.s, a.heads, a.e, kChainTokens}, w.dout}});
}

Text offer(const Context& ctx, const RecurBackward& b, Plan& plan) {
  if (Text why = refuses(ctx, b); !why.empty()) return why;
  const Recur& a = b.forward;
  const auto wants = [&](RecurGradient what) { return static_cast<bool>(b.output(what)); };
  BackwardPlan p{};
  p.b = b;
  p.gates =
      wants(RecurGradient::gate_head) || wants(RecurGradient::rate) || wants(RecurGradient::bias);
  const bool selects = wants(RecurGradient::select);
  const bool of_q = wants(RecurGradient::q) || p.gates;
  const bool of_k = wants(RecurGradient::k) || p.gates || selects;
  const bool of_v = wants(RecurGradient::v) || (b.dstate_in && !of_k);
  p.q.work.a = roles(a, a.o, a.heads, a.v, a.x, a.k, a.g, a.e, a.d);
  p.q.work.a.state_in = turned(a.state_in), p.q.work.a.run.slots = a.run.slots;
  p.k.work.a = reversed(roles(a, a.v, a.x, a.o, a.heads, a.q, a.h, a.e, a.d), b, true);
  p.v.work.a = reversed(roles(a, a.k, a.g, a.q, a.h, a.o, a.heads, a.d, a.e), b, false);
  if (of_q && of_k && shares_heads(a)) p.shared.run = find_shared(a.q.dtype, a.d);
  if (p.shared.run) {
    if (Text why = share_heads(p, b, plan, of_v); !why.empty()) return why;
  } else {
    add_output(p, p.q, RecurGradient::q, plan, a.h, a.d);
    add_output(p, p.k, RecurGradient::k, plan, a.g, a.d);
  }
  add_output(p, p.v, RecurGradient::v, plan, a.x, a.e);
  // With gates, dk's weights have select as those of dq do.
  p.k.work.select = p.v.work.select = a.select;
  p.v.work.skip = a.skip;
  if (a.gate_head || selects) p.k.work.a.select = a.select;
  if (b.dstate_in) {
    Recur& to = of_v ? p.v.work.a : p.k.work.a;
    to.state_out = {b.dstate_in, FOVEA_F32}, to.run.slots_out = a.run.count;
    if (!of_v) to.state_out = turned(to.state_out);
  }
  Layout& space = plan.workspace;
  const int64_t dots = p.shared.run ? 1 : a.d / kChainColumns;
  if (p.gates) p.q.work.partner = a.q;
  if (p.gates || selects) p.k.work.partner = a.k;
  p.q.work.partner_share = static_cast<int32_t>(a.heads / a.h);
  p.k.work.partner_share = static_cast<int32_t>(a.heads / a.g);
  if (p.gates || selects) p.k.dots = space.add<float>(dots, a.b, a.s, a.heads);
  if (of_q && !p.shared.run)
    if (Text why =
            finish_chain(ctx, a, p.q, a.gate_head || a.select, p.gates ? 1 : 0, "dout", "v", "k");
        !why.empty())
      return why;
  if (of_k && !p.shared.run)
    if (Text why = finish_chain(ctx, a, p.k, a.gate_head || selects, 2, "v", "dout", "q");
        !why.empty())
      return why;
  if (of_v)
    if (Text why = finish_chain(ctx, a, p.v, static_cast<bool>(a.gate_head), 2, "k", "q", "dout");
        !why.empty())
      return why;
  if (p.gates) {
    const int64_t places = GlaGradientWork90::places(a);
    p.q.dots = space.add<float>(dots, a.b, a.s, a.heads);
    p.q.kept = space.add<float>(places, a.heads, a.d, a.e);
    p.k.kept = space.add<float>(places, a.heads, a.d, a.e);
    p.head_gate = space.add<float>(a.b, a.s, a.heads), p.ends = space.add<float>(places, a.heads);
  }
  p.sums = space.add<double>(recur_sums(p.b));
  const Chain& shown = of_v ? p.v : of_k ? p.k : p.q;
  plan.kernel += Text(".") + dtype_name(a.q.dtype) + ".d" + Text::number(a.d) +
                 (a.gate_head ? ".head" : ".plain");
  if (p.shared.run) plan.kernel += ".shared";
  if (shown.run) plan.kernel += Text(".x") + Text::number(shown.work.copies);
  plan.launch = [p](Context& ctx, void* base) { enqueue(ctx, p, base); };
  return "";
}

}  // namespace

extern const Kernel<RecurBackward> gla_backward_sm90 = {"sm90", offer};

}  // namespace fovea
