// SPDX-License-Identifier: Apache-2.0
// A call of x_select_line, resolved, and the list of a row: one text for host and device.  A list
// is a walk over ascending lines by a team: one thread, or a warp whose lanes walk alike.
#pragma once
#include "ops/select/block.h"

namespace fovea {

struct SelectLine {
  SelectBlock rows;  // where list rows and key blocks are
  View<4> bits, index, column, bits_out;
  View<3> vertical, slash, index_count, column_count;
  View<2> vertical_count, slash_count;
  int64_t verticals, slashes, columns, bytes;
  bool aligned, in_blocks;

  // The lists of a row.
  template <class Team>
  FOVEA_HD void run(int64_t batch, int64_t row, int64_t list_head) const;
};

// Of a team: lane() of lanes(); sync() makes what lanes wrote visible to the others.
//   last_below(lines, i, bound)   the last place up to i whose line is below; -1: none
//   first_from(lines, i, bound)   the first place from i on whose line is not below; lines.count
struct LoneThread {
  static int lane() { return 0; }
  static int lanes() { return 1; }
  static void sync() {}
  template <class Lines>
  static int64_t last_below(const Lines& lines, int64_t i, int64_t bound) {
    while (i >= 0 && lines[i] >= bound) --i;
    return i;
  }
  template <class Lines>
  static int64_t first_from(const Lines& lines, int64_t i, int64_t bound) {
    while (i < lines.count && lines[i] < bound) ++i;
    return i;
  }
};

// A list as it grows.
template <class Team>
class LineOut {
 public:
  FOVEA_HD LineOut(const View<4>& list, const View<3>& count, int64_t room, const ListRow& at,
                   int64_t list_head)
      : list_(list), count_(count), room_(list ? room : 0), at_(at), head_(list_head) {}
  FOVEA_HD void add(int64_t x) {
    if (size_ < room_ && Team::lane() == 0) put(size_, x);
    ++size_;
  }
  // at(0) .. at(count - 1)
  template <class At>
  FOVEA_HD void add_all(int64_t count, At at) {
    for (int64_t i = Team::lane(); i < count && size_ + i < room_; i += Team::lanes())
      put(size_ + i, at(i));
    size_ += count;
  }
  FOVEA_HD void end() const {
    for (int64_t slot = size_ + Team::lane(); slot < room_; slot += Team::lanes()) put(slot, -1);
    if (count_ && Team::lane() == 0)
      *count_.at<int32_t>(at_.seq.batch, head_, at_.row) =
          static_cast<int32_t>(size_ < INT32_MAX ? size_ : INT32_MAX);
  }

 private:
  FOVEA_HD void put(int64_t slot, int64_t x) const {
    *list_.at<int32_t>(at_.seq.batch, head_, at_.row, slot) = static_cast<int32_t>(x);
  }
  const View<4>& list_;
  const View<3>& count_;
  int64_t room_, size_ = 0;
  const ListRow& at_;
  int64_t head_;
};

// The lines of a head, ascending; entries < 0 come first.
struct Lines {
  const int32_t* data;
  int64_t stride, count;

  FOVEA_HD Lines(const View<3>& x, const View<2>& counts, int64_t extent, const ListRow& at,
                 int64_t list_head)
      : data(x ? x.at<int32_t>(at.seq.batch, list_head) : nullptr),
        stride(x.stride[2]),
        count(x ? extent : 0) {
    if (x && counts) count = clamp_i64(*counts.at<int32_t>(at.seq.batch, list_head), 0, extent);
  }
  FOVEA_HD int64_t operator[](int64_t i) const { return data[i * stride]; }
};

template <class Team>
class LineRow {
 public:
  FOVEA_HD LineRow(const SelectLine& a, const ListRow& at, int64_t list_head)
      : a_(a),
        at_(at),
        head_(list_head),
        vertical_(a.vertical, a.vertical_count, a.verticals, at, list_head),
        slash_(a.slash, a.slash_count, a.slashes, at, list_head),
        index_(a.index, a.index_count, a.rows.keep, at, list_head),
        column_(a.column, a.column_count, a.columns, at, list_head) {}

  FOVEA_HD void run() {
    for (int64_t byte = Team::lane(); a_.bits_out && byte < a_.bytes; byte += Team::lanes())
      *out(byte) = 0;
    Team::sync();
    if (a_.bits)
      bits();
    else if (a_.in_blocks)
      blocks();
    else
      ranges();
    index_.end(), column_.end();
  }

