// SPDX-License-Identifier: Apache-2.0
// x_multi_token_forward and _backward: pairwise sweeps, and the edges by name.
#include "cases/all.h"
#include "cases/conv_build.h"
#include "cases/conv_sweep.h"
#include "oracle/multi_token_backward.h"

namespace cases {
namespace {

struct MultiTokenCase {
  ConvCase conv;
  int64_t group = 2;
  bool before = true, after = true;
  int outputs = 63;  // of the backward: dq dk dv dweight dmix_before dmix_after (bits)
};

std::string name_of(const MultiTokenCase& c, bool backward) {
  ConvCase plain = c.conv;
  plain.outputs = 15;
  return name_of(plain, backward) + "/c" + std::to_string(c.group) + (c.before ? "_before" : "") +
         (c.after ? "_after" : "") +
         (backward && c.outputs != 63 ? "_out" + std::to_string(c.outputs) : "");
}

// The identity and noise.
template <class P>
void add_mixing(Call& call, P& p, const MultiTokenCase& c, uint64_t data_seed) {
  const auto add = [&](const char* name, fovea_tensor& slot, uint64_t stream) {
    const size_t field = call.add(name, slot, Role::in, FOVEA_F32, {c.conv.h, c.group}, c.conv.lay);
    const harness::Random random(data_seed ^ stream << 32);
    uint64_t n = 0;
    call.fill(field, [&](const int64_t* i) {
      return (i[0] % c.group == i[1]) + 0.5 * random.normal(n++);
    });
  };
  if (c.before) add("mix_before", p.mix_before, 11);
  if (c.after) add("mix_after", p.mix_after, 12);
}

Call build_multi_token_forward(const MultiTokenCase& m, uint64_t shape_seed, uint64_t data_seed) {
  const ConvCase& c = m.conv;
  fovea_x_multi_token_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(x_multi_token_forward), p);
  ConvBuild<fovea_x_multi_token_forward_params> build(call, *p, c, shape_seed, data_seed);
  build.build();
  add_mixing(call, *p, m, data_seed);
  const size_t o = call.add("o", p->o, Role::out, c.o_f32 ? FOVEA_F32 : c.dtype,
                            {build.b, build.rows_out, c.h, c.e}, c.lay);
  size_t lse = 0;
  if (c.lse)
    lse = call.add("lse", p->lse, Role::out, FOVEA_F32, {build.b, c.h, build.rows_out}, c.lay);
  build.account();
  const oracle::MultiToken a = oracle::load_multi_token(*p);
  auto exact = oracle::multi_token_forward(a, p->o, p->lse, oracle::Mode::exact);
  auto rounded = oracle::multi_token_forward(a, p->o, p->lse, oracle::Mode::rounded);
  call.expect(o, std::move(exact.o), std::move(rounded.o));
  if (c.lse) call.expect(lse, std::move(exact.lse), std::move(rounded.lse));
  return call;
}

Call build_multi_token_backward(const MultiTokenCase& m, uint64_t shape_seed, uint64_t data_seed) {
  const ConvCase& c = m.conv;
  fovea_x_multi_token_backward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(x_multi_token_backward), p);
  ConvBuild<fovea_x_multi_token_backward_params> build(call, *p, c, shape_seed, data_seed);
  build.build();
  add_mixing(call, *p, m, data_seed);
  const Shape o_shape = {build.b, build.rows_out, c.h, c.e};
  const size_t lse =
      call.add("lse", p->lse, Role::in, FOVEA_F32, {build.b, c.h, build.rows_out}, c.lay);
  build.numbers("dout", p->dout, c.o_f32 ? FOVEA_F32 : c.dtype, o_shape, 7, 1);
  // What the forward gave, rounded as it is stored.
  const oracle::ConvForward forward = oracle::multi_token_forward(
      oracle::load_multi_token(*p), p->dout, p->lse, oracle::Mode::exact);
  call.fill_list(lse, forward.lse.value);
  build.account();
  const auto output = [&](int bit, const char* name, fovea_tensor& slot, int dtype,
                          const Shape& shape) {
    if (!(m.outputs >> bit & 1)) return;
    if (bit < 3 || !c.sums) {
      call.add(name, slot, Role::out, dtype, shape, c.lay);
      return;
    }
    fovea_tensor x =
        fovea_contiguous(nullptr, FOVEA_F32, static_cast<int32_t>(shape.size()), shape.data());
    x.stride[0] = 0;  // over the heads
    call.add_strided(name, slot, Role::out, x);
  };
  const auto like = [](const fovea_tensor& x) { return Shape(x.shape, x.shape + 4); };
  output(0, "dq", p->dq, c.dtype, like(p->q)), output(1, "dk", p->dk, c.dtype, like(p->k));
  output(2, "dv", p->dv, c.dtype, like(p->v));
  output(3, "dweight", p->dweight, FOVEA_F32, {c.h, c.kernel_rows, c.kernel_columns});
  if (m.before) output(4, "dmix_before", p->dmix_before, FOVEA_F32, {c.h, m.group});
  if (m.after) output(5, "dmix_after", p->dmix_after, FOVEA_F32, {c.h, m.group});
  auto exact = oracle::multi_token_backward(*p, oracle::Mode::exact);
  auto rounded = oracle::multi_token_backward(*p, oracle::Mode::rounded);
  const auto expect = [&](const char* name, oracle::Out& x, oracle::Out& y) {
    if (call.field(name) < call.fields.size())
      call.expect(call.field(name), std::move(x), std::move(y));
  };
  expect("dq", exact.dq, rounded.dq), expect("dk", exact.dk, rounded.dk);
  expect("dv", exact.dv, rounded.dv), expect("dweight", exact.dweight, rounded.dweight);
  expect("dmix_before", exact.dmix_before, rounded.dmix_before);
  expect("dmix_after", exact.dmix_after, rounded.dmix_after);
  return call;
}

