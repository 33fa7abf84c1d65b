// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_backward on Hopper: for some row tiles at a time, db of all their pairs
// (indexer_scores_sm90.cuh), then the gradients of the student's rows and keys from it
// (indexer_gradient_sm90.cuh), whose parts are added up here in order.
#include <algorithm>
#include <string>

#include "core/chunk.h"
#include "core/dtype.h"
#include "cuda/loop/row_tile.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/convert.cuh"
#include "ops/kl_experimental/indexer_calls.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr const char* kOp = kIndexerBackward;
constexpr int kThreads = 256;

// Tokens whose vectors hold an infinity or NaN.
struct OddTokens {
  View<4> x;
  uint8_t* odd;
  int64_t tokens, heads;  // tokens of an index of the first axis
  int32_t chunks;         // of 8 elements, in a row
  uint32_t exponent;      // its bits, all set where the number is none
};

// A warp takes a token.
__global__ void __launch_bounds__(kThreads)
    odd_tokens_kernel(const __grid_constant__ OddTokens of, int64_t work) {
  const int lane = threadIdx.x % 32;
  const int64_t step = static_cast<int64_t>(gridDim.x) * (kThreads / 32);
  for (int64_t w = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32; w < work; w += step) {
    const int64_t* stride = of.x.stride;
    const int64_t at = w / of.tokens * stride[0] + w % of.tokens * stride[1];
    bool odd = false;
    for (int64_t n = lane; n < of.heads * of.chunks; n += 32) {
      const uint4 x = *reinterpret_cast<const uint4*>(
          of.x.as<uint16_t>() + at + n / of.chunks * stride[2] + n % of.chunks * 8);
      for (uint32_t two : {x.x, x.y, x.z, x.w})
        odd = odd || (two & of.exponent) == of.exponent || (two >> 16 & of.exponent) == of.exponent;
    }
    odd = __any_sync(~0u, odd);
    if (lane == 0) of.odd[w] = odd;
  }
}

void find_odd(Context& ctx, const View<4>& x, uint8_t* odd, int64_t first, int64_t tokens,
              int64_t heads, const KlSide& side) {
  const OddTokens of{x,
                     odd,
                     tokens,
                     heads,
                     static_cast<int32_t>(side.width / 8),
                     side.dtype == FOVEA_F16 ? 0x7c00u : 0x7f80u};
  launch<odd_tokens_kernel>(ctx, kOp, ceil_div(first * tokens, kThreads / 32), kThreads, 0, of,
                            first * tokens);
}

// A thread adds up the parts of an element of dk.
__global__ void __launch_bounds__(kThreads)
    join_keys_kernel(const __grid_constant__ KlIndexer a, const __grid_constant__ SlopesKeys90 keys,
                     int width, int64_t work) {
  const int64_t w = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (w >= work) return;
  const int64_t column = w % width, row = w / width;
  const Sequence seq = a.teacher.sequences[row / kHeadsTile / keys.key_tiles];
  const int64_t j = row % (int64_t{keys.key_tiles} * kHeadsTile);
  if (j >= seq.keys || column >= a.student.width) return;
  const int64_t parts = int64_t{keys.row_parts} * keys.head_parts;
  float sum = 0.f;
  for (int64_t part = 0; part < parts; ++part)
    sum += keys.sums[((row / kHeadsTile * parts + part) * kHeadsTile + row % kHeadsTile) * width +
                     column];
  const View<4>& to = a.student.dk;
  store_float(
      to.data, a.student.dtype,
      seq.key_batch * to.stride[0] + (seq.key_begin + j) * to.stride[1] + column * to.stride[3],
      sum);
}

std::string refuses(const Context& ctx, const KlIndexer& a) {
  if (const std::string why = indexer_sm90_refuses(ctx, a); !why.empty()) return why;
  if (a.student.dq && !chunked(a.student.dq, 2, 8))
    return "dq has rows that are not contiguous and 16-byte aligned";
  const Sequences& q = a.teacher.sequences;
  if (q.count * ceil_div(q.key_max, kHeadsTile) > kIndexMax / 256)
    return "more than 2^22 tiles of keys";
  return "";
}

// What a call takes, and its room.
struct Slots {
  HeadsWork work;
  int64_t columns;
  int32_t band, key_tiles, row_parts, head_parts;  // band: row tiles of a launch
  Slot<float> db, sums;
  Slot<uint8_t> odd_keys, odd_rows;

