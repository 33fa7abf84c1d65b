// SPDX-License-Identifier: Apache-2.0
// What must not change one bit (the order of pages, ten runs, the last zero of a split), and what
// follows from the formula alone (rows of probability 1, a constant bias, published numbers).
#include "cases/attention_case.h"
#include "oracle/attention.h"

namespace {

using namespace cases;
using harness::Bytes;
using harness::Context;

class Invariance : public testing::TestWithParam<fovea_backend> {
 protected:
  Invariance() : ctx(GetParam()) {}
  Bytes run(const Call& call) { return harness::run_way(ctx, call, {true, false, 0}); }
  Context ctx;
};
INSTANTIATE_TEST_SUITE_P(attention, Invariance, testing::ValuesIn(harness::backends()),
                         [](const auto& at) { return std::string(harness::name_of(at.param)); });

AttentionCase paged(int dtype, int64_t page, int64_t s) {
  AttentionCase c;
  c.dtype = dtype, c.b = 3, c.s = s, c.t = 200, c.h = 8, c.g = 2, c.d = c.e = 64;
  c.where = Where::paged, c.page = page, c.span = Span::causal;
  return c;
}

TEST_P(Invariance, page_order_changes_no_bit) {
  for (int dtype : kDtypes)
    for (int64_t page : {1, 16, 64})
      for (int64_t s : {1, 33}) {
        AttentionCase c = paged(dtype, page, s);
        const Call one = build_attention_forward(c, 3, 9);
        c.page_seed = 5;
        const Call two = build_attention_forward(c, 3, 9);
        EXPECT_NE(one.storages[one.fields[one.field("page_table")].storage].image,
                  two.storages[two.fields[two.field("page_table")].storage].image);
        const Bytes a = run(one), b = run(two);
        EXPECT_EQ(harness::values_of(one, one.field("o"), a),
                  harness::values_of(two, two.field("o"), b))
            << name_of(c, false);
      }
}

TEST_P(Invariance, ten_runs_are_one) {
  for (int dtype : kDtypes) {
    AttentionCase c;
    c.dtype = dtype, c.b = 2, c.s = 130, c.t = 300, c.h = 4, c.g = 2, c.d = c.e = 64;
    c.span = Span::causal, c.bias = Bias::full, c.alibi = c.sink_logit = c.sums = true;
    const Call forward = build_attention_forward(c, 1, 2),
               backward = build_attention_backward(c, 1, 2);
    const Bytes first_forward = run(forward), first_backward = run(backward);
    for (int i = 1; i < 10; ++i) {
      EXPECT_EQ(harness::first_difference(forward, first_forward, run(forward)), "");
      EXPECT_EQ(harness::first_difference(backward, first_backward, run(backward)), "");
    }
  }
}

// A sequence's gradients do not depend on its place in the batch, nor on the others' work.
TEST_P(Invariance, batch_position_changes_no_bit) {
  for (int dtype : kDtypes)
    for (int64_t d : {64, 128})
      for (Span span : {Span::full, Span::causal}) {
        AttentionCase c;
        c.dtype = dtype, c.b = 3, c.s = 130, c.t = 260, c.h = 2, c.g = 1, c.d = c.e = d;
        c.span = span;
        Call call = build_attention_backward(c, 1, 2);
        for (const char* name : {"q", "k", "v", "o", "lse", "dout"}) {
          const size_t field = call.field(name);
          const oracle::Dense old = oracle::load(call.fields[field].tensor);
          const size_t each = old.value.size() / c.b;
          size_t n = 0;
          call.fill(field, [&](const int64_t*) { return old.value[n++ % each]; });
        }
        const Bytes after = run(call);
        for (const char* name : {"dq", "dk", "dv"}) {
          const auto x = harness::values_of(call, call.field(name), after);
          const size_t each = x.size() / c.b;
          for (int b = 1; b < c.b; ++b)
            EXPECT_TRUE(std::equal(x.begin(), x.begin() + each, x.begin() + b * each))
                << name << " at " << b << " " << name_of(c, true);
        }
      }
}

// A gradient in f32, rounded, has the bits of the gradient in 16 bits.
TEST_P(Invariance, f32_gradients_round_to_those_of_16_bits) {
  for (int dtype : {FOVEA_F16, FOVEA_BF16})
    for (const auto& [d, e] :
         {std::pair{16, 24}, {64, 64}, {128, 128}, {192, 128}, {256, 256}, {264, 64}})
      for (bool softcap : {false, true}) {
        AttentionCase c;
        c.dtype = dtype, c.b = 2, c.s = 20, c.t = 40, c.h = 2, c.g = 1, c.d = d, c.e = e;
        c.span = Span::causal, c.where = Where::lengths, c.softcap = softcap;
        const Call half = build_attention_backward(c, 1, 2);
        c.f32 = 7;
        const Call single = build_attention_backward(c, 1, 2);
        const Bytes rounded = run(half), whole = run(single);
        for (const char* name : {"dq", "dk", "dv"}) {
          auto x = harness::values_of(single, single.field(name), whole);
          bool same = true;
          for (double& value : x) {
            const double more = value;
            value = oracle::round_to(dtype, more);
            same &= value == more;
          }
          EXPECT_FALSE(same) << name << " was rounded before " << name_of(c, true);
          EXPECT_EQ(x, harness::values_of(half, half.field(name), rounded))
              << name << " of " << name_of(c, true);
        }
      }
}

// v = 1: o = 1 whatever the scores, up to the sums of 700 f32 terms (2e-6) and, where p is rounded
// to 16 bits, the roundings of its terms and of o.
TEST_P(Invariance, probabilities_sum_to_one) {
  for (int dtype : kDtypes)
    for (int splits : {0, 5}) {
      AttentionCase c;
      c.dtype = dtype, c.b = 2, c.s = 33, c.t = 700, c.h = 4, c.g = 2, c.d = c.e = 64,
      c.splits = splits, c.lse = false;
      Call call = build_attention_forward(c, 1, 2);
      call.fill(call.field("v"), [](const int64_t*) { return 1.0; });
      const double limit = dtype == FOVEA_F32 ? 2e-6
                                              : 4 * oracle::unit_of(dtype) / std::sqrt(700.0) +
                                                    2 * oracle::unit_of(dtype);
      for (double x : harness::values_of(call, call.field("o"), run(call)))
        EXPECT_NEAR(x, 1, limit);
    }
}

// A constant added to the bias of a row moves lse by it and leaves o.
TEST_P(Invariance, constant_bias_moves_lse_only) {
  AttentionCase c;
  c.b = 1, c.s = 40, c.t = 90, c.h = 2, c.g = 2, c.d = c.e = 64, c.bias = Bias::full;
  Call call = build_attention_forward(c, 1, 2);
  const Bytes before = run(call);
  const size_t bias = call.field("bias");
  const oracle::Dense old = oracle::load(call.fields[bias].tensor);
  size_t n = 0;
  call.fill(bias, [&](const int64_t*) { return old.value[n++] + 4; });
  const Bytes after = run(call);
  const auto o = harness::values_of(call, call.field("o"), before),
             o_moved = harness::values_of(call, call.field("o"), after);
  const auto lse = harness::values_of(call, call.field("lse"), before),
             lse_moved = harness::values_of(call, call.field("lse"), after);
  for (size_t i = 0; i < o.size(); ++i) EXPECT_NEAR(o[i], o_moved[i], 2e-6);
  for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i] + 4, lse_moved[i], 4e-6);
}

