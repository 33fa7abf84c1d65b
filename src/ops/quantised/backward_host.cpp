// SPDX-License-Identifier: Apache-2.0
// SageBwd's gradient on the CPU.  An item of work is (sequence, key head, part of the keys): it
// alone owns dk and dv of its keys, kept in f32 while it walks tiles of 64 rows of the group's
// query heads, and of each those tiles of 64 keys that some row sees:
//   x = scale q_scale k_scale (k^ q^') + shift, p = 2^(x - lse), dp = v dout', ds = p (dp - delta)
//   dv += p^ dout^,  dk += ds^ q^,  dq += ds^' k^
// Codes are integers in f32: products of 127 x 127 over up to 576 terms are exact there.
// With one part dq is complete when the row tile is; else the parts' sums are added in order.
#include <cmath>

#include "host/sweep.h"
#include "ops/quantised/kernels.h"

namespace fovea {
namespace {

using host::kInf;
using host::kRows;

constexpr int64_t kTile = kTileTokens;
constexpr float kLog2E = 1.44269504088896341f;
static_assert(kTile == kRows);

struct BackwardPlan {
  QuantBackward b;
  int64_t parts, d_pad, e_pad;
  // Within a worker's bytes.
  Slot<float> q, q_columns, dout, dout_code, dout_columns, k, v, p, ds, part, dq, dk, dv, row;
  host::PartRows part_dq;
  host::WorkerScratch scratch;
};

float largest_of(const float* x, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = larger(most, x[i]);
  return most;
}

// x becomes its codes.
TileScale round_tile(float* x, int64_t count) {
  const TileScale scale(largest_of(x, count));
  for (int64_t i = 0; i < count; ++i) x[i] = scale.code(x[i]);
  return scale;
}

// One head's tiles of rows against one head's tiles of keys.
class Tile {
 public:
  Tile(const BackwardPlan& plan, void* room, const Sequence& q, int64_t r, int64_t g)
      : plan_(plan), room_(room), seq_(q), r_(r), g_(g) {}

  // Rows [first, first + rows.count) of a head.
  void load_rows(int64_t head, int64_t first, const host::RowTile& rows) {
    const float* scales = plan_.b.q_scales(seq_, r_, head);
    q_scale_ = scales[first / kTile * plan_.b.q_scale.stride[2]];
    for (int64_t i = 0; i < rows.count; ++i) {
      load_codes(a_.q, host::row_offset(a_.q, seq_, first + i, head), q_ + i * plan_.d_pad);
      float* dout = dout_ + i * plan_.e_pad;
      delta_[i] = host::delta_of(simd_, plan_.b.call, seq_, first + i, head, row_, dout);
      std::fill_n(dout + a_.e, plan_.e_pad - a_.e, 0.0f);
      const float lse = host::row_value(a_.lse, seq_, head, first + i);
      // An empty row: 2^(x - inf) is 0 for every score.
      lse2_[i] = lse == -kInf ? kInf : (lse - shift_of(head, first + i)) * kLog2E;
    }
    for (int64_t i = rows.count; i < rows.lanes; ++i) lse2_[i] = kInf, delta_[i] = 0;
    host::transpose(q_, plan_.d_pad, rows.count, a_.d, rows.lanes, q_columns_);
    host::transpose(dout_, plan_.e_pad, rows.count, a_.e, rows.lanes, dout_columns_);
    std::copy_n(dout_, rows.count * plan_.e_pad, dout_code_);
    dout_scale_ = round_tile(dout_code_, rows.count * plan_.e_pad);
  }

  // p and ds of keys [first, first + keys) as codes, and their scales.
  void step(const host::RowTile& rows, int64_t first, int64_t keys) {
    const int64_t lanes = rows.lanes;
    const float* scales = plan_.b.k_scales(seq_, r_, g_);
    k_scale_ = scales[first / kTile * plan_.b.k_scale.stride[2]];
    for (int64_t j = 0; j < keys; ++j) {
      load_codes(a_.k, key_offset(a_.k, first + j), k_ + j * plan_.d_pad);
      float* v = v_ + j * plan_.e_pad;
      host::load_row(simd_, a_.v.data, a_.dtype, key_offset(a_.v, first + j), a_.v.stride[3], a_.e,
                     v);
    }
    simd_.gemm(
        {keys, lanes, a_.d, k_, plan_.d_pad, q_columns_, lanes, p_, lanes, nullptr, false, false});
    const float scale = a_.score.scale * (q_scale_ * k_scale_);
    for (int64_t i = 0; i < keys * lanes; ++i) p_[i] *= scale;
    const host::LocalSeen seen(rows, first, keys);
    simd_.mask(keys, lanes, p_, seen.low, seen.high, seen.first_low, seen.first_high);
    simd_.gemm({keys, lanes, a_.e, v_, plan_.e_pad, dout_columns_, lanes, ds_, lanes, nullptr,
                false, false});
    simd_.softmax_backward(keys, lanes, p_, ds_, lse2_, delta_);
    p_scale_ = round_tile(p_, keys * lanes), ds_scale_ = round_tile(ds_, keys * lanes);
  }

