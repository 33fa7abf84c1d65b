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
  says(with(forward, "q_block", 16), "quant_forward: q_block is 16, wanted 0, 64 or 128");
  says(with(forward, "k_block", -64), "quant_forward: k_block is -64, wanted 0, 64 or 128");
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

}  // namespace
}  // namespace contract