  Slots(Layout& layout, const DeviceInfo& device, const KlIndexer& a, int width)
      : work(indexer_work(a)) {
    constexpr int64_t kWorksEach = 3, kPartsMost = 64;
    const Kl& t = a.teacher;
    const Sequences& q = t.sequences;
    const int64_t tiles = std::max<int64_t>(ceil_div(q.key_max, kHeadsTile), 1);
    key_tiles = static_cast<int32_t>(tiles), columns = tiles * kHeadsTile;
    band = static_cast<int32_t>(
        clamp_i64(kPairsMost / (kHeadsTile * columns), 1, std::max(work.count, 1)));
    const int64_t parts = clamp_i64(
        ceil_div(kWorksEach * device.multiprocessors, std::max<int64_t>(q.count, 1) * tiles), 1,
        kPartsMost);
    row_parts = static_cast<int32_t>(std::min<int64_t>({parts, band, work.row_tiles}));
    row_parts = std::max(row_parts, 1);
    head_parts = static_cast<int32_t>(clamp_i64(ceil_div(parts, row_parts), 1, a.heads));
    db = layout.add<float>(band * kHeadsTile * columns);
    const bool dk = static_cast<bool>(a.student.dk);
    sums =
        layout.add<float>(dk ? q.count * tiles * row_parts * head_parts * kHeadsTile * width : 0);
    odd_keys = layout.add<uint8_t>(a.student.dq || a.dweight ? q.caches * t.t : 0);
    odd_rows = layout.add<uint8_t>(dk ? t.b * t.s : 0);
  }
};

SlopesMaps maps_of(const KlIndexer& a) {
  const Kl& t = a.teacher;
  const KlSide& x = a.student;
  const MapOf q{x.q, x.dtype, t.b, t.s, a.heads, x.width, kHeadsTile},
      k{x.k, x.dtype, t.sequences.caches, t.t, 1, x.width, kHeadsTile},
      q_part{x.q, x.dtype, t.b, t.s, a.heads, x.width, kSlopesRows};
  SlopesMaps maps;
  if (!make_map(q, maps.q) || !make_map(k, maps.k) || !make_map(q_part, maps.q_part))
    fail(FOVEA_DEVICE_ERROR, "%s: the driver makes no tensor map", kOp);
  return maps;
}

void enqueue(Context& ctx, const KlIndexer& a, const IndexerInstance90& row, const Slots& slots,
             void* base) {
  const Kl& t = a.teacher;
  const KlSide& x = a.student;
  clear_unreached(ctx, a);
  if (x.dq || a.dweight) find_odd(ctx, x.k, slots.odd_keys.at(base), t.sequences.caches, t.t, 1, x);
  if (x.dk) find_odd(ctx, x.q, slots.odd_rows.at(base), t.b, t.s, a.heads, x);
  const HeadsMaps maps = indexer_maps(a, kOp);
  const SlopesMaps own = maps_of(a);
  float* const db = slots.db.at(base);
  const IndexerSlopes90 slopes{t.first.lse, a.weight, a.dkl, a.lse, db, slots.columns};
  const SlopesRows90 rows{a.weight,      a.dweight,
                          x.dq,          db,
                          slots.columns, slots.odd_keys.at(base),
                          t.t,           static_cast<int32_t>(x.width)};
  SlopesKeys90 keys{a.weight,
                    db,
                    slots.columns,
                    slots.odd_rows.at(base),
                    t.s,
                    slots.sums.at(base),
                    false,
                    slots.key_tiles,
                    slots.row_parts,
                    slots.head_parts};
  HeadsWork work = slots.work;
  for (const int all = work.count; work.first < all; work.first += slots.band) {
    work.count = std::min(slots.band, all - work.first);
    HeadsWork cut = work;
    cut.parts = indexer_parts(device_info(ctx), a, work.count);
    row.slopes(ctx, cut, maps, slopes);
    if (x.dq || a.dweight) row.rows(ctx, work, own, rows);
    if (x.dk) row.keys(ctx, work, own, keys);
    keys.more = true;
  }
  if (!x.dk) return;
  const int64_t elements = t.sequences.count * slots.key_tiles * int64_t{kHeadsTile} * row.width;
  launch<join_keys_kernel>(ctx, kOp, ceil_div(elements, kThreads), kThreads, 0, a, keys, row.width,
                           elements);
}

std::string offer(const Context& ctx, const KlIndexer& a, Plan& plan) {
  if (std::string why = refuses(ctx, a); !why.empty()) return why;
  const IndexerInstance90& row = *indexer_instance(a);
  plan.kernel += std::string(".") + dtype_name(a.student.dtype) + ".d" + std::to_string(row.width);
  const Slots slots(plan.workspace, device_info(ctx), a, row.width);
  plan.launch = [=](Context& ctx, void* base) { enqueue(ctx, a, row, slots, base); };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlIndexer> kl_indexer_backward_sm90 = {"sm90", cuda::offer};

}  // namespace fovea
