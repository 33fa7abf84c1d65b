// SPDX-License-Identifier: Apache-2.0
// Which calls of x_probe_forward the Hopper kernels take (probe_sm90.cuh), and their launches:
//   parts, lse     unless lse is given; parts of a key block where these make its sums
//   block cells    of parts and lse
//   sums           of columns and diagonals; of blocks that no parts are made for
// Parts are bounded: a launch has as many heads of x as fit.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "cuda/loop/row_tile.cuh"
#include "ops/summary/probe_work.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_probe_forward";
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kPartBytes = 256 << 20;

// A warp makes the lse of a row.
__global__ void __launch_bounds__(kThreads)
    probe_lse90_kernel(const __grid_constant__ ProbeWork90 w, int work) {
  const ProbeCall& p = w.p;
  const int lane = threadIdx.x % 32, heads = static_cast<int>(p.a.h);
  const int across = (w.rows_most + kWarps - 1) / kWarps;
  for (int n = static_cast<int>(blockIdx.x); n < work; n += static_cast<int>(gridDim.x)) {
    const int over = probe_quotient(n, across), head = w.first + over;
    const int r = probe_quotient(head, heads), h = head - r * heads;
    const int i = (n - over * across) * kWarps + static_cast<int>(threadIdx.x) / 32;
    const ProbeUnits90 s = w.sequence(r);
    if (i >= s.rows) continue;
    const float* const part = w.part + w.part_at(head, i);
    const int parts = w.parts_before(s, i);
    const auto value = [&](int J) { return w.part_there(s, i, J) ? part[J] : kNegativeInfinity; };
    float most = kNegativeInfinity;
    for (int J = lane; J < parts; J += 32) most = fmaxf(most, value(J));
    most = lanes_max<32>(most);
    const float base = most == kNegativeInfinity ? 0.f : most;
    float sum = 0;
    for (int J = lane; J < parts; J += 32) sum += exp2_fast(value(J) - base);
    sum = lanes_sum<32>(sum);
    if (lane) continue;
    const float lse = sum == 0 ? kNegativeInfinity : base + log2f(sum);
    w.lse[int64_t{head} * w.rows_most + i] = lse;
    if (p.a.lse) *p.a.lse.at(s.q.batch, h, s.q.row_begin + i) = lse * kLn2;
  }
}

__device__ __forceinline__ float part_power(float x, float lse) {
  return x == kNegativeInfinity || lse == kNegativeInfinity ? 0.f : exp2_fast(x - lse);
}

// Sum and largest of the part J of rows [begin, end) of a head.
__device__ __forceinline__ void add_parts(const ProbeWork90& w, const ProbeUnits90& s, int head,
                                          int begin, int end, int J, float& sum, float& most) {
  const float* const lse = w.lse + int64_t{head} * w.rows_most;
  while (begin < end) {
    const int next = min(end, begin / kProbeRows * kProbeRows + kProbeRows);
    if (J < w.parts_before(s, begin) && w.part_there(s, begin, J)) {
      const int64_t at = w.part_at(head, begin) + J;
      const float* x = w.part + at;
#pragma unroll 8
      for (int i = begin; i < next; ++i, x += w.parts) sum += part_power(*x, lse[i]);
      x = w.most + at;
      for (int i = begin; w.most && i < next; ++i, x += w.parts) {
        const float one = part_power(*x, lse[i]);
        if (one > most || one != one) most = one;
      }
    }
    begin = next;
  }
}

// A thread makes a cell of a head of x, from the parts of its rows.
__global__ void __launch_bounds__(kThreads)
    probe_cells_kernel(const __grid_constant__ ProbeWork90 w, int work) {
  const ProbeCall& p = w.p;
  const int across = static_cast<int>((p.u + kThreads - 1) / kThreads);
  const int heads = static_cast<int>(p.a.h), each = probe_quotient(w.unit_keys, w.part_keys);
  for (int n = static_cast<int>(blockIdx.x); n < work; n += static_cast<int>(gridDim.x)) {
    const int above = probe_quotient(n, across), over = probe_quotient(above, w.bands);
    const int J = (n - above * across) * kThreads + static_cast<int>(threadIdx.x);
    const int I = above - over * w.bands, head = w.first + over * w.group;
    const int r = probe_quotient(head, heads), x = probe_quotient(head - r * heads, w.group);
    const ProbeUnits90 s = w.sequence(r);
    const int begin = I * w.unit_rows;
    const int64_t row = int64_t{w.first_block(s.q, r)} + I;
    if (begin >= s.rows || row >= p.n || J >= p.u) continue;
    const int end = begin + min(s.rows - begin, w.unit_rows);
    float all_sum = 0, all_most = 0;
    for (int g = 0; g < w.group; ++g) {
      float sum = 0, most = 0;
      for (int part = J * each; part < (J + 1) * each; ++part)
        add_parts(w, s, head + g, begin, end, part, sum, most);
      all_sum = probe_join(p, all_sum, sum), all_most = probe_join(p, all_most, most);
    }
    if (p.block_sum) *p.block_sum.at(s.q.batch, x, row, J) = probe_end(p, all_sum);
    if (p.block_max) *p.block_max.at(s.q.batch, x, row, J) = probe_end(p, all_most);
  }
}

