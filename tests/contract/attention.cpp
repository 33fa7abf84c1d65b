// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// Codes, and positions by numbers.
TEST(ContractAttention, CodesAndAxis) {
  const Call codes = valid("attention_forward", "codes");
  accepts(codes.params);
  Params p = codes.params;
  p["k_scale"].shape[3] = p["v_scale"].shape[3] = 3;
  says(p,
       "attention_forward: k_scale.shape[3] (groups) is 3, wanted a divisor of the 8 columns of k");
  p["k_scale"].shape[3] = p["v_scale"].shape[3] = 4;
  says(p,
       "attention_forward: v_scale.shape[3] (groups) is 4, wanted a divisor of the 6 columns of v");
  p = codes.params;
  p["k"].dtype = p["q"].dtype;
  says(p, "attention_forward: k.dtype is f32 with k_scale, wanted e4m3, e5m2 or i8");
  p = codes.params;
  p["v"].dtype = p["q"].dtype;
  says(p, "attention_forward: v.dtype is f32 with v_scale, wanted e4m3, e5m2 or i8");
  p = codes.params;
  p["v"].dtype = FOVEA_U8;
  says(p, "attention_forward: v.dtype is u8, wanted f32 as in q or e4m3 or e5m2 or i8");

  const Call half = valid("attention_forward", "half");
  const Params& forward = half.params;
  for (const int64_t step : {int64_t{-1}, int64_t{1} << 31, INT64_MAX})
    refuses(with(forward, "key_step", step), "key_step");
  for (const int64_t shift : {int64_t{1} << 31, -(int64_t{1} << 31), INT64_MAX, INT64_MIN})
    refuses(with(forward, "key_shift", shift), "key_shift");
  says(with(forward, "key_step", -1), "attention_forward: key_step is -1, wanted 0 .. 2^31 - 1");
  says(with(forward, "key_shift", int64_t{1} << 31),
       "attention_forward: key_shift is 2147483648, wanted it within 2^31 of 0");
  accepts(with(with(forward, "key_step", INT32_MAX), "key_shift", -INT32_MAX));
  const Call packed = valid("attention_forward", "packed");
  const Params& positions = packed.params;
  says(with(positions, "key_step", 2),
       "attention_forward: key_step is 2 with key_position, wanted one of them");
  says(with(positions, "key_shift", -3),
       "attention_forward: key_shift is -3 with key_position, wanted one of them");
  accepts(with(positions, "key_step", 1));
  p = valid("attention_forward", "options").params;
  p["context_len"] = p["query_len"];
  says(p, "attention_forward: context_len is given with query_position, wanted one of them");
}

// dq, dk and dv are as q or f32, whatever the others are.
TEST(ContractAttention, GradientsInF32) {
  const Call call = valid("attention_backward", "half");
  accepts(call.params);
  for (const char* name : {"dq", "dk", "dv"}) {
    Params p = call.params;
    p[name].dtype = FOVEA_F32;
    accepts(p);
    p[name].dtype = FOVEA_F16;
    says(p,
         std::string("attention_backward: ") + name + ".dtype is f16, wanted bf16 as in q or f32");
  }
}

}  // namespace
}  // namespace contract
