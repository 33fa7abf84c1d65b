// SPDX-License-Identifier: Apache-2.0
// trace_forward.
#include "oracle/trace.h"
#include "cases/all.h"
#include "cases/attention_case.h"
#include "cases/trace_case.h"

namespace cases {
namespace {

constexpr const char* kTraceDataNames[] = {"", "integers", "nan", "inf", "huge", "zeros"};

constexpr const char* kEdgesNames[] = {"", "counted", "edges", "records", "records_in_place"};

std::string name_of(const TraceCase& c) {
  const auto number = [](const char* letter, int64_t n) {
    return std::string(letter) + std::to_string(n);
  };
  std::string name = std::string(dtype_name(c.dtype)) + number("/b", c.b) + number("_s", c.s) +
                     number("_t", c.t) + number("_h", c.h) + number("_g", c.g) + number("_d", c.d) +
                     number("_e", c.e) + number("/rows", c.block_rows) +
                     number("_keys", c.block_keys) + number("_keep", c.keep) +
                     (c.exact ? "/exact" : "/fast");
  const std::pair<bool, const char*> flags[] = {
      {c.causal, "_causal"},   {c.mask, "_mask"},         {c.keep_row, "_keep_row"},
      {c.key_len, "_key_len"}, {c.paged, "_paged"},       {c.cache_row, "_cache_row"},
      {c.o_f32, "_o_f32"},     {!c.values, "_no_values"}, {!c.slots, "_no_slots"},
      {!c.rows, "_no_rows"},   {c.scale > 0, "_scale"},   {c.bare, "_bare"}};
  for (const auto& flag : flags) name += flag.first ? flag.second : "";
  if (c.data != TraceData::normal)
    name += std::string("_") + kTraceDataNames[static_cast<int>(c.data)];
  if (c.edges != EdgeList::none) {
    static constexpr const char* kinds[] = {"_score", "_max", "_mass"};
    name += std::string("_") + kEdgesNames[static_cast<int>(c.edges)] + kinds[c.edge_kind] +
            number("_cap", c.cap) + (c.offset ? number("_from", c.offset) : "");
  }
  if (c.lay != Lay::contiguous)
    name += std::string("_") + harness::kLayNames[static_cast<int>(c.lay)];
  return name + (c.note.empty() ? "" : "_" + c.note);
}

class TraceBuild {
 public:
  TraceBuild(const TraceCase& c, uint64_t seed) : c_(c), random_(seed) {}

  Call build() {
    Call call = Call::make(FOVEA_TEST_OP(trace_forward), p_);
    n_blocks_ = (c_.s + c_.block_rows - 1) / c_.block_rows;
    key_blocks_ = (c_.t + c_.block_keys - 1) / c_.block_keys;
    p_->keep = c_.keep, p_->scale = c_.scale, p_->layer = 5, p_->edge_kind = c_.edge_kind;
    p_->block_rows = static_cast<int32_t>(c_.block_rows == 64 ? 0 : c_.block_rows);
    p_->block_keys = static_cast<int32_t>(c_.block_keys);
    p_->exact = c_.exact, p_->causal = c_.causal;
    operands(call);
    places(call);
    choices(call);
    account(call);
    outputs(call);
    edges(call);
    expect(call);
    return call;
  }

 private:
  double number(const int64_t* i) {
    const uint64_t n = n_++;
    const double x = random_.normal(n);
    const auto rare = [&](uint64_t salt) { return random_.uniform(n ^ salt << 40) < 0.002; };
    switch (c_.data) {
      case TraceData::integers:
        return std::clamp(std::round(1.2 * x), -3.0, 3.0);
      case TraceData::nan:
        return rare(1) ? NAN : x;
      case TraceData::infinite:
        return rare(2) ? (x > 0 ? HUGE_VAL : -HUGE_VAL) : x;
      case TraceData::huge:
        return i[1] % 7 == 0 ? 100 * x : x;
      case TraceData::zeros:  // products that underflow, of either sign
        return random_.uniform(n ^ 3ull << 40) < 0.4 ? 0 : x * 1e-30;
      default:
        return x;
    }
  }