  void add(const host::RowTile& rows, int64_t keys, float* dq, float* dk, float* dv) {
    const int64_t lanes = rows.lanes, d_pad = plan_.d_pad, e_pad = plan_.e_pad;
    if (dv)
      add_product({keys, e_pad, rows.count, p_, lanes, dout_code_, e_pad, part_, e_pad, nullptr,
                   false, false},
                  p_scale_.scale * dout_scale_.scale, dv);
    if (dk)
      add_product(
          {keys, d_pad, rows.count, ds_, lanes, q_, d_pad, part_, d_pad, nullptr, false, false},
          a_.score.scale * (ds_scale_.scale * q_scale_), dk);
    if (dq)
      add_product(
          {rows.count, d_pad, keys, ds_, lanes, k_, d_pad, part_, d_pad, nullptr, true, false},
          ds_scale_.scale * k_scale_, dq);
  }

 private:
  int64_t key_offset(const View<4>& x, int64_t j) const {
    return seq_.key_batch * x.stride[0] + (seq_.key_begin + j) * x.stride[1] + g_ * x.stride[2];
  }
  void load_codes(const View<4>& x, int64_t offset, float* to) const {
    const int8_t* from = static_cast<const int8_t*>(x.data) + offset;
    for (int64_t c = 0; c < a_.d; ++c) to[c] = from[c * x.stride[3]];
    std::fill_n(to + a_.d, plan_.d_pad - a_.d, 0.0f);
  }
  // scale <q_i, k_mean>, which scores of codes lack.
  float shift_of(int64_t head, int64_t i) const {
    const View<4>& q = plan_.b.q_plain;
    if (!q) return 0;
    host::load_row(simd_, q.data, a_.dtype, host::row_offset(q, seq_, i, head), q.stride[3], a_.d,
                   row_);
    const float* mean = plan_.b.mean_of(seq_, r_, g_);
    float sum = 0;
    for (int64_t c = 0; c < a_.d; ++c) sum += row_[c] * mean[c * plan_.b.k_mean.stride[3]];
    return a_.score.scale * sum;
  }
  // sum += factor * the product, which is of codes.
  void add_product(const host::Gemm& product, float factor, float* sum) const {
    simd_.gemm(product);
    host::add_row(product.m * product.n, factor, part_, sum);
  }

  const BackwardPlan& plan_;
  void* const room_;
  const Sequence seq_;
  const int64_t r_, g_;
  const host::Simd& simd_ = host::simd();
  const Attend& a_ = plan_.b.call.forward;
  float *const q_ = plan_.q.at(room_), *const q_columns_ = plan_.q_columns.at(room_);
  float *const dout_ = plan_.dout.at(room_), *const dout_code_ = plan_.dout_code.at(room_);
  float* const dout_columns_ = plan_.dout_columns.at(room_);
  float *const k_ = plan_.k.at(room_), *const v_ = plan_.v.at(room_);
  float *const p_ = plan_.p.at(room_), *const ds_ = plan_.ds.at(room_);
  float *const part_ = plan_.part.at(room_), *const row_ = plan_.row.at(room_);
  float lse2_[host::kLanesMost], delta_[host::kLanesMost];
  float q_scale_ = 0, k_scale_ = 0;
  TileScale dout_scale_, p_scale_, ds_scale_;
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), call_(plan.b.call), a_(plan.b.call.forward), base_(base) {}

  void run(Context& ctx) const {
    host::Pool& pool = host::pool(ctx);
    const Sequences& q = a_.sequences;
    host::zero_rows(pool, call_.dq, a_.dtype, q, a_.b, a_.h, a_.d);
    host::zero_keys(pool, call_.dk, a_.dtype, q, a_.t, a_.g, a_.d);
    host::zero_keys(pool, call_.dv, a_.dtype, q, a_.t, a_.g, a_.e);
    const double cost =
        host::pairs_of(q) * static_cast<double>(a_.h * (a_.d + a_.e)) / host::kFlopsPerNanosecond;
    pool.run(q.count * a_.g * plan_.parts, 4 * cost,
             [&](int64_t item, int32_t worker) { sweep(item, worker); });
    plan_.part_dq.combine(pool, base_, a_);
  }

