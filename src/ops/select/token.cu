// SPDX-License-Identifier: Apache-2.0
// x_select_token: every measure, dtype, width, stride and page size.
//   columns   subset: a block owns a row and a key head, and ranks its columns
//   scores    a block owns a row, a part of the heads and 64 keys, of a chunk of rows.  Products of
//             16 R query heads with the keys are f32 FMA (block/stage.cuh).  Thread n < 64 then
//             adds up the heads of key n in their order
//   lists     a block owns a row and a list head: the cut and the list
//   masses    a block owns a row and a query head
// A chunk's scores are units' keys (core/pick.h).  Blocks of keys take the largest by atomicMax,
// which no order changes.
#include "core/convert.h"
#include "core/dtype.h"
#include "cuda/block/stage.cuh"
#include "cuda/launch.h"
#include "cuda/loop/pick.cuh"
#include "ops/select/token.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_select_token";
constexpr int kColumnThreads = 256, kListThreads = 256;
constexpr int64_t kChunkBytes = int64_t{48} << 20;
constexpr int kWidthMost = 576;

// q or k: elements of any dtype.
struct TokenOperand {
  Operand data;
  bool codes;
  View<4> scale;
  int32_t group_columns;  // columns of one scale
};

struct TokenCall {
  SelectToken a;
  TokenOperand q, k;
  int32_t width;                // of a product
  uint32_t* key;                // (slots, x, units) of a chunk
  float* own;                   // (slots, h, key_max) of a chunk
  int32_t* column;              // (slots, g, subset) of a chunk
  float* norm;                  // (slots, h) of a chunk
  int64_t first, slots, units;  // the chunk: rows [first, first + slots)
};

// Column `column` of the row at element `row`.
__device__ __forceinline__ float element(const TokenOperand& x, int64_t row, int64_t scale,
                                         int column) {
  const int64_t at = row + column * x.data.column_stride;
  if (!x.codes) return load_float(x.data.data, x.data.dtype, at);
  const uint8_t code = static_cast<const uint8_t*>(x.data.data)[at];
  const float value = x.data.dtype == FOVEA_E4M3   ? fovea::to_float(E4m3{code})
                      : x.data.dtype == FOVEA_E5M2 ? fovea::to_float(E5m2{code})
                                                   : static_cast<float>(static_cast<int8_t>(code));
  return x.scale
             ? __fmul_rn(value, x.scale.as()[scale + column / x.group_columns * x.scale.stride[3]])
             : value;
}

// Four columns of it, or the chosen ones of the list `chosen`; a row < 0 is all zero.
__device__ __noinline__ float4 load_elements(const TokenOperand& x, int64_t row, int64_t scale,
                                             const int32_t* chosen, int width, int column) {
  float out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool here = row >= 0 && column + i < width;
    out[i] = here ? element(x, row, scale, chosen ? chosen[column + i] : column + i) : 0.f;
  }
  return {out[0], out[1], out[2], out[3]};
}
__device__ __forceinline__ float4 load_any(const TokenOperand& x, int64_t row, int64_t scale,
                                           const int32_t* chosen, int width, int column) {
  if (x.codes || chosen) return load_elements(x, row, scale, chosen, width, column);
  return load_four(x.data, row, column);
}

// The |q| of each column of a key head, summed over its query heads.
__global__ void __launch_bounds__(kColumnThreads)
    columns_kernel(const __grid_constant__ TokenCall x, int64_t work) {
  using Pick = BlockPick<kColumnThreads>;
  __shared__ typename Pick::Shared s;
  __shared__ float s_sum[kWidthMost];
  const Pick pick(s);
  const SelectToken& a = x.a;
  const Attend& at = a.attend;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t g = w % at.g, slot = w / at.g, first = g * a.key_group();
    const Token token = token_at(at.sequences, x.first + slot);
    if (token.number < 0) continue;
    const int64_t row = token.sequence.batch * at.q.stride[0] +
                        (token.sequence.row_begin + token.index) * at.q.stride[1];
    const auto load = [&](int64_t head, int c) {
      return fabsf(element(x.q, row + head * at.q.stride[2], 0, c));
    };
    __syncthreads();
    for (int c = threadIdx.x; c < at.d; c += kColumnThreads) {
      float sum = 0;
      for (int64_t n = 0; n < a.key_group(); ++n) sum = __fadd_rn(sum, load(first + n, c));
      s_sum[c] = sum;
    }
    __syncthreads();
    // A column of NaN comes last, and is still a column: sums are at least 0, and its key is lower.
    const auto key = [&](int64_t c) { return max(pick_key(s_sum[c]), kPickNone + 1); };
    const PickCut cut = pick.cut_after(at.d, key, a.subset, at.d);
    int32_t* const column = x.column + w * a.subset;
    pick.each(
        at.d, [&](int64_t c) { return cut.takes(key(c), c); },
        [&](int64_t c, int64_t rank) { column[rank] = static_cast<int32_t>(c); });
    __syncthreads();
    for (int64_t n = threadIdx.x; n < a.key_group(); n += kColumnThreads) {
      float all = 0, part = 0;
      for (int c = 0; c < at.d; ++c) all = __fadd_rn(all, load(first + n, c));
      for (int64_t c = 0; c < a.subset; ++c) part = __fadd_rn(part, load(first + n, column[c]));
      x.norm[slot * at.h + first + n] =
          part > 0 ? __fdiv_rn(a.scale, __fsqrt_rn(__fdiv_rn(part, all))) : 0.f;
    }
  }
}

