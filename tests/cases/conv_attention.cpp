// SPDX-License-Identifier: Apache-2.0
// conv_attention_forward and conv_attention_backward: pairwise sweeps, and the edges by name.
#include "cases/all.h"
#include "cases/conv_build.h"
#include "cases/conv_sweep.h"

namespace cases {
namespace {

harness::Case conv_case(const ConvCase& c, bool backward, bool tiny = false,
                        const std::string& kernel = "") {
  const std::string name = name_of(c, backward);
  harness::Case out{backward ? "conv_attention_backward" : "conv_attention_forward",
                    name,
                    nullptr,
                    kernel,
                    "",
                    tiny};
  out.build = [c, name, backward](uint64_t seed) {
    return backward ? build_conv_backward(c, harness::seed_of(name), seed)
                    : build_conv_forward(c, harness::seed_of(name), seed);
  };
  return out;
}

constexpr int64_t kConvKernels[][2] = {{1, 1}, {1, 3},  {3, 1},   {3, 3},
                                       {5, 5}, {6, 11}, {16, 31}, {2, 4}};
constexpr int64_t kConvWidths[][2] = {{8, 8}, {64, 64}, {40, 24},   {128, 128},
                                      {1, 1}, {72, 16}, {576, 512}, {24, 56}};
constexpr int64_t kConvHeads[][2] = {{4, 4}, {6, 2}, {4, 1}};
constexpr int64_t kConvLengths[][2] = {{1, 1},     {1, 300}, {3, 513},  {64, 128}, {113, 203},
                                       {130, 217}, {239, 1}, {33, 130}, {70, 40},  {260, 300}};

bool conv_valid(const harness::Row& x, bool backward) {
  const ConvCase c = conv_case_of(x, backward);
  return c.history <= c.s && c.cost() * (backward ? 2 : 1) < 24000000;
}

class ConvEdges {
 public:
  std::vector<harness::Case> cases;

  ConvEdges() {
    lengths();
    values();
    places();
    few();
    small();
    tuned();
  }

 private:
  void both(const ConvCase& c, bool tiny = false) {
    cases.push_back(conv_case(c, false, tiny));
    if (c.where != Where::paged && c.where != Where::cache_row)
      cases.push_back(conv_case(c, true, tiny));
  }
  void each_dtype(ConvCase c) {
    for (int dtype : {FOVEA_F32, FOVEA_F16, FOVEA_BF16}) {
      c.dtype = dtype;
      both(c);
    }
  }

  // Nothing, one, fewer keys than rows, a kernel larger than the sequence, tiles' bounds.
  void lengths() {
    constexpr int64_t list[][2] = {{0, 5},   {5, 0},    {0, 0},   {1, 1},   {1, 7},     {7, 1},
                                   {9, 4},   {4, 9},    {96, 96}, {97, 95}, {112, 192}, {113, 193},
                                   {224, 1}, {129, 97}, {15, 30}, {16, 31}};
    for (const auto& n : list)
      for (const auto& kernel : {kConvKernels[3], kConvKernels[6]})
        for (bool causal : {false, true}) {
          ConvCase c = conv_row(n[0], n[1], kernel[0], kernel[1]);
          c.causal = causal;
          both(c);
        }
    for (int64_t columns : {1, 2, 3, 4, 7, 30, 31})
      for (int64_t rows : {1, 2, 4, 7, 15, 16}) {
        ConvCase c = conv_row(40, 50, rows, columns);
        c.causal = (rows + columns) % 2, c.d = c.e = 8;
        both(c);
      }
    ConvCase c = conv_row(3, 3, 3, 3);
    c.h = c.g = 0;
    both(c);
    c.g = 2;
    both(c);
    c = conv_row(3, 3, 3, 3), c.b = 0;
    both(c);
  }