  size_t operand(Call& call, const char* name, fovea_tensor& slot, const Shape& shape,
                 bool plain = false) {
    const size_t field = call.add(name, slot, Role::in, c_.dtype, shape, c_.lay);
    call.fill(field, [&](const int64_t* i) { return plain ? random_.normal(n_++) : number(i); });
    return field;
  }
  void operands(Call& call) {
    rows_ = c_.cache_row && !c_.paged ? c_.b + 2 : c_.b;
    pool_ = c_.no_pages ? 0 : c_.b * key_blocks_ + 2;
    operand(call, "q", p_->q, {c_.b, c_.s, c_.h, c_.d});
    const int64_t first = c_.paged ? pool_ : rows_, second = c_.paged ? c_.block_keys : c_.t;
    k_ = operand(call, "k", p_->k, {first, second, c_.g, c_.d});
    if (c_.values && !c_.bare) v_ = operand(call, "v", p_->v, {first, second, c_.g, c_.e}, true);
  }

  void places(Call& call) {
    if (c_.key_len)
      call.fill(call.add("key_len", p_->key_len, Role::in, FOVEA_I32, {c_.b}),
                [&](const int64_t* i) {
                  return static_cast<double>(i[0] == 0 ? c_.t - 3 : i[0] == 1 ? c_.t / 2 + 1 : 0);
                });
    if (c_.paged) {
      rows_ = c_.cache_row ? c_.b + 1 : c_.b;
      table_ = call.add("page_table", p_->page_table, Role::in, FOVEA_I32, {rows_, key_blocks_});
      // Neighbours lie apart; one page in seven is absent.
      call.fill(table_, [&](const int64_t* i) {
        const int64_t page = i[0] * key_blocks_ + i[1];
        return static_cast<double>(page % 7 == 5 || !pool_ ? -1 : page * 5 % pool_);
      });
    }
    if (c_.cache_row)
      call.fill(
          call.add("cache_row", p_->cache_row, Role::in, FOVEA_I32, {c_.b}),
          [&](const int64_t* i) { return static_cast<double>(i[0] == 2 ? -1 : rows_ - 1 - i[0]); });
  }

  void choices(Call& call) {
    if (c_.keep_row)
      call.fill(
          call.add("keep_row", p_->keep_row, Role::in, FOVEA_I32, {n_blocks_}),
          [&](const int64_t* i) { return static_cast<double>((i[0] * 3 + 1) % (c_.keep + 2)); });
    if (!c_.mask) return;
    // One head's row of bits broadcast over the batch; every fifth row block sees nothing.
    fovea_tensor x = {};
    x.dtype = FOVEA_U8, x.ndim = 4;
    const int64_t shape[4] = {c_.b, c_.h, n_blocks_, (key_blocks_ + 7) / 8}, pitch = shape[3] + 1;
    for (int i = 0; i < 4; ++i) x.shape[i] = shape[i];
    x.stride[0] = 0, x.stride[1] = shape[2] * pitch, x.stride[2] = pitch, x.stride[3] = 1;
    const size_t field = call.add_strided("block_mask", p_->block_mask, Role::in, x);
    call.fill(field, [&](const int64_t* i) {
      if (i[2] % 5 == 4) return 0.0;
      const uint64_t at = static_cast<uint64_t>((i[1] * 1000 + i[2]) * 1000 + i[3]);
      return static_cast<double>(random_.bits(at ^ 1ull << 50) & random_.bits(at ^ 1ull << 51) &
                                 255);
    });
  }