struct TokenKeys {
  int64_t k[kStageTile], scale[kStageTile];  // element offsets of head 0; -1: not selectable
};

// The products of heads [head, head + count) of a row with the tile's keys, to s_head[m][n].
template <int R>
__device__ __forceinline__ void head_products(const TokenCall& x, const FmaTiles<R>& tiles,
                                              const TokenKeys& s, const Sequence& q, int64_t i,
                                              int64_t slot, int64_t g, int64_t head, int count) {
  const SelectToken& a = x.a;
  const Attend& at = a.attend;
  if (a.hamming()) {
    const int n = threadIdx.x % kStageTile;
    __syncthreads();
    for (int m = threadIdx.x / kStageTile; m < count; m += kStageThreads / kStageTile) {
      const uint32_t* row = a.code_q.at<uint32_t>(q.batch, q.row_begin + i, head + m);
      int apart = 0;
      if (s.k[n] >= 0)
        for (int64_t w = 0; w < a.words; ++w)
          apart +=
              __popc(row[w * a.code_q.stride[3]] ^
                     a.code.as<uint32_t>()[s.k[n] + g * a.code.stride[2] + w * a.code.stride[3]]);
      tiles.p[m * kStagePitch + n] = static_cast<float>(32 * a.words - 2 * apart);
    }
    return __syncthreads();
  }
  const int32_t* chosen = a.subset ? x.column + (slot * at.g + g) * a.subset : nullptr;
  const int64_t row = q.batch * at.q.stride[0] + (q.row_begin + i) * at.q.stride[1];
  float acc[R][4] = {};
  multiply_nt(
      acc, tiles, x.width,
      [&](int m, int column) {
        return load_any(x.q, m < count ? row + (head + m) * at.q.stride[2] : -1, 0, chosen, x.width,
                        column);
      },
      [&](int n, int column) {
        return load_any(x.k, s.k[n] < 0 ? -1 : s.k[n] + g * at.k.stride[2],
                        s.scale[n] + g * at.k_scale.stride[2], chosen, x.width, column);
      });
  put_p(tiles, acc);
  __syncthreads();
}

template <int R>
__global__ void __launch_bounds__(kStageThreads, R == 4 ? 1 : 2)
    scores_kernel(const __grid_constant__ TokenCall x, int64_t tiles_each, int64_t work) {
  extern __shared__ float4 s_dynamic[];
  __shared__ TokenKeys s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const SelectToken& a = x.a;
  const Attend& at = a.attend;
  const int64_t parts = a.parts(), heads = at.h / parts;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t j0 = w % tiles_each * kStageTile, part = w / tiles_each % parts;
    const int64_t slot = w / tiles_each / parts;
    const Token token = token_at(at.sequences, x.first + slot);
    if (token.number < 0) continue;
    const Sequence& q = token.sequence;
    const TokenRow row = a.row(q, token.index);
    if (j0 >= row.high) continue;
    const int n = threadIdx.x;
    const int64_t j = j0 + n;
    bool selectable = false;
    __syncthreads();
    if (n < kStageTile) {
      int64_t offset = -1;
      if (j < row.high && a.selects(row, j))
        offset = at.sequences.key_offset(q, j, a.keys().stride);
      s.k[n] = offset, selectable = offset >= 0;
      s.scale[n] = selectable && at.k_scale ? at.sequences.key_offset(q, j, at.k_scale.stride) : 0;
    }
    const bool any = __syncthreads_or(selectable);
    float sum = 0;
    const int64_t end = (part + 1) * heads;
    for (int64_t head = part * heads; head < end;) {
      const int64_t g = head / a.key_group(), next = (g + 1) * a.key_group();
      const int count = static_cast<int>(next - head < 16 * R ? next - head : 16 * R);
      if (any) head_products(x, tiles, s, q, token.index, slot, g, head, count);
      for (int m = 0; n < kStageTile && j < row.high && m < count; ++m) {
        const int64_t own = head + m, list = own / a.group();
        float score = -INFINITY;
        if (selectable) {
          const float scaled = a.subset ? x.norm[slot * at.h + own] : a.scale;
          score = a.score(tiles.p[m * kStagePitch + n], scaled, a.weight_of(q, token.index, own));
        }
        sum = own % a.group() == 0 ? score : a.reduced(sum, score);
        if (x.own) x.own[(slot * at.h + own) * at.sequences.key_max + j] = score;
        if (own % a.group() != a.group() - 1) continue;
        const bool allowed = selectable && a.allows(a.mask_row(q, list, token.index), j);
        float all = sum;
        if (a.reduce == FOVEA_X_SELECT_REDUCE_MEAN)
          all = __fdiv_rn(all, static_cast<float>(a.group()));
        const uint32_t key = allowed ? pick_key(all) : 0u;
        uint32_t* const to = x.key + (slot * a.x + list) * x.units + quotient(j, a.pool);
        if (a.pool == 1)
          *to = key;
        else
          atomicMax(to, key);
      }
      __syncthreads();
      head += count;
    }
  }
}

