// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward and _backward: the sweep, the edges by name.  Keys that no list names, places
// past a count, pages that no list names and lists of no row are of no account: they hold NaN and
// absurd numbers.
#include "oracle/sparse.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "cases/all.h"
#include "cases/attention_case.h"
#include "harness/pairwise.h"

namespace cases {
namespace {

// uniform: blocks; clusters: row_begin and key_begin; rows, keys: one of them.
enum class Blocks { uniform, clusters, rows, keys };

struct SparseCase {
  std::string note;
  int dtype = FOVEA_F32;
  int64_t b = 2, s = 40, t = 70, h = 4, g = 2, x = 4, d = 16, e = 16;
  Where where = Where::batched;
  int64_t page = 0;
  int64_t block_rows = 16, block_keys = 16, entry_keys = 0;
  int64_t keep = 3, columns = 0;  // 0: no index, no column
  Blocks blocks = Blocks::uniform;
  int64_t row_blocks = 5;  // of row_begin
  bool counts = true, tiles = false, bias = false;
  int64_t first = 0, last = 0;
  Span span = Span::full;
  bool softcap = false, sink_logit = false, q_value = false, head_map = false, skip_head = false;
  bool mass = false, skipped = false, o_f32 = false, lse = true, dlse = false, spare = false;
  float margin = 0;
  bool low = false;              // some tiles of 64 keys score far below others
  int splits = 0, outputs = 15;  // dq dk dv dsink_logit
  int codes = 0;                 // k in this type, v in it or as q
  int axis = 0;                  // 1: keys that stand for 4 tokens; 2: a shift and a context
  bool v_in_k = false;           // v is the first columns of k
  bool record = false;           // FP8-MLA's: v in e4m3 with scales, k as q, 656 bytes apart
  Lay lay = Lay::contiguous;
  bool listed() const { return keep || columns; }
  int64_t cost() const { return b * s * t * h * (d + e); }
};

std::string name_of(const SparseCase& c, bool backward) {
  std::ostringstream name;
  const auto flag = [&](bool on, const char* word) {
    if (on) name << "_" << word;
  };
  name << dtype_name(c.dtype) << "/b" << c.b << "_s" << c.s << "_t" << c.t << "_h" << c.h << "_g"
       << c.g << "_x" << c.x << "_d" << c.d << "_e" << c.e << "/rows" << c.block_rows << "_keys"
       << c.block_keys << "_keep" << c.keep;
  flag(c.entry_keys, "overlap"), flag(c.columns, "columns"), flag(!c.counts, "all");
  static constexpr const char* blocks[] = {"", "clusters", "row_clusters", "key_clusters"};
  flag(c.blocks != Blocks::uniform, blocks[static_cast<int>(c.blocks)]);
  flag(c.tiles, "tiles"), flag(c.bias, "bias"), flag(c.first, "first"), flag(c.last, "last");
  name << "/" << kSpanNames[static_cast<int>(c.span)];
  flag(c.where != Where::batched, kWhereNames[static_cast<int>(c.where)]);
  if (c.page) name << c.page;
  flag(c.softcap, "softcap"), flag(c.sink_logit, "sink"), flag(c.q_value, "q_value");
  flag(c.head_map, "head_map"), flag(c.skip_head, "skip_head"), flag(c.mass, "mass");
  flag(c.skipped, "skipped"), flag(c.o_f32, "o_f32"), flag(!c.lse, "no_lse");
  if (c.codes) name << "_" << dtype_name(c.codes);
  flag(c.axis == 1, "step"), flag(c.axis == 2, "shift"), flag(c.v_in_k, "v_in_k");
  flag(c.record, "record"), flag(c.spare, "spare"), flag(c.dlse, "dlse");
  if (c.margin > 0) name << "_margin" << static_cast<int>(c.margin * 10);
  flag(c.low, "low");
  if (c.splits) name << "_splits" << c.splits;
  if (backward && c.outputs != 15) name << "_out" << c.outputs;
  if (c.lay != Lay::contiguous) name << "_" << harness::kLayNames[static_cast<int>(c.lay)];
  if (!c.note.empty()) name << "_" << c.note;
  return name.str();
}

template <class P>
class SparseBuild {
 public:
  static constexpr bool kForward = requires(P p) { p.column; };

  // `shape_seed` decides extents, `data_seed` values, lengths and lists.
  SparseBuild(Call& call, P& p, const SparseCase& c, uint64_t shape_seed, uint64_t data_seed)
      : call_(call), p_(p), c_(c), data_(data_seed), random_(data_seed), starts_(shape_seed) {}

  void build() {
    sequences();
    operands();
    numbers();
    lists();
    if constexpr (kForward) forward_fields();
    if (c_.sink_logit) fill("sink_logit", p_.sink_logit, FOVEA_F32, {c_.h}, 5);
    account();
  }

  size_t fill(const char* name, fovea_tensor& slot, int dtype, const Shape& shape, uint64_t stream,
              double spread = 1) {
    const size_t field = call_.add(name, slot, Role::in, dtype, shape, c_.lay);
    const harness::Random random(data_ ^ stream << 32);
    uint64_t n = 0;
    call_.fill(field, [&](const int64_t*) { return spread * random.normal(n++); });
    return field;
  }
  bool row_counts(const int64_t* i) const { return rows_[i[0] * s + i[1]]; }

  int64_t b = 0, s = 0, r = 0;

 private:
  size_t ints(const char* name, fovea_tensor& slot, const Shape& shape,
              const std::function<double(const int64_t*)>& value) {
    const size_t field = call_.add(name, slot, Role::in, FOVEA_I32, shape);
    call_.fill(field, value);
    return field;
  }
  size_t ints(const char* name, fovea_tensor& slot, const std::vector<int64_t>& x) {
    return ints(name, slot, {static_cast<int64_t>(x.size())},
                [&](const int64_t* i) { return static_cast<double>(x[i[0]]); });
  }

  void sequences() {
    s = c_.s, r = b = c_.b, slots_ = c_.t, cache_ = c_.b;
    std::vector<int64_t> query_start{0}, key_start{0}, query_len, key_len;
    if (c_.where == Where::varlen) {
      r = c_.b + 2, b = cache_ = 1;
      for (int64_t i = 0; i < r; ++i) {
        query_start.push_back(query_start.back() + (i == 1   ? 0
                                                    : i == 0 ? c_.s
                                                             : starts_.integer(1, c_.s)));
        key_start.push_back(key_start.back() + (i == 2   ? 0
                                                : i == 0 ? c_.t
                                                         : starts_.integer(1, c_.t)));
      }
      s = query_start.back() + 2, slots_ = key_start.back() + 3;
      p_.query_max = c_.s;
      ints("query_start", p_.query_start, query_start), ints("key_start", p_.key_start, key_start);
    } else if (c_.where != Where::batched) {
      for (int64_t i = 0; i < r; ++i) {
        query_len.push_back(i == 0 ? s : random_.integer(0, s));
        key_len.push_back(i == 0 ? c_.t : random_.integer(0, c_.t));
      }
      ints("query_len", p_.query_len, query_len), ints("key_len", p_.key_len, key_len);
    }
    if constexpr (kForward) {
      if (c_.where == Where::cache_row) {
        cache_ = r + 2;
        std::vector<int64_t> rows;
        for (int64_t i = 0; i < r; ++i) rows.push_back(i == 1 ? -1 : cache_ - 1 - i);
        ints("cache_row", p_.cache_row, rows);
      }
      if (c_.where == Where::paged) pages();
    }
  }

  // Neighbours lie apart; one page in five is absent.
  void pages() {
    if constexpr (kForward) {
      const int64_t width = (c_.t + c_.page - 1) / c_.page + 1, pool = r * width + 1;
      std::vector<int64_t> order(pool);
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = order.size() - 1; i > 0; --i)
        std::swap(order[i], order[random_.integer(0, static_cast<int64_t>(i))]);
      ints("page_table", p_.page_table, {r, width}, [&](const int64_t* i) {
        const int64_t page = i[0] * width + i[1];
        return static_cast<double>(page % 5 == 3 ? -1 : order[page]);
      });
      cache_ = pool, slots_ = c_.page;
    }
  }