 private:
  FOVEA_HD uint8_t* out(int64_t byte) const {
    return a_.bits_out.at<uint8_t>(at_.seq.batch, head_, at_.row, byte);
  }
  FOVEA_HD void block(int64_t c) {
    index_.add(c);
    if (a_.bits_out && c / 8 < a_.bytes && Team::lane() == 0)
      *out(c / 8) |= static_cast<uint8_t>(1 << (c % 8));
  }

  FOVEA_HD void bits() {
    const BlockBits bits = a_.rows.bits(a_.bits, at_, head_);
    for (int64_t c = 0; c < at_.blocks; ++c)
      if (bits[c] && a_.rows.block_visible(at_, c)) block(c);
  }

  // Two ascending streams: verticals, and the slashes from the largest on.
  FOVEA_HD void blocks() {
    if (at_.last_at < 0) return;
    const int64_t own = at_.last_at / a_.rows.block_keys;
    int64_t v = 0, s = slash_.count - 1, last = -1;
    for (;;) {
      while (v < vertical_.count && vertical_[v] <= last) ++v;
      while (s >= 0 && own - slash_[s] <= last) --s;
      const int64_t first = v < vertical_.count ? vertical_[v] : INT64_MAX;
      const int64_t second = s >= 0 && slash_[s] >= 0 ? own - slash_[s] : INT64_MAX;
      last = first < second ? first : second;
      if (last > own || last >= at_.blocks) return;
      block(last);
    }
  }

  FOVEA_HD void ranges() {
    const int64_t m = a_.rows.block_keys, e = at_.first_at + m;
    int64_t low = 0, high = -1;  // the open range
    for (int64_t s = slash_.count; s > 0;) {
      // Those with hi <= high change nothing: high >= m.
      s = Team::last_below(slash_, s - 1, high >= 0 ? e - high : e);
      if (s < 0 || slash_[s] < 0) break;
      const int64_t x = slash_[s], hi = e - x > m ? e - x : m;
      if (high >= 0 && hi <= high + m) {
        high += m;
        continue;
      }
      if (high >= 0) range(low, high);
      low = hi - m, high = hi;
    }
    if (high >= 0) range(low, high);
    verticals_before(e < at_.seq.keys ? e : at_.seq.keys);
  }
  FOVEA_HD void range(int64_t low, int64_t high) {
    const int64_t m = a_.rows.block_keys;
    if (a_.aligned) {
      const int64_t first = low / m, end = (high + m - 1) / m;
      verticals_before(first * m);
      for (int64_t c = first > next_block_ ? first : next_block_; c < end && c < at_.blocks; ++c)
        block(c);
      next_block_ = end, from_ = end * m;
      return;
    }
    verticals_before(low);
    const int64_t end = high < at_.seq.keys ? high : at_.seq.keys;
    if (end > low) index_.add_all((end - low + m - 1) / m, [&](int64_t i) { return low + i * m; });
    from_ = high;
  }
  // The verticals from the last range to `end`, of keys below what the row block reaches.
  FOVEA_HD void verticals_before(int64_t end) {
    const int64_t reach = at_.first_at + a_.rows.block_keys;
    if (end > reach) end = reach;
    if (end > at_.seq.keys) end = at_.seq.keys;
    const int64_t behind = Team::first_from(vertical_, v_, end);
    const int64_t first = Team::first_from(vertical_, v_, from_ < end ? from_ : end);
    if (behind > first)
      column_.add_all(behind - first, [&](int64_t i) { return vertical_[first + i]; });
    v_ = behind;
  }

  const SelectLine& a_;
  const ListRow& at_;
  const int64_t head_;
  const Lines vertical_, slash_;
  LineOut<Team> index_, column_;
  int64_t v_ = 0, from_ = 0, next_block_ = 0;
};

template <class Team>
FOVEA_HD void SelectLine::run(int64_t batch, int64_t row, int64_t list_head) const {
  ListRow at;
  if (rows.list_row(batch, row, at)) LineRow<Team>(*this, at, list_head).run();
}

extern const Kernel<SelectLine> x_select_line_host;

// CUDA builds only.
extern const Kernel<SelectLine> x_select_line_simt;

}  // namespace fovea