class MultiTokenCases {
 public:
  std::vector<harness::Case> cases;

  MultiTokenCases() {
    edges();
    for (bool backward : {false, true}) sweep(backward);
  }

 private:
  void add(const MultiTokenCase& c, bool backward, bool tiny = false) {
    const std::string name = name_of(c, backward);
    harness::Case out{
        backward ? "x_multi_token_backward" : "x_multi_token_forward", name, nullptr, "", "", tiny};
    out.build = [c, name, backward](uint64_t seed) {
      return backward ? build_multi_token_backward(c, harness::seed_of(name), seed)
                      : build_multi_token_forward(c, harness::seed_of(name), seed);
    };
    cases.push_back(out);
  }
  void both(const MultiTokenCase& c, bool tiny = false) {
    add(c, false, tiny);
    if (c.conv.where != Where::paged && c.conv.where != Where::cache_row) add(c, true, tiny);
  }

  static MultiTokenCase row(int64_t s, int64_t t, int64_t kernel_rows, int64_t kernel_columns) {
    MultiTokenCase c;
    c.conv = conv_row(s, t, kernel_rows, kernel_columns);
    c.conv.h = 4, c.conv.g = 2;
    return c;
  }

  void edges() {
    constexpr int64_t list[][2] = {{0, 5}, {5, 0}, {1, 1},    {1, 7},   {7, 1},
                                   {9, 4}, {4, 9}, {129, 97}, {70, 130}};
    for (const auto& n : list)
      for (bool causal : {false, true}) {
        MultiTokenCase c = row(n[0], n[1], 3, 3);
        c.conv.causal = causal;
        both(c);
        c.before = causal, c.after = !causal;
        both(c);
      }
    // Groups beside key heads, of one head, of all.
    constexpr int64_t heads[][3] = {{6, 2, 2}, {6, 3, 3}, {6, 1, 2},  {6, 6, 3},
                                    {4, 2, 1}, {4, 4, 4}, {16, 2, 16}};
    for (const auto& n : heads)
      for (bool causal : {false, true}) {
        MultiTokenCase c = row(37, 50, 6, 11);
        c.conv.h = n[0], c.conv.g = n[1], c.group = n[2], c.conv.causal = causal;
        both(c);
      }
    MultiTokenCase c = row(3, 3, 3, 3);
    c.conv.h = c.conv.g = 0;
    both(c);
    c.conv.g = 2;
    both(c);
    c = row(3, 3, 3, 3), c.conv.b = 0;
    both(c);
    c = row(40, 44, 16, 31), c.before = c.after = false, c.group = 1;
    both(c);
    values();
    places();
    small();
  }

