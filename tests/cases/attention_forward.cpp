// SPDX-License-Identifier: Apache-2.0
// attention_forward: a pairwise sweep over every choice, and the edges by name.
#include "cases/attention_build.h"
#include "cases/attention_sweep.h"

namespace cases {

Call build_attention_forward(const AttentionCase& c, uint64_t shape_seed, uint64_t data_seed) {
  fovea_attention_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(attention_forward), p);
  AttentionBuild<fovea_attention_forward_params> build(call, *p, c, shape_seed, data_seed);
  build.build();
  p->splits = c.splits;
  if (c.q_value) {
    const size_t field = build.numbers("q_value", p->q_value, c.dtype, {build.b, build.s, c.h, c.e},
                                       6, c.data, 1, c.lay);
    call.account(field, [&](const int64_t* i) { return build.row_counts(i[0], i[1]); });
  }
  if (c.rope != Rope::none) {
    // Every position a key can have; with an offset into the columns where there is room.
    const int64_t half = c.d >= 16 ? c.d / 2 - 4 : c.d / 2;
    const int64_t positions =
        std::max(c.t, build.columns) * std::max<int64_t>(p->key_step, 1) + p->key_shift + 1;
    for (int turn = 0; turn < 2; ++turn) {
      fovea_tensor& slot = turn ? p->sin : p->cos;
      const size_t field =
          call.add(turn ? "sin" : "cos", slot, Role::in, FOVEA_F32, {positions, half});
      call.fill(field, [&](const int64_t* i) {
        const double angle =
            static_cast<double>(i[0]) *
            std::pow(10000.0, -static_cast<double>(i[1]) / static_cast<double>(half));
        return turn ? std::sin(angle) : std::cos(angle);
      });
    }
    p->rope_begin = static_cast<int32_t>(c.d - 2 * half);
    p->rope_interleaved = c.rope == Rope::interleaved;
  }
  const size_t o = call.add("o", p->o, Role::out, c.o_f32 ? FOVEA_F32 : c.dtype,
                            {build.b, build.s, c.h, c.e}, c.lay);
  size_t lse = 0;
  if (c.lse) lse = call.add("lse", p->lse, Role::out, FOVEA_F32, {build.b, c.h, build.s}, c.lay);
  const oracle::Attention a = oracle::load_attention(*p);
  auto exact = oracle::forward(a, p->o, p->lse, oracle::Mode::exact);
  auto rounded = oracle::forward(a, p->o, p->lse, oracle::Mode::rounded);
  call.expect(o, std::move(exact.o), std::move(rounded.o));
  if (c.lse) call.expect(lse, std::move(exact.lse), std::move(rounded.lse));
  return call;
}

harness::Case forward_case(AttentionCase c, std::string cuda_kernel) {
  const std::string name = name_of(c, false);
  harness::Case out{"attention_forward", name, nullptr, std::move(cuda_kernel), "", false};
  out.build = [c, name](uint64_t seed) {
    return build_attention_forward(c, harness::seed_of(name), seed);
  };
  return out;
}

std::vector<harness::Case> attention_forward_sweep() {
  std::vector<harness::Case> cases;
  harness::Pairwise sweep(
      attention_axes(false), [](const harness::Row& x) { return attention_valid(x, false); }, 1);
  for (const harness::Row& row : sweep.rows())
    cases.push_back(forward_case(attention_case(row, false)));
  return cases;
}

namespace {

constexpr int kCodes[] = {0, FOVEA_E4M3, FOVEA_E5M2, FOVEA_I8};

AttentionCase codes_case(const harness::Row& x) {
  static constexpr int64_t widths[][2] = {{64, 64},   {128, 128}, {40, 24}, {7, 5},
                                          {192, 128}, {64, 512},  {8, 8}};
  static constexpr int64_t heads[][2] = {{4, 4}, {4, 2}, {6, 1}, {16, 1}};
  static constexpr int64_t lengths[][2] = {{1, 3},   {3, 190}, {64, 128}, {130, 17},
                                           {1, 300}, {65, 65}, {5, 64},   {200, 260}};
  static constexpr int64_t pages[] = {1, 16, 64, 128, 5};
  AttentionCase c;
  c.note = "codes";
  c.dtype = kDtypes[x[0]];
  c.d = widths[x[1]][0], c.e = widths[x[1]][1];
  c.h = heads[x[2]][0], c.g = heads[x[2]][1];
  c.s = lengths[x[3]][0], c.t = lengths[x[3]][1];
  c.span = static_cast<Span>(x[4]);
  c.where = static_cast<Where>(std::min(x[5], 6));
  if (c.where == Where::paged) c.page = pages[x[5] - 6];
  c.k_dtype = kCodes[x[6]], c.v_dtype = kCodes[x[7]];
  if (c.k_dtype) c.k_scales = static_cast<CodeScales>(x[8]);
  if (c.v_dtype) c.v_scales = static_cast<CodeScales>(x[9]);
  c.axis = static_cast<Axis>(x[10]);
  c.positions = static_cast<Positions>(x[11]);
  c.rope = static_cast<Rope>(x[12]);
  c.q_value = x[13];
  c.splits = x[14] == 1 ? 3 : 0;
  c.lay = static_cast<Lay>(x[15]);
  c.mask = x[16] == 1, c.alibi = x[16] == 2;
  c.bias = x[16] == 3 ? Bias::minus_inf : Bias::none;
  c.softcap = x[17], c.sink_logit = x[18];
  c.b = 3;
  return c;
}

bool codes_valid(const harness::Row& x) {
  const AttentionCase c = codes_case(x);
  const bool keys_by_number = c.axis != Axis::none;
  if (keys_by_number && c.positions != Positions::none) return false;
  if (c.rope != Rope::none && (c.d < 8 || c.axis == Axis::behind)) return false;
  return c.cost() < 12000000;
}

}  // namespace

std::vector<harness::Case> attention_codes_sweep() {
  std::vector<harness::Case> cases;
  harness::Pairwise sweep({3, 7, 4, 8, 8, 11, 4, 4, 5, 5, 5, 3, 3, 2, 2, 5, 4, 2, 2}, codes_valid,
                          2);
  for (const harness::Row& row : sweep.rows()) cases.push_back(forward_case(codes_case(row)));
  return cases;
}

}  // namespace cases