  // Tokens past a length, in pages that no table names and in rows that nobody reads count for
  // nothing, nor do the entries of a table past a length.
  void account(Call& call) {
    const oracle::Trace a = oracle::load_trace(*p_);
    const int64_t first = p_->k.shape[0], second = p_->k.shape[1];
    std::vector<char> tokens(first * second), pages(std::max<int64_t>(rows_ * key_blocks_, 1));
    for (int64_t r = 0; r < c_.b; ++r) {
      const oracle::Sequence q = oracle::sequence(a.at, r);
      for (int64_t j = 0; j < q.keys; ++j) {
        const oracle::Place at = oracle::place(a.at, q, j);
        if (c_.paged) pages[q.cache * key_blocks_ + j / c_.block_keys] = 1;
        if (at.present) tokens[at.row * second + at.slot] = 1;
      }
    }
    const auto used = [&](const int64_t* i) { return tokens[i[0] * second + i[1]] != 0; };
    call.account(k_, used);
    if (c_.values && !c_.bare) call.account(v_, used);
    if (c_.paged)
      call.account(table_, [&](const int64_t* i) { return pages[i[0] * key_blocks_ + i[1]] != 0; });
  }

  void output(Call& call, const char* name, fovea_tensor& slot, int dtype, const Shape& shape) {
    call.add(name, slot, Role::out, dtype, shape, c_.lay);
  }
  void outputs(Call& call) {
    const Shape slots = {c_.b, c_.h, n_blocks_, c_.keep}, rows = {c_.b, c_.h, c_.s};
    if (c_.slots) {
      output(call, "selected", p_->selected, FOVEA_I32, slots);
      output(call, "score", p_->score, FOVEA_F32, slots);
      output(call, "edge_score", p_->edge_score, FOVEA_F32, slots);
      output(call, "edge_max", p_->edge_max, FOVEA_F32, slots);
      output(call, "edge_mass", p_->edge_mass, FOVEA_F32, slots);
    }
    if (c_.rows) {
      output(call, "lse", p_->lse, FOVEA_F32, rows);
      output(call, "lse_dense", p_->lse_dense, FOVEA_F32, rows);
    }
    if (c_.values && c_.rows)
      output(call, "o", p_->o, c_.o_f32 ? FOVEA_F32 : c_.dtype, {c_.b, c_.s, c_.h, c_.e});
    if (c_.values && c_.slots)
      output(call, "edge_value", p_->edge_value, FOVEA_F32, {c_.b, c_.h, n_blocks_, c_.keep, c_.e});
  }

  void edges(Call& call) {
    const bool records = c_.edges == EdgeList::records || c_.edges == EdgeList::in_place;
    if (c_.edges == EdgeList::none) return;
    if (c_.edges == EdgeList::apart) {
      output(call, "edge", p_->edge, FOVEA_I32, {c_.cap, 4});
      output(call, "edge_weight", p_->edge_weight, FOVEA_F32, {c_.cap});
    }
    if (records) {
      fovea_tensor edge = {}, weight = {};
      edge.dtype = FOVEA_I32, edge.ndim = 2, edge.shape[0] = c_.cap, edge.shape[1] = 4;
      edge.stride[0] = 5, edge.stride[1] = 1;
      weight.dtype = FOVEA_F32, weight.ndim = 1, weight.shape[0] = c_.cap, weight.stride[0] = 5;
      const size_t base = call.add_strided("edge", p_->edge, Role::out, edge, 0, 1);
      call.add_view("edge_weight", p_->edge_weight, Role::out, weight, base, 4);
    }
    if (c_.offset || records) {
      const size_t field = call.add("edge_offset", p_->edge_offset, Role::in, FOVEA_I64, {1});
      call.fill(field, [&](const int64_t*) { return static_cast<double>(c_.offset); });
      if (c_.edges == EdgeList::in_place) {
        call.add_view("edge_count", p_->edge_count, Role::out, p_->edge_offset, field, 0);
        return;
      }
    }
    call.add("edge_count", p_->edge_count, Role::out, FOVEA_I64, {1});
  }