 private:
  void sweep(int64_t item, int32_t worker) const {
    const int64_t part = item % plan_.parts, g = item / plan_.parts % a_.g;
    const int64_t r = item / plan_.parts / a_.g, group = a_.h / a_.g;
    const Sequence q = a_.sequences[r];
    const int64_t own = host::part_keys(q.keys, plan_.parts, kTile);
    const int64_t begin = std::min(q.keys, part * own), end = std::min(q.keys, begin + own);
    void* room = plan_.scratch.at(base_, worker);
    float* dk = call_.dk ? plan_.dk.at(room) : nullptr;
    float* dv = call_.dv ? plan_.dv.at(room) : nullptr;
    float* dq = call_.dq ? plan_.dq.at(room) : nullptr;
    if (dk) std::fill_n(dk, (end - begin) * plan_.d_pad, 0.0f);
    if (dv) std::fill_n(dv, (end - begin) * plan_.e_pad, 0.0f);
    Tile tile(plan_, room, q, r, g);
    for (int64_t head = g * group; head < (g + 1) * group; ++head)
      for (int64_t first = 0; first < q.rows; first += kTile) {
        host::RowTile rows(std::min(kTile, q.rows - first));
        for (int i = 0; i < rows.count; ++i)
          rows.seen[i] = a_.mask.window.range(a_.mask.query_at(q, head, first + i), q.keys);
        rows.bound();
        if (dq) std::fill_n(dq, rows.count * plan_.d_pad, 0.0f);
        bool loaded = false;
        for (int64_t j = std::max(begin, rows.begin / kTile * kTile); j < std::min(end, rows.end);
             j += kTile) {
          const int64_t keys = std::min(kTile, q.keys - j);
          if (rows.cover(j, j + keys) == host::Cover::none) continue;
          if (!loaded) tile.load_rows(head, first, rows), loaded = true;
          tile.step(rows, j, keys);
          tile.add(rows, keys, dq, dk ? dk + (j - begin) * plan_.d_pad : nullptr,
                   dv ? dv + (j - begin) * plan_.e_pad : nullptr);
        }
        for (int i = 0; dq && i < rows.count; ++i)
          plan_.part_dq.save(base_, a_, q, first + i, head, part, dq + i * plan_.d_pad);
      }
    store(call_.dk, q, begin, end, g, a_.d, dk, plan_.d_pad);
    store(call_.dv, q, begin, end, g, a_.e, dv, plan_.e_pad);
  }

  void store(const View<4>& to, const Sequence& q, int64_t begin, int64_t end, int64_t g,
             int64_t width, const float* from, int64_t pitch) const {
    host::store_keys(to, a_.dtype, a_.sequences, q, begin, end, g, width, from, pitch);
  }

  const BackwardPlan& plan_;
  const AttendBackward& call_;
  const Attend& a_;
  void* base_;
};

Text offer(const Context& ctx, const QuantBackward& b, Plan& plan) {
  const Attend& a = b.call.forward;
  BackwardPlan p{};
  p.b = b, p.parts = host::gradient_parts(a);
  p.d_pad = host::padded(a.d), p.e_pad = host::padded(a.e);
  const int64_t own = host::part_keys(a.sequences.key_max, p.parts, kTile);
  const int64_t wide = std::max(p.d_pad, p.e_pad);
  Layout worker;
  p.q = worker.add<float>(kTile * p.d_pad), p.q_columns = worker.add<float>(kTile * a.d);
  p.dout = worker.add<float>(kTile * p.e_pad), p.dout_code = worker.add<float>(kTile * p.e_pad);
  p.dout_columns = worker.add<float>(kTile * a.e);
  p.k = worker.add<float>(kTile * p.d_pad), p.v = worker.add<float>(kTile * p.e_pad);
  p.p = worker.add<float>(kTile * kTile), p.ds = worker.add<float>(kTile * kTile);
  p.part = worker.add<float>(kTile * wide), p.row = worker.add<float>(wide);
  p.dq = worker.add<float>(b.call.dq ? kTile * p.d_pad : 0);
  p.dk = worker.add<float>(b.call.dk ? own : 0, p.d_pad);
  p.dv = worker.add<float>(b.call.dv ? own : 0, p.e_pad);
  const double items = static_cast<double>(a.sequences.count) * static_cast<double>(a.g * p.parts);
  p.part_dq = host::PartRows(a, b.call.dq, p.parts, plan.workspace);
  p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
  host::host_plan<Backward>(plan, p, host::shape_name(a.dtype, a.d));
  return "";
}

}  // namespace

extern const Kernel<QuantBackward> x_quant_backward_host = {"", offer};

}  // namespace fovea
