// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// What the comments of conv_attention.h say of its numbers.
TEST(ContractConvAttention, NumbersAndExtents) {
  for (const std::string op : {"conv_attention_forward", "conv_attention_backward"}) {
    const Params call = valid(op.c_str(), "plain").params;
    const auto taps = [&](int axis, int64_t extent) {
      Params p = call;
      resize(p["weight"], axis, extent);
      if (op == "conv_attention_backward") resize(p["dweight"], axis, extent);
      return p;
    };
    says(taps(1, 17), op + ": weight.shape[1] (kernel_rows) is 17, wanted 1 .. 16");
    says(taps(1, 0), op + ": weight.shape[1] (kernel_rows) is 0, wanted 1 .. 16");
    says(taps(2, 32), op + ": weight.shape[2] (kernel_columns) is 32, wanted 1 .. 31");
    says(taps(2, 0), op + ": weight.shape[2] (kernel_columns) is 0, wanted 1 .. 31");
    says(with(call, "causal", 2), op + ": causal is 2, wanted 0 or 1");
    for (const char* field : {"query_max", "key_max", "history"})
      refuses(with(call, field, -1), field);
    says(with(call, "history", 4),
         op + ": history is 4 in 1 sequences, wanted at most the 3 rows of q");
    says(with(call, "history", 1),
         op + ": o.shape[1] (rows_out) is 3, wanted 2: the 3 rows of q.shape[1] less 1 of history");
    refuses(with(call, "history", INT64_MAX), "history");
    const Params packed = valid(op.c_str(), "packed").params;
    says(with(packed, "history", 2),
         op + ": history is 2 in 2 sequences, wanted at most the 3 rows of q");
    refuses(with(packed, "history", INT64_MAX), "history");
    Params p = call;
    for (const float bad : {-1.0f, HUGE_VALF, NAN}) {
      p.at<float>(p.op().find("scale")->offset) = bad;
      refuses(p, "scale");
    }
    p = call;
    p["weight"].dtype = FOVEA_F16;
    refuses(p, "weight.dtype");
  }
  refuses(with(valid("conv_attention_forward", "plain").params, "splits", -1), "splits");
  refuses(with(valid("conv_attention_backward", "plain").params, "nondeterministic", 2),
          "nondeterministic");
}

}  // namespace
}  // namespace contract