  void numbers() {
    const int64_t w = std::max<int64_t>(1, c_.t / 3);
    p_.causal = c_.span == Span::causal || c_.span == Span::left || c_.span == Span::left_sink;
    if (c_.span != Span::full && c_.span != Span::causal) p_.window_left = w;
    if (c_.span == Span::left_sink) p_.sink_keys = 3;
    if (c_.span == Span::band) p_.window_right = w / 2 + 2;
    if (c_.softcap) p_.softcap = 3;
    p_.first_keys = c_.first, p_.last_keys = c_.last;
    const bool rows = c_.blocks == Blocks::clusters || c_.blocks == Blocks::rows;
    const bool keys = c_.blocks == Blocks::clusters || c_.blocks == Blocks::keys;
    if (c_.listed() && !rows) p_.block_rows = static_cast<int32_t>(c_.block_rows);
    if (c_.keep && !keys) {
      p_.block_keys = static_cast<int32_t>(c_.block_keys);
      p_.entry_keys = static_cast<int32_t>(c_.entry_keys);
    }
    if constexpr (kForward) {
      p_.skip_margin = c_.margin, p_.splits = c_.splits;
      if (c_.axis == 1) p_.key_step = 4, p_.key_shift = 3, p_.sink_keys *= 4;
      if (c_.axis == 2) p_.key_shift = -7;
      if (!c_.axis) return;
      const oracle::Sparse o = oracle::load_sparse(p_);
      std::vector<int64_t> context;
      for (int64_t i = 0; i < r; ++i)
        context.push_back(oracle::sequence(o.a.at, i).keys * (c_.axis == 1 ? 4 : 1) +
                          random_.integer(-9, 5));
      ints("context_len", p_.context_len, context);
    }
  }

  void operands() {
    fill("q", p_.q, c_.dtype, {b, s, c_.h, c_.d}, 1, c_.softcap || c_.margin > 0 ? 3 : 1);
    if (c_.record) return records();
    const double spread = c_.codes == FOVEA_I8 ? 40 : 1;
    const bool v_codes = c_.codes && c_.codes != FOVEA_E5M2;
    k_ = fill("k", p_.k, c_.codes ? c_.codes : c_.dtype, {cache_, slots_, c_.g, c_.d}, 2, spread);
    if (c_.low) lower_keys();
    if (c_.v_in_k) {
      fovea_tensor v = p_.k;
      v.shape[3] = c_.e;
      v_ = call_.add_view("v", p_.v, Role::in, v, k_, 0);
    } else {
      v_ = fill("v", p_.v, v_codes ? c_.codes : c_.dtype, {cache_, slots_, c_.g, c_.e}, 3,
                v_codes ? spread : 1);
    }
    if constexpr (kForward) {
      const int64_t groups = c_.d % 4 == 0 && c_.e % 4 == 0 ? 4 : 1;
      const auto scale = [&](const char* name, fovea_tensor& slot, uint64_t stream) {
        const Shape shape = {cache_, slots_, c_.g, c_.v_in_k ? 1 : groups};
        const size_t field = call_.add(name, slot, Role::in, FOVEA_F32, shape, c_.lay);
        fill_scale(field, stream, spread);
      };
      if (c_.codes) scale("k_scale", p_.k_scale, 1);
      if (c_.codes && c_.v_in_k)
        call_.add_view("v_scale", p_.v_scale, Role::in, p_.k_scale, call_.field("k_scale"), 0);
      else if (v_codes)
        scale("v_scale", p_.v_scale, 2);
    }
  }
  void fill_scale(size_t field, uint64_t stream, double spread) {
    const harness::Random random(data_ ^ stream << 40);
    uint64_t n = 0;
    call_.fill(field, [&](const int64_t*) { return (0.5 + random.uniform(n++)) / spread; });
    scales_.push_back(field);
  }
  void records() {
    if constexpr (kForward) {
      const auto in_records = [&](const char* name, fovea_tensor& slot, int dtype, int64_t width) {
        const Shape shape = {cache_, slots_, c_.g, width};
        fovea_tensor x =
            fovea_contiguous(nullptr, static_cast<fovea_dtype>(dtype), 4, shape.data());
        x.stride[1] = c_.g * 656 / oracle::bytes_of(dtype), x.stride[0] = slots_ * x.stride[1];
        return call_.add_strided(name, slot, Role::in, x);
      };
      const auto fill_normal = [&](size_t field, uint64_t stream) {
        const harness::Random random(data_ ^ stream << 32);
        uint64_t n = 0;
        call_.fill(field, [&](const int64_t*) { return random.normal(n++); });
        return field;
      };
      k_ = fill_normal(in_records("k", p_.k, c_.dtype, c_.d), 2);
      v_ = fill_normal(in_records("v", p_.v, FOVEA_E4M3, c_.e), 3);
      fill_scale(in_records("v_scale", p_.v_scale, FOVEA_F32, 4), 2, 1);
    }
  }

  // Tiles high, low, low, high, low, low, high, high: of each pair of neighbours some are low.
  // Pages count one after the other, so that smaller ones mix.
  void lower_keys() {
    const harness::Random random(data_ ^ uint64_t{2} << 32);
    uint64_t n = 0;
    call_.fill(k_, [&](const int64_t* i) {
      const int64_t at = c_.where == Where::paged ? i[0] * slots_ + i[1] : i[1];
      return (0xc9 >> at / 64 % 8 & 1 ? 2 : 0.02) * random.normal(n++);
    });
  }

  void lists() {
    if (!c_.listed()) return;
    const bool rows = c_.blocks == Blocks::clusters || c_.blocks == Blocks::rows;
    const bool keys = c_.blocks == Blocks::clusters || c_.blocks == Blocks::keys;
    const bool packed = c_.where == Where::varlen;
    const int64_t blocks = packed ? s / c_.block_rows + r : (s + c_.block_rows - 1) / c_.block_rows;
    n_ = rows ? c_.row_blocks : c_.block_rows == 1 ? s : blocks;
    if (c_.spare) n_ += 2;
    const int64_t u = 7, step = c_.entry_keys ? c_.entry_keys : c_.block_keys;
    const int64_t entries = keys ? u : (c_.t + step - 1) / step;
    if (rows) clusters("row_begin", p_.row_begin, n_, s, 1);
    if (keys) clusters("key_begin", p_.key_begin, u, c_.t, 0);
    const Shape places = {b, c_.x, n_, c_.keep};
    if (c_.keep) {
      // None, entries, entries twice, numbers past the last.
      index_ = ints("index", p_.index, places,
                    [&](const int64_t*) { return random_.integer(-2, entries + 1); });
      if (c_.counts)
        counts_ = ints("index_count", p_.index_count, {b, c_.x, n_}, [&](const int64_t* i) {
          return i[2] % 5 == 4 ? 0 : random_.integer(-1, c_.keep + 2);
        });
    }
    if (c_.tiles) {
      tile_ = ints("tile", p_.tile, places,
                   [&](const int64_t*) { return std::max<int64_t>(-2, random_.integer(-5, 4)); });
      const size_t bits = call_.add("tile_bits", p_.tile_bits, Role::in, FOVEA_U8,
                                    {4, c_.block_rows, (c_.block_keys + 7) / 8});
      const harness::Random random(data_ ^ 77);
      uint64_t at = 0;
      call_.fill(bits, [&](const int64_t*) { return random.bits(at++) & 255; });
    }
    if constexpr (kForward) {
      if (c_.bias) {
        bias_ = fill("index_bias", p_.index_bias, FOVEA_F32, {b, c_.h, n_, c_.keep}, 6);
        call_.each(bias_, [&](const int64_t* i, int64_t byte) {
          if ((i[2] + i[3]) % 6 == 5)
            oracle::encode(FOVEA_F32, -HUGE_VAL,
                           call_.storages[call_.fields[bias_].storage].image.data() + byte);
        });
      }
      if (c_.columns) {
        column_ = ints("column", p_.column, {b, c_.x, n_, c_.columns},
                       [&](const int64_t*) { return random_.integer(-1, c_.t); });
        if (c_.counts)
          column_counts_ =
              ints("column_count", p_.column_count, {b, c_.x, n_},
                   [&](const int64_t*) { return random_.integer(-1, c_.columns + 1); });
      }
    }
  }

  // Ascending starts, of which some block is empty, and the last end lies near `extent`.
  void clusters(const char* name, fovea_tensor& slot, int64_t count, int64_t extent, int64_t low) {
    std::vector<std::vector<int64_t>> starts;
    const int64_t grain =
        count > extent && extent > 8 ? 4 : 1;  // many starts, and still blocks of some rows
    for (int64_t i = 0; i < b * c_.x; ++i) {
      std::vector<int64_t> x;
      for (int64_t n = 0; n <= count; ++n)
        x.push_back(random_.integer(low, extent / grain) * grain);
      if (i % 2 && count > 1) x[1] = x[2];
      std::sort(x.begin(), x.end());
      starts.push_back(x);
    }
    ints(name, slot, {b, c_.x, count + 1},
         [&](const int64_t* i) { return static_cast<double>(starts[i[0] * c_.x + i[1]][i[2]]); });
  }