// Every row of probe.inc in this build.
const ProbeInstance90* instance_of(int32_t dtype) {
  static const std::vector<ProbeInstance90> rows = {
#define FOVEA_INSTANCE(dtype, step) probe_sm90_instance<dtype, step>(),
#include "instances/summary_probe_sm90.inc"
#undef FOVEA_INSTANCE
  };
  for (const ProbeInstance90& row : rows)
    if (row.dtype == dtype) return &row;
  return nullptr;
}

struct Probe90 {
  ProbeWork90 work;
  int64_t launch;  // heads of x of a launch
  bool cells;      // blocks are made from parts
};

bool cells_of_parts(const ProbeCall& p) {
  const int64_t keys = p.unit_keys;
  return !p.lse_in && keys >= 8 && (kProbeParts % keys == 0 || keys % kProbeParts == 0);
}
bool cells_of_sums(const ProbeCall& p) {
  return kProbeSums % p.unit_keys == 0 &&
         (kProbeRows % p.unit_rows == 0 || p.unit_rows % kProbeRows == 0);
}
// Of the heads of a head of x.
int64_t part_bytes(const ProbeCall& p, int64_t part_keys) {
  return p.group() * p.rows_most() * ceil_div(p.keys_most(), part_keys) * 4 * (p.block_max ? 2 : 1);
}

Text shape_refuses(const Context& ctx, const ProbeCall& p) {
  const Attend& a = p.a;
  if (Text why = hopper_refuses(ctx, a.dtype, a.sequences); !why.empty()) return why;
  if (Text why = refuse_width("d", a.d, 8); !why.empty()) return why;
  if (!in_pieces(a.q, {a.b, a.s, a.h}, 8)) return reason_rows("q");
  if (!in_pieces(a.k, {2, a.t, a.g}, 8)) return reason_rows("k");
  if (!a.h || !a.sequences.count || !p.rows_most() || !p.keys_most())
    return "there are no rows, keys or heads";
  if (a.sequences.page) return reason_given("page_table");
  const KeyAxis& axis = a.mask.axis;
  if (axis.step > kIndexMax / p.keys_most() || std::abs(axis.shift) > kIndexMax ||
      a.sequences.s > kIndexMax || p.u > kIndexMax / p.unit_keys || p.unit_rows > kIndexMax)
    return "a position, row or block past 2^30";
  if (!instance_of(a.dtype)) return Text("no instance in this build for ") + dtype_name(a.dtype);
  if (p.blocks() && !cells_of_parts(p) && !cells_of_sums(p))
    return reason("block_keys", p.unit_keys * p.stride,
                  p.lse_in ? "1 .. 128 of a power of two with lse_in, and such block_rows or a "
                             "multiple of 128"
                           : "a power of two of keys or groups, or a multiple of 256");
  const int64_t rows = ceil_div(p.rows_most(), kProbeRows);
  const int64_t keys = ceil_div(std::max(p.keys_most(), p.u * p.unit_keys), kProbeSums);
  // Tiles of a head, and blocks of threads of its cells.
  const int64_t items = std::max(rows * keys, p.rows_most() * ceil_div(p.u + 1, kThreads));
  if (items > kIndexMax || a.sequences.count * a.h > kIndexMax / items)
    return "more than 2^30 tiles of rows and keys of all heads";
  return "";
}

void fill(const ProbeCall& p, Probe90& probe) {
  ProbeWork90& w = probe.work;
  w.p = p, w.part_keys = kProbeParts;
  // Sums with positions fit; no key is as far away.
  Window& window = w.p.a.mask.window;
  for (int64_t* limit : {&window.left, &window.right, &window.sink})
    *limit = std::min(*limit, int64_t{1} << 34);
  w.stride = static_cast<int32_t>(p.stride), w.step = static_cast<int32_t>(p.a.mask.axis.step);
  w.group = static_cast<int32_t>(p.group()), w.share = static_cast<int32_t>(p.a.h / p.a.g);
  w.unit_rows = static_cast<int32_t>(p.unit_rows), w.unit_keys = static_cast<int32_t>(p.unit_keys);
  w.rows_most = static_cast<int32_t>(p.rows_most());
  const int32_t own = static_cast<int32_t>(std::min<int64_t>(p.unit_keys, kProbeParts));
  probe.cells =
      p.blocks() && cells_of_parts(p) && (!cells_of_sums(p) || part_bytes(p, own) <= kPartBytes);
  if (probe.cells) w.part_keys = own;
  w.parts = static_cast<int32_t>(ceil_div(p.keys_most(), w.part_keys));
  const int64_t most = std::max<int64_t>(1, kPartBytes / part_bytes(p, w.part_keys));
  probe.launch = p.lse_in ? p.a.sequences.count * p.x : std::min(most, p.a.sequences.count * p.x);
}

