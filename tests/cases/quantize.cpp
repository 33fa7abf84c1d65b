// SPDX-License-Identifier: Apache-2.0
// quant_quantize and quant_dequantize.
#include "oracle/quantize.h"
#include "cases/all.h"
#include "cases/attention_case.h"
#include "cases/quant_case.h"

namespace cases {
namespace {

constexpr const char* kContentNames[] = {"",     "zeros",     "outliers", "huge",
                                         "tiny", "subnormal", "nan",      "inf"};
constexpr const char* kGroupNames[] = {"block",   "thread_q", "thread_k",  "token",    "channel",
                                       "micro16", "micro32",  "micro16_t", "micro32_t"};
constexpr int kMicro16 = FOVEA_SCALE_GROUP_MICRO16, kMicro16T = FOVEA_SCALE_GROUP_MICRO16_T;

std::string name_of(const QuantizeCase& c) {
  auto number = [](const char* letter, int64_t n) {
    return std::string(letter) + std::to_string(n);
  };
  const char* kind = c.format == FOVEA_CODE_FORMAT_I4     ? "i4"
                     : c.format == FOVEA_CODE_FORMAT_E2M1 ? "e2m1"
                     : c.code_dtype == FOVEA_I8           ? "i8"
                                                          : "";
  std::string name = std::string(dtype_name(c.dtype)) + number("/b", c.b) + number("_s", c.s) +
                     number("_h", c.h) + number("_d", c.d);
  if (c.group == FOVEA_SCALE_GROUP_BLOCK)
    name += c.block ? number("/block", c.block) : "/head";
  else
    name += std::string("/") + kGroupNames[c.group] + (c.block ? std::to_string(c.block) : "");
  if (*kind) name += std::string("_") + kind;
  const std::pair<bool, const char*> flags[] = {{c.packed, "_packed"},
                                                {c.spare > 0, "_spare"},
                                                {c.hadamard, "_hadamard"},
                                                {c.smooth == 1, "_smooth"},
                                                {c.smooth == 2, "_smooth_block"},
                                                {c.scale_max > 0, "_scale_max"},
                                                {c.keys > 0, "_delta"},
                                                {c.k_mean, "_k_mean"},
                                                {c.packed_keys, "_packed_keys"},
                                                {c.code, "_code"},
                                                {c.code_t, "_code_t"},
                                                {c.permuted, "_perm"}};
  for (const auto& flag : flags) name += flag.first ? flag.second : "";
  if (c.content != Content::normal)
    name += std::string("_") + kContentNames[static_cast<int>(c.content)];
  if (c.lay != Lay::contiguous)
    name += std::string("_") + harness::kLayNames[static_cast<int>(c.lay)];
  return name + (c.note.empty() ? "" : "_" + c.note);
}

bool pairs(const QuantizeCase& c) {
  return c.format != FOVEA_CODE_FORMAT_DTYPE;
}
int64_t micro(const QuantizeCase& c) {
  return c.group < kMicro16 ? 0 : c.group % 2 ? 16 : 32;
}
int scale_dtype(const QuantizeCase& c) {
  return micro(c) == 16 ? FOVEA_E4M3 : micro(c) == 32 ? FOVEA_U8 : FOVEA_F32;
}

// Scales of a head.
int64_t scales_of(const QuantizeCase& c, int64_t s) {
  const int64_t padded = entries_of(c.packed, s, c.b, 128) * 128;
  if (c.group >= kMicro16T) return c.d * padded / micro(c);
  if (c.group >= kMicro16) return s * ((c.d + micro(c) - 1) / micro(c));
  if (c.group == FOVEA_SCALE_GROUP_CHANNEL) return c.d * (c.packed ? c.b : 1);
  if (c.group == FOVEA_SCALE_GROUP_TOKEN) return s;
  const int64_t parts = c.group == FOVEA_SCALE_GROUP_THREAD_Q   ? 8
                        : c.group == FOVEA_SCALE_GROUP_THREAD_K ? 4
                                                                : 1;
  return parts * entries_of(c.packed, s, c.b, c.block);
}

double value_at(const QuantizeCase& c, const harness::Random& random, uint64_t n, const int64_t* i,
                int64_t s) {
  const double value = random.normal(n);
  const bool one = i[1] == s / 2 && i[2] == 0 && i[3] == c.d / 2;
  switch (c.content) {
    case Content::zeros:
      return i[1] < 70 ? 0 : value;
    case Content::outliers:
      return random.uniform(n ^ 1u << 20) < 0.01 ? 30 * value : value;
    case Content::huge:
      return one ? 6e4 : value;
    case Content::tiny:
      return value * 1e-7;
    case Content::subnormal:
      return value * (c.dtype == FOVEA_F16 ? 1e-6 : 1e-39);
    case Content::nan:
      return one ? NAN : value;
    case Content::infinite:
      return one ? -HUGE_VAL : value;
    default:
      return value + (c.smooth ? static_cast<double>(i[3] % 5) : 0);
  }
}

void fill_keys(Call& call, fovea_quant_quantize_params* p, const QuantizeCase& c,
               const harness::Random& random, uint64_t& n, int64_t s) {
  int64_t b = c.b, t = c.keys;
  if (c.packed_keys) {
    const std::vector<double> starts = starts_of(c.b, c.keys);
    call.fill_list(call.add("key_start", p->key_start, Role::in, FOVEA_I32, {c.b + 1}), starts);
    b = 1, t = static_cast<int64_t>(starts.back());
  }
  const auto normal = [&](const int64_t*) { return random.normal(n++); };
  call.fill(call.add("k", p->k, Role::in, c.dtype, {b, t, c.g, c.d}, c.lay), normal);
  if (c.k_mean)
    call.fill(call.add("k_mean", p->k_mean, Role::in, FOVEA_F32,
                       {b, c.g, c.packed_keys ? c.b : 1, c.d}, c.lay),
              normal);
  call.add("delta", p->delta, Role::out, FOVEA_F32,
           {c.packed ? 1 : c.b, c.h, entries_of(c.packed, s, c.b, 128), t}, c.lay);
}

template <class P>
void numbers(P* p, const QuantizeCase& c) {
  p->block = c.block, p->hadamard = c.hadamard, p->seed = c.hadamard ? 7 : 0;
  p->code_order = c.permuted, p->group = c.group, p->code_format = c.format, p->smooth = c.smooth;
}

}  // namespace

Call build_quantize(const QuantizeCase& c, uint64_t seed) {
  fovea_quant_quantize_params* p;
  Call call = Call::make(FOVEA_TEST_OP(quant_quantize), p);
  const harness::Random random(seed);
  uint64_t n = 0;
  int64_t b = c.b, s = c.s;
  if (c.packed) {
    const std::vector<double> starts = starts_of(c.b, c.s);
    call.fill_list(call.add("start", p->start, Role::in, FOVEA_I32, {c.b + 1}), starts);
    b = 1, s = static_cast<int64_t>(starts.back()) + c.spare;
  }
  const size_t x = call.add("x", p->x, Role::in, c.dtype, {b, s, c.h, c.d}, c.lay);
  call.fill(x, [&](const int64_t* i) { return value_at(c, random, n++, i, s); });
  if (c.spare) call.account(x, [&](const int64_t* i) { return i[1] < s - c.spare; });
  const int dtype = pairs(c) ? FOVEA_U8 : c.code_dtype;
  const int64_t per = pairs(c) ? 2 : 1, units = entries_of(c.packed, s, c.b, 128);
  if (c.code) call.add("code", p->code, Role::out, dtype, {b, s, c.h, c.d / per}, c.lay);
  if (c.code_t)
    call.add("code_t", p->code_t, Role::out, dtype, {b, c.h, c.d, units * 128 / per}, c.lay);
  call.add("scale", p->scale, Role::out, scale_dtype(c), {b, c.h, scales_of(c, s)}, c.lay);
  if (c.smooth)
    call.add("mean", p->mean, Role::out, FOVEA_F32,
             {b, c.h, entries_of(c.packed, s, c.b, c.smooth == 2 ? 128 : 0), c.d}, c.lay);
  if (c.keys) fill_keys(call, p, c, random, n, s);
  numbers(p, c), p->scale_max = c.scale_max;
  auto result = oracle::quantize(*p);
  const auto exact = [&](const char* name, oracle::Out& out) {
    const size_t field = call.field(name);
    if (field < call.fields.size()) call.expect(field, std::move(out), {}, true);
  };
  exact("code", result.code), exact("code_t", result.code_t);
  exact("scale", result.scale), exact("mean", result.mean);
  if (c.keys) {
    auto rounded = oracle::quantize(*p, oracle::Mode::rounded);
    call.expect(call.field("delta"), std::move(result.delta), std::move(rounded.delta));
  }
  return call;
}

Call build_dequantize(const QuantizeCase& c, int y_dtype, uint64_t seed) {
  const Call made = build_quantize(c, seed);
  fovea_quant_dequantize_params* p;
  Call call = Call::make(FOVEA_TEST_OP(quant_dequantize), p);
  const auto take = [&](const char* name, fovea_tensor& slot) {
    const size_t at = made.field(name);
    if (at == made.fields.size()) return;
    const harness::Field& of = made.fields[at];
    const Shape shape(of.tensor.shape, of.tensor.shape + of.tensor.ndim);
    const size_t field = call.add(name, slot, Role::in, of.tensor.dtype, shape, c.lay);
    if (of.expected() || !oracle::count_of(of.tensor)) {
      size_t n = 0;
      call.fill(field, [&](const int64_t*) { return of.exact.value[n++]; });
      n = 0;
      call.account(field, [&](const int64_t*) { return of.exact.written[n++] != 0; });
    } else {
      call.fill_list(field, oracle::load(of.tensor).value);
    }
  };
  take("start", p->start), take("code", p->code), take("code_t", p->code_t);
  take("scale", p->scale), take("mean", p->mean);
  const harness::Field& x = made.fields[made.field("x")];
  const Shape shape(x.tensor.shape, x.tensor.shape + x.tensor.ndim);
  const size_t y = call.add("y", p->y, Role::out, y_dtype, shape, c.lay);
  numbers(p, c);
  call.expect(y, oracle::dequantize(*p), {}, true);
  return call;
}

namespace {

class QuantizeCases {
 public:
  void add(const QuantizeCase& c, std::string kernel = "", bool tiny = false) {
    list.push_back({"quant_quantize", name_of(c),
                    [c](uint64_t seed) { return build_quantize(c, seed); }, std::move(kernel), "",
                    tiny});
  }
  // The way back, of one of the two codes.
  void back(QuantizeCase c, int y_dtype, bool tiny = false, std::string kernel = "") {
    if (c.code) c.code_t = c.permuted = false;
    list.push_back({"quant_dequantize", name_of(c) + "_to_" + dtype_name(y_dtype),
                    [c, y_dtype](uint64_t seed) { return build_dequantize(c, y_dtype, seed); },
                    std::move(kernel), "", tiny});
  }
  std::vector<harness::Case> list;
};

constexpr int kDtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16};
constexpr Lay kLays[] = {Lay::contiguous, Lay::head_first, Lay::gaps, Lay::odd, Lay::wide};

// Lengths off every block, layouts, widths that rotate in runs.
void add_plain(QuantizeCases& cases) {
  const int64_t lengths[] = {1, 63, 64, 65, 127, 129, 300};
  const int64_t widths[] = {1, 40, 96, 128, 192, 64, 72};
  for (int i = 0; i < 21; ++i) {
    QuantizeCase c;
    c.dtype = kDtypes[i % 3], c.s = lengths[i % 7], c.d = widths[(i + i / 7) % 7];
    c.block = i % 4 == 0 ? 0 : i % 4 == 1 ? 64 : 128;
    c.hadamard = i % 2, c.code_t = i % 3 != 0, c.permuted = i % 3 == 2, c.code = i % 3 != 2;
    c.packed = i % 5 == 3, c.b = c.packed ? 3 : 2, c.lay = kLays[i % 5];
    cases.add(c);
  }
}

struct GroupOf {
  int group;
  int64_t block;
};
constexpr GroupOf kGroupsOf8[] = {
    {FOVEA_SCALE_GROUP_BLOCK, 0},      {FOVEA_SCALE_GROUP_BLOCK, 16},
    {FOVEA_SCALE_GROUP_BLOCK, 32},     {FOVEA_SCALE_GROUP_BLOCK, 64},
    {FOVEA_SCALE_GROUP_BLOCK, 128},    {FOVEA_SCALE_GROUP_BLOCK, 192},
    {FOVEA_SCALE_GROUP_BLOCK, 1024},   {FOVEA_SCALE_GROUP_THREAD_Q, 16},
    {FOVEA_SCALE_GROUP_THREAD_Q, 32},  {FOVEA_SCALE_GROUP_THREAD_Q, 64},
    {FOVEA_SCALE_GROUP_THREAD_Q, 128}, {FOVEA_SCALE_GROUP_THREAD_K, 64},
    {FOVEA_SCALE_GROUP_THREAD_K, 128}, {FOVEA_SCALE_GROUP_TOKEN, 0},
    {FOVEA_SCALE_GROUP_CHANNEL, 0}};

// Every format with every group that goes with it, over tails, means, places and layouts.
void add_groups(QuantizeCases& cases) {
  const int64_t lengths[] = {129, 1, 63, 64, 65, 127, 390};
  const int64_t widths[] = {128, 40, 64, 72, 96, 2};
  int i = 0;
  const auto vary = [&](QuantizeCase c) {
    c.dtype = kDtypes[i % 3], c.s = lengths[i % 7], c.d = widths[(i + i / 6) % 6], c.h = 1 + i % 2;
    c.smooth = (i + i / 5) % 3, c.hadamard = i % 4 == 1, c.lay = kLays[(i + i / 7) % 5];
    c.packed = i % 3 == 1, c.b = c.packed ? 3 : 1 + i % 2, c.spare = c.packed && i % 2 ? 70 : 0;
    if (c.group < kMicro16T) {
      c.code_t = i % 4 < 2, c.code = i % 4 != 1;
    }
    c.permuted = c.code_t && i % 2;
    cases.add(c);
    if (i % 2) cases.back(c, kDtypes[(i + i / 3) % 3]);
    ++i;
  };
  for (int pass = 0; pass < 2; ++pass) {
    for (const GroupOf& group : kGroupsOf8)
      for (int kind = 0; kind < 3; ++kind) {
        QuantizeCase c;
        c.group = group.group, c.block = group.block;
        c.code_dtype = kind == 1 ? FOVEA_I8 : FOVEA_E4M3;
        c.format = kind == 2 ? FOVEA_CODE_FORMAT_I4 : FOVEA_CODE_FORMAT_DTYPE;
        c.scale_max = kind == 0 && pass ? 2.25f : 0;
        vary(c);
      }
    for (int group = kMicro16; group <= FOVEA_SCALE_GROUP_MICRO32_T; ++group)
      for (int twice = 0; twice < 3; ++twice) {
        QuantizeCase c;
        c.group = group, c.format = FOVEA_CODE_FORMAT_E2M1;
        if (group >= kMicro16T) c.code = false, c.code_t = true;
        vary(c);
      }
  }
}

void add_contents(QuantizeCases& cases) {
  for (Content content : {Content::zeros, Content::outliers, Content::huge, Content::tiny,
                          Content::subnormal, Content::nan, Content::infinite}) {
    for (int64_t d : {40, 128}) {
      QuantizeCase c;
      c.content = content, c.d = d, c.s = 140, c.block = d == 40 ? 0 : 64, c.code_t = true;
      c.permuted = d == 40, c.dtype = FOVEA_F16;
      cases.add(c);
      c.code_dtype = FOVEA_I8, c.dtype = FOVEA_F32, c.smooth = d == 40;
      cases.add(c);
    }
    for (int group : {FOVEA_SCALE_GROUP_THREAD_Q, FOVEA_SCALE_GROUP_THREAD_K,
                      FOVEA_SCALE_GROUP_TOKEN, FOVEA_SCALE_GROUP_CHANNEL}) {
      QuantizeCase c;
      c.content = content, c.d = 64, c.s = 140, c.group = group, c.dtype = FOVEA_BF16;
      c.block = group < FOVEA_SCALE_GROUP_TOKEN ? 64 : 0;
      c.format = group % 2 ? FOVEA_CODE_FORMAT_I4 : FOVEA_CODE_FORMAT_DTYPE;
      cases.add(c), cases.back(c, FOVEA_F32);
    }
    for (int group = kMicro16; group <= FOVEA_SCALE_GROUP_MICRO32_T; ++group) {
      QuantizeCase c;
      c.content = content, c.d = 72, c.s = 140, c.group = group;
      c.format = FOVEA_CODE_FORMAT_E2M1, c.code = group < kMicro16T, c.code_t = !c.code;
      cases.add(c), cases.back(c, FOVEA_F32);
    }
  }
}

void add_deltas(QuantizeCases& cases) {
  for (int i = 0; i < 8; ++i) {
    QuantizeCase c;
    c.format = i % 2 ? FOVEA_CODE_FORMAT_E2M1 : FOVEA_CODE_FORMAT_I4;
    c.group = i % 2 ? kMicro16 : static_cast<int>(FOVEA_SCALE_GROUP_THREAD_Q);
    c.block = i % 2 ? 0 : 16;
    c.smooth = FOVEA_SMOOTH_BLOCK, c.dtype = kDtypes[i % 3], c.s = i % 4 == 3 ? 60 : 260;
    c.h = 4, c.g = 2, c.d = i % 3 == 1 ? 40 : 128, c.keys = i % 4 == 2 ? 67 : 200;
    c.k_mean = i % 2 == 0, c.packed = i % 4 >= 2, c.packed_keys = i % 3 == 2;
    c.b = c.packed || c.packed_keys ? 3 : 2, c.lay = kLays[i % 5];
    cases.add(c);
  }
}

// The tuned way back: every format and kind of group.
void add_tuned_back(QuantizeCases& cases) {
  int i = 0;
  const auto tuned = [&](QuantizeCase c) {
    c.note = "tuned", c.s = 150, c.d = i % 2 ? 72 : 128, c.smooth = i % 3, c.h = 3;
    c.packed = i % 4 == 1, c.b = c.packed ? 3 : 1, c.lay = i % 2 ? Lay::gaps : Lay::contiguous;
    const int dtype = kDtypes[i++ % 3];
    cases.back(c, dtype, false, "rows." + std::string(dtype_name(dtype)));
  };
  for (const GroupOf& group : kGroupsOf8) {
    QuantizeCase c;
    c.group = group.group, c.block = group.block;
    c.code_dtype = i % 2 ? FOVEA_I8 : FOVEA_E4M3;
    c.format = i % 3 ? FOVEA_CODE_FORMAT_DTYPE : FOVEA_CODE_FORMAT_I4;
    tuned(c);
  }
  for (int group : {kMicro16, kMicro16 + 1}) {
    QuantizeCase c;
    c.group = group, c.format = FOVEA_CODE_FORMAT_E2M1;
    tuned(c);
  }
}

// The tuned kernel.
void add_tuned(QuantizeCases& cases) {
  const auto tuned = [&](const QuantizeCase& c) {
    cases.add(c, "tile." + std::string(dtype_name(c.dtype)) + ".d" + std::to_string(c.d));
  };
  for (int64_t d : {64, 128, 256})
    for (int64_t block : {0, 64, 128})
      for (int dtype : kDtypes) {
        QuantizeCase c;
        c.note = "tuned";
        c.dtype = dtype, c.s = 200, c.h = 3, c.d = d, c.block = block;
        c.code_t = dtype != FOVEA_F32, c.permuted = dtype == FOVEA_BF16;
        c.code = dtype != FOVEA_BF16, c.hadamard = block == 64;
        c.packed = block == 128 && dtype != FOVEA_F16, c.b = c.packed ? 4 : 2;
        c.lay = dtype == FOVEA_F16 ? Lay::gaps : Lay::contiguous;
        tuned(c);
      }
  int i = 0;
  for (int64_t d : {64, 128, 256})
    for (const GroupOf& group : kGroupsOf8)
      for (int dtype : {FOVEA_F16, FOVEA_BF16}) {
        QuantizeCase c;
        c.note = "tuned";
        c.dtype = dtype, c.group = group.group, c.block = group.block, c.d = d;
        c.code_dtype = i % 3 ? FOVEA_I8 : FOVEA_E4M3, c.s = i % 5 ? 300 : 129 + i % 7;
        c.smooth = (i + i / 4) % 3, c.code_t = i % 4 == 1, c.code = i % 8 != 1;
        c.permuted = c.code_t && c.smooth != FOVEA_SMOOTH_BLOCK, c.packed = i % 6 == 2,
        c.b = c.packed ? 3 : 1;
        c.hadamard = i % 7 == 3, c.scale_max = i % 9 == 3 ? 2.25f : 0;
        tuned(c), ++i;
        c.format = FOVEA_CODE_FORMAT_I4, c.code = true, c.code_t = c.permuted = false;
        c.code_dtype = FOVEA_E4M3, c.scale_max = 0;
        if (i % 2) tuned(c);
      }
  for (int64_t d : {64, 128, 256})
    for (int group : {kMicro16, kMicro16 + 1})
      for (int dtype : {FOVEA_F16, FOVEA_BF16}) {
        QuantizeCase c;
        c.note = "tuned";
        c.dtype = dtype, c.group = group, c.d = d, c.format = FOVEA_CODE_FORMAT_E2M1;
        c.s = 129 + i % 7, c.smooth = i % 3, c.packed = i % 4 == 1, c.b = c.packed ? 3 : 1;
        c.content = i % 2 ? Content::normal : Content::nan;
        tuned(c), ++i;
      }
}

std::vector<harness::Case> quantize_cases() {
  QuantizeCases cases;
  add_plain(cases), add_groups(cases), add_contents(cases), add_deltas(cases), add_tuned(cases);
  add_tuned_back(cases);
  QuantizeCase c;
  c.note = "small";
  cases.add(c, "", true);
  c.code_t = c.permuted = true, c.block = 64, c.s = 20, c.hadamard = true, c.b = 1, c.h = 1,
  c.d = 4;
  cases.add(c, "", true);
  c = {};
  c.note = "small", c.format = FOVEA_CODE_FORMAT_I4, c.smooth = FOVEA_SMOOTH_SEQUENCE;
  c.group = FOVEA_SCALE_GROUP_THREAD_K, c.block = 64;
  cases.add(c, "", true), cases.back(c, FOVEA_F32, true);
  c = {};
  c.note = "small", c.format = FOVEA_CODE_FORMAT_E2M1, c.group = kMicro16, c.d = 32;
  cases.add(c, "", true), cases.back(c, FOVEA_BF16, true);
  c = {};
  c.note = "edge", c.code_t = c.permuted = true, c.block = 64, c.s = 0, c.d = 4, c.b = c.h = 1;
  cases.add(c);
  c.smooth = FOVEA_SMOOTH_BLOCK;
  cases.add(c), cases.back(c, FOVEA_F32);
  c.smooth = FOVEA_SMOOTH_SEQUENCE, c.block = 0, c.group = FOVEA_SCALE_GROUP_CHANNEL;
  cases.add(c);
  c.smooth = FOVEA_SMOOTH_NONE, c.group = FOVEA_SCALE_GROUP_BLOCK;
  cases.add(c);
  c.h = 0, c.s = 3;
  cases.add(c), cases.back(c, FOVEA_F32);
  return cases.list;
}

const Family kFamily("quantize", quantize_cases);

}  // namespace

}  // namespace cases