  void forward_fields() {
    if constexpr (kForward) {
      if (c_.q_value) fill("q_value", p_.q_value, c_.dtype, {b, s, c_.h, c_.e}, 4);
      if (c_.head_map)
        ints("head_map", p_.head_map, {b, c_.h},
             [&](const int64_t* i) { return random_.integer(-1, c_.h) * (i[1] != 0); });
      if (c_.skip_head)
        ints("skip_head", p_.skip_head, {c_.h}, [&](const int64_t* i) { return i[0] % 3 == 1; });
      if (!c_.mass) return;
      const bool paged = c_.where == Where::paged;
      const int64_t rows = paged ? r : p_.key_start.data ? 1 : r;
      const int64_t columns = paged ? p_.page_table.shape[1] * c_.page : slots_;
      mass_ = call_.add("mass", p_.mass, Role::inout, FOVEA_F32, {rows, c_.x, columns}, c_.lay);
      const harness::Random random(data_ ^ 99);
      uint64_t n = 0;
      call_.fill(mass_, [&](const int64_t*) { return random.uniform(n++); });
    }
  }

  // Rows of sequences, lists of such rows, places in use, keys that somebody may meet.
  void account() {
    const oracle::Sparse o = oracle::load_sparse(p_);
    rows_.assign(b * s, 0);
    std::vector<char> keys(cache_ * slots_), used(b * c_.x * std::max<int64_t>(n_, 1));
    for (int64_t i = 0; i < r; ++i) {
      const oracle::Sequence q = oracle::sequence(o.a.at, i);
      for (int64_t row = 0; row < q.rows; ++row) {
        rows_[q.batch * s + q.row + row] = 1;
        for (int64_t x = 0; x < c_.x && o.listed(); ++x) {
          int64_t begin;
          const int64_t list = oracle::list_row_of(o, q, x, row, begin);
          if (list >= 0) used[(q.batch * c_.x + x) * n_ + list] = 1;
        }
      }
      reached(o, q, keys);
    }
    for (const char* name : {"q", "q_value"})
      if (call_.field(name) < call_.fields.size())
        call_.account(call_.field(name), [&](const int64_t* i) { return row_counts(i); });
    scales_.insert(scales_.end(), {k_, v_});
    for (size_t field : scales_)
      call_.account(field, [&](const int64_t* i) { return keys[i[0] * slots_ + i[1]] != 0; });
    const auto list = [&](const int64_t* i) { return used[(i[0] * c_.x + i[1]) * n_ + i[2]] != 0; };
    const auto places = [&](size_t field, const oracle::Dense& count, int64_t most) {
      if (!field) return;
      call_.account(field, [&](const int64_t* i) {
        return list(i) && i[3] < oracle::used(count, i[0], i[1], i[2], most);
      });
    };
    places(index_, o.index_count, c_.keep), places(tile_, o.index_count, c_.keep);
    places(column_, o.column_count, c_.columns);
    if (counts_) call_.account(counts_, list);
    if (column_counts_) call_.account(column_counts_, list);
    if (bias_)
      call_.account(bias_, [&](const int64_t* i) {
        const int64_t at[3] = {i[0], i[1] / (c_.h / c_.x), i[2]};
        return list(at) && i[3] < oracle::used(o.index_count, at[0], at[1], at[2], c_.keep);
      });
  }

  // Keys within an entry, a column or what is always seen, whether a window hides them or not.
  void reached(const oracle::Sparse& given, const oracle::Sequence& q, std::vector<char>& keys) {
    oracle::Sparse o = given;
    o.a.window_left = o.a.window_right = 0;
    o.tile = {}, o.index_bias = {};
    std::vector<oracle::Key> of;
    for (int64_t j = 0; j < q.keys; ++j) of.push_back(oracle::key_of(o.a, q, 0, j));
    for (int64_t head = 0; head < c_.h; ++head)
      for (int64_t i = 0; i < q.rows; ++i) {
        for (const oracle::Pair& pair : oracle::pairs_of(o, q, head, i, of)) {
          const oracle::Place at = of[pair.j].at;
          keys[at.row * slots_ + at.slot] = 1;
        }
      }
  }

  Call& call_;
  P& p_;
  const SparseCase& c_;
  const uint64_t data_;
  harness::Random random_, starts_;
  int64_t slots_ = 0, cache_ = 0, n_ = 0;
  size_t k_ = 0, v_ = 0, index_ = 0, counts_ = 0, tile_ = 0, bias_ = 0, column_ = 0;
  size_t column_counts_ = 0, mass_ = 0;
  std::vector<size_t> scales_;
  std::vector<char> rows_;
};

Call build_forward(const SparseCase& c, uint64_t shape_seed, uint64_t seed) {
  fovea_x_sparse_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(x_sparse_forward), p);
  SparseBuild<fovea_x_sparse_forward_params> build(call, *p, c, shape_seed, seed);
  build.build();
  call.add("o", p->o, Role::out, c.o_f32 ? FOVEA_F32 : c.dtype, {build.b, build.s, c.h, c.e},
           c.lay);
  if (c.lse) call.add("lse", p->lse, Role::out, FOVEA_F32, {build.b, c.h, build.s}, c.lay);
  if (c.skipped) call.add("skipped", p->skipped, Role::out, FOVEA_I64, {1});
  auto exact = oracle::sparse_forward(*p, oracle::Mode::exact);
  auto rounded = oracle::sparse_forward(*p, oracle::Mode::rounded);
  const auto expect = [&](const char* name, oracle::Out& x, oracle::Out& y, bool bits = false) {
    if (call.field(name) < call.fields.size())
      call.expect(call.field(name), std::move(x), std::move(y), bits);
  };
  expect("o", exact.o, rounded.o), expect("lse", exact.lse, rounded.lse);
  expect("mass", exact.mass, rounded.mass), expect("skipped", exact.skipped, rounded.skipped, true);
  return call;
}

Call build_backward(const SparseCase& c, uint64_t shape_seed, uint64_t seed) {
  using Forward = fovea_x_sparse_forward_params;
  fovea_x_sparse_backward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(x_sparse_backward), p);
  SparseBuild<fovea_x_sparse_backward_params> build(call, *p, c, shape_seed, seed);
  build.build();
  const int o_dtype = c.o_f32 ? FOVEA_F32 : c.dtype;
  const Shape rows = {build.b, build.s, c.h, c.e}, numbers = {build.b, c.h, build.s};
  const size_t o = call.add("o", p->o, Role::in, o_dtype, rows, c.lay);
  const size_t lse = call.add("lse", p->lse, Role::in, FOVEA_F32, numbers, c.lay);
  const size_t dout = build.fill("dout", p->dout, o_dtype, rows, 7);
  // What the forward gave, rounded as it is stored.
  Forward f{};
  f.q = p->q, f.k = p->k, f.v = p->v, f.o = p->o, f.lse = p->lse, f.sink_logit = p->sink_logit;
  f.index = p->index, f.index_count = p->index_count, f.row_begin = p->row_begin;
  f.key_begin = p->key_begin, f.tile = p->tile, f.tile_bits = p->tile_bits;
  f.query_start = p->query_start, f.key_start = p->key_start;
  f.query_len = p->query_len, f.key_len = p->key_len;
  f.query_max = p->query_max, f.key_max = p->key_max, f.window_left = p->window_left;
  f.window_right = p->window_right, f.sink_keys = p->sink_keys, f.first_keys = p->first_keys;
  f.last_keys = p->last_keys, f.softcap = p->softcap, f.causal = p->causal;
  f.block_rows = p->block_rows, f.block_keys = p->block_keys, f.entry_keys = p->entry_keys;
  const oracle::SparseResult forward = oracle::sparse_forward(f, oracle::Mode::exact);
  call.fill_list(o, forward.o.value), call.fill_list(lse, forward.lse.value);
  if (c.dlse) build.fill("dlse", p->dlse, FOVEA_F32, numbers, 8);
  for (size_t field : {o, dout})
    call.account(field, [&](const int64_t* i) { return build.row_counts(i); });
  for (const char* name : {"lse", "dlse"})
    if (call.field(name) < call.fields.size())
      call.account(call.field(name), [&](const int64_t* i) {
        const int64_t at[2] = {i[0], i[2]};
        return build.row_counts(at);
      });
  const auto output = [&](int bit, const char* name, fovea_tensor& slot, const fovea_tensor& like,
                          int dtype) {
    if (c.outputs >> bit & 1)
      call.add(name, slot, Role::out, dtype, Shape(like.shape, like.shape + like.ndim), c.lay);
  };
  output(0, "dq", p->dq, p->q, c.dtype), output(1, "dk", p->dk, p->k, c.dtype);
  output(2, "dv", p->dv, p->v, c.dtype);
  if (c.sink_logit) output(3, "dsink_logit", p->dsink_logit, p->sink_logit, FOVEA_F32);
  auto exact = oracle::sparse_backward(*p, oracle::Mode::exact);
  auto rounded = oracle::sparse_backward(*p, oracle::Mode::rounded);
  const auto expect = [&](const char* name, oracle::Out& x, oracle::Out& y) {
    if (call.field(name) < call.fields.size())
      call.expect(call.field(name), std::move(x), std::move(y));
  };
  expect("dq", exact.dq, rounded.dq), expect("dk", exact.dk, rounded.dk);
  expect("dv", exact.dv, rounded.dv);
  expect("dsink_logit", exact.dsink_logit, rounded.dsink_logit);
  return call;
}

