// SPDX-License-Identifier: Apache-2.0
#include "ops/trace/item_host.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "host/rows.h"

namespace fovea::trace_host {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kNone[kBlockMost] = {};

}  // namespace

Item::Item(const HostPlan& plan, void* base, int64_t number, int32_t worker)
    : plan_(plan),
      a_(plan.a),
      simd_(host::simd()),
      base_(base),
      number_(number),
      block_(number % a_.n),
      head_(number / a_.n % a_.attend.h),
      seq_(a_.attend.sequences[number / a_.n / a_.attend.h]),
      key_head_(head_ / (a_.attend.h / a_.attend.g)),
      first_(block_ * a_.block_rows),
      count_(a_.rows_of(block_)),
      lanes_((count_ + simd_.width - 1) / simd_.width * simd_.width),
      keep_(a_.keep_of(block_)) {
  void* room = plan.scratch.at(base) + static_cast<size_t>(worker) * plan.worker_bytes;
  rows_ = plan.room.rows.at(room), q_ = plan.room.q.at(room), x_ = plan.room.x.at(room);
  still_ = plan.room.still.at(room), o_ = plan.room.o.at(room), k_ = plan.room.k.at(room);
  v_ = plan.room.v.at(room), value_ = plan.room.value.at(room), mass_ = plan.room.mass.at(room);
  branches_ = plan.room.branches.at(room), halves_ = plan.room.halves.at(room);
}

void Item::run() {
  for (int64_t i = 0; i < lanes_; ++i) high_[i] = i < count_ ? a_.seen(seq_, first_ + i) : 0;
  load_queries();
  select();
  // Scores are of q as it is, everything else of scale * q.
  simd_.scale(a_.attend.d * lanes_, q_, a_.attend.score.scale, q_);
  if (a_.wants_rows()) {
    attend();
    store_rows();
    if (a_.wants_mass()) weigh();
  }
  store_slots();
  if (a_.lse_dense) attend_dense();
}

void Item::load_queries() {
  const Attend& a = a_.attend;
  for (int64_t i = 0; i < count_; ++i)
    host::load_row(
        simd_, a.q.data, a.dtype,
        seq_.batch * a.q.stride[0] + (first_ + i) * a.q.stride[1] + head_ * a.q.stride[2],
        a.q.stride[3], a.d, rows_ + i * a.d);
  host::transpose(rows_, a.d, count_, a.d, lanes_, q_);
}

void Item::select() {
  const int64_t reach = a_.reach(seq_, block_);
  const auto branch = [&](int64_t begin, int64_t end) {
    const int64_t at = begin < end ? a_.first_valid(seq_, head_, block_, begin, end) : -1;
    return Branch{static_cast<int32_t>(begin), static_cast<int32_t>(end), static_cast<int32_t>(at),
                  at < 0 ? -kInf : score(at)};
  };
  for (int64_t b = 0; b < keep_; ++b)
    branches_[b] = branch(b * reach / keep_, (b + 1) * reach / keep_);
  for (int64_t b = keep_; b < a_.keep; ++b) branches_[b] = {0, 0, -1, -kInf};
  const int rounds = a_.rounds(a_.blocks_of(seq_.keys));
  for (int n = 0; n < rounds; ++n) {
    int64_t count = 0;
    for (int64_t b = 0; b < keep_; ++b) {
      if (branches_[b].representative < 0) continue;
      halve(branches_[b], halves_ + count);
      // At least one of two halves has the branch's representative.
      if (halves_[count].representative < 0) std::swap(halves_[count], halves_[count + 1]);
      count += halves_[count + 1].representative < 0 ? 1 : 2;
    }
    const int64_t kept = std::min(count, keep_);
    std::partial_sort(halves_, halves_ + kept, halves_ + count, before);
    std::copy_n(halves_, kept, branches_);
    for (int64_t b = kept; b < keep_; ++b) branches_[b] = {0, 0, -1, -kInf};
  }
}

// One of the halves keeps the representative and its score, so at most one score is new.
void Item::halve(const Branch& branch, Branch* halves) {
  const int32_t middle = branch.begin + (branch.end - branch.begin + 1) / 2;
  halves[0] = halves[1] = branch;
  halves[0].end = halves[1].begin = middle;
  if (branch.representative >= middle) {
    halves[0].representative = -1;
    return;
  }
  const int64_t at =
      middle < branch.end ? a_.first_valid(seq_, head_, block_, middle, branch.end) : -1;
  halves[1].representative = static_cast<int32_t>(at);
  if (at >= 0) halves[1].score = score(at);
}

float Item::score(int64_t key_block) {
  const KeyTile tile = load(key_block, false);
  products(tile, a_.exact ? simd_.chains : simd_.gemm);
  return simd_.largest(tile.count * lanes_, x_) + 0.0f;  // -0 becomes +0
}

