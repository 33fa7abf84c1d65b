// SPDX-License-Identifier: Apache-2.0
// What follows from the definition of convolutional attention alone: one tap is attention, decoding
// gives the full forward's rows, and a row never depends on what it does not see.
#include "cases/conv_case.h"

namespace {

using namespace cases;
using harness::Bytes;
using harness::Context;

class ConvInvariance : public testing::TestWithParam<fovea_backend> {
 protected:
  ConvInvariance() : ctx(GetParam()) {}
  void SetUp() override {
    const std::string name = std::string(harness::name_of(GetParam())) + " conv_attention_forward/";
    if (harness::unsupported_is_allowed(name)) GTEST_SKIP() << "no kernel on this backend";
  }
  std::vector<double> run(const Call& call, const char* output) {
    return harness::values_of(call, call.field(output),
                              harness::run_way(ctx, call, {true, false, 0}));
  }
  Context ctx;
};
INSTANTIATE_TEST_SUITE_P(conv_attention, ConvInvariance, testing::ValuesIn(harness::backends()),
                         [](const auto& at) { return std::string(harness::name_of(at.param)); });

ConvCase shape(bool causal) {
  ConvCase c;
  c.b = 2, c.s = 130, c.t = 230, c.h = 4, c.g = 2, c.d = c.e = 64;
  c.kernel_rows = 6, c.kernel_columns = 11, c.causal = causal;
  return c;
}

// The values of `from`'s field, element by element.
void copy_field(const Call& from, Call& to, const char* name) {
  to.fill_list(to.field(name), oracle::load(from.fields[from.field(name)].tensor).value);
}

// f32 sums of 64 products in another order: a few units in the last place of o and lse.
TEST_P(ConvInvariance, one_tap_is_attention) {
  for (bool causal : {false, true})
    for (int64_t s : {1, 130}) {
      ConvCase c = shape(causal);
      c.taps = Taps::delta, c.s = s;
      AttentionCase plain;
      plain.b = c.b, plain.s = s, plain.t = c.t, plain.h = c.h, plain.g = c.g;
      plain.d = plain.e = 64, plain.span = causal ? Span::causal : Span::full;
      const Call conv = build_conv_forward(c, 1, 2);
      Call attention = build_attention_forward(plain, 1, 2);
      for (const char* name : {"q", "k", "v"}) copy_field(conv, attention, name);
      for (const char* name : {"o", "lse"}) {
        const auto x = run(conv, name), y = run(attention, name);
        ASSERT_EQ(x.size(), y.size());
        for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 4e-6) << name << " " << i;
      }
    }
}

// The last rows of the forward from the kernel_rows - 1 rows above them as history.
TEST_P(ConvInvariance, decode_is_the_forwards_last_rows) {
  for (bool causal : {false, true})
    for (int64_t n : {1, 4, 100}) {
      const ConvCase all = shape(causal);
      ConvCase c = all;
      c.history = c.kernel_rows - 1, c.s = n + c.history;
      const Call full = build_conv_forward(all, 1, 2);
      Call decode = build_conv_forward(c, 1, 2);
      for (const char* name : {"k", "v", "weight"}) copy_field(full, decode, name);
      const oracle::Dense q = oracle::load(full.fields[full.field("q")].tensor);
      decode.fill(decode.field("q"),
                  [&](const int64_t* i) { return q(i[0], all.s - c.s + i[1], i[2], i[3]); });
      const auto x = run(decode, "o"), y = run(full, "o");
      const int64_t row = c.h * c.e;
      for (int64_t b = 0; b < c.b; ++b)
        for (int64_t i = 0; i < n * row; ++i)
          ASSERT_NEAR(x[b * n * row + i], y[((b + 1) * all.s - n) * row + i], 4e-6);
    }
}

// Garbage in the last key and the last row reaches only the rows that see them.  (A NaN value may
// change the order in which the other values of its tile are added.)
TEST_P(ConvInvariance, rows_see_nothing_after_them) {
  for (int64_t s : {64, 130, 230}) {
    ConvCase c = shape(true);
    c.s = s;
    Call call = build_conv_forward(c, 1, 2);
    const auto before = run(call, "o"), lse_before = run(call, "lse");
    for (const char* name : {"q", "k", "v"}) {
      const size_t field = call.field(name);
      const int64_t last = call.fields[field].tensor.shape[1] - 1;
      const oracle::Dense old = oracle::load(call.fields[field].tensor);
      const double garbage = name[0] == 'v' ? 1e30 : NAN;
      call.fill(field, [&](const int64_t* i) {
        return i[1] == last ? garbage : old(i[0], i[1], i[2], i[3]);
      });
    }
    const auto after = run(call, "o"), lse_after = run(call, "lse");
    const int64_t row = c.h * c.e;
    for (int64_t b = 0; b < c.b; ++b)
      for (int64_t i = 0; i < s; ++i)
        for (int64_t n = 0; n < row; ++n) {
          const int64_t at = (b * s + i) * row + n;
          if (i + 1 < s)
            ASSERT_EQ(before[at], after[at]) << "row " << i;
          else
            ASSERT_TRUE(std::isnan(after[at]));
        }
    for (size_t n = 0; n < lse_before.size(); ++n)
      if (static_cast<int64_t>(n + 1) % s) {
        ASSERT_EQ(lse_before[n], lse_after[n]);
      }
  }
}

// Gradients of rows and keys alike for every place in the batch, and dweight their sum.
TEST_P(ConvInvariance, batch_position_changes_no_bit) {
  ConvCase c = shape(true);
  c.b = 3;
  Call call = build_conv_backward(c, 1, 2);
  for (const char* name : {"q", "k", "v", "o", "lse", "dout"}) {
    const size_t field = call.field(name);
    const oracle::Dense old = oracle::load(call.fields[field].tensor);
    const size_t each = old.value.size() / c.b;
    size_t n = 0;
    call.fill(field, [&](const int64_t*) { return old.value[n++ % each]; });
  }
  for (const char* name : {"dq", "dk", "dv"}) {
    const auto x = run(call, name);
    const size_t each = x.size() / c.b;
    for (int b = 1; b < c.b; ++b)
      EXPECT_TRUE(std::equal(x.begin(), x.begin() + each, x.begin() + b * each)) << name;
  }
}

}  // namespace
