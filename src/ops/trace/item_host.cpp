// SPDX-License-Identifier: Apache-2.0
#include "ops/trace/item_host.h"

#include <algorithm>
#include <cmath>

namespace fovea::trace_host {

using host::kInf;

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
      lanes_(host::padded(count_)),
      keep_(a_.keep_of(block_)),
      seen_(count_) {
  for (int64_t i = 0; i < count_; ++i) seen_.seen[i] = {0, a_.seen(seq_, first_ + i), 0, 0};
  seen_.bound();
  void* room = plan.scratch.at(base, worker);
  rows_ = plan.room.rows.at(room), q_ = plan.room.q.at(room), x_ = plan.room.x.at(room);
  still_ = plan.room.still.at(room), o_ = plan.room.o.at(room), k_ = plan.room.k.at(room);
  v_ = plan.room.v.at(room), value_ = plan.room.value.at(room), mass_ = plan.room.mass.at(room);
  branches_ = plan.room.branches.at(room), halves_ = plan.room.halves.at(room);
}

void Item::run() {
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
    host::load_row(simd_, a.q.data, a.dtype, host::row_offset(a.q, seq_, first_ + i, head_),
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

host::KeySpan Item::keys_of(int64_t key_block) const {
  const int64_t begin = key_block * a_.block_keys;
  const int64_t count = std::min(a_.block_keys, seq_.keys - begin);
  return {begin, count, seen_.cover(begin, begin + count), 0};
}

template <class Visit>
void Item::each_branch(Visit visit) const {
  static_assert(sizeof(Branch) % sizeof(int32_t) == 0);
  const IntVector blocks{&branches_[0].representative, sizeof(Branch) / sizeof(int32_t)};
  host::KeyWalk::list(blocks, keep_, a_.block_keys, seq_.keys).each(seen_, visit);
}

float Item::score(int64_t key_block) {
  const KeyTile tile = load(keys_of(key_block), false);
  products(tile, a_.exact ? simd_.chains : simd_.gemm);
  return simd_.largest(tile.count * lanes_, x_) + 0.0f;  // -0 becomes +0
}

Item::KeyTile Item::load(const host::KeySpan& keys, bool values) {
  const Attend& a = a_.attend;
  KeyTile tile{};
  tile.begin = keys.begin, tile.count = keys.count;
  tile.masked = lanes_ != count_ || keys.masked();
  const auto rows = [&](const View<4>& from, int64_t width, bool wide, float* to) {
    // The rows of a tile are read as they lie, however far apart: a block is visited once.
    return host::load_keys({simd_, a.sequences, from, a.dtype, width}, seq_, key_head_, keys.begin,
                           keys.count, {wide, true, true}, nullptr, to);
  };
  tile.k = rows(a.k, a.d, false, k_);
  if (values) tile.v = rows(a.v, a.e, true, v_);
  return tile;
}

void Item::products(const KeyTile& tile, void (*product)(const host::Gemm&)) {
  product({tile.count, lanes_, a_.attend.d, tile.k.x, tile.k.row, q_, lanes_, x_, lanes_, nullptr,
           false, false});
  if (!tile.masked) return;
  const host::LocalSeen seen(seen_, tile.begin, tile.count);
  simd_.mask(tile.count, lanes_, x_, seen.low, seen.high, seen.first_low, seen.first_high);
}

void Item::start_rows() {
  std::fill_n(top_, kBlockMost, -kInf);
  std::fill_n(sum_, kBlockMost, 0.0f);
}

void Item::attend() {
  start_rows();
  std::fill_n(o_, a_.attend.o ? count_ * plan_.e_pad : 0, 0.0f);
  each_branch([&](const host::KeySpan& keys) {
    const KeyTile tile = load(keys, a_.attend.o.data != nullptr);
    products(tile, simd_.gemm);
    visit(tile);
  });
}

// One step of the online softmax.
void Item::visit(const KeyTile& tile) {
  if (!tile.v.x) return simd_.softmax(tile.count, lanes_, x_, top_, sum_, shrink_);
  const int64_t e_pad = plan_.e_pad;
  // 0 * NaN is NaN: a value no row may see has to stay out of the product.
  const bool odd = tile.masked && !simd_.finite(tile.count, a_.attend.e, tile.v.x, tile.v.row);
  simd_.softmax(tile.count, lanes_, x_, top_, sum_, shrink_);
  if (odd)
    return host::add_values(
        simd_, count_, lanes_, tile.count, x_, tile.v, a_.attend.e, shrink_, o_, e_pad,
        [&](int64_t j, int64_t i) { return tile.begin + j < seen_.seen[i].high; });
  simd_.gemm({count_, e_pad, tile.count, x_, lanes_, tile.v.x, tile.v.row, o_, e_pad, shrink_, true,
              true});
}

void Item::attend_dense() {
  start_rows();
  const int64_t reach = a_.reach(seq_, block_);
  for (int64_t at = 0; at < reach; ++at) {
    at = a_.first_valid(seq_, head_, block_, at, reach);
    if (at < 0) break;
    const KeyTile tile = load(keys_of(at), false);
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
  std::fill_n(mass_, keep_, 0.0f);
  std::fill_n(value_, a_.edge_value ? keep_ * plan_.e_pad : 0, 0.0f);
  each_branch([&](const host::KeySpan& keys) {
    const KeyTile tile = load(keys, a_.edge_value.data != nullptr);
    products(tile, simd_.gemm);
    weigh(keys.entry, tile, share);
  });
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
      if (std::isnan(share[i]) && seen_.seen[i].high > tile.begin + j) weight = share[i];
    total += weight;
    if (!tile.v.x || weight == 0) continue;
    const float* v = tile.v.x + j * tile.v.row;
    for (int64_t c = 0; c < plan_.e_pad; ++c) value[c] += weight * v[c];
  }
  mass_[slot] = total;
}

void Item::store_rows() {
  const Attend& a = a_.attend;
  for (int64_t i = 0; a.o && i < count_; ++i)
    host::store_row(a.o.data, a.o_dtype, host::row_offset(a.o, seq_, first_ + i, head_),
                    a.o.stride[3], a.e, o_ + i * plan_.e_pad, sum_[i] != 0 ? 1 / sum_[i] : 0);
  if (a.lse) store_lse(a.lse);
}

void Item::store_lse(const View<3>& lse) const {
  for (int64_t i = 0; i < count_; ++i)
    host::row_slot(lse, seq_, head_, first_ + i) = host::lse_of(top_[i], sum_[i]);
}

void Item::store_slots() {
  for (int64_t b = 0; b < a_.keep; ++b) {
    const auto put = [&](const View<4>& x, float value) {
      if (x) *x.at(seq_.batch, head_, block_, b) = value;
    };
    const Branch& branch = branches_[b];
    const bool empty = branch.representative < 0;
    const float score = empty ? -kInf : branch.score * a_.score_scale;
    const float logit = empty ? -kInf : branch.score * a_.attend.score.scale;
    const float mass = empty || !a_.wants_mass() ? 0 : mass_[b];
    if (a_.selected) *a_.selected.at<int32_t>(seq_.batch, head_, block_, b) = branch.representative;
    put(a_.score, score);
    put(a_.edge_score, score);
    put(a_.edge_max, logit);
    put(a_.edge_mass, mass);
    if (a_.edge_value) {
      float* to = a_.edge_value.at(seq_.batch, head_, block_, b);
      for (int64_t c = 0; c < a_.attend.e; ++c)
        to[c * a_.edge_value.stride[4]] = empty ? 0 : value_[b * plan_.e_pad + c];
    }
    if (!a_.wants_edges()) continue;
    plan_.selected.at(base_)[number_ * a_.keep + b] = branch.representative;
    plan_.weight.at(base_)[number_ * a_.keep + b] = a_.edge_kind == FOVEA_EDGE_KIND_SCORE  ? score
                                                    : a_.edge_kind == FOVEA_EDGE_KIND_MASS ? mass
                                                                                           : logit;
  }
}

}  // namespace fovea::trace_host
