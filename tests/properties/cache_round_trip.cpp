// SPDX-License-Identifier: Apache-2.0
// What cache_append writes with scales that it finds, attention_forward reads: the answer is the
// oracle's over those codes, and near the one over the numbers that were appended.
#include "cases/attention_case.h"
#include "cases/cache_case.h"
#include "oracle/attention.h"

namespace {

using namespace cases;
using harness::Bytes;
using harness::Context;

class RoundTrip : public testing::TestWithParam<fovea_backend> {};
INSTANTIATE_TEST_SUITE_P(cache, RoundTrip, testing::ValuesIn(harness::backends()),
                         [](const auto& at) { return std::string(harness::name_of(at.param)); });

class Reader {
 public:
  Reader(const Call& append, const Bytes& written) : append_(append), written_(written) {
    call = Call::make(FOVEA_TEST_OP(attention_forward), params);
  }
  Call call;
  fovea_attention_forward_params* params;

  // A tensor of the append as it was left, `used` tokens of each row.
  void take(const char* from, const char* name, fovea_tensor& slot, int64_t used) {
    const size_t field = append_.field(from);
    const fovea_tensor& x = append_.fields[field].tensor;
    const size_t to = call.add(name, slot, harness::Role::in, x.dtype, {x.shape, x.shape + x.ndim});
    call.fill_list(to, harness::values_of(append_, field, written_));
    if (x.ndim > 1) call.account(to, [&](const int64_t* i) { return i[1] < used; });
  }

 private:
  const Call& append_;
  const Bytes& written_;
};

// The numbers that were appended: k after its norm, and v, in the places of the cache.
void put_back(const Call& append, oracle::Attention& a) {
  const auto& k = append.fields[append.field("k")].exact.value;
  const oracle::Out& scale = append.fields[append.field("k_scale_out")].exact;
  const oracle::Dense v = oracle::load(append.fields[append.field("v_new")].tensor);
  const int64_t groups = a.k.shape[3] / append.fields[append.field("k_scale_out")].tensor.shape[3];
  for (size_t i = 0; i < k.size(); ++i)
    a.k.value[i] = k[i] * scale.value[i / static_cast<size_t>(groups)];
  for (int64_t b = 0; b < v.shape[0]; ++b)
    for (int64_t i = 0; i < v.shape[1]; ++i)
      for (int64_t g = 0; g < v.shape[2]; ++g)
        for (int64_t c = 0; c < v.shape[3]; ++c)
          a.v.value[a.v.at_index(b, i, g, c)] = v(b, i, g, c);
}

TEST_P(RoundTrip, append_then_attend) {
  Context ctx(GetParam());
  for (int dtype : {FOVEA_E4M3, FOVEA_E5M2, FOVEA_I8})
    for (bool power_of_two : {false, true}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (power_of_two ? " power of two" : ""));
      CacheCase c;
      c.cache_dtype = dtype, c.groups = 2, c.power_of_two = power_of_two, c.norm = true;
      c.b = 2, c.s = 20, c.g = c.f = 2, c.d = c.e = 64, c.lens = false;
      const Call append = build_cache_append(c, 5);
      const Bytes written = harness::run_way(ctx, append, {true, false, 0});
      Reader reader(append, written);
      Call& call = reader.call;
      fovea_attention_forward_params& p = *reader.params;
      const harness::Random random(7);
      uint64_t n = 0;
      call.fill(call.add("q", p.q, harness::Role::in, FOVEA_F32, {c.b, 3, 4, c.d}),
                [&](const int64_t*) { return random.normal(n++); });
      reader.take("k", "k", p.k, c.s), reader.take("v", "v", p.v, c.s);
      reader.take("k_scale_out", "k_scale", p.k_scale, c.s);
      reader.take("v_scale_out", "v_scale", p.v_scale, c.s);
      reader.take("key_len_out", "key_len", p.key_len, c.b);
      p.causal = 1;
      const size_t o = call.add("o", p.o, harness::Role::out, FOVEA_F32, {c.b, 3, 4, c.e});
      oracle::Attention a = oracle::load_attention(p);
      call.expect(o, oracle::forward(a, p.o, p.lse, oracle::Mode::exact).o,
                  oracle::forward(a, p.o, p.lse, oracle::Mode::rounded).o);
      harness::check(ctx, call);
      put_back(append, a);
      const oracle::Out wanted = oracle::forward(a, p.o, p.lse, oracle::Mode::exact).o;
      const auto got = harness::values_of(call, o, harness::run_way(ctx, call, {true, false, 0}));
      double error = 0, size = 0;
      for (size_t i = 0; i < got.size(); ++i)
        error += std::pow(got[i] - wanted.value[i], 2), size += std::pow(wanted.value[i], 2);
      // A float's rounding does not know its scale.  An i8 is off by half a step, of amax / 127 or
      // up to twice that; amax is some four times the usual number.
      const double rounding =
          dtype == FOVEA_I8 ? (power_of_two ? 2 : 1) * 4 * 0.5 / 127 : oracle::unit_of(dtype);
      EXPECT_LT(std::sqrt(error / size), 2 * rounding);
      EXPECT_GT(error, 0);
    }
}

}  // namespace
