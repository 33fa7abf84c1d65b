// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

constexpr char kOp[] = "x_quantised_forward";

TEST(ContractQuantised, Numbers) {
  const Call plain_call = valid(kOp, "plain"), codes_call = valid(kOp, "plain_v");
  const Params &plain = plain_call.params, &codes = codes_call.params;
  const std::string op = "x_quantised_forward: ";
  for (const int64_t bad : {-1, 4})
    says(with(plain, "code", bad),
         op + "code is " + std::to_string(bad) + ", wanted E4M3, I8, I4 or E2M1 of fovea_x_code");
  for (const int64_t bad : {-1, 2, 5})
    says(with(plain, "v_code", bad), op + "v_code is " + std::to_string(bad) +
                                         ", wanted E4M3, I8, E2M1 or PLAIN of fovea_x_code");
  says(with(plain, "q_smooth", 1), op + "q_smooth is 1, wanted NONE or BLOCK of fovea_smooth");
  says(with(plain, "k_smooth", 2), op + "k_smooth is 2, wanted NONE or SEQUENCE of fovea_smooth");
  says(with(codes, "v_group", 4), op + "v_group is 4 with v_code PLAIN, wanted 0");
  says(with(codes, "v_block", 64), op + "v_block is 64 with v_code PLAIN, wanted 0");
  says(with_number(codes, "v_scale_max", 2.25f),
       op + "v_scale_max is 2.25 with v_code PLAIN, wanted 0");
  for (const char* field : {"query_max", "key_max", "window_left", "window_right"})
    refuses(with(plain, field, -1), field);
  for (const char* field : {"hadamard", "causal", "p_format", "accumulate", "reserved"})
    refuses(with(plain, field, 9), field);
}

// A part's refusal has the part's name behind the program's.
TEST(ContractQuantised, Parts) {
  const Call plain_call = valid(kOp, "plain");
  const Params& plain = plain_call.params;
  says(with(plain, "k_block", 3),
       "x_quantised_forward: quant_quantize: block is 3, wanted 0, 16, 32 or a multiple of 64");
  says(with(plain, "seed", 3),
       "x_quantised_forward: quant_quantize: seed is 3 without hadamard, wanted 0");
}

// Lists are quant_forward's.
TEST(ContractQuantised, Lists) {
  const Call lists = valid(kOp, "lists"), plain = valid(kOp, "plain");
  const std::string op = "x_quantised_forward: quant_forward: ";
  says(with(lists.params, "block_keys", 32), op + "block_keys is 32, wanted a multiple of 64");
  says(with_number(plain.params, "skip_margin", 2),
       op + "skip_margin is 2 without index, wanted 0");
  says(without(lists.params, {"index"}), op + "index_count is given without index, wanted both");
}

TEST(ContractQuantised, Gradients) {
  constexpr char of[] = "x_quant_backward";
  const Call plain_call = valid(of, "plain"), packed_call = valid(of, "packed");
  const Params& plain = plain_call.params;
  const std::string op = "x_quant_backward: ";
  for (const int64_t bad : {-1, 2})
    says(with(plain, "k_smooth", bad),
         op + "k_smooth is " + std::to_string(bad) + ", wanted NONE or SEQUENCE of fovea_smooth");
  for (const char* field : {"query_max", "key_max", "window_left", "window_right"})
    says(with(plain, field, -1), op + field + " is -1, wanted >= 0");
  says(with(plain, "causal", 2), op + "causal is 2, wanted 0 or 1");
  says(with(with(plain, "causal", 1), "window_right", 3),
       op + "window_right is 3 with causal = 1, wanted 0 or 1");
  refuses(with(plain, "reserved", 9), "reserved");
  for (const float bad : {-1.f, NAN, HUGE_VALF}) refuses(with_number(plain, "scale", bad), "scale");
  for (const char* one : {"dq", "dk", "dv", ""}) {
    Call call({of, "", one, ""});
    accepts(call.params);
  }
  for (const char* letter : {"d", "e"}) {
    const std::string extent = letter;
    Call none({of, "", "dq dk dv", extent + "=0"}), most({of, "", "dq dk dv", extent + "=576"}),
        wide({of, "", "dq dk dv", extent + "=577"});
    refuses(none.params, "shape[3]");
    accepts(most.params);
    refuses(wide.params, "577", FOVEA_UNSUPPORTED);
  }
  accepts(packed_call.params);
}

}  // namespace
}  // namespace contract