harness::Case case_of(const SparseCase& c, bool backward, bool tiny, std::string kernel) {
  const std::string name = name_of(c, backward);
  harness::Case out{backward ? "x_sparse_backward" : "x_sparse_forward",
                    name,
                    nullptr,
                    std::move(kernel),
                    "",
                    tiny};
  out.build = [=](uint64_t seed) {
    const uint64_t shape = harness::seed_of(name);
    return backward ? build_backward(c, shape, seed) : build_forward(c, shape, seed);
  };
  return out;
}

class SparseCases {
 public:
  SparseCases() {
    sweep();
    backward_sweep();
    edges();
    kernels();
    wide();
    wide_joined();
    wide_codes();
    skips();
    gradients();
    many_clusters();
    small();
  }
  std::vector<harness::Case> cases;

 private:
  void add(SparseCase c, bool backward = false, bool tiny = false, std::string kernel = "") {
    cases.push_back(case_of(c, backward, tiny, std::move(kernel)));
  }
  void both(SparseCase c, bool tiny = false) {
    add(c, false, tiny);
    if (c.where == Where::paged || c.where == Where::cache_row) c.where = Where::lengths;
    c.page = c.columns = 0;
    if (!c.keep) c.keep = 2;
    c.bias = c.q_value = c.head_map = c.skip_head = c.mass = c.skipped = false, c.margin = 0;
    c.splits = c.codes = c.axis = 0, c.lse = true;
    add(c, true, tiny);
  }

  // What both directions choose from.
  static SparseCase shape_of(const harness::Row& v) {
    SparseCase c;
    static constexpr int64_t heads[][3] = {{4, 2, 4}, {4, 2, 2}, {4, 2, 1}, {6, 1, 3},
                                           {2, 2, 2}, {8, 2, 2}, {16, 1, 1}};
    static constexpr int64_t widths[][2] = {{16, 16}, {64, 64}, {40, 72}, {128, 128}, {7, 130}};
    static constexpr int64_t lengths[][2] = {{1, 150},   {40, 70},  {70, 40},
                                             {130, 260}, {33, 500}, {3, 1}};
    static constexpr int64_t blocks[][3] = {{16, 16, 0},  {64, 64, 0}, {128, 128, 0}, {1, 1, 0},
                                            {1, 64, 0},   {1, 4, 0},   {64, 16, 0},   {48, 100, 0},
                                            {16, 64, 16}, {3, 5, 2},   {128, 1, 0},   {1, 200, 0}};
    c.dtype = kDtypes[v[0]];
    c.h = heads[v[1]][0], c.g = heads[v[1]][1], c.x = heads[v[1]][2];
    c.d = widths[v[2]][0], c.e = widths[v[2]][1];
    c.s = lengths[v[3]][0], c.t = lengths[v[3]][1];
    c.block_rows = blocks[v[4]][0], c.block_keys = blocks[v[4]][1], c.entry_keys = blocks[v[4]][2];
    c.keep = v[5] == 0 ? 1 : v[5] == 1 ? 5 : 20;
    c.blocks = v[6] < 3 ? Blocks::uniform : static_cast<Blocks>(v[6] - 2);
    c.tiles = v[7] == 1 && c.blocks == Blocks::uniform;
    c.first = v[8] % 2 ? 5 : 0, c.last = v[8] / 2 ? 9 : 0;
    c.span = static_cast<Span>(v[9]);
    c.softcap = v[10], c.sink_logit = v[11], c.o_f32 = v[12];
    c.lay = static_cast<Lay>(v[13]);
    c.counts = v[14], c.spare = v[14] && v[12];
    if (c.blocks == Blocks::clusters || c.blocks == Blocks::keys) c.entry_keys = 0;
    c.b = c.cost() < 4000000 ? 3 : 1;
    return c;
  }
  static std::vector<int> axes() { return {3, 7, 5, 6, 12, 3, 6, 2, 4, 5, 2, 2, 2, 5, 2}; }
  static bool fits(const SparseCase& c) {
    const bool clusters =
        c.blocks == Blocks::clusters || c.blocks == Blocks::rows || c.blocks == Blocks::keys;
    return c.cost() < 40000000 && !(clusters && c.where == Where::varlen);
  }

  static SparseCase forward_of(const harness::Row& v) {
    SparseCase c = shape_of(v);
    const size_t n = axes().size();
    static constexpr Where where[] = {Where::batched, Where::lengths, Where::varlen,
                                      Where::paged,   Where::paged,   Where::cache_row};
    c.where = where[v[n]], c.page = v[n] == 3 ? 16 : v[n] == 4 ? 3 : 0;
    c.columns = v[n + 1] ? 11 : 0;
    c.bias =
        v[n + 2] && c.block_keys == 1 && c.blocks != Blocks::clusters && c.blocks != Blocks::keys;
    c.head_map = v[n + 3] == 1, c.skip_head = v[n + 3] == 2, c.q_value = v[n + 3] == 3;
    c.mass = v[n + 4], c.lse = v[n + 5];
    c.splits = v[n + 6] == 0 ? 0 : v[n + 6] == 1 ? 3 : 1;
    c.margin = v[n + 6] == 3 ? 2 : 0, c.skipped = v[n + 6] >= 2;
    static constexpr int codes[] = {0, 0, FOVEA_E4M3, FOVEA_E5M2, FOVEA_I8};
    c.codes = codes[v[n + 8]], c.axis = v[n + 9];
    if (v[n + 7] == 1) c.keep = 0, c.tiles = c.bias = false, c.entry_keys = 0;
    if (v[n + 7] == 1 && (c.blocks == Blocks::clusters || c.blocks == Blocks::keys))
      c.blocks = Blocks::rows;
    if (!c.listed()) {
      c.blocks = Blocks::uniform, c.first = c.last = 0, c.counts = true, c.spare = false;
      c.mass = c.mass || !(c.head_map || c.skip_head || c.skipped);
      if (!c.mass) c.x = 1;
    }
    return c;
  }