  void values() {
    for (bool causal : {false, true}) {
      ConvCase c = conv_row(70, 110, 6, 11);
      c.causal = causal, c.d = c.e = 64;
      c.taps = Taps::delta;
      each_dtype(c);
      c.taps = Taps::random;
      for (Data data : {Data::sharp, Data::huge}) {
        c.data = data;
        each_dtype(c);
      }
      for (Data data : {Data::nan_q, Data::nan_k, Data::nan_v}) {
        c.data = data;
        cases.push_back(conv_case(c, false));
        c.dtype = FOVEA_BF16;
        cases.push_back(conv_case(c, false));
        c.dtype = FOVEA_F32;
        // A NaN key is NaN in every row that sees it, a NaN row in itself and those below.
        c.outputs = 7;
        cases.push_back(conv_case(c, true));
        c.outputs = 15;
      }
    }
  }

  // Decode over every kind of cache, and parts of keys.
  void places() {
    for (int64_t history : {0, 2, 5, 9})
      for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::varlen_queries,
                          Where::cache_row, Where::paged})
        for (bool causal : {false, true}) {
          ConvCase c = conv_row(history + 1 + history % 3, 300, 6, 11);
          c.b = 3, c.h = 4, c.g = 2, c.d = c.e = 64, c.history = history, c.where = where;
          c.page = where == Where::paged ? 16 : 0, c.causal = causal;
          c.dtype = history == 2 ? FOVEA_BF16 : FOVEA_F32;
          both(c);
        }
    for (int splits : {1, 2, 7, 1000})
      for (int64_t s : {6, 130}) {
        ConvCase c = conv_row(s, 700, 6, 11);
        c.causal = true, c.splits = splits, c.history = s == 6 ? 5 : 0;
        cases.push_back(conv_case(c, false));
        c.dtype = FOVEA_F16, c.where = Where::paged, c.page = 64;
        cases.push_back(conv_case(c, false));
        c.dtype = FOVEA_BF16, c.where = Where::batched, c.page = 0, c.d = c.e = 64;
        cases.push_back(conv_case(c, false));
      }
    // Keys that end where a tile does, and a few before and after: its outputs read the next one.
    for (int64_t t : {64, 123, 124, 128, 129})
      for (int64_t s : {6, 40}) {
        ConvCase c = conv_row(s, t, 6, 11);
        c.d = c.e = 64, c.dtype = FOVEA_BF16, c.history = s == 6 ? 5 : 0;
        c.causal = t % 2, c.splits = s == 6 ? 2 : 0;
        cases.push_back(conv_case(c, false));
      }
    // More heads of a key head than fit a strip.
    for (const auto& kernel : {kConvKernels[6], kConvKernels[1]})
      for (Where where : {Where::batched, Where::varlen}) {
        ConvCase c = conv_row(kernel[0] + 2, 200, kernel[0], kernel[1]);
        c.history = kernel[0] - 1, c.h = 46, c.g = 2, c.causal = true, c.where = where;
        both(c);
        c.splits = 3;
        cases.push_back(conv_case(c, false));
      }
    // More keys than the parts of the backward.
    for (Where where : {Where::batched, Where::varlen}) {
      ConvCase c = conv_row(40, 1500, 5, 5);
      c.b = 1, c.where = where, c.d = c.e = 8;
      both(c);
    }
    ConvCase c = conv_row(20, 20, 3, 3);
    c.sums = true, c.h = 4, c.g = 2;
    cases.push_back(conv_case(c, true));
    c.lay = Lay::odd, c.causal = true;
    cases.push_back(conv_case(c, false));
  }

