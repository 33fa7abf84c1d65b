// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// What the comments of quant.h say of its numbers.
TEST(ContractQuant, NumbersAndWhatGoesTogether) {
  const Params quantize = valid("quant_quantize", "plain").params;
  says(with(quantize, "block", 48),
       "quant_quantize: block is 48, wanted 0, 16, 32 or a multiple of 64");
  says(with(quantize, "block", -64),
       "quant_quantize: block is -64, wanted 0, 16, 32 or a multiple of 64");
  says(with(with(quantize, "group", 1), "block", 192),
       "quant_quantize: block is 192, wanted 16, 32, 64 or 128 with group thread_q");
  says(with(with(quantize, "group", 2), "block", 16),
       "quant_quantize: block is 16, wanted 64 or 128 with group thread_k");
  says(with(with(quantize, "group", 4), "block", 64),
       "quant_quantize: block is 64, wanted 0 with group channel");
  says(with(quantize, "group", 9), "quant_quantize: group is 9, wanted a fovea_scale_group");
  says(with(quantize, "code_format", 3),
       "quant_quantize: code_format is 3, wanted a fovea_code_format");
  says(with(quantize, "smooth", 3), "quant_quantize: smooth is 3, wanted a fovea_smooth");
  says(with(quantize, "smooth", 1),
       "quant_quantize: mean.data is NULL with smooth 1, wanted a tensor (b, h, means, d)");
  says(with(quantize, "group", 5),
       "quant_quantize: group is micro16 with code_format 0, wanted code_format 2 (e2m1): the "
       "others "
       "go with block, thread_q, thread_k, token and channel");
  says(with(quantize, "code_format", 2),
       "quant_quantize: group is block with code_format 2, wanted micro16, micro32, micro16_t or "
       "micro32_t: e2m1 goes with these alone");
  says(with(quantize, "code_format", 1),
       "quant_quantize: code.dtype is e4m3, wanted u8 with code_format 1");
  says(with(quantize, "hadamard", 2), "quant_quantize: hadamard is 2, wanted 0 or 1");
  says(with(quantize, "seed", 5), "quant_quantize: seed is 5 without hadamard, wanted 0");
  says(with(quantize, "code_order", 2),
       "quant_quantize: code_order is 2, wanted a fovea_code_order");
  Params p = quantize;
  p["code"].data = p["code_t"].data = nullptr;
  says(p, "quant_quantize: code.data and code_t.data are NULL, wanted one of them or both");
  p = quantize, p["code_t"].data = nullptr;
  says(with(p, "code_order", 1), "quant_quantize: code_order is 1 without code_t, wanted 0");
  p = quantize, p["code_t"].dtype = FOVEA_I8;
  says(p, "quant_quantize: code_t.dtype is i8, wanted e4m3 as in code");
  p = quantize, p["code"].dtype = FOVEA_U8;
  says(p, "quant_quantize: code.dtype is u8, wanted e4m3 or i8 with code_format 0");
  p = quantize, p["scale"].dtype = FOVEA_U8;
  says(p, "quant_quantize: scale.dtype is u8, wanted f32 with group block");
  p = quantize, p.at<float>(p.op().find("scale_max")->offset) = 0.3f;
  says(p,
       "quant_quantize: scale_max is 0.3, wanted a positive number that e4m3 holds, or 0 for 448");
  p["code"].dtype = p["code_t"].dtype = FOVEA_I8;
  says(p, "quant_quantize: scale_max is 0.3, wanted 0 but with e4m3 codes");
  p = quantize, resize(p["code"], 3, 4);
  says(p, "quant_quantize: code.shape[3] (code_d) is 4, wanted 8 with x's d = 8 and code_format 0");
  p = quantize, resize(p["scale"], 2, 2);
  says(p, "quant_quantize: scale.shape[2] (n) is 2, wanted 1");

  const Params smooth = valid("quant_quantize", "smooth").params;
  says(with(smooth, "smooth", 1),
       "quant_quantize: delta is given with smooth 1, wanted smooth 2 (block)");
  says(with(smooth, "smooth", 0),
       "quant_quantize: mean is given with smooth 0, wanted both or none");
  says(with(smooth, "hadamard", 1),
       "quant_quantize: delta is given with hadamard, wanted one of them");
  p = smooth, p["delta"].data = nullptr;
  says(p, "quant_quantize: k is given without delta");
  p = smooth, p["k"].data = p["k_mean"].data = nullptr;
  says(p, "quant_quantize: delta is given without k");
  p = smooth, p["k"].data = nullptr;
  says(p, "quant_quantize: k_mean is given without k");
  p = smooth, p["k"].shape[2] = p["k_mean"].shape[1] = 3;
  says(p, "quant_quantize: k.shape[2] (g) is 3, wanted a divisor of x's 4 heads");
  p = smooth, resize(p["mean"], 2, 2);
  says(p, "quant_quantize: mean.shape[2] (means) is 2, wanted 1");

  const Params micro = valid("quant_quantize", "micro").params;
  says(with(micro, "group", 7),
       "quant_quantize: group is micro16_t with code, wanted code_t alone");
  says(with(micro, "group", 6),
       "quant_quantize: scale.dtype is e4m3, wanted u8 with group micro32");

  const Params back = valid("quant_dequantize", "plain").params;
  p = back, p["code"].data = nullptr;
  says(p, "quant_dequantize: code.data and code_t.data are both NULL, wanted one of them");
  says(with(back, "seed", 5), "quant_dequantize: seed is 5 without hadamard, wanted 0");

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

// Pages of quant_forward: a row of scales, means or transposed codes is that of a page.
TEST(ContractQuant, Pages) {
  const Call call = valid("quant_forward", "paged");
  const Params& paged = call.params;
  const std::string op = "quant_forward: ";
  accepts(paged);
  Params p = paged;
  resize(p["k_scale"], 2, 2);
  says(p, op + "k_scale.shape[2] (k_blocks) is 2, wanted 1");
  p = paged, p["v_t"].shape[3] = 256;
  says(p, op + "v_t.shape[3] (padded) is 256, wanted 128");
  p = paged, p["v_mean"].shape[2] = 2;
  says(p, op + "v_mean.shape[2] (v_means) is 2, wanted 1");
  for (const char* name : {"v_t", "k_scale", "v_scale", "k_mean", "v_mean"}) {
    p = paged, p[name].shape[0] += 1;
    refuses(p, "pool");
  }
  p = paged, p["k"].shape[1] = 0;
  says(p, op + "k.shape[1] (page) is 0, wanted >= 1");
  const Call packed = valid("quant_forward", "packed"), all = valid("quant_forward", "all");
  Params other = packed.params;
  for (const char* name : {"page_table", "cache_row"}) {
    p = other, p[name] = Params(paged)[name], p[name].shape[0] = 2;
    says(p, op + "key_start is given with " + name + ", wanted one of them");
  }
  other = all.params;
  for (const char* name : {"q_plain", "delta", "index"}) {
    p = paged, p[name] = other[name];
    says(p, op + name + " is given with page_table, wanted one of them");
  }
}

// Lists of quant_forward.
TEST(ContractQuant, Lists) {
  const Call all_call = valid("quant_forward", "all"), packed = valid("quant_forward", "lists");
  const Params &all = all_call.params, &lists = packed.params;
  const std::string op = "quant_forward: ";
  for (const int64_t bad : {0, -1, 129})
    says(with(lists, "block_rows", bad),
         op + "block_rows is " + std::to_string(bad) + ", wanted 1 .. 128");
  for (const int64_t bad : {0, -64, 65600})
    says(with(lists, "block_keys", bad),
         op + "block_keys is " + std::to_string(bad) + ", wanted 1 .. 65536");
  says(with(lists, "block_keys", 96), op + "block_keys is 96, wanted a multiple of 64");
  says(with(lists, "entry_keys", 32), op + "entry_keys is 32, wanted a multiple of 64");
  says(with(lists, "entry_keys", 128), op + "entry_keys is 128, wanted 1 .. 64");
  accepts(with(lists, "entry_keys", 64));
  Params p = lists;
  for (const char* name : {"index", "index_count"}) resize(p[name], 2, 2);
  says(p, op + "the lists have 2 rows (n), wanted at least 3: 3 rows of q in blocks of 2, and one "
               "more for each sequence");
  p = all, p["index"].data = nullptr;
  says(p, op + "index_count is given without index, wanted both");
  p["index_count"].data = nullptr;
  says(p, op + "block_rows is 2, wanted 0 without a list");
  says(with(p, "block_rows", 0), op + "block_keys is 64, wanted 0 without index");
  p = with(with(p, "block_rows", 0), "block_keys", 0);
  says(p, op + "skipped is given without index, wanted both");
  p["skipped"].data = nullptr;
  accepts(p);
  says(with_number(p, "skip_margin", 2), op + "skip_margin is 2 without index, wanted 0");
  accepts(with_number(all, "skip_margin", 2));
  for (const float bad : {-1.0f, HUGE_VALF, NAN})
    refuses(with_number(all, "skip_margin", bad), "skip_margin");
}

}  // namespace
}  // namespace contract