__global__ void __launch_bounds__(kListThreads)
    lists_kernel(const __grid_constant__ TokenCall x, int64_t work) {
  using Pick = BlockPick<kListThreads>;
  __shared__ typename Pick::Shared s;
  const Pick pick(s);
  const SelectToken& a = x.a;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t list = w % a.x, slot = w / a.x;
    const Token token = token_at(a.attend.sequences, x.first + slot);
    if (token.number < 0) continue;
    __syncthreads();
    const Sequence& q = token.sequence;
    const TokenRow row = a.row(q, token.index);
    const int64_t i = q.row_begin + token.index;
    const uint32_t* all = x.key + w * x.units;
    const auto forced = [&](int64_t c) { return c >= row.forced && all[c] != 0; };
    const auto key = [&](int64_t c) { return all[c] > kPickNone && !forced(c) ? all[c] : 0u; };
    const int64_t from = row.forced > 0 ? row.forced : 0;
    const int64_t base = pick.count(row.units - from, [&](int64_t c) { return forced(from + c); });
    const int64_t total = pick.count(row.units, [&](int64_t c) { return key(c) != 0; });
    const PickCut cut = pick.cut_after(row.units, key, a.wanted(row) - base, total);
    const PickKeep keep =
        pick.each_kept(row.units, a.limits(), key, forced, cut, 0, [&](int64_t c, int64_t place) {
          if (a.index) *a.index.at<int32_t>(q.batch, list, i, place) = static_cast<int32_t>(c);
          if (a.kept_score) *a.kept_score.at(q.batch, list, i, place) = pick_value(all[c]);
        });
    for (int64_t place = keep.forced + keep.free + threadIdx.x; place < a.keep;
         place += kListThreads) {
      *a.index.at<int32_t>(q.batch, list, i, place) = -1;
      if (a.kept_score) *a.kept_score.at(q.batch, list, i, place) = -INFINITY;
    }
    if (threadIdx.x == 0 && a.index_count)
      *a.index_count.at<int32_t>(q.batch, list, i) = static_cast<int32_t>(keep.wanted);
  }
}

__global__ void __launch_bounds__(kColumnThreads)
    masses_kernel(const __grid_constant__ TokenCall x, int64_t work) {
  using Pick = BlockPick<kColumnThreads>;
  __shared__ typename Pick::Shared s;
  const Pick pick(s);
  const SelectToken& a = x.a;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t head = w % a.attend.h, slot = w / a.attend.h, list = head / a.group();
    const Token token = token_at(a.attend.sequences, x.first + slot);
    if (token.number < 0) continue;
    __syncthreads();
    const Sequence& q = token.sequence;
    const TokenRow row = a.row(q, token.index);
    const int64_t i = q.row_begin + token.index;
    const uint32_t* key = x.key + (slot * a.x + list) * x.units;
    const float* own = x.own + w * a.attend.sequences.key_max;
    float top = -INFINITY;
    for (int64_t j = threadIdx.x; j < row.units; j += kColumnThreads)
      if (key[j]) top = fmaxf(top, own[j]);
    top = pick.largest(top);
    const auto part = [&](int64_t j) { return own[j] == top ? 1.f : expf(own[j] - top); };
    float sum = 0, kept = 0;
    for (int64_t j = threadIdx.x; top > -INFINITY && j < row.units; j += kColumnThreads)
      if (key[j]) sum += part(j);
    for (int64_t n = threadIdx.x; top > -INFINITY && n < a.keep; n += kColumnThreads) {
      const int32_t j = *a.index.at<int32_t>(q.batch, list, i, n);
      if (j >= 0) kept += part(j);
    }
    sum = pick.sum(sum), kept = pick.sum(kept);
    if (threadIdx.x == 0) *a.kept_mass.at(q.batch, head, i) = sum > 0 ? kept / sum : 0.f;
  }
}