  // A few rows with a history, as decoding has them, down to none that has an output: every kind of
  // sequence, any kernel to 6 x 6, limits below the rows there are.
  void few() {
    ConvCase c = conv_row(1, 17, 6, 5);
    c.dtype = FOVEA_F16, c.h = 6, c.g = 3, c.d = 128, c.e = 40, c.causal = true, c.history = 1;
    both(c);
    c = conv_row(2, 17, 6, 2), c.dtype = FOVEA_BF16, c.d = c.e = 64, c.history = 2, c.query_max = 1;
    both(c);
    harness::Random random(17);
    const auto pick = [&](int64_t low, int64_t high) { return random.integer(low, high); };
    constexpr Where wheres[] = {Where::batched, Where::lengths, Where::varlen,
                                Where::varlen_queries};
    for (int i = 0; i < 60; ++i) {
      const int64_t rows = pick(1, 4), keys = pick(1, 40), taps = pick(1, 6);
      c = conv_row(rows, keys, taps, pick(1, 6));
      c.note = "few" + std::to_string(i);
      c.dtype = i % 7 == 6 ? FOVEA_F32 : i % 2 ? FOVEA_F16 : FOVEA_BF16;
      c.d = i % 3 ? 128 : 64, c.e = c.d - 8 * pick(0, 7), c.causal = i % 2;
      c.h = 2 * pick(1, 3), c.g = i % 4 ? 2 : 1, c.b = pick(1, 3);
      c.where = wheres[i % 4], c.history = pick(0, std::min<int64_t>(c.s, 3));
      if (i % 5 == 0) c.query_max = pick(1, c.s);
      both(c);
    }
  }

  // Every instance of the tuned kernels (src/ops/conv_attention/*.inc), by its name: lengths off
  // its tiles, widths and taps that fill it or do not.
  void tuned() {
    constexpr int64_t kernels[][2] = {{3, 3},  {4, 9},  {5, 5},   {6, 8},   {7, 7}, {8, 2},
                                      {6, 11}, {5, 17}, {11, 11}, {12, 13}, {1, 1}, {2, 6}};
    constexpr int64_t instances[][2] = {{4, 9}, {6, 9}, {8, 9}, {6, 17}, {12, 17}};
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (int64_t width : {64, 128})
        for (const auto& kernel : kernels)
          for (bool packed : {false, true}) {
            int64_t rows = 0, columns = 0;
            for (const auto& most : instances)
              if (!rows && kernel[0] <= most[0] && kernel[1] <= most[1] &&
                  !(packed && most[1] == 9 && most[0] < 8))
                rows = most[0], columns = most[1];
            const std::string name = std::string("sm90.") + dtype_name(dtype) + ".d" +
                                     std::to_string(width) + "." + std::to_string(rows) + "x" +
                                     std::to_string(columns) +
                                     (packed ? ".packed" : ".whole.128x64");
            ConvCase c =
                conv_row(packed ? kernel[0] + 1 : 150, packed ? 700 : 190, kernel[0], kernel[1]);
            const bool odd = kernel[0] % 2;
            c.note = "tuned", c.dtype = dtype, c.d = width, c.e = odd ? width : width - 24;
            c.b = packed ? 2 : 1, c.h = packed ? 6 : 2, c.g = packed ? 2 : 1;
            c.history = packed ? kernel[0] - 1 : 0;
            for (bool causal : {false, true}) {
              c.causal = causal;
              c.where = causal == odd ? Where::batched : packed ? Where::lengths : Where::varlen;
              cases.push_back(conv_case(c, false, false, name));
              const bool usual = kernel[0] == kernel[1] || kernel[1] == 11;
              if (!packed && rows < 12 && usual && dtype == FOVEA_BF16) many_heads(c, name);
              if (packed || kernel[1] > 12) continue;
              c.history = kernel[0] - 1;
              const char* taps = kernel[0] > 8   ? "12x17"
                                 : kernel[1] > 9 ? "6x17"
                                 : kernel[0] > 4 ? "8x9"
                                                 : "4x9";
              const std::string gradient = std::string("sm90.") + dtype_name(dtype) + ".d" +
                                           std::to_string(width) + "." + taps;
              cases.push_back(conv_case(c, true, false, gradient));
              c.history = 0;
              c.outputs = odd ? 13 : 6;
              cases.push_back(conv_case(c, true, false, gradient));
              c.outputs = 15;
            }
          }
  }

