// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// What the comments of quant.h say of its numbers.
TEST(ContractQuant, NumbersAndWhatGoesTogether) {
  const Params quantize = valid("quant_quantize", "plain").params;
  says(with(quantize, "block", 32), "quant_quantize: block is 32, wanted 0, 64 or 128");
  says(with(quantize, "hadamard", 2), "quant_quantize: hadamard is 2, wanted 0 or 1");
  says(with(quantize, "seed", 5), "quant_quantize: seed is 5 without hadamard, wanted 0");
  says(with(quantize, "code_order", 2),
       "quant_quantize: code_order is 2, wanted a fovea_code_order");
  Params p = quantize;
  p["code"].data = p["code_t"].data = nullptr;
  says(p, "quant_quantize: code.data and code_t.data are NULL, wanted one of them or both");
  p = quantize, p["code_t"].data = nullptr;
  says(with(p, "code_order", 1), "quant_quantize: code_order is 1 without code_t, wanted 0");
  p = quantize, resize(p["scale"], 2, 2);
  says(p, "quant_quantize: scale.shape[2] (n) is 2, wanted 1");

  const Params forward = valid("quant_forward", "scales").params;
  says(with(forward, "q_block", 48),
       "quant_forward: q_block is 48, wanted 0, 16, 32 or a multiple of 64");
  says(with(forward, "k_block", -64),
       "quant_forward: k_block is -64, wanted 0, 16, 32 or a multiple of 64");
  says(with(forward, "causal", 3), "quant_forward: causal is 3, wanted 0 or 1");
  says(with(with(forward, "causal", 1), "window_right", 2),
       "quant_forward: window_right is 2 with causal = 1, wanted 0 or 1");
  for (const char* field : {"query_max", "key_max", "window_left", "window_right"})
    refuses(with(forward, field, -1), field);
  p = forward, p["v_t"].data = nullptr;
  says(p, "quant_forward: v.data and v_t.data are both NULL, wanted one of them");
  p = forward, p["k_scale"].data = nullptr;
  says(with(p, "k_block", 64), "quant_forward: k_block is 64 without k_scale, wanted 0");
  p = forward, p["v_t"].shape[3] = 256;
  says(p, "quant_forward: v_t.shape[3] (padded) is 256, wanted 128");
  p = forward, p.at<float>(p.op().find("softcap")->offset) = -1;
  refuses(p, "softcap");
  p = forward, p.at<float>(p.op().find("scale")->offset) = -1;
  refuses(p, "scale");
  p = valid("quant_forward", "plain").params;
  says(with(p, "code_order", 1), "quant_forward: code_order is 1 without v_t, wanted 0");
  p["q"].shape[2] = p["o"].shape[2] = p["lse"].shape[1] = p["sink_logit"].shape[0] = 3;
  refuses(p, "k.shape");
}

// Formats, groups and means of quant_forward.
TEST(ContractQuant, MethodsOfForward) {
  const Params forward = valid("quant_forward", "scales").params;
  const auto wrong = [&](const char* name, int32_t value, const std::string& words) {
    says(with(forward, name, value), "quant_forward: " + words);
  };
  wrong("code_format", 3, "code_format is 3, wanted a fovea_code_format");
  wrong("v_format", -1, "v_format is -1, wanted a fovea_code_format");
  wrong("p_format", 6, "p_format is 6, wanted a fovea_p_format");
  wrong("accumulate", 3, "accumulate is 3, wanted a fovea_accumulate");
  wrong(
      "code_format", 1,
      "q is e4m3 with code_format = 1, wanted u8 for i4 and e2m1, and code_format = 0 for others");
  wrong("p_format", FOVEA_P_FORMAT_I8,
        "p_format is 3 with these values, wanted e4m3_256 or e4m3_448 with e4m3, half with f16 or "
        "bf16, i8 with i8, e2m1_two or e2m1_one with e2m1");
  wrong("accumulate", FOVEA_ACCUMULATE_HALF_64,
        "accumulate is half_64 with p_format = 0, wanted half or e4m3_448");
  wrong("q_group", FOVEA_SCALE_GROUP_THREAD_K,
        "q_group is 2, wanted block, thread_q, token, micro16 or micro32");
  wrong("k_group", FOVEA_SCALE_GROUP_THREAD_Q,
        "k_group is 1, wanted block, thread_k, token, micro16 or micro32");
  wrong("v_group", FOVEA_SCALE_GROUP_TOKEN,
        "v_group is 3, wanted block, channel, micro16_t or micro32_t");
  wrong("q_group", FOVEA_SCALE_GROUP_THREAD_Q,
        "q_block is 0 with q_group = 1, wanted the run: 16, 32 or a multiple of 64");
  wrong("k_group", FOVEA_SCALE_GROUP_MICRO16, "k_scale is f32 with k_group = 5, wanted e4m3");
  says(with(with(forward, "q_group", FOVEA_SCALE_GROUP_TOKEN), "q_block", 64),
       "quant_forward: q_block is 64 with q_group = 3, wanted 0");
  wrong("v_group", FOVEA_SCALE_GROUP_CHANNEL, "v_scale.shape[2] (v_blocks) is 1, wanted 6");
  Params p = forward;
  p["q_scale"].data = nullptr;
  says(with(p, "q_group", FOVEA_SCALE_GROUP_TOKEN),
       "quant_forward: q_group is 3 without q_scale, wanted 0");
  const Params all = valid("quant_forward", "all").params;
  p = all, p["k_mean"].data = nullptr;
  says(p, "quant_forward: q_plain is given without k_mean, wanted both or neither");
  p = all, p["q_plain"].data = nullptr;
  says(p, "quant_forward: k_mean is given with delta and without q_plain, wanted q_plain too");
  p = all, p["k_mean"].shape[2] = 2;
  says(p, "quant_forward: k_mean.shape[2] (means) is 2, wanted 1");
  p = all, p["delta"].shape[2] = 2;
  says(p, "quant_forward: delta.shape[2] (deltas) is 2, wanted 1");
  p = all, p["v_mean"].shape[2] = 2;
  says(p, "quant_forward: v_mean.shape[2] (v_means) is 2, wanted 1");
}

}  // namespace
}  // namespace contract