  void expect(Call& call) {
    oracle::TraceResult exact = oracle::trace_forward(*p_, oracle::Mode::exact);
    oracle::TraceResult rounded = oracle::trace_forward(*p_, oracle::Mode::rounded);
    const auto same = [&](const char* name, oracle::Out oracle::TraceResult::*out, bool bitwise) {
      const size_t field = call.field(name);
      if (field < call.fields.size())
        call.expect(field, std::move(exact.*out), std::move(rounded.*out), bitwise);
    };
    using Result = oracle::TraceResult;
    same("selected", &Result::selected, true), same("score", &Result::score, true);
    same("edge_score", &Result::edge_score, true), same("edge", &Result::edge, true);
    same("edge_count", &Result::edge_count, true);
    same("edge_weight", &Result::edge_weight, c_.edge_kind == FOVEA_EDGE_KIND_SCORE);
    same("o", &Result::o, false), same("lse", &Result::lse, false);
    same("lse_dense", &Result::lse_dense, false), same("edge_max", &Result::edge_max, false);
    same("edge_mass", &Result::edge_mass, false), same("edge_value", &Result::edge_value, false);
  }

  const TraceCase& c_;
  harness::Random random_;
  uint64_t n_ = 0;
  fovea_trace_forward_params* p_ = nullptr;
  int64_t n_blocks_ = 0, key_blocks_ = 0, rows_ = 0, pool_ = 0;
  size_t k_ = 0, v_ = 0, table_ = 0;
};

}  // namespace

Call build_trace(const TraceCase& c, uint64_t seed) {
  return TraceBuild(c, seed).build();
}

namespace {

// Every pair of block sizes, and with them everything else in turn.
std::vector<TraceCase> trace_sweep() {
  constexpr int64_t blocks[] = {16, 32, 64, 128};
  constexpr int64_t heads[][2] = {{2, 1}, {3, 3}, {4, 2}, {1, 1}};
  constexpr int64_t widths[][2] = {{16, 16}, {40, 24}, {64, 64}, {1, 1}, {33, 5}};
  constexpr Lay lays[] = {Lay::contiguous, Lay::head_first, Lay::gaps, Lay::odd, Lay::wide};
  constexpr int dtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16};
  std::vector<TraceCase> cases;
  for (int i = 0; i < 48; ++i) {
    TraceCase c;
    c.block_rows = blocks[i % 4], c.block_keys = blocks[i / 4 % 4];
    c.s = c.block_rows * (i % 3) + 1 + i % 5 * 3;
    c.t = c.block_keys * (3 + i % 7) + (i % 2 ? 5 : 0);
    c.h = heads[(i + i / 16) % 4][0], c.g = heads[(i + i / 16) % 4][1];
    c.d = widths[i % 5][0], c.e = widths[i % 5][1];
    c.keep = 1 + (i * 5 + i / 16) % 6, c.dtype = dtypes[i % 3], c.lay = lays[(i + i / 5) % 5];
    c.exact = i % 4 != 1;
    c.data = c.exact ? TraceData::normal : TraceData::integers;
    c.causal = (i / 2 + i / 16) % 2, c.mask = i % 5 == 2, c.keep_row = i % 6 == 3;
    c.paged = i % 4 == 2, c.key_len = i % 3 == 1, c.cache_row = i % 7 == 4;
    c.b = c.key_len || c.cache_row ? 3 : 1 + i % 2;
    c.o_f32 = i % 8 == 7, c.scale = i % 9 == 5 ? 0.3f : 0;
    c.values = i % 11 != 6, c.slots = i % 10 != 8, c.rows = i % 12 != 7;
    c.edges = static_cast<EdgeList>(i % 5), c.edge_kind = i % 3;
    c.offset = c.edges >= EdgeList::records ? i % 4 * 3 : 0;
    if (i % 8 == 3) c.cap = 7;
    cases.push_back(c);
  }
  return cases;
}

std::vector<TraceCase> trace_edges() {
  std::vector<TraceCase> cases;
  const auto add = [&](const char* note, auto change) {
    TraceCase c;
    c.note = note;
    change(c);
    cases.push_back(c);
  };
  for (TraceData data : {TraceData::nan, TraceData::infinite, TraceData::huge, TraceData::zeros,
                         TraceData::integers})
    for (bool causal : {false, true})
      add("data", [&](TraceCase& c) {
        c.data = data, c.causal = causal, c.t = 230, c.s = 70, c.edge_kind = FOVEA_EDGE_KIND_MASS;
      });
  add("one_key_block", [](TraceCase& c) { c.t = 10; });
  add("one_key", [](TraceCase& c) { c.t = 1, c.s = 1, c.keep = 1; });
  add("two_key_blocks", [](TraceCase& c) { c.t = 17, c.keep = 5; });
  add("more_kept_than_there_are", [](TraceCase& c) { c.keep = 40; });
  add("most_kept", [](TraceCase& c) { c.keep = 256, c.t = 4500, c.d = c.e = 4, c.s = 17; });
  add("empty_rows", [](TraceCase& c) { c.causal = true, c.s = 100, c.t = 30; });
  add("all_empty", [](TraceCase& c) { c.causal = true, c.s = 100, c.t = 0; });
  // Widths on either side of k's, of o, of edge_value alone, of both.
  for (int64_t e : {3, 29})
    for (int outputs : {1, 2, 3})
      add("no_keys", [&](TraceCase& c) {
        c.t = 0, c.bare = true, c.e = e, c.rows = outputs & 1, c.slots = outputs & 2;
      });
  add("no_pages", [](TraceCase& c) {
    c.paged = c.no_pages = true, c.dtype = FOVEA_BF16, c.d = c.e = c.block_rows = c.block_keys = 64;
    c.t = 300;
  });
  add("no_rows", [](TraceCase& c) { c.s = 0, c.edges = EdgeList::counted; });
  add("no_heads", [](TraceCase& c) { c.h = c.g = 0; });
  add("masked_rows", [](TraceCase& c) { c.mask = true, c.s = 180, c.keep = 2; });
  add("masked_causal", [](TraceCase& c) { c.mask = c.causal = true, c.s = 180, c.t = 180; });
  add("lengths_0", [](TraceCase& c) { c.b = 3, c.key_len = true, c.keep_row = true; });
  add("pages", [](TraceCase& c) { c.b = 3, c.key_len = c.paged = c.cache_row = true; });
  add("no_room", [](TraceCase& c) { c.cap = 0; });
  add("little_room", [](TraceCase& c) { c.cap = 5, c.edges = EdgeList::records, c.offset = 2; });
  add("past_the_room", [](TraceCase& c) { c.cap = 5, c.edges = EdgeList::in_place, c.offset = 9; });
  add("nothing_asked", [](TraceCase& c) { c.rows = c.slots = false, c.edges = EdgeList::none; });
  add("wide", [](TraceCase& c) { c.d = 576, c.e = 512, c.t = 60, c.s = 20, c.h = 1; });
  return cases;
}

// The stages of Hopper, by what may keep a call from each.  Selection in tensor-core sums is judged
// on whole numbers.
std::vector<TraceCase> trace_tuned() {
  constexpr int64_t widths[][2] = {{64, 64}, {128, 128}, {256, 256}, {40, 24}, {96, 128}};
  constexpr int64_t blocks[][2] = {{64, 64}, {128, 128}, {64, 128}, {128, 64},
                                   {16, 16}, {32, 32},   {128, 32}, {16, 64}};
  std::vector<TraceCase> cases;
  for (int i = 0; i < 40; ++i) {
    TraceCase c;
    c.note = "tuned";
    c.dtype = i % 2 ? FOVEA_F16 : FOVEA_BF16;
    c.d = widths[i % 5][0], c.e = widths[i % 5][1];
    c.block_rows = blocks[i % 8][0], c.block_keys = blocks[i % 8][1];
    c.b = 1 + i / 8 % 2, c.h = i % 3 == 1 ? 2 : 1, c.g = 1;
    c.s = c.block_rows * (1 + i % 7) + i % 4 * 7;
    c.t = c.block_keys * (4 + i % 9) + (i % 3 ? 11 : 0);
    c.keep = i % 10 == 7 ? 70 : 1 + i % 6;
    c.causal = i / 5 % 2, c.mask = i % 7 == 3, c.keep_row = i % 6 == 5;
    c.paged = i % 9 == 4 || i % 9 == 8, c.key_len = i % 4 == 2, c.cache_row = i % 11 == 4;
    if (c.key_len || c.cache_row) c.b = 3;
    c.o_f32 = i % 8 == 6, c.exact = i % 13 == 12;
    c.data = c.exact ? TraceData::normal : TraceData::integers;
    c.values = i % 12 != 9, c.slots = i % 10 != 8, c.rows = i % 14 != 11;
    c.edges = static_cast<EdgeList>(i % 5), c.edge_kind = i % 3;
    cases.push_back(c);
  }
  // Many kept, by every width and either height of a row block.
  for (int dtype : {FOVEA_BF16, FOVEA_F16})
    for (int64_t d : {64, 128, 256})
      for (int64_t rows : {64, 128}) {
        TraceCase c;
        c.note = "tuned", c.dtype = dtype, c.d = c.e = d, c.s = rows + 9, c.t = 64 * 75 + 5;
        c.b = c.h = c.g = 1, c.block_rows = rows, c.block_keys = 64, c.keep = 70;
        c.exact = false, c.data = TraceData::integers;
        cases.push_back(c);
      }
  return cases;
}

// The stages a tuned case should have.
std::string tuned_kernel(const TraceCase& c) {
  const int64_t d = c.d <= 64 ? 64 : c.d <= 128 ? 128 : 256;
  const bool weights = c.slots || (c.edges >= EdgeList::apart && c.edge_kind == 2);
  const bool listed = (c.rows || weights) && c.block_rows >= 64 && c.block_keys >= 64;
  std::string name = std::string("sm90.") + dtype_name(c.dtype) + ".d" + std::to_string(d);
  if (!c.exact) name += c.keep <= 64 && d < 256 ? ".select64" : ".select256";
  if (listed) name += ".rows" + std::to_string(c.block_rows);
  if (weights) name += ".weigh";
  if (c.rows && !c.mask && (!c.paged || c.block_keys >= 64)) name += ".dense";
  return name;
}

std::vector<harness::Case> trace_cases() {
  std::vector<harness::Case> cases;
  const auto add = [&](const TraceCase& c, bool tiny = false, const std::string& kernel = "") {
    cases.push_back({"trace_forward", name_of(c),
                     [c](uint64_t seed) { return build_trace(c, seed); }, kernel, "", tiny});
  };
  for (const TraceCase& c : trace_tuned()) add(c, false, tuned_kernel(c));
  for (const TraceCase& c : trace_sweep()) add(c);
  for (const TraceCase& c : trace_edges()) add(c);
  TraceCase c;
  c.note = "small";
  c.s = 18, c.t = 70, c.d = 4, c.e = 2, c.keep = 2;
  c.cap = 8;  // as many as there are: a golden vector holds written rows only
  add(c, true);
  c.causal = c.mask = c.keep_row = true, c.edges = EdgeList::none, c.exact = false;
  c.data = TraceData::integers, c.dtype = FOVEA_F16;
  add(c, true);
  return cases;
}

const Family kFamily("trace", trace_cases);

}  // namespace

}  // namespace cases
