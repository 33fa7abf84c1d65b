// SPDX-License-Identifier: Apache-2.0
// x_group_norm_forward and _backward: pairwise sweeps, and the edges by name.
#include "oracle/group_norm.h"
#include "cases/all.h"
#include "cases/attention_case.h"
#include "harness/pairwise.h"
#include "oracle/conv_attention_backward.h"

namespace cases {
namespace {

struct GroupNormCase {
  std::string note;
  int dtype = FOVEA_F32;
  int64_t b = 2, s = 7, h = 3, e = 8;
  bool gain = true, gain_f32 = true, y_f32 = false, lengths = false, sums = false;
  double spread = 1;
  harness::Lay lay = harness::Lay::contiguous;
  float factor = 0, eps = 0;
  int outputs = 3;  // of the backward: dx dgain (bits)
};

std::string name_of(const GroupNormCase& c, bool backward) {
  std::string name = std::string(dtype_name(c.dtype)) + "/b" + std::to_string(c.b) + "_s" +
                     std::to_string(c.s) + "_h" + std::to_string(c.h) + "_e" + std::to_string(c.e);
  const auto add = [&](bool here, const char* word) {
    if (here) name += std::string("_") + word;
  };
  add(c.gain, c.gain_f32 ? "gain" : "gain16"), add(c.y_f32, "y_f32"), add(c.lengths, "lengths");
  add(c.lay != harness::Lay::contiguous, harness::kLayNames[static_cast<int>(c.lay)]);
  add(c.spread > 1, "large"), add(c.spread < 1, "tiny"), add(c.factor > 0, "factor");
  add(c.eps > 0, "eps"), add(backward && c.sums, "sums");
  if (backward && c.outputs != 3) name += "_out" + std::to_string(c.outputs);
  add(!c.note.empty(), c.note.c_str());
  return name;
}

template <class P>
class GroupNormBuild {
 public:
  GroupNormBuild(harness::Call& call, P& p, const GroupNormCase& c, uint64_t seed)
      : call_(call), c_(c), seed_(seed) {
    p.factor = c.factor, p.eps = c.eps;
    rows("x", p.x, c.dtype, 1, c.spread);
    if (c.gain) {
      const size_t gain = call.add("gain", p.gain, harness::Role::in,
                                   c.gain_f32 ? FOVEA_F32 : c.dtype, {c.h, c.e}, c.lay);
      normal(gain, 2, 1);
    }
    if (!c.lengths) return;
    const size_t field = call.add("query_len", p.query_len, harness::Role::in, FOVEA_I32, {c.b});
    call.fill(field, [&](const int64_t* i) { return static_cast<double>(len_of(i[0])); });
    count_rows("x");
  }
  void rows(const char* name, fovea_tensor& slot, int dtype, uint64_t stream, double spread) {
    normal(call_.add(name, slot, harness::Role::in, dtype, {c_.b, c_.s, c_.h, c_.e}, c_.lay),
           stream, spread);
  }
  // Rows past the length are of no account.
  void count_rows(const char* name) {
    if (c_.lengths)
      call_.account(call_.field(name), [&](const int64_t* i) { return i[1] < len_of(i[0]); });
  }