// ---- the host's side

struct TokenSlots {
  Slot<uint32_t> key;
  Slot<float> own, norm;
  Slot<int32_t> column;
  int64_t rows;  // of a chunk

  TokenSlots(const SelectToken& a, Layout& workspace) {
    const Attend& at = a.attend;
    const int64_t all = token_slots(at.sequences), keys = at.sequences.key_max;
    const double bytes =
        4.0 * (static_cast<double>(a.x) * static_cast<double>(a.units()) +
               (a.masses() ? static_cast<double>(at.h) * static_cast<double>(keys) : 0.0) +
               (a.subset ? static_cast<double>(at.h + at.g * a.subset) : 0.0));
    const double fit = static_cast<double>(kChunkBytes) / (bytes > 1 ? bytes : 1);
    rows = fit < 1 ? 1 : fit < 1e9 ? static_cast<int64_t>(fit) : 1000000000;
    if (rows > all) rows = all;
    key = workspace.add<uint32_t>(rows, a.x, a.units());
    if (a.masses()) own = workspace.add<float>(rows, at.h, keys);
    if (!a.subset || !keys) return;
    column = workspace.add<int32_t>(rows, at.g, a.subset);
    norm = workspace.add<float>(rows, at.h);
  }
};

TokenOperand token_operand(const View<4>& view, int32_t dtype, int64_t width, const View<4>& scale,
                           int64_t groups) {
  const bool codes = dtype == FOVEA_E4M3 || dtype == FOVEA_E5M2 || dtype == FOVEA_I8;
  return {operand_of(view, dtype, width), codes, scale,
          static_cast<int32_t>(groups > 0 ? width / groups : width)};
}

void run(Context& ctx, const TokenSlots& slots, const SelectToken& a, void* base) {
  const Attend& at = a.attend;
  const int64_t all = token_slots(at.sequences);
  if (!a.x || !at.h || !slots.rows) return;
  TokenCall x{};
  x.a = a, x.units = a.units();
  x.width = static_cast<int32_t>(a.subset ? a.subset : at.d);
  if (!a.hamming()) {
    x.q = token_operand(at.q, at.dtype, at.d, {}, 0);
    x.k = token_operand(at.k, at.k_dtype, at.d, at.k_scale, at.groups);
  }
  x.key = slots.key.at(base), x.own = slots.own.at(base);
  x.column = slots.column.at(base), x.norm = slots.norm.at(base);
  const int64_t tiles = (at.sequences.key_max + kStageTile - 1) / kStageTile;
  for (x.first = 0; x.first < all; x.first += slots.rows) {
    x.slots = all - x.first < slots.rows ? all - x.first : slots.rows;
    if (a.subset && tiles)
      launch<columns_kernel>(ctx, kOp, x.slots * at.g, kColumnThreads, 0, x, x.slots * at.g);
    if (a.pool > 1 && x.key)
      check(
          cudaMemsetAsync(x.key, 0, static_cast<size_t>(x.slots * a.x * x.units) * 4, stream(ctx)),
          kOp);
    const int64_t work = x.slots * a.parts() * tiles;
    a.key_group() <= 16 ? launch<scores_kernel<1>>(ctx, kOp, work, kStageThreads,
                                                   FmaTiles<1>::bytes(), x, tiles, work)
                        : launch<scores_kernel<4>>(ctx, kOp, work, kStageThreads,
                                                   FmaTiles<4>::bytes(), x, tiles, work);
    const int64_t lists = x.slots * a.x;
    launch<lists_kernel>(ctx, kOp, lists, kListThreads, 0, x, lists);
    if (a.masses())
      launch<masses_kernel>(ctx, kOp, x.slots * at.h, kColumnThreads, 0, x, x.slots * at.h);
  }
}

}  // namespace
}  // namespace cuda

extern const Kernel<SelectToken> x_select_token_simt = {
    "simt", [](const Context&, const SelectToken& a, Plan& plan) {
      const cuda::TokenSlots slots(a, plan.workspace);
      plan.kernel += a.hamming() ? Text(".hamming") : Text(".") + dtype_name(a.attend.dtype);
      plan.launch = [=](Context& ctx, void* base) { cuda::run(ctx, slots, a, base); };
      return Text();
    }};

}  // namespace fovea