Item::KeyTile Item::load(int64_t key_block, bool values) {
  const Attend& a = a_.attend;
  KeyTile tile{};
  tile.begin = key_block * a_.block_keys;
  tile.count = std::min(a_.block_keys, seq_.keys - tile.begin);
  tile.masked = lanes_ != count_;
  for (int64_t i = 0; i < count_; ++i) tile.masked |= high_[i] < tile.begin + tile.count;
  const auto rows = [&](const View<4>& from, int64_t width, int64_t pitch, float* to) {
    const int64_t at =
        a.sequences.key_offset(seq_, tile.begin, from.stride) + key_head_ * from.stride[2];
    if (a.dtype == FOVEA_F32 && from.stride[3] == 1 && width == pitch)
      return std::pair<const float*, int64_t>(from.as() + at, from.stride[1]);
    for (int64_t j = 0; j < tile.count; ++j, to += pitch) {
      host::load_row(simd_, from.data, a.dtype, at + j * from.stride[1], from.stride[3], width, to);
      std::fill(to + width, to + pitch, 0.0f);
    }
    return std::pair<const float*, int64_t>(to - tile.count * pitch, pitch);
  };
  std::tie(tile.k, tile.k_row) = rows(a.k, a.d, a.d, k_);
  if (values) std::tie(tile.v, tile.v_row) = rows(a.v, a.e, plan_.e_pad, v_);
  return tile;
}

void Item::products(const KeyTile& tile, void (*product)(const host::Gemm&)) {
  product({tile.count, lanes_, a_.attend.d, tile.k, tile.k_row, q_, lanes_, x_, lanes_, nullptr,
           false, false});
  if (!tile.masked) return;
  int32_t high[kBlockMost];
  for (int64_t i = 0; i < lanes_; ++i)
    high[i] = static_cast<int32_t>(clamp_i64(high_[i] - tile.begin, 0, tile.count));
  simd_.mask(tile.count, lanes_, x_, kNone, high, kNone, kNone);
}

void Item::start_rows() {
  std::fill_n(top_, kBlockMost, -kInf);
  std::fill_n(sum_, kBlockMost, 0.0f);
}

void Item::attend() {
  start_rows();
  std::fill_n(o_, a_.attend.o ? count_ * plan_.e_pad : 0, 0.0f);
  for (int64_t b = 0; b < keep_; ++b)
    if (branches_[b].representative >= 0) {
      const KeyTile tile = load(branches_[b].representative, a_.attend.o.data != nullptr);
      products(tile, simd_.gemm);
      visit(tile);
    }
}

// One step of the online softmax.
void Item::visit(const KeyTile& tile) {
  if (!tile.v) return simd_.softmax(tile.count, lanes_, x_, top_, sum_, shrink_);
  const int64_t e_pad = plan_.e_pad;
  // 0 * NaN is NaN: a value no row may see has to stay out of the product.
  if (tile.masked && !simd_.finite(tile.count, a_.attend.e, tile.v, tile.v_row)) {
    simd_.softmax(tile.count, lanes_, x_, top_, sum_, shrink_);
    return add_values(tile);
  }
  simd_.softmax(tile.count, lanes_, x_, top_, sum_, shrink_);
  simd_.gemm(
      {count_, e_pad, tile.count, x_, lanes_, tile.v, tile.v_row, o_, e_pad, shrink_, true, true});
}

void Item::add_values(const KeyTile& tile) {
  const int64_t e_pad = plan_.e_pad;
  for (int64_t i = 0; i < count_; ++i) {
    float* o = o_ + i * e_pad;
    simd_.scale(e_pad, o, shrink_[i], o);
    const int64_t seen = clamp_i64(high_[i] - tile.begin, 0, tile.count);
    for (int64_t j = 0; j < seen; ++j)
      for (int64_t c = 0; c < a_.attend.e; ++c)
        o[c] += x_[j * lanes_ + i] * tile.v[j * tile.v_row + c];
  }
}

void Item::attend_dense() {
  start_rows();
  const int64_t reach = a_.reach(seq_, block_);
  for (int64_t at = 0; at < reach; ++at) {
    at = a_.first_valid(seq_, head_, block_, at, reach);
    if (at < 0) break;
    const KeyTile tile = load(at, false);
    products(tile, simd_.gemm);
    visit(tile);
  }
  store_lse(a_.lse_dense);
}

