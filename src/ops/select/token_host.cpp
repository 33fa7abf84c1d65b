// SPDX-License-Identifier: Apache-2.0
// x_select_token on the CPU.  An item is a row and a part of the heads: whole list heads and whole
// key heads.  The query heads of a key head are lanes of one product with a tile of keys.
#include <algorithm>
#include <bit>
#include <cmath>

#include "host/pick.h"
#include "host/sweep.h"
#include "ops/select/token.h"

namespace fovea {
namespace {

using host::kInf;
using host::kKeys;

struct TokenRoom {
  Slot<float> rows, q, k, x, sum, own, norm;
  Slot<uint32_t> key;
  Slot<int32_t> column;
};

struct TokenPlan {
  SelectToken a;
  int64_t lanes, width;  // of a product
  TokenRoom room;
  host::WorkerScratch scratch;
};

// A row under a part of the heads.
class Item {
 public:
  Item(const TokenPlan& plan, void* room, const Token& token, int64_t part)
      : plan_(plan),
        a_(plan.a),
        seq_(token.sequence),
        i_(token.index),
        row_(a_.row(seq_, i_)),
        first_list_(part * (a_.x / a_.parts())),
        lists_(a_.x / a_.parts()),
        first_head_(part * (a_.attend.h / a_.parts())),
        heads_(a_.attend.h / a_.parts()),
        rows_(plan.room.rows.at(room)),
        q_(plan.room.q.at(room)),
        k_(plan.room.k.at(room)),
        x_(plan.room.x.at(room)),
        sum_(plan.room.sum.at(room)),
        own_(plan.room.own.at(room)),
        norm_(plan.room.norm.at(room)),
        key_(plan.room.key.at(room)),
        column_(plan.room.column.at(room)) {}

  void run() {
    const int64_t key_head = first_head_ / a_.key_group(), end = first_head_ + heads_;
    for (int64_t g = key_head; row_.high > 0 && g * a_.key_group() < end; ++g) score(g);
    units();
    for (int64_t list = 0; list < lists_; ++list) emit(list);
  }

 private:
  static constexpr int64_t kBits = 32;  // of a word

  float* sums(int64_t list) const { return sum_ + list * a_.attend.sequences.key_max; }
  float* own(int64_t head) const { return own_ + head * a_.attend.sequences.key_max; }
  uint32_t* keys(int64_t list) const { return key_ + list * a_.units(); }
  int64_t list_of(int64_t head) const { return head / a_.group() - first_list_; }
  int64_t query(const View<4>& x, int64_t head) const {
    return host::row_offset(x, seq_, i_, head);
  }

  // The scores of the query heads of key head g, added to those of their lists.
  void score(int64_t g) {
    const int64_t first = g * a_.key_group();
    if (!a_.hamming()) load_queries(first);
    for (int64_t begin = 0; begin < row_.high; begin += kKeys) {
      const int64_t count = std::min<int64_t>(kKeys, row_.high - begin);
      bool any = false, absent[kKeys];
      host::find_absent(a_.attend.sequences, seq_, begin, count, a_.keys(), absent);
      for (int64_t j = 0; j < count; ++j) {
        absent[j] = absent[j] || !a_.selects(row_, begin + j);
        any |= !absent[j];
      }
      if (any) products(g, begin, count, absent);
      for (int64_t n = 0; n < a_.key_group(); ++n) {
        const int64_t head = first + n, list = list_of(head);
        const float scaled = a_.subset ? norm_[n] : a_.scale, w = a_.weight_of(seq_, i_, head);
        for (int64_t j = 0; j < count; ++j) {
          const float s = absent[j] ? -kInf : a_.score(x_[j * plan_.lanes + n], scaled, w);
          float& sum = sums(list)[begin + j];
          sum = head % a_.group() == 0 ? s : a_.reduced(sum, s);
          if (a_.masses()) own(head - first_head_)[begin + j] = s;
          if (head % a_.group() == 0) flag(list, begin + j) = !absent[j];
        }
      }
    }
  }
  // Until units() has run, whether a key of a list can be selected.
  uint32_t& flag(int64_t list, int64_t j) const {
    return key_[lists_ * a_.units() + list * a_.attend.sequences.key_max + j];
  }