  void sweep() {
    std::vector<int> sizes = axes();
    for (int n : {6, 2, 2, 4, 2, 2, 4, 5, 5, 3}) sizes.push_back(n);
    harness::Pairwise rows(
        sizes, [](const harness::Row& v) { return fits(forward_of(v)); }, 31);
    std::vector<std::string> seen;
    for (const harness::Row& v : rows.rows()) once(forward_of(v), false, seen);
  }
  void backward_sweep() {
    std::vector<int> sizes = axes();
    for (int n : {3, 2, 6}) sizes.push_back(n);
    const auto of = [](const harness::Row& v) {
      SparseCase c = shape_of(v);
      const size_t n = axes().size();
      static constexpr Where where[] = {Where::batched, Where::lengths, Where::varlen};
      static constexpr int outputs[] = {15, 15, 1, 2, 4, 6};
      c.where = where[v[n]], c.dlse = v[n + 1], c.outputs = outputs[v[n + 2]];
      return c;
    };
    harness::Pairwise rows(
        sizes, [&](const harness::Row& v) { return fits(of(v)) && of(v).cost() < 20000000; }, 32);
    std::vector<std::string> seen;
    for (const harness::Row& v : rows.rows()) once(of(v), true, seen);
  }
  // Axes that a case has no use for leave it as another one is.
  void once(const SparseCase& c, bool backward, std::vector<std::string>& seen) {
    const std::string name = name_of(c, backward);
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) return;
    seen.push_back(name);
    add(c, backward);
  }

  void edges() {
    const auto edge = [&](auto change, bool forward_only = false) {
      for (int dtype : kDtypes) {
        SparseCase c;
        c.note = "edge", c.dtype = dtype;
        change(c);
        forward_only ? add(c) : both(c);
      }
    };
    edge([](SparseCase& c) { c.b = 0; });
    edge([](SparseCase& c) { c.s = 0; });
    edge([](SparseCase& c) { c.t = 0; });
    edge([](SparseCase& c) { c.h = c.x = 0; });
    edge([](SparseCase& c) { c.h = c.g = c.x = 0; });
    edge([](SparseCase& c) { c.span = Span::causal, c.s = 90, c.t = 30, c.sink_logit = true; });
    // Longer lists than keys: each key many times.
    edge([](SparseCase& c) { c.keep = 60, c.t = 40, c.counts = false; });
    edge([](SparseCase& c) { c.keep = 700, c.block_keys = c.block_rows = 1, c.s = 5, c.x = 1; });
    edge(
        [](SparseCase& c) { c.d = 576, c.e = 512, c.g = c.x = 1, c.s = 9, c.span = Span::causal; });
    // All of it: the answer of a list that names each key once is the dense one.
    edge([](SparseCase& c) { c.first = 1000, c.span = Span::causal; });
    edge([](SparseCase& c) { c.last = 1000, c.span = Span::left_sink; });
    for (int splits : {1, 2, 7, 64})
      edge(
          [&](SparseCase& c) {
            c.splits = splits, c.s = 2, c.t = 900, c.block_rows = 1, c.block_keys = 16, c.keep = 40;
            c.where = Where::paged, c.page = 16, c.sink_logit = splits > 2, c.x = 2;
            c.mass = splits == 7;
          },
          true);
    for (float margin : {0.5f, 4.0f, 1000.0f})
      for (int64_t keys : {4, 48, 64, 128})
        edge(
            [&](SparseCase& c) {
              c.margin = margin, c.skipped = true, c.s = 150, c.t = 400, c.block_rows = 128;
              c.block_keys = keys, c.keep = 9, c.b = 1, c.first = keys == 4 ? 3 : 0;
              c.mass = keys == 48, c.columns = keys == 64 ? 5 : 0;
            },
            true);
    edge(
        [](SparseCase& c) {
          c.margin = 3, c.skipped = true, c.keep = 0, c.x = 1, c.s = 150, c.t = 300, c.b = 1;
          c.span = Span::causal;
        },
        true);
    // H2O's step: all keys, one row, the mass of each.
    edge([](SparseCase& c) { c.keep = 0, c.mass = true, c.s = 1, c.x = 2; }, true);
    edge([](SparseCase& c) { c.keep = 0, c.columns = 40, c.block_rows = 64; }, true);
  }

  // Every instance of a tuned kernel, by its name (src/ops/sparse/forward.inc).
  void kernels() {
    static constexpr int64_t widths[][2] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};
    for (int dtype : {FOVEA_F16, FOVEA_BF16})
      for (const auto& w : widths) {
        SparseCase c;
        c.note = "tuned", c.dtype = dtype, c.d = w[0], c.e = w[1], c.keep = 5;
        c.s = 290, c.t = 330, c.b = c.splits = 1, c.span = Span::causal;
        const std::string name = std::string("sm90.") + (dtype == FOVEA_F16 ? "f16" : "bf16") +
                                 ".d" + std::to_string(w[0]) + ".";
        blocks(c, name + "128x" + (w[0] > 128 ? "64" : "128"), 128, 128);
        blocks(c, name + "128x64", 128, 64);
        blocks(c, name + "64x64", 64, 64);
        if (w[0] > 128 && dtype == FOVEA_F16) continue;
        packed(c, name);
        unions(c, name);
        if (w[0] <= 128) large_unions(c, name + "128x128.union");
        if (w[0] <= 128) gathered_rows(c, name + "128x128.gathered");
        if (w[0] <= 128) columns(c, "sm90.columns." + name.substr(5, name.size() - 6));
        small_blocks(c, name);
        splits(c, name);
      }
  }
  // Single keys of heads wider than 256 (src/ops/sparse/wide.inc).
  void wide() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (bool v_in_k : {true, false}) {
        SparseCase c;
        c.note = "wide", c.dtype = dtype, c.d = 576, c.e = 512, c.v_in_k = v_in_k;
        c.block_rows = c.block_keys = 1, c.b = c.g = c.x = 1, c.h = 16, c.s = 7, c.t = 300;
        c.keep = 150, c.splits = 1, c.span = Span::causal;
        const std::string kernel = std::string("sm90_wide.") +
                                   (dtype == FOVEA_F16 ? "f16" : "bf16") + ".d576" +
                                   (v_in_k ? ".v_in_k" : "");
        wide_places(c, kernel);
        wide_heads(c, kernel);
        if (dtype == FOVEA_BF16) wide_edges(c, kernel);
      }
  }
  // The same where K is (v, k): q_value.
  void wide_joined() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16}) {
      SparseCase c;
      c.note = "wide", c.dtype = dtype, c.d = 64, c.e = 512, c.q_value = true;
      c.block_rows = c.block_keys = 1, c.b = c.g = c.x = 1, c.h = 16, c.s = 7, c.t = 300;
      c.keep = 150, c.splits = 1, c.span = Span::causal;
      const std::string kernel =
          std::string("sm90_wide.") + (dtype == FOVEA_F16 ? "f16" : "bf16") + ".d576.q_value";
      wide_places(c, kernel);
      wide_heads(c, kernel);
      if (dtype == FOVEA_F16) continue;
      joined_edges(c, kernel);
    }
  }
  void joined_edges(const SparseCase& c, const std::string& kernel) {
    wide_list_edges(c, kernel);
    const auto edge = [&](auto change) {
      SparseCase x = c;
      change(x);
      add(x, false, false, kernel);
    };
    // Widths below the instance's, of either part; v of another layout than k.
    edge([](SparseCase& x) { x.d = 40; });
    edge([](SparseCase& x) { x.e = 264; });
    edge([](SparseCase& x) { x.d = 8, x.e = 8, x.where = Where::paged, x.page = 5; });
    edge([](SparseCase& x) { x.d = 64, x.e = 128, x.g = x.x = 2, x.lay = Lay::head_first; });
  }
  // The same over FP8-MLA's records, and over codes of k whose first columns v is.
  void wide_codes() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (int codes : {0, static_cast<int>(FOVEA_E4M3), static_cast<int>(FOVEA_I8)}) {
        SparseCase c;
        const bool record = !codes;
        c.note = "wide", c.dtype = dtype, c.d = record ? 64 : 576, c.e = 512;
        c.record = c.q_value = record, c.v_in_k = !record, c.codes = codes;
        c.block_rows = c.block_keys = 1, c.b = c.g = c.x = 1, c.h = 16, c.s = 7, c.t = 300;
        c.keep = 150, c.splits = 1, c.span = Span::causal;
        const std::string kernel =
            std::string("sm90_wide.") + (dtype == FOVEA_F16 ? "f16" : "bf16") + ".d576" +
            (record ? ".q_value" : ".v_in_k") + (codes == FOVEA_I8 ? ".i8" : ".e4m3");
        wide_places(c, kernel);
        if (codes == FOVEA_I8) continue;
        wide_heads(c, kernel);
        if (dtype == FOVEA_BF16) wide_code_edges(c, kernel);
      }
  }
  // Where rows and keys lie, what rows see, lengths of lists about a tile of 64.
  void wide_places(const SparseCase& c, const std::string& kernel) {
    static constexpr int64_t keeps[] = {150, 64, 65, 1, 400, 193};
    int n = 0;
    for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::cache_row,
                        Where::paged, Where::paged, Where::paged})
      for (Span span : {Span::full, Span::causal, Span::left_sink, Span::band}) {
        static constexpr int64_t pages[] = {1, 16, 64, 7};
        SparseCase x = c;
        x.where = where, x.span = span, x.keep = keeps[n % 6];
        x.page = where == Where::paged ? pages[n % 4] : 0, x.b = where == Where::batched ? 1 : 2;
        x.splits = n % 3 == 2 ? 2 : 1, x.counts = n % 4 != 1, x.sink_logit = n % 5 == 1;
        x.o_f32 = n % 7 == 2, x.lse = n % 6 != 5;
        x.softcap = n % 3 == 1 && !c.q_value && !c.codes;
        x.axis = where != Where::paged && span == Span::causal ? 1 + n % 2 : 0;
        ++n;
        if (c.dtype == FOVEA_F16 && n % 3) continue;
        add(x, false, false,
            kernel + (x.softcap ? ".softcap" : "") + (x.splits > 1 && x.keep > 64 ? ".split" : ""));
      }
  }
  // Row tiles of all heads of a row, and of some of them; list heads within a key head, and key
  // heads of a list.
  void wide_heads(const SparseCase& c, const std::string& kernel) {
    static constexpr int64_t heads[][3] = {{16, 1, 1}, {64, 1, 1}, {128, 1, 1}, {8, 1, 1},
                                           {40, 1, 1}, {96, 1, 1}, {72, 1, 1},  {32, 2, 2},
                                           {32, 2, 1}, {32, 1, 2}, {64, 2, 4}};
    for (const auto& of : heads)
      for (int splits : {1, 3, 1000}) {
        if (c.dtype == FOVEA_F16 && (splits > 1 || of[0] < 64)) continue;
        SparseCase x = c;
        x.h = of[0], x.g = of[1], x.x = of[2], x.splits = splits;
        x.s = splits > 1 ? 1 : 3, x.b = splits > 1 ? 2 : 1;
        if (splits > 1) x.where = Where::lengths;
        add(x, false, false, kernel + (splits > 1 ? ".split" : ""));
      }
  }
  void wide_edges(const SparseCase& c, const std::string& kernel) {
    const auto edge = [&](auto change) {
      SparseCase x = c;
      change(x);
      add(x, false, false, kernel);
    };
    wide_list_edges(c, kernel);
    // Widths below the instance's.
    edge([](SparseCase& x) { x.d = 520, x.e = 264; });
    edge([](SparseCase& x) { x.d = 512, x.e = 512; });
    edge([](SparseCase& x) { x.d = 264, x.e = 8, x.where = Where::paged, x.page = 5; });
  }
  void wide_list_edges(const SparseCase& c, const std::string& kernel) {
    const auto edge = [&](auto change, const char* more = "") {
      SparseCase x = c;
      change(x);
      add(x, false, false, kernel + more);
    };
    // Splits as the plan has them.
    edge([](SparseCase& x) { x.splits = 0, x.s = 1, x.keep = 2100, x.t = 2500; }, ".split");
    // Each key many times; few keys; none.
    edge([](SparseCase& x) { x.t = 5, x.keep = 700, x.counts = false; });
    edge([](SparseCase& x) { x.t = 1, x.s = 2, x.span = Span::full; });
    edge([](SparseCase& x) { x.t = 3, x.s = 40; });
    // More work items than multiprocessors, of lists that end early.
    edge([](SparseCase& x) { x.s = 140, x.keep = 90; });
    edge([](SparseCase& x) { x.s = 70, x.h = 128, x.keep = 70, x.lay = Lay::head_first; });
    edge(
        [](SparseCase& x) { x.b = 140, x.s = 1, x.t = 10, x.where = Where::lengths, x.keep = 65; });
    edge([](SparseCase& x) { x.s = 90, x.b = 3, x.where = Where::varlen, x.spare = true; });
  }
  void wide_code_edges(const SparseCase& c, const std::string& kernel) {
    for (int64_t h : {16, 64}) {
      SparseCase of = c;
      of.h = h;
      code_edges(of, kernel);
    }
  }
  void code_edges(const SparseCase& c, const std::string& kernel) {
    const auto edge = [&](auto change, const char* more = "") {
      SparseCase x = c;
      change(x);
      add(x, false, false, kernel + more);
    };
    edge([](SparseCase& x) { x.splits = 0, x.s = 1, x.keep = 2100, x.t = 2500; }, ".split");
    edge([](SparseCase& x) { x.t = 5, x.keep = 700, x.counts = false; });
    edge([](SparseCase& x) { x.t = 1, x.s = 2, x.span = Span::full; });
    edge([](SparseCase& x) { x.s = 140, x.keep = 90; });
    edge([](SparseCase& x) { x.s = 70, x.h *= 2, x.keep = 70; });
    edge([](SparseCase& x) { x.s = 90, x.b = 3, x.where = Where::varlen, x.spare = true; });
    edge([](SparseCase& x) { x.d = x.record ? 40 : 544; });
    if (c.codes) edge([](SparseCase& x) { x.d = 512, x.e = 264; });
  }
  // Without a list: tiles of 64 keys that groups of 64 rows skip (src/ops/sparse/skip.inc).
  void skips() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (int64_t d : {64, 128}) {
        SparseCase c;
        c.note = "tuned", c.dtype = dtype, c.d = c.e = d, c.keep = 0, c.margin = 3;
        c.h = 2, c.g = c.x = c.b = 1, c.s = 290, c.t = 530, c.span = Span::causal;
        c.skipped = c.low = true;
        const std::string kernel = std::string("sm90.") + (dtype == FOVEA_F16 ? "f16" : "bf16") +
                                   ".d" + std::to_string(d) + ".128x128.skip";
        skips_of_sequences(c, kernel);
        skips_of_pages(c, kernel);
        skips_at_edges(c, kernel);
      }
  }
  void skips_of_sequences(const SparseCase& c, const std::string& kernel) {
    int n = 0;
    for (Span span : {Span::full, Span::causal, Span::left, Span::band})
      for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::cache_row}) {
        if (c.dtype == FOVEA_F16 && (span == Span::left) != (where == Where::lengths)) continue;
        SparseCase x = c;
        x.span = span, x.where = where, x.b = where == Where::batched ? 1 : 2;
        x.margin = n % 7 == 6 ? 1000 : 3, x.h = n % 3 == 1 ? 3 : 2, x.skipped = n % 6 != 5;
        x.sink_logit = n % 4 == 1, x.o_f32 = n % 3 == 1, x.lse = n++ % 5 != 4;
        add(x, false, false, kernel);
      }
  }
  // The page table is walked upwards, in stretches of 32 pages.
  void skips_of_pages(const SparseCase& c, const std::string& kernel) {
    for (int64_t page : {16, 32, 64, 128, 256})
      for (Span span : {Span::full, Span::causal, Span::left}) {
        SparseCase x = c;
        x.where = Where::paged, x.page = page, x.span = span, x.b = 2;
        x.s = page == 16 ? 66 : 200, x.t = page == 16 ? 1300 : 700;
        add(x, false, false, kernel);
      }
  }
  void skips_at_edges(const SparseCase& c, const std::string& kernel) {
    const auto edge = [&](auto change) {
      SparseCase x = c;
      change(x);
      add(x, false, false, kernel);
    };
    // Groups of one row and two, of which each tile is close.
    for (int64_t s : {1, 63, 65, 130})
      edge([&](SparseCase& x) { x.s = s, x.low = false, x.margin = 0.5F, x.h = 4, x.g = 2; });
    // A margin of its own for each: all is skipped but what leads, and nothing is.
    edge([](SparseCase& x) { x.margin = 0.01F, x.t = 900; });
    edge([](SparseCase& x) { x.margin = 1e8F; });
    edge([](SparseCase& x) { x.margin = 0; });
    // Rows without keys, and tiles that no row of the first group sees.
    edge([](SparseCase& x) { x.t = 130; });
    edge([](SparseCase& x) { x.s = 300, x.t = 333, x.where = Where::lengths, x.b = 3; });
    edge([](SparseCase& x) { x.t = 64; });
    edge([](SparseCase& x) { x.t = 1, x.s = 70, x.span = Span::full; });
    // Narrower than the instance.
    edge([](SparseCase& x) { x.d -= 24, x.e -= 40; });
    // More work items than a GPU has multiprocessors; rows of one head lie together.
    edge([](SparseCase& x) {
      x.b = 70, x.s = 140, x.t = 200, x.h = 4, x.g = 2, x.lay = Lay::head_first;
    });
    edge([](SparseCase& x) { x.splits = 1, x.s = 1, x.t = 900, x.h = 8, x.g = 2, x.b = 2; });
  }
  // Every instance of the tuned gradient (src/ops/sparse/backward.inc).
  void gradients() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (int64_t d : {64, 128}) {
        SparseCase c;
        c.note = "tuned", c.dtype = dtype, c.d = c.e = d, c.s = 290, c.t = 330, c.b = 1;
        const std::string name =
            std::string("sm90.") + (dtype == FOVEA_F16 ? "f16" : "bf16") + ".d" + std::to_string(d);
        for (int64_t rows : {64, 128})
          for (int64_t keys : {64, 128, 192}) gradients_of_blocks(c, name, rows, keys);
        gradients_of_rows(c, name);
      }
  }
  void gradients_of_blocks(SparseCase c, const std::string& kernel, int64_t rows, int64_t keys) {
    static constexpr int64_t lists[] = {4, 2, 1};
    static constexpr int outputs[] = {15, 15, 1, 15, 2, 4, 6};
    c.block_rows = rows, c.block_keys = keys;
    int n = 0;
    for (Span span : {Span::full, Span::causal, Span::left, Span::band})
      for (Where where : {Where::batched, Where::lengths, Where::varlen}) {
        if (c.dtype == FOVEA_F16 && (span == Span::left) != (where == Where::lengths)) continue;
        SparseCase x = c;
        x.span = span, x.where = where, x.x = lists[n % 3], x.outputs = outputs[n % 7];
        x.keep = n % 2 ? 5 : 40, x.sink_logit = n % 4 == 1, x.dlse = n % 5 == 2;
        x.counts = n++ % 3 != 2, x.b = where == Where::batched ? 1 : 2;
        add(x, true, false, kernel);
      }
    // More works than a GPU has multiprocessors.
    c.b = 70, c.s = 66, c.t = 90, c.keep = 2, c.lay = Lay::head_first;
    add(c, true, false, kernel);
  }
  // Lists of one row that a group of heads shares; few heads are gathered.
  void gradients_of_rows(SparseCase c, const std::string& kernel) {
    static constexpr int64_t heads[][3] = {{16, 1, 1}, {16, 2, 2}, {16, 2, 1}, {32, 1, 1},
                                           {64, 1, 1}, {4, 4, 4},  {4, 4, 2},  {4, 2, 2},
                                           {4, 2, 1},  {8, 2, 2}};
    c.block_rows = 1, c.t = 500;
    int n = 0;
    for (const auto& of : heads)
      for (Where where : {Where::batched, Where::lengths, Where::varlen}) {
        SparseCase x = c;
        x.h = of[0], x.g = of[1], x.x = of[2], x.where = where;
        const bool few = x.h / x.g < 8;
        x.s = few ? 150 : 30;
        x.span = n % 3 == 0 ? Span::causal : n % 3 == 1 ? Span::full : Span::left;
        x.block_keys = n % 5 == 4 ? 192 : n % 2 ? 128 : 64;
        x.keep = n % 4 == 3 && !few ? 300 : n % 2 ? 30 : 4;
        x.sink_logit = n % 4 == 1, x.dlse = n % 5 == 2, x.counts = n++ % 3 != 2;
        x.b = where == Where::batched ? 1 : 2;
        add(x, true, false, kernel + (few ? ".gathered" : ".packed"));
      }
  }
  // Row blocks of `rows` rows on one instance.
  void blocks(SparseCase c, const std::string& kernel, int64_t rows, int64_t keys) {
    c.block_rows = rows, c.block_keys = keys;
    int n = 0;
    for (Span span : {Span::full, Span::causal, Span::left, Span::band})
      for (Where where : {Where::batched, Where::lengths, Where::varlen}) {
        if ((c.d > 128 || c.dtype == FOVEA_F16) &&
            (span == Span::left) != (where == Where::lengths))
          continue;
        SparseCase x = c;
        x.span = span, x.where = where, x.x = n % 2 ? 4 : 2, x.o_f32 = n % 3 == 1;
        if (rows < 128) x.x = 4;  // heads that share a list share a tile
        x.sink_logit = n % 4 == 1, x.lse = n % 5 != 4, x.counts = n++ % 3 != 2;
        x.b = where == Where::batched ? 1 : 2;
        add(x, false, false, kernel);
      }
    SparseCase x = c;
    // The last key block many times, and keys that are always seen.
    x.keep = 40, x.counts = false;
    add(x, false, false, kernel);
    x.first = keys, x.keep = 5, x.where = Where::lengths, x.b = 2;
    add(x, false, false, kernel);
    x.first = 1000, x.keep = 1, x.span = Span::left;
    add(x, false, false, kernel);
    if (keys == 128) {  // tiles of 128 keys are too wide
      x.first = 64, x.keep = 2;
      add(x, false, false, kernel.substr(0, kernel.rfind('x')) + "x64");
    }
    x = c;
    x.where = Where::cache_row, x.b = 3, x.s = 70;
    add(x, false, false, kernel);
    for (int64_t page : {16, 64, 128}) {
      x = c;
      x.where = Where::paged, x.page = page, x.b = 2, x.span = page == 64 ? Span::full : c.span;
      x.keep = page == 16 ? 30 : 5;
      add(x, false, false, kernel);
    }
    // More works than a GPU has multiprocessors, and lists longer than are counted at once.
    x = c;
    x.b = 70, x.s = 66, x.t = 90, x.keep = 2, x.lay = Lay::head_first;
    add(x, false, false, kernel);
    if (c.d > 64 || c.dtype != FOVEA_BF16 || rows != 64) return;
    x = c;
    x.s = 3, x.t = 4200 * keys, x.h = x.x = 2, x.g = 1, x.keep = 400, x.span = Span::full;
    add(x, false, false, kernel);
  }
  // Heads that share a list stand in one row tile; list rows that do not fill one.
  void packed(SparseCase c, const std::string& name) {
    static constexpr int64_t shapes[][5] = {
        // block_rows, h, g, x, rows of a tile
        {64, 4, 2, 2, 128}, {64, 4, 2, 1, 128}, {32, 4, 2, 2, 64},  {1, 16, 1, 1, 64},
        {1, 12, 2, 1, 64},  {1, 64, 1, 1, 64},  {8, 16, 1, 1, 128}, {1, 96, 1, 1, 128}};
    for (const auto& shape : shapes)
      for (Where where : {Where::batched, Where::varlen, Where::paged}) {
        SparseCase x = c;
        x.block_rows = shape[0], x.h = shape[1], x.g = shape[2], x.x = shape[3];
        x.block_keys = 64, x.keep = 3, x.where = where, x.page = where == Where::paged ? 32 : 0;
        x.s = shape[0] == 1 ? 9 : 100, x.t = 210, x.b = where == Where::batched ? 1 : 2;
        x.span = where == Where::varlen ? Span::left : c.span;
        x.sink_logit = where == Where::paged, x.o_f32 = where == Where::varlen;
        const bool union_of_rows = shape[0] == 1 && shape[1] / shape[2] <= 32;
        add(x, false, false,
            name + std::to_string(shape[4]) + "x64.packed" + (union_of_rows ? ".union" : ""));
      }
    for (int64_t rows : {1, 16, 48, 96}) {
      SparseCase x = c;
      x.block_rows = rows, x.block_keys = 64, x.keep = 3, x.s = rows == 1 ? 9 : 150, x.x = 4;
      x.b = 2, x.where = Where::lengths;
      add(x, false, false, name + (rows == 96 ? "128x64" : "64x64"));
    }
  }

  // Rows with lists of their own in one row tile.
  void unions(SparseCase c, const std::string& name) {
    static constexpr int64_t heads[][2] = {{16, 1}, {4, 4}, {6, 2}, {20, 1}};
    for (const auto& of : heads)
      for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::paged}) {
        SparseCase x = c;
        x.h = of[0], x.g = x.x = of[1], x.where = where, x.page = where == Where::paged ? 64 : 0;
        x.block_rows = 1, x.block_keys = of[0] == 4 ? 128 : 64, x.s = 14, x.t = 500;
        x.keep = where == Where::lengths ? 60 : 4, x.counts = where != Where::lengths;
        x.b = where == Where::batched ? 1 : 2, x.first = of[0] == 6 ? 64 : 0;
        x.span = where == Where::paged ? Span::left : c.span;
        add(x, false, false, name + "64x64." + (of[0] == of[1] ? "union" : "packed.union"));
      }
  }
  // Blocks at any key, and single keys beside them or alone, more than a tile of them too.
  void columns(SparseCase c, const std::string& kernel) {
    static constexpr int64_t blocks[][3] = {
        {64, 64, 1},   {64, 64, 64},   {128, 64, 16}, {16, 16, 0},  {32, 32, 5},
        {48, 128, 40}, {100, 192, 64}, {64, 0, 0},    {64, 128, 1}, {128, 16, 3}};
    static constexpr int64_t heads[][3] = {{4, 2, 4}, {4, 2, 2}, {4, 4, 4}, {8, 2, 1}};
    int n = 0;
    const auto one = [&](SparseCase x) {
      const int64_t group = x.h / x.g, shared = x.h / x.x % group ? 1 : group;
      const int64_t packed = x.block_rows * shared <= 128 ? shared : 1;
      x.note = "columns" + std::to_string(n++);
      add(x, false, false,
          kernel + (packed > 1 ? ".packed" : "") +
              (2 * x.block_rows * packed <= 128 ? ".union" : ""));
    };
    for (const auto& of : blocks)
      for (Span span : {Span::full, Span::causal, Span::left, Span::band})
        for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::cache_row}) {
          const int at = n;
          if (at * 7 % 11 >= (c.d > 64 || c.dtype == FOVEA_F16 ? 2 : 5)) {
            ++n;
            continue;
          }
          SparseCase x = c;
          x.span = span, x.where = where, x.splits = 0, x.s = 200, x.t = 270;
          x.block_rows = of[0], x.block_keys = of[1] ? of[1] : 16, x.entry_keys = of[2];
          x.keep = of[1] ? (at % 2 ? 5 : 40) : 0;
          x.columns = at % 5 == 1 && of[2] ? 0 : at % 3 ? 11 : 300;
          const int64_t(&h)[3] = heads[(at + at / 4) % 4];
          x.h = h[0], x.g = h[1], x.x = h[2];
          x.first = at % 7 == 2 ? 70 : at % 7 == 4 ? 1000 : 0;
          x.last = at % 6 == 3 ? 9 : at % 6 == 5 ? 200 : 0;
          x.b = where == Where::batched ? 1 : 2, x.counts = at % 3 != 1;
          x.sink_logit = at / 4 % 3 == 1, x.o_f32 = at % 5 == 2, x.lse = at % 5 != 4;
          // A list of aligned blocks alone is another kernel's.
          if (!x.columns && !x.last && (of[2] == of[1] || !of[2])) x.columns = 11;
          one(x);
        }
    c.block_rows = c.block_keys = 64, c.entry_keys = 1, c.columns = 40, c.splits = 0, c.x = 4;
    SparseCase x = c;
    // Each key many times.
    x.t = 90, x.keep = 60, x.columns = 300, x.counts = false;
    one(x);
    x.last = 20, x.first = 3, x.span = Span::full;
    one(x);
    // Widths that no instance has, rows of other places.
    x = c;
    x.d = c.d - 24, x.e = c.d - 8, x.lay = Lay::head_first;
    one(x);
    // More works than a GPU has multiprocessors.
    x = c;
    x.b = 70, x.s = 66, x.t = 90, x.keep = 2;
    one(x);
    // Fewer keys than rows, no key of a list, an odd number of list rows.
    x = c;
    x.s = 190, x.t = 30;
    one(x);
    x.t = 1, x.keep = x.entry_keys = 0, x.columns = 1;
    one(x);
    if (c.d > 64 || c.dtype != FOVEA_BF16) return;
    // Lists longer than are counted at once.
    x = c;
    x.s = 70, x.t = 9000, x.h = x.x = 2, x.g = 1, x.keep = 60, x.columns = 700;
    one(x);
  }
  // Many rows of one head with lists of large blocks.
  void large_unions(SparseCase c, const std::string& kernel) {
    int n = 0;
    for (int64_t keys : {128, 256, 1024})
      for (Where where : {Where::batched, Where::lengths, Where::cache_row})
        for (Span span : {Span::full, Span::causal, Span::left}) {
          SparseCase x = c;
          x.block_rows = 1, x.block_keys = keys, x.where = where, x.span = span;
          x.s = n % 2 ? 131 : 300, x.t = 1300, x.keep = n % 3 ? 2 : 40, x.counts = n % 3 == 1;
          x.h = 4, x.g = n % 2 ? 2 : 4, x.x = 4, x.b = where == Where::batched ? 1 : 2;
          x.sink_logit = n % 4 == 1, x.o_f32 = n % 5 == 1, x.lse = n++ % 5 != 4;
          add(x, false, false, kernel);
        }
  }
  // The same lists by blocks of keys: each takes the rows that name it.
  void gathered_rows(SparseCase c, const std::string& kernel) {
    static constexpr int64_t heads[][3] = {{4, 4, 4}, {4, 2, 4}, {4, 2, 2}, {4, 1, 1}, {4, 4, 1}};
    c.block_rows = 1, c.t = 1100;
    int n = 0;
    for (int64_t keys : {128, 256, 384})
      for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::cache_row})
        for (Span span : {Span::full, Span::causal, Span::left, Span::band}) {
          SparseCase x = c;
          x.block_keys = keys, x.where = where, x.span = span;
          x.s = keys == 128 ? 580 : keys == 256 ? 650 : 210, x.keep = keys == 256 ? 1 : 2;
          // Of packed sequences the keys of all are one axis.
          if (where == Where::varlen) x.t = 400, x.s = 390, x.keep = 4;
          const auto& of = heads[n % 5];
          x.h = of[0], x.g = of[1], x.x = of[2], x.b = where == Where::batched ? 1 : 2;
          x.sink_logit = n % 4 == 1, x.o_f32 = n % 7 == 2, x.lse = n % 5 != 4;
          x.counts = n % 3 != 1;
          if (n % 6 == 3) x.d -= 24, x.e -= 8;
          if (n % 6 == 5) x.lay = Lay::head_first;
          ++n;
          if (c.dtype == FOVEA_F16 && n % 3) continue;
          add(x, false, false, kernel);
        }
    // More places than lanes of a warp, each block many times; rows that see no key of their list.
    SparseCase x = c;
    x.block_keys = 384, x.h = x.g = x.x = 2, x.s = 150, x.keep = 40, x.counts = false;
    add(x, false, false, kernel);
    x.s = 400, x.t = 200, x.keep = 2;
    add(x, false, false, kernel);
    // Two phases: of sequences and heads, of the heads that share a list.
    x.s = 130, x.t = 300, x.b = 17, x.h = x.g = x.x = 4, x.counts = true;
    add(x, false, false, kernel);
    x.b = 1, x.h = x.g = 72, x.x = 1;
    add(x, false, false, kernel);
  }
  // Blocks of which a key tile has many.
  void small_blocks(SparseCase c, const std::string& name) {
    for (int64_t keys : {16, 32})
      for (int64_t rows : {1, 64}) {
        int n = 0;
        for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::paged})
          for (Span span : {Span::full, Span::causal, Span::left}) {
            SparseCase x = c;
            x.where = where, x.span = span, x.page = where == Where::paged ? 16 << n % 3 : 0;
            x.block_rows = rows, x.block_keys = keys, x.keep = n % 2 ? 9 : 40;
            x.s = rows == 1 ? 9 : 130, x.t = 230, x.x = 4, x.counts = n % 4 != 3;
            x.b = where == Where::batched ? 1 : 2, x.first = n++ % 5 == 2 ? keys : 0;
            if ((c.d > 64 || c.dtype == FOVEA_F16) && n % 2) continue;
            add(x, false, false, name + "64x64.blocks");
          }
      }
    SparseCase x = c;
    x.block_rows = 1, x.block_keys = 16, x.keep = 9, x.s = 5, x.h = 16, x.g = x.x = 1;
    add(x, false, false, name + "64x64.packed.blocks");
  }
  // A few rows that read their lists, which may be cut; row tiles whose lists are cut.
  void splits(SparseCase c, const std::string& name) {
    for (int64_t keys : {16, 64, 128})
      for (int splits : {0, 1, 3, 1000}) {
        SparseCase x = c;
        x.block_rows = 1, x.block_keys = keys, x.keep = 1300 / keys, x.splits = splits;
        x.s = splits == 3 ? 3 : 1, x.t = 900, x.h = 8, x.g = 2, x.x = 2, x.b = 2;
        x.sink_logit = splits == 3, x.o_f32 = keys == 64, x.lse = splits != 1000;
        const std::string cut = splits > 1 ? ".split" : "";
        add(x, false, false, name + "64x64.list.packed" + cut);
        x.where = Where::paged, x.page = keys == 128 ? 64 : 16;
        add(x, false, false, name + "64x64.list.packed" + cut);
        x.x = 8, x.span = Span::left, x.keep = 700 / keys, x.counts = splits != 3;
        add(x, false, false, name + "64x64.list" + cut);
        x.where = Where::varlen, x.page = 0, x.first = splits == 0 ? 2 * keys : 0;
        add(x, false, false, name + "64x64.list" + cut);
        if (splits != 3) continue;
        x.block_rows = 64, x.s = 130, x.keep = 260 / keys;
        add(x, false, false, name + "64x64.split");
        // Rows of more than 16 heads, of which each warp has some.
        x.block_rows = 1, x.s = 1, x.where = Where::lengths, x.g = x.x = 1, x.keep = 700 / keys;
        for (int64_t h : {12, 24, 64}) {
          x.h = h;
          add(x, false, false, name + "64x64.list.packed.split");
        }
      }
  }

  // More blocks of rows than rows, heads that need several tiles of a row, no block at all.
  void many_clusters() {
    for (const Blocks blocks : {Blocks::clusters, Blocks::rows})
      for (const int64_t h : {4, 32, 72}) {
        SparseCase c;
        c.note = "more_than_rows", c.blocks = blocks, c.row_blocks = 23, c.s = 9, c.h = h;
        c.g = c.x = h == 4 ? 2 : 1, c.first = 2, c.where = Where::lengths, c.b = 3;
        both(c);
        c.x = h, c.columns = 3, c.span = Span::causal, c.first = 0, c.splits = 3;
        c.note += "_apart";
        add(c);
      }
    SparseCase c;
    c.note = "no_block", c.blocks = Blocks::clusters, c.row_blocks = 0;
    both(c);
    c.outputs = 6, c.note += "_keys";
    add(c, true);
  }

  // A few rows, everything on: for sanitizers and the bindings.
  void small() {
    SparseCase c;
    c.note = "small", c.s = 5, c.t = 9, c.d = c.e = 8, c.h = 2, c.g = c.x = 1, c.block_rows = 2;
    c.block_keys = 3, c.span = Span::causal;
    both(c, true);
    c.dtype = FOVEA_BF16, c.tiles = c.sink_logit = true, c.first = c.last = 1, c.columns = 2;
    c.mass = true;
    both(c, true);
    c = {};
    c.note = "small", c.where = Where::varlen, c.s = 17, c.dtype = FOVEA_F16;
    both(c);
    c.where = Where::paged, c.page = 16, c.block_rows = c.block_keys = 1, c.bias = true, c.keep = 9;
    both(c);
    c = {};
    c.note = "small", c.blocks = Blocks::clusters, c.head_map = true, c.x = 2;
    both(c);
    c.skip_head = true, c.margin = 2, c.skipped = true, c.blocks = Blocks::uniform;
    both(c);
  }
};

std::vector<harness::Case> sparse_cases() {
  return SparseCases().cases;
}

const Family kFamily("sparse", sparse_cases);

}  // namespace

}  // namespace cases
