// SPDX-License-Identifier: Apache-2.0
// An attention-like call, resolved: plain data that host loops and device kernels read alike, and
// the index arithmetic of sequences, pages, positions and windows.  The params groups {seq} {paged}
// {place} {mask} {score} {rope} of the public structs each have one struct here.
#pragma once
#include <cstdint>

#include "fovea/core.h"

#ifdef __CUDACC__
#define FOVEA_HD __host__ __device__ __forceinline__
#else
#define FOVEA_HD inline
#endif

namespace fovea {

// A strided tensor of N dimensions; data == nullptr: not given.  Strides in elements.
template <int N>
struct View {
  void* data;
  int64_t stride[N];
  explicit FOVEA_HD operator bool() const { return data != nullptr; }
  template <class T = float>
  FOVEA_HD T* as() const {
    return static_cast<T*>(data);
  }
  // The element at `index`; with fewer than N indices the others are 0.
  template <class T = float, class... Index>
  FOVEA_HD T* at(Index... index) const {
    int64_t offset = 0;
    int axis = 0;
    ((offset += index * stride[axis++]), ...);
    return static_cast<T*>(data) + offset;
  }
};

template <int N>
View<N> view_of(const fovea_tensor& x) {
  View<N> view{x.data, {}};
  for (int i = 0; i < N; ++i) view.stride[i] = x.stride[i];
  return view;
}

// A gradient that may be absent: without elements it is.
template <int N>
View<N> gradient_of(const fovea_tensor& x) {
  View<N> view = view_of<N>(x);
  for (int i = 0; i < N; ++i)
    if (x.data && x.shape[i] == 0) view.data = nullptr;
  return view;
}

// A gradient with the dtype in which it is stored, q's or f32.
struct GradientView : View<4> {
  int32_t dtype;
};

inline GradientView gradient_view(const fovea_tensor& x) {
  return {gradient_of<4>(x), x.dtype};
}

struct IntVector {
  const int32_t* data;
  int64_t stride;
  explicit FOVEA_HD operator bool() const { return data != nullptr; }
  FOVEA_HD int32_t operator[](int64_t i) const { return data[i * stride]; }
};

inline IntVector int_vector(const fovea_tensor& x) {
  return {static_cast<const int32_t*>(x.data), x.stride[0]};
}

FOVEA_HD int64_t clamp_i64(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// One sequence of the call.
struct Sequence {
  int64_t batch;      // index on the b axis of q, o, lse, mask, bias
  int64_t row_begin;  // its first row on the s axis
  int64_t rows;       // Lq
  int64_t key_batch;  // index on the first axis of k, v (contiguous), or row of page_table; < 0: no
                      // keys
  int64_t key_b;      // index on the first axis of key_position
  int64_t key_begin;  // storage index of logical key 0 (key_start + key_first; paged: key_first)
  int64_t key_first;  // column of mask and bias that logical key 0 has
  int64_t keys;       // Lk
  int64_t context;    // row i is at position i + context - rows; Lk unless context_len says
};

struct Sequences {
  IntVector query_start, key_start, query_len, key_len, key_first, cache_row, context_len;
  View<2> page_table;
  int64_t count;               // r
  int64_t s;                   // extent of the row axis
  int64_t capacity;            // keys a sequence can have: t, or pages * page
  int64_t query_max;           // rows bound, >= 1 unless s is 0
  int64_t key_max;             // keys bound
  int64_t page;                // tokens a page; 0: contiguous
  int64_t pool;                // pages in the pool
  int64_t caches = INT64_MAX;  // rows of page_table, or of the contiguous cache

  FOVEA_HD Sequence operator[](int64_t r) const {
    Sequence q;
    int64_t extent = s;
    q.batch = r, q.row_begin = 0;
    if (query_start) {
      q.batch = 0, q.row_begin = clamp_i64(query_start[r], 0, s);
      extent = clamp_i64(query_start[r + 1], q.row_begin, s) - q.row_begin;
    }
    if (query_len) extent = clamp_i64(query_len[r], 0, extent);
    q.rows = extent < query_max ? extent : query_max;

    int64_t keys = capacity;
    q.key_batch = r, q.key_b = r, q.key_begin = 0, q.key_first = 0;
    if (cache_row) q.key_batch = cache_row[r];
    if (key_start) {
      q.key_batch = 0, q.key_b = 0, q.key_begin = clamp_i64(key_start[r], 0, capacity);
      keys = clamp_i64(key_start[r + 1], q.key_begin, capacity) - q.key_begin;
    }
    if (key_len) keys = clamp_i64(key_len[r], 0, keys);
    if (key_max < keys) keys = key_max;
    if (q.key_batch >= caches) q.key_batch = -1;
    if (q.key_batch < 0) keys = 0;
    if (key_first) {
      q.key_first = clamp_i64(key_first[r], 0, keys);
      q.key_begin += q.key_first;
      keys -= q.key_first;
    }
    q.keys = keys;
    q.context = context_len ? context_len[r] : keys;
    return q;
  }

  // Pool page that holds storage index i of the sequence (paged only); -1: absent.
  FOVEA_HD int64_t page_of(const Sequence& q, int64_t i) const {
    const int64_t id =
        page_table
            .as<int32_t>()[q.key_batch * page_table.stride[0] + i / page * page_table.stride[1]];
    return id < pool ? id : -1;
  }
  // Element offset of logical key j for a tensor with strides {first axis, token axis}; -1: absent.
  FOVEA_HD int64_t key_offset(const Sequence& q, int64_t j, const int64_t* stride) const {
    const int64_t i = q.key_begin + j;
    if (!page) return q.key_batch * stride[0] + i * stride[1];
    const int64_t id = page_of(q, i);
    return id < 0 ? -1 : id * stride[0] + i % page * stride[1];
  }
};

// Keys [low, high) and [first_low, first_high) by index; the second are sink keys.
struct KeyRange {
  int64_t low, high, first_low, first_high;
};

// The bounds of a window, in the public convention: 0 means unlimited.  Int: int where positions
// and limits leave room for sums.
template <class Int>
struct Reach {
  Int left, right;

  // Keys [low, high) of the row at p, of those before `end`.  May lie below 0.
  FOVEA_HD Int low(Int p) const { return left > 0 ? p - left + 1 : 0; }
  FOVEA_HD Int high(Int p, Int end) const {
    const Int to = right > 0 ? p + right : end;
    return to < end ? to : end;
  }
  // Rows [first_row, end_row) that see the key at p, where rows lie in [begin, end).
  FOVEA_HD Int first_row(Int p, Int begin) const { return right > 0 ? p - right + 1 : begin; }
  FOVEA_HD Int end_row(Int p, Int end) const { return left > 0 ? p + left : end; }
  // A key `away` behind the row, or before it.
  FOVEA_HD bool sees(Int away) const {
    return !(right > 0 && away >= right) && !(left > 0 && away <= -left);
  }
};

// Positions [low, high), and those of [floor, high) below `sink`.
template <class Int>
struct SeenKeys {
  Int floor, low, high, sink;
  FOVEA_HD bool operator()(Int at) const {
    return at < high && (at >= low || (at < sink && at >= floor));
  }
  FOVEA_HD bool all(Int begin, Int end) const {
    return end <= high && (begin >= low || (end <= sink && begin >= floor));
  }
};

struct Interval {
  int64_t begin, end;
};

// x / y rounded up, y > 0.  64-bit division is slow on a device and rarely needed.
FOVEA_HD int64_t ceil_quotient(int64_t x, int64_t y) {
  const int64_t of = x > 0 ? x + (y - 1) : -x;
  const int64_t quotient =
      (of | y) >> 32 ? of / y
                     : static_cast<int64_t>(static_cast<uint32_t>(of) / static_cast<uint32_t>(y));
  return x > 0 ? quotient : -quotient;
}

// Key j is at position step * j + shift.  Without a tensor of positions they ascend, so what a row
// sees is intervals of keys.
struct KeyAxis {
  int64_t step = 1, shift = 0;
  FOVEA_HD bool by_index() const { return step == 1 && shift == 0; }
  FOVEA_HD int64_t at(int64_t j) const { return step * j + shift; }
  // The first key at position p or after it.  May lie below 0, or past the last.
  FOVEA_HD int64_t from(int64_t p) const {
    return step == 1 ? p - shift : ceil_quotient(p - shift, step);
  }
};

// The window of one head, in the public convention: 0 means unlimited.
struct Window {
  int64_t left, right, sink, chunk;
  FOVEA_HD Reach<int64_t> reach() const { return {left, right}; }
  FOVEA_HD bool limits() const { return left || right || chunk; }
  FOVEA_HD bool sees(int64_t p_i, int64_t p_j) const {
    if (right > 0 && p_j >= p_i + right) return false;
    if (left > 0 && p_j <= p_i - left && p_j >= sink) return false;
    if (chunk > 0 && floor_div(p_i) != floor_div(p_j)) return false;
    return true;
  }
  FOVEA_HD int64_t floor_div(int64_t p) const {
    return p >= 0 ? p / chunk : -((chunk - 1 - p) / chunk);
  }
  // From the lower bound of the row at `lower` to the upper bound of the row at `upper`, of `keys`
  // keys along an axis, as key numbers.  Of rows first .. last, some of them see within
  // seen(first, last), and every one sees seen(last, first).  May lie below 0.
  FOVEA_HD SeenKeys<int64_t> seen(int64_t lower, int64_t upper, int64_t keys,
                                  const KeyAxis& axis = {}) const {
    SeenKeys<int64_t> at{0, 0, keys, 0};
    const auto ends = [&](int64_t p) {
      if (const int64_t j = axis.from(p); j < at.high) at.high = j;
    };
    if (right > 0) ends(upper + right);
    if (left > 0) at.low = axis.from(lower - left + 1), at.sink = axis.from(sink);
    if (chunk > 0) {
      at.floor = axis.from(floor_div(lower) * chunk);
      ends((floor_div(upper) + 1) * chunk);
      if (at.floor > at.low) at.low = at.floor;
    }
    return at;
  }
  // Rows of [0, rows) that may see a key at a position in [p0, p1), row i being at i + shift.
  FOVEA_HD Interval rows(int64_t p0, int64_t p1, int64_t shift, int64_t rows) const {
    Interval at{reach().first_row(p0, shift) - shift,
                p0 >= sink ? reach().end_row(p1 - 1, rows + shift) - shift : rows};
    if (chunk > 0) {
      const int64_t begin = floor_div(p0) * chunk - shift;
      const int64_t end = (floor_div(p1 - 1) + 1) * chunk - shift;
      at.begin = at.begin > begin ? at.begin : begin, at.end = at.end < end ? at.end : end;
    }
    return at;
  }
  // seen() of a row at p as intervals within [0, keys).
  FOVEA_HD KeyRange range(int64_t p, int64_t keys, const KeyAxis& axis = {}) const {
    const SeenKeys<int64_t> at = seen(p, p, keys, axis);
    const int64_t high = clamp_i64(at.high, 0, keys);
    return {clamp_i64(at.low, 0, keys), high, clamp_i64(at.floor, 0, keys),
            clamp_i64(at.sink, 0, high)};
  }
};

// The window of a plain call (Attend::plain()) with default positions: row i of `rows` sees the
// keys j of `keys` with i + shift - left < j < i + shift + right, where shift = keys - rows and 0
// means unlimited.  Which rows see which keys, for whoever walks either.  In ints: the device's
// extents are far below 2^31, and a limit beyond kLimit is one that nobody reaches.
struct PlainWindow {
  static constexpr int64_t kLimit = (1 << 30) - 1;
  int left, right, rows, keys;

  // [low, high)
  struct Span {
    int low, high;
  };
  FOVEA_HD PlainWindow(const Window& w, int rows, int keys)
      : left(static_cast<int>(clamp_i64(w.left, 0, kLimit))),
        right(static_cast<int>(clamp_i64(w.right, 0, kLimit))),
        rows(rows),
        keys(keys) {}
  // Keys that some row of [begin, end) sees; none: high <= low.
  FOVEA_HD Span keys_of(int begin, int end) const {
    const int shift = keys - rows, low = begin + shift - left + 1, high = end - 1 + shift + right;
    return {left && low > 0 ? low : 0, right && high < keys ? high : keys};
  }
  // Rows that see some key of [begin, end); none: high <= low.
  FOVEA_HD Span rows_of(int begin, int end) const {
    const int back = rows - keys;
    const auto within = [&](int i) { return i < 0 ? 0 : i < rows ? i : rows; };
    return {right ? within(begin + back - right + 1) : 0,
            left ? within(end - 1 + back + left) : rows};
  }
};

struct Mask {
  Window window;  // of every head, causal folded in
  KeyAxis axis;   // where key_position is not given
  View<2> head_window;
  View<3> query_position, key_position;
  View<4> bits;

  FOVEA_HD Window of_head(int64_t h) const {
    if (!head_window) return window;
    const int32_t* row = head_window.as<int32_t>() + h * head_window.stride[0];
    return {row[0], row[head_window.stride[1]], row[2 * head_window.stride[1]], window.chunk};
  }
  FOVEA_HD int64_t query_at(const Sequence& q, int64_t h, int64_t i) const {
    if (!query_position) return i + q.context - q.rows;
    return query_position
        .as<int32_t>()[q.batch * query_position.stride[0] + h * query_position.stride[1] +
                       (q.row_begin + i) * query_position.stride[2]];
  }
  // Position of logical key j; the paged form of key_position is indexed by column, the packed one
  // by storage index.  A negative one of a tensor: no key here.
  FOVEA_HD int64_t key_at(const Sequence& q, int64_t g, int64_t j) const {
    if (!key_position) return axis.at(j);
    return key_position
        .as<int32_t>()[q.key_b * key_position.stride[0] + g * key_position.stride[1] +
                       (q.key_begin + j) * key_position.stride[2]];
  }
  FOVEA_HD bool bit(const Sequence& q, int64_t h, int64_t i, int64_t j) const {
    if (!bits) return true;
    const int64_t column = q.key_first + j;
    const uint8_t byte =
        bits.as<uint8_t>()[q.batch * bits.stride[0] + h * bits.stride[1] +
                           (q.row_begin + i) * bits.stride[2] + column / 8 * bits.stride[3]];
    return byte >> (column % 8) & 1;
  }
};

struct Score {
  float scale;    // resolved, > 0
  float softcap;  // 0: none
  View<4> bias;
  int32_t bias_dtype;
  View<2> alibi;       // (r, h)
  View<1> sink_logit;  // (h)
};

struct Rope {
  View<2> cos, sin;
  int64_t positions, half;
  int32_t begin, interleaved;
};

// k and v strides are {first axis, token, head, column}: (rows, t, g, d) or (pool, page, g, d).
struct Attend {
  View<4> q, k, v, o, q_value;
  View<3> lse;
  int32_t dtype, o_dtype;  // k_dtype and v_dtype: of other types where they are codes
  int32_t k_dtype, v_dtype;
  int64_t b, s, t, h, g, d, e;
  int64_t columns;  // extent of the column axis of bias and mask ("keys")
  Sequences sequences;
  Mask mask;
  Score score;
  Rope rope;
  View<4> k_scale, v_scale;  // of codes; not given: 1
  int64_t groups;            // scales of a row
  int32_t splits;            // as asked; 0: auto

  bool codes() const { return k_dtype != dtype || v_dtype != dtype; }

  // The call has neither positions, per-head windows, bit mask, bias, alibi, softcap, sinks,
  // q_value, rope, chunk, codes nor absent pages to think of: scale, window and lengths are all.
  // A sink logit changes no score: it enters a row's sum at the end, in every kernel.
  bool plain() const { return !not_plain(); }
  // What a row sees is still intervals of keys, but not those of one window: sink keys, chunks,
  // windows of heads, keys along an axis.
  bool spans() const {
    return mask.head_window || mask.window.chunk || mask.window.sink || sequences.context_len ||
           !mask.axis.by_index();
  }
  // The same call but for that, and for a softcap.
  Attend without_spans() const {
    Attend a = *this;
    a.mask.head_window = {}, a.mask.window.chunk = a.mask.window.sink = 0;
    a.sequences.context_len = {}, a.mask.axis = {}, a.score.softcap = 0;
    return a;
  }
  // The first field that makes the call another one; nullptr: it is plain.
  const char* not_plain() const {
    if (mask.bits) return "mask";
    if (score.bias) return "bias";
    if (score.alibi) return "alibi";
    if (mask.head_window) return "head_window";
    if (mask.query_position) return "query_position";
    if (mask.key_position) return "key_position";
    if (mask.window.chunk) return "local_chunk";
    if (mask.window.sink) return "sink_keys";
    if (score.softcap != 0) return "softcap";
    if (sequences.context_len) return "context_len";
    if (mask.axis.step != 1) return "key_step";
    if (mask.axis.shift) return "key_shift";
    if (q_value) return "q_value";
    return rope.cos ? "cos" : nullptr;
  }
};

// Key blocks that each block of query rows sees: for each (sequence, head, row block) `keep`
// places, of which the first `count` are in use, ascending.
struct BlockList {
  const int32_t *entry, *count;
  int64_t n, keep;
  int32_t block_rows, block_keys;
};

// A call whose rows see the blocks of a list alone.  It is no Attend and becomes none, so a kernel
// that knows of no list cannot be given one.
struct ListedAttend {
  Attend attend;
  BlockList list;
};
FOVEA_HD const Attend& attend_in(const Attend& call) {
  return call;
}
FOVEA_HD const Attend& attend_in(const ListedAttend& call) {
  return call.attend;
}

struct AttendBackward {
  Attend forward;  // o and lse are inputs here
  GradientView dq, dk, dv;
  View<4> dout, dbias;
  View<3> dlse;
  View<1> dsink_logit;
  View<2> dalibi;
  bool nondeterministic;
};

}  // namespace fovea