  void load_queries(int64_t first) {
    const Attend& at = a_.attend;
    for (int64_t n = 0; n < a_.key_group(); ++n)
      host::load_row(host::simd(), at.q.data, at.dtype, query(at.q, first + n), at.q.stride[3],
                     at.d, rows_ + n * at.d);
    if (a_.subset) choose_columns();
    host::transpose(rows_, at.d, a_.key_group(), plan_.width, plan_.lanes, q_);
  }
  // The columns of the key head, ascending, moved to the front of each query; their factors.
  void choose_columns() {
    const int64_t d = a_.attend.d;
    for (int64_t c = 0; c < d; ++c) {
      float sum = 0;
      for (int64_t n = 0; n < a_.key_group(); ++n) sum += std::abs(rows_[n * d + c]);
      x_[c] = sum, column_[c] = static_cast<int32_t>(c);
    }
    std::sort(column_, column_ + d, [&](int32_t x, int32_t y) {
      const uint32_t first = pick_key(x_[x]), second = pick_key(x_[y]);
      return first != second ? first > second : x < y;
    });
    std::sort(column_, column_ + a_.subset);
    for (int64_t n = 0; n < a_.key_group(); ++n) {
      float* q = rows_ + n * d;
      float all = 0, part = 0;
      for (int64_t c = 0; c < d; ++c) all += std::abs(q[c]);
      for (int64_t c = 0; c < a_.subset; ++c) part += std::abs(q[column_[c]]);
      for (int64_t c = 0; c < a_.subset; ++c) q[c] = q[column_[c]];
      norm_[n] = part > 0 ? a_.scale / std::sqrt(part / all) : 0;
    }
  }

  void products(int64_t g, int64_t begin, int64_t count, const bool* absent) {
    if (a_.hamming()) return distances(g, begin, count, absent);
    const Attend& at = a_.attend;
    const host::Simd& simd = host::simd();
    const host::KeySide side{simd, at.sequences, at.k, at.k_dtype, at.d, at.k_scale, at.groups};
    host::KeyRows keys = host::load_keys(side, seq_, g, begin, count,
                                         {false, false, false, a_.subset != 0}, absent, k_);
    if (a_.subset) {
      for (int64_t j = 0; j < count; ++j)
        for (int64_t c = 0; c < a_.subset; ++c)
          k_[j * keys.row + c] = keys.x[j * keys.row + column_[c]];
      keys.x = k_;
    }
    simd.chains({count, plan_.lanes, plan_.width, keys.x, keys.row, q_, plan_.lanes, x_,
                 plan_.lanes, nullptr, false, false});
  }
  void distances(int64_t g, int64_t begin, int64_t count, const bool* absent) {
    for (int64_t j = 0; j < count; ++j) {
      if (absent[j]) continue;
      const int64_t key =
          a_.attend.sequences.key_offset(seq_, begin + j, a_.code.stride) + g * a_.code.stride[2];
      for (int64_t n = 0; n < a_.key_group(); ++n) {
        const int64_t row = query(a_.code_q, g * a_.key_group() + n);
        int64_t apart = 0;
        for (int64_t w = 0; w < a_.words; ++w)
          apart += std::popcount(a_.code_q.as<uint32_t>()[row + w * a_.code_q.stride[3]] ^
                                 a_.code.as<uint32_t>()[key + w * a_.code.stride[3]]);
        x_[j * plan_.lanes + n] = static_cast<float>(kBits * a_.words - 2 * apart);
      }
    }
  }

  void units() {
    for (int64_t list = 0; list < lists_; ++list) {
      const uint8_t* mask = a_.mask_row(seq_, first_list_ + list, i_);
      std::fill_n(keys(list), row_.units, 0u);
      for (int64_t j = 0; j < row_.high; ++j) {
        if (!flag(list, j) || !a_.allows(mask, j)) continue;
        float s = sums(list)[j];
        if (a_.reduce == FOVEA_X_SELECT_REDUCE_MEAN) s /= static_cast<float>(a_.group());
        uint32_t& unit = keys(list)[j / a_.pool];
        unit = std::max(unit, pick_key(s));
      }
    }
  }