// The numbers of the specification, through the library itself.
TEST_P(Invariance, golden_numbers) {
  fovea_attention_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(attention_forward), p);
  call.fill_list(call.add("q", p->q, Role::in, FOVEA_F32, {1, 3, 1, 2}), {1, 0, 0, 2, 1, -1});
  call.fill_list(call.add("k", p->k, Role::in, FOVEA_F32, {1, 4, 1, 2}),
                 {1, 1, 0, 1, -1, .5, 2, 0});
  call.fill_list(call.add("v", p->v, Role::in, FOVEA_F32, {1, 4, 1, 2}),
                 {1, 2, 3, -1, 0, 4, -2, .5});
  call.fill_list(call.add("alibi", p->alibi, Role::in, FOVEA_F32, {1, 1}), {.5});
  call.fill_list(call.add("sink_logit", p->sink_logit, Role::in, FOVEA_F32, {1}), {.3});
  p->causal = 1, p->softcap = 2;
  const size_t o = call.add("o", p->o, Role::out, FOVEA_F32, {1, 3, 1, 2});
  const size_t lse = call.add("lse", p->lse, Role::out, FOVEA_F32, {1, 1, 3});
  auto exact = oracle::forward(oracle::load_attention(*p), p->o, p->lse, oracle::Mode::exact);
  call.expect(o, std::move(exact.o), {}), call.expect(lse, std::move(exact.lse), {});
  const Bytes after = run(call);
  const double want_o[] = {1.183348, .392605, 1.117561, 1.258489, -1.113159, .534209},
               want_lse[] = {1.265802, 1.889316, 1.680575};
  const auto got_o = harness::values_of(call, o, after),
             got_lse = harness::values_of(call, lse, after);
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(got_o[i], want_o[i], 2e-6);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(got_lse[i], want_lse[i], 2e-6);
}

}  // namespace