  // Works enough for three warpgroups on any Hopper device.
  void many_heads(ConvCase c, std::string name) {
    c.s = c.causal ? 20 : 130, c.t = c.causal ? 70 : 10, c.h = c.causal ? 640 : 320, c.g = c.h / 2;
    c.where = Where::batched;
    cases.push_back(conv_case(c, false, false, name.replace(name.size() - 6, 3, "192")));
  }

  // A few rows: for sanitizers and the bindings.
  void small() {
    ConvCase c = conv_row(5, 7, 3, 3);
    c.note = "small", c.causal = true, c.d = c.e = 8;
    both(c, true);
    c.dtype = FOVEA_BF16, c.history = 2, c.kernel_columns = 4, c.weight_f32 = false, c.h = 4;
    c.g = 2, c.lay = Lay::contiguous;
    both(c, true);
    c.where = Where::varlen, c.dtype = FOVEA_F32;
    both(c);
    c.where = Where::paged, c.page = 2;
    both(c);
  }
};

std::vector<harness::Case> conv_cases() {
  std::vector<harness::Case> cases = ConvEdges().cases;
  for (bool backward : {false, true}) {
    harness::Pairwise sweep(
        conv_axes(backward), [=](const harness::Row& x) { return conv_valid(x, backward); },
        backward ? 22 : 21);
    for (const harness::Row& row : sweep.rows())
      cases.push_back(conv_case(conv_case_of(row, backward), backward));
  }
  return cases;
}

const Family kFamily("conv_attention", conv_cases);

}  // namespace

Call build_conv_forward(const ConvCase& c, uint64_t shape_seed, uint64_t data_seed) {
  fovea_conv_attention_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(conv_attention_forward), p);
  ConvBuild<fovea_conv_attention_forward_params> build(call, *p, c, shape_seed, data_seed);
  build.build();
  p->splits = c.splits;
  const size_t o = call.add("o", p->o, Role::out, c.o_f32 ? FOVEA_F32 : c.dtype,
                            {build.b, build.rows_out, c.h, c.e}, c.lay);
  size_t lse = 0;
  if (c.lse)
    lse = call.add("lse", p->lse, Role::out, FOVEA_F32, {build.b, c.h, build.rows_out}, c.lay);
  build.account();
  const oracle::ConvAttention a = oracle::load_conv(*p);
  auto exact = oracle::conv_forward(a, p->o, p->lse, oracle::Mode::exact);
  auto rounded = oracle::conv_forward(a, p->o, p->lse, oracle::Mode::rounded);
  call.expect(o, std::move(exact.o), std::move(rounded.o));
  if (c.lse) call.expect(lse, std::move(exact.lse), std::move(rounded.lse));
  return call;
}

