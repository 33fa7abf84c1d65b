// SPDX-License-Identifier: Apache-2.0
// What the host's forward and backward share: a strip of query rows in vector lanes, and its score
// tile s[key][lane], which slides over the keys.
//   A strip has rows of one head, or the same few rows of several heads of a key head side by side.
//   s holds the keys a convolution reads, [j - left, j + count + right) for outputs [j, j + count);
//   sliding on keeps what the next outputs read too, so every score of a strip is computed once.
//   Rows and keys outside the sequence, and keys a row does not see, are written as 0.
#pragma once
#include "host/sweep.h"
#include "ops/conv_attention/kernels.h"

namespace fovea::conv_host {

using host::ceil_div, host::kFlopsPerNanosecond, host::kInf, host::load_row, host::row_offset,
    host::row_slot, host::row_value, host::store_row, host::transpose;

constexpr int64_t kLanes = host::kLanesMost;  // of a strip, halo rows among them
constexpr int64_t kKeys = host::kKeys;        // of a step
constexpr int64_t kTapsMost = kKernelRowsMost * kKernelColumnsMost;
// Heads that share a strip have kernel_rows or more lanes each.
constexpr int64_t kWeights = kLanes * kKernelColumnsMost;
constexpr int64_t kSlideKeys = kKeys + kKernelColumnsMost - 1;  // rows of a sliding tile
constexpr int64_t kSlack = kLanes;  // floats behind a tile that a convolution loads, never uses

// Constant over a call.
struct Call {
  explicit Call(const ConvAttend& request);
  ConvAttend c;
  const Attend& a;
  const host::Simd& simd;
  int64_t group;         // query heads of a key head
  int64_t d_pad, e_pad;  // widths in whole vectors
  Call(const Call&) = delete;
  int64_t padded(int64_t n) const { return host::padded(n); }
  // Rows of a strip beside `halo` rows, in whole vectors.
  int64_t own_rows(int64_t halo) const { return (kLanes - halo) / simd.width * simd.width; }
};

// Lane n * count + i is row first + i of the sequence, of the n-th head; rows i outside
// [low, count) do not count.
struct Strip {
  int64_t first, low, count;
  int64_t lanes;  // heads * count in whole vectors, or more
  int64_t heads = 1;
  // Keys that some lane sees.
  int64_t end(const ConvAttend& c, const Sequence& q) const {
    if (low >= count) return 0;
    return c.causal ? clamp_i64(first + count + q.keys - q.rows, 0, q.keys) : q.keys;
  }
  // Rows below do not see key j.
  int64_t blind(const ConvAttend& c, const Sequence& q, int64_t j) const {
    const int64_t hidden = c.causal ? j - first - q.keys + q.rows : 0;
    return clamp_i64(hidden > low ? hidden : low, 0, count);
  }
};

// x[j][lane] = value where the lane does not see key begin + j; `absent` (or nullptr) marks keys
// that no lane sees.
void hide(const ConvAttend& c, const Sequence& q, const Strip& strip, int64_t begin, int64_t count,
          const bool* absent, float value, float* x, int64_t x_row);

// Keys [begin, begin + count), at most kKeys, whose page is absent; nullptr: none.
const bool* absent_keys(const Call& call, const Sequence& q, int64_t begin, int64_t count,
                        bool* flags);
// The same keys of k or v as f32 rows.
host::KeyRows load_keys(const Call& call, const Sequence& q, int64_t key_head, const View<4>& from,
                        int64_t width, int64_t begin, int64_t count, host::KeyUse use,
                        const bool* absent, float* room);

// o = shrink o + x' v for the rows of a strip; shrink nullptr: 1.
void add_values(const Call& call, const Sequence& q, const Strip& rows, int64_t begin,
                int64_t count, const bool* absent, const float* x, const host::KeyRows& v,
                const float* shrink, float* o);

struct LogitRoom {
  LogitRoom() = default;
  LogitRoom(const Call& call, Layout& layout);
  Slot<float> rows, columns, s, k, weight;
};

class Logits {
 public:
  Logits(const Call& call, const LogitRoom& room, void* base);

  // q (scaled) and the weights of the strip's heads, from `head` on.  The sliding tile is empty.
  void load(const Sequence& q, int64_t head, const Strip& strip);
  // Slides to the outputs [begin, begin + count), which lie at or behind those before.
  void slide(int64_t begin, int64_t count);
  // a[j][lane] = A of output key begin + j and the rows of `out`: those of the strip from
  // first + above on.  out.lanes hold a whole vector from the last head's first row on.
  void convolve(int64_t count, const Strip& out, float* a) const;

  float *rows, *weight;  // [lane][d_pad], [head][kernel_rows][kernel_columns]
  float* s;              // [key][strip.lanes] from key begin - left on
  const Strip& strip() const { return strip_; }

 private:
  void fill(int64_t begin, int64_t end, float* to);
  void products(const host::KeyRows& keys, int64_t count, float* to) const;

  const Call& call_;
  float *columns_, *room_;
  Sequence q_;
  Strip strip_;
  int64_t key_head_, end_, count_;  // count_: lanes in use
  int64_t begin_, filled_;          // key of row 0 of s, rows in use
};

}  // namespace fovea::conv_host