  void emit(int64_t list) const {
    const uint32_t* all = keys(list);
    const int64_t list_head = first_list_ + list, s = seq_.row_begin + i_;
    const auto forced = [&](int64_t c) { return c >= row_.forced && all[c] != 0; };
    const auto key = [&](int64_t c) { return all[c] > kPickNone && !forced(c) ? all[c] : 0u; };
    int64_t base = 0, total = 0;
    for (int64_t c = 0; c < row_.units; ++c) base += forced(c), total += key(c) != 0;
    const PickCut cut =
        host::cut_after(row_.units, key, std::max<int64_t>(0, a_.wanted(row_) - base), total);
    int64_t slot = 0;
    const PickKeep keep = host::each_kept(
        row_.units, a_.limits(), key, forced, cut, 0, [&](int64_t c, int64_t place) {
          if (a_.index) *a_.index.at<int32_t>(seq_.batch, list_head, s, place) = int32_t(c);
          if (a_.kept_score)
            *a_.kept_score.at(seq_.batch, list_head, s, place) = pick_value(all[c]);
          slot = place + 1;
        });
    for (int64_t place = slot; place < a_.keep; ++place) {
      *a_.index.at<int32_t>(seq_.batch, list_head, s, place) = -1;
      if (a_.kept_score) *a_.kept_score.at(seq_.batch, list_head, s, place) = -kInf;
    }
    if (a_.index_count)
      *a_.index_count.at<int32_t>(seq_.batch, list_head, s) = int32_t(keep.wanted);
    if (!a_.masses()) return;
    for (int64_t head = list_head * a_.group(); head < (list_head + 1) * a_.group(); ++head)
      *a_.kept_mass.at(seq_.batch, head, s) = mass(own(head - first_head_), all, list_head, slot);
  }
  // The share of a softmax that a list of `count` keys holds.
  float mass(const float* x, const uint32_t* all, int64_t list_head, int64_t count) const {
    float top = -kInf, sum = 0, kept = 0;
    const auto part = [&](int64_t j) { return x[j] == top ? 1.0f : std::exp(x[j] - top); };
    for (int64_t j = 0; j < row_.units; ++j)
      if (all[j]) top = std::max(top, x[j]);
    if (top == -kInf) return 0;
    for (int64_t j = 0; j < row_.units; ++j) sum += all[j] ? part(j) : 0;
    for (int64_t n = 0; n < count; ++n)
      kept += part(*a_.index.at<int32_t>(seq_.batch, list_head, seq_.row_begin + i_, n));
    return kept / sum;
  }

  const TokenPlan& plan_;
  const SelectToken& a_;
  const Sequence& seq_;
  const int64_t i_;
  const TokenRow row_;
  const int64_t first_list_, lists_, first_head_, heads_;
  float *rows_, *q_, *k_, *x_, *sum_, *own_, *norm_;
  uint32_t* key_;
  int32_t* column_;
};

class Run {
 public:
  Run(const TokenPlan& plan, void* base) : plan_(plan), base_(base) {}

  void run(Context& ctx) const {
    const SelectToken& a = plan_.a;
    if (!a.x || !a.attend.h) return;
    const Sequences& q = a.attend.sequences;
    const int64_t slots = token_slots(q), parts = a.parts();
    const double cost = static_cast<double>(slots) * static_cast<double>(a.attend.h) *
                        static_cast<double>(q.key_max) * static_cast<double>(plan_.width + 16) /
                        host::kFlopsPerNanosecond;
    host::pool(ctx).run(slots * parts, cost, [&](int64_t item, int32_t worker) {
      const Token token = token_at(q, item / parts);
      if (token.number < 0) return;
      Item(plan_, plan_.scratch.at(base_, worker), token, item % parts).run();
    });
  }

 private:
  const TokenPlan& plan_;
  void* base_;
};

}  // namespace

extern const Kernel<SelectToken> x_select_token_host = {
    "", [](const Context& ctx, const SelectToken& a, Plan& plan) {
      TokenPlan p{};
      p.a = a;
      Layout worker;
      TokenRoom& room = p.room;
      if (a.x && a.attend.h && a.attend.g && a.attend.sequences.key_max) {
        const Attend& at = a.attend;
        const int64_t keys = at.sequences.key_max, group = a.key_group();
        const int64_t lists = a.x / a.parts(), d = std::max<int64_t>(at.d, 1);
        p.lanes = host::padded(group), p.width = a.subset ? a.subset : at.d;
        room.rows = worker.add<float>(group, d), room.q = worker.add<float>(d, p.lanes);
        room.k = worker.add<float>(kKeys, host::padded(d));
        room.x = worker.add<float>(std::max<int64_t>(kKeys * p.lanes, d));
        room.sum = worker.add<float>(lists, keys), room.norm = worker.add<float>(group);
        room.key = worker.add<uint32_t>(lists, a.units() + keys);
        room.column = worker.add<int32_t>(d);
        if (a.masses()) room.own = worker.add<float>(at.h / a.parts(), keys);
      }
      const double items = static_cast<double>(token_slots(a.attend.sequences)) *
                           static_cast<double>(std::max<int64_t>(a.parts(), 1));
      p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
      host::host_plan<Run>(
          plan, p, a.hamming() ? Text(".hamming") : host::shape_name(a.attend.dtype, a.attend.d));
      return Text();
    }};

}  // namespace fovea
