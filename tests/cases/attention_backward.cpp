// SPDX-License-Identifier: Apache-2.0
// attention_backward: the same sweep as the forward, over subsets of outputs and broadcast sums.
#include "oracle/attention_backward.h"
#include "cases/attention_build.h"
#include "cases/attention_sweep.h"

namespace cases {

Call build_attention_backward(const AttentionCase& c, uint64_t shape_seed, uint64_t data_seed) {
  fovea_attention_backward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(attention_backward), p);
  AttentionBuild<fovea_attention_backward_params> build(call, *p, c, shape_seed, data_seed);
  build.build();
  p->nondeterministic = c.nondeterministic;
  const int o_dtype = c.o_f32 ? FOVEA_F32 : c.dtype;
  const Shape o_shape = {build.b, build.s, c.h, c.e}, lse_shape = {build.b, c.h, build.s};
  const size_t o = call.add("o", p->o, Role::in, o_dtype, o_shape, c.lay);
  const size_t lse = call.add("lse", p->lse, Role::in, FOVEA_F32, lse_shape, c.lay);
  const size_t dout = build.numbers("dout", p->dout, o_dtype, o_shape, 7, Data::normal, 1, c.lay);
  auto row_counts = [&](const int64_t* i) { return build.row_counts(i[0], i[1]); };
  auto lse_counts = [&](const int64_t* i) { return build.row_counts(i[0], i[2]); };
  call.account(dout, row_counts);
  if (c.dlse)
    call.account(build.numbers("dlse", p->dlse, FOVEA_F32, lse_shape, 8, Data::normal), lse_counts);
  // What the forward gave, rounded as it is stored.
  const oracle::ForwardResult forward =
      oracle::forward(oracle::load_attention(*p), p->o, p->lse, oracle::Mode::exact);
  call.fill_list(o, forward.o.value);
  call.fill_list(lse, forward.lse.value);
  call.account(o, row_counts);
  call.account(lse, lse_counts);

  auto output = [&](int bit, const char* name, fovea_tensor& slot, int dtype, const Shape& shape,
                    bool sums = false) {
    if (!(c.outputs >> bit & 1)) return;
    if (!sums) {
      call.add(name, slot, Role::out, dtype, shape, c.lay);
      return;
    }
    // The sum over the first axis, and of dbias over the heads or the rows too.
    fovea_tensor x = fovea_contiguous(nullptr, static_cast<fovea_dtype>(dtype),
                                      static_cast<int32_t>(shape.size()), shape.data());
    const int also = shape.size() == 4 ? 1 + static_cast<int>(shape_seed % 2) : 0;
    int64_t pitch = 1;
    for (int i = x.ndim - 1; i >= 0; --i) {
      x.stride[i] = i == 0 || i == also ? 0 : pitch;
      if (x.stride[i]) pitch *= shape[i];
    }
    call.add_strided(name, slot, Role::out, x);
  };
  const auto type = [&](int bit) { return c.f32 >> bit & 1 ? FOVEA_F32 : c.dtype; };
  output(0, "dq", p->dq, type(0), {build.b, build.s, c.h, c.d});
  output(1, "dk", p->dk, type(1), {p->k.shape[0], p->k.shape[1], c.g, c.d});
  output(2, "dv", p->dv, type(2), {p->v.shape[0], p->v.shape[1], c.g, c.e});
  if (c.sink_logit) output(3, "dsink_logit", p->dsink_logit, FOVEA_F32, {c.h});
  if (c.bias != Bias::none)
    output(4, "dbias", p->dbias, FOVEA_F32, {build.b, c.h, build.s, build.columns}, c.sums);
  if (c.alibi) output(5, "dalibi", p->dalibi, FOVEA_F32, {build.r, c.h}, c.sums);
  oracle::BackwardResult exact = oracle::backward(*p, oracle::Mode::exact);
  oracle::BackwardResult rounded = oracle::backward(*p, oracle::Mode::rounded);
  auto expect = [&](const char* name, oracle::Out& x, oracle::Out& y) {
    if (!x.value.empty() || call.field(name) < call.fields.size())
      call.expect(call.field(name), std::move(x), std::move(y));
  };
  expect("dq", exact.dq, rounded.dq);
  expect("dk", exact.dk, rounded.dk);
  expect("dv", exact.dv, rounded.dv);
  expect("dsink_logit", exact.dsink_logit, rounded.dsink_logit);
  expect("dbias", exact.dbias, rounded.dbias);
  expect("dalibi", exact.dalibi, rounded.dalibi);
  return call;
}

harness::Case backward_case(AttentionCase c, std::string cuda_kernel) {
  const std::string name = name_of(c, true);
  harness::Case out{"attention_backward", name, nullptr, std::move(cuda_kernel), "", false};
  out.build = [c, name](uint64_t seed) {
    return build_attention_backward(c, harness::seed_of(name), seed);
  };
  out.bits_may_differ = c.nondeterministic;
  return out;
}

std::vector<harness::Case> attention_backward_sweep() {
  std::vector<harness::Case> cases;
  harness::Pairwise sweep(
      attention_axes(true), [](const harness::Row& x) { return attention_valid(x, true); }, 2);
  for (const harness::Row& row : sweep.rows())
    cases.push_back(backward_case(attention_case(row, true)));
  return cases;
}

}  // namespace cases
