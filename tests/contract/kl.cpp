// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// What the comments of kl.h say of its numbers.
TEST(ContractKl, NumbersAndWhatGoesTogether) {
  const Call plain_call = valid("kl_forward", "plain"),
             backward_call = valid("kl_backward", "total");
  const Params plain = plain_call.params;
  accepts(with(plain, "direction", 1));
  says(with(plain, "direction", 2), "kl_forward: direction is 2, wanted a fovea_direction");
  says(with(plain, "mean", 1), "kl_forward: mean is 1 without total, wanted 0");
  refuses(with(plain, "mean", 2), "mean");
  refuses(with(plain, "causal", 2), "causal");
  refuses(with(plain, "sink_keys", 1), "sink_keys");
  for (const char* field : {"query_max", "key_max", "window_left", "window_right", "sink_keys"})
    refuses(with(plain, field, -1), field);
  Params p = plain;
  for (const char* field : {"kl", "lse_teacher", "lse_student"}) p[field].data = nullptr;
  says(p,
       "kl_forward: kl, lse_teacher, lse_student and total are all absent, wanted one of them at "
       "least");
  for (const char* field : {"scale_teacher", "scale_student"}) {
    p = plain, p.at<float>(p.op().find(field)->offset) = -1;
    refuses(p, field);
  }
  p = plain, p["k_student"].shape[2] = 3;
  says(p, "kl_forward: k_student.shape[2] (x) is 3, wanted a divisor of the 4 heads");
  p = plain, p["k_teacher"].shape[2] = 0;
  refuses(p, "k_teacher.shape");
  p = plain, p["q_student"].shape[3] = p["k_student"].shape[3] = 577;
  for (int i = 0; i < 3; ++i) p["q_student"].stride[i] = p["k_student"].stride[i] = 577;
  refuses(p, "q_student.shape", FOVEA_UNSUPPORTED);
  p = valid("kl_forward", "total").params, p["total"].data = nullptr;
  says(p, "kl_forward: row_weight is given without total: it weighs nothing else");
  refuses(with(valid("kl_forward", "total").params, "causal", 1), "head_window");

  const Params backward = backward_call.params;
  accepts(with(backward, "nondeterministic", 1));
  refuses(with(backward, "nondeterministic", 2), "nondeterministic");
  p = backward, p["dtotal"].data = nullptr;
  says(p, "kl_backward: row_weight is given without dtotal: it weighs nothing else");
  p["row_weight"].data = nullptr;
  accepts(p);
  says(with(p, "mean", 1), "kl_backward: mean is 1 without dtotal, wanted 0");
  p["dkl"].data = nullptr;
  says(p, "kl_backward: dkl and dtotal are both absent, wanted one of them or both");
}

// What the comments of experimental/kl.h say of its numbers.
TEST(ContractKlExperimental, JensenShannon) {
  for (const std::string op : {"x_kl_jensen_shannon_forward", "x_kl_jensen_shannon_backward"}) {
    const Call call = valid(op.c_str(), "plain");
    const Params plain = call.params;
    Params p = plain;
    const auto number = [&](const char* field, float value) {
      p = plain, p.at<float>(p.op().find(field)->offset) = value;
    };
    number("weight", 1);
    says(p, op + ": weight is 1, wanted between 0 and 1, or 0 for 0.5");
    for (const float bad : {-0.5f, HUGE_VALF, NAN}) {
      for (const char* field : {"weight", "scale_teacher", "scale_student"}) {
        number(field, bad);
        refuses(p, field);
      }
    }
    number("weight", 0.25f);
    accepts(p);
    refuses(with(plain, "causal", 2), "causal");
    for (const char* field : {"query_max", "key_max", "window_left", "window_right", "sink_keys"})
      refuses(with(plain, field, -1), field);
  }
  const Call call = valid("x_kl_jensen_shannon_forward", "plain");
  Params p = call.params;
  for (const char* field : {"js", "kl_teacher", "kl_student", "lse_teacher", "lse_student"})
    p[field].data = nullptr;
  refuses(p, "js");
  p = call.params, p["k_student"].shape[2] = 3;
  says(p,
       "x_kl_jensen_shannon_forward: k_student.shape[2] (x) is 3, wanted a divisor of the 4 heads");
}