 private:
  int64_t len_of(int64_t batch) const { return batch == 0 ? c_.s : (batch * 5) % (c_.s + 1); }
  void normal(size_t field, uint64_t stream, double spread) {
    const harness::Random random(seed_ ^ stream << 32);
    uint64_t n = 0;
    call_.fill(field, [&](const int64_t*) { return spread * random.normal(n++); });
  }
  harness::Call& call_;
  const GroupNormCase c_;
  const uint64_t seed_;
};

harness::Call build_group_norm_forward(const GroupNormCase& c, uint64_t seed) {
  fovea_x_group_norm_forward_params* p;
  harness::Call call = harness::Call::make(FOVEA_TEST_OP(x_group_norm_forward), p);
  GroupNormBuild<fovea_x_group_norm_forward_params> build(call, *p, c, seed);
  const size_t y = call.add("y", p->y, harness::Role::out, c.y_f32 ? FOVEA_F32 : c.dtype,
                            {c.b, c.s, c.h, c.e}, c.lay);
  const oracle::GroupNorm n = oracle::load_group_norm(*p);
  call.expect(y, oracle::group_norm_forward<double>(n, p->y, oracle::Mode::exact),
              oracle::group_norm_forward<float>(n, p->y, oracle::Mode::rounded));
  return call;
}

harness::Call build_group_norm_backward(const GroupNormCase& c, uint64_t seed) {
  fovea_x_group_norm_backward_params* p;
  harness::Call call = harness::Call::make(FOVEA_TEST_OP(x_group_norm_backward), p);
  GroupNormBuild<fovea_x_group_norm_backward_params> build(call, *p, c, seed);
  build.rows("dy", p->dy, c.y_f32 ? FOVEA_F32 : c.dtype, 3, 1);
  build.count_rows("dy");
  const harness::Shape shape = {c.h, c.e};
  if (c.outputs & 1)
    call.add("dx", p->dx, harness::Role::out, c.dtype, {c.b, c.s, c.h, c.e}, c.lay);
  if (c.outputs & 2 && !c.sums)
    call.add("dgain", p->dgain, harness::Role::out, FOVEA_F32, shape, c.lay);
  if (c.outputs & 2 && c.sums) {  // over the heads
    fovea_tensor x = fovea_contiguous(nullptr, FOVEA_F32, 2, shape.data());
    x.stride[0] = 0;
    call.add_strided("dgain", p->dgain, harness::Role::out, x);
  }
  const oracle::GroupNorm n = oracle::load_group_norm(*p);
  const oracle::Dense dy = oracle::load(p->dy);
  const auto exact = oracle::group_norm_gradients<double>(n, dy);
  const auto rounded = oracle::group_norm_gradients<float>(n, dy);
  const auto expect = [&](const char* name, const fovea_tensor& x, const std::vector<double>& one,
                          const std::vector<double>& two, const std::vector<double>& terms) {
    if (x.data)
      call.expect(call.field(name), oracle::conv_output(x, one, terms, 0, 0, oracle::Mode::exact),
                  oracle::conv_output(x, two, terms, 0, 0, oracle::Mode::rounded));
  };
  expect("dx", p->dx, exact.dx, rounded.dx, exact.dx_terms);
  expect("dgain", p->dgain, exact.dgain, rounded.dgain, exact.dgain_terms);
  return call;
}

class GroupNormCases {
 public:
  std::vector<harness::Case> cases;

  GroupNormCases() {
    constexpr int dtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16};
    constexpr int64_t widths[] = {1, 8, 24, 64, 128, 1000};
    harness::Pairwise rows(
        {3, 6, 4, 3, 2, 2, 5, 2, 3, 2, 2}, [](const harness::Row&) { return true; }, 25);
    for (const harness::Row& x : rows.rows()) {
      GroupNormCase c;
      c.dtype = dtypes[x[0]], c.e = widths[x[1]];
      c.s = x[2] == 0 ? 1 : x[2] == 1 ? 7 : x[2] == 2 ? 65 : 300;
      c.h = x[3] == 0 ? 1 : x[3] == 1 ? 3 : 4;
      c.gain = x[4] || x[5], c.gain_f32 = x[5], c.lay = static_cast<harness::Lay>(x[6]);
      c.lengths = x[7], c.spread = x[8] == 0 ? 1 : x[8] == 1 ? 50 : 1e-3;
      c.factor = x[9] ? 0.2f : 0, c.eps = x[10] ? 1e-3f : 0, c.y_f32 = x[9] != x[10];
      c.sums = x[7] && x[9];
      both(c);
    }
    edges();
  }

 private:
  void both(const GroupNormCase& c, bool tiny = false) {
    for (bool backward : {false, true})
      cases.push_back({backward ? "x_group_norm_backward" : "x_group_norm_forward",
                       name_of(c, backward),
                       [c, backward](uint64_t seed) {
                         return backward ? build_group_norm_backward(c, seed)
                                         : build_group_norm_forward(c, seed);
                       },
                       "", "", tiny});
  }

  void edges() {
    constexpr int64_t extents[][3] = {{0, 3, 2}, {2, 0, 2}, {2, 3, 0}, {1, 1, 1}, {3, 1100, 2}};
    for (const auto& n : extents) {
      GroupNormCase c;
      c.note = "edge", c.b = n[0], c.s = n[1], c.h = n[2];
      both(c);
    }
    for (int outputs : {1, 2}) {
      GroupNormCase c;
      c.note = "edge", c.outputs = outputs, c.gain = outputs == 1, c.s = 130, c.lengths = true;
      both(c);
    }
    GroupNormCase c;
    c.note = "small", c.factor = 0.8f;
    both(c, true);
    c.dtype = FOVEA_BF16, c.gain_f32 = false;
    both(c, true);
    c.lengths = true;
    both(c);
  }
};

std::vector<harness::Case> group_norm_cases() {
  return GroupNormCases().cases;
}

const Family kFamily("group_norm", group_norm_cases);

}  // namespace

}  // namespace cases