  void values() {
    for (bool causal : {false, true}) {
      MultiTokenCase c = row(70, 110, 6, 11);
      c.conv.causal = causal, c.conv.d = c.conv.e = 64;
      for (int dtype : {FOVEA_F32, FOVEA_F16, FOVEA_BF16})
        for (Data data : {Data::normal, Data::sharp, Data::huge}) {
          c.conv.dtype = dtype, c.conv.data = data;
          both(c);
        }
      c.conv.dtype = FOVEA_F32;
      for (Data data : {Data::nan_q, Data::nan_k, Data::nan_v}) {
        c.conv.data = data;
        add(c, false);
      }
    }
    MultiTokenCase c = row(20, 20, 3, 3);
    c.conv.sums = true;
    both(c);
    c.conv.lay = Lay::odd, c.conv.sums = false, c.conv.causal = true;
    both(c);
  }

  // Decode over every kind of cache, and more keys than the parts of the backward.
  void places() {
    for (int64_t history : {0, 2, 5, 9})
      for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::varlen_queries,
                          Where::cache_row, Where::paged}) {
        MultiTokenCase c = row(history + 1 + history % 3, 200, 6, 11);
        c.conv.b = 3, c.conv.history = history, c.conv.where = where;
        c.conv.page = where == Where::paged ? 16 : 0, c.conv.causal = history != 2;
        c.conv.dtype = history == 2 ? FOVEA_BF16 : FOVEA_F32;
        both(c);
      }
    for (Where where : {Where::batched, Where::varlen}) {
      MultiTokenCase c = row(40, 1500, 5, 5);
      c.conv.b = 1, c.conv.where = where, c.conv.d = c.conv.e = 8;
      both(c);
    }
  }

  // A few rows: for sanitizers and the bindings.
  void small() {
    MultiTokenCase c = row(5, 7, 3, 3);
    c.conv.note = "small", c.conv.causal = true, c.conv.d = c.conv.e = 8;
    both(c, true);
    c.conv.dtype = FOVEA_BF16, c.conv.history = 2, c.conv.kernel_columns = 4;
    c.conv.weight_f32 = false, c.group = 4;
    both(c, true);
    c.conv.where = Where::varlen, c.conv.dtype = FOVEA_F32;
    both(c);
  }

  static MultiTokenCase case_of(const harness::Row& x, bool backward) {
    MultiTokenCase c;
    const harness::Row conv(x.begin(), x.end() - 3);
    c.conv = conv_case_of(conv, backward);
    c.conv.splits = 0, c.conv.nondeterministic = false, c.conv.outputs = 15;
    const size_t last = x.size();
    c.group = x[last - 3] ? c.conv.h / 2 : 2;
    c.before = x[last - 2] != 0, c.after = x[last - 2] != 1;
    constexpr int outputs[] = {63, 1, 4, 8, 16, 32, 6};
    c.outputs = backward ? outputs[x[last - 1]] : 63;
    return c;
  }

  void sweep(bool backward) {
    std::vector<int> sizes = conv_axes(backward);
    for (int n : {2, 3, backward ? 7 : 1}) sizes.push_back(n);
    harness::Pairwise rows(
        sizes,
        [=](const harness::Row& x) {
          const ConvCase c = case_of(x, backward).conv;
          return c.history <= c.s && c.cost() * (backward ? 2 : 1) < 8000000;
        },
        backward ? 24 : 23);
    for (const harness::Row& x : rows.rows()) add(case_of(x, backward), backward);
  }
};

std::vector<harness::Case> multi_token_cases() {
  return MultiTokenCases().cases;
}

const Family kFamily("multi_token", multi_token_cases);

}  // namespace

}  // namespace cases