TEST(ContractKlExperimental, Indexer) {
  for (const std::string op : {"x_kl_indexer_forward", "x_kl_indexer_backward"}) {
    const Call call = valid(op.c_str(), "plain");
    const Params plain = call.params;
    refuses(with(plain, "causal", 2), "causal");
    refuses(with(plain, "sink_keys", 1), "sink_keys");
    for (const char* field : {"query_max", "key_max", "window_left", "window_right", "sink_keys"})
      refuses(with(plain, field, -1), field);
    Params p = plain;
    p.at<float>(p.op().find("scale_teacher")->offset) = -1;
    refuses(p, "scale_teacher");
    p = plain, p["k_student"].shape[2] = 2;
    refuses(p, "k_student.shape");
    p = plain, p["k_teacher"].shape[2] = 3;
    says(p, op + ": k_teacher.shape[2] (g) is 3, wanted a divisor of the 4 heads");
  }
  const Call call = valid("x_kl_indexer_forward", "plain");
  Params p = call.params;
  for (const char* field : {"kl", "lse_teacher", "lse_student"}) p[field].data = nullptr;
  refuses(p, "kl");
  p = call.params;
  p["q_student"].shape[2] = p["weight"].shape[2] = 0;
  says(p, "x_kl_indexer_forward: q_student.shape[2] (x) is 0, wanted >= 1");
}

TEST(ContractKlExperimental, Gather) {
  for (const std::string op : {"x_kl_gather_forward", "x_kl_gather_backward"}) {
    const Call call = valid(op.c_str(), "plain");
    const Params plain = call.params;
    for (const char* field : {"query_max", "key_max"}) refuses(with(plain, field, -1), field);
    for (const char* field : {"scale_teacher", "scale_student"}) {
      Params p = plain;
      p.at<float>(p.op().find(field)->offset) = -1;
      refuses(p, field);
    }
    Params p = plain;
    p["k_student"].shape[2] = 3;
    refuses(p, "x");
    p = plain, p["index"].stride[1] = 0;
    accepts(p);
  }
  const Call call = valid("x_kl_gather_forward", "plain");
  Params p = call.params;
  for (const char* field : {"kl", "lse_teacher", "lse_student"}) p[field].data = nullptr;
  refuses(p, "kl");
}

TEST(ContractKlExperimental, Pool) {
  for (const std::string op : {"x_kl_pool_forward", "x_kl_pool_backward"}) {
    const Call call = valid(op.c_str(), "packed");
    const Params plain = call.params;
    accepts(with(plain, "pool", 1));
    says(with(plain, "pool", 2), op + ": pool is 2, wanted a fovea_x_pool");
    says(with(plain, "block_keys", 1),
         op + ": k_student.shape[1] (u) is 5, wanted at least 7 blocks");
    accepts(with(plain, "block_keys", INT64_MAX));
    refuses(with(plain, "causal", 2), "causal");
    for (const char* field :
         {"query_max", "key_max", "window_left", "window_right", "sink_keys", "block_keys"})
      refuses(with(plain, field, -1), field);
    for (const char* field : {"scale_teacher", "scale_student"}) {
      Params p = plain;
      p.at<float>(p.op().find(field)->offset) = -1;
      refuses(p, field);
    }
  }
  const Call call = valid("x_kl_pool_forward", "plain");
  Params p = call.params;
  for (const char* field : {"kl", "lse_teacher", "lse_student"}) p[field].data = nullptr;
  refuses(p, "kl");
}

}  // namespace
}  // namespace contract