class Run {
 public:
  Run(Context& ctx, const Probe90& probe)
      : ctx_(ctx), probe_(probe), p_(probe.work.p), instance_(*instance_of(p_.a.dtype)) {}

  void run() const {
    const int64_t all = p_.a.sequences.count * p_.x;
    if (p_.column_sum) probe_clear_columns(ctx_, p_);
    if (p_.diagonal_sum) probe_clear_diagonals(ctx_, p_, probe_.work.diagonal);
    for (int64_t x = 0; x < all; x += probe_.launch) heads(x, std::min(probe_.launch, all - x));
    if (p_.diagonal_sum) probe_store_diagonals(ctx_, p_, probe_.work.diagonal);
  }

 private:
  void heads(int64_t x, int64_t count) const {
    ProbeWork90 w = probe_.work;
    w.first = static_cast<int32_t>(x * p_.group());
    w.heads = static_cast<int32_t>(count * p_.group());
    const int64_t rows = ceil_div(p_.rows_most(), kProbeRows), keys = p_.keys_most();
    const int64_t blocks = ceil_div(p_.rows_most(), p_.unit_rows);
    if (!p_.lse_in) {
      items(w, w.heads, rows, ceil_div(keys, kProbeParts), instance_.parts);
      const int work = w.heads * static_cast<int>(ceil_div(p_.rows_most(), kWarps));
      launch<probe_lse90_kernel>(ctx_, kOp, work, kThreads, 0, w, work);
    }
    if (p_.column_sum || p_.diagonal_sum) {
      w.lines = true, w.band_tiles = static_cast<int32_t>(rows);
      items(w, count, 1, ceil_div(keys, kProbeSums), instance_.sums);
    }
    if (!p_.blocks()) return;
    if (probe_.cells) {
      w.bands = static_cast<int32_t>(blocks);
      const int work = static_cast<int>(count * blocks * ceil_div(p_.u, kThreads));
      launch<probe_cells_kernel>(ctx_, kOp, work, kThreads, 0, w, work);
      return;
    }
    const int64_t band = std::max<int64_t>(1, p_.unit_rows / kProbeRows);
    w.lines = false, w.band_tiles = static_cast<int32_t>(band);
    items(w, count, ceil_div(rows, band), ceil_div(p_.u * p_.unit_keys, kProbeSums),
          instance_.sums);
  }
  void items(ProbeWork90& w, int64_t heads, int64_t bands, int64_t tiles,
             void (*run)(Context&, const ProbeWork90&, int)) const {
    w.bands = static_cast<int32_t>(bands), w.key_tiles = static_cast<int32_t>(tiles);
    w.schedule = {static_cast<int32_t>(heads * bands * tiles), counters(ctx_)};
    run(ctx_, w, std::min(w.schedule.items, device_info(ctx_).multiprocessors));
  }

  Context& ctx_;
  const Probe90& probe_;
  const ProbeCall& p_;
  const ProbeInstance90& instance_;
};

}  // namespace
}  // namespace cuda

extern const Kernel<ProbeCall> probe_forward_sm90 = {
    "sm90", [](const Context& ctx, const ProbeCall& p, Plan& plan) {
      if (Text why = cuda::shape_refuses(ctx, p); !why.empty()) return why;
      cuda::Probe90 probe{};
      cuda::fill(p, probe);
      const cuda::ProbeWork90& w = probe.work;
      const int64_t count = p.a.sequences.count, heads = p.lse_in ? 0 : probe.launch * p.group();
      const auto lse = plan.workspace.add<float>(p.lse_in ? 0 : count, p.a.h, p.rows_most());
      const auto part = plan.workspace.add<float>(heads, p.rows_most(), w.parts);
      const bool largest = probe.cells && p.block_max;
      const auto most = plan.workspace.add<float>(largest ? heads : 0, p.rows_most(), w.parts);
      const auto diagonal =
          plan.workspace.add<unsigned long long>(p.diagonal_sum ? count : 0, p.a.h, p.columns);
      plan.kernel += Text(".") + dtype_name(p.a.dtype);
      plan.launch = [=](Context& ctx, void* base) {
        cuda::Probe90 call = probe;
        call.work.lse = lse.at(base), call.work.part = part.at(base);
        call.work.most = most.at(base), call.work.diagonal = diagonal.at(base);
        cuda::Run(ctx, call).run();
      };
      return Text();
    }};

}  // namespace fovea