// A second pass with the sums known: p = 2^(log2(e) x - top) * share.
void Item::weigh() {
  float share[kBlockMost] = {};
  for (int64_t i = 0; i < kBlockMost; ++i) {
    // A row that sees nothing, and what fills the lanes, has p = 0 everywhere.
    if (i < count_ && sum_[i] != 0) {
      share[i] = 1 / sum_[i];
    } else {
      top_[i] = kInf;
    }
    // A row of NaN is NaN on its own pairs only.
    if (std::isnan(share[i])) top_[i] = kInf;
  }
  for (int64_t b = 0; b < keep_; ++b) {
    const int32_t at = branches_[b].representative;
    mass_[b] = 0;
    std::fill_n(value_ + b * plan_.e_pad, a_.edge_value ? plan_.e_pad : 0, 0.0f);
    if (at < 0) continue;
    const KeyTile tile = load(at, a_.edge_value.data != nullptr);
    products(tile, simd_.gemm);
    weigh(b, tile, share);
  }
}

void Item::weigh(int64_t slot, const KeyTile& tile, const float* share) {
  constexpr float zero[kBlockMost] = {};
  std::fill_n(still_, tile.count * lanes_, 0.0f);
  simd_.softmax_backward(tile.count, lanes_, x_, still_, top_, zero);
  float known[kBlockMost];
  bool all = true;
  for (int64_t i = 0; i < lanes_; ++i) {
    const bool nan = std::isnan(share[i]);
    known[i] = nan ? 0 : share[i];
    all &= !nan;
  }
  float total = 0;
  float* value = value_ + slot * plan_.e_pad;
  for (int64_t j = 0; j < tile.count; ++j) {
    float weight = simd_.dot(lanes_, x_ + j * lanes_, known);
    for (int64_t i = 0; !all && i < count_; ++i)
      if (std::isnan(share[i]) && high_[i] > tile.begin + j) weight = share[i];
    total += weight;
    if (!tile.v || weight == 0) continue;
    const float* v = tile.v + j * tile.v_row;
    for (int64_t c = 0; c < plan_.e_pad; ++c) value[c] += weight * v[c];
  }
  mass_[slot] = total;
}

void Item::store_rows() {
  const Attend& a = a_.attend;
  for (int64_t i = 0; a.o && i < count_; ++i)
    host::store_row(
        a.o.data, a.o_dtype,
        seq_.batch * a.o.stride[0] + (first_ + i) * a.o.stride[1] + head_ * a.o.stride[2],
        a.o.stride[3], a.e, o_ + i * plan_.e_pad, sum_[i] != 0 ? 1 / sum_[i] : 0);
  if (a.lse) store_lse(a.lse);
}

void Item::store_lse(const View<3>& lse) const {
  for (int64_t i = 0; i < count_; ++i)
    lse.as()[seq_.batch * lse.stride[0] + head_ * lse.stride[1] + (first_ + i) * lse.stride[2]] =
        sum_[i] == 0 ? -kInf
                     : static_cast<float>(static_cast<double>(top_[i]) * M_LN2 +
                                          std::log(static_cast<double>(sum_[i])));
}

void Item::store_slots() {
  const auto at = [&](const View<4>& x, int64_t slot) {
    return seq_.batch * x.stride[0] + head_ * x.stride[1] + block_ * x.stride[2] +
           slot * x.stride[3];
  };
  for (int64_t b = 0; b < a_.keep; ++b) {
    const Branch& branch = branches_[b];
    const bool empty = branch.representative < 0;
    const float score = empty ? -kInf : branch.score * a_.score_scale;
    const float logit = empty ? -kInf : branch.score * a_.attend.score.scale;
    const float mass = empty || !a_.wants_mass() ? 0 : mass_[b];
    if (a_.selected) a_.selected.as<int32_t>()[at(a_.selected, b)] = branch.representative;
    if (a_.score) a_.score.as()[at(a_.score, b)] = score;
    if (a_.edge_score) a_.edge_score.as()[at(a_.edge_score, b)] = score;
    if (a_.edge_max) a_.edge_max.as()[at(a_.edge_max, b)] = logit;
    if (a_.edge_mass) a_.edge_mass.as()[at(a_.edge_mass, b)] = mass;
    if (a_.edge_value) {
      const View<5>& x = a_.edge_value;
      float* to = x.as() + seq_.batch * x.stride[0] + head_ * x.stride[1] + block_ * x.stride[2] +
                  b * x.stride[3];
      for (int64_t c = 0; c < a_.attend.e; ++c)
        to[c * x.stride[4]] = empty ? 0 : value_[b * plan_.e_pad + c];
    }
    if (!a_.wants_edges()) continue;
    plan_.selected.at(base_)[number_ * a_.keep + b] = branch.representative;
    plan_.weight.at(base_)[number_ * a_.keep + b] = a_.edge_kind == FOVEA_EDGE_KIND_SCORE  ? score
                                                    : a_.edge_kind == FOVEA_EDGE_KIND_MASS ? mass
                                                                                           : logit;
  }
}

}  // namespace fovea::trace_host