Call build_conv_backward(const ConvCase& c, uint64_t shape_seed, uint64_t data_seed) {
  fovea_conv_attention_backward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(conv_attention_backward), p);
  ConvBuild<fovea_conv_attention_backward_params> build(call, *p, c, shape_seed, data_seed);
  build.build();
  p->nondeterministic = c.nondeterministic;
  const int o_dtype = c.o_f32 ? FOVEA_F32 : c.dtype;
  const Shape o_shape = {build.b, build.rows_out, c.h, c.e};
  const size_t o = call.add("o", p->o, Role::in, o_dtype, o_shape, c.lay);
  const size_t lse =
      call.add("lse", p->lse, Role::in, FOVEA_F32, {build.b, c.h, build.rows_out}, c.lay);
  build.numbers("dout", p->dout, o_dtype, o_shape, 7, 1);
  // What the forward gave, rounded as it is stored.
  const oracle::ConvForward forward =
      oracle::conv_forward(oracle::load_conv(*p), p->o, p->lse, oracle::Mode::exact);
  call.fill_list(o, forward.o.value);
  call.fill_list(lse, forward.lse.value);
  build.account();
  const auto output = [&](int bit, const char* name, fovea_tensor& slot, const fovea_tensor& like) {
    if (c.outputs >> bit & 1)
      call.add(name, slot, Role::out, c.dtype, Shape(like.shape, like.shape + 4), c.lay);
  };
  output(0, "dq", p->dq, p->q), output(1, "dk", p->dk, p->k), output(2, "dv", p->dv, p->v);
  const Shape taps = {c.h, c.kernel_rows, c.kernel_columns};
  if (c.outputs >> 3 & 1 && !c.sums)
    call.add("dweight", p->dweight, Role::out, FOVEA_F32, taps, c.lay);
  if (c.outputs >> 3 & 1 && c.sums) {  // over the heads
    fovea_tensor x = fovea_contiguous(nullptr, FOVEA_F32, 3, taps.data());
    x.stride[0] = 0;
    call.add_strided("dweight", p->dweight, Role::out, x);
  }
  auto exact = oracle::conv_backward(*p, oracle::Mode::exact);
  auto rounded = oracle::conv_backward(*p, oracle::Mode::rounded);
  const auto expect = [&](const char* name, oracle::Out& x, oracle::Out& y) {
    if (call.field(name) < call.fields.size())
      call.expect(call.field(name), std::move(x), std::move(y));
  };
  expect("dq", exact.dq, rounded.dq), expect("dk", exact.dk, rounded.dk);
  expect("dv", exact.dv, rounded.dv), expect("dweight", exact.dweight, rounded.dweight);
  return call;
}

std::vector<int> conv_axes(bool backward) {
  return {3,
          static_cast<int>(std::size(kConvKernels)),
          static_cast<int>(std::size(kConvWidths)),
          3,
          static_cast<int>(std::size(kConvLengths)),
          2,
          backward ? 3 : 8,
          3,
          2,
          2,
          5,
          3,
          backward ? 6 : 4,
          2,
          2};
}

ConvCase conv_case_of(const harness::Row& x, bool backward) {
  constexpr int dtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16};
  constexpr Where wheres[] = {Where::batched,        Where::lengths,   Where::varlen,
                              Where::varlen_queries, Where::cache_row, Where::paged,
                              Where::paged,          Where::paged};
  constexpr int64_t pages[] = {1, 16, 64};
  ConvCase c;
  c.dtype = dtypes[x[0]];
  c.kernel_rows = kConvKernels[x[1]][0], c.kernel_columns = kConvKernels[x[1]][1];
  c.d = kConvWidths[x[2]][0], c.e = kConvWidths[x[2]][1];
  c.h = kConvHeads[x[3]][0], c.g = kConvHeads[x[3]][1];
  c.s = kConvLengths[x[4]][0], c.t = kConvLengths[x[4]][1];
  c.causal = x[5];
  c.where = wheres[x[6]], c.page = x[6] > 4 ? pages[x[6] - 5] : 0;
  c.history = x[7] == 0 ? 0 : x[7] == 1 ? c.kernel_rows - 1 : 2;
  c.weight_f32 = x[8], c.o_f32 = x[9];
  c.lay = static_cast<Lay>(x[10]);
  c.data = x[11] == 1 ? Data::sharp : Data::normal;
  c.scale = x[11] == 2 ? 0.3f : 0;
  if (backward) {
    constexpr int outputs[] = {15, 1, 2, 4, 8, 7};
    c.outputs = outputs[x[12]], c.sums = x[13], c.nondeterministic = x[14];
  } else {
    constexpr int splits[] = {0, 0, 1, 3};
    c.splits = splits[x[12]], c.lse = x[13];
  }
  c.b = c.cost() < 2 * 1500000 ? 3 : 1;
  return c;
}

ConvCase conv_row(int64_t s, int64_t t, int64_t kernel_rows, int64_t kernel_columns) {
  ConvCase c;
  c.note = "edge", c.s = s, c.t = t, c.kernel_rows = kernel_rows, c.kernel_columns = kernel_columns;
  c.h = 2, c.g = 1, c.d = 16, c.e = 24;
  return c;
}

}  // namespace cases
